"""What tasks compute for an order, without Spark: clocks of whole runs, gaps in numbers."""

from random import Random

import numpy as np
import pyarrow as pa
import pytest

from antecede.errors import BadTrace
from antecede.oracle import happened_before
from antecede.spark.order.by_trace import order_runs
from antecede.spark.order.vectors import find_gaps
from antecede.spark.run_tasks import whole_pieces
from antecede.trace.clocks import add_clocks
from tests.spark.made import CYCLE, after, lamport, oracle_events, random_run, table


def by_process(rows):
    """As the kernel takes rows."""
    return sorted(rows, key=lambda row: (row["run"].encode(), row["process"].encode(), row["index"]))


def event(process, index, kind, sender, number):
    row = {"run": "r", "process": process, "index": index, "kind": kind, "sender": sender, "number": number}
    return row | {"to": None, "control": False, "time_ns": 0}


@pytest.mark.parametrize("seed", range(60))
def test_clocks_are_lamports(seed):
    rng = Random(seed)
    runs = [random_run(rng, f"r{i}", rng.randrange(1, 6), rng.randrange(60), orphans=0.05) for i in range(3)]
    expected = by_process([row for rows in runs for row in lamport(rows)])
    found = add_clocks(table([row | {"clock": None} for row in expected])).to_pylist()
    assert [row["clock"] for row in found] == [row["clock"] for row in expected]


@pytest.mark.parametrize("seed", range(20))
def test_sorting_by_clock_is_a_linear_extension(seed):
    rows = by_process(random_run(Random(seed), "r", 5, 60))
    found = add_clocks(table(rows)).to_pylist()
    found.sort(key=lambda row: (row["clock"], row["process"].encode(), row["index"]))
    order = happened_before(oracle_events(found))
    assert not any(past >> place for place, past in enumerate(order.pasts))


@pytest.mark.parametrize("seed", range(40))
def test_a_task_orders_whole_runs_and_tells_what_waits(seed):
    rng = Random(seed)
    runs = [
        random_run(rng, f"r{i}", rng.randrange(1, 6), rng.randrange(1, 60), orphans=0.05) for i in range(3)
    ]
    runs.append([row | {"run": "cycle"} for row in CYCLE])
    rows = table(by_process([row for own in runs for row in own]))
    ordered = order_runs(rows.append_column("__at", rows["time_ns"]), rows.column_names).to_pylist()
    for name in ("r0", "r1", "r2"):
        own = [row for row in ordered if row["run"] == name]
        assert [row["position"] for row in own] == list(range(len(own)))
        assert not any(past >> place for place, past in enumerate(happened_before(oracle_events(own)).pasts))
        sent = {(row["sender"], row["number"]) for row in own if row["kind"] == "send" and not row["control"]}
        lost = {
            place
            for place, row in enumerate(own)
            if row["kind"] == "deliver" and not row["control"] and (row["sender"], row["number"]) not in sent
        }
        assert {place for place, row in enumerate(own) if row["waits_for"]} == after(own, lost)
    assert {(row["position"], *row["waits_for"]) for row in ordered if row["run"] == "cycle"} == {(None,)}


CYCLES = {
    "two wait for each other": (
        [("a", "deliver", "b", 1), ("a", "send", "a", 1), ("b", "deliver", "a", 1), ("b", "send", "b", 1)],
        "a delivers b.1 at index 0, b delivers a.1 at index 0",
    ),
    "a message to itself": ([("a", "deliver", "a", 7), ("a", "send", "a", 7)], "a delivers a.7 at index 0"),
    "others wait behind it": (
        [
            ("a", "deliver", "b", 1),
            ("b", "deliver", "c", 1),
            ("b", "send", "b", 1),
            ("c", "deliver", "b", 1),
            ("c", "send", "c", 1),
        ],
        "b delivers c.1 at index 0, c delivers b.1 at index 0",
    ),
}


@pytest.mark.parametrize("case", CYCLES)
def test_a_cycle_is_named(case):
    events, told = CYCLES[case]
    counts: dict[str, int] = {}
    rows = []
    for process, *rest in events:
        rows.append(event(process, counts.setdefault(process, 0), *rest))
        counts[process] += 1
    with pytest.raises(BadTrace) as error:
        add_clocks(table(rows))
    assert str(error.value) == (
        f"run r: the events form a cycle: {told}, each before it sends what the one before it delivers"
    )


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (
            [event("a", 0, "send", "a", 1), event("a", 1, "send", "a", 1)],
            "run r, process a, index 1: message a.1 is sent a second time",
        ),
        (
            [event("a", 0, "send", "b", 1)],
            "run r, process a, index 0: the process sends message b.1, which only its sender can send",
        ),
    ],
)
def test_what_cannot_be_a_run_is_refused(rows, told):
    with pytest.raises(BadTrace) as error:
        add_clocks(table(rows))
    assert str(error.value) == told


@pytest.mark.parametrize("seed", range(40))
def test_gaps_are_what_lacks_between_one_and_the_last(seed):
    rng = Random(seed)
    lines = [
        sorted(rng.sample(range(1, 400), rng.randrange(0, 300))) if seed else []
        for _ in range(rng.randrange(1, 5))
    ]
    lasts = [max(numbers, default=0) + rng.choice([0, 0, 5, 200]) for numbers in lines]
    words = [
        (line, word, sum(1 << n % 64 for n in numbers if n // 64 == word))
        for line, numbers in enumerate(lines)
        for word in sorted({n // 64 for n in numbers} or {0})
    ]
    line, word, bits = (np.array(column, np.uint64).view(np.int64) for column in zip(*words, strict=True))
    found = find_gaps(line, word, bits, np.array(lasts)[line])
    missing = {(at, n) for at, first, last in zip(*found, strict=True) for n in range(first, last + 1)}
    expected = {(i, n) for i, last in enumerate(lasts) for n in range(1, last + 1) if n not in lines[i]}
    assert missing == expected
    # Ranges do not touch: no shorter list says the same.
    group, first, last = found
    assert ((group[1:] != group[:-1]) | (last[:-1] + 1 < first[1:])).all()


@pytest.mark.parametrize("seed", range(20))
def test_pieces_stay_whole_however_they_are_batched(seed):
    rng = Random(seed)
    keys = sorted(rng.randrange(8) for _ in range(rng.randrange(60)))
    rows = pa.table({"__hash": pa.array(keys, pa.int64())})
    batches = rows.to_batches(max_chunksize=rng.randrange(1, 9))
    tables = list(whole_pieces(iter(batches), enough=rng.randrange(1, 20)))
    parts = [part["__hash"].to_pylist() for part in tables]
    assert [key for part in parts for key in part] == keys
    assert sum(len(set(part)) for part in parts) == len(set(keys))
