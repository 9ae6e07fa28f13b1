"""The events of a trace in causal order, what is missing among them, and what waits for it.

By its clocks, or by computed ones where it has none: one distributed sort, because a clock grows along happened-before.
What ties is concurrent, and goes by the names of processes. So the order is the same whatever the partitions are.

A clock counts events, and says nothing of time. So where clocks are computed, or a `time` is asked for, the key of an
event is the greatest of its own time and of the keys of what happened before it, and the clock decides between equal
keys. Where no event has an earlier time than what happened before it, the keys are the times: one pass along processes
and one join find that out. If there are such, they take the later time, and it is looked again.

What is missing is the send of a message that is delivered. What happened after such a delivery, directly or not, waits:
it lies outside of the greatest consistent cut before these deliveries (`antecede.spark.order.cuts`). `waits_for` has
the one message that holds up the process first.

A run that is none (indices that do not count its events, events of no kind, a cycle) is refused: its rows have no
`position`. The other runs are not concerned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, FloatType, StructType

from antecede.errors import BadParameter, BadTrace
from antecede.spark.errors import raise_task_errors
from antecede.spark.frames import quote, read_time
from antecede.spark.order.cuts import EDGES, Numbers, find_consistent_cuts, link_events, number_lines
from antecede.spark.order.gaps import explain_wrong, find_unsent, survey_runs
from antecede.spark.order.lamport import try_runs, whole_pieces, with_clock
from antecede.spark.order.position import number_rows
from antecede.spark.storage import escaped, join
from antecede.spark.trace.api import Trace

__all__ = ["ByTrace", "explain_refused", "find_missing", "order_trace"]

MESSAGES: Final = "array<struct<sender: string, number: bigint>>"


class ByTrace(Struct, frozen=True):
    """A trace has columns of its own."""

    partition_by: tuple[str, ...] = ("run",)
    time: str = "time_ns"


def order_trace(trace: Trace, *, time: str | None = None, partitions: int | None = None) -> DataFrame:
    """The events with `position` and `waits_for`.

    This reads a few columns at once, to count. If clocks are missing, it computes them and keeps them on disk as long
    as the result is used.
    """
    with raise_task_errors():
        trace = read_all_columns(trace)
        runs = survey_runs(trace.events)
        bad = {run for run, _ in explain_wrong(runs)}
        good = leave_out(trace.events, bad)
        known = runs.filter(runs["wrong"].is_null()).drop_columns(["wrong"])
        timed = with_clock(Trace(good, trace.runs), surveyed=known, lenient=True).events
        bounds: pa.Table | None = known.rename_columns(["run", "__rows", "__low", "__high", "lacking"])
        if timed is not good:
            # In Python, from all rows: the sort would do it three times, to count, to cut and to place.
            timed = timed.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)
            bounds = None
            bad |= names_of(timed.where("clock is null").select("run").distinct().toArrow())
        lacking, missing = find_unsent(timed)
        bad |= names_of(lacking.filter(pc.greater(lacking["wrong"], 0)))
        timed, missing, lacking = leave_out(timed, bad), leave_out(missing, bad), drop_runs(lacking, bad)
        rows = mark_waiting(timed, lacking.select(["run"]), missing) if len(lacking) else timed
        bounds = None if bounds is None else drop_runs(bounds, bad)
        ties = ["process", "index"]
        lacked = known.filter(pc.greater(known["lacking"], 0)).select(["run"])
        if time is None and not len(lacked):
            found = number_rows(rows, ["run"], "clock", ties, partitions=partitions, known=bounds)
        else:
            keyed = raise_times(rows, time) if time is not None else raise_some(rows, lacked)
            found = number_rows(keyed, ["run"], "__key", ["clock", *ties], partitions=partitions)
    # After the sort: a constant need not be shuffled.
    if "waits_for" not in found.columns:
        found = found.withColumn("waits_for", F.array().cast(MESSAGES))
    found = found.select(*map(quote, trace.events.columns), "position", "waits_for")
    if bad:
        none = F.lit(None).cast("long").alias("position"), F.array().cast(MESSAGES).alias("waits_for")
        found = found.unionByName(trace.events.where(is_one_of(bad)).select("*", *none))
    return found


def raise_some(rows: DataFrame, runs: pa.Table) -> DataFrame:
    """The same where these runs have times, and the clocks of the others: they state their order themselves."""
    names = F.broadcast(rows.sparkSession.createDataFrame(runs))
    others = rows.join(names, "run", "left_anti").withColumn("__key", F.col("clock"))
    return raise_times(rows.join(names, "run", "left_semi"), "time_ns").unionByName(others)


def raise_times(events: DataFrame, time: str) -> DataFrame:
    """The events with `__key`: the greatest of their own time and the keys of what happened before them."""
    kind = events.schema[time].dataType if events.columns.count(time) == 1 else None
    if kind is None or isinstance(kind, (DoubleType, FloatType)):
        found = "is no column of the trace" if kind is None else f"is {kind.simpleString()}"
        raise BadParameter(
            "order", f"time must be a column of integers, timestamps or text, and {time} {found}"
        )
    line = Window.partitionBy("run", "process").orderBy("index").rowsBetween(Window.unboundedPreceding, 0)
    never = F.lit(np.iinfo(np.int64).min)
    names = ["run", "process", "index"]
    floors: list[DataFrame] = []
    while True:
        own, rows = F.coalesce(read_time(events, time), never), events
        if floors:
            floor = (
                reduce(DataFrame.unionByName, floors).groupBy(*names).agg(F.max("__sent").alias("__floor"))
            )
            rows = events.join(floor, names, "left")
            own = F.greatest(own, F.coalesce("__floor", never))
        keyed = rows.withColumn("__key", F.max(own).over(line)).drop("__floor")
        said = keyed.where(~F.col("control"))
        sends = said.where("kind = 'send'").select("run", "sender", "number", F.col("__key").alias("__sent"))
        early = (
            said.where("kind = 'deliver'").join(sends, ["run", "sender", "number"]).where("__sent > __key")
        )
        floors.append(early.select(*names, "__sent").localCheckpoint(storageLevel=StorageLevel.DISK_ONLY))
        if floors[-1].isEmpty():
            return keyed


def read_all_columns(trace: Trace) -> Trace:
    """The trace with the columns that its files have besides those of the contract."""
    if trace.path is None:
        return trace
    reading = trace.spark.read.option("pathGlobFilter", "*.parquet")
    found = reading.parquet(escaped(join(trace.path, "events"))).schema
    others = [field for field in found if field.name not in trace.events.columns]
    if not others:
        return trace
    schema = StructType([*trace.events.schema, *others])
    return replace(trace, events=reading.schema(schema).parquet(escaped(join(trace.path, "events"))))


def names_of(runs: pa.Table) -> set[str | None]:
    return set(runs["run"].to_pylist())


def drop_runs(table: pa.Table, runs: set[str | None]) -> pa.Table:
    return (
        table.filter(pc.invert(pc.is_in(table["run"], pa.array(list(runs), pa.string())))) if runs else table
    )


def is_one_of(runs: set[str | None]) -> Column:
    named = F.coalesce(F.col("run").isin(*(run for run in runs if run is not None)), F.lit(False))
    return named | F.col("run").isNull() if None in runs else named


def leave_out(rows: DataFrame, runs: set[str | None]) -> DataFrame:
    return rows.where(~is_one_of(runs)) if runs else rows


def explain_refused(ordered: DataFrame) -> DataFrame:
    """(run, rows, reason) of each run that is refused."""
    spark, bad = ordered.sparkSession, ordered.where("position is null").drop("position", "waits_for")
    surveyed = survey_runs(bad)
    rows = dict(zip(surveyed["run"].to_pylist(), surveyed["rows"].to_pylist(), strict=True))
    told = [(run, rows[run], reason_of(error)) for run, error in explain_wrong(surveyed)]
    schema = "run string, rows long, reason string"
    known = spark.createDataFrame(told, schema)
    if len(told) == len(rows):
        return known

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in whole_pieces(batches):
            for run, error in try_runs(table):
                if error is not None:
                    row = {"run": run["run"][0].as_py(), "rows": len(run), "reason": reason_of(error)}
                    yield pa.RecordBatch.from_pylist([row])

    others = leave_out(bad, {run for run, *_ in told}).withColumn("__base", F.lit(0).cast("long"))
    pieces = others.repartition("run").sortWithinPartitions("run", "__base", "process", "index")
    return pieces.mapInArrow(task, schema).unionByName(known)


def reason_of(error: BadTrace) -> str:
    """What is wrong, without the name of the run."""
    place = error.place.partition(", ")[2]
    return f"{place + ': ' if place else ''}{error.reason}"


def find_missing(ordered: DataFrame) -> DataFrame:
    """(run, sender, number): messages that are delivered and not sent."""
    return find_unsent(ordered.where("position is not null"))[1]


def mark_waiting(events: DataFrame, runs: pa.Table, missing: DataFrame) -> DataFrame:
    """The events, with what each waits for. `runs` are those in which something is missing."""
    spark = events.sparkSession
    concerned = events.join(F.broadcast(spark.createDataFrame(runs)), "run", "left_semi")
    schema = "run string, process string, __from long, __sender string, __number long"
    known = F.broadcast(spark.createDataFrame(find_waiting(concerned, missing), schema))
    joined = events.join(known, ["run", "process"], "left")
    root = F.array(F.struct(F.col("__sender").alias("sender"), F.col("__number").alias("number"))).cast(
        MESSAGES
    )
    waits = F.when(F.col("index") >= F.col("__from"), root).otherwise(F.array().cast(MESSAGES))
    return joined.withColumn("waits_for", waits).drop("__from", "__sender", "__number")


def find_waiting(events: DataFrame, missing: DataFrame) -> pa.Table:
    """For each process that waits: the first index that does, and the missing message that it waits for."""
    orphans = events.where("kind = 'deliver' and not control").join(
        missing, ["run", "sender", "number"], "left_semi"
    )
    first = F.min(F.struct("index", "sender", "number")).alias("first")
    firsts = orphans.groupBy("run", "process").agg(first)
    counts = events.groupBy("run", "process").agg(F.count(F.lit(1)).alias("rows"))
    found = counts.join(firsts, ["run", "process"], "left").select(
        "run", "process", "rows", "first.index", "first.sender", "first.number"
    )
    table = found.toArrow().sort_by([("run", "ascending"), ("process", "ascending")])
    lines = number_lines(table)
    rows = table["rows"].to_numpy()
    index = table["index"].fill_null(np.iinfo(np.int64).max).to_numpy()
    links = link_events(events, lines)
    # Read once for each round.
    links.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        cuts = find_consistent_cuts(links, np.minimum(index, rows)[:, None])[:, 0]
        root = find_roots(links, cuts, index)
    finally:
        links.unpersist()
    waits = np.flatnonzero(cuts < rows)
    told = lines.select(["run", "process"]).take(waits)
    told = told.append_column("__from", pa.array(cuts[waits]))
    for name in ("sender", "number"):
        told = told.append_column(f"__{name}", table[name].take(pa.array(root[waits])))
    return told


def find_roots(links: DataFrame, cuts: Numbers, orphan: Numbers) -> Numbers:
    """For each line the line whose missing message holds it up: itself, or where a message into it comes from.

    The event at a cut is a delivery: of a missing message, or of one that was sent after the sender's own cut.
    """

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            source, sent, target, delivered = (batch.column(name).to_numpy() for name in EDGES)
            some = (delivered == cuts[target]) & (sent >= cuts[source])
            yield pa.record_batch({"target": target[some], "source": source[some]})

    found = (
        links.mapInArrow(task, "target long, source long")
        .groupBy("target")
        .agg(F.min("source").alias("source"))
    )
    table = found.toArrow()
    root = np.arange(len(cuts))
    root[table["target"].to_numpy()] = table["source"].to_numpy()
    own = orphan == cuts
    root[own] = np.flatnonzero(own)
    while True:
        further = root[root]
        if (further == root).all():
            return root
        root = further
