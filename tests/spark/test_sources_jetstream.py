"""NATS JetStream as a source and a sink: a real server, real queries, killed and started again."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import pytest

from tests.nats_server import Server

pytest.importorskip("nats")
pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from antecede.errors import BadParameter, BadTrace, CannotWrite
from antecede.sim.run import RunSpec
from antecede.spark import order
from antecede.spark.sources import jetstream, jetstream_sink
from antecede.spark.sources.jetstream import Broker, JetStream, encode
from antecede.spark.sources.jetstream_sink import Sink
from antecede.spark.sources.offsets import LostRecords
from antecede.spark.stream import simulated


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("nats")) as one:
        yield one


def with_stream(url: str, work: Any) -> Any:
    """Run something with a JetStream context."""
    from nats.aio.client import Client

    async def run() -> Any:
        client = Client()
        await client.connect(url)
        try:
            return await work(client.jetstream())
        finally:
            await client.close()

    return asyncio.run(run())


def make(url: str, name: str, messages: Sequence[bytes] = (), **config: Any) -> None:
    """A stream with messages in it; its subjects are NAME.*"""

    async def work(js: Any) -> None:
        await js.add_stream(name=name, subjects=[f"{name}.*"], **config)

    with_stream(url, work)
    add(url, name, messages)


def add(url: str, name: str, messages: Sequence[bytes], subject: str = "x") -> None:
    async def work(js: Any) -> None:
        for message in messages:
            await js.publish(f"{name}.{subject}", message)

    with_stream(url, work)


def read_stream(url: str, name: str) -> list[tuple[str, bytes]]:
    """All messages of a stream."""
    broker = Broker(url, name)
    return [(one.subject, one.data) for part in broker.read(*broker.reach()) for one in part]


def packet(number: int) -> bytes:
    row = {"receiver": "b", "sender": "a", "number": number, "stamp": "AQ==", "payload": "aGk="}
    return json.dumps(row).encode()


def reader(url: str, name: str, **options: str) -> Any:
    return JetStream({"url": url, "stream": name, **options}).streamReader(None)  # type: ignore[arg-type]


# The source


def test_a_query_reads_each_message_once_across_restarts(spark, server, tmp_path):
    make(server.url, "packets", [packet(number) for number in range(1, 6)])
    source = jetstream(spark, server.url, "packets", max_rows=3)
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")

    def run() -> Any:
        query = (
            source.writeStream.format("parquet")
            .option("path", out)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(180)
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    assert run() == [3, 2], "no batch is larger than it may be"
    server.kill()
    server.start()
    add(server.url, "packets", [packet(number) for number in range(6, 9)])
    assert run() == [3]
    rows = spark.read.parquet(out).orderBy("arrival").collect()
    assert [(row["number"], row["arrival"]) for row in rows] == [(n, n) for n in range(1, 9)]
    assert (rows[0]["receiver"], bytes(rows[0]["stamp"]), bytes(rows[0]["payload"])) == ("b", b"\x01", b"hi")


def test_a_batch_is_cut_into_ranges_that_give_the_same_rows_again(server):
    make(server.url, "cut")

    async def fill(js: Any) -> None:
        await asyncio.gather(*(js.publish("cut.x", b"%d" % number) for number in range(2500)))

    with_stream(server.url, fill)
    one = reader(server.url, "cut", rows="raw", partitions="2")
    spans = one.partitions({"next": 1}, {"next": 2501})
    assert [(span.start, span.end) for span in spans] == [(1, 1251), (1251, 2501)]
    rows = [
        [row["data"] for batch in one.read(span) for row in batch.to_pylist()] for span in (*spans, *spans)
    ]
    assert rows[0] + rows[1] == [b"%d" % number for number in range(2500)]
    assert rows[:2] == rows[2:]
    assert one.partitions({"next": 7}, {"next": 7}) == []


def test_admission_and_available_now(server):
    make(server.url, "limits", [b"x"] * 10)
    one = reader(server.url, "limits", rows="raw", maxRows="4")
    assert one.getDefaultReadLimit() == ReadMaxRows(4)
    assert one.latestOffset({"next": 1}, ReadMaxRows(4)) == {"next": 5}
    assert one.latestOffset({"next": 1}, ReadAllAvailable()) == {"next": 11}
    one.prepareForTriggerAvailableNow()
    add(server.url, "limits", [b"late"])
    assert one.latestOffset({"next": 9}, ReadMaxRows(4)) == {"next": 11}
    assert one.latestOffset({"next": 11}, ReadMaxRows(4)) == {"next": 11}, "what comes later is for later"
    assert one.reportLatestOffset() == {"next": 12}


@pytest.mark.parametrize(("start", "first"), [("earliest", 1), ("latest", 4), ("2", 2)])
def test_where_a_query_begins(server, start, first):
    name = f"start_{start}"
    make(server.url, name, [b"x"] * 3)
    assert reader(server.url, name, start=start).initialOffset() == {"next": first}


def test_deleted_messages_are_not_there_and_dropped_ones_are_told(server):
    make(server.url, "holes", [b"%d" % number for number in range(1, 10)])

    async def drop(js: Any) -> None:
        for number in (4, 5, 9):
            await js.delete_msg("holes", number)

    with_stream(server.url, drop)
    one = reader(server.url, "holes", rows="raw")
    [span] = one.partitions({"next": 2}, {"next": 10})
    assert [row["sequence"] for batch in one.read(span) for row in batch.to_pylist()] == [2, 3, 6, 7, 8]
    with_stream(server.url, lambda js: js.purge_stream("holes", seq=4))
    with pytest.raises(LostRecords, match="its first message is 6, and 2 was not read yet"):
        one.latestOffset({"next": 2}, ReadAllAvailable())
    skipping = reader(server.url, "holes", rows="raw", lost="skip")
    assert skipping.latestOffset({"next": 2}, ReadMaxRows(1)) == {"next": 7}
    with pytest.raises(LostRecords, match="made anew"):
        one.latestOffset({"next": 50}, ReadAllAvailable())


def test_messages_that_vanish_while_they_are_read_are_told(server):
    make(server.url, "vanish", [b"x"] * 3)
    one = reader(server.url, "vanish", rows="raw")
    [span] = one.partitions({"next": 1}, {"next": 4})
    with_stream(server.url, lambda js: js.purge_stream("vanish", seq=3))
    with pytest.raises(LostRecords):
        list(one.read(span))


def test_a_filter_reads_its_subjects_only(server):
    make(server.url, "filter")
    for subject, data in (("a", b"1"), ("b", b"2"), ("a", b"3"), ("b", b"4")):
        add(server.url, "filter", [data], subject)
    one = reader(server.url, "filter", rows="raw", subject="filter.a")
    [span] = one.partitions({"next": 1}, {"next": 5})
    assert [row["data"] for batch in one.read(span) for row in batch.to_pylist()] == [b"1", b"3"]


def test_a_server_that_is_away_is_waited_for(tmp_path, monkeypatch):
    # The module has the name of the function that the package takes from it.
    monkeypatch.setattr(sys.modules[Broker.__module__], "FETCH", 1000)
    with Server(tmp_path) as server:
        make(server.url, "away", [b"x"] * 1500)
        broker = Broker(server.url, "away")
        parts = broker.read(1, 1501)
        first = next(parts)
        server.kill()
        server.start()
        rest = [one for part in parts for one in part]
        assert [one.sequence for one in (*first, *rest)] == list(range(1, 1501))
    with pytest.raises(BadParameter, match=r"the server that should have .* does not answer"):
        Broker(server.url, "away", patience_s=0.1).reach()


@pytest.mark.parametrize(
    ("rows", "message", "told"),
    [
        (
            "packets",
            b"{}",
            "stream {}, message 1: it is not a JSON object with the columns of packets: Object "
            "missing required field `receiver`",
        ),
        (
            "packets",
            b"\xff",
            "stream {}, message 1: it is not a JSON object with the columns of packets: JSON is malformed",
        ),
        (
            "events",
            b'{"run":"r","process":"p","index":0,"kind":"sent","sender":"p","number":1}',
            "stream {}, message 1: it is not a JSON object with the columns of events: kind must "
            "be one of send, receive, deliver",
        ),
    ],
)
def test_a_message_that_is_no_row_is_told_with_its_place(server, rows, message, told):
    name = f"bad_{rows}_{len(message)}"
    make(server.url, name, [message])
    one = reader(server.url, name, rows=rows)
    [span] = one.partitions({"next": 1}, {"next": 2})
    with pytest.raises(BadTrace) as error:
        list(one.read(span))
    assert str(error.value).startswith(told.format(name))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"url": "http://ann:secret@localhost"}, "url must be nats://host:port, and has the scheme 'http'"),
        ({"rows": "all"}, "rows must be one of packets, events, raw, not 'all'"),
        ({"start": "now"}, "start must be earliest, latest or a message's number, not 'now'"),
        ({"maxRows": "0"}, "maxRows must be 1 or more, not 0"),
        ({"lost": "wait"}, "lost must be one of fail, skip, not 'wait'"),
    ],
)
def test_a_source_that_cannot_be_is_refused(options, told):
    with pytest.raises(BadParameter, match=told):
        JetStream({"url": "nats://localhost", "stream": "s", **options})


def test_a_stream_that_is_not_there_is_told(server):
    with pytest.raises(BadParameter, match="the server has no stream nowhere at 127"):
        Broker(server.url, "nowhere").reach()


# The sink


def make_delivered(*rows: tuple[str, int]) -> list[Any]:
    from pyspark.sql import Row

    return [
        Row(receiver=who, position=position, payload=bytearray(b"%d" % position)) for who, position in rows
    ]


def position_of(data: bytes) -> tuple[str, int]:
    row = json.loads(data)
    assert row["payload"] == b64encode(b"%d" % row["position"]).decode()
    return row["receiver"], row["position"]


ATOMIC = pytest.mark.parametrize("atomic", [True, False])


@ATOMIC
def test_what_is_published_again_is_there_once_and_in_order(server, atomic):
    name = f"out_{atomic}"
    make(server.url, name, duplicate_window=0.1, allow_atomic=atomic)
    sink = Sink(Broker(server.url, name), name, "test")
    rows = make_delivered(*(("a.b", p) for p in range(600)), *(("c", p) for p in range(100)))
    sink.publish(rows[:350])
    # Longer ago than the server remembers ids.
    time.sleep(0.3)
    sink.publish(rows)
    sink.publish(rows[100:])
    got = read_stream(server.url, name)
    assert {subject for subject, _ in got} == {f"{name}.a%2Eb", f"{name}.c"}
    for who, many in (("a.b", 600), ("c", 100)):
        assert [p for one, p in (position_of(data) for _, data in got) if one == who] == list(range(many))


@ATOMIC
def test_two_that_publish_the_same_rows_at_once_give_them_once_and_in_order(server, atomic):
    name = f"twice_{atomic}"
    make(server.url, name, duplicate_window=0.1, allow_atomic=atomic)
    sink = Sink(Broker(server.url, name), name, "test")
    rows = make_delivered(*(("a", p) for p in range(150)), *(("b", p) for p in range(50)))

    async def both() -> None:
        others = asyncio.to_thread(add, server.url, name, [b"other"] * 50, "other")
        await asyncio.gather(others, *(asyncio.to_thread(sink.publish, rows) for _ in range(2)))

    asyncio.run(both())
    got = [position_of(data) for _, data in read_stream(server.url, name) if data != b"other"]
    assert [p for who, p in got if who == "a"] == list(range(150))
    assert [p for who, p in got if who == "b"] == list(range(50))


@ATOMIC
def test_a_message_that_the_stream_refuses_stops_all_after_it(server, atomic):
    name = f"small_{atomic}"
    make(server.url, name, max_msg_size=400, allow_atomic=atomic)
    sink = Sink(Broker(server.url, name), name, "test")
    rows = make_delivered(("a", 0), ("a", 1), ("a", 2))
    sink.publish(rows[:1])
    rows[1] = type(rows[1])(receiver="a", position=1, payload=bytearray(500))
    with pytest.raises(CannotWrite, match="of a is not there"):
        sink.publish(rows)
    assert [position_of(data)[1] for _, data in read_stream(server.url, name)] == [0]


def test_a_subject_of_someone_else_is_not_written_to(server):
    make(server.url, "theirs")
    add(server.url, "theirs", [b"mine"], "a")
    with pytest.raises(CannotWrite, match="its last message is not ours"):
        Sink(Broker(server.url, "theirs"), "theirs", "test").publish(make_delivered(("a", 0)))


def test_rows_that_neither_continue_nor_repeat_what_is_there_are_refused(server):
    make(server.url, "strange", allow_atomic=True)
    sink = Sink(Broker(server.url, "strange"), "strange", "test")
    rows = make_delivered(*(("a", p) for p in range(5)))
    sink.publish(rows)
    with pytest.raises(CannotWrite, match="two rows have position 5"):
        sink.publish(make_delivered(("a", 5), ("a", 5)))
    with pytest.raises(CannotWrite, match="it is at position 4, and the rows end before"):
        sink.publish(rows[:3])
    other = [type(row)(sender="x", number=1, **row.asDict()) for row in rows]
    with pytest.raises(CannotWrite, match=r"another message is at position 4.*group="):
        sink.publish(other)
    assert [position_of(data)[1] for _, data in read_stream(server.url, "strange")] == list(range(5))


@pytest.mark.parametrize("subject", ["", "a.*", "a b"])
def test_a_sink_that_cannot_be_is_refused(subject):
    with pytest.raises(BadParameter, match="subject"):
        jetstream_sink("nats://localhost", "s", subject)


# All together


def test_packets_go_through_a_query_and_come_out_in_order_each_once(spark, server, tmp_path):
    view, packets = simulated(RunSpec(protocol="matrix", processes=3, messages=40, seed=5))
    rows = [{name: row[name] for name in row if name != "arrival"} for row in packets.to_pylist()]
    random.Random(5).shuffle(rows)
    # One that `order` refuses, and gives no position, does not come out.
    refused = {**rows[0], "number": 10_000, "stamp": b"?"}
    make(server.url, "wild", [encode(row) for row in (refused, *rows)])
    make(server.url, "tame", allow_atomic=True)
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        source = jetstream(spark, server.url, "wild")
        delivered = order(source, protocol="matrix", processes=view.names, time="arrival")
        query = (
            delivered.writeStream.foreachBatch(jetstream_sink(server.url, "tame", "tame"))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)

    run()
    # As if it had been killed after it published, and before it could note that.
    last = max(checkpoint.glob("commits/[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    run()
    came: dict[str, list[Any]] = {}
    for subject, data in read_stream(server.url, "tame"):
        row = json.loads(data)
        assert subject == f"tame.{row['receiver']}"
        came.setdefault(row["receiver"], []).append(row)
    for receiver, messages in came.items():
        assert [row["position"] for row in messages] == list(range(len(messages)))
        wanted = [(row["sender"], row["number"]) for row in rows if row["receiver"] == receiver]
        assert sorted((row["sender"], row["number"]) for row in messages) == sorted(wanted)
    assert sum(map(len, came.values())) == len(rows)


def run_through(spark, server, checkpoint, source, sink, names, **options):
    """Packets of one stream, delivered to another; how often it was tried."""
    packets = jetstream(spark, server.url, source)
    query = (
        order(packets, protocol=names[0], processes=names[1], **options)
        .writeStream.foreachBatch(jetstream_sink(server.url, sink, sink))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)


def test_groups_with_the_same_receivers_are_all_published(spark, server, tmp_path):
    runs = {
        group: simulated(RunSpec(protocol="matrix", processes=3, messages=40, seed=seed), group)
        for seed, group in enumerate(("red", "blue.1", "green"))
    }
    view = runs["red"][0]
    rows = [row for _, table in runs.values() for row in table.drop_columns(["arrival"]).to_pylist()]
    random.Random(6).shuffle(rows)
    make(server.url, "rooms", [encode(row) for row in rows])

    async def sink(js: Any) -> None:
        await js.add_stream(name="told", subjects=["told.>"], allow_atomic=True)

    with_stream(server.url, sink)
    run_through(spark, server, tmp_path / "checkpoint", "rooms", "told", ("matrix", view.names))
    came: dict[str, list[Any]] = {}
    for subject, data in read_stream(server.url, "told"):
        came.setdefault(subject, []).append(json.loads(data))
    wanted: dict[str, list[Any]] = {}
    for row in rows:
        subject = f"told.{row['group'].replace('.', '%2E')}.{row['receiver']}"
        wanted.setdefault(subject, []).append((row["sender"], row["number"]))
    assert came.keys() == wanted.keys()
    for subject, messages in came.items():
        assert [row["position"] for row in messages] == list(range(len(messages)))
        assert sorted((row["sender"], row["number"]) for row in messages) == sorted(wanted[subject])
    assert sum(map(len, came.values())) == len(rows) == 120


def test_labels_come_through_a_broker(server):
    row = {"receiver": "b", "sender": "a", "number": 1, "stamp": b"?", "label": "news", "group": "red"}
    make(server.url, "labels", [encode(row)])
    one = reader(server.url, "labels")
    [span] = one.partitions({"next": 1}, {"next": 2})
    [found] = [row for batch in one.read(span) for row in batch.to_pylist()]
    assert found == {**row, "payload": None, "arrival": 1}
    assert one.schema().names == list(found)
