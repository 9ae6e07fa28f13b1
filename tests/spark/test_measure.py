"""Measuring traces on Spark: files in order, rows in none, any number of runs, and what the simulator says of them."""

import random
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from antecede.sim import RunSpec
from antecede.sim import summary as sim_summary
from antecede.spark import SPARK_EVENTS, SPARK_RUNS, Trace
from antecede.spark.measure import api, chains, facts
from antecede.spark.measure.api import ERROR, measure
from antecede.spark.measure.facts import bound
from antecede.spark.run_tasks import number_groups, whole_pieces
from antecede.trace import EVENTS, RUNS, RunInfo, TraceWriter
from antecede.trace.columns import Names, Rows, rows_of
from antecede.trace.plan import plan
from tests.spark.random_traces import make_trace
from tests.spark.test_measure_chains import Expected, close


def written(directory, runs, files=1, shuffled=None):
    """A trace of runs (name -> names and rows), each in so many files; shuffled, in none of the orders."""
    (directory / "events").mkdir(parents=True)
    for run, (_, rows) in runs.items():
        own = [{**row, "run": run} for row in rows]
        if shuffled is not None:
            random.Random(shuffled).shuffle(own)
        size = max(1, -(-len(own) // files))
        for number, start in enumerate(range(0, len(own), size)):
            table = pa.Table.from_pylist(own[start : start + size], schema=EVENTS)
            notes = (
                {} if shuffled is not None else {"antecede.order": "clock,process,index", "antecede.run": run}
            )
            with pq.ParquetWriter(directory / "events" / f"{number:05d}-{run}.parquet", EVENTS) as file:
                file.write_table(table, row_group_size=8)
                file.add_key_value_metadata(notes)
    infos = [
        RunInfo(run=run, protocol=f"made up {run[0]}", processes=tuple(names)).row()
        for run, (names, _) in runs.items()
    ]
    pq.write_table(pa.Table.from_pylist(infos, schema=RUNS), directory / "runs.parquet")
    return directory


def check(measures, runs):
    """Every table is what the definitions give."""
    found = {row["run"]: row.asDict() for row in measures.runs.collect()}
    processes = {(row["run"], row["process"]): row.asDict() for row in measures.processes.collect()}
    channels = {(r["run"], r["sender"], r["receiver"]): r.asDict() for r in measures.channels.collect()}
    assert found.keys() == runs.keys()
    for run, (names, rows) in runs.items():
        expected = Expected(names, rows)
        figures = expected.run()
        past, n = figures.pop("past"), figures["sends"]
        figures |= {"run": run, "protocol": f"made up {run[0]}"}
        if n:
            figures["control_per_message"] = figures["control_packets"] / n
        if n > 1:
            figures["concurrency"] = 1 - 2 * past / (n * (n - 1))
        close(drop_nulls(found[run]), figures)
        for row in expected.processes():
            close(drop_nulls(processes.pop((run, row["process"]))), {**row, "run": run})
        for row in expected.channels():
            close(drop_nulls(channels.pop((run, row["sender"], row["receiver"]))), {**row, "run": run})
    assert not processes
    assert not channels


def drop_nulls(row):
    return {key: value for key, value in row.items() if value is not None}


def some_runs(first, count, **more):
    return {f"{'ab'[i % 2]}{i}": make_trace(first + i, **more) for i in range(count)}


@pytest.mark.parametrize(("files", "shuffled"), [(1, None), (3, 7)])
def test_many_runs_in_files_of_any_kind(spark, tmp_path, files, shuffled):
    """In one file each, in order, or in several in none. The tables are written whole or not at all."""
    runs = {**some_runs(1000, 9), "c": (["x", "y"], [])}
    measures = measure(Trace.read(spark, written(tmp_path / "trace", runs, files, shuffled)))
    check(measures, runs)
    if shuffled is None:
        measures.write(tmp_path)
        for name in ("runs", "processes", "channels", "histograms"):
            table = pq.read_table(tmp_path / "measures" / name)
            assert table.num_rows == getattr(measures, name).count()
        with pytest.raises(Exception, match="is there already"):
            measures.write(tmp_path)
    measures.release()


def test_any_dataframe_will_do(spark, tmp_path):
    runs = some_runs(1100, 5, events=40)
    read = Trace.read(spark, written(tmp_path, runs, 2))
    table = Trace.of(read.events.repartition(3), read.runs)
    measures = measure(table)
    check(measures, runs)
    measures.release()


def test_a_long_run_is_shared_by_several_tasks(spark, tmp_path, monkeypatch):
    """One for each block of clocks; short runs share another."""
    monkeypatch.setattr(chains, "LONG", 200)
    monkeypatch.setattr(chains, "BLOCK", 2)
    # Not in this process, however few they are.
    monkeypatch.setattr(api, "FEW", 0)
    runs = {"a-long": make_trace(7, processes=5, events=300), **some_runs(1200, 3, events=20)}
    trace = Trace.read(spark, written(tmp_path, runs, 2))
    measures = measure(trace)
    check(measures, runs)
    names = {run: tuple(names) for run, (names, _) in runs.items()}
    assert trace.files is not None
    shares = chains.share_files(trace.files, plan(trace.files, names), names)
    assert [[(part.run, part.block) for part in given.chunk.parts] for given in shares[:3]] == [
        [("a-long", (0, 1))],
        [("a-long", (1, 3))],
        [("a-long", (3, 5))],
    ]
    assert len(shares) == 4
    measures.release()


def test_a_large_cluster_measures_more_runs_at_a_time(spark):
    session = spark.newSession()
    for cores, tasks_of in (("2", [3, 64, 64]), ("200", [3, 100, 200])):
        session.conf.set("spark.sql.shuffle.partitions", cores)
        assert [chains.count_tasks(session, runs) for runs in (3, 100, 1_000)] == tasks_of


def test_rows_that_a_task_cannot_hold_go_to_a_file(monkeypatch):
    monkeypatch.setattr(chains, "HELD", 10)
    names, rows = make_trace(11, processes=4, events=300)
    batches = pa.Table.from_pylist(rows, schema=EVENTS).to_batches(7)
    [found] = chains.follow_sorted(batches, {"r": tuple(names)}, "events")
    expected = Expected(names, rows).run()
    assert (found.past, found.longest_chain) == (expected["past"], expected["longest_chain"])


@pytest.mark.parametrize("held", [1, 7])
def test_copies_that_no_chunk_has_whole_are_the_same_facts(held, monkeypatch):
    """However few rows are counted together, and in however small batches what is left over comes back."""
    names, rows = make_trace(12, processes=4, events=300)
    known = Names.of(names)

    def count(size):
        monkeypatch.setattr(facts, "HELD", size)
        parts = [rows_of(batch, known) for batch in pa.Table.from_pylist(rows, schema=EVENTS).to_batches(5)]
        counted = [
            batch
            for part in facts.gather(parts, Rows.concatenate)
            for batch in facts.count_rows("r", known, part, received=True)
        ]
        left = pa.Table.from_batches(counted, facts.PARTS).sort_by(
            [(name, "ascending") for name in facts.COPY]
        )
        left = left.append_column("__hash", pa.array(number_groups(left, facts.COPY)))
        found = pa.concat_tables(map(facts.finish_facts, whole_pieces(left.to_batches(5), size)))
        keys = ["run", "process", "sender", "quantity", "low", "high", "middle"]
        sums = [("count", "sum"), ("total", "sum"), ("least", "min"), ("greatest", "max")]
        cells = found.group_by(keys).aggregate(sums).to_pylist()
        return sorted(cells, key=str)

    assert count(held) == count(1 << 20)


# The simulator's word


SPECS = [
    RunSpec(protocol="history", processes=5, messages=300, seed=3),
    RunSpec(protocol="matrix", processes=4, messages=300, seed=4, workload="groups:size=3"),
    RunSpec(protocol="fifo", processes=6, messages=300, seed=5, network="uniform:1ms,90ms"),
    RunSpec(protocol="optimal", processes=4, messages=200, seed=6, faults="loss:5%"),
    RunSpec(protocol="permit", processes=4, messages=200, seed=7),
]


def test_a_simulated_run_has_the_figures_of_its_summary(spark, tmp_path):
    summaries = {}
    for number, spec in enumerate(SPECS):
        simulation = spec.build()
        with TraceWriter(tmp_path, simulation.info(str(number))) as writer:
            simulation.record(writer.append)
            summaries[str(number)] = spec, simulation.finish()
    measures = measure(Trace.read(spark, tmp_path))
    for row in measures.runs.collect():
        spec, summary = summaries[row["run"]]
        assert (row["sends"], row["deliveries"]) == (summary.sent, summary.delivered)
        assert row["control_packets"] == summary.control_packets
        spreads = {"delay_ns": summary.delay_ns}
        if not summary.unsent:  # A trace does not tell when a message left its sender.
            spreads["wait_ns"] = summary.waiting_ns
            assert row["wait_share"] == pytest.approx(summary.waiting_share)
        if spec.workload == "uniform" and not summary.unsent:  # A send has one stamp, each copy its own.
            spreads |= {"stamp_entries": summary.stamp_entries, "stamp_bytes": summary.stamp_bytes}
        for quantity, spread in spreads.items():
            found = [row[f"{quantity}_{name}"] for name in ("p50", "p99", "max")]
            assert found == [spread.p50, spread.p99, spread.max], (spec, quantity)
            assert row[f"{quantity}_mean"] == pytest.approx(spread.mean)
    measures.release()


# All runs together


def test_overall_is_what_one_run_of_all_values_would_give(spark, tmp_path):
    runs = some_runs(1300, 8, events=50)
    measures = measure(Trace.read(spark, written(tmp_path, runs)))
    found = {row["protocol"]: row for row in measures.overall.collect()}
    for letter in "ab":
        parts = [Expected(*value) for run, value in runs.items() if run[0] == letter]
        delays = [delay for part in parts for values in part.delays.values() for delay in values]
        row = found[f"made up {letter}"]
        assert row["runs"] == 4
        assert row["events"] == sum(len(part.rows) for part in parts)
        assert row["delay_ns_mean"] == pytest.approx(sum(delays) / len(delays))
        assert row["delay_ns_max"] == max(delays)
        exact = sorted(delays)[max(-(-len(delays) // 2), 1) - 1]
        assert abs(row["delay_ns_p50"] - exact) <= exact / 128
    summed = measures.histograms.groupBy("quantity").agg({"count": "sum"})
    counts = {row["quantity"]: row["sum(count)"] for row in summed.collect()}
    assert counts["delay_ns"] == sum(len(v) for r in runs.values() for v in Expected(*r).delays.values())
    measures.release()


# What cannot be measured


@pytest.mark.parametrize("ordered", [True, False])
def test_runs_that_cannot_be_measured_are_refused_by_name_and_the_others_are_measured(
    spark, tmp_path, ordered
):
    """A run that lacks an event, one that sends a message twice, and one with a damaged page."""
    names, rows = make_trace(3, processes=3, events=60, faults=False)
    gone = next(i for i, row in enumerate(rows) if row["index"] == 2)
    runs = {
        "good": make_trace(4),
        "bad": (names, rows[:gone] + rows[gone + 1 :]),
        "twice": (["a", "b"], second_send()),
        "torn": make_trace(5),
    }
    trace = written(tmp_path, runs, shuffled=None if ordered else 1)
    # Where rows are in order, a page that nothing needs that follows clocks.
    damage(trace / "events" / "00000-torn.parquet", "time_ns" if ordered else "number")
    measures = measure(Trace.read(spark, trace))
    refused = {run: str(why) for run, why in measures.refused.items()}
    assert refused.keys() == {"bad", "twice", "torn"}
    assert re.search(r"run bad, process p\d: index 3 comes after index 1", refused["bad"])
    assert "message 1 of a is sent a second time" in refused["twice"]
    assert "00000-torn.parquet" in refused["torn"]
    check(measures, {"good": runs["good"]})
    assert [row["protocol"] for row in measures.overall.collect()] == ["made up g"]
    measures.release()


def second_send():
    """A message that is sent again, long after its last copy was delivered, when the scan has forgotten it."""
    blank = dict.fromkeys(EVENTS.names) | {"control": False, "sender": "a", "time_ns": 0}
    rows: list[dict] = []
    for clock, (process, kind, number) in enumerate(
        [("a", "send", 1), ("b", "deliver", 1), ("a", "send", 2), ("b", "deliver", 2), ("a", "send", 1)]
    ):
        index = sum(row["process"] == process for row in rows)
        row = {"process": process, "kind": kind, "number": number, "index": index, "clock": clock}
        rows.append({**blank, **row, "to": ["b"] if kind == "send" else None})
    return rows


def damage(path, name):
    """Overwrite the beginning of a column's first page."""
    column = pq.ParquetFile(path).metadata.row_group(0).column(EVENTS.names.index(name))
    assert column.path_in_schema == name
    data = bytearray(path.read_bytes())
    at = column.dictionary_page_offset or column.data_page_offset
    data[at : at + 8] = b"\xff" * 8
    path.write_bytes(data)


def test_an_empty_table_of_events(spark):
    measures = measure(
        Trace.of(spark.createDataFrame([], SPARK_EVENTS), spark.createDataFrame([], SPARK_RUNS))
    )
    assert measures.runs.count() == measures.overall.count() == 0


def test_a_run_that_the_table_of_runs_does_not_name_is_refused(spark, tmp_path):
    runs = {name: make_trace(seed, processes=3, events=40) for name, seed in (("a", 21), ("b", 22))}
    read = Trace.read(spark, written(tmp_path, runs))
    measures = measure(Trace.of(read.events, read.runs.where("run = 'a'")))
    assert re.search("run b, which the table of runs does not name", str(measures.refused["b"]))
    check(measures, {"a": runs["a"]})
    measures.release()


def test_a_run_of_which_nothing_is_known_but_a_send(spark, tmp_path):
    with TraceWriter(tmp_path, RunInfo(run="r", protocol="fifo", processes=("a", "b"))) as writer:
        writer.append(0, 0, 0, 1, (1,), clock=0)
    measures = measure(Trace.read(spark, tmp_path))
    assert [(row.sends, row.deliveries, row.delay_ns_mean) for row in measures.runs.collect()] == [
        (1, 0, None)
    ]
    assert {(row.process, row.sends) for row in measures.processes.collect()} == {("a", 1), ("b", 0)}
    assert [(row.sender, row.messages, row.deliveries) for row in measures.channels.collect()] == [
        ("a", 1, 0)
    ]
    assert measures.histograms.collect() == []


@pytest.mark.parametrize("shuffled", [None, 3], ids=["here", "by Spark"])
def test_a_run_without_times_has_no_delays(spark, tmp_path, shuffled):
    """Copies and deliveries are counted all the same, and a run beside it keeps its delays."""
    runs = {name: make_trace(seed, receives=True) for name, seed in (("at", 31), ("no", 32))}
    runs["no"] = runs["no"][0], [{**row, "time_ns": 7} for row in runs["no"][1]]
    measures = measure(Trace.read(spark, written(tmp_path, runs, shuffled=shuffled)))
    check(measures, runs)
    quantities = {(row["run"], row["quantity"]) for row in measures.histograms.collect()}
    assert {quantity for run, quantity in quantities if run == "no"} == {"stamp_entries", "stamp_bytes"}
    assert ("at", "delay_ns") in quantities
    overall = {row["protocol"]: row for row in measures.overall.collect()}
    assert overall["made up n"]["delay_ns_mean"] is overall["made up n"]["duration_ns"] is None
    assert overall["made up n"]["deliveries"] > 0
    measures.release()


# Values that a distribution may have

EDGES = [0, 1, 127, 128, 129, 10**6, 10**18, 2**62 - 1, 2**62, 2**63 - 1, -1, -128, -(10**12), -(2**62)]


def test_a_value_lies_in_its_bucket_and_its_bucket_is_the_simulators():
    values = [*EDGES, *range(1000), *(2**p + d for p in range(7, 63) for d in (-1, 0, 1))]
    columns = [column.tolist() for column in bound(np.array(values))]
    for value, least, next_, mid in zip(values, *columns, strict=True):
        assert least <= value < next_ or next_ == 2**63 - 1 == value, value
        assert abs(mid - value) <= ERROR * abs(value), value
        if 0 <= value < 2**50:  # Above, the simulator's logarithm rounds.
            assert mid == sim_summary._middle(sim_summary._bucket(np.int64(value))), value


def test_delays_below_zero_and_a_sum_that_64_bits_cannot_hold(spark, tmp_path):
    """Clocks of machines that disagree; delays of a century each."""
    first = dict.fromkeys(EVENTS.names) | {"control": False, "sender": "p0"}
    century = 3_155_760_000 * 10**9

    def sent_and_delivered(count, sent_ns, delivered_ns):
        sends = [{"process": "p0", "kind": "send", "to": ["p1"], "time_ns": sent_ns}] * count
        deliveries = [{"process": "p1", "kind": "deliver", "time_ns": delivered_ns}] * count
        return [
            {**first, **row, "number": i % count, "index": i % count, "clock": i}
            for i, row in enumerate(sends + deliveries)
        ]

    cases = {"below": sent_and_delivered(1, 10**9, 0), "long": sent_and_delivered(4, 0, century)}
    runs = {name: (["p0", "p1"], rows) for name, rows in cases.items()}
    measures = measure(Trace.read(spark, written(tmp_path, runs)))
    found = {row["run"]: (row["delay_ns_mean"], row["delay_ns_max"]) for row in measures.runs.collect()}
    assert found == {"below": (-(10**9), -(10**9)), "long": (century, century)}
    [cell] = measures.histograms.where("quantity = 'delay_ns' and run = 'below'").collect()
    assert cell["low"] <= -(10**9) < cell["high"]
    measures.release()


SCRIPT = """
import sys
from antecede.spark import Trace
from antecede.spark.measure.api import measure
measures = measure(Trace.read(spark, sys.argv[1]))
print(sorted((row["run"], row["sends"], row["longest_chain"]) for row in measures.runs.collect()))
"""


@pytest.mark.parametrize("where", ["on_cluster", "on_connect"])
def test_separate_workers_and_spark_connect_find_the_same(request, tmp_path, where):
    runs = some_runs(1500, 3, events=40)
    trace = written(tmp_path, runs)
    told = request.getfixturevalue(where)(SCRIPT, trace)
    expected = {run: Expected(*value).run() for run, value in sorted(runs.items())}
    wanted = [(run, figures["sends"], figures["longest_chain"]) for run, figures in expected.items()]
    assert told.strip() == str(wanted)
