"""A streaming source: the records of Kafka topics, with the columns of Spark's own Kafka source.

Without the connector's jar: the client is `confluent-kafka` (`pip install antecede[kafka]`), and the options have
the names that Spark's source gives them. A query moves from one to the other by its first line.

Rules
  offset     for each topic and partition the next record to read, as Spark's source has it: {"orders": {"0": 17}}. A
             partition's records keep their offsets, so a batch that is read again is the same, and the checkpoint alone
             says what was read: no consumer group is used
  admission  `maxOffsetsPerTrigger` records a batch at most, a share for each partition by what it has
  now        under `Trigger.AvailableNow`, up to what the topics hold when the query starts
  end        how far a partition goes is what the broker says when it is fetched from (the high watermark): some brokers
             answer wrongly when they are asked for the latest offset
  lost       records that the broker has dropped before they were read stop the query with a sentence or, with
             `failOnDataLoss=false`, are passed over, and a warning says how many

`take_events` finds identifiers and causes in such records, in headers or in JSON.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from antecede.errors import BadParameter, InputError
from antecede.spark.causes import split_text
from antecede.spark.errors import errors_marked, mark_errors
from antecede.spark.sources.offsets import MOST, NumberedReader, Reach, read_count

__all__ = ["KAFKA", "DroppedRecords", "Kafka", "LostRecords", "kafka", "take_events"]

KAFKA: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField(
            "headers",
            ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
        ),
    ]
)
"""What Spark's Kafka source gives with `includeHeaders`."""

BATCH: Final = 8192
"""Records that are handed to Spark at once."""
PATIENCE_S: Final = 60.0
"""Without an answer from the broker for so long, a task fails."""

Offsets = dict[str, dict[str, int]]


def kafka(
    spark: SparkSession,
    servers: str,
    topics: str | Sequence[str],
    *,
    starting: str = "earliest",
    max_rows: int = MOST,
    fail_on_data_loss: bool = True,
    client: Mapping[str, str] | None = None,
) -> DataFrame:
    """A streaming DataFrame of the records of topics, with the columns `KAFKA`. `client` are settings of librdkafka."""
    spark.dataSource.register(Kafka)
    named = [topics] if isinstance(topics, str) else list(topics)
    options = {
        "kafka.bootstrap.servers": servers,
        "subscribe": ",".join(named),
        "startingOffsets": starting,
        "maxOffsetsPerTrigger": str(max_rows),
        "failOnDataLoss": str(fail_on_data_loss).lower(),
        **{f"kafka.{name}": value for name, value in (client or {}).items()},
    }
    Kafka(options)
    return spark.readStream.format(Kafka.name()).options(**options).load()


class LostRecords(InputError):
    """Records that were to be read are not in the topic any more."""

    def __init__(self, topic: str, partition: int, reason: str) -> None:
        self.topic, self.partition, self.reason = topic, partition, reason
        super().__init__(f"topic {topic}, partition {partition}: {reason}")


class DroppedRecords(UserWarning):
    """Records were passed over, because the broker has dropped them."""


class Unanswered(InputError):
    """A broker that does not say what it must."""

    def __init__(self, servers: str, found: str) -> None:
        self.servers, self.found = servers, found
        super().__init__(f"kafka at {servers}: {found}")


class Kafka(DataSource):
    """The source, as Spark knows it. Spark hands options in lower case; librdkafka's names are that."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        load_client()
        given = {name.lower(): value for name, value in options.items()}
        for needed in ("kafka.bootstrap.servers", "subscribe"):
            if not given.get(needed):
                raise BadParameter("kafka", f"the option {needed} is missing")
        self.topics = [name.strip() for name in given["subscribe"].split(",") if name.strip()]
        self.starting = given.get("startingoffsets", "earliest")
        if self.starting not in ("earliest", "latest"):
            raise BadParameter.choice("kafka", "startingOffsets", self.starting, ("earliest", "latest"))
        self.max_rows = read_count("kafka", given, "maxoffsetspertrigger", MOST, "maxOffsetsPerTrigger")
        fail = given.get("failondataloss", "true").lower()
        if fail not in ("true", "false"):
            raise BadParameter.choice("kafka", "failOnDataLoss", fail, ("true", "false"))
        self.fail = fail == "true"
        own = {name[6:]: value for name, value in given.items() if name.startswith("kafka.")}
        self.brokers = Brokers(own, self.fail)

    @classmethod
    def name(cls) -> str:
        return "antecede_kafka"

    def schema(self) -> StructType:
        return KAFKA

    def streamReader(self, schema: StructType) -> KafkaReader:
        return KafkaReader(self)


def load_client() -> Any:
    try:
        import confluent_kafka
    except ImportError:
        raise BadParameter(
            "kafka", "confluent-kafka is not installed: pip install 'antecede[kafka]'"
        ) from None
    return confluent_kafka


class Span(InputPartition):
    """The records of a partition from `start` to before `end`."""

    def __init__(self, topic: str, partition: int, start: int, end: int) -> None:
        super().__init__((topic, partition, start, end))
        self.topic, self.partition, self.start, self.end = topic, partition, start, end


class Brokers:
    """A cluster, as a consumer without a group sees it."""

    def __init__(self, settings: Mapping[str, str], fail: bool) -> None:
        self.settings, self.fail = dict(settings), fail

    @property
    def servers(self) -> str:
        return self.settings["bootstrap.servers"]

    def open(self, **more: Any) -> Any:
        return load_client().Consumer(
            {
                "group.id": "antecede",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                # An offset that is not there is told, not replaced.
                "auto.offset.reset": "error",
                **self.settings,
                **more,
            }
        )

    def list_partitions(self, consumer: Any, topics: Sequence[str]) -> list[tuple[str, int]]:
        errors = load_client().KafkaException
        found = []
        for topic in topics:
            try:
                told = consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic]
            except errors as error:
                raise Unanswered(self.servers, error.args[0].str()) from None
            if told.error is not None:
                raise Unanswered(self.servers, f"topic {topic}: {told.error.str()}")
            found += [(topic, partition) for partition in sorted(told.partitions)]
        return found

    def reach(self, topics: Sequence[str]) -> dict[tuple[str, int], Reach]:
        """How far each partition goes, by what a fetch from its end says."""
        module = load_client()
        # Little is fetched: only the answer's head is wanted.
        consumer = self.open(
            **{"queued.min.messages": 1, "fetch.message.max.bytes": 1024, "fetch.wait.max.ms": 10}
        )
        try:
            partitions = self.list_partitions(consumer, topics)
            places = [module.TopicPartition(*one, module.OFFSET_END) for one in partitions]
            consumer.assign(places)
            ends: dict[tuple[str, int], int] = {}
            limit = time.monotonic() + PATIENCE_S
            while len(ends) < len(partitions):
                if time.monotonic() > limit:
                    silent = next(one for one in partitions if one not in ends)
                    raise Unanswered(
                        self.servers, f"no answer about topic {silent[0]}, partition {silent[1]}"
                    )
                record = consumer.poll(0.1)
                if record is None:
                    continue
                error = record.error()
                if error is None or error.code() == module.KafkaError._PARTITION_EOF:
                    # At the end, or at a record that came meanwhile: both stand where the end was.
                    ends.setdefault((record.topic(), record.partition()), record.offset())
                elif not error.retriable() and error.fatal():
                    raise Unanswered(self.servers, error.str())
            found = {}
            for topic, partition in partitions:
                place = module.TopicPartition(topic, partition)
                first, _ = consumer.get_watermark_offsets(place, timeout=PATIENCE_S, cached=False)
                end = ends[topic, partition]
                found[topic, partition] = Reach(min(first, end), end)
            return found
        finally:
            consumer.close()

    def read(self, span: Span) -> Iterator[list[Any]]:
        """The records of a span, in batches."""
        module = load_client()
        consumer = self.open()
        at = span.start
        try:
            consumer.assign([module.TopicPartition(span.topic, span.partition, at)])
            heard = time.monotonic()
            while at < span.end:
                taken = []
                # No more than is wanted: it waits for so many.
                for record in consumer.consume(min(BATCH, span.end - at), timeout=1.0):
                    heard = time.monotonic()
                    error = record.error()
                    if error is None:
                        if at < span.end:
                            at = record.offset() + 1
                            if record.offset() < span.end:
                                taken.append(record)
                    elif error.code() == module.KafkaError._PARTITION_EOF:
                        # Offsets without records, such as marks of transactions, may be the last ones.
                        at = max(at, record.offset())
                    elif error.code() == module.KafkaError._AUTO_OFFSET_RESET:
                        at = self.pass_over(consumer, span, at)
                        if at < span.end:
                            consumer.assign([module.TopicPartition(span.topic, span.partition, at)])
                    elif error.fatal() or not error.retriable():
                        raise Unanswered(self.servers, error.str())
                if taken:
                    yield taken
                elif time.monotonic() - heard > PATIENCE_S:
                    place = f"topic {span.topic}, partition {span.partition}, offset {at}"
                    raise Unanswered(self.servers, f"no answer about {place}")
        finally:
            consumer.close()

    def pass_over(self, consumer: Any, span: Span, at: int) -> int:
        """Where to read on: the records from `at` on are gone."""
        place = load_client().TopicPartition(span.topic, span.partition)
        first, _ = consumer.get_watermark_offsets(place, timeout=PATIENCE_S, cached=False)
        return self.miss(span.topic, span.partition, at, min(first, span.end))

    def miss(self, topic: str, partition: int, at: int, first: int) -> int:
        """Records from `at` to before `first` were dropped: an error, or a warning."""
        if self.fail:
            raise LostRecords(
                topic,
                partition,
                f"its first offset is {first:,}, and {at} was not read yet: set failOnDataLoss to "
                "false to go on without",
            )
        many = f"{first - at:,} record{'s' * (first - at != 1)}"
        which = f"offsets {at} to {first - 1}"
        told = f"topic {topic}, partition {partition}: {many} dropped before they were read ({which})"
        warnings.warn(told, DroppedRecords, stacklevel=2)
        return first


class KafkaReader(NumberedReader[tuple[str, int]]):
    """Plans batches in the driver; `read` runs in tasks."""

    def __init__(self, source: Kafka) -> None:
        super().__init__(source.max_rows)
        self._brokers, self._topics = source.brokers, source.topics
        self._starting = source.starting

    def reach(self) -> Mapping[tuple[str, int], Reach]:
        return self._brokers.reach(self._topics)

    def find_start(self, reach: Reach) -> int:
        return reach.first if self._starting == "earliest" else reach.end

    def find_place(self, part: tuple[str, int], at: int, reach: Reach) -> int:
        if at > reach.end:
            reason = f"its next offset is {reach.end:,}, and {at:,} was read before: it was made anew"
            raise LostRecords(*part, reason)
        # Tasks tell what was dropped.
        return max(at, reach.first)

    def write_offsets(self, offsets: Mapping[tuple[str, int], int]) -> Offsets:
        return write_offsets(offsets)

    def read_offsets(self, offsets: Offsets) -> dict[tuple[str, int], int]:
        return read_offsets(offsets)

    @errors_marked()
    def partitions(self, start: Offsets, end: Offsets) -> Sequence[Span]:
        begins = read_offsets(start)
        return [
            Span(topic, partition, begins.get((topic, partition), 0), until)
            for (topic, partition), until in sorted(read_offsets(end).items())
            if begins.get((topic, partition), 0) < until
        ]

    @mark_errors
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Span)
        schema = to_arrow_schema(KAFKA, timezone="UTC")
        for records in self._brokers.read(partition):
            yield pa.RecordBatch.from_pylist([describe(record) for record in records], schema)


def describe(record: Any) -> dict[str, Any]:
    """A record as a row of `KAFKA`."""
    kind, milliseconds = record.timestamp()
    headers = record.headers()
    return {
        "key": record.key(),
        "value": record.value(),
        "topic": record.topic(),
        "partition": record.partition(),
        "offset": record.offset(),
        "timestamp": milliseconds * 1000 if kind else None,
        # As Kafka's own client numbers them: none is -1, of creation 0, of the log 1.
        "timestampType": kind - 1,
        "headers": None if not headers else [{"key": name, "value": value} for name, value in headers],
    }


def write_offsets(offsets: Mapping[tuple[str, int], int]) -> Offsets:
    """
    >>> write_offsets({("orders", 1): 17, ("orders", 0): 4})
    {'orders': {'0': 4, '1': 17}}
    """
    made: Offsets = {}
    for (topic, partition), offset in sorted(offsets.items()):
        made.setdefault(topic, {})[str(partition)] = offset
    return made


def read_offsets(offsets: Offsets | str) -> dict[tuple[str, int], int]:
    told: Offsets = json.loads(offsets) if isinstance(offsets, str) else offsets
    return {
        (topic, int(partition)): offset
        for topic, parts in told.items()
        for partition, offset in parts.items()
    }


# Identifiers and causes, whichever source the records come from


def take_events(
    records: DataFrame, *, id: str, causes: str, time: str | None = None, where: str = "value"
) -> DataFrame:
    """Records of Kafka with the columns `id` and `causes`: texts that each record carries, and those that it follows.

    `where` is `headers` or `value`; `id` and `causes` name a header, or a field of the JSON object that the value is
    (`after.id` is within another). Causes are one identifier, or a JSON array of them; several headers of one name are
    several causes. `time` likewise becomes the column `time`, as text. All columns of the records stay.
    """
    if where not in ("headers", "value"):
        raise BadParameter.choice("kafka", "where", where, ("headers", "value"))
    if where not in records.columns:
        advice = (
            "give its source the option includeHeaders"
            if where == "headers"
            else "read it from Kafka's source"
        )
        raise BadParameter("kafka", f"the table has no column {where}: {advice}")
    for name in ("id", "causes", *(["time"] if time is not None else [])):
        if name in records.columns:
            raise BadParameter(
                "kafka", f"the table has a column {name}, and take_events adds one of that name: rename it"
            )
    read = read_header if where == "headers" else read_field
    listed = F.flatten(F.transform(read(causes), split_text))
    columns = {"id": F.get(read(id), F.lit(0)), "causes": F.filter(listed, lambda one: one != "")}
    if time is not None:
        columns["time"] = F.get(read(time), F.lit(0))
    return records.withColumns(columns)


def read_header(name: str) -> Column:
    """The values of a header, as texts: a record may have several of one name."""
    named = F.filter("headers", lambda header: header["key"] == name)
    found = F.transform(named, lambda header: header["value"].cast("string"))
    return F.coalesce(found, F.array().cast("array<string>"))


def read_field(name: str) -> Column:
    """A field of the JSON object in `value`, as text: an array of one, or of none."""
    path = "$" + "".join(f"['{part}']" for part in name.split("."))
    return F.array_compact(F.array(F.get_json_object(F.col("value").cast("string"), path)))
