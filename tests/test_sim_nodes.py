"""Whole systems in a simulation: drawn runs keep what is promised, and each run is what its seed says."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from msgspec.structs import replace

from antecede.cli import run as command
from antecede.sim.nodes.scenario import CAUSAL, Kind, Scenario, draw, parse
from antecede.sim.nodes.soak import examine, repeat, simpler

CHANGES = ("join", "cancel", "leave", "die", "suspect", "strike")


def still(scenario: Scenario) -> Scenario:
    """The same, with a view that does not change."""
    faults = tuple(fault for fault in scenario.faults if fault.kind not in CHANGES)
    return replace(scenario, faults=faults, sync="full")


def test_the_same_seed_draws_the_same_runs_and_they_go_the_same_way():
    assert [draw(3, k) for k in range(20)] == [draw(3, k) for k in range(20)]
    scenario = still(draw(3, 5, most=60))
    assert examine(scenario) == examine(scenario)


def test_every_protocol_and_every_fault_has_its_turn():
    scenarios = [draw(0, number) for number in range(90)]
    assert {scenario.protocol for scenario in scenarios} == set(CAUSAL)
    kinds = {fault.kind for scenario in scenarios for fault in scenario.faults}
    assert kinds == set(get_args(Kind))


@pytest.mark.parametrize("number", range(18))
def test_systems_that_do_not_change_keep_what_is_promised(number):
    scenario = still(draw(11, number, most=100))
    outcome = examine(scenario)
    assert not outcome.findings, f"{repeat(scenario)}\n{outcome.findings}"
    assert outcome.deliveries


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


def test_a_scenario_that_is_none_is_refused(capsys):
    assert command(["soak", "--scenario", '{"protocol": "smoke"}']) == 2
    assert "smoke" in capsys.readouterr().err
    assert command(["soak", "--scenario", "{"]) == 2
