"""What can be put in order, found at a place: a trace, an ingested log, or a table.

a directory with `log/`           what `ingest` wrote: all its events, by the vectors of the log if it has any, else by
                                  the order of each process and the messages between them
a directory with `runs.parquet`   a trace, or a directory of results with one in `trace/`
Parquet                           a table, with all its columns
CSV                               a table with a first line of names: columns of text
JSON Lines                        the columns that are asked for, and the line itself as `text`
a name                            a table of Spark's catalogue

Where a table has no types, a list of causes is written as JSON (`["a", "b"]`), and a vector as an object or an array.
"""

from __future__ import annotations

import os
from typing import Any, Final

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType

from antecede.errors import BadParameter, BadTrace
from antecede.spark.errors import describe_failure
from antecede.spark.frames import CSV, quote
from antecede.spark.ingest.schema import SPARK_LOG
from antecede.spark.order.api import order
from antecede.spark.session import SparkError
from antecede.spark.storage import absolute, escaped, files, join, readable
from antecede.spark.trace.api import Trace
from antecede.spark.trace.footers import refuse_files

__all__ = ["Asked", "kind_of", "order_path", "read_json", "read_table", "type_columns"]

JSON: Final = (".json", ".jsonl", ".ndjson")
PACKED: Final = (".gz", ".bz2", ".zst", ".lz4")


class Asked(Struct, frozen=True):
    """Which columns of a table say what; None is not said."""

    id: str | None = None
    causes: str | None = None
    process: str | None = None
    vector: str | None = None
    protocol: str | None = None
    processes: tuple[str, ...] | None = None
    parameters: dict[str, Any] = {}
    """Those of the protocol."""
    partition_by: tuple[str, ...] | None = None
    time: str | None = None
    window: tuple[str, str] | None = None
    no_cause: tuple[str, ...] = ("",)
    others: tuple[str, ...] = ()
    """More columns that are needed: of JSON nothing is read that is not asked for."""


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
    table = read_table(spark, os.fspath(path), asked)
    groups = asked.partition_by
    if groups is None:
        groups = ("run",) if "run" in table.columns and asked.process is not None else ()
    return order(
        table,
        id=asked.id,
        causes=asked.causes,
        process=asked.process,
        vector=asked.vector,
        protocol=asked.protocol,
        processes=asked.processes,
        parameters=asked.parameters,
        partition_by=groups,
        time=asked.time,
        window=asked.window,
        no_cause=asked.no_cause,
    )


def refuse_columns_of(named: bool) -> None:
    if named:
        raise BadParameter(
            "order", "columns", "named", "them for a table only: a trace and a log have their own"
        )


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


def read_table(spark: SparkSession, path: str, asked: Asked) -> DataFrame:
    """A table, in one file, in the files of a directory, or in the catalogue."""
    found = [name for name in files(spark, path, "*") if not os.path.basename(name).startswith(("_", "."))]
    if not found and "/" not in path and spark.catalog.tableExists(path):
        return spark.table(path)
    kinds = sorted({kind_of(name) for name in found})
    places = [escaped(name) for name in found]
    try:
        match kinds:
            case [".parquet"]:
                if readable(absolute(path)):
                    refuse_files(spark, found, pa.schema([]))
                return spark.read.parquet(*places)
            case [".csv"]:
                table = spark.read.options(**CSV).csv(places)
                if not table.columns:
                    raise BadTrace(
                        absolute(path), "no line of names", "CSV whose first line names the columns"
                    )
                return type_columns(table, asked)
            case [kind] if kind in JSON:
                return type_columns(read_json(spark.read.text(places), asked), asked)
    except SparkError as error:
        raise BadTrace(absolute(path), describe_failure(error), "files of one schema") from None
    shown = ", ".join(kind or "files without an ending" for kind in kinds) or "nothing"
    raise BadTrace(absolute(path), shown, "a trace, an ingested log, or a table: Parquet, CSV or JSON Lines")


def kind_of(name: str) -> str:
    base, end = os.path.splitext(name)
    return os.path.splitext(base)[1] if end in PACKED else end


def read_json(lines: DataFrame, asked: Asked) -> DataFrame:
    """Lines of JSON as a table. JSON has no columns before it is read: those that are asked for are read, as text."""
    names = [
        name for name in (asked.id, asked.causes, asked.time, asked.process, asked.vector) if name is not None
    ]
    names += (*(asked.partition_by or ()), *asked.others)
    if asked.partition_by is None and asked.id is None:
        first = lines.select(F.get_json_object("value", "$.run").alias("run")).limit(1).collect()
        names += ["run"] * any(row["run"] is not None for row in first)
    columns = ", ".join(f"{quote(name)} string" for name in dict.fromkeys(names))
    read = lines.select("value", F.from_json("value", columns).alias("read"))
    return read.select("read.*", F.col("value").alias("text"))


def type_columns(table: DataFrame, asked: Asked, like: DataFrame | None = None) -> DataFrame:
    """Text becomes lists of causes, and vectors: those of the first row, or of a table that was read `like` this."""
    if asked.causes is not None and asked.causes in table.columns and is_text(table, asked.causes):
        text = F.col(quote(asked.causes))
        listed = F.from_json(text, "array<string>")
        alone = F.when(text.isNotNull(), F.array(text))
        return table.withColumn(asked.causes, F.when(text.startswith("["), listed).otherwise(alone))
    if asked.vector is not None and asked.vector in table.columns and is_text(table, asked.vector):
        assert asked.process is not None
        if like is not None:
            is_array = isinstance(like.schema[asked.vector].dataType, ArrayType)
        else:
            told = table.select(quote(asked.vector)).where(F.col(quote(asked.vector)).isNotNull())
            first = told.limit(1).collect()
            is_array = bool(first) and first[0][0].startswith("[")
        vector: Column = F.from_json(
            quote(asked.vector), "array<bigint>" if is_array else "map<string,bigint>"
        )
        table = table.withColumn(asked.vector, vector)
        if is_array and asked.process in table.columns:
            table = table.withColumn(asked.process, F.expr(f"try_cast({quote(asked.process)} as bigint)"))
    return table


def is_text(table: DataFrame, name: str) -> bool:
    return isinstance(table.schema[name].dataType, StringType)
