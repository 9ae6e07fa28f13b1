"""A bucket of receivers of packets: rows go in, rows come out, and the state between two calls is bytes.

No Spark, no clock. What comes out depends on the order of arrival alone and, where patience ends, on `now`. Spark keeps
the bytes (`operator`); tests cut streams wherever they like.

A row has the columns `OWN`, which say what packet it is, and those of its owner. Rows that wait are kept in one table.
Machines and the kernel know a row by its number: it is the payload of the messages that machines get.

The state is msgpack: its version and settings, then the receivers, and the rows that wait as an Arrow stream. Receivers
with a machine have its `snapshot()`, those that the kernel serves have their counts. A state of 0.1 is read
(`migrate_state`); one of a later version, or made with other settings, is a `BadSnapshot`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from antecede.errors import BadSnapshot, PeerError
from antecede.model import Awaited, Message, Packet
from antecede.protocols.machine import SNAPSHOT_VERSION
from antecede.spark.stream import kernel
from antecede.spark.stream.kernel import MOST, NEVER, Numbers
from antecede.spark.stream.packets import (
    GAVE_UP,
    encode_names,
    finish_rows,
    from_ipc,
    join_rows,
    number_names,
    packet_of,
    stamp_of,
    to_ipc,
)
from antecede.spark.stream.receiver import CompiledReceivers, MachineReceiver, Output, Settings, read_number
from antecede.spark.stream.status import Cause, Status, sort_causes

__all__ = ["OWN", "STATE_VERSION", "Bucket"]

STATE_VERSION: Final = 3
OWN: Final = ("__receiver", "__sender", "__number", "__stamp", "__arrival", "__label", "__group")
LOOKED_AT: Final = 100
"""Held messages of a receiver with a machine of which a status tells what they wait for: the oldest."""
WAITING_ROW: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("__receiver", "__sender", "__group", "__label")),
        *((name, pa.int64()) for name in ("__number", "__since", "__row")),
        ("__stamp", pa.binary()),
    ]
)
"""What a bucket knows of a row that waits, beside the columns of its owner."""


class Missing(NamedTuple):
    """Messages that have not come, and the places of the rows that wait for them, directly or through others."""

    group: str
    me: int
    sender: int
    first: int
    last: int
    counted: str
    places: Numbers


class Found:
    """Rows that come out, in order, and what became of them."""

    def __init__(self) -> None:
        self.rows: list[Numbers] = [np.zeros(0, np.int64)]
        self.positions: list[Numbers] = [np.zeros(0, np.int64)]
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

    def finish(self, table: pa.Table) -> pa.Table:
        positions, size = np.concatenate(self.positions), len(self.kinds)
        reasons = (
            [self.reasons.get(at) for at in range(size)] if self.reasons else pa.nulls(size, pa.string())
        )
        out, position = table.take(np.concatenate(self.rows)), pa.array(positions, mask=positions < 0)
        texts = (pa.array(column, pa.string()) for column in (self.kinds, reasons))
        return finish_rows(out, position, self.waits, GAVE_UP, *texts)


class Bucket:
    """Receivers, each served by the kernel or by a machine."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.names = settings, settings.processes
        self.schema = pa.ipc.read_schema(pa.py_buffer(settings.columns))
        self.decided = settings.decided()
        self.machines: dict[tuple[str, int], MachineReceiver] = {}
        served = settings.kernel and settings.protocol in kernel.CODES
        self.compiled = CompiledReceivers(settings) if served else None
        """Those that have a machine are not served while they do."""
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
            return None, self._describe(now, 0, found)
        receiver, lane = self._find_lanes(table)
        source = number_names(table["__sender"], self.names)
        for row in np.flatnonzero(receiver < 0).tolist():
            found.refuse(row, self._explain_stranger())
        held = self._run_kernel(table, np.flatnonzero(lane >= 0), lane, source, found)
        outputs: list[Output] = []
        fresh = np.arange(len(table)) >= len(table) - came
        for row, one in self._read(table, np.flatnonzero(fresh & (receiver >= 0) & (lane < 0))):
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
        kept = [row for one in self.machines.values() for row in one.list_rows()]
        waits[np.searchsorted(numbers, kept)] = True
        left = ~waits & table["__number"].is_valid().to_numpy()
        out = np.concatenate(found.rows)
        waits[out] = left[out] = False
        # What neither comes out nor waits has come before.
        found.add(np.flatnonzero(left), np.full(left.sum(), -1), "repeated")
        self.rows = table.take(np.flatnonzero(waits)) if waits.any() else None
        self.kernel_held = (np.cumsum(waits) - 1)[held]
        self._settle()
        return found.finish(table.select(self.schema.names)), self._describe(now, came, found)

    # Rows to packets

    def _accept(self, rows: pa.Table, now: int) -> pa.Table:
        """Rows in the order of arrival, with their numbers."""
        rows = sort_by_arrival(rows)
        names = [name for name in OWN if name in rows.column_names and name != "__arrival"]
        rows = rows.select(list(dict.fromkeys([*self.schema.names, *names])))
        first = 0 if self.rows is None else self.rows["__row"][-1].as_py() + 1
        rows = rows.append_column("__since", pa.array(np.full(len(rows), now, np.int64)))
        return rows.append_column("__row", pa.array(np.arange(first, first + len(rows)), pa.int64()))

    def _find_lanes(self, table: pa.Table) -> tuple[Numbers, Numbers]:
        """For each row its receiver, -1 for none, and the number of that at the kernel, -1 if it has a machine."""
        receiver = number_names(table["__receiver"], self.names)
        if self.settings.receiver is not None:
            receiver[receiver != self.settings.receiver] = -1
        if self.compiled is None or not len(table):
            return receiver, np.full(len(table), -1)
        encoded, size = encode_names(table["__group"]), len(self.names) + 1
        groups = encoded.dictionary.to_pylist()
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64) * size + receiver + 1
        distinct, inverse = np.unique(codes, return_inverse=True)
        keys = [(groups[code // size], code % size - 1) for code in distinct.tolist()]
        numbers = [-1 if key[1] < 0 or key in self.machines else self.compiled.open(key) for key in keys]
        return receiver, np.array(numbers, np.int64)[inverse]

    def _explain_stranger(self) -> str:
        if self.settings.receiver is not None:
            return f"it is not for {self.names[self.settings.receiver]}"
        return f"the receiver must be one of {', '.join(self.names[:8])}"

    def _read(self, table: pa.Table, which: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        """These rows, with their columns of `OWN` and their numbers."""
        own = table.select([name for name in (*OWN, "__since", "__row") if name in table.column_names])
        yield from zip(which.tolist(), own.take(which).to_pylist(), strict=True)

    def _make_packet(self, one: dict[str, Any], me: Any, sender: Any) -> Packet[Any]:
        """The packet that a row is, as a machine takes it."""
        message = None
        if one["__number"] is not None:
            to = tuple(range(len(self.names))) if self.settings.everyone else (int(me),)
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
        columns = taken["__number"].fill_null(0), taken["__stamp"]
        order, placed, held, refused = self.compiled.take(lane[which], source[which], *columns, packet)
        found.add(which[order], placed, "delivered")
        for at, why in refused:
            found.refuse(int(which[at]), why)
        return np.asarray(which[held])

    def _find_machine(self, group: str, me: int) -> MachineReceiver:
        machine = self.machines.get((group, me))
        if machine is None:
            machine = self.machines[group, me] = MachineReceiver(group, self.settings.machine(me))
        return machine

    def _expire(self, held: pa.Table, now: int, patience: int, outputs: list[Output]) -> None:
        """Give up what was waited for too long. A receiver where that happens gets a machine."""
        if len(held):
            _, lane = self._find_lanes(held)
            self._release(held, lane, lane[held["__since"].to_numpy() + patience <= now])
        for key in sorted(self.machines):
            self.machines[key].expire(now, patience, outputs)

    def _release(self, held: pa.Table, lane: Numbers, numbers: Any) -> None:
        """Receivers go from the kernel to machines, with what they hold."""
        assert self.compiled is not None
        keys = list(self.compiled.numbers)
        for number in np.unique(np.asarray(numbers, np.int64)).tolist():
            receiver = self.machines[keys[number]] = self.compiled.release(keys[number])
            own = held.take(np.flatnonzero(lane == number))
            source = number_names(own["__sender"], self.names)
            for row, one in self._read(own, np.arange(len(own))):
                receiver.take(self._make_packet(one, keys[number][1], source[row]), one["__since"], [])

    def _settle(self) -> None:
        """From machines back to the kernel, where all that was given up has come."""
        for key, receiver in list(self.machines.items() if self.compiled is not None else ()):
            if receiver.machine.orders_at(key[1]) and not receiver.machine.given_up():
                assert self.compiled is not None
                self.compiled.take_over(receiver)
                # What it holds is among the rows, and is read again.
                del self.machines[key]

    def _add_outputs(self, outputs: Sequence[Output], numbers: Numbers, found: Found) -> None:
        """What machines deliver."""
        rows = np.searchsorted(numbers, [read_number(one.message) for one in outputs]).tolist()
        for row, (position, _, late, lacks) in zip(rows, outputs, strict=True):
            if lacks:
                found.waits[len(found.kinds)] = [self._tell(*one) for one in lacks]
            found.add([row], [position], "late" if late else "released" if lacks else "delivered")

    def _tell(self, sender: int, *rest: Any) -> dict[str, Any]:
        return dict(zip(GAVE_UP.value_type.names, (self.names[sender], *rest), strict=True))

    # What is missing

    def list_missing(self, most: int | None = None) -> Iterator[Missing]:
        """What has not come, at its root: of each receiver all of it, or about so many.

        Of what the kernel holds, as of the last micro-batch.
        """
        if self.rows is None:
            return
        for (group, me), root in () if self.compiled is None else self.compiled.find_roots(most):
            if (group, me) not in self.machines:
                what = root.source % len(self.names), root.first, root.last
                counted = self.settings.machine(me).counted
                yield Missing(group, me, *what, counted, self.kernel_held[root.blocked])
        numbers = self.rows["__row"].to_numpy()
        for (group, me), receiver in sorted(self.machines.items()):
            found: dict[Awaited, list[int]] = {}
            machine, since = receiver.machine, receiver.since
            oldest = sorted(since, key=lambda key: (since[key], key))
            for key in oldest if most is None else oldest[:LOOKED_AT]:
                for one in machine.roots([key]):
                    found.setdefault(one, []).append(read_number(machine.held(key).message))
            for one, rows in found.items():
                places = np.searchsorted(numbers, rows)
                yield Missing(group, me, one.sender, one.first, one.last, one.counted, places)

    def find_missing(self) -> dict[int, list[dict[str, Any]]]:
        """For each row that waits, by its place, what has not come at its root, as `waits_for` has it."""
        found: dict[int, list[dict[str, Any]]] = {}
        for one in sorted(self.list_missing(), key=lambda one: one[2:5]):
            for place in one.places.tolist():
                found.setdefault(place, []).append(self._tell(one.sender, one.first, one.last, one.counted))
        return found

    def _describe(self, now: int, came: int, found: Found) -> Status:
        """The status after a micro-batch."""
        kinds, rows, names = Counter(found.kinds), self.rows, self.names
        since = np.zeros(0, np.int64) if rows is None else rows["__since"].to_numpy()
        causes = (
            Cause(
                names[one.me], names[one.sender], one.first, one.last, len(one.places),
                int(since[one.places].min()), one.group, one.counted,
            )
            for one in self.list_missing(MOST)
        )  # fmt: skip
        return Status(
            now_ms=now,
            rows_in=came,
            delivered=kinds["delivered"] + kinds["released"],
            late=kinds["late"],
            refused=kinds["refused"],
            gave_up=len(found.waits),
            held=len(since),
            oldest_ms=int(since.min()) if len(since) else None,
            causes=sort_causes(causes),
            frontier=self._frontier(),
        )

    def _frontier(self) -> dict[str, int]:
        reached = [0] * len(self.names)
        if self.compiled is not None and self.compiled.numbers:
            counts = self.compiled.delivered[: len(self.compiled.numbers)]
            reached = np.where(counts == NEVER, 0, counts).max(axis=0).tolist()
        for receiver in self.machines.values():
            reached = list(map(max, reached, receiver.machine.reached()))
        return {name: count for name, count in zip(self.names, reached, strict=True) if count}

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
    def load(cls, data: bytes, settings: Settings) -> Bucket:
        try:
            state = msgspec.msgpack.decode(data)
            version = state["antecede stream"]
        except (msgspec.DecodeError, LookupError, TypeError):
            raise BadSnapshot("the checkpoint does not have the state of a stream") from None
        if version not in (1, STATE_VERSION):
            raise BadSnapshot.version("the stream", version, f"1 or {STATE_VERSION}")
        if state["protocol"] == settings.protocol:
            # What a parameter decides that the writer did not know yet, its default decided then.
            state["parameters"] = replace(settings, parameters={}).machine(0).parameters | state["parameters"]
        for name, wanted in settings.decided().items():
            if state[name] != wanted:
                raise BadSnapshot.changed(name, state[name], wanted)
        bucket = cls(settings)
        if version == 1:
            state["rows"] = migrate_state(state, settings, bucket.schema)
        for part in state["lanes"]:
            receiver = MachineReceiver.load(settings, part, state["machines"])
            bucket.machines[receiver.group, receiver.machine.me] = receiver
        bucket.rows = None if state["rows"] is None else from_ipc(state["rows"])
        if "kernel" in state:
            bucket.compiled = CompiledReceivers.load(settings, state["kernel"])
            if not settings.kernel:
                bucket._leave_kernel()
        return bucket

    def _leave_kernel(self) -> None:
        """From the kernel to machines, all of it."""
        assert self.compiled is not None
        held = WAITING_ROW.empty_table() if self.rows is None else self.rows
        numbers = [number for key, number in self.compiled.numbers.items() if key not in self.machines]
        self._release(held, self._find_lanes(held)[1], numbers)
        self.compiled = None


def list_held(made: dict[str, Any]) -> list[dict[str, Any]]:
    """What waits in a bucket with this state, as rows of `WAITING`."""
    settings = Settings(
        made["protocol"], tuple(made["processes"]), made["parameters"], buckets=made["buckets"]
    )
    columns = pa.schema([("__row", pa.int64())]).serialize().to_pybytes()
    bucket = Bucket.load(
        msgspec.msgpack.encode(made), replace(settings, columns=columns, kernel="kernel" in made)
    )
    # Nothing comes, so nothing comes out: what is held is read.
    bucket.advance(None, 0)
    missing = bucket.find_missing()
    own = {name: f"__{name}" for name in ("group", "receiver", "sender", "number")} | {"since_ms": "__since"}
    rows = [] if bucket.rows is None else bucket.rows.select(list(own.values())).to_pylist()
    held = [
        {**{name: row[column] for name, column in own.items()}, "awaits": missing.get(place, [])}
        for place, row in enumerate(rows)
    ]
    return sorted(held, key=lambda row: row["since_ms"])


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


def migrate_state(state: dict[str, Any], settings: Settings, schema: pa.Schema) -> bytes | None:
    """The rows that wait in a state of 0.1, and their numbers as the payloads of the messages that machines hold.

    What waited then were messages with payloads, in machines and in a table of the kernel. They become rows with the
    columns of a packet; other columns are null.
    """
    names, rows = settings.processes, list[dict[str, Any]]()
    columns = [field for field in schema if field.name not in WAITING_ROW.names]

    def add(group: str, me: int, sender: int, number: int, payload: Any, **more: Any) -> None:
        known = {"receiver": names[me], "sender": names[sender], "number": number}
        own = {
            f"__{name}": value for name, value in {**known, **more, "group": group, "row": len(rows)}.items()
        }
        known |= {"payload": payload, settings.group or "group": group}
        rows.append({**{field.name: known.get(field.name) for field in columns}, **own})

    table = state.get("kernel", {}).get("held")
    for one in [] if table is None else from_ipc(table).to_pylist():
        group, me = state["kernel"]["keys"][one["lane"]]
        told = {"stamp": one["stamp"], "since": one["since"]}
        add(group, me, one["source"], one["number"], one["payload"], **told)
    for part in state["lanes"]:
        receiver = MachineReceiver.load(settings, part, state["machines"])
        pending = [packet["message"] for packet in part[3]["pending"] if packet["message"] is not None]
        for told in pending:
            packet = receiver.machine.held((told["sender"], told["number"]))
            message = packet.message
            assert message is not None
            since = receiver.since[message.id]
            told["payload"] = len(rows).to_bytes(8, "little")
            own = {"stamp": stamp_of(packet), "since": since, "label": message.label}
            add(receiver.group, receiver.machine.me, packet.source, message.number, message.payload, **own)
    return to_ipc(pa.Table.from_pylist(rows, pa.schema([*columns, *WAITING_ROW]))) if rows else None
