"""Views that change while messages are under way, in memory: any schedule, crashes anywhere; judged by the oracle."""

from __future__ import annotations

from random import Random

import pytest

from antecede.net.roll import Plan
from antecede.protocols import PROTOCOLS
from tests.view_world import World

RUN = [protocol for protocol in PROTOCOLS if protocol != "separator"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("protocol", RUN)
def test_causal_order_holds_while_processes_come_and_go(protocol, seed):
    world = World(protocol, f"{protocol} {seed}")
    for step in range(900):
        world.step(crashes=0.01)
        if step == 100:
            world.join("d")
        if step == 350:
            world.ask("b", Plan(leave=("b",)))
        if step == 450:
            world.join("e")
    world.settle()
    world.judge()
    assert {"d", "e"} <= set(world.processes)
    assert sorted(world.processes["a"].core.changing.roll.shown) == ["a", "c", "d", "e"]
    assert world.counts["crashed"] > 2


def changes(world: World, random: Random) -> None:
    """One more thing that an operator does, if there are enough members for it."""
    living = [process for process in world.alive() if not process.gone]
    leaving = {name for _, plan in world.asked for name in plan.leave}
    staying = [process.name for process in living if process.name not in leaving]
    match random.choice(["join", "leave", "remove", "remove"]):
        case "join" if len(living) < 5:
            world.join(f"n{world.counts['joining']}")
        case "leave" if len(staying) > 2:
            name = random.choice([name for name in staying if (world.protocol, name) != ("monitor", "a")])
            world.ask(name, Plan(leave=(name,)))
        case "remove" if len(staying) > 2:
            # Without its monitor, that protocol cannot go on.
            mortal = [name for name in staying if (world.protocol, name) != ("monitor", "a")]
            victim = world.processes[random.choice(mortal)]
            # Perhaps in the middle of a change, perhaps its leader.
            world.crash(victim, for_good=True)
            others = [name for name in staying if name != victim.name]
            world.ask(random.choice(others), Plan(remove=(victim.name,)))


def random_changes(protocol: str, seed: int, steps: int = 1200) -> World:
    world, random = World(protocol, f"{protocol} {seed}"), Random(f"changes {protocol} {seed}")
    for _ in range(steps):
        world.step(crashes=0.01)
        if random.random() < 0.008:
            changes(world, random)
    world.settle()
    world.judge()
    return world


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("protocol", RUN)
def test_a_crashed_process_is_removed_whatever_else_changes(protocol, seed):
    random_changes(protocol, seed)
