"""Routers and processes for tests of `separator`: random schedules, failures and joins, all drawn from one seed.

Which topology a vertex has, when it learns of a failure or a join, when packets arrive and when the application takes
its messages is all chosen at random; the oracle judges what the application saw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, ClassVar

from antecede.model import Effect, Event, Message, Packet
from antecede.oracle import Verdict, check
from antecede.protocols import restore
from antecede.protocols.separator import HopStamp, Separator
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
    "example, all separators": shapes.example().filter_at_cuts(),
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


HUB = (Crash("hub"), Arrival("hub2", ("p1", "p2", "p3", "p4"), "hub"))
