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

from antecede.link import Frame, Link
from antecede.model import Packet, Stamp
from antecede.wire.bundles import PACKETS, encode_bundle, encode_whole
from antecede.wire.octets import OWN

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

    def leave_over(self, link: Link, most: int, rules: int, now: int) -> list[Frame]:
        """Let all that has gathered out: as one payload of the link, or several if it has more than `most` bytes."""
        return self._leave(self.take(), link, most, PACKETS if rules > 3 else None, now)

    def _leave(
        self, packets: list[Packet[Any]], link: Link, most: int, count: int | None, now: int
    ) -> list[Frame]:
        data = encode_bundle(packets, OWN)
        if len(data) > most or (count is not None and len(packets) > count):
            if len(packets) > 1:
                half = len(packets) // 2
                frames = self._leave(packets[:half], link, most, count, now)
                return frames + self._leave(packets[half:], link, most, count, now)
            data = encode_whole(packets[0], OWN)
        frames = link.send(data, now)
        self.leave(link.last, len([None for packet in packets if packet.message is not None]), len(data))
        return frames

    def leave(self, number: int, messages: int, size: int) -> None:
        """A payload of the link has this number, so many messages and so many bytes."""
        if messages:
            self._left.append((number, messages, size))
            self.size += size

    def acknowledge(self, number: int) -> None:
        """The peer has all payloads up to this number."""
        left = self._left
        while left and left[0][0] <= number:
            _, messages, size = left.popleft()
            self.pending -= messages
            self.size -= size
