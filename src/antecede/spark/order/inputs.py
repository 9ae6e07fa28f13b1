"""What can be put in order, found at a path: a trace, an ingested log, or a table of messages with vectors.

a directory with `log/`           what `ingest` wrote: by the vectors of the log, if it has any, else by its trace
a directory with `runs.parquet`   a trace, or a directory of results with one in `trace/`
Parquet                           a table, with all its columns
JSON Lines                        the columns that are asked for, and the line itself as `text`. A vector is an object,
                                  and its process a name, or an array, and its process a position: the first line tells
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from antecede.errors import BadParameter, BadTrace
from antecede.spark.errors import describe_failure
from antecede.spark.ingest.schema import SPARK_LOG
from antecede.spark.order.api import Ordered, order
from antecede.spark.order.by_vector import order_stamped
from antecede.spark.session import SparkError
from antecede.spark.storage import absolute, escaped, files, join, readable
from antecede.spark.trace.api import Trace
from antecede.spark.trace.footers import refuse_files

__all__ = ["order_path"]

JSON: Final = (".json", ".jsonl", ".ndjson")


def order_path(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    group: Sequence[str] | None = None,
    process: str | None = None,
    vector: str | None = None,
) -> Ordered:
    """Order what is at a path.

    The names of columns are for tables; by default they are `run`, if there is one, `process` and `vector`.
    """
    root = absolute(path)
    asked = group is not None or process is not None or vector is not None
    if log := ingested(spark, root):
        kind: DataFrame | None = log
    elif files(spark, join(root, "runs.parquet")) or files(spark, join(root, "trace", "runs.parquet")):
        kind = None
    else:
        kind = table_at(spark, root, group, process or "process", vector or "vector")
        groups = ["run"] * ("run" in kind.columns) if group is None else group
        return order_stamped(kind, group=groups, process=process or "process", vector=vector or "vector")
    if asked:
        raise BadParameter(
            "order", "columns", "named", "them for a table only: a trace and a log have their own"
        )
    return order_stamped(kind) if kind is not None else order(Trace.read(spark, path))


def ingested(spark: SparkSession, root: str) -> DataFrame | None:
    """The log of an ingested directory, if it has vectors."""
    found = files(spark, join(root, "log"))
    if not found:
        return None
    log = spark.read.schema(SPARK_LOG).parquet(*map(escaped, found))
    return log if log.where("vector is not null").limit(1).count() else None


def table_at(
    spark: SparkSession, root: str, group: Sequence[str] | None, process: str, vector: str
) -> DataFrame:
    """A table, in one file or in the files of a directory."""
    found = [name for name in files(spark, root, "*") if not os.path.basename(name).startswith(("_", "."))]
    kinds = sorted({os.path.splitext(name)[1] for name in found})
    places = [escaped(name) for name in found]
    try:
        match kinds:
            case [".parquet"]:
                if readable(root):
                    refuse_files(spark, found, pa.schema([]))
                return spark.read.parquet(*places)
            case [kind] if kind in JSON:
                return json_table(spark.read.text(places), group, process, vector)
    except SparkError as error:
        raise BadTrace(root, describe_failure(error), "Parquet files of one schema") from None
    shown = ", ".join(kind or "files without an ending" for kind in kinds) or "nothing"
    raise BadTrace(root, shown, "a trace, an ingested log, or a table: Parquet or JSON Lines")


def json_table(lines: DataFrame, group: Sequence[str] | None, process: str, vector: str) -> DataFrame:
    """Lines of JSON as a table. JSON has no columns before it is read: those that are asked for are read."""
    first = (
        lines.select(F.from_json("value", f"`{vector}` string, run string").alias("first")).limit(1).collect()
    )
    begins = [(row["first"] or {vector: None, "run": None}) for row in first] or [{vector: None, "run": None}]
    is_array = (begins[0][vector] or "").startswith("[")
    groups = group if group is not None else ["run"] * (begins[0]["run"] is not None)
    types = ("array<bigint>", "bigint") if is_array else ("map<string,bigint>", "string")
    columns = [f"`{name}` string" for name in groups] + [f"`{process}` {types[1]}", f"`{vector}` {types[0]}"]
    read = lines.select("value", F.from_json("value", ", ".join(columns)).alias("read"))
    return read.select("read.*", F.col("value").alias("text"))
