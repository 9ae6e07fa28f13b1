"""Events of running systems -> findings as Parquet, until stopped or caught up: what `antecede verify --stream` does.

Findings are written by Spark's file sink, which lists in its log what it has committed: a reader that is Spark sees
each once, however often the query was killed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from antecede.errors import BadParameter, BadTrace
from antecede.spark.errors import raise_task_errors
from antecede.spark.sources import jetstream, node_feed, traces
from antecede.spark.storage import absolute, escaped, files, join, readable
from antecede.spark.stream.ownership import begin, fresh
from antecede.spark.stream.post_status import observed
from antecede.spark.stream.run import run
from antecede.spark.stream.verify import FOUND, verify_stream
from antecede.spark.stream.watch import observed as reported
from antecede.spark.trace.footers import refuse_files
from antecede.trace import EVENTS

__all__ = ["KINDS", "Judged", "events_at", "verify_live"]

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
SHOWN: Final = 5
ELSEWHERE: Final = ("feed://", "nats://", "tls://")
"""What is no directory. Its address may change from one start to the next."""


class Judged(Struct, frozen=True):
    """What was found so far, in all lives of a query."""

    counts: Mapping[str, int]
    """Kind -> how many; those that there are."""
    first: tuple[Mapping[str, Any], ...]
    """Some of them."""


def events_at(spark: SparkSession, place: str) -> DataFrame:
    """The events of a directory, of `feed://HOST:PORT,HOST:PORT`, or of `nats://HOST:PORT/STREAM`."""
    if place.startswith("feed://"):
        return node_feed(spark, place.removeprefix("feed://").split(","))
    if place.startswith(("nats://", "tls://")):
        url, _, stream = place.rpartition("/")
        if url.endswith("/") or not stream:
            raise BadParameter(
                "verify --stream", "source", "a server", "a stream too: nats://HOST:PORT/STREAM"
            )
        return jetstream(spark, url, stream, rows="events")
    return traces(spark, place)


def verify_live(
    spark: SparkSession,
    place: str,
    out: str,
    checkpoint: str,
    *,
    once: bool,
    every_s: float = 1.0,
    patience_s: float | None = None,
    forget_s: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    note: Callable[[Mapping[str, int]], None] = lambda counts: None,
) -> Judged:
    """Run until all that is there is done (`once`), or until `stop` says so. Started again, it goes on where it was.

    `note` is told of each micro-batch how many of each kind it found.
    """
    patience, forget = (
        None if seconds is None else timedelta(seconds=seconds) for seconds in (patience_s, forget_s)
    )
    counts = [F.count_if(F.col("kind") == kind).alias(kind) for kind in KINDS]

    def tell(progress: Any) -> None:
        counted = reported(progress, "found")
        if counted is not None:
            note({kind: count for kind, count in counted.items() if count})

    with raise_task_errors():
        lies = not place.startswith(ELSEWHERE)
        if lies:
            refuse(spark, place, once, fresh(checkpoint))
        found = verify_stream(events_at(spark, place), patience=patience, forget=forget)
        found = observed(found).observe("found", *counts)
        writer = found.writeStream.format("parquet").option("path", absolute(out))
        writer = writer.option("checkpointLocation", absolute(checkpoint))
        identity = {"command": "verify", "input": absolute(place) if lies else None}
        begin("verify --stream", identity, out, checkpoint)
        run(spark, writer, once=once, every_s=every_s, stop=stop, note=tell)
        return _judged(spark, out)


def refuse(spark: SparkSession, place: str, once: bool, new: bool) -> None:
    """What is there already is looked at before a query begins: what one has planned to read, it does not leave out."""
    events = join(absolute(place), "events")
    there = files(spark, events)
    if once and not there:
        raise BadTrace(events, "no Parquet files", "the events of a trace")
    if new and readable(events):
        refuse_files(spark, there, EVENTS)


def _judged(spark: SparkSession, out: str) -> Judged:
    found = spark.read.schema(FOUND).parquet(escaped(absolute(out)))
    counts = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
    first = found.orderBy(F.col("kind") != "violation", "kind", "run", "process", "index").limit(SHOWN)
    return Judged(
        {kind: counts[kind] for kind in KINDS if kind in counts},
        tuple(row.asDict() for row in first.collect()),
    )
