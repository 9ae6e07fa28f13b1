"""What a process does that leads a change of the view (`membership` has the rules, and why they hold).

A leader keeps what is wanted, begins a round for it, decides once all have reported, and ends it once all have the new
view. Whoever does not lead keeps what is wanted as far as that decides who leads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

from antecede.errors import CallerError
from antecede.process.views.members import Plan, Roll
from antecede.process.views.notes import (
    Ahead,
    AnyNote,
    Ask,
    Go,
    Install,
    Report,
    Resume,
    Settle,
    Stop,
    Stopped,
    Withdrawn,
)
from antecede.process.views.round import Body, Led

__all__ = ["Leader"]

JOINERS = 16
"""Who joins with one view, at most. The others wait for the next."""
WISHES = 64
"""Names that one member wants to join, or has withdrawn, that are remembered."""


class Leader(ABC):
    """The state of one process's part in changes, and what it does as a leader."""

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

    def list_unheard(self) -> dict[str, str]:
        """Who joined and was never heard here -> the member that vouches for it."""
        names, vouchers = self.roll.names, self.vouchers
        return {names[place]: names[vouchers[place]] for place in self._body.strangers() if place in vouchers}

    def _places(self, names: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(place for place, name in enumerate(self.roll.names) if name in names)

    def _say(self, dest: int, note: AnyNote) -> None:
        if dest == self.me:
            self._own.append(note)
        elif dest not in self.cut:
            self.notes.append((dest, note))

    @abstractmethod
    def _install(self, roll: Roll) -> None:
        """Begin this view."""

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
