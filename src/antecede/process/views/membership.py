"""How a view changes, as a pure state machine: one process's part of it. `Body` is the rest of the process, and what a
process does if it leads is in `leader`.

  ask      whoever wants a change tells the leader: the least position on the roll that is a member and not to be
           removed; who is to be removed is told to all
  stop     the leader begins a round: all members but the removed send nothing new, hear nothing more of the removed,
           and say so
  settle   once all have stopped: nothing waits for the removed any longer, and whatever arrives is taken at once, kept
           for the application in the order of the machine (`Body.settle`)
  report   a process in which nothing is left to do tells the leader how much it has sent to and got from each other
  decide   when all have reported, and what each has sent to each other is what the other has got, nothing is under way,
           and nothing can begin: the old view is over. The leader makes the new one, which all install, durably
  go       once all have installed it, sends go on, in the new view. If a leader that leaves dies before it has told
           all, whoever was told tells those that want it removed
  leave    whoever leaves owes nobody a state. So the wish of a process to leave is forgotten when another joins by it:
           it asks anew, once it has given the state
  vouch    a member that let another join vouches for it until it is heard: whoever drives that member has the other
           removed if it never comes; and if that member is removed, so is the other, which nobody would give a state
  resume   whoever wanted someone to join may withdraw that. If nothing else is wanted, and no view was decided, the
           leader calls the round off: sends go on, in the old view. A round that removes someone is never called off

Why nothing is under way. The reports make a cut through the history of the members. What is counted as received has no
gaps (`Body.counts`), so equal counts mean that all that was sent before the cut was received before it. No process
sends by itself between its stop and its go: the first to send after the cut would have to receive, after it, something
sent before it. So nothing is ever sent after it.

Why no two processes have different views of one number. A number is a round, and a process follows a round only if it
is greater than all before. There is one leader: another takes over only from one that is removed, and only after all
that remain have stopped for it, whereupon they hear the old one no more. If one of them has installed what the old
leader decided, it says so (`Ahead`), and that view is installed by all before anything else happens. A leader decides
only with a report of every member that it does not remove.

A round is begun anew when someone else is to be removed, or turns out to be unheard. A crash loses nothing that was
told (the journal holds the inputs, and links repeat what is not acknowledged), so a leader that comes back goes on.
Who waits for a change repeats what it wants, since a leader that is removed takes the wishes that it has heard with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, assert_never

from msgspec import Struct
from msgspec.structs import replace

from antecede.process.views.leader import Leader
from antecede.process.views.members import Plan, Roll
from antecede.process.views.notes import (
    Ahead,
    AnyNote,
    Ask,
    Go,
    Handed,
    Install,
    Installed,
    Later,
    Report,
    Resume,
    Settle,
    State,
    Stop,
    Stopped,
    Withdrawn,
)
from antecede.process.views.round import Led, Progress
from antecede.process.views.validation import vet
from antecede.protocols.machine import plain, typed

__all__ = ["Membership"]


class Kept(Struct):
    """The state, as a snapshot has it."""

    roll: Roll
    promised: int
    leader: int
    going: bool
    settled: bool
    plan: Plan
    cut: set[int]
    wanted: Plan
    led: Led | None
    reported: Report | None
    wish: int = 0
    withdrawn: dict[int, dict[str, int]] = {}
    vouchers: dict[int, int] = {}


class Membership(Leader):
    """One process's part. What it says is in `notes`, each with the position that it is for."""

    @property
    def firm(self) -> bool:
        """Whoever joined with this view may begin to live: it will not be forgotten with the leader that made it."""
        return self.going or self.promised > self.roll.number

    def has_joined(self, name: str) -> bool:
        """Whether this node is a member, and may begin to live."""
        return name in self.roll.shown and self.firm

    def has_removed(self, name: str) -> bool:
        """Whether this node is no member, and all others go on without it."""
        return name not in self.roll.shown and self.going

    def may_propose(self, name: str, down: Collection[str]) -> bool:
        """Whether to ask now for this node to join or to leave: not while members are `down`, unless that has begun."""
        progress = self.progress()
        return not down or (progress is not None and name in (*progress.join, *progress.leave))

    def progress(self, down: Collection[str] = ()) -> Progress | None:
        """The change that is under way or wanted, and what it waits for; None if there is none.

        Its leader knows that exactly. Whoever does not lead names those that are `down`, and if nobody is, the leader.
        """
        led = self.led
        if led is not None:
            stage, plan, leader = led.stage, led.plan, self.me
            members = self._taking_part(plan)
            match stage:
                case "stop":
                    awaited = [place for place in members if place not in led.stopped]
                case "flush":
                    awaited = led.unreported(members)
                case _:
                    awaited = sorted(led.awaited)
        elif not self.going and self.is_member:
            successor, roll = self._successor(), self.roll
            stage, plan, leader = "follow", self.plan, self.leader
            awaited = [leader if successor in (None, self.me) else successor]
            if self.promised == roll.number:
                # All install it that were members, and nobody else.
                there = sorted({*roll.members, *roll.left}.difference(roll.donors))
                shown = self._show(stage, leader, self._among(there, down) or awaited, plan)
                join, leave, remove = map(self._names, (tuple(roll.donors), roll.left, roll.removed))
                return replace(shown, join=join, leave=leave, remove=remove)
            awaited = self._among(self._taking_part(plan), down) or awaited
        else:
            return self.foresee(self.wanted, down) if self.wanted else None
        return self._show(stage, leader, awaited, plan)

    def foresee(self, plan: Plan, down: Collection[str] = ()) -> Progress:
        """A change that is wanted, and has not begun."""
        leader = self._leader(self.wanted | plan)
        awaited = self._among(self._taking_part(plan), down) or list(self._body.strangers()) or [leader]
        return self._show("wanted", leader, awaited, plan)

    def _show(self, stage: str, leader: int, awaited: Sequence[int], plan: Plan) -> Progress:
        join = tuple(joiner.name for joiner in plan.join)
        return Progress(stage, self.roll.names[leader], self._names(awaited), join, plan.leave, plan.remove)

    def _among(self, places: Sequence[int], names: Collection[str]) -> list[int]:
        return [place for place in places if self.roll.names[place] in names]

    def _names(self, places: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.roll.names[place] for place in places)

    def list_vouched(self) -> list[str]:
        """Who joined by us and was never heard: we have it removed if it never comes."""
        return [name for name, by in self.list_unheard().items() if by == self.roll.names[self.me]]

    # What happens

    def ask(self, plan: Plan) -> None:
        """Someone here wants this."""
        # Who else is to be removed may be known elsewhere, and decides who leads.
        hearers = self.roll.without(plan.remove) if plan.remove else (self._leader(self.wanted | plan),)
        if plan.remove and not self.going and self._body.rules() > 3:
            # Who leads may have left with the view that it has decided, and waits for the removed.
            hearers = tuple({*hearers, self.leader}.difference(self._places(plan.remove)))
        for place in sorted(hearers):
            self._say(place, Ask(plan, self.wish, self.roll.number))
        self._work()

    def withdraw(self, names: tuple[str, ...]) -> None:
        """Someone here does not want these to join any more. Who is in a view by then stays."""
        self.wish += 1
        self._say(self._leader(self.wanted), Withdrawn(names, self.wish))
        self._work()

    def hear(self, source: int, note: AnyNote) -> None:
        """A note of another process has arrived. Raises `BadFrame`, and changes nothing, if no sound one says this."""
        vet(self, self._body, source, note)
        self._hear(source, note)
        self._work()

    def meet(self) -> None:
        """Someone was heard for the first time: what waited for that goes on."""
        if self.wanted:
            self._consider()
            self._work()

    def watch(self) -> None:
        """Report, if there is news. To be called once all that has arrived was looked at: links count it before."""
        if self.settled:
            counts = self._body.counts()
            if counts is not None:
                report = Report(self.promised, counts.out, counts.into, counts.sent)
                if report != self.reported:
                    self.reported = report
                    self._say(self.leader, report)
                    self._work()

    def _work(self) -> None:
        while self._own:
            self._hear(self.me, self._own.popleft())

    def _hear(self, source: int, note: AnyNote) -> None:
        match note:
            case Ask(plan, wish, view):
                if view < self.roll.number and source in self.vouchers.values() and self._body.rules() > 6:
                    plan = plan.without_leaves([self.roll.names[source]])
                self._wish(self._not_withdrawn(source, plan, wish))
                self._let_go(source, plan)
                if plan.remove and self._would_have_led() and self._body.rules() > 3:
                    # It waits for us to lead, since it does not know the view with which we have left.
                    self._say(source, Ahead(self.roll))
                if plan.remove and view > self.roll.number and self._body.rules() > 6:
                    # One that is ahead of us does not know whom we wait for to lead.
                    self._tell_successor(plan)
            case Withdrawn():
                self._withdraw(source, note)
            case Stop():
                self._stop(source, note)
            case Stopped():
                self._has_stopped(source, note)
            case Settle(round):
                self._settle(round)
            case Report():
                self._has_reported(source, note)
            case Install(roll):
                if roll.number > self.roll.number:
                    self._install(roll)
                self._say(source, Installed(roll.number))
            case Installed(number):
                self._has_installed(source, number)
            case Go(number):
                self._go(number)
            case Ahead(roll):
                if self._body.rules() > 6 and source == self.leader and roll.number > self.roll.number:
                    # It led us, and has left: nobody leads this round any more.
                    self.leader = self.me
                    self._catch_up(roll)
                elif self.led is not None or source == self._successor():
                    self._catch_up(roll)
            case Later(round):
                self._yield(round)
            case Resume(round):
                self._resume(source, round)
            case State() | Handed():
                raise AssertionError("a state for a joining node reached the membership")
            case _:
                assert_never(note)

    # As a member

    def _stop(self, leader: int, stop: Stop) -> None:
        roll = self.roll
        if leader not in roll.members and stop.roll.number < roll.number and self._body.rules() > 6:
            # It has left, and does not know. If it left before this view, nobody here knows the one that it left with:
            # it hears that it is no member when it connects.
            if leader in roll.left:
                self._say(leader, Ahead(roll))
            return
        if stop.round <= self.promised:
            if leader != self.leader:
                self._say(leader, Later(self.promised))
            # Else it has begun anew, and this was overtaken.
            return
        if stop.roll.number < self.roll.number:
            self._say(leader, Ahead(self.roll))
            return
        if stop.roll.number > self.roll.number:
            self._install(stop.roll)
        self.promised, self.leader, self.plan = stop.round, leader, stop.plan
        self.going = self.settled = False
        for place in self._places(stop.plan.remove):
            if place not in self.cut:
                self.cut.add(place)
                self._body.cut(place)
        self._say(leader, Stopped(stop.round, tuple(self.roll.names[place] for place in sorted(self.cut))))

    def _settle(self, round: int) -> None:
        if round == self.promised:
            self.settled = True
            self._body.settle(self._places(self.plan.remove))

    def _resume(self, leader: int, round: int) -> None:
        overtook = round > self.promised
        if overtook:
            # It has overtaken the `Stop`, which is nothing to us any more.
            self.promised, self.leader = round, leader
        if round == self.promised and round > self.roll.number and not (overtook and self._body.rules() < 6):
            # Perhaps it has overtaken the word to go on in this view, too: its sender knew that all have installed it.
            self.going, self.settled, self.plan = self.is_member, False, Plan()
            if self._body.rules() > 5:
                self._body.part(self.roll)

    def _install(self, roll: Roll) -> None:
        self._body.install(roll)
        self.roll, self.plan = roll, Plan()
        if self._body.rules() > 6:
            self.wanted = self.wanted.without_leaves([roll.names[place] for place in roll.donors.values()])
        self.vouchers = {q: by for q, by in (self.vouchers | roll.donors).items() if q in roll.members}
        self.cut.intersection_update(roll.members)
        self.promised = max(self.promised, roll.number)
        self.going = self.settled = False

    def _go(self, number: int) -> None:
        # A later round may have begun: then its own end lets sends go on.
        if number == self.roll.number == self.promised:
            self.going = self.is_member
            self._body.part(self.roll)
            self._consider()

    # Snapshots

    def snapshot(self) -> dict[str, Any]:
        result: dict[str, Any] = plain(Kept(*(getattr(self, name) for name in Kept.__struct_fields__)))
        return result

    def load(self, snapshot: Mapping[str, Any]) -> None:
        kept = typed(snapshot, Kept)
        for name in Kept.__struct_fields__:
            setattr(self, name, getattr(kept, name))
