"""A system of nodes: the event loop, the network between them, the operators, and how faults happen.

Time is simulated, in nanoseconds. What is planned for a node happens if it still lives the same life, and waits while
it is paused. Operators look at the system every `BEAT`: whoever wants to join, to leave or to have someone removed asks
again and again, as nodes do, and whoever is awaited and will never come back is removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import reduce
from heapq import heappop, heappush
from operator import or_
from random import Random
from typing import Any

import msgspec

from antecede.errors import AntecedeError, BadJournal, CannotWrite
from antecede.link import Frame
from antecede.model import View, bits
from antecede.process.core import Core
from antecede.process.events import Entry
from antecede.process.journal import SNAPSHOT_BYTES, Journal
from antecede.process.views.members import Joiner, Plan, Roll, Where
from antecede.protocols import PROTOCOLS
from antecede.protocols.separator import Separator
from antecede.sim.nodes.invariants import SMALL, Judge
from antecede.sim.nodes.node import MILLISECOND, Killed, SimNode
from antecede.sim.nodes.scenario import Fault, Scenario, founders_of, topology_of
from antecede.wire import Limits
from antecede.wire.frames import decode_frame, encode_frame

__all__ = ["System"]

SECOND = 1000 * MILLISECOND
BEAT = SECOND // 2
PATIENCE = 300 * SECOND
"""How long nothing may be sent, delivered or changed once nothing goes wrong any more, until the system is at rest."""
DRAIN = 5 * SECOND
"""How long one that has left waits for others to have what it said: as long as a node does (`Settings.drain_s`)."""
STEPS = 20_000_000
"""How many steps that may take, or all faults together."""
LIMITS = Limits(packet_bytes=4 << 20, payload_bytes=1 << 20)
SMALLER = Limits(packet_bytes=64 << 10, payload_bytes=16 << 10)
JOINS = ("join", "cancel", "replace")
"""Faults with which one joins."""
EXPECTED = (AntecedeError, AssertionError, LookupError, TypeError, ValueError, AttributeError, OSError)


class Wish:
    """Someone joins, or is removed."""

    def __init__(
        self,
        name: str,
        give_up: int | None = None,
        member_of: str | None = None,
        memory: Callable[[], bytes] | None = None,
    ) -> None:
        self.name, self.give_up = name, give_up
        self.member_of, self.memory = member_of, memory
        """A member of the separator that a router joins; and what the last that failed knew, if its journal is read."""
        self.by: SimNode | None = None
        """The member that is asked."""
        self.position: int | None = None
        """Of that member's last input when it found that the wish is fulfilled: to be durable before that is told."""


class System:
    """All nodes of one run."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.random = Random(f"system/{scenario.seed}")
        self.now = 0
        self.left = scenario.messages
        """Messages that are still to be sent."""
        self.calm = False
        """Nothing goes wrong any more."""
        self.counts: Counter[str] = Counter()
        self.strikes: list[int] = []
        self.last_roll: Roll | None = None
        self._heap: list[tuple[int, int, SimNode | None, int, Callable[[], None]]] = []
        self._planned = 0
        self._parts: list[frozenset[int]] = []
        self._wishes: list[Wish] = []
        self._joins: list[Wish] = []
        self._records: dict[str, dict[int, Entry]] = {}
        self._delay = scenario.delay_ms * MILLISECOND
        founders, topology = founders_of(scenario), topology_of(scenario)
        self._parameters = dict(scenario.parameters) | ({} if topology is None else {"topology": topology})
        names = founders.names if topology is None else tuple(map(founders.name, topology.processes))
        self.processes = [founders.id(name) for name in names]
        first = Roll.first(founders.names, {"all": names})
        kind = PROTOCOLS[scenario.protocol]
        places = len(founders) + sum(fault.kind in JOINS for fault in scenario.faults)
        machine = Core.new(scenario.protocol, founders, 0, 1, self._parameters).machine
        at = [place for place in range(len(founders)) if machine.orders_at(place)]
        everywhere = len(at) == len(founders)
        self.judge = Judge(places, kind, None if everywhere else at, scenario.messages <= SMALL)
        self.nodes: list[SimNode | None] = []
        """By place."""
        for place, name in enumerate(founders.names):
            node = self._make(name, place, first)
            node.application_runs = place in self.processes
        for fault in scenario.faults:
            self._at(fault.at_ms * MILLISECOND, lambda fault=fault: self._strike(fault))  # type: ignore[misc]
        self._at(scenario.end_ms * MILLISECOND, self._end_faults)
        self._at(BEAT, self._beat)

    def _make(self, name: str, place: int, roll: Roll, memory: Callable[[], bytes] | None = None) -> SimNode:
        epoch = self.random.randrange(1, 1 << 40)

        def new() -> Core:
            core = Core.new(
                self.scenario.protocol, View(roll.names), name, epoch, self._parameters, 256, LIMITS, roll
            )
            core.record.on = self.scenario.recording
            return core

        node = SimNode(self, name, place, new, memory)
        self.nodes += [None] * (place + 1 - len(self.nodes))
        self.nodes[place] = node
        self._start(node)
        # As the process has it: it may say more than what it was given, where there is a topology.
        self.judge.see(node.core.changing.roll)
        return node

    def destinations(self, core: Core) -> list[int]:
        """Who may be sent to: members, and no routers."""
        members = core.changing.roll.members
        return self.processes if core.machine.routed else list(members)

    # Time

    def _at(self, time: int, work: Callable[[], None]) -> None:
        self._planned += 1
        heappush(self._heap, (time, self._planned, None, 0, work))

    def plan(self, wait: int, node: SimNode, work: Callable[[], None]) -> None:
        """Do something at a node after a while, if it lives by then."""
        self._planned += 1
        heappush(self._heap, (self.now + wait, self._planned, node, node.life, work))

    def plan_write(self, node: SimNode, work: Callable[[], None]) -> None:
        wait = int(self.scenario.sync_ms * MILLISECOND * (0.2 + self.random.expovariate(1)))
        if self.now < node.slow_until:
            wait += self.random.randrange(3 * SECOND)
        self.plan(wait, node, work)

    def plan_act(self, node: SimNode) -> None:
        """Let an application look at its inbox, some time."""
        wait = 1 + int(self.random.expovariate(1) * self.scenario.pace_ms * MILLISECOND)
        if node.lazy_until > self.now and not self.left:
            wait = node.lazy_until - self.now
        self.plan(wait, node, lambda: self._act(node))

    def _act(self, node: SimNode) -> None:
        node.act()
        self._look_at_leaver(node)

    def step(self) -> bool:
        """Let the next thing happen; whether there was one."""
        if not self._heap:
            return False
        time, _, node, life, work = heappop(self._heap)
        self.now = max(self.now, time)
        if node is None:
            work()
        elif node.life == life and node.up:
            if self.now < node.paused_until:
                self._planned += 1
                heappush(self._heap, (node.paused_until, self._planned, node, life, work))
            else:
                self._do(node, work)
        return True

    def _do(self, node: SimNode, work: Callable[[], None]) -> None:
        """Do something at a node that may end it."""
        try:
            work()
        except Killed:
            self._crash(node)
        except CannotWrite:
            self.counts["stopped by its disk"] += 1
            self._crash(node)

    def run(self) -> None:
        """Until nothing is left to do, or nothing comes of it."""
        deadline, steps, before = 0, 0, (0, 0, 0)
        while True:
            for _ in range(256):
                if not self.step():
                    break
            steps += 256
            if self.judge.findings:
                return
            # Whatever goes on, however slowly, does not wait for ever.
            progress = (self.left, self.judge.watch.deliveries, self.judge.changes)
            if progress != before or not self.calm:
                before, deadline = progress, self.now + PATIENCE
                steps = steps if not self.calm else 0
            if self.calm and self._is_quiet():
                return
            if self.now > deadline or steps > STEPS:
                self.judge.find("liveness", self._describe_wait())
                return

    # The network

    def carry(self, source: SimNode, dest: int, frame: Frame, hails: bool) -> None:
        """Take a frame to its destination, or lose it."""
        scenario, random = self.scenario, self.random
        self.counts["frames"] += 1
        agreed = frame.epoch, frame.peer
        data = encode_frame(frame, agreed, LIMITS)
        copies = 1
        if not self.calm:
            if scenario.loss and random.random() < scenario.loss:
                return
            if scenario.repeats and random.random() < scenario.repeats:
                copies = 2
        here = source.place
        for _ in range(copies):
            wait = int(self._delay * min(10.0, random.expovariate(1)))
            self._at(self.now + wait, lambda: self._arrive(here, dest, agreed, data, hails))

    def _arrive(self, source: int, dest: int, agreed: tuple[int, int], data: bytes, hails: bool) -> None:
        node = self.nodes[dest] if dest < len(self.nodes) else None
        if node is None or not node.up or not self._passes(source, dest):
            return
        if self.now < node.paused_until:
            # It waits in the system's memory.
            self._at(node.paused_until, lambda: self._arrive(source, dest, agreed, data, hails))
            return
        frame = decode_frame(data, agreed, node.core.limits)
        self._do(node, lambda: node.arrive(source, frame, hails))

    def _passes(self, one: int, other: int) -> bool:
        return all((one in part) == (other in part) for part in self._parts)

    def tell_gone(self, place: int) -> None:
        """Whoever talks to a system that it is no member of is told so, some time."""
        node = self.nodes[place] if place < len(self.nodes) else None
        if node is not None and node.up and not node.expelled:
            node.expelled = True
            self.plan(self.random.randrange(10 * SECOND), node, lambda: self._expel(node))

    def _expel(self, node: SimNode) -> None:
        if node.is_member:
            # It stops, and says that it is no member any more.
            self._bury(node)
            self.counts["expelled"] += 1
        # Else it has left, and ends when its application has taken everything.

    # Nodes that end and come back

    def _start(self, node: SimNode) -> None:
        node.disk.refuses = self.now < node.full_until
        try:
            node.start()
        except Killed:
            self._crash(node)
        except CannotWrite:
            self._at(self.now + SECOND, lambda: self._restart(node))
        except BadJournal as error:
            if self.scenario.sync == "full":
                self.judge.find("refused", f"{node.name} refuses its journal: {error}")
            else:
                # With "normal" the power takes large records with it: the operator gives the node up.
                self._bury(node)
                self._remove(node.name)

    def _crash(self, node: SimNode) -> None:
        self.counts["crashes"] += 1
        node.up = False
        fate, node.fate, node.fuse = node.fate, "kill", 0
        if fate == "die" and self._can_spare(node):
            self._bury(node)
            self._remove(node.name)
            return
        down = self.random.choice((1, 10, 100, 1000, 12_000)) * MILLISECOND
        self._at(self.now + (MILLISECOND if self.calm else down), lambda: self._restart(node))

    def _restart(self, node: SimNode) -> None:
        if not node.up and not node.dead and not node.retired:
            self._start(node)

    def _bury(self, node: SimNode) -> None:
        node.up, node.dead = False, True

    def orphan(self, node: SimNode) -> None:
        """It will never be given its state: it stops, and is removed."""
        self.counts["orphaned"] += 1
        donor = node.core.changing.donor
        if any(donor in roll.left for roll in self.judge.rolls.values()):
            self.judge.find("states", f"#{donor} has left, and owes {node.name} its state")
        self._bury(node)
        self._remove(node.name)

    # Operators

    def members(self) -> list[SimNode]:
        """Nodes that run and are members, as far as they know."""
        return [node for node in self.nodes if node is not None and node.up and node.is_member]

    def _living(self) -> list[SimNode]:
        return [
            node
            for node in self.nodes
            if node is not None and not (node.dead or node.retired or node.leaving or node.expelled)
        ]

    def _can_spare(self, node: SimNode) -> bool:
        """Whether at least two are left without it, and the protocol does without it."""
        if self.calm:
            return False
        if PROTOCOLS[self.scenario.protocol].routed:
            return self._has_deputy(node)
        if self.scenario.protocol == "monitor" and node.name == "a":
            return False
        removed = {wish.name for wish in self._wishes}
        left = [one for one in self._living() if one is not node and one.name not in removed]
        return len(left) >= 2

    def _has_deputy(self, node: SimNode) -> bool:
        """Whether it is a router, and another of its separator forwards."""
        topology = node.core.changing.roll.topology
        if topology is None or node.place not in topology.plan.place or node.place in topology.processes:
            return False
        station = topology.stations[topology.plan.place[node.place]]
        others = set(station.members) - {node.place, *station.witnesses}
        # One that joined may not have begun to live.
        able = [one.core.machine for one in self._living() if one.place in others]
        return any(not isinstance(machine, Separator) or not machine.joining for machine in able)

    def _where(self, by: SimNode, member: str | None) -> Where | None:
        """The place of a router that joins the separator of this member, with the links that it needs."""
        topology = by.core.changing.roll.topology
        if topology is None or member is None:
            return None
        plan = topology.plan
        place = plan.place[topology.id(member)]
        near = plan.live[place] | reduce(or_, (plan.live[other] for other in plan.neighbours[place]), 0)
        return Where(tuple(topology.names[v] for v in bits(near)), member, "router")

    def _remove(self, name: str) -> None:
        if all(wish.name != name for wish in self._wishes):
            self._wishes.append(Wish(name))
            self.counts["removed"] += 1

    def _beat(self) -> None:
        self._at(self.now + BEAT, self._beat)
        for node in list(self.nodes):
            if node is None or self.now < node.paused_until:
                continue
            self._look_at_leaver(node)
            if node.wants_to_leave:
                self._do(node, lambda node=node: node.propose(Plan(leave=(node.name,))))  # type: ignore[misc]
        if not self._living():
            # Nobody is left to ask.
            self._wishes.clear()
            self._joins.clear()
        for wish in list(self._wishes):
            self._repeat_removal(wish)
        for wish in list(self._joins):
            self._repeat_join(wish)
        members = self.members()
        for node in members:
            self._do(node, node.waive)
            self._see_to_awaited(node)
        newest = max(
            (node.core.changing.roll for node in members), key=lambda roll: roll.number, default=None
        )
        for node in members:
            # Nobody talks to it: it asks whether it is a member still.
            if newest is not None and node.place not in newest.members and node.core.changing.roll != newest:
                if not any(node.place in (*roll.left, *roll.removed) for roll in self.judge.rolls.values()):
                    words = f"{node.name} began to live in view {node.core.changing.roll.number}, which is forgotten"
                    self.judge.find("views", words)
                self.tell_gone(node.place)

    def _asker(self, wish: Wish, but: str) -> SimNode | None:
        """The member that does what an operator wants: the same one, while it can."""
        suspected = {but, *(other.name for other in self._wishes)}
        by = wish.by
        if by is None or not by.up or not by.is_member or by.expelled or by.name in suspected:
            able = [node for node in self.members() if node.name not in suspected and not node.expelled]
            wish.by, wish.position = self.random.choice(able) if able else None, None
        return wish.by if wish.by is not None and self.now >= wish.by.paused_until else None

    def _repeat_removal(self, wish: Wish) -> None:
        by = self._asker(wish, wish.name)
        if by is None:
            return
        changing = by.core.changing
        if wish.name not in changing.roll.shown and changing.membership.going:
            self._wishes.remove(wish)
            return
        self._do(by, lambda: by.propose(Plan(remove=(wish.name,))))

    def _repeat_join(self, wish: Wish) -> None:
        by = self._asker(wish, wish.name)
        if wish.give_up is not None and self.now >= wish.give_up:
            self._joins.remove(wish)
            if by is not None and wish.name not in by.core.changing.roll.names:
                self._do(by, lambda: by.withdraw(wish.name))
            return
        if by is None:
            return
        membership = by.core.changing.membership
        roll = membership.roll
        if wish.name in membership.refused or (wish.name in roll.names and wish.name not in roll.shown):
            self._joins.remove(wish)
            return
        if wish.name in roll.shown and membership.firm:
            self._let_begin(wish, by)
            return
        progress = membership.progress()
        begun = progress is not None and wish.name in progress.join
        if begun or all(self._is_up(place) for place in roll.members):
            groups = ("all",) if wish.member_of is None else ()
            joiner = Joiner(wish.name, "", groups, by.name, self._where(by, wish.member_of))
            self._do(by, lambda: by.propose(Plan(join=(joiner,))))

    def look_at_joins(self, by: SimNode) -> None:
        """This member has made something durable: perhaps that one has joined by it, which may begin to live now."""
        for wish in [wish for wish in self._joins if wish.by is by]:
            membership = by.core.changing.membership
            if wish.name in membership.roll.shown and membership.firm:
                self._let_begin(wish, by)

    def _let_begin(self, wish: Wish, by: SimNode) -> None:
        """Let one that has joined begin to live, once that is durable at the member that it asked."""
        roll = by.core.changing.roll
        if wish.position is None:
            wish.position = by.written
        if by.durable >= wish.position:
            self._joins.remove(wish)
            self.counts["joined"] += 1
            node = self._make(wish.name, roll.place(wish.name), roll, wish.memory)
            node.application_runs = wish.member_of is None

    def _is_up(self, place: int) -> bool:
        node = self.nodes[place] if place < len(self.nodes) else None
        return node is not None and node.up

    def _see_to_awaited(self, node: SimNode) -> None:
        """Have removed whom a change waits for, and who will never come."""
        progress = node.core.changing.membership.progress()
        awaited = () if progress is None else progress.awaits
        roll, joining = node.core.changing.roll, {wish.name for wish in self._joins}
        for name in {*awaited, *roll.shown}:
            place = roll.place(name)
            there = self.nodes[place] if place < len(self.nodes) else None
            if there is None:
                gone = name not in joining and node.core.changing.membership.firm
            else:
                gone = there.dead or there.retired
            if gone and (name in awaited or name in roll.shown):
                self._remove(name)

    def _look_at_leaver(self, node: SimNode) -> None:
        """Whoever has left ends once all is taken, and what it had to say has arrived, or is not wanted any more, or
        was not heard for `DRAIN`: its leader may be dead, and nobody tells one that has left."""
        if node.up and node.core.me not in node.core.changing.roll.members:
            core = node.core
            node.left_at = node.left_at or self.now
            left = core.inbox or core.changing.ready or core.taken or core.again or core.untold or node.batch
            drained = not any(link.unacknowledged for link in core.links.values()) and not core.gathered
            late = self.now >= node.left_at + DRAIN
            if not left and not node.writing and (drained or node.expelled or late):
                node.up, node.retired = False, True
                self.counts["left"] += 1

    # Faults

    def _strike(self, fault: Fault) -> None:
        """Let a fault happen."""
        lasts, until = fault.for_ms * MILLISECOND, self.now + fault.for_ms * MILLISECOND
        pick = fault.pick
        self.counts[fault.kind] += 1
        if fault.kind == "replace":
            self._replace(pick)
            return
        if fault.kind == "join" or fault.kind == "cancel":
            name = self._name_joiner()
            give_up = None if fault.kind == "join" else self.now + lasts // 4
            topology = topology_of(self.scenario)
            separators = () if topology is None else topology.separators
            member = separators[pick % len(separators)][0] if separators else None
            self._joins.append(Wish(name, give_up, member))
            return
        if fault.kind == "partition":
            part = frozenset(place for place in range(30) if pick >> place & 1)
            self._parts.append(part)
            self._at(until, lambda: self._heal(part))
            return
        if fault.kind == "strike":
            self.strikes.append(pick)
            return
        living = [node for node in self.nodes if node is not None and not node.dead and not node.retired]
        if fault.kind == "die" and PROTOCOLS[self.scenario.protocol].routed:
            living = [node for node in living if node.place not in self.processes] or living
        node = living[pick % len(living)]
        self._hurt(node, fault, until)

    def _name_joiner(self) -> str:
        return f"j{sum(self.counts[kind] for kind in JOINS)}"

    def _replace(self, pick: int) -> None:
        """Let all that forward of a separator die for good, and another take their place (case iv)."""
        newest = max(self.members(), key=lambda node: node.core.changing.roll.number, default=None)
        topology = None if newest is None else newest.core.changing.roll.topology
        stations = [] if topology is None else [one for one in topology.stations if one.separator]
        if not stations:
            return
        station = stations[pick % len(stations)]
        living = [one for one in self._living() if one.place in station.members]
        witnessed = any(one.place in station.witnesses for one in living)
        forward = [one for one in living if one.place not in station.witnesses]
        ready = all(
            isinstance(one.core.machine, Separator) and not one.core.machine.joining for one in forward
        )
        busy = any(self._joins) or any(self._wishes)
        if not forward or not ready or busy or not (witnessed or self.scenario.topology == "star"):
            return
        last = forward[-1]
        for one in forward:
            self._bury(one)
            self._remove(one.name)
        memory = None
        if not witnessed and pick >> 8 & 1:
            memory = last.read_memory
        elif not witnessed:
            self.judge.forgets = True
        self.counts[
            "by a witness" if witnessed else "by a checkpoint" if memory is None else "by a journal"
        ] += 1
        self._joins.append(Wish(self._name_joiner(), None, last.name, memory))

    def _hurt(self, node: SimNode, fault: Fault, until: int) -> None:
        pick = fault.pick >> 8
        match fault.kind:
            case "kill" | "outage" | "limits" | "flip":
                if fault.kind == "limits":
                    node.limits = SMALLER if pick & 1 else LIMITS
                if node.up:
                    self._arm(node, pick)
                if fault.kind == "outage" or fault.kind == "flip":
                    self._at(self.now + 1 + pick % MILLISECOND, lambda: self._ruin(node, fault.kind))
            case "pause":
                node.paused_until = until
            case "full":
                node.full_until = until
            case "sync":
                node.disk.syncs_fail = 1 + pick % 2
            case "slow":
                node.slow_until = until
            case "jump":
                node.offset += pick << 20
                node.wall += (pick - (1 << 21)) * SECOND
            case "lazy":
                node.lazy_until = until
            case "silent":
                node.silent_until = until
            case "leave" if self._can_spare(node) and node.up and node.is_member:
                node.leaving = True
            case "die" if self._can_spare(node):
                self._bury(node)
                self._remove(node.name)
            case "suspect" if self._can_spare(node) and node.up and node.is_member:
                node.expelled = False
                self._remove(node.name)

    def _arm(self, node: SimNode, pick: int) -> None:
        """It dies some effects from now, or at once."""
        node.fuse, node.fate = 1 + pick % 97, "kill"

    def _ruin(self, node: SimNode, kind: str) -> None:
        """The power fails, or a bit flips, while the process does not run."""
        if node.dead or node.retired:
            return
        if node.up:
            self._crash(node)
        if kind == "flip":
            self._flip(node)
            return
        if self.scenario.sync == "normal":
            if not self._can_spare(node):
                return
            node.disk.lose_power()
            # It may have forgotten what it told others: whoever runs it so is told by the log, and removes it.
            self._bury(node)
            self._remove(node.name)
            return
        node.disk.lose_power()

    def _flip(self, node: SimNode) -> None:
        scenario = self.scenario

        def recover(flipped: bool) -> dict[str, Any] | None:
            disk = node.disk.clone()
            if flipped:
                disk.flip()
            journal = Journal(disk, "journal", scenario.sync, scenario.snapshot_inputs)
            try:
                return journal.recover(node._new()).snapshot()
            except BadJournal:
                return None

        try:
            found = recover(True)
        except EXPECTED as error:
            self.judge.find("damaged", f"{node.name}: a flipped bit raises {type(error).__name__}: {error}")
            return
        if found is not None and found != recover(False):
            self.judge.find("damaged", f"{node.name}: a flipped bit gives another process")

    def _heal(self, part: frozenset[int]) -> None:
        if part in self._parts:
            self._parts.remove(part)
        for node in self.nodes:
            if node is not None and node.up and self.now >= node.paused_until:
                self._do(node, node.hail_all)

    def _end_faults(self) -> None:
        self.calm = True
        self.strikes.clear()
        self._parts.clear()
        for node in self.nodes:
            if node is None:
                continue
            node.paused_until = node.lazy_until = node.silent_until = node.slow_until = node.full_until = 0
            node.disk.syncs_fail = node.fuse = 0
            node.last_words = None
            node.limits = None
            self._restart(node)

    # Looking

    def record(self, name: str, events: list[Entry]) -> None:
        """A node has written these events to its trace."""
        known = self._records.setdefault(name, {})
        for event in events:
            before = known.setdefault(event.index, event)
            if before != event:
                self.judge.find("record", f"{name} records {event} as {event.index}, which was {before}")

    def check_journal(self, node: SimNode, batch: int) -> None:
        """A journal is not longer than its snapshot and the inputs that it may have since."""
        rows = node.disk.rows
        if rows > self.scenario.snapshot_inputs + batch:
            self.judge.find("bounded", f"{node.name} has {rows} rows of inputs in its journal")
        if rows % 64 == 63 and node.disk.bytes > 12 * SNAPSHOT_BYTES:
            self.judge.find("bounded", f"{node.name} has {node.disk.bytes} bytes in its journal")

    def _is_quiet(self) -> bool:
        return (
            not self.left
            and not self._wishes
            and not self._joins
            and all(
                node is None
                or node.dead
                or node.retired
                or (node.up and node.is_at_rest() and not self._owes(node))
                for node in self.nodes
            )
        )

    def _owes(self, node: SimNode) -> bool:
        """It has left, and ends soon; or it wants to leave; or others have gone on without it, and it will hear so."""
        newest = max(self.judge.rolls)
        return not node.is_member or node.leaving or node.core.changing.roll.number != newest

    def _describe_wait(self) -> str:
        told = [f"{self.left} messages are not sent"] if self.left else []
        told += [f"{wish.name} is to be removed" for wish in self._wishes]
        told += [f"{wish.name} is to join" for wish in self._joins]
        for node in self.nodes:
            if node is None or node.dead or node.retired:
                continue
            if not node.up:
                told.append(f"{node.name} does not run")
            elif not node.is_at_rest() or self._owes(node):
                core = node.core
                links = {q: link.unacknowledged for q, link in core.links.items() if link.unacknowledged}
                told.append(
                    f"{node.name}: view {core.changing.roll.number} of {core.changing.roll.shown}, "
                    f"{core.changing.membership.progress()}, going {core.changing.membership.going}, inbox "
                    f"{len(core.inbox)}, ready {len(core.changing.ready)}, taken {len(core.taken)}, waiting "
                    f"{[one.reason for one in core.changing.waiting()][:2]}, links {links}, donor "
                    f"{core.changing.donor}, unsent {len(core.unsent)}, expelled {node.expelled}, "
                    f"leaving {node.leaving}"
                )
        return "; ".join(told)[:1500]

    # Judgement

    def verdict(self) -> list[str]:
        """What is wrong with the run."""
        judge = self.judge
        if judge.findings:
            return judge.findings
        nodes = [node for node in self.nodes if node is not None]
        names = max((roll.names for roll in judge.rolls.values()), key=len)
        removed = {place for roll in judge.rolls.values() for place in roll.removed}
        gone = removed | {node.place for node in nodes if node.dead}
        judge.judge_order(View(names), gone, set())
        members = {node.name: node.core for node in nodes if node.up and node.is_member}
        if self.scenario.stateful:
            known = {node.name: node.application.known for node in nodes if node.name in members}
            judge.judge_views(members, known if self.scenario.topology == "mesh" else {}, gone)
        for name, core in members.items():
            size = len(msgspec.msgpack.encode(core.snapshot()))
            judge.judge_rest(name, core, size, len(msgspec.msgpack.encode(core.machine.snapshot())))
        return judge.findings
