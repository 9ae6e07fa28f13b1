"""The tasks of a verification, and what they tell; `antecede.spark.verification` is the algorithm, without Spark."""
