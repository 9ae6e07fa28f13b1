"""What a stream is doing, as plain values: how much came and went, what waits for whom, since when.

    Status                     of one bucket, or of all (`combine_statuses`), after one micro-batch
    status_of(progress)        the `Status` of one micro-batch, from what Spark reports of it; or from the checkpoint,
                               of a query by closed sets
    waiting(spark, checkpoint) every message that waits, since when, and which messages of whom have not come: from the
                               state itself
    spark.streams.addListener(Watch(print))            the `Progress` of each micro-batch of our streams in a session
    spark.streams.addListener(Posting(checkpoint))     posts it where `antecede watch` looks; before the query starts
    found = observe_findings(verify_stream(events))    so that a query's findings are told, too

A query reports its status as observed metrics: they reach any listener, also through Spark Connect. A status is small
whatever the stream holds. It names what is missing at its root: messages that have not come, never those that are held
themselves; and how many messages each of them holds up, directly or through others.

A query that is killed and started again goes on with the counts that are posted, and a micro-batch that is done again
replaces what it had said.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec import Struct, structs
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from antecede.errors import BadParameter
from antecede.storage import absolute, local
from antecede.watch.status import CAUSES_MOST, PROCESSES_MOST, Board, Cause, Found, describe_causes
from antecede.watch.status import Status as Posted

__all__ = [
    "BOARD", "OBSERVED", "Cause", "Posting", "Progress", "Status", "Watch", "combine_statuses", "is_idle",
    "make_status", "observe_findings", "posting", "sort_causes", "status_of", "sum_up_waiting", "waiting",
]  # fmt: skip

GAVE_UP: Final = pa.list_(
    pa.struct({"sender": pa.string(), "first": pa.int64(), "last": pa.int64(), "counted": pa.string()})
)
WAITING: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("group", "receiver", "sender")),
        *((name, pa.int64()) for name in ("number", "since_ms")),
        ("awaits", GAVE_UP),
    ]
)
"""A message that waits: at whom, whose, since when, and for which messages of whom."""
OBSERVED: Final = "antecede"
"""The name of the metrics that a query reports."""
OBSERVED_FOUND: Final = "antecede_found"
FOUND_MOST: Final = 20
"""Findings that a status names."""
BOARD: Final = "status"
"""The directory of statuses in a checkpoint."""
HEARD_S: Final = 5
"""How long to wait for what a listener hears last."""
FURTHEST: Final = "furthest"
"""Of a stream with many receivers, the frontier is that of whoever is furthest, sender by sender."""


class Status(Struct, frozen=True):
    """Counts are of the micro-batch, but for `held` and what follows: those are of its end."""

    now_ms: int = 0
    rows_in: int = 0
    delivered: int = 0
    late: int = 0
    refused: int = 0
    gave_up: int = 0
    """Delivered without a cause that was given up."""
    held: int = 0
    oldest_ms: int | None = None
    """When the message came that waits the longest."""
    causes: tuple[Cause, ...] = ()
    """What has not come, that which holds up the most first."""
    frontier: dict[str, int] = {}
    """Process -> how many of its messages (by the stamps' count) were delivered at the receiver that has the most."""

    def describe_waits(self) -> str:
        """What waits, and for what, in a sentence."""
        return describe_causes(self.causes, self.held) if self.causes else f"{self.held:,} wait"


def sort_causes(causes: Iterable[Cause]) -> tuple[Cause, ...]:
    ordered = sorted(causes, key=lambda cause: (-cause.held, cause.since_ms, cause.sender, cause.first))
    return tuple(ordered[:CAUSES_MOST])


def combine_statuses(parts: Iterable[Status]) -> Status:
    """The status of all buckets."""
    parts, frontier = list(parts), dict[str, int]()
    for name, count in (one for part in parts for one in part.frontier.items()):
        frontier[name] = max(count, frontier.get(name, 0))
    counts = ("rows_in", "delivered", "late", "refused", "gave_up", "held")
    return Status(
        now_ms=max((part.now_ms for part in parts), default=0),
        oldest_ms=min((part.oldest_ms for part in parts if part.oldest_ms is not None), default=None),
        causes=sort_causes(cause for part in parts for cause in part.causes),
        frontier=frontier,
        **{name: sum(getattr(part, name) for part in parts) for name in counts},
    )


# Of a query


class Progress(Struct, frozen=True):
    """A micro-batch, as a page or a terminal shows it."""

    query: str
    batch: int
    rows_per_second: float
    """Rows that came, for each second that the micro-batch took."""
    delivered_per_second: float
    seconds: float
    status: Status


def status_of(progress: Any, checkpoint: str | os.PathLike[str] | None = None) -> Progress | None:
    """What a query reports of a micro-batch (an element of `query.recentProgress`, or what a listener gets).

    None if the query has no stream of ours, or the micro-batch had nothing to do. A query by closed sets tells
    Spark nothing: with its `checkpoint`, what it keeps there of its last micro-batches is looked up.
    """
    batch, metrics = int(progress["batchId"]), observed_metrics(progress, OBSERVED)
    if metrics is not None:
        statuses = [msgspec.json.decode(text, type=Status) for text in metrics["status"] or ()]
    else:
        from antecede.spark.stream.closed import read_status

        found = None if checkpoint is None else read_status(checkpoint, batch)
        statuses = [] if found is None else [found]
    if not statuses:
        return None
    status, seconds = combine_statuses(statuses), progress["durationMs"].get("triggerExecution", 0) / 1000
    came, out = (count / max(seconds, 0.001) for count in (status.rows_in, status.delivered + status.late))
    return Progress(str(progress["id"]), batch, came, out, seconds, status)


def is_idle(progress: Any) -> bool:
    """Whether this was a micro-batch that called no bucket: nothing came, and for none the time was up.

    An empty trigger is none: it reports the id of the micro-batch to come.

    >>> idle = {"observedMetrics": {OBSERVED: {"status": []}}}
    >>> is_idle({**idle, "durationMs": {"addBatch": 40}}), is_idle({**idle, "durationMs": {"latestOffset": 2}})
    (True, False)
    """
    return "addBatch" in progress["durationMs"] and observed_metrics(progress, OBSERVED) == {"status": []}


def observed_metrics(progress: Any, name: str) -> dict[str, Any] | None:
    """The metrics of this name that a query reports of a micro-batch, if it does: by their names.

    Through Spark Connect a row of metrics comes as its values beside its schema, which PySpark takes for its fields.

    >>> schema = {"fields": [{"name": "count"}]}
    >>> observed_metrics({"observedMetrics": {"found": {"values": [3], "schema": schema}}}, "found")
    {'count': 3}
    """
    found = (progress.get("observedMetrics") or {}).get(name)
    if found is None:
        return None
    fields = dict(found) if isinstance(found, Mapping) else found.asDict()
    if fields.keys() == {"values", "schema"}:
        names = [field["name"] for field in fields["schema"]["fields"]]
        return dict(zip(names, fields["values"], strict=True))
    return fields


def read_states(spark: SparkSession, checkpoint: str | os.PathLike[str]) -> DataFrame:
    """The states of all buckets of the query with this checkpoint, as of its last committed micro-batch."""
    from antecede.spark.stream.closed import find_state

    if (state := find_state(spark, checkpoint)) is not None:
        return spark.createDataFrame([(state,)], "state binary")
    place = absolute(checkpoint)
    try:
        kind = spark.read.format("state-metadata").load(place).select("operatorName").first()
        reader = spark.read.format("statestore")
        if kind is not None and kind[0].startswith("transformWithState"):
            return reader.option("stateVarName", "head").load(place).select("value.state")
        return reader.load(place).select("value.groupState.state")
    except PySparkException as error:
        reason = str(error).split("\n")[0][:200]
        raise BadParameter(
            "waiting",
            f"checkpoint must be that of a stream that has begun, and {checkpoint} is none: {reason}",
        ) from None


def look_at_states(
    spark: SparkSession, checkpoint: str | os.PathLike[str], look: Callable[[Any], pa.Table], schema: Any
) -> DataFrame:
    """What is seen of each bucket."""

    def look_at_each(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for value in (value for batch in batches for value in batch.column(0) if value.is_valid):
            yield from look(open_state(value.as_py())).to_batches()

    return read_states(spark, checkpoint).mapInArrow(look_at_each, schema)


def waiting(spark: SparkSession, checkpoint: str | os.PathLike[str]) -> DataFrame:
    """What waits in the query with this checkpoint, as of its last committed micro-batch: rows of `WAITING`."""

    def list_held(bucket: Any) -> pa.Table:
        return pa.Table.from_pylist(bucket.list_held(), WAITING)

    return look_at_states(spark, checkpoint, list_held, from_arrow_schema(WAITING))


def sum_up_waiting(spark: SparkSession, checkpoint: str | os.PathLike[str]) -> Status:
    """What waits in the query with this checkpoint, and for what, as a status."""

    def describe(bucket: Any) -> pa.Table:
        return pa.table({"status": [msgspec.json.encode(bucket.advance(None, 0)[1]).decode()]})

    told = look_at_states(spark, checkpoint, describe, "status string").collect()
    return combine_statuses(msgspec.json.decode(row["status"], type=Status) for row in told)


def open_state(state: bytes) -> Any:
    """A bucket with this state, to look at what waits. What it remembers is left out."""
    from antecede.spark.stream.bucket import read_state
    from antecede.spark.stream.causes import CausesSettings
    from antecede.spark.stream.packets import Settings
    from antecede.spark.stream.vectors import VectorSettings

    forms: dict[str, Any] = {"causes": CausesSettings, "vectors": VectorSettings, "stamps": Settings}
    made = read_state(state)
    settings = msgspec.convert(made["settings"], forms[made["form"]])
    return structs.replace(settings, patience_ms=None).open(state)


# Listeners


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
    finally:
        listener.ended.wait(HEARD_S)
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

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass


class Posting(StreamingQueryListener):
    """Posts each micro-batch of one query at a time, whichever starts."""

    def __init__(self, checkpoint: str | os.PathLike[str]) -> None:
        self.checkpoint = os.fspath(checkpoint)
        self.board = Board(os.path.join(self.checkpoint, BOARD))
        self.ended = threading.Event()
        """Listeners hear of an end a little later, and one that is removed hears nothing: this can be waited for."""
        self.ended.set()
        self._id = self._name = ""
        self._last: Posted | None = None

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        if self.ended.is_set():
            self.ended.clear()
            self._id, self._name = str(event.id), event.name or "stream"

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        if str(event.progress.id) == self._id:
            before = self._before(event.progress.batchId)
            told = status_of(event.progress, self.checkpoint)
            self._post(make_status(event.progress, self._name, told, before))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        if str(event.id) != self._id:
            return
        if (last := self._before(1 << 62)) is not None:
            why = "stopped" if event.exception is None else event.exception.split("\n")[0][:300]
            self._post(structs.replace(last, ended=why))
        self._id = ""
        self.ended.set()

    def _post(self, status: Posted) -> None:
        self.board.write(status)
        self._last = status

    def _before(self, batch: int) -> Posted | None:
        """The latest status of an earlier batch."""
        if self._last is not None and self._last.batch < batch:
            return self._last
        return next((one for one in reversed(self.board.read()) if one.batch < batch), None)


def make_status(
    progress: Any, query: str, told: Progress | None = None, before: Posted | None = None
) -> Posted:
    """What Spark and the stream (`told`) say of a micro-batch, as a page shows it, with the counts of all before it."""
    status = Posted(
        query=query,
        batch=int(progress["batchId"]),
        time_ms=time.time_ns() // 1_000_000,
        duration_ms=int(progress["durationMs"].get("triggerExecution", 0)),
        rows_in=sum(int(source["numInputRows"] or 0) for source in progress["sources"]),
        rows_out=max(0, int(progress["sink"]["numOutputRows"])),
    )
    if before is not None:
        # A micro-batch without rows calls no bucket: what they held, they hold.
        sums = "all_given_up", "all_late", "all_refused", "all_found", "found"
        kept = *sums, "held", "oldest_ms", "causes", "frontier"
        status = structs.replace(status, **{name: getattr(before, name) for name in kept})
    if told is not None:
        one = told.status
        furthest = sorted(one.frontier.items())[:PROCESSES_MOST]
        status = structs.replace(
            status,
            rows_in=one.rows_in,
            rows_out=one.delivered + one.late,
            held=one.held,
            oldest_ms=one.oldest_ms,
            causes=one.causes,
            frontier={FURTHEST: dict(furthest)} if furthest else {},
            all_given_up=status.all_given_up + one.gave_up,
            all_late=status.all_late + one.late,
            all_refused=status.all_refused + one.refused,
        )
    found = observed_metrics(progress, OBSERVED_FOUND)
    if found is None:
        return status
    many = int(found["count"] or 0)
    named = (msgspec.json.decode(found["first"], type=Found),) if found["first"] else ()
    newest = (*status.found, *named)[-FOUND_MOST:]
    return structs.replace(status, rows_out=many, all_found=status.all_found + many, found=newest)
