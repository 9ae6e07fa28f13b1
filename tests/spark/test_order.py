"""The order of traces on Spark: a linear extension, the same positions always, and exactly what is missing or waits."""

from random import Random

import pytest
from pyspark.sql import functions as F

from antecede.errors import BadTrace
from antecede.oracle import happened_before
from antecede.spark import Trace
from antecede.spark.order.api import order
from antecede.spark.order.lamport import with_clock
from tests.spark.made import CYCLE, after, lamport, oracle_events, random_run, table

SEED = 4


def drawn(seed):
    """Runs with clocks and without, with missing sends and without, one of them long, one empty of messages."""
    rng = Random(seed)
    runs = [
        random_run(rng, f"r{i}", rng.randrange(1, 7), rng.randrange(1, 60), orphans=0.03 * (i % 2))
        for i in range(10)
    ]
    runs.append(random_run(rng, "long", 6, 300, orphans=0.004))
    return {rows[0]["run"]: lamport(rows) if i % 3 == 0 else rows for i, rows in enumerate(runs)}


def trace_of(spark, runs, partitions=3):
    rows = [row for own in runs.values() for row in own]
    Random(partitions).shuffle(rows)
    return Trace.of(spark.createDataFrame(table(rows)).repartition(partitions))


def in_order(rows, key):
    """Each run's rows, sorted."""
    runs: dict[str, list] = {}
    for row in sorted(rows, key=key):
        runs.setdefault(row["run"], []).append(row)
    return runs


def assert_linear_extension(rows):
    order = happened_before(oracle_events(rows))
    assert not any(past >> place for place, past in enumerate(order.pasts))


@pytest.fixture(scope="module")
def runs():
    return drawn(SEED)


@pytest.fixture(scope="module")
def ordered(spark, runs):
    found = order(trace_of(spark, runs), partitions=3)
    yield found
    found.release()


@pytest.fixture(scope="module")
def by_run(ordered):
    return in_order(ordered.rows.toArrow().to_pylist(), lambda row: row["position"])


def test_the_order_is_a_linear_extension_with_each_position_once(runs, by_run):
    assert by_run.keys() == runs.keys()
    for name, rows in by_run.items():
        assert [row["position"] for row in rows] == list(range(len(runs[name])))
        assert_linear_extension(rows)
        keys = [(row["clock"], row["process"].encode(), row["index"]) for row in rows]
        assert keys == sorted(keys)


def test_what_is_missing_and_what_waits_is_found_exactly(runs, by_run, ordered):
    found = {(row["run"], row["sender"], row["number"]) for row in ordered.missing.toArrow().to_pylist()}
    assert found
    for name, rows in by_run.items():
        sent = {(r["sender"], r["number"]) for r in rows if r["kind"] == "send" and not r["control"]}
        orphans = {
            i for i, r in enumerate(rows) if r["kind"] == "deliver" and (r["sender"], r["number"]) not in sent
        }
        assert {(name, rows[i]["sender"], rows[i]["number"]) for i in orphans} == {
            m for m in found if m[0] == name
        }
        assert {i for i, row in enumerate(rows) if row["waits"]} == after(rows, orphans)


def test_partitions_and_the_order_of_rows_change_nothing(spark, runs, by_run):
    again = order(trace_of(spark, runs, partitions=5), partitions=1)
    rows = again.rows.toArrow().to_pylist()
    again.release()
    assert in_order(rows, lambda row: row["position"]) == by_run


def test_long_runs_are_ordered_in_pieces(spark, runs):
    """Cut by their times, which are far off in some runs, and by the counts of processes, if there is no time."""
    timeless = {
        name: [row | {"time_ns": 0} for row in rows] for name, rows in runs.items() if name in ("long", "r1")
    }
    for some in (runs, timeless):
        timed = with_clock(trace_of(spark, some), largest=40)
        rows = timed.events.toArrow().to_pylist()
        for name, own in in_order(rows, lambda r: (r["clock"], r["process"].encode(), r["index"])).items():
            assert len(own) == len(some[name])
            assert_linear_extension(own)


def test_a_trace_with_clocks_stays_as_it_is(spark, runs):
    trace = trace_of(spark, {"r0": runs["r0"]})
    assert with_clock(trace) is trace


def changed(rows, place, **fields):
    return [row | fields if i == place else row for i, row in enumerate(rows)]


BAD = {
    "a gap": (
        changed(CYCLE, 1, index=2),
        "process a: found 2 events with index 0 to 2, expected 0, 1, 2, ... without",
    ),
    "an index twice": (
        changed(CYCLE, 3, index=0),
        "process b: found 2 events with 1 different indices, expected one",
    ),
    "an index below 0": (
        changed(CYCLE, 0, index=-1),
        "process a: found 2 events with index -1 to 1, expected 0, 1",
    ),
    "a kind": (
        changed(CYCLE, 0, kind="sent"),
        "process a, index 0: found an event of kind sent, expected send or",
    ),
    "a cycle": (
        CYCLE,
        "found a cycle: a delivers b.1 at index 0, b delivers a.1 at index 0, each before it sends",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_ordered_is_refused_in_one_line(spark, case):
    rows, told = BAD[case]
    with pytest.raises(BadTrace) as error:
        order(Trace.of(spark.createDataFrame(table(rows))))
    assert str(error.value).startswith("run r")
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_a_null_is_refused(spark):
    events = spark.createDataFrame(table(CYCLE)).withColumn(
        "sender", F.expr("if(process = 'b', null, sender)")
    )
    with pytest.raises(
        BadTrace, match="run r, process b, index 0: found no sender, expected null only where"
    ):
        order(Trace.of(events))


def test_an_empty_trace_is_in_order(spark):
    found = order(Trace.of(spark.createDataFrame(table([]))))
    assert found.rows.count() == found.missing.count() == 0


SCRIPT = """
import json, sys
import pyarrow.parquet as pq
from antecede.spark import Trace
from antecede.spark.order.api import order
found = order(Trace.of(spark.createDataFrame(pq.read_table(sys.argv[1])).repartition(3)), partitions=2)
rows = found.rows.select("run", "process", "index", "position", "waits").toArrow().to_pylist()
missing = found.missing.toArrow().to_pylist()

from antecede.spark.order.by_vector import order_stamped
stamped = spark.createDataFrame([("b", {"a": 2, "b": 1}), ("a", {"a": 1})], "process string, vector map<string,bigint>")
vectors = order_stamped(stamped, group=[])
told = [list(row) for row in vectors.rows.select("process", "position", "waits").collect()]
print(json.dumps([rows, missing, told]))
"""


@pytest.mark.parametrize("where", ["on_cluster", "on_connect"])
def test_other_sparks_find_the_same(request, where, tmp_path, runs, by_run, ordered):
    import json

    import pyarrow.parquet as pq

    pq.write_table(table([row for own in runs.values() for row in own]), tmp_path / "events.parquet")
    rows, missing, told = json.loads(
        request.getfixturevalue(where)(SCRIPT, tmp_path / "events.parquet").splitlines()[-1]
    )
    keys = ("run", "process", "index", "position", "waits")
    expected = [{key: row[key] for key in keys} for own in by_run.values() for row in own]

    def key(row):
        return row["run"], row["position"]

    assert sorted(rows, key=key) == sorted(expected, key=key)
    assert len(missing) == ordered.missing.count()
    assert told == [["a", 0, False], ["b", 1, True]]
