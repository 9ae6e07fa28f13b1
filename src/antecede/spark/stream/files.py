"""Packets in files that appear in a directory -> messages in causal order, as Parquet, until stopped or caught up.

What `antecede order --stream` does. The output is written by Spark's file sink, which lists in its log what it has
committed: a reader that is Spark sees each row once, however often the query was killed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from antecede.errors import BadParameter
from antecede.spark.storage import absolute, escaped, join
from antecede.spark.stream.closed import deliver_closed, last_held
from antecede.spark.stream.operator import deliver_stream
from antecede.spark.stream.status import Status
from antecede.spark.stream.watch import Progress, status_of, waiting

__all__ = ["Outcome", "Source", "order_files"]

SCHEMA: Final = (
    "receiver string, sender string, number long, stamp binary, payload binary, arrival long, label string"
)
EMPTY: Final = "spark.sql.streaming.noDataMicroBatches.enabled"
POLL: Final = 1
"""Seconds between two looks at whether to stop."""


class Source(Struct, frozen=True):
    """Where packets come from, and how they are to be ordered."""

    path: str
    protocol: str
    processes: Sequence[str]
    parameters: Mapping[str, Any] = {}
    patience: float | None = None
    group: str | None = None
    files_per_batch: int | None = None
    by: str = "receiver"
    """`receiver`: a keyed operator, any number of receivers. `closed`: closed sets, for one of them."""
    receiver: str | None = None
    """The one, by closed sets."""


class Outcome(Struct, frozen=True):
    """What a query came to. `waiting` is what its last micro-batch left, the others count all that is written."""

    batches: int
    delivered: int
    late: int
    gave_up: int
    refused: int
    waiting: int

    @property
    def complete(self) -> bool:
        """Whether every message came out after its causes."""
        return not (self.waiting or self.late or self.gave_up or self.refused)


def order_files(
    spark: SparkSession,
    source: Source,
    out: str | os.PathLike[str],
    checkpoint: str | os.PathLike[str],
    *,
    once: bool,
    every: float = 1.0,
    stop: Callable[[], bool] = lambda: False,
    note: Callable[[Progress], None] = lambda progress: None,
) -> Outcome:
    """Run until all that is there is done (`once`), or until `stop` says so. Started again, it goes on where it was."""
    closed: list[Status] = []
    query = started(spark, source, out, checkpoint, once, every, closed.append)
    noted = -1
    try:
        while not query.awaitTermination(POLL):
            noted = tell(query, noted, note)
            if stop():
                query.stop()
                break
    finally:
        if query.isActive:
            query.stop()
    if (error := query.exception()) is not None:
        raise error
    tell(query, noted, note)
    if source.by == "closed":
        return counted(spark, out, checkpoint, last_held(checkpoint))
    return counted(spark, out, checkpoint, waiting(spark, checkpoint).count())


def started(
    spark: SparkSession,
    source: Source,
    out: Any,
    checkpoint: Any,
    once: bool,
    every: float,
    status: Callable[[Status], None],
) -> StreamingQuery:
    writer = writing(spark, source, out, checkpoint, once, status)
    if not once:
        return writer.trigger(processingTime=f"{every} seconds").start()
    # Else a query that has patience runs empty micro-batches for ever, and never has done all that is there. A query
    # keeps the settings of its start, so the session gets its own back.
    before = spark.conf.get(EMPTY)
    spark.conf.set(EMPTY, "false")
    try:
        return writer.trigger(availableNow=True).start()
    finally:
        spark.conf.set(EMPTY, str(before))


def writing(
    spark: SparkSession,
    source: Source,
    out: Any,
    checkpoint: Any,
    once: bool,
    status: Callable[[Status], None],
) -> DataStreamWriter:
    schema = SCHEMA if source.group is None else f"{SCHEMA}, `{source.group}` string"
    reader = spark.readStream.schema(schema)
    if source.files_per_batch is not None:
        reader = reader.option("maxFilesPerTrigger", source.files_per_batch)
    place = absolute(source.path)
    if (
        not spark.read.format("binaryFile").option("pathGlobFilter", "*.parquet").load(escaped(place)).take(1)
        and once
    ):
        raise BadParameter("order --stream", "input", place, "a directory with Parquet files of packets")
    if source.by == "closed":
        if source.receiver is None or source.patience is not None or source.group is not None:
            raise BadParameter(
                "order --stream", "--by", "closed", "a --receiver, no --patience and no --group"
            )
        return deliver_closed(
            reader.parquet(escaped(place)),
            source.protocol,
            source.processes,
            parameters=source.parameters,
            receiver=source.receiver,
            out=out,
            checkpoint=checkpoint,
            note=status,
        )
    if source.by != "receiver":
        raise BadParameter("order --stream", "--by", source.by, "receiver or closed")
    rows = deliver_stream(
        reader.parquet(escaped(place)),
        source.protocol,
        source.processes,
        parameters=source.parameters,
        patience=source.patience,
        group=source.group,
    )
    writer = rows.writeStream.format("parquet").outputMode("append").option("path", absolute(out))
    return writer.option("checkpointLocation", absolute(checkpoint))


def tell(query: StreamingQuery, noted: int, note: Callable[[Progress], None]) -> int:
    for progress in query.recentProgress:
        told = status_of(progress)
        if told is not None and told.batch > noted:
            noted = told.batch
            note(told)
    return noted


def counted(spark: SparkSession, out: Any, checkpoint: Any, held: int) -> Outcome:
    rows = spark.read.parquet(escaped(absolute(out)))
    kinds = rows.agg(
        *[F.count_if(F.col("kind") == kind).alias(kind) for kind in ("delivered", "late", "refused")],
        F.count_if(F.col("gave_up").isNotNull()).alias("gave_up"),
    ).first()
    assert kinds is not None
    commits = spark.read.format("binaryFile").load(escaped(join(absolute(checkpoint), "commits"))).count()
    return Outcome(batches=commits, waiting=held, **kinds.asDict())
