"""The data pipeline on Spark: DataFrame in, DataFrame out.

session    a Spark to work on
storage    local paths and URIs
trace      a trace as DataFrames, and the files behind them

Importing this imports PySpark; importing `antecede` does not.
"""

from antecede.spark.session import connect
from antecede.spark.trace import SPARK_EVENTS, SPARK_RUNS, Trace

__all__ = ["connect", "Trace", "SPARK_EVENTS", "SPARK_RUNS"]
