"""Clocks for traces that have none: from program order and message edges alone.

The clock of an event is a number such that sorting by (clock, process, index) never puts an event before one that
happened before it (Lamport 1978). Rules
  1. the first event of a process has 0, and each later one more than the one before it;
  2. a delivery has more than the send of its message. A delivery whose send is not there waits for nothing.
Every event counts, receives and control packets too: they have an `index`, and sort with the others.

Who computes. A run of up to `LARGEST` events is one group of rows in one task, in which a line of events for each
process is followed until it waits for a send that is yet to come; that send wakes it (`lines`). A longer run is cut
first into pieces that a task can hold, along cuts that no message crosses backwards (`cuts`): then a piece waits for
nothing in later ones, and pieces are computed side by side. Its clocks go on from piece to piece, so they are not the
smallest possible, but they depend on the rows alone, never on how they are spread over partitions.

A cycle has no order: a `BadTrace` names the processes and messages in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from antecede.errors import BadTrace
from antecede.spark.errors import mark_errors
from antecede.spark.order.cuts import find_consistent_cuts, link_events, number_lines
from antecede.spark.order.gaps import explain_wrong, survey_runs
from antecede.spark.trace.api import Trace
from antecede.trace.clocks import add_clocks

__all__ = ["LARGEST", "try_runs", "whole_pieces", "with_clock"]

LARGEST: Final = 4_000_000
"""Events that one task orders at a time: about 1 GB of its memory."""
TOGETHER: Final = 1_000_000
"""Small runs are ordered together, about so many events at a time."""
MOMENTS: Final = 1024
"""Points in time at which a long run may be cut, at most."""
ENTRIES: Final = 1 << 23
"""Processes times points in time that the driver holds, at most: 64 MiB a table."""

Numbers = NDArray[np.int64]


def with_clock(
    trace: Trace, *, largest: int = LARGEST, surveyed: pa.Table | None = None, lenient: bool = False
) -> Trace:
    """The same trace with a clock in every row: its own where a run has it throughout, else a computed one.

    `events` of the result has all the columns of the contract, `clock` without nulls, rows in no particular order; it
    is computed by the plan, each time that it is used: persist it, or write it, if you use it twice. If no row lacks a
    clock, the trace itself comes back, files and all. The clocks that a run has are taken at their word.

    To know which it is, this reads some columns of the trace at once, unless the caller has `surveyed` them; gaps in
    `index` are a `BadTrace`. Runs longer than `largest` are read some times more, to be cut. A cycle shows as a
    `BadTrace` when the result is used (inside `antecede.spark.errors.raise_task_errors`).

    If it is `lenient`, runs that are wrong are not refused: they come without clocks.
    """
    spark, events = trace.spark, trace.events
    runs = survey_runs(events) if surveyed is None else surveyed
    if not lenient:
        for _, error in explain_wrong(runs):
            raise error
    rows, untimed = runs["rows"].to_numpy(), runs["lacking"].to_numpy() > 0
    if not untimed.any():
        return trace

    def only(which: NDArray[np.bool_], how: str = "left_semi") -> DataFrame:
        names = runs.select(["run"]).filter(pa.array(which))
        return events.join(F.broadcast(spark.createDataFrame(names)), "run", how)

    long = untimed & (rows > largest)
    pieces = only(untimed & ~long).withColumn("__base", F.lit(0).cast("long"))
    if long.any():
        pieces = pieces.union(cut_runs(only(long), largest))
    made = order_pieces(pieces, events.schema, lenient)
    if not untimed.all():
        made = made.union(only(untimed, "left_anti").select(*events.columns))
    return Trace(made, trace.runs)


# In tasks


def order_pieces(pieces: DataFrame, schema: StructType, lenient: bool) -> DataFrame:
    """The events with their clocks. A piece is what has one run and one `__base`, where its clocks start."""
    together = pieces.select(*schema.names, "__base").repartition("run", "__base")
    task = partial(clock_batches, columns=schema.names, lenient=lenient)
    return together.sortWithinPartitions("run", "__base", "process", "index").mapInArrow(
        mark_errors(task), schema
    )


def clock_batches(
    batches: Iterator[pa.RecordBatch], columns: list[str], lenient: bool
) -> Iterator[pa.RecordBatch]:
    for table in whole_pieces(batches):
        for made in clock_leniently(table) if lenient else [add_clocks(table, "__base")]:
            yield from made.select(columns).to_batches(max_chunksize=1 << 16)


def clock_leniently(table: pa.Table) -> Iterator[pa.Table]:
    """The rows with their clocks; those of runs that are none, without."""
    try:
        yield add_clocks(table, "__base")
    except BadTrace:
        for run, error in try_runs(table):
            if error is None:
                yield add_clocks(run, "__base")
            else:
                at = run.schema.get_field_index("clock")
                yield run.set_column(at, "clock", pa.nulls(len(run), pa.int64()))


def try_runs(table: pa.Table) -> Iterator[tuple[pa.Table, BadTrace | None]]:
    """Each run of a table that is sorted, and what is wrong with it."""
    names = table["run"].combine_chunks()
    changes = pc.not_equal(names[1:], names[:-1]).to_numpy(zero_copy_only=False)
    for start, end in pairwise([0, *(np.flatnonzero(changes) + 1), len(table)]):
        run = table.slice(int(start), int(end - start))
        try:
            add_clocks(run, "__base")
            yield run, None
        except BadTrace as error:
            yield run, error


def whole_pieces(
    batches: Iterator[pa.RecordBatch], names: Sequence[str] = ("run", "__base"), enough: int = TOGETHER
) -> Iterator[pa.Table]:
    """Batches of rows that are sorted by these columns, as tables that each hold pieces from end to end."""
    complete: list[pa.RecordBatch] = []
    current: list[pa.RecordBatch] = []
    for batch in batches:
        if not len(batch):
            continue
        start = find_last_start(batch, names)
        if current and (start or key(current[-1], names, 0) != key(batch, names, 0)):
            # The rows before `start` end what was current, if they belong to it, or are complete by themselves.
            complete += current
            current = []
        if start:
            complete.append(batch.slice(0, start))
        current.append(batch.slice(start))
        if sum(map(len, complete)) >= enough:
            yield pa.Table.from_batches(complete)
            complete = []
    if complete or current:
        yield pa.Table.from_batches(complete + current)


def key(batch: pa.RecordBatch, names: Sequence[str], row: int) -> list[Any]:
    return [batch.column(name)[row].as_py() for name in names]


def find_last_start(batch: pa.RecordBatch, names: Sequence[str]) -> int:
    """The first row of the piece that the last row belongs to: rows are sorted, so a search by halves."""
    wanted = key(batch, names, len(batch) - 1)
    low, high = 0, len(batch) - 1
    while low < high:
        middle = (low + high) // 2
        if key(batch, names, middle) == wanted:
            high = middle
        else:
            low = middle + 1
    return low


# Long runs


def cut_runs(events: DataFrame, largest: int) -> DataFrame:
    """The events of long runs, with the base of the piece that each belongs to."""
    sizes = events.groupBy("run").agg(
        F.count(F.lit(1)).alias("rows"), F.count_distinct("process").alias("lines")
    )
    most, all_lines = sizes.agg(F.max("rows"), F.sum("lines")).collect()[0]
    many = 1 + 2 * int(most) // largest
    lines, first, counts = count_by_time(events, choose_moments(int(all_lines), 2 * many))
    by_time = cut_by_time(lines, first, counts, many)
    by_index = cut_by_index(lines, many)
    links = link_events(events, lines)
    # Read once for each round, and made by a join of all rows: on disk it is read back at the speed of the disk.
    links.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        cuts = find_consistent_cuts(links, by_time)
        if find_largest_piece(lines, cuts) > largest:
            # Clocks that tell little: perhaps the processes at least kept pace with each other.
            cuts = min(
                cuts,
                find_consistent_cuts(links, by_index),
                key=lambda found: find_largest_piece(lines, found),
            )
    finally:
        links.unpersist()
    return locate_pieces(events, lines, cuts)


def choose_moments(lines: int, least: int) -> int:
    """Points in time for so many processes: `least` or more, and no more than the driver can hold.

    >>> choose_moments(100, 4), choose_moments(100_000, 4), choose_moments(10_000_000, 4)
    (1024, 83, 4)
    """
    return max(least, min(MOMENTS, ENTRIES // max(1, lines)))


def count_by_time(events: DataFrame, moments: int) -> tuple[pa.Table, Numbers, Numbers]:
    """The lines; the first index of each line not before each moment; each run's rows from moment to moment."""
    spark = events.sparkSession
    spans = events.groupBy("run").agg(F.min("time_ns").alias("low"), F.max("time_ns").alias("high"))
    moment = F.expr(
        f"cast(least(greatest((time_ns - low) / (high - low + 1.0) * {moments}, 0), {moments - 1}) as int)"
    )
    known = F.broadcast(spark.createDataFrame(spans.toArrow()))
    found = (
        events.join(known, "run")
        .groupBy("run", "process", moment.alias("moment"))
        .agg(F.count(F.lit(1)).alias("rows"), F.min("index").alias("first"))
        .toArrow()
    )
    lines = number_lines(
        found.group_by(["run", "process"])
        .aggregate([("rows", "sum")])
        .rename_columns(["run", "process", "rows"])
    )
    at = found.join(lines.select(["run", "process", "line"]), ["run", "process"])
    line, when = at["line"].to_numpy(), at["moment"].to_numpy()
    first = np.repeat(lines["rows"].to_numpy()[:, None], moments, axis=1)
    first[line, when] = at["first"].to_numpy()
    runs = number_runs(lines)
    totals = np.zeros((int(runs.max()) + 1, moments), np.int64)
    np.add.at(totals, (runs[line], when), at["rows"].to_numpy())
    return lines, np.minimum.accumulate(first[:, ::-1], axis=1)[:, ::-1], totals


def number_runs(lines: pa.Table) -> Numbers:
    """The number of each line's run: lines are sorted by run."""
    names = lines["run"].combine_chunks().dictionary_encode()
    return names.indices.to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def cut_by_time(lines: pa.Table, first: Numbers, counts: Numbers, many: int) -> Numbers:
    """Cuts at the moments that part each run into equal numbers of events."""
    before = np.cumsum(counts, axis=1) - counts
    share = np.arange(1, many)[None, :] / many
    wanted = counts.sum(axis=1)[:, None] * share
    # For each run and share, the first moment that has so many events before it.
    at = np.array([np.searchsorted(row, asked) for row, asked in zip(before, wanted, strict=True)])
    last = lines["rows"].to_numpy()[:, None]
    padded = np.concatenate([first, last], axis=1)
    return np.take_along_axis(padded, at.reshape(len(counts), many - 1)[number_runs(lines)], axis=1)


def cut_by_index(lines: pa.Table, many: int) -> Numbers:
    """Cuts at equal shares of each process's events."""
    cuts: Numbers = lines["rows"].to_numpy()[:, None] * np.arange(1, many)[None, :] // many
    return cuts


def count_before_cuts(lines: pa.Table, cuts: Numbers) -> Numbers:
    """For each run, how many of its events are before each cut."""
    runs = number_runs(lines)
    before = np.zeros((int(runs.max()) + 1, cuts.shape[1]), np.int64)
    np.add.at(before, runs, cuts)
    return before


def find_largest_piece(lines: pa.Table, cuts: Numbers) -> int:
    runs = number_runs(lines)
    totals = np.zeros(int(runs.max()) + 1, np.int64)
    np.add.at(totals, runs, lines["rows"].to_numpy())
    ends = np.concatenate(
        [np.zeros((len(totals), 1), np.int64), count_before_cuts(lines, cuts), totals[:, None]], axis=1
    )
    return int(np.diff(ends, axis=1).max())


def locate_pieces(events: DataFrame, lines: pa.Table, cuts: Numbers) -> DataFrame:
    """The events with their bases."""
    bases = np.insert(count_before_cuts(lines, cuts)[number_runs(lines)], 0, 0, axis=1)
    table = lines.select(["run", "process"])
    table = table.append_column("__cuts", pa.array(list(cuts), pa.list_(pa.int64())))
    table = table.append_column("__bases", pa.array(list(bases), pa.list_(pa.int64())))
    known = F.broadcast(events.sparkSession.createDataFrame(table))
    base = F.expr("__bases[size(filter(__cuts, at -> at <= index))]")
    return events.join(known, ["run", "process"]).withColumn("__base", base).drop("__cuts", "__bases")
