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
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamWriter

from antecede.errors import BadParameter
from antecede.spark.errors import raise_task_errors
from antecede.spark.schema import ALL_PACKETS, PACKETS
from antecede.spark.storage import absolute, escaped, files, local, readable
from antecede.spark.stream.checkpoint import Checkpoint
from antecede.spark.stream.closed import deliver_closed
from antecede.spark.stream.order import deliver_stream, output_schema
from antecede.spark.stream.run import Counted, Query, run_query
from antecede.spark.stream.status import Progress, status_of, waiting
from antecede.spark.trace.footers import refuse_files

__all__ = ["Outcome", "Source", "order_files"]

KINDS: Final = ("delivered", "late", "gave_up", "refused")


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
    once: bool = False,
    every: float = 1.0,
    stop: Callable[[], bool] = lambda: False,
    note: Callable[[Progress], None] = lambda progress: None,
) -> Outcome:
    """Run until all that is there is done (`once`), or until `stop` says so. Started again, it goes on where it was."""
    last: list[Progress] = []

    def count(progress: Any) -> Counted | None:
        status = status_of(progress, checkpoint)
        if status is None:
            return None
        last[:] = [status]
        note(status)
        return Counted({kind: getattr(status.status, kind) for kind in KINDS})

    with raise_task_errors():
        refuse(spark, source, once, Checkpoint(checkpoint).fresh)
        query = Query(
            checkpoint,
            lambda own: build(own, source, out, checkpoint),
            count,
            lambda own: recount(own, out),
            timed=source.patience is not None and source.by == "receiver",
        )
        # Refused before it is noted whose the checkpoint is.
        query.build(spark)
        Checkpoint(checkpoint).claim("order --stream", identity(source), out)
        totals = run_query(spark, query, once=once, every_s=every, stop=stop)
        known = bool(last) and last[0].batch == totals.batch
        held = last[0].status.held if known else waiting(spark, checkpoint).count()
        counts = {kind: totals.counts.get(kind, 0) for kind in KINDS}
        return Outcome(batches=totals.batch + 1, waiting=held, **counts)


def identity(source: Source) -> dict[str, Any]:
    """What makes it this query, and no other."""
    own = {
        name: getattr(source, name)
        for name in ("protocol", "processes", "parameters", "group", "by", "receiver")
    }
    return {"command": "order", "input": absolute(source.path), **own}


def build(spark: SparkSession, source: Source, out: Any, checkpoint: Any) -> DataStreamWriter:
    place = absolute(source.path)
    reader = spark.readStream.schema(from_arrow_schema(columns_of(source)))
    if source.files_per_batch is not None:
        reader = reader.option("maxFilesPerTrigger", source.files_per_batch)
    rows = reader.parquet(escaped(place))
    options: dict[str, Any] = {"parameters": source.parameters, "patience": source.patience}
    if source.by == "closed":
        if source.receiver is None or source.group is not None:
            raise BadParameter("order --stream", "--by", "closed", "a --receiver and no --group")
        places = {"receiver": source.receiver, "out": out, "checkpoint": checkpoint}
        return deliver_closed(rows, source.protocol, source.processes, **options, **places)
    if source.by != "receiver":
        raise BadParameter("order --stream", "--by", source.by, "receiver or closed")
    delivered = deliver_stream(rows, source.protocol, source.processes, group=source.group, **options)
    writer = delivered.writeStream.format("parquet").outputMode("append").option("path", absolute(out))
    return writer.option("checkpointLocation", absolute(checkpoint))


def columns_of(source: Source) -> pa.Schema:
    """The columns that its files may have."""
    columns = PACKETS.append(ALL_PACKETS.field("label"))
    return columns if source.group is None else columns.append(pa.field(source.group, pa.string()))


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
        refuse_files(spark, there, columns_of(source), optional=("arrival", "label"))


def recount(spark: SparkSession, out: str | os.PathLike[str]) -> Counted:
    """Count all that was written."""
    # With its columns: a query that has delivered nothing has written no file that would tell them.
    rows = spark.read.schema(output_schema(None)).parquet(escaped(absolute(out)))
    found = rows.agg(
        *[F.count_if(F.col("kind") == kind).alias(kind) for kind in ("delivered", "late", "refused")],
        F.count_if(F.col("gave_up").isNotNull()).alias("gave_up"),
    ).first()
    assert found is not None
    return Counted(found.asDict())
