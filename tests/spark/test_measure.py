"""Measuring traces on Spark: files in order, rows in none, any number of runs, and what the simulator says of them."""

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from antecede.errors import BadTrace
from antecede.sim import RunSpec
from antecede.spark import SPARK_EVENTS, SPARK_RUNS, Trace
from antecede.spark.measure import tasks as shares
from antecede.spark.measure.api import measure
from antecede.trace import EVENTS, RUNS, RunInfo, TraceWriter
from tests.spark.random_traces import made_up
from tests.spark.test_measure_kernel import Expected, close


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
        close(known(found[run]), figures)
        for row in expected.processes():
            close(known(processes.pop((run, row["process"]))), {**row, "run": run})
        for row in expected.channels():
            close(known(channels.pop((run, row["sender"], row["receiver"]))), {**row, "run": run})
    assert not processes
    assert not channels


def known(row):
    return {key: value for key, value in row.items() if value is not None}


def some_runs(first, count, **more):
    return {f"{'ab'[i % 2]}{i}": made_up(first + i, **more) for i in range(count)}


@pytest.mark.parametrize(("files", "shuffled"), [(1, None), (3, None), (3, 7)])
def test_many_runs_in_files_of_any_kind(spark, tmp_path, files, shuffled):
    runs = {**some_runs(1000, 9), "c": (["x", "y"], [])}
    measures = measure(Trace.read(spark, written(tmp_path, runs, files, shuffled)))
    check(measures, runs)
    measures.release()


def test_any_dataframe_will_do(spark, tmp_path):
    runs = some_runs(1100, 5, events=40)
    read = Trace.read(spark, written(tmp_path, runs, 2))
    table = Trace.of(read.events.repartition(3), read.runs)
    measures = measure(table)
    check(measures, runs)
    measures.release()


def test_a_long_run_is_shared_by_several_tasks(spark, tmp_path, monkeypatch):
    """One that counts, and one for each block of clocks; short runs share another."""
    monkeypatch.setattr(shares, "LONG", 100)
    monkeypatch.setattr(shares, "BLOCK", 2)
    runs = {"a-long": made_up(7, processes=5, events=300), **some_runs(1200, 3, events=20)}
    read = Trace.read(spark, written(tmp_path, runs, 2))
    measures = measure(read)
    check(measures, runs)
    rows = {run: len(events) for run, (_, events) in runs.items()}
    tasks = shares.shared(
        {run: tuple(names) for run, (names, _) in runs.items()}, dict.fromkeys(runs, ()), rows
    )
    assert [[(s.run, s.low, s.high, s.counting) for s in task] for task in tasks[:4]] == [
        [("a-long", 0, 0, True)],
        [("a-long", 0, 1, False)],
        [("a-long", 1, 3, False)],
        [("a-long", 3, 5, False)],
    ]
    assert len(tasks) == 5
    measures.release()


def test_rows_that_a_task_cannot_hold_go_to_a_file(monkeypatch):
    monkeypatch.setattr(shares, "HELD", 10)
    names, rows = made_up(11, processes=4, events=300)
    batches = pa.Table.from_pylist(rows, schema=EVENTS).to_batches(7)
    found = list(shares.work_sorted(batches, {"r": tuple(names)}, "events"))
    [run] = [row for batch in found for row in batch.to_pylist() if row["kind"] == "run"]
    kept = {key: value for key, value in known(run).items() if key != "kind"}
    close(kept, Expected(names, rows).run())


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


def test_tables_are_written_whole_or_not_at_all(spark, tmp_path):
    runs = some_runs(1400, 2)
    measures = measure(Trace.read(spark, written(tmp_path / "trace", runs)))
    measures.write(tmp_path)
    for name in ("runs", "processes", "channels", "histograms"):
        table = pq.read_table(tmp_path / "measures" / name)
        assert table.num_rows == getattr(measures, name).count()
    with pytest.raises(Exception, match="which is there"):
        measures.write(tmp_path)
    measures.release()


# What cannot be measured


@pytest.mark.parametrize("ordered", [True, False])
def test_what_is_wrong_with_a_run_is_told_with_its_name(spark, tmp_path, ordered):
    names, rows = made_up(3, processes=3, events=60, faults=False)
    gone = next(i for i, row in enumerate(rows) if row["index"] == 2)
    runs = {"good": made_up(4), "bad": (names, rows[:gone] + rows[gone + 1 :])}
    trace = Trace.read(spark, written(tmp_path, runs, shuffled=None if ordered else 1))
    with pytest.raises(BadTrace, match=r"run bad, process p\d: found index 3 after index 1"):
        measure(trace)


def test_an_empty_table_of_events(spark):
    measures = measure(
        Trace.of(spark.createDataFrame([], SPARK_EVENTS), spark.createDataFrame([], SPARK_RUNS))
    )
    assert measures.runs.count() == measures.overall.count() == 0


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
