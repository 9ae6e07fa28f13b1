"""How a view changes, as a pure state machine: one process's part of it. `Body` is the rest of the process.

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

from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, assert_never

from msgspec import Struct

from antecede.errors import CallerError
from antecede.process.views.members import (
    Ahead,
    AnyNote,
    Ask,
    Go,
    Handed,
    Install,
    Installed,
    Later,
    Plan,
    Report,
    Resume,
    Roll,
    Settle,
    State,
    Stop,
    Stopped,
    Withdrawn,
)
from antecede.process.views.round import Body, Led, Progress
from antecede.process.views.validation import vet
from antecede.protocols.machine import plain, typed

__all__ = ["Membership"]

JOINERS = 16
"""Who joins with one view, at most. The others wait for the next."""
WISHES = 64
"""Names that one member wants to join, or has withdrawn, that are remembered."""


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


class Membership:
    """One process's part. What it says is in `notes`, each with the position that it is for."""

    def __init__(self, roll: Roll, me: int, body: Body) -> None:
        self.me, self._body = me, body
        self.roll = roll
        self.promised = roll.number
        """The round that this process follows, or followed last."""
        self.leader = me
        """Who leads it."""
        self.going = True
        """The application may send."""
        self.settled = False
        """Whatever can be delivered is to be, at once."""
        self.plan = Plan()
        """That of the round."""
        self.cut: set[int] = set()
        """Whom this process does not hear any more, though they are members."""
        self.wanted = Plan()
        """What we, as a leader, are to bring about."""
        self.led: Led | None = None
        self.notes: list[tuple[int, AnyNote]] = []
        self.refused: dict[str, str] = {}
        """Who could not join, and why; since the last restart."""
        self.reported: Report | None = None
        """What the leader was told last; perhaps one of an earlier round."""
        self.wish = 0
        """Counts what we have withdrawn."""
        self.withdrawn: dict[int, dict[str, int]] = {}
        """What others have withdrawn: by whom, the name, and the count then. An older wish was overtaken."""
        self.vouchers: dict[int, int] = dict(roll.donors)
        """Who joined, and whom it asked, since we know of it. Only while it was never heard does it matter."""
        self._own: deque[AnyNote] = deque()

    @property
    def is_member(self) -> bool:
        return self.me in self.roll.members

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
        """Whether to ask for this node to join now: not while members are `down`, unless the change has begun."""
        progress = self.progress()
        return not down or (progress is not None and name in progress.join)

    def progress(self) -> Progress | None:
        """The change that is under way or wanted, and what it waits for; None if there is none."""
        led, names = self.led, self.roll.names
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
            successor = self._successor()
            stage, plan, leader = "follow", self.plan, self.leader
            awaited = [leader if successor in (None, self.me) else successor]
        elif self.wanted:
            leader = self._leader(self.wanted)
            stage, plan, awaited = "wanted", self.wanted, list(self._body.strangers()) or [leader]
        else:
            return None
        join = tuple(joiner.name for joiner in plan.join)
        told = tuple(names[place] for place in awaited)
        return Progress(stage, names[leader], told, join, plan.leave, plan.remove)

    def list_unheard(self) -> dict[str, str]:
        """Who joined and was never heard here -> the member that vouches for it."""
        names, vouchers = self.roll.names, self.vouchers
        return {names[place]: names[vouchers[place]] for place in self._body.strangers() if place in vouchers}

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

    def _say(self, dest: int, note: AnyNote) -> None:
        if dest == self.me:
            self._own.append(note)
        elif dest not in self.cut:
            self.notes.append((dest, note))

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
                raise AssertionError("the state of one that joins is not for its membership")
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

    def _places(self, names: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(place for place, name in enumerate(self.roll.names) if name in names)

    # As the leader

    def _successor(self) -> int | None:
        """Who is to lead instead of a leader that is to be removed, if that is another than we."""
        if self.going or self.leader not in self._places(self.wanted.remove):
            return None
        return self._leader(self.wanted)

    def _tell_successor(self, plan: Plan) -> None:
        successor = self._successor()
        if successor not in (None, self.me):
            self._say(successor, Ask(Plan(remove=plan.remove), self.wish, self.roll.number))

    def _would_have_led(self) -> bool:
        """Whether we have left, and would be the successor of our leader in the view before."""
        removed = set(self._places(self.wanted.remove))
        before = {*self.roll.members, *self.roll.left} - removed
        return not self.is_member and self.leader in removed and min(before, default=-1) == self.me

    def _leader(self, plan: Plan) -> int:
        """Who leads a change by this plan; ourselves, if nobody is left."""
        return next(iter(self.roll.without(plan.remove)), self.me)

    def _left(self) -> Plan:
        """What is still to be done. Whom a change waits for can be removed, though it is no member any more."""
        waited = set() if self.going else {self.leader}
        if self.led is not None:
            waited |= self.led.awaited
        if not self.going and self._body.rules() > 6:
            # A round that was begun without them cannot hear them again, whatever else it was begun for.
            waited |= self.cut
        left = self.wanted.left(self.roll, [self.roll.names[place] for place in waited])
        if left.remove and self._body.rules() > 3:
            # Nobody vouches any more for those that asked the removed: who has not joined yet asks another.
            join = tuple(joiner for joiner in left.join if joiner.by not in left.remove)
            orphans = tuple(name for name, by in self.list_unheard().items() if by in left.remove)
            left = Plan(join, left.leave, left.remove) | Plan(remove=orphans)
        return left

    def _wish(self, plan: Plan) -> None:
        wanted = self.wanted | plan
        if self._leader(wanted) == self.me and self.is_member:
            self.wanted = wanted
            self._consider()
        else:
            # Who wants more than this repeats it, and will know by then who leads.
            self.wanted |= Plan(remove=plan.remove)
            if self.led is not None and self._body.rules() > 3:
                self._consider()

    def _let_go(self, source: int, plan: Plan) -> None:
        """Tell one that waits for a leader which has left, and died before it told all to go on, that it may."""
        roll, leader = self.roll, self.leader
        gone = leader not in roll.members and roll.names[leader] in plan.remove
        if (
            source != self.me
            and gone
            and self.going
            and self.promised == roll.number
            and self._body.rules() > 4
        ):
            self._say(source, Go(roll.number))

    def _not_withdrawn(self, source: int, plan: Plan, wish: int) -> Plan:
        """What of a plan was not withdrawn since; and no more names of one member than are remembered."""
        by = self.roll.names[source]
        old = [name for name, when in self.withdrawn.get(source, {}).items() if wish < when]
        known = {joiner.name for joiner in self.wanted.join if joiner.by == by}
        new = [joiner.name for joiner in plan.join if joiner.name not in known]
        return plan.without((*old, *new[max(0, WISHES - len(known)) :]), by)

    def _withdraw(self, source: int, note: Withdrawn) -> None:
        by, withdrawn = self.roll.names[source], self.withdrawn.setdefault(source, {})
        for name in note.names:
            withdrawn.pop(name, None)
            withdrawn[name] = note.wish
        while len(withdrawn) > WISHES:
            del withdrawn[next(iter(withdrawn))]
        self.wanted = self.wanted.without(note.names, by)
        led = self.led
        if led is None or led.stage == "install" or led.plan.without(note.names, by) == led.plan:
            return
        self.wanted = plan = self._left()
        if plan or led.plan.remove or self.cut:
            self._begin()
            return
        self.led = None
        for place in self._taking_part(led.plan):
            self._say(place, Resume(led.round))

    def _consider(self) -> None:
        """Begin, begin anew, or wait for the end of what is under way."""
        self.wanted = plan = self._left()
        led = self.led
        if led is None:
            gone = self.leader in self._places(plan.remove)
            leads = self.is_member and self._leader(plan) == self.me
            if plan and leads and (self.going or gone or self.leader == self.me) and not self._waits(plan):
                self._begin()
        elif led.stage == "install":
            led.awaited.difference_update(self._places(plan.remove))
            self._finish()
        elif not set(plan.remove) <= set(led.plan.remove):
            self._begin()

    def _waits(self, plan: Plan) -> bool:
        """Whether a member that nobody ever heard would stop all the others: it comes first, or is removed."""
        return not plan.remove and self._body.rules() > 3 and bool(self._body.strangers())

    def _begin(self) -> None:
        plan = self.wanted = self._possible(self.wanted)
        if not plan and self.led is None:
            return
        # A round that was begun is ended by a view, be it with the same members.
        round = max(self.promised, self.led.round if self.led is not None else 0) + 1
        self.led = Led(round, plan)
        for place in self._taking_part(plan):
            self._say(place, Stop(round, self.roll, plan))

    def _possible(self, plan: Plan) -> Plan:
        """The plan, or as much of it as leaves members among whom the protocol can run."""
        begun = Plan() if self.led is None else Plan(remove=self.led.plan.remove)
        if self._body.rules() > 3:
            # A topology changes by one that joins at a time.
            most = JOINERS if self.roll.topology is None else 1
            plan = Plan(plan.join[:most], plan.leave, plan.remove)
        for part in (plan, Plan(leave=plan.leave, remove=plan.remove), Plan(remove=plan.remove), begun):
            error = self.judge(part)
            if error is None:
                return part
            dropped = (*(joiner.name for joiner in plan.join), *plan.leave, *plan.remove)
            self.refused |= dict.fromkeys(dropped, str(error))
        return begun

    def judge(self, plan: Plan) -> CallerError | None:
        """Why the view cannot change by this plan, if it cannot."""
        try:
            return self._body.accepts(self.roll.follow(0, plan, {}).shown)
        except CallerError as error:
            return error

    def _taking_part(self, plan: Plan) -> tuple[int, ...]:
        return self.roll.without(plan.remove)

    def _has_stopped(self, source: int, note: Stopped) -> None:
        led = self.led
        if led is None and not self.is_member and note.round > self.roll.number and self._body.rules() > 6:
            # We have left, and led until we knew.
            self._say(source, Ahead(self.roll))
        if led is None or led.round != note.round or led.stage != "stop":
            return
        if not set(note.cut) <= set(led.plan.remove):
            # Someone was told to remove more than we know of, by a leader that is gone.
            self.wanted |= Plan(remove=note.cut)
            if set(note.cut) <= set(self._possible(self._left()).remove):
                self._consider()
            # Else the protocol cannot run among those that are left: `refused` says why.
            return
        led.stopped.add(source)
        members = self._taking_part(led.plan)
        if led.stopped.issuperset(members):
            led.stage = "flush"
            for place in members:
                self._say(place, Settle(led.round))

    def _has_reported(self, source: int, report: Report) -> None:
        led = self.led
        if led is None or led.round != report.round or led.stage != "flush":
            return
        led.note(source, report)
        members = self._taking_part(led.plan)
        if not led.unreported(members):
            self._decide(led, members)

    def _decide(self, led: Led, members: tuple[int, ...]) -> None:
        sent = {place: led.reports[place].sent for place in members}
        roll = self.roll.follow(led.round, led.plan, sent)
        led.stage, led.awaited = "install", set(members)
        for place in members:
            self._say(place, Install(roll))

    def _has_installed(self, source: int, number: int) -> None:
        led = self.led
        if led is not None and led.stage == "install" and led.round == number:
            led.awaited.discard(source)
            self._finish()

    def _finish(self) -> None:
        led = self.led
        assert led is not None
        if led.awaited or self.roll.number != led.round:
            return
        plan = self.wanted = self._left()
        if self.is_member and self._possible(plan).remove:
            # Someone who will never send in this view is still in it: the next one begins at once.
            self._begin()
            return
        self.led = None
        left = tuple(place for place in self.roll.left if self.roll.names[place] not in plan.remove)
        for place in (*self.roll.members, *left):
            if self.roll.names[place] not in plan.remove and place not in self.roll.donors:
                self._say(place, Go(self.roll.number))

    def _catch_up(self, roll: Roll) -> None:
        if roll.number > self.roll.number:
            self._install(roll)
            self._begin_again()
            if self.led is None:
                self._consider()

    def _yield(self, round: int) -> None:
        led = self.led
        if led is not None and led.stage == "stop" and led.round <= round:
            led.round = round
            self._begin_again()

    def _begin_again(self) -> None:
        self.wanted = self._left()
        if self.led is not None and self.led.stage == "stop":
            if self.is_member:
                self._begin()
            else:
                # We have left with what was decided. Who stays has heard what is wanted, or will be asked again.
                stopped, self.led = self.led.stopped, None
                if self._body.rules() > 6:
                    for place in sorted(stopped.intersection(self.roll.members)):
                        self._say(place, Ahead(self.roll))

    # Snapshots

    def snapshot(self) -> dict[str, Any]:
        kept = Kept(
            self.roll, self.promised, self.leader, self.going, self.settled, self.plan, self.cut, self.wanted,
            self.led, self.reported, self.wish, self.withdrawn, self.vouchers,
        )  # fmt: skip
        result: dict[str, Any] = plain(kept)
        return result

    def load(self, snapshot: Mapping[str, Any]) -> None:
        kept = typed(snapshot, Kept)
        self.roll, self.promised, self.leader = kept.roll, kept.promised, kept.leader
        self.going, self.settled, self.plan, self.cut = kept.going, kept.settled, kept.plan, kept.cut
        self.wanted, self.led, self.reported = kept.wanted, kept.led, kept.reported
        self.wish, self.withdrawn, self.vouchers = kept.wish, kept.withdrawn, kept.vouchers
