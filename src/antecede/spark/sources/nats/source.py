"""A streaming source: the messages of a NATS JetStream stream.

Rules
  offset     the number of the next message to read (`{"next": 17}`). A stream's messages keep their numbers, so a
             batch that is read again is the same, and the checkpoint alone says what was read: the server need not
  admission  `maxRows` messages a batch at most; numbers are counted, so deleted messages make a batch smaller
  parallel   a batch is cut into `partitions` ranges of numbers
  now        under `Trigger.AvailableNow`, up to what the stream holds when the query starts, in batches of `maxRows`
  lost       messages that the stream's limits have dropped before they were read stop the query, or are skipped with
             `lost=skip`. What was deleted one by one is simply not there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping, Sequence
from itertools import pairwise
from typing import Any, Final, Literal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.types import StructType

from antecede.errors import BadParameter
from antecede.spark.duration import parse_duration
from antecede.spark.errors import errors_marked, mark_errors
from antecede.spark.sources.nats.broker import Broker, Lost, client_class
from antecede.spark.sources.nats.records import Rows, rows_of
from antecede.spark.sources.offsets import MOST, NumberedReader, Reach, read_count

__all__ = ["JetStream", "jetstream"]

LEAST: Final = 1000
"""Messages for which a task of their own is worth while."""

Offset = dict[str, int]


def jetstream(
    spark: SparkSession,
    url: str,
    stream: str,
    *,
    rows: Literal["packets", "events", "raw"] = "packets",
    subject: str | None = None,
    start: Literal["earliest", "latest"] | int = "earliest",
    max_rows: int = MOST,
    partitions: int = 2,
    lost: Literal["fail", "skip"] = "fail",
    credentials: str | os.PathLike[str] | None = None,
    patience: str = "30 seconds",
) -> DataFrame:
    """A streaming DataFrame of a stream's messages, as `rows` says (`records`).

    `subject` reads only the messages whose subjects fit it. `start` says where a query without a checkpoint begins.
    """
    spark.dataSource.register(JetStream)
    options: dict[str, Any] = {
        "url": url,
        "stream": stream,
        "rows": rows,
        "subject": subject,
        "start": start,
        "maxRows": max_rows,
        "partitions": partitions,
        "lost": lost,
        "credentials": None if credentials is None else os.fspath(credentials),
        "patience_s": parse_duration("jetstream", "patience", patience) / 1000,
    }
    given = {name: str(value) for name, value in options.items() if value is not None}
    JetStream(given)
    return spark.readStream.format(JetStream.name()).options(**given).load()


class JetStream(DataSource):
    """The source, as Spark knows it."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        client_class()
        self.rows = rows_of(options.get("rows", "packets"))
        for needed in ("url", "stream"):
            if needed not in options:
                raise BadParameter("jetstream", f"the option {needed} is missing")
        self.broker = Broker(
            options["url"],
            options["stream"],
            options.get("subject"),
            options.get("credentials"),
            float(options.get("patience_s", "30")),
        )
        self.start = options.get("start", "earliest")
        if self.start not in ("earliest", "latest") and not self.start.isdecimal():
            raise BadParameter(
                "jetstream", f"start must be earliest, latest or a message's number, not {self.start!r}"
            )
        self.max_rows = read_count("jetstream", options, "maxRows", MOST)
        self.partitions = read_count("jetstream", options, "partitions", 2)
        self.lost = options.get("lost", "fail")
        if self.lost not in ("fail", "skip"):
            raise BadParameter.choice("jetstream", "lost", self.lost, ("fail", "skip"))

    @classmethod
    def name(cls) -> str:
        return "antecede_jetstream"

    def schema(self) -> StructType:
        return self.rows.spark

    def streamReader(self, schema: StructType) -> JetStreamReader:
        return JetStreamReader(self)


class Span(InputPartition):
    """The messages from `start` to before `end`."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__((start, end))
        self.start, self.end = start, end


class JetStreamReader(NumberedReader[str]):
    """Plans batches in the driver; `read` runs in tasks."""

    def __init__(self, source: JetStream) -> None:
        super().__init__(source.max_rows)
        self._broker: Broker = source.broker
        self._rows: Rows = source.rows
        self._start = source.start
        self._partitions, self._lost = source.partitions, source.lost

    def reach(self) -> dict[str, Reach]:
        return {"next": Reach(*self._broker.reach())}

    def find_start(self, reach: Reach) -> int:
        if self._start.isdecimal():
            return int(self._start)
        return reach.first if self._start == "earliest" else reach.end

    def find_place(self, part: str, at: int, reach: Reach) -> int:
        if at > reach.end:
            made_anew = (
                f"its last message is {reach.end - 1}, and {at - 1} was read before: the stream was made anew"
            )
            raise Lost(self._broker.stream, made_anew)
        if at < reach.first and self._lost == "fail":
            dropped = (
                f"its first message is {reach.first}, and {at} was not read yet: "
                "set lost to skip to go on without"
            )
            raise Lost(self._broker.stream, dropped)
        return max(at, reach.first)

    @errors_marked()
    def partitions(self, start: Offset, end: Offset) -> Sequence[Span]:
        at, until = self.find_place("next", start["next"], Reach(*self._broker.reach())), end["next"]
        many = max(1, min(self._partitions, (until - at) // LEAST))
        edges = [at + (until - at) * part // many for part in range(many + 1)]
        return [Span(a, b) for a, b in pairwise(edges) if a < b]

    @mark_errors
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Span)
        due, missing = partition.start, partition.end
        for messages in self._broker.read(partition.start, partition.end):
            for message in messages:
                if message.sequence > due:
                    missing = min(missing, due)
                due = message.sequence + 1
            yield self._rows.batch(self._broker.stream, messages)
        missing = min(missing, due)
        if missing < partition.end:
            # Deleted long ago, or dropped while we read: who drops does so from the front.
            self.find_place("next", missing, Reach(*self._broker.reach()))
