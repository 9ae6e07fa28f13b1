"""fifo: messages of one sender to one receiver are delivered in the order in which they were sent. A control.

Rules
  send     number the messages of each channel 1, 2, 3, ...
  deliver  number s of a channel after number s-1
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from antecede.model import Effect, Message, Packet, Stamp, View
from antecede.protocols.receiver import Need, Receiver

__all__ = ["Fifo", "Sequence"]


class Sequence(Stamp, frozen=True, gc=False):
    sequence: int

    def entries(self, n: int) -> int:
        return 1


class Fifo(Receiver):
    name = "fifo"
    names_all = True
    order = "fifo"
    stamps = (Sequence,)
    state = {**Receiver.state, "_sequence": list[int]}

    def __init__(self, view: View, me: str | int) -> None:
        super().__init__(view, me)
        self._sequence = [0] * self.n

    def _send(self, message: Message) -> list[Effect]:
        return self._copies(message, self._stamp)

    def _stamp(self, dest: int) -> Sequence:
        self._sequence[dest] = sequence = self._sequence[dest] + 1
        return Sequence(sequence)

    def _check(self, packet: Packet[Any]) -> None:
        if packet.stamp.sequence < 1:
            raise self._bad_stamp(
                packet, f"its sequence is {packet.stamp.sequence}, and sequences start at 1"
            )

    def _position(self, packet: Packet[Any]) -> Need:
        return packet.source, packet.stamp.sequence

    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        return ((packet.source, packet.stamp.sequence - 1),)
