"""The runs of a trace: whether they are runs, what is missing in them, their causes, and clocks for those without.

Sets of numbers are words of 64 bits. The numbers of a process grow by one, so a set of them is dense: a word for each
64 of them, `number >> 6`, is a sixty-fourth of the rows, and Spark puts words together by an aggregation that never
leaves its Java. Numbers that lie far apart give a word each: right too, and no shorter.

The clock of an event is a number such that sorting by (clock, process, index) never puts an event before one that
happened before it (Lamport 1978). Rules
  1. the first event of a process has 0, and each later one more than the one before it;
  2. a delivery has more than the send of its message. A delivery whose send is not there waits for nothing.
Every event counts, receives and control packets too: they have an `index`, and sort with the others.

A run of up to `LARGEST` events is one group of rows in one task (`antecede.trace.clocks`). A longer one is ordered as
events that name their causes (by_causes.py), in blocks of time, and positions are its clocks. A cycle has no order: a
`BadTrace` names the processes and messages in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import reduce
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from antecede.errors import BadTrace
from antecede.spark.causes import ByCauses
from antecede.spark.errors import mark_errors, raise_marked
from antecede.spark.frames import quote
from antecede.spark.order.by_causes import order_by_causes
from antecede.spark.order.causes import whole_pieces
from antecede.spark.trace.api import Trace
from antecede.trace.clocks import add_clocks
from antecede.trace.schema import KINDS

__all__ = [
    "ID_COLUMNS",
    "LARGEST",
    "explain_wrong",
    "find_unsent",
    "link_events",
    "survey_runs",
    "try_runs",
    "with_clock",
]

LARGEST: Final = 4_000_000
"""Events that one task orders at a time: about 1 GB of its memory."""
TOGETHER: Final = 1_000_000
"""Small runs are ordered together, about so many events at a time."""
ID_COLUMNS: Final = ("__event", "__after")
"""What `link_events` adds: an event's identifier, and those of its causes."""


def word(number: str) -> Column:
    return F.shiftright(F.col(number), 6)


def bit(number: str) -> Column:
    return F.expr(f"shiftleft(1L, cast(`{number}` & 63 as int))")


def survey_runs(events: DataFrame) -> pa.Table:
    """For each run: its `rows`, the least and largest clock as `low` and `high`, how many rows lack one, and `wrong`.

    `wrong` is null, or says why the run is none: events of no run or process, or whose index does not count them.
    """
    words = events.groupBy("run", "process", word("index").alias("word")).agg(
        F.count(F.lit(1)).alias("rows"),
        F.bit_count(F.bit_or(bit("index"))).alias("different"),
        F.min("index").alias("first"),
        F.max("index").alias("last"),
        *clocks("clock", "clock", F.count_if(F.col("clock").isNull())),
    )
    sums = [F.sum(name).alias(name) for name in ("rows", "different")]
    ends = F.min("first").alias("first"), F.max("last").alias("last")
    empty = F.count_if(F.expr("run is null or process is null or word is null")).alias("empty")
    lines = words.groupBy("run", "process").agg(*sums, *ends, empty, *clocks("low", "high", F.sum("lacking")))
    counted = "first = 0 and last = rows - 1 and rows = different and empty = 0"
    # One is enough to refuse them all; the first, so that it is always the same.
    wrong = F.expr(f"not coalesce({counted}, false)")
    about = F.struct("process", "rows", "different", "first", "last", "empty")
    runs = lines.groupBy("run").agg(
        F.sum("rows").alias("rows"),
        F.min(F.when(wrong, about)).alias("wrong"),
        *clocks("low", "high", F.sum("lacking")),
    )
    return runs.withColumn("wrong", F.to_json("wrong")).toArrow().sort_by("run")


def explain_wrong(surveyed: pa.Table) -> list[tuple[str | None, BadTrace]]:
    """The runs that are none, and why."""
    wrong = surveyed.filter(surveyed["wrong"].is_valid()).to_pylist()
    return [
        (row["run"], describe_run({"run": row["run"], "process": None, **json.loads(row["wrong"])}))
        for row in wrong
    ]


def clocks(low: str, high: str, lacking: Column) -> tuple[Column, ...]:
    return F.min(low).alias("low"), F.max(high).alias("high"), lacking.alias("lacking")


def describe_run(row: dict[str, object]) -> BadTrace:
    place = f"run {row['run']}, process {row['process']}"
    if row["empty"]:
        return BadTrace(place, "an event has no run, process or index")
    if row["rows"] != row["different"]:
        return BadTrace(
            place, f"{row['rows']} events have {row['different']} different indices; each needs its own"
        )
    return BadTrace(
        place,
        f"{row['rows']} events have indices {row['first']} to {row['last']}; indices must count 0, 1, 2, ...",
    )


WRONG: Final = "kind is null or sender is null or number is null or control is null or kind not in " + str(
    KINDS
)


def find_unsent(events: DataFrame) -> tuple[pa.Table, DataFrame]:
    """Messages that are delivered and not sent, (run, sender, number); and before that, runs with one of these counts.

    `lacking` words of numbers lack a send. Events are `wrong` that lack a value that all have, or are of a kind that
    there is not. Sends are `twice` of a message that was sent before, or is another process's.
    """
    said = events.where(f"{WRONG} or (not control and kind != 'receive')")
    words = said.groupBy("run", "sender", word("number").alias("word")).agg(
        F.bit_or(F.when(F.col("kind") == "send", bit("number"))).alias("sent"),
        F.bit_or(F.when(F.col("kind") == "deliver", bit("number"))).alias("delivered"),
        F.count_if(F.expr(WRONG)).alias("wrong"),
        F.count_if(F.col("kind") == "send").alias("sends"),
        F.count_if(F.expr("kind = 'send' and process != sender")).alias("foreign"),
    )
    lacks = "delivered & ~coalesce(sent, 0L)"
    twice = "foreign + sends - bit_count(coalesce(sent, 0L))"
    some = words.where(f"wrong > 0 or {lacks} != 0 or {twice} != 0").groupBy("run")
    found = some.agg(
        F.sum("wrong").alias("wrong"),
        F.sum(F.expr(twice)).alias("twice"),
        F.count_if(F.expr(f"{lacks} != 0")).alias("lacking"),
    ).toArrow()
    bits = F.expr(f"filter(sequence(0, 63), b -> shiftright({lacks}, b) & 1 = 1)")
    number = F.expr("shiftleft(word, 6) + offset").alias("number")
    each = words.where(f"{lacks} != 0").select("run", "sender", "word", F.explode(bits).alias("offset"))
    missing = each.select("run", "sender", number)
    if not len(found) or not pc.any(pc.greater(found["lacking"], 0)).as_py():
        # Known to be empty: nobody has to look again.
        missing = events.sparkSession.createDataFrame([], missing.schema)
    return found, missing


# Clocks


def with_clock(trace: Trace, *, largest: int = LARGEST) -> Trace:
    """The same trace with a clock in every row: its own where a run has it throughout, else a computed one.

    `events` of the result has all the columns of the contract, `clock` without nulls, rows in no particular order; it
    is computed by the plan, each time that it is used: persist it, or write it, if you use it twice. If no row lacks a
    clock, the trace itself comes back, files and all. The clocks that a run has are taken at their word.

    To know which it is, this reads some columns of the trace at once; gaps in `index` are a `BadTrace`. Runs longer
    than `largest` are read some times more, to be cut. A cycle shows as a `BadTrace` when the result is used (inside
    `antecede.spark.errors.raise_task_errors`).
    """
    spark, events = trace.spark, trace.events
    runs = survey_runs(events)
    for _, error in explain_wrong(runs):
        raise error
    rows, untimed = runs["rows"].to_numpy(), runs["lacking"].to_numpy() > 0
    if not untimed.any():
        return trace

    def only(which: NDArray[np.bool_], how: str = "left_semi") -> DataFrame:
        names = runs.select(["run"]).filter(pa.array(which))
        return events.join(F.broadcast(spark.createDataFrame(names)), "run", how)

    long = untimed & (rows > largest)
    made = [clock_runs(only(untimed & ~long))]
    if long.any():
        made.append(order_long(only(long), largest).select(*events.columns))
    if not untimed.all():
        made.append(only(untimed, "left_anti").select(*events.columns))
    return Trace(reduce(DataFrame.union, made), trace.runs)


# In tasks


def clock_runs(events: DataFrame) -> DataFrame:
    """The events with their clocks: a task holds whole runs."""
    together = events.repartition("run").sortWithinPartitions("run", "process", "index")
    return together.mapInArrow(mark_errors(clock_batches), events.schema)


def clock_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for table in whole_pieces(batches, "run", TOGETHER):
        yield from add_clocks(table).to_batches(max_chunksize=1 << 16)


def try_runs(table: pa.Table) -> Iterator[tuple[pa.Table, BadTrace | None]]:
    """Each run of a table that is sorted, and what is wrong with it."""
    names = table["run"].combine_chunks()
    changes = pc.not_equal(names[1:], names[:-1]).to_numpy(zero_copy_only=False)
    for start, end in pairwise([0, *(np.flatnonzero(changes) + 1), len(table)]):
        run = table.slice(int(start), int(end - start))
        try:
            add_clocks(run)
            yield run, None
        except BadTrace as error:
            yield run, error


# Long runs


def order_long(events: DataFrame, largest: int) -> DataFrame:
    """The events of long runs, with their positions in a causal order as clocks: no task holds a whole run."""
    linked = link_events(events)
    ordered = order_by_causes(linked, ByCauses(*ID_COLUMNS, ("run",), "time_ns", ()), full=largest)
    cycle = BadTrace("events", f"a run of more than {largest:,} events has a cycle: order tells which")
    return ordered.withColumn("clock", F.coalesce("position", raise_marked(cycle).cast("long")))


def link_events(events: DataFrame) -> DataFrame:
    """The events of runs, with an identifier and causes (`ID_COLUMNS`).

    An identifier is e, the process and the index, which sort as these do. The cause of a delivery that has no send is
    m, the number and the sender.
    """

    def name(process: str, index: Column) -> Column:
        return F.concat(F.lit("e"), F.col(process), F.lit("\0"), F.lpad(index.cast("string"), 19, "0"))

    sends = events.where("kind = 'send' and not control").groupBy("run", "sender", "number")
    sent = sends.agg(F.min("index").alias("__sent"))
    joined = events.join(sent, ["run", "sender", "number"], "left")
    lost = F.concat(F.lit("m"), F.col("number").cast("string"), F.lit("\0"), F.col("sender"))
    message = F.coalesce(name("sender", F.col("__sent")), lost)
    delivered = F.when(F.expr("kind = 'deliver' and not control"), message)
    before = F.when(F.col("index") > 0, name("process", F.col("index") - 1))
    added = {
        "__event": name("process", F.col("index")),
        "__after": F.array_compact(F.array(before, delivered)),
    }
    return joined.withColumns(added).select(*map(quote, events.columns), *ID_COLUMNS)
