"""Every schedule of a change of the view: whole processes (`Core`), a network that delays and reorders at will.

What a schedule chooses: which payload in flight arrives; when a process sends its next message; when a change is
wanted, and when it is wanted no more; when a process crashes for good, and when an operator has it removed; when one
that joined begins to live, and whether it ever does.
Global states are walked breadth first, and each is expanded once. As in `antecede.explore`, what an input does to a
process is worked out once for each of its states (`tests.view_steps`).

What is left out, and why
  links      a payload arrives once. That links see to this whatever connections lose, repeat or break is explored by
             itself (`tests/test_link.py`); a connection that is lost is a payload that takes long.
  restarts   a process that comes back from its journal is one that was slow: what is not in it, nobody was told.
  the dead   of what a process sent before it crashed any part may arrive, or none.
  repeats    who waits for a change asks again when nothing else can happen, and not before.
  bound      the messages, changes and crashes of a `Story`: one of each as a rule, in systems of two or three.

Checked
  always     no note or packet is refused; views of one number are the same; a packet arrives in the view in which it
             was sent; who is no member sends nothing
  the end    what was wanted is so; all members are in one view, go on, and hold nothing; everything between them was
             handed over, in causal order and once; one that joined has its state
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest.mock import patch

from antecede.model import Event
from antecede.oracle import check
from antecede.process import core, snapshots
from antecede.process.inputs import Propose, Send, Withdraw
from antecede.process.views.members import Plan, Roll
from antecede.process.views.notes import is_note
from tests.view_steps import Flight, Local, Post, Processes, Unmet, Wrong

__all__ = ["Found", "Story", "explore"]


class Global(NamedTuple):
    """The whole system."""

    locals: tuple[int, ...]
    """By position: what is known of a process, or `ABSENT`, or `DEAD`."""
    flying: frozenset[Flight]
    said: tuple[int, ...]
    """How many of its messages each process has sent."""
    asked: tuple[bool, ...]
    """Which of the wishes were made."""
    views: frozenset[int]
    """All views that there ever were."""
    events: tuple[Any, ...] = ()
    """What the dead have recorded."""
    repeats: int = 0
    """How often something was asked for again."""
    withdrawn: bool = False
    """Whoever was to join is not wanted any more."""


ABSENT, DEAD = -1, -2
PATIENCE = 4
"""How often something is asked for again: twice would do."""


@dataclass(frozen=True)
class Story:
    """What may happen, once each, at any moment."""

    members: str
    says: tuple[tuple[str, str, str], ...] = ()
    """(who, to whom, after a message of whom, or ""), in the order of each sender."""
    wants: tuple[tuple[str, Plan], ...] = ()
    """Who asks for which change. A removal is asked for after the crash."""
    crashes: str = ""
    """Who may crash, one of them and for good; it is then removed, by whom `wants` says or by the first that lives."""
    protocol: str = "matrix"
    withdraws: bool = False
    """Whoever wanted someone to join may withdraw that."""
    may_stay_away: bool = False
    """Whoever joins may never begin to live; if it does, it greets. Else all know it from the start."""


@dataclass
class Found:
    """What all schedules come to."""

    states: int = 0
    steps: int = 0
    ends: int = 0
    wrong: str = ""
    path: list[str] = field(default_factory=list)
    complete: bool = True


class Search:
    """The walk."""

    def __init__(self, story: Story, most: int) -> None:
        self.story, self.most, self.processes = story, most, Processes(story.protocol)
        self.found = Found()
        self.places = {name: place for place, name in enumerate(story.members)}
        for _, plan in story.wants:
            for joiner in plan.join:
                self.places[joiner.name] = len(self.places)
        self.names = tuple(self.places)
        self.scripts = [[say for say in story.says if say[0] == name] for name in self.names]

    def run(self) -> Found:
        first = Roll.first(tuple(self.story.members), {"all": self.story.members})
        start = [self.processes.begin(name, first) for name in self.story.members]
        n = len(self.names)
        views = frozenset(self.processes.locals[local].roll for local in start)
        state = Global(
            (*start, *[ABSENT] * (n - len(start))),
            frozenset(),
            (0,) * n,
            (False,) * len(self.story.wants),
            views,
        )
        before: dict[Global, tuple[Global, str] | None] = {state: None}
        todo = deque([state])
        while todo:
            state = todo.popleft()
            self.found.states += 1
            if self.found.states > self.most:
                self.found.complete = False
                break
            try:
                for told, after in self._choices(state):
                    self.found.steps += 1
                    if after not in before:
                        before[after] = (state, told)
                        todo.append(after)
            except Wrong as wrong:
                self.found.wrong, self.found.path = str(wrong), self._path(before, state)
                break
        return self.found

    def _path(self, before: dict[Global, tuple[Global, str] | None], state: Global) -> list[str]:
        path = []
        while (came := before[state]) is not None:
            state, told = came
            path.append(told)
        return path[::-1]

    # Steps

    def _choices(self, state: Global) -> Iterator[tuple[str, Global]]:
        """All that may happen next; at an end, the end is judged."""
        must = 0
        for flight in state.flying:
            if state.locals[flight.dest] >= 0:
                yield self._arrive(state, flight)
                must += state.locals[flight.source] != DEAD
        for told, after in (*self._sends(state), *self._wishes(state)):
            must += 1
            yield told, after
        for told, after in self._births(state):
            must += not self.story.may_stay_away
            yield told, after
        yield from self._crashes(state)
        yield from self._withdrawals(state)
        if not must:
            again = list(self._repeat(state))
            yield from again
            if not again:
                self.found.ends += 1
                self._judge(state)

    def _after(self, state: Global, place: int, given: Any, **change: Any) -> Global:
        local, out = self.processes.step(state.locals[place], given)
        locals_ = list(state.locals)
        locals_[place] = local
        roll = self.processes.locals[local].roll
        views = state.views
        if roll not in views:
            views |= {roll}
            numbers = [self.processes.rolls[view].number for view in views]
            if len(set(numbers)) < len(numbers):
                raise Wrong(f"two views of one number: {[self.processes.rolls[view] for view in views]}")
        flying = change.pop("flying", state.flying)
        # What is sent to one that is gone for good never arrives.
        flying |= {flight for flight in out if state.locals[flight.dest] != DEAD}
        return state._replace(locals=tuple(locals_), flying=flying, views=views, **change)

    def _arrive(self, state: Global, flight: Flight) -> tuple[str, Global]:
        here = self.processes.locals[state.locals[flight.dest]]
        roll = self.processes.rolls[here.roll]
        after = self._after(state, flight.dest, flight, flying=state.flying - {flight})
        told = f"{self.names[flight.dest]} gets {flight.payload!r} of {self.names[flight.source]}"
        heard = after.locals[flight.dest] != state.locals[flight.dest]
        packets = flight.payload is not None and not is_note(flight.payload)
        if heard and packets and flight.view != roll.number:
            raise Wrong(f"{told} in view {roll.number}, and it was sent in {flight.view}")
        return told, after

    def _sends(self, state: Global) -> Iterator[tuple[str, Global]]:
        for place, script in enumerate(self.scripts):
            if state.locals[place] < 0 or state.said[place] == len(script):
                continue
            local = self.processes.locals[state.locals[place]]
            _, to, after = script[state.said[place]]
            roll = self.processes.rolls[local.roll]
            heard = [sender for kind, sender, _, _ in local.events if kind == "deliver"]
            targets = tuple(sorted(self.places[name] for name in to if self.places[name] in roll.members))
            if local.going and not local.waits and targets and (not after or self.places[after] in heard):
                said = (*state.said[:place], state.said[place] + 1, *state.said[place + 1 :])
                yield f"{self.names[place]} sends", self._after(state, place, Send(targets, b""), said=said)

    def _wishes(self, state: Global) -> Iterator[tuple[str, Global]]:
        for which, (who, plan) in enumerate(self.story.wants):
            if not state.asked[which] and self._may_ask(state, who, plan):
                asked = (*state.asked[:which], True, *state.asked[which + 1 :])
                after = self._after(state, self.places[who], Propose(plan), asked=asked)
                yield f"{who} wants {plan}", after

    def _may_ask(self, state: Global, who: str, plan: Plan) -> bool:
        local = state.locals[self.places[who]]
        if (
            local < 0
            or self.places[who] not in self.processes.rolls[self.processes.locals[local].roll].members
        ):
            return False
        gone = [state.locals[self.places[name]] for name in plan.remove]
        # Who vouches for one that has not begun has it removed, though it may begin at that moment.
        unheard = set(plan.remove) <= set(self.processes.locals[local].unheard)
        return all(one == DEAD for one in gone) or (bool(plan.remove) and unheard)

    def _births(self, state: Global) -> Iterator[tuple[str, Global]]:
        """One that joined begins to live, in the view that a member tells it."""
        for teller in state.locals:
            if teller < 0 or not self.processes.locals[teller].firm:
                continue
            roll = self.processes.rolls[self.processes.locals[teller].roll]
            for place in roll.donors:
                if state.locals[place] == ABSENT:
                    locals_ = list(state.locals)
                    locals_[place] = self.processes.begin(roll.names[place], roll)
                    flying = state.flying
                    if self.story.may_stay_away:
                        others = [member for member in roll.members if state.locals[member] >= 0]
                        flying |= {Flight(place, member, 0, roll.number, None) for member in others}
                    after = state._replace(locals=tuple(locals_), flying=flying)
                    yield f"{roll.names[place]} begins", after

    def _crashes(self, state: Global) -> Iterator[tuple[str, Global]]:
        if DEAD in state.locals:
            return
        for name in self.story.crashes:
            place = self.places[name]
            if state.locals[place] >= 0:
                locals_ = list(state.locals)
                locals_[place] = DEAD
                events = ((place, self.processes.locals[state.locals[place]].events),)
                flying = frozenset(flight for flight in state.flying if flight.dest != place)
                after = state._replace(locals=tuple(locals_), flying=flying, events=events)
                yield f"{name} crashes", after

    def _withdrawals(self, state: Global) -> Iterator[tuple[str, Global]]:
        if not self.story.withdraws or state.withdrawn:
            return
        for which, (who, plan) in enumerate(self.story.wants):
            local = state.locals[self.places[who]]
            if plan.join and state.asked[which] and local >= 0:
                names = tuple(joiner.name for joiner in plan.join)
                after = self._after(state, self.places[who], Withdraw(names), withdrawn=True)
                yield f"{who} withdraws {names}", after

    # Ends

    def _is_wanted(self, state: Global, plan: Plan) -> bool:
        """Whether someone still waits for it."""
        return not (plan.join and state.withdrawn)

    def _repeat(self, state: Global) -> Iterator[tuple[str, Global]]:
        """Whoever waits for a change asks for it again, if that changes anything."""
        wants = enumerate(self.story.wants if state.repeats < PATIENCE else ())
        for which, (who, plan) in wants:
            # Who wants another removed is an operator, and asks whoever is there.
            others = self.names if plan.remove else ()
            able = [name for name in (who, *others) if self._may_ask(state, name, plan)]
            for name in able[:1]:
                wanted = state.asked[which] and self._is_wanted(state, plan)
                if wanted and not self._is_done(state, name, plan):
                    after = self._after(state, self.places[name], Propose(plan), repeats=state.repeats + 1)
                    yield f"{name} repeats {plan}", after

    def _is_done(self, state: Global, name: str, plan: Plan) -> bool:
        local = self.processes.locals[state.locals[self.places[name]]]
        return local.going and not plan.left(self.processes.rolls[local.roll])

    def _judge(self, state: Global) -> None:
        living = {place: self.processes.locals[one] for place, one in enumerate(state.locals) if one >= 0}
        absent = {place for place, one in enumerate(state.locals) if one == ABSENT}
        dead = {place for place, one in enumerate(state.locals) if one == DEAD}
        rolls = {place: self.processes.rolls[local.roll] for place, local in living.items()}
        # One that left while its leader crashed may not know: whom it dials tells it.
        newest = max(rolls.values(), key=lambda roll: roll.number)
        staying = {place for place in living if place in newest.members}
        wanted = [plan for asked, (_, plan) in zip(state.asked, self.story.wants, strict=True) if asked]
        if dead and not any(plan.remove for plan in wanted):
            # Nobody has it removed: the others may wait for it.
            return
        for place in staying:
            local, name = living[place], self.names[place]
            if local.orphaned:
                # It stops, and is removed in its turn.
                continue
            if not local.going or not local.idle or local.waits:
                raise Wrong(f"{name} is stuck: {local._replace(snapshot=b'')} in {rolls[place]}")
            if absent & set(rolls[place].members) and any(plan.remove for plan in wanted):
                raise Wrong(f"{name} has one among its members that never came: {rolls[place]}")
            if dead & set(rolls[place].members):
                raise Wrong(f"{name} has the dead among its members: {rolls[place]}")
        if len({rolls[place].number for place in staying}) > 1:
            raise Wrong(f"members are in several views: {rolls}")
        for (who, plan), asked in zip(self.story.wants, state.asked, strict=True):
            wanted_still = asked and self._is_wanted(state, plan)
            if wanted_still and self.places[who] in staying and plan.left(rolls[self.places[who]]):
                raise Wrong(f"what {who} wanted is not so: {plan}")
        if not any(living[place].orphaned for place in staying):
            self._judge_messages(state, living, dead)

    def _judge_messages(self, state: Global, living: dict[int, Local], dead: set[int]) -> None:
        events = [
            Event(place, kind, sender, number, to if kind == "send" else ())
            for place, mine in [*((place, local.events) for place, local in living.items()), *state.events]
            for kind, sender, number, to in mine
        ]
        verdict = check(events, len(self.names))
        wrong = (*verdict.violations, *verdict.duplicates, *verdict.unsent, *verdict.unaddressed)
        lost = [copy for copy in verdict.undelivered if copy.message[0] not in dead and copy.at not in dead]
        skipped = [one for one in verdict.skipped if one.overtaken[0] not in dead and one.at not in dead]
        if wrong or lost or skipped:
            raise Wrong(f"messages: {wrong} {lost} {skipped}")


def explore(story: Story, most: int = 1_000_000) -> Found:
    """Every schedule of a story, or as many states as `most`."""
    link = Unmet if story.may_stay_away else Post
    with patch.object(core, "Link", link), patch.object(snapshots, "Link", link):
        return Search(story, most).run()


def main() -> int:
    """More than the tests have time for: longer conversations, two changes and a crash, other protocols."""
    from tests.test_net_views_explored import CHAIN, join, leave, remove

    parser = ArgumentParser(prog="python -m tests.view_explore", description=main.__doc__)
    parser.add_argument("--most", type=int, default=1_000_000, help="states of each story")
    most, wrong = parser.parse_args().most, 0
    stories = [Story("abc", CHAIN, (leave(x),), protocol="permit") for x in "abc"]
    stories += [Story("abc", CHAIN, (leave("a"), join("c")))]
    stories += [Story("abc", CHAIN, (remove(x, y), leave(z)), x) for x, y, z in ("abc", "acb", "bac", "cab")]
    for story in stories:
        found = explore(story, most)
        wrong += bool(found.wrong)
        told = found.wrong or ("nothing wrong" if found.complete else "nothing wrong so far")
        wants = ", ".join(f"{who} {plan}" for who, plan in story.wants)
        print(f"{story.protocol} {wants}: {found.states:,} states, {found.ends:,} ends, {told}", flush=True)
        for step in found.path:
            print(f"    {step}")
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
