"""Measure: what each run cost.

For each run: stamps, control packets, delay from send to delivery and how much of it was waiting at the receiver, the
share of pairs of messages that nothing orders, the longest causal chain; for each process and each channel, the
delays. Counts, means and greatest values are exact. Quantiles come from histograms and are wrong by less than 1 %
(`ERROR`). docs/measuring.md defines every column.

Spark SQL counts (`facts`). Concurrency and chains depend on the order of all events of a run: tasks that read the files
of the trace by themselves follow it (`tasks`). A run that contradicts itself is refused by name, and the others are
measured.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from antecede.errors import BadTrace
from antecede.jit import kernels_for
from antecede.spark.errors import mark_errors, raise_task_errors
from antecede.spark.measure.facts import add_up, count_facts
from antecede.spark.measure.histogram import ERROR, bounds
from antecede.spark.measure.schema import COUNTS, QUANTITIES, TABLES, spread
from antecede.spark.measure.tasks import COLUMNS, Found, follow_shares, follow_sorted, share_runs
from antecede.spark.order.lamport import with_clock
from antecede.spark.run_tasks import run_tasks
from antecede.spark.storage import absolute, join, local, whole
from antecede.spark.trace.api import Trace
from antecede.trace.footers import Footer
from antecede.trace.plan import Part, plan

__all__ = ["ERROR", "Measures", "measure"]

FEW: Final = 2_000_000
"""Rows of local files that this process reads by itself: a task would take longer to start."""


KNOWN: Final = pa.schema(
    [
        ("run", pa.string()),
        ("protocol", pa.string()),
        ("processes", pa.int32()),
        ("concurrency", pa.float64()),
        ("longest_chain", pa.int64()),
        ("received", pa.bool_()),
    ]
)
"""What is known of a run beside what Spark counts."""


@dataclass(frozen=True)
class Measures:
    """What was measured. Spark keeps the facts behind the tables until `release`."""

    runs: DataFrame
    """One row a run."""
    processes: DataFrame
    """One row for each process of each run."""
    channels: DataFrame
    """One row for each pair of processes of which one sent to the other."""
    histograms: DataFrame
    """run, quantity, low, high, count: so many values v of the quantity with low <= v < high."""
    overall: DataFrame
    """All runs of a protocol together: the columns of `runs`, with how many they are in place of their names.

    Means and shares are those of all messages of these runs; `concurrency` is the mean of the runs', because messages
    of different runs are no pairs; `processes`, `longest_chain` and `duration_ns` are the greatest.
    """
    refused: Mapping[str, BadTrace]
    """Run -> why it could not be measured. No table has a row of it."""
    _facts: DataFrame = field(repr=False)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the first four tables as Parquet into PATH/measures, or nothing."""
        with whole(join(absolute(path), "measures")) as aside:
            for name in TABLES:
                table: DataFrame = getattr(self, name)
                table.coalesce(1).write.parquet(join(aside, name))

    def release(self) -> None:
        """Give back the memory and the disk. The tables cost a new scan from then on."""
        self._facts.unpersist()


def measure(trace: Trace) -> Measures:
    """Measure every run of the trace."""
    rows = trace.known_runs.select(["run", "protocol", "processes"]).to_pylist()
    found = follow_runs(trace, {row["run"]: tuple(row["processes"]) for row in rows})
    refused = {run: BadTrace(*one.error) for run, one in found.items() if one.error is not None}
    known = trace.spark.createDataFrame(
        pa.Table.from_pylist(
            [
                {"run": row["run"], "protocol": row["protocol"], "processes": len(row["processes"])}
                | describe(found.get(row["run"], Found(row["run"])))
                for row in rows
                if row["run"] not in refused
            ],
            schema=KNOWN,
        )
    )
    # All tables come from the facts, which are small beside the events. A run that is not known has none.
    facts = count_facts(trace.events).join(F.broadcast(known.select("run", "protocol", "received")), "run")
    facts = facts.where("received or quantity <> 'wait_ns'").persist()
    runs = measure_runs(known, facts)
    return Measures(
        runs,
        measure_processes(trace.runs.join(known.select("run"), "run", "left_semi"), facts),
        measure_channels(facts),
        measure_histograms(facts),
        measure_overall(runs, facts),
        refused,
        facts,
    )


def describe(found: Found) -> dict[str, object]:
    pairs = found.sends * (found.sends - 1)
    concurrency = 1 - 2 * found.past / pairs if pairs else None
    return {"concurrency": concurrency, "longest_chain": found.longest_chain, "received": found.received}


# Tables


def measure_runs(known: DataFrame, facts: DataFrame) -> DataFrame:
    """A run without events has a row too."""
    table = known.join(add_up(facts, "run"), "run", "left").fillna(0, [*COUNTS, "duration_ns"])
    return table.select("run", "protocol", "processes", *figures())


def figures() -> list[str | Column]:
    """The columns that a run and all runs of a protocol have alike."""
    return [
        *COUNTS,
        F.try_divide("control_packets", "sends").alias("control_per_message"),
        *(name for quantity in QUANTITIES for name in spread(quantity)),
        "wait_share",
        "concurrency",
        "longest_chain",
        "duration_ns",
    ]


def measure_overall(runs: DataFrame, facts: DataFrame) -> DataFrame:
    by_run = runs.groupBy("protocol").agg(
        F.count(F.lit(1)).alias("runs"),
        F.max("processes").alias("processes"),
        F.avg("concurrency").alias("concurrency"),
        F.max("longest_chain").alias("longest_chain"),
        F.max("duration_ns").alias("duration_ns"),
    )
    added = add_up(facts, "protocol").drop("duration_ns")
    table = by_run.join(added, "protocol", "left").fillna(0, [*COUNTS])
    return table.select("protocol", "runs", "processes", *figures())


def measure_processes(runs: DataFrame, facts: DataFrame) -> DataFrame:
    """Also those to which nothing happened."""
    counts = ["sends", "deliveries", "control_packets"]
    named = runs.select("run", F.explode("processes").alias("process"))
    return (
        named.join(add_up(facts, "run", "process"), ["run", "process"], "left")
        .fillna(0, counts)
        .select("run", "process", *counts, *spread("delay_ns"), *spread("wait_ns"))
    )


def measure_channels(facts: DataFrame) -> DataFrame:
    delays = add_up(facts.where("quantity = 'delay_ns'"), "run", "sender", "process")
    return delays.select(
        "run",
        "sender",
        F.col("process").alias("receiver"),
        F.col("copies").alias("messages"),
        F.col("delivered").alias("deliveries"),
        *spread("delay_ns"),
    )


def measure_histograms(facts: DataFrame) -> DataFrame:
    low, high = bounds()
    cells = facts.where("bucket is not null").groupBy("run", "quantity", "bucket")
    return cells.agg(F.sum("count").alias("count")).select(
        "run", "quantity", low.alias("low"), high.alias("high"), "count"
    )


# Chains


def follow_runs(trace: Trace, processes: Mapping[str, tuple[str, ...]]) -> dict[str, Found]:
    """Run -> what its clocks come to: from files where they are in order, and from sorted rows else."""
    files = trace.files or ()
    planned = plan(files, processes, merged=tied(files))
    parts: dict[str, list[Part]] = {}
    for chunk in planned.chunks:
        for part in chunk.parts:
            parts.setdefault(part.run, []).append(part)
    sizes = rows_of_runs(files)
    tasks = share_runs(processes, parts, sizes)
    if trace.path is not None and local(trace.path) and sum(sizes.values()) <= FEW:
        with kernels_for(sum(sizes.values())):
            answers = [follow_shares(shares) for shares in tasks]
    else:
        answers = run_tasks(trace.spark, tasks, follow_shares)
    found = [one for answer in answers for one in answer]
    unordered = (
        sorted(processes) if trace.files is None else [r for r, way in planned.ways.items() if way == "pack"]
    )
    if unordered:
        found += follow_rows(trace, {run: processes[run] for run in unordered}, len(processes))
    return add_shares(found)


def add_shares(found: Iterable[Found]) -> dict[str, Found]:
    """What the tasks of each run found, together."""
    runs: dict[str, Found] = {}
    for one in found:
        before = runs.get(one.run, Found(one.run))
        errors = [error for error in (before.error, one.error) if error is not None]
        runs[one.run] = Found(
            one.run,
            before.past + one.past,
            max(before.sends, one.sends),
            max(before.longest_chain, one.longest_chain),
            before.received or one.received,
            min(errors, default=None),
        )
    return runs


def follow_rows(trace: Trace, processes: Mapping[str, tuple[str, ...]], among: int) -> list[Found]:
    """The order is Spark's to make, a run in one task. It spills to disk, so a run may be larger than the memory."""
    events = with_clock(trace).events
    if len(processes) < among:
        events = events.where(F.col("run").isin(*processes))
    place, names = trace.path or "events", dict(processes)

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for found in follow_sorted(batches, names, place):
            yield pa.RecordBatch.from_pydict({"found": [msgspec.msgpack.encode(found)]})

    rows = events.select(*COLUMNS).repartition(min(len(processes), 64), "run")
    ordered = rows.sortWithinPartitions("run", "clock", "process", "index")
    with raise_task_errors():
        found = ordered.mapInArrow(mark_errors(work), "found binary").collect()
    return [msgspec.msgpack.decode(row["found"], type=Found) for row in found]


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


def rows_of_runs(files: Iterable[Footer]) -> dict[str, int]:
    """Rows of each run that has row groups of its own."""
    rows: dict[str, int] = {}
    for file in files:
        for group in file.groups:
            run = file.run or (group.runs[0] if group.runs is not None else "")
            rows[run] = rows.get(run, 0) + group.rows
    return rows
