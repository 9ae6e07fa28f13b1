"""What can be put in order, found at a place, and an ordered table on disk with what came of it in numbers.

a directory with `log/`           what `ingest` wrote: all its events, by the vectors of the log if it has any, else by
                                  the order of each process and the messages between them
a directory with `runs.parquet`   a trace, or a directory of results with one in `trace/`
Parquet, CSV, JSON Lines          a table, with all its columns (`antecede.spark.tables`)
a name                            a table of Spark's catalogue

A stream reads files that appear in a directory, and writes Parquet until it is stopped or has caught up. Its output is
written by Spark's file sink, which lists in its log what it has committed: a reader that is Spark sees each row once,
however often the query was killed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import asdict, replace
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from antecede.errors import BadParameter, BadTrace
from antecede.spark.errors import raise_task_errors
from antecede.spark.frames import ALL_PACKETS, PACKETS, escape_path, files, join_by, quote
from antecede.spark.ingest.rows import SPARK_LOG
from antecede.spark.order.api import count_rows, missing, name_form, order, read_form, refused
from antecede.spark.stream.api import Asked
from antecede.spark.stream.closed import deliver_closed
from antecede.spark.stream.operator import PROVIDER, ROCKSDB
from antecede.spark.stream.query import Checkpoint, Counted, Query, make_session, run_query
from antecede.spark.stream.status import (
    Progress,
    Status,
    is_idle,
    observed_metrics,
    status_of,
    sum_up_waiting,
)
from antecede.spark.tables import StreamFiles, TableFiles, read_table, refuse_directory
from antecede.spark.trace import Trace, refuse_files
from antecede.storage import absolute, join, readable, whole

__all__ = ["Outcome", "Source", "StreamOutcome", "order_files", "order_path", "write_ordered"]

COMMAND: Final = "order --stream"
KINDS: Final = ("delivered", "late", "gave_up", "refused")
LINES: Final = "antecede_lines"
BROKEN_LINES: Final = "broken"
"""What a query reports of lines that are no JSON."""
SHOWN: Final = 100
"""Partitions that are told one by one: those with most that is missing."""
HOLDING: Final = 5
"""Missing events or messages that are told one by one: those that hold up most rows."""


def order_path(spark: SparkSession, path: str | os.PathLike[str], asked: Asked) -> DataFrame:
    """Order what is at a path, or in a table of that name.

    Without names of columns, a table has `process` and `vector`, and `run` if it has several sets of rows.
    """
    root = absolute(path)
    named = asked != Asked(no_cause=asked.no_cause, time=asked.time, window=asked.window)
    if files(spark, join(root, "log")):
        refuse_columns_of(named or asked.time is not None)
        log = spark.read.schema(SPARK_LOG).parquet(*map(escape_path, files(spark, join(root, "log"))))
        return order_log(log, asked.window)
    if files(spark, join(root, "runs.parquet")) or files(spark, join(root, "trace", "runs.parquet")):
        refuse_columns_of(named)
        return order(Trace.read(spark, path), time=asked.time, window=asked.window)
    if asked.id is None and asked.protocol is None:
        asked = replace(asked, process=asked.process or "process", vector=asked.vector or "vector")
    table = read_table(spark, os.fspath(path), process=asked.process, vector=asked.vector)
    return order(table, **asdict(default_partition(asked, table)))


def default_partition(asked: Asked, table: DataFrame) -> Asked:
    """With vectors, `run` tells one set of rows from another, unless columns are named."""
    runs = asked.vector is not None and "run" in table.columns
    groups = asked.partition_by
    return replace(asked, partition_by=("run",) * runs if groups is None else groups)


def refuse_columns_of(named: bool) -> None:
    if named:
        raise BadParameter("order", "name columns for a table only: a trace and a log have their own")


def order_log(log: DataFrame, window: tuple[str, str] | None = None) -> DataFrame:
    """All events of an ingested log, those of no kind too; by time, if it has times."""
    time = "time_ns" if log.where("time_ns is not null").limit(1).count() else None
    if log.where("vector is not null").limit(1).count():
        return order(log, process="process", vector="vector", partition_by="run", time=time, window=window)
    own = Window.partitionBy("run", "process").orderBy("index")
    event = F.to_json(F.array("process", F.col("index").cast("string")))
    told = log.withColumn("event", event).withColumn("__before", F.lag("event").over(own))
    sends = (
        told.where("kind = 'send' and message is not null")
        .groupBy("run", "message")
        .agg(F.min("event").alias("__sent"))
    )
    joined = told.join(sends, ["run", "message"], "left")
    # A message that is delivered and not sent is missing, under the name that the log gives it.
    delivered = F.col("kind").eqNullSafe("deliver") & F.col("message").isNotNull()
    sent = F.when(delivered, F.coalesce("__sent", F.concat(F.lit("message "), F.col("message"))))
    causes = F.filter(F.array("__before", sent), lambda one: one.isNotNull())
    linked = joined.withColumn("causes", causes).select(*log.columns, "event", "causes")
    return order(linked, id="event", causes="causes", partition_by="run", time=time, window=window)


# On disk


@dataclass(frozen=True)
class Outcome:
    """What an order came to."""

    by: str
    """causes, vector, stamp or trace."""
    rows: int
    missing: int
    waiting: int
    """Rows that wait for something that is missing."""
    direct: int
    """Those of them that name it themselves."""
    partitions: int
    refused: int
    """Partitions that have no order."""
    partition_by: tuple[str, ...]
    groups: list[dict[str, Any]]
    """Some partitions, those with most that is missing first: rows, missing, waiting, direct."""
    holding: list[dict[str, Any]]
    """Some of what is missing, with how many rows wait for it: those that hold up the most first."""
    reasons: list[dict[str, Any]]
    """Some partitions that are refused, and why."""


def write_ordered(ordered: DataFrame, path: str | os.PathLike[str]) -> Outcome:
    """Write `ordered` and `missing` as Parquet into a directory, all or nothing.

    The names of the files of `ordered` sort in the order of the rows. If no partition has an order, the first is a
    `BadTrace`, and nothing is written.
    """
    spark = ordered.sparkSession
    with raise_task_errors(), whole(path) as aside:
        ordered.write.parquet(join(aside, "ordered"))
        # What is asked of the result is asked of what is there: nothing is ordered twice.
        there = spark.read.schema(ordered.schema).parquet(escape_path(join(aside, "ordered")))
        counts = count_rows(there)
        [total] = counts.agg(
            *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("rows", "waiting", "direct")),
            F.count(F.lit(1)).alias("partitions"),
            F.count_if("refused").alias("refused"),
        ).collect()
        reasons = collect_reasons(there) if total["refused"] else []
        if reasons and there.where("position is not null").isEmpty():
            raise BadTrace(place_of(reasons[0], read_form(there).partition_by), reasons[0]["reason"])
        # Whatever is missing, a row waits for it: else there is nothing to look for.
        lacking = missing(there if total["waiting"] else there.limit(0))
        lacking.write.parquet(join(aside, "missing"))
        lacking = spark.read.schema(lacking.schema).parquet(escape_path(join(aside, "missing")))
        many, groups = count_missing(lacking, counts.where("not refused"), there)
        holding = list_holding(lacking) if many else []
    form = read_form(there)
    numbers = {name: total[name] for name in ("rows", "waiting", "direct", "partitions", "refused")}
    return Outcome(
        by=name_form(form),
        missing=many,
        partition_by=form.partition_by,
        groups=groups,
        holding=holding,
        reasons=reasons,
        **numbers,
    )


def list_holding(lacking: DataFrame) -> list[dict[str, Any]]:
    """What holds up the most rows, where that is counted: by causes and by stamps."""
    if "waiting" not in lacking.columns:
        return []
    names = [quote(name) for name in lacking.columns if name != "waiting"]
    first = lacking.orderBy(F.desc("waiting"), *names).limit(HOLDING).collect()
    return [row.asDict() for row in first]


def collect_reasons(ordered: DataFrame) -> list[dict[str, Any]]:
    names = [quote(name) for name in read_form(ordered).partition_by]
    table = refused(ordered)
    return [row.asDict() for row in (table.orderBy(*names) if names else table).limit(SHOWN).collect()]


def place_of(row: dict[str, Any], names: tuple[str, ...]) -> str:
    return ", ".join(f"{name} {row[name]}" for name in names) or "the table"


def count_missing(
    lacking: DataFrame, counts: DataFrame, ordered: DataFrame
) -> tuple[int, list[dict[str, Any]]]:
    """How much is missing, and the partitions with most of it."""
    names = list(read_form(ordered).partition_by)
    each = F.col("last") - F.col("first") + 1 if {"first", "last"} <= set(lacking.columns) else F.lit(1)
    by_partition = lacking.groupBy(*map(quote, names)).agg(F.sum(each).alias("missing"))
    both = join_by(counts, by_partition, names, "left").withColumn("missing", F.coalesce("missing", F.lit(0)))
    shown = both.select(*map(quote, names), "rows", "missing", "waiting", "direct")
    first = shown.orderBy(F.desc("missing"), *map(quote, names)).limit(SHOWN).collect()
    total = by_partition.agg(F.coalesce(F.sum("missing"), F.lit(0)).alias("missing")).collect()[0]["missing"]
    return total, [row.asDict() for row in first]


# A stream


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


class StreamOutcome(Struct, frozen=True):
    """What a query came to. `waiting` is what its last micro-batch left, the others count all that is written."""

    batches: int
    delivered: int
    late: int
    released: int
    refused: int
    waiting: int
    broken: int = 0
    """Lines that are no JSON."""
    held_up: str = ""
    """What holds up how many, in words."""
    cycles: int = 0
    """Cycles of causes among the rows that wait, of those that are named."""
    missing: tuple[str, ...] = ()
    """Some causes that have not come, one for each partition that waits for it."""

    @property
    def complete(self) -> bool:
        """Whether every line was a row, and every row came out after its causes."""
        return not (self.waiting or self.late or self.released or self.refused or self.broken)


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
) -> StreamOutcome:
    """Run until all that is there is done (`once`), or until `stop` says so. Started again, it goes on where it was."""
    last: list[Progress] = []

    def count(progress: Any) -> Counted | None:
        if is_idle(progress):
            # What was held still is: the end of the stream need not look it up.
            last[:] = [replace(one, batch=int(progress["batchId"])) for one in last]
            return Counted({})
        status = status_of(progress, checkpoint)
        if status is None:
            return None
        last[:] = [status]
        note(status)
        lines = observed_metrics(progress, LINES) or {}
        return Counted({**{kind: getattr(status.status, kind) for kind in KINDS}, **lines})

    by_causes = source.asked.id is not None
    if by_causes:
        # Settings of a session, and other queries of the caller's are to keep theirs.
        spark = make_session(spark, {PROVIDER: ROCKSDB})
    kept = Checkpoint(checkpoint)
    with raise_task_errors():
        refuse_source(spark, source, once, kept.fresh)
        table = describe_source(spark, source, kept)
        query = Query(
            COMMAND,
            identify_query(source),
            out,
            lambda own: build_query(own, source, table, out, checkpoint),
            count,
            lambda own: count_output(own, out, table),
            timed=by_causes or (source.asked.patience is not None and source.by == "receiver"),
            columns=table,
        )
        totals = run_query(spark, kept, query, once=once, every_s=every, stop=stop)
        # A micro-batch without rows calls only the buckets whose time is up.
        known = bool(last) and last[0].batch == totals.batch and last[0].status.rows_in > 0
        begun = totals.batch >= 0
        status = last[0].status if known else sum_up_waiting(spark, checkpoint) if begun else Status()
        counts = {kind: totals.counts.get(kind, 0) for kind in (*KINDS, BROKEN_LINES)}
        return StreamOutcome(
            totals.batch + 1,
            released=counts.pop("gave_up"),
            waiting=status.held,
            held_up=status.describe_waits() if status.held else "",
            cycles=sum(cause.counted == "cycle" for cause in status.causes),
            missing=tuple(cause.words for cause in status.causes if cause.counted == "id"),
            **counts,
        )


def identify_query(source: Source) -> dict[str, Any]:
    """What makes it this query, and no other."""
    asked = source.asked
    own: dict[str, Any] = {"command": "order", "input": absolute(source.path)}
    if source.stamped:
        group = asked.partition_by[0] if asked.partition_by else None
        own |= {"protocol": asked.protocol, "processes": asked.processes, "parameters": asked.parameters}
        return {**own, "group": group, "by": source.by, "receiver": source.receiver}
    names = ("id", "causes", "process", "vector", "partition_by", "time", "no_cause")
    return {**own, **{name: getattr(asked, name) for name in names if getattr(asked, name)}}


def build_query(
    spark: SparkSession, source: Source, table: TableFiles, out: Any, checkpoint: Any
) -> DataStreamWriter:
    asked, rows = source.asked, source.files.read(spark, table)
    if source.by == "closed":
        if source.receiver is None or asked.partition_by or not source.stamped:
            raise BadParameter(COMMAND, "--by closed needs a --receiver and stamps, and no --partition-by")
        places = {"receiver": source.receiver, "out": out, "checkpoint": checkpoint}
        options: dict[str, Any] = {"parameters": asked.parameters, "patience": asked.patience}
        return deliver_closed(rows, str(asked.protocol), asked.processes, **options, **places)
    if source.by != "receiver":
        raise BadParameter.choice(COMMAND, "--by", source.by, ("receiver", "closed"))
    ordered = order(rows, **asdict(default_partition(asked, rows)))
    if table.format == "json":
        ordered = ordered.observe(LINES, count_broken())
    writer = ordered.writeStream.format("parquet").outputMode("append").option("path", absolute(out))
    return writer.option("checkpointLocation", absolute(checkpoint))


def describe_source(spark: SparkSession, source: Source, kept: Checkpoint) -> TableFiles:
    """What the files are. Packets need none to begin with: then they have the columns of a packet alone."""
    if not source.stamped:
        return source.files.describe(spark, COMMAND, kept)
    columns = from_arrow_schema(packet_columns(source))
    if files(spark, absolute(source.path)) or kept.read_columns() is not None:
        found = source.files.describe(spark, COMMAND, kept).schema
        columns = StructType([*columns, *(field for field in found if field.name not in columns.names)])
    return TableFiles("parquet", columns.json())


def packet_columns(source: Source) -> pa.Schema:
    """The columns that files of packets may have, beside others of the user's."""
    stamp, groups = source.asked.stamp or "stamp", source.asked.partition_by or ()
    columns = [field.with_name(stamp) if field.name == "stamp" else field for field in PACKETS]
    return pa.schema([*columns, ALL_PACKETS.field("label"), *((name, pa.string()) for name in groups)])


def count_broken() -> Column:
    """How many rows are lines that are no JSON: they are in `_rescued` as they are, and the rest of others as JSON."""
    read = F.from_json("_rescued", "map<string,string>")
    return F.count_if(F.col("_rescued").isNotNull() & read.isNull()).alias(BROKEN_LINES)


def refuse_source(spark: SparkSession, source: Source, once: bool, new: bool) -> None:
    """Check existing files before the query starts: Spark never skips a file that a micro-batch has planned."""
    place = absolute(source.path)
    if source.files_per_batch is not None and source.files_per_batch < 1:
        raise BadParameter(COMMAND, f"--files must be 1 or more, not {source.files_per_batch}")
    if not source.stamped:
        return
    refuse_directory(COMMAND, source.path, "packets")
    there = files(spark, place)
    if once and not there:
        raise BadParameter(
            COMMAND, f"{source.path} has no Parquet files of packets, and --once reads only what is there"
        )
    if new and readable(place):
        refuse_files(spark, there, packet_columns(source), optional=("arrival", "label"))


def count_output(spark: SparkSession, out: str | os.PathLike[str], table: TableFiles) -> Counted:
    """Count all that was written."""
    lines = table.format == "json"
    # With its columns: a query that has delivered nothing has written no file that would tell them.
    schema = "position long, kind string" + ", _rescued string" * lines
    rows = spark.read.schema(schema).parquet(escape_path(absolute(out)))
    kind, placed = F.col("kind"), F.col("position").isNotNull()
    found = rows.agg(
        F.count_if(placed & (kind != "late")).alias("delivered"),
        F.count_if(kind == "late").alias("late"),
        F.count_if(kind == "refused").alias("refused"),
        F.count_if(kind == "released").alias("gave_up"),
        *[count_broken()] * lines,
    ).first()
    assert found is not None
    return Counted(found.asDict())
