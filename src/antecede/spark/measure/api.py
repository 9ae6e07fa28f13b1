"""Measure: what each run cost.

For each run: stamps, control packets, delay from send to delivery and how much of it was waiting at the receiver, the
share of pairs of messages that nothing orders, the longest causal chain; for each process and each channel, the
delays. Counts, means and greatest values are exact. Quantiles come from histograms and are wrong by less than 1 %
(`ERROR`). docs/measuring.md defines every column.

Tasks count, each in a chunk of the trace (`facts`), and Spark adds up (`figures`). Concurrency and chains depend on the
order of all events of a run: tasks that read the files of the trace by themselves follow it (`tasks`). A run that
contradicts itself, or a file of which cannot be read, is refused by name, and the others are measured.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from antecede.errors import BadTrace
from antecede.jit import kernels_for
from antecede.spark.errors import mark_errors, raise_task_errors
from antecede.spark.measure.facts import (
    COPY,
    ERROR,
    FACTS,
    PARTS,
    READ,
    Share,
    count_batches,
    count_shares,
    finish_facts,
    finish_table,
)
from antecede.spark.measure.figures import COUNTS, QUANTITIES, TABLES, add_up, add_up_here, spread
from antecede.spark.measure.tasks import COLUMNS, Found, follow_shares, follow_sorted, share_runs
from antecede.spark.measure.tasks import Share as RunShare
from antecede.spark.order.by_trace import with_clock
from antecede.spark.run_tasks import plan_tasks, run_tasks
from antecede.spark.storage import absolute, join, local, whole
from antecede.spark.trace.api import Trace
from antecede.trace.footers import Footer, Group
from antecede.trace.plan import Part, Plan, plan

__all__ = ["ERROR", "Measures", "measure"]

FEW: Final = 2_000_000
"""Rows of local files that this process reads by itself: a task would take longer to start."""


TASKS: Final = 64
"""Tasks among which runs in no order are dealt, on a cluster of few cores."""

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

    refused: Mapping[str, BadTrace]
    """Run -> why it could not be measured. No table has a row of it."""
    _known: DataFrame = field(repr=False)
    _names: DataFrame = field(repr=False)
    _facts: DataFrame = field(repr=False)
    _here: pa.Table | None = field(default=None, repr=False)
    """The facts, if they are few and were counted in this process."""

    @cached_property
    def runs(self) -> DataFrame:
        """One row a run: also of one without events."""
        table = self._known.join(self._add_up("run"), "run", "left").fillna(0, [*COUNTS, "duration_ns"])
        return table.select("run", "protocol", "processes", *ALIKE)

    @cached_property
    def processes(self) -> DataFrame:
        """One row for each process of each run: also of those to which nothing happened."""
        counts = ["sends", "deliveries", "control_packets"]
        added = self._add_up("run", "process")
        table = self._names.join(added, ["run", "process"], "left").fillna(0, counts)
        return table.select("run", "process", *counts, *spread("delay_ns"), *spread("wait_ns"))

    @cached_property
    def channels(self) -> DataFrame:
        """One row for each pair of processes of which one sent to the other."""
        return self._add_up("run", "sender", "process", of="delay_ns").select(
            "run",
            "sender",
            F.col("process").alias("receiver"),
            F.col("copies").alias("messages"),
            F.col("delivered").alias("deliveries"),
            *spread("delay_ns"),
        )

    @cached_property
    def histograms(self) -> DataFrame:
        """run, quantity, low, high, count: so many values v of the quantity with low <= v < high."""
        cells = self._facts.where("low is not null").groupBy("run", "quantity", "low", "high")
        return cells.agg(F.sum("count").alias("count"))

    @cached_property
    def overall(self) -> DataFrame:
        """All runs of a protocol together: the columns of `runs`, with how many they are in place of their names.

        Means and shares are those of all messages of these runs; `concurrency` is the mean of the runs', because
        messages of different runs are no pairs; `processes`, `longest_chain` and `duration_ns` are the greatest.
        """
        by_run = self.runs.groupBy("protocol").agg(
            F.count(F.lit(1)).alias("runs"),
            F.max("processes").alias("processes"),
            F.avg("concurrency").alias("concurrency"),
            F.max("longest_chain").alias("longest_chain"),
            F.max("duration_ns").alias("duration_ns"),
        )
        added = self._add_up("protocol").drop("duration_ns")
        table = by_run.join(added, "protocol", "left").fillna(0, [*COUNTS])
        return table.select("protocol", "runs", "processes", *ALIKE)

    def _add_up(self, *keys: str, of: str | None = None) -> DataFrame:
        """The figures of each key; `of` one quantity alone."""
        if self._here is None:
            return add_up(self._facts if of is None else self._facts.where(F.col("quantity") == of), *keys)
        facts = self._here if of is None else self._here.filter(pc.field("quantity") == of)
        return self._facts.sparkSession.createDataFrame(add_up_here(facts, *keys))

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the first four tables as Parquet into PATH/measures, or nothing."""
        with whole(join(absolute(path), "measures")) as aside:
            for name in TABLES:
                table: DataFrame = getattr(self, name)
                table.coalesce(1).write.parquet(join(aside, name))

    def release(self) -> None:
        """Give back the memory and the disk. The tables cost a new scan from then on."""
        self._facts.unpersist()


ALIKE: Final = (
    *(*COUNTS, "control_per_message"),
    *(name for quantity in QUANTITIES for name in spread(quantity)),
    *("wait_share", "concurrency", "longest_chain", "duration_ns"),
)
"""The columns that a run and all runs of a protocol have alike."""


def measure(trace: Trace) -> Measures:
    """Measure every run of the trace."""
    rows = trace.known_runs.select(["run", "protocol", "processes"]).to_pylist()
    processes = {row["run"]: tuple(row["processes"]) for row in rows}
    files = trace.files or ()
    planned = plan(files, processes, merged=tied(files))
    unordered = (
        processes.keys() if trace.files is None else {r for r, way in planned.ways.items() if way == "pack"}
    )
    found = follow_files(trace, planned, processes)
    if unordered:
        found += follow_rows(trace, {run: processes[run] for run in sorted(unordered)}, len(processes))
    runs = add_shares(found)
    refused = {run: BadTrace(*one.error) for run, one in runs.items() if one.error is not None}
    measured = [row for row in rows if row["run"] not in refused]
    known_table = pa.Table.from_pylist(
        [describe(row, runs.get(row["run"], Found(row["run"]))) for row in measured], KNOWN
    )
    known = trace.spark.createDataFrame(known_table)
    received = {row["run"]: runs[row["run"]].received for row in measured if row["run"] in runs}
    # All tables come from the facts, which are small beside the events. A run that is not known has none.
    names = trace.runs.join(known.select("run"), "run", "left_semi")
    named = names.select("run", F.explode("processes").alias("process"))
    measured_processes = {run: processes[run] for run in received}
    if trace.files is not None and is_small(trace) and not planned.blind:
        here = count_here(planned, measured_processes, received, known_table)
        facts = trace.spark.createDataFrame(here)
        return Measures(refused, known, named, facts, here)
    facts = count_facts(trace, planned, measured_processes, received)
    facts = facts.join(F.broadcast(known.select("run", "protocol", "received")), "run")
    facts = facts.where("received or quantity <> 'wait_ns'")
    told = F.when(F.col("received"), F.col("total"))
    return Measures(refused, known, named, facts.withColumn("total_received", told).persist())


def describe(row: Mapping[str, Any], found: Found) -> dict[str, object]:
    pairs = found.sends * (found.sends - 1)
    return {
        "run": row["run"],
        "protocol": row["protocol"],
        "processes": len(row["processes"]),
        "concurrency": 1 - 2 * found.past / pairs if pairs else None,
        "longest_chain": found.longest_chain,
        "received": found.received,
    }


def is_small(trace: Trace) -> bool:
    """Whether this process reads the files by itself."""
    path = None if trace.path is None else local(trace.path)
    return path is not None and sum(file.rows for file in trace.files or ()) <= FEW


# Facts


def count_facts(
    trace: Trace, planned: Plan, processes: Mapping[str, tuple[str, ...]], received: Mapping[str, bool]
) -> DataFrame:
    """The facts of these runs: by tasks that each read a chunk, and one shuffle for copies that no chunk has whole."""
    schema = from_arrow_schema(FACTS)
    found: list[DataFrame] = []
    # Of runs without clocks the footers do not tell enough to share them out.
    loose = {run: processes[run] for run in processes if trace.files is None or run in planned.blind}
    if loose or trace.files is None:
        place = trace.path or "events"

        def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return count_batches(batches, loose, place)

        rows = trace.events.select(*COLUMNS, *READ)
        if trace.files is not None:
            rows = rows.where(F.col("run").isin(*loose))
        found.append(finish(rows.mapInArrow(mark_errors(count), from_arrow_schema(PARTS)), schema))
    if trace.files is not None:
        tasks = list_shares(planned, processes, received)
        if tasks or not loose:
            found.append(
                finish(plan_tasks(trace.spark, tasks, count_shares, from_arrow_schema(PARTS)), schema)
            )
    return reduce(DataFrame.unionByName, found)


def count_here(
    planned: Plan, processes: Mapping[str, tuple[str, ...]], received: Mapping[str, bool], known: pa.Table
) -> pa.Table:
    """The facts of these runs, counted in this process, with what is `known` of their runs."""
    tasks = list_shares(planned, processes, received)
    parts = pa.Table.from_batches((batch for shares in tasks for batch in count_shares(shares)), PARTS)
    facts = pa.Table.from_batches(finish_table(parts), FACTS)
    facts = facts.join(known.select(["run", "protocol", "received"]), "run", use_threads=False)
    facts = facts.filter(pc.field("received") | (pc.field("quantity") != "wait_ns"))
    nothing = pa.scalar(None, facts["total"].type)
    return facts.append_column("total_received", pc.if_else(facts["received"], facts["total"], nothing))


def list_shares(
    planned: Plan, processes: Mapping[str, tuple[str, ...]], received: Mapping[str, bool]
) -> list[list[Share]]:
    """What each task counts."""
    return [
        [
            Share(processes[part.run], part, received[part.run] if ordered else None)
            for part in chunk.parts
            if part.run in processes
        ]
        for chunks, ordered in ((planned.chunks, True), (planned.packed, False))
        for chunk in chunks
    ]


def finish(parts: DataFrame, schema: StructType) -> DataFrame:
    """The facts: what belongs to a copy comes together."""
    return parts.repartition(*COPY).sortWithinPartitions(*COPY).mapInArrow(mark_errors(finish_facts), schema)


# Chains


def follow_files(trace: Trace, planned: Plan, processes: Mapping[str, tuple[str, ...]]) -> list[Found]:
    """What the clocks of runs come to whose files are in order."""
    files = trace.files or ()
    if is_small(trace):
        return follow_here(files, planned, processes)
    answers = run_tasks(trace.spark, share_files(files, planned, processes), follow_shares)
    return [one for answer in answers for one in answer]


def follow_here(
    files: Iterable[Footer], planned: Plan, processes: Mapping[str, tuple[str, ...]]
) -> list[Found]:
    """The same in this process."""
    with kernels_for(sum(file.rows for file in files)):
        return [one for shares in share_files(files, planned, processes) for one in follow_shares(shares)]


def share_files(
    files: Iterable[Footer], planned: Plan, processes: Mapping[str, tuple[str, ...]]
) -> list[tuple[RunShare, ...]]:
    """The runs that each task follows."""
    parts: dict[str, list[Part]] = {}
    for chunk in planned.chunks:
        for part in chunk.parts:
            parts.setdefault(part.run, []).append(part)
    return share_runs(processes, parts, rows_of_runs(files))


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
    place, names = trace.path or "events", dict(processes)

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for found in follow_sorted(batches, names, place):
            yield pa.RecordBatch.from_pydict({"found": [msgspec.msgpack.encode(found)]})

    try:
        with raise_task_errors():
            events = with_clock(trace).events
            if len(processes) < among:
                events = events.where(F.col("run").isin(*processes))
            rows = events.select(*COLUMNS).repartition(count_tasks(trace.spark, len(processes)), "run")
            ordered = rows.sortWithinPartitions("run", "clock", "process", "index")
            found = ordered.mapInArrow(mark_errors(work), "found binary").collect()
    except BadTrace as error:
        damaged = [file for file in trace.files or () if file.path == absolute(unquote(error.place))]
        if not damaged:
            raise
        # Whose rows a file has that cannot be read, its footer tells. The others are tried again without it.
        lost = {run for run in processes for group in damaged[0].groups if has_run(group, run)}
        wrong = [Found(run, error=(error.place, error.reason)) for run in sorted(lost)]
        left = {run: names for run, names in processes.items() if run not in lost}
        return wrong + (follow_rows(trace.without(damaged[0]), left, among) if left else [])
    return [msgspec.msgpack.decode(row["found"], type=Found) for row in found]


def count_tasks(spark: SparkSession, runs: int) -> int:
    """Tasks that share so many runs: a task each, up to what suits one machine or, if that is more, the cluster."""
    return min(runs, max(TASKS, int(spark.conf.get("spark.sql.shuffle.partitions") or 1)))


def has_run(group: Group, run: str) -> bool:
    """Whether a row group may have rows of a run."""
    return group.runs is None or group.runs[0] <= run <= group.runs[1]


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
