"""The events of a trace in causal order, and what is missing among them; and clocks for traces without.

A run with clocks, of which nothing is missing, is one distributed sort: a clock grows along happened-before. What ties
is concurrent, and goes by the names of processes.

The others are ordered by what each event follows: the one before it at its process and, of a delivery, the send. The
key of an event is the greatest of its own time and of the keys of what happened before it; where a run has clocks and
no `time` is asked for, its clocks are these times, and stay the order. A message that is delivered and not sent is a
cause that is nowhere: what happened after the delivery waits for it. A task orders a run of up to `LARGEST` events;
longer ones are events that name their causes (by_causes.py).

A run that is none (indices that do not count its events, events of no kind, a cycle) is refused: its rows have no
`position`. The other runs are not concerned.

Sets of numbers are words of 64 bits. The numbers of a process grow by one, so a set of them is dense: a word for each
64 of them, `number >> 6`, is a sixty-fourth of the rows, and Spark puts words together by an aggregation that never
leaves its Java. Numbers that lie far apart give a word each: right too, and no shorter.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
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
from antecede.spark.errors import raise_bad_trace, raise_task_errors
from antecede.spark.frames import ByCauses, escape_path, join_by, read_time, refuse_column_names, unite
from antecede.spark.order import by_causes
from antecede.spark.order.graph import sort_events
from antecede.spark.order.position import number_rows
from antecede.spark.run_tasks import (
    bring_together,
    extend_partitions,
    map_partitions,
    number_groups,
    one_array,
    times_of,
)
from antecede.spark.trace import Trace
from antecede.storage import join
from antecede.trace.clocks import add_clocks, link_rows
from antecede.trace.schema import EVENTS, KINDS

__all__ = [
    "READ", "TOLD", "ByTrace", "explain_refused", "find_missing", "order_rows", "read_all_columns", "refuse_columns",
    "with_clock",
]  # fmt: skip

READ: Final = tuple(EVENTS.names)
TOLD: Final[tuple[str, ...]] = ()

MESSAGES: Final = "array<struct<sender: string, number: bigint>>"
WAITS: Final = pa.list_(pa.struct([("sender", pa.string()), ("number", pa.int64())]))
"""The same, as Arrow has it."""
LARGEST: Final = 4_000_000
"""Events that one task orders at a time: about 1 GB of its memory."""
TOGETHER: Final = 1_000_000
"""Small runs are ordered together, about so many events at a time."""
SORTED: Final = ("run", "process", "index")
"""How tasks get the rows of a run."""
ID_COLUMNS: Final = ("__event", "__after")
"""What `link_events` adds: an event's identifier, and those of its causes."""


class ByTrace(Struct, frozen=True):
    """A trace has columns of its own."""

    partition_by: tuple[str, ...] = ("run",)
    time: str | None = None
    """Without one, by clocks, or by `time_ns` where events have none."""


def refuse_columns(events: DataFrame, asked: ByTrace) -> None:
    refuse_column_names("order", events, {"time": asked.time})


def order_rows(events: DataFrame, asked: ByTrace, partitions: int | None = None) -> DataFrame:
    """The events with `position` and `waits_for`. This reads a few columns at once, to count."""
    time, columns = asked.time, [*events.columns, "position"]
    no_messages = F.array().cast(MESSAGES).alias("waits_for")
    with raise_task_errors():
        runs = survey_runs(events)
        ways = choose_ways(runs, find_unsent(events)[0], timed=time is not None)
        parts = []
        if len(own := runs.filter(pc.equal(ways, "clocked"))) or not len(runs):
            bounds = own.select(["run", "rows", "low", "high"])
            bounds = bounds.rename_columns(["run", "__rows", "__low", "__high"])
            rows = events if len(own) == len(runs) else name_runs(events, own)
            ordered = number_rows(rows, ["run"], "clock", ["process", "index"], bounds, partitions)
            # After the sort: a constant need not be shuffled.
            parts.append(ordered.select(*columns, no_messages))
        for way, work in (("short", order_short), ("long", order_linked)):
            if len(own := runs.filter(pc.equal(ways, way))):
                keyed = add_times(name_runs(events, own, "inner"), time)
                parts.append(work(keyed).select(*columns, "waits_for"))
        if len(own := runs.filter(pc.equal(ways, "refused"))):
            nowhere = F.lit(None).cast("long").alias("position")
            parts.append(name_runs(events, own).select("*", nowhere, no_messages))
    return unite(parts)


def choose_ways(runs: pa.Table, found: pa.Table, *, timed: bool) -> pa.Array:
    """How each run is ordered, by what `survey_runs` and `find_unsent` say of it."""
    told = {row["run"]: row for row in found.to_pylist()}
    fine = {"wrong": 0, "twice": 0, "lacking": 0}
    ways = []
    for row in runs.select(["run", "rows", "lacking", "wrong"]).to_pylist():
        about = told.get(row["run"], fine)
        if row["wrong"] is not None or about["wrong"]:
            ways.append("refused")
        elif not (timed or row["lacking"] or about["lacking"]):
            ways.append("clocked")
        elif about["twice"]:
            ways.append("refused")
        else:
            ways.append("long" if row["rows"] > LARGEST else "short")
    return pa.array(ways, pa.string())


def add_times(events: DataFrame, time: str | None) -> DataFrame:
    """The events with `__at`: the times that are asked for, or clocks, or, of runs that lack some, their times."""
    own = F.when(F.col("__lacking") > 0, F.col("time_ns")).otherwise(F.col("clock"))
    return events.withColumn("__at", own if time is None else read_time(events, time)).drop("__lacking")


def order_linked(events: DataFrame) -> DataFrame:
    """Order runs that no task should hold."""
    ordered = by_causes.order_rows(link_events(events), ByCauses(*ID_COLUMNS, ("run",), "__at", ()))
    waits = F.expr(
        "array_sort(transform(if(position is null, array(), waits_for), one -> struct("
        "substr(one, locate('\\0', one) + 1) as sender, "
        "cast(substr(one, 2, locate('\\0', one) - 2) as bigint) as number)))"
    )
    return ordered.withColumn("waits_for", waits.cast(MESSAGES))


def order_short(events: DataFrame) -> DataFrame:
    """Order runs in tasks that hold them: by numbers of rows, and no names."""
    added = [StructField("position", LongType()), StructField("waits_for", from_arrow_type(WAITS))]
    return extend_partitions(events, ["run"], {}, order_runs, added, sort=SORTED, enough=TOGETHER)


def order_runs(table: pa.Table, columns: list[str]) -> pa.Table:
    """Order whole runs, sorted by run, process and index: events are named by the numbers of their rows."""
    group, starts, sent = link_rows(table)
    many, rows = len(table), np.arange(len(table))
    before = rows - 1
    before[starts] = -1
    delivered = pc.and_(pc.equal(table["kind"], "deliver"), pc.invert(table["control"])).to_numpy()
    orphans = np.flatnonzero(delivered & (sent < 0))
    keys = [(name, "ascending") for name in ("run", "sender", "number")]
    orphans = orphans[pc.sort_indices(table.take(pa.array(orphans)), sort_keys=keys).to_numpy()]
    # A message that nobody sent is an event that is not there.
    lost = number_groups(table.take(pa.array(orphans)), ("run", "sender", "number"))
    causes = np.concatenate([before[before >= 0], sent[sent >= 0], many + lost])
    effect = np.concatenate([rows[before >= 0], rows[sent >= 0], orphans])
    time = times_of(one_array(table["__at"]))
    found = sort_events(group, pa.array(rows), pa.array(causes), effect, time, text=False)
    # What a run with a cycle has instead are numbers of its rows.
    values = found.waits_for.flatten().to_numpy()
    whose = pc.list_parent_indices(found.waits_for).to_numpy()[values >= many]
    ends = np.append(0, np.cumsum(np.bincount(whose, minlength=many))).astype(np.int32)
    _, first = np.unique(lost, return_index=True)
    messages = table.select(WAITS.value_type.names).take(
        pa.array(orphans[first][values[values >= many] - many])
    )
    waits = pa.ListArray.from_arrays(pa.array(ends), messages.to_struct_array().combine_chunks())
    ordered = table.select(columns).take(pa.array(found.rows)).append_column("position", found.position)
    return ordered.append_column("waits_for", waits)


def name_runs(events: DataFrame, runs: pa.Table, how: str = "left_semi") -> DataFrame:
    """The events of these runs; `inner`: with `__lacking`, how many of a run have no clock; `left_anti`: of others."""
    names = runs.select(["run", "lacking"]).rename_columns(["run", "__lacking"])
    return join_by(events, F.broadcast(events.sparkSession.createDataFrame(names)), ["run"], how)


def read_all_columns(trace: Trace) -> Trace:
    """The trace with the columns that its files have besides those of the contract."""
    if trace.path is None or (trace.files is not None and not any(file.others for file in trace.files)):
        return trace
    reading = trace.spark.read.option("pathGlobFilter", "*.parquet")
    found = reading.parquet(escape_path(join(trace.path, "events"))).schema
    others = [field for field in found if field.name not in trace.events.columns]
    if not others:
        return trace
    schema = StructType([*trace.events.schema, *others])
    return replace(trace, events=reading.schema(schema).parquet(escape_path(join(trace.path, "events"))))


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
    return joined.withColumns(added).select(*events.columns, *ID_COLUMNS)


# Whether runs are runs, and what is missing in them


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
        missing = missing.limit(0)
    return found, missing


# What comes of it


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
    others = name_runs(bad, surveyed.filter(surveyed["wrong"].is_valid()), "left_anti") if told else bad
    others = bring_together(others, ["run"], SORTED)
    return map_partitions(others, try_runs, schema, enough=TOGETHER).unionByName(known)


def try_runs(table: pa.Table) -> pa.Table:
    """(run, rows, reason) of those of some whole runs that are none."""
    starts = [0, *(np.flatnonzero(np.diff(number_groups(table, ["run"]))) + 1), len(table)]
    told = []
    for start, end in pairwise(map(int, starts)):
        try:
            add_clocks(table.slice(start, end - start))
        except BadTrace as error:
            told.append({"run": table["run"][start].as_py(), "rows": end - start, "reason": reason_of(error)})
    return pa.Table.from_pylist(
        told, pa.schema({"run": pa.string(), "rows": pa.int64(), "reason": pa.string()})
    )


def reason_of(error: BadTrace) -> str:
    """What is wrong, without the name of the run."""
    place = error.place.partition(", ")[2]
    return f"{place + ': ' if place else ''}{error.reason}"


def find_missing(ordered: DataFrame, asked: ByTrace) -> DataFrame:
    """(run, sender, number): messages that are delivered and not sent."""
    return find_unsent(ordered.where("position is not null"))[1]


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
    columns = EVENTS.names
    events = trace.events.select(*columns)
    runs = survey_runs(events)
    for _, error in explain_wrong(runs):
        raise error
    untimed = runs.filter(pc.greater(runs["lacking"], 0))
    if not len(untimed):
        return trace
    long = pc.greater(untimed["rows"], largest)
    short = name_runs(events, untimed.filter(pc.invert(long)), "left_semi")
    together, work = bring_together(short, ["run"], SORTED), lambda table: add_clocks(table).select(columns)
    made = [map_partitions(together, work, events.schema, enough=TOGETHER)]
    if pc.any(long).as_py():
        made.append(
            order_long(name_runs(events, untimed.filter(long), "left_semi"), largest).select(*columns)
        )
    if len(untimed) < len(runs):
        made.append(name_runs(events, untimed, "left_anti"))
    return Trace(unite(made), trace.runs)


def order_long(events: DataFrame, largest: int) -> DataFrame:
    """The events of long runs, with their positions in a causal order as clocks: no task holds a whole run."""
    linked = link_events(events)
    ordered = by_causes.order_rows(linked, ByCauses(*ID_COLUMNS, ("run",), "time_ns", ()), full=largest)
    cycle = raise_bad_trace("events", f"a run of more than {largest:,} events has a cycle: order tells which")
    return ordered.withColumn("clock", F.coalesce("position", cycle.cast("long")))
