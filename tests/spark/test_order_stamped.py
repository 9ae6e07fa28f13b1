"""The order of messages with vectors: by definition, for any form of vector; and of real logs."""

import itertools
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from antecede.errors import BadTrace
from antecede.spark.ingest.api import ingest
from antecede.spark.order.by_vector import extremes, order_stamped
from tests.test_foreign_real import CHORD, before_a_cause

LOGS = Path(__file__).parents[3] / "shared" / "data" / "logs"


def random_messages(rng, run, processes, steps, lost):
    """Events with vector clocks, some of them lost: (run, process, vector)."""
    clocks: list[dict[int, int]] = [{} for _ in range(processes)]
    messages: list[dict[int, int]] = []
    events = []
    for _ in range(steps):
        me = rng.randrange(processes)
        if messages and rng.random() < 0.5:
            for process, count in rng.choice(messages).items():
                clocks[me][process] = max(clocks[me].get(process, 0), count)
        clocks[me][me] = clocks[me].get(me, 0) + 1
        messages.append(dict(clocks[me]))
        events.append((run, me, dict(clocks[me])))
    return [event for event in events if rng.random() >= lost]


def drawn(seed):
    rng = Random(seed)
    runs = [
        random_messages(rng, f"r{i}", rng.randrange(1, 6), rng.randrange(1, 40), 0.1 * (i % 3))
        for i in range(8)
    ]
    return [event for run in runs for event in run]


def as_maps(events):
    vectors = [[(f"p{process}", count) for process, count in vector.items()] for _, _, vector in events]
    return pa.table(
        {
            "run": [run for run, _, _ in events],
            "process": [f"p{process}" for _, process, _ in events],
            "vector": pa.array(vectors, pa.map_(pa.string(), pa.int64())),
        }
    )


def as_arrays(events, length):
    return pa.table(
        {
            "run": [run for run, _, _ in events],
            "process": pa.array([process for _, process, _ in events], pa.int32()),
            "vector": [[vector.get(i, 0) for i in range(length(run, vector))] for run, _, vector in events],
        }
    )


FORMS = {
    "maps": as_maps,
    "arrays": lambda events: as_arrays(events, lambda run, vector: 6),
    "arrays of several lengths": lambda events: as_arrays(events, lambda run, vector: max(vector) + 1),
}


def expected(events):
    """What is missing, and what each event waits for: (run, process, number) -> {process: first}."""
    there = {(run, me, vector[me]) for run, me, vector in events}
    referred = {
        (run, p, n) for run, _, vector in events for p, last in vector.items() for n in range(1, last + 1)
    }
    missing = referred - there
    waits = {}
    for run, me, vector in events:
        before = sorted((p, n) for r, p, n in missing if r == run and n <= vector.get(p, 0))
        waits[run, me, vector[me]] = {p: next(own)[1] for p, own in itertools.groupby(before, lambda m: m[0])}
    return missing, waits


def plain(row):
    """A row of any form as (run, process, vector)."""
    if isinstance(row["process"], int):
        return row["run"], row["process"], dict(enumerate(row["vector"]))
    return row["run"], int(row["process"][1:]), {int(name[1:]): count for name, count in row["vector"]}


def number(process):
    return process if isinstance(process, int) else int(process[1:])


@pytest.mark.parametrize("form", FORMS)
def test_vectors_order_messages_and_tell_what_is_missing(spark, form):
    events = drawn(form)
    Random(1).shuffle(events)
    found = order_stamped(spark.createDataFrame(FORMS[form](events)).repartition(3), partitions=3)
    rows, ranges = found.rows.toArrow().to_pylist(), found.missing.toArrow().to_pylist()
    found.release()
    missing, waits = expected(events)
    assert missing == {
        (row["run"], number(row["process"]), n)
        for row in ranges
        for n in range(row["first"], row["last"] + 1)
    }
    for run in {event[0] for event in events}:
        own = sorted((row for row in rows if row["run"] == run), key=lambda row: row["position"])
        assert [row["position"] for row in own] == list(range(sum(event[0] == run for event in events)))
        for place, row in enumerate(own):
            _, me, vector = plain(row)
            told = {number(first["process"]): first["number"] for first in row["waits_for"]}
            assert told == waits[run, me, vector[me]]
            assert row["waits"] == bool(told)
            # Nobody comes before one that it knows of.
            assert not any(
                plain(late)[2][plain(late)[1]] <= vector.get(plain(late)[1], 0) for late in own[place + 1 :]
            )


def test_each_receiver_has_an_order_of_its_own(spark):
    stamps = [(0, [1, 0]), (1, [1, 1]), (0, [2, 1])]
    rows = [{"to": to, "from": p, "stamp": v} for to in ("x", "y") for p, v in stamps if (to, p) != ("y", 1)]
    table = spark.createDataFrame(pa.Table.from_pylist(rows))
    found = order_stamped(table, group=["to"], process="from", vector="stamp")
    told = {(row["to"], row["position"]): (row["from"], row["waits"]) for row in found.rows.collect()}
    assert told == {
        ("x", 0): (0, False),
        ("x", 1): (1, False),
        ("x", 2): (0, False),
        ("y", 0): (0, False),
        ("y", 1): (0, True),
    }
    assert [tuple(row) for row in found.missing.collect()] == [("y", 1, 1, 1)]
    assert [tuple(row) for row in found.counts().orderBy("to").collect()] == [("x", 3, 0, 0), ("y", 2, 1, 1)]
    found.release()
    alone = order_stamped(table.where("to = 'x'"), group=[], process="from", vector="stamp")
    assert [row["position"] for row in alone.rows.collect()] == [0, 1, 2]
    assert [tuple(row) for row in alone.counts().collect()] == [(3, 0, 0)]
    alone.release()


BAD = {
    "no own entry": (
        [("r", "a", {"b": 1})],
        "run r, process a: found a row whose vector has no number of its own",
    ),
    "no vector": ([("r", "a", None)], "run r, process a: found a row whose vector has no number of its own"),
    "no process": ([("r", None, {"b": 1})], "run r, process None: found a row without a name"),
    "a number twice": (
        [("r", "a", {"a": 2}), ("r", "a", {"a": 2}), ("r", "a", {"a": 1})],
        "run r, process a: found 3 rows with numbers from 0 to 63, some of them equal",
    ),
    "a negative entry": ([("r", "a", {"a": 1, "b": -4})], "run r, process b: found an entry of -4"),
}


@pytest.mark.parametrize("case", BAD)
def test_vectors_that_number_nothing_are_refused(spark, case):
    rows, told = BAD[case]
    types = "run string, process string, vector map<string,bigint>"
    with pytest.raises(BadTrace) as error:
        order_stamped(spark.createDataFrame(rows, types))
    assert str(error.value).startswith(told)


@pytest.mark.parametrize(
    ("types", "told"),
    [
        (
            "process string, vector map<string,bigint>",
            "table: found columns process, vector, expected also run",
        ),
        ("run string, process string, vector string", "table: found column vector of type string"),
        (
            "run string, process string, vector array<bigint>",
            "table: found column process of type string with vectors",
        ),
    ],
)
def test_columns_of_other_types_are_refused(spark, types, told):
    with pytest.raises(BadTrace) as error:
        order_stamped(spark.createDataFrame([], types))
    assert str(error.value).startswith(told)


@pytest.mark.parametrize("form", ["arrays", "arrays of several lengths"])
def test_extremes_of_arrays_are_found_either_way(form):
    events = drawn(form)
    table = FORMS[form](events).rename_columns(["run", "process", "__vector"]).drop_columns(["process"])
    found = pa.Table.from_batches(
        extremes(iter(table.to_batches(max_chunksize=50)), ["run"], False)
    ).to_pylist()
    largest: dict[tuple[str, int], int] = {}
    for row in found:
        key = row["run"], row["process"]
        largest[key] = max(largest.get(key, 0), row["last"])
    for run, _, vector in events:
        assert all(largest[run, p] >= count for p, count in vector.items())
    assert {n for n in largest.values() if n} <= {n for _, _, vector in events for n in vector.values()}


@pytest.mark.skipif(not LOGS.is_dir(), reason=f"no logs at {LOGS}: they are no part of the project")
@pytest.mark.parametrize(
    ("name", "form", "options", "events", "early"),
    [
        ("chord.log", "shiviz", {"pattern": CHORD}, 1235, 932),
        ("EWD998ChanTrace.ndjson", "tlaplus", {}, 654, 539),
    ],
)
def test_real_logs_come_in_order(spark, name, form, options, events, early):
    found = order_stamped(ingest(spark, [LOGS / name], form, **options).log)
    rows = found.rows.toArrow().to_pylist(maps_as_pydicts="strict")
    assert found.missing.count() == 0
    found.release()
    assert len(rows) == events
    assert before_a_cause(sorted(rows, key=lambda row: row["line"])) == early
    assert before_a_cause(sorted(rows, key=lambda row: row["position"])) == 0
