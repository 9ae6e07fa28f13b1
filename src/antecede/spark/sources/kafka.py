"""A streaming source: the records of Kafka topics, with the columns of Spark's own Kafka source.

Without the connector's jar: the client is `confluent-kafka` (`pip install antecede[kafka]`), and the options have
the names that Spark's source gives them. A query moves from one to the other by its first line.

Rules
  offset     for each topic and partition the next record to read, as Spark's source has it: {"orders": {"0": 17}}. No
             consumer group is used
  admission  `maxOffsetsPerTrigger` records a batch at most, a share for each partition by what it has
  end        how far a partition goes is what the broker says when it is fetched from (the high watermark): some brokers
             answer wrongly when they are asked for the latest offset
  lost       records that the broker has dropped before they were read stop the query with a sentence or, with
             `failOnDataLoss=false`, are passed over, and a warning says how many

`take_events` finds identifiers and causes in such records, in headers or in JSON.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from antecede.errors import AtPlace, BadParameter, InputError
from antecede.spark.frames import split_text
from antecede.spark.sources.offsets import MOST, LostRecords, NumberedSource, Reach, Span, load_client

__all__ = ["KAFKA", "DroppedRecords", "Kafka", "kafka", "take_events"]

RECORDS: Final = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestampType": pa.int32(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
    }
)
KAFKA: Final = from_arrow_schema(RECORDS)
"""What Spark's Kafka source gives with `includeHeaders`."""

BATCH: Final = 8192
"""Records that are handed to Spark at once."""
PATIENCE_S: Final = 60.0
"""Without an answer from the broker for so long, a task fails."""
GLANCE: Final = {"queued.min.messages": 1, "fetch.message.max.bytes": 1024, "fetch.wait.max.ms": 10}
"""Settings to fetch little: only the answer's head is wanted."""

Place = tuple[str, int]
"""A topic and a partition of it."""


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
    options = {
        "kafka.bootstrap.servers": servers,
        "subscribe": topics if isinstance(topics, str) else ",".join(topics),
        "startingOffsets": starting,
        "maxOffsetsPerTrigger": max_rows,
        "failOnDataLoss": str(fail_on_data_loss).lower(),
    }
    return Kafka.open(spark, options | {f"kafka.{name}": value for name, value in (client or {}).items()})


class DroppedRecords(UserWarning):
    """Records were passed over, because the broker has dropped them."""


class Unanswered(AtPlace, InputError):
    """A broker that does not say what it must."""


def load_kafka() -> Any:
    return load_client("kafka", "confluent_kafka", "confluent-kafka", "kafka")


class Kafka(NumberedSource[Place]):
    owner = "kafka"
    limit = "maxOffsetsPerTrigger"

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        load_kafka()
        self.where = f"kafka at {self.read_option('kafka.bootstrap.servers')}"
        self.topics = [name.strip() for name in self.read_option("subscribe").split(",") if name.strip()]
        self.starting = self.read_choice("startingOffsets", "earliest", "latest")
        self.fail = self.read_choice("failOnDataLoss", "true", "false") == "true"
        # The names of librdkafka are in lower case.
        self.settings = {name[6:]: value for name, value in self.options.items() if name.startswith("kafka.")}

    def schema(self) -> StructType:
        return KAFKA

    # Offsets

    def find_start(self, reach: Reach) -> int:
        return reach.first if self.starting == "earliest" else reach.end

    def find_place(self, part: Place, at: int, reach: Reach) -> int:
        if at > reach.end:
            reason = f"its next offset is {reach.end:,}, and {at:,} was read before: it was made anew"
            raise LostRecords(name_part(part), reason)
        # Tasks tell what was dropped.
        return max(at, reach.first)

    def write_offsets(self, offsets: Mapping[Place, int]) -> dict[str, dict[str, int]]:
        made: dict[str, dict[str, int]] = {}
        for (topic, partition), offset in sorted(offsets.items()):
            made.setdefault(topic, {})[str(partition)] = offset
        return made

    def read_offsets(self, offsets: dict[Any, Any]) -> dict[Place, int]:
        return {(topic, int(one)): at for topic, parts in offsets.items() for one, at in parts.items()}

    # The cluster, as a consumer without a group sees it

    def connect(self, **more: Any) -> Any:
        own = {"group.id": "antecede", "enable.auto.commit": False, "enable.partition.eof": True}
        # An offset that is not there is told, not replaced.
        own["auto.offset.reset"] = "error"
        return closing(load_kafka().Consumer({**own, **self.settings, **more}))

    def find_first(self, consumer: Any, part: Place) -> int:
        place = load_kafka().TopicPartition(*part)
        return int(consumer.get_watermark_offsets(place, timeout=PATIENCE_S, cached=False)[0])

    def list_partitions(self, consumer: Any) -> list[Place]:
        found = []
        for topic in self.topics:
            try:
                told = consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic]
            except load_kafka().KafkaException as error:
                raise Unanswered(self.where, error.args[0].str()) from None
            if told.error is not None:
                raise Unanswered(self.where, f"topic {topic}: {told.error.str()}")
            found += [(topic, partition) for partition in sorted(told.partitions)]
        return found

    def reach(self) -> dict[Place, Reach]:
        """How far each partition goes, by what a fetch from its end says."""
        module = load_kafka()
        with self.connect(**GLANCE) as consumer:
            partitions = self.list_partitions(consumer)
            consumer.assign([module.TopicPartition(*one, module.OFFSET_END) for one in partitions])
            ends: dict[Place, int] = {}
            limit = time.monotonic() + PATIENCE_S
            while len(ends) < len(partitions):
                if time.monotonic() > limit:
                    silent = next(one for one in partitions if one not in ends)
                    raise Unanswered(self.where, f"no answer about {name_part(silent)}")
                record = consumer.poll(0.1)
                if record is None:
                    continue
                error = record.error()
                if error is None or error.code() == module.KafkaError._PARTITION_EOF:
                    # At the end, or at a record that came meanwhile: both stand where the end was.
                    ends.setdefault((record.topic(), record.partition()), record.offset())
                elif not error.retriable() and error.fatal():
                    raise Unanswered(self.where, error.str())
            return {
                one: Reach(min(self.find_first(consumer, one), ends[one]), ends[one]) for one in partitions
            }

    def read_span(self, span: Span) -> Iterator[pa.RecordBatch]:
        module, at, heard = load_kafka(), span.start, time.monotonic()
        with self.connect() as consumer:
            consumer.assign([module.TopicPartition(*span.part, at)])
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
                                taken.append(describe(record))
                    elif error.code() == module.KafkaError._PARTITION_EOF:
                        # Offsets without records, such as marks of transactions, may be the last ones.
                        at = max(at, record.offset())
                    elif error.code() == module.KafkaError._AUTO_OFFSET_RESET:
                        at = self.pass_over(
                            span.part, at, min(self.find_first(consumer, span.part), span.end)
                        )
                        if at < span.end:
                            consumer.assign([module.TopicPartition(*span.part, at)])
                    elif error.fatal() or not error.retriable():
                        raise Unanswered(self.where, error.str())
                if taken:
                    yield pa.RecordBatch.from_pylist(taken, RECORDS)
                elif time.monotonic() - heard > PATIENCE_S:
                    raise Unanswered(self.where, f"no answer about {name_part(span.part)}, offset {at}")

    def pass_over(self, part: Place, at: int, first: int) -> int:
        """Records from `at` to before `first` were dropped: an error, or a warning."""
        if self.fail:
            advice = "set failOnDataLoss to false to go on without"
            reason = f"its first offset is {first:,}, and {at} was not read yet: {advice}"
            raise LostRecords(name_part(part), reason)
        many = f"{first - at:,} record{'s' * (first - at != 1)} dropped before they were read"
        told = f"{name_part(part)}: {many} (offsets {at} to {first - 1})"
        warnings.warn(told, DroppedRecords, stacklevel=2)
        return first


def name_part(part: Place) -> str:
    return f"topic {part[0]}, partition {part[1]}"


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
        "headers": [{"key": name, "value": value} for name, value in headers] if headers else None,
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
    read = {"headers": read_header, "value": read_field}.get(where)
    if read is None:
        raise BadParameter.choice("kafka", "where", where, ("headers", "value"))
    if where not in records.columns:
        option = "give its source the option includeHeaders"
        advice = option if where == "headers" else "read it from Kafka's source"
        raise BadParameter("kafka", f"the table has no column {where}: {advice}")
    listed = F.flatten(F.transform(read(causes), split_text))
    columns = {"id": F.get(read(id), F.lit(0)), "causes": F.filter(listed, lambda one: one != "")}
    if time is not None:
        columns["time"] = F.get(read(time), F.lit(0))
    if (taken := next((name for name in columns if name in records.columns), None)) is not None:
        raise BadParameter(
            "kafka", f"the table has a column {taken}, and take_events adds one of that name: rename it"
        )
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
