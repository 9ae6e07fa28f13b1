"""Draws runs of whole systems, examines them, and shortens one that fails."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antecede.sim.nodes.invariants import RAISED
from antecede.sim.nodes.scenario import Scenario
from antecede.sim.nodes.system import System

__all__ = ["Outcome", "examine", "repeat", "shrink", "simpler"]


class Outcome(Struct, frozen=True):
    """What came of one run."""

    scenario: Scenario
    deliveries: int = 0
    counts: Mapping[str, int] = {}
    findings: tuple[str, ...] = ()
    judged: bool = False
    """Whether the oracle judged it too."""

    @property
    def protocol(self) -> str:
        return self.scenario.protocol

    @property
    def crashes(self) -> int:
        return self.counts.get("crashes", 0)

    @property
    def resent(self) -> int:
        return 0

    @property
    def kind(self) -> str:
        """What went wrong, in a word."""
        return self.findings[0].partition(":")[0] if self.findings else ""


def examine(scenario: Scenario) -> Outcome:
    """Run a scenario, and say what is wrong."""
    collects = gc.isenabled()
    gc.disable()
    try:
        system = System(scenario)
        try:
            system.run()
            findings = system.verdict()
        except RAISED as error:
            findings = [*system.judge.findings, f"raised: {type(error).__name__}: {error}"[:500]]
        judge = system.judge
        counts = dict(system.counts) | {"changes": judge.changes, "views": len(judge.rolls) - 1}
        return Outcome(scenario, judge.watch.deliveries, counts, tuple(findings), judge.events is not None)
    finally:
        if collects:
            gc.enable()


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
    tries = most

    def failing(candidate: Scenario) -> Scenario | None:
        nonlocal tries
        for seed in dict.fromkeys((candidate.seed, 0, 1, 2)):
            if tries <= 0:
                return None
            tries -= 1
            tried = replace(candidate, seed=seed)
            if examine(tried).kind == kind:
                return tried
        return None

    better: Scenario | None = scenario
    while better is not None:
        scenario = better
        better = next(filter(None, map(failing, simpler(scenario))), None)
        if better is not None:
            told(better)
    return scenario


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
