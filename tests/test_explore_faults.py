"""The explorer finds each kind of fault in a machine that has one, and says what it is."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from antecede.explore import Explorer
from antecede.model import Control, Effect, Message, Packet
from antecede.program import parse
from antecede.protocols import Machine
from antecede.protocols.fifo import Fifo
from antecede.protocols.matrix import Matrix
from antecede.protocols.unordered import Unordered
from antecede.replay import explain
from antecede.steps import Order

TRIANGLE = parse("p1: send x to p3; send y to p2\np2: receive y; send z to p3\np3:")


class Hasty(Matrix):
    """Waits for its channel, but for nobody else's."""

    def _needs(self, packet: Packet[Any]) -> Iterable[tuple[Any, int]]:
        return list(super()._needs(packet))[:1]


class Lossy(Unordered):
    """Loses the second message of each sender."""

    def _receive(self, packet: Packet[Any]) -> list[Effect]:
        return [] if packet.message is not None and packet.message.number == 2 else super()._receive(packet)


class Stuttering(Unordered):
    """Offers again what was delivered."""

    def eligible(self) -> list[Message]:
        return super().eligible() or [Message(0, 1, (1,))] * (self.me == 1 and self._seen[0].floor > 0)

    def deliver(self, message: Message) -> list[Effect]:
        return super().deliver(message) if message.id in self._ready else []


class Straying(Unordered):
    """Offers to everyone what is for one."""

    def _send(self, message: Message) -> list[Effect]:
        return super()._send(Message(message.sender, message.number, tuple(range(self.n))))

    def eligible(self) -> list[Message]:
        to = (1,)
        return [Message(m.sender, m.number, to) for m in super().eligible()]


class Refusing(Fifo):
    def _check(self, packet: Packet[Any]) -> None:
        if packet.stamp.sequence > 1:
            raise self._bad_stamp(packet, "it is a second packet")


class Doubtful(Fifo):
    def _receive(self, packet: Packet[Any]) -> list[Effect]:
        assert packet.stamp.sequence < 2, "sequence below 2"
        return super()._receive(packet)


class Ping(Control, frozen=True):
    pass


class Chatty(Unordered):
    """Answers every packet, for ever."""

    stamps = (*Unordered.stamps, Ping)  # type: ignore[assignment]
    arrivals_commute = False

    def _check(self, packet: Packet[Any]) -> None:
        """Anything goes."""

    def _receive(self, packet: Packet[Any]) -> list[Effect]:
        effects = [] if packet.message is None else super()._receive(packet)
        return [*effects, Packet(self.me, packet.source, Ping())] if packet.source != self.me else effects


FAULTY: Mapping[type[Machine], tuple[str, str]] = {
    Hasty: ("order", "p3 delivers z before x, which happened before it"),
    Lossy: ("blocked", "nothing can happen any more, and not everything is delivered"),
    Stuttering: ("duplicate", "p2, x: duplicate: it was delivered here before"),
    Straying: ("unaddressed", "p1, x: unaddressed: it is addressed to others"),
    Refusing: ("refused", "p2, y: refused: p2 refused a packet of p1: it is a second packet"),
    Doubtful: ("broken", "p2, y: broken: sequence below 2"),
    Chatty: ("endless", "it goes on for ever: more than"),
}


@pytest.mark.parametrize("kind", FAULTY, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("reduce", [True, False])
def test_each_kind_of_fault_is_found(kind: type[Machine], reduce: bool) -> None:
    expected, why = FAULTY[kind]
    program = TRIANGLE if kind is Hasty else parse("p1: send x to p2; send y to p2\np2:")
    order: Order = "causal" if kind is Hasty else "none"
    explorer = Explorer(lambda process: kind(program.view, process), order=order, reduce=reduce)
    result = explorer.run(program)
    assert result.finding is not None
    assert result.finding.kind == expected
    found = explain(explorer, result)
    assert why in found.why
    assert found.schedule
