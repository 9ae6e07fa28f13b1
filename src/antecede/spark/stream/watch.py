"""Looking at a running stream: its status after each micro-batch, and what waits at any time.

    status_of(progress)        the `Status` of one micro-batch, from what Spark reports of it; or from
                               the checkpoint, of a query by closed sets
    Watch(callback)            a listener that calls back with each: `spark.streams.addListener(Watch(print))`
    waiting(spark, checkpoint) every message that waits, for which message of whom, since when: from the state itself

A query reports its status as observed metrics, so it costs no output and reaches any listener, also through Spark
Connect. `waiting` reads the checkpoint of a query, running or not, from any session.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Struct
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from antecede.errors import BadParameter
from antecede.spark.storage import absolute, local
from antecede.spark.stream.bucket import Bucket
from antecede.spark.stream.checkpoint import closed_statuses, waiting_closed
from antecede.spark.stream.operator import OBSERVED
from antecede.spark.stream.packets import WAITING
from antecede.spark.stream.settings import Settings
from antecede.spark.stream.status import Status, together, waits

__all__ = ["Progress", "WAITING", "Watch", "observed", "status_of", "waiting"]


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
    named = progress if isinstance(progress, dict) else vars(progress)
    value = {key.lstrip("_"): item for key, item in named.items()}
    batch, told = int(value["batchId"]), observed(progress, OBSERVED)
    if told is not None:
        statuses = [msgspec.json.decode(text, type=Status) for text in told["status"] or ()]
    else:
        statuses = [] if checkpoint is None else closed_statuses(checkpoint, batch)
    if not statuses:
        return None
    status = together(statuses)
    seconds = value["durationMs"].get("triggerExecution", 0) / 1000
    per = max(seconds, 0.001)
    out = status.delivered + status.late
    return Progress(str(value["id"]), batch, status.rows_in / per, out / per, seconds, status)


def observed(progress: Any, name: str) -> dict[str, Any] | None:
    """The metrics of this name that a query reports of a micro-batch, if it does: by their names.

    Through Spark Connect a row of metrics comes as its values beside its schema, which PySpark takes for its fields.

    >>> schema = {"fields": [{"name": "count"}]}
    >>> observed({"observedMetrics": {"found": {"values": [3], "schema": schema}}}, "found")
    {'count': 3}
    """
    named = progress if isinstance(progress, Mapping) else vars(progress)
    found = (named.get("observedMetrics") or named.get("_observedMetrics") or {}).get(name)
    if found is None:
        return None
    fields = dict(found) if isinstance(found, Mapping) else found.asDict()
    if fields.keys() == {"values", "schema"}:
        names = [field["name"] for field in fields["schema"]["fields"]]
        return dict(zip(names, fields["values"], strict=True))
    return fields


class Watch(StreamingQueryListener):
    """Calls back with the `Progress` of each micro-batch of our streams in a session."""

    def __init__(self, callback: Callable[[Progress], None]) -> None:
        self.callback = callback

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = status_of(event.progress)
        if progress is not None:
            self.callback(progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass


def waiting(spark: SparkSession, checkpoint: str | os.PathLike[str]) -> DataFrame:
    """What waits in the query with this checkpoint, as of its last committed micro-batch: rows of `WAITING`."""
    place = absolute(checkpoint)
    here = local(checkpoint)
    if here is not None and os.path.isdir(os.path.join(here, "closed")):
        return spark.createDataFrame(waiting_closed(checkpoint), from_arrow_schema(WAITING))
    try:
        state = spark.read.format("statestore").load(place)
    except PySparkException as error:
        reason = str(error).split("\n")[0][:200]
        raise BadParameter(
            "waiting", "checkpoint", place, f"that of a stream that has begun: {reason}"
        ) from None
    values = state.select("value.groupState.state")
    return values.mapInArrow(listed, from_arrow_schema(WAITING))


def listed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for value in batch.column(0):
            if value.is_valid:
                yield from pa.Table.from_pylist(held(value.as_py()), WAITING).to_batches()


def held(state: bytes) -> list[dict[str, Any]]:
    """What waits in a bucket with this state."""
    made = msgspec.msgpack.decode(state)
    settings = Settings(
        made["protocol"], tuple(made["processes"]), made["parameters"], buckets=made["buckets"]
    )
    names = settings.processes
    return [
        {
            "group": group,
            "receiver": receiver,
            "sender": names[sender],
            "number": number,
            "since_ms": since,
            "awaits": [
                {"sender": names[s], "first": first, "last": last, "counted": counted}
                for s, first, last, counted in awaits
            ],
        }
        for group, receiver, (sender, number), since, awaits in waits(Bucket.load(state, settings))
    ]
