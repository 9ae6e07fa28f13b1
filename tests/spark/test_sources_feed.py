"""What running nodes record, as streams: by their feeds over TCP, and by their files. Real processes."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from antecede.errors import BadParameter, BadTrace
from antecede.model import View
from antecede.net import Tls
from antecede.net.observe.recorder import Recorder
from antecede.net.serve.feed import Feed
from antecede.net.transports.keys import make_keys
from antecede.oracle import check
from antecede.process.events import Entry
from antecede.spark.sources import node_feed, traces
from antecede.spark.sources.nodes import Client, NodeFeed
from antecede.trace import events_of
from antecede.wire.feed import Answer, tell
from tests.processes import free_addresses, run_node

PATIENCE_S = 120


class Nodes:
    """Two nodes as processes, with feeds."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.names = ["ann", "bob"]
        places = free_addresses(4)
        self.peers = dict(zip(self.names, places[:2], strict=True))
        self.feeds = dict(zip(self.names, places[2:], strict=True))
        self.processes: dict[str, Any] = {}
        for name in self.names:
            self.start(name)

    def start(self, name: str) -> None:
        config = self.directory / f"{name}.toml"
        peers = "\n".join(f'{peer} = "{place}"' for peer, place in self.peers.items())
        config.write_text(
            f'name = "{name}"\ntrace = "trace"\njournal = "{name}.db"\nfeed = "{self.feeds[name]}"\n'
            f"[peers]\n{peers}\n[settings]\ntrace_s = 0.1\n"
        )
        self.processes[name] = run_node(config)
        self.hear(name, "ready")

    def hear(self, name: str, event: str) -> dict[str, Any]:
        for line in self.processes[name].stdout:
            told: dict[str, Any] = json.loads(line)
            if told["event"] == event:
                return told
        raise AssertionError(f"{name} ended before it said {event}")

    def say(self, sender: str, to: str, many: int) -> None:
        """Messages that are delivered and acknowledged."""
        for _ in range(many):
            stdin = self.processes[sender].stdin
            stdin.write(json.dumps({"do": "send", "to": to, "text": "x"}) + "\n")
            stdin.flush()
        for _ in range(many):
            got = self.hear(to, "message")
            stdin = self.processes[to].stdin
            stdin.write(json.dumps({"do": "ack", "sender": sender, "number": got["number"]}) + "\n")
            stdin.flush()

    def wait_for(self, name: str, events: int) -> None:
        client, until = Client(self.feeds[name]), time.monotonic() + PATIENCE_S
        while (told := client.reach()).next < events:
            assert time.monotonic() < until, f"{name} is at {told.next} of {events}"
            time.sleep(0.05)

    def end(self, name: str) -> None:
        process = self.processes[name]
        process.kill()
        process.communicate()


@pytest.fixture
def nodes(tmp_path):
    nodes = Nodes(tmp_path)
    yield nodes
    for name in nodes.names:
        nodes.end(name)


def run(source: Any, directory: Path) -> list[tuple[str, int, str, int]]:
    """Read all there is into files, and give all that is in them by now."""
    query = (
        source.writeStream.format("parquet")
        .option("path", str(directory / "out"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE_S)
    rows = source.sparkSession.read.parquet(str(directory / "out")).collect()
    return sorted((row["process"], row["index"], row["kind"], row["number"]) for row in rows)


def test_running_nodes_are_read_over_tcp_whatever_becomes_of_them(spark, nodes, tmp_path):
    nodes.say("ann", "bob", 4)
    nodes.wait_for("ann", 4)
    nodes.wait_for("bob", 8)
    places = [*nodes.feeds.values()]
    first = run(node_feed(spark, places), tmp_path / "tcp")
    assert [row for row in first if row[0] == "ann"] == [("ann", k, "send", k + 1) for k in range(4)]
    nodes.end("bob")
    nodes.start("bob")
    nodes.say("ann", "bob", 3)
    nodes.wait_for("ann", 7)
    nodes.wait_for("bob", 14)
    # A query that starts again reads the rest, whatever became of the node in between.
    second = run(node_feed(spark, places), tmp_path / "tcp")
    assert [(row[0], row[1]) for row in second] == [("ann", k) for k in range(7)] + [
        ("bob", k) for k in range(14)
    ]
    # The files say the same. That they are read as they appear, the tests of live verification show.
    recorded = spark.read.parquet(*map(str, (tmp_path / "trace" / "events").glob("*.parquet"))).count()
    assert recorded == len(second)
    assert check(events_of(tmp_path / "trace", "nodes")).ok


def test_places_in_the_feeds_of_several_nodes(nodes):
    nodes.say("ann", "bob", 2)
    nodes.wait_for("ann", 2)
    nodes.wait_for("bob", 4)
    ann, bob = nodes.feeds.values()
    reader = NodeFeed({"addresses": f"{ann},{bob}"}).streamReader(None)  # type: ignore[arg-type]
    assert reader.initialOffset() == {ann: 0, bob: 0}
    assert reader.latestOffset({ann: 0, bob: 0}, ReadAllAvailable()) == {ann: 2, bob: 4}
    assert reader.latestOffset({ann: 0, bob: 0}, ReadMaxRows(3)) == {ann: 1, bob: 2}
    assert reader.latestOffset({ann: 0, "old": 7}, ReadAllAvailable()) == {ann: 2, bob: 4, "old": 7}
    [span] = reader.partitions({ann: 0, bob: 4}, {ann: 2, bob: 4})
    again = [[row["index"] for batch in reader.read(span) for row in batch.to_pylist()] for _ in range(2)]
    assert again == [[0, 1], [0, 1]]
    with pytest.raises(BadTrace, match="it has another trace"):
        reader.latestOffset({ann: 50, bob: 0}, ReadAllAvailable())
    reader.prepareForTriggerAvailableNow()
    nodes.say("ann", "bob", 1)
    nodes.wait_for("ann", 3)
    assert reader.latestOffset({ann: 2, bob: 4}, ReadAllAvailable()) == {ann: 2, bob: 4}
    nodes.end("bob")
    assert reader.latestOffset({ann: 0, bob: 1}, ReadAllAvailable()) == {ann: 2, bob: 1}, "bob is away"
    with pytest.raises(BadTrace, match="no event 1 came for"):
        list(Client(bob, patience_s=0.1).read(1, 2))


def serve_answers(*answers: bytes) -> str:
    """Where each who asks gets the next of these answers, whatever the question."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server:
            for data in answers:
                connection, _ = server.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1:{server.getsockname()[1]}"


def stream(*indices: int) -> bytes:
    from antecede.trace import EVENTS

    rows = [
        {
            "run": "r",
            "process": "a",
            "index": k,
            "kind": "send",
            "sender": "a",
            "number": k,
            "control": False,
            "time_ns": 0,
        }
        for k in indices
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, EVENTS) as out:
        for row in rows:
            out.write_batch(pa.RecordBatch.from_pylist([row], schema=EVENTS))
    return sink.getvalue().to_pybytes()


def test_a_node_that_was_away_at_the_start_is_read_from_its_first_event():
    """Its trace was cleared up to there."""
    place = serve_answers(*[tell(Answer("a", "r", 5, 8))] * 2)
    reader = NodeFeed({"addresses": place})
    end = reader.latestOffset({}, ReadAllAvailable())
    assert [(span.start, span.end) for span in reader.partitions({}, end)] == [(5, 8)]


def test_a_connection_that_breaks_is_made_again_and_nothing_is_read_twice():
    head, whole = tell(Answer("a", "r", 0, 3)), stream(0, 1, 2)
    place = serve_answers(head + whole[: len(whole) * 2 // 3], head + stream(1, 2), head)
    rows = [row["index"] for batch in Client(place, patience_s=5).read(0, 3) for row in batch.to_pylist()]
    assert rows == [0, 1, 2]


def test_a_feed_over_tls_is_read_with_a_certificate_and_not_without(tmp_path):
    make_keys(tmp_path / "keys", ["ann", "reader"])
    files = {
        name: [tmp_path / "keys" / file for file in ("authority.pem", f"{name}.pem", f"{name}.key")]
        for name in ("ann", "reader")
    }
    recorder = Recorder(tmp_path, "r", "fifo", View.of("ann", "bob"), "ann")
    recorder.write([Entry(k, "send", 0, k + 1, (1,), "", 5) for k in range(3)])

    def read(place: str) -> list[int]:
        client = Client(place, tuple(map(str, files["reader"])), patience_s=5)
        assert client.reach().node == "ann"
        with pytest.raises(BadTrace, match="no event 0"):
            list(Client(place, patience_s=0.1).read(0, 3))
        return [row["index"] for batch in client.read(0, 3) for row in batch.to_pylist()]

    async def main() -> list[int]:
        async with Feed("127.0.0.1:0", tmp_path, "r", "ann", Tls(*files["ann"])) as feed:
            return await asyncio.to_thread(read, feed.address)

    assert asyncio.run(main()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"SSH-2.0\r\n", "malformed"),
        (tell(Answer(error="no")), "it refused events .*: no"),
        (tell(Answer("a", "r", 0, 3)) + stream(0, 2), r"it sent events \[2\]"),
    ],
)
def test_what_is_no_feed_is_told(data, told):
    with pytest.raises(BadTrace, match=told):
        list(Client(serve_answers(data), patience_s=1).read(0, 3))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"addresses": "localhost"}, "host:port"),
        ({"addresses": "a:1", "key": "k"}, "authority, certificate and key"),
        ({"addresses": "a:1", "maxRows": "0"}, "1 or more"),
    ],
)
def test_a_source_that_cannot_be_is_refused(options, told):
    with pytest.raises(BadParameter, match=told):
        NodeFeed(options)


def test_files_that_are_no_trace_are_told(spark, tmp_path):
    (tmp_path / "events").mkdir()
    pa.parquet.write_table(pa.table({"x": [1]}), tmp_path / "events" / "a.parquet")
    with pytest.raises(BadTrace, match=r"column run .*is missing"):
        traces(spark, tmp_path)
    with pytest.raises(BadTrace, match="a directory"):
        traces(spark, tmp_path / "events" / "a.parquet")
