"""unordered: every message is delivered as it arrives. A control: it shows what goes wrong.

Rules
  send     transmit at once
  deliver  any time

The stamp has no entry for ordering. It carries a sequence number of the channel for one purpose: to know a
duplicate, with memory that grows only with the reordering of the network.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from antecede.model import Effect, Message, Packet, Stamp, View
from antecede.protocols.receiver import Need, Receiver

__all__ = ["Plain", "Seen", "Unordered"]


class Plain(Stamp, frozen=True, gc=False):
    sequence: int

    def entries(self, n: int) -> int:
        return 0


class Seen(Struct):
    """Which sequence numbers of a channel were seen: all up to a floor, and a few beyond."""

    floor: int = 0
    beyond: set[int] = set()

    def __contains__(self, sequence: int) -> bool:
        return sequence <= self.floor or sequence in self.beyond

    def add(self, sequence: int) -> None:
        self.beyond.add(sequence)
        while self.floor + 1 in self.beyond:
            self.floor += 1
            self.beyond.remove(self.floor)


class Unordered(Receiver):
    name = "unordered"
    names_all = True
    order = "none"
    stamps = (Plain,)
    state = {**Receiver.state, "_sequence": list[int], "_seen": list[Seen]}

    def __init__(self, view: View, me: str | int) -> None:
        super().__init__(view, me)
        self._sequence = [0] * self.n
        self._seen = [Seen() for _ in range(self.n)]

    def _send(self, message: Message) -> list[Effect]:
        return self._copies(message, self._stamp)

    def _stamp(self, dest: int) -> Plain:
        self._sequence[dest] += 1
        return Plain(self._sequence[dest])

    def _check(self, packet: Packet[Any]) -> None:
        if packet.stamp.sequence < 1:
            raise self._bad_stamp(
                packet, f"its sequence is {packet.stamp.sequence}, and sequences start at 1"
            )

    def _position(self, packet: Packet[Any]) -> Need:
        return packet.source, packet.stamp.sequence

    def _is_old(self, position: Need) -> bool:
        return position[1] in self._seen[position[0]]

    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        return ()

    def _learn(self, packet: Packet[Any]) -> None:
        self._seen[packet.source].add(packet.stamp.sequence)
