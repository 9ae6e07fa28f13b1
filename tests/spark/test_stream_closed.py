"""Closed sets: without Spark on arrays, and a hot monitor on Spark that is stopped between micro-batches."""

from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from antecede.errors import BadParameter
from antecede.oracle import happened_before
from antecede.spark.stream import cut, waiting
from antecede.spark.stream.bucket import step
from antecede.spark.stream.closed import checked, columns, deliver_closed
from antecede.spark.stream.packets import packets_of
from antecede.spark.stream.settings import Settings
from antecede.spark.stream.stamps import CODES
from tests.driver import VARIANTS, Habits, drive


def hot(protocol: str, seed: int, messages: int = 40):
    """A run, and the packets to its first process, in some order, some twice."""
    random = Random(f"hot {protocol} {seed}")
    n = 2 + seed % 4
    run = drive(VARIANTS[protocol].machines(n), Habits(n=n, messages=messages), random)
    packets = [packet for packet in run.packets if packet.dest == 0]
    packets = random.sample(packets, len(packets))
    return run, [*packets, *packets[:5]], Settings(protocol, run.machines[0].view.names)


@pytest.mark.parametrize("protocol", cut.KINDS)
def test_the_largest_closed_set_is_what_machines_deliver(protocol):
    for seed in range(20):
        run, packets, settings = hot(protocol, seed)
        rows = packets_of(packets, run.machines[0].view)
        order = happened_before(run.events)
        for size in (len(rows) // 3, len(rows)):
            some = rows.slice(0, size)
            _, out, _ = step(None, some, 0, settings)
            expected = {(r["sender"], r["number"]) for r in out.to_pylist()}
            n = len(settings.processes)
            reached = np.zeros(n, np.int64)
            reached[0] = 1 << 62
            sound, refused = checked(some, settings, 0, 0, reached)
            assert len(refused) == 0
            source, number = columns(sound)
            position, total = cut.sums(CODES[protocol], n, sound["stamp"], source, number)
            until = cut.prefixes(reached, source, position)
            while True:
                less = cut.asking(CODES[protocol], 0, sound["stamp"], source, number, position, until)
                if (less == until).all():
                    break
                until = less
            places = cut.ranked(reached, until, source, position, total, 0)
            chosen = np.argsort(places)[(places < 0).sum() :]
            ids = [(int(source[at]), int(number[at])) for at in chosen]
            assert {(settings.processes[s], m) for s, m in ids} == expected
            assert sorted(places[places >= 0].tolist()) == list(range(len(expected)))
            assert not any(order.precedes(b, a) for i, a in enumerate(ids) for b in ids[i + 1 :])


def test_what_is_no_packet_of_this_receiver_is_refused():
    run, packets, settings = hot("monitor", 3)
    rows = packets_of(packets[:3], run.machines[0].view).to_pylist()
    rows[0]["stamp"] = b"\x06\x00"
    rows[1]["receiver"] = "p2"
    table = pa.Table.from_pylist(rows, packets_of(packets[:1], run.machines[0].view).schema)
    sound, refused = checked(table, settings, 0, 0, np.zeros(len(settings.processes), np.int64))
    assert len(sound) == 1
    assert sorted(row["reason"] for row in refused.to_pylist()) == [
        "it is not for p1",
        "not a packet at byte 2: found the end, expected a number",
    ]


def test_a_hot_monitor_is_delivered_once_over_restarts(spark, tmp_path):
    run, packets, settings = hot("monitor", 3, messages=120)
    rows = packets_of(packets, run.machines[0].view)
    source = tmp_path / "in"
    source.mkdir()
    statuses: list[Any] = []
    schema = "receiver string, sender string, number long, stamp binary, payload binary, arrival long"
    size = len(rows) // 3 + 1
    for part in range(3):
        pq.write_table(rows.slice(part * size, size), source / f"{part}.parquet")
        stream = spark.readStream.schema(schema).parquet(str(source))
        writer = deliver_closed(
            stream, "monitor", settings.processes, receiver="p1", out=tmp_path / "out",
            checkpoint=tmp_path / "checkpoint", note=statuses.append,
        )  # fmt: skip
        writer.trigger(availableNow=True).start().awaitTermination()
        held = waiting(spark, tmp_path / "checkpoint").toArrow().to_pylist()
        assert len(held) == statuses[-1].held
        assert all(row["awaits"] for row in held)
    out = pq.read_table(tmp_path / "out").sort_by("position").to_pylist()
    ids = [(run.machines[0].view.id(row["sender"]), row["number"]) for row in out]
    assert [row["position"] for row in out] == list(range(len(out)))
    assert sorted(ids) == sorted({packet.message.id for packet in packets})
    order = happened_before(run.events)
    assert not any(order.precedes(b, a) for i, a in enumerate(ids) for b in ids[i + 1 :])
    assert len(statuses) == 3
    assert statuses[0].held > 0
    assert statuses[-1].held == 0

    # A micro-batch that was done before Spark knew of it is not done again.
    before = sorted((tmp_path / "out").rglob("*.parquet"))
    (tmp_path / "checkpoint" / "commits" / "2").unlink()
    (tmp_path / "checkpoint" / "commits" / ".2.crc").unlink(missing_ok=True)
    stream = spark.readStream.schema(schema).parquet(str(source))
    options = {"receiver": "p1", "out": tmp_path / "out", "checkpoint": tmp_path / "checkpoint"}
    writer = deliver_closed(stream, "monitor", settings.processes, **options)
    writer.trigger(availableNow=True).start().awaitTermination()
    assert sorted((tmp_path / "out").rglob("*.parquet")) == before


def test_protocols_without_whole_vectors_are_refused(spark, tmp_path):
    schema = "receiver string, sender string, number long, stamp binary, payload binary"
    stream = spark.readStream.schema(schema).parquet(str(tmp_path))
    with pytest.raises(BadParameter, match="protocol is matrix, expected one of monitor, broadcast"):
        deliver_closed(stream, "matrix", ["p1", "p2"], receiver="p1", out=tmp_path, checkpoint=tmp_path)
