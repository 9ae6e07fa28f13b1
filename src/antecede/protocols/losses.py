"""What messages wait for at a machine that decides at the receiver, and how to go on without what never comes.

What is given up (`skip`) counts as delivered. What it alone told of is given up with it. If it comes after all it is
offered, once, when what it waits for itself was delivered. Streams give up what has not come in time, and nodes what a
member that was removed has not sent (`forget`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Literal, TypeAlias

from antecede.errors import NotEligible
from antecede.model import Awaited, Effect, Id, Message, Packet, View, Waiting
from antecede.protocols.gaps import Gaps
from antecede.protocols.machine import Machine

__all__ = ["Losses", "Need"]

Need: TypeAlias = tuple[Any, int]
"""(key, count): `delivered[key] >= count` must hold. The key is a sender, or a sender and a label."""


class Losses(Machine):
    """The part of a `Receiver` that knows what messages wait for, and what is missing."""

    counted: ClassVar[Literal["sender", "channel"]] = "channel"
    """By which count `_needs` speaks: the sender's own, or the channel's from the sender to here."""

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

    @abstractmethod
    def _admit(self, packets: list[Packet[Any]]) -> list[Effect]: ...

    @abstractmethod
    def _wake(self, position: Need) -> list[Packet[Any]]: ...

    def _key(self, packet: Packet[Any]) -> Id:
        message = packet.message
        if message is None:
            return (packet.source, -self._position(packet)[1])
        return (message.sender, message.number)

    def _is_reached(self, key: Any, count: int) -> bool:
        """Whether what `count` of this key asks for was delivered."""
        return bool(self._delivered[key] >= count)

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

    # What is given up

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

    def _not_eligible(self, message: Message) -> NotEligible:
        packet = self._held.get(message.id)
        if packet is None:
            why = "it is not here"
        else:
            why = "it waits for " + ", ".join(
                f"{a.first}..{a.last} of {self.view.name(a.sender)}" for a in self._awaits(packet)
            )
        return NotEligible(self.view.name(self.me), message.id, why)

    def _still_here(self, key: Id) -> NotEligible:
        why = "it is here" if key in self._ready else "it waits here"
        return NotEligible(self.view.name(self.me), key, f"{why}, so it is not to be given up")
