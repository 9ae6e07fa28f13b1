"""The order of messages with vectors: by definition, for any form of vector; and of real logs."""

import itertools
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from antecede.errors import BadParameter
from antecede.spark.ingest.api import ingest
from antecede.spark.order.api import count_rows, missing, order, refused
from antecede.spark.order.by_vector import climb_and_sort
from antecede.spark.order.vectors import LAST, count_batches
from antecede.spark.run_tasks import whole_pieces
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


def draw_runs(seed):
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


def find_missing(events):
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
    events = draw_runs(form)
    Random(1).shuffle(events)
    table = spark.createDataFrame(FORMS[form](events)).repartition(3)
    found = order(table, process="process", vector="vector", partition_by="run", partitions=3)
    assert found.columns == [*table.columns, "position", "waits_for"]
    rows, ranges = found.toArrow().to_pylist(), missing(found).toArrow().to_pylist()
    lost, waits = find_missing(events)
    assert lost == {
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
            # Nobody comes before one that it knows of.
            assert not any(
                plain(late)[2][plain(late)[1]] <= vector.get(plain(late)[1], 0) for late in own[place + 1 :]
            )


def test_each_receiver_has_an_order_of_its_own(spark):
    stamps = [(0, [1, 0]), (1, [1, 1]), (0, [2, 1])]
    rows = [{"to": to, "from": p, "stamp": v} for to in ("x", "y") for p, v in stamps if (to, p) != ("y", 1)]
    table = spark.createDataFrame(pa.Table.from_pylist(rows))
    found = order(table, partition_by=["to"], process="from", vector="stamp")
    told = {(row["to"], row["position"]): (row["from"], bool(row["waits_for"])) for row in found.collect()}
    assert told == {
        ("x", 0): (0, False),
        ("x", 1): (1, False),
        ("x", 2): (0, False),
        ("y", 0): (0, False),
        ("y", 1): (0, True),
    }
    assert [tuple(row) for row in missing(found).collect()] == [("y", 1, 1, 1)]
    counts = count_rows(found).orderBy("to").collect()
    assert [tuple(row) for row in counts] == [("x", 3, 0, 0, False), ("y", 2, 1, 1, False)]
    alone = order(table.where("to = 'x'"), process="from", vector="stamp")
    assert [row["position"] for row in alone.collect()] == [0, 1, 2]


BAD: dict[str, tuple[list, str]] = {
    "no own entry": ([("a", {"b": 1})], "a row of process a has no number of its own"),
    "no vector": ([("a", None)], "a row of process a has no vector"),
    "no process": ([(None, {"b": 1})], "a row has no name of its process"),
    "a number twice": (
        [("a", {"a": 2}), ("a", {"a": 2}), ("a", {"a": 1})],
        "process a has two rows of one number, near 0",
    ),
    "a negative entry": ([("a", {"a": 1, "b": -4})], "a row of process a has a negative entry"),
    "a null entry": ([("a", {"a": 1, "b": None})], "a row of process a has an entry that is null"),
}


@pytest.fixture(scope="module")
def with_bad_partitions(spark):
    rows = [(case, *row) for case, (own, _) in BAD.items() for row in own]
    rows += [("good", "b", {"a": 1, "b": 1}), ("good", "a", {"a": 1}), (None, "a", {"a": 1})]
    table = spark.createDataFrame(rows, "run string, process string, vector map<string,bigint>")
    return order(table, process="process", vector="vector", partition_by="run")


def test_one_bad_partition_does_not_block_the_others(with_bad_partitions):
    rows = with_bad_partitions.collect()
    good = sorted((row.run or "", row.position, row.process) for row in rows if row.position is not None)
    assert good == [("", 0, "a"), ("good", 0, "a"), ("good", 1, "b")]
    assert len(rows) == 3 + sum(len(own) for own, _ in BAD.values())
    assert {row.run for row in rows if row.position is None} == BAD.keys()


def test_each_bad_partition_is_refused_by_name(with_bad_partitions):
    told = {row["run"]: (row["rows"], row["reason"]) for row in refused(with_bad_partitions).collect()}
    assert told == {case: (len(rows), reason) for case, (rows, reason) in BAD.items()}


@pytest.mark.parametrize("vectors", [[[1, None], [1, 1]], [[1, None], [1, 1, 0]]])
def test_a_null_entry_of_an_array_is_refused(spark, vectors):
    """S3: the sum was null, and the row stood before its cause."""
    rows = [("r", place, vector) for place, vector in enumerate(vectors)]
    table = spark.createDataFrame(rows, "run string, process int, vector array<bigint>")
    found = order(table, process="process", vector="vector", partition_by="run")
    assert [row.reason for row in refused(found).collect()] == [
        "a row of process 0 has an entry that is null"
    ]
    assert {row.position for row in found.collect()} == {None}


@pytest.mark.parametrize(
    ("types", "told"),
    [
        (
            "process string, vector map<string,bigint>",
            "partition_by 1 must be one of the columns process, vector, not 'run'",
        ),
        (
            "run string, process string, vector string",
            "vector must be map<string,bigint> or array<bigint>, and vector is string",
        ),
        (
            "run string, process string, vector array<bigint>",
            "and process is string with vectors of array<bigint>",
        ),
        (
            "run string, process string, vector map<string,bigint>, position int",
            "the table has a column position",
        ),
    ],
)
def test_columns_of_other_types_are_refused(spark, types, told):
    with pytest.raises(BadParameter) as error:
        order(spark.createDataFrame([], types), process="process", vector="vector", partition_by="run")
    assert told in str(error.value)


@pytest.mark.parametrize("form", ["arrays", "arrays of several lengths"])
def test_the_largest_entries_of_arrays_are_found_either_way(form):
    events = draw_runs(form)
    table = FORMS[form](events).rename_columns(["run", "__process", "__vector"])
    table = table.set_column(1, "__process", table["__process"].cast(pa.int64()))
    found = [
        row
        for batch in count_batches(table.to_batches(max_chunksize=50), ["run"], False)
        for row in batch.to_pylist()
    ]
    largest: dict[tuple[str, int], int] = {}
    for row in found:
        if row["what"] == LAST:
            key = row["run"], row["process"]
            largest[key] = max(largest.get(key, 0), row["one"])
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
    log = ingest(spark, [LOGS / name], form, **options).log
    found = order(log, process="process", vector="vector", partition_by="run")
    rows = found.toArrow().to_pylist(maps_as_pydicts="strict")
    assert missing(found).count() == 0
    assert len(rows) == events
    assert before_a_cause(sorted(rows, key=lambda row: row["line"])) == early
    assert before_a_cause(sorted(rows, key=lambda row: row["position"])) == 0


@pytest.mark.parametrize("form", FORMS)
def test_time_decides_among_concurrent_messages(spark, form):
    """A key is the greatest time of all that a vector counts: looked up one by one, and in the order of the result."""
    print(f"seed {form}")
    rng = Random(form)
    events = draw_runs(form)
    times = [rng.randrange(60) for _ in events]
    table = FORMS[form](events).append_column("at", pa.array(times))
    found = order(
        spark.createDataFrame(table).repartition(3),
        process="process",
        vector="vector",
        partition_by="run",
        time="at",
    )
    untimed = order(
        spark.createDataFrame(table), process="process", vector="vector", partition_by="run"
    ).collect()
    rows = found.toArrow().to_pylist()
    waits = {
        (row["run"], row["process"], str(row["vector"])): [tuple(w) for w in row["waits_for"]]
        for row in untimed
    }
    assert sum(map(bool, waits.values())) == sum(bool(row["waits_for"]) for row in rows)
    for run in {event[0] for event in events}:
        own = [row for row in rows if row["run"] == run]
        keys = []
        for row in sorted(own, key=lambda row: row["position"]):
            _, _, vector = plain(row)
            known = [r for r in own if plain(r)[2][plain(r)[1]] <= vector.get(plain(r)[1], 0)]
            keys.append((max(r["at"] for r in known), sum(vector.values())))
        assert keys == sorted(keys)


def test_a_window_of_time_has_the_positions_of_the_whole(spark):
    rows = [("a", {"a": n}, f"2024-05-01T00:00:0{n}Z") for n in range(1, 6)]
    table = spark.createDataFrame(rows, "p string, v map<string,bigint>, at string")
    window = ("2024-05-01T00:00:02Z", "2024-05-01T00:00:04Z")
    found = order(table, process="p", vector="v", time="at", window=window)
    assert [(row.position, row.v["a"]) for row in found.collect()] == [(1, 2), (2, 3)]
    with pytest.raises(BadParameter, match=r"window must be two times, .* and has 'yesterday'"):
        order(table, process="p", vector="v", time="at", window=("yesterday", window[1]))
    others: tuple[Any, ...] = ("12", window[:1])
    for other in others:
        with pytest.raises(BadParameter, match=r"window must be two times, .* and is "):
            order(table, process="p", vector="v", time="at", window=other)
    with pytest.raises(BadParameter, match="a window needs the column of times"):
        order(table, process="p", vector="v", window=window)


@pytest.mark.parametrize("kind", [pa.map_(pa.string(), pa.int64()), pa.list_(pa.int64())])
def test_a_partition_that_begins_within_a_batch_climbs_alone(kind):
    """A task hands over its partitions in pieces; the last one may be the end of a batch that has more."""
    many, is_map = 1 << 16, pa.types.is_map(kind)
    numbers = [*range(1, many + 1), 1, 2]
    vectors = [[("p", number)] for number in numbers] if is_map else [[number] for number in numbers]
    columns = {
        "__hash": [1] * many + [2, 2],
        "__group0": ["a"] * many + ["b", "b"],
        "__process": ["p" if is_map else 0] * len(numbers),
        "__vector": pa.array(vectors, kind),
        "__time": [*range(many), 7, 3],
        "__key": numbers,
        "__own": numbers,
    }
    pieces = [piece.combine_chunks() for piece in whole_pieces([pa.record_batch(columns)])]
    found = [climb_and_sort(piece, ["__own"], ["__group0"], is_map) for piece in pieces]
    # By its own time the last row would be before the one that it counts.
    assert [piece["__own"].to_pylist() for piece in found] == [[*range(1, many + 1)], [1, 2]]
    assert [piece["position"].to_pylist() for piece in found] == [[*range(many)], [0, 1]]
