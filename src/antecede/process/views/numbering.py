"""Positions on the roll, and seats in a machine: how the machine of a view names processes and messages.

A machine of a later view counts its members from 0, and their messages from 1. Outside, positions on the roll name
processes, and the numbers of messages go on from view to view. In the first view both are the same.

>>> from antecede.process.views.members import Plan, Roll
>>> roll = Roll.first(("a", "b", "c"), {}).follow(2, Plan(remove=("b",)), {0: 7, 2: 5})
>>> numbering = Numbering(roll)
>>> numbering.outward(Message(1, 1, (0,), b"from c to a"))
Message(sender=2, number=6, to=(0,), payload=b'from c to a', label='', context='')
>>> numbering.identify(Message(1, 1, (0,))), numbering.seats((0, 2))
((2, 6), (0, 1))
>>> numbering.inward(numbering.outward(Message(1, 1, (0,)))) == Message(1, 1, (0,))
True
"""

from __future__ import annotations

from msgspec.structs import replace

from antecede.errors import UnknownProcess, WireError
from antecede.model import Awaited, Id, Message, Waiting
from antecede.process.views.members import Roll

__all__ = ["Numbering"]

KNOWN_MOST = 1024
"""Sets of destinations that are remembered; then all are forgotten, and looked up again when they are met."""


class Numbering:
    """The seats of one view."""

    def __init__(self, roll: Roll) -> None:
        self._names = roll.names
        self._places = roll.members
        self._seats = {place: seat for seat, place in enumerate(roll.members)}
        self._bases = roll.sent
        self.same = roll.members == tuple(range(len(roll.names))) and not any(roll.sent)
        """Seats are positions, and numbers begin at 1."""
        self._known: dict[tuple[int, ...], tuple[int, ...]] = {}
        """Positions -> seats."""
        self._shown: dict[tuple[int, ...], tuple[int, ...]] = {}
        """Seats -> positions."""

    def is_member(self, place: int) -> bool:
        return place in self._seats

    def seat(self, place: int) -> int:
        return self._seats[place]

    def seats(self, to: tuple[int, ...]) -> tuple[int, ...]:
        """The seats at these positions. Raises `UnknownProcess` if one is no member's."""
        if self.same:
            return to
        known = self._known.get(to)
        if known is None:
            for place in to:
                if place not in self._seats:
                    shown = [self._names[member] for member in self._places]
                    raise UnknownProcess(place, shown)
            if len(self._known) >= KNOWN_MOST:
                self._known.clear()
            known = self._known[to] = tuple([self._seats[place] for place in to])
        return known

    def place(self, seat: int) -> int:
        return self._places[seat]

    def base(self, place: int) -> int:
        """How many messages a process had sent before this view."""
        return self._bases[place]

    def identify(self, message: Message) -> Id:
        """How a message of the machine is known outside. Raises `WireError` if its sender has no seat."""
        try:
            sender = self._places[message.sender]
        except IndexError:
            raise self._strange(message) from None
        return sender, message.number + self._bases[sender]

    def outward(self, message: Message) -> Message:
        """A message of the machine, as the application has it. Raises `WireError` if its seats are none."""
        if self.same:
            return message
        try:
            sender = self._places[message.sender]
            to = self._shown.get(message.to)
            if to is None:
                to = self._show(message.to)
        except IndexError:
            raise self._strange(message) from None
        number = message.number + self._bases[sender]
        return Message(sender, number, to, message.payload, message.label, message.context)

    def _show(self, seats: tuple[int, ...]) -> tuple[int, ...]:
        if len(self._shown) >= KNOWN_MOST:
            self._shown.clear()
        to = self._shown[seats] = tuple([self._places[seat] for seat in seats])
        return to

    def _strange(self, message: Message) -> WireError:
        found = f"message {message.number} of seat {message.sender} to {message.to}"
        return WireError(found, f"seats below {len(self._places)}")

    def inward(self, message: Message) -> Message:
        """A message of the application, as the machine has it."""
        if self.same:
            return message
        seats, sender = self._seats, message.sender
        to = tuple([seats[place] for place in message.to])
        return Message(
            seats[sender],
            message.number - self._bases[sender],
            to,
            message.payload,
            message.label,
            message.context,
        )

    def waiting(self, held: Waiting) -> Waiting:
        """What a machine says of a message that it holds."""
        awaits = tuple(self.awaited(awaited) for awaited in held.awaits)
        return replace(held, message=self.outward(held.message), awaits=awaits)

    def awaited(self, awaited: Awaited) -> Awaited:
        place = self._places[awaited.sender]
        more = self._bases[place] if awaited.counted == "sender" else 0
        return replace(awaited, sender=place, first=awaited.first + more, last=awaited.last + more)
