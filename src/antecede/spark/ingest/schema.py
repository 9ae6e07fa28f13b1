"""The columns of a log, as Spark has them: what `ingest` gives, and what `order` and the clocks' check take.

`vector` is the event's vector clock, entries of 0 left out; `index` its own entry less one. What a column means is said
in `antecede.trace.foreign.log`.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

__all__ = ["SPARK_LOG", "SPARK_READ", "SPARK_REJECTED"]

SPARK_LOG: Final = StructType(
    [
        StructField("run", StringType(), False),
        StructField("process", StringType()),
        StructField("index", LongType()),
        StructField("kind", StringType()),
        StructField("message", StringType()),
        StructField("vector", MapType(StringType(), LongType())),
        StructField("text", StringType()),
        StructField("fields", StringType()),
        StructField("file", StringType(), False),
        StructField("line", LongType()),
        StructField("time_ns", LongType()),
    ]
)

SPARK_READ: Final = StructType([*SPARK_LOG, StructField("reason", StringType())])
"""Events, and lines that could not be read: those have a reason."""

SPARK_REJECTED: Final = StructType(
    [
        StructField("run", StringType(), False),
        StructField("file", StringType(), False),
        StructField("line", LongType()),
        StructField("text", StringType()),
        StructField("reason", StringType()),
    ]
)
