"""Measure: what each run of a trace cost.

api        a trace -> tables
facts      what tasks count, each in a chunk of the trace
figures    what Spark adds up, and the columns of the tables that come out
tasks      which task follows the clocks of which run: by the scan of verification, which counts chains, too
"""
