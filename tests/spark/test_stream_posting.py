"""What streams on Spark post for `antecede watch`: what they deliver, what waits, what is found, and their end."""

import sys
import time

import pyarrow as pa
import pytest
from msgspec import structs

pytest.importorskip("pyspark")

from antecede.sim.run import RunSpec
from antecede.spark.order.files import Source, order_files
from antecede.spark.sources import traces
from antecede.spark.stream import Progress, simulated
from antecede.spark.stream.api import Asked, verify_stream
from antecede.spark.stream.status import BOARD, FURTHEST, Posting, observe_findings
from antecede.watch import Board, Cause
from antecede.watch import Status as Posted
from tests.spark.planted import write_file
from tests.spark.test_stream import written


@pytest.fixture
def posting(spark, tmp_path):
    listener = Posting(tmp_path / "checkpoint")
    spark.streams.addListener(listener)
    yield listener
    spark.streams.removeListener(listener)


def wait_for_end(board, wait=60):
    """Listeners hear of things a little later."""
    until = time.monotonic() + wait
    while time.monotonic() < until:
        statuses = board.read()
        if statuses and statuses[-1].ended is not None:
            return statuses
        time.sleep(0.1)
    raise AssertionError(f"not ended: {board.read()}")


def test_a_stream_in_causal_order_says_what_it_holds_and_why(spark, tmp_path, posting):
    view, rows = simulated(RunSpec(protocol="matrix", processes=4, messages=120, seed=5))
    lost = rows.slice(0, 1).to_pylist()[0]
    written(tmp_path / "in", rows.slice(1), 2)
    source = Source(str(tmp_path / "in"), Asked(protocol="matrix", processes=view.names), files_per_batch=1)
    outcome = order_files(spark, source, tmp_path / "out", tmp_path / "checkpoint", once=True)
    statuses = wait_for_end(Board(tmp_path / "checkpoint" / BOARD))
    assert outcome.waiting > 0
    assert sum(one.rows_in for one in statuses) == len(rows) - 1
    assert sum(one.rows_out for one in statuses) == outcome.delivered
    last = statuses[-1]
    assert last.held == outcome.waiting
    assert (lost["receiver"], lost["sender"]) in {(cause.receiver, cause.sender) for cause in last.causes}
    assert sum(last.frontier[FURTHEST].values()) > 0
    assert last.oldest_ms <= last.time_ms
    assert last.ended == "stopped"


def test_a_stream_by_closed_sets_is_watched_too(spark, tmp_path, posting):
    view, rows = simulated(RunSpec(protocol="monitor", processes=4, messages=80, seed=2))
    hot = rows.filter(pa.compute.equal(rows["receiver"], "p1"))
    written(tmp_path / "in", pa.concat_tables([hot.slice(0, 5), hot.slice(6)]), 2)
    source = Source(
        str(tmp_path / "in"),
        Asked(protocol="monitor", processes=view.names),
        files_per_batch=1,
        by="closed",
        receiver="p1",
    )
    noted: list[Progress] = []
    outcome = order_files(
        spark, source, tmp_path / "out", tmp_path / "checkpoint", once=True, note=noted.append
    )
    statuses = wait_for_end(Board(tmp_path / "checkpoint" / BOARD))
    assert [(one.rows_in, one.rows_out, one.held) for one in statuses] == [
        (told.status.rows_in, told.status.delivered, told.status.held) for told in noted
    ]
    assert sum(one.rows_in for one in statuses) == len(hot) - 1
    assert statuses[-1].held == outcome.waiting > 0
    assert sum(statuses[-1].frontier[FURTHEST].values()) == outcome.delivered


def test_counts_go_on_where_a_query_was_and_findings_are_shown(spark, tmp_path, posting):
    def row(index, kind, process, sender, number, to=None):
        return {
            "run": "r", "process": process, "index": index, "kind": kind, "sender": sender, "number": number,
            "to": to, "control": False, "time_ns": 0, "clock": None, "stamp_entries": None, "stamp_bytes": None,
            "label": None,
        }  # fmt: skip

    # The triangle: bob answers before cid has what he answers to.
    triangle = [
        row(0, "send", "ann", "ann", 1, ["bob", "cid"]),
        row(0, "deliver", "bob", "ann", 1),
        row(1, "send", "bob", "bob", 1, ["cid"]),
        row(0, "deliver", "cid", "bob", 1),
        row(1, "deliver", "cid", "ann", 1),
    ]
    events = tmp_path / "trace" / "events"
    events.mkdir(parents=True)
    for part in range(2):
        write_file(
            events / f"{part}.parquet", [{**one, "run": f"r{part}"} for one in triangle], 50, None, None
        )
        query = (
            observe_findings(verify_stream(traces(spark, tmp_path / "trace")))
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "found"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        last = wait_for_end(Board(tmp_path / "checkpoint" / BOARD))[-1]
        assert last.all_found == part + 1
        assert last.found[-1].run == f"r{part}"
        assert (last.found[-1].process, last.found[-1].sender, last.found[-1].by_sender) == (
            "cid",
            "ann",
            "bob",
        )
        # The next start is another query: its end has to be waited for anew.
        Board(tmp_path / "checkpoint" / BOARD).write(structs.replace(last, ended=None))
        posting._last = None


def test_what_no_stream_of_ours_reports_is_rates_alone():
    from antecede.spark.stream.status import make_status

    progress = {
        "id": "q", "batchId": 4, "durationMs": {"triggerExecution": 250}, "observedMetrics": {},
        "sources": [{"numInputRows": 10}], "sink": {"numOutputRows": 7},
    }  # fmt: skip
    status = make_status(progress, "q")
    assert (status.batch, status.duration_ms, status.rows_in, status.rows_out) == (4, 250, 10, 7)


@pytest.mark.parametrize("observed", [{}, {"antecede": {"status": []}}])
def test_a_micro_batch_without_rows_says_that_what_was_held_still_is(observed):
    from antecede.spark.stream.status import make_status, status_of

    progress = {
        "id": "q", "batchId": 5, "durationMs": {"triggerExecution": 250}, "observedMetrics": observed,
        "sources": [{"numInputRows": 0}], "sink": {"numOutputRows": 0},
    }  # fmt: skip
    late = Cause(receiver="billing", sender="orders", first=41, last=41, held=3, since_ms=7_000)
    before = Posted(
        query="q", batch=4, time_ms=9_000, duration_ms=400, rows_in=12, rows_out=9,
        held=3, oldest_ms=7_000, causes=(late,), frontier={"": {"orders": 40}},
    )  # fmt: skip
    status = make_status(progress, "q", status_of(progress), before)
    assert (status.rows_in, status.rows_out) == (0, 0)
    for name in ("held", "oldest_ms", "causes", "frontier"):
        assert getattr(status, name) == getattr(before, name)


def test_a_stream_that_had_nothing_to_do_knows_what_it_holds_without_reading_it_again(
    spark, tmp_path, monkeypatch
):
    def refuse(*asked):
        raise AssertionError("read again")

    # By its name in the package, `order` is a function.
    home = sys.modules["antecede.spark.order.files"]
    monkeypatch.setattr(home, "sum_up_waiting", refuse)
    monkeypatch.setattr(home, "count_output", refuse)
    files = tmp_path / "in"
    files.mkdir()
    (files / "0.json").write_text('{"id": "effect", "parent": "cause"}')
    checkpoint = tmp_path / "checkpoint"
    board = Board(checkpoint / BOARD)
    outcome = order_files(
        spark,
        Source(str(files), asked=Asked(id="id", causes="parent")),
        tmp_path / "out",
        checkpoint,
        # Stop between two micro-batches: the second finds no rows, and the third is seconds off.
        every=15,
        stop=lambda: any(status.batch == 1 for status in board.read()),
    )
    assert (outcome.batches, outcome.waiting) == (2, 1)
