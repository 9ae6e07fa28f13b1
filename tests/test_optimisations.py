"""Optimisations change what is carried and kept, never what is delivered when.

Directions only: `benchmarks/optimisations.py` prints the figures.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from antecede.errors import Unsupported
from antecede.model import Packet, View
from antecede.oracle import check
from antecede.process.views.change import parameters_among
from antecede.protocols import create
from antecede.protocols.histories import Histories, Rules
from benchmarks.optimisations import ROWS, Measured, N, compare, make, measure, plan, table

MESSAGES, SEEDS = 100, (1, 2, 3)


@cache
def measure_run(seed: int, protocol: str, *parameters: tuple[str, Any]) -> Measured:
    return measure(make(protocol, dict(parameters)), plan(MESSAGES, seed), seed)


SAME = [
    (),
    (("r5", False),),
    (("r6_1", True),),
    (("r6_4", False),),
    (("r7", False),),
    (("r8", False),),
    (("r7", False), ("r8", False)),
    (("r10", True),),
    (("r10", True), ("r8", False)),
    (("r6_1", True), ("r7", False)),
    (("r6_1", True), ("r8", False)),
    (("r6", False), ("r6_4", False), ("r7", False), ("r8", False)),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("parameters", SAME)
def test_histories_deliver_alike_tick_for_tick_with_any_of_their_rules(parameters, seed):
    assert measure_run(seed, "history", *parameters).deliveries == measure_run(seed, "history").deliveries


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("protocol", "parameters"), [("matrix", ()), ("optimal", ()), ("bounded", (("k", N * N),))]
)
def test_protocols_that_wait_for_the_past_and_nothing_else_deliver_alike(protocol, parameters, seed):
    """None of them delays a message longer than causal order asks."""
    assert measure_run(seed, protocol, *parameters).deliveries == measure_run(seed, "history").deliveries


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_is_measured_is_in_causal_order(row, seed):
    for result in compare(row, MESSAGES, seed):
        assert check(result.events, N).ok


@pytest.mark.parametrize("seed", SEEDS)
def test_each_optimisation_saves_what_it_is_for(seed):
    found = {row.name: compare(row, MESSAGES, seed) for row in ROWS}

    without, using = found["R5: D keeps the last of each sender"]
    assert using.remembered < without.remembered
    assert (using.entries, using.size) == (without.entries, without.size)

    without, using = found["R6.1: stamp with C too"]
    assert using.entries <= without.entries
    assert using.known <= without.known
    assert using.size > without.size, "it saves entries and costs bytes"

    without, using = found["R6.4: later messages tell of all in H"]
    assert using.known < without.known
    assert using.entries <= without.entries

    without, using = found["R7: leave out what was reported"]
    assert using.entries < without.entries
    assert using.size < without.size

    without, using = found["R8: remove what was reported to all"]
    assert using.known < without.known
    assert using.entries <= without.entries

    without, using = found["R7 and R8"]
    assert using.entries < without.entries
    assert using.known < without.known

    without, using = found["k = n + 1, against n * n"]
    assert using.entries < without.entries
    assert using.control > without.control == 0, "smaller stamps are paid for with extra messages"
    assert using.ticks >= without.ticks

    without, using = found["footnote 4: pipelining"]
    assert using.ticks < without.ticks
    assert using.control == without.control

    without, using = found["R9: leave out what stays behind a separator"]
    assert using.entries < without.entries
    assert using.size < without.size
    assert using.known < without.known

    for name, (without, using) in found.items():
        if name.startswith(
            "R10"
        ):  # Beside R8 it may even cost an entry: what is forgotten proves nothing any more.
            assert using.deliveries == without.deliveries
    without, using = found["R10, without R7 and R8"]
    assert using.known < without.known
    for name in (
        "delta: remove what is older than any delay",
        "delta, without R8",
        "delta, without R7 and R8",
    ):
        without, using = found[name]
        assert using.known < without.known
        assert using.entries < without.entries
        assert using.deliveries == without.deliveries

    assert len(found) == len(ROWS) == 15, "every row is judged here"


def test_the_table_has_a_row_for_each_and_is_the_same_every_time():
    text = table(40, 1)
    assert text == table(40, 1)
    _, rows = text.split("|---", 1)
    assert [line.split(" | ")[0].lstrip("| ") for line in rows.splitlines()[1:]] == [row.name for row in ROWS]


def test_a_node_refuses_a_delta():
    with pytest.raises(Unsupported, match="leave `delta` out"):
        parameters_among("history", {"delta": 10}, ("a", "b"))


def test_a_delta_that_is_too_short_loses_order_and_one_that_is_long_enough_does_not():
    """The triangle: p1 tells p3, then p2, which answers to p3; what p1 said first is on its way all the time."""
    for passed, waits in ((9, True), (10, False)):
        view = View.numbered(3)
        p1, p2, p3 = (create("history", view, me, delta=10) for me in range(3))
        p1.send(2)
        message, [packet] = p1.send(1)
        assert isinstance(packet, Packet)
        p2.receive(packet)
        p2.deliver(message)
        p2.pass_time(passed)
        answer, [last] = p2.send(2)
        assert isinstance(last, Packet)
        assert p3.receive(last) == ([] if waits else [answer])


def test_proofs_that_come_one_by_one_add_up():
    """R10: a message leaves H once each of its destinations is known to have delivered it, by whatever stamps."""
    known = Histories(0, Rules(r7=False, r8=False, r10=True))
    known.note_sent(0, 1, 0b110, "")
    known.note_taken(0, 1, 0b010)
    assert list(known.H) == [(0, 1)]
    known.note_taken(0, 1, 0b100)
    assert not known.H
