"""The runs of an experiment on Spark, one task a run."""
