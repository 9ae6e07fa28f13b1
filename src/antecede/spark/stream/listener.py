"""Listeners of streams: one calls back with each status, one posts it where `antecede watch` looks.

    spark.streams.addListener(Watch(print))            the `Progress` of each micro-batch of our streams in a session
    spark.streams.addListener(Posting(checkpoint))     before a query with this checkpoint starts
    found = observe_findings(verify_stream(events))    so that a query's findings are told, too

A query that is killed and started again goes on with the counts that are posted, and a micro-batch that is done again
replaces what it had said.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from msgspec import structs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from antecede.spark.storage import local
from antecede.spark.stream.status import Progress, fields_of, observed_metrics, status_of
from antecede.watch.status import CAUSES_MOST, PROCESSES_MOST, Board, Found, Status

__all__ = ["BOARD", "OBSERVED_FOUND", "Posting", "Watch", "make_status", "observe_findings", "posting"]

BOARD: Final = "status"
"""The directory of statuses in a checkpoint."""
OBSERVED_FOUND: Final = "antecede_found"
HEARD_S: Final = 5
"""How long to wait for what a listener hears last."""
NEWEST: Final = 20
"""Findings that a status names."""
FURTHEST: Final = "furthest"
"""Of a stream with many receivers, the frontier is that of whoever is furthest, sender by sender."""


def observe_findings(findings: DataFrame) -> DataFrame:
    """The findings of `verify_stream`, counted where a listener sees it: how many, and the first of a micro-batch."""
    one = F.struct(*(F.col(name) for name in Found.__struct_fields__))
    return findings.observe(
        OBSERVED_FOUND, F.count(F.lit(1)).alias("count"), F.to_json(F.min(one)).alias("first")
    )


@contextmanager
def posting(spark: SparkSession, checkpoint: str | os.PathLike[str]) -> Iterator[None]:
    """Within this, the query with this checkpoint can be watched, if the checkpoint is on this machine."""
    here = local(checkpoint)
    if here is None:
        yield
        return
    listener = Posting(here)
    spark.streams.addListener(listener)
    try:
        yield
        listener.ended.wait(HEARD_S)
    except BaseException:
        # It may be that none was started.
        if listener.busy:
            listener.ended.wait(HEARD_S)
        raise
    finally:
        spark.streams.removeListener(listener)


class Watch(StreamingQueryListener):
    """Calls back with the `Progress` of each micro-batch of our streams in a session."""

    def __init__(self, callback: Callable[[Progress], None]) -> None:
        self.callback = callback

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        if (progress := status_of(event.progress)) is not None:
            self.callback(progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass


class Posting(StreamingQueryListener):
    """Posts each micro-batch of one query at a time: the one that is called `query`, or whichever starts."""

    def __init__(self, checkpoint: str | os.PathLike[str], query: str | None = None) -> None:
        self.checkpoint = os.fspath(checkpoint)
        self.board = Board(os.path.join(self.checkpoint, BOARD))
        self._asked, self._name = query, "stream"
        self._own: str | None = None
        """The one that is at work."""
        self.ended = threading.Event()
        """Listeners hear of an end a little later, and one that is removed hears nothing: this can be waited for."""
        self._last: Status | None = None

    @property
    def busy(self) -> bool:
        """Whether a query was started and has not ended, as far as was heard."""
        return self._own is not None

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        if self._own is None and self._asked in (None, event.name):
            self._own = str(event.id)
            self.ended.clear()
            self._name = event.name or "stream"

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        if str(event.progress.id) == self._own:
            before = self._before(event.progress.batchId)
            told = status_of(event.progress, self.checkpoint)
            self._post(make_status(event.progress, self._name, told, before))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        if str(event.id) != self._own:
            return
        self._own = None
        if (last := self._before(1 << 62)) is not None:
            why = "stopped" if event.exception is None else event.exception.split("\n")[0][:300]
            self._post(structs.replace(last, ended=why))
        self.ended.set()

    def _post(self, status: Status) -> None:
        self.board.write(status)
        self._last = status

    def _before(self, batch: int) -> Status | None:
        """The latest status of an earlier batch."""
        if self._last is not None and self._last.batch < batch:
            return self._last
        return next((one for one in reversed(self.board.read()) if one.batch < batch), None)


def make_status(
    progress: Any, query: str, told: Progress | None = None, before: Status | None = None
) -> Status:
    """What Spark and the stream (`told`) say of a micro-batch, as a page shows it, with the counts of all before it."""
    value = fields_of(progress)
    sink = value.get("sink")
    rows_out = (
        getattr(sink, "numOutputRows", -1) if not isinstance(sink, Mapping) else sink.get("numOutputRows", -1)
    )
    now = time.time_ns() // 1_000_000
    status = Status(
        query=query,
        batch=int(value["batchId"]),
        time_ms=now,
        duration_ms=int(value["durationMs"].get("triggerExecution", 0)),
        rows_in=int(sum(source_rows(source) for source in value["sources"])),
        rows_out=max(0, int(rows_out)),
        all_given_up=before.all_given_up if before else 0,
        all_late=before.all_late if before else 0,
        all_refused=before.all_refused if before else 0,
        all_found=before.all_found if before else 0,
        found=before.found if before else (),
    )
    if told is not None:
        status = add_delivery(status, told)
    found = observed_metrics(progress, OBSERVED_FOUND)
    return status if found is None else add_findings(status, found)


def source_rows(source: Any) -> int:
    found = source.get("numInputRows") if isinstance(source, Mapping) else source.numInputRows
    return int(found or 0)


def add_delivery(status: Status, progress: Progress) -> Status:
    """With what a stream in causal order says."""
    told = progress.status
    furthest = sorted(told.frontier.items())[:PROCESSES_MOST]
    return structs.replace(
        status,
        rows_in=told.rows_in,
        rows_out=told.delivered + told.late,
        held=told.held,
        oldest_ms=told.oldest_ms,
        causes=told.causes[:CAUSES_MOST],
        frontier={FURTHEST: dict(furthest)} if furthest else {},
        all_given_up=status.all_given_up + told.gave_up,
        all_late=status.all_late + told.late,
        all_refused=status.all_refused + told.refused,
    )


def add_findings(status: Status, found: Any) -> Status:
    """With what live verification says."""
    count, first = int(found["count"] or 0), found["first"]
    named = (msgspec.json.decode(first, type=Found),) if first else ()
    newest = (*status.found, *named)[-NEWEST:]
    return structs.replace(status, rows_out=count, all_found=status.all_found + count, found=newest)
