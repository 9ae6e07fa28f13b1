"""Each rule of separator is needed: a mutant leaves one out, and its row says where a violation shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from antecede.explore import Explorer, explore
from antecede.model import Effect, Message, bits
from antecede.oracle import check
from antecede.program import parse
from antecede.protocols import relay
from antecede.protocols.separator import Separator
from antecede.replay import explain
from antecede.topology import Topology, shapes
from tests.router_world import (
    CHANGES,
    GRAPHS,
    HUB,
    WAN,
    Crash,
    World,
    worlds,
)

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

    def _take_in(self, message: Message, targets: int) -> list[Effect]:
        self._seen.pop(message.sender, None)
        return super()._take_in(message, targets)


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
