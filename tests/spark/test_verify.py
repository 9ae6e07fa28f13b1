"""Verification on Spark says what the oracle says, whatever the shape of the trace.

The tasks are compared with the oracle on many more runs without Spark (test_examine.py). Here whole traces go through
Spark, many runs in each, so that a few calls compare many.
"""

import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import antecede
from antecede.errors import BadParameter, BadTrace
from antecede.spark import SPARK_EVENTS, Trace
from antecede.spark.verify.api import verify
from antecede.trace import DELIVER, RUNS, SEND, RunInfo, TraceWriter
from antecede.trace.layout import Layout
from antecede.verification.embedded import ORDER
from antecede.verification.schema import FINDINGS
from tests.spark import planted

MADE = [planted.run_of(seed) for seed in range(30)] + [
    planted.run_of(seed, processes=n, events=n * 12) for seed, n in ((100, 2), (101, 9), (102, 20))
]


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return planted.write(tmp_path_factory.mktemp("planted") / "trace", MADE, files=2)


@pytest.mark.parametrize(("chunks", "rows"), [(None, 10**6), (5, 400)])
def test_spark_finds_what_the_oracle_finds_and_what_this_process_does(spark, trace, chunks, rows):
    found = verify(Trace.read(spark, trace), chunks=chunks, rows=rows)
    assert planted.agree(found, MADE) == []
    here = antecede.verify(trace)
    # Spark gives findings in no order.
    told = found.findings.toArrow().sort_by([(name, "ascending") for name in ORDER])
    assert told.cast(FINDINGS).equals(here.findings)
    assert found.verdicts == here.runs.to_pylist()
    assert found.runs.toArrow().sort_by("run").to_pylist() == found.verdicts
    found.release()


def test_one_bad_run_does_not_keep_the_others_from_being_judged(spark, tmp_path):
    bad = {**one_event()[0], "index": 1}
    path = planted.write(tmp_path / "trace", [("one", ["a", "b"], [bad]), *MADE[:5]])
    for how in (
        Trace.read(spark, path),
        Trace.of(Trace.read(spark, path).events, Trace.read(spark, path).runs),
    ):
        found = verify(how)
        assert list(found.refused) == ["one"]
        told = {row["run"]: row for row in found.verdicts}
        assert told.pop("one")["verdict"] == "unknown"
        findings = found.findings.toArrow().to_pylist()
        assert [
            line
            for run in MADE[:5]
            for line in planted.differences(run, told[run[0]], [f for f in findings if f["run"] == run[0]])
        ] == []
        found.release()


def test_any_table_in_any_order_is_a_trace(spark, trace):
    read = Trace.read(spark, trace)
    found = verify(Trace.of(read.events.repartition(3, "number"), read.runs), chunks=2)
    assert planted.agree(found, MADE) == []
    found.release()


def test_files_may_be_in_no_order_shared_by_runs_and_without_clocks(spark, tmp_path):
    shuffled, shared, untimed = MADE[:6], MADE[6:12], MADE[12:18]
    path = planted.write(tmp_path / "trace", [*shuffled, *shared, *untimed], shuffled=True, files=2)
    layout = Layout(path)
    for name, _, _ in [*shared, *untimed]:
        for file in layout.files(name):
            file.unlink()
    rows = [row for _, _, own in shared for row in own]
    rows += [{**row, "clock": None} for _, _, own in untimed for row in own]
    random.Random(1).shuffle(rows)
    planted.write_file(layout.file("all", 0), rows, order=None)
    found = verify(Trace.read(spark, path), chunks=2)
    assert planted.agree(found, [*shuffled, *shared, *untimed]) == []
    found.release()


def test_more_under_way_than_a_summary_holds_is_judged_by_origin(spark, tmp_path):
    run = RunInfo(run="burst", protocol="none", processes=("ann", "bob"))
    count = 20_000
    with TraceWriter(tmp_path / "trace", run, row_group=1000) as writer:
        for number in range(count):
            writer.append(0, SEND, 0, number, (1,), clock=number)
        order = [1, 0, *range(2, count)]
        for position, number in enumerate(order):
            writer.append(1, DELIVER, 0, number, clock=count + position)
    found = verify(Trace.read(spark, tmp_path / "trace"), chunks=2)
    [row] = found.runs.collect()
    assert (row.deliveries, row.violations, row.fifo_breaks, row.undelivered) == (count, 1, 1, 0)
    assert found.plan.startswith("origin: 1 run (burst)")
    found.release()


def test_a_run_says_yes_without_events_and_unknown_if_it_is(spark, tmp_path):
    path = planted.write(tmp_path / "trace", [("one", ["a", "b"], one_event()), ("none", ["a"], [])])
    infos = [
        RunInfo(run="one", protocol="x", processes=("a", "b")),
        RunInfo(run="none", protocol="x", processes=("a",)),
        RunInfo(
            run="nowhere", protocol="x", processes=("a",), parameters={"unknown": "no messages in the log"}
        ),
    ]
    pq.write_table(pa.Table.from_pylist([i.row() for i in infos], schema=RUNS), Layout(path).runs)
    found = verify(Trace.read(spark, path))
    told = {row.run: (row.verdict, row.reason, row.undelivered) for row in found.runs.collect()}
    assert told == {
        "one": ("no", "1 undelivered", 1),
        "none": ("yes", None, 0),
        "nowhere": ("unknown", "no messages in the log", 0),
    }
    found.release()


def one_event():
    return [
        {
            "run": "one", "process": "a", "index": 0, "kind": "send", "sender": "a", "number": 1, "to": ["b"],
            "control": False, "time_ns": 0, "clock": 0,
        }
    ]  # fmt: skip


def test_what_is_wrong_with_the_rows_is_said_in_one_line(spark, tmp_path):
    rows = [{**one_event()[0], "index": 1}]
    path = planted.write(tmp_path / "trace", [("one", ["a", "b"], rows)])
    with pytest.raises(
        BadTrace,
        match=r"00000-one.parquet, run one, process a: index 1 comes first; indices must count 0, 1, 2",
    ):
        verify(Trace.read(spark, path))
    rows = [{**one_event()[0], "process": "c"}]
    events = spark.createDataFrame(
        [tuple(rows[0].get(name) for name in SPARK_EVENTS.names)], schema=SPARK_EVENTS
    )
    with pytest.raises(BadTrace, match=r"events, run one: process c is not one of the run's processes"):
        verify(Trace.of(events, Trace.read(spark, path).runs))


def test_findings_and_verdicts_are_written_both_or_neither(spark, trace, tmp_path):
    found = verify(Trace.read(spark, trace))
    found.write(tmp_path / "results")
    written = spark.read.parquet(str(tmp_path / "results" / "findings"))
    assert written.count() == found.findings.count()
    assert spark.read.parquet(str(tmp_path / "results" / "verdicts")).columns == found.runs.columns
    (tmp_path / "taken" / "verdicts").mkdir(parents=True)
    with pytest.raises(BadParameter, match="verdicts is there already"):
        found.write(tmp_path / "taken")
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["verdicts"]
    found.release()


# Elsewhere than in one process

SCRIPT = """
import json, sys
from antecede.spark import Trace
from antecede.spark.verify.api import verify
read = Trace.read(spark, sys.argv[1])
found = verify(read, chunks=3, rows=200)
packed = verify(Trace.of(read.events, read.runs), chunks=2)
for one in (found, packed):
    rows = one.findings.select("run", "kind", "process", "sender", "number").collect()
    print(json.dumps(sorted(map(list, rows))))
"""


def oracles(runs):
    return sorted(
        [name, *key]
        for name, names, rows in runs
        for key in planted.find_by_oracle(names, rows)[1].elements()
    )


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Every kind of finding, in runs of every size: a task on another Spark costs more, and says nothing new."""
    some = [run for run in MADE if run[0] in {"r0", "r2", "r14", "r22", "r23", "r101", "r102"}]
    assert {kind for _, kind, *_ in oracles(some)} == {kind for _, kind, *_ in oracles(MADE)}
    return planted.write(tmp_path_factory.mktemp("planted") / "few", some, files=2), oracles(some)


@pytest.mark.parametrize("where", ["on_cluster", "on_connect"])
def test_the_answer_is_the_same(where, request, few):
    place, expected = few
    printed = request.getfixturevalue(where)(SCRIPT, place)
    assert [json.loads(line) for line in printed.splitlines()] == [expected] * 2


LOST = """
import json, os, signal, sys, threading, time
from pathlib import Path
from antecede.spark import Trace
from antecede.spark.verify.api import verify

def executors():
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes()
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        # Those of this test, and of no other Spark on this machine; nor this script, which has the word in it too.
        is_java = words.split(bytes(1))[0].endswith(b"java")
        if is_java and b"CoarseGrainedExecutorBackend" in words and os.environ["SPARK_HOME"].encode() in environment:
            yield int(entry.name)

def judged(**how):
    found = verify(Trace.read(spark, sys.argv[1]), **how)
    verdicts = [row.asDict() for row in found.runs.orderBy("run").collect()]
    rows = found.findings.select("run", "kind", "process", "sender", "number", "by_sender", "by_number").collect()
    found.release()
    return verdicts, sorted(map(list, rows))

before = judged(chunks=4, rows=250)
killed = []

def kill():
    tracker = spark.sparkContext.statusTracker()
    while not killed:
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        # A stage is half done: what its tasks have made is lost with the executor.
        if any(s and s.numTasks > 4 and s.numCompletedTasks >= 2 for s in stages):
            killed.append(next(executors()))
            os.kill(killed[0], signal.SIGKILL)
        time.sleep(0.01)

threading.Thread(target=kill, daemon=True).start()
after = judged(chunks=4, rows=250)
while not killed:  # No stage was seen half done: they were too quick.
    after = judged(chunks=4, rows=250)
print(json.dumps([bool(killed), before == after, len(after[1])]))
"""


def test_a_lost_executor_changes_nothing(on_cluster, trace):
    assert json.loads(on_cluster(LOST, trace)) == [True, True, len(oracles(MADE))]
