"""How long copies of messages are under way, and how much of that they wait for others.

A copy is delayed from its send to its delivery. Of that it *waits* while it is unsent (its sender's protocol keeps it
back) and while it is held (it has arrived, and may not be delivered yet). On a topology whose routers are machines it
may be held at each of them, so what it has waited is passed on from hop to hop.

A message is known here from its send until its last copy is delivered.

>>> waits = Waits(2)
>>> x = Message(0, 1, (1,))
>>> waits.note_sent(100, x)
>>> waits.note_transmitted(130, Packet(0, 1, None, x), x)
>>> waits.note_arrived(150, Packet(0, 1, None, x))
>>> waits.note_delivered(155, 1, x), waits.known        # 30 unsent, 20 under way, 5 held
((55, 35), 0)
"""

from __future__ import annotations

from typing import Any

from antecede.model import Id, Message, Packet

__all__ = ["Waits"]


class Waits:
    """When messages were sent and copies arrived, until they are delivered."""

    def __init__(self, processes: int, routed: bool = False) -> None:
        self.routed = routed
        self.times: list[dict[int, int]] = [{} for _ in range(processes)]
        """Sender -> number -> when it was sent."""
        self._left: dict[Id, int] = {}
        """Copies that are not delivered, of messages with several."""
        self.unsent: dict[Id, int] = {}
        """How long a message was unsent, if it was."""
        self._arrived: dict[tuple[int, int, int], int] = {}
        """(process, sender, number) -> when this copy arrived, or -1 - its wait once it is eligible."""
        self._hops: dict[Id, dict[int, tuple[int, int]]] = {}
        """With routers: message -> vertex -> since when it is there, and how long it had waited before."""
        self.held = 0
        """Copies that had to wait where they arrived."""
        self.kept_back = 0
        """Messages that had to wait at their sender."""

    @property
    def known(self) -> int:
        """How many messages are not delivered everywhere."""
        return sum(map(len, self.times))

    def note_sent(self, now: int, message: Message) -> None:
        sender, number = message.sender, message.number
        self.times[sender][number] = now
        if len(message.to) > 1:
            self._left[sender, number] = len(message.to)
        if self.routed:
            self._hops[sender, number] = {sender: (now, 0)}
        elif sender in message.to:
            # Its own copy is there from the start; it may have to wait like any other.
            self._arrived[sender, sender, number] = now

    def note_transmitted(self, now: int, packet: Packet[Any], message: Message) -> None:
        """A packet with this message leaves."""
        key = message.sender, message.number
        if self.routed:
            hops = self._hops.get(key, {})
            if packet.source in hops:
                since, waited = hops[packet.source]
                hops[packet.source] = now, waited + now - since
        elif now != self.times[message.sender][message.number] and key not in self.unsent:
            self.unsent[key] = now - self.times[message.sender][message.number]
            self.kept_back += 1

    def note_arrived(self, now: int, packet: Packet[Any]) -> None:
        """A packet with a message arrives."""
        message = packet.message
        assert message is not None
        process, sender, number = packet.dest, message.sender, message.number
        if not self.routed:
            self._arrived[process, sender, number] = now
            return
        hops = self._hops.get((sender, number))
        # Copies for those that stand by may come after all is delivered.
        if hops is not None and process not in hops:
            hops[process] = now, hops.get(packet.source, (0, 0))[1]

    def note_offered(self, now: int, process: int, message: Message) -> None:
        """A copy has become eligible, and the application will take it in its own time."""
        key = process, message.sender, message.number
        if not self.routed:
            self._arrived[key] = -1 - (now - self._arrived[key])

    def note_delivered(self, now: int, process: int, message: Message) -> tuple[int, int]:
        """A copy is delivered: how long it was under way, and how much of that it waited."""
        sender, number = message.sender, message.number
        delay = now - self.times[sender][number]
        if self.routed:
            since, waited = self._hops[sender, number][process]
            wait = waited + now - since
            self.held += wait > 0
        else:
            since = self._arrived.pop((process, sender, number))
            wait = now - since if since >= 0 else -1 - since
            self.held += wait > 0
            if self.unsent and process != sender:
                wait += self.unsent.get((sender, number), 0)
        self._forget_copy(message)
        return delay, wait

    def _forget_copy(self, message: Message) -> None:
        sender, number = message.sender, message.number
        if len(message.to) > 1:
            left = self._left[sender, number] - 1
            if left:
                self._left[sender, number] = left
                return
            del self._left[sender, number]
        del self.times[sender][number]
        if self.unsent:
            self.unsent.pop((sender, number), None)
        if self.routed:
            del self._hops[sender, number]
