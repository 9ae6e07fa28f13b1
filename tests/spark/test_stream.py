"""A stream on Spark: what comes out is what comes out without it, over restarts and a real SIGKILL."""

import os
import tarfile
import threading
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException

from antecede.errors import BadParameter
from antecede.sim.run import RunSpec
from antecede.spark import order
from antecede.spark.order.files import Source, order_files
from antecede.spark.stream import simulated, status_of, waiting
from antecede.spark.stream.api import Asked
from antecede.spark.stream.operator import PROVIDER, ROCKSDB, bucket_keys
from antecede.spark.stream.packets import Settings
from tests.spark.packet_steps import step
from tests.spark.test_stream_bucket import by_receiver

SCHEMA = "receiver string, sender string, number long, stamp binary, payload binary, arrival long"


def packets(messages, processes=6, seed=3):
    """A run in which packets are shuffled and some are repeated, in the order of arrival."""
    view, rows = simulated(RunSpec(protocol="matrix", processes=processes, messages=messages, seed=seed))
    random = Random(seed)
    order = list(range(len(rows))) + random.sample(range(len(rows)), len(rows) // 10)
    order.sort(key=lambda at: at + random.randint(0, 60))
    return view, rows.take(order).set_column(5, "arrival", pa.array(range(len(order))))


def written(directory, rows, parts, first=0):
    directory.mkdir(exist_ok=True)
    size = -(-len(rows) // parts)
    for part in range(parts):
        pq.write_table(rows.slice(part * size, size), directory / f"{first + part}.parquet")
        # Files are taken by their time.
        os.utime(directory / f"{first + part}.parquet", (first + part + 1, first + part + 1))


def order_by_machine(rows, view, **options):
    _, out, _ = step(None, rows, 0, Settings("matrix", view.names, **options))
    return by_receiver(out.to_pylist())


PLACED = ("receiver", "position", "sender", "number", "payload", "kind", "reason")


def place_rows(rows):
    """Rows as a bucket gives them, which knows no other columns; those that came twice have no place."""
    return [
        {
            **{name: row.get(name) for name in PLACED},
            "group": "",
            "gave_up": row["waits_for"] or None,
        }
        for row in rows
        if row["kind"] != "repeated"
    ]


def test_a_stream_is_ordered_over_restarts_and_says_what_waits(spark, tmp_path):
    view, rows = packets(300)
    lost = {"sender": rows["sender"][0].as_py(), "receiver": rows["receiver"][0].as_py()}
    source, out, checkpoint = tmp_path / "in", tmp_path / "out", tmp_path / "checkpoint"
    late = rows.filter(pa.compute.equal(rows["sender"], lost["sender"]))
    late = late.filter(pa.compute.equal(late["receiver"], lost["receiver"])).slice(0, 1)
    again = pa.compute.equal(rows["number"], late["number"][0])
    same = pa.compute.and_(pa.compute.equal(rows["sender"], lost["sender"]), again)
    kept = rows.filter(
        pa.compute.invert(pa.compute.and_(same, pa.compute.equal(rows["receiver"], lost["receiver"])))
    )
    written(source, kept, 2)

    def run():
        stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
        query = (
            order(stream, protocol="matrix", processes=view.names, buckets=4)
            .writeStream.format("parquet")
            .option("path", str(out))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [told for told in map(status_of, query.recentProgress) if told is not None]

    first = run()
    held = waiting(spark, checkpoint).toArrow().to_pylist()
    assert len(held) == first[-1].status.held > 0
    assert all(row["receiver"] == lost["receiver"] for row in held)
    assert any(cause["sender"] == lost["sender"] for row in held for cause in row["awaits"])
    assert sum(told.status.rows_in for told in first) == len(kept)
    [cause, *_] = first[-1].status.causes
    assert (cause.receiver, cause.sender) == (lost["receiver"], lost["sender"])

    written(source, late, 1, first=2)
    last = run()
    assert last[-1].status.held == 0
    assert waiting(spark, checkpoint).count() == 0
    delivered = spark.read.parquet(str(out)).toArrow().to_pylist()
    arrived = pa.concat_tables([kept, late.set_column(5, "arrival", pa.array([len(rows)]))])
    assert by_receiver(place_rows(delivered)) == order_by_machine(arrived, view)


def test_an_answer_does_not_read_again_what_was_written_before(spark, tmp_path):
    view, rows = packets(200)
    source, out, checkpoint = tmp_path / "in", tmp_path / "out", tmp_path / "checkpoint"
    half = len(rows) // 2
    asked = Source(str(source), Asked(protocol="matrix", processes=view.names))
    written(source, rows.slice(0, half), 1)
    first = order_files(spark, asked, out, checkpoint, once=True)
    # Nobody can read it any more; nobody has to.
    for file in out.glob("*.parquet"):
        file.write_bytes(b"gone")
    written(source, rows.slice(half), 1, first=1)
    second = order_files(spark, asked, out, checkpoint, once=True)
    assert (first.batches, second.batches) == (1, 2)
    assert (
        first.delivered < second.delivered == len(set(map(str, rows.drop_columns(["arrival"]).to_pylist())))
    )
    assert second.complete
    assert order_files(spark, asked, out, checkpoint, once=True) == second, "nothing came"


def test_totals_of_a_query_that_was_killed_are_counted_again(spark, tmp_path):
    view, rows = packets(200)
    source, out, checkpoint = tmp_path / "in", tmp_path / "out", tmp_path / "checkpoint"
    asked = Source(str(source), Asked(protocol="matrix", processes=view.names))
    written(source, rows, 1)
    first = order_files(spark, asked, out, checkpoint, once=True)
    (checkpoint / "totals.json").unlink()
    assert order_files(spark, asked, out, checkpoint, once=True) == first


def test_rows_of_a_micro_batch_that_was_written_and_not_committed_are_counted(spark, tmp_path):
    """Killed in between, Spark repeats the micro-batch, finds its rows written, and reports none."""
    view, rows = packets(200)
    source, out, checkpoint = tmp_path / "in", tmp_path / "out", tmp_path / "checkpoint"
    asked = Source(str(source), Asked(protocol="matrix", processes=view.names), files_per_batch=1)
    third = len(rows) // 3
    for part in range(2):
        written(source, rows.slice(part * third, third), 1, first=part)
        before = (checkpoint / "totals.json").read_bytes() if part else b""
        order_files(spark, asked, out, checkpoint, once=True)
    # As a kill leaves it that comes between the rows of the second micro-batch and its commit.
    (checkpoint / "totals.json").write_bytes(before)
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink()
    written(source, rows.slice(2 * third), 1, first=2)
    outcome = order_files(spark, asked, out, checkpoint, once=True)
    assert (outcome.batches, outcome.complete) == (3, True)
    assert outcome.delivered == len(set(map(str, rows.drop_columns(["arrival"]).to_pylist())))


def test_a_query_with_patience_leaves_the_session_as_it_is(spark, tmp_path):
    view, rows = packets(30)
    written(tmp_path / "in", rows, 1)
    empty = "spark.sql.streaming.noDataMicroBatches.enabled"
    seen, done = set(), threading.Event()

    def look():
        while not done.is_set():
            seen.add(spark.conf.get(empty))

    looking = threading.Thread(target=look)
    looking.start()
    asked = Source(str(tmp_path / "in"), Asked(protocol="matrix", processes=view.names, patience="1 hour"))
    try:
        outcome = order_files(spark, asked, tmp_path / "out", tmp_path / "checkpoint", once=True)
    finally:
        done.set()
        looking.join()
    assert outcome.complete
    assert seen == {"true"}, "another query that starts meanwhile would have run without empty micro-batches"


def test_another_number_of_buckets_is_refused(spark, tmp_path):
    view, rows = packets(30, processes=2)
    written(tmp_path / "in", rows.filter(pa.compute.equal(rows["receiver"], "p1")), 1)

    def run(buckets):
        stream = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in"))
        writer = order(stream, protocol="matrix", processes=view.names, buckets=buckets).writeStream.format(
            "noop"
        )
        query = (
            writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run(2)
    written(tmp_path / "in", rows, 1, first=1)
    with pytest.raises(StreamingQueryException, match="written with buckets 2, not 4"):
        run(4)


def test_the_usual_buckets_fall_evenly_on_partitions(spark):
    rows = spark.createDataFrame([(key,) for key in bucket_keys(16)], "bucket int")
    found = rows.selectExpr("pmod(hash(bucket), 16)", "pmod(hash(bucket), 4)").collect()
    assert [tuple(row) for row in found] == [(place, place % 4) for place in range(16)]


def test_what_is_no_stream_of_packets_is_refused(spark, tmp_path):
    columns = "receiver string, sender string, number long, stamp binary, payload binary, at string"
    rows = spark.readStream.schema(columns).parquet(str(tmp_path))
    asked: dict[str, Any] = {"protocol": "matrix", "processes": ["p1"]}
    with pytest.raises(
        BadParameter,
        match="the table needs the columns sender, number, stamp: a row is a packet; it has receiver",
    ):
        order(rows.select("receiver"), **asked)
    with pytest.raises(BadParameter, match="time must be integers or timestamps, and at is string"):
        order(rows, **asked, time="at")
    with pytest.raises(BadParameter, match=r"protocol must be one of .*, not 'permit'"):
        order(rows, protocol="permit", processes=["p1"])
    with pytest.raises(BadParameter, match="buckets must be 1 or more, not 0"):
        order(rows, **asked, buckets=0)
    with pytest.raises(BadParameter, match="a stream needs the names of its columns"):
        order(rows)


def unpack_checkpoint(name, home):
    """A checkpoint that the version before wrote, with what it had read and a file that comes after it."""
    with tarfile.open(Path(__file__).parent / "states" / "stream-1.tar.gz") as packed:
        # Before 3.11.4 Python has no filters; from 3.12 on it warns of an archive without one.
        packed.extraction_filter = getattr(tarfile, "data_filter", None)
        packed.extractall(home)
    checkpoint = home / name / "checkpoint"
    for told in (checkpoint / "sources" / "0" / "0", checkpoint / "state" / "0" / "_metadata" / "v2" / "0"):
        if told.exists():
            told.write_text(told.read_text().replace("/HOME", str(home)))
    read = home / name / "in" / "0.parquet"
    (home / name / "rest.parquet").rename(home / name / "in" / "1.parquet")
    return home / name, pq.read_table(read).num_rows


def go_on(spark, home, schema, **asked):
    stream = spark.readStream.schema(schema).parquet(str(home / "in"))
    writer = order(stream, buckets=2, **asked).writeStream.trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(home / "checkpoint")).start(str(home / "out"))
    query.awaitTermination()
    return pq.read_table(home / "out").to_pylist()


def test_a_checkpoint_of_stamps_that_the_last_version_wrote_goes_on(spark, tmp_path):
    home, _ = unpack_checkpoint("stamps", tmp_path)
    out = go_on(spark, home, SCHEMA, protocol="matrix", processes=("p1", "p2", "p3"))
    # 40 packets, of which the version before had delivered 23.
    assert len(out) == 17
    assert {row["kind"] for row in out} == {"delivered"}
    held = [row for row in out if row["stamp"] is None]
    assert len(held) == 16
    assert all(row["payload"] is not None for row in held)


def test_a_checkpoint_of_causes_that_no_release_wrote_is_refused(spark, tmp_path):
    """Its rows would be looked for in other buckets than those that hold them."""
    home, _ = unpack_checkpoint("causes", tmp_path)
    own = spark.newSession()
    own.conf.set(PROVIDER, ROCKSDB)
    own.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    columns = "room string, id string, replies_to string"
    # By Spark, before it comes to us.
    with pytest.raises(StreamingQueryException, match="STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"):
        go_on(own, home, columns, id="id", causes="replies_to", partition_by="room")
