"""A query from its start to its end: until it is stopped or, with `once`, until all is done that was there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["run"]

EMPTY: Final = "spark.sql.streaming.noDataMicroBatches.enabled"
POLL_S: Final = 1
"""Between two looks at whether to stop."""


def run(
    spark: SparkSession,
    writer: DataStreamWriter,
    *,
    once: bool,
    every_s: float,
    stop: Callable[[], bool],
    note: Callable[[Any], None],
) -> None:
    """Start what the writer describes and stay until its end. `note` gets what Spark reports of each micro-batch."""
    query = started(spark, writer, once, every_s)
    noted = ""
    try:
        ended = False
        while not ended:
            ended = bool(query.awaitTermination(POLL_S)) or stop()
            for progress in query.recentProgress:
                # By time: a look that finds nothing has the number of the micro-batch to come.
                if progress.timestamp > noted:
                    noted = progress.timestamp
                    note(progress)
    finally:
        query.stop()
    if (error := query.exception()) is not None:
        raise error


def started(spark: SparkSession, writer: DataStreamWriter, once: bool, every_s: float) -> StreamingQuery:
    if not once:
        return writer.trigger(processingTime=f"{every_s} seconds").start()
    # Else a query that has patience runs empty micro-batches for ever, and never has done all that is there. A query
    # keeps the settings of its start, so the session gets its own back.
    before = spark.conf.get(EMPTY)
    spark.conf.set(EMPTY, "false")
    try:
        return writer.trigger(availableNow=True).start()
    finally:
        spark.conf.set(EMPTY, str(before))
