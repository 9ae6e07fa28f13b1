"""permit: sender permission to send, an answer to what Mattern & Fünfrocken 1995, section 5, leave open.

A form of it is in Almeida 2026 (arXiv 2601.11487). Constant stamps as in `buffer`, but nobody waits to transmit a
first message and no receiver waits for anything but its channel.

Rules
  send      transmit at once, unless this process is restrained (below). The packet carries the channel's sequence
            number, and a flag: are packets of ours to other processes (earlier ones, or other copies of this message)
            still unacknowledged?
  get       take packets of a channel in sequence, acknowledge them (cumulatively), append them to one queue
  deliver   the head of the queue. If it was flagged and not yet permitted, the process is restrained: what it sends
            from now on is not transmitted until the permit has come.
  permit    when all of our messages up to number f are acknowledged by all: tell so those who got a flagged message
            of ours. A permit lifts every restraint from its sender up to f. It may come before its message is
            delivered, when there is no restraint yet to lift: remember it.

Why it is causal: when a message leaves, all of its past but its own sender's has been taken into the queues of its
destinations; the sender's own past is in the same channel, or the flag passes the wait on to the receiver.

Like in `buffer`, only the head of the queue is eligible: no stamp tells what is concurrent. A process's message to
itself goes to its queue at the send, whether or not the process is restrained.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from msgspec import Struct

from antecede.model import Awaited, Control, Effect, Id, Message, Packet, Stamp, View, Waiting
from antecede.protocols.queue import Queue

__all__ = ["Grant", "Permit", "PermitStamp", "Taken"]


class PermitStamp(Stamp, frozen=True, gc=False):
    sequence: int
    flagged: bool

    def entries(self, n: int) -> int:
        return 2


class Taken(Control, frozen=True, gc=False):
    """An acknowledgement: all packets of the channel up to this sequence number are in the queue."""

    cumulative: ClassVar[bool] = True
    sequence: int


class Grant(Control, frozen=True, gc=False):
    """A permit: all messages of ours up to this number have been acknowledged by all their destinations."""

    cumulative: ClassVar[bool] = True
    number: int


class Restraint(Struct, frozen=True, tag=True):
    """What stands behind this in the outbox waits for a permit of this message."""

    sender: int
    number: int


class Posting(Struct, frozen=True, tag=True):
    message: Message


class Permit(Queue):
    name = "permit"
    stamps = (PermitStamp, Taken, Grant)
    state = {
        **Queue.state,
        "_sequence": list[int],
        "_unacknowledged": list[deque[int]],
        "_copies_out": dict[int, int],
        "_order": deque[int],
        "_owed": deque[tuple[int, int]],
        "_got": list[int],
        "_early": list[dict[int, Packet[PermitStamp]]],
        "_flagged": set[Id],
        "_permitted": list[int],
        "_outbox": deque[Restraint | Posting],
    }

    def __init__(self, view: View, me: str | int) -> None:
        super().__init__(view, me)
        n = self.n
        # As a sender
        self._outbox: deque[Restraint | Posting] = deque()
        """Messages that may not be transmitted yet, each behind the restraints that it waits for."""
        self._sequence = [0] * n
        self._unacknowledged: list[deque[int]] = [deque() for _ in range(n)]
        """For each destination, the numbers of the messages that it has not acknowledged."""
        self._out = 0
        """How many packets are unacknowledged in all."""
        self._copies_out: dict[int, int] = {}
        """message number -> its unacknowledged copies"""
        self._order: deque[int] = deque()
        """The numbers of transmitted messages, until they and all before them are acknowledged."""
        self._owed: deque[tuple[int, int]] = deque()
        """(number, destination) of flagged packets, in order, until their permit goes out."""
        # As a receiver
        self._got = [0] * n
        self._early: list[dict[int, Packet[PermitStamp]]] = [{} for _ in range(n)]
        self._flagged: set[Id] = set()
        """Flagged messages in the queue."""
        self._permitted = [0] * n

    # Send

    def _send(self, message: Message) -> list[Effect]:
        effects: list[Effect] = self._enqueue(message) if self.me in message.to else []
        if message.to == (self.me,):
            return effects
        if self._outbox:
            self._outbox.append(Posting(message))
            return effects
        return effects + self._transmit(message)

    def _transmit(self, message: Message) -> list[Effect]:
        me, number = self.me, message.number
        others = message.to if me not in message.to else tuple(dest for dest in message.to if dest != me)
        self._out += len(others)
        self._copies_out[number] = len(others)
        self._order.append(number)
        effects: list[Effect] = []
        for dest in others:
            self._unacknowledged[dest].append(number)
            self._sequence[dest] = sequence = self._sequence[dest] + 1
            flagged = self._others_pending(dest)
            if flagged:
                self._owed.append((number, dest))
            effects.append(Packet(me, dest, PermitStamp(sequence, flagged), message))
        return effects

    def _others_pending(self, dest: int) -> bool:
        """The flag: has anyone but `dest`, whose channel is in sequence, something of ours to acknowledge?"""
        return self._out > len(self._unacknowledged[dest])

    def _acknowledged(self, source: int, sequence: int) -> list[Effect]:
        unacknowledged, copies_out = self._unacknowledged[source], self._copies_out
        fresh = sequence - (self._sequence[source] - len(unacknowledged))
        if fresh <= 0:
            return []
        self._out -= fresh
        for _ in range(fresh):
            number = unacknowledged.popleft()
            if copies_out[number] == 1:
                del copies_out[number]
            else:
                copies_out[number] -= 1
        return self._grant() if self._order[0] not in copies_out else []

    def _grant(self) -> list[Effect]:
        """Permits for all that were told to wait for no more than what is acknowledged by now."""
        order, owed, copies_out = self._order, self._owed, self._copies_out
        done = 0
        while order and order[0] not in copies_out:
            done = order.popleft()
        if not owed or owed[0][0] > done:
            return []
        receivers = set()
        while owed and owed[0][0] <= done:
            receivers.add(owed.popleft()[1])
        return [Packet(self.me, dest, Grant(done)) for dest in sorted(receivers)]

    # Receive

    def _receive(self, packet: Packet[Any]) -> list[Effect]:
        stamp, source = packet.stamp, packet.source
        if type(stamp) is Taken:
            return self._acknowledged(source, stamp.sequence)
        if type(stamp) is Grant:
            return self._permit(source, stamp.number)
        got, early = self._got, self._early[source]
        if stamp.sequence != got[source] + 1:
            if stamp.sequence > got[source] and stamp.sequence not in early:
                early[stamp.sequence] = packet
            return []
        effects: list[Effect] = []
        self._take(packet, effects)
        while early and got[source] + 1 in early:
            self._take(early.pop(got[source] + 1), effects)
        effects.append(Packet(self.me, source, Taken(got[source])))
        return effects

    def receive_all(self, packets: Iterable[Packet[Any]], effects: list[Effect]) -> None:
        """As `receive` does it for each, but a channel's packets in sequence are acknowledged together."""
        me, got, inbox, known = self.me, self._got, self._inbox, self._addresses
        owed: dict[int, None] = {}
        try:
            for packet in packets:
                stamp, message, source = packet.stamp, packet.message, packet.source
                if (
                    message is None
                    or type(stamp) is not PermitStamp
                    or packet.dest != me
                    or not 0 <= source < self.n
                    or source == me
                    or stamp.sequence != got[source] + 1
                    or self._early[source]
                    or message.sender != source
                    or message.to not in known
                    or message.number < 1
                    or message.label
                ):
                    effects += self.receive(packet)
                    continue
                got[source] = stamp.sequence
                if stamp.flagged:
                    self._flagged.add((source, message.number))
                if not inbox:
                    effects.append(message)
                inbox.append(message)
                owed[source] = None
        finally:
            effects += [Packet(me, source, Taken(got[source])) for source in owed]

    def _take(self, packet: Packet[PermitStamp], effects: list[Effect]) -> None:
        message = packet.message
        assert message is not None
        self._got[packet.source] = packet.stamp.sequence
        if packet.stamp.flagged:
            self._flagged.add((message.sender, message.number))
        effects += self._enqueue(message)

    def _taken(self, message: Message) -> list[Effect]:
        key = (message.sender, message.number)
        if key in self._flagged:
            self._flagged.remove(key)
            if message.number > self._permitted[message.sender]:
                self._outbox.append(Restraint(message.sender, message.number))
        return []

    def _permit(self, source: int, number: int) -> list[Effect]:
        self._permitted[source] = max(self._permitted[source], number)
        effects: list[Effect] = []
        outbox = self._outbox
        while outbox:
            head = outbox[0]
            if isinstance(head, Restraint):
                if head.number > self._permitted[head.sender]:
                    break
            else:
                effects += self._transmit(head.message)
            outbox.popleft()
        return effects

    def waiting(self) -> list[Waiting]:
        result = super().waiting()
        for source, early in enumerate(self._early):
            gap = Awaited(source, self._got[source] + 1, min(early, default=1) - 1, "channel")
            result += [Waiting(early[s].message, (gap,)) for s in sorted(early)]  # type: ignore[arg-type]
        restraints: list[Restraint] = []
        for item in self._outbox:
            if isinstance(item, Restraint):
                restraints.append(item)
            else:
                awaits = tuple(Awaited(r.sender, r.number, r.number) for r in restraints)
                names = ", ".join(sorted({self.view.name(r.sender) for r in restraints}))
                result.append(Waiting(item.message, awaits, "unsent", f"until {names} permits"))
        return result

    def _load(self, state: Mapping[str, Any]) -> None:
        self._out = sum(map(len, self._unacknowledged))

    def _check(self, packet: Packet[Any]) -> None:
        stamp, source, kind = packet.stamp, packet.source, type(packet.stamp)
        if kind is PermitStamp and stamp.sequence < 1:
            raise self._bad_stamp(packet, f"sequence {stamp.sequence}", "1 or more")
        if kind is Taken and stamp.sequence > self._sequence[source]:
            raise self._bad_stamp(
                packet, f"acknowledges {stamp.sequence}", f"at most {self._sequence[source]}, the last sent"
            )
