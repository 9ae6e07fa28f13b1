"""What gathers for one peer within a turn, to leave as one payload of its link, and how much of it the peer has.

Control of a kind that is cumulative replaces an earlier one that has not left yet: many acknowledgements become one.

>>> from antecede.model import Message, Packet
>>> from antecede.protocols.permit import PermitStamp, Taken
>>> waiting = Outgoing(merge=True)
>>> waiting.control(Packet(0, 1, Taken(1)))
>>> waiting.gathered.append(Packet(0, 1, PermitStamp(1, False), Message(0, 1, (1,))))
>>> waiting.control(Packet(0, 1, Taken(2)))
>>> [packet.stamp for packet in waiting.packets()]
[PermitStamp(sequence=1, flagged=False), Taken(sequence=2)]
"""

from __future__ import annotations

from collections import deque
from typing import Any

from antecede.model import Packet, Stamp

__all__ = ["Outgoing"]


class Outgoing:
    """Packets for one peer. `merge` is for protocols that do not rely on the order of packets."""

    __slots__ = ("_controls", "_left", "_merge", "gathered", "pending", "size")

    def __init__(self, merge: bool) -> None:
        self._merge = merge
        self.gathered: list[Packet[Any]] = []
        self._controls: dict[type[Stamp], Packet[Any]] = {}
        self._left: deque[tuple[int, int, int]] = deque()
        """(number of the link's payload, messages and bytes in it) that the peer is not known to have."""
        self.pending = 0
        """Messages that the peer is not known to have, gathered or on their way."""
        self.size = 0
        """Bytes of those that are on their way."""

    def control(self, packet: Packet[Any]) -> None:
        if self._merge and packet.stamp.cumulative:
            self._controls[type(packet.stamp)] = packet
        else:
            self.gathered.append(packet)

    def __bool__(self) -> bool:
        """Whether something has gathered."""
        return bool(self.gathered or self._controls)

    def packets(self) -> list[Packet[Any]]:
        return [*self.gathered, *self._controls.values()]

    def take(self) -> list[Packet[Any]]:
        """What has gathered, to leave now."""
        packets = self.packets()
        self.gathered = []
        self._controls.clear()
        return packets

    def leave(self, number: int, messages: int, size: int) -> None:
        """A payload of the link has this number, so many messages and so many bytes."""
        if messages:
            self._left.append((number, messages, size))
            self.size += size

    def acknowledged(self, number: int) -> None:
        """The peer has all payloads up to this number."""
        left = self._left
        while left and left[0][0] <= number:
            _, messages, size = left.popleft()
            self.pending -= messages
            self.size -= size
