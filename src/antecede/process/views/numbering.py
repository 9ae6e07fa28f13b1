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
>>> numbering.names[1], numbering.bases[1]
('c', 5)
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
        # A machine with a topology lives on from view to view, and never forgets who has failed.
        lives_on = roll.topology is not None
        self.places = tuple(range(len(roll.names))) if lives_on else roll.members
        """Seat -> position."""
        self._seats = {place: seat for seat, place in enumerate(self.places)}
        self.names = tuple(roll.names[place] for place in self.places)
        """Seat -> name."""
        self.bases = tuple(0 if lives_on else roll.sent[place] for place in self.places)
        """Seat -> how many messages its process had sent before this view."""
        self.same = self.places == tuple(range(len(roll.names))) and not any(self.bases)
        """Seats are positions, and numbers begin at 1."""
        self.known: dict[tuple[int, ...], tuple[int, ...]] = {}
        """Positions -> seats."""

    def is_member(self, place: int) -> bool:
        return place in self._seats

    def seat(self, place: int) -> int:
        return self._seats[place]

    def seats(self, to: tuple[int, ...]) -> tuple[int, ...]:
        """The seats at these positions. Raises `UnknownProcess` if one is no member's."""
        known = self.known.get(to)
        if known is None:
            for place in to:
                if place not in self._seats:
                    raise UnknownProcess(place, self.names)
            if len(self.known) >= KNOWN_MOST:
                self.known.clear()
            known = self.known[to] = tuple([self._seats[place] for place in to])
        return known

    def base(self, place: int) -> int:
        """How many messages a member had sent before this view."""
        return self.bases[self._seats[place]]

    def identify(self, message: Message) -> Id:
        """How a message of the machine is known outside. Raises `WireError` if its sender has no seat."""
        seat = message.sender
        try:
            return self.places[seat], message.number + self.bases[seat]
        except IndexError:
            raise self._strange(message) from None

    def outward(self, message: Message) -> Message:
        """A message of the machine, as the application has it. Raises `WireError` if its seats are none."""
        if self.same:
            return message
        sender, number = self.identify(message)
        try:
            to = tuple([self.places[seat] for seat in message.to])
        except IndexError:
            raise self._strange(message) from None
        return Message(sender, number, to, message.payload, message.label, message.context)

    def _strange(self, message: Message) -> WireError:
        return WireError(
            f"message {message.number} of seat {message.sender} to {message.to} names a seat that is none: there are "
            f"{len(self.places)}"
        )

    def waiting(self, held: Waiting) -> Waiting:
        """What a machine says of a message that it holds."""
        awaits = tuple(self.awaited(awaited) for awaited in held.awaits)
        return replace(held, message=self.outward(held.message), awaits=awaits)

    def awaited(self, awaited: Awaited) -> Awaited:
        seat = awaited.sender
        more = self.bases[seat] if awaited.counted == "sender" else 0
        return replace(
            awaited, sender=self.places[seat], first=awaited.first + more, last=awaited.last + more
        )
