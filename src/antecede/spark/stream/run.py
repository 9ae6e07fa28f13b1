"""A query from its start to its end: until it is stopped or, with `once`, until all is done that was there.

The one loop that runs a query of a command. What it counts is kept in the checkpoint (`checkpoint`), so that an answer
at the end costs the same however much was written before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from antecede.spark.stream.checkpoint import Checkpoint, Totals
from antecede.spark.stream.listener import posting

__all__ = ["Counted", "Query", "run_query"]

EMPTY: Final = "spark.sql.streaming.noDataMicroBatches.enabled"
POLL_S: Final = 1
"""Between two looks at whether to stop."""


class Counted(NamedTuple):
    """What a micro-batch came to: how many of each kind, and examples."""

    counts: Mapping[str, int]
    examples: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Query:
    """What is to be run, and how it is counted."""

    checkpoint: str | os.PathLike[str]
    build: Callable[[SparkSession], DataStreamWriter]
    count: Callable[[Any], Counted | None]
    """Of what Spark reports of a micro-batch."""
    recount: Callable[[SparkSession], Counted]
    """Of all that was written: after a query that was killed."""
    timed: bool
    """Whether it acts when time has passed and nothing came."""


def run_query(
    spark: SparkSession, query: Query, *, once: bool, every_s: float, stop: Callable[[], bool]
) -> Totals:
    """Start a query, stay until its end, and count what all of its micro-batches came to."""
    checkpoint = Checkpoint(query.checkpoint)
    totals = checkpoint.read_totals(spark)
    counted = Totals() if totals is None else totals
    # A query that waits for time to pass runs empty micro-batches for ever, unless it is told not to.
    own = make_session(spark, {EMPTY: "false"}) if once and query.timed else spark
    writer = query.build(own)
    writer = (
        writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{every_s} seconds")
    )
    with posting(own, query.checkpoint):
        stay(writer.start(), stop, lambda progress: add(counted, query, progress))
    last = checkpoint.find_committed(spark)
    if totals is None or counted.batch != last:
        counted = Totals(last, *map(dict, query.recount(spark)))
        if not once:
            # Something may be written that is not committed: it will be counted again.
            return counted
    checkpoint.write_totals(counted)
    return counted


def make_session(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """A session with the same settings, and these: other queries of the caller's session keep theirs."""
    own = spark.newSession()
    for name, value in {**spark.conf.getAll, **settings}.items():
        if own.conf.isModifiable(name):
            own.conf.set(name, value)
    return own


def stay(query: StreamingQuery, stop: Callable[[], bool], note: Callable[[Any], None]) -> None:
    """Wait for the end of a query, or stop it. `note` gets what Spark reports of each micro-batch."""
    noted = ""

    def look() -> None:
        nonlocal noted
        for progress in query.recentProgress:
            # Compare times, not batch ids: an empty trigger reports the id of the next micro-batch.
            if progress.timestamp > noted:
                noted = progress.timestamp
                note(progress)

    try:
        while not (query.awaitTermination(POLL_S) or stop()):
            look()
    finally:
        query.stop()
    look()
    if (error := query.exception()) is not None:
        raise error


def add(totals: Totals, query: Query, progress: Any) -> None:
    if (counted := query.count(progress)) is not None:
        totals.add(progress.batchId, *counted)
