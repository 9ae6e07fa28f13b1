"""Verification in this process: plans, parts, questions and answers give what the oracle says. No Spark, no Java.

Spark runs the same tasks in the same rounds; `test_verify.py` compares the two.
"""

import subprocess
import sys

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import antecede
from antecede.errors import BadParameter, BadTrace
from antecede.trace.footers import read_local_trace
from antecede.trace.layout import Layout
from antecede.verification.embedded import Embedded, Verification, verify, verify_local
from tests.spark import planted

RUNS = [planted.run_of(seed) for seed in range(30)] + [
    planted.run_of(seed, processes=n, events=n * 12) for seed, n in ((100, 2), (101, 20))
]


def wrong(found, runs):
    """What the oracle says otherwise."""
    lines = []
    verdicts = {row["run"]: row for row in found.runs.to_pylist()}
    findings = found.findings.to_pylist()
    assert verdicts.keys() == {name for name, _, _ in runs}
    for run in runs:
        own = [f for f in findings if f["run"] == run[0]]
        lines += planted.differences(run, verdicts[run[0]], own)
    return lines


@pytest.mark.parametrize("parts", [None, 2, 9])
@pytest.mark.parametrize(
    ("how", "ways"),
    [
        ({"files": 3}, {"sequence"}),
        ({"by_process": True}, {"sequence", "merge", "pack"}),
        ({"shuffled": True, "files": 3}, {"merge", "pack"}),
    ],
    ids=["in order", "a file for each process", "shuffled"],
)
def test_every_shape_of_a_trace_gives_what_the_oracle_finds(tmp_path, how, ways, parts):
    trace = read_local_trace(planted.write(tmp_path / "trace", RUNS, group=5, **how))
    assert set(Embedded(trace, parts).plan.ways.values()) <= ways
    assert wrong(verify_local(trace, parts), RUNS) == []


@pytest.mark.parametrize("parts", [None, 2])
def test_files_that_runs_share_and_events_without_clocks(tmp_path, parts):
    shared, untimed = RUNS[:6], RUNS[6:12]
    root = planted.write(tmp_path / "trace", [*shared, *untimed])
    for path in (root / "events").iterdir():
        path.unlink()
    rows = [row for _, _, own in shared for row in own]
    rows += [{**row, "clock": None} for _, _, own in untimed for row in own]
    rows.sort(key=lambda row: (row["number"], row["process"], row["index"]))
    planted.write_file(Layout(root).file("all", 0), rows, order=None)
    assert wrong(verify_local(read_local_trace(root), parts), [*shared, *untimed]) == []


def test_the_result_is_typed_sorted_and_written_whole(tmp_path):
    root = planted.write(tmp_path / "trace", RUNS)
    found = antecede.verify(root)
    assert found.verdict == "no"
    assert found.runs["run"].to_pylist() == sorted(name for name, _, _ in RUNS)
    assert found.findings.num_rows == sum(
        sum(planted.find_by_oracle(names, rows)[1].values()) for _, names, rows in RUNS
    )
    keys = found.findings.select(["run", "kind", "process"]).to_pylist()
    assert keys == sorted(keys, key=lambda row: tuple(row.values()))
    found.write(tmp_path / "out")
    assert pq.read_table(tmp_path / "out" / "findings") == found.findings
    assert pq.read_table(tmp_path / "out" / "verdicts") == found.runs
    with pytest.raises(BadParameter, match="findings is there already"):
        found.write(tmp_path / "out")
    (tmp_path / "half" / "verdicts").mkdir(parents=True)
    with pytest.raises(BadParameter, match="verdicts is there already"):
        found.write(tmp_path / "half")
    assert [path.name for path in (tmp_path / "half").iterdir()] == ["verdicts"]


def test_a_directory_of_results_stands_for_its_trace(tmp_path):
    planted.write(tmp_path / "results" / "trace", RUNS[:3])
    assert wrong(verify(tmp_path / "results"), RUNS[:3]) == []


def test_compiled_and_interpreted_kernels_give_the_same(tmp_path, monkeypatch):
    trace = read_local_trace(planted.write(tmp_path / "trace", RUNS))
    plain = verify_local(trace, 3)
    monkeypatch.setattr("antecede.jit.INTERPRETED_MOST", 0)
    compiled = verify_local(trace, 3)
    assert "plain Python" in plain.plan
    assert "compiled by Numba" in compiled.plan
    assert plain.findings == compiled.findings
    assert plain.runs == compiled.runs


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads as Linux lists them")
def test_no_thread_of_arrow_is_at_work_when_python_ends(tmp_path):
    """Such a thread can abort a process that ends: an abort in 246 runs of `antecede verify`."""
    root = planted.write(tmp_path / "trace", RUNS)
    script = """
import glob, sys
import pyarrow as pa
import pyarrow.parquet as pq
import antecede

pa.set_io_thread_count(1)

def count():
    # The one of the allocator begins when it likes.
    return sum("jemalloc" not in open(task).read() for task in glob.glob("/proc/self/task/*/comm"))

list(pq.ParquetFile(f"{sys.argv[1]}/runs.parquet").iter_batches(use_threads=False))
before = count()
antecede.verify(sys.argv[1])
print(count() - before)
"""
    done = subprocess.run([sys.executable, "-c", script, root], capture_output=True, text=True, timeout=120)
    assert done.stdout == "0\n", done.stderr


def test_a_small_trace_needs_neither_spark_nor_numba(tmp_path):
    root = planted.write(tmp_path / "trace", RUNS)
    script = """
import sys
import antecede
print(antecede.verify(sys.argv[1]).verdict)
assert not {"numba", "pyspark", "networkx", "typer", "rich"} & sys.modules.keys()
"""
    done = subprocess.run([sys.executable, "-c", script, root], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("no\n", "")


# What is wrong with the rows


def broken(change):
    """A run of two processes that is fine but for one change."""

    def event(process, index, kind, number, clock, **more):
        return {
            "run": "r", "process": process, "index": index, "kind": kind, "sender": "p0", "number": number,
            "to": None, "control": False, "time_ns": 0, "clock": clock, **more,
        }  # fmt: skip

    rows = []
    for i in range(4):
        rows.append(event("p0", i, "send", i + 1, 2 * i, to=["p1"]))
        rows.append(event("p1", i, "deliver", i + 1, 2 * i + 1))
    change(rows)
    return ("r", ["p0", "p1"], rows)


def set_field(row, **fields):
    return lambda rows: rows[row].update(fields)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (set_field(3, index=2), "run r, process p1: index 2 comes after index "),
        (set_field(0, index=1), "run r, process p0: index 1 comes "),
        (
            set_field(5, clock=3),
            "clock 3, index 2, stands after clock 4 of p0, index 2; the file says that its rows are sorted",
        ),
        (set_field(5, process="p7"), "run r: process p7 is not one of the run's processes"),
        (set_field(5, sender="p7"), "run r: sender p7 is not one of the run's processes"),
        (set_field(4, to=["p7"]), "run r: destination p7 is not one of the run's processes"),
        (set_field(5, kind="lost"), "run r: kind lost is not one of send, receive, deliver"),
        (
            set_field(4, sender="p1"),
            "process p0, index 2: message 3 of p1 is sent by another process than its sender",
        ),
        (
            set_field(1, number=4),
            "index 0: message 4 of p0 is delivered before it is sent, by its clocks",
        ),
    ],
)
def test_rows_that_cannot_be_a_run_are_refused_in_one_line(tmp_path, change, told, parts):
    trace = read_local_trace(planted.write(tmp_path / "trace", [broken(change)], group=2))
    with pytest.raises(BadTrace) as caught:
        verify_local(trace, parts)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("parts", [None, 3])
@pytest.mark.parametrize("shuffled", [False, True])
def test_one_bad_run_does_not_keep_the_others_from_being_judged(tmp_path, parts, shuffled):
    name, names, rows = broken(set_field(5, sender="p7"))
    root = planted.write(tmp_path / "trace", [(name, names, rows), *RUNS[:8]], group=2, shuffled=shuffled)
    found = verify_local(read_local_trace(root), parts)
    assert list(found.refused) == ["r"]
    bad = {**found.runs.filter(pc.field("run") == "r").to_pylist()[0]}
    assert (bad["verdict"], bad["deliveries"]) == ("unknown", 0)
    assert "sender p7 is not one of the run's processes" in bad["reason"]
    assert "r" not in found.findings["run"].to_pylist()
    rest = found.runs.filter(pc.field("run") != "r")
    assert wrong(Verification("no", rest, found.findings, "", {}), RUNS[:8]) == []


def test_a_bad_run_in_a_file_that_others_share_does_not_keep_them_from_being_judged(tmp_path):
    bad = broken(set_field(5, kind="lost"))
    runs = [bad, *RUNS[:4]]
    root = planted.write(tmp_path / "trace", runs)
    for path in (root / "events").iterdir():
        path.unlink()
    planted.write_file(Layout(root).file("all", 0), [row for _, _, own in runs for row in own], order=None)
    found = verify(root)
    assert [*found.refused] == ["r"]
    rest = found.runs.filter(pc.field("run") != "r")
    assert wrong(Verification("no", rest, found.findings, "", {}), RUNS[:4]) == []


@pytest.mark.parametrize("parts", [None, 3])
def test_a_number_that_is_used_again_later_is_refused(tmp_path, parts):
    trace = read_local_trace(planted.write(tmp_path / "trace", [broken(set_field(6, number=1))], group=2))
    with pytest.raises(BadTrace, match=r"run r, process p0, index 3: message 1 of p0 is sent a second time"):
        verify_local(trace, parts)


def test_files_that_share_a_clock_out_of_order_are_merged(tmp_path):
    run = broken(lambda rows: None)
    rows = run[2]
    for row in rows:
        row["clock"] = {"p0": 2 * row["index"], "p1": 2 * row["index"] + 2}[row["process"]]
    rows.sort(key=lambda row: (row["clock"], row["process"], row["index"]))
    root = planted.write(tmp_path / "trace", [run])
    for path in (root / "events").iterdir():
        path.unlink()
    # At clock 4, p1's row is in the first file and p0's in the second.
    edge = [row["clock"] for row in rows].index(4)
    first, second = [*rows[:edge], rows[edge + 1]], [rows[edge], *rows[edge + 2 :]]
    planted.write_file(root / "events" / "00000-r.parquet", first, run="r")
    planted.write_file(root / "events" / "00001-r.parquet", second, run="r")
    found = verify(root)
    assert "merge: 1 run (r)" in found.plan
    assert wrong(found, [run]) == []


def test_a_run_without_clocks_whose_messages_go_in_a_circle_is_refused(tmp_path):
    def event(process, index, kind, sender):
        to = ["a" if process == "b" else "b"] if kind == "send" else None
        return {
            "run": "r", "process": process, "index": index, "kind": kind, "sender": sender, "number": 1, "to": to,
            "control": False, "time_ns": 0, "clock": None,
        }  # fmt: skip

    rows = [event(p, 0, "deliver", q) for p, q in ("ab", "ba")] + [event(p, 1, "send", p) for p in "ab"]
    root = planted.write(tmp_path / "trace", [("r", ["a", "b"], rows)], shuffled=True)
    with pytest.raises(BadTrace, match=r"a cycle: a delivers b.1 at index 0, b delivers a.1 at index 0"):
        verify(root)
