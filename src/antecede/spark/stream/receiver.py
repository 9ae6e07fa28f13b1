"""The receivers of a stream: one with a machine, and those that the kernel serves.

A machine decides everything. Whatever it offers is delivered at once, first what was offered first: so the order of
delivery follows from the order of arrival alone, however the rows were cut into micro-batches.

The kernel serves stamps of counts, where the protocol orders, and as long as nothing was given up. A receiver where
something is gets a machine, made from what stands here, until all that was given up has come (`take_over`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from antecede.errors import NotEligible, PeerError
from antecede.model import Effect, Id, Message, Packet
from antecede.protocols import Listener, restore
from antecede.protocols.machine import SNAPSHOT_VERSION
from antecede.spark.stream import kernel
from antecede.spark.stream.roots import MOST, Root, Waits, find_roots
from antecede.spark.stream.settings import Settings

__all__ = ["CompiledReceivers", "MachineReceiver", "Output", "Taken", "octets_of", "read_number"]

Numbers = NDArray[np.int64]
MakePacket = Callable[[int, int], Packet[Any]]
"""From the place of a row and its receiver to the packet that it is."""


def read_number(message: Message | None) -> int:
    """The number of the row that a message came as."""
    assert message is not None, "packets of a protocol itself are not held as rows"
    return int.from_bytes(message.payload, "little")


class Output(NamedTuple):
    """A message that comes out; `lacks` are causes that were given up, as (sender, first, last, counted)."""

    receiver: MachineReceiver
    position: int
    message: Message
    late: bool
    lacks: tuple[tuple[int, int, int, str], ...]


class MachineReceiver:
    """A receiver in a group of processes."""

    __slots__ = ("group", "machine", "position", "since")

    def __init__(self, group: str, machine: Listener) -> None:
        self.group = group
        self.machine = machine
        self.position = 0
        """Of the next delivery."""
        self.since: dict[Id, int] = {}
        """Held message -> when it came, in milliseconds."""

    def take(self, packet: Packet[Any], now: int, out: list[Output]) -> None:
        """A packet arrives. One that cannot be is a `PeerError`, and changes nothing."""
        effects = self.machine.receive(packet)
        if effects:
            self._deliver(effects, out)
        message = packet.message
        if message is not None and self.machine.holds(message.id):
            self.since.setdefault(message.id, now)

    def _deliver(self, effects: Iterable[Effect], out: list[Output]) -> None:
        machine, queue = self.machine, deque(effects)
        while queue:
            message = queue.popleft()
            if not isinstance(message, Message):
                continue
            late, lacks = machine.late(message), machine.lacks(message)
            causes = tuple((a.sender, a.first, a.last, a.counted) for a in lacks)
            out.append(Output(self, self.position, message, late, causes))
            self.position += 1
            self.since.pop(message.id, None)
            queue += machine.deliver(message)

    def expire(self, now: int, patience: int, out: list[Output]) -> None:
        """Give up what messages have waited for too long."""
        while True:
            tired = [key for key, since in self.since.items() if since + patience <= now]
            if not tired or not self._give_up(tired, out):
                return

    def _give_up(self, tired: list[Id], out: list[Output]) -> bool:
        """Whether anything could be given up for these."""
        before = len(out)
        skipped = False
        for gap in self.machine.missing(tired):
            try:
                self._deliver(self.machine.skip(*gap), out)
                skipped = True
            except NotEligible:
                # Something that it follows is here, and goes first: the next round has it.
                continue
        return skipped or len(out) > before

    def list_rows(self) -> Iterator[int]:
        """The numbers of the rows that it holds."""
        for key in self.since:
            yield read_number(self.machine.held(key).message)

    def dump(self) -> list[Any]:
        since = [[*key, since] for key, since in sorted(self.since.items())]
        return [self.group, self.machine.me, self.position, self.machine.snapshot()["state"], since]

    @classmethod
    def load(cls, settings: Settings, state: list[Any], version: int = SNAPSHOT_VERSION) -> MachineReceiver:
        """`version` is that of the machine's snapshot."""
        group, me, position, machine, since = state
        snapshot = {"antecede": version, "me": me, "state": machine, **settings.decided()}
        snapshot["view"] = snapshot.pop("processes")
        restored = restore(snapshot)
        assert isinstance(restored, Listener)
        receiver = cls(group, restored)
        receiver.position = position
        receiver.since = {(sender, number): came for sender, number, came in since}
        return receiver


# Served by the kernel


class Taken(NamedTuple):
    """What the kernel made of rows, by their places."""

    order: Numbers
    """Those that are delivered, in order."""
    placed: Numbers
    """Their positions at their receivers."""
    held: Numbers
    refused: list[tuple[int, str]]


class CompiledReceivers:
    """Receivers by number; `keys` says which they are."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.code = kernel.CODES[settings.protocol]
        self.n = len(settings.processes)
        self.keys: list[tuple[str, int]] = []
        """Of each receiver: its group and its process."""
        self.delivered: Numbers = np.zeros((0, self.n), np.int64)
        self.places: Numbers = np.zeros(0, np.int64)
        self.waits = Waits.none()
        """What each row that is held waits for, as of the last rows."""

    @staticmethod
    def serves(settings: Settings, me: int) -> bool:
        return settings.protocol in kernel.CODES and settings.machine(me).orders_at(me)

    def open(self, group: str, me: int) -> int:
        """A new receiver."""
        self.keys.append((group, me))
        if len(self.keys) > len(self.places):
            more = max(8, len(self.places))
            self.delivered = np.vstack([self.delivered, np.zeros((more, self.n), np.int64)])
            self.places = np.concatenate([self.places, np.zeros(more, np.int64)])
        self.delivered[len(self.keys) - 1, me] = np.iinfo(np.int64).max
        return len(self.keys) - 1

    def take(self, lane: Any, source: Any, number: Any, stamp: Any, packet: MakePacket) -> Taken:
        """Take rows in this order: those that were held, and those that came."""
        total = len(lane)
        # Arrow's own memory is read-only: another type, for which all would be compiled again.
        lanes, sources, numbers = (np.array(part, np.int64) for part in (lane, source, number))
        position, first, last, order, placed, next_, queue, woken = (
            np.zeros(total, np.int64) for _ in range(8)
        )
        channels = lanes * self.n + sources
        octets, ends = octets_of(stamp)
        # Every entry takes a byte at least; what a machine is asked about takes its turn.
        room = int(ends[-1] - ends[0]) + self.n + 1 if total else 1
        process, count = np.zeros(room, np.int64), np.zeros(room, np.int64)
        late = np.zeros(total, np.int8)
        state, cursor = np.zeros(total, np.int8), np.zeros(3, np.int64)
        mes = np.array([me for _, me in self.keys] or [0], np.int64)[lanes]
        scratch = np.zeros(self.n + 8, np.int64), np.zeros(self.n + 8, np.int64)
        tables = kernel.tables(total)
        refused: list[tuple[int, str]] = []
        while True:
            row = kernel.arrive(
                self.code, self.n, octets, ends, mes, lanes, sources, numbers, channels,
                position, first, last, process, count, late, self.delivered.reshape(-1), self.places, state,
                order, placed, *tables, next_, queue, woken, *scratch, cursor,
            )  # fmt: skip
            if row < 0:
                break
            asked = self._ask_machine(row, int(mes[row]), packet)
            if isinstance(asked, str):
                refused.append((row, asked))
                state[row] = kernel.DROPPED
                cursor[0] = row + 1
                continue
            position[row], needs = asked
            first[row] = used = int(cursor[1])
            if used + len(needs) > len(process):
                process, count = (np.concatenate([part, np.zeros_like(part)]) for part in (process, count))
            for key, reached in needs:
                process[used], count[used] = lanes[row] * self.n + key, reached
                used += 1
            last[row] = cursor[1] = used
        out = int(cursor[2])
        held = np.flatnonzero(state == kernel.HELD)
        self.waits = Waits.of(
            lanes[held], channels[held], position[held], first[held], last[held], process, count
        )
        return Taken(order[:out], placed[:out], held, refused)

    def _ask_machine(self, row: int, me: int, packet: MakePacket) -> str | tuple[int, list[tuple[int, int]]]:
        """Have a row that is not sure read and checked by a machine: its place and needs, or why it is no packet."""
        # A new one each: it is only asked, and keeps what it was asked.
        model = self.settings.machine(me)
        try:
            made = packet(row, me)
            model.receive(made)
        except PeerError as error:
            return str(error)
        place, needs = model.asks(made)
        return place[1], [need for need in needs if need[0] not in (me, made.source)]

    def take_over(self, lane: int, receiver: MachineReceiver) -> None:
        """Go on from what a machine has delivered."""
        self.delivered[lane] = receiver.machine.reached()
        self.delivered[lane, self.keys[lane][1]] = np.iinfo(np.int64).max
        self.places[lane] = receiver.position

    def find_roots(self, most: int | None = MOST) -> Iterator[tuple[int, int, Root]]:
        """What is missing: at which receiver, and of whom."""
        for lane, root in find_roots(self.waits, self.delivered.reshape(-1), most):
            yield lane, root.source % self.n, root

    def dump(self) -> dict[str, Any]:
        used = len(self.keys)
        counts = {"delivered": self.delivered[:used].tobytes(), "places": self.places[:used].tobytes()}
        return {"keys": self.keys, **counts}

    @classmethod
    def load(cls, settings: Settings, state: dict[str, Any]) -> CompiledReceivers:
        compiled = cls(settings)
        compiled.keys = [(group, me) for group, me in state["keys"]]
        compiled.delivered = np.frombuffer(state["delivered"], np.int64).reshape(-1, compiled.n).copy()
        compiled.places = np.frombuffer(state["places"], np.int64).copy()
        return compiled


def octets_of(column: Any) -> tuple[Any, Any]:
    """The bytes of a binary column, and where each value begins and ends."""
    column = column.combine_chunks()
    column = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    _, offsets, data = column.buffers()
    ends = np.array(np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1])
    return np.frombuffer(data if data is not None and data.size else b"\0", np.uint8), ends
