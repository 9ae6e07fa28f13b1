"""Packets in files that appear in a directory -> messages in causal order, as Parquet, until stopped or caught up.

What `antecede order --stream` does. The output is written by Spark's file sink, which lists in its log what it has
committed: a reader that is Spark sees each row once, however often the query was killed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from msgspec import Struct
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from antecede.errors import BadParameter
from antecede.spark.errors import raise_task_errors
from antecede.spark.storage import absolute, escaped, files, join, local, readable
from antecede.spark.stream.checkpoint import last_held
from antecede.spark.stream.closed import deliver_closed_files
from antecede.spark.stream.operator import deliver_stream, unpacked
from antecede.spark.stream.ownership import begin, fresh
from antecede.spark.stream.packets import PACKETS
from antecede.spark.stream.run import run
from antecede.spark.stream.watch import Progress, status_of, waiting
from antecede.spark.trace.footers import refuse_files

__all__ = ["Outcome", "Source", "order_files"]

SCHEMA: Final = (
    "receiver string, sender string, number long, stamp binary, payload binary, arrival long, label string"
)


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

    def tell(progress: Any) -> None:
        if (status := status_of(progress, checkpoint)) is not None:
            note(status)

    with raise_task_errors():
        refuse(spark, source, once, fresh(checkpoint))
        writer = writing(spark, source, out, checkpoint)
        begin("order --stream", identity(source), out, checkpoint)
        run(spark, writer, once=once, every_s=every, stop=stop, note=tell)
        if source.by == "closed":
            return counted(spark, out, checkpoint, last_held(checkpoint))
        return counted(spark, out, checkpoint, waiting(spark, checkpoint).count())


def identity(source: Source) -> dict[str, Any]:
    """What makes it this query, and no other."""
    own = {
        name: getattr(source, name)
        for name in ("protocol", "processes", "parameters", "group", "by", "receiver")
    }
    return {"command": "order", "input": absolute(source.path), **own}


def writing(spark: SparkSession, source: Source, out: Any, checkpoint: Any) -> DataStreamWriter:
    place = absolute(source.path)
    schema = SCHEMA if source.group is None else f"{SCHEMA}, `{source.group}` string"
    reader = spark.readStream.schema(schema)
    if source.files_per_batch is not None:
        reader = reader.option("maxFilesPerTrigger", source.files_per_batch)
    if source.by == "closed":
        if source.receiver is None or source.group is not None:
            raise BadParameter("order --stream", "--by", "closed", "a --receiver and no --group")
        return deliver_closed_files(
            reader,
            place,
            source.protocol,
            source.processes,
            parameters=source.parameters,
            patience=source.patience,
            receiver=source.receiver,
            out=out,
            checkpoint=checkpoint,
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


def refuse(spark: SparkSession, source: Source, once: bool, new: bool) -> None:
    """What is there already is looked at before a query begins: what one has planned to read, it does not leave out."""
    command, place = "order --stream", absolute(source.path)
    if source.files_per_batch is not None and source.files_per_batch < 1:
        raise BadParameter(command, "--files", source.files_per_batch, "1 or more")
    here = local(place)
    if here is not None and not os.path.isdir(here):
        found = f"{place}, {'a file' if os.path.exists(here) else 'which is not there'}"
        raise BadParameter(command, "input", found, "a directory of Parquet files of packets")
    there = files(spark, place)
    if once and not there:
        raise BadParameter(command, "input", place, "a directory with Parquet files of packets")
    if new and readable(place):
        columns = PACKETS.append(pa.field("label", pa.string()))
        if source.group is not None:
            columns = columns.append(pa.field(source.group, pa.string()))
        refuse_files(spark, there, columns, optional=("arrival", "label"))


def counted(spark: SparkSession, out: Any, checkpoint: Any, held: int) -> Outcome:
    # With its columns: a query that has delivered nothing has written no file that would tell them.
    rows = spark.read.schema(unpacked(None)).parquet(escaped(absolute(out)))
    kinds = rows.agg(
        *[F.count_if(F.col("kind") == kind).alias(kind) for kind in ("delivered", "late", "refused")],
        F.count_if(F.col("gave_up").isNotNull()).alias("gave_up"),
    ).first()
    assert kinds is not None
    commits = spark.read.format("binaryFile").load(escaped(join(absolute(checkpoint), "commits"))).count()
    return Outcome(batches=commits, waiting=held, **kinds.asDict())
