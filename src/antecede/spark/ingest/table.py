"""Any table as a log: its columns are given the names of a trace's.

A mapping says which column of the table is which of ours:
  process         where it happened; needed
  run             which run; without it, all rows are one
  kind            send, deliver, or neither; of any case
  message         a message's identity, whatever it is: the same at its send and at its deliveries
  sender, number  or its identity as a trace has it
  to              destinations, on a send; without it, those that delivered
  vector          a vector clock: a map, or JSON in a string
  index           the position in the process's own order: any integer that grows; without it, the vector's own entry,
                  or else the order of `clock` or `time_ns`
  time_ns, clock, control, label, stamp_entries, stamp_bytes, text   as in a trace or a log

A row that lacks what it needs, or has a value that cannot be what it should, is rejected with the reason. Its text is
the row, as JSON.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, StringType, StructField, StructType

from antecede.errors import BadParameter
from antecede.spark.storage import absolute, escaped, files

__all__ = ["COLUMNS", "mapped", "table_of"]

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

RUN: Final = "table"


def table_of(
    spark: SparkSession, paths: Sequence[str | os.PathLike[str]], mapping: Mapping[str, str]
) -> DataFrame:
    """The table in these files: Parquet, CSV with a first line of names, or JSON Lines, by the end of their names."""
    names: list[str] = []
    for path in paths:
        found = files(spark, os.fspath(path), "*")
        if not found:
            raise BadParameter("ingest", "file", os.fspath(path), "a file, or a directory with files")
        names += found
    kinds = {os.path.splitext(name)[1] for name in names}
    if len(kinds) != 1 or not kinds <= {".parquet", ".csv", ".json", ".jsonl", ".ndjson"}:
        raise BadParameter(
            "ingest", "files", ", ".join(sorted(kinds)), "Parquet, CSV or JSON Lines, all of one kind"
        )
    [kind] = kinds
    places = [escaped(absolute(name)) for name in names]
    if kind == ".parquet":
        table = spark.read.parquet(*places)
    elif kind == ".csv":
        table = spark.read.option("header", True).option("mode", "PERMISSIVE").csv(places)
    else:
        # JSON has no columns before it is read: those that are asked for are taken as they are written.
        types = {"vector": MapType(StringType(), StringType()), "to": ArrayType(StringType())}
        fields = [StructField(name, types.get(ours, StringType())) for ours, name in mapping.items()]
        table = spark.read.schema(StructType(fields)).json(places)
    return table.withColumn(FILE, F.col("_metadata.file_path"))


FILE: Final = "antecede.file"


def mapped(table: DataFrame, mapping: Mapping[str, str], run: str | None) -> DataFrame:
    """The table with our names: the columns of `COLUMNS`, and row (as JSON), file and reason."""
    refuse_mapping(table, mapping, run)
    types = {field.name: field.dataType for field in table.schema}
    columns = [
        (
            taken(ours, mapping[ours], types[mapping[ours]].simpleString())
            if ours in mapping
            else F.lit(None).cast(kind)
        ).alias(ours)
        for ours, kind in COLUMNS.items()
    ]
    given = [F.col(quoted(name)).alias(f"_{ours}") for ours, name in mapping.items()]
    row = F.to_json(F.struct([F.col(quoted(name)) for name in table.columns if name != FILE])).alias("row")
    file = F.col(quoted(FILE)) if FILE in table.columns else F.lit("table")
    told = table.select(*columns, *given, row, file.alias("file"))
    told = told.withColumn("run", F.lit(run or RUN) if "run" not in mapping else F.col("run"))
    told = told.withColumn("kind", F.lower("kind")).withColumn("reason", reason(mapping))
    return told.withColumn("index", position(mapping)).drop(*(f"_{ours}" for ours in mapping))


def refuse_mapping(table: DataFrame, mapping: Mapping[str, str], run: str | None) -> None:
    for ours, name in mapping.items():
        if ours not in COLUMNS:
            raise BadParameter("ingest", "map", f"{ours}={name}", f"one of {', '.join(COLUMNS)}")
        if name not in table.columns:
            shown = ", ".join(column for column in table.columns if column != FILE)
            raise BadParameter("ingest", "map", f"{ours}={name}", f"a column of the table: {shown}")
    if "process" not in mapping:
        raise BadParameter("ingest", "map", "without process", "the column that says where it happened")
    if run is not None and "run" in mapping:
        raise BadParameter("ingest", "run", f"{run} and a column", "one of them")
    if not {"index", "vector", "clock", "time_ns"} & set(mapping):
        raise BadParameter("ingest", "map", "without an order", "index, vector, clock or time_ns")
    if ("sender" in mapping) != ("number" in mapping):
        raise BadParameter("ingest", "map", "only one of sender and number", "both, or message")


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def taken(ours: str, name: str, found: str) -> Column:
    """A column of theirs as one of ours; null where that cannot be."""
    kind, column = COLUMNS[ours], F.col(quoted(name))
    if found == kind:
        return column
    if ours == "vector" and found == "string":
        return F.from_json(column, kind)
    if ours == "to" and found == "string":
        return F.coalesce(F.from_json(column, kind), F.split(column, r"\s*,\s*"))
    return F.expr(f"try_cast({quoted(name)} as {kind})")


def reason(mapping: Mapping[str, str]) -> Column:
    """Why a row cannot be read: the first thing that is wrong with it, or null."""
    wrong = [
        (
            F.col(f"_{ours}").isNotNull() & F.col(ours).isNull(),
            f"its {ours} is no {kind}: ",
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
    chosen = F.lit(None).cast("string")
    for condition, text, shown in reversed(wrong):
        chosen = F.when(condition, F.concat(F.lit(text), shown.cast("string"))).otherwise(chosen)
    return chosen


def position(mapping: Mapping[str, str]) -> Column:
    if "index" in mapping:
        return F.col("index")
    if "vector" in mapping:
        return F.element_at("vector", F.col("process")) - 1
    order = next(ours for ours in ("clock", "time_ns") if ours in mapping)
    # Rows of one time keep an order that does not change from reading to reading.
    own = Window.partitionBy("run", "process", F.col("reason").isNull()).orderBy(order, "row")
    return F.row_number().over(own).cast("bigint") - 1
