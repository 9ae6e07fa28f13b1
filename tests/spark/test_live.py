"""Live verification on Spark: queries that are stopped and started again say what the oracle says."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("pyspark")

from antecede.errors import BadParameter, BadTrace
from antecede.spark.sources import traces
from antecede.spark.stream.api import FOUND, judge_rows, tabulate_found, verify_stream
from antecede.spark.trace import SPARK_EVENTS
from tests.spark.planted import find_by_oracle, run_of, write_file
from tests.spark.random_traces import make_trace

LATE = ("unsent", "undelivered")


def run(findings: Any, directory: Any) -> list[Any]:
    """Run a query on all that is there, and give all that it has found so far."""
    query = (
        findings.writeStream.format("parquet")
        .option("path", str(directory / "found"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    return findings.sparkSession.read.schema(FOUND).parquet(str(directory / "found")).collect()


def all_sent(one: Any) -> bool:
    """Whether nothing will have to be given up: all that is delivered was sent."""
    return all(key[0] != "unsent" for key in find_by_oracle(*one[1:])[1])


def test_a_query_that_is_stopped_in_between_finds_what_the_oracle_finds(spark, tmp_path):
    runs = [one for seed in range(40) if all_sent(one := run_of(seed, events=80))][:4]
    rows = [row for _, _, rows in runs for row in rows]
    random.Random(7).shuffle(rows)
    events = tmp_path / "trace" / "events"
    events.mkdir(parents=True)
    found: list[Any] = []
    for part in range(2):
        write_file(events / f"{part}.parquet", rows[part::2], 50, None, None)
        found = run(verify_stream(traces(spark, tmp_path / "trace")), tmp_path)
    told = Counter((one["run"], one["kind"], one["process"], one["sender"], one["number"]) for one in found)
    wanted: Counter[Any] = Counter()
    for name, names, all_rows in runs:
        for key, many in find_by_oracle(names, all_rows)[1].items():
            if key[0] not in LATE:
                wanted[(name, *key)] += many
    assert wanted.total() > 20
    assert told == wanted


def test_patience_is_asked_of_the_clock_that_is_given():
    from antecede.spark.stream.judge import Arrived

    row = Arrived("q", 0, "deliver", "p", 1, None, False)
    kept, found, idle = judge_rows(None, [row], 1000, 500, 10)
    assert (found, idle) == ([], False)
    kept, found, _ = judge_rows(kept, [], 1400, 500, 10)
    assert found == []
    kept, found, idle = judge_rows(kept, [row], 1500, 500, 10)
    assert ([one.kind for one in found], idle) == (["unsent"], True)
    assert judge_rows(kept, [row], 9000, 500, 10) == (kept, [], True)
    frame = tabulate_found("r", found)
    assert frame.to_dict("records")[0] | {"by_number": None} == {
        "run": "r", "kind": "unsent", "process": "q", "sender": "p", "number": 1, "by_sender": None, "by_number": None,
        "index": 0,
    }  # fmt: skip
    assert list(tabulate_found("r", []).columns) == FOUND.names


def test_time_runs_out_without_a_row_to_say_so(spark, tmp_path):
    events = tmp_path / "trace" / "events"
    events.mkdir(parents=True)
    _, rows = make_trace(3, events=20)
    row = {**rows[0], "index": 0, "kind": "deliver", "control": False, "to": None, "number": 77}
    write_file(events / "0.parquet", [row], 1, None, None)
    short = "200 milliseconds"
    query = (
        verify_stream(traces(spark, tmp_path / "trace"), patience=short, remember=short)
        .writeStream.format("memory")
        .queryName("late")
        .start()
    )
    try:
        until = time.monotonic() + 120
        while query.recentProgress == [] or query.recentProgress[-1]["stateOperators"][0]["numRowsTotal"]:
            assert time.monotonic() < until
            assert query.exception() is None
            time.sleep(0.1)
        found = spark.table("late").collect()
    finally:
        query.stop()
    assert [(one["kind"], one["number"], one["index"]) for one in found] == [("unsent", 77, 0)]


def test_what_cannot_be_verified_is_refused(spark):
    events = spark.createDataFrame([], SPARK_EVENTS)
    for options in ({"patience": "0 seconds"}, {"remember": "soon"}, {"messages": 0}):
        with pytest.raises(BadParameter):
            verify_stream(events, **options)
    with pytest.raises(BadTrace, match="column control is missing"):
        verify_stream(events.drop("control"))
