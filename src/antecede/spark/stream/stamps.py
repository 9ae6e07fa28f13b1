"""Causal order for a live stream of packets that carry the stamps of a protocol, without Spark: a bucket of receivers.

A row has the columns `OWN`, which say what packet it is, and those of its owner. Stamps of counts (`kernel.CODES`) are
read by the kernel, and their rows wait as vectors do (`counts`), where the protocol orders; a machine of the protocol
decides about the others, and says why a row is no packet.

Machines know a row by its number: it is the payload of the messages that they get.

Receivers with a machine have its `snapshot()` in the state, the others their counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from antecede.errors import PeerError
from antecede.model import Awaited, Message, Packet
from antecede.protocols.machine import SNAPSHOT_VERSION
from antecede.spark.stream import kernel
from antecede.spark.stream.bucket import (
    DELIVERED,
    LACKING,
    LATE,
    RELEASED,
    REPEATED,
    Missing,
    Output,
    WaitingRoom,
    encode_columns,
    from_ipc,
    hide_name,
    to_ipc,
)
from antecede.spark.stream.counts import NEVER, Counts, Step
from antecede.spark.stream.kernel import Numbers, Stamps
from antecede.spark.stream.packets import (
    Delivery,
    MachineReceiver,
    Settings,
    packet_of,
    read_number,
    stamp_of,
)
from antecede.spark.stream.status import GAVE_UP

__all__ = ["OWN", "StampBucket", "migrate_state"]

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


class StampBucket(WaitingRoom):
    """Receivers, in their groups."""

    form = "stamps"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.names = settings.processes
        self.ids: dict[str | None, int] = {name: process for process, name in enumerate(self.names)}
        self.machines: dict[Key, MachineReceiver] = {}
        self.lanes: dict[Key, int] = {}
        """The receivers that have no machine, by their lanes in `counts`. Channel n * lane + i is that of sender i."""
        self.counts = Counts()
        self.counted: Numbers = np.zeros(0, np.int64)
        """Places of the rows that wait for counts, among all that wait."""

    # A micro-batch

    def accept(self, rows: pa.Table) -> pa.Table:
        """Rows in the order of arrival, with their numbers."""
        rows = drop_columns(sort_by_arrival(rows), ["__arrival"])
        first = 0 if self.table is None else self.table["__row"][-1].as_py() + 1
        return rows.append_column("__row", pa.array(np.arange(first, first + len(rows)), pa.int64()))

    def decide(self, table: pa.Table, came: int, now: int, out: Output) -> Numbers:
        senders, code = encode_columns([table["__sender"]])
        source = np.array([self.ids.get(name, -1) for (name,) in senders], np.int64)[code]
        receivers, code = encode_columns([table["__group"], table["__receiver"]])
        keys = [(group, self._find_receiver(name)) for group, name in receivers]
        receiver = np.array([me for _, me in keys], np.int64)[code]
        lane = np.array([self._open_lane(key) for key in keys], np.int64)[code]
        self.counts.make_room(len(self.lanes), len(self.lanes) * len(self.names))
        for row in np.flatnonzero(receiver < 0).tolist():
            out.refuse(row, self._explain_stranger())
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
        left[np.array(out.rows, np.int64)] = False
        for row in np.flatnonzero(left).tolist():
            out.add(row, REPEATED, -1)
        self.counted = (np.cumsum(waits) - 1)[held]
        return np.flatnonzero(waits)

    def finish(self, table: pa.Table, out: Output) -> pa.Table:
        return out.finish(drop_columns(table, [*OWN, "__since", "__row"]), GAVE_UP)

    def _find_receiver(self, name: str | None) -> int:
        """The process that is served under this name, or -1."""
        found = self.ids.get(name, -1)
        return found if self.settings.receiver in (None, found) else -1

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

        step = Step(self.counts, lanes, lanes * n + sources, numbers, *unread, stamps=stamps)
        bad = step.rows.position == 0
        for me, (row, one) in zip(mes[bad].tolist(), self._read(table, which[bad]), strict=True):
            out.refuse(row, self._explain_refusal(one, me, source[row]))
        step.expire(self.is_tired(table, now)[which])
        out.add_step(which, step, lambda one: self._tell(one.channel % n, one.first, one.last, counted))
        # Without copies of them.
        held = np.flatnonzero(step.rows.state == kernel.HELD)
        self.counts.waits = step.find_waits(held)
        return np.asarray(which[held])

    def _explain_refusal(self, one: dict[str, Any], me: int, sender: Any) -> str:
        """What a machine says of a row that is no packet."""
        try:
            self.settings.machine(me).receive(self._make_packet(one, me, sender))
        except PeerError as error:
            return str(error)
        return "its stamp cannot be read"

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
        if (patience := self.settings.patience_ms) is not None:
            for key in sorted(self.machines):
                self.machines[key].expire(now, patience, found)
        rows = np.searchsorted(table["__row"].to_numpy(), [read_number(one.message) for one in found])
        for row, (position, _, late, lacks) in zip(rows.tolist(), found, strict=True):
            kind = LATE if late else RELEASED if lacks else DELIVERED
            out.add(row, kind, position, [self._tell(*one) for one in lacks])

    # What is missing

    def list_missing(self, most: int | None = None) -> Iterator[Missing]:
        """Of what waits for counts, as of the last micro-batch."""
        if self.table is None:
            return
        keys, n, counted = list(self.lanes), len(self.names), self.settings.counted
        for lane, root in self.counts.find_roots(most):
            (group, me), what = keys[lane], (self.names[root.source % n], root.first, root.last)
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
                what = self.names[one.sender], one.first, one.last
                yield Missing(self.names[me], group, *what, one.counted, np.searchsorted(numbers, rows))

    def find_frontier(self) -> dict[str, int]:
        n = len(self.names)
        counts = self.counts.delivered[: len(self.lanes) * n].reshape(-1, n)
        reached = counts.max(axis=0, initial=0).tolist()
        for receiver in self.machines.values():
            reached = list(map(max, reached, receiver.machine.reached()))
        return {name: count for name, count in zip(self.names, reached, strict=True) if count}

    def identify_held(self, table: pa.Table) -> Iterable[tuple[str, str | None, str | None, int | None]]:
        names = ("__group", "__receiver", "__sender", "__number")
        return zip(*(table[name].to_pylist() for name in names), strict=True)

    # What is kept

    def list_state(self) -> dict[str, Any]:
        return super().list_state() | {
            "machines": SNAPSHOT_VERSION,
            "receivers": [receiver.dump() for _, receiver in sorted(self.machines.items())],
            "lanes": list(self.lanes),
            "counts": self.counts.dump(len(self.lanes), len(self.lanes) * len(self.names)),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.lanes = {(group, me): lane for lane, (group, me) in enumerate(state["lanes"])}
        self.counts = Counts.load(state["counts"])
        for part in state["receivers"]:
            self._load_machine(MachineReceiver.load(self.settings, part, state["machines"]))

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
        order = np.argsort(arrival, kind="stable")
        if bool((np.diff(arrival[order]) > 0).all()):
            # Sorting by one number is much faster than by several columns.
            return rows.take(order) if bool((np.diff(order) < 0).any()) else rows
        keys = ["__arrival", *keys]
    return rows.take(pc.sort_indices(rows, [(key, "ascending") for key in keys]))


# A state of 0.1


def migrate_state(old: dict[str, Any], group_by: str) -> dict[str, Any]:
    """What waited then were messages with payloads, in machines and in a table of the kernel.

    They become rows with the columns of a packet; other columns are null. Messages that machines hold get the numbers
    of their rows as payloads.
    """
    named = old["protocol"], tuple(old["processes"]), old["parameters"]
    settings, rows = Settings(*named, buckets=old["buckets"]), list[dict[str, Any]]()
    names, known = settings.processes, old.get("kernel") or {}

    def add(group: str, me: int, sender: int, number: int, payload: Any, **more: Any) -> None:
        known = {"receiver": names[me], "sender": names[sender], "number": number}
        shown = {**known, "payload": payload, group_by: group}
        own = {**known, **more, "group": group, "row": len(rows)}
        rows.append({hide_name(name): value for name, value in shown.items()})
        rows[-1] |= {f"__{name}": value for name, value in own.items()}

    for one in from_ipc(known["held"]).to_pylist() if known.get("held") else ():
        group, me = known["keys"][one["lane"]]
        told = {"stamp": one["stamp"], "since": one["since"]}
        add(group, me, one["source"], one["number"], one["payload"], **told)
    for part in old["lanes"]:
        receiver = MachineReceiver.load(settings, part, old["machines"])
        pending = [packet["message"] for packet in part[3]["pending"] if packet["message"] is not None]
        for told in pending:
            packet = receiver.machine.held((told["sender"], told["number"]))
            message = packet.message
            assert message is not None
            since = receiver.since[message.id]
            told["payload"] = len(rows).to_bytes(8, "little")
            own = {"stamp": stamp_of(packet), "since": since, "label": message.label}
            add(receiver.group, receiver.machine.me, packet.source, message.number, message.payload, **own)
    kinds = {"number": pa.int64(), "payload": pa.binary()}
    shown = ("receiver", "sender", "number", "payload", group_by)
    columns = [(hide_name(name), kinds.get(name, pa.string())) for name in shown]
    delivered = np.frombuffer(known.get("delivered", b""), np.int64)
    counts = {
        "places": known.get("places", b""),
        "gaps": (),
        "delivered":
        # In 0.1 a receiver had all of its own messages.
        np.where(delivered == NEVER, 0, delivered).tobytes(),
    }
    return {
        "form": StampBucket.form,
        "settings": msgspec.to_builtins(settings),
        "machines": old["machines"],
        "receivers": old["lanes"],
        "lanes": known.get("keys", ()),
        "counts": counts,
        "table": to_ipc(pa.Table.from_pylist(rows, pa.schema([*columns, *WAITING_ROW]))) if rows else None,
    }
