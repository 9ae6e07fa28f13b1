"""The shell round one process, simulated: it moves bytes and time. Between any two effects the process may die
(`effect`), and comes back from what its disk then holds.

What waits for the disk, what is offered next, what is sent again and when a node may leave, `antecede.process` decides,
as it does for a node of `antecede.net`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from antecede.errors import PeerError
from antecede.link import Frame
from antecede.process.core import Core, Out
from antecede.process.inputs import Adopt, Arrive, Input, Propose, Turn, Waive, Withdraw
from antecede.process.journal import Journal
from antecede.process.restarts import list_first_inputs
from antecede.process.room import Room
from antecede.process.views.members import Plan
from antecede.process.views.notes import is_note
from antecede.process.write_ahead import WriteAhead
from antecede.sim.nodes.application import Application
from antecede.sim.nodes.disk import MemoryDisk
from antecede.wire import Limits
from antecede.wire.bundles import decode_bundle

if TYPE_CHECKING:
    from antecede.sim.nodes.system import System

__all__ = ["Killed", "SimNode"]

MILLISECOND = 1_000_000


class Bounds(Struct, frozen=True):
    """How much may wait: by number, which small limits make tight enough."""

    queue: int
    queue_bytes: int = 1 << 40
    held: int = 1 << 40


class Killed(Exception):
    """The process died between two effects."""


class SimNode:
    """One node, in all its lives."""

    def __init__(
        self,
        system: System,
        name: str,
        place: int,
        new: Callable[[], Core],
        memory: Callable[[], bytes] | None = None,
    ) -> None:
        scenario = system.scenario
        self._memory = memory
        """What the journal says of the last that failed of our separator, if we take its place by that."""
        self.system, self.name, self.place, self._new = system, name, place, new
        self.random = Random(f"{scenario.seed}/{name}")
        self.disk = MemoryDisk(self.effect, self.random, scenario.sync == "full")
        self.application = Application(self)
        self.limits: Limits | None = None
        """Those that it comes back with, if they are other ones."""
        self.core: Core = None  # type: ignore[assignment]
        self.life = 0
        self.up = self.dead = self.retired = self.leaving = self.lingers = self.expelled = False
        """It runs; it never will again; it has left and ended; it wants to leave, and then runs on until no other
        counts it as a member; it was told that it is no member."""
        self.unheard: dict[str, int] = {}
        """Who joined by it and was not heard -> since when."""
        self.fuse = 0
        """How many effects from now it dies; 0: it does not."""
        self.fate = "kill"
        """What becomes of it then."""
        self.last_words: int | None = None
        """Which of the next frames arrive, as bits: it dies as they leave, each over a connection of its own; None: it
        does not."""
        self.stage = ""
        """Of the change that it leads; empty: it leads none."""
        self.offset = self.random.randrange(1 << 50)
        self.wall = 1_700_000_000 * 10**9
        """Of its clocks: the one that only runs on, and the one that tells the date."""
        self.left_at = 0
        """When it was first seen to have left."""
        self.paused_until = self.lazy_until = self.silent_until = 0
        self.slow_until = self.full_until = 0
        self.said_durable = 0
        """What it has ever taken to be durable."""

    # Dying

    def effect(self) -> None:
        """Something is about to happen, or just has."""
        if self.fuse:
            self.fuse -= 1
            if not self.fuse:
                raise Killed(self.name)

    @property
    def now(self) -> int:
        return self.system.now + self.offset

    @property
    def written(self) -> int:
        """The position of the last input."""
        return self.ahead.position

    @property
    def durable(self) -> int:
        return self.ahead.position_durable

    # Life

    def start(self) -> None:
        """Come to life, from the journal if there is one. Raises `BadJournal`, `CannotWrite` or `Killed`."""
        system, scenario = self.system, self.system.scenario
        self.disk.pid += 1
        self.offset = self.random.randrange(1 << 50)
        self.journal = Journal(self.disk, f"journal of {self.name}", scenario.sync, scenario.snapshot_inputs)
        new = self._new()
        core = self.core = self.journal.recover(new)
        position = self.journal.position
        if self.life:
            system.judge.crash(self.place, position, self.said_durable, core.taken)
            self.application.crash(position)
        else:
            system.judge.begin(self.place)
        self.life += 1
        self.last_words, self.stage = None, ""
        self.up, self.expelled = True, False
        self.ahead: WriteAhead[tuple[int, Frame, bool]] = WriteAhead(position)
        self.writing = self.turning = self.acting = False
        self.ticking = 0
        """When the next look at the links is due; 0: none is planned."""
        self.room = Room(core, Bounds(scenario.queue))
        for given in () if core is new else list_first_inputs(core, scenario.recording, self.limits):
            self.happen(given)
        if self._memory is not None and core.changing.routes.joining:
            self.happen(Adopt(self._memory()))
        self.waive()
        self.stir()

    def happen(self, given: Input) -> None:
        """Let something happen. A refusal is raised, and changes nothing."""
        if self.fuse:
            self.effect()
        core = self.core
        out = core.apply(given, self.now)
        self.ahead.write(given)
        if core.arrived:
            self._note_arrivals()
        if out:
            self._let_out(out)
        system = self.system
        changing = core.changing
        if not core.steady or changing.roll is not system.last_roll:
            system.last_roll = changing.roll
            system.judge.see(changing.roll)
        if not core.steady or self.stage:
            self._meet_strike()

    def _meet_strike(self) -> None:
        """Whoever leads a change may be struck: some effects from now, or between two notes that end a stage of it."""
        led, system = self.core.changing.membership.led, self.system
        before, self.stage = self.stage, "" if led is None else led.stage
        if self.fuse or self.last_words is not None:
            return
        for pick in system.faults.strikes:
            if pick >> 20 & 1:
                if self.stage == before or self.stage != ("", "flush", "install", "install")[pick >> 21 & 3]:
                    continue
                self.last_words = pick & 15
            elif led is None:
                continue
            else:
                self.fuse = 1 + pick % 23
            self.fate = "die" if pick >> 8 & 1 else "kill"
            system.faults.strikes.remove(pick)
            return

    def _note_arrivals(self) -> None:
        arrived = self.core.arrived
        self.ahead.hold_messages(arrived)
        self.system.judge.arrive(self.place, list(arrived), self.written)
        arrived.clear()

    def _note_early(self, source: int, frame: Frame) -> None:
        """Tell the judge what an ordered link keeps until what comes before it arrives. The sender's link knows that it
        is here, and durable, so nobody tells its sender that it is given up."""
        link = self.core.links.get(source)
        if frame.bare or link is None or not link.ordered or not link.gapped or is_note(frame.payload):
            return
        if any(number == frame.number for number, _ in link.snapshot()["kept"]):
            me, there = self.core.changing.seats(source)
            packets = decode_bundle(frame.payload, there, me, self.core.limits)
            messages = [packet.message for packet in packets if packet.message is not None]
            ids = [self.core.numbering.identify(message) for message in messages if me in message.to]
            self.system.judge.arrive(self.place, ids, self.written)

    def _let_out(self, out: list[Out], hails: bool = False) -> None:
        frames = [(dest, frame, hails) for dest, frame in out]
        if not self.ahead.hold_frames(frames):
            self._transmit(frames)

    def _transmit(self, frames: list[tuple[int, Frame, bool]]) -> None:
        words = self.last_words if any(not frame.bare for _, frame, _ in frames) else None
        for at, (dest, frame, hails) in enumerate(frames):
            if self.fuse:
                self.effect()
            if words is None or words >> at % 4 & 1:
                self.system.network.carry(self, dest, frame, hails)
        if words is not None:
            self.last_words, self.fuse = None, 1

    def read_memory(self) -> bytes:
        """What this router, which is dead, knew by its journal."""
        scenario = self.system.scenario
        journal = Journal(
            self.disk.clone(), f"journal of {self.name}", scenario.sync, scenario.snapshot_inputs
        )
        return journal.recover(self._new()).changing.routes.hand_over()

    # The network

    def arrive(self, source: int, frame: Frame, hails: bool) -> None:
        core = self.core
        if source not in core.links:
            if source < len(core.view) and source not in core.changing.roll.members:
                self.system.operators.tell_gone(source)
            return
        try:
            if frame.bare and not frame.greets:
                # No input: what it teaches can be had again.
                if self.fuse:
                    self.effect()
                out = core.arrive(source, frame, self.now)
                if out:
                    self._let_out(out)
            else:
                self.happen(Arrive.of(source, frame))
                self._note_early(source, frame)
        except PeerError as error:
            self.system.judge.find("refused", f"{self.name} refuses a frame of #{source}: {error}")
        for refused in core.refused.values():
            self.system.judge.find("refused", f"{self.name} refuses #{source}: {refused}")
        if hails and source in core.links:
            self._let_out(core.resume(source, self.now))
        if core.changing.orphaned:
            self.system.operators.orphan(self)
            return
        self.stir()

    def hail_all(self) -> None:
        """There are new connections."""
        self._let_out([(peer, self.core.hail(peer)) for peer in self.core.links], hails=True)

    def stir(self) -> None:
        """See that a turn ends, that something is written, and that links are looked at."""
        core, system = self.core, self.system
        if not self.ahead.idle and not self.writing:
            self.writing = True
            if self.random.random() < 0.2:
                # The disk is asked before the turn ends: what has gathered leaves later.
                self.begin_write()
            else:
                system.plan(0, self, self.begin_write)
        if not self.turning and (core.gathered or core.touched):
            self.turning = True
            system.plan(0, self, self.end_turn)
        wait = (10 if core.owing else 250) * MILLISECOND
        if not self.ticking or self.ticking > system.now + wait:
            self.ticking = system.now + wait
            system.plan(wait, self, self.tick)
        if not self.acting and self.application.has_work():
            self.acting = True
            system.plan_act(self)

    def end_turn(self) -> None:
        self.turning = False
        if self.fuse:
            self.effect()
        core = self.core
        gathered = core.gathered
        if gathered:
            self.happen(Turn())
        else:
            out = core.turn(self.now)
            if out:
                self._let_out(out)
        self.stir()

    def tick(self) -> None:
        if self.ticking > self.system.now:
            return
        self.ticking = 0
        core, now = self.core, self.now
        next_due = None
        for peer, link in core.links.items():
            due = link.deadline()
            if due is not None and due <= now:
                out = core.tick(peer, now)
                if out:
                    self._let_out(out)
                due = link.deadline()
            if due is not None and (next_due is None or due < next_due):
                next_due = due
        core.owing.intersection_update(
            [peer for peer in core.owing if peer in core.links and core.links[peer].owes]
        )
        if next_due is not None:
            wait = max(MILLISECOND, next_due - now)
            self.ticking = self.system.now + wait
            self.system.plan(wait, self, self.tick)

    # The disk

    def begin_write(self) -> None:
        batch = self.ahead.take_batch()
        if not batch:
            self.writing = False
            return
        snapshot = self.core.snapshot() if self.journal.wants_snapshot(len(batch)) else None
        self.system.plan_write(self, lambda: self.end_write(batch, snapshot))

    def end_write(self, batch: list[Input], snapshot: dict[str, Any] | None) -> None:
        """The disk has come to this batch. Raises `CannotWrite` if it refuses it."""
        self.disk.refuses = self.system.now < self.full_until
        self.journal.append(batch, snapshot)
        if self.fuse:
            self.effect()
        self.writing = False
        frames = self.ahead.commit(len(batch))
        self.said_durable = self.durable
        self.system.judge.commit(self.place, self.durable)
        self.application.commit(self.durable)
        self._transmit(frames)
        self.system.operators.look_at_joins(self)
        self.system.check_journal(self, len(batch))
        self.stir()

    # The application, and operators

    def act(self) -> None:
        """Let the application do something."""
        self.acting = False
        self.application.act()
        self.stir()

    def propose(self, plan: Plan) -> None:
        self.happen(Propose(plan))
        self.stir()

    def withdraw(self, name: str) -> None:
        self.happen(Withdraw((name,)))
        self.stir()

    def waive(self) -> None:
        """An application without a state says so at once."""
        if not self.system.scenario.stateful:
            for number in self.core.changing.list_owing():
                self.happen(Waive(number))

    @property
    def wants_to_leave(self) -> bool:
        return self.up and self.leaving and self.is_member and self.core.changing.may_leave

    @property
    def is_member(self) -> bool:
        return self.core.me in self.core.changing.roll.members

    def is_at_rest(self) -> bool:
        """Nothing is left to do here."""
        core, changing = self.core, self.core.changing
        return (
            (changing.membership.going or not self.is_member)
            and not (core.inbox or changing.ready or core.again or core.untold or core.taken)
            and self.ahead.idle
            and not self.writing
            and core.is_drained(core.links)
            and changing.donor is None
            and not changing.waiting()
            and not core.record.events
        )
