"""The order of traces on Spark: a linear extension, the same positions always, and exactly what is missing or waits."""

from random import Random

import pytest
from pyspark.sql import functions as F

from antecede.oracle import happened_before
from antecede.spark import Trace
from antecede.spark.order import by_trace
from antecede.spark.order.api import missing, order, refused
from antecede.spark.order.by_trace import with_clock
from tests.spark.made import CYCLE, after, lamport, oracle_events, random_run, table

SEED = 4


def draw_runs(seed):
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
    return draw_runs(SEED)


@pytest.fixture(scope="module")
def ordered(spark, runs):
    return order(trace_of(spark, runs), partitions=3)


@pytest.fixture(scope="module")
def by_run(ordered):
    return in_order(ordered.toArrow().to_pylist(), lambda row: row["position"])


def test_the_order_is_a_linear_extension_with_each_position_once(runs, by_run):
    assert by_run.keys() == runs.keys()
    for name, rows in by_run.items():
        assert [row["position"] for row in rows] == list(range(len(runs[name])))
        assert_linear_extension(rows)
        # Who has no clocks of its own goes by time, and has none afterwards.
        keys = [(row["clock"], row["process"].encode(), row["index"]) for row in rows]
        if runs[name][0]["clock"] is None:
            assert {clock for clock, *_ in keys} == {None}
            keys = list(times_of(rows))
        assert keys == sorted(keys)


def times_of(rows):
    """Of rows in their order: the greatest time of each and of what happened before it."""
    last: dict = {}
    for row in rows:
        message = None if row["control"] or row["kind"] == "receive" else (row["sender"], row["number"])
        own = max(row["time_ns"], last.get(row["process"], 0))
        if row["kind"] == "deliver":
            own = max(own, last.get(message, 0))
        elif message is not None:
            last[message] = own
        last[row["process"]] = own
        yield own


def test_a_trace_with_clocks_goes_by_time_if_it_is_asked_for(spark, runs):
    some = {name: rows for name, rows in runs.items() if rows[0]["clock"] is not None}
    found = in_order(
        order(trace_of(spark, some), time="time_ns").toArrow().to_pylist(), lambda r: r["position"]
    )
    assert found.keys() == some.keys()
    for rows in found.values():
        assert_linear_extension(rows)
        assert list(times_of(rows)) == sorted(times_of(rows))


def test_what_is_missing_and_what_waits_is_found_exactly(runs, by_run, ordered):
    found = {(row["run"], row["sender"], row["number"]) for row in missing(ordered).toArrow().to_pylist()}
    assert found
    for name, rows in by_run.items():
        sent = {(r["sender"], r["number"]) for r in rows if r["kind"] == "send" and not r["control"]}
        orphans = {
            i for i, r in enumerate(rows) if r["kind"] == "deliver" and (r["sender"], r["number"]) not in sent
        }
        assert {(name, rows[i]["sender"], rows[i]["number"]) for i in orphans} == {
            m for m in found if m[0] == name
        }
        assert {i for i, row in enumerate(rows) if row["waits_for"]} == after(rows, orphans)
        for place, row in enumerate(rows):
            # What holds it up is missing, and was to be delivered in its past, or there.
            for message in row["waits_for"]:
                held = [
                    i for i in orphans if (rows[i]["sender"], rows[i]["number"]) == tuple(message.values())
                ]
                assert any(place in after(rows, {i}) for i in held)


def test_partitions_and_the_order_of_rows_change_nothing(spark, runs, by_run):
    again = order(trace_of(spark, runs, partitions=5), partitions=1)
    rows = again.toArrow().to_pylist()
    assert in_order(rows, lambda row: row["position"]) == by_run


def test_runs_that_no_task_should_hold_are_ordered_alike(spark, runs, by_run, monkeypatch):
    monkeypatch.setattr(by_trace, "LARGEST", 40)
    rows = order(trace_of(spark, runs), partitions=3).toArrow().to_pylist()
    assert in_order(rows, lambda row: row["position"]) == by_run


def test_long_runs_are_ordered_in_pieces(spark, runs):
    """In blocks of time, also where times are far off, or tell nothing."""
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


def change_row(rows, place, **fields):
    return [row | fields if i == place else row for i, row in enumerate(rows)]


BAD = {
    "a gap": (
        change_row(CYCLE, 1, index=2),
        "process a: 2 events have indices 0 to 2; indices must count 0, 1, 2, ...",
    ),
    "an index twice": (
        change_row(CYCLE, 3, index=0),
        "process b: 2 events have 1 different indices; each needs its own",
    ),
    "an index below 0": (
        change_row(CYCLE, 0, index=-1),
        "process a: 2 events have indices -1 to 1; indices must count 0, 1",
    ),
    "a kind": (
        change_row(CYCLE, 0, kind="sent"),
        "process a, index 0: the event is of kind sent; the kinds are send, ",
    ),
    "a cycle": (
        CYCLE,
        "the events form a cycle: a delivers b.1 at index 0, b delivers a.1 at index 0, each before it sends",
    ),
}


def rename_run(rows, run):
    return [row | {"run": run} for row in rows]


def test_one_bad_run_does_not_block_the_others(spark, runs):
    rows = [row for case, (own, _) in BAD.items() for row in rename_run(own, case)]
    good = rename_run(runs["r0"], "good") + rename_run(runs["r1"], "good without clocks")
    rows += [row | {"sender": "" if row["run"] == "x" else row["sender"]} for row in good]
    events = spark.createDataFrame(table(rows)).withColumn(
        "sender", F.expr("if(run = 'a kind' and process = 'b', null, sender)")
    )
    found = order(Trace.of(events))
    places: dict[str, list] = {}
    for row in found.collect():
        places.setdefault(row["run"], []).append(row["position"])
    for name in ("good", "good without clocks"):
        assert sorted(places.pop(name)) == list(range(sum(row["run"] == name for row in rows)))
    assert places == {case: [None] * len(own) for case, (own, _) in BAD.items()}
    told = {row["run"]: row["reason"] for row in refused(found).collect()}
    assert told.keys() == BAD.keys()
    for case, (_, reason) in BAD.items():
        assert told[case].startswith(reason), case


def test_columns_of_the_user_stay_and_columns_that_may_be_null_may_be_absent(spark, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    from antecede.trace import RUNS, RunInfo

    rows = table(lamport(random_run(Random(3), "r", 3, 20)))
    more = rows.append_column("trace_id", pa.array([f"t{i}" for i in range(len(rows))]))
    few = more.drop_columns(["label", "stamp_entries", "stamp_bytes"])
    found = order(Trace.of(spark.createDataFrame(few)))
    assert found.columns == [*rows.column_names, "trace_id", "position", "waits_for"]
    own = {(row["process"], row["index"]): row["trace_id"] for row in more.to_pylist()}
    assert all(own[row["process"], row["index"]] == row["trace_id"] for row in found.collect())
    bare = few.set_column(few.schema.get_field_index("clock"), "clock", pa.nulls(len(few), pa.int64()))
    computed = order(Trace.of(spark.createDataFrame(bare))).collect()
    assert all(own[row["process"], row["index"]] == row["trace_id"] for row in computed)
    (tmp_path / "events").mkdir()
    pq.write_table(more, tmp_path / "events" / "0.parquet")
    names = tuple(sorted(set(rows["process"].to_pylist())))
    info = RunInfo(run="r", protocol="drawn", processes=names)
    pq.write_table(pa.Table.from_pylist([info.row()], RUNS), tmp_path / "runs.parquet")
    read = order(Trace.read(spark, tmp_path))
    assert read.columns == found.columns
    assert sorted(row["trace_id"] for row in read.collect()) == sorted(own.values())


def test_an_empty_trace_is_in_order(spark):
    found = order(Trace.of(spark.createDataFrame(table([]))))
    assert found.count() == missing(found).count() == refused(found).count() == 0


SCRIPT = """
import json, sys
import pyarrow.parquet as pq
from antecede.spark import Trace
from antecede.spark.order.api import missing, order, refused
found = order(Trace.of(spark.createDataFrame(pq.read_table(sys.argv[1])).repartition(3)), partitions=2)
rows = found.select("run", "process", "index", "position", "waits_for").toArrow().to_pylist()
lost = missing(found).toArrow().to_pylist()

stamped = spark.createDataFrame([("b", {"a": 2, "b": 1}), ("a", {"a": 1})], "process string, vector map<string,bigint>")
vectors = order(stamped, process="process", vector="vector")
told = [list(row) for row in vectors.select("process", "position", "waits_for").collect()]
linked = spark.createDataFrame([("b", "a", 1), ("a", "z", 2)], "id string, cause string, at long")
causes = order(linked, id="id", causes="cause", time="at")
told += [list(row) for row in causes.select("id", "position", "waits_for").collect()]
print(json.dumps([rows, lost, told]))
"""


@pytest.mark.parametrize("where", ["on_cluster", "on_connect"])
def test_other_sparks_find_the_same(request, where, tmp_path, runs, by_run, ordered):
    import json

    import pyarrow.parquet as pq

    pq.write_table(table([row for own in runs.values() for row in own]), tmp_path / "events.parquet")
    rows, lost, told = json.loads(
        request.getfixturevalue(where)(SCRIPT, tmp_path / "events.parquet").splitlines()[-1]
    )
    keys = ("run", "process", "index", "position", "waits_for")
    expected = [{key: row[key] for key in keys} for own in by_run.values() for row in own]

    def key(row):
        return row["run"], row["position"]

    assert sorted(rows, key=key) == sorted(expected, key=key)
    assert len(lost) == missing(ordered).count()
    assert told == [["a", 0, []], ["b", 1, [["a", 2]]], ["a", 0, ["z"]], ["b", 1, ["z"]]]
