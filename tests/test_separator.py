"""separator on many graphs, through random schedules, failures and joins; the oracle judges what the application saw.

A run is its seed: `World` draws everything from one `random.Random`. Which topology a vertex has, when it learns of a
failure or a join, when packets arrive and when the application takes its messages is all chosen at random. Every
mutant leaves out one rule; its row in the table says where a violation shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, ClassVar

import msgspec
import pytest
from msgspec.structs import replace

from antecede.errors import BadParameter, BadStamp, Misrouted, Unsupported
from antecede.explore import Explorer, explore
from antecede.model import Effect, Event, Message, Packet, View, bits
from antecede.oracle import Verdict, check
from antecede.process.views.change import parameters_among
from antecede.program import parse
from antecede.protocols import create, relay, restore
from antecede.protocols.history import Entry
from antecede.protocols.separator import HopStamp, Resumed, Separator, decode_handover
from antecede.replay import explain
from antecede.sim.run import RunSpec
from antecede.topology import Topology, shapes


@dataclass(frozen=True)
class Crash:
    name: str
    hasty: bool = False
    """Not waiting for the change before it to be complete."""


@dataclass(frozen=True)
class Arrival:
    name: str
    links: tuple[str, ...]
    member_of: str | None = None
    process: bool = False
    hasty: ClassVar[bool] = False


Change = Crash | Arrival
Told = tuple[str, Any]
"""cut or forget, and who; or install, and which topology."""


@dataclass
class World:
    """Vertices, the network between them, and membership rounds that tell each of them in its own time.

    A vertex that crashes takes some of the packets with it that it had sent: any of them. A round is that of
    `process.views`: nobody sends anything new, all cut the failed, and once nothing is under way all forget them, or
    install a join.
    """

    topology: Topology
    seed: int
    kind: type[Separator] = Separator
    parameters: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.machines = {v: self._machine(v) for v in range(len(self.topology.names))}
        self.untold: dict[int, list[Told]] = {v: [] for v in self.machines}
        self.network: list[Packet[Any]] = []
        self.events: list[Event] = []
        self.entries: list[int] = []
        self.failed: list[int] = []
        """In this round."""
        self.arrival: Arrival | None = None
        self.joining: tuple[int, list[int]] | None = None
        self.states: dict[int, dict[str, Any]] = {}
        self.stable: dict[int, Separator] = {}
        """Stable memory of those that crashed."""
        self.slow: list[Packet[Any]] = []
        """Packets that arrive only when nothing else can happen, or hardly before."""
        self.slowness = self.random.choice([0, 0.1, 0.3])
        self.idle = self.random.random() * 0.8

    def _machine(self, vertex: int) -> Separator:
        return self.kind(self.topology.view, vertex, self.topology, **self.parameters)

    def run(self, messages: int, changes: Iterable[Change] = ()) -> Verdict:
        """Send so many messages, change the membership at random times, and go on until nothing is left to do."""
        todo = list(changes)
        sent = 0
        while True:
            if todo and (self.settled or todo[0].hasty) and self.random.random() < 0.08:
                self.change(todo.pop(0))
            steps = list(self._steps(sent < messages))
            if not steps and not todo and not self.slow:
                break
            if steps:
                step = self.random.choice(steps)
                sent += step == self._send
                step()
            if self.slow and (not steps or self.random.random() < 0.01):
                self.network.append(self.slow.pop(self.random.randrange(len(self.slow))))
            if self.kind is Separator and self.random.random() < 0.03:
                self._restart(self.random.choice(sorted(self.machines)))
        return check(self.events, processes=len(self.topology.names))

    def _steps(self, sending: bool) -> Iterator[Any]:
        changing = bool(self.failed or self.arrival)
        if sending and not changing and not any(self.untold.values()):
            yield self._send
        if self.network:
            yield from [self._arrive] * 3
        if any(m.eligible() for m in self.machines.values()) and (
            self.random.random() > self.idle or not self.network
        ):
            yield from [self._take] * 2
        if any(self.untold.values()):
            yield self._tell
        elif changing and not self.network and not self.slow:
            yield self._decide
        elif self.joining is not None and all(v in self.states for v in self._sources()):
            yield self._adopt

    def follow(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Packet):
                (self.slow if self.random.random() < self.slowness else self.network).append(effect)
                self.entries.append(effect.stamp.entries(len(self.machines)))

    def send(self, process: int, to: list[int]) -> Message:
        message, effects = self.machines[process].send(to)
        self.events.append(Event(process, "send", message.sender, message.number, message.to))
        self.follow(effects)
        return message

    def deliver(self, process: int, message: Message) -> None:
        self.events.append(Event(process, "deliver", message.sender, message.number))
        self.follow(self.machines[process].deliver(message))

    def _send(self) -> None:
        process = self.random.choice([p for p in self.topology.processes if p in self.machines])
        others = [q for q in self.topology.processes if self.machines[process].accepts(process, (q,)) is None]
        if others:
            some = self.random.randint(1, min(3, len(others))) if self.random.random() < 0.4 else 1
            self.send(process, self.random.sample(others, some))

    def _arrive(self) -> None:
        packet = self.network.pop(self.random.randrange(len(self.network)))
        self.receive(packet)
        if packet.dest in self.machines and self.random.random() < 0.05:
            before = self.machines[packet.dest].snapshot()
            again = self.machines[packet.dest].receive(packet)
            assert again == [] or not isinstance(packet.stamp, HopStamp)
            assert self.machines[packet.dest].snapshot() == before

    def receive(self, packet: Packet[Any]) -> None:
        if packet.dest in self.machines:
            self.follow(self.machines[packet.dest].receive(packet))

    def _take(self) -> None:
        offers = [(p, m) for p, machine in self.machines.items() for m in machine.eligible()]
        self.deliver(*self.random.choice(offers))

    def _restart(self, vertex: int) -> None:
        snapshot = self.machines[vertex].snapshot()
        machine = restore(snapshot)
        assert isinstance(machine, Separator)
        assert machine.snapshot() == snapshot
        self.machines[vertex] = machine

    # Membership

    @property
    def settled(self) -> bool:
        return not (self.joining or self.failed or self.arrival or any(self.untold.values()))

    def change(self, change: Change) -> None:
        if isinstance(change, Arrival):
            self.arrival = change
            return
        vertex = self.topology.id(change.name)
        self.topology = self.topology.fail(change.name)
        share = self.random.random()
        self.lose(lambda packet: packet.source == vertex and self.random.random() < share)
        self.stable[vertex] = self.machines.pop(vertex)
        del self.untold[vertex]
        self.failed.append(vertex)
        for told in self.untold.values():
            told.append(("cut", vertex))

    def lose(self, lost: Callable[[Packet[Any]], bool]) -> None:
        self.network = [packet for packet in self.network if not lost(packet)]
        self.slow = [packet for packet in self.slow if not lost(packet)]

    def _decide(self) -> None:
        """Nothing is under way: end the round."""
        if self.failed:
            told: list[Told] = [("forget", vertex) for vertex in self.failed]
            self.failed = []
        else:
            assert self.arrival is not None
            change, self.arrival = self.arrival, None
            living = [name for name in change.links if self.topology.id(name) not in self.topology.dead]
            join = self.topology.join(change.name, living, change.member_of, change.process)
            self.topology = join.topology
            told = [("install", join.topology)]
            vertex = join.topology.id(change.name)
            if join.sources:
                self.joining, self.states = (
                    (vertex, [join.topology.id(source) for source in join.sources]),
                    {},
                )
        for vertices in self.untold.values():
            vertices += told
        if told[0][0] == "install":
            self.machines[vertex], self.untold[vertex] = self._machine(vertex), []

    def _tell(self) -> None:
        vertex = self.random.choice([v for v, told in self.untold.items() if told])
        what, which = self.untold[vertex].pop(0)
        machine = self.machines[vertex]
        match what:
            case "cut":
                self.lose(lambda packet: (packet.source, packet.dest) == (which, vertex))
                self.follow(machine.cut(which))
            case "forget":
                self.follow(machine.forget(which))
            case "install":
                self.follow(machine.reconfigure(which))
                if self.joining is not None and vertex in self.joining[1]:
                    self.states[vertex] = machine.handover()
                elif self.joining is not None and machine._around >> self.joining[0] & 1 and self.checkpoints:
                    self.states[vertex] = machine.checkpoint()

    checkpoints = False
    """Whether one that takes the place of others starts from a global checkpoint, not from stable memory."""

    def _adopt(self) -> None:
        assert self.joining is not None
        vertex, named = self.joining
        states = [self.states[v] for v in (sorted(self.states) if self.checkpoints else self._sources())]
        if not states:
            states = [self.stable[named[-1]].handover()]
        self.joining = None
        self.follow(self.machines[vertex].adopt(states))

    def _sources(self) -> list[int]:
        """Of those whose state the new member needs, the ones that still live."""
        assert self.joining is not None
        return [v for v in self.joining[1] if v in self.machines]


GRAPHS: dict[str, Topology] = {
    "mesh": shapes.mesh(4),
    "star": shapes.star(4),
    "line": shapes.line(5),
    "ring": shapes.ring(5),
    "tree": shapes.tree(6),
    "diamond": shapes.diamond(),
    "clique with tails": shapes.clique_with_tails(3),
    "wan of lans": shapes.wan_of_lans(2, 3, 2),
    "wan of lans, witnesses": shapes.wan_of_lans(3, 2, 2, 1),
    "example": shapes.example(),
    "example, all separators": shapes.example().separating(),
    # Members of a separator that are processes too: all but the first hand over what they send.
    "processes in a separator": Topology.of(
        [("a", "s"), ("a", "t"), ("s", "t"), ("s", "x"), ("t", "x"), ("a", "b"), ("b", "s"), ("b", "t")],
        ["a", "b", "s", "t", "x"],
        separators=[("s", "t")],
    ),
}

RULES: dict[str, dict[str, int]] = {
    "all": {},
    "few reports": {"reports": 2},
    "without R9": {"r9": False},
    "with R6.1": {"r6_1": True},
    "without R5": {"r5": False},
    "without R6.4": {"r6_4": False},
    "without R7": {"r7": False},
    "without R8": {"r8": False},
    "without R7, R8": {"r7": False, "r8": False},
    "R1 to R5": {"r6": False, "r6_4": False, "r7": False, "r8": False, "r9": False},
}

WAN = shapes.wan_of_lans(2, 3, 2)
ONE = shapes.wan_of_lans(2, 3, 1, 1)
LAN = ("p1", "p2", "p3")
NEW = Arrival("1.g3", (*LAN, "1.g1", "1.g2", "2.g1", "2.g2"), "1.g2")
HEIR = Arrival("1.g3", (*LAN, "1.w1", "2.g1", "2.w1"), "1.g1")
CHANGES: dict[str, tuple[Topology, tuple[Change, ...]]] = {
    "the forwarder fails": (shapes.diamond(), (Crash("d1"),)),
    "the one that stands by fails": (shapes.diamond(), (Crash("d2"),)),
    "a forwarder fails in each zone": (WAN, (Crash("1.g1"), Crash("2.g1"))),
    "in three zones at once": (
        GRAPHS["wan of lans, witnesses"],
        (Crash("1.g1"), Crash("2.g1", hasty=True), Crash("3.g2", hasty=True)),
    ),
    "a process that stands by takes over": (GRAPHS["processes in a separator"], (Crash("s"),)),
    "i: a process joins a zone": (
        WAN,
        (Arrival("p7", (*LAN, "1.g1", "1.g2"), process=True), Crash("1.g1")),
    ),
    "iii: a member joins, the others fail": (WAN, (NEW, Crash("1.g1"), Crash("1.g2"))),
    "iii: in place of one that failed": (WAN, (Crash("1.g1"), NEW, Crash("1.g2"))),
    "iii: one fails during the join": (WAN, (NEW, Crash("1.g1", hasty=True), Crash("1.g2"))),
    "iv: from a witness": (ONE, (Crash("1.g1"), HEIR)),
    "iv: from a witness, twice": (
        ONE,
        (Crash("1.g1"), HEIR, Crash("1.g3"), Arrival("1.g4", HEIR.links, "1.g1")),
    ),
}


def worlds(topology: Topology, kind: type[Separator] = Separator, **rules: bool) -> Iterator[World]:
    """One world for each seed, for ever."""
    return (World(topology, seed, kind, rules) for seed in count())


FOUND = {"iv: from a witness": [18, 1230], "iv: from a witness, twice": [17, 230, 1004, 1182, 1184]}
"""Seeds that ever failed."""


# Order, end to end


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
@pytest.mark.parametrize("topology", GRAPHS.values(), ids=GRAPHS)
def test_what_the_application_sees_is_causally_ordered(topology, rules):
    for _, world in zip(range(5), worlds(topology, **rules), strict=False):
        verdict = world.run(messages=14)
        assert verdict.ok, f"seed {world.seed}: {verdict}"
        for machine in world.machines.values():
            assert machine.waiting() == [], world.seed
            assert machine.snapshot()["state"]["retained"] == [], world.seed


@pytest.mark.parametrize("rules", [RULES["all"], RULES["without R9"], RULES["with R6.1"]])
@pytest.mark.parametrize(("topology", "changes"), CHANGES.values(), ids=CHANGES)
def test_order_and_messages_survive_failures_and_joins(topology, changes, rules, request):
    again = FOUND.get(request.node.callspec.id.rpartition("-")[0], [])
    for seed in (*range(10), *again):
        world = World(topology, seed, parameters=rules)
        verdict = world.run(16, changes)
        # Nobody owes a delivery to a process that failed, nor of what it had not sent to all.
        living = world.machines
        owed = tuple(c for c in verdict.undelivered if c.at in living and c.message[0] in living)
        skipped = tuple(one for one in verdict.skipped if one.overtaken[0] in living)
        assert replace(verdict, undelivered=owed, skipped=skipped).ok, f"seed {world.seed}: {verdict}"


HUB = (Crash("hub"), Arrival("hub2", ("p1", "p2", "p3", "p4"), "hub"))


@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_lone_router_is_replaced_from_stable_memory_or_by_a_checkpoint(checkpoints, monkeypatch):
    # Told at once that a hop has come, a source does not keep it for the next router.
    monkeypatch.setattr(relay, "EVERY", 1)
    lost = 0
    for _, world in zip(range(60), worlds(shapes.star(4)), strict=False):
        world.checkpoints = checkpoints
        verdict = world.run(16, HUB)
        assert not verdict.violations + verdict.duplicates, world.seed
        lost += len(verdict.undelivered)
    # What the failed had received and not sent on is in its stable memory alone.
    assert bool(lost) == checkpoints


def test_what_was_taken_back_from_a_lone_router_comes_before_what_follows_it():
    # Its neighbours keep what they sent to it, and one of them may follow what another keeps.
    for _, world in zip(range(100), worlds(shapes.star(3)), strict=False):
        world.checkpoints = True
        verdict = world.run(16, (Crash("hub"), Arrival("hub2", ("p1", "p2", "p3"), "hub")))
        assert not verdict.violations + verdict.duplicates, world.seed


def test_two_parts_that_are_connected_later():
    parts = Topology.of([("p1", "p2"), ("p3", "p4")], ["p1", "p2", "p3", "p4"], islands=True)
    assert Separator(parts.view, 0, parts).accepts(0, (3,)) == "no way leads from p1 to p4"
    crossed = 0
    for _, world in zip(range(20), worlds(parts), strict=False):
        verdict = world.run(25, [Arrival("r", ("p2", "p3"))])
        assert verdict.ok, f"seed {world.seed}: {verdict}"
        crossed += any(e.kind == "send" and e.process < 2 and max(e.to) > 1 for e in world.events)
    assert crossed > 10


# Each rule is needed. `lost` is what a reordering becomes where stations drop what they take for a repetition.


class EachItsOwnExit(Separator):
    """Members of a station forward for different destinations: the report's routing, read naively."""

    def _duty(self, targets: int) -> int:
        living = list(bits(self.plan.live[self.place]))
        return sum(1 << t for t in bits(targets) if living[t % len(living)] == self.me)


class OutOfOrder(Separator):
    """Of two messages that come to a router one after the other, the later is forwarded first."""

    back: tuple[Message, int] | None = None

    def _forward(self, message: Message, targets: int) -> list[Effect]:
        if self.me in self.topology.processes:
            return super()._forward(message, targets)
        if self.back is None:
            self.back = (message, targets)
            return []
        back, self.back = self.back, None
        return super()._forward(message, targets) + super()._forward(*back)


class OneHopEach(Separator):
    """Every next station gets a hop of its own."""

    def _forward(self, message: Message, targets: int) -> list[Effect]:
        shares = [targets & behind for behind in self.plan.behind(self.place).values()]
        shares.append(targets & self.plan.members[self.place])
        return [
            effect for share in shares if share for effect in super(OneHopEach, self)._forward(message, share)
        ]


class NoCopies(Separator):
    """Only the member that forwards gets a hop."""

    def _address(self, station: int) -> int:
        active = self.plan.active[station]
        return self.plan.live[station] if active is None else 1 << active


class ReportsToNoMember(Separator):
    """Others of the separator get no hop that leaves it, even if the message is for them too."""

    def __init__(self, *given: Any, **rules: Any) -> None:
        super().__init__(*given, **{**rules, "reports": 1 << 30})

    def _report(self, to: int, reached: int) -> int:
        return super()._report(to, 0 if to else reached)


class NoMemory(Separator):
    """What comes twice is taken twice."""

    def _inbound(self, message: Message, targets: int) -> list[Effect]:
        self._seen.pop(message.sender, None)
        return super()._inbound(message, targets)


class NoRelay(Separator):
    """Whoever keeps a hop of one that failed keeps it for itself."""

    def _relay(self) -> list[Effect]:
        return []


class NeverWaives(Separator):
    """A hop that nobody has is waited for."""

    def _waive(self, vertices: Iterable[int]) -> list[Effect]:
        return []


class WaivesAtOnce(Separator):
    """What is not here is given up before it was relayed, or forwarded by another."""

    def cut(self, process: int) -> list[Effect]:
        return super().cut(process) + self.forget(process)


class TakesNothingBack(Separator):
    """What did not arrive at one that failed is gone."""

    def _take_back(self, vertex: int) -> None:
        pass


class ResumesAtOnce(Separator):
    """One that takes the place of others says so before it has sent on what they left."""

    def _has_come(self, source: int, number: int) -> bool:
        return True


class AdoptsNothing(Separator):
    def _must_adopt(self) -> bool:
        return False

    def adopt(self, states: Iterable[Any]) -> list[Effect]:
        return []


class AdoptsNoMessages(Separator):
    def adopt(self, states: Iterable[Any]) -> list[Effect]:
        return super().adopt([{**state, "retained": []} for state in states])


WITNESSED = CHANGES["iv: from a witness"]


@pytest.mark.parametrize(
    ("kind", "topology", "changes", "breaks", "seeds"),
    [
        (EachItsOwnExit, shapes.diamond(), (), "order", 100),
        (OutOfOrder, shapes.star(4), (), "order", 100),
        (OneHopEach, WAN, (), "order", 800),
        (NoCopies, shapes.diamond(), (Crash("d1"),), "loss", 200),
        (ReportsToNoMember, GRAPHS["processes in a separator"], (), "loss", 50),
        (NoMemory, shapes.diamond(), (Crash("d1"),), "twice", 200),
        (NoRelay, shapes.diamond(), (Crash("d1"),), "loss", 200),
        (NeverWaives, WAN, (Crash("1.g1"),), "loss", 500),
        (WaivesAtOnce, WAN, (Crash("1.g1"),), "order", 3000),
        (TakesNothingBack, shapes.star(4), HUB, "loss", 50),
        (ResumesAtOnce, *CHANGES["iv: from a witness, twice"], "order", 1000),
        (AdoptsNothing, *WITNESSED, "loss", 50),
        (AdoptsNoMessages, *WITNESSED, "loss", 50),
    ],
)
def test_without_one_rule_something_breaks(kind, topology, changes, breaks, seeds, monkeypatch):
    # A source that keeps little has little to mend with.
    monkeypatch.setattr(relay, "EVERY", 1)
    for _, world in zip(range(seeds), worlds(topology, kind), strict=False):
        verdict = world.run(20, changes)
        found = {
            "order": verdict.violations + verdict.skipped,
            "loss": verdict.undelivered,
            "twice": verdict.duplicates,
        }
        if found[breaks]:
            print(f"{kind.__name__}: seed {world.seed}")
            return
    pytest.fail(f"nothing found in {seeds} runs")


@pytest.mark.parametrize(("kind", "ok"), [(EachItsOwnExit, False), (Separator, True)])
def test_order_between_neighbours_is_not_order_end_to_end(kind, ok):
    """p sends m to x, then z to q, which answers to x; what d1 forwards is slow. Every hop is delivered in order."""
    world = World(shapes.diamond(), 0, kind)
    world.slowness = 0
    p, q, x, d1, d3 = map(world.topology.id, ("p", "q", "x", "d1", "d3"))

    def settle(slow: bool) -> None:
        while ready := [n for n in world.network if not slow or (n.source, n.dest) != (d1, d3)]:
            world.network.remove(ready[0])
            world.receive(ready[0])

    world.send(p, [x])
    world.send(p, [q])
    settle(slow=True)
    for message in world.machines[q].eligible():
        world.deliver(q, message)
        world.send(q, [x])
    settle(slow=True)
    settle(slow=False)
    for process in (x, q):
        while offers := world.machines[process].eligible():
            world.deliver(process, offers[0])
    assert check(world.events).ok == ok


# Every schedule

LAN_AND_ONE = Topology.of(
    [("a", "b"), ("a", "g"), ("a", "h"), ("b", "g"), ("b", "h"), ("g", "h"), ("g", "x"), ("h", "x")],
    ["a", "b", "x"],
    separators=[("g", "h")],
)
TRAP = "p: send m to x; send z to q\nq: receive z; send y to x\nx:"
PROGRAMS = {
    "trap": (shapes.diamond(), TRAP),
    "out of the lan and back": (
        LAN_AND_ONE,
        "a: send m to b; send z to x\nb:\nx: receive z; send y to b",
    ),
    "answers that cross": (
        LAN_AND_ONE,
        "a: send m to b,x\nb: receive m; send y to x\nx: receive m; send z to b",
    ),
    "around a ring": (
        shapes.ring(4),
        "p1: send m to p3; send z to p2\np2: receive z; send y to p3\np3:\np4:",
    ),
    "to itself and beyond": (
        shapes.line(3),
        "p1: send m to p1,p3; send z to p2\np2: receive z; send y to p1,p3\np3:",
    ),
}


@pytest.mark.parametrize("rules", [{}, {"r9": False}, {"reports": 1}])
@pytest.mark.parametrize(("topology", "program"), PROGRAMS.values(), ids=PROGRAMS)
def test_every_schedule_keeps_the_order_and_finishes(topology, program, rules):
    result = explore(parse(program), lambda v: Separator(topology.view, v, topology, **rules))
    assert result.verdict == "holds"


@pytest.mark.parametrize(
    ("kind", "topology", "program"),
    [
        (EachItsOwnExit, *PROGRAMS["trap"]),
        (OneHopEach, LAN_AND_ONE, "a: send m to b,x\nb: receive m; send y to x\nx:"),
    ],
)
def test_some_schedule_breaks_without_the_rule(kind, topology, program):
    explorer = Explorer(lambda v: kind(topology.view, v, topology))
    result = explorer.run(parse(program))
    assert result.finding is not None
    print(explain(explorer, result))
    assert result.finding.kind == "order"


# Sizes


def test_every_separator_that_filters_makes_stamps_smaller():
    groups = [[int(name[1:]) - 1 for name in members] for members in shapes.example_groups().values()]
    example = shapes.example()
    sizes = []
    for topology in (example.filtering_at(), example.filtering_at("d3"), example, example.separating()):
        world = World(topology, 7)
        world.slowness = 0
        for _ in range(300):
            group = world.random.choice(groups)
            world.send(world.random.choice(group), group)
            while world.network and world.random.random() < 0.9:
                world._arrive()
            while any(m.eligible() for m in world.machines.values()):
                world._take()
        sizes.append(sum(world.entries) / len(world.entries))
    assert sizes[0] > sizes[1] > sizes[2] > sizes[3]


def test_fewer_reports_make_fewer_packets_and_longer_stamps():
    packets, entries = [], []
    for rules in ({}, {"reports": 1}, {"reports": 1 << 30}):
        summary = RunSpec(
            protocol="separator",
            topology="wan-of-lans:zones=2,gateways=2",
            processes=6,
            messages=200,
            parameters=rules,
        )
        found = summary.build().finish()
        assert found.undelivered == 0
        packets.append(found.packets)
        entries.append(found.stamp_entries.mean)
    assert packets[0] > packets[1] > packets[2]
    assert entries[0] < entries[1] < entries[2]


# What is refused


def test_with_fewer_reports_no_vertex_may_fail_or_join():
    diamond = shapes.diamond()
    d2 = Separator(diamond.view, "d2", diamond, reports=1)
    with pytest.raises(Unsupported, match="leave `reports` out"):
        d2.cut(diamond.id("d1"))
    with pytest.raises(Unsupported, match="leave `reports` out"):
        parameters_among("separator", {"topology": diamond, "reports": 1}, diamond.names)


def test_only_processes_send_and_only_to_processes():
    star = shapes.star(2)
    p1, hub = (Separator(star.view, name, star) for name in ("p1", "hub"))
    with pytest.raises(Unsupported, match="hub is a router, which has nothing to send"):
        hub.send(0)
    with pytest.raises(Unsupported, match="hub is a router, which takes no messages"):
        p1.send(2)
    assert not p1.orders_at(2)
    p1.reconfigure(star.fail("p2"))
    with pytest.raises(Unsupported, match="p2 has failed"):
        p1.send(1)


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        (
            {"topology": shapes.star(3)},
            "separator: the topology is for p1, p2, p3, hub, and the view has ",
        ),
        ({"topology": {"names": 3}}, "separator: this is not a topology: Expected `array`, got `int`"),
        (
            {"topology": shapes.star(2), "r6": False, "r7": False, "r8": False},
            "R9 reads the carbon copies of R6: set r6=True",
        ),
    ],
)
def test_parameters_are_checked_at_construction(parameters, told):
    if "r6" in parameters:
        parameters = {**parameters, "r6_4": False}
    with pytest.raises(BadParameter, match=told):
        create("separator", shapes.star(2).view, "p1", **parameters)


def test_without_a_topology_everyone_is_linked_with_everyone():
    p1 = create("separator", View.numbered(3), "p1")
    _, effects = p1.send([1, 2])
    assert [packet.dest for packet in effects if isinstance(packet, Packet)] == [1, 2]


def hop(**changes: Any) -> Packet[Any]:
    """A good packet from p1 by way of d1's station to d3 of the diamond, but for these changes."""
    diamond = shapes.diamond()
    p, n1, d1 = (Separator(diamond.view, name, diamond) for name in ("p", "n1", "d1"))
    _, [first] = p.send([1, 2])
    assert isinstance(first, Packet)
    second = next(e for e in n1.receive(first) if isinstance(e, Packet) and e.dest == d1.me)
    packet = next(e for e in d1.receive(second) if isinstance(e, Packet) and e.dest == diamond.id("d3"))
    for name in ("stamp", "message"):
        packet = replace(packet, **{name: replace(getattr(packet, name), **changes.pop(name, {}))})
    return replace(packet, **changes)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"dest": 0}, Misrouted),
        ({"source": 0}, Misrouted),  # p is no neighbour of d3
        ({"source": 99}, Misrouted),
        ({"message": {"number": 0}}, BadStamp),
        ({"message": {"label": "x"}}, BadStamp),
        ({"message": {"to": (1, 99)}}, Misrouted),
        ({"message": {"to": ()}}, Misrouted),
        ({"message": {"sender": 6}}, Misrouted),  # d3's own
        ({"stamp": {"number": 0}}, BadStamp),
        ({"stamp": {"to": 1 << 5}}, BadStamp),  # not to d3
        ({"stamp": {"to": 1 << 6 | 1 << 4}}, BadStamp),  # to its source
        ({"stamp": {"to": 1 << 6 | 1 << 40}}, BadStamp),
        ({"stamp": {"targets": 0}}, BadStamp),
        ({"stamp": {"targets": 1}}, BadStamp),
        ({"stamp": {"history": (Entry(99, 1, 1),)}}, BadStamp),
        ({"stamp": {"history": (Entry(0, 0, 1),)}}, BadStamp),
        ({"stamp": {"history": (Entry(0, 1, 0),)}}, BadStamp),
        ({"stamp": {"history": (Entry(6, 1, 1),)}}, BadStamp),  # a hop that d3 never sent
    ],
)
def test_a_bad_packet_is_refused_and_changes_nothing(changes, error):
    diamond = shapes.diamond()
    d3 = Separator(diamond.view, "d3", diamond)
    before = d3.snapshot()
    with pytest.raises(error):
        d3.receive(hop(**changes))
    assert d3.snapshot() == before
    assert len(d3.receive(hop())) == 2


def test_a_packet_of_a_later_topology_waits_for_it():
    diamond = shapes.diamond()
    d3 = Separator(diamond.view, "d3", diamond)
    early, forged = hop(stamp={"version": 1}), hop(stamp={"version": 1, "number": 7, "to": 1})
    assert d3.receive(early) == d3.receive(early) == d3.receive(forged) == []
    again = restore(d3.snapshot())
    assert isinstance(again, Separator)
    assert len(again.reconfigure(diamond.fail("d2"))) == 2
    [(source, error)] = again.refused
    assert (again.view.name(source), type(error)) == ("d1", BadStamp)
    with pytest.raises(BadParameter, match=r"the next topology must be version 2, .*, not version 1 of"):
        again.reconfigure(diamond.fail("d2"))


def test_a_join_is_done_in_its_order():
    diamond = shapes.diamond()
    machines = {name: Separator(diamond.view, name, diamond) for name in diamond.names}
    after = diamond.join("d4", ["n1", "d1", "d2", "d3"], member_of="d1").topology
    d4 = Separator(after.view, "d4", after)
    assert [packet for machine in machines.values() for packet in machine.reconfigure(after)] == []
    d1, d2 = machines["d1"], machines["d2"]
    with pytest.raises(Unsupported, match="d4 has not adopted the state of its separator yet"):
        d4.send(0)
    with pytest.raises(BadParameter, match="needs the handover of d2, a member, and was given those of d1"):
        d4.adopt([d1.handover()])
    with pytest.raises(BadParameter, match="handover"):
        d4.adopt([{"member": "d1"}])
    assert d4.adopt([d1.handover(), d2.handover()]) == []
    with pytest.raises(Unsupported, match="d4 cannot adopt a state: it is not joining a separator"):
        d4.adopt([])


@pytest.mark.parametrize(
    "changes",
    [
        {"member": 99},
        {"history": [{"entry": [99, 1, 1], "copies": 0}]},
        {"history": [{"entry": [0, 1, 1 << 40], "copies": 0}]},
        {"history": [{"entry": [0, 1, 1], "copies": -1}]},
        {"seen": {77: 1}},
        {"seen": {0: 1 << 62}},
        {"retained": [{"message": {"sender": 0, "number": 1, "to": [99]}, "targets": 1}]},
        {"retained": [{"message": {"sender": 0, "number": 1, "to": [1]}, "targets": 1 << 40}]},
        {"clock": -1},
        {"version": "later"},
    ],
)
def test_a_handover_that_cannot_be_is_refused_and_changes_nothing(changes):
    diamond = shapes.diamond()
    after = diamond.join("d4", ["n1", "d1", "d2", "d3"], member_of="d1").topology
    told = [{**Separator(diamond.view, name, diamond).handover(), "version": 1} for name in ("d1", "d2")]
    d4 = Separator(after.view, "d4", after)
    before = d4.snapshot()
    with pytest.raises(BadParameter, match="handover"):
        d4.adopt([told[0], {**told[1], **changes}])
    assert d4.snapshot() == before
    d4.adopt([decode_handover(msgspec.msgpack.encode(one)) for one in told])
    assert not d4.joining


@pytest.mark.parametrize("data", [b"", b"garbage", b"\x81\xa4more" + b"\x91" * 100_000 + b"\x01"])
def test_bytes_that_are_no_handover_are_refused(data):
    with pytest.raises(BadParameter, match="not what handover"):
        decode_handover(data)


def test_stable_memory_must_be_that_of_the_last_to_fail():
    diamond = shapes.diamond()
    d1, d2 = (Separator(diamond.view, name, diamond) for name in ("d1", "d2"))
    after = diamond.fail("d1").fail("d2").join("d4", ["n1", "d3"], member_of="d1").topology
    d4 = Separator(after.view, "d4", after)
    with pytest.raises(BadParameter, match="the handover of d2, the last member to fail"):
        d4.adopt([d1.handover()])
    effects = d4.adopt([d2.handover()])
    assert [type(one.stamp) for one in effects if isinstance(one, Packet)] == [Resumed, Resumed]


def test_what_nobody_is_there_to_forward_waits_and_says_so():
    star = shapes.star(2)
    p1 = Separator(star.view, "p1", star)
    p1.reconfigure(star.fail("hub"))
    message, effects = p1.send(1)
    assert effects == []
    [waiting] = p1.waiting()
    assert (waiting.message, waiting.where) == (message, "unsent")
    assert waiting.reason == "nobody lives to forward it to p2"
    after = star.fail("hub").join("hub2", ["p1", "p2"], member_of="hub").topology
    [packet] = p1.reconfigure(after)
    assert isinstance(packet, Packet)
    assert packet.dest == after.id("hub2")
    assert p1.waiting() == []


def test_a_held_message_says_which_hop_it_waits_for():
    star = shapes.star(2)
    p1, hub = (Separator(star.view, name, star) for name in ("p1", "hub"))
    p1.send(1)
    message, [late] = p1.send(1)
    assert isinstance(late, Packet)
    assert hub.receive(late) == []
    assert [(w.message, w.reason) for w in hub.waiting()] == [(message, "waits for hop 1 of p1")]
