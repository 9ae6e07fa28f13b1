"""The triangle of Raynal & Schiper 1989, figure 1, performed with any protocol: what `antecede triangle` shows.

S1 sends M1 to S3, then M2 to S2; once S2 has delivered M2 it sends M3 to S3. The same adversary for all: every packet
arrives at once, but for M1's to S3, which arrives when nothing else is left to happen. Applications take what they may,
at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from msgspec import Struct

from antecede import oracle
from antecede.errors import BadParameter
from antecede.model import Awaited, Event, Id, Packet, View, Waiting
from antecede.oracle import Verdict
from antecede.program import Program, parse
from antecede.protocols import PROTOCOLS, create
from antecede.replay import Run

__all__ = ["S3", "Performance", "Wait", "perform"]

TRIANGLE = "S1: send M1 to {S3}; send M2 to {S2}\nS2: send M3 to {S3} after M2\nS3:\n"
S1, S2, S3 = range(3)
M1: Id = (S1, 1)
M2: Id = (S1, 2)

PARAMETERS: Mapping[str, Mapping[str, Any]] = {"monitor": {"monitor": S3}}
"""What a protocol has to be told: S3 is where the order is at stake."""


class Wait(Struct, frozen=True):
    """A message that had to wait."""

    message: str
    at: str
    side: Literal["sender", "receiver"]
    awaits: tuple[str, ...]
    """The messages that it waited for."""
    reason: str = ""


class Performance(Struct, frozen=True):
    """What came of the triangle with one protocol."""

    protocol: str
    order: Literal["none", "fifo", "causal"]
    """What the protocol promises."""
    view: View
    events: tuple[Event, ...]
    names: dict[Id, str]
    verdict: Verdict
    waits: tuple[Wait, ...]
    stamp_entries: dict[str, int]
    """Message -> the entries of its stamp, of the largest if its copies differ."""
    control_packets: int

    @property
    def kept(self) -> bool:
        return self.verdict.keeps("causal")

    @property
    def expected(self) -> bool:
        """Whether the protocol kept what it promises, and broke causal order if it does not promise that."""
        return self.verdict.keeps(self.order) and self.kept == (self.order == "causal")

    def list_delivered(self, process: int) -> list[str]:
        return [self.names[e.id] for e in self.events if e.kind == "deliver" and e.process == process]


def perform(protocol: str) -> Performance:
    """The triangle with one protocol.

    >>> performance = perform("matrix")
    >>> performance.kept, performance.list_delivered(S3), performance.waits[0].awaits
    (True, ['M1', 'M3'], ('M1',))
    >>> perform("fifo").list_delivered(S3)
    ['M3', 'M1']
    """
    if protocol not in PROTOCOLS:
        raise BadParameter.choice("triangle", "--protocol", protocol, PROTOCOLS)
    return _Stage(protocol).perform()


class _Stage:
    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        program = _choose_program(protocol)
        parameters = PARAMETERS.get(protocol, {})
        self.run = Run(lambda process: create(protocol, program.view, process, **parameters), program)
        self.packets: dict[tuple[int, int, int], Packet[Any]] = {}
        """Everything that was ever transmitted, by channel and number."""
        self.waits: dict[tuple[int, Id], Wait] = {}

    def perform(self) -> Performance:
        for _ in range(2):
            self.run.send(S1)
            self._settle()
        while self.run.flying:
            self.run.arrive(self._take_next())
            self._settle()
        run, machine = self.run, self.run.machines[S3]
        judged = [process for process in range(machine.n) if machine.orders_at(process)]
        verdict = oracle.check(run.events, machine.n, complete=True, at=judged)
        control = sum(packet.stamp.control for packet in self.packets.values())
        return Performance(
            self.protocol, machine.order, run.view, tuple(run.events), run.names, verdict,
            tuple(self.waits.values()), self._count_stamp_entries(), control,
        )  # fmt: skip

    def _take_next(self) -> Packet[Any]:
        """The oldest packet, but M1's to S3 only if there is no other."""
        packets = [packet for _, packet in self.run.flying]
        return next((packet for packet in packets if not _is_slow(packet)), packets[0])

    def _settle(self) -> None:
        """Whatever the applications can do now, they do."""
        self._note()
        for process, machine in enumerate(self.run.machines):
            while offered := machine.eligible():
                self.run.deliver(process, offered[0].id)
                if (process, offered[0].id) == (S2, M2):
                    self.run.send(S2)
                self._note()

    def _note(self) -> None:
        """Remember what is in flight and what waits: both may be gone after the next step."""
        for number, packet in self.run.flying:
            self.packets[packet.source, packet.dest, number] = packet
        for process, machine in enumerate(self.run.machines):
            for waiting in machine.waiting():
                self.waits.setdefault((process, waiting.message.id), self._describe_wait(process, waiting))

    def _describe_wait(self, process: int, waiting: Waiting) -> Wait:
        names, view = self.run.names, self.run.view
        awaits = tuple(names[m] for awaited in waiting.awaits for m in self._list_awaited(process, awaited))
        side: Literal["sender", "receiver"] = "sender" if waiting.where == "unsent" else "receiver"
        return Wait(names[waiting.message.id], view.name(process), side, awaits, waiting.reason)

    def _list_awaited(self, process: int, awaited: Awaited) -> Iterator[Id]:
        """The messages that something waits for: some stamps only count those of the channel."""
        sent = [e for e in self.run.events if e.kind == "send" and e.sender == awaited.sender]
        if awaited.counted == "channel":
            sent = [e for e in sent if process in e.to]
        yield from (e.id for e in sent[awaited.first - 1 : awaited.last])

    def _count_stamp_entries(self) -> dict[str, int]:
        result: dict[str, int] = {}
        for packet in self.packets.values():
            if packet.message is not None:
                name = self.run.names[packet.message.id]
                result[name] = max(result.get(name, 0), packet.stamp.entries(len(self.run.view)))
        return result


def _is_slow(packet: Packet[Any]) -> bool:
    return packet.dest == S3 and packet.message is not None and packet.message.id == M1


def _choose_program(protocol: str) -> Program:
    """The triangle as the protocol can send it: some send to everyone or not at all."""
    everyone = "S1, S2, S3"
    one = parse(TRIANGLE.format(S2="S2", S3="S3"))
    accepts = create(protocol, one.view, S1, **PARAMETERS.get(protocol, {})).accepts
    return one if accepts(S1, (S3,)) is None else parse(TRIANGLE.format(S2=everyone, S3=everyone))
