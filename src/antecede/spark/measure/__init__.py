"""The figures of one run from one scan of its events: see `antecede.spark.measure` for all runs of a trace.

buckets   histograms, exact in their counts, and quantiles wrong by less than 1 %
tables    hash tables in plain arrays
scan      the kernel: what each event adds
state     the kernel's tables, which grow
figures   what a scan came to, as rows
passes    as many scans as it takes
"""
