"""Foreign logs: files, kernels that read them at native speed, what is known then. See `antecede.spark.ingest`."""
