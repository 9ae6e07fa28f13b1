"""Causal order for a live stream of packets that carry the stamps of a protocol, without Spark: a bucket of receivers.

A row has the columns `OWN`, which say what packet it is, and those of its owner. Stamps of counts (`kernel.CODES`) are
read by the kernel, and their rows wait as vectors do (`counts`), where the protocol orders; a machine of the protocol
decides about the others, and about each row that the kernel is not sure to be a packet.

Machines know a row by its number: it is the payload of the messages that they get.

The state is msgpack: its version and settings, then the receivers, and the rows that wait as an Arrow stream. Receivers
with a machine have its `snapshot()`, the others their counts. A state of 0.1 is read (`migrate_state`); one of a later
version, or made with other settings, is a `BadSnapshot`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from antecede.errors import BadSnapshot, PeerError
from antecede.model import Awaited, Message, Packet
from antecede.protocols.gaps import Gaps
from antecede.protocols.machine import SNAPSHOT_VERSION
from antecede.spark.stream import kernel
from antecede.spark.stream.bucket import (
    DELIVERED,
    LACKING,
    LATE,
    RELEASED,
    REPEATED,
    Bucket,
    Missing,
    Output,
    encode_names,
    from_ipc,
    hide_name,
    number_names,
    to_ipc,
)
from antecede.spark.stream.counts import NEVER, Counts, Step
from antecede.spark.stream.kernel import Numbers, Stamps
from antecede.spark.stream.packets import (
    GAVE_UP,
    Delivery,
    MachineReceiver,
    Settings,
    packet_of,
    read_number,
    stamp_of,
)

__all__ = ["OWN", "STATE_VERSION", "StampBucket", "load_held"]

STATE_VERSION: Final = 5
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

Key = tuple[str, int]
"""A group, and a receiver in it."""


class StampBucket(Bucket):
    """Receivers, in their groups."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings, self.names, self.patience_ms = settings, settings.processes, settings.patience_ms
        self.decided = settings.decided()
        self.machines: dict[Key, MachineReceiver] = {}
        self.lanes: dict[Key, int] = {}
        """The receivers that have no machine, by their lanes in `counts`. Channel n * lane + i is that of sender i."""
        self.counts = Counts()
        self.counted: Numbers = np.zeros(0, np.int64)
        """Places of the rows that wait for counts, among all that wait."""

    # A micro-batch

    def accept(self, rows: pa.Table) -> pa.Table:
        """Rows in the order of arrival, with their numbers."""
        rows = sort_by_arrival(rows)
        rows = drop_columns(rows, ["__arrival"])
        first = 0 if self.table is None else self.table["__row"][-1].as_py() + 1
        return rows.append_column("__row", pa.array(np.arange(first, first + len(rows)), pa.int64()))

    def decide(self, table: pa.Table, came: int, now: int, out: Output) -> Numbers:
        receiver, source = (number_names(table[name], self.names) for name in ("__receiver", "__sender"))
        if self.settings.receiver is not None:
            receiver[receiver != self.settings.receiver] = -1
        for row in np.flatnonzero(receiver < 0).tolist():
            out.refuse(row, self._explain_stranger())
        lane = self._find_lanes(table["__group"], receiver)
        served = np.flatnonzero(lane >= 0)
        held = self._count(table, served, lane, source, now, out) if len(served) else served
        fresh = np.arange(len(table)) >= len(table) - came
        self._run_machines(
            table, np.flatnonzero(fresh & (receiver >= 0) & (lane < 0)), receiver, source, now, out
        )
        numbers = table["__row"].to_numpy()
        kept = [row for one in self.machines.values() for row in one.list_rows()]
        waits = np.zeros(len(table), np.bool_)
        waits[held] = waits[np.searchsorted(numbers, kept)] = True
        # What neither comes out nor waits has come before.
        left = ~waits & table["__number"].is_valid().to_numpy()
        left[out.rows] = False
        out.add(np.flatnonzero(left), -1, REPEATED)
        self.counted = (np.cumsum(waits) - 1)[held]
        return np.flatnonzero(waits)

    def finish(self, table: pa.Table, out: Output) -> pa.Table:
        return out.finish(drop_columns(table, [*OWN, "__since", "__row"]), GAVE_UP)

    def _find_lanes(self, group: pa.ChunkedArray, receiver: Numbers) -> Numbers:
        """For each row the lane of its receiver, -1 if that has a machine, or is none."""
        encoded, size = encode_names(group), len(self.names) + 1
        groups = encoded.dictionary.to_pylist()
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64) * size + receiver + 1
        distinct, inverse = np.unique(codes, return_inverse=True)
        keys = [(groups[code // size], code % size - 1) for code in distinct.tolist()]
        lanes = np.array([self._open_lane(key) for key in keys], np.int64)
        self.counts.make_room(len(self.lanes), len(self.lanes) * len(self.names))
        found: Numbers = lanes[inverse]
        return found

    def _open_lane(self, key: Key) -> int:
        """The lane of a receiver, which may be new; -1 for none."""
        if key not in self.lanes:
            if key[1] < 0 or not self.settings.counts_at(key[1]):
                return -1
            self.lanes[key] = len(self.lanes)
        return self.lanes[key]

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

    def _tell(self, sender: int, *rest: Any) -> dict[str, Any]:
        return dict(zip(LACKING, (self.names[sender], *rest), strict=True))

    # By counts

    def _count(
        self, table: pa.Table, which: Numbers, lane: Numbers, source: Numbers, now: int, out: Output
    ) -> Numbers:
        """Let the kernel take these rows. Those that it holds."""
        n, counted = len(self.names), self.settings.counted
        own = table.select(["__number", "__stamp"])
        own = own if len(which) == len(table) else own.take(which)
        octets, ends = octets_of(own["__stamp"])
        # Arrow's own memory is read-only: another type, for which all would be compiled again.
        lanes, sources, numbers = (
            np.array(part, np.int64) for part in (lane[which], source[which], own["__number"].fill_null(0))
        )
        mes = np.array([me for _, me in self.lanes], np.int64)[lanes]
        sets = np.zeros((2, n + 8), np.int64)
        stamps = Stamps(kernel.CODES[self.settings.protocol], n, octets, ends, mes, sources, *sets)
        # The position, and where entries begin and end; entries. Each of these takes a byte at least.
        unread = *np.zeros((3, len(which)), np.int64), *np.zeros((2, int(ends[-1] - ends[0]) + 1), np.int64)

        def explain(row: int) -> tuple[int, list[tuple[int, int]]] | None:
            """Have a machine read and check a row that is not sure to be a packet."""
            me, [(at, one)] = int(mes[row]), self._read(table, which[row : row + 1])
            # A new one each: it is only asked, and keeps what it was asked.
            model = self.settings.machine(me)
            try:
                packet = self._make_packet(one, me, source[at])
                model.receive(packet)
            except PeerError as error:
                out.refuse(at, str(error))
                return None
            place, needs = model.asks(packet)
            others = [need for need in needs if need[1] > 0 and need[0] not in (me, packet.source)]
            return place[1], [(int(lane[at]) * n + key, count) for key, count in others]

        step = Step(self.counts, lanes, lanes * n + sources, numbers, *unread, stamps=stamps, explain=explain)
        step.expire(self.is_tired(table, now)[which])
        out.add_step(which, step, lambda one: self._tell(one.channel % n, one.first, one.last, counted))
        held = step.find_held()
        self.counts.waits = step.find_waits(held)
        return np.asarray(which[held])

    # By machines

    def _run_machines(
        self, table: pa.Table, which: Numbers, receiver: Numbers, source: Numbers, now: int, out: Output
    ) -> None:
        """Let machines take these rows, and give up what they have waited for too long."""
        found: list[Delivery] = []
        for row, one in self._read(table, which) if len(which) else ():
            me, group = int(receiver[row]), one["__group"]
            if (group, me) not in self.machines:
                self.machines[group, me] = MachineReceiver(group, self.settings.machine(me))
            try:
                packet = self._make_packet(one, me, source[row])
                self.machines[group, me].take(packet, now, found)
            except PeerError as error:
                out.refuse(row, str(error))
        if self.patience_ms is not None:
            for key in sorted(self.machines):
                self.machines[key].expire(now, self.patience_ms, found)
        rows = np.searchsorted(table["__row"].to_numpy(), [read_number(one.message) for one in found])
        for row, (position, _, late, lacks) in zip(rows.tolist(), found, strict=True):
            if lacks:
                out.waits[out.size] = [self._tell(*one) for one in lacks]
            out.add([row], position, LATE if late else RELEASED if lacks else DELIVERED)

    # What is missing

    def list_missing(self, most: int | None = None) -> Iterator[Missing]:
        """Of what waits for counts, as of the last micro-batch."""
        if self.table is None:
            return
        keys, n, counted = list(self.lanes), len(self.names), self.settings.counted
        for lane, root in self.counts.find_roots(most):
            (group, me), what = keys[lane], (root.source % n, root.first, root.last)
            yield Missing(self.names[me], group, *what, counted, self.counted[root.blocked])
        numbers = self.table["__row"].to_numpy()
        for (group, me), receiver in sorted(self.machines.items()):
            found: dict[Awaited, list[int]] = {}
            machine, since = receiver.machine, receiver.since
            oldest = sorted(since, key=lambda key: (since[key], key))
            for key in oldest if most is None else oldest[:LOOKED_AT]:
                for one in machine.roots([key]):
                    found.setdefault(one, []).append(read_number(machine.held(key).message))
            for one, rows in found.items():
                what = one.sender, one.first, one.last
                yield Missing(self.names[me], group, *what, one.counted, np.searchsorted(numbers, rows))

    def name_sender(self, sender: Any) -> str:
        return str(self.names[sender])

    def find_frontier(self) -> dict[str, int]:
        n = len(self.names)
        counts = self.counts.delivered[: len(self.lanes) * n].reshape(-1, n)
        reached = counts.max(axis=0, initial=0).tolist()
        for receiver in self.machines.values():
            reached = list(map(max, reached, receiver.machine.reached()))
        return {name: count for name, count in zip(self.names, reached, strict=True) if count}

    def identify_held(self) -> Iterator[tuple[str, str | None, str | None, int | None]]:
        assert self.table is not None
        names = ("__group", "__receiver", "__sender", "__number")
        return zip(*(self.table[name].to_pylist() for name in names), strict=True)

    # What is kept

    def dump(self) -> bytes:
        lanes, channels = len(self.lanes), len(self.lanes) * len(self.names)
        state: dict[str, Any] = {
            "antecede stream": STATE_VERSION,
            "machines": SNAPSHOT_VERSION,
            **self.decided,
            "lanes": [receiver.dump() for _, receiver in sorted(self.machines.items())],
            "rows": None if self.table is None else to_ipc(self.table),
            "kernel": {
                "keys": list(self.lanes),
                "delivered": self.counts.delivered[:channels].tobytes(),
                "places": self.counts.places[:lanes].tobytes(),
                "gaps": list(self.counts.gaps),
            },
        }
        return msgspec.msgpack.encode(state)

    @classmethod
    def load(cls, data: bytes, settings: Settings) -> StampBucket:
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
            state["rows"] = migrate_state(state, settings)
        bucket.table = None if state["rows"] is None else from_ipc(state["rows"])
        if (known := state.get("kernel")) is not None:
            bucket.lanes = {(group, me): lane for lane, (group, me) in enumerate(known["keys"])}
            places, delivered = (
                np.frombuffer(known[name], np.int64).copy() for name in ("places", "delivered")
            )
            # In 0.1 a receiver had all of its own messages.
            delivered[delivered == NEVER] = 0
            bucket.counts.places, bucket.counts.delivered = places, delivered
            bucket.counts.gaps = Gaps(known.get("gaps", ()))
        for part in state["lanes"]:
            bucket._load_machine(MachineReceiver.load(settings, part, state["machines"]))
        return bucket

    def _load_machine(self, receiver: MachineReceiver) -> None:
        """Go on with a machine or, where counts decide now, with what it has delivered and given up."""
        key = receiver.group, receiver.machine.me
        if (lane := self._open_lane(key)) < 0:
            self.machines[key] = receiver
            return
        n, counts = len(self.names), self.counts
        counts.make_room(len(self.lanes), len(self.lanes) * n)
        counts.places[lane] = receiver.position
        counts.delivered[lane * n : lane * n + n] = receiver.machine.reached()
        for gap in receiver.machine.given_up():
            counts.gaps.add(lane * n + gap.sender, gap.first, gap.last)


def load_held(made: dict[str, Any]) -> StampBucket:
    """A bucket with this state, to look at what waits."""
    named = made["protocol"], tuple(made["processes"]), made["parameters"]
    return StampBucket.load(msgspec.msgpack.encode(made), Settings(*named, buckets=made["buckets"]))


def drop_columns(rows: pa.Table, names: list[str]) -> pa.Table:
    """Without these columns, where they are there."""
    return rows.drop_columns([name for name in names if name in rows.column_names])


def octets_of(column: Any) -> tuple[Any, Any]:
    """The bytes of a binary column, and where each value begins and ends."""
    column = column.combine_chunks()
    column = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    _, offsets, data = column.buffers()
    ends = np.array(np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1])
    return np.frombuffer(data if data is not None and data.size else b"\0", np.uint8), ends


def sort_by_arrival(rows: pa.Table) -> pa.Table:
    """Rows in the order of arrival, with a group; those that came at the same time by sender and number."""
    groups = pc.fill_null(rows["__group"], "") if "__group" in rows.column_names else pa.repeat("", len(rows))
    rows = drop_columns(rows, ["__group"]).append_column("__group", groups)
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


def migrate_state(state: dict[str, Any], settings: Settings) -> bytes | None:
    """The rows that wait in a state of 0.1, and their numbers as the payloads of the messages that machines hold.

    What waited then were messages with payloads, in machines and in a table of the kernel. They become rows with the
    columns of a packet; other columns are null.
    """
    names, rows = settings.processes, list[dict[str, Any]]()
    group_by = settings.group or "group"
    kinds = {"receiver": pa.string(), "sender": pa.string(), "number": pa.int64(), "payload": pa.binary()}
    kinds[group_by] = pa.string()

    def add(group: str, me: int, sender: int, number: int, payload: Any, **more: Any) -> None:
        known = {"receiver": names[me], "sender": names[sender], "number": number}
        own = {
            f"__{name}": value for name, value in {**known, **more, "group": group, "row": len(rows)}.items()
        }
        known |= {"payload": payload, group_by: group}
        rows.append({**{hide_name(name): value for name, value in known.items()}, **own})

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
    columns = [(hide_name(name), kind) for name, kind in kinds.items()]
    return to_ipc(pa.Table.from_pylist(rows, pa.schema([*columns, *WAITING_ROW]))) if rows else None
