"""A bucket of receivers of packets: rows go in, rows come out, and the state between two calls is bytes.

No Spark, no clock. What comes out depends on the order of arrival alone and, where patience ends, on `now`. Spark keeps
the bytes (`operator`); tests cut streams wherever they like.

A row has the columns `OWN`, which say what packet it is, and those of its owner. Rows that wait are kept in one table.
Machines and the kernel know a row by its number: it is the payload of the messages that machines get.

The state is msgpack: its version and settings, then the receivers, and the rows that wait as an Arrow stream. Receivers
with a machine have its `snapshot()`, those that the kernel serves have their counts. A state of an older version is
read (`old_states`); one of a later version, or made with other settings, is a `BadSnapshot`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from antecede.errors import BadSnapshot, PeerError
from antecede.model import Message, Packet
from antecede.protocols.machine import SNAPSHOT_VERSION
from antecede.spark.stream.old_states import migrate_state
from antecede.spark.stream.packets import (
    GAVE_UP,
    encode_names,
    from_ipc,
    join_rows,
    make_lists,
    number_names,
    packet_of,
    to_ipc,
)
from antecede.spark.stream.receiver import CompiledReceivers, MachineReceiver, Output, read_number
from antecede.spark.stream.settings import Settings
from antecede.spark.stream.status import Status, describe_bucket

__all__ = ["ADDED", "OWN", "STATE_VERSION", "Bucket", "StampedSettings"]

STATE_VERSION: Final = 3
OWN: Final = ("__receiver", "__sender", "__number", "__stamp", "__arrival", "__label", "__group")
ADDED: Final = ("position", "waits_for", "kind", "reason")

Numbers = NDArray[np.int64]


class StampedSettings(Struct, frozen=True):
    """How packets are decided, and the rows that they are."""

    settings: Settings
    columns: bytes
    """The schema of the rows, as Arrow has it."""
    group: str | None = None
    """The column that tells groups apart."""
    receiver: int | None = None
    """The only one. None: all that there are."""
    kernel: bool = True
    """False: machines alone decide."""

    @property
    def schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.columns))

    def open(self, state: bytes | None) -> Bucket:
        return Bucket(self) if state is None else Bucket.load(state, self)


class Found:
    """Rows that come out, in order, and what became of them."""

    def __init__(self) -> None:
        self.rows: list[Numbers] = []
        self.positions: list[Numbers] = []
        self.kinds: list[str] = []
        self.waits: dict[int, list[dict[str, Any]]] = {}
        self.reasons: dict[int, str] = {}

    def add(self, rows: Any, positions: Any, kind: str) -> None:
        """Rows of one kind; a position of -1 is none."""
        self.rows.append(np.asarray(rows, np.int64))
        self.positions.append(np.asarray(positions, np.int64))
        self.kinds += [kind] * len(rows)

    def refuse(self, row: int, why: str) -> None:
        self.reasons[len(self.kinds)] = why
        self.add([row], [-1], "refused")

    def list_rows(self) -> Numbers:
        return np.concatenate([np.zeros(0, np.int64), *self.rows])

    def finish(self, table: pa.Table, schema: pa.Schema) -> pa.Table:
        positions, size = np.concatenate([np.zeros(0, np.int64), *self.positions]), len(self.kinds)
        reasons = (
            [self.reasons.get(at) for at in range(size)] if self.reasons else pa.nulls(size, pa.string())
        )
        out = table.select(schema.names).take(self.list_rows())
        columns = [
            pa.array(positions, mask=positions < 0),
            make_lists(size, self.waits, GAVE_UP),
            pa.array(self.kinds, pa.string()),
            pa.array(reasons, pa.string()),
        ]
        for name, column in zip(ADDED, columns, strict=True):
            out = out.append_column(name, column)
        return out


class Bucket:
    """Receivers, each served by the kernel or by a machine."""

    def __init__(self, opened: StampedSettings) -> None:
        self.opened, self.settings = opened, opened.settings
        self.schema = opened.schema
        self.n = len(self.settings.processes)
        self.decided = self.settings.decided()
        self.machines: dict[tuple[str, int], MachineReceiver] = {}
        served = opened.kernel and any(CompiledReceivers.serves(self.settings, me) for me in range(self.n))
        self.compiled = CompiledReceivers(self.settings) if served else None
        self.numbers: dict[tuple[str, int], int] = {}
        """Receivers that the kernel serves -> their numbers there."""
        self.rows: pa.Table | None = None
        """What waits, as it came, with `__since` and `__row`, its number: numbers ascend."""
        self.kernel_held: Numbers = np.zeros(0, np.int64)
        """Of the rows that the kernel holds, as of the last micro-batch: their places among those that wait."""

    def advance(self, rows: pa.Table | None, now: int) -> tuple[pa.Table | None, Status]:
        """Take rows, and give up what was waited for too long. None comes out while there was no row at all."""
        came = 0 if rows is None else len(rows)
        table = join_rows(self.rows, None if rows is None else self._accept(rows, now))
        found = Found()
        if table is None:
            return None, describe_bucket(self, now, 0, found)
        receiver, lane = self.find_lanes(table)
        source = number_names(table["__sender"], self.settings.processes)
        for row in np.flatnonzero(receiver < 0).tolist():
            found.refuse(row, self._explain_stranger())
        held = self._run_kernel(table, np.flatnonzero(lane >= 0), lane, source, found)
        outputs: list[Output] = []
        fresh = np.arange(len(table)) >= len(table) - came
        driven = np.flatnonzero(fresh & (receiver >= 0) & (lane < 0))
        for row, one in self._read(table, driven):
            try:
                self._find_machine(one["__group"], int(receiver[row])).take(
                    self._make_packet(one, receiver[row], source[row]), now, outputs
                )
            except PeerError as error:
                found.refuse(row, str(error))
        if self.settings.patience_ms is not None:
            self._expire(table.take(held), now, self.settings.patience_ms, outputs)
        numbers = table["__row"].to_numpy()
        self._add_outputs(outputs, numbers, found)
        waits = np.zeros(len(table), np.bool_)
        waits[held] = True
        waits[
            np.searchsorted(numbers, [row for one in self.machines.values() for row in one.list_rows()])
        ] = True
        left = ~waits & table["__number"].is_valid().to_numpy()
        out = found.list_rows()
        waits[out] = left[out] = False
        # What neither comes out nor waits has come before.
        found.add(np.flatnonzero(left), np.full(left.sum(), -1), "repeated")
        self.rows = table.take(np.flatnonzero(waits)) if waits.any() else None
        self.kernel_held = (np.cumsum(waits) - 1)[held]
        self._settle()
        return found.finish(table, self.schema), describe_bucket(self, now, came, found)

    # Rows to packets

    def _accept(self, rows: pa.Table, now: int) -> pa.Table:
        """Rows in the order of arrival, with their numbers."""
        rows = sort_by_arrival(rows)
        names = [name for name in OWN if name in rows.column_names and name != "__arrival"]
        rows = rows.select(list(dict.fromkeys([*self.schema.names, *names])))
        first = 0 if self.rows is None else self.rows["__row"][-1].as_py() + 1
        numbers = np.arange(first, first + len(rows))
        rows = rows.append_column("__since", pa.array(np.full(len(rows), now, np.int64)))
        return rows.append_column("__row", pa.array(numbers, pa.int64()))

    def find_lanes(self, table: pa.Table) -> tuple[Numbers, Numbers]:
        """For each row its receiver, -1 for none, and the number of that at the kernel, -1 if it has a machine."""
        receiver = number_names(table["__receiver"], self.settings.processes)
        if self.opened.receiver is not None:
            receiver[receiver != self.opened.receiver] = -1
        if self.compiled is None or not len(table):
            return receiver, np.full(len(table), -1)
        encoded = encode_names(table["__group"])
        groups = encoded.dictionary.to_pylist()
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64) * (self.n + 1) + receiver + 1
        distinct, inverse = np.unique(codes, return_inverse=True)
        numbers = [
            self._number(groups[code // (self.n + 1)], code % (self.n + 1) - 1) for code in distinct.tolist()
        ]
        return receiver, np.array(numbers, np.int64)[inverse]

    def _explain_stranger(self) -> str:
        names = self.settings.processes
        if self.opened.receiver is not None:
            return f"it is not for {names[self.opened.receiver]}"
        return f"the receiver must be one of {', '.join(names[:8])}"

    def _number(self, group: str, me: int) -> int:
        """A receiver's number at the kernel; -1 if it has a machine, or will have one."""
        key = (group, me)
        if key in self.numbers:
            return self.numbers[key]
        served = self.compiled is not None and me >= 0 and key not in self.machines
        if not served or not CompiledReceivers.serves(self.settings, me):
            return -1
        assert self.compiled is not None
        self.numbers[key] = self.compiled.open(group, me)
        return self.numbers[key]

    def _read(self, table: pa.Table, which: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        """These rows, with their columns of `OWN` and their numbers."""
        own = table.select([name for name in (*OWN, "__since", "__row") if name in table.column_names])
        yield from zip(which.tolist(), own.take(which).to_pylist(), strict=True)

    def _make_packet(self, one: dict[str, Any], me: Any, sender: Any) -> Packet[Any]:
        """The packet that a row is, as a machine takes it."""
        message = None
        if one["__number"] is not None:
            to = tuple(range(self.n)) if self.settings.everyone else (int(me),)
            payload = one["__row"].to_bytes(8, "little")
            message = Message(int(sender), one["__number"], to, payload, one.get("__label") or "")
        return packet_of(one["__stamp"] or b"", int(sender), int(me), message)

    # Who decides

    def _run_kernel(self, table: pa.Table, which: Any, lane: Any, source: Any, found: Found) -> Numbers:
        """Let the kernel take these rows. Those that it holds."""
        if self.compiled is None or not len(which):
            return np.zeros(0, np.int64)

        def packet(at: int, me: int) -> Packet[Any]:
            [(row, one)] = self._read(table, which[at : at + 1])
            return self._make_packet(one, me, source[row])

        taken = table.select(["__number", "__stamp"])
        taken = taken if len(which) == len(table) else taken.take(which)
        step = self.compiled.take(
            lane[which], source[which], taken["__number"].fill_null(0), taken["__stamp"], packet
        )
        found.add(which[step.order], step.placed, "delivered")
        for at, why in step.refused:
            found.refuse(int(which[at]), why)
        return np.asarray(which[step.held])

    def _find_machine(self, group: str, me: int) -> MachineReceiver:
        machine = self.machines.get((group, me))
        if machine is None:
            machine = self.machines[group, me] = MachineReceiver(group, self.settings.machine(me))
        return machine

    def _expire(self, held: pa.Table, now: int, patience: int, outputs: list[Output]) -> None:
        """Give up what was waited for too long. A receiver where that happens gets a machine."""
        _, lane = self.find_lanes(held)
        tired = held["__since"].to_numpy() + patience <= now
        for number in np.unique(lane[tired]).tolist():
            self._release(number, held.take(np.flatnonzero(lane == number)))
        for key in sorted(self.machines):
            self.machines[key].expire(now, patience, outputs)

    def _release(self, number: int, held: pa.Table | None) -> None:
        """From the kernel to a machine."""
        assert self.compiled is not None
        group, me = self.compiled.keys[number]
        machine = self.settings.machine(me, self.compiled.delivered[number].tolist())
        receiver = self.machines[group, me] = MachineReceiver(group, machine)
        receiver.position = int(self.compiled.places[number])
        self.numbers[group, me] = -1
        if held is None:
            return
        source = number_names(held["__sender"], self.settings.processes)
        for row, one in self._read(held, np.arange(len(held))):
            receiver.take(self._make_packet(one, me, source[row]), one["__since"], [])

    def _settle(self) -> None:
        """From machines back to the kernel, where all that was given up has come."""
        for key, receiver in list(self.machines.items()):
            group, me = key
            served = self.compiled is not None and CompiledReceivers.serves(self.settings, me)
            if not served or receiver.machine.given_up():
                continue
            assert self.compiled is not None
            keys = self.compiled.keys
            number = self.numbers[key] = keys.index(key) if key in keys else self.compiled.open(group, me)
            self.compiled.take_over(number, receiver)
            # What it holds is among the rows, and is read again.
            del self.machines[key]

    def _add_outputs(self, outputs: Sequence[Output], numbers: Numbers, found: Found) -> None:
        """What machines deliver."""
        names = self.settings.processes
        rows = np.searchsorted(numbers, [read_number(one.message) for one in outputs]).tolist()
        for row, (_, position, _, late, lacks) in zip(rows, outputs, strict=True):
            if lacks:
                fields = ("sender", "first", "last", "counted")
                found.waits[len(found.kinds)] = [
                    dict(zip(fields, (names[sender], *rest), strict=True)) for sender, *rest in lacks
                ]
            found.add([row], [position], "late" if late else "released" if lacks else "delivered")

    def find_missing(self) -> dict[int, list[tuple[str, int, int, str]]]:
        """For each row that waits, by its place, what has not come at its root: sender, first, last, by which count.

        Of what the kernel holds, as of the last micro-batch.
        """
        found: dict[int, list[tuple[str, int, int, str]]] = {}
        if self.rows is None:
            return found
        names, compiled = self.settings.processes, self.compiled
        for lane, sender, root in () if compiled is None else compiled.find_roots(None):
            assert compiled is not None
            if self.numbers[compiled.keys[lane]] >= 0:
                counted = self.settings.machine(compiled.keys[lane][1]).counted
                for place in self.kernel_held[root.blocked].tolist():
                    found.setdefault(place, []).append((names[sender], root.first, root.last, counted))
        numbers = self.rows["__row"].to_numpy()
        for receiver in self.machines.values():
            for key, row in zip(receiver.since, receiver.list_rows(), strict=True):
                found[int(np.searchsorted(numbers, row))] = [
                    (names[one.sender], one.first, one.last, one.counted)
                    for one in receiver.machine.roots([key])
                ]
        return found

    # What is kept

    @property
    def deadline(self) -> int | None:
        """When patience with something here ends."""
        if self.settings.patience_ms is None or self.rows is None:
            return None
        return int(pc.min(self.rows["__since"]).as_py()) + self.settings.patience_ms

    def dump(self) -> bytes:
        state: dict[str, Any] = {
            "antecede stream": STATE_VERSION,
            "machines": SNAPSHOT_VERSION,
            **self.decided,
            "lanes": [receiver.dump() for _, receiver in sorted(self.machines.items())],
            "rows": None if self.rows is None else to_ipc(self.rows),
        }
        if self.compiled is not None:
            state["kernel"] = self.compiled.dump()
        return msgspec.msgpack.encode(state)

    @classmethod
    def load(cls, data: bytes, opened: StampedSettings) -> Bucket:
        try:
            state = msgspec.msgpack.decode(data)
            version = state["antecede stream"]
        except (msgspec.DecodeError, LookupError, TypeError):
            raise BadSnapshot("the checkpoint does not have the state of a stream") from None
        if not 1 <= version <= STATE_VERSION:
            raise BadSnapshot.version("the stream", version, f"1 to {STATE_VERSION}")
        settings = opened.settings
        if version == 2:
            state = {**msgspec.msgpack.decode(state.pop("packets")), **state}
        if state["protocol"] == settings.protocol:
            # What a parameter decides that the writer did not know yet, its default decided then.
            state["parameters"] = replace(settings, parameters={}).machine(0).parameters | state["parameters"]
        for name, wanted in settings.decided().items():
            if state[name] != wanted:
                raise BadSnapshot.changed(name, state[name], wanted)
        if version < STATE_VERSION:
            state = migrate_state(state, settings, opened.schema, opened.group)
        bucket = cls(opened)
        for part in state["lanes"]:
            receiver = MachineReceiver.load(settings, part, state["machines"])
            bucket.machines[receiver.group, receiver.machine.me] = receiver
        bucket.rows = None if state["rows"] is None else from_ipc(state["rows"])
        if "kernel" in state:
            bucket.compiled = CompiledReceivers.load(settings, state["kernel"])
            keys = enumerate(bucket.compiled.keys)
            bucket.numbers = {key: -1 if key in bucket.machines else at for at, key in keys}
            if not opened.kernel:
                bucket._leave_kernel()
        return bucket

    def _leave_kernel(self) -> None:
        """From the kernel to machines, all of it."""
        held = self.rows
        lane = np.zeros(0, np.int64) if held is None else self.find_lanes(held)[1]
        for number in [number for number in self.numbers.values() if number >= 0]:
            own = None if held is None else held.take(np.flatnonzero(lane == number))
            self._release(number, own)
        self.compiled = None


def sort_by_arrival(rows: pa.Table) -> pa.Table:
    """Rows in the order of arrival, with a group; those that came at the same time by sender and number."""
    groups = pc.fill_null(rows["__group"], "") if "__group" in rows.column_names else pa.repeat("", len(rows))
    rows = rows.drop_columns([name for name in ("__group",) if name in rows.column_names])
    rows = rows.append_column("__group", groups)
    keys = ["__sender", "__number", "__group", "__receiver"]
    if "__arrival" in rows.column_names:
        arrival = pc.fill_null(rows["__arrival"], 0).to_numpy()
        if len(arrival) < 2 or bool((arrival[1:] > arrival[:-1]).all()):
            return rows
        order = np.argsort(arrival, kind="stable")
        if bool((np.diff(arrival[order]) > 0).all()):
            # Sorting by one number is much faster than by several columns.
            return rows.take(order)
        keys = ["__arrival", *keys]
    return rows.take(pc.sort_indices(rows, [(key, "ascending") for key in keys]))
