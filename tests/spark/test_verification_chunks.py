"""Verification by chunks equals the oracle: the same findings of every kind, however a run is cut."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from antecede.jit import interpret_kernels
from antecede.model import Event, Id
from antecede.oracle import Order, happened_before
from antecede.trace.schema import RECEIVE
from antecede.verification import (
    KINDS,
    Findings,
    Found,
    Ids,
    Impossible,
    Scan,
    Search,
    Summary,
    TooManySymbols,
    TooMuchInFlight,
    combine,
    proofs,
    verify_chunks,
)
from tests.spark.verification_runs import cut, find_by_oracle, list_findings, random_run, rows_of

SEEDS = range(60)


def count_processes(events: list[Event]) -> int:
    return max((q + 1 for event in events for q in (event.process, event.sender, *event.to)), default=1)


def verify_in_chunks(events: list[Event], chunks: int, seed: int = 0) -> tuple[int, Findings]:
    parts = cut(rows_of(events), chunks, seed)
    return verify_chunks([lambda part=part: part for part in parts], count_processes(events))  # type: ignore[misc]


def check_chains(order: Order, events: list[Event], findings: Findings) -> None:
    """Each proof was delivered before, and each chain leads from the overtaken message to it."""
    index: dict[tuple[int, int], Id] = {}
    counts: dict[int, int] = {}
    for event in events:
        at = counts[event.process] = counts.get(event.process, -1) + 1
        index[event.process, at] = event.id
    for row in range(len(findings)):
        message = (int(findings.sender[row]), int(findings.number[row]))
        if KINDS[findings.kind[row]] != "undelivered":
            assert index[int(findings.process[row]), int(findings.index[row])] == message
        begin, end = findings.chain_start[row], findings.chain_start[row + 1]
        senders, numbers = (
            findings.chain_sender[begin:end].tolist(),
            findings.chain_number[begin:end].tolist(),
        )
        chain = list(zip(senders, numbers, strict=True))
        if KINDS[findings.kind[row]] not in ("violation", "fifo_break"):
            assert not chain
            continue
        assert (chain[0], chain[-1]) == (message, (findings.by_sender[row], findings.by_number[row]))
        assert all(a in order.known[b] for a, b in pairwise(chain))
        assert len(set(chain)) == len(chain)


def agree(events: list[Event], deliveries: int, findings: Findings) -> None:
    verdict, wanted = find_by_oracle(events)
    assert list_findings(findings) == wanted
    assert deliveries == verdict.deliveries
    check_chains(happened_before(events), events, findings)


@pytest.mark.parametrize("seed", SEEDS)
def test_equals_the_oracle_however_it_is_cut(seed: int) -> None:
    events = random_run(seed)
    for chunks in (1, 2, random.Random(seed).randint(3, 64)):
        agree(events, *verify_in_chunks(events, chunks, seed))


@pytest.mark.parametrize("seed", range(3000, 3030))
def test_proofs_are_the_same_however_much_is_held_and_followed_at_a_time(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TOGETHER": 20, "GROUPS": 2, "TARGETS": 3}.items():
        monkeypatch.setattr(proofs, name, value)
    events = random_run(seed, most_events=400)
    rows = rows_of(events)
    few = [rows.take(np.arange(at, min(at + 7, len(rows)))) for at in range(0, len(rows), 7)]
    for size in (1, 5, len(few) + 1):
        chunks = [few[at : at + size] for at in range(0, len(few), size)] or [[]]
        found = verify_chunks([lambda part=part: part for part in chunks], count_processes(events))  # type: ignore[misc]
        agree(events, *found)


@pytest.mark.parametrize("seed", range(1000, 1015))
def test_equals_the_oracle_by_origin(seed: int) -> None:
    events = random_run(seed)
    n = count_processes(events)
    bounds = sorted({0, n, *random.Random(seed).choices(range(n + 1), k=3)})
    blocks = list(pairwise(bounds))
    alone = [verify_chunks([lambda: [rows_of(events)]], n, block) for block in blocks]
    agree(events, alone[0][0], Findings.concatenate([findings for _, findings in alone]))


@pytest.mark.parametrize("seed", [1, 2])
def test_hundreds_of_processes(seed: int) -> None:
    events = random_run(seed, most_processes=300, most_events=600)
    for chunks in (1, 7):
        agree(events, *verify_in_chunks(events, chunks, seed))


@pytest.mark.parametrize("events", [[], [Event(0, "send", 0, 1, (0,))], [Event(5, "deliver", 3, 1)]])
@pytest.mark.parametrize("chunks", [1, 3])
def test_next_to_nothing(events: list[Event], chunks: int) -> None:
    agree(events, *verify_in_chunks(events, chunks))


def test_messages_that_cross_many_chunks_with_the_news_of_them() -> None:
    """x from 0 to 3 takes the whole run, while the news of it goes 0, 1, 2, 3."""
    events = [
        Event(0, "send", 0, 1, (3,)),
        Event(0, "send", 0, 2, (1,)),
        Event(1, "deliver", 0, 2),
        Event(1, "send", 1, 1, (2,)),
        Event(2, "deliver", 1, 1),
        Event(2, "send", 2, 1, (3,)),
        Event(3, "deliver", 2, 1),
        Event(3, "deliver", 0, 1),
    ]
    rows = rows_of(events)
    chunks = [[rows.take(np.array([row]))] for row in range(len(rows))]
    _, findings = verify_chunks([lambda part=part: part for part in chunks], 4)  # type: ignore[misc]
    assert list_findings(findings) == [("violation", 3, 0, 1, 2, 1)]
    assert list(zip(findings.chain_sender, findings.chain_number, strict=True)) == [
        (0, 1),
        (0, 2),
        (1, 1),
        (2, 1),
    ]


def test_news_is_followed_when_a_later_message_of_the_same_sender_is_done_with() -> None:
    """Both 1 and 2 of process 0 are overtaken; 2 is delivered, late, before process 3 hears of 1."""
    events = [
        Event(0, "send", 0, 1, (3,)),
        Event(0, "send", 0, 2, (2,)),
        Event(0, "send", 0, 3, (2,)),
        Event(2, "deliver", 0, 3),
        Event(2, "deliver", 0, 2),
        Event(2, "send", 2, 1, (3,)),
        Event(3, "deliver", 2, 1),
        Event(3, "deliver", 0, 1),
    ]
    for chunks in (1, 2, 8):
        agree(events, *verify_in_chunks(events, chunks))


def test_a_process_is_first_heard_of_while_news_is_under_way() -> None:
    """The mark of process 100 is in a second word; those of messages come after it, also in flight."""
    events = [
        Event(0, "send", 0, 1, (2,)),
        Event(0, "send", 0, 2, (1,)),
        Event(1, "deliver", 0, 2),
        Event(1, "send", 1, 1, (2,)),
        Event(100, "send", 100, 1, (0,)),
        Event(2, "deliver", 1, 1),
        Event(2, "deliver", 0, 1),
    ]
    rows = rows_of(events)
    first, known, grown = (rows.take(np.arange(a, b)) for a, b in ((0, 2), (2, 4), (4, 7)))
    agree(events, *verify_chunks([lambda: [first], lambda: [known, grown]], 101))


def test_a_process_is_first_heard_of_that_knew_something_before() -> None:
    """Process 100 is new to the second chunk, but entered it with news of the first."""
    events = [
        Event(0, "send", 0, 1, (2,)),
        Event(0, "send", 0, 2, (100,)),
        Event(100, "deliver", 0, 2),
        Event(1, "send", 1, 1, (1,)),
        Event(100, "send", 100, 1, (2,)),
        Event(2, "deliver", 100, 1),
        Event(2, "deliver", 0, 1),
    ]
    rows = rows_of(events)
    first, known, grown = (rows.take(np.arange(a, b)) for a, b in ((0, 3), (3, 4), (4, 7)))
    agree(events, *verify_chunks([lambda: [first], lambda: [known, grown]], 101))


def test_a_later_message_that_comes_after_the_late_one_is_no_fifo_break() -> None:
    """1 of process 0 is late at 1, then 2 of process 0 comes there; and 1 is still to be late at process 2."""
    events = [
        Event(0, "send", 0, 1, (1, 2)),
        Event(0, "send", 0, 2, (3, 1)),
        Event(3, "deliver", 0, 2),
        Event(3, "send", 3, 1, (1, 2)),
        Event(1, "deliver", 3, 1),
        Event(1, "deliver", 0, 1),
        Event(1, "deliver", 0, 2),
        Event(2, "deliver", 3, 1),
        Event(2, "deliver", 0, 1),
    ]
    rows = rows_of(events)
    parts = [rows.take(np.arange(a, b)) for a, b in ((0, 4), (4, 6), (6, 7), (7, 9))]
    agree(events, *verify_chunks([lambda part=part: [part] for part in parts], 4))  # type: ignore[misc]


def test_a_block_keeps_what_others_sent_to_strangers() -> None:
    """Everyone who should has 1 of process 1 when process 2 gets it, with news of process 0."""
    events = [
        Event(0, "send", 0, 1, (2,)),
        Event(0, "send", 0, 2, (1,)),
        Event(1, "deliver", 0, 2),
        Event(1, "send", 1, 1, (0,)),
        Event(0, "deliver", 1, 1),
        Event(2, "deliver", 1, 1),
        Event(2, "deliver", 0, 1),
    ]
    alone = [verify_chunks([lambda: [rows_of(events)]], 3, block)[1] for block in ((0, 1), (1, 3))]
    agree(events, 4, Findings.concatenate(alone))


def test_receives_and_control_packets_are_skipped() -> None:
    events = random_run(11)
    rows = rows_of(events)
    noise = replace(rows, kind=np.full(len(rows), RECEIVE, np.int8))
    control = replace(rows, control=np.ones(len(rows), bool))
    _, findings = verify_chunks([lambda: [noise, rows, control]], count_processes(events))
    assert list_findings(findings) == find_by_oracle(events)[1] != []


SENT = Event(0, "send", 0, 1, (1,))
GOT = Event(1, "deliver", 0, 1)


@pytest.mark.parametrize(
    ("events", "chunks", "reason"),
    [
        ([SENT, SENT], [2], "is sent a second time"),
        ([Event(1, "send", 0, 1, (1,))], [1], "is sent by another process than its sender"),
        ([GOT, SENT], [1, 1], "is delivered before it is sent, by its clocks"),
        ([GOT, SENT], [2], "is delivered before it is sent, by its clocks"),
        ([Event(2, "send", 2, 1, (1,)), GOT, SENT], [1, 2], "is sent after its delivery, by its clocks"),
        (
            [SENT, GOT, Event(1, "deliver", 0, 2), Event(0, "send", 0, 2, (1,))],
            [2, 1, 1],
            "is delivered before it is sent, by its clocks",
        ),
    ],
)
def test_rows_that_cannot_be_a_run(events: list[Event], chunks: list[int], reason: str) -> None:
    rows, ends = rows_of(events), np.cumsum([0, *chunks])
    parts = [rows.take(np.arange(a, b)) for a, b in pairwise(ends)]
    with pytest.raises(Impossible) as error:
        verify_chunks([lambda part=part: [part] for part in parts], 3)  # type: ignore[misc]
    assert error.value.reason == reason
    assert error.value.process in (0, 1)


@pytest.mark.parametrize(
    ("numbers", "unsorted"),
    [([[1, 2], [3, 5]], ()), ([[1, 2], [2]], (0,)), ([[2, 1], [3]], (0,)), ([[], [-7]], ())],
)
def test_numbers_that_do_not_grow_are_told(numbers: list[list[int]], unsorted: tuple[int, ...]) -> None:
    """Whether one is used twice, only a look at all of them can tell."""
    summaries = []
    for part in numbers:
        scan = Scan(2)
        scan.feed(rows_of([Event(0, "send", 0, number, (1,)) for number in part]))
        summaries.append(scan.finish().summary)
    assert combine(summaries).unsorted == unsorted


def scan_events(events: list[Event], **options: Any) -> Summary:
    scan = Scan(count_processes(events), **options)
    scan.feed(rows_of(events))
    return scan.finish().summary


def test_what_does_not_fit_is_refused() -> None:
    many = [Event(1, "deliver", 0, number) for number in range(300)]
    with pytest.raises(TooManySymbols, match="more than 256 messages"):
        scan_events(many, symbols=256)
    assert scan_events(many, symbols=300).deliveries == 300
    flying = [Event(0, "send", 0, number, (1,)) for number in range(30_000)]
    with pytest.raises(TooMuchInFlight, match="of 1000000 allowed"):
        scan_events(flying, memory=10**6)
    assert len(scan_events(flying, memory=10**7).flights) == 30_000


@pytest.mark.parametrize("seed", range(20))
def test_values_survive_the_network(seed: int) -> None:
    events = random_run(seed)
    summary = scan_events(events)
    again = Summary.decode(summary.encode())
    for field in fields(Summary):
        assert np.array_equal(getattr(summary, field.name), getattr(again, field.name)), field.name
    sends = [event for event in events if event.kind == "send"]
    search = Search(
        Ids(np.array([e.sender for e in sends], np.int32), np.array([e.number for e in sends], np.int64))
    )
    search.feed(rows_of(events))
    found = Found.decode(search.finish().encode())
    to = [tuple(found.to[a:b]) for a, b in pairwise(found.start)]
    assert [events[at] for at in found.position] == sends
    assert to == [e.to for e in sends]


def test_a_long_run_of_growing_state() -> None:
    """Tables, slabs, symbols and records all outgrow what they begin with, in a chunk in the middle."""
    chance = random.Random(5)
    sends = [Event(q, "send", q, number, ((q + 1) % 90,)) for number in range(9) for q in range(90)]
    chance.shuffle(sends)
    deliveries = [Event(e.to[0], "deliver", e.sender, e.number) for e in sends]
    chance.shuffle(deliveries)
    events = sends + deliveries + deliveries[:100]
    agree(events, *verify_in_chunks(events, 3, 1))
    alone = [verify_chunks([lambda: [rows_of(events)]], 90, block) for block in ((0, 50), (50, 90))]
    agree(events, alone[0][0], Findings.concatenate([findings for _, findings in alone]))


@pytest.mark.parametrize("seed", range(2000, 2020))
def test_interpreted_kernels_find_the_same_and_read_nothing_outside_of_an_array(seed: int) -> None:
    """Python checks every index."""
    events = random_run(seed, most_processes=70 if seed % 10 == 0 else 7, most_events=80)
    with interpret_kernels():
        agree(events, *verify_in_chunks(events, 1 + seed % 6, seed))


def test_importing_verification_loads_neither_numba_nor_spark() -> None:
    script = """
import sys, antecede.verification.tasks
assert not {"numba", "pyspark"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", script], check=True)
