"""Every step once, on one small trace: what `make lowest` runs on the oldest PySpark that is supported."""

import json

import pyarrow.parquet as pq
import pytest

from antecede.sim.run import RunSpec
from antecede.spark import Trace, verify
from antecede.spark.stream import simulated

EXPERIMENT = """
[grid]
protocol = ["fifo", "matrix"]
processes = 4
messages = 120
seed = 3
"""
LOG = 'says hello\nann {"ann": 1}\nhears it\nbob {"ann": 1, "bob": 1}\n'


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("steps")


def test_sweep_verify_measure_order_and_report(spark, warm, home):
    (home / "e.toml").write_text(EXPERIMENT)
    assert warm("sweep", home / "e.toml", "--out", home / "swept").returncode == 0
    found = verify(Trace.read(spark, home / "swept"))
    verdicts = {row["run"]: row["verdict"] for row in found.runs.collect()}
    assert sorted(verdicts.values()) == ["no", "yes"]
    found.release()
    here = json.loads(warm("verify", home / "swept", "--json").stdout)
    assert {row["run"]: row["verdict"] for row in here["runs"]} == verdicts
    measured = warm("measure", home / "swept", "--json")
    assert [row["sends"] for row in json.loads(measured.stdout)["runs"]] == [120, 120]
    ordered = warm("order", home / "swept" / "trace", "--out", home / "ordered")
    assert ordered.returncode == 0, ordered.stderr
    assert (
        pq.read_table(home / "ordered" / "ordered").num_rows
        == Trace.read(spark, home / "swept").events.count()
    )
    told = warm("report", home / "swept", "--out", home / "page.html")
    assert told.returncode == 0, told.stderr


def test_ingest(warm, home):
    (home / "a.log").write_text(LOG)
    done = warm("ingest", home / "a.log", "--format", "shiviz", "--out", home / "read", "--json")
    assert json.loads(done.stdout)["events"] == 2, done.stderr


def test_streams(warm, home):
    _, rows = simulated(RunSpec(protocol="matrix", processes=3, messages=60, seed=7))
    (home / "packets").mkdir()
    pq.write_table(rows, home / "packets" / "0.parquet")
    stream = ["--stream", "--once", "--json"]
    options = ["--protocol", "matrix", "--processes", "3", *stream]
    done = warm("order", home / "packets", "--out", home / "delivered", *options)
    assert json.loads(done.stdout)["delivered"] == len(rows), done.stderr
    done = warm(
        "simulate", "--protocol", "matrix", "--processes", 3, "--messages", 50, "--out", home / "trace"
    )
    assert done.returncode == 0, done.stderr
    done = warm("verify", home / "trace", "--out", home / "live", *stream)
    assert json.loads(done.stdout)["verdict"] == "yes", done.stderr
