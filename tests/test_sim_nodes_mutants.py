"""Each rule of recovery and of view changes is dropped in turn, and the simulator finds it.

The short form examines runs until one fails, and says which. `MUTANT_RUNS=200` in the environment examines so many for
each rule, and says in how many it was found: the table of docs/reliability.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random

import pytest
from msgspec.structs import replace

from antecede.sim.nodes.scenario import CAUSAL, Fault, Kind, Scenario, draw
from antecede.sim.nodes.soak import examine, repeat
from tests.recovery_mutants import RECOVERY, VIEWS, Patch
from tests.test_net_views_explored import NEEDED

RUNS = 150
MORE = int(os.environ.get("MUTANT_RUNS", "0"))
ELSEWHERE = {"count_gaps"}
"""Dropped in another way here: `count_early`."""
OF_VIEWS = {rule.__name__: rule for rule in (*VIEWS, *NEEDED) if rule.__name__ not in ELSEWHERE}


def storm(number: int) -> Scenario:
    """A small system in which much changes at once, and leaders die."""
    random = Random(f"storm/{number}")
    kinds: tuple[Kind, ...] = (
        "join",
        "leave",
        "die",
        "suspect",
        "strike",
        "strike",
        "cancel",
        "partition",
        "kill",
    )
    faults = [
        Fault(random.choice(kinds), random.randrange(1500), 300, random.getrandbits(30)) for _ in range(8)
    ]
    return Scenario(
        protocol=random.choice(("matrix", "broadcast", "permit", "bounded")),
        processes=random.choice((3, 4, 5)),
        messages=40,
        seed=number,
        delay_ms=random.choice((5, 50)),
        loss=random.choice((0.0, 0.05)),
        sync_ms=random.choice((1, 20)),
        burst=4,
        faults=tuple(faults),
    )


def behead(number: int) -> Scenario:
    """A small system whose leaders die between two notes that end a stage of a change."""
    random = Random(f"behead/{number}")
    kinds: tuple[Kind, ...] = ("join", "leave", "leave", "cancel", "cancel", "die", "suspect")
    faults = []
    for _ in range(3):
        at = random.randrange(1500)
        faults.append(Fault(random.choice(kinds), at, 300, random.getrandbits(30)))
        pick = random.getrandbits(20) | 1 << 20 | random.getrandbits(2) << 21
        faults.append(Fault("strike", max(0, at - 1), 300, pick))
    return Scenario(
        protocol=random.choice(("matrix", "broadcast", "permit", "bounded")),
        processes=random.choice((3, 4, 5)),
        messages=30,
        seed=number,
        delay_ms=random.choice((5, 50)),
        loss=random.choice((0.0, 0.05, 0.2)),
        sync_ms=random.choice((1, 20)),
        burst=4,
        faults=tuple(faults),
    )


def depose(number: int) -> Scenario:
    """A small system whose leader dies for good as it tells the others the view that it has decided: some hear it."""
    random = Random(f"depose/{number}")
    decided = 1 << 20 | 2 << 21 | 1 << 8
    kinds: tuple[Kind, ...] = ("join", "leave")
    return Scenario(
        protocol=random.choice(("matrix", "broadcast", "permit", "bounded")),
        processes=random.choice((3, 4)),
        messages=20,
        seed=number,
        delay_ms=random.choice((5, 50)),
        sync_ms=random.choice((1, 20)),
        burst=4,
        faults=(
            Fault("strike", 0, 5000, decided | random.getrandbits(4)),
            Fault(random.choice(kinds), random.randrange(800), 300, random.getrandbits(30)),
        ),
    )


def linger(number: int) -> Scenario:
    """As `depose`, and the one that would lead next leaves, and runs on until no other counts it as a member."""
    scenario = depose(number)
    strike, change = scenario.faults
    return replace(scenario, processes=4, faults=(strike, Fault("linger", change.at_ms, 300, 1)))


def forsake(number: int) -> Scenario:
    """A small system whose leader leaves and dies as it tells the others to go on, while joins are withdrawn."""
    random = Random(f"forsake/{number}")
    at, finished = random.randrange(800), 1 << 20 | 1 << 8
    withdrawn = [Fault("cancel", at + random.randrange(1500), 4000, 0) for _ in range(3)]
    return replace(
        depose(number),
        processes=4,
        faults=(
            Fault("strike", 0, 5000, finished | random.getrandbits(4)),
            Fault("leave", at, 300, 0),
            *withdrawn,
        ),
    )


def sponsor(number: int) -> Scenario:
    """A small system that nodes want to join which give up, or whose sponsors die."""
    random = Random(f"sponsor/{number}")
    kinds: tuple[Kind, ...] = ("sponsor", "sponsor", "cancel")
    faults = [
        Fault(random.choice(kinds), random.randrange(3000), 1000, random.getrandbits(30)) for _ in range(3)
    ]
    return replace(depose(number), processes=5, faults=tuple(faults))


def bereave(number: int) -> Scenario:
    """A system that talks over a bad network while one of it dies for good: much of what is said arrives late."""
    random = Random(f"bereave/{number}")
    return Scenario(
        protocol=random.choice(("matrix", "contexts", "sparing", "bounded")),
        processes=random.choice((4, 5)),
        messages=200,
        seed=number,
        delay_ms=100,
        loss=0.2,
        sync_ms=1,
        burst=2,
        faults=(Fault("die", 200 + random.randrange(600), 3000, random.getrandbits(30)),),
    )


def crowd(number: int) -> Scenario:
    """A small system that many join and leave, with applications that take their time."""
    random = Random(f"crowd/{number}")
    kinds: tuple[Kind, ...] = ("join", "join", "leave", "leave", "leave", "lazy")
    faults = [
        Fault(random.choice(kinds), random.randrange(3000), 1000, random.getrandbits(30)) for _ in range(10)
    ]
    return Scenario(
        protocol=random.choice(("matrix", "broadcast", "permit", "bounded")),
        processes=random.choice((2, 3, 4)),
        messages=40,
        seed=number,
        delay_ms=random.choice((5, 50)),
        loss=random.choice((0.0, 0.05)),
        sync_ms=random.choice((1, 20)),
        pace_ms=random.choice((100, 400, 1500)),
        burst=4,
        faults=tuple(faults),
    )


def heavy(number: int) -> Scenario:
    """A drawn run; every other one with much that is large, and many snapshots."""
    scenario = draw(5, number, CAUSAL, 60)
    return replace(scenario, large=0.3, snapshot_inputs=20) if number % 2 else scenario


Draw = Callable[[int], Scenario]
FAMILIES: dict[Draw, tuple[str, ...]] = {
    behead: ("stay_stopped", "resume_now_only"),
    depose: ("decide_anew", "lead_others", "leave_behind", "live_early", "tell_members_alone"),
    crowd: ("leave_with_a_debt", "leave_without_a_state", "part_at_once", "remember_leaves"),
    bereave: ("tell_once",),
    linger: ("leave_without_a_word", "keep_a_wish", "end_without_a_word"),
    sponsor: ("vouch_for_nobody", "let_in_whom_the_dead_asked"),
    forsake: ("hear_again",),
}
"""The runs that find out without a rule of view changes, where storms take longer."""
BY_RULE = {name: family for family, names in FAMILIES.items() for name in names}
RULES = [(rule, heavy) for rule in RECOVERY] + [
    (rule, BY_RULE.get(name, storm)) for name, rule in OF_VIEWS.items()
]

FOUND_BY = {
    "blame_the_journal": 3,
    "count_nothing": 3,
    "decide_anew": 3,
    "end_without_a_word": 3,
    "forget_once": 9,
    "forget_the_taken": 4,
    "give_no_state": 3,
    "hand_over_early": 16,
    "keep_a_wish": 13,
    "lead_others": 3,
    "leave_behind": 3,
    "leave_large_records": 21,
    "leave_the_anchor": 16,
    "leave_with_a_debt": 6,
    "leave_without_a_word": 3,
    "live_early": 11,
    "lose_pieces_order": 16,
    "remember_leaves": 62,
    "repeat_a_round": 39,
    "report_early": 105,
    "resume_now_only": 132,
    "speak_early": 7,
    "stay_stopped": 9,
    "tell_once": 3,
    "trust_rows": 37,
    "vouch_for_nobody": 5,
    "wait_for_the_dead": 9,
    "wait_for_the_leader": 17,
    "write_over": 45,
}
"""The run that finds out first, where others come before it: it is tried first. Without it all are tried, as ever."""


def find(scenarios: list[Scenario]) -> tuple[dict[str, int], int]:
    """How often each kind of finding was met, and in how many runs; up to the first, in the short form."""
    found: dict[str, int] = {}
    for runs, scenario in enumerate(scenarios, 1):
        outcome = examine(scenario)
        if outcome.findings:
            found[outcome.kind] = found.get(outcome.kind, 0) + 1
            if not MORE:
                return found, runs
    return found, len(scenarios)


@pytest.mark.parametrize(("rule", "draw_one"), RULES, ids=[rule.__name__ for rule, _ in RULES])
def test_the_simulator_finds_out_without_this_rule(rule: Patch, draw_one: Draw, monkeypatch, capsys):
    rule(monkeypatch)
    numbers = sorted(range(MORE or RUNS), key=lambda number: number != FOUND_BY.get(rule.__name__))
    found, runs = find([draw_one(number) for number in numbers])
    with capsys.disabled():
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(found.items()))
        print(f"\n  {rule.__name__}: {sum(found.values())} of {runs} runs ({kinds})", end="")
    assert found


def test_with_all_rules_nothing_is_found():
    for number in range(MORE or 12):
        for draw_one in (heavy, storm, *FAMILIES):
            scenario = draw_one(number)
            assert not examine(scenario).findings, repeat(scenario)


STORMS = {
    5427: "one that had left waited for ever for a leader that had died since",
    9406: "the same",
    20291: "the word that a round is off overtook the word to go on before it, and a member stood still",
    20589: "one was left alone under `bounded`, which could not run so, and looked for a plan for ever",
}
"""Storms that ever failed, and why."""


@pytest.mark.parametrize("number", STORMS)
def test_storms_that_once_failed_do_not_fail_again(number):
    assert examine(storm(number)).findings == ()
