"""Any table as a log: its columns are given the names of a trace's.

A mapping says which column of the table is which of ours:
  process         where it happened; needed
  run             which run; without it, each file is one, and a DataFrame is one run `table`
  kind            send, deliver, or neither; of any case
  message         a message's identity, whatever it is: the same at its send and at its deliveries
  sender, number  or its identity as a trace has it
  to              destinations, on a send; without it, those that delivered
  vector          a vector clock: a map, or JSON in a string
  index           the position in the process's own order: any integer that grows; without it, the vector's own entry,
                  or else the order of `clock` or `time_ns`
  time_ns         nanoseconds since 1970, a timestamp, or a time as ISO 8601 writes it
  clock, control, label, stamp_entries, stamp_bytes, text   as in a trace or a log

A row that lacks what it needs, or has a value that cannot be what it should, or the index of another row of its
process, is rejected with the reason. Its text is the row, as JSON.

Rows of a process that have one time, or one clock, are *tied*. Deliveries then come before other events, and sends
last; between equals the order of the file decides, and of a DataFrame, which has no order, the text of the row. `runs`
says how many events are tied.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, SparkSession, Window, WindowSpec
from pyspark.sql import functions as F

from antecede.errors import BadParameter
from antecede.spark.frames import quote, to_nanoseconds
from antecede.spark.ingest.tasks import list_files, name_runs
from antecede.spark.storage import absolute
from antecede.spark.tables import BROKEN, FILE, read_files
from antecede.trace.foreign.formats import refuse_absent_columns

__all__ = ["COLUMNS", "map_columns", "read_table"]

COLUMNS: Final[dict[str, str]] = {
    "run": "string",
    "process": "string",
    "index": "bigint",
    "kind": "string",
    "message": "string",
    "vector": "map<string,bigint>",
    "text": "string",
    "sender": "string",
    "number": "bigint",
    "to": "array<string>",
    "control": "boolean",
    "time_ns": "bigint",
    "clock": "bigint",
    "stamp_entries": "int",
    "stamp_bytes": "int",
    "label": "string",
}
"""What a column can be, and its type."""

WORDS: Final = {
    "bigint": "an integer",
    "int": "an integer",
    "boolean": "true or false",
    "map<string,bigint>": "a map of integers",
    "array<string>": "a list of names",
}
"""A type, for people."""

RUN: Final = "antecede.run"
AT: Final = "antecede.at"
OWN: Final = (FILE, BROKEN, RUN, AT)
"""Columns that reading adds; of them `RUN` is the run that is named for a file, and `AT` the place of a row in it."""


def read_table(
    spark: SparkSession, paths: Sequence[str | os.PathLike[str]], mapping: Mapping[str, str]
) -> DataFrame:
    """The table in these files: Parquet, CSV with a first line of names, or JSON Lines, by the end of their names."""
    names = list_files(spark, paths)
    types = {"vector": "map<string,string>", "to": "array<string>"}
    fields = {name: types.get(ours) for ours, name in mapping.items()}
    table = read_files(spark, "ingest", names, fields)
    # Within a block of a file ids grow with the rows.
    at = F.struct("_metadata.file_block_start", F.monotonically_increasing_id())
    placed = table.withColumn(AT, at)
    written = {absolute(unquote(path)): re.sub("^file:/+", "file:/", path) for path in table.inputFiles()}
    runs = [(written[name], name, run) for name, run in name_runs(names).items() if name in written]
    known = spark.createDataFrame(runs, f"`{FILE}` string, __name string, `{RUN}` string")
    told = placed.join(F.broadcast(known), FILE, "left")
    named = F.coalesce("__name", F.col(quote(FILE)))
    return told.withColumns({FILE: named, RUN: F.coalesce(F.col(quote(RUN)), named)}).drop("__name")


def map_columns(table: DataFrame, mapping: Mapping[str, str], run: str | None) -> DataFrame:
    """The table with our names: the columns of `COLUMNS`, and file, line, fields, tied and reason."""
    refuse_mapping(table, mapping, run)
    types = {field.name: field.dataType.simpleString() for field in table.schema}
    columns = [
        (cast_column(ours, mapping[ours], types[mapping[ours]]) if ours in mapping else F.lit(None).cast(kind))
        .alias(ours)
        for ours, kind in COLUMNS.items()
    ]  # fmt: skip
    given = [F.col(quote(name)).alias(f"_{ours}") for ours, name in mapping.items()]
    row = F.to_json(F.struct([F.col(quote(name)) for name in table.columns if name not in OWN]))
    in_files = FILE in table.columns
    told = table.select(
        *columns,
        *given,
        row.alias("fields"),
        (F.col(quote(FILE)) if in_files else F.lit("table")).alias("file"),
        (F.col(quote(AT)) if in_files else F.lit(0)).alias("__at"),
        (F.col(quote(RUN)) if in_files else F.lit("table")).alias("__run"),
        F.lit(None).cast("bigint").alias("line"),
    )
    if "run" not in mapping:
        told = told.withColumn("run", F.col("__run") if run is None else F.lit(run))
    told = told.withColumn("kind", F.lower("kind")).withColumn("reason", explain_refusal(mapping))
    told = rank_rows(told, mapping)
    text = F.when(F.col("reason").isNull(), F.coalesce("text", "fields")).otherwise(F.col("fields"))
    return told.withColumn("text", text).drop("__at", "__run", *(f"_{ours}" for ours in mapping))


def refuse_mapping(table: DataFrame, mapping: Mapping[str, str], run: str | None) -> None:
    for ours, name in mapping.items():
        if ours not in COLUMNS:
            raise BadParameter.choice("ingest", f"the key of map {ours}={name}", ours, COLUMNS)
    refuse_absent_columns("ingest", mapping, [name for name in table.columns if name not in OWN])
    if "process" not in mapping:
        raise BadParameter("ingest", "map must name the column for process: where each event happened")
    if run is not None and "run" in mapping:
        raise BadParameter("ingest", f"run is given as {run} and as a column of map: give one of them")
    if not {"index", "vector", "clock", "time_ns"} & set(mapping):
        raise BadParameter(
            "ingest", "map must name a column for the order of events: index, vector, clock or time_ns"
        )
    if ("sender" in mapping) != ("number" in mapping):
        raise BadParameter("ingest", "map has only one of sender and number: give both, or message")


def cast_column(ours: str, name: str, found: str) -> Column:
    """A column of theirs as one of ours; null where that cannot be."""
    kind, column = COLUMNS[ours], F.col(quote(name))
    if found == kind:
        return column
    if ours == "time_ns":
        return to_nanoseconds(name, found)
    if ours == "vector" and found == "string":
        return F.from_json(column, kind)
    if ours == "to" and found == "string":
        return F.coalesce(F.from_json(column, kind), F.split(column, r"\s*,\s*"))
    return F.expr(f"try_cast({quote(name)} as {kind})")


def explain_refusal(mapping: Mapping[str, str]) -> Column:
    """Why a row cannot be read: the first thing that is wrong with it, or null."""
    wrong = [
        (
            F.col(f"_{ours}").isNotNull() & F.col(ours).isNull(),
            f"its {ours} is not {'a time' if ours == 'time_ns' else WORDS.get(kind, kind)}: ",
            F.col(f"_{ours}"),
        )
        for ours, kind in COLUMNS.items()
        if ours in mapping
    ]
    needed = [ours for ours in ("run", "process", "index", "vector") if ours in mapping]
    if not {"index", "vector"} & set(mapping):
        needed += [next(ours for ours in ("clock", "time_ns") if ours in mapping)]
    wrong += [(F.col(ours).isNull(), f"it has no {ours}", F.lit("")) for ours in needed]
    if "kind" in mapping:
        known = F.col("kind").isin("send", "deliver", "receive")
        wrong += [(~known, "its kind is none of send, receive and deliver: ", F.col("kind"))]
    if "vector" in mapping:
        own = F.coalesce(F.element_at("vector", F.col("process")), F.lit(0))
        wrong += [(own < 1, "its clock has no entry of its own process ", F.col("process"))]
        least = F.array_min(F.transform(F.map_values("vector"), lambda entry: F.coalesce(entry, F.lit(-1))))
        wrong += [(least < 0, "its clock has an entry that is no number of 0 or more", F.lit(""))]
    chosen = F.lit(None).cast("string")
    for condition, text, shown in reversed(wrong):
        chosen = F.when(condition, F.concat(F.lit(text), shown.cast("string"))).otherwise(chosen)
    return chosen


def rank_rows(told: DataFrame, mapping: Mapping[str, str]) -> DataFrame:
    """The rows with `index` and `tied`; one that repeats an index is refused."""
    if "index" in mapping:
        before = F.lag("index").over(order_rows("index"))
        repeats = F.col("reason").isNull() & (before == F.col("index"))
        reason = F.concat(F.lit("its index is that of another row of its process: "), F.col("index"))
        return told.withColumn("reason", F.when(repeats, reason).otherwise(F.col("reason"))).withColumn(
            "tied", F.lit(False)
        )
    if "vector" in mapping:
        own = F.element_at("vector", F.col("process")) - 1
        return told.withColumn("index", own).withColumn("tied", F.lit(False))
    by = next(ours for ours in ("clock", "time_ns") if ours in mapping)
    tied = F.coalesce(F.lag(by).over(order_rows(by)) == F.col(by), F.lit(False))
    index = F.row_number().over(order_rows(by)).cast("bigint") - 1
    return told.withColumns({"index": index, "tied": tied})


def order_rows(by: str) -> WindowSpec:
    """The rows of a process in their order; rows that cannot be read are apart."""
    kind = F.when(F.col("kind") == "deliver", 0).when(F.col("kind") == "send", 2).otherwise(1)
    return Window.partitionBy("run", "process", F.col("reason").isNull()).orderBy(
        by, kind, "file", "__at", "fields"
    )
