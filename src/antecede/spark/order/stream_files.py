"""Rows in files that appear in a directory -> the same in causal order, as Parquet, until stopped or caught up.

What `antecede order --stream` does. The output is written by Spark's file sink, which lists in its log what it has
committed: a reader that is Spark sees each row once, however often the query was killed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamWriter

from antecede.errors import BadParameter
from antecede.spark.errors import raise_task_errors
from antecede.spark.order.files import default_partition
from antecede.spark.schema import ALL_PACKETS, PACKETS
from antecede.spark.storage import absolute, escape_path, files, readable
from antecede.spark.stream.api import Asked, order_stream
from antecede.spark.stream.closed import deliver_closed
from antecede.spark.stream.operator import PROVIDER, ROCKSDB
from antecede.spark.stream.query import Checkpoint, Counted, Query, make_session, run_query
from antecede.spark.stream.status import Progress, status_of, waiting
from antecede.spark.tables import StreamFiles, TableFiles, open_reader, refuse_directory
from antecede.spark.trace.api import refuse_files

__all__ = ["Outcome", "Source", "order_files"]

COMMAND: Final = "order --stream"
KINDS: Final = ("delivered", "late", "gave_up", "refused")


class Source(Struct, frozen=True):
    """Where rows come from, and how they are to be ordered."""

    path: str
    asked: Asked
    files_per_batch: int | None = None
    by: str = "receiver"
    """Of packets. `receiver`: a keyed operator, any number of receivers. `closed`: closed sets, for one of them."""
    receiver: str | None = None
    """The one, by closed sets."""

    @property
    def stamped(self) -> bool:
        return self.asked.protocol is not None

    @property
    def files(self) -> StreamFiles:
        return StreamFiles(self.path, self.asked.process, self.asked.vector, self.files_per_batch)


class Outcome(Struct, frozen=True):
    """What a query came to. `waiting` is what its last micro-batch left, the others count all that is written."""

    batches: int
    delivered: int
    late: int
    released: int
    refused: int
    waiting: int
    held_up: str = ""
    """What holds up how many, in words."""
    cycles: int = 0
    """Cycles of causes among the rows that wait, of those that are named."""

    @property
    def complete(self) -> bool:
        """Whether every row came out after its causes."""
        return not (self.waiting or self.late or self.released or self.refused)


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

    by_causes = source.asked.id is not None
    if by_causes:
        # Settings of a session, and other queries of the caller's are to keep theirs.
        spark = make_session(spark, {PROVIDER: ROCKSDB})
    kept = Checkpoint(checkpoint)
    with raise_task_errors():
        refuse(spark, source, once, kept.fresh)
        table = None if source.stamped else source.files.describe(spark, COMMAND, kept)
        query = Query(
            COMMAND,
            identify(source),
            out,
            lambda own: build(own, source, table, out, checkpoint),
            count,
            lambda own: recount(own, out),
            timed=by_causes or (source.asked.patience is not None and source.by == "receiver"),
            columns=table,
        )
        totals = run_query(spark, kept, query, once=once, every_s=every, stop=stop)
        known = bool(last) and last[0].batch == totals.batch
        held = last[0].status.held if known else waiting(spark, checkpoint).count()
        counts = {kind: totals.counts.get(kind, 0) for kind in KINDS}
        released = counts.pop("gave_up")
        words = last[0].status.describe_waits() if known and held else ""
        cycles = sum(cause.counted == "cycle" for cause in last[0].status.causes) if known else 0
        return Outcome(
            totals.batch + 1, released=released, waiting=held, held_up=words, cycles=cycles, **counts
        )


def identify(source: Source) -> dict[str, Any]:
    """What makes it this query, and no other."""
    asked = source.asked
    own: dict[str, Any] = {"command": "order", "input": absolute(source.path)}
    if source.stamped:
        group = asked.partition_by[0] if asked.partition_by else None
        own |= {"protocol": asked.protocol, "processes": asked.processes, "parameters": asked.parameters}
        return {**own, "group": group, "by": source.by, "receiver": source.receiver}
    names = ("id", "causes", "process", "vector", "partition_by", "time", "no_cause")
    return {**own, **{name: getattr(asked, name) for name in names if getattr(asked, name)}}


def build(
    spark: SparkSession, source: Source, table: TableFiles | None, out: Any, checkpoint: Any
) -> DataStreamWriter:
    asked = source.asked
    rows = read_packets(spark, source) if table is None else source.files.read(spark, table)
    if source.by == "closed":
        if source.receiver is None or asked.partition_by or not source.stamped:
            raise BadParameter(COMMAND, "--by closed needs a --receiver and stamps, and no --partition-by")
        places = {"receiver": source.receiver, "out": out, "checkpoint": checkpoint}
        options: dict[str, Any] = {"parameters": asked.parameters, "patience": asked.patience}
        return deliver_closed(rows, str(asked.protocol), asked.processes, **options, **places)
    if source.by != "receiver":
        raise BadParameter.choice(COMMAND, "--by", source.by, ("receiver", "closed"))
    ordered = order_stream(rows, default_partition(asked, rows))
    writer = ordered.writeStream.format("parquet").outputMode("append").option("path", absolute(out))
    return writer.option("checkpointLocation", absolute(checkpoint))


def read_packets(spark: SparkSession, source: Source) -> DataFrame:
    schema = from_arrow_schema(packet_columns(source))
    return (
        open_reader(spark, source.files_per_batch).schema(schema).parquet(escape_path(absolute(source.path)))
    )


def packet_columns(source: Source) -> pa.Schema:
    """The columns that files of packets may have."""
    columns = PACKETS.append(ALL_PACKETS.field("label"))
    if not source.asked.partition_by:
        return columns
    return columns.append(pa.field(source.asked.partition_by[0], pa.string()))


def refuse(spark: SparkSession, source: Source, once: bool, new: bool) -> None:
    """Check existing files before the query starts: Spark never skips a file that a micro-batch has planned."""
    place = absolute(source.path)
    if source.files_per_batch is not None and source.files_per_batch < 1:
        raise BadParameter(COMMAND, f"--files must be 1 or more, not {source.files_per_batch}")
    if not source.stamped:
        return
    refuse_directory(COMMAND, place, "packets")
    there = files(spark, place)
    if once and not there:
        raise BadParameter(
            COMMAND, f"{place} has no Parquet files of packets, and --once reads only what is there"
        )
    if new and readable(place):
        refuse_files(spark, there, packet_columns(source), optional=("arrival", "label"))


def recount(spark: SparkSession, out: str | os.PathLike[str]) -> Counted:
    """Count all that was written."""
    # With its columns: a query that has delivered nothing has written no file that would tell them.
    rows = spark.read.schema("position long, kind string").parquet(escape_path(absolute(out)))
    kind, placed = F.col("kind"), F.col("position").isNotNull()
    found = rows.agg(
        F.count_if(placed & (kind != "late")).alias("delivered"),
        F.count_if(kind == "late").alias("late"),
        F.count_if(kind == "refused").alias("refused"),
        F.count_if(kind == "released").alias("gave_up"),
    ).first()
    assert found is not None
    return Counted(found.asDict())
