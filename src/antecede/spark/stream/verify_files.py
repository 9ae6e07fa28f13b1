"""Events of running systems -> findings as Parquet, until stopped or caught up: what `antecede verify --stream` does.

Findings are written by Spark's file sink, which lists in its log what it has committed: a reader that is Spark sees
each once, however often the query was killed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Required, TypedDict, Unpack

import msgspec
from msgspec import Struct
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from antecede.errors import BadParameter, BadTrace
from antecede.spark.errors import raise_task_errors
from antecede.spark.frames import quote
from antecede.spark.sources import jetstream, node_feed, traces
from antecede.spark.storage import absolute, escape_path, files, join, readable
from antecede.spark.stream.checkpoint import Checkpoint
from antecede.spark.stream.listener import observe_findings
from antecede.spark.stream.run import Counted, Query, run_query
from antecede.spark.stream.status import observed_metrics
from antecede.spark.stream.verify import verify_stream
from antecede.spark.trace.api import refuse_files
from antecede.trace import EVENTS

__all__ = ["KINDS", "Findings", "events_at", "verify_events", "write_findings"]

KINDS: Final = (
    "violation",
    "fifo_break",
    "duplicate",
    "unaddressed",
    "unsent",
    "undelivered",
    "gap",
    "impossible",
    "retracted",
)
OBSERVED: Final = "found"
ELSEWHERE: Final = ("feed://", "nats://", "tls://")
"""What is no directory. Its address may change from one start to the next."""


class Findings(Struct, frozen=True):
    """What was found so far, in all lives of a query."""

    counts: Mapping[str, int]
    """Kind -> how many; those that there are."""
    first: tuple[Mapping[str, Any], ...]
    """One of each kind."""


def events_at(spark: SparkSession, place: str) -> DataFrame:
    """The events of a directory, of `feed://HOST:PORT,HOST:PORT`, or of `nats://HOST:PORT/STREAM`."""
    if place.startswith("feed://"):
        return node_feed(spark, place.removeprefix("feed://").split(","))
    if place.startswith(("nats://", "tls://")):
        url, _, stream = place.rpartition("/")
        if url.endswith("/") or not stream:
            raise BadParameter(
                "verify --stream", "the source names a server and no stream: write nats://HOST:PORT/STREAM"
            )
        return jetstream(spark, url, stream, rows="events")
    return traces(spark, place)


class Running(TypedDict, total=False):
    """How a query runs: until all that is there is done (`once`), or until `stop` says so."""

    once: Required[bool]
    every_s: float
    stop: Callable[[], bool]
    note: Callable[[Mapping[str, int]], None]
    """Told of each micro-batch how many of each kind it found."""


def verify_events(
    spark: SparkSession,
    place: str,
    out: str,
    checkpoint: str,
    *,
    patience: str | None = None,
    remember: str | None = None,
    **running: Unpack[Running],
) -> Findings:
    """Judge the events of a place, and write what is found. Started again, it goes on where it was."""
    lies = not place.startswith(ELSEWHERE)

    def find(own: SparkSession) -> DataFrame:
        return observe_findings(verify_stream(events_at(own, place), patience=patience, remember=remember))

    with raise_task_errors():
        if lies:
            refuse(spark, place, running["once"], Checkpoint(checkpoint).fresh)
        timed = patience is not None or remember is not None
        identity = {"command": "verify", "input": absolute(place) if lies else None}
        return write_findings(spark, find, KINDS, identity, out, checkpoint, timed=timed, **running)


def write_findings(
    spark: SparkSession,
    find: Callable[[SparkSession], DataFrame],
    kinds: Sequence[str],
    identity: Mapping[str, Any],
    out: str,
    checkpoint: str,
    *,
    timed: bool,
    once: bool,
    every_s: float = 1.0,
    stop: Callable[[], bool] = lambda: False,
    note: Callable[[Mapping[str, int]], None] = lambda counts: None,
    claimed: Callable[[], None] = lambda: None,
) -> Findings:
    """Write findings of these kinds as Parquet: a streaming DataFrame with a column `kind`, which `find` makes.

    `claimed` is called when the checkpoint is this query's.
    """
    schema = find(spark).schema

    def build(own: SparkSession) -> DataStreamWriter:
        found = find(own).observe(OBSERVED, *aggregates(kinds, schema))
        writer = found.writeStream.format("parquet").option("path", absolute(out))
        return writer.option("checkpointLocation", absolute(checkpoint))

    def count(progress: Any) -> Counted | None:
        metrics = observed_metrics(progress, OBSERVED)
        if metrics is None:
            return None
        counted = read_metrics(metrics, kinds, schema)
        note(counted.counts)
        return counted

    def recount(own: SparkSession) -> Counted:
        """Count all that was written."""
        written = own.read.schema(schema).parquet(escape_path(absolute(out)))
        found = written.agg(*aggregates(kinds, schema)).first()
        assert found is not None
        return read_metrics(found.asDict(), kinds, schema)

    query = Query(checkpoint, build, count, recount, timed)
    # Refused before it is noted whose the checkpoint is.
    query.build(spark)
    Checkpoint(checkpoint).claim("verify --stream", identity, out)
    claimed()
    totals = run_query(spark, query, once=once, every_s=every_s, stop=stop)
    return Findings(
        {kind: totals.counts[kind] for kind in kinds if totals.counts.get(kind)},
        tuple(totals.examples[kind] for kind in kinds if kind in totals.examples),
    )


def aggregates(kinds: Sequence[str], schema: StructType) -> list[Column]:
    """For each kind how many there are, and the first of them."""
    row = F.struct(*(F.col(quote(name)) for name in schema.names))
    return [
        column
        for kind in kinds
        for column in (
            F.count_if(F.col("kind") == kind).alias(kind),
            F.to_json(F.min(F.when(F.col("kind") == kind, row))).alias(f"first_{kind}"),
        )
    ]


def read_metrics(metrics: Mapping[str, Any], kinds: Sequence[str], schema: StructType) -> Counted:
    """What `aggregates` gave."""
    firsts = {kind: metrics[f"first_{kind}"] for kind in kinds if metrics[f"first_{kind}"] is not None}
    none = dict.fromkeys(schema.names)
    examples = {kind: {**none, **msgspec.json.decode(text)} for kind, text in firsts.items()}
    return Counted({kind: metrics[kind] for kind in kinds if metrics[kind]}, examples)


def refuse(spark: SparkSession, place: str, once: bool, new: bool) -> None:
    """Check existing files before the query starts: Spark never skips a file that a micro-batch has planned."""
    events = join(absolute(place), "events")
    there = files(spark, events)
    if once and not there:
        raise BadTrace(events, "there are no Parquet files: the events of a trace are missing")
    if new and readable(events):
        refuse_files(spark, there, EVENTS)
