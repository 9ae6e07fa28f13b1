"""Workloads: who sends to whom, how often, and what follows what."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from antecede.model import Id, Message, View
from antecede.oracle import happened_before
from antecede.sim import RunSpec
from antecede.sim.chance import stream
from antecede.sim.checking import Checker
from antecede.sim.workloads import WORKLOADS, create
from antecede.topology import shapes
from antecede.trace.schema import DELIVER, SEND

Row = tuple[Any, ...]


def rows_of(workload: str, **more: Any) -> list[Row]:
    rows: list[Row] = []
    settings = {"protocol": "fifo", "processes": 6, "messages": 1200, "seed": 2, **more}
    RunSpec(workload=workload, **settings).run(lambda *row: rows.append(row))
    return rows


def sends(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row[1] == SEND and not row[5]]


def test_uniform_sends_to_everyone_else_alike() -> None:
    pairs = Counter((row[0], row[4]) for row in sends(rows_of("uniform", messages=6000)))
    assert len(pairs) == 30
    assert all(130 < count < 270 for count in pairs.values())


def test_uniform_sends_to_sets() -> None:
    found = sends(rows_of("uniform:size=3"))
    assert all(len(row[4]) == 3 and row[0] not in row[4] for row in found)


def test_a_ring_sends_to_the_next() -> None:
    assert {(row[0], row[4]) for row in sends(rows_of("ring"))} == {(p, ((p + 1) % 6,)) for p in range(6)}


@pytest.mark.parametrize(
    ("workload", "rate"), [("uniform", 10), ("uniform:rate=40/s", 40), ("ring:arrivals=constant", 10)]
)
def test_rates_are_those_that_were_asked_for(workload: str, rate: int) -> None:
    last = sends(rows_of(workload, messages=3000))[-1][6]
    assert 3000 / 6 / (last / 1e9) == pytest.approx(rate, rel=0.05)


def test_constant_arrivals_are_evenly_spaced() -> None:
    times = [row[6] for row in sends(rows_of("ring:arrivals=constant,rate=100/s")) if row[0] == 3]
    assert {b - a for a, b in pairwise(times)} == {10**7}


def test_a_server_answers_each_request_at_its_delivery() -> None:
    rows = rows_of("client-server:servers=2")
    requests = [row for row in sends(rows) if row[0] >= 2]
    assert all(row[4][0] < 2 for row in requests)
    answered = {(row[0], row[2], row[6]) for row in rows if row[1] == DELIVER and row[0] < 2}
    answers = [row for row in sends(rows) if row[0] < 2]
    assert len(answers) > 500
    assert all((row[0], row[4][0], row[6]) in answered for row in answers)


def test_a_chain_goes_on_and_comes_back() -> None:
    rows = rows_of("chain:length=3", messages=300)
    starts = Counter(row[0] for row in sends(rows))
    assert sum(starts.values()) == 300
    simulation = RunSpec(protocol="matrix", processes=6, messages=90, workload="chain:length=3").build()
    checker = Checker(simulation)
    simulation.finish()
    order = happened_before(checker.events)
    # Each chain of three is a chain of causes: a third of all messages has at least two that precede it.
    deep = sum(len(order.past(message)) >= 2 for message in order.sends)
    assert deep >= 30


def test_an_answer_follows_what_it_answers() -> None:
    """On a network that reorders, a reply overtakes its question at a third process only without causal order."""
    broken = {}
    for protocol in ("unordered", "optimal"):
        spec = RunSpec(protocol=protocol, processes=5, messages=200, workload="document:comments=90%", seed=3)
        simulation = spec.build()
        checker = Checker(simulation, spec.messages)
        simulation.finish()
        broken[protocol] = bool(checker.verdict().violations)
    assert broken == {"unordered": True, "optimal": False}


def test_comments_are_as_many_as_asked_for() -> None:
    document = create("document:comments=50%", View.numbered(6), stream(0, "w"))
    comments = 0
    for number in range(1, 4001):
        to, payload = document.draft(0)
        assert to == tuple(range(6))
        comments += sum(len(document.follow(reader, Message(0, number, to, payload))) for reader in to)
    assert comments / 4000 == pytest.approx(0.5, abs=0.03)


def test_much_goes_to_the_hot_process() -> None:
    to = Counter(row[4][0] for row in sends(rows_of("hot:share=80%,at=p3")))
    assert to[2] / sum(to.values()) == pytest.approx(
        0.7, abs=0.05
    )  # 80 % of five processes' messages, and some more


def test_a_monitor_is_told_and_says_nothing() -> None:
    found = sends(rows_of("monitor:at=p2", protocol="monitor", parameters={"monitor": "p2"}))
    assert {row[0] for row in found} == {0, 2, 3, 4, 5}
    assert 0.45 < sum(row[4] == (1,) for row in found) / len(found) < 0.75


def test_groups_overlap() -> None:
    to = {(row[0], row[4]) for row in sends(rows_of("groups:size=3"))}
    assert (0, (1, 2)) in to
    assert (0, (4, 5)) in to
    assert all(row[0] not in row[1] for row in to)
    assert {len(group) for _, group in to} == {2}


def test_groups_of_a_figure() -> None:
    found = {row[4] for row in sends(rows_of("groups", topology="figure-7.1")) if row[0] == 0}
    assert found == {(1, 2), (5,)}, "p1 is in G_A = {p1, p2, p3} and G_C = {p1, p6}"
    groups = shapes.gateway_groups()
    assert {"p3", "p4"} == {groups["3"][0], groups["4"][0]}
    assert all(len(set(group)) >= 2 for group in shapes.three_networks_groups().values())


def test_most_of_it_is_local() -> None:
    found = sends(rows_of("local:share=80%,blocks=4/12,size=3", processes=24, messages=2400))
    far = [max(_distance(row[0], other) for other in row[4]) for row in found]
    shares = [far.count(level) / len(far) for level in (0, 1, 2)]
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.03)
    assert all(len(row[4]) == 2 and row[0] not in row[4] for row in found)
    groups = {(row[0], *row[4]) for row in found}
    assert len({frozenset(group) for group in groups}) < len(groups), "several send to the same group"


def _distance(one: int, other: int) -> int:
    return (one // 4 != other // 4) + (one // 12 != other // 12)


def test_a_mix_has_its_parts() -> None:
    sizes = Counter(len(row[4]) for row in sends(rows_of("mix:uniform=3,broadcast=1")))
    assert set(sizes) == {1, 6}
    assert sizes[6] / sizes.total() == pytest.approx(0.25, abs=0.05)


def test_parts_of_a_mix_answer_only_their_own() -> None:
    mix = create("mix:ring=1,client-server=1", View.numbered(4), stream(1, "w"))
    drafts = [mix.draft(3) for _ in range(100)]
    follows = {payload: mix.follow(to[0], Message(3, 1, to, payload)) for to, payload in drafts}
    assert len(follows) == 2
    [[(answer_to, answer)]] = [drafts for drafts in follows.values() if drafts]
    assert answer_to == (3,)
    assert mix.follow(3, Message(0, 1, answer_to, answer)) == [], "nobody answers an answer"


def test_payloads_have_the_size_that_was_asked_for() -> None:
    for name in WORKLOADS:
        text = "mix:uniform=1,chain=1,payload=100" if name == "mix" else f"{name}:payload=100"
        workload = create(text, View.numbered(5), stream(0, name))
        for process in workload.starters():
            assert len(workload.draft(process)[1]) == 100


def test_scripts_take_messages_only_by_their_receives(tmp_path: Path) -> None:
    program = tmp_path / "program.txt"
    program.write_text(
        "p1: send a to p3\np2: send b to p3\np3: receive from p2; receive a; send c to p1, p2\n"
    )
    rows = rows_of(f"script:{program}", processes=0, messages=40, network="exponential:200ms")
    for_p3: list[Id] = [(row[2], row[3]) for row in rows if row[1] == DELIVER and row[0] == 2]
    assert for_p3 == [(p, k) for k in range(1, len(for_p3) // 2 + 1) for p in (1, 0)]
    assert [row[4] for row in sends(rows) if row[0] == 2] == [(0, 1)] * (len(for_p3) // 2)
