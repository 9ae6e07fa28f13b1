"""Kafka on librdkafka's mock cluster: a broker on loopback that other clients and processes join."""

import warnings

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("confluent_kafka")

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from antecede.errors import BadParameter
from antecede.spark import order
from antecede.spark.sources import kafka, take_events
from antecede.spark.sources.kafka import KAFKA, DroppedRecords, Kafka
from antecede.spark.sources.offsets import LostRecords

PARTITIONS = 4
"""Of every topic of the mock cluster."""


def fill(producer, topic, values, partition=None, headers=None):
    for at, value in enumerate(values):
        place = at % PARTITIONS if partition is None else partition
        producer.produce(
            topic, value, key=f"k{at}".encode(), partition=place, headers=headers and headers[at]
        )
    assert producer.flush(30) == 0


def reader(servers, topic, **options):
    return Kafka({"kafka.bootstrap.servers": servers, "subscribe": topic, **options})


def read_all(source, start, end):
    return [
        row
        for span in source.partitions(start, end)
        for batch in source.read(span)
        for row in batch.to_pylist()
    ]


def test_batches_are_limited_and_end_where_the_fetch_says(broker):
    producer, servers = broker
    fill(producer, "limits", [str(at).encode() for at in range(40)], headers=[[("id", b"x")]] * 40)
    source = reader(servers, "limits")
    start = source.initialOffset()
    assert start == {"limits": {str(at): 0 for at in range(PARTITIONS)}}
    first = source.latestOffset(start, ReadMaxRows(8))
    assert sum(first["limits"].values()) == 8
    rows = read_all(source, start, first)
    assert len(rows) == 8
    assert rows[0].keys() == set(KAFKA.names)
    assert rows[0]["headers"] == [{"key": "id", "value": b"x"}]
    source.prepareForTriggerAvailableNow()
    fill(producer, "limits", [b"later"] * 4)
    last = source.latestOffset(first, ReadAllAvailable())
    assert sum(last["limits"].values()) == 40, "what came after the query began is for the next one"
    values = [row["value"] for row in read_all(source, first, last)]
    assert sorted(int(value) for value in values + [row["value"] for row in rows]) == list(range(40))
    assert sum(source.reportLatestOffset()["limits"].values()) == 44


def test_what_the_broker_has_dropped_is_told(broker):
    producer, servers = broker
    # The mock keeps 5 MiB a partition.
    fill(producer, "dropped", [bytes(400_000)] * 30, partition=1)
    start = {"dropped": {"1": 0}}
    strict = reader(servers, "dropped")
    end = {"dropped": {"1": strict.latestOffset(start, ReadAllAvailable())["dropped"]["1"]}}
    assert end == {"dropped": {"1": 30}}
    with pytest.raises(LostRecords, match=r"partition 1: its first offset is \d+, and 0 was not"):
        read_all(strict, start, end)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        rows = read_all(reader(servers, "dropped", failOnDataLoss="false"), start, end)
    [warning] = [one for one in told if one.category is DroppedRecords]
    first = rows[0]["offset"]
    assert f"{first} records dropped before they were read (offsets 0 to {first - 1})" in str(warning.message)
    assert [row["offset"] for row in rows] == list(range(first, 30))


def test_a_query_stops_with_a_sentence_when_records_were_dropped(spark, broker, tmp_path):
    producer, servers = broker
    fill(producer, "short", [b"first"], partition=0)

    def run(**options):
        records = kafka(spark, servers, "short", **options)
        writer = records.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()

    run()
    fill(producer, "short", [bytes(400_000)] * 30, partition=0)
    with pytest.raises(StreamingQueryException, match=r"topic short, partition 0: its first offset is "):
        run()
    run(fail_on_data_loss=False)
    offsets = [row["offset"] for row in spark.read.parquet(str(tmp_path / "out")).select("offset").collect()]
    assert min(offsets) == 0
    assert max(offsets) == 30
    assert len(offsets) < 31


def test_identifiers_and_causes_are_taken_from_headers_or_from_json(spark):
    headers = [("id", b"b"), ("after", b"a"), ("after", b"z"), ("at", b"7")]
    value = b'{"event": {"id": "b"}, "parents": ["a", "z"]}'
    row = (b"k", bytearray(value), "t", 0, 1, None, 0, [(name, bytearray(text)) for name, text in headers])
    none = (b"k", bytearray(b"no json"), "t", 0, 2, None, 0, None)
    frame = spark.createDataFrame([row, none], KAFKA)
    found = take_events(frame, id="id", causes="after", time="at", where="headers").collect()
    assert [(one["id"], one["causes"], one["time"]) for one in found] == [
        ("b", ["a", "z"], "7"),
        (None, [], None),
    ]
    found = take_events(frame, id="event.id", causes="parents").collect()
    assert [(one["id"], one["causes"]) for one in found] == [("b", ["a", "z"]), (None, [])]
    with pytest.raises(BadParameter, match="no column headers: give its source the option includeHeaders"):
        take_events(frame.drop("headers"), id="id", causes="after", where="headers")
    ordered = order(take_events(frame, id="event.id", causes="parents"), id="id", causes="causes")
    assert {"headers", "position", "waits_for"} <= set(ordered.columns)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "the option subscribe is missing"),
        (
            {"subscribe": "a", "startingOffsets": "yesterday"},
            "startingOffsets must be one of earliest, latest, not 'yesterday'",
        ),
        ({"subscribe": "a", "maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be 1 or more, not 0"),
        (
            {"subscribe": "a", "failOnDataLoss": "maybe"},
            "failOnDataLoss must be one of true, false, not 'maybe'",
        ),
    ],
)
def test_a_wrong_option_is_refused(options, told):
    with pytest.raises(BadParameter, match=told):
        Kafka({"kafka.bootstrap.servers": "127.0.0.1:9", **options})
