"""What a page shows of a trace of any length: few rows, however many events there are.

A table is Spark's, or Arrow's where a trace is small. A question has two steps, functions of Arrow's tables: `prepare`
makes rows with a key of rows of the table, and `combine` makes fewer of these, also of those that it made itself. So
Spark's tasks ask it of their parts, and this process of their answers, or of a whole table that is here: `ask` does
either. Each answer is bounded: by the number of runs, of findings asked for, of bands and buckets, of events in a
window. A range of clocks reads only the row groups whose statistics have it.

A *band* is a number of neighbouring processes, in the order in which the run names them: one process while there are
few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from antecede.report.selection import Range
from antecede.spark.errors import mark_errors
from antecede.trace import EVENTS
from antecede.verification import KINDS

__all__ = [
    "Rows", "Table", "add_channels", "add_histograms", "collect_rows", "collect_runs", "count_density",
    "count_findings", "find_extents", "read_first_findings", "read_messages", "read_ranges",
]  # fmt: skip

Rows = list[dict[str, Any]]
Table: TypeAlias = pa.Table | DataFrame
Step = Callable[[pa.Table], pa.Table]

PUSHED: Final = 64
"""Ranges up to which Parquet is told of them; a longer condition costs more than it saves."""
SHARES: Final = 4
"""Bins of a picture's histogram for each power of two."""


def ask(table: Table, columns: Sequence[str], prepare: Step, combine: Step = lambda rows: rows) -> Rows:
    """The answer to a question about these columns of a table."""
    if isinstance(table, pa.Table):
        return list(combine(prepare(table.select(columns))).to_pylist())
    asked = table.select(*columns)
    schema = combine(prepare(to_arrow_schema(asked.schema).empty_table())).schema

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held = schema.empty_table()
        for batch in batches:
            some = combine(prepare(pa.Table.from_batches([batch]))).select(schema.names).cast(schema)
            held = combine(pa.concat_tables([held, some])).select(schema.names).cast(schema)
        yield from held.to_batches()

    answers = asked.mapInArrow(mark_errors(work), from_arrow_schema(schema)).toArrow()
    return list(combine(answers).to_pylist())


def narrow(table: Table, condition: Callable[[], Column]) -> Table:
    """Tell Spark, and Parquet, which rows are meant at most. A table that is here needs no such help.

    Without a session no condition can be made, so it is made only where it is used.
    """
    return table if isinstance(table, pa.Table) else table.where(condition())


def add_up(keys: Sequence[str], **sums: str) -> Step:
    """Rows of one key become one: `sums` says how each of the other columns is added up."""

    def combine(rows: pa.Table) -> pa.Table:
        found = rows.group_by([*keys], use_threads=False).aggregate([*sums.items()])
        return found.rename_columns({f"{name}_{how}": name for name, how in sums.items()})

    return combine


def keep_first(key: str, order: Sequence[str], most: int) -> Step:
    """The first rows of each key, in this order; what is null comes last."""

    def combine(rows: pa.Table) -> pa.Table:
        ordered = rows.sort_by([(name, "ascending") for name in (key, *order)])
        codes = pc.rank(ordered[key], tiebreaker="dense").to_numpy()
        starts = np.searchsorted(codes, codes)
        return ordered.filter(pa.array(np.arange(len(codes)) - starts < most))

    return combine


def collect_rows(table: Table) -> Rows:
    """A small table as rows."""
    return list((table if isinstance(table, pa.Table) else table.toArrow()).to_pylist())


def collect_runs(table: Table, runs: Iterable[str]) -> Rows:
    """The rows of a table that are of these runs."""
    names = list(runs)
    if isinstance(table, pa.Table):
        return list(table.filter(is_in(table["run"], names)).to_pylist())
    return collect_rows(table.where(F.col("run").isin(*names))) if names else []


def is_in(column: pa.ChunkedArray, values: Iterable[Any]) -> pa.ChunkedArray:
    return pc.is_in(column, value_set=pa.array(values, column.type))


def count_rows(rows: pa.Table) -> pa.Table:
    return rows.append_column("count", pa.array(np.ones(len(rows), np.int64)))


def each_run(rows: pa.Table, schema: pa.Schema, work: Callable[[str, pa.Table], dict[str, Any]]) -> pa.Table:
    """What `work` makes of the rows of each run: columns, or one value for all of its rows."""
    found = [schema.empty_table()]
    for run in pc.unique(rows["run"]).to_pylist():
        own = rows.filter(pc.equal(rows["run"], run))
        made = {"run": run, **work(run, own)}
        columns = [fit(made[field.name], field.type, len(own)) for field in schema]
        found.append(pa.Table.from_arrays(columns, schema=schema))
    return pa.concat_tables(found)


def fit(value: Any, kind: pa.DataType, count: int) -> Any:
    if isinstance(value, np.ndarray):
        return pa.array(value, kind)
    return (
        value.cast(kind) if isinstance(value, pa.ChunkedArray) else pa.repeat(pa.scalar(value, kind), count)
    )


# Events


def find_extents(events: Table) -> Rows:
    """For each run with events: how many, how many have a clock, and from when to when."""

    def prepare(rows: pa.Table) -> pa.Table:
        clock, time = rows["clock"], rows["time_ns"]
        told = {"clocks": pc.is_valid(clock).cast(pa.int64()), "clock_low": clock, "clock_high": clock}
        counted = count_rows(rows.select(["run"])).rename_columns(["run", "events"])
        for name, column in (told | {"time_low": time, "time_high": time}).items():
            counted = counted.append_column(name, column)
        return counted

    sums = {"clock_low": "min", "clock_high": "max", "time_low": "min", "time_high": "max"}
    return ask(
        events, ["run", "clock", "time_ns"], prepare, add_up(["run"], events="sum", clocks="sum", **sums)
    )


def read_messages(events: Table, keys: Sequence[tuple[str, str, str, int]]) -> Rows:
    """What happened to these messages at these processes: keys are run, process, sender, number."""
    if not keys:
        return []
    wanted, numbers = set(keys), sorted({key[3] for key in keys})

    def prepare(rows: pa.Table) -> pa.Table:
        near = rows.filter(pc.and_not(is_in(rows["number"], numbers), rows["control"]))
        own = zip(*(near[name].to_pylist() for name in ("run", "process", "sender", "number")), strict=True)
        return near.filter(pa.array([one in wanted for one in own], pa.bool_()))

    return ask(narrow(events, lambda: ~F.col("control") & prune_by_number(keys)), EVENTS.names, prepare)


def prune_by_number(keys: Sequence[tuple[str, str, str, int]]) -> Column:
    """What Parquet can tell from its statistics: which rows cannot be meant, by their run and number.

    Senders count alike in time, so a few ranges of numbers leave out most row groups.
    """
    numbers: dict[str, set[int]] = {}
    for run, _, _, number in keys:
        numbers.setdefault(run, set()).add(number)
    spans = [(run, low, high) for run, own in numbers.items() for low, high in join_spans(sorted(own))]
    if len(spans) > PUSHED:
        spans = [(run, min(own), max(own)) for run, own in numbers.items()]
    if len(spans) > PUSHED:
        return F.lit(True)
    parts = [(F.col("run") == run) & F.col("number").between(low, high) for run, low, high in spans]
    return reduce(Column.__or__, parts)


def join_spans(numbers: Sequence[int], gap: int = 1000) -> list[tuple[int, int]]:
    """Ranges that hold all of these numbers, without long stretches that hold none.

    >>> join_spans([1, 5, 900, 50_000, 50_001])
    [(1, 900), (50000, 50001)]
    """
    starts = [i for i in range(len(numbers)) if i == 0 or numbers[i] - numbers[i - 1] > gap]
    return [(numbers[a], numbers[b - 1]) for a, b in pairwise([*starts, len(numbers)])]


def read_ranges(events: Table, ranges: Sequence[Range], most: int) -> tuple[Rows, set[int]]:
    """The first `most` events of each range, and the positions of the ranges that have more."""
    if not ranges:
        return [], set()

    def prepare(rows: pa.Table) -> pa.Table:
        parts = []
        for position, one in enumerate(ranges):
            axis = rows[name_axis(one)]
            inside = pc.and_(pc.greater_equal(axis, one.low), pc.less_equal(axis, one.high))
            own = rows.filter(pc.and_(pc.equal(rows["run"], one.run), inside))
            at = pa.array(np.full(len(own), position, np.int32))
            parts.append(own.append_column("position", at).append_column("place", own[name_axis(one)]))
        return pa.concat_tables(parts)

    def is_inside(one: Range) -> Column:
        return (F.col("run") == one.run) & F.col(name_axis(one)).between(one.low, one.high)

    if len(ranges) <= PUSHED and isinstance(events, DataFrame):
        events = events.where(reduce(Column.__or__, map(is_inside, ranges)))
    first = keep_first("position", ["place", "process", "index"], most + 1)
    seen: Counter[int] = Counter()
    found: Rows = []
    for row in ask(events, EVENTS.names, prepare, first):
        seen[row["position"]] += 1
        if seen[row["position"]] <= most:
            found.append(row)
    return found, {position for position, count in seen.items() if count > most}


def name_axis(one: Range) -> str:
    return "clock" if one.axis == "clock" else "time_ns"


def count_density(
    events: Table, runs: Rows, spans: Mapping[str, tuple[int, int]], bands: int, buckets: int
) -> Rows:
    """Events by band and bucket of time: run, band, bands, bucket, buckets, count. `spans` has each run's times."""
    if not spans:
        return []
    places = place_processes((run for run in runs if run["run"] in spans), bands)
    keys = ("run", "band", "bands", "bucket", "buckets")
    schema = pa.schema({"run": pa.string(), **dict.fromkeys(keys[1:], pa.int32())})

    def work(run: str, own: pa.Table) -> dict[str, Any]:
        low, high = spans[run]
        share = (own["time_ns"].to_numpy() - low) / (high - low + 1)
        bucket = np.floor(share * buckets).astype(np.int32)
        names, width = places[run]
        band = find_bands(own["process"], names, width)
        return {"band": band, "bands": width, "bucket": bucket, "buckets": buckets}

    def prepare(rows: pa.Table) -> pa.Table:
        known = each_run(rows.filter(is_in(rows["run"], spans)), schema, work)
        return count_rows(known.filter(pc.is_valid(known["band"])))

    return ask(events, ["run", "process", "time_ns"], prepare, add_up(keys, count="sum"))


# Aggregates


def read_first_findings(findings: Table, per_run: int) -> Rows:
    """So many findings of each run, violations first, then in the order of each process's own events."""
    columns = findings.column_names if isinstance(findings, pa.Table) else findings.columns

    def prepare(rows: pa.Table) -> pa.Table:
        return rows.append_column("rank", pc.index_in(rows["kind"], value_set=pa.array(KINDS)))

    order = ["rank", "index", "process", "sender", "number"]
    return ask(findings, columns, prepare, keep_first("run", order, per_run))


def count_findings(findings: Table, runs: Iterable[str]) -> Rows:
    """run, kind, process, count: how many findings there are, at each process of these runs."""
    names, keys = list(runs), ["run", "kind", "process"]
    if not names:
        return []

    def prepare(rows: pa.Table) -> pa.Table:
        return count_rows(rows.filter(is_in(rows["run"], names)))

    return ask(narrow(findings, lambda: F.col("run").isin(*names)), keys, prepare, add_up(keys, count="sum"))


def add_channels(measured: Table, runs: Rows, bands: int) -> Rows:
    """Measured channels by bands: run, sender_band, receiver_band, bands, messages, delay_ns_mean."""
    places = place_processes(runs, bands)
    keys = ["run", "sender_band", "receiver_band", "bands"]
    columns = ["run", "sender", "receiver", "messages", "deliveries", "delay_ns_mean"]
    sums = {"messages": pa.int64(), "total": pa.float64(), "delivered": pa.int64()}
    schema = pa.schema({"run": pa.string(), **dict.fromkeys(keys[1:], pa.int32()), **sums})

    def work(run: str, own: pa.Table) -> dict[str, Any]:
        (names, width), mean = places[run], own["delay_ns_mean"].cast(pa.float64())
        delivered = pc.if_else(pc.is_valid(mean), own["deliveries"], 0)
        return {
            "sender_band": find_bands(own["sender"], names, width),
            "receiver_band": find_bands(own["receiver"], names, width),
            "bands": width,
            "messages": own["messages"],
            "total": pc.fill_null(pc.multiply(mean, delivered.cast(pa.float64())), 0),
            "delivered": delivered,
        }

    combine = add_up(keys, **dict.fromkeys(sums, "sum"))
    rows = ask(measured, columns, lambda rows: each_run(rows, schema, work), combine)
    return [
        {**row, "delay_ns_mean": row["total"] / row["delivered"] if row["delivered"] else None}
        for row in rows
    ]


def add_histograms(measured: Table, runs: Rows) -> Rows:
    """Measured histograms of all runs of a protocol on a network, in bins wide enough to be seen."""
    of = {run["run"]: {name: run[name] for name in ("protocol", "network")} for run in runs}
    texts, numbers = ("run", "protocol", "network", "quantity"), ("bin", "low", "high", "count")
    schema = pa.schema({**dict.fromkeys(texts, pa.string()), **dict.fromkeys(numbers, pa.int64())})

    def work(run: str, own: pa.Table) -> dict[str, Any]:
        low = own["low"].to_numpy()
        place = np.floor(np.log2(np.maximum(low, 1)) * SHARES).astype(np.int64)
        given = {name: own[name] for name in ("quantity", "low", "high", "count")}
        return {**of[run], "bin": np.where(low > 0, place, -1), **given}

    return ask(
        measured,
        ["run", "quantity", "low", "high", "count"],
        lambda rows: each_run(rows, schema, work),
        add_up([*texts[1:], "bin"], low="min", high="max", count="sum"),
    )


def place_processes(runs: Iterable[Mapping[str, Any]], bands: int) -> dict[str, tuple[Sequence[str], int]]:
    """For each run the names of its processes, and how many bands they have."""
    return {run["run"]: (run["processes"], min(len(run["processes"]), bands)) for run in runs}


def find_bands(processes: pa.ChunkedArray, names: Sequence[str], width: int) -> pa.ChunkedArray:
    """The band of each process; null of one that the run does not name."""
    at = pc.index_in(processes, value_set=pa.array(names, pa.string())).cast(pa.int64())
    return pc.divide(pc.multiply(at, width), max(len(names), 1))
