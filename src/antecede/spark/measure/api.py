"""Measure: what each run cost, from one scan of its events.

For each run: stamps, control packets, delay from send to delivery and how much of it was waiting at the receiver, the
share of pairs of messages that nothing orders, the longest causal chain; for each process and each channel, the
delays. Counts, means and greatest values are exact. Quantiles come from histograms and are wrong by less than 1 %
(`ERROR`). docs/measuring.md defines every column.

Tasks read the files of the trace by themselves (`antecede.spark.measure`). Runs whose files are in no order, or of
which there are no files, are sorted by Spark first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from antecede.spark.errors import raise_task_errors
from antecede.spark.measure import figures
from antecede.spark.measure.histogram import ERROR
from antecede.spark.measure.overall import overall
from antecede.spark.measure.tasks import COLUMNS, Share, shared, work, work_sorted
from antecede.spark.order.lamport import with_clock
from antecede.spark.storage import absolute, join, whole
from antecede.spark.trace.api import Trace
from antecede.trace.footers import Footer
from antecede.trace.plan import Part, plan

__all__ = ["ERROR", "Measures", "measure"]

TABLES: Final = ("runs", "processes", "channels", "histograms")
COUNTS: Final = ("events", "sends", "copies", "deliveries", "control_packets", "longest_chain", "duration_ns")


@dataclass(frozen=True)
class Measures:
    """What was measured. The tables are kept by Spark until `release`."""

    runs: DataFrame
    """One row a run."""
    processes: DataFrame
    """One row for each process of each run."""
    channels: DataFrame
    """One row for each pair of processes of which one sent to the other."""
    histograms: DataFrame
    """run, quantity, low, high, count: so many values v of the quantity with low <= v < high."""
    kept: tuple[DataFrame, ...] = field(repr=False, default=())

    @property
    def overall(self) -> DataFrame:
        """All runs of a protocol together: the columns of `runs`, with how many they are in place of their names."""
        return overall(self.runs, self.histograms)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write all four tables as Parquet into PATH/measures, or nothing."""
        with whole(join(absolute(path), "measures")) as aside:
            for name in TABLES:
                table: DataFrame = getattr(self, name)
                table.coalesce(1).write.parquet(join(aside, name))

    def release(self) -> None:
        """Give back the memory and the disk. The tables cost a new scan from then on."""
        for table in self.kept:
            table.unpersist()


def measure(trace: Trace) -> Measures:
    """Measure every run of the trace. Raises `BadTrace` for rows that cannot be a run."""
    # What the driver knows of each run: its name and its processes.
    rows = trace.runs.select("run", "processes").collect()
    processes = {row["run"]: tuple(row["processes"]) for row in rows}
    # Four tables come from one scan, which is the expensive part; what it gives is small.
    found = scanned(trace, processes).persist()
    with raise_task_errors():
        wrong = found.where(F.col("kind") == figures.ERROR).select("error").collect()
    if wrong:
        raise min((figures.error_of(row["error"]) for row in wrong), key=str)
    return Measures(
        of_runs(trace.runs, found),
        of_processes(trace.runs, found),
        chosen(found, figures.CHANNEL, "sender", "receiver", "messages", "deliveries", *spread("delay_ns")),
        chosen(found, figures.HISTOGRAM, "quantity", "low", "high", "count"),
        (found,),
    )


# Tasks


def scanned(trace: Trace, processes: Mapping[str, tuple[str, ...]]) -> DataFrame:
    """Rows of `FIGURES`: from files where they are in order, and from sorted rows else."""
    files = trace.files or ()
    planned = plan(files, processes, merged=tied(files))
    unordered = (
        sorted(processes)
        if trace.files is None
        else [run for run, way in planned.ways.items() if way == "pack"]
    )
    tables = []
    if unordered:
        tables.append(from_rows(trace, {run: processes[run] for run in unordered}, len(processes)))
    own: dict[str, list[Part]] = {}
    for chunk in planned.chunks:
        for part in chunk.parts:
            own.setdefault(part.run, []).append(part)
    if own:
        tasks = shared(processes, own, sizes(files))
        tables.append(from_files(trace, tasks))
    if not tables:
        return trace.spark.createDataFrame([], SCHEMA)
    return reduce(DataFrame.unionByName, tables)


SCHEMA: Final = from_arrow_schema(figures.FIGURES)


def tied(files: Iterable[Footer]) -> set[str]:
    """Runs with a file that begins with the clock with which another ends: only names tell which row is first."""
    ends: dict[str, set[int]] = {}
    found = set()
    for file in files:
        spans = [group.clocks for group in file.groups if group.clocks is not None]
        if file.run is not None and spans:
            known = ends.setdefault(file.run, set())
            if known & {spans[0][0], spans[-1][1]}:
                found.add(file.run)
            known |= {spans[0][0], spans[-1][1]}
    return found


def sizes(files: Iterable[Footer]) -> dict[str, int]:
    """Rows of each run that has row groups of its own."""
    rows: dict[str, int] = {}
    for file in files:
        for group in file.groups:
            run = file.run or (group.runs[0] if group.runs is not None else "")
            rows[run] = rows.get(run, 0) + group.rows
    return rows


def from_files(trace: Trace, tasks: Sequence[Sequence[Share]]) -> DataFrame:
    orders = trace.spark.createDataFrame(
        [
            (serial, msgspec.json.encode(share).decode())
            for serial, shares in enumerate(tasks)
            for share in shares
        ],
        "serial int, share string",
    )
    return orders.repartitionById(len(tasks), F.col("serial")).mapInArrow(work, SCHEMA)


def from_rows(trace: Trace, processes: Mapping[str, tuple[str, ...]], among: int) -> DataFrame:
    """The order is Spark's to make, a run in one task. It spills to disk, so a run may be larger than the memory."""
    clocked = with_clock(trace)
    events = clocked.events
    if len(processes) < among:
        events = events.where(F.col("run").isin(*processes))
    place = trace.path or "events"
    names = dict(processes)

    def measured(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return work_sorted(batches, names, place)

    rows = events.select(*COLUMNS).repartition(min(len(processes), 64), "run")
    return rows.sortWithinPartitions("run", "clock", "process", "index").mapInArrow(measured, SCHEMA)


# Tables


def spread(quantity: str) -> list[str]:
    return [field.name for field in figures.spread(quantity)]


def chosen(found: DataFrame, kind: str, *columns: str) -> DataFrame:
    return found.where(F.col("kind") == kind).select("run", *columns)


def of_runs(runs: DataFrame, found: DataFrame) -> DataFrame:
    """What the tasks of a run found, put together; a run without events has a row too."""
    quantities = [column for quantity in figures.QUANTITIES for column in spread(quantity)]
    parts = found.where(F.col("kind") == figures.RUN).groupBy("run")
    # Each figure is told by one task, except the pairs that clocks have put in order.
    own = [F.max(name).alias(name) for name in (*COUNTS, *quantities, "wait_share")]
    table = (
        runs.select("run", "protocol", F.size("processes").alias("processes"))
        .join(parts.agg(*own, F.sum("past").alias("past")), "run", "left")
        .fillna(0, [*COUNTS, "past"])
    )
    pairs = F.col("sends").cast("double") * (F.col("sends") - 1)
    return table.select(
        "run",
        "protocol",
        "processes",
        *COUNTS[:5],
        share(F.col("control_packets"), F.col("sends")).alias("control_per_message"),
        *quantities,
        "wait_share",
        (1 - share(2 * F.col("past"), pairs)).alias("concurrency"),
        "longest_chain",
        "duration_ns",
    )


def share(part: Column, whole: Column) -> Column:
    """Null where the whole is nothing."""
    return F.when(whole != 0, part / whole)


def of_processes(runs: DataFrame, found: DataFrame) -> DataFrame:
    """Also those to which nothing happened."""
    counts = ["sends", "deliveries", "control_packets"]
    own = chosen(found, figures.PROCESS, "process", *counts, *spread("delay_ns"), *spread("wait_ns"))
    named = runs.select("run", F.explode("processes").alias("process"))
    return named.join(own, ["run", "process"], "left").fillna(0, counts)
