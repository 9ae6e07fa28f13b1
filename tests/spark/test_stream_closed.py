"""Closed sets: without Spark on arrays, and a hot monitor on Spark that is stopped between micro-batches."""

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs

pytest.importorskip("pyspark")

import pyspark

from antecede.errors import BadParameter, BadSnapshot
from antecede.model import Message, Packet, View
from antecede.oracle import happened_before
from antecede.protocols.monitor import MonitorStamp
from antecede.spark.class_archive import java_options
from antecede.spark.stream import closed, waiting
from antecede.spark.stream.api import select_packets
from antecede.spark.stream.closed import Closing, deliver_closed, read_status
from antecede.spark.stream.packets import PACKETS, Settings, packets_of
from tests.driver import VARIANTS, Habits, drive
from tests.spark.packet_steps import advance, as_messages, step


def hot(protocol: str, seed: int, messages: int = 40):
    """A run, and the packets to its first process, in some order, some twice."""
    random = Random(f"hot {protocol} {seed}")
    n = 2 + seed % 4
    run = drive(VARIANTS[protocol].machines(n), Habits(n=n, messages=messages), random)
    packets = [packet for packet in run.packets if packet.dest == 0]
    packets = random.sample(packets, len(packets))
    return run, [*packets, *packets[:5]], Settings(protocol, run.machines[0].view.names)


SCHEMA = "receiver string, sender string, number long, stamp binary, payload binary, arrival long"


class Sets:
    """Closed sets without Spark: a bucket that is kept as bytes from one step to the next."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.opened = msgspec.structs.replace(settings, receiver=0)
        self.state: bytes = self.opened.open(None).dump()

    def take(self, table, now=0):
        bucket = self.opened.open(self.state)
        out, status = advance(bucket, table, now)
        self.state = bucket.dump()
        return out.to_pylist(), status

    def advance(self, tables):
        """The messages that these let out, in order, as (sender, number)."""
        out, _ = self.take(pa.concat_tables(tables))
        return [(self.settings.processes.index(row["sender"]), row["number"]) for row in out]


@pytest.mark.parametrize("protocol", closed.KINDS)
def test_closed_sets_are_what_machines_deliver_step_by_step(protocol):
    for seed in range(30):
        run, packets, settings = hot(protocol, seed)
        rows = packets_of(packets, run.machines[0].view)
        order, random = happened_before(run.events), Random(seed)
        ends = [0, *sorted(random.sample(range(1, len(rows)), 3)), len(rows)]
        sets, state, all_ids = Sets(settings), None, []
        for begin, end in itertools.pairwise(ends):
            some = rows.slice(begin, end - begin)
            state, out, status = step(state, some, 0, settings, kernel=False)
            found, told = sets.take(some)
            assert {(row["sender"], row["number"]) for row in found} == {
                (row["sender"], row["number"]) for row in out.to_pylist()
            }, f"{protocol}, seed {seed}"
            assert (told.held, told.rows_in) == (status.held, len(some))
            all_ids += [(settings.processes.index(row["sender"]), row["number"]) for row in found]
            # The same, in whatever order Spark hands the rows over.
            again = Sets(settings)
            again.take(rows.slice(0, begin))
            shuffled = some.take(random.sample(range(len(some)), len(some)))
            assert [pick_columns(row) for row in again.take(shuffled)[0]] == [
                pick_columns(row) for row in found
            ]
        assert not any(order.precedes(b, a) for i, a in enumerate(all_ids) for b in all_ids[i + 1 :])


def pick_columns(row):
    return tuple(row[name] for name in ("sender", "number", "kind", "gave_up"))


@pytest.mark.parametrize("protocol", closed.KINDS)
def test_what_is_given_up_and_comes_late_is_marked_as_by_machines(protocol):
    seen = {"late": 0, "gave up": 0, "lacking something": 0, "lacking nothing again": 0}
    for seed in range(20):
        run, packets, settings = hot(protocol, seed)
        settings = structs.replace(settings, patience_ms=2)
        rows, random = packets_of(packets, run.machines[0].view), Random(seed)
        # Some are lost, and come at the end, or never.
        lost = random.sample(range(len(rows)), len(rows) // 6)
        order = [at for at in range(len(rows)) if at not in lost] + lost[1:] + list(range(5))
        sets, state, was = Sets(settings), None, False
        for now, begin in enumerate(range(0, len(order), 6)):
            some = rows.take(order[begin : begin + 6])
            state, out, status = step(state, some, now, settings, kernel=False)
            found, told = sets.take(some, now)
            expected = [pick_columns(row) for row in out.to_pylist()]
            assert sorted(map(pick_columns, found), key=str) == sorted(expected, key=str), (
                f"{protocol}, seed {seed}, step {now}"
            )
            counts = ("rows_in", "delivered", "late", "gave_up", "held", "oldest_ms")
            assert [getattr(told, one) for one in counts] == [getattr(status, one) for one in counts]
            seen["late"] += told.late
            seen["gave up"] += told.gave_up
            lacking = bool(sets.opened.open(sets.state).counts.gaps)
            seen["lacking something"] += lacking
            seen["lacking nothing again"] += was and not lacking
            was = lacking
    assert all(seen.values()), seen


def test_a_repeat_with_another_stamp_takes_nothing_back():
    run, packets, settings = hot("monitor", 3)
    rows = packets_of(packets, run.machines[0].view)
    sets = Sets(settings)
    assert sets.advance([rows])
    before = sets.state
    # Its number was delivered; what it asks for never was.
    stamp = MonitorStamp(1, tuple(0 if process == 1 else 99 for process in range(len(settings.processes))))
    again = Packet(1, 0, stamp, Message(1, 1, (0,), b""))
    assert sets.advance([packets_of([again], run.machines[0].view)]) == []
    assert sets.state == before


def test_what_is_no_packet_of_this_receiver_is_refused():
    run, packets, settings = hot("monitor", 3)
    rows = packets_of(packets[:5], run.machines[0].view).to_pylist()
    rows[0]["stamp"] = b"\x06\x00"
    rows[1]["receiver"] = "p2"
    rows[2]["sender"] = "p1"
    rows[3]["stamp"] = b""
    found, status = Sets(settings).take(pa.Table.from_pylist(rows, PACKETS))
    assert (status.rows_in, status.refused, status.delivered + status.held) == (5, 4, 1)
    assert {row["number"]: row["reason"] for row in found if row["kind"] == "refused"} == {
        rows[0]["number"]: "not a packet at byte 2: it ends where a number begins",
        rows[1]["number"]: "it is not for p1",
        rows[2]["number"]: "p1 refused a packet: it comes from p1, which is no peer",
        rows[3]["number"]: "the stamp has 0 bytes, and may have 1 to 4194304",
    }


def deliver_files(spark, source, settings, **options):
    """The stream of the packets in a directory."""
    stream = spark.readStream.schema(SCHEMA).parquet(str(source))
    return deliver_closed(stream, settings.protocol, settings.processes, **options)


def test_a_hot_monitor_is_delivered_once_over_restarts(spark, tmp_path):
    run, packets, settings = hot("monitor", 3, messages=120)
    rows = packets_of(packets, run.machines[0].view)
    source = tmp_path / "in"
    source.mkdir()
    statuses: list[Any] = []
    places = {"receiver": "p1", "out": tmp_path / "out", "checkpoint": tmp_path / "checkpoint"}
    size = len(rows) // 3 + 1
    for part in range(3):
        pq.write_table(rows.slice(part * size, size), source / f"{part} %.parquet", row_group_size=20)
        writer = deliver_files(spark, source, settings, **places)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        statuses.append(read_status(tmp_path / "checkpoint", part))
        assert (
            query.lastProgress["numInputRows"] == statuses[-1].rows_in == min(size, len(rows) - part * size)
        )
        held = waiting(spark, tmp_path / "checkpoint").toArrow().to_pylist()
        assert len(held) == statuses[-1].held
        assert all(row["awaits"] for row in held)
    out = as_messages(pq.read_table(tmp_path / "out")).sort_by("position").to_pylist()
    ids = [(run.machines[0].view.id(row["sender"]), row["number"]) for row in out]
    payloads = {packet.message.id: packet.message.payload for packet in packets}
    assert [row["position"] for row in out] == list(range(len(out)))
    assert {key: row["payload"] for key, row in zip(ids, out, strict=True)} == payloads
    assert len(ids) == len(payloads)
    assert {(row["receiver"], row["kind"], row["gave_up"]) for row in out} == {("p1", "delivered", None)}
    order = happened_before(run.events)
    assert not any(order.precedes(b, a) for i, a in enumerate(ids) for b in ids[i + 1 :])
    assert statuses[0].held > 0
    assert (len(statuses), statuses[-1].held) == (3, 0)
    # Nothing is left of what only a micro-batch that is over needed.
    left = {path.name for path in (tmp_path / "checkpoint" / "closed").iterdir()}
    assert left == {"slot-0", "slot-1", "slot-2"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"batch=0", "batch=1", "batch=2"}

    # A micro-batch that was done before Spark knew of it is not done again.
    before = sorted((tmp_path / "out").rglob("*.parquet"))
    (tmp_path / "checkpoint" / "commits" / "2").unlink()
    (tmp_path / "checkpoint" / "commits" / ".2.crc").unlink(missing_ok=True)
    deliver_files(spark, source, settings, **places).trigger(availableNow=True).start().awaitTermination()
    assert sorted((tmp_path / "out").rglob("*.parquet")) == before


def test_storage_that_only_spark_knows_will_do(spark, tmp_path):
    run, packets, settings = hot("monitor", 3, messages=60)
    rows = packets_of(packets, run.machines[0].view)
    (tmp_path / "in").mkdir()
    own = spark.newSession()
    # Names of Hadoop for a directory, which PyArrow does not know.
    own.conf.set("fs.viewfs.mounttable.default.link./here", f"file://{tmp_path}")
    half = len(rows) // 2
    for part in range(2):
        pq.write_table(
            rows.slice(part * half, half if part == 0 else len(rows)), tmp_path / "in" / f"{part}.parquet"
        )
        places = {"out": "viewfs:///here/out", "checkpoint": "viewfs:///here/checkpoint"}
        writer = deliver_files(own, tmp_path / "in", settings, receiver="p1", **places)
        writer.trigger(availableNow=True).start().awaitTermination()
    out = as_messages(own.read.parquet("viewfs:///here/out").toArrow()).sort_by("position").to_pylist()
    assert [row["position"] for row in out] == list(range(len({packet.message.id for packet in packets})))
    assert waiting(own, "viewfs:///here/checkpoint").count() == 0


def test_patience_ends_on_spark_and_a_late_cause_is_marked(spark, tmp_path):
    run, packets, settings = hot("monitor", 3, messages=60)
    rows = packets_of(packets, run.machines[0].view)
    settings = structs.replace(settings, patience_ms=1)
    (tmp_path / "in").mkdir()
    places = {"receiver": "p1", "out": tmp_path / "out", "checkpoint": tmp_path / "checkpoint"}
    statuses, state, expected = list[Any](), None, []
    for part, (begin, end) in enumerate(itertools.pairwise([0, 8, 16, len(rows)])):
        some = rows.slice(begin, end - begin)
        state, out, status = step(state, some, 10 * part, settings)
        expected += [pick_columns(row) for row in out.to_pylist()]
        pq.write_table(some, tmp_path / "in" / f"{part}.parquet")
        writer = deliver_files(spark, tmp_path / "in", settings, **places, patience="1 millisecond")
        writer.trigger(availableNow=True).start().awaitTermination()
        statuses.append(read_status(tmp_path / "checkpoint", part))
        counts = ("rows_in", "delivered", "late", "gave_up", "held")
        assert [getattr(statuses[-1], name) for name in counts] == [getattr(status, name) for name in counts]
    found = as_messages(pq.read_table(tmp_path / "out")).sort_by("position").to_pylist()
    assert [row["position"] for row in found] == list(range(len(expected)))
    assert sorted(map(pick_columns, found), key=str) == sorted(expected, key=str)
    assert {"late", "delivered"} == {row["kind"] for row in found}
    assert sum(status.gave_up for status in statuses) == sum(bool(row["gave_up"]) for row in found)


def test_a_state_that_an_older_version_left_is_continued(spark, tmp_path):
    kept = Path(__file__).parent / "states" / "closed-2"
    shutil.copytree(kept / "closed", tmp_path / "checkpoint" / "closed")
    settings = Settings("monitor", ("p1", "p2", "p3", "p4"))
    opened = msgspec.structs.replace(settings, receiver=0)
    closing = Closing(opened, PACKETS.names, f"file:{tmp_path}/out", f"file:{tmp_path}/checkpoint/closed")
    rows = select_packets(spark.read.schema(SCHEMA).parquet(str(kept / "rest.parquet")), "stamp", None, None)
    closing(rows, 1)
    found = as_messages(pq.read_table(tmp_path / "out")).sort_by("position").to_pylist()
    rest = pq.read_table(kept / "rest.parquet").num_rows
    assert [row["position"] for row in found] == list(range(8, 8 + 1 + rest))
    status = read_status(tmp_path / "checkpoint", 1)
    assert status is not None
    assert status.held == 0
    with pytest.raises(BadSnapshot, match="has no state of micro-batch"):
        closing(rows, 8)


SPECULATED = """
import sys
from pathlib import Path
from antecede.spark import connect
from antecede.spark.order.files import Source, order_files
from antecede.spark.stream.api import Asked
source, out, checkpoint, log, names, quick = sys.argv[1:]
spark = connect("local-cluster[2,1,1024]", log=log, settings={
    "spark.executor.memory": "1g", "spark.sql.shuffle.partitions": "2", "spark.sql.files.maxPartitionBytes": "64k",
    "spark.driver.defaultJavaOptions": quick, "spark.executor.defaultJavaOptions": quick,
    "spark.speculation": "true", "spark.speculation.interval": "10ms", "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.0", "spark.speculation.minTaskRuntime": "1ms",
})
spark.sparkContext.setLogLevel("INFO")
options = {"by": "closed", "receiver": "p1", "files_per_batch": 2}
asked = Asked(protocol="monitor", processes=names.split(","))
order_files(spark, Source(source, asked, **options), out, checkpoint, once=True)
spark.stop()
"""


def test_attempts_that_run_beside_each_other_write_each_message_once(tmp_path):
    """A second attempt of each task begins as soon as a first of them has ended."""
    names = [f"p{at + 1}" for at in range(9)]
    random, sent, rows, size = Random(4), [0] * 9, [], 60_000
    for _ in range(size):
        sender = random.randrange(1, 9)
        known = [0 if at == sender else max(0, count - 20) for at, count in enumerate(sent)]
        known[sender] = sent[sender]
        sent[sender] += 1
        stamp = MonitorStamp(sent[sender], (0, *known[1:]))
        rows.append(Packet(sender, 0, stamp, Message(sender, sent[sender], (0,), bytes(40))))
    table = packets_of(rows, View(tuple(names)))
    (tmp_path / "in").mkdir()
    # Uneven: a task that is done soon lets the others be tried again.
    for part, (begin, end) in enumerate(((0, 100), (100, 30_000), (30_000, 30_100), (30_100, size))):
        pq.write_table(table.slice(begin, end - begin), tmp_path / "in" / f"{part}.parquet")
        os.utime(tmp_path / "in" / f"{part}.parquet", (part + 1, part + 1))
    places = [tmp_path / name for name in ("in", "out", "checkpoint", "log")]
    environment = {**os.environ, "SPARK_HOME": str(link_spark(tmp_path))}
    # As of here: a driver with a SPARK_HOME of its own would look for an archive of that.
    command = [sys.executable, "-c", SPECULATED, *map(str, places), ",".join(names), java_options(small=True)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "as speculatable" in (tmp_path / "log").read_text(), "no second attempt was made"
    found = pq.read_table(tmp_path / "out").sort_by("position")
    assert found["position"].to_pylist() == list(range(size))
    assert len(set(zip(found["sender"].to_pylist(), found["number"].to_pylist(), strict=True))) == size


def link_spark(home):
    """Spark, where workers may write: their directory is made in SPARK_HOME, which is the installed package."""
    (home / "spark").mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        (home / "spark" / part.name).symlink_to(part)
    return home / "spark"


def test_protocols_without_whole_vectors_are_refused(spark, tmp_path):
    stream = spark.readStream.schema(SCHEMA).parquet(str(tmp_path))
    with pytest.raises(BadParameter, match=r"protocol must be one of monitor, broadcast, .*not 'matrix'"):
        deliver_closed(stream, "matrix", ["p1", "p2"], receiver="p1", out=tmp_path, checkpoint=tmp_path)
