"""Streams of every kind that are killed by a real SIGKILL go on as if they had not been."""

import itertools
import json
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest

from antecede.spark.stream.packets import packets_of
from tests.spark.killed_streams import RUN, give_files, kill_streams
from tests.spark.packet_steps import as_messages
from tests.spark.test_sources_kafka import fill
from tests.spark.test_stream import order_by_machine, packets, place_rows, written
from tests.spark.test_stream_bucket import by_receiver
from tests.spark.test_stream_causes import check_output
from tests.spark.test_stream_causes import history as draw_causes
from tests.spark.test_stream_causes import write_files as write_causes
from tests.spark.test_stream_closed import Sets, hot
from tests.spark.test_stream_vectors import check_order
from tests.spark.test_stream_vectors import history as draw_vectors
from tests.spark.test_stream_vectors import write_files as write_vectors

FILES = 12
GIVEN = (3, 10, FILES)
"""Files that are there when the streams start, when they are killed, and after that."""


def draw_stamps(home):
    view, rows = packets(400, seed=5)
    (home / "names").write_text(",".join(view.names))
    written(home / "made", rows, FILES)
    return view, rows


def draw_closed(home):
    run, some, settings = hot("monitor", 7, messages=400)
    (home / "names").write_text(",".join(settings.processes))
    written(home / "made", packets_of(some, run.machines[0].view), FILES)
    return settings


@pytest.fixture(scope="module")
def killed(tmp_path_factory, broker):
    """The directory of each stream, and what is known of it."""
    root = tmp_path_factory.mktemp("killed")
    homes = {kind: root / kind for kind in RUN}
    for home in homes.values():
        home.mkdir()
    random = Random(6)
    causes = random.sample(draw_causes(random, events=240, partitions=3), 240)
    write_causes(homes["causes"] / "made", causes, FILES)
    vectors = draw_vectors(random, events=240, partitions=3)
    write_vectors(homes["vectors"] / "made", random.sample(vectors, len(vectors)), FILES)
    made = {
        "stamps": draw_stamps(homes["stamps"]),
        "closed": draw_closed(homes["closed"]),
        "causes": causes,
        "vectors": vectors,
    }
    feeds = {kind: give_files(homes[kind], GIVEN) for kind in made}
    producer, servers = broker
    (homes["kafka"] / "servers").write_text(servers)
    # Each follows the one before, and they lie in partitions against their order.
    chain = [json.dumps({"id": f"m{at}", "after": [f"m{at - 1}"] if at else []}).encode() for at in range(60)]
    parts = [chain[begin:end][::-1] for begin, end in itertools.pairwise([0, 18, 48, 60])]
    feeds["kafka"] = [lambda part=part: fill(producer, "chat", part) for part in parts]
    kill_streams(root, feeds)
    return homes, made


def go_on(spark, killed, kind, **options):
    homes, made = killed
    outcome = RUN[kind](spark, homes[kind], True, **options)
    return homes[kind], made.get(kind), outcome


def test_packets_with_stamps_are_ordered_once(spark, killed):
    home, (view, rows), outcome = go_on(spark, killed, "stamps")
    assert outcome.complete
    delivered = spark.read.parquet(str(home / "out")).toArrow().to_pylist()
    assert by_receiver(place_rows(delivered)) == order_by_machine(rows, view)


def read_planned_files(checkpoint):
    """The files of each micro-batch. After a kill it may have two: the one that was listed, and the next."""
    listed = [
        json.loads(line)
        for path in (checkpoint / "sources" / "0").glob("[0-9]*")
        for line in path.read_text().splitlines()[1:]
    ]
    offsets = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    ends = [json.loads(path.read_text().splitlines()[-1])["logOffset"] for path in offsets]
    return [
        sorted((Path(one["path"]).name for one in listed if begin < one["batchId"] <= end), key=name_number)
        for begin, end in itertools.pairwise([-1, *ends])
    ]


def name_number(name):
    return int(name.removesuffix(".parquet"))


def test_closed_sets_are_delivered_once_in_the_order_of_their_micro_batches(spark, killed):
    home, settings, outcome = go_on(spark, killed, "closed")
    planned = read_planned_files(home / "checkpoint")
    assert sorted(map(name_number, itertools.chain(*planned))) == list(range(FILES))
    sets, right = Sets(settings), []
    for names in planned:
        tables = [pq.read_table(home / "in" / name) for name in names]
        right += [(settings.processes[sender], number) for sender, number in sets.advance(tables)]
    assert (outcome.complete, outcome.batches, outcome.delivered) == (True, len(planned), len(right))
    found = as_messages(pq.read_table(home / "out")).sort_by("position").to_pylist()
    assert [row["position"] for row in found] == list(range(len(right)))
    assert [(row["sender"], row["number"]) for row in found] == right


def test_events_with_causes_are_ordered_once(spark, killed):
    home, rows, _ = go_on(spark, killed, "causes", files=4)
    check_output(spark, home, rows)


def test_events_with_vectors_are_ordered_once(spark, killed):
    home, rows, _ = go_on(spark, killed, "vectors")
    out = spark.read.parquet(str(home / "out")).withColumnRenamed("room", "__partition").toArrow().to_pylist()
    assert len(out) == len(rows)
    check_order(out)


def test_records_of_kafka_are_delivered_once(spark, killed):
    home, _, _ = go_on(spark, killed, "kafka")
    out = spark.read.parquet(str(home / "out")).orderBy("position").collect()
    assert [row["id"] for row in out] == [f"m{at}" for at in range(60)]
    assert {"key", "value", "topic", "partition", "offset", "timestamp", "headers"} <= set(out[0].asDict())
