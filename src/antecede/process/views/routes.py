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
from antecede.process.views.members import Roll
from antecede.process.views.notes import Handed
from antecede.process.views.pieces import Pieces, cut_up
from antecede.protocols import Machine
from antecede.protocols.handover import decode_handover
from antecede.protocols.separator import Separator
from antecede.topology import Topology

if TYPE_CHECKING:
    from antecede.process.core import Core

__all__ = ["Routes", "topology_of"]


def topology_of(machine: Machine) -> Topology | None:
    """The topology that a machine was made with, if its protocol has one."""
    return machine.topology if isinstance(machine, Separator) else None


class Routes:
    """The part of one process."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._handed: dict[int, Pieces] = {}
        """What others told us, having joined a separator."""

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
        self._refuse_late()
        if self._handed:
            # One less has to tell us.
            self.adopt_handed()

    def _refuse_late(self) -> None:
        """Refuse whoever sent packets that could be judged only now, and that no sound vertex sends."""
        refused, self._machine.refused = self._machine.refused, []
        for source, error in refused:
            if source in self._core.links:
                self._core.refuse(source, error)

    def install(self, roll: Roll) -> list[tuple[int, Handed]]:
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
        self._refuse_late()
        return [(place, note) for place in topology.joining for note in self._tell(place)]

    def _tell(self, joined: int) -> Iterator[Handed]:
        machine = self._machine
        if joined not in machine.around or machine.joining:
            return
        member = machine.plan.place[joined] == machine.place
        if not member and machine.has_members(joined):
            return
        known = machine.handover() if member else machine.checkpoint()
        yield from (Handed(*piece) for piece in cut_up(msgspec.msgpack.encode(known)))

    @property
    def joining(self) -> bool:
        """Whether we joined a separator, and do not know yet what its members do."""
        return self.on and self._machine.joining

    @property
    def waits(self) -> bool:
        """Whether a member of the separator that we joined, which lives, has yet to tell what it knows.

        A change waits for it: one that joins this separator next would wait for what we know, and we for it.
        """
        return self.joining and self._machine.has_members(self._machine.me)

    def hand_over(self) -> bytes:
        """What this member of a separator knows, for one that takes its place."""
        return msgspec.msgpack.encode(self._machine.handover())

    def hear(self, source: int, note: Handed) -> None:
        """A piece of what another knows has arrived."""
        if not self.joining:
            return
        whole = self._handed.setdefault(source, Pieces()).add(note.piece, note.last, note.at)
        if whole is not None:
            try:
                decode_handover(whole)
            except BadParameter as error:
                raise BadFrame(f"a member sent a history that cannot be: {error}") from None
            self.adopt_handed()

    def adopt_handed(self) -> None:
        """Adopt what was told, once all have told it."""
        told = {place: whole for place, one in self._handed.items() if (whole := one.whole) is not None}
        if not told.keys() >= set(self._machine.sources):
            return
        try:
            self.adopt([whole for _, whole in sorted(told.items())])
        except BadParameter as error:
            raise BadFrame(f"members sent histories that cannot be: {error}") from None

    def adopt(self, states: Sequence[bytes]) -> None:
        self._core.follow(self._machine.adopt([decode_handover(state) for state in states]))
        self._handed = {}
        self._refuse_late()

    def snapshot(self) -> list[Any]:
        return [[place, pieces.snapshot()] for place, pieces in sorted(self._handed.items())]

    def load(self, snapshot: Sequence[Any]) -> None:
        self._handed = {int(place): Pieces.restore(pieces) for place, pieces in snapshot}
