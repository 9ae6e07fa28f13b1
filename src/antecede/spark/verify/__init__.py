"""Verification as a step on Spark: DataFrames in, DataFrames out. The algorithm is `antecede.verification`."""
