"""The receivers of a stream of packets: one with a machine, and those that the kernel serves.

A machine decides everything. Whatever it offers is delivered at once, first what was offered first: so the order of
delivery follows from the order of arrival alone, however the rows were cut into micro-batches.

The kernel serves stamps of counts, where the protocol orders, and as long as nothing was given up. A receiver where
something is gets a machine, made from what stands here, until all that was given up has come (`take_over`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Struct

from antecede.errors import BadParameter, NotEligible, PeerError
from antecede.model import Effect, Id, Message, Packet, View
from antecede.protocols import PROTOCOLS, Listener, listen, restore
from antecede.protocols.machine import SNAPSHOT_VERSION
from antecede.spark.duration import parse_duration
from antecede.spark.stream import kernel
from antecede.spark.stream.kernel import NEVER, Numbers, Root, Waits, find_roots

if TYPE_CHECKING:
    from antecede.spark.stream.bucket import Bucket

__all__ = ["ORDERING", "CompiledReceivers", "Key", "MachineReceiver", "Output", "Settings", "read_number"]

ORDERING: Final = ("fifo", "matrix", "bounded", "monitor", "history", "broadcast", "optimal")
"""The protocols whose delivery is decided at the receiver, from the stamp."""
ELSEWHERE: Final = {
    "unordered": "it orders nothing",
    "buffer": "its order is made by senders that wait, and acknowledgements that a stream does not see",
    "permit": "its order is made by senders that wait for permits, which a stream does not see",
    "separator": "its routers hold what passes them, which a stream does not see",
    "contexts": "a stream of events that name their causes takes them as they are: order(id=..., causes=...)",
    "underway": "its stamps leave out what was acknowledged, and a stream may not have that yet",
    "sparing": "streams take the stamps of `bounded`, whose rule is the paper's",
}
"""Why the others cannot order a stream."""
NO_COLUMNS: Final = pa.schema([]).serialize().to_pybytes()

Key = tuple[str, int]
"""A group, and a receiver in it."""
MakePacket = Callable[[int, int], Packet[Any]]
"""From the place of a row and its receiver to the packet that it is."""


class Settings(Struct, frozen=True):
    """How packets are decided. Checked when made: what cannot order a stream is a `BadParameter`.

    >>> Settings("permit", ("p1", "p2"))
    Traceback (most recent call last):
    antecede.errors.BadParameter: stream: protocol must be one of fifo, matrix, bounded, monitor, history, \
broadcast, optimal, not 'permit' (its order is made by senders that wait for permits, which a stream does not see)
    """

    protocol: str
    processes: tuple[str, ...]
    parameters: dict[str, Any] = {}
    patience_ms: int | None = None
    """How long a message waits for causes that are not here, before they are given up. None: for ever."""
    buckets: int = 1
    """How many the receivers are spread over."""
    columns: bytes = NO_COLUMNS
    """The schema of the rows, as Arrow has it."""
    group: str | None = None
    """The column that tells groups apart."""
    receiver: int | None = None
    """The only one. None: all that there are."""
    kernel: bool = True
    """False: machines alone decide."""

    def __post_init__(self) -> None:
        if self.protocol not in ORDERING:
            why = ELSEWHERE.get(self.protocol)
            found = f"{self.protocol!r} ({why})" if why else repr(self.protocol)
            raise BadParameter("stream", f"protocol must be one of {', '.join(ORDERING)}, not {found}")
        if not self.processes:
            raise BadParameter("stream", "processes must name all that take part, and names nobody")
        self.machine(0)

    @classmethod
    def of(
        cls,
        protocol: str,
        processes: Sequence[str],
        parameters: Mapping[str, Any] | None = None,
        patience: str | None = None,
        **more: Any,
    ) -> Settings:
        """With the patience in words: "30 seconds"."""
        milliseconds = None if patience is None else parse_duration("stream", "patience", patience)
        return cls(protocol, tuple(processes), dict(parameters or {}), milliseconds, **more)

    def machine(self, process: int, delivered: Sequence[int] | None = None) -> Listener:
        """The machine that stands for a process, which sends elsewhere."""
        return listen(self.protocol, View(self.processes), process, delivered, **self.parameters)

    @property
    def everyone(self) -> bool:
        """Whether every message goes to all."""
        return PROTOCOLS[self.protocol].to_all

    def decided(self) -> dict[str, Any]:
        """What a state must agree with: a query that is started again with other settings is not continued wrongly.

        Patience may change from one start to the next.
        """
        return {
            "protocol": self.protocol,
            "processes": list(self.processes),
            "parameters": self.machine(0).parameters,
            "buckets": self.buckets,
        }

    def open(self, state: bytes | None) -> Bucket:
        from antecede.spark.stream.bucket import Bucket

        return Bucket(self) if state is None else Bucket.load(state, self)


def read_number(message: Message | None) -> int:
    """The number of the row that a message came as."""
    assert message is not None, "packets of a protocol itself are not held as rows"
    return int.from_bytes(message.payload, "little")


class Output(NamedTuple):
    """A message that comes out; `lacks` are causes that were given up, as (sender, first, last, counted)."""

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
            out.append(Output(self.position, message, late, causes))
            self.position += 1
            self.since.pop(message.id, None)
            queue += machine.deliver(message)

    def expire(self, now: int, patience: int, out: list[Output]) -> None:
        """Give up what messages have waited for too long."""
        while tired := [key for key, since in self.since.items() if since + patience <= now]:
            before, skipped = len(out), False
            for gap in self.machine.missing(tired):
                try:
                    self._deliver(self.machine.skip(*gap), out)
                    skipped = True
                except NotEligible:
                    # Something that it follows is here, and goes first: the next round has it.
                    continue
            if not skipped and len(out) == before:
                return

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


class CompiledReceivers:
    """Receivers that the kernel serves, by number."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.n = len(settings.processes)
        self.numbers: dict[Key, int] = {}
        self.delivered: Numbers = np.zeros((0, self.n), np.int64)
        self.places: Numbers = np.zeros(0, np.int64)
        self.waits = Waits.none()
        """What each row that is held waits for, as of the last rows."""

    def open(self, key: Key) -> int:
        """The number of a receiver, which may be new; -1 if the protocol does not order there."""
        if key not in self.numbers:
            me = key[1]
            if not self.settings.machine(me).orders_at(me):
                return -1
            self.numbers[key] = number = len(self.numbers)
            if number == len(self.places):
                more = max(8, number)
                self.delivered = np.vstack([self.delivered, np.zeros((more, self.n), np.int64)])
                self.places = np.concatenate([self.places, np.zeros(more, np.int64)])
            self.delivered[number, me] = NEVER
        return self.numbers[key]

    def take(self, lane: Any, source: Any, number: Any, stamp: Any, packet: MakePacket) -> tuple[Any, ...]:
        """Take rows in this order: those that were held, and those that came.

        The rows that are delivered in order, their positions, those that are held, and why others are refused.
        """
        total = len(lane)
        # Arrow's own memory is read-only: another type, for which all would be compiled again.
        lanes, sources, numbers = (np.array(part, np.int64) for part in (lane, source, number))
        octets, ends = octets_of(stamp)
        # Every entry takes a byte at least; what a machine is asked about takes its turn.
        room = int(ends[-1] - ends[0]) + self.n + 1 if total else 1
        mes = np.array([me for _, me in self.numbers] or [0], np.int64)[lanes]
        stamps = kernel.Stamps(kernel.CODES[self.settings.protocol], self.n, octets, ends, mes, sources)
        position, first, last = np.zeros((3, total), np.int64)
        process, count = np.zeros((2, room), np.int64)
        late = np.zeros(total, np.int8)
        rows = kernel.Rows(
            lanes, lanes * self.n + sources, numbers, position, first, last, process, count, late, stamps
        )
        refused: list[tuple[int, str]] = []
        while (row := rows.run(self.delivered.reshape(-1), self.places)) >= 0:
            asked = self._ask_machine(row, int(mes[row]), packet)
            if isinstance(asked, str):
                refused.append((row, asked))
                rows.state[row] = kernel.DROPPED
                rows.cursor[0] = row + 1
                continue
            rows.position[row], found = asked
            rows.first[row] = used = int(rows.cursor[1])
            if used + len(found) > len(rows.process):
                both = (rows.process, rows.count)
                rows.process, rows.count = (np.concatenate([part, np.zeros_like(part)]) for part in both)
            for key, reached in found:
                rows.process[used], rows.count[used] = lanes[row] * self.n + key, reached
                used += 1
            rows.last[row] = rows.cursor[1] = used
        held = np.flatnonzero(rows.state == kernel.HELD)
        self.waits = rows.waits(held)
        return rows.order, rows.placed, held, refused

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

    def release(self, key: Key) -> MachineReceiver:
        """A machine that goes on from what was delivered here."""
        number = self.numbers[key]
        machine = self.settings.machine(key[1], self.delivered[number].tolist())
        receiver = MachineReceiver(key[0], machine)
        receiver.position = int(self.places[number])
        return receiver

    def take_over(self, receiver: MachineReceiver) -> None:
        """Go on from what a machine has delivered."""
        me = receiver.machine.me
        number = self.open((receiver.group, me))
        self.delivered[number] = receiver.machine.reached()
        self.delivered[number, me] = NEVER
        self.places[number] = receiver.position

    def find_roots(self, most: int | None) -> Iterator[tuple[Key, Root]]:
        """What is missing, and at which receiver."""
        keys = list(self.numbers)
        for lane, root in find_roots(self.waits, self.delivered.reshape(-1), most):
            yield keys[lane], root

    def dump(self) -> dict[str, Any]:
        used = len(self.numbers)
        counts = {"delivered": self.delivered[:used].tobytes(), "places": self.places[:used].tobytes()}
        return {"keys": list(self.numbers), **counts}

    @classmethod
    def load(cls, settings: Settings, state: dict[str, Any]) -> CompiledReceivers:
        compiled = cls(settings)
        compiled.numbers = {(group, me): number for number, (group, me) in enumerate(state["keys"])}
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
