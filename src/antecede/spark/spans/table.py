"""Spans in a table: Parquet, CSV with a first line of names, or JSON Lines, by the end of the files' names.

The columns are those of ClickHouse's `otel_traces`, as far as they are there, or those that a mapping names. Ids are
texts or numbers of any form. A column of the mapping that is there wins over the attribute that says the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from antecede.errors import BadParameter, BadTrace
from antecede.spark.frames import CSV, quote, to_nanoseconds
from antecede.spark.ingest.table import kind_of
from antecede.spark.spans.documents import name_file, parse_documents, read_documents
from antecede.spark.spans.schema import (
    NO_ID,
    Lookup,
    derive_messaging,
    derive_resource,
    explain,
    name_kind,
)
from antecede.spark.storage import escaped
from antecede.trace.foreign.spans import MAPS, OTEL_TRACES, SPAN_LISTS

__all__ = ["read_table"]

FILE: Final = "antecede.file"
TEXT: Final = "antecede.text"
BROKEN: Final = "antecede.broken"
OWN: Final = (FILE, TEXT, BROKEN)
"""Columns that reading adds: the file of a row, its text if that is known, and the text of a row that is none."""
MAP, LIST = "map<string,string>", "array<string>"
JSON: Final = (".json", ".jsonl", ".ndjson")


def read_table(
    spark: SparkSession, names: list[str], mapping: Mapping[str, str] | None, no_cause: tuple[str, ...]
) -> DataFrame:
    """The spans in these files, and what cannot be read."""
    kinds = {kind_of(name) for name in names}
    if len(kinds) != 1 or not kinds <= {".parquet", ".csv", *JSON}:
        found = ", ".join(sorted(kinds))
        raise BadParameter("read_spans", "files", found, "Parquet, CSV or JSON Lines, all of one kind")
    [kind] = kinds
    asked = OTEL_TRACES if mapping is None else mapping
    if kind == ".parquet":
        table = spark.read.parquet(*(escaped(name) for name in names))
        table = table.withColumns({FILE: name_file(), TEXT: empty(), BROKEN: empty()})
    elif kind == ".csv":
        table = read_csv(spark, names)
    else:
        table = read_json(spark, names, asked)
    if mapping is None:
        asked = {ours: name for ours, name in asked.items() if name in table.columns}
    for ours in ("id", "trace_id", *asked):
        if asked.get(ours) not in table.columns:
            shown = ", ".join(column for column in table.columns if column not in OWN)
            found = f"{ours}={(mapping or OTEL_TRACES)[ours]}"
            raise BadParameter("read_spans", "map", found, f"a column of the table: {shown}")
    return describe_rows(table, asked, no_cause)


def read_csv(spark: SparkSession, names: list[str]) -> DataFrame:
    places = [escaped(name) for name in names]
    columns = spark.read.options(**CSV).csv(places).columns
    if not columns:
        raise BadTrace(names[0], "an empty file", "a first line with the names of the columns")
    types = ", ".join(f"{quote(name)} string" for name in (*columns, BROKEN))
    # Without `columnPruning` Spark counts the values of each line, whatever columns are asked for.
    options = {**CSV, "columnNameOfCorruptRecord": BROKEN, "columnPruning": False}
    table = spark.read.options(**options).schema(types).csv(places)
    return table.withColumns({FILE: name_file(), TEXT: empty()})


def read_json(spark: SparkSession, names: list[str], mapping: Mapping[str, str]) -> DataFrame:
    types = {**dict.fromkeys(MAPS, MAP), **dict.fromkeys(SPAN_LISTS, LIST)}
    fields = {quote(name): types.get(ours, "string") for ours, name in mapping.items()}
    schema = ",".join(f"{name}:{kind}" for name, kind in fields.items())
    rows = parse_documents(read_documents(spark, names), f"struct<{schema}>")
    return rows.select(
        "document.*",
        F.col("file").alias(FILE),
        F.col("text").alias(TEXT),
        F.col("broken").alias(BROKEN),
    )


def describe_rows(table: DataFrame, mapping: Mapping[str, str], no_cause: tuple[str, ...]) -> DataFrame:
    types = {field.name: field.dataType.simpleString() for field in table.schema}

    def text(ours: str) -> Column:
        return F.col(quote(mapping[ours])).cast("string") if ours in mapping else empty()

    def time(ours: str) -> Column:
        if ours not in mapping:
            return F.lit(None).cast("bigint")
        return to_nanoseconds(mapping[ours], types[mapping[ours]])

    resource = derive_resource(look_up(parse(mapping, types, "resource", MAP)))
    kind = name_kind(text("kind"))
    messaging = derive_messaging(look_up(parse(mapping, types, "attributes", MAP)), kind)
    found = {**resource, **messaging}
    parent = F.when(~text("parent").rlike(NO_ID) & ~text("parent").isin(*no_cause), text("parent"))
    traces, spans = (parse(mapping, types, ours, LIST) for ours in SPAN_LISTS)
    linked = F.arrays_zip(traces.alias("trace_id"), spans.alias("span_id"))
    start = time("start_ns")
    end = F.try_add(start, time("duration_ns")) if "duration_ns" in mapping else time("end_ns")
    wrong = [
        (F.coalesce(text(ours) == "", F.lit(True)), f"it has no {ours}", F.lit(""))
        for ours in ("id", "trace_id")
    ]
    wrong += [
        (
            text(ours).isNotNull() & (text(ours) != "") & time(ours).isNull(),
            f"its {ours} is no time: ",
            text(ours),
        )
        for ours in ("start_ns", "end_ns", "duration_ns")
        if ours in mapping
    ]
    wrong += [
        (
            text(ours).isNotNull() & parse(mapping, types, ours, kind_).isNull(),
            f"its {ours} cannot be read: ",
            text(ours),
        )
        for ours, kind_ in (*((name, MAP) for name in MAPS), *((name, LIST) for name in SPAN_LISTS))
        if ours in mapping
    ]
    uneven = F.size(traces) != F.size(spans)
    wrong += [(uneven, "its links have not as many traces as spans", F.lit(""))]
    unread = F.when(F.col(quote(BROKEN)).isNotNull(), "it is no row of the table")
    reason = explain(wrong, unread)
    row = F.to_json(F.struct([F.col(quote(name)) for name in table.columns if name not in OWN]))
    return table.select(
        F.col(quote(FILE)).alias("file"),
        *(F.coalesce(text(name), column).alias(name) for name, column in found.items()),
        text("process").alias("process"),
        text("trace_id").alias("trace_id"),
        text("id").alias("span_id"),
        parent.alias("parent_id"),
        linked.alias("linked"),
        text("name").alias("name"),
        kind.alias("kind"),
        start.alias("start_ns"),
        end.alias("end_ns"),
        reason.alias("reason"),
        F.when(reason.isNotNull(), F.coalesce(F.col(quote(BROKEN)), F.col(quote(TEXT)), row)).alias("text"),
    )


def parse(mapping: Mapping[str, str], types: Mapping[str, str], ours: str, kind: str) -> Column:
    """A column of theirs as a map or a list: texts hold JSON."""
    if ours not in mapping:
        return F.lit(None).cast(kind)
    column = F.col(quote(mapping[ours]))
    return F.from_json(column, kind) if types[mapping[ours]] == "string" else column.cast(kind)


def look_up(attributes: Column) -> Lookup:
    return lambda key: F.element_at(attributes, F.lit(key))


def empty() -> Column:
    return F.lit(None).cast("string")
