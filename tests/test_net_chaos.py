"""Nodes under fire, the short form: real processes, killed, on a network that means no good; and their judge."""

from __future__ import annotations

import asyncio
import doctest
import os
from typing import Any

import numpy as np
import pytest

from benchmarks.chaos import plan
from benchmarks.chaos.__main__ import main, move, run
from benchmarks.chaos.census import read_diary, take_census
from benchmarks.chaos.diary import AGAIN, DONE, HANDED, RECORD, SENT, START, Diary, Tail, read
from benchmarks.chaos.fleet import LOOK_S, Options, free_addresses
from benchmarks.chaos.judge import account, list_events
from benchmarks.chaos.plan import Plan, node_names
from benchmarks.chaos.resident import Resident, Terms, open_diary
from benchmarks.chaos.town import Asked, House
from tests.nats_server import program


def test_killed_nodes_on_a_bad_network_lose_nothing(tmp_path):
    quick: dict[str, Any] = {"snapshot_inputs": 60, "trace_s": 0.3, "pause_s": 0.01}
    options = Options("optimal", messages=300, kills=3, nodes=3, seed="short", **quick)
    print(options)
    outcome = run(options, tmp_path, oracle=True)
    assert outcome.wrong == []
    assert outcome.passed is not None
    assert outcome.passed.kills >= 3
    assert outcome.account.delivered == sum(
        len(numbers) for senders in options.plan.list_owed() for numbers in senders
    )


@pytest.mark.parametrize("transport", ["tls", "nats"])
def test_so_do_nodes_that_prove_their_names_or_meet_at_a_broker(tmp_path, transport):
    if transport == "nats":
        program()  # which skips the test, if there is none
    quick: dict[str, Any] = {"snapshot_inputs": 60, "trace_s": 0.3, "pause_s": 0.01}
    options = Options("permit", messages=120, kills=1, nodes=2, seed="short", transport=transport, **quick)
    outcome = run(options, tmp_path, oracle=True)
    assert outcome.wrong == []
    assert outcome.passed is not None
    assert outcome.passed.bytes, "it went through the weather"


def test_a_journal_that_forgets_is_found(tmp_path, capsys):
    arguments = ["--protocol", "matrix", "--messages", "200", "--kills", "2", "--nodes", "2", "--oracle"]
    code = main([*arguments, "--pause", "0.01", "--fault", "forgetful", "--directory", str(tmp_path)])
    assert code == 1
    assert "again after its acknowledgement" in capsys.readouterr().err


def test_a_worker_that_is_removed_though_it_lives_ends_and_says_why(tmp_path):
    names = ("p1", "p2")
    peers = dict(zip(names, free_addresses(2), strict=True))

    async def part() -> tuple[int, str]:
        houses = [
            House(Resident(name, "1", "matrix", peers[name], peers, str(tmp_path), False, Terms(), 5.0, 0.01))
            for name in names
        ]
        try:
            for house in houses:
                await house.start()
            while not all(house.lives and house.sent for house in houses):
                await asyncio.sleep(LOOK_S)
                for house in houses:
                    house.look()
            houses[0].ask("remove p2")
            assert houses[1].process is not None
            return await asyncio.wait_for(houses[1].process.wait(), 30), houses[1].complaints.read_text()
        finally:
            for house in houses:
                await house.kill()

    code, words = asyncio.run(part())
    assert code == 1
    assert "NotMember" in words.splitlines()[-1]


PLAN = Plan("judge", 2, 1)
"""Both send one message: to whom, `make_diaries` looks up."""


def make_diaries(change: dict[int, list[tuple[int, int, int]]]) -> dict[int, list[tuple[int, int, int]]]:
    """Diaries in which all is well, unless changed."""
    diaries = {}
    for me in range(2):
        mine = [sender for sender in range(2) if me in PLAN.to(sender, 1)]
        handed = [(kind, sender, 1) for sender in mine for kind in (HANDED, DONE)]
        diaries[me] = [(START, me, 0), (SENT, me, 1), *handed]
    return {**diaries, **{me: diaries[me] + more for me, more in change.items()}}


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, None),
        ({0: [(START, 0, 1)]}, None),
        ({0: [(START, 0, 1), (AGAIN, 1, 1)]}, "again after its acknowledgement"),
        ({0: [(HANDED, 1, 7)]}, "not addressed to it"),
    ],
)
def test_the_judge_reads_diaries(tmp_path, change, wrong):
    assert 0 in PLAN.to(1, 1), "the cases below speak of message 1 of process 1 at process 0"
    for me, records in make_diaries(change).items():
        diary = Diary(tmp_path / f"{node_names(2)[me]}.diary")
        for record in records:
            diary.note(*record)
        diary.close()
    found = account(tmp_path, PLAN).wrong
    assert found == [] if wrong is None else wrong in "\n".join(found)


def test_the_judge_misses_what_was_never_handed_over(tmp_path):
    for name in node_names(2):
        Diary(tmp_path / f"{name}.diary").close()
    assert any("was not handed 1 messages" in line for line in account(tmp_path, PLAN).wrong)


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        # A kill undid the send and what was handed over after it: the next life tells where they belong.
        (
            [
                (START, 0, 0),
                (HANDED, 1, 1),
                (SENT, 0, 1),
                (HANDED, 1, 2),
                (START, 0, 0),
                (HANDED, 1, 2),
                (SENT, 0, 1),
            ],
            [(HANDED, 1, 1), (HANDED, 1, 2), (SENT, 0, 1)],
        ),
        # A kill came before the application could write: the node knows better.
        (
            [(START, 0, 0), (HANDED, 1, 1), (START, 0, 1), (AGAIN, 1, 1), (AGAIN, 1, 2)],
            [(HANDED, 1, 1), (SENT, 0, 1), (HANDED, 1, 2)],
        ),
    ],
)
def test_what_happened_follows_from_what_all_lives_tell(records, expected):
    assert list_events(np.array(records, RECORD)).tolist() == [list(one) for one in expected]


def test_the_examples_of_the_plan_are_right():
    assert doctest.testmod(plan).failed == 0


def test_a_diary_is_counted_while_it_is_written(tmp_path):
    tail = Tail(tmp_path / "a.diary", n=2, each=9)
    assert tail.look() == 0
    diary = Diary(tmp_path / "a.diary")
    for kind, number in [(HANDED, 1), (AGAIN, 1), (DONE, 1), (HANDED, 9)]:
        diary.note(kind, 1, number)
        tail.look()
    diary.close()
    assert tail.handed == 2
    assert len(read(tmp_path / "a.diary")) == 4


def test_members_that_come_and_go_under_fire_lose_nothing(tmp_path):
    asked = Asked(
        "matrix", messages=300, kills=2, changes=2, nodes=4, seed="short", trace_s=0.3, pause_s=0.01
    )
    print(asked)
    moved = move(asked, tmp_path)
    assert moved.wrong == []
    assert moved.went is not None
    assert moved.went.counts["changes"] == 2
    assert moved.census.views >= 2
    assert moved.census.delivered > moved.census.sent


def test_the_census_misses_what_was_never_handed_over(tmp_path):
    lines = {"a": "start 0\nsent 1 a b\nhanded a 1\n", "b": "start 0\nview 2 a b\n", "c": "view 2 a c\n"}
    for name, text in lines.items():
        (tmp_path / f"{name}.diary").write_text(text)
    found = "\n".join(take_census(tmp_path, list(lines), set(), set()).wrong)
    assert "b was not handed message 1 of a" in found
    assert "c came to view 2 of ('a', 'c'), another to one of ('a', 'b')" in found
    assert "antecede verify ended with 2" in found
    assert "not handed" not in "\n".join(take_census(tmp_path, list(lines), {"a"}, set()).wrong)


def test_a_line_of_a_diary_that_a_kill_has_cut_in_two_counts_as_never_written(tmp_path):
    path = tmp_path / "a.diary"
    for words in (b"start 0\nhanded b 1", b"start 0\nhanded b 12\n"):
        file = open_diary(path)
        os.write(file, words)
        os.close(file)
    diary = read_diary("a", path.read_text())
    assert (diary.lives, diary.handed) == (2, {("b", 12)})
