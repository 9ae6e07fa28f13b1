"""Sweeps on Spark: the same results as the plain runner, whatever happens to single runs, tasks and processes."""

import importlib
import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest

from antecede.errors import BadParameter, InputError
from antecede.oracle import check
from antecede.sim.experiment import Experiment, expand
from antecede.sim.sweep import perform, read
from antecede.sim.sweep import sweep as sweep_here
from antecede.spark.sweep import estimate_cost, sweep
from antecede.trace import events_of, read_runs
from antecede.trace.footers import read_local_trace

SMALL = {"grid": {"protocol": ["fifo", "history"], "processes": 4, "messages": 60, "seeds": 2}}


@pytest.fixture
def small():
    return expand(SMALL, "small")


def figures(out):
    """All but the time it took."""
    return [{**row.plain(), "cpu_seconds": 0} for row in read(out)]


def runs_of(out):
    return {run.run for run in read_runs(Path(out) / "trace")}


def list_hidden(out):
    return [path.name for path in Path(out).iterdir() if path.name.startswith(".")]


def test_a_sweep_writes_what_the_plain_runner_writes(spark, small, tmp_path):
    swept = sweep(spark, small, tmp_path / "a")
    sweep_here(small, tmp_path / "b", jobs=1, traces=True)
    assert (swept.made, swept.runs, swept.failures) == (4, 4, ())
    assert figures(tmp_path / "a") == figures(tmp_path / "b")
    for file in read_local_trace(tmp_path / "b" / "trace").files:
        own = Path(file.path.removeprefix("file:"))
        assert (tmp_path / "a" / "trace" / "events" / own.name).read_bytes() == own.read_bytes()
        assert file.ordered
    assert read_runs(tmp_path / "a" / "trace") == read_runs(tmp_path / "b" / "trace")
    assert list_hidden(tmp_path / "a") == list_hidden(tmp_path / "b") == []


def test_results_are_a_table_with_types(spark, small, tmp_path):
    table = sweep(spark, small, tmp_path / "out", traces=False).results
    rows = {row["run"]: row for row in table.collect()}
    for row in read(tmp_path / "out"):
        found = rows[row.run]
        assert (found["sent"], found["seed"], found["case"]) == (row.summary.sent, row.spec.seed, row.case)
        assert found["delay_ns"]["p99"] == row.summary.delay_ns.p99
        assert found["cpu_seconds"] == row.cpu_seconds
    lines = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    assert set(json.loads(lines[0])) == set(table.columns)
    assert not (tmp_path / "out" / "trace").exists()


@pytest.mark.parametrize("first", ["spark", "here"])
def test_either_runner_continues_what_the_other_began(spark, small, tmp_path, first):
    half = Experiment("half", "", small.runs[:2])
    made: list[str] = []
    if first == "spark":
        sweep(spark, half, tmp_path)
        sweep_here(small, tmp_path, jobs=1, traces=True, note=lambda result: made.append(result.run))
        assert made == [run.key for run in small.runs[2:]]
    else:
        sweep_here(half, tmp_path, jobs=1, traces=True)
        assert sweep(spark, small, tmp_path).made == 2
    assert [row.run for row in read(tmp_path)] == [run.key for run in small.runs]
    assert runs_of(tmp_path) == {run.key for run in small.runs}


def test_a_run_that_left_no_trace_is_made_again_when_traces_are_wanted(spark, small, tmp_path):
    sweep(spark, small, tmp_path, traces=False)
    assert sweep(spark, small, tmp_path, traces=False).made == 0
    assert sweep(spark, small, tmp_path, traces=True).made == 4
    assert runs_of(tmp_path) == {run.key for run in small.runs}


# Raynal & Schiper 1989, figure 1: p3 takes first what it may take only second.
DEADLOCK = (
    "p1: send x to p3; send y to p2\np2: receive y; send z to p3\np3: receive from p2; receive from p1\n"
)


def test_a_run_that_fails_is_told_with_its_seed_and_loses_no_other(spark, tmp_path):
    script, out = tmp_path / "script.txt", tmp_path / "out"
    script.write_text(DEADLOCK)
    grid = {"protocol": "matrix", "messages": 9, "workload": ["uniform", f"script:{script}"], "seeds": 2}
    experiment = expand({"grid": grid}, "t")
    swept = sweep(spark, experiment, out)
    assert [failure.seed for failure in swept.failures] == [0, 1]
    assert swept.failures[1].command == experiment.runs[3].spec.command()
    assert "stuck: 2 copies were never delivered" in swept.failures[0].reason
    assert [row.run for row in read(out)] == [run.key for run in experiment.runs[:2]]
    failures = [json.loads(line) for line in (out / "failures.jsonl").read_text().splitlines()]
    assert [failure["run"] for failure in failures] == [run.key for run in experiment.runs[2:]]
    # The same call again repeats what failed, and nothing else.
    script.write_text(
        DEADLOCK.replace("receive from p2; receive from p1", "receive from p1; receive from p2")
    )
    again = sweep(spark, experiment, out)
    assert (again.made, again.failures) == (2, ())
    assert not (out / "failures.jsonl").exists()
    assert len(read(out)) == 4


def test_a_run_that_takes_its_process_down_costs_only_itself(spark, small, tmp_path):
    guilty = small.runs[2].key

    def fatal(run, trace):
        if run.key == guilty:
            os.kill(os.getpid(), signal.SIGKILL)
        return perform(run, trace)

    swept = sweep(spark, small, tmp_path, perform=fatal)
    [failure] = swept.failures
    assert failure.run == guilty
    assert failure.reason.startswith("its task ended without an answer (out of memory?): ")
    assert {row.run for row in read(tmp_path)} == {run.key for run in small.runs} - {guilty}
    assert runs_of(tmp_path) == {run.key for run in small.runs} - {guilty}
    assert list_hidden(tmp_path) == []


def test_what_a_killed_sweep_has_made_is_kept(spark, small, tmp_path):
    """The driver died before it could gather: its tasks had put two runs aside, and half of a third."""
    from pyarrow.fs import LocalFileSystem

    from antecede.sim.staging import Stage
    from antecede.sim.sweep import line

    def made(run, trace):
        return line(perform(run, trace)), False

    stage = Stage(LocalFileSystem(), str(tmp_path))
    stage.begin()
    for run in small.runs[:2]:
        stage.make(run.key, True, partial(made, run))
    third = small.runs[2].key
    stage.write(b"", ".runs", f"{third}.started")
    (tmp_path / ".runs" / f"{third}.deadbeef" / "events").mkdir(parents=True)
    (tmp_path / ".runs" / f"{third}.deadbeef" / "events" / f".00000-{third}.parquet.part").write_bytes(
        b"PAR1"
    )
    assert sweep(spark, small, tmp_path).made == 2
    assert runs_of(tmp_path) == {run.key for run in small.runs}
    assert list_hidden(tmp_path) == []


def test_ctrl_c_keeps_what_is_done_and_the_same_call_goes_on(spark, small, tmp_path, monkeypatch):
    # The package has a function of the same name.
    module = importlib.import_module("antecede.spark.sweep")
    kept = module.run_job

    def stopped(session, runs, root, traces, perform, results):
        """A job of which half is done when somebody presses Ctrl-C."""
        kept(session, runs[:2], root, traces, perform, results)
        results.gather()
        results.save()
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "run_job", stopped)
    with pytest.raises(KeyboardInterrupt):
        sweep(spark, small, tmp_path)
    monkeypatch.undo()
    assert len(read(tmp_path)) == 2
    assert runs_of(tmp_path) == {row.run for row in read(tmp_path)}
    assert sweep(spark, small, tmp_path).made == 2
    assert runs_of(tmp_path) == {run.key for run in small.runs}


def test_results_of_another_experiment_are_not_mixed_in(spark, small, tmp_path):
    sweep(spark, Experiment("one", "", small.runs[:1]), tmp_path, traces=False)
    with pytest.raises(InputError, match="is not one of other"):
        sweep(spark, Experiment("other", "", small.runs[1:]), tmp_path)


def test_storage_that_cannot_be_written_to_is_refused_before_anything_is_made(spark, small):
    with pytest.raises(BadParameter, match="a path or a URI that PyArrow can write to"):
        sweep(spark, small, "nowhere://bucket/out")


def test_the_longest_runs_come_first(small):
    runs = expand({"grid": {"protocol": "fifo", "messages": [10, 1000, 100], "processes": [4, 2]}}, "t").runs
    order = [(r.spec.messages, r.spec.processes) for r in sorted(runs, key=estimate_cost, reverse=True)]
    assert order[0] == (1000, 4)
    assert order[-1] == (10, 2)


SCRIPT = """
import sys
from antecede.sim.experiment import expand
from antecede.spark.sweep import sweep
swept = sweep(spark, expand({"grid": {"protocol": ["fifo", "history"], "processes": 4, "messages": 60, "seeds": 2}}, "small"), sys.argv[1])
print(swept.made, swept.results.count())
"""  # noqa: E501


@pytest.mark.parametrize("where", ["on_cluster", "on_connect"])
def test_separate_workers_and_spark_connect_write_the_same(request, small, tmp_path, where):
    assert request.getfixturevalue(where)(SCRIPT, tmp_path / "a").split() == ["4", "4"]
    sweep_here(small, tmp_path / "b", jobs=1, traces=True)
    assert figures(tmp_path / "a") == figures(tmp_path / "b")
    for run in small.runs:
        events = events_of(tmp_path / "a" / "trace", run.key)
        assert events == events_of(tmp_path / "b" / "trace", run.key)
        assert run.spec.protocol == "fifo" or check(events).ok
