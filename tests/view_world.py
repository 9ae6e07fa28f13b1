"""Processes whose view changes, and the network between them, in memory: every step is drawn from one seed.

Frames are lost, repeated and overtaken. A process is killed at any moment: it comes back from as much of its journal as
was durable, and what it had not let out by then never happened; or it never comes back, and an operator removes it. The
application keeps the set of all that it has said and heard in the group `all`: what one that joins is given as its
state, so that all sets must be the same in the end.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from antecede.link import Frame
from antecede.model import Event, Message, View
from antecede.oracle import Verdict, check
from antecede.process.core import Core, Out
from antecede.process.inputs import Acknowledge, Arrive, Input, Pass, Propose, Restart, Send, Take, Turn
from antecede.process.views.members import Change, Joiner, Lost, Plan, Roll
from antecede.protocols import PROTOCOLS

FOUNDERS = ("a", "b", "c")
MILLISECOND = 1_000_000
HURRY = 2000 * MILLISECOND


@dataclass
class Process:
    """One process, with its journal, its application, and what it may let out once the journal is durable."""

    name: str
    born: Core
    """As it was before its first input; never changed."""
    core: Core
    journal: list[Input] = field(default_factory=list)
    durable: int = 0
    out: list[tuple[int, list[Out]]] = field(default_factory=list)
    dead: bool = False
    lost: list[Lost] = field(default_factory=list)

    @property
    def gone(self) -> bool:
        """It is no member any more, and knows it."""
        return self.core.me not in self.core.changing.roll.members


class World:
    """All of them."""

    def __init__(self, protocol: str, seed: str, drops: float = 0.05) -> None:
        self.protocol, self.random, self.drops = protocol, Random(seed), drops
        self.now = 0
        self.flying: list[tuple[str, str, Frame]] = []
        self.rolls: dict[int, Roll] = {}
        self.processes: dict[str, Process] = {}
        self.asked: list[tuple[str, Plan]] = []
        """What operators and processes want, with who wants it: repeated until it is so."""
        self.idle: set[str] = set()
        """Applications that take nothing for now."""
        self.counts: Counter[str] = Counter()
        first = Roll.first(FOUNDERS, {"all": FOUNDERS})
        for name in FOUNDERS:
            self._add(name, first)

    def _add(self, name: str, roll: Roll) -> None:
        def new() -> Core:
            core = Core.new(self.protocol, View(roll.names), name, epoch=1, roll=roll)
            core.record.on = True
            return core

        self.processes[name] = Process(name, new(), new())
        self._saw(roll)

    def _saw(self, roll: Roll) -> None:
        assert self.rolls.setdefault(roll.number, roll) == roll, "two views of one number"

    # Steps

    def happen(self, process: Process, given: Input) -> None:
        out = process.core.apply(given, self.now)
        assert not process.core.refused, f"a sound process is refused: {process.core.refused}"
        process.journal.append(given)
        process.out.append((len(process.journal), out))
        self._saw(process.core.changing.roll)

    def sync(self, process: Process) -> None:
        """The journal is durable so far."""
        process.durable = len(process.journal)
        for _, out in process.out:
            self._fly(process, out)
        process.out.clear()

    def _fly(self, process: Process, out: list[Out]) -> None:
        for dest, frame in out:
            name = process.core.view.name(dest)
            for _ in range(self.random.choice([1, 1, 1, 2])):
                if self.random.random() >= self.drops:
                    self.flying.append((process.name, name, frame))

    def alive(self) -> list[Process]:
        return [process for process in self.processes.values() if not process.dead]

    def arrive(self, which: int) -> None:
        source, dest, frame = self.flying.pop(which)
        process = self.processes.get(dest)
        if process is None or process.dead:
            return
        place = process.core.view.names.index(source) if source in process.core.view.names else None
        if place is None or place not in process.core.links:
            return
        if frame.bare and not frame.greets:
            # No input: what follows from it may leave only after what was an input before it.
            out = process.core.arrive(place, frame, self.now)
            process.out.append((len(process.journal), out))
        else:
            self.happen(process, Arrive.of(place, frame))

    def crash(self, process: Process, for_good: bool = False) -> None:
        """What was not durable never happened."""
        self.counts["killed" if for_good else "crashed"] += 1
        process.out.clear()
        del process.journal[process.durable :]
        process.dead = for_good
        core = Core.restore(process.born.snapshot())
        for given in process.journal:
            core.apply(given, 0)
        process.core = core
        if not for_good:
            process.lost = []
            self.happen(process, Restart(recording=True))

    def turn(self, process: Process) -> None:
        gathered = process.core.gathered
        out = process.core.turn(self.now)
        if gathered:
            process.journal.append(Turn())
            self._saw(process.core.changing.roll)
        process.out.append((len(process.journal), out))

    def tick(self, process: Process) -> None:
        for peer in list(process.core.links):
            process.out.append((len(process.journal), process.core.tick(peer, self.now)))

    def send(self, process: Process) -> None:
        core = process.core
        if not core.changing.membership.going:
            self.counts["waited"] += 1
            return
        if self.protocol == "broadcast" or self.random.random() < 0.6:
            echo = self.protocol == "broadcast" or self.random.random() < 0.5
            to, payload = core.changing.targets(["all"], echo), b"all"
            to = to or core.changing.targets(["all"])
        else:
            members = core.changing.roll.members
            to = tuple(sorted(self.random.sample(members, self.random.randint(1, len(members)))))
            payload = b"some"
        self.happen(process, Send(to, payload))
        self.counts["sent"] += 1

    def take(self, process: Process) -> None:
        core = process.core
        if core.changing.donor is not None or process.name in self.idle:
            return
        if core.again:
            core.again.popleft()
            return
        ready = core.changing.ready
        if ready and isinstance(ready[0], Change):
            change = ready[0]
            state = self.state(process) if change.owed else None
            process.lost += change.lost
            self.happen(process, Pass(change.number, state))
            self.counts["passed"] += 1
        elif ready:
            assert not isinstance(ready[0], Change)
            self.happen(process, Take(*ready[0].id))
        elif core.inbox:
            self.happen(process, Take(*self.random.choice(list(core.inbox))))

    def acknowledge(self, process: Process) -> None:
        if process.core.taken:
            self.happen(process, Acknowledge(*self.random.choice(list(process.core.taken))))

    # What the application has

    def list_applied(self, process: Process) -> set[tuple[int, int]]:
        """All of the group's messages that it has said without a copy to itself, or heard; from its journal."""
        said: set[tuple[int, int]] = set()
        core = Core.restore(process.born.snapshot())
        for given in process.journal:
            if isinstance(given, Take):
                ready, offered = core.changing.ready, core.inbox.get((given.sender, given.number))
                head = ready[0] if ready else offered and core.numbering.outward(offered)
                assert isinstance(head, Message)
                if given.number == 0:
                    said |= {(sender, number) for sender, number in json.loads(head.payload)}
                elif head.payload == b"all":
                    assert head.id not in said, (
                        f"{process.name} has {head.id} in its state, and gets it again"
                    )
                    said.add(head.id)
            if isinstance(given, Send) and given.payload == b"all" and core.me not in given.to:
                said.add((core.me, core.sent + 1))
            core.apply(given, 0)
        return said

    def state(self, process: Process) -> bytes:
        return json.dumps(sorted(self.list_applied(process))).encode()

    # What operators do

    def ask(self, who: str, plan: Plan) -> None:
        self.asked.append((who, plan))
        self.repeat()

    def repeat(self) -> None:
        """Whoever still waits for a change asks for it again."""
        for who, plan in list(self.asked):
            process = self.processes[who]
            roll = process.core.changing.roll
            if process.dead or who not in roll.shown:
                # Who wants someone else removed is an operator, and asks another.
                self.asked.remove((who, plan))
                others = [one for one in self.alive() if not one.gone and one.name not in plan.remove]
                if not plan.leave and others:
                    self.asked.append((others[0].name, plan))
            elif plan.left(roll) or not process.core.changing.membership.going:
                self.happen(process, Propose(plan))
            else:
                self.asked.remove((who, plan))

    def join(self, name: str) -> None:
        members = [process for process in self.alive() if not process.gone]
        by = self.random.choice(members).name
        self.counts["joining"] += 1
        self.ask(by, Plan(join=(Joiner(name, "", ("all",), by),)))

    def welcome(self) -> None:
        """Who is a member by now, and has not begun to live, does."""
        for process in self.alive():
            member, roll = process.core.changing.membership, process.core.changing.roll
            if member.firm:
                for place in roll.donors:
                    # Only what is durable is told.
                    if roll.names[place] not in self.processes and process.durable == len(process.journal):
                        self._add(roll.names[place], roll)
                        self.counts["joined"] += 1

    def bury(self) -> None:
        """Who will never be given its state cannot live: a node that finds itself so stops, and is removed.

        Who was removed, though it lives, because its voucher was and it was not heard yet, is told so, and stops.
        """
        removed = {place for roll in self.rolls.values() for place in roll.removed}
        for process in self.alive():
            if process.core.me in removed and not process.gone:
                self.crash(process, for_good=True)
                self.counts["removed alive"] += 1
        for process in self.alive():
            if process.core.changing.orphaned and not process.gone:
                others = [one.name for one in self.alive() if not one.gone and one is not process]
                self.crash(process, for_good=True)
                self.counts["orphaned"] += 1
                if others:
                    self.ask(others[0], Plan(remove=(process.name,)))

    # Runs

    def step(self, crashes: float = 0.0) -> None:
        self.now += 50 * MILLISECOND
        self.welcome()
        process = self.random.choice(self.alive())
        if self.random.random() < crashes:
            self.crash(process)
        match self.random.choice(
            [
                "send",
                "arrive",
                "arrive",
                "arrive",
                "take",
                "take",
                "ack",
                "turn",
                "turn",
                "sync",
                "sync",
                "tick",
            ]
        ):
            case "send" if not process.gone:
                self.send(process)
            case "arrive" if self.flying:
                self.arrive(self.random.randrange(len(self.flying)))
            case "take":
                self.take(process)
            case "ack":
                self.acknowledge(process)
            case "turn":
                self.turn(process)
            case "sync":
                self.sync(process)
            case "tick":
                self.tick(process)

    def settle(self) -> None:
        """No more is sent, and nothing lost: until nothing happens any more."""
        self.drops = 0.0
        self.idle.clear()
        for _ in range(400):
            self.now += HURRY
            self.welcome()
            self.bury()
            self.repeat()
            for process in self.alive():
                self.turn(process)
                self.tick(process)
                self.sync(process)
            self.welcome()
            while self.flying:
                self.arrive(self.random.randrange(len(self.flying)))
            for process in self.alive():
                for _ in range(200):
                    self.take(process)
            if self.is_quiet():
                return
        raise AssertionError(f"it does not come to rest: {self.trouble()}")

    def is_quiet(self) -> bool:
        return not self.asked and all(
            process.gone
            or (
                process.core.changing.membership.going
                and not process.core.inbox
                and not process.core.changing.ready
                and not process.core.changing.waiting()
                and not process.core.gathered
                and not any(link.unacknowledged for link in process.core.links.values())
            )
            for process in self.alive()
        )

    def trouble(self) -> str:
        return f"asked {self.asked}; " + "; ".join(
            f"{p.name}: view {p.core.changing.roll.number} of {p.core.changing.roll.shown}, promised "
            f"{p.core.changing.membership.promised} by {p.core.changing.membership.leader}, "
            f"going {p.core.changing.membership.going}, led {p.core.changing.membership.led}, "
            f"inbox {len(p.core.inbox)}, waiting {p.core.changing.waiting()}, ready {len(p.core.changing.ready)}, "
            f"donor {p.core.changing.donor}, unacknowledged "
            f"{[(p.core.view.name(q), link.unacknowledged) for q, link in p.core.links.items()]}"
            for p in self.alive()
        )

    # Judgement

    def roster(self) -> tuple[str, ...]:
        return max((roll.names for roll in self.rolls.values()), key=len)

    def events(self) -> list[Event]:
        events = []
        for process in self.processes.values():
            for entry in process.core.record.events:
                to = entry.to if entry.kind == "send" else ()
                events.append(Event(process.core.me, entry.kind, entry.sender, entry.number, to))
        return events

    def verdict(self) -> Verdict:
        kind = PROTOCOLS[self.protocol]
        at = [self.roster().index("a")] if kind.name == "monitor" else None
        return check(self.events(), len(self.roster()), at=at)

    def judge(self) -> None:
        """Causal order over all views, and nothing lost but what removed processes take with them."""
        verdict, roster = self.verdict(), self.roster()
        removed = {q for roll in self.rolls.values() for q in roll.removed}
        dead = {roster.index(process.name) for process in self.processes.values() if process.dead} | removed
        order = PROTOCOLS[self.protocol].order
        told = verdict.explain(View(roster))
        if order == "causal":
            assert not verdict.violations, told
            # What a removed process took with it cannot be waited for.
            assert all(skipped.overtaken[0] in dead or skipped.at in dead for skipped in verdict.skipped), (
                told
            )
        if order == "fifo":
            assert not verdict.fifo_breaks, told
        assert not verdict.duplicates, told
        assert not verdict.unsent, told
        assert not verdict.unaddressed, told
        for copy in verdict.undelivered:
            assert copy.message[0] in dead or copy.at in dead, told
        self._judge_views(dead)
        self._judge_states(dead)
        self._judge_losses(dead)

    def _judge_views(self, dead: set[int]) -> None:
        living = [process for process in self.alive() if not process.gone]
        assert len({process.core.changing.roll.number for process in living}) <= 1
        for process in living:
            assert process.name in process.core.changing.roll.shown
            assert process.core.me not in dead

    def _judge_states(self, dead: set[int]) -> None:
        """All that are members in the end have the same, but for what removed processes said."""
        sets = {
            process.name: {one for one in self.list_applied(process) if one[0] not in dead}
            | self._own(process)
            for process in self.alive()
            if not process.gone
        }
        whole: set[tuple[int, int]] = set().union(*sets.values())
        for name, one in sets.items():
            assert one == whole, f"{name} lacks {sorted(whole - one)} of {len(whole)}"

    def _own(self, process: Process) -> set[tuple[int, int]]:
        return set()

    def _judge_losses(self, dead: set[int]) -> None:
        """Nothing is given up but of and to those that were removed."""
        names = {self.roster()[place] for place in dead}
        for process in self.alive():
            for lost in process.lost:
                assert lost.sender in names or set(lost.to) <= names, lost
