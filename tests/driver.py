"""A small random driver for tests: any protocol, over a network that reorders at will and repeats itself.

Everything is drawn from one `random.Random`, so a run is its seed. A `World` holds the machines, the packets in
flight and the events for the oracle, and checks at every step what holds for every protocol:
- a duplicate has no effect;
- the effects name exactly the messages that became eligible, and eligible messages stay so until delivered;
- a machine restored from its snapshot gives the same effects as the original from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from antecede.model import Effect, Event, Id, Message, Packet, View
from antecede.oracle import Verdict, check, happened_before
from antecede.protocols import PROTOCOLS, Machine, create, restore
from antecede.protocols.history import History

SKIPPED = {"separator": "needs a topology, and its routers are machines too: it has tests of its own"}
"""Protocols that these tables leave out, with the reason."""


@dataclass(frozen=True)
class Variant:
    """A protocol with its parameters, which may differ from process to process: (n, process) -> parameters."""

    protocol: str
    parameters: Callable[[int, int], Mapping[str, Any]] = lambda n, process: {}

    def machines(self, n: int) -> list[Machine]:
        view = View.numbered(n)
        return [create(self.protocol, view, p, **self.parameters(n, p)) for p in range(n)]


def _fix(protocol: str, **parameters: Any) -> Variant:
    return Variant(protocol, lambda n, process: parameters)


NAMES = [name for name in PROTOCOLS if name not in SKIPPED]

VARIANTS: dict[str, Variant] = {
    **{name: Variant(name) for name in NAMES},
    "bounded, k=n+1": Variant("bounded", lambda n, p: {"k": n + 1}),
    "bounded, each its own k": Variant("bounded", lambda n, p: {"k": n + 1 + p % (n * n - n)}),
    "bounded, k=n*n": Variant("bounded", lambda n, p: {"k": n * n}),
    "sparing, k=n+1": Variant("sparing", lambda n, p: {"k": n + 1}),
    "underway, k=0": _fix("underway", k=0),
    "underway, k=2": _fix("underway", k=2),
    "monitor, at p2": Variant("monitor", lambda n, p: {"monitor": 1}),
    "monitor, at the last": Variant("monitor", lambda n, p: {"monitor": n - 1}),
    "buffer, pipelined": _fix("buffer", pipelined=True),
    "history, without R5": _fix("history", r5=False),
    "history, with R6.1": _fix("history", r6_1=True),
    "history, without R7": _fix("history", r7=False),
    "history, without R8": _fix("history", r8=False),
    "history, without R7, R8": _fix("history", r7=False, r8=False),
    "history, with R6.1, without R7": _fix("history", r6_1=True, r7=False),
    "history, with R6.1, without R8": _fix("history", r6_1=True, r8=False),
    "history, with R10": _fix("history", r10=True),
    "history, with R10, without R8": _fix("history", r10=True, r8=False),
    "history, without R6.4": _fix("history", r6_4=False),
    "history, without R6": _fix("history", r6=False, r6_4=False, r7=False, r8=False),
    "history, without R5, R6": _fix("history", r5=False, r6=False, r6_4=False, r7=False, r8=False),
}


@dataclass
class World:
    """Processes that run one protocol, the network between them, and what happened."""

    machines: list[Machine]
    network: list[Packet[Any]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    messages: dict[Id, Message] = field(default_factory=dict)
    """Everything sent, as the application handed it over."""
    packets: list[Packet[Any]] = field(default_factory=list)
    """Everything transmitted, arrived or not."""

    def __post_init__(self) -> None:
        self.n = len(self.machines)
        self.fifo = any(machine.needs_fifo for machine in self.machines)
        self.offered: list[dict[Id, Message]] = [{} for _ in self.machines]
        self.shadows: list[Machine | None] = [None] * self.n
        """For some processes, a second machine, restored from a snapshot of the first."""

    # What can happen

    def send(self, process: int, to: Iterable[int], payload: bytes = b"", label: str = "") -> Message:
        to = tuple(to)
        message, effects = self._both(process, lambda machine: machine.send(to, payload, label))
        self.messages[message.id] = Message(process, message.number, tuple(sorted(set(to))), payload, label)
        assert message == self.messages[message.id]
        self.events.append(Event(process, "send", message.sender, message.number, message.to))
        self._follow(process, effects)
        return message

    def arrive(self, packet: Packet[Any], repeat: bool = False) -> None:
        """A packet arrives, perhaps twice."""
        self.network.remove(packet)
        if packet.message is not None:
            self.events.append(Event(packet.dest, "receive", *packet.message.id))
        self._follow(packet.dest, self._both(packet.dest, lambda machine: machine.receive(packet)))
        if repeat:
            self.arrive_again(packet)

    def arrive_again(self, packet: Packet[Any]) -> None:
        before = self.machines[packet.dest].dump()
        assert self._both(packet.dest, lambda machine: machine.receive(packet)) == []
        assert self.machines[packet.dest].dump() == before, f"a duplicate changed the state: {packet}"

    def deliver(self, process: int, message: Message) -> None:
        assert message == self.messages[message.id], "what is delivered is what was sent"
        self.events.append(Event(process, "deliver", *message.id))
        del self.offered[process][message.id]
        self._follow(process, self._both(process, lambda machine: machine.deliver(message)))

    def split(self, process: int) -> None:
        """From now on a machine restored from the snapshot runs beside the original."""
        machine = self.machines[process]
        snapshot = machine.snapshot()
        restored = restore(msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot)))
        assert restored.snapshot() == snapshot
        assert restored.waiting() == machine.waiting()
        self.shadows[process] = restored

    def _both(self, process: int, call: Callable[[Machine], Any]) -> Any:
        machine, shadow = self.machines[process], self.shadows[process]
        result = call(machine)
        if shadow is not None:
            assert call(shadow) == result, "a restored machine gives the same effects"
            assert shadow.eligible() == machine.eligible()
        return result

    def _follow(self, process: int, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Packet):
                assert effect.source == process
                assert effect.dest != process, "a process's own copy never crosses the network"
                self.network.append(effect)
                self.packets.append(effect)
            else:
                assert effect.id not in self.offered[process], f"{effect} became eligible twice"
                self.offered[process][effect.id] = effect
        eligible = {message.id: message for message in self.machines[process].eligible()}
        assert eligible == self.offered[process], "the effects name what became eligible, and it stays so"

    # What may happen next

    def list_arrivable(self) -> list[Packet[Any]]:
        """The packets that may arrive next: all, or the oldest of each channel."""
        if not self.fifo:
            return self.network
        heads: dict[tuple[int, int], Packet[Any]] = {}
        for packet in self.network:
            heads.setdefault((packet.source, packet.dest), packet)
        return list(heads.values())

    def deliverable(self) -> list[tuple[int, Message]]:
        return [(q, offers[key]) for q, offers in enumerate(self.offered) for key in sorted(offers)]

    # What came of it

    def verdict(self, complete: bool = True) -> Verdict:
        judged = [q for q in range(self.n) if self.machines[q].orders_at(q)]
        return check(self.events, self.n, complete, judged)

    def check(self, complete: bool = True) -> None:
        """The promise of the protocol, judged by the oracle; and when all is over, that nothing is left."""
        verdict = self.verdict(complete)
        assert verdict.keeps(self.machines[0].order), verdict.explain(self.machines[0].view)
        if complete:
            for machine in self.machines:
                assert machine.waiting() == []
                assert machine.eligible() == []


@dataclass(frozen=True)
class Habits:
    """How a run is drawn: how many processes and messages, and how eager the network and the applications are."""

    n: int = 3
    messages: int = 12
    arrive: float = 2.0
    deliver: float = 2.0
    """Weights beside a weight of 1 for a send: small ones make a slow network, a lazy application."""
    multicast: float = 0.5
    to_self: float = 0.2
    """How often the sender is among the destinations of its message, at least."""
    repeat: float = 0.1
    split: float = 0.05
    picky: bool = False
    """Applications receive selectively: each takes only messages of a sender that it drew, while there may come any."""
    labels: tuple[str, ...] = ("",)

    @classmethod
    def draw(cls, random: Random) -> Habits:
        return cls(
            n=random.choice([2, 3, 3, 4, 5]),
            messages=random.choice([4, 8, 12, 20]),
            arrive=random.choice([0.3, 1.0, 3.0]),
            deliver=random.choice([0.2, 1.0, 3.0]),
            multicast=random.choice([0.0, 0.4, 0.8]),
            to_self=random.choice([0.0, 0.2, 0.6]),
            picky=random.random() < 0.3,
        )


def drive(machines: list[Machine], habits: Habits, random: Random) -> World:
    """One random run to its end: everything sent, nothing in flight, nothing eligible."""
    world = World(machines)
    wanted = [random.randrange(world.n) for _ in machines]
    unsent = habits.messages
    while True:
        arriving, deliverable = world.list_arrivable(), world.deliverable()
        if habits.picky and (unsent or arriving):
            deliverable = [(q, m) for q, m in deliverable if m.sender == wanted[q]]
        weights = [
            1.0 if unsent else 0.0,
            habits.arrive if arriving else 0.0,
            habits.deliver if deliverable else 0.0,
        ]
        if not any(weights):
            return world
        act = random.choices(("send", "arrive", "deliver"), weights)[0]
        if random.random() < habits.split:
            world.split(random.randrange(world.n))
        if random.random() < 0.2:
            wanted[random.randrange(world.n)] = random.randrange(world.n)
        if act == "send":
            unsent -= 1
            sender = random.randrange(world.n)
            to = draw_destinations(machines[sender], habits, random)
            world.send(sender, to, random.randbytes(random.randrange(4)), random.choice(habits.labels))
        elif act == "arrive":
            world.arrive(random.choice(arriving), random.random() < habits.repeat)
            if random.random() < habits.repeat:
                world.arrive_again(random.choice([p for p in world.packets if p not in world.network]))
        else:
            world.deliver(*random.choice(deliverable))


def play(machines: list[Machine], steps: Iterable[tuple[str, int, int]]) -> World:
    """A run of drawn steps, each taken modulo what is possible, and then to its end, newest packets first.

    Shorter lists and smaller numbers are simpler runs, so that Hypothesis can shrink one that fails.
    """
    world = World(machines)
    for kind, which, to in steps:
        arriving, deliverable = world.list_arrivable(), world.deliverable()
        process = which % world.n
        if kind == "send":
            drawn = tuple(q for q in range(world.n) if to >> q & 1) or (process,)
            accepted = machines[process].accepts(process, drawn) is None
            world.send(process, drawn if accepted else range(world.n), bytes([to]))
        elif kind == "arrive" and arriving:
            world.arrive(arriving[which % len(arriving)], repeat=to % 4 == 3)
        elif kind == "deliver" and deliverable:
            world.deliver(*deliverable[which % len(deliverable)])
        elif kind == "split":
            world.split(process)
    while world.network or world.deliverable():
        if world.network:
            world.arrive(world.list_arrivable()[-1])
        else:
            world.deliver(*world.deliverable()[-1])
    return world


def busy(name: str, seed: int = 0) -> World:
    """A world of three in the middle of a run, with something of everything under way."""
    random = Random(f"busy {name} {seed}")
    world = World(VARIANTS[name].machines(3))
    for _ in range(20):
        sender = random.randrange(3)
        to = tuple(range(3)) if random.random() < 0.5 else (random.randrange(3),)
        if world.machines[sender].accepts(sender, to) is None:
            world.send(sender, to)
        if world.network and random.random() < 0.8:
            world.arrive(random.choice(world.list_arrivable()))
        if world.deliverable() and random.random() < 0.5:
            world.deliver(*random.choice(world.deliverable()))
    return world


def draw_destinations(machine: Machine, habits: Habits, random: Random) -> tuple[int, ...]:
    n, me = machine.n, machine.me
    if random.random() < habits.multicast:
        to = set(random.sample(range(n), random.randint(1, n)))
    else:
        to = {random.randrange(n)}
    if random.random() < habits.to_self:
        to.add(me)
    drawn = tuple(sorted(to))
    return drawn if machine.accepts(me, drawn) is None else tuple(range(n))


LABELS = ("a", "b", "c")


@dataclass
class Merging:
    """A random run with labels and merges, and the order that it must keep.

    The order is that of another run, in which each label of each process is a process of its own, and a merge is a
    message from one to another. So the oracle's happened-before serves for merges too.
    """

    world: World
    logical: list[Event] = field(default_factory=list)

    @classmethod
    def run(cls, machines: list[Machine], random: Random, messages: int = 20) -> Merging:
        self = cls(World(machines))
        world, habits = self.world, Habits(multicast=0.4, to_self=0.2)
        while messages or world.network or world.deliverable():
            act = random.choice(["send", "arrive", "arrive", "deliver", "deliver", "merge"])
            process = random.randrange(world.n)
            if act == "send" and messages:
                messages -= 1
                to = draw_destinations(machines[process], habits, random)
                self._send(process, to, random.choice(LABELS))
            elif act == "arrive" and world.network:
                world.arrive(random.choice(world.network), random.random() < 0.1)
            elif act == "deliver" and world.deliverable():
                self._deliver(*random.choice(world.deliverable()))
            elif act == "merge" and messages:
                self._merge(process, *random.sample(LABELS, 2))
        return self

    def _send(self, process: int, to: tuple[int, ...], label: str) -> None:
        at, number = self._id(self.world.send(process, to, label=label))
        self.logical.append(Event(at, "send", at, number, tuple(self._place(q, label) for q in to)))

    def _deliver(self, process: int, message: Message) -> None:
        self.world.deliver(process, message)
        self.logical.append(Event(self._place(process, message.label), "deliver", *self._id(message)))

    def _merge(self, process: int, source: str, into: str) -> None:
        for machine in (self.world.machines[process], self.world.shadows[process]):
            if isinstance(machine, History):
                machine.merge(source, into)
        teller, told = self._place(process, source), self._place(process, into)
        number = 1000 + len(self.logical)
        self.logical.append(Event(teller, "send", teller, number, (told,)))
        self.logical.append(Event(told, "deliver", teller, number))

    def _place(self, process: int, label: str) -> int:
        """The process that stands for a label at a process."""
        return process * len(LABELS) + LABELS.index(label)

    def _id(self, message: Message) -> Id:
        return self._place(message.sender, message.label), message.number

    def overtaken(self) -> tuple[Message, Message, int] | None:
        """A message that was delivered after one that it precedes, that one, and where: if there is one."""
        order = happened_before(self.logical)
        for q in range(self.world.n):
            done = [e.id for e in self.world.events if e.kind == "deliver" and e.process == q]
            messages = [self.world.messages[key] for key in done]
            for position, late in enumerate(messages):
                for by in messages[:position]:
                    if order.precedes(self._id(late), self._id(by)):
                        return late, by, q
        return None
