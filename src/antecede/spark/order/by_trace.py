"""The events of a trace in causal order, what is missing among them, and what waits for it.

A run with clocks, of which nothing is missing, is one distributed sort: a clock grows along happened-before. What ties
is concurrent, and goes by the names of processes.

The others are ordered by what each event follows: the one before it at its process and, of a delivery, the send. The
key of an event is the greatest of its own time and of the keys of what happened before it; where a run has clocks and
no `time` is asked for, its clocks are these times, and stay the order. A message that is delivered and not sent is a
cause that is nowhere: what happened after the delivery waits for it. A task orders a run of up to `LARGEST` events;
longer ones are events that name their causes (by_causes.py).

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
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import LongType, StructField, StructType

from antecede.errors import BadTrace
from antecede.jit import kernels_for
from antecede.spark.causes import ByCauses
from antecede.spark.errors import mark_errors, raise_task_errors
from antecede.spark.frames import hide_null_lists, quote, read_time, refuse_column_names, show_null_lists
from antecede.spark.order.by_causes import order_by_causes
from antecede.spark.order.causes import number_groups, one_array, times_of, whole_pieces
from antecede.spark.order.graph import INHERITED, NEVER, count_from_starts, take_sets, walk
from antecede.spark.order.position import number_rows
from antecede.spark.order.runs import (
    ID_COLUMNS,
    LARGEST,
    TOGETHER,
    explain_wrong,
    find_unsent,
    link_events,
    survey_runs,
    try_runs,
)
from antecede.spark.storage import escape_path, join
from antecede.spark.trace.api import Trace
from antecede.trace.clocks import link_rows

__all__ = ["ByTrace", "explain_refused", "find_missing", "order_trace"]

MESSAGES: Final = "array<struct<sender: string, number: bigint>>"
WAITS: Final = pa.list_(pa.struct([("sender", pa.string()), ("number", pa.int64())]))
"""The same, as Arrow has it."""


class ByTrace(Struct, frozen=True):
    """A trace has columns of its own."""

    partition_by: tuple[str, ...] = ("run",)
    time: str = "time_ns"


def order_trace(trace: Trace, *, time: str | None = None, partitions: int | None = None) -> DataFrame:
    """The events with `position` and `waits_for`. This reads a few columns at once, to count."""
    trace = read_all_columns(trace)
    refuse_column_names("order", trace.events, {"time": time})
    with raise_task_errors():
        runs = survey_runs(trace.events)
        bad = {run for run, _ in explain_wrong(runs)}
        good = leave_out(trace.events, bad)
        found, _ = find_unsent(good)
        bad |= set(runs_with(found, "wrong").to_pylist())
        known = drop_runs(runs, bad)
        timed = known["lacking"] if time is None else known["rows"]
        concerned = pc.or_(pc.greater(timed, 0), pc.is_in(known["run"], runs_with(found, "lacking")))
        by_causes = known.filter(concerned)
        twice = pc.is_in(by_causes["run"], runs_with(found, "twice"))
        bad |= names_of(by_causes.filter(twice))
        by_causes, others = drop_runs(by_causes, bad), known.filter(pc.invert(concerned))
        good = leave_out(trace.events, bad)
        columns = [*map(quote, trace.events.columns), "position", "waits_for"]
        parts: list[DataFrame] = []
        if len(others) or not len(by_causes):
            bounds = others.select(["run", "rows", "low", "high"]).rename_columns(
                ["run", "__rows", "__low", "__high"]
            )
            rows = good if not len(by_causes) else name_runs(good, by_causes, "left_anti")
            sorted_rows = number_rows(
                rows, ["run"], "clock", ["process", "index"], partitions=partitions, known=bounds
            )
            # After the sort: a constant need not be shuffled.
            parts.append(sorted_rows.withColumn("waits_for", F.array().cast(MESSAGES)).select(*columns))
        long = pc.greater(by_causes["rows"], LARGEST)
        for some, work in ((pc.invert(long), order_short), (long, order_linked)):
            if len(own := by_causes.filter(some)):
                keyed = add_times(name_runs(good, own, "inner"), time)
                parts.append(work(keyed).select(*columns))
    if bad:
        none = F.lit(None).cast("long").alias("position"), F.array().cast(MESSAGES).alias("waits_for")
        parts.append(trace.events.where(is_one_of(bad)).select("*", *none))
    return reduce(DataFrame.unionByName, parts)


def runs_with(found: pa.Table, count: str) -> pa.Array:
    return found.filter(pc.greater(found[count], 0))["run"].combine_chunks()


def add_times(events: DataFrame, time: str | None) -> DataFrame:
    """The events with `__at`: the times that are asked for, or clocks, or, of runs that lack some, their times."""
    own = F.when(F.col("__lacking") > 0, F.col("time_ns")).otherwise(F.col("clock"))
    return events.withColumn("__at", own if time is None else read_time(events, time)).drop("__lacking")


def order_linked(events: DataFrame) -> DataFrame:
    """Order runs that no task should hold."""
    ordered = order_by_causes(link_events(events), ByCauses(*ID_COLUMNS, ("run",), "__at", ()))
    waits = F.expr(
        "array_sort(transform(if(position is null, array(), waits_for), one -> struct("
        "substr(one, locate('\\0', one) + 1) as sender, "
        "cast(substr(one, 2, locate('\\0', one) - 2) as bigint) as number)))"
    )
    return ordered.withColumn("waits_for", waits.cast(MESSAGES))


def order_short(events: DataFrame) -> DataFrame:
    """Order runs in tasks that hold them: by numbers of rows, and no names."""
    rows, hidden = hide_null_lists(events)
    together = rows.repartition("run").sortWithinPartitions("run", "process", "index")
    added = [StructField("position", LongType()), StructField("waits_for", from_arrow_type(WAITS))]
    task = mark_errors(order_batches)
    return show_null_lists(together.mapInArrow(task, StructType([*rows.schema.fields, *added])), hidden)


def order_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for table in whole_pieces(batches, "run", TOGETHER):
        with kernels_for(len(table)):
            yield from order_table(table.combine_chunks()).to_batches(max_chunksize=1 << 16)


def order_table(table: pa.Table) -> pa.Table:
    """Order whole runs, sorted by run, process and index: the rules of graph.py, with rows as events."""
    group, starts, sent = link_rows(table)
    many, rows, time = len(table), np.arange(len(table)), times_of(one_array(table["__at"]))
    before = rows - 1
    before[starts] = -1
    delivered = pc.and_(pc.equal(table["kind"], "deliver"), pc.invert(table["control"])).to_numpy()
    orphans = np.flatnonzero(delivered & (sent < 0))
    keys = [(name, "ascending") for name in ("run", "sender", "number")]
    orphans = orphans[pc.sort_indices(table.take(pa.array(orphans)), sort_keys=keys).to_numpy()]
    # A message that nobody sent is an event that is not there.
    names = number_groups(table.take(pa.array(orphans)), ("run", "sender", "number"))
    _, first = np.unique(names, return_index=True)
    cause = np.concatenate([before[before >= 0], sent[sent >= 0], many + names])
    effect = np.concatenate([rows[before >= 0], rows[sent >= 0], orphans])
    present = np.arange(many + len(first)) < many
    own = np.concatenate([time, np.full(len(first), NEVER)])
    key, level, reached, held, ends, pool = walk(present, cause, effect, own, INHERITED)
    refused = np.isin(group, group[~reached[:many]])
    order = np.lexsort((rows, time, level[:many], key[:many], group))
    position = pa.array(count_from_starts(group[order]), mask=refused[order])
    messages = pa.StructArray.from_arrays(
        [one_array(table[name]) for name in WAITS.value_type.names], fields=list(WAITS.value_type)
    )
    which = np.where(refused, 0, held[:many])[order]
    waits = take_sets(which, ends, orphans[first][pool - many] if len(pool) else pool, messages)
    return table.take(pa.array(order)).append_column("position", position).append_column("waits_for", waits)


def name_runs(events: DataFrame, runs: pa.Table, how: str) -> DataFrame:
    """The events of these runs, with `__lacking`: how many of the run have no clock; or, `left_anti`, of the others."""
    names = runs.select(["run", "lacking"]).rename_columns(["run", "__lacking"])
    return events.join(F.broadcast(events.sparkSession.createDataFrame(names)), "run", how)


def read_all_columns(trace: Trace) -> Trace:
    """The trace with the columns that its files have besides those of the contract."""
    if trace.path is None:
        return trace
    reading = trace.spark.read.option("pathGlobFilter", "*.parquet")
    found = reading.parquet(escape_path(join(trace.path, "events"))).schema
    others = [field for field in found if field.name not in trace.events.columns]
    if not others:
        return trace
    schema = StructType([*trace.events.schema, *others])
    return replace(trace, events=reading.schema(schema).parquet(escape_path(join(trace.path, "events"))))


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


def explain_refused(ordered: DataFrame, asked: ByTrace) -> DataFrame:
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
        for table in whole_pieces(batches, "run", TOGETHER):
            for run, error in try_runs(table):
                if error is not None:
                    row = {"run": run["run"][0].as_py(), "rows": len(run), "reason": reason_of(error)}
                    yield pa.RecordBatch.from_pylist([row])

    others = leave_out(bad, {run for run, *_ in told})
    pieces = others.repartition("run").sortWithinPartitions("run", "process", "index")
    return pieces.mapInArrow(task, schema).unionByName(known)


def reason_of(error: BadTrace) -> str:
    """What is wrong, without the name of the run."""
    place = error.place.partition(", ")[2]
    return f"{place + ': ' if place else ''}{error.reason}"


def find_missing(ordered: DataFrame, asked: ByTrace) -> DataFrame:
    """(run, sender, number): messages that are delivered and not sent."""
    return find_unsent(ordered.where("position is not null"))[1]
