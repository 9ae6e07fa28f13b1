"""Whole systems in a simulation: drawn runs keep what is promised, and each run is what its seed says."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import get_args

import pytest
from msgspec.structs import replace

from antecede.cli import run as command
from antecede.sim.nodes.scenario import CAUSAL, Kind, Scenario, draw, parse
from antecede.sim.nodes.soak import examine, repeat, shrink, simpler
from tests.recovery_mutants import forget_acknowledgements

CHANGES = ("join", "cancel", "sponsor", "leave", "linger", "die", "suspect", "strike")


def still(scenario: Scenario) -> Scenario:
    """The same, with a view that does not change."""
    faults = tuple(fault for fault in scenario.faults if fault.kind not in CHANGES)
    return replace(scenario, faults=faults, sync="full")


def test_the_same_seed_draws_the_same_runs_and_they_go_the_same_way():
    assert [draw(3, k) for k in range(20)] == [draw(3, k) for k in range(20)]
    scenario = still(draw(3, 5, most=60))
    assert examine(scenario) == examine(scenario)


def test_every_protocol_and_every_fault_has_its_turn():
    scenarios = [draw(0, number) for number in range(300)]
    assert {scenario.protocol for scenario in scenarios} == set(CAUSAL)
    kinds = {fault.kind for scenario in scenarios for fault in scenario.faults}
    assert kinds == set(get_args(Kind))


@pytest.mark.parametrize("number", range(18))
def test_systems_that_do_not_change_keep_what_is_promised(number):
    scenario = still(draw(11, number, most=100))
    outcome = examine(scenario)
    assert not outcome.findings, f"{repeat(scenario)}\n{outcome.findings}"
    assert outcome.deliveries


FAILED = [json.loads(line) for line in (Path(__file__).parent / "failed_runs.jsonl").read_text().splitlines()]
"""Runs that ever failed, and why, or which seed drew them then. They are kept as values: what a seed draws changes."""


@pytest.mark.parametrize("failed", FAILED, ids=lambda failed: failed["was"])
def test_what_once_failed_does_not_fail_again(failed):
    assert examine(parse(json.dumps(failed["run"]))).findings == ()


@pytest.mark.parametrize("number", range(27))
def test_systems_that_change_keep_what_is_promised(number):
    scenario = draw(12, number, most=60)
    outcome = examine(scenario)
    assert not outcome.findings, f"{repeat(scenario)}\n{outcome.findings}"


def test_simpler_runs_are_simpler_and_are_read_back():
    scenario = draw(0, 4)
    for candidate in simpler(scenario):
        assert candidate != scenario
        assert len(candidate.faults) <= len(scenario.faults)
        assert parse(repeat(candidate).split("'")[1]) == candidate


def test_the_command_says_yes(capsys):
    scenario = still(draw(11, 1, most=40))
    assert command(["soak", "--scenario", repeat(scenario).split("'")[1], "--jobs", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["verdict"], result["runs"]) == ("yes", 1)


def test_the_command_ends_after_so_many_deliveries(capsys):
    told = ["--nodes", "--deliveries", "50", "--messages", "40", "--seed", "11", "--jobs", "1", "--json"]
    assert command(["soak", *told]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["deliveries"] >= 50
    assert result["runs"] < 20


def test_a_run_that_fails_is_shortened(monkeypatch):
    forget_acknowledgements(monkeypatch)
    failing = (
        scenario for scenario in map(partial(draw, 5, most=60), range(60)) if examine(scenario).findings
    )
    scenario = next(failing)
    kind = examine(scenario).kind
    short = shrink(scenario, kind, most=30)
    assert examine(short).kind == kind
    assert (len(short.faults), short.messages) < (len(scenario.faults), scenario.messages)


def test_a_scenario_that_is_none_is_refused(capsys):
    assert command(["soak", "--scenario", '{"protocol": "smoke"}']) == 2
    assert "smoke" in capsys.readouterr().err
    assert command(["soak", "--scenario", "{"]) == 2
