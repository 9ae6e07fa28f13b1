"""Packets as rows: what goes into a stream, and what comes out of it; how they are decided, and a machine that does.

A row of `PACKETS` is one packet at one receiver; docs/stream.md has the columns, and those that it comes out with.
A `number` that is null is that of a packet of the protocol itself (`bounded` has such), which orders and is not
delivered. `stamp` is as `antecede.wire` writes it, after one byte: its code in `antecede.wire.stamps`. A packet has no
`position` if it is refused or repeated, and it is `late`, too, if no stamp had told of it.

A machine (`MachineReceiver`) decides everything. Whatever it offers is delivered at once, first what was offered first:
so the order of delivery follows from the order of arrival alone, however the rows were cut into micro-batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from antecede.errors import BadParameter, NotEligible, WireError
from antecede.model import Effect, Id, Message, Packet, Stamp, View
from antecede.protocols import PROTOCOLS, Listener, listen, restore
from antecede.protocols.machine import SNAPSHOT_VERSION
from antecede.spark.frames import ALL_PACKETS, PACKETS
from antecede.spark.stream.bucket import BucketSettings
from antecede.spark.stream.kernel import CODES
from antecede.wire import Limits
from antecede.wire.octets import Reader, Writer
from antecede.wire.stamps import BY_CODE, BY_STAMP

if TYPE_CHECKING:
    # Workers load this module, and simulate nothing.
    from antecede.sim.run import RunSpec
    from antecede.spark.stream.stamps import StampBucket

__all__ = [
    "ORDERING", "PACKETS", "Delivery", "MachineReceiver", "Settings", "packet_of", "packets_of", "read_number",
    "simulated", "stamp_of",
]  # fmt: skip

LIMITS: Final = Limits()
NO_STAMP: Final = Stamp()


def stamp_of(packet: Packet[Any]) -> bytes:
    """A packet's stamp as bytes.

    >>> from antecede.protocols import create
    >>> message, [packet] = create("fifo", View.numbered(2), 0).send(1, b"hello")
    >>> stamp_of(packet).hex(" ")
    '02 01'
    """
    kind = BY_STAMP.get(type(packet.stamp))
    if kind is None:
        raise BadParameter(
            "packet", f"stamp must be one of antecede.wire.stamps, not {type(packet.stamp).__name__}"
        )
    writer = Writer(LIMITS)
    writer.out.append(kind.code)
    kind.put(writer, packet)
    return bytes(writer.out)


def packet_of(stamp: bytes, source: int, dest: int, message: Message | None) -> Packet[Any]:
    """The packet of a message, or of none, with the stamp that these bytes are. Others are a `WireError`.

    >>> packet_of(b"\\x02\\x01", 0, 1, Message(0, 1, (1,), b"hello")).stamp
    Sequence(sequence=1)
    >>> packet_of(b"\\x02\\x01\\x09", 0, 1, Message(0, 1, (1,)))
    Traceback (most recent call last):
    antecede.errors.WireError: not a packet at byte 2: 1 bytes follow the stamp
    """
    if not stamp or len(stamp) > LIMITS.packet_bytes:
        raise WireError(f"the stamp has {len(stamp)} bytes, and may have 1 to {LIMITS.packet_bytes}")
    kind = BY_CODE.get(stamp[0])
    if kind is None:
        raise WireError(f"no stamp has code {stamp[0]}: codes are 1..{max(BY_CODE)}", 0)
    if kind.stamp.control is not (message is None):
        verb = (
            "belongs to no message, and has a" if message is not None else "belongs to a message, and has no"
        )
        raise WireError(f"{kind.stamp.__name__} {verb} number")
    reader = Reader(stamp, LIMITS)
    reader.at = 1
    taken = kind.take(reader, Packet(source, dest, NO_STAMP, message))
    if reader.at < len(stamp):
        raise WireError(f"{len(stamp) - reader.at} bytes follow the stamp", reader.at)
    return Packet(source, dest, taken, message)


def packets_of(packets: Iterable[Packet[Any]], view: View, *, group: str | None = None) -> pa.Table:
    """Packets, in the order in which they arrived, as rows of `PACKETS`.

    >>> from antecede.protocols import create
    >>> view = View.of("ann", "bob")
    >>> message, [packet] = create("fifo", view, "ann").send("bob", b"hello")
    >>> packets_of([packet], view).to_pylist()[0] | {"stamp": ...}
    {'receiver': 'bob', 'sender': 'ann', 'number': 1, 'stamp': Ellipsis, 'payload': b'hello', 'arrival': 0}
    """
    rows: list[dict[str, Any]] = []
    for at, packet in enumerate(packets):
        message = packet.message
        row = {"receiver": view.name(packet.dest), "sender": view.name(packet.source), "arrival": at}
        row |= {"stamp": stamp_of(packet), "group": group}
        if message is not None:
            row |= {"number": message.number, "payload": message.payload, "label": message.label or None}
        rows.append(row)
    labels = ["label"] if any(row.get("label") for row in rows) else []
    names = [*PACKETS.names, *labels, *(["group"] if group is not None else [])]
    return pa.Table.from_pylist(rows, pa.schema([ALL_PACKETS.field(name) for name in names]))


def simulated(spec: RunSpec, group: str | None = None) -> tuple[View, pa.Table]:
    """A simulated run: its processes, and the packets that crossed its network in the order of arrival.

    >>> from antecede.sim.run import RunSpec
    >>> view, rows = simulated(RunSpec(protocol="matrix", processes=3, messages=50, seed=1))
    >>> view.names, rows.num_rows
    (('p1', 'p2', 'p3'), 50)
    """
    simulation = spec.build()
    came: list[Packet[Any]] = []
    for machine in simulation.engine.machines:
        receive = machine.receive

        def noted(packet: Packet[Any], receive: Any = receive) -> Any:
            came.append(packet)
            return receive(packet)

        machine.receive = noted  # type: ignore[method-assign]
    simulation.finish()
    return simulation.view, packets_of(came, simulation.view, group=group)


# How they are decided

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


class Settings(BucketSettings, frozen=True):
    """How packets are decided. Checked when made: what cannot order a stream is a `BadParameter`.

    >>> Settings("permit", ("p1", "p2"))
    Traceback (most recent call last):
    antecede.errors.BadParameter: stream: protocol must be one of fifo, matrix, bounded, monitor, history, \
broadcast, optimal, not 'permit' (its order is made by senders that wait for permits, which a stream does not see)
    """

    protocol: str
    processes: tuple[str, ...]
    parameters: dict[str, Any] = {}
    group: str | None = None
    """The column that tells groups apart."""
    receiver: int | None = None
    """The only one. None: all that there are."""

    def __post_init__(self) -> None:
        if self.protocol not in ORDERING:
            why = ELSEWHERE.get(self.protocol)
            found = f"{self.protocol!r} ({why})" if why else repr(self.protocol)
            raise BadParameter("stream", f"protocol must be one of {', '.join(ORDERING)}, not {found}")
        if not self.processes:
            raise BadParameter("stream", "processes is empty: name every process that takes part")
        self.machine(0)

    def make(self) -> StampBucket:
        from antecede.spark.stream.stamps import StampBucket

        return StampBucket(self)

    def machine(self, process: int, delivered: Sequence[int] | None = None) -> Listener:
        """The machine that stands for a process, which sends elsewhere."""
        return listen(self.protocol, View(self.processes), process, delivered, **self.parameters)

    @property
    def everyone(self) -> bool:
        """Whether every message goes to all."""
        return PROTOCOLS[self.protocol].to_all

    def decided(self) -> dict[str, Any]:
        # What a parameter decides that the writer of a state did not know yet, its default decided then.
        own = {
            "protocol": self.protocol,
            "processes": [*self.processes],
            "parameters": self.machine(0).parameters,
        }
        return own | super().decided()

    def counts_at(self, process: int) -> bool:
        """Whether the kernel decides at this process, by counts."""
        return self.protocol in CODES and self.machine(process).orders_at(process)

    @property
    def counted(self) -> str:
        """By whose count stamps speak: `sender` or `channel`."""
        return self.machine(0).counted


def read_number(message: Message | None) -> int:
    """The number of the row that a message came as."""
    assert message is not None, "packets of a protocol itself are not held as rows"
    return int.from_bytes(message.payload, "little")


class Delivery(NamedTuple):
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

    def take(self, packet: Packet[Any], now: int, out: list[Delivery]) -> None:
        """A packet arrives. One that cannot be is a `PeerError`, and changes nothing."""
        effects = self.machine.receive(packet)
        if effects:
            self._deliver(effects, out)
        message = packet.message
        if message is not None and self.machine.holds(message.id):
            self.since.setdefault(message.id, now)

    def _deliver(self, effects: Iterable[Effect], out: list[Delivery]) -> None:
        machine, queue = self.machine, deque(effects)
        while queue:
            message = queue.popleft()
            if not isinstance(message, Message):
                continue
            late, lacks = machine.late(message), machine.lacks(message)
            causes = tuple((a.sender, a.first, a.last, a.counted) for a in lacks)
            out.append(Delivery(self.position, message, late, causes))
            self.position += 1
            self.since.pop(message.id, None)
            queue += machine.deliver(message)

    def expire(self, now: int, patience: int, out: list[Delivery]) -> None:
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
        about = {
            "antecede": version,
            "me": me,
            "view": list(settings.processes),
            "protocol": settings.protocol,
        }
        restored = restore({**about, "parameters": settings.machine(0).parameters, "state": machine})
        assert isinstance(restored, Listener)
        receiver = cls(group, restored)
        receiver.position = position
        receiver.since = {(sender, number): came for sender, number, came in since}
        return receiver
