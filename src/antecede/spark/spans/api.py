"""Read spans, whatever wrote them: one row a span, with the causes that it states.

    spans, rejected = read_spans(spark, "traces.jsonl")
    order(spans, id="id", causes="causes", partition_by="trace_id", time="start_ns")

`antecede.spark.spans.schema` has the columns. A line, or a span of it, that cannot be read is in `rejected`, with its
file and the reason.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from antecede.errors import BadParameter
from antecede.spark.errors import raise_task_errors
from antecede.spark.ingest.tasks import list_files
from antecede.spark.spans.documents import read_documents
from antecede.spark.spans.jaeger import read_jaeger
from antecede.spark.spans.messages import MessageCounts, write_messages
from antecede.spark.spans.otlp import read_otlp
from antecede.spark.spans.schema import REJECTED, SPANS, parse_columns
from antecede.spark.spans.table import read_table
from antecede.spark.storage import absolute, escape_path, join, whole
from antecede.trace.foreign.formats import refuse_span_request

__all__ = ["SpanCounts", "Spans", "count_spans", "read_spans", "write_spans"]


class Spans(NamedTuple):
    """What files say: spans, and what cannot be read. Both are read whenever they are asked for."""

    spans: DataFrame
    rejected: DataFrame


@dataclass(frozen=True)
class SpanCounts:
    """What was read, in numbers: what the command line says."""

    spans: int
    traces: int
    rejected: int
    causes: int
    """Parents and links, all together."""
    across: int
    """Those of them that are in another trace than the span."""
    messages: int
    deliveries: int
    repeats: int
    undelivered: int
    unsent: int
    absent: int
    """These are of `antecede.spark.spans.messages.MessageCounts`."""


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
    return divide(read_rows(spark, path, format, mapping, no_cause, process))


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
    rows = read_rows(spark, path, format, mapping, no_cause, process)
    # Two tables come of one reading: parsing is what takes the time.
    rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with raise_task_errors(), whole(out) as aside:
            for name, table in divide(rows)._asdict().items():
                table.write.parquet(join(aside, name))
            rows.unpersist()
            read = read_written(spark, aside)
            rejected = read.rejected.count()
            found = write_messages(read.spans, aside, run=run, format=format, rejected=rejected, rpc=rpc)
            counts = count_spans(read, found, rejected)
    finally:
        rows.unpersist()
    return read_written(spark, absolute(out)), counts


def read_written(spark: SparkSession, directory: str) -> Spans:
    types = {"spans": SPANS, "rejected": REJECTED}
    return Spans(
        *(
            spark.read.schema(types[name]).parquet(escape_path(join(directory, name)))
            for name in Spans._fields
        )
    )


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


def read_rows(
    spark: SparkSession,
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    format: str,
    mapping: Mapping[str, str] | None,
    no_cause: str | Sequence[str],
    process: str | Sequence[str] = (),
) -> DataFrame:
    """Spans and what cannot be read, which has a reason."""
    refuse_span_request(format, mapping)
    many = [path] if isinstance(path, str | os.PathLike) else list(path)
    if not many:
        raise BadParameter("read_spans", "name one file or more")
    names = list_files(spark, many)
    attributes = (process,) if isinstance(process, str) else tuple(process)
    if format == "spans":
        none = (no_cause,) if isinstance(no_cause, str) else tuple(no_cause)
        return read_table(spark, names, mapping, none, attributes)
    read = {"otlp": read_otlp, "jaeger": read_jaeger}[format]
    return read_documents(spark, names, read, attributes)


def divide(rows: DataFrame) -> Spans:
    return Spans(
        rows.where("reason is null").select(*parse_columns(SPANS)),
        rows.where("reason is not null").select(*parse_columns(REJECTED)),
    )
