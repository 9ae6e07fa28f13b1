"""What a stream is doing, as plain values: how much came and went, what waits for whom, since when.

    Status                     of one bucket, or of all (`combine_statuses`), after one micro-batch
    status_of(progress)        the `Status` of one micro-batch, from what Spark reports of it; or from the checkpoint,
                               of a query by closed sets
    waiting(spark, checkpoint) every message that waits, since when, and which messages of whom have not come: from the
                               state itself

A query reports its status as observed metrics, so it costs no output and reaches any listener, also through Spark
Connect. `waiting` reads the checkpoint of a query, running or not, from any session.

A status is small whatever the stream holds. It names what is missing at its root: messages that have not come, never
those that are held themselves; and how many messages each of them holds up, directly or through others.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from antecede.errors import BadParameter
from antecede.model import Awaited
from antecede.spark.storage import absolute
from antecede.spark.stream.packets import GAVE_UP, WAITING
from antecede.spark.stream.settings import Settings
from antecede.watch.status import Cause, describe_causes

if TYPE_CHECKING:
    from antecede.spark.stream.bucket import Bucket, Found

__all__ = [
    "OBSERVED",
    "Cause",
    "Progress",
    "Status",
    "combine_statuses",
    "describe_bucket",
    "status_of",
    "waiting",
]

OBSERVED: Final = "antecede"
"""The name of the metrics that a query reports."""
NAMED: Final = 20
"""Causes that a status names."""
LOOKED_AT: Final = 100
"""Held messages of a receiver with a machine that are asked what they wait for: the oldest."""


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
    held_bytes: int = 0
    """Stamps and payloads of what the kernel holds: what the state grows with."""
    oldest_ms: int | None = None
    """When the message came that waits the longest."""
    causes: tuple[Cause, ...] = ()
    """What has not come, that which holds up the most first."""
    frontier: dict[str, int] = {}
    """Process -> how many of its messages (by the stamps' count) were delivered at the receiver that has the most."""
    receivers: int = 0

    def describe_waits(self) -> str:
        """What waits, and for what, in a sentence."""
        return describe_causes(self.causes, self.held) if self.causes else f"{self.held:,} wait"


# Of a bucket


def describe_bucket(bucket: Bucket, now: int, came: int, found: Found) -> Status:
    """The status of a bucket after a micro-batch."""
    kinds, rows = Counter(found.kinds), bucket.rows
    return Status(
        now_ms=now,
        rows_in=came,
        delivered=kinds["delivered"] + kinds["released"],
        late=kinds["late"],
        refused=kinds["refused"],
        gave_up=len(found.waits),
        held=0 if rows is None else len(rows),
        held_bytes=0 if rows is None else rows.nbytes,
        oldest_ms=None if rows is None else pc.min(rows["__since"]).as_py(),
        causes=sort_causes([*causes_of_machines(bucket), *causes_of_kernel(bucket)]),
        frontier=measure_frontier(bucket),
        receivers=sum(number >= 0 for number in bucket.numbers.values()) + len(bucket.machines),
    )


def sort_causes(causes: Iterable[Cause]) -> tuple[Cause, ...]:
    return tuple(
        sorted(causes, key=lambda cause: (-cause.held, cause.since_ms, cause.sender, cause.first))[:NAMED]
    )


def causes_of_machines(bucket: Bucket) -> Iterator[Cause]:
    """What the oldest messages that machines hold wait for and is not here."""
    names = bucket.settings.processes
    for _, receiver in sorted(bucket.machines.items()):
        found: dict[Awaited, list[int]] = {}
        machine, since = receiver.machine, receiver.since
        for key in sorted(since, key=lambda key: (since[key], key))[:LOOKED_AT]:
            for root in machine.roots([key]):
                found.setdefault(root, []).append(since[key])
        for root, times in found.items():
            yield Cause(
                names[machine.me],
                names[root.sender],
                root.first,
                root.last,
                len(times),
                min(times),
                receiver.group,
                root.counted,
            )


def causes_of_kernel(bucket: Bucket) -> Iterator[Cause]:
    """What the messages that the kernel holds wait for and is not here."""
    compiled, names = bucket.compiled, bucket.settings.processes
    if compiled is None or bucket.rows is None:
        return
    since = bucket.rows["__since"].to_numpy()
    for lane, sender, root in compiled.find_roots():
        group, me = key = compiled.keys[lane]
        if bucket.numbers[key] >= 0:
            oldest = int(since[bucket.kernel_held[root.blocked]].min())
            counted = bucket.settings.machine(me).counted
            yield Cause(
                names[me], names[sender], root.first, root.last, len(root.blocked), oldest, group, counted
            )


def measure_frontier(bucket: Bucket) -> dict[str, int]:
    names = bucket.settings.processes
    reached = [0] * bucket.n
    if bucket.compiled is not None and bucket.compiled.keys:
        counts = bucket.compiled.delivered[: len(bucket.compiled.keys)].copy()
        counts[counts == np.iinfo(np.int64).max] = 0
        reached = counts.max(axis=0).tolist()
    for receiver in bucket.machines.values():
        reached = list(map(max, reached, receiver.machine.reached()))
    return {name: count for name, count in zip(names, reached, strict=True) if count}


def combine_statuses(parts: Iterable[Status]) -> Status:
    """The status of all buckets."""
    whole = Status()
    for part in parts:
        counts = ("rows_in", "delivered", "late", "refused", "gave_up", "held", "held_bytes", "receivers")
        sums = {name: getattr(whole, name) + getattr(part, name) for name in counts}
        oldest = [ms for ms in (whole.oldest_ms, part.oldest_ms) if ms is not None]
        furthest = dict(whole.frontier)
        for name, count in part.frontier.items():
            furthest[name] = max(furthest.get(name, 0), count)
        whole = Status(
            now_ms=max(whole.now_ms, part.now_ms),
            oldest_ms=min(oldest, default=None),
            causes=sort_causes((*whole.causes, *part.causes)),
            frontier=furthest,
            **sums,
        )
    return whole


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
    value = fields_of(progress)
    batch, metrics = int(value["batchId"]), observed_metrics(progress, OBSERVED)
    if metrics is not None:
        statuses = [msgspec.json.decode(text, type=Status) for text in metrics["status"] or ()]
    else:
        from antecede.spark.stream.closed import read_status

        found = None if checkpoint is None else read_status(checkpoint, batch)
        statuses = [] if found is None else [found]
    if not statuses:
        return None
    status = combine_statuses(statuses)
    seconds = value["durationMs"].get("triggerExecution", 0) / 1000
    per = max(seconds, 0.001)
    out = status.delivered + status.late
    return Progress(str(value["id"]), batch, status.rows_in / per, out / per, seconds, status)


def fields_of(value: Any) -> dict[str, Any]:
    """What Spark reports by name: a dictionary, or an object that has the names with an underscore."""
    named = value if isinstance(value, Mapping) else vars(value)
    return {key.lstrip("_"): item for key, item in named.items()}


def observed_metrics(progress: Any, name: str) -> dict[str, Any] | None:
    """The metrics of this name that a query reports of a micro-batch, if it does: by their names.

    Through Spark Connect a row of metrics comes as its values beside its schema, which PySpark takes for its fields.

    >>> schema = {"fields": [{"name": "count"}]}
    >>> observed_metrics({"observedMetrics": {"found": {"values": [3], "schema": schema}}}, "found")
    {'count': 3}
    """
    found = (fields_of(progress).get("observedMetrics") or {}).get(name)
    if found is None:
        return None
    fields = dict(found) if isinstance(found, Mapping) else found.asDict()
    if fields.keys() == {"values", "schema"}:
        names = [field["name"] for field in fields["schema"]["fields"]]
        return dict(zip(names, fields["values"], strict=True))
    return fields


def waiting(spark: SparkSession, checkpoint: str | os.PathLike[str]) -> DataFrame:
    """What waits in the query with this checkpoint, as of its last committed micro-batch: rows of `WAITING`."""
    from antecede.spark.stream.closed import find_state

    if (state := find_state(spark, checkpoint)) is not None:
        held = pa.Table.from_pylist(list_state(state), WAITING)
        return spark.createDataFrame(held, from_arrow_schema(WAITING))
    place = absolute(checkpoint)
    try:
        kind = spark.read.format("state-metadata").load(place).select("operatorName").first()
        reader = spark.read.format("statestore")
        if kind is not None and kind[0].startswith("transformWithState"):
            values = reader.option("stateVarName", "head").load(place).select("value.state")
        else:
            values = reader.load(place).select("value.groupState.state")
    except PySparkException as error:
        reason = str(error).split("\n")[0][:200]
        raise BadParameter(
            "waiting", f"checkpoint must be that of a stream that has begun, and {place} is none: {reason}"
        ) from None
    return values.mapInArrow(list_states, from_arrow_schema(WAITING))


def list_states(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for value in batch.column(0):
            if value.is_valid:
                yield from pa.Table.from_pylist(list_state(value.as_py()), WAITING).to_batches()


def list_state(state: bytes) -> list[dict[str, Any]]:
    """What waits in a bucket with this state, as rows of `WAITING`."""
    from antecede.spark.stream.bucket import Bucket, StampedSettings
    from antecede.spark.stream.causes import list_held
    from antecede.spark.stream.vectors import VectorBucket

    made = msgspec.msgpack.decode(state)
    if "antecede causes" in made:
        return list_held(made)
    if "antecede vectors" in made:
        return VectorBucket.list_held(made)
    made = msgspec.msgpack.decode(made["packets"]) if "packets" in made else made
    settings = Settings(
        made["protocol"], tuple(made["processes"]), made["parameters"], buckets=made["buckets"]
    )
    columns = pa.schema([("__row", pa.int64())]).serialize().to_pybytes()
    opened = StampedSettings(settings, columns, kernel="kernel" in made)
    bucket = Bucket.load(state, opened)
    # Nothing comes, so nothing comes out: what is held is read.
    bucket.advance(None, 0)
    missing = bucket.find_missing()
    own = {name: f"__{name}" for name in ("group", "receiver", "sender", "number")} | {"since_ms": "__since"}
    rows = [] if bucket.rows is None else bucket.rows.select(list(own.values())).to_pylist()
    held = [
        {
            **{name: row[column] for name, column in own.items()},
            "awaits": [
                dict(zip(GAVE_UP.value_type.names, root, strict=True)) for root in missing.get(place, ())
            ],
        }
        for place, row in enumerate(rows)
    ]
    return sorted(held, key=lambda row: row["since_ms"])
