"""What inputs do to the processes of `tests.view_explore`: each worked out once for each state.

A step is an input, all that the application takes afterwards, at once, and all that leaves then.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from antecede.link import Frame
from antecede.model import View
from antecede.process.core import Core
from antecede.process.inputs import Pass, Take
from antecede.process.views.members import Change, Roll
from antecede.process.views.notes import is_note

__all__ = ["Flight", "Local", "Post", "Processes", "Unmet", "Wrong"]


class Wrong(Exception):
    """A step that must not be."""


class Post:
    """An end of a link over which every payload arrives once: what a `Core` asks of a `Link`, and no more."""

    known = 1
    """The incarnation of the other end, which is known from the start."""

    def __init__(self, **_: Any) -> None:
        self.last = self.received = self.acked = 0
        self.early: set[int] = set()
        self.owes, self.unacknowledged, self.met, self.peer = False, 0, True, self.known

    def send(self, payload: bytes, now: int) -> list[Frame]:
        self.last += 1
        return [Frame(1, 1, self.last, 0, 0, payload)]

    def receive(self, frame: Frame, now: int) -> tuple[list[bytes], list[Frame]]:
        self.peer = 1
        if frame.payload is None:
            return [], []
        self.early.add(frame.number)
        while self.received + 1 in self.early:
            self.received += 1
            self.early.remove(self.received)
        return [frame.payload], []

    def acknowledge(self) -> list[Frame]:
        return []

    def snapshot(self) -> dict[str, Any]:
        return {
            "last": self.last,
            "received": self.received,
            "early": sorted(self.early),
            "unacknowledged": [],
            "peer": self.peer,
        }

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> Post:
        post = cls()
        post.last, post.received = snapshot["last"], snapshot["received"]
        post.early, post.peer = set(snapshot["early"]), snapshot["peer"]
        return post


class Unmet(Post):
    """The same, but for one that is not known until it has greeted."""

    known = 0


class Flight(NamedTuple):
    """A payload on its way."""

    source: int
    dest: int
    number: int
    view: int
    """The number of the view in which it was sent."""
    payload: bytes | None
    """None: a greeting."""


class Local(NamedTuple):
    """A state of one process."""

    snapshot: bytes
    going: bool
    firm: bool
    roll: int
    idle: bool
    """Nothing is held or left to hand over."""
    events: tuple[tuple[str, int, int, tuple[int, ...]], ...]
    waits: bool
    """For the state that it was to be given."""
    orphaned: bool
    """Whoever was to give it is gone."""
    unheard: tuple[str, ...]
    """Who joined, and has not greeted."""


class Processes:
    """What inputs do to processes: each worked out once."""

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self.locals: list[Local] = []
        self.rolls: list[Roll] = []
        self._numbers: dict[Any, int] = {}
        self._steps: dict[Any, tuple[int, tuple[Flight, ...]]] = {}

    def _intern(self, table: list[Any], key: Any, value: Any) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(table)
            table.append(value)
        return number

    def begin(self, name: str, roll: Roll) -> int:
        core = Core.new(self.protocol, View(roll.names), name, epoch=1, roll=roll)
        core.record.on = True
        return self._keep(core)

    def _keep(self, core: Core) -> int:
        membership = core.changing.membership
        roll = self._intern(self.rolls, ("roll", repr(membership.roll)), membership.roll)
        snapshot = msgspec.msgpack.encode(core.snapshot())
        idle = not (core.inbox or core.changing.ready or core.changing.waiting() or core.gathered)
        events = tuple((e.kind, e.sender, e.number, e.to) for e in core.record.events)
        going = membership.going and membership.is_member
        waits = core.changing.donor is not None, core.changing.orphaned, tuple(membership.list_unheard())
        local = Local(snapshot, going, membership.firm, roll, idle, events, *waits)
        return self._intern(self.locals, snapshot, local)

    def step(self, local: int, given: Any) -> tuple[int, tuple[Flight, ...]]:
        """What an input leads to, and what leaves."""
        key = (local, given if not isinstance(given, Flight) else given[:3] + given[4:])
        done = self._steps.get(key)
        if done is None:
            core = Core.restore(msgspec.msgpack.decode(self.locals[local].snapshot))
            out = self._apply(core, given)
            done = self._steps[key] = (self._keep(core), out)
        return done

    def _apply(self, core: Core, given: Any) -> tuple[Flight, ...]:
        view = core.changing.roll.number
        if isinstance(given, Flight):
            greets = given.payload is None
            frame = Frame(1, 1, given.number, 0, 0, given.payload, bare=greets, greets=greets)
            core.arrive(given.source, frame, now=0)
        else:
            core.apply(given, now=0)
        if core.refused:
            raise Wrong(f"{core.view.name(core.me)} refuses: {core.refused}")
        self._hand_over(core)
        out = []
        while core.gathered:
            out += core.turn(now=0)
            self._hand_over(core)
        numbers = {view, core.changing.roll.number}
        flights = []
        for dest, frame in out:
            # What is a packet was sent in the view of now: a change lets none leave.
            assert frame.payload is not None
            if not is_note(frame.payload) and len(numbers) > 1:
                raise Wrong(f"{core.view.name(core.me)} sends in a step in which its view changes")
            flights.append(Flight(core.me, dest, frame.number, max(numbers), frame.payload))
        return tuple(flights)

    def _hand_over(self, core: Core) -> None:
        """The application takes all there is, at once, and comes to each change."""
        while core.changing.donor is None and (core.changing.ready or core.inbox):
            first = core.changing.ready[0] if core.changing.ready else core.next_message()
            assert first is not None
            if isinstance(first, Change):
                core.apply(Pass(first.number, b"state" if first.owed else None), now=0)
            else:
                core.apply(Take(*first.id), now=0)
                core.taken.clear()
