"""What a page shows of a trace of any length: few rows, however many events there are.

Everything here ends in rows on the driver, so everything here is bounded: by the number of runs, of findings asked for,
of bands and buckets, of events in a window. Each function is one job that reads the columns it needs, and a range of
clocks reads only the row groups whose statistics have it.

What a directory of results holds already need not be computed again (`read_results`). Any of these may be missing:

    trace/           the trace
    findings/        what `verify` found
    verdicts/        its verdict of each run
    measures/        runs/, processes/, channels/, histograms/: what `measure` found
    failures.jsonl   runs of a sweep that failed

A *band* is a number of neighbouring processes, in the order in which the run names them: one process while there are
few.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from antecede.report.selection import Range
from antecede.spark.measure.figures import TABLES
from antecede.spark.storage import absolute, escape_path, files, join
from antecede.spark.trace.api import SPARK_EVENTS, Trace
from antecede.verification import KINDS, schema

__all__ = [
    "FINDINGS", "Results", "Rows", "add_channels", "add_histograms", "collect_rows", "collect_runs", "count_density",
    "count_findings", "find_extents", "read_first_findings", "read_messages", "read_ranges", "read_results",
    "read_runs",
]  # fmt: skip


Rows = list[dict[str, Any]]

PUSHED: Final = 64
"""Ranges up to which Parquet is told of them; a longer condition costs more than it saves."""
SHARES: Final = 4
"""Bins of a picture's histogram for each power of two."""


def collect_rows(table: DataFrame) -> Rows:
    """A small table as rows."""
    found: Rows = table.toArrow().to_pylist()
    return found


def collect_runs(table: DataFrame, runs: Iterable[str]) -> Rows:
    """The rows of a table that are of these runs."""
    names = list(runs)
    return collect_rows(table.where(F.col("run").isin(*names))) if names else []


# Events


def find_extents(trace: Trace) -> Rows:
    """For each run with events: how many, how many have a clock, and from when to when."""
    return collect_rows(
        trace.events.groupBy("run").agg(
            F.count(F.lit(1)).alias("events"),
            F.count("clock").alias("clocks"),
            F.min("clock").alias("clock_low"),
            F.max("clock").alias("clock_high"),
            F.min("time_ns").alias("time_low"),
            F.max("time_ns").alias("time_high"),
        )
    )


def read_runs(trace: Trace, runs: Iterable[str]) -> Rows:
    """All events of these runs."""
    return collect_runs(trace.events, runs)


def read_messages(trace: Trace, keys: Sequence[tuple[str, str, str, int]]) -> Rows:
    """What happened to these messages at these processes: keys are run, process, sender, number."""
    if not keys:
        return []
    names = ["run", "process", "sender", "number"]
    wanted = make_table(trace.spark, "run string, process string, sender string, number long", keys)
    events = trace.events.where(~F.col("control") & prune_by_number(keys))
    return collect_rows(events.join(wanted, names).select(SPARK_EVENTS.names))


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


def read_ranges(trace: Trace, ranges: Sequence[Range], most: int) -> tuple[Rows, set[int]]:
    """The first `most` events of each range, and the positions of the ranges that have more."""
    if not ranges:
        return [], set()
    bounds = make_table(
        trace.spark,
        "position int, run string, axis string, low long, high long",
        [(position, r.run, r.axis, r.low, r.high) for position, r in enumerate(ranges)],
    )
    events = trace.events
    if len(ranges) <= PUSHED:
        events = events.where(reduce(Column.__or__, map(is_inside, ranges)))
    place = F.when(F.col("axis") == "clock", F.col("clock")).otherwise(F.col("time_ns"))
    found = events.join(bounds, "run").where(place.between(F.col("low"), F.col("high")))
    # Spark limits such a rank before it moves anything, so a range of a whole trace does no harm.
    order = Window.partitionBy("position").orderBy(place, "process", "index")
    first = found.withColumn("rank", F.row_number().over(order)).where(F.col("rank") <= most + 1)
    told = collect_rows(first.select(*SPARK_EVENTS.names, "position", "rank"))
    return [row for row in told if row["rank"] <= most], {
        row["position"] for row in told if row["rank"] > most
    }


def is_inside(range_: Range) -> Column:
    column = F.col("clock") if range_.axis == "clock" else F.col("time_ns")
    return (F.col("run") == range_.run) & column.between(range_.low, range_.high)


# Aggregates


def read_first_findings(findings: DataFrame, per_run: int) -> Rows:
    """So many findings of each run, violations first, then in the order of each process's own events."""
    kinds = F.array(*map(F.lit, KINDS))
    order = Window.partitionBy("run").orderBy(
        F.array_position(kinds, F.col("kind")),
        F.col("index").asc_nulls_last(),
        "process",
        "sender",
        "number",
    )
    ranked = findings.withColumn("rank", F.row_number().over(order))
    return collect_rows(ranked.where(F.col("rank") <= per_run).drop("rank"))


def count_findings(findings: DataFrame, runs: Iterable[str]) -> Rows:
    """run, kind, process, count: how many findings there are, at each process of these runs."""
    names = list(runs)
    if not names:
        return []
    counted = findings.where(F.col("run").isin(*names)).groupBy("run", "kind", "process").count()
    return collect_rows(counted)


def count_density(trace: Trace, spans: Mapping[str, tuple[int, int]], bands: int, buckets: int) -> Rows:
    """Events by band and bucket of time: run, band, bands, bucket, buckets, count. `spans` has each run's times."""
    if not spans:
        return []
    runs = make_table(
        trace.spark, "run string, low long, high long", [(run, *span) for run, span in spans.items()]
    )
    share = (F.col("time_ns") - F.col("low")).cast("double") / (F.col("high") - F.col("low") + 1)
    events = trace.events.select("run", "process", "time_ns").join(runs, "run")
    return collect_rows(
        events.join(F.broadcast(place_processes(trace, bands)), ["run", "process"])
        .withColumn("bucket", F.floor(share * buckets).cast("int"))
        .groupBy("run", "band", "bands", "bucket")
        .agg(F.count(F.lit(1)).alias("count"))
        .withColumn("buckets", F.lit(buckets))
    )


def add_channels(trace: Trace, measured: DataFrame, bands: int) -> Rows:
    """Measured channels by bands: run, sender_band, receiver_band, bands, messages, delay_ns_mean."""
    place = place_processes(trace, bands)
    senders = place.select(
        "run", F.col("process").alias("sender"), F.col("band").alias("sender_band"), "bands"
    )
    receivers = place.select("run", F.col("process").alias("receiver"), F.col("band").alias("receiver_band"))
    delayed = F.when(F.col("delay_ns_mean").isNotNull(), F.col("deliveries"))
    return collect_rows(
        measured.join(F.broadcast(senders), ["run", "sender"])
        .join(F.broadcast(receivers), ["run", "receiver"])
        .groupBy("run", "sender_band", "receiver_band", "bands")
        .agg(
            F.sum("messages").alias("messages"),
            F.try_divide(F.sum(F.col("delay_ns_mean") * delayed), F.sum(delayed)).alias("delay_ns_mean"),
        )
    )


def add_histograms(trace: Trace, measured: DataFrame) -> Rows:
    """Measured histograms of all runs of a protocol on a network, in bins wide enough to be seen."""
    bin_ = F.when(F.col("low") > 0, F.floor(F.log2(F.col("low").cast("double")) * SHARES)).otherwise(-1)
    return collect_rows(
        measured.join(F.broadcast(trace.runs.select("run", "protocol", "network")), "run")
        .groupBy("protocol", "network", "quantity", bin_.alias("bin"))
        .agg(F.min("low").alias("low"), F.max("high").alias("high"), F.sum("count").alias("count"))
        .drop("bin")
    )


def place_processes(trace: Trace, bands: int) -> DataFrame:
    """run, process, band, bands: where each process stands."""
    width = F.least(F.size("processes"), F.lit(bands)).alias("bands")
    named = trace.runs.select(
        "run", width, F.size("processes").alias("n"), F.posexplode("processes").alias("place", "process")
    )
    return named.select(
        "run",
        "process",
        "bands",
        F.floor(F.col("place") * F.col("bands") / F.col("n")).cast("int").alias("band"),
    )


def make_table(spark: SparkSession, schema: str, values: Iterable[tuple[Any, ...]]) -> DataFrame:
    """A table of the driver's, to be joined where the events are."""
    return F.broadcast(spark.createDataFrame(list(values), schema))


# Results

FINDINGS: Final = from_arrow_schema(schema.FINDINGS)
VERDICTS: Final = from_arrow_schema(schema.VERDICTS)


@dataclass(frozen=True)
class Results:
    """Tables that were written; None is not there."""

    findings: DataFrame | None
    verdicts: DataFrame | None
    measures: dict[str, DataFrame] | None
    """Its tables by name: all four, or nothing."""
    failures: DataFrame | None


def read_results(spark: SparkSession, path: str | os.PathLike[str]) -> Results:
    """What is in a directory of results, or beside the trace of one."""
    root = absolute(path)
    measures = {
        name: read_table(spark, join(root, "measures", name), columns) for name, columns in TABLES.items()
    }
    there = {name: found for name, found in measures.items() if found is not None}
    return Results(
        read_table(spark, join(root, "findings"), FINDINGS),
        read_table(spark, join(root, "verdicts"), VERDICTS),
        there if len(there) == len(TABLES) else None,
        read_failures(spark, root),
    )


def read_table(spark: SparkSession, path: str, columns: StructType | str) -> DataFrame | None:
    found = files(spark, path)
    return spark.read.schema(columns).parquet(*map(escape_path, found)) if found else None


def read_failures(spark: SparkSession, root: str) -> DataFrame | None:
    found = files(spark, join(root, "failures.jsonl"), "*.jsonl")
    return (
        spark.read.schema("run string, reason string, command string").json([*map(escape_path, found)])
        if found
        else None
    )
