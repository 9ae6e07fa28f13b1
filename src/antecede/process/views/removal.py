"""What a process gives up because others were removed, and what it can deliver nevertheless.

A message of a removed process may be lost, and others here wait for it. While a change settles they are delivered
without it, and what was lost is told by name with the change (`members.Lost`), as are messages of ours to the removed.

When. A stamp of some protocols leaves out what the messages that it names follow themselves. If one of these is lost,
nobody knows what it followed: so all that could be that must be here first, and such a machine gives up last, when
nothing is under way any more. A machine that sends because something was given up cannot wait so long.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from antecede.model import Id, Message
from antecede.process.views.members import Lost
from antecede.protocols.receiver import Receiver

if TYPE_CHECKING:
    from antecede.process.core import Core

__all__ = ["Removal"]


class Removal:
    """What one process gives up with the change that is under way."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.lost: list[Lost] = []
        self.removed: tuple[int, ...] = ()
        """Whose messages are given up."""

    @property
    def gives_up_last(self) -> bool:
        """Whether their messages are given up when nothing is under way any more."""
        machine = self._core.machine
        return isinstance(machine, Receiver) and not machine.holds_back and self._core.rules > 4

    def give_up(self, message: Message | None, place: int) -> None:
        """A message of ours to one that was removed will not arrive, as far as we know."""
        if message is not None:
            message, name = self._core.numbering.outward(message), self._core.view.name
            self.lost.append(Lost(name(message.sender), message.number, message.number, (name(place),)))

    def give_up_held(self) -> None:
        """What is held at the end waits for a packet that was refused: nothing else is missing."""
        core, name = self._core, self._core.view.name
        for waiting in core.changing.waiting():
            message = waiting.message
            to = tuple(map(name, message.to)) if waiting.where == "unsent" else (name(core.me),)
            self.lost.append(Lost(name(message.sender), message.number, message.number, to))

    def deliver(self) -> Iterator[Message]:
        """Whatever can be delivered now, as if the application took it at once."""
        core = self._core
        while True:
            yield from core.drain()
            if not self.removed or self.gives_up_last:
                return
            # What arrived since may wait for the removed as well.
            self.note()
            effects = [one for seat in self._seats() for one in core.machine.forget(seat)]
            if not effects:
                return
            core.follow(effects)

    def deliver_last(self) -> Iterator[Message]:
        """What waits for the removed alone: all else has arrived, and was delivered if it could be.

        One lost message after the other, in the order in which its sender sent them, and between two all that then
        can be delivered. If n precedes m' by a lost message m, n was here, or waits for lost messages; those of m's
        sender among them were sent before m, so n comes first.
        """
        core = self._core
        while True:
            self.note()
            given_up = next(filter(None, map(core.machine.forget, self._seats())), None)
            if given_up is None:
                return
            core.follow([one for one in given_up if isinstance(one, Message)])
            # What it would send now belongs to a view that is over.
            yield from core.drain(silently=True)

    def list_unordered(self) -> list[Id]:
        """What waits for lost messages of two senders: nobody knows which was first, so it is told as `unordered`."""
        core, machine = self._core, self._core.machine
        if isinstance(machine, Receiver) and not machine.names_all:
            lacking = {sender for sender, _, _ in machine.missing()}
            if len(lacking.intersection(self._seats())) > 1:
                return sorted(held.message.id for held in core.changing.waiting())
        return []

    def note(self) -> None:
        """Remember which messages of the removed something here waits for."""
        core, name = self._core, self._core.view.name
        held = [awaited for one in core.changing.waiting() if one.where == "held" for awaited in one.awaits]
        # Control may wait too, and no message for it: an extra message of `bounded`.
        for awaited in dict.fromkeys((*held, *core.changing.roots())):
            if awaited.sender in self.removed:
                first, last, counted = awaited.first, awaited.last, awaited.counted
                lost = Lost(name(awaited.sender), first, last, (name(core.me),), counted)
                self.lost += [] if lost in self.lost else [lost]

    def _seats(self) -> list[int]:
        return [self._core.numbering.seat(place) for place in self.removed]
