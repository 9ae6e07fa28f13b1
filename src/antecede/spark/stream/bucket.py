"""A bucket of receivers: rows go in, rows come out, and the state between two calls is bytes.

    step(state, rows, now, settings) -> (state, rows out, status)

A pure function: no Spark, no clock. What comes out depends on the order of arrival alone and, where patience ends, on
`now`. Spark keeps the bytes (`antecede.spark.stream.operator`); tests cut streams wherever they like.

The state is msgpack: its version and settings, then the receivers. Those with a machine have its `snapshot()`; those
that the kernel serves have their counts, and the packets that are held, as an Arrow stream. A state of another version,
or made with other settings, is a `BadSnapshot`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from antecede.errors import BadSnapshot, PeerError
from antecede.model import Message
from antecede.protocols.machine import SNAPSHOT_VERSION
from antecede.spark.stream.compiled import ROWS, Fast
from antecede.spark.stream.packets import DELIVERED, GAVE_UP, packet_of
from antecede.spark.stream.receiver import Lane, Output
from antecede.spark.stream.settings import Settings
from antecede.spark.stream.status import Status, told

__all__ = ["STATE_VERSION", "Bucket", "Step", "step"]

STATE_VERSION: Final = 1
GROUPED: Final = pa.schema([pa.field("group", pa.string()), *DELIVERED])
"""What comes out of a bucket; `group` is "" where there are none."""


class Step(NamedTuple):
    state: bytes
    rows: pa.Table
    status: Status


def step(state: bytes | None, rows: pa.Table, now: int, settings: Settings, *, native: bool = True) -> Step:
    """One micro-batch of a bucket, at a time in milliseconds. `native=False` drives machines alone."""
    bucket = Bucket(settings, native) if state is None else Bucket.load(state, settings, native)
    out, status = bucket.advance(rows, now)
    return Step(bucket.dump(), out, status)


class Bucket:
    """Receivers, each served by the kernel or by a machine."""

    def __init__(self, settings: Settings, native: bool = True) -> None:
        self.settings = settings
        self.n = len(settings.processes)
        self.decided = settings.decided()
        self.native = native
        self.ids = {name: process for process, name in enumerate(settings.processes)}
        self.names = pa.array(settings.processes, pa.string())
        self.lanes: dict[tuple[str, int], Lane] = {}
        self.fast = (
            Fast(settings) if native and any(Fast.serves(settings, me) for me in range(self.n)) else None
        )
        self.numbers: dict[tuple[str, int], int] = {}
        """Receivers that the kernel serves -> their numbers there."""

    def advance(self, rows: pa.Table, now: int) -> tuple[pa.Table, Status]:
        """Take rows of `PACKETS`, and give up what was waited for too long."""
        rows = arranged(rows)
        group, receiver = rows["group"], self._process(rows["receiver"])
        source = self._process(rows["sender"])
        out = []
        unknown = np.flatnonzero(receiver < 0)
        if len(unknown):
            expected = f"one of {', '.join(self.settings.processes[:8])}"
            out.append(
                refusals(
                    rows,
                    [(row, f"the receiver is no process, expected {expected}") for row in unknown.tolist()],
                )
            )
        lane, served = self._receivers(group, receiver)
        if self.fast is not None:
            out += self._kernel(rows, np.flatnonzero(served), lane, source, now)
        outputs: list[Output] = []
        out += self._drive(rows, np.flatnonzero((receiver >= 0) & ~served), receiver, source, now, outputs)
        if self.settings.patience_ms is not None:
            self._expire(now, self.settings.patience_ms, outputs)
        out.append(outputs_of(self.settings.processes, outputs))
        delivered = pa.concat_tables(out).combine_chunks()
        return delivered, self._status(now, len(rows), delivered)

    # Rows to numbers

    def _process(self, column: pa.ChunkedArray) -> NDArray[np.int64]:
        """The processes that these names are; -1 for none."""
        encoded = column.combine_chunks().dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks() if encoded.num_chunks != 1 else encoded.chunk(0)
        known = np.array([self.ids.get(name, -1) for name in encoded.dictionary.to_pylist()] + [-1], np.int64)
        found: NDArray[np.int64] = known[
            encoded.indices.fill_null(len(known) - 1).to_numpy(zero_copy_only=False)
        ]
        return found

    def _receivers(self, group: pa.ChunkedArray, receiver: NDArray[np.int64]) -> tuple[Any, Any]:
        """For each row the number of its receiver at the kernel, and whether the kernel serves it."""
        if self.fast is None or not len(receiver):
            return np.full(len(receiver), -1), np.zeros(len(receiver), bool)
        encoded = group.combine_chunks().dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks() if encoded.num_chunks != 1 else encoded.chunk(0)
        groups = encoded.dictionary.to_pylist()
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64) * (self.n + 1) + receiver + 1
        distinct, inverse = np.unique(codes, return_inverse=True)
        numbers = [
            self._number(groups[code // (self.n + 1)], code % (self.n + 1) - 1) for code in distinct.tolist()
        ]
        lane = np.array(numbers, np.int64)[inverse]
        return lane, lane >= 0

    def _number(self, group: str, me: int) -> int:
        """A receiver's number at the kernel; -1 if it has a machine, or will have one."""
        key = (group, me)
        if key in self.numbers:
            return self.numbers[key]
        if self.fast is None or me < 0 or key in self.lanes or not Fast.serves(self.settings, me):
            return -1
        self.numbers[key] = self.fast.open(group, me)
        return self.numbers[key]

    # The kernel

    def _kernel(self, rows: pa.Table, which: Any, lane: Any, source: Any, now: int) -> list[pa.Table]:
        assert self.fast is not None
        if not len(which):
            return []
        taken = rows if len(which) == len(rows) else rows.take(which)
        numbers = pc.fill_null(taken["number"], 0)
        columns = [
            lane[which],
            source[which],
            numbers,
            np.full(len(which), now),
            taken["stamp"],
            taken["payload"],
        ]
        packets = pa.table([*columns], schema=ROWS)
        out, placed, refused = self.fast.advance(packets)
        tables = [self._placed(out, placed)]
        if refused:
            tables.append(refusals(taken, refused))
        return tables

    def _placed(self, out: pa.Table, placed: NDArray[np.int64]) -> pa.Table:
        """Rows of the kernel as they come out."""
        assert self.fast is not None
        keys = self.fast.keys
        groups = pa.array([group for group, _ in keys], pa.string())
        receivers = pa.array([self.settings.processes[me] for _, me in keys], pa.string())
        lane = out["lane"].combine_chunks()
        size = len(out)
        columns = {
            "group": groups.take(lane),
            "receiver": receivers.take(lane),
            "position": pa.array(placed, pa.int64()),
            "sender": self.names.take(out["source"].combine_chunks()),
            "number": out["number"],
            "payload": out["payload"],
            "kind": pa.repeat("delivered", size),
            "gave_up": pa.nulls(size, GAVE_UP),
            "reason": pa.nulls(size, pa.string()),
        }
        return pa.table(columns, GROUPED)

    # Machines

    def _drive(
        self, rows: pa.Table, which: Any, receiver: Any, source: Any, now: int, outputs: list[Output]
    ) -> list[pa.Table]:
        if not len(which):
            return []
        taken = rows.take(which)
        columns = [taken[name].to_pylist() for name in ("group", "number", "stamp", "payload")]
        labels = taken["label"].to_pylist() if "label" in taken.column_names else [""] * len(taken)
        refused = []
        everyone = tuple(range(self.n))
        for row, (group, number, stamp, payload, label, me, sender) in enumerate(
            zip(*columns, labels, receiver[which].tolist(), source[which].tolist(), strict=True)
        ):
            lane = self.lanes.get((group, me)) or self._lane(group, me)
            try:
                message = None
                if number is not None:
                    to = everyone if self.settings.everyone else (me,)
                    message = Message(sender, number, to, payload or b"", label or "")
                lane.take(packet_of(stamp or b"", sender, me, message), now, outputs)
            except PeerError as error:
                refused.append((row, str(error)))
        return [refusals(taken, refused)] if refused else []

    def _lane(self, group: str, me: int) -> Lane:
        lane = self.lanes[group, me] = Lane(group, self.settings.machine(me))
        return lane

    def _expire(self, now: int, patience: int, outputs: list[Output]) -> None:
        """Give up what was waited for too long. A receiver where that happens gets a machine."""
        if self.fast is not None and len(self.fast.held):
            tired = self.fast.held["since"].to_numpy() + patience <= now
            for number in np.unique(self.fast.held["lane"].to_numpy()[tired]).tolist():
                self._release(number)
        for key in sorted(self.lanes):
            self.lanes[key].expire(now, patience, outputs)

    def _release(self, number: int) -> None:
        """From the kernel to a machine."""
        assert self.fast is not None
        group, me = self.fast.keys[number]
        delivered, packets = self.fast.released(number)
        lane = self.lanes[group, me] = Lane(group, self.settings.machine(me, delivered))
        lane.position = int(self.fast.places[number])
        self.numbers[group, me] = -1
        for packet, since in packets:
            lane.take(packet, since, [])

    # What is kept

    @property
    def deadline(self) -> int | None:
        """When patience with something here ends."""
        if self.settings.patience_ms is None:
            return None
        times = [min(lane.since.values()) for lane in self.lanes.values() if lane.since]
        if self.fast is not None and len(self.fast.held):
            times.append(pc.min(self.fast.held["since"]).as_py())
        return min(times) + self.settings.patience_ms if times else None

    def dump(self) -> bytes:
        state: dict[str, Any] = {
            "antecede stream": STATE_VERSION,
            "machines": SNAPSHOT_VERSION,
            **self.decided,
            "lanes": [lane.dump() for _, lane in sorted(self.lanes.items())],
        }
        if self.fast is not None:
            used = len(self.fast.keys)
            state["kernel"] = {
                "keys": self.fast.keys,
                "delivered": self.fast.delivered[:used].tobytes(),
                "places": self.fast.places[:used].tobytes(),
                "held": ipc(self.fast.held),
            }
        return msgspec.msgpack.encode(state)

    @classmethod
    def load(cls, data: bytes, settings: Settings, native: bool = True) -> Bucket:
        try:
            state = msgspec.msgpack.decode(data)
            version = state["antecede stream"]
        except (msgspec.DecodeError, LookupError, TypeError):
            raise BadSnapshot("stream", "other bytes", "the state of a stream") from None
        if version != STATE_VERSION or state["machines"] != SNAPSHOT_VERSION:
            raise BadSnapshot(
                "version of the stream's state",
                [version, state["machines"]],
                [STATE_VERSION, SNAPSHOT_VERSION],
            )
        for name, wanted in settings.decided().items():
            if state[name] != wanted:
                raise BadSnapshot(f"{name} of the stream", state[name], wanted)
        bucket = cls(settings, native)
        for part in state["lanes"]:
            lane = Lane.load(settings, part)
            bucket.lanes[lane.group, lane.machine.me] = lane
        if "kernel" in state:
            bucket._resume(state["kernel"])
        return bucket

    def _resume(self, state: dict[str, Any]) -> None:
        fast = self.fast = Fast(self.settings)
        fast.keys = [(group, me) for group, me in state["keys"]]
        fast.delivered = np.frombuffer(state["delivered"], np.int64).reshape(-1, self.n).copy()
        fast.places = np.frombuffer(state["places"], np.int64).copy()
        fast.held = pa.ipc.open_stream(state["held"]).read_all()
        self.numbers = {key: -1 if key in self.lanes else at for at, key in enumerate(fast.keys)}
        if not self.native:
            for number in [number for number in self.numbers.values() if number >= 0]:
                self._release(number)
            self.fast = None

    def _status(self, now: int, came: int, out: pa.Table) -> Status:
        return told(self, now, came, out)


def outputs_of(names: Sequence[str], outputs: Iterable[Output]) -> pa.Table:
    """What lanes deliver, as rows."""
    rows = [
        {
            "group": lane.group,
            "receiver": names[lane.machine.me],
            "position": position,
            "sender": names[message.sender],
            "number": message.number,
            "payload": message.payload,
            "kind": "late" if late else "delivered",
            "gave_up": [
                {"sender": names[s], "first": first, "last": last, "counted": counted}
                for s, first, last, counted in lacks
            ]
            or None,
        }
        for lane, position, message, late, lacks in outputs
    ]
    return pa.Table.from_pylist(rows, GROUPED)


def ipc(table: pa.Table) -> bytes:
    """A table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def arranged(rows: pa.Table) -> pa.Table:
    """Rows in the order of arrival, with a group; those that came at the same time by sender and number."""
    if "group" not in rows.column_names:
        rows = rows.append_column("group", pa.repeat("", len(rows)))
    if "arrival" in rows.column_names:
        arrival = pc.fill_null(rows["arrival"], 0).to_numpy()
        if len(arrival) < 2 or bool((arrival[1:] > arrival[:-1]).all()):
            return rows
        order = np.argsort(arrival, kind="stable")
        if bool((np.diff(arrival[order]) > 0).all()):
            # Sorting by one number is much faster than by several columns.
            return rows.take(order)
        keys = ["arrival", "sender", "number", "group", "receiver"]
    else:
        keys = ["sender", "number", "group", "receiver"]
    return rows.take(pc.sort_indices(rows, [(key, "ascending") for key in keys]))


def refusals(rows: pa.Table, refused: Sequence[tuple[int, str]]) -> pa.Table:
    """Rows that are no packets, with the reason."""
    taken = rows.take(pa.array([row for row, _ in refused], pa.int64()))
    columns = {name: taken[name] for name in ("group", "receiver", "sender", "number", "payload")}
    columns["position"] = pa.nulls(len(taken), pa.int64())
    columns["kind"] = pa.repeat("refused", len(taken))
    columns["gave_up"] = pa.nulls(len(taken), GAVE_UP)
    columns["reason"] = pa.array([why for _, why in refused], pa.string())
    return pa.table([columns[name] for name in GROUPED.names], schema=GROUPED)


def by_receiver(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Rows that came out, for each receiver in the order of delivery."""
    key = itemgetter("group", "receiver")
    ordered = sorted(rows, key=lambda row: (*key(row), row["position"] is None, row["position"] or 0))
    return {receiver: list(part) for receiver, part in groupby(ordered, key)}
