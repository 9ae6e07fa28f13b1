"""Read spans, whatever wrote them: one row a span, with the causes that it states.

    spans, rejected = read_spans(spark, "traces.jsonl")
    order(spans, id="id", causes="causes", partition_by="trace_id", time="start_ns")

docs/spans.md has the columns. A line, or a span of it, that cannot be read is in `rejected`, with its
file and the reason.

Documents of JSON (`otlp`, `jaeger`) stand one a line, spread over lines, or several in an array, on one line or on
many. A document that is spread over lines is indented, so a brace at the beginning of a line begins a document. Spark
separates records there (`lineSep`), so large files are read by many tasks. What follows a document on other lines is
text of its own. Tasks decode the texts: Spark's SQL takes twice the time to find documents and to check ids.

Spans in a table are Parquet, CSV with a first line of names, or JSON Lines, by the end of the files' names. The columns
are those of ClickHouse's `otel_traces`, as far as they are there, or those that a mapping names. Ids are texts or
numbers of any form. A column of the mapping that is there wins over the attribute that says the same. Spark reads the
table, says what is wrong with a row, and gives our columns (`describe_rows`); tasks make spans of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from antecede.errors import BadParameter
from antecede.spark.errors import mark_errors, raise_task_errors
from antecede.spark.frames import escape_path, quote, to_nanoseconds
from antecede.spark.ingest.rows import list_files
from antecede.spark.spans.jaeger import JaegerRows
from antecede.spark.spans.messages import MessageCounts, write_messages
from antecede.spark.spans.otlp import OtlpRows
from antecede.spark.spans.schema import (
    LARGEST,
    MESSAGING,
    REJECTED,
    ROWS,
    SPANS,
    Fields,
    SpanRows,
    is_none,
    make_owner,
    parse_columns,
)
from antecede.spark.tables import BROKEN, FILE, name_file, read_files
from antecede.storage import absolute, join, whole
from antecede.trace.foreign.formats import (
    MAPS,
    OTEL_TRACES,
    SPAN_LISTS,
    choose_columns,
    refuse_span_request,
)

__all__ = ["SpanCounts", "Spans", "count_spans", "read_spans", "write_spans"]


TABLES: Final = {"spans": SPANS, "rejected": REJECTED}
TOGETHER: Final = 1 << 11
"""Rows of a batch, about: of more, those that were added first have left the processor's cache."""


class Spans(NamedTuple):
    """What files say: spans, and what cannot be read. Both are read whenever they are asked for."""

    spans: DataFrame
    rejected: DataFrame


@dataclass(frozen=True)
class SpanCounts(MessageCounts):
    """What was read and found, in numbers: what the command line says."""

    spans: int
    traces: int
    rejected: int
    causes: int
    """Parents and links, all together."""
    across: int
    """Those of them that are in another trace than the span."""


def read_spans(
    spark: SparkSession,
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    format: str = "otlp",
    mapping: Mapping[str, str] | None = None,
    *,
    no_cause: str | Sequence[str] = "root",
    process: str | Sequence[str] = (),
) -> Spans:
    """Read files and directories of a format: otlp, jaeger, or spans, which is a table.

    `mapping` says which column of a table is which of ours (docs/spans.md); without it the columns are those of
    ClickHouse's `otel_traces`. A parent that is empty, zero, or a text of `no_cause` means none. `process` names the
    attributes, of the process or else of the span, that tell one process from another, instead of service and instance.

    >>> import tempfile
    >>> from antecede.spark import connect
    >>> spark = connect("local[1]")
    >>> with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
    ...     _ = file.write("trace,span,parent,at\\nt,b,a,1661140374351773094\\nt,a,root,1661140374351773093\\nt\\n")
    ...     file.flush()
    ...     columns = {"id": "span", "trace_id": "trace", "parent": "parent", "start_ns": "at"}
    ...     spans, rejected = read_spans(spark, file.name, "spans", columns)
    ...     [(row.id, row.causes, row.start_ns) for row in spans.collect()]
    ...     [(row.text, row.reason) for row in rejected.collect()]
    [('t:b', ['t:a'], 1661140374351773094), ('t:a', [], 1661140374351773093)]
    [('t', 'it is no row of the table')]
    """
    read = open_source(spark, path, format, mapping, no_cause, process)
    return Spans(*map(read, TABLES.values()))


def write_spans(
    spark: SparkSession,
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    format: str = "otlp",
    mapping: Mapping[str, str] | None = None,
    *,
    no_cause: str | Sequence[str] = "root",
    process: str | Sequence[str] = (),
    run: str = "spans",
    rpc: bool = False,
) -> tuple[Spans, SpanCounts]:
    """Write spans and the trace of their messages into a directory, all or nothing; give the spans, and counts.

    `spans/` and `rejected/` are what was read. `events/` and `runs.parquet` are a trace of one `run`, and `messages/`
    says whose spans are behind it (`antecede.spark.spans.messages`, which says what `rpc` is).
    """
    # Two tables come of one reading: parsing is what takes the time.
    rows = open_source(spark, path, format, mapping, no_cause, process)(ROWS)
    rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with raise_task_errors(), whole(out) as aside:
            for name, columns in TABLES.items():
                of = "reason IS NULL" if columns == SPANS else "reason IS NOT NULL"
                rows.where(of).select(*parse_columns(columns)).write.parquet(join(aside, name))
            rows.unpersist()
            read = read_written(spark, aside)
            rejected = read.rejected.count()
            found = write_messages(read.spans, aside, run=run, format=format, rejected=rejected, rpc=rpc)
            counts = count_spans(read, found, rejected)
    finally:
        rows.unpersist()
    return read_written(spark, absolute(out)), counts


def read_written(spark: SparkSession, directory: str) -> Spans:
    places = {name: escape_path(join(directory, name)) for name in TABLES}
    return Spans(*(spark.read.schema(TABLES[name]).parquet(place) for name, place in places.items()))


def count_spans(read: Spans, found: MessageCounts, rejected: int) -> SpanCounts:
    """Count what was read."""
    causes = F.size("causes")
    within = F.size(F.filter("causes", lambda cause: cause.startswith(F.concat("trace_id", F.lit(":")))))
    [row] = read.spans.agg(
        F.count(F.lit(1)).alias("spans"),
        F.countDistinct("trace_id").alias("traces"),
        F.coalesce(F.sum(causes), F.lit(0)).alias("causes"),
        F.coalesce(F.sum(causes - within), F.lit(0)).alias("across"),
    ).collect()
    return SpanCounts(rejected=rejected, **row.asDict(), **asdict(found))


def open_source(
    spark: SparkSession,
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    format: str,
    mapping: Mapping[str, str] | None,
    no_cause: str | Sequence[str],
    process: str | Sequence[str],
) -> Callable[[str], DataFrame]:
    """Look for the files. What it gives reads some of the columns of `ROWS`: of spans, of the rejected, or of both."""
    refuse_span_request(format, mapping)
    many = [path] if isinstance(path, str | os.PathLike) else list(path)
    if not many:
        raise BadParameter("read_spans", "name one file or more")
    names = list_files(spark, many)
    attributes = (process,) if isinstance(process, str) else tuple(process)
    make_rows: type[SpanRows]
    if format == "spans":
        none = [no_cause] if isinstance(no_cause, str) else list(no_cause)
        make_rows, table = TableRows, read_table(spark, names, mapping, none)
    else:
        make_rows = {"otlp": OtlpRows, "jaeger": JaegerRows}[format]
        records = spark.read.option("lineSep", "\n{").text([escape_path(name) for name in names])
        table = records.select(name_file().alias("file"), F.col("value").cast("binary"))

    def read(columns: str) -> DataFrame:
        def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            rows = make_rows(attributes, columns)
            for batch in batches:
                for _ in rows.add_batch(batch):
                    if len(rows) >= TOGETHER:
                        yield from rows.take()
            yield from rows.take()

        return table.mapInArrow(mark_errors(work), columns)

    return read


# Tables

OWN: Final = (FILE, BROKEN)
TIMES: Final = ("start_ns", "end_ns", "duration_ns")
MAP, LIST = "map<string,string>", "array<string>"
LISTS: Final = dict.fromkeys(MAPS, MAP) | dict.fromkeys(SPAN_LISTS, LIST)


def read_table(
    spark: SparkSession, names: list[str], mapping: Mapping[str, str] | None, no_cause: Sequence[str]
) -> DataFrame:
    wanted = OTEL_TRACES if mapping is None else mapping
    table = read_files(spark, "read_spans", names, {name: LISTS.get(ours) for ours, name in wanted.items()})
    columns = choose_columns(mapping, [name for name in table.columns if name not in OWN])
    return describe_rows(table, columns, no_cause)


def describe_rows(table: DataFrame, mapping: Mapping[str, str], no_cause: Sequence[str]) -> DataFrame:
    """The columns that a span can have, and `file`, `text` and `reason`."""
    types = {field.name: field.dataType.simpleString() for field in table.schema}
    texts = {ours: f"CAST({quote(name)} AS string)" for ours, name in mapping.items()}
    columns = {ours: F.expr(text) for ours, text in texts.items()}
    if "parent" in columns:
        columns["parent"] = F.when(~columns["parent"].isin(*no_cause), columns["parent"])
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


class TableRows(SpanRows):
    def add_batch(self, batch: pa.RecordBatch) -> Iterator[None]:
        """Add what `describe_rows` says of rows: of some at a time, else they keep Python's garbage collector busy."""
        for first in range(0, len(batch), TOGETHER):
            for row in batch.slice(first, TOGETHER).to_pylist():
                if row["reason"] is None:
                    self._rows.append(read_row(row.get))
                else:
                    self.reject(row["file"], row["text"], row["reason"])
            yield


def read_row(given: Callable[[str], Any]) -> Fields:
    """The span of a row. What is not mapped is not there."""
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
    parent = None if is_none(given("parent")) else given("parent")
    owner = make_owner(resource, process=given("process"))
    ids = given("trace_id"), given("id"), parent, links
    return Fields(*ids, given("name"), given("kind"), start, end, owner, attributes)
