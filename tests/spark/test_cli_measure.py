"""`antecede measure` and `antecede sweep` as a user calls them: a sweep in a process and with a Spark of its own."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from antecede.sim.sweep import read
from antecede.trace import read_runs
from tests.spark.random_traces import make_trace
from tests.spark.test_measure import written

COMMAND = [sys.executable, "-c", "from antecede.cli import main; main()"]

EXPERIMENT = """
[grid]
protocol = ["fifo", "matrix"]
processes = 4
messages = 200
"""


def command(*words):
    return subprocess.run(
        [*COMMAND, *map(str, words)], capture_output=True, text=True, timeout=300, check=False
    )


def test_a_sweep_is_made_and_measured(tmp_path, warm):
    experiment, out = tmp_path / "e.toml", tmp_path / "out"
    experiment.write_text(EXPERIMENT)
    done = command("sweep", experiment, "--out", out, "--json", "--jobs", 2)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["made"] == 2
    assert "2 of 2 runs" in done.stderr
    done = warm("measure", out, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    results = {row.run: row.summary for row in read(out)}
    assert {row["run"] for row in told["runs"]} == results.keys()
    for row in told["runs"]:
        assert (row["sends"], row["delay_ns_p99"]) == (200, results[row["run"]].delay_ns.p99)
    assert [row["protocol"] for row in told["overall"]] == ["fifo", "matrix"]
    assert pq.read_table(out / "measures" / "processes").num_rows == 8
    rows = list(csv.DictReader(io.StringIO(warm("measure", out, "--csv").stdout)))
    assert [(row["run"], row["delay_ns_p99"]) for row in rows] == [
        (row["run"], str(row["delay_ns_p99"])) for row in told["runs"]
    ]


def test_a_run_that_contradicts_itself_is_refused_and_the_others_are_measured(tmp_path, warm):
    names, rows = make_trace(3, processes=3, events=60, faults=False)
    written(tmp_path, {"bad": (names, rows[1:]), "good": make_trace(4)})
    done = warm("measure", tmp_path, "--json")
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert [row["run"] for row in told["runs"]] == ["good"]
    [refused] = told["refused"]
    assert refused["run"] == "bad"
    assert done.stderr.strip() == f"antecede: not measured: {refused['reason']}"


def test_what_is_no_trace_is_refused_in_one_line(tmp_path, warm):
    done = warm("measure", tmp_path, "--json")
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert "there is no trace here" in line


def test_ctrl_c_keeps_what_is_done_leaves_nobody_at_work_and_says_how_to_go_on(tmp_path):
    experiment, out = tmp_path / "e.toml", tmp_path / "out"
    experiment.write_text('[grid]\nprotocol = "fifo"\nmessages = [50, 100_000_000]\n')
    words = [*COMMAND, "sweep", str(experiment), "--out", str(out), "--jobs", "2"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            until(lambda: process.poll() is not None or list(out.glob(".runs/*.json")), 200)
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=100)
        except BaseException:
            os.killpg(
                process.pid, signal.SIGKILL
            )  # Else we would wait for it, for as long as the long run takes.
            raise
    assert process.returncode == 130
    told_last = f"what is done is in {out}; the same command goes on from there", "antecede: stopped"
    assert told == "".join(f"{line}\n" for line in told_last), "Py4J's tracebacks go to the log"
    until(lambda: not alive(process.pid), 60)
    assert [run.run for run in read_runs(out / "trace")] == [row.run for row in read(out)]
    assert len(read(out)) == 1
    experiment.write_text('[grid]\nprotocol = "fifo"\nmessages = [50, 60]\n')
    done = command("sweep", experiment, "--out", out, "--local", "--jobs", 1)
    assert done.returncode == 0, done.stderr
    assert "2 of 2 runs, 1 of them before" in done.stderr
    assert [path.name for path in out.iterdir() if path.name.startswith(".")] == []


@pytest.mark.skipif(sys.platform != "linux", reason="looks for Java as Linux lists processes")
def test_ctrl_c_while_java_starts_leaves_no_java(tmp_path):
    written(tmp_path / "trace", {"r": make_trace(4)})
    words = [*COMMAND, "measure", str(tmp_path / "trace")]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        until(lambda: children.read_text(), 100)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=100)
    assert (process.returncode, told) == (130, "antecede: stopped\n")
    until(lambda: not alive(process.pid), 60)


def until(holds, seconds):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def alive(group):
    """Whether a process of this group is there."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
