"""Spans in a table: Parquet, CSV with a first line of names, or JSON Lines, by the end of the files' names.

The columns are those of ClickHouse's `otel_traces`, as far as they are there, or those that a mapping names. Ids are
texts or numbers of any form. A column of the mapping that is there wins over the attribute that says the same.

Spark reads the table, says what is wrong with a row, and gives our columns (`describe_rows`); tasks make spans of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from antecede.spark.errors import mark_errors
from antecede.spark.frames import quote, to_nanoseconds
from antecede.spark.spans.schema import LARGEST, MESSAGING, ROWS, SpanRows, derive_resource, is_none
from antecede.spark.tables import BROKEN, FILE, read_files
from antecede.trace.foreign.formats import MAPS, OTEL_TRACES, SPAN_LISTS, choose_columns

__all__ = ["read_table"]

OWN: Final = (FILE, BROKEN)
TIMES: Final = ("start_ns", "end_ns", "duration_ns")
MAP, LIST = "map<string,string>", "array<string>"
LISTS: Final = dict.fromkeys(MAPS, MAP) | dict.fromkeys(SPAN_LISTS, LIST)


def read_table(
    spark: SparkSession,
    names: list[str],
    mapping: Mapping[str, str] | None,
    no_cause: Sequence[str],
    process: Sequence[str] = (),
) -> DataFrame:
    """The spans in these files, and what cannot be read."""
    wanted = OTEL_TRACES if mapping is None else mapping
    table = read_files(spark, "read_spans", names, {name: LISTS.get(ours) for ours, name in wanted.items()})
    chosen = choose_columns(mapping, [name for name in table.columns if name not in OWN])

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = SpanRows(process)
        for batch in batches:
            for row in batch.to_pylist():
                add_row(rows, row, no_cause)
            if len(rows):
                yield rows.take()

    return describe_rows(table, chosen).mapInArrow(mark_errors(work), ROWS)


def describe_rows(table: DataFrame, mapping: Mapping[str, str]) -> DataFrame:
    """The columns that a span can have, and `file`, `text` and `reason`."""
    types = {field.name: field.dataType.simpleString() for field in table.schema}
    texts = {ours: f"CAST({quote(name)} AS string)" for ours, name in mapping.items()}
    columns = {ours: F.expr(text) for ours, text in texts.items()}
    wrong = [
        (f"coalesce({texts[ours]} = '', true)", f"it has no {ours}", "''") for ours in ("id", "trace_id")
    ]
    for ours, text in texts.items():
        if ours in TIMES:
            columns[ours] = to_nanoseconds(mapping[ours], types[mapping[ours]])
            wrong.append((f"{text} != '' AND __{ours} IS NULL", f"its {ours} is no time: ", text))
        elif ours in LISTS:
            columns[ours] = parse(mapping[ours], types[mapping[ours]], LISTS[ours])
            wrong.append((f"{text} IS NOT NULL AND __{ours} IS NULL", f"its {ours} cannot be read: ", text))
    if SPAN_LISTS[0] in mapping:
        counts = " != ".join(f"size(__{ours})" for ours in SPAN_LISTS)
        wrong.append((counts, "its links have not as many traces as spans", "''"))
    cases = " ".join(f"WHEN {when} THEN concat('{words}', {shown})" for when, words, shown in wrong)
    broken = f"if(`{BROKEN}` IS NULL, NULL, 'it is no row of the table')"
    row = F.to_json(F.struct([F.col(quote(name)) for name in table.columns if name not in OWN]))
    known = table.select(
        "*", *(column.alias(f"__{ours}") for ours, column in columns.items()), row.alias("__row")
    )
    # A column of lists that are mostly null takes quadratic time on its way to Python (`hide_null_lists`).
    empty = {MAP: "map()", LIST: "array()"}
    shown = {ours: f"coalesce(__{ours}, CAST({empty[kind]} AS {kind}))" for ours, kind in LISTS.items()}
    return known.selectExpr("*", f"coalesce({broken}, CASE {cases} END) AS __reason").selectExpr(
        *(f"{shown.get(ours, f'__{ours}')} AS {ours}" for ours in columns),
        f"`{FILE}` AS file",
        f"if(__reason IS NULL, NULL, coalesce(`{BROKEN}`, __row)) AS text",
        "__reason AS reason",
    )


def parse(name: str, type_name: str, kind: str) -> Column:
    """A column of theirs as a map or a list: texts hold JSON."""
    column = F.col(quote(name))
    return F.from_json(column, kind) if type_name == "string" else column.cast(kind)


def add_row(rows: SpanRows, row: Mapping[str, Any], no_cause: Collection[str]) -> None:
    """Add what `describe_rows` says of a row. What is not mapped is not there."""
    if row["reason"] is not None:
        rows.reject(row["file"], row["text"], row["reason"])
        return
    given = row.get
    resource, attributes = (dict(given(name) or ()) for name in MAPS)
    # What a column says wins: it takes the place of the attribute that is asked first.
    for name, first in (("service", "service.name"), ("instance", "service.instance.id")):
        resource[first] = given(name) or resource.get(first)
    for name, (first, *_) in MESSAGING.items():
        attributes[first] = given(f"messaging_{name}") or attributes.get(first)
    start, end, duration = map(given, TIMES)
    if start is not None and duration is not None:
        end = start + duration if start + duration <= LARGEST else None
    traces, spans = (given(name) or () for name in SPAN_LISTS)
    both = zip(traces, spans, strict=False)
    links = [f"{of}:{id}" for of, id in both if of is not None and id is not None]
    parent = None if is_none(given("parent")) or given("parent") in no_cause else given("parent")
    who, find = derive_resource(resource.get), attributes.get
    rows.add(
        row["file"], row["trace_id"], row["id"], parent, links, given("name"), given("kind"), start, end, who,
        resource.get, find, given("process"),
    )  # fmt: skip
