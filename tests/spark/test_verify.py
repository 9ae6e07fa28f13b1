"""Verification on Spark says what the oracle says, whatever the shape of the trace.

The pure part is compared with the oracle on thousands of traces elsewhere; here whole traces go through Spark, many
runs in each, so that a few calls compare many.
"""

import random

import pytest

from antecede.spark import Trace
from antecede.spark.verify import verify
from antecede.trace.layout import Layout
from tests.spark import planted

RUNS_MADE = [planted.run_of(seed) for seed in range(40)] + [
    planted.run_of(seed, processes=n, events=n * 12) for seed, n in ((100, 2), (101, 9), (102, 20))
]


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return planted.write(tmp_path_factory.mktemp("planted") / "trace", RUNS_MADE, files=2)


@pytest.mark.parametrize("chunks", [None, 2, 7])
def test_every_kind_of_fault_is_found_in_any_number_of_chunks(spark, trace, chunks):
    found = verify(Trace.read(spark, trace), chunks=chunks)
    assert planted.agree(found, RUNS_MADE) == []
    found.release()


@pytest.mark.parametrize(
    ("how", "ways"),
    [
        ({"by_process": True}, {"sequence", "merge", "pack"}),
        ({"shuffled": True, "files": 3}, {"merge", "pack"}),
    ],
    ids=["a file for each process", "shuffled over files"],
)
def test_files_in_no_order_are_put_in_order(spark, tmp_path, how, ways):
    path = planted.write(tmp_path / "trace", RUNS_MADE, **how)
    found = verify(Trace.read(spark, path), chunks=3)
    assert planted.agree(found, RUNS_MADE) == []
    assert {line.partition(":")[0] for line in found.plan.splitlines() if ": " in line} <= ways
    found.release()


def test_any_table_with_the_columns_is_a_trace(spark, trace):
    read = Trace.read(spark, trace)
    found = verify(Trace.of(read.events.repartition(5, "number"), read.runs), chunks=2)
    assert planted.agree(found, RUNS_MADE) == []
    found.release()


def test_runs_may_share_files(spark, tmp_path):
    runs = RUNS_MADE[:8]
    path = planted.write(tmp_path / "trace", runs)
    for file in Layout(path).events.iterdir():
        file.unlink()
    rows = [row for _, _, own in runs for row in own]
    random.Random(1).shuffle(rows)
    planted.write_file(Layout(path).file("all", 0), rows, order=None)
    found = verify(Trace.read(spark, path), chunks=2)
    assert planted.agree(found, runs) == []
    found.release()
