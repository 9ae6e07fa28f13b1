"""A system of nodes: the event loop, and how nodes begin, end and come back.

`network` is between them, `operators` let them join and leave, `faults` happen to them, and `invariants` judges.

Time is simulated, in nanoseconds. What is planned for a node happens if it still lives the same life, and waits while
it is paused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

import msgspec

from antecede.errors import BadJournal, CannotWrite
from antecede.model import View
from antecede.process.core import Core
from antecede.process.events import Entry
from antecede.process.journal import SNAPSHOT_BYTES
from antecede.process.views.members import Roll
from antecede.protocols import PROTOCOLS
from antecede.sim.nodes.faults import JOINS, Faults
from antecede.sim.nodes.invariants import SMALL, Judge
from antecede.sim.nodes.network import LIMITS, Network
from antecede.sim.nodes.node import MILLISECOND, Killed, SimNode
from antecede.sim.nodes.operators import BEAT, SECOND, Operators
from antecede.sim.nodes.scenario import Scenario, founders_of, topology_of

__all__ = ["System"]

PATIENCE = 300 * SECOND
"""How long nothing may be sent, delivered or changed once nothing goes wrong any more, until the system is at rest."""
STEPS = 20_000_000
"""How many steps that may take, or all faults together."""


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
        self.last_roll: Roll | None = None
        self._heap: list[tuple[int, int, SimNode | None, int, Callable[[], None]]] = []
        self._planned = 0
        self._records: dict[str, dict[int, Entry]] = {}
        self.network, self.operators, self.faults = Network(self), Operators(self), Faults(self)
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
            node = self.make(name, place, first)
            node.application.runs = place in self.processes
        for fault in scenario.faults:
            self.at(fault.at_ms * MILLISECOND, lambda fault=fault: self.faults.strike(fault))  # type: ignore[misc]
        self.at(scenario.end_ms * MILLISECOND, self.faults.end)
        self.at(BEAT, self.operators.beat)

    def make(self, name: str, place: int, roll: Roll, memory: Callable[[], bytes] | None = None) -> SimNode:
        """Let a node begin to live, in this view."""
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

    def at(self, time: int, work: Callable[[], None]) -> None:
        """Do something at a time, whoever lives by then."""
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
        self.operators.look_at_leaver(node)

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
                self.do(node, work)
        return True

    def do(self, node: SimNode, work: Callable[[], None]) -> None:
        """Do something at a node that may end it."""
        try:
            work()
        except Killed:
            self.crash(node)
        except CannotWrite:
            self.counts["stopped by its disk"] += 1
            self.crash(node)

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

    # Nodes that end and come back

    def _start(self, node: SimNode) -> None:
        node.disk.refuses = self.now < node.full_until
        try:
            node.start()
        except Killed:
            self.crash(node)
        except CannotWrite:
            self.at(self.now + SECOND, lambda: self.restart(node))
        except BadJournal as error:
            if self.scenario.sync == "full":
                self.judge.find("refused", f"{node.name} refuses its journal: {error}")
            else:
                # With "normal" the power takes large records with it: the operator gives the node up.
                self.bury(node)
                self.operators.remove(node.name)

    def crash(self, node: SimNode) -> None:
        """A process has died: for good, or it comes back some time."""
        self.counts["crashes"] += 1
        node.up = False
        fate, node.fate, node.fuse = node.fate, "kill", 0
        if fate == "die" and self.operators.can_spare(node):
            self.bury(node)
            self.operators.remove(node.name)
            return
        down = self.random.choice((1, 10, 100, 1000, 12_000)) * MILLISECOND
        self.at(self.now + (MILLISECOND if self.calm else down), lambda: self.restart(node))

    def restart(self, node: SimNode) -> None:
        """Let a node come back from its disk."""
        if not node.up and not node.dead and not node.retired:
            self._start(node)

    def bury(self, node: SimNode) -> None:
        """It never runs again."""
        node.up, node.dead = False, True

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
            and not self.operators.wishes
            and not self.operators.joins
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
        told += [f"{wish.name} is to be removed" for wish in self.operators.wishes]
        told += [f"{wish.name} is to join" for wish in self.operators.joins]
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
        judge.judge_joins(self.operators.asked)
        members = {node.name: node.core for node in nodes if node.up and node.is_member}
        if self.scenario.stateful:
            known = {node.name: node.application.known for node in nodes if node.name in members}
            judge.judge_views(members, known if self.scenario.topology == "mesh" else {}, gone)
        for name, core in members.items():
            size = len(msgspec.msgpack.encode(core.snapshot()))
            judge.judge_rest(name, core, size, len(msgspec.msgpack.encode(core.machine.snapshot())))
        return judge.findings
