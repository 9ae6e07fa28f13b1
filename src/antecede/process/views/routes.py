"""What a change of the view does to a process whose protocol has a topology: the machine lives on.

cut       the machine takes over from whoever is removed, and relays what it has of it
install   nothing is under way: it forgets the removed, and knows who joined
handover  members of a separator tell one that joins it what they know; in place of a separator of which nobody is
          left, the neighbours do (a global checkpoint), unless it has adopted a stable memory by then (`Adopt`)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from antecede.errors import BadFrame, BadParameter
from antecede.process.views.members import Handed, Note, Roll
from antecede.protocols.separator import Separator

if TYPE_CHECKING:
    from antecede.process.core import Core

__all__ = ["Routes"]

PIECE = 1 << 18
"""Bytes of what is known that travel in one note."""


class Routes:
    """The part of one process."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._handed: dict[int, tuple[bytes, bool]] = {}
        """What others told us, having joined a separator, and whether that is all."""

    @property
    def on(self) -> bool:
        """Whether there is a topology."""
        return self._core.machine.routed

    @property
    def _machine(self) -> Separator:
        machine = self._core.machine
        assert isinstance(machine, Separator)
        return machine

    def has_state(self, place: int, roll: Roll) -> bool:
        """Whether one that joins has an application, which is given a state."""
        return roll.topology is None or place in roll.topology.processes

    def cut(self, place: int) -> None:
        self._core.follow(self._machine.cut(place))

    def install(self, roll: Roll) -> list[tuple[int, Note]]:
        """Take the topology of a view; what others are to be told."""
        core, machine, topology = self._core, self._machine, roll.topology
        assert topology is not None
        core.adopt(machine, roll)
        gone = (*roll.removed, *roll.left)
        for place in gone:
            core.follow(machine.cut(place))
        if topology.version > machine.topology.version:
            core.follow(machine.reconfigure(topology))
        else:
            machine.agree(topology)
        for place in gone:
            core.follow(machine.forget(place))
        return [(place, note) for place in topology.joining for note in self._tell(place)]

    def _tell(self, joined: int) -> Iterator[Note]:
        machine = self._machine
        if joined not in machine.around or machine.joining:
            return
        member = machine.plan.place[joined] == machine.place
        if not member and machine.has_members(joined):
            return
        yield from _pieces(machine.handover() if member else machine.checkpoint())

    def hear(self, source: int, note: Handed) -> None:
        """A piece of what another knows has arrived."""
        if not self.on or not self._machine.joining:
            return
        before, _ = self._handed.get(source, (b"", False))
        self._handed[source] = (before + note.piece, note.last)
        self.adopt_handed()

    def adopt_handed(self) -> None:
        """Adopt what was told, once all have told it."""
        machine = self._machine
        if not all(self._handed.get(place, (b"", False))[1] for place in machine.sources):
            return
        states = [msgspec.msgpack.decode(told) for _, (told, whole) in sorted(self._handed.items()) if whole]
        try:
            self.adopt(states)
        except BadParameter as error:
            raise BadFrame(f"members told what none can know: {error}") from None

    def adopt(self, states: Sequence[Any]) -> None:
        self._core.follow(self._machine.adopt(states))
        self._handed = {}

    def snapshot(self) -> list[Any]:
        return [[place, told, whole] for place, (told, whole) in sorted(self._handed.items())]

    def load(self, snapshot: Sequence[Any]) -> None:
        self._handed = {int(place): (told, bool(whole)) for place, told, whole in snapshot}


def _pieces(state: dict[str, Any]) -> Iterator[Note]:
    data = msgspec.msgpack.encode(state)
    for at in range(0, len(data), PIECE):
        yield Handed(data[at : at + PIECE], at + PIECE >= len(data))
