"""What is counted before the sort: by tasks that read files, the same as by Spark, whatever the files are like."""

from collections import Counter
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from antecede.errors import BadTrace
from antecede.spark import Trace
from antecede.spark.order.api import order
from antecede.spark.order.tally import CELL, ENDS, INDEX, MESSAGE, Tally, words_of
from antecede.trace import EVENTS, RunInfo, TraceWriter
from tests.spark.made import lamport, random_run, table


def written(directory, runs, files=3, group=40):
    """The rows of each run, in no order, spread over some files of small row groups."""
    directory.mkdir()
    for run, rows in runs.items():
        names = sorted({row["process"] for row in rows} | {row["sender"] for row in rows})
        with TraceWriter(directory, RunInfo(run=run, protocol="none", processes=tuple(names))):
            pass
    for path in directory.glob("events/*"):
        path.unlink()
    for run, rows in runs.items():
        Random(len(rows)).shuffle(rows)
        made = table(rows)
        for part in range(files):
            some = made.take(pa.array(range(part, len(made), files), pa.int64())).cast(EVENTS)
            pq.write_table(some, directory / "events" / f"{run}-{part}.parquet", row_group_size=group)
    return directory


@pytest.fixture(scope="module")
def runs():
    rng = Random(11)
    sizes = [(3, 20, 0.1), (6, 200, 0.02), (2, 1, 0.0), (5, 90, 0.0)]
    drawn = [
        random_run(rng, f"r{i}", n, length, orphans=orphans) for i, (n, length, orphans) in enumerate(sizes)
    ]
    return {rows[0]["run"]: lamport(rows) for rows in drawn}


def facts(found):
    rows = {(r.run, r.process, r["index"]): (r.position, r.waits) for r in found.rows.collect()}
    return rows, {(r.run, r.sender, r.number) for r in found.missing.collect()}


def test_files_are_ordered_as_tables_are(spark, tmp_path, runs):
    trace = Trace.read(spark, written(tmp_path / "trace", runs))
    assert facts(order(trace, partitions=3)) == facts(order(Trace.of(trace.events, trace.runs), partitions=3))


def test_nothing_is_missing_where_nothing_is(spark, tmp_path, runs):
    whole = {"r3": runs["r3"]}
    found = order(Trace.read(spark, written(tmp_path / "trace", whole)))
    rows, missing = facts(found)
    assert missing == set()
    assert sorted(position for position, _ in rows.values()) == list(range(len(whole["r3"])))


def test_numbers_may_leave_gaps_of_their_own(spark, tmp_path):
    """Every other number: words of 64 of them are sets, which nobody may add up."""
    sends = [
        {"process": "ann", "index": i, "kind": "send", "number": 2 * i + 1, "to": ["bob"], "clock": 2 * i}
        for i in range(300)
    ]
    delivers = [
        {"process": "bob", "index": i, "kind": "deliver", "number": 2 * i + 1, "to": None, "clock": 2 * i + 1}
        for i in range(300)
    ]
    common = {"run": "r", "sender": "ann", "control": False, "time_ns": 0}
    rows = [{**common, **row} for row in sends + delivers]
    found = order(Trace.read(spark, written(tmp_path / "trace", {"r": rows})))
    placed, missing = facts(found)
    assert missing == set()
    assert placed["r", "bob", 299] == (599, False)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda rows: rows.remove(max(rows, key=lambda row: row["index"] == 1)), "without gaps"),
        (lambda rows: rows.append(dict(rows[0])), "one of each index"),
        (lambda rows: rows[0].update(kind="sent"), "send or receive or deliver"),
    ],
)
def test_what_is_no_trace_is_refused(spark, tmp_path, runs, change, told):
    rows = [dict(row) for row in runs["r1"]]
    change(rows)
    trace = Trace.read(spark, written(tmp_path / "trace", {"r1": rows}))
    with pytest.raises(BadTrace, match=told):
        order(trace)


def test_a_tally_counts_what_there_is(runs):
    rows = runs["r1"]
    tally = Tally("r1", (0, 0, 10**6, 7, True))
    for at in range(0, len(rows), 50):
        tally.feed(table(rows[at : at + 50]).combine_chunks().to_batches()[0], "here")
    found = tally.flushed().to_pylist()

    def told(what, column):
        """The numbers of each line that have a bit in this column."""
        return {
            (row["line"], row["word"] * 64 + bit)
            for row in found
            if row["what"] == what
            for bit in range(64)
            if row[column] >> bit & 1
        }

    def said(kind):
        return {(r["sender"], r["number"]) for r in rows if r["kind"] == kind and not r["control"]}

    assert told(INDEX, "two") == {(row["process"], row["index"]) for row in rows}
    assert sum(row["one"] for row in found if row["what"] == INDEX) == len(rows)
    assert told(MESSAGE, "one") == said("send")
    assert told(MESSAGE, "two") == said("deliver")
    cells = {int(row["line"]): row["one"] for row in found if row["what"] == CELL}
    assert cells == Counter(row["clock"] // 7 for row in rows)
    ends = {row["line"]: (row["one"], row["two"]) for row in found if row["what"] == ENDS}
    assert ends == {
        name: (0, max(row["index"] for row in rows if row["process"] == name))
        for name in {row["process"] for row in rows}
    }


@pytest.mark.parametrize("span", [100, 1 << 60])
def test_words_hold_any_numbers(span):
    rng = np.random.default_rng(span % 1000)
    kept = np.stack([rng.integers(0, 5, 400), rng.integers(-span, span, 400)])
    line, word, rows, bits = words_of(kept)
    numbers = [
        (int(a), int(b) * 64 + bit)
        for a, b, c in zip(line, word, bits, strict=True)
        for bit in range(64)
        if int(c) >> bit & 1
    ]
    assert set(numbers) == set(zip(*kept.tolist(), strict=True))
    assert rows.sum() == 400
    assert list(zip(line, word, strict=True)) == sorted(set(zip(line.tolist(), word.tolist(), strict=True)))


def test_no_rows_have_no_words():
    batch = Tally("r", (0, 0, 1, 1, False)).flushed()
    assert batch.num_rows == 0
    assert isinstance(batch, pa.RecordBatch)
