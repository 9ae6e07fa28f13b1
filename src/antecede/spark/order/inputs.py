"""What can be put in order, found at a place: a trace, an ingested log, or a table.

a directory with `log/`           what `ingest` wrote: all its events, by the vectors of the log if it has any, else by
                                  the order of each process and the messages between them
a directory with `runs.parquet`   a trace, or a directory of results with one in `trace/`
Parquet, CSV, JSON Lines          a table, with all its columns (`antecede.spark.tables`)
a name                            a table of Spark's catalogue
"""

from __future__ import annotations

import os

from msgspec.structs import asdict, replace
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from antecede.errors import BadParameter
from antecede.spark.ingest.schema import SPARK_LOG
from antecede.spark.order.api import order
from antecede.spark.storage import absolute, escaped, files, join
from antecede.spark.stream.api import Asked
from antecede.spark.tables import read_table
from antecede.spark.trace.api import Trace

__all__ = ["default_partition", "order_path"]


def order_path(spark: SparkSession, path: str | os.PathLike[str], asked: Asked) -> DataFrame:
    """Order what is at a path, or in a table of that name.

    Without names of columns, a table has `process` and `vector`, and `run` if it has several sets of rows.
    """
    root = absolute(path)
    named = asked != Asked(no_cause=asked.no_cause, time=asked.time, window=asked.window)
    if files(spark, join(root, "log")):
        refuse_columns_of(named or asked.time is not None)
        log = spark.read.schema(SPARK_LOG).parquet(*map(escaped, files(spark, join(root, "log"))))
        return order_log(log, asked.window)
    if files(spark, join(root, "runs.parquet")) or files(spark, join(root, "trace", "runs.parquet")):
        refuse_columns_of(named)
        return order(Trace.read(spark, path), time=asked.time, window=asked.window)
    if asked.id is None and asked.protocol is None:
        asked = replace(asked, process=asked.process or "process", vector=asked.vector or "vector")
    table = read_table(spark, os.fspath(path), process=asked.process, vector=asked.vector)
    return order(table, **asdict(default_partition(asked, table)))


def default_partition(asked: Asked, table: DataFrame) -> Asked:
    """With vectors, `run` tells one set of rows from another, unless columns are named."""
    runs = asked.vector is not None and "run" in table.columns
    groups = asked.partition_by
    return replace(asked, partition_by=("run",) * runs if groups is None else groups)


def refuse_columns_of(named: bool) -> None:
    if named:
        raise BadParameter("order", "name columns for a table only: a trace and a log have their own")


def order_log(log: DataFrame, window: tuple[str, str] | None = None) -> DataFrame:
    """All events of an ingested log, those of no kind too; by time, if it has times."""
    time = "time_ns" if log.where("time_ns is not null").limit(1).count() else None
    if log.where("vector is not null").limit(1).count():
        return order(log, process="process", vector="vector", partition_by="run", time=time, window=window)
    own = Window.partitionBy("run", "process").orderBy("index")
    event = F.to_json(F.array("process", F.col("index").cast("string")))
    told = log.withColumn("event", event).withColumn("__before", F.lag("event").over(own))
    sends = (
        told.where("kind = 'send' and message is not null")
        .groupBy("run", "message")
        .agg(F.min("event").alias("__sent"))
    )
    joined = told.join(sends, ["run", "message"], "left")
    # A message that is delivered and not sent is missing, under the name that the log gives it.
    delivered = F.col("kind").eqNullSafe("deliver") & F.col("message").isNotNull()
    sent = F.when(delivered, F.coalesce("__sent", F.concat(F.lit("message "), F.col("message"))))
    causes = F.filter(F.array("__before", sent), lambda one: one.isNotNull())
    linked = joined.withColumn("causes", causes).select(*log.columns, "event", "causes")
    return order(linked, id="event", causes="causes", partition_by="run", time=time, window=window)
