"""Draws runs of whole systems, examines them, and shortens one that fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
from msgspec.structs import replace

from antecede.sim.nodes.invariants import RAISED
from antecede.sim.nodes.scenario import Scenario
from antecede.sim.nodes.system import System
from antecede.sim.outcome import Outcome, pause_collector, shorten

__all__ = ["examine", "repeat", "shrink", "simpler"]


def examine(scenario: Scenario) -> Outcome[Scenario]:
    """Run a scenario, and say what is wrong."""
    with pause_collector():
        system = System(scenario)
        try:
            system.run()
            findings = system.verdict()
        except RAISED as error:
            findings = [*system.judge.findings, f"raised: {type(error).__name__}: {error}"[:500]]
        judge = system.judge
        return Outcome(
            run=scenario,
            protocol=scenario.protocol,
            deliveries=judge.watch.deliveries,
            crashes=system.counts["crashes"],
            findings=tuple(findings),
            judged=judge.events is not None,
            counts=dict(system.counts) | {"changes": judge.changes, "views": len(judge.rolls) - 1},
        )


def repeat(scenario: Scenario) -> str:
    """The command line that repeats a run."""
    return f"antecede soak --nodes --scenario '{msgspec.json.encode(scenario).decode()}'"


def shrink(
    scenario: Scenario,
    kind: str,
    most: int = 300,
    told: Callable[[Scenario], None] = lambda scenario: None,
) -> Scenario:
    """The shortest run found that fails in the same way: fewer faults, messages and processes."""

    def list_seeded(scenario: Scenario) -> Iterator[Scenario]:
        return (replace(scenario, seed=seed) for seed in dict.fromkeys((scenario.seed, 0, 1, 2)))

    return shorten(scenario, simpler, list_seeded, lambda tried: examine(tried).kind == kind, most, told)


def simpler(scenario: Scenario) -> Iterator[Scenario]:
    """Runs with less in them, the boldest first."""
    faults = scenario.faults
    size = len(faults)
    while size:
        for start in range(0, len(faults), size):
            yield replace(scenario, faults=faults[:start] + faults[start + size :])
        size //= 2
    for messages in dict.fromkeys((scenario.messages // 8, scenario.messages // 2, scenario.messages - 1)):
        if 1 <= messages < scenario.messages:
            yield replace(scenario, messages=messages)
    for processes in dict.fromkeys((scenario.processes // 2, scenario.processes - 1)):
        if 2 <= processes < scenario.processes:
            yield replace(scenario, processes=processes)
    plain = Scenario(scenario.protocol)
    for field in (
        "loss",
        "repeats",
        "large",
        "recording",
        "sync",
        "snapshot_inputs",
        "queue",
        "unacknowledged",
        "burst",
    ):
        if getattr(scenario, field) != getattr(plain, field):
            yield replace(scenario, **{field: getattr(plain, field)})
