"""Machines that decide at the receiver: a stamp names what must be delivered first.

A held packet is filed under the first thing that it waits for. The delivery of that thing wakes it, and only what
waited for the same: the cost of a delivery does not grow with the number of held messages.

What never comes can be given up (`skip`), as if it had been delivered. What it alone told of is given up with it. If it
comes after all it is offered, once, when what it waits for itself was delivered.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias, cast

from antecede.errors import NotEligible
from antecede.model import Awaited, Effect, Id, Message, Packet, Stamp, View, Waiting
from antecede.protocols.gaps import Gaps
from antecede.protocols.machine import Machine, plain, typed

__all__ = ["Need", "Receiver"]

Need: TypeAlias = tuple[Any, int]
"""(key, count): `delivered[key] >= count` must hold. The key is a sender, or a sender and a label."""

BEYOND = 1 << 62
"""More messages than anyone sends."""


class Receiver(Machine):
    """A machine that decides at the receiver, from the stamp, what must be delivered first.

    A protocol says three things of a packet:
    `_position`  which (key, count) its delivery reaches
    `_needs`     which (key, count) must have been reached before
    `_learn`     what the process knows after its delivery
    """

    state = {**Machine.state, "_delivered": list[int]}
    arrivals_commute = True
    counted: ClassVar[Literal["sender", "channel"]] = "channel"
    """By which count `_needs` speaks: the sender's own, or the channel's from the sender to here."""

    listens: ClassVar[bool] = False
    """Whether it stands for a process that sends elsewhere (`listener`)."""

    sparse: ClassVar[bool] = False
    """Whether counts have gaps, and a message does not name the one of its sender before it."""

    names_all: ClassVar[bool] = False
    """Whether a stamp names all that a message follows here, also what the messages that it names follow."""

    holds_back: ClassVar[bool] = False
    """Whether messages may wait at their sender: `forget` lets them leave."""

    _delivered: Any
    """key -> the highest count delivered here."""

    def __init__(self, view: View, me: str | int) -> None:
        super().__init__(view, me)
        self._delivered = [0] * self.n
        self._held: dict[Id, Packet[Any]] = {}
        self._ready: dict[Id, Packet[Any]] = {}
        self._waiters: dict[Need, list[Packet[Any]]] = {}
        self._skipped = Gaps()
        """What was given up and has not come since."""

    @abstractmethod
    def _position(self, packet: Packet[Any]) -> Need: ...

    @abstractmethod
    def _needs(self, packet: Packet[Any]) -> Iterable[Need]: ...

    def _asks(self, packet: Packet[Any]) -> Iterable[Need]:
        """The same, with what was reached."""
        return self._needs(packet)

    def _learn(self, packet: Packet[Any]) -> None:
        """Update what this process knows, at the delivery of a packet."""

    def _find_unmet(self, packet: Packet[Any]) -> Need | None:
        delivered = self._delivered
        for need in self._needs(packet):
            if delivered[need[0]] < need[1]:
                return need
        return None

    def _is_old(self, position: Need) -> bool:
        """Whether the packet at this position was delivered before."""
        old: bool = self._delivered[position[0]] >= position[1]
        return old and not (self._skipped.ranges and self._skipped.find(*position))

    def _is_reached(self, key: Any, count: int) -> bool:
        """Whether what `count` of this key asks for was delivered."""
        return bool(self._delivered[key] >= count)

    def _receive(self, packet: Packet[Any]) -> list[Effect]:
        message = packet.message
        if message is None:
            return self._receive_control(packet)
        key = (message.sender, message.number)
        if key in self._ready or key in self._held or self._is_old(self._position(packet)):
            return []
        # As `_admit` does it, for one: there is nothing to wake.
        need = self._find_unmet(packet)
        if need is None:
            self._ready[key] = packet
            return [message]
        self._held[key] = packet
        self._file(packet, need)
        return []

    def _receive_control(self, packet: Packet[Any]) -> list[Effect]:
        """Control waits its turn like a message, but no application has to take it."""
        position = self._position(packet)
        key = (packet.source, -position[1])
        if key in self._held or self._is_old(position):
            return []
        need = self._find_unmet(packet)
        if need is not None:
            self._held[key] = packet
            self._file(packet, need)
            return []
        self._settle(packet)
        return self._admit(self._wake(position)) if position in self._waiters else []

    def _hold(self, packet: Packet[Any], need: Need) -> None:
        self._held[self._key(packet)] = packet
        self._file(packet, need)

    def _file(self, packet: Packet[Any], need: Need) -> None:
        waiters = self._waiters.get(need)
        if waiters is None:
            self._waiters[need] = [packet]
        else:
            waiters.append(packet)

    def _admit(self, packets: list[Packet[Any]]) -> list[Effect]:
        """Offer what may be delivered, file the rest under the first thing that it waits for."""
        effects: list[Effect] = []
        while packets:
            packet = packets.pop()
            need = self._find_unmet(packet)
            if need is not None:
                self._hold(packet, need)
            elif packet.message is None:
                packets += self._wake(self._settle(packet))
            else:
                message = packet.message
                self._ready[message.sender, message.number] = packet
                effects.append(message)
        return effects

    def deliver(self, message: Message) -> list[Effect]:
        packet = self._ready.pop((message.sender, message.number), None)
        if packet is None:
            raise self._not_eligible(message)
        position = self._settle(packet)
        woken = self._waiters.get(position)
        if woken is None:
            return []
        packet, after = woken[0], woken[0].message
        if len(woken) > 1 or after is None:
            return self._admit(self._wake(position))
        # As `_admit` does it, for one message: the next of its channel, as a rule.
        del self._waiters[position]
        need = self._find_unmet(packet)
        if need is not None:
            self._file(packet, need)
            return []
        key = (after.sender, after.number)
        del self._held[key]
        self._ready[key] = packet
        return [after]

    def _settle(self, packet: Packet[Any]) -> Need:
        position = self._position(packet)
        if not (self._skipped.ranges and self._skipped.take(*position)):
            self._delivered[position[0]] = position[1]
        # else it comes late: others of its sender were delivered since.
        self._learn(packet)
        return position

    def _wake(self, position: Need) -> list[Packet[Any]]:
        woken = self._waiters.pop(position, None)
        if not woken:
            return []
        for packet in woken:
            del self._held[self._key(packet)]
        if len(woken) > 1:
            # Not in order of arrival: a machine restored from a snapshot must give the same effects.
            woken.sort(key=self._key, reverse=True)
        return woken

    def _key(self, packet: Packet[Any]) -> Id:
        message = packet.message
        if message is None:
            return (packet.source, -self._position(packet)[1])
        return (message.sender, message.number)

    def _not_eligible(self, message: Message) -> NotEligible:
        packet = self._held.get(message.id)
        if packet is None:
            why = "it is not here"
        else:
            why = "it waits for " + ", ".join(
                f"{a.first}..{a.last} of {self.view.name(a.sender)}" for a in self._awaits(packet)
            )
        return NotEligible(self.view.name(self.me), message.id, why)

    def eligible(self) -> list[Message]:
        return [cast(Message, self._ready[key].message) for key in sorted(self._ready)]

    def waiting(self) -> list[Waiting]:
        return [
            Waiting(packet.message, self._awaits(packet))
            for _, packet in sorted(self._held.items())
            if packet.message is not None
        ]

    def _awaits(self, packet: Packet[Any]) -> tuple[Awaited, ...]:
        """What a held packet waits for. Where that is control that is here, it is what the control waits for."""
        control = {self._position(held): held for held in self._held.values() if held.message is None}
        awaits, todo = set(), [packet]
        while todo:
            for key, count in self._needs(todo.pop()):
                if self._is_reached(key, count):
                    continue
                if (held := control.pop((key, count), None)) is not None:
                    todo.append(held)
                    continue
                done = min(int(self._delivered[key]), count - 1)
                awaits.add(Awaited(self._sender(key), self._first(done, count), int(count), self.counted))
        return tuple(sorted(awaits))

    def _first(self, done: int, count: int) -> int:
        """The first message that is awaited: of a sender's numbers, not all are addressed here."""
        return done + 1 if self.counted == "channel" else count

    def _sender(self, key: Any) -> int:
        return int(key)

    # What never comes

    def skip(self, sender: str | int, count: int, label: str = "") -> list[Effect]:
        """Give up a sender's messages up to this count: go on as if they had been delivered.

        The count is the one that `waiting` tells (`counted` says whose). Refused while one of them is here: it is to
        be delivered first, and what it waits for to be given up before it.

        >>> from antecede.protocols.fifo import Fifo
        >>> p1, p2 = Fifo(View.numbered(2), 0), Fifo(View.numbered(2), 1)
        >>> (lost, [first]), (kept, [second]) = p1.send(1), p1.send(1)
        >>> p2.receive(second)
        []
        >>> p2.skip(0, 1) == [kept], p2.receive(first) == [lost]
        (True, True)
        """
        key = self._lane_of(self.view.id(sender), count, label)
        done = int(self._delivered[key])
        if self._is_reached(key, count):
            return []
        first = self._gap(done, count) if done < count else count
        for packet in (*self._ready.values(), *self._held.values()):
            at = self._position(packet)
            if at[0] == key and first <= at[1] <= count:
                raise self._still_here(self._key(packet))
        self._skipped.add(key, first, count)
        self._delivered[key] = max(done, count)
        needs = [need for need in self._waiters if need[0] == key and first <= need[1] <= count]
        return self._admit([packet for need in sorted(needs, reverse=True) for packet in self._wake(need)])

    def forget(self, process: int) -> list[Effect]:
        while True:
            for lack in self.missing():
                if lack[0] == process:
                    try:
                        effects = self.skip(*lack)
                    except NotEligible:
                        # An earlier one is here, and waits for a message of a living process: that comes first.
                        continue
                    if effects:
                        return effects
                    break
            else:
                return []

    def missing(self, messages: Iterable[Id] | None = None) -> list[tuple[int, int, str]]:
        """What held messages (all, if none are named) wait for and is not here, as `skip` takes it.

        What they wait for may be held here itself: then it is what that waits for. In the order to give it up in.
        """
        return sorted({(sender, count, label) for sender, count, label, _ in self._find_missing(messages)})

    def roots(self, messages: Iterable[Id] | None = None) -> list[Awaited]:
        """What held messages (all, if none are named) wait for and is not here, as ranges of what is counted.

        >>> from antecede.protocols.fifo import Fifo
        >>> p1, p2 = Fifo(View.numbered(2), 0), Fifo(View.numbered(2), 1)
        >>> packets = [p1.send(1)[1][0] for _ in range(5)]
        >>> [p2.receive(packets[at]) for at in (2, 4)], p2.roots()
        ([[], []], [Awaited(sender=0, first=1, last=2, counted='channel'), Awaited(sender=0, first=4, last=4, \
counted='channel')])
        """
        merged: list[Awaited] = []
        ranges = {
            (sender, first if self.counted == "channel" else count, count)
            for sender, count, _, first in self._find_missing(messages)
        }
        for sender, first, last in sorted(ranges):
            if merged and merged[-1].sender == sender and first <= merged[-1].last:
                first, last = merged[-1].first, max(last, merged.pop().last)
            merged.append(Awaited(sender, first, last, self.counted))
        return merged

    def _find_missing(self, messages: Iterable[Id] | None) -> set[tuple[int, int, str, int]]:
        """(sender, count, label, first): what `missing` says, and from where on nothing of it is here."""
        positions: dict[Any, list[tuple[int, Packet[Any]]]] = {}
        for packet in self._held.values():
            key, count = self._position(packet)
            positions.setdefault(key, []).append((count, packet))
        todo = list(self._held.values() if messages is None else [self._held[key] for key in messages])
        seen, found = {id(packet) for packet in todo}, set()
        while todo:
            for key, count in self._needs(todo.pop()):
                done = self._delivered[key]
                if self._is_reached(key, count):
                    continue
                first = self._gap(done, count) if done < count else count
                here = [(at, packet) for at, packet in positions.get(key, ()) if first <= at <= count]
                if all(at != count for at, _ in here):
                    below = max((at for at, _ in here), default=first - 1)
                    found.add((self._sender(key), int(count), self._label(key), int(below) + 1))
                fresh = [packet for _, packet in here if id(packet) not in seen]
                seen.update(map(id, fresh))
                todo += fresh
        return found

    def _lane_of(self, sender: int, count: int, label: str) -> Any:
        """The key of this message of a sender."""
        return sender

    def _label(self, key: Any) -> str:
        """The label that a key is for."""
        return ""

    def _gap(self, done: int, count: int) -> int:
        """The first that is missing, if `done` were delivered and what is up to `count` is not."""
        return done + 1

    def _still_here(self, key: Id) -> NotEligible:
        why = "it is here" if key in self._ready else "it waits here"
        return NotEligible(self.view.name(self.me), key, f"{why}, so it is not to be given up")

    # A process that sends elsewhere (`listener`): what a protocol says of it

    def _listen(self, delivered: Sequence[int] | None) -> None:
        """What a listener starts from: what it has delivered so far, for each sender, if not nothing."""
        if delivered is not None:
            self._delivered = [int(count) for count in delivered]
        self._delivered[self.me] = BEYOND

    def _overhear(self, packet: Packet[Any]) -> None:
        """What a listener must remember at a delivery. It stamps nothing, so as a rule it need not learn."""

    def dump(self) -> dict[str, Any]:
        pending = {**self._held, **self._ready}
        state = {**super().dump(), "pending": [plain(pending[key]) for key in sorted(pending)]}
        # Only where they are used: most machines never are.
        if self._skipped:
            state["skipped"] = plain(list(self._skipped))
        return state

    def _load(self, state: Mapping[str, Any]) -> None:
        self._held, self._ready, self._waiters = {}, {}, {}
        self._skipped = Gaps(state.get("skipped", ()))
        # Which packets are eligible follows from the rest, so it is worked out again, not stored.
        self._admit([_packet(packet, self.stamps) for packet in state["pending"]])


def _packet(data: Any, stamps: tuple[type[Stamp], ...]) -> Packet[Any]:
    """A packet of plain data; its stamp must be one of these kinds."""
    for kind in stamps:
        if kind.__struct_config__.tag == data["stamp"]["stamp"]:
            stamp, message = typed(data["stamp"], kind), typed(data["message"], Message | None)
            return Packet(typed(data["source"], int), typed(data["dest"], int), stamp, message)
    raise ValueError(f"stamp {data['stamp']['stamp']!r}")
