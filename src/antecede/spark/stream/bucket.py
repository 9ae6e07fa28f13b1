"""A bucket of receivers: rows go in, rows come out, and the state between two calls is bytes.

    step(state, rows, now, settings) -> (state, rows out, status)

A pure function: no Spark, no clock. What comes out depends on the order of arrival alone and, where patience ends, on
`now`. Spark keeps the bytes (`operator`); tests cut streams wherever they like.

The state is msgpack: its version and settings, then the receivers. Those with a machine have its `snapshot()`; those
that the kernel serves have their counts, and the packets that are held, as an Arrow stream. A state of an older version
is read; one of a later version, or made with other settings, is a `BadSnapshot`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace
from numpy.typing import NDArray

from antecede.errors import BadSnapshot, PeerError
from antecede.model import Message
from antecede.protocols.machine import SNAPSHOT_VERSION
from antecede.spark.stream.packets import (
    GAVE_UP,
    GROUPED,
    ROWS,
    encode_names,
    from_ipc,
    number_names,
    packet_of,
    to_ipc,
)
from antecede.spark.stream.receiver import CompiledReceivers, MachineReceiver, Output
from antecede.spark.stream.settings import Settings
from antecede.spark.stream.status import Status, describe_bucket

__all__ = ["STATE_VERSION", "Bucket", "Step", "step"]

STATE_VERSION: Final = 1


class Step(NamedTuple):
    state: bytes
    rows: pa.Table
    status: Status


def step(state: bytes | None, rows: pa.Table, now: int, settings: Settings, *, kernel: bool = True) -> Step:
    """One micro-batch of a bucket, at a time in milliseconds. `kernel=False` drives machines alone."""
    bucket = Bucket(settings, kernel) if state is None else Bucket.load(state, settings, kernel)
    out, status = bucket.advance(rows, now)
    return Step(bucket.dump(), out, status)


class Bucket:
    """Receivers, each served by the kernel or by a machine."""

    def __init__(self, settings: Settings, kernel: bool = True) -> None:
        self.settings = settings
        self.n = len(settings.processes)
        self.decided = settings.decided()
        self.kernel = kernel
        self.names = pa.array(settings.processes, pa.string())
        self.machines: dict[tuple[str, int], MachineReceiver] = {}
        served = kernel and any(CompiledReceivers.serves(settings, me) for me in range(self.n))
        self.compiled = CompiledReceivers(settings) if served else None
        self.numbers: dict[tuple[str, int], int] = {}
        """Receivers that the kernel serves -> their numbers there."""

    @classmethod
    def of(
        cls, settings: Settings, me: int, kept: MachineReceiver | tuple[list[int], int, list[pa.Table]]
    ) -> Bucket:
        """One receiver: its machine, or what it has delivered, its next place, and rows of `ROWS` that it holds."""
        bucket = cls(settings)
        if isinstance(kept, MachineReceiver):
            bucket.machines["", me] = kept
            return bucket
        assert bucket.compiled is not None, "the kernel serves such a receiver"
        number = bucket._number("", me)
        reached, bucket.compiled.places[number], held = kept
        bucket.compiled.delivered[number] = reached
        bucket.compiled.held = pa.concat_tables([bucket.compiled.held, *held])
        return bucket

    def advance(self, rows: pa.Table, now: int) -> tuple[pa.Table, Status]:
        """Take rows of `PACKETS`, and give up what was waited for too long."""
        rows = sort_by_arrival(rows)
        group, receiver = rows["group"], number_names(rows["receiver"], self.settings.processes)
        source = number_names(rows["sender"], self.settings.processes)
        out = []
        unknown = np.flatnonzero(receiver < 0)
        if len(unknown):
            expected = f"one of {', '.join(self.settings.processes[:8])}"
            out.append(
                make_refusals(
                    rows,
                    [(row, f"the receiver must be {expected}") for row in unknown.tolist()],
                )
            )
        lane, served = self._receivers(group, receiver)
        if self.compiled is not None:
            out += self._kernel(rows, np.flatnonzero(served), lane, source, now)
        outputs: list[Output] = []
        out += self._drive(rows, np.flatnonzero((receiver >= 0) & ~served), receiver, source, now, outputs)
        if self.settings.patience_ms is not None:
            self._expire(now, self.settings.patience_ms, outputs)
        if self.compiled is not None:
            self._settle()
        out.append(make_rows(self.settings.processes, outputs))
        delivered = pa.concat_tables(out).combine_chunks()
        return delivered, describe_bucket(self, now, len(rows), delivered)

    # Rows to numbers

    def _receivers(self, group: pa.ChunkedArray, receiver: NDArray[np.int64]) -> tuple[Any, Any]:
        """For each row the number of its receiver at the kernel, and whether the kernel serves it."""
        if self.compiled is None or not len(receiver):
            return np.full(len(receiver), -1), np.zeros(len(receiver), bool)
        encoded = encode_names(group)
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
        if (
            self.compiled is None
            or me < 0
            or key in self.machines
            or not CompiledReceivers.serves(self.settings, me)
        ):
            return -1
        self.numbers[key] = self.compiled.open(group, me)
        return self.numbers[key]

    # The kernel

    def _kernel(self, rows: pa.Table, which: Any, lane: Any, source: Any, now: int) -> list[pa.Table]:
        assert self.compiled is not None
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
        out, placed, refused = self.compiled.advance(packets)
        tables = [self._placed(out, placed)]
        if refused:
            tables.append(make_refusals(taken, refused))
        return tables

    def _placed(self, out: pa.Table, placed: NDArray[np.int64]) -> pa.Table:
        """Rows of the kernel as they come out."""
        assert self.compiled is not None
        keys = self.compiled.keys
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
            lane = self.machines.get((group, me)) or self._lane(group, me)
            try:
                message = None
                if number is not None:
                    to = everyone if self.settings.everyone else (me,)
                    message = Message(sender, number, to, payload or b"", label or "")
                lane.take(packet_of(stamp or b"", sender, me, message), now, outputs)
            except PeerError as error:
                refused.append((row, str(error)))
        return [make_refusals(taken, refused)] if refused else []

    def _lane(self, group: str, me: int) -> MachineReceiver:
        lane = self.machines[group, me] = MachineReceiver(group, self.settings.machine(me))
        return lane

    def _expire(self, now: int, patience: int, outputs: list[Output]) -> None:
        """Give up what was waited for too long. A receiver where that happens gets a machine."""
        if self.compiled is not None and len(self.compiled.held):
            tired = self.compiled.held["since"].to_numpy() + patience <= now
            for number in np.unique(self.compiled.held["lane"].to_numpy()[tired]).tolist():
                self._release(number)
        for key in sorted(self.machines):
            self.machines[key].expire(now, patience, outputs)

    def give_up_all(self, outputs: list[Output]) -> None:
        """Give up all that is missing: whatever came at time 0 comes out."""
        self._expire(0, 0, outputs)

    def _release(self, number: int) -> None:
        """From the kernel to a machine."""
        assert self.compiled is not None
        group, me = self.compiled.keys[number]
        delivered, packets = self.compiled.release(number)
        lane = self.machines[group, me] = MachineReceiver(group, self.settings.machine(me, delivered))
        lane.position = int(self.compiled.places[number])
        self.numbers[group, me] = -1
        for packet, since in packets:
            lane.take(packet, since, [])

    def _settle(self) -> None:
        """From machines back to the kernel, where all that was given up has come."""
        assert self.compiled is not None
        for key, receiver in list(self.machines.items()):
            group, me = key
            if receiver.machine.given_up() or not CompiledReceivers.serves(self.settings, me):
                continue
            keys = self.compiled.keys
            number = keys.index(key) if key in keys else self.compiled.open(group, me)
            self.compiled.take_over(number, receiver)
            self.numbers[key] = number
            del self.machines[key]

    # What is kept

    @property
    def deadline(self) -> int | None:
        """When patience with something here ends."""
        if self.settings.patience_ms is None:
            return None
        times = [min(lane.since.values()) for lane in self.machines.values() if lane.since]
        if self.compiled is not None and len(self.compiled.held):
            times.append(pc.min(self.compiled.held["since"]).as_py())
        return min(times) + self.settings.patience_ms if times else None

    def dump(self) -> bytes:
        state: dict[str, Any] = {
            "antecede stream": STATE_VERSION,
            "machines": SNAPSHOT_VERSION,
            **self.decided,
            "lanes": [receiver.dump() for _, receiver in sorted(self.machines.items())],
        }
        if self.compiled is not None:
            used = len(self.compiled.keys)
            state["kernel"] = {
                "keys": self.compiled.keys,
                "delivered": self.compiled.delivered[:used].tobytes(),
                "places": self.compiled.places[:used].tobytes(),
                "held": to_ipc(self.compiled.held),
            }
        return msgspec.msgpack.encode(state)

    @classmethod
    def load(cls, data: bytes, settings: Settings, kernel: bool = True) -> Bucket:
        try:
            state = msgspec.msgpack.decode(data)
            version = state["antecede stream"]
        except (msgspec.DecodeError, LookupError, TypeError):
            raise BadSnapshot("the checkpoint does not have the state of a stream") from None
        if not 1 <= version <= STATE_VERSION:
            raise BadSnapshot.version("the stream", version, f"1 to {STATE_VERSION}")
        if state["protocol"] == settings.protocol:
            # What a parameter decides that the writer did not know yet, its default decided then.
            state["parameters"] = replace(settings, parameters={}).machine(0).parameters | state["parameters"]
        for name, wanted in settings.decided().items():
            if state[name] != wanted:
                raise BadSnapshot.changed(name, state[name], wanted)
        bucket = cls(settings, kernel)
        for part in state["lanes"]:
            receiver = MachineReceiver.load(settings, part, state["machines"])
            bucket.machines[receiver.group, receiver.machine.me] = receiver
        if "kernel" in state:
            bucket._resume(state["kernel"])
        return bucket

    def _resume(self, state: dict[str, Any]) -> None:
        fast = self.compiled = CompiledReceivers(self.settings)
        fast.keys = [(group, me) for group, me in state["keys"]]
        fast.delivered = np.frombuffer(state["delivered"], np.int64).reshape(-1, self.n).copy()
        fast.places = np.frombuffer(state["places"], np.int64).copy()
        fast.held = from_ipc(state["held"])
        self.numbers = {key: -1 if key in self.machines else at for at, key in enumerate(fast.keys)}
        if not self.kernel:
            for number in [number for number in self.numbers.values() if number >= 0]:
                self._release(number)
            self.compiled = None


def make_rows(names: Sequence[str], outputs: Iterable[Output]) -> pa.Table:
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


def sort_by_arrival(rows: pa.Table) -> pa.Table:
    """Rows in the order of arrival, with a group; those that came at the same time by sender and number."""
    groups = pc.fill_null(rows["group"], "") if "group" in rows.column_names else pa.repeat("", len(rows))
    rows = rows.drop_columns([name for name in ("group",) if name in rows.column_names])
    rows = rows.append_column("group", groups)
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


def make_refusals(rows: pa.Table, refused: Sequence[tuple[int, str]]) -> pa.Table:
    """Rows that are no packets, with the reason."""
    taken = rows.take(pa.array([row for row, _ in refused], pa.int64()))
    columns = {name: taken[name] for name in ("group", "receiver", "sender", "number", "payload")}
    columns["position"] = pa.nulls(len(taken), pa.int64())
    columns["kind"] = pa.repeat("refused", len(taken))
    columns["gave_up"] = pa.nulls(len(taken), GAVE_UP)
    columns["reason"] = pa.array([why for _, why in refused], pa.string())
    return pa.table([columns[name] for name in GROUPED.names], schema=GROUPED)
