"""What a stream is doing, as plain values: how much came and went, what waits for whom, since when.

`Status` is that of one bucket, or of all (`together`), after one micro-batch. It is small whatever the stream holds: of
the causes that are missing it names the ones for which most messages wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from antecede.protocols.receiver import Receiver
from antecede.watch.status import Cause

if TYPE_CHECKING:
    from antecede.spark.stream.bucket import Bucket

__all__ = ["Cause", "Status", "together", "told"]

NAMED: Final = 20
"""Causes that a status names."""
LOOKED_AT: Final = 100
"""Held messages of a bucket that are asked what they wait for: the oldest. A cause counts those that name it."""


class Status(Struct, frozen=True):
    """Counts are of the micro-batch, but for `held`, `missing` and what follows: those are of its end."""

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
    """What most wait for."""
    frontier: dict[str, int] = {}
    """Process -> how many of its messages (by the stamps' count) were delivered at the receiver that has the most."""
    receivers: int = 0


def told(bucket: Bucket, now: int, came: int, out: pa.Table) -> Status:
    """The status of a bucket after a micro-batch."""
    kinds = {row["values"]: row["counts"] for row in pc.value_counts(out["kind"]).to_pylist()}
    held = sum(len(lane.since) for lane in bucket.lanes.values())
    since = [min(lane.since.values()) for lane in bucket.lanes.values() if lane.since]
    held_bytes = 0
    if bucket.fast is not None and len(bucket.fast.held):
        held += len(bucket.fast.held)
        held_bytes = bucket.fast.held.nbytes
        since.append(pc.min(bucket.fast.held["since"]).as_py())
    return Status(
        now_ms=now,
        rows_in=came,
        delivered=kinds.get("delivered", 0),
        late=kinds.get("late", 0),
        refused=kinds.get("refused", 0),
        gave_up=len(out) - out["gave_up"].null_count,
        held=held,
        held_bytes=held_bytes,
        oldest_ms=min(since, default=None),
        causes=causes(bucket) if held else (),
        frontier=frontier(bucket),
        receivers=sum(number >= 0 for number in bucket.numbers.values()) + len(bucket.lanes),
    )


def causes(bucket: Bucket) -> tuple[Cause, ...]:
    """What the oldest held messages wait for, each first of all."""
    names = bucket.settings.processes
    found: dict[tuple[str, str, str, int, str], list[int]] = {}
    for group, receiver, _, since, awaits in waits(bucket, LOOKED_AT):
        for sender, first, _, counted in awaits:
            key = (group, receiver, names[sender], first, counted)
            found.setdefault(key, []).append(since)
    most = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))[:NAMED]
    return tuple(
        Cause(receiver, sender, first, first, len(times), min(times), group, counted)
        for (group, receiver, sender, first, counted), times in most
    )


Wait = tuple[str, str, tuple[int, int], int, Sequence[tuple[int, int, int, str]]]
"""Group, receiver, message, since when, and what it waits for as (sender, first, last, counted)."""


def waits(bucket: Bucket, most: int | None = None) -> Iterable[Wait]:
    """What is held, the oldest first, and exactly which messages each waits for."""
    names = bucket.settings.processes
    for _, lane in sorted(bucket.lanes.items()):
        if lane.since:
            kept = sorted(lane.since, key=lambda key: (lane.since[key], key))[:most]
            for key in kept:
                awaits = [(a.sender, a.first, a.last, a.counted) for a in lane.machine.awaits(key)]
                yield lane.group, names[lane.machine.me], key, lane.since[key], awaits
    fast = bucket.fast
    if fast is not None and len(fast.held):
        order = np.argsort(fast.held["since"].to_numpy(), kind="stable")[:most]
        held = fast.held.take(order)
        models: dict[int, Receiver] = {}
        for row, number in enumerate(held["lane"].to_pylist()):
            group, me = fast.keys[number]
            if number not in models:
                models[number] = bucket.settings.machine(me, fast.delivered[number].tolist())
            packet = fast.packet(held, row, me)
            models[number].receive(packet)
            assert packet.message is not None, "the kernel holds messages only"
            key = packet.message.id
            awaits = [(a.sender, a.first, a.last, a.counted) for a in models[number].awaits(key)]
            yield group, names[me], key, held["since"][row].as_py(), awaits


def frontier(bucket: Bucket) -> dict[str, int]:
    names = bucket.settings.processes
    reached = [0] * bucket.n
    if bucket.fast is not None and bucket.fast.keys:
        counts = bucket.fast.delivered[: len(bucket.fast.keys)].copy()
        counts[counts == np.iinfo(np.int64).max] = 0
        reached = counts.max(axis=0).tolist()
    for lane in bucket.lanes.values():
        reached = list(map(max, reached, lane.machine.reached()))
    return {name: count for name, count in zip(names, reached, strict=True) if count}


def together(parts: Iterable[Status]) -> Status:
    """The status of all buckets."""
    whole = Status()
    for part in parts:
        counts = ("rows_in", "delivered", "late", "refused", "gave_up", "held", "held_bytes", "receivers")
        sums = {name: getattr(whole, name) + getattr(part, name) for name in counts}
        oldest = [ms for ms in (whole.oldest_ms, part.oldest_ms) if ms is not None]
        merged = sorted((*whole.causes, *part.causes), key=lambda cause: (-cause.held, cause.since_ms))
        furthest = dict(whole.frontier)
        for name, count in part.frontier.items():
            furthest[name] = max(furthest.get(name, 0), count)
        whole = Status(
            now_ms=max(whole.now_ms, part.now_ms),
            oldest_ms=min(oldest, default=None),
            causes=tuple(merged[:NAMED]),
            frontier=furthest,
            **sums,
        )
    return whole
