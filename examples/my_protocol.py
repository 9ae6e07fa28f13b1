"""The machines of docs/tutorials/protocol.md, as a file that commands take.

antecede check --protocol examples/my_protocol.py:PerChannel     # no, with the schedule
antecede check --protocol examples/my_protocol.py:Matrix         # yes
antecede simulate --protocol examples/my_protocol.py:Matrix --check --out trace
antecede verify trace
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from antecede.model import Effect, Message, Packet, Stamp, View
from antecede.protocols.receiver import Need, Receiver


class Counts(Stamp, frozen=True):
    counts: tuple[int, ...]

    def entries(self, n: int) -> int:
        return len(self.counts)


class PerChannel(Receiver):
    """A quick repair of vector clocks, and wrong: it counts the messages of each channel."""

    name = "per channel"
    stamps = (Counts,)
    state = {**Receiver.state, "_to": list[int]}

    def __init__(self, view: View, me: str | int) -> None:
        super().__init__(view, me)
        self._to = [0] * self.n

    def _send(self, message: Message) -> list[Effect]:
        def stamp(dest: int) -> Counts:
            self._to[dest] += 1
            return Counts(tuple(self._to[dest] if k == self.me else 0 for k in range(self.n)))

        return self._copies(message, stamp)

    def _position(self, packet: Packet[Any]) -> Need:
        return packet.source, packet.stamp.counts[packet.source]

    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        for process, count in enumerate(packet.stamp.counts):
            yield process, count - 1 if process == packet.source else count


class Matrix(Receiver):
    """The repair that holds: how many messages each process has sent to each other."""

    name = "my matrix"
    stamps = (Counts,)
    state = {**Receiver.state, "_sent": list[list[int]]}

    def __init__(self, view: View, me: str | int) -> None:
        super().__init__(view, me)
        self._sent = [[0] * self.n for _ in range(self.n)]

    def _send(self, message: Message) -> list[Effect]:
        for dest in message.to:
            self._sent[self.me][dest] += 1
        stamp = Counts(tuple(count for row in self._sent for count in row))
        return self._copies(message, lambda dest: stamp)

    def _known(self, packet: Packet[Any]) -> tuple[int, ...]:
        counts: tuple[int, ...] = packet.stamp.counts[self.me :: self.n]
        return counts

    def _position(self, packet: Packet[Any]) -> Need:
        return packet.source, self._known(packet)[packet.source]

    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        for process, count in enumerate(self._known(packet)):
            yield process, count - 1 if process == packet.source else count

    def _learn(self, packet: Packet[Any]) -> None:
        told = iter(packet.stamp.counts)
        self._sent = [[max(count, next(told)) for count in row] for row in self._sent]
