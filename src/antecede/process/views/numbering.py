"""Positions on the roll, and seats in a machine.

A machine of a later view counts its members from 0, and their messages from 1. Outside, positions on the roll name
processes, and the numbers of messages go on from view to view.

>>> from antecede.process.views.members import Plan, Roll
>>> roll = Roll.first(("a", "b", "c"), {}).follow(2, Plan(remove=("b",)), {0: 7, 2: 5})
>>> seats = Seats(roll)
>>> seats.outward(Message(1, 1, (0,), b"from c to a"))
Message(sender=2, number=6, to=(0,), payload=b'from c to a', label='', context='')
>>> seats.inward(seats.outward(Message(1, 1, (0,)))) == Message(1, 1, (0,))
True
"""

from __future__ import annotations

from msgspec.structs import replace

from antecede.errors import WireError
from antecede.model import Awaited, Message, Waiting
from antecede.process.views.members import Roll

__all__ = ["Seats"]


class Seats:
    """The seats of one view."""

    def __init__(self, roll: Roll) -> None:
        self._places = roll.members
        self._seats = {place: seat for seat, place in enumerate(roll.members)}
        self._bases = roll.sent

    def seat(self, place: int) -> int:
        return self._seats[place]

    def place(self, seat: int) -> int:
        return self._places[seat]

    def base(self, place: int) -> int:
        """How many messages a process had sent before this view."""
        return self._bases[place]

    def outward(self, message: Message) -> Message:
        """A message of the machine, as the application has it. Raises `WireError` if its seats are none."""
        places = self._places
        try:
            sender = places[message.sender]
            to = tuple([places[seat] for seat in message.to])
        except IndexError:
            found = f"message {message.number} of seat {message.sender} to {message.to}"
            raise WireError(found, f"seats below {len(places)}") from None
        return Message(
            sender, message.number + self._bases[sender], to, message.payload, message.label, message.context
        )

    def inward(self, message: Message) -> Message:
        """A message of the application, as the machine has it."""
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
