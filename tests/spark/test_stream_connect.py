"""Streams through Spark Connect: the same as here, with the same status and the same words for what is wrong."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from antecede.sim.run import RunSpec
from antecede.spark.stream import simulated
from antecede.watch import Board
from tests.spark.test_live_cli import plant_violation
from tests.spark.test_stream_cli import incomplete

ORDER = """
import json, sys
from msgspec import structs
from antecede.errors import AntecedeError
from antecede.spark.order.files import Source, order_files
from antecede.spark.stream.api import Asked
home = sys.argv[1]
source = Source(f"{home}/in", Asked(protocol="matrix", processes=("p1", "p2", "p3"), patience="1 hour"))
noted = []

def go(source):
    return order_files(spark, source, f"{home}/out", f"{home}/checkpoint", once=True, note=noted.append)

outcome = structs.asdict(go(source))
try:
    go(structs.replace(source, asked=structs.replace(source.asked, protocol="fifo")))
except AntecedeError as error:
    print(json.dumps([outcome, [told.status.held for told in noted], str(error)]))
"""

CLOSED = """
import json, sys
from antecede.spark.order.files import Source, order_files
from antecede.spark.stream.api import Asked
home, noted = sys.argv[1], []
source = Source(f"{home}/in", Asked(protocol="monitor", processes=("p1", "p2", "p3", "p4")), by="closed", receiver="p1")
outcome = order_files(spark, source, f"{home}/out", f"{home}/checkpoint", once=True, note=noted.append)
print(json.dumps([outcome.complete, outcome.delivered, [told.status.delivered for told in noted]]))
"""

VERIFY = """
import json, sys
from antecede.spark.stream.api import verify_events
home = sys.argv[1]
noted = []
options = {"once": True, "patience": "1 hour", "note": noted.append}
found = verify_events(spark, f"{home}/trace", f"{home}/found", f"{home}/kept", **options)
print(json.dumps([found.counts, *noted]))
"""


def test_packets_are_ordered_through_spark_connect(on_connect, tmp_path):
    incomplete(tmp_path / "in")
    outcome, held, refused = json.loads(on_connect(ORDER, tmp_path).splitlines()[-1])
    assert outcome["delivered"] + outcome["waiting"] == 59
    assert outcome["waiting"] == held[-1] > 0
    assert pq.read_table(tmp_path / "out").num_rows == outcome["delivered"]
    assert "of a query with protocol matrix, not fifo" in refused
    last = Board(tmp_path / "checkpoint" / "status").read()[-1]
    assert (last.held, last.ended) == (outcome["waiting"], "stopped")


def test_closed_sets_are_delivered_through_spark_connect(on_connect, tmp_path):
    _, rows = simulated(RunSpec(protocol="monitor", processes=4, messages=80, seed=2))
    hot = rows.filter(pa.compute.equal(rows["receiver"], "p1"))
    (tmp_path / "in").mkdir()
    pq.write_table(hot, tmp_path / "in" / "0.parquet")
    assert json.loads(on_connect(CLOSED, tmp_path).splitlines()[-1]) == [True, len(hot), [len(hot)]]


def test_events_are_verified_through_spark_connect(on_connect, tmp_path):
    wanted = plant_violation(tmp_path / "trace")
    counts, *noted = json.loads(on_connect(VERIFY, tmp_path).splitlines()[-1])
    assert sum(counts.values()) == sum(wanted.values())
    assert counts["violation"] > 0
    assert noted == [counts]
