"""Whole systems in a simulation: drawn runs keep what is promised, and each run is what its seed says."""

from __future__ import annotations

import json
from functools import partial
from typing import get_args

import pytest
from msgspec.structs import replace

from antecede.cli import run as command
from antecede.sim.nodes.scenario import CAUSAL, Kind, Scenario, draw, parse
from antecede.sim.nodes.soak import examine, repeat, shrink, simpler
from tests.recovery_mutants import forget_acknowledgements

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


REGRESSIONS = {
    "pieces of a state overtake each other": '{"protocol":"broadcast","messages":2,"seed":1,"delay_ms":5,"loss":0.05,'
    '"repeats":0.1,"sync_ms":1,"faults":[["join",466,27,656604390]]}',
    "what was taken after inputs that were not durable comes again unmarked": '{"protocol":"permit","messages":40,'
    '"seed":27,"delay_ms":50,"loss":0.05,"sync_ms":1,"burst":4,"faults":[["kill",40,300,961464818],["partition",774,300,'
    '463631653],["strike",326,300,152527937],["suspect",518,300,1060861810],["kill",435,300,595670664]]}',
    "a node that is killed while a router is removed from the first view refuses its file": '{"protocol":"separator",'
    '"processes":6,"seed":671519544,"topology":"wan","delay_ms":1,"repeats":0.1,"sync_ms":1,"snapshot_inputs":20,"queue":4,'
    '"unacknowledged":2,"burst":32,"large":0.01,"stateful":false,"faults":[["strike",330,101,658439419],["strike",187,26,'
    '458541904],["join",140,101,510860420],["die",33,12001,1016134396],["strike",317,12001,916867849],["join",479,12001,'
    '257913600],["die",182,101,578827113],["join",334,101,493841176],["join",41,101,934958641],["die",351,101,689314654]]}',
    "simulator: one of a separator that joined had not begun to live": (
        '{"protocol":"separator","processes":5,"messages":124,"seed":2,"topology":"wan","delay_ms":100,"loss":0.0,'
        '"repeats":0.1,"sync":"full","sync_ms":1,"snapshot_inputs":300,"pace_ms":100,"burst":2,"recording":true,'
        '"faults":[["partition",4139,8001,866514188],["join",22382,2001,951319084],["die",5344,2001,1024339300],'
        '["join",30949,12001,242229174],["die",33448,2001,323139751]]}'
    ),
    "one that joined left before it had its state, and waited for it for ever (seed 51, runs 943 and 1202)": (
        '{"protocol":"matrix","processes":2,"messages":20,"seed":3,"delay_ms":5,"sync_ms":1,"burst":4,"faults":'
        '[["join",121,300,636343332],["leave",1414,300,140040410],["lazy",189,3000,983488253],["lazy",309,3000,509011111]]}'
    ),
    "a router that came back kept, for ever, that messages which it relays may have been taken (seed 51, run 1073)": (
        '{"protocol":"separator","processes":4,"messages":10,"topology":"wan","delay_ms":1,"loss":0.01,"repeats":0.1,'
        '"sync_ms":20,"snapshot_inputs":300,"queue":256,"unacknowledged":2,"pace_ms":5,"large":0.1,'
        '"faults":[["outage",474,101,547707367]]}'
    ),
}
"""Runs that ever failed, shortened, by what was wrong. They go another way than then where a draw has changed since."""

SEEDS = (
    (1, 33, 150),
    (1, 71, 150),
    (1, 18, 150),
    (1, 24, 150),
    (1, 89, 150),
    (9, 1, 200),
    (9, 272, 200),
    (1, 283, 2000),
    (1794858314, 231, 2000),
    (74, 136, 2000),
)
"""Drawn runs that ever failed: seed, number, and the most messages."""


@pytest.mark.parametrize("what", REGRESSIONS)
def test_what_once_failed_does_not_fail_again(what):
    assert examine(parse(REGRESSIONS[what])).findings == ()


@pytest.mark.parametrize(("seed", "number", "most"), SEEDS)
def test_runs_that_once_failed_do_not_fail_again(seed, number, most):
    scenario = draw(seed, number, most=most)
    assert examine(scenario).findings == (), repeat(scenario)


@pytest.mark.parametrize("number", [1034, 3292])
def test_routers_that_once_failed_do_not_fail_again(number):
    scenario = draw(77, number, ("separator",), 100)
    assert examine(scenario).findings == (), repeat(scenario)


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
