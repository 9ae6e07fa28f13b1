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
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from msgspec import Struct

from antecede.model import Awaited, Control, Effect, Message, Packet, Stamp, View, Waiting
from antecede.protocols.machine import plain, typed
from antecede.protocols.queue import Queue

__all__ = ["Grant", "Permit", "PermitStamp", "Taken"]


BEYOND = 1 << 62
"""More than any process sends."""


class PermitStamp(Stamp, frozen=True, gc=False):
    sequence: int
    flagged: bool

    def entries(self, n: int) -> int:
        return 2

    @classmethod
    def from_number(cls, number: int) -> PermitStamp:
        """The stamp that a row of a bundle says: twice the sequence, plus 1 if flagged."""
        return cls(number >> 1, number & 1 == 1)


class Taken(Control, frozen=True, gc=False):
    """An acknowledgement: all packets of the channel up to this sequence number are in the queue."""

    cumulative: ClassVar[bool] = True
    sequence: int


class Grant(Control, frozen=True, gc=False):
    """A permit: all messages of ours up to this number have been acknowledged by all their destinations."""

    cumulative: ClassVar[bool] = True
    number: int


class Restraint(Struct, frozen=True, gc=False, tag=True):
    """What stands behind this in the outbox waits for a permit of this message."""

    sender: int
    number: int


class Posting(Struct, frozen=True, gc=False, tag=True):
    message: Message


class Permit(Queue):
    name = "permit"
    stamps = (PermitStamp, Taken, Grant)
    stamps_as_numbers = PermitStamp
    state = {
        **Queue.state,
        "_sequence": list[int],
        "_acked": list[int],
        "_order": deque[tuple[int, int, int, bool]],
        "_owed": deque[tuple[int, int]],
        "_got": list[int],
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
        self._acked = [0] * n
        """For each destination, the last sequence number that it has acknowledged."""
        self._out = 0
        """How many packets are unacknowledged in all."""
        self._order: deque[tuple[int, int, int, bool]] = deque()
        """(message number, destination, sequence, flagged) of packets, until they and all before are acknowledged."""
        self._owed: deque[tuple[int, int]] = deque()
        """(number, destination) of such flagged packets, until all copies of the message are acknowledged."""
        # As a receiver
        self._got = [0] * n
        self._early: dict[int, dict[int, Packet[PermitStamp]]] = {}
        """Sender -> sequence -> what came too early; senders without any are not in it."""
        self._flagged: dict[int, set[int]] = {}
        """Sender -> the numbers of its flagged messages in the queue; senders without any are not in it."""
        self._permitted = [0] * n

    # Send

    def _send(self, message: Message) -> list[Effect]:
        effects: list[Effect] = []
        if self.me in message.to:
            effects += self._enqueue(message)
            if len(message.to) == 1:
                return effects
        if self._outbox:
            self._outbox.append(Posting(message))
        else:
            self._transmit(message, effects)
        return effects

    def _transmit(self, message: Message, effects: list[Effect]) -> None:
        me, number, to, sequences = self.me, message.number, message.to, self._sequence
        self._out += len(to) - (me in to)
        for dest in to:
            if dest != me:
                sequences[dest] = sequence = sequences[dest] + 1
                flagged = self._has_others_pending(dest)
                self._order.append((number, dest, sequence, flagged))
                effects.append(Packet(me, dest, PermitStamp(sequence, flagged), message))

    def _has_others_pending(self, dest: int) -> bool:
        """The flag: has anyone but `dest`, whose channel is in sequence, something of ours to acknowledge?"""
        return self._out > self._sequence[dest] - self._acked[dest]

    def _note_acknowledged(self, source: int, sequence: int) -> list[Effect]:
        fresh = sequence - self._acked[source]
        if fresh <= 0:
            return []
        self._acked[source] = sequence
        self._out -= fresh
        return self._grant()

    def _grant(self) -> list[Effect]:
        """Permits for all that were told to wait for no more than what is acknowledged by now."""
        order, owed, acked = self._order, self._owed, self._acked
        done, receivers = 0, set()
        while order:
            number, dest, sequence, flagged = order[0]
            if acked[dest] < sequence:
                break
            order.popleft()
            if order and order[0][0] == number:
                if flagged:
                    owed.append((number, dest))
                continue
            done = number
            if flagged:
                receivers.add(dest)
            while owed:
                receivers.add(owed.popleft()[1])
        return [Packet(self.me, dest, Grant(done)) for dest in sorted(receivers)]

    # Receive

    def _receive(self, packet: Packet[Any]) -> list[Effect]:
        stamp, source = packet.stamp, packet.source
        if type(stamp) is Taken:
            return self._note_acknowledged(source, stamp.sequence)
        if type(stamp) is Grant:
            return self._permit(source, stamp.number)
        got = self._got
        if stamp.sequence != got[source] + 1:
            if stamp.sequence > got[source]:
                self._early.setdefault(source, {}).setdefault(stamp.sequence, packet)
            return []
        effects: list[Effect] = []
        self._take(packet, effects)
        early = self._early.get(source)
        if early:
            while got[source] + 1 in early:
                self._take(early.pop(got[source] + 1), effects)
            if not early:
                del self._early[source]
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
                    or source in self._early
                    or message.sender != source
                    or message.to not in known
                    or message.number < 1
                    or message.label
                ):
                    effects += self.receive(packet)
                    continue
                got[source] = stamp.sequence
                if stamp.flagged:
                    self._flagged.setdefault(source, set()).add(message.number)
                if not inbox:
                    effects.append(message)
                inbox.append(message)
                owed[source] = None
        finally:
            effects += [Packet(me, source, Taken(got[source])) for source in owed]

    def receive_rows(
        self,
        source: int,
        to: tuple[int, ...],
        rows: Sequence[tuple[int, int, bytes]],
        effects: list[Effect],
    ) -> None:
        """The same, without a packet and a stamp for each message of a channel in sequence: for most messages."""
        me, inbox, taken = self.me, self._inbox, False
        # What the first one is held to holds for all.
        known = to in self._addresses and 0 <= source < self.n and source != me
        flagged = self._flagged.setdefault(source, set())
        try:
            for number, stamp, payload in rows:
                message = Message(source, number, to, payload)
                if not known or stamp >> 1 != self._got[source] + 1 or not number or source in self._early:
                    effects += self.receive(Packet(source, me, PermitStamp.from_number(stamp), message))
                    known = True
                    continue
                self._got[source], taken = stamp >> 1, True
                if stamp & 1:
                    flagged.add(number)
                if not inbox:
                    effects.append(message)
                inbox.append(message)
        finally:
            if not flagged:
                self._flagged.pop(source, None)
            if taken:
                effects.append(Packet(me, source, Taken(self._got[source])))

    def _take(self, packet: Packet[PermitStamp], effects: list[Effect]) -> None:
        message = packet.message
        assert message is not None
        self._got[packet.source] = packet.stamp.sequence
        if packet.stamp.flagged:
            self._flagged.setdefault(message.sender, set()).add(message.number)
        effects += self._enqueue(message)

    def _note_taken(self, message: Message) -> list[Effect]:
        number, sender = message.number, message.sender
        flagged = self._flagged.get(sender)
        if flagged and number in flagged:
            flagged.remove(number)
            if not flagged:
                del self._flagged[sender]
            if number > self._permitted[sender]:
                outbox, restraint = self._outbox, Restraint(sender, number)
                if outbox and type(last := outbox[-1]) is Restraint and last.sender == sender:
                    # A permit of the later one is one of the earlier one too.
                    outbox[-1] = restraint
                else:
                    outbox.append(restraint)
        return []

    def _permit(self, source: int, number: int) -> list[Effect]:
        self._permitted[source] = max(self._permitted[source], number)
        effects: list[Effect] = []
        outbox = self._outbox
        while outbox:
            head = outbox[0]
            if isinstance(head, Posting):
                self._transmit(head.message, effects)
            elif head.number > self._permitted[head.sender]:
                break
            outbox.popleft()
        return effects

    def forget(self, process: int) -> list[Effect]:
        """As if it had taken all that we sent, and permitted all that it sent."""
        effects = self._note_acknowledged(process, self._sequence[process])
        return effects + self._permit(process, BEYOND)

    def cut(self, process: int) -> list[Effect]:
        """What came early has nothing to wait for. It must be in the queue before others are let go that follow it."""
        effects: list[Effect] = []
        for _, packet in sorted(self._early.pop(process, {}).items()):
            self._take(packet, effects)
        return effects

    def waiting(self) -> list[Waiting]:
        result = super().waiting()
        for source, early in sorted(self._early.items()):
            gap = Awaited(source, self._got[source] + 1, min(early) - 1, "channel")
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

    def dump(self) -> dict[str, Any]:
        early = [plain(self._early.get(process, {})) for process in range(self.n)]
        flagged = [plain(self._flagged.get(process, set())) for process in range(self.n)]
        return {**super().dump(), "_early": early, "_flagged": flagged}

    def _load(self, state: Mapping[str, Any]) -> None:
        early = typed(state["_early"], list[dict[int, Packet[PermitStamp]]])
        flagged = typed(state["_flagged"], list[set[int]])
        if not len(early) == len(flagged) == self.n:
            raise ValueError(
                f"_early and _flagged of {len(early)} and {len(flagged)}, not {self.n} processes"
            )
        self._early = {process: packets for process, packets in enumerate(early) if packets}
        self._flagged = {process: numbers for process, numbers in enumerate(flagged) if numbers}
        self._out = sum(self._sequence) - sum(self._acked)

    def _check(self, packet: Packet[Any]) -> None:
        stamp, source, kind = packet.stamp, packet.source, type(packet.stamp)
        if kind is PermitStamp and stamp.sequence < 1:
            raise self._bad_stamp(packet, f"its sequence is {stamp.sequence}, and sequences start at 1")
        if kind is Taken and stamp.sequence > self._sequence[source]:
            raise self._bad_stamp(
                packet,
                f"it acknowledges message {stamp.sequence}, and the last one sent is {self._sequence[source]}",
            )
