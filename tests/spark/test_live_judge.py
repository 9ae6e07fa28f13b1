"""Runs judged while they go on: the same as the oracle, however the rows come, and from any state that was kept."""

from __future__ import annotations

import json
import random
from base64 import b64decode
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antecede.errors import BadSnapshot
from antecede.spark.stream.judge import Arrived, Judge
from tests.spark.planted import find_by_oracle
from tests.spark.random_traces import make_trace


def make_arrived(row: dict[str, Any]) -> Arrived:
    return Arrived(*(row[name] for name in ("process", "index", "kind", "sender", "number", "to", "control")))


def count_findings(found: list[Any]) -> Counter[tuple[str, str, str, int]]:
    return Counter((one.kind, one.process, one.sender, one.number) for one in found)


def arrivals(rows: list[dict[str, Any]], dice: random.Random, how: str) -> list[dict[str, Any]]:
    """The rows as a stream may bring them."""
    if how == "in time":
        return rows
    if how == "shuffled":
        return [*dice.sample(rows, len(rows)), *dice.sample(rows, len(rows) // 3)]
    # Each process in its own order, one after the other.
    names = sorted({row["process"] for row in rows})
    return [row for name in dice.sample(names, len(names)) for row in rows if row["process"] == name]


@pytest.mark.parametrize("how", ["in time", "shuffled", "by process"])
def test_live_verification_says_what_the_oracle_says(how):
    for seed in range(150):
        names, rows = make_trace(seed, events=60 if seed % 3 else 200)
        dice = random.Random(f"{seed} {how}")
        stream = arrivals(rows, dice, how)
        judge, found = Judge(), []
        while stream:
            many = dice.choice((1, 3, 20, 1000))
            found += judge.take(map(make_arrived, stream[:many]))
            stream = stream[many:]
            if dice.random() < 0.5:
                judge = Judge.restore(judge.snapshot())
        early = count_findings(found)
        found += judge.finish()
        deliveries, wanted, witnesses, _ = find_by_oracle(names, rows)
        assert count_findings(found) == wanted, f"seed {seed}"
        assert judge.deliveries == deliveries, f"seed {seed}"
        assert judge.idle
        assert not {kind for kind, *_ in early} & {"unsent", "undelivered"}, "nobody can know before the end"
        places = {(row["process"], row["index"]): (row["sender"], row["number"]) for row in rows}
        for one in found:
            if one.kind != "undelivered":
                assert places[one.process, one.index] == (one.sender, one.number), f"seed {seed}"
        unaddressed = {key[1:] for key in wanted if key[0] == "unaddressed"}
        for one in found:
            key = (one.kind, one.process, one.sender, one.number)
            if key in witnesses and key[1:] not in unaddressed:
                assert (one.by_sender, one.by_number) == witnesses[key], f"seed {seed}, {key}"


def test_a_violation_is_told_with_the_row_that_makes_it():
    """Not at the end: as soon as the delivery and its past are here."""
    early = late = 0
    for seed in range(100):
        names, rows = make_trace(seed, events=100)
        at_once, judge = Counter(), Judge()  # type: ignore[var-annotated]
        for row in rows:
            found = judge.take([make_arrived(row)])
            at_once += count_findings(found)
        wanted = Counter(
            {key: n for key, n in find_by_oracle(names, rows)[1].items() if key[0] == "violation"}
        )
        told = Counter({key: n for key, n in at_once.items() if key[0] == "violation"})
        early += told.total()
        late += (wanted - told).total()
        assert not told - wanted
    assert early > 250
    assert late < early / 2, "only those behind a delivery that was never sent are late"


def message(process: str, index: int, kind: str, sender: str, number: int, *to: str) -> Arrived:
    return Arrived(process, index, kind, sender, number, list(to) if kind == "send" else None, False)


def test_what_never_comes_is_told_when_patience_ends_and_taken_back_if_it_comes():
    judge = Judge()
    assert judge.take([message("q", 0, "deliver", "p", 1)], now_ms=1000) == []
    assert judge.expire(1999, 1000) == []
    judge = Judge.restore(judge.snapshot())
    assert count_findings(judge.expire(2000, 1000)) == {("unsent", "q", "p", 1): 1}
    assert judge.expire(9000, 1000) == []
    assert count_findings(judge.take([message("p", 0, "send", "p", 1, "q", "r")], now_ms=9000)) == {
        ("retracted", "q", "p", 1): 1
    }
    assert count_findings(judge.expire(10_000, 1000)) == {("undelivered", "r", "p", 1): 1}
    assert judge.idle
    assert count_findings(judge.take([message("r", 0, "deliver", "p", 1)])) == {("retracted", "r", "p", 1): 1}
    assert count_findings(judge.take([message("r", 1, "deliver", "p", 1)])) == {("duplicate", "r", "p", 1): 1}


def test_a_gap_is_told_once_and_waited_for():
    judge = Judge()
    judge.take([message("p", 0, "send", "p", 1, "q"), message("q", 1, "deliver", "p", 1)], now_ms=0)
    assert count_findings(judge.expire(500, 100)) == {("gap", "q", None, None): 1}, (
        "the message is not undelivered"
    )
    assert judge.expire(900, 100) == []
    assert judge.take([message("q", 0, "receive", "p", 1)]) == []
    assert judge.deliveries == 1
    assert judge.idle


def test_events_that_cannot_be_are_told_and_passed_over():
    judge = Judge()
    judge.take([message("p", 0, "send", "p", 1, "q"), message("q", 0, "deliver", "p", 1)])
    again = judge.take([message("p", 1, "send", "p", 1, "q"), message("p", 2, "send", "q", 7, "p")])
    assert count_findings(again) == {("impossible", "p", "p", 1): 1, ("impossible", "p", "q", 7): 1}
    circle = [
        message("a", 0, "deliver", "b", 1), message("a", 1, "send", "a", 1, "b"),
        message("b", 0, "deliver", "a", 1), message("b", 1, "send", "b", 1, "a"),
        message("c", 0, "deliver", "a", 1),
    ]  # fmt: skip
    judge = Judge()
    assert judge.take(circle) == []
    assert judge.expire(10**6, 10**7) == []
    told = count_findings(judge.finish())
    assert told[("impossible", "a", "b", 1)] == told[("impossible", "b", "a", 1)] == 1
    assert told[("unaddressed", "c", "a", 1)] == 1


def test_state_is_bounded_by_what_is_in_flight():
    judge, sizes = Judge(messages=10), []
    numbers = [0, 0, 0]
    indices = [0, 0, 0]
    dice = random.Random(1)

    def event(kind: str, p: int, sender: int, number: int, *to: str) -> Arrived:
        indices[p] += 1
        return message(f"p{p}", indices[p] - 1, kind, f"p{sender}", number, *to)

    for round_ in range(2000):
        p = dice.randrange(3)
        numbers[p] += 1
        others = [q for q in range(3) if q != p]
        rows = [event("send", p, p, numbers[p], *(f"p{q}" for q in others))]
        rows += [event("deliver", q, p, numbers[p]) for q in others]
        assert judge.take(rows) == []
        if round_ % 500 == 100:
            sizes.append(len(judge.snapshot()))
    assert max(sizes) < 2000
    assert max(sizes) < 1.2 * min(sizes)
    old = judge.take([event("deliver", 0, 1, 1)])
    assert count_findings(old) == {("duplicate", "p0", "p1", 1): 1}, (
        "known by its number, long after it was forgotten"
    )


def test_what_is_not_its_state_is_refused():
    with pytest.raises(
        BadSnapshot, match="live verification has a snapshot of version 9; this release reads version 1"
    ):
        Judge.restore(b"\x91\x09")
    with pytest.raises(BadSnapshot):
        Judge.restore(b"nonsense")
    with pytest.raises(BadSnapshot):
        Judge.restore(b"\x92\x01\x02")


def test_a_state_that_an_older_version_left_is_continued():
    kept = json.loads((Path(__file__).parent / "states" / "judge-1.json").read_text())
    judge = Judge.restore(b64decode(kept["state"]))
    process, index, kind, sender, number, to = zip(*kept["rows"], strict=True)
    rows = map(Arrived, process, index, kind, sender, number, to, (False, False))
    [found] = judge.take(list(rows))
    assert list(msgspec.structs.astuple(found)) == kept["expected"]
