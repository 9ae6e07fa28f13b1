"""R9 in the report's own setting: every vertex sends to its neighbours, and nobody forwards.

Here members of a separator act each on their own, so each condition of R9 can be seen to be needed, or not.
"""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Any

import pytest

from antecede.model import Effect, Event, Message, Packet, bits
from antecede.oracle import Verdict, check
from antecede.protocols.histories import Record
from antecede.protocols.history import History
from antecede.protocols.topological import TopologicalHistories
from antecede.topology import Topology, shapes

PAIR = Topology.of(
    [("a", "b"), ("a", "s"), ("a", "t"), ("b", "s"), ("b", "t"), ("s", "t"), ("s", "x"), ("t", "x")],
    ["a", "b", "s", "t", "x"],
    separators=[("s", "t")],
)
"""{a, b} - {s, t} - x, everything linked but x with a and b."""

GRAPHS = {
    "pair": PAIR,
    "wan of lans": shapes.wan_of_lans(2, 2, 2),
    "line": shapes.line(4),
    "clique with tails": shapes.clique_with_tails(3),
}


class Neighbours(History):
    """history, with R9, among neighbours of a topology."""

    topology: Topology
    kind: type[TopologicalHistories]

    def _histories(self) -> TopologicalHistories:
        return self.kind(self.me, self.rules, self.topology.plan, True)


def neighbours(topology: Topology, vertex: int) -> list[int]:
    plan = topology.plan
    place = plan.place[vertex]
    near = plan.members[place] & ~(1 << vertex)
    for station in plan.neighbours[place]:
        near |= plan.members[station]
    return list(bits(near))


class World:
    def __init__(
        self, topology: Topology, seed: int, kind: type[TopologicalHistories], **rules: bool
    ) -> None:
        self.random = Random(seed)
        machine = type("Neighbours", (Neighbours,), {"topology": topology, "kind": kind})
        self.machines = [machine(topology.view, v, **rules) for v in range(len(topology.names))]
        self.near = [neighbours(topology, v) for v in range(len(topology.names))]
        self.network: list[Packet[Any]] = []
        self.slow: list[Packet[Any]] = []
        self.events: list[Event] = []

    def run(self, messages: int) -> Verdict:
        chance = self.random.choice([0.1, 0.3, 0.5])
        while True:
            offers = [(v, m) for v, machine in enumerate(self.machines) for m in machine.eligible()]
            steps = (
                ["send"] * (messages > 0) + ["arrive"] * 2 * bool(self.network) + ["take"] * 2 * bool(offers)
            )
            if not steps and not self.slow:
                return check(self.events, processes=len(self.machines))
            match self.random.choice(steps or ["hurry"]):
                case "send":
                    messages -= 1
                    effects = self._send(self.random.randrange(len(self.machines)))
                case "arrive":
                    packet = self.network.pop(self.random.randrange(len(self.network)))
                    effects = self.machines[packet.dest].receive(packet)
                case "take":
                    effects = self._take(*self.random.choice(offers))
                case _:
                    effects = []
                    self.network.append(self.slow.pop(self.random.randrange(len(self.slow))))
            for effect in effects:
                if isinstance(effect, Packet):
                    (self.slow if self.random.random() < chance else self.network).append(effect)

    def _send(self, vertex: int) -> list[Effect]:
        near = self.near[vertex]
        to = self.random.sample(near, min(len(near), self.random.choice([1, 1, 1, 2, 3])))
        message, effects = self.machines[vertex].send(to)
        self.events.append(Event(vertex, "send", message.sender, message.number, message.to))
        return effects

    def _take(self, vertex: int, message: Message) -> list[Effect]:
        self.events.append(Event(vertex, "deliver", message.sender, message.number))
        return self.machines[vertex].deliver(message)


class AnyVertex(TopologicalHistories):
    """p need not be in S."""

    def _separators(self) -> list[int]:
        return [place for place, separator in enumerate(self.plan.separator) if separator]


class AnywhereForward(TopologicalHistories):
    """A_m need not lie in F."""

    def _b(self, separator: int, to: int) -> int:
        return sum(self.plan.sides(separator))


class AnywhereBackward(TopologicalHistories):
    """A_n need not lie in B."""

    def _is_behind(self, separator: int, record: Record, to: int) -> bool:
        return True


class Unreported(TopologicalHistories):
    """S need not be within C_p(n)."""

    def _is_known(self, separator: int, record: Record) -> bool:
        return True


@pytest.mark.parametrize("rules", [{}, {"r6_1": True}, {"r5": False}, {"r7": False}, {"r8": False}])
@pytest.mark.parametrize("topology", GRAPHS.values(), ids=GRAPHS)
def test_r1_to_r9_keep_causal_order(topology, rules):
    for seed in range(25):
        verdict = World(topology, seed, TopologicalHistories, **rules).run(16)
        assert verdict.ok, f"seed {seed}: {verdict}"


@pytest.mark.parametrize(
    ("kind", "topology"),
    [
        (AnywhereForward, shapes.line(4)),
        (AnywhereForward, PAIR),
        (AnywhereBackward, shapes.line(4)),
        (AnywhereBackward, PAIR),
        (Unreported, PAIR),
    ],
)
def test_this_condition_of_r9_is_needed(kind, topology):
    for seed in count():
        assert seed < 500, "nothing found in 500 runs"
        if not World(topology, seed, kind).run(16).ok:
            print(f"{kind.__name__}: seed {seed}")
            return


def test_that_p_is_a_member_is_not_needed():
    """If all of S knows n, whoever leaves n out: the way back to B leads past S. The report asks for it anyway."""
    for seed in range(150):
        assert World(GRAPHS["wan of lans"], seed, AnyVertex).run(16).ok, seed
