"""Measure: what each run cost.

For each run: stamps, control packets, delay from send to delivery and how much of it was waiting at the receiver, the
share of pairs of messages that nothing orders, the longest causal chain; for each process and each channel, the
delays. Counts, means and greatest values are exact. Quantiles come from histograms and are wrong by less than 1 %
(`ERROR`). docs/measuring.md defines every column.

Tasks count, each in a chunk of the trace (`facts`), and follow the order of all events of a run, on which concurrency
and chains depend (`chains`). A run that contradicts itself, or a file of which cannot be read, is refused by name, and
the others are measured.

One function, `make_table`, adds up the facts of a run, of a process, of a channel or of all runs of a protocol, and
tells their figures: in this process if the facts are few, and else in tasks, for which Spark adds up most. Spark's
`percentile` needs every value, or interpolates between the middles of buckets; `approx_percentile` bounds the error of
the rank, not of the value. So quantiles come from running sums over buckets.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from antecede.errors import BadTrace
from antecede.spark.errors import mark_errors
from antecede.spark.frames import join_by, unite
from antecede.spark.measure.chains import COLUMNS, Found, add_shares, follow_files, follow_rows, tied
from antecede.spark.measure.facts import (
    COPY,
    ERROR,
    FACTS,
    HELD,
    NAMED,
    PARTS,
    READ,
    Share,
    count_batches,
    count_shares,
    finish_facts,
)
from antecede.spark.run_tasks import bring_together, map_partitions, plan_tasks
from antecede.spark.trace import Trace
from antecede.storage import absolute, join, local, whole
from antecede.trace.plan import Plan, plan

__all__ = ["ERROR", "TABLES", "Measures", "count_here", "describe_runs", "make_table", "measure"]

Table: TypeAlias = pa.Table | DataFrame

FEW: Final = 2_000_000
"""Rows of local files that this process reads by itself: a task would take longer to start."""
QUANTITIES: Final = ("stamp_entries", "stamp_bytes", "delay_ns", "wait_ns")
"""What distributions are of."""
COUNTS: Final = ("events", "sends", "copies", "deliveries", "control_packets")
PERCENTS: Final = (50, 99)
SUMS: Final = {
    "high": "min", "middle": "min", "count": "sum", "total": "sum", "least": "min", "greatest": "max",
}  # fmt: skip
"""What facts of one bucket come to."""


def spread(quantity: str) -> list[str]:
    """The columns of a distribution."""
    return [f"{quantity}_{name}" for name in ("mean", "p50", "p99", "max")]


def types(*quantities: str) -> str:
    return ", ".join(
        f"{name} {'double' if name.endswith('_mean') else 'long'}" for q in quantities for name in spread(q)
    )


TABLES: Final = {
    "runs": "run string, protocol string, processes int, "
    + ", ".join(f"{name} long" for name in COUNTS)
    + f", control_per_message double, {types(*QUANTITIES)}, wait_share double, concurrency double, "
    "longest_chain long, duration_ns long",
    "processes": "run string, process string, sends long, deliveries long, control_packets long, "
    + types("delay_ns", "wait_ns"),
    "channels": f"run string, sender string, receiver string, messages long, deliveries long, {types('delay_ns')}",
    "histograms": "run string, quantity string, low long, high long, count long",
}
"""Name -> columns and their types."""
KEYS: Final = {
    "runs": ["run"],
    "processes": ["run", "process"],
    "channels": ["run", "process", "sender"],
    "histograms": ["run"],
    "overall": ["protocol"],
}
"""Name -> what facts are added up by, where they have it."""
ARROW: Final = {"string": pa.string(), "int": pa.int32(), "long": pa.int64(), "double": pa.float64()}
KNOWN: Final = pa.schema(
    [
        ("run", pa.string()),
        ("protocol", pa.string()),
        ("names", pa.list_(pa.string())),
        ("processes", pa.int32()),
        ("concurrency", pa.float64()),
        ("longest_chain", pa.int64()),
        ("received", pa.bool_()),
        ("timed", pa.bool_()),
    ]
)
"""What is known of a run beside what is counted."""
ABOUT: Final = ["run", "protocol", "received", "timed"]
"""What of it is said of each fact."""


@dataclass(frozen=True)
class Measures:
    """What was measured. Spark keeps the facts behind the tables until `release`."""

    refused: Mapping[str, BadTrace]
    """Run -> why it could not be measured. No table has a row of it."""
    _spark: SparkSession = field(repr=False)
    _known: pa.Table = field(repr=False)
    _facts: Table = field(repr=False)
    """Arrow's, if they are few and were counted in this process."""

    @cached_property
    def runs(self) -> DataFrame:
        """One row a run: also of one without events."""
        return self._make("runs")

    @cached_property
    def processes(self) -> DataFrame:
        """One row for each process of each run: also of those to which nothing happened."""
        return self._make("processes")

    @cached_property
    def channels(self) -> DataFrame:
        """One row for each pair of processes of which one sent to the other."""
        return self._make("channels")

    @cached_property
    def histograms(self) -> DataFrame:
        """run, quantity, low, high, count: so many values v of the quantity with low <= v < high."""
        return self._make("histograms")

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
        added = self._make("overall").drop("run", *by_run.columns[2:])
        return join_by(by_run, added, ["protocol"]).select("protocol", "runs", *self.runs.columns[2:])

    def _make(self, name: str) -> DataFrame:
        if isinstance(self._facts, pa.Table):
            table = make_table(name, self._facts, self._known)
            # PySpark takes no table without a chunk.
            return self._spark.createDataFrame(pa.concat_tables([table.schema.empty_table(), table]))
        sums = [getattr(F, how)(column).alias(column) for column, how in SUMS.items()]
        cells = self._facts.where(f"{KEYS[name][-1]} is not null").groupBy(list_cells(name)).agg(*sums)
        work = partial(make_table, name, known=self._known.drop_columns("names"))
        return map_partitions(bring_together(cells, KEYS[name]), work, from_arrow_schema(schema_of(name)))

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the first four tables as Parquet into PATH/measures, or nothing."""
        with whole(join(absolute(path), "measures")) as aside:
            for name in TABLES:
                table: DataFrame = getattr(self, name)
                table.coalesce(1).write.parquet(join(aside, name))

    def release(self) -> None:
        """Give back the memory and the disk. The tables cost a new scan from then on."""
        if isinstance(self._facts, DataFrame):
            self._facts.unpersist()


def measure(trace: Trace) -> Measures:
    """Measure every run of the trace."""
    rows = trace.known_runs.select(["run", "protocol", "processes"]).to_pylist()
    processes = {row["run"]: tuple(row["processes"]) for row in rows}
    files = trace.files or ()
    planned = plan(files, processes, merged=tied(files))
    unordered = (
        processes.keys() if trace.files is None else {r for r, way in planned.ways.items() if way == "pack"}
    )
    # A few rows on this machine's disk are read by this process.
    here = trace.path is not None and local(trace.path) is not None and sum(one.rows for one in files) <= FEW
    found = follow_files(files, planned, processes, None if here else trace.spark)
    if unordered:
        found += follow_rows(trace, {run: processes[run] for run in sorted(unordered)}, len(processes))
    known, refused = describe_runs(rows, found)
    if trace.files is not None and here and not planned.blind:
        return Measures(refused, trace.spark, known, count_here(planned, known))
    return Measures(refused, trace.spark, known, count_facts(trace, planned, known).persist())


def describe_runs(
    rows: Iterable[Mapping[str, Any]], found: Iterable[Found]
) -> tuple[pa.Table, dict[str, BadTrace]]:
    """What is known of the runs (`KNOWN`), by what tasks found, and why the others are refused."""
    runs, told = add_shares(found), []
    refused = {run: BadTrace(*one.error) for run, one in runs.items() if one.error is not None}
    for row in rows:
        if row["run"] in refused:
            continue
        one = runs.get(row["run"], Found(row["run"]))
        pairs = one.sends * (one.sends - 1)
        told.append(
            {
                "run": row["run"],
                "protocol": row["protocol"],
                "names": row["processes"],
                "processes": len(row["processes"]),
                "concurrency": 1 - 2 * one.past / pairs if pairs else None,
                "longest_chain": one.longest_chain,
                "received": one.received,
                "timed": one.timed,
            }
        )
    return pa.Table.from_pylist(told, KNOWN), refused


# Facts


def count_facts(trace: Trace, planned: Plan, known: pa.Table) -> DataFrame:
    """The facts of these runs: by tasks that each read a chunk, and one shuffle for copies that no chunk has whole."""
    schema, processes = from_arrow_schema(PARTS), list_processes(known)
    found = [trace.spark.createDataFrame(name_processes(known), from_arrow_schema(FACTS))]
    # Of runs without clocks the footers do not tell enough to share them out.
    loose = {run: processes[run] for run in processes if trace.files is None or run in planned.blind}
    if loose:
        place = trace.path or "events"

        def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return count_batches(batches, loose, place)

        rows = trace.events.select(*COLUMNS, *READ)
        if trace.files is not None:
            rows = rows.where(F.col("run").isin(*loose))
        found.append(finish(rows.mapInArrow(mark_errors(count), schema)))
    if tasks := list_shares(planned, known):
        found.append(finish(plan_tasks(trace.spark, tasks, count_shares, schema)))
    about = F.broadcast(trace.spark.createDataFrame(known.select(ABOUT)))
    return unite(found).join(about, "run")


def count_here(planned: Plan, known: pa.Table) -> pa.Table:
    """The same of runs in a few local files, counted in this process."""
    batches = (batch for shares in list_shares(planned, known) for batch in count_shares(shares))
    counted = finish_facts(pa.Table.from_batches(batches, PARTS))
    facts = pa.concat_tables([name_processes(known), counted])
    return facts.join(known.select(ABOUT), "run", use_threads=False)


def name_processes(known: pa.Table) -> pa.Table:
    """A fact of nothing for each process of each run: so there are figures of those to which nothing happened."""
    named = ((run, process) for run, names in list_processes(known).items() for process in names or (None,))
    told = [{"run": run, "process": process, "quantity": NAMED, "count": 0} for run, process in named]
    return pa.Table.from_pylist(told, FACTS)


def list_processes(known: pa.Table) -> dict[str, tuple[str, ...]]:
    return {row["run"]: tuple(row["names"]) for row in known.select(["run", "names"]).to_pylist()}


def list_shares(planned: Plan, known: pa.Table) -> list[list[Share]]:
    """What each task counts."""
    processes = list_processes(known)
    received = dict(zip(known["run"].to_pylist(), known["received"].to_pylist(), strict=True))
    return [
        [
            Share(processes[part.run], part, received[part.run] if ordered else None)
            for part in chunk.parts
            if part.run in processes
        ]
        for chunks, ordered in ((planned.chunks, True), (planned.packed, False))
        for chunk in chunks
    ]


def finish(parts: DataFrame) -> DataFrame:
    """The facts: what belongs to a copy comes together."""
    return map_partitions(bring_together(parts, COPY), finish_facts, from_arrow_schema(FACTS), enough=HELD)


# Figures


def schema_of(name: str) -> pa.Schema:
    columns = TABLES.get(name, TABLES["runs"]).split(", ")
    return pa.schema([(column, ARROW[kind]) for column, kind in map(str.split, columns)])


def list_cells(name: str) -> list[str]:
    """What facts have in common that are added up."""
    return [*KEYS[name], "quantity", "low", "received", "timed"]


def make_table(name: str, facts: pa.Table, known: pa.Table) -> pa.Table:
    """One of `TABLES`, or `overall` with the columns of runs, from all the facts of some of its keys."""
    keys, waits = KEYS[name], pc.equal(facts["quantity"], "wait_ns")
    told = pc.or_(pc.invert(waits), pc.and_(facts["received"], facts["timed"]))
    facts = facts.filter(pc.and_(told, pc.is_valid(facts[keys[-1]])))
    cells = facts.group_by(list_cells(name), use_threads=False).aggregate([*SUMS.items()])
    cells = cells.rename_columns({f"{column}_{how}": column for column, how in SUMS.items()})
    if name == "histograms":
        timed = pc.or_(cells["timed"], pc.not_equal(cells["quantity"], "delay_ns"))
        return cells.filter(pc.and_(timed, pc.is_valid(cells["low"]))).select(schema_of(name).names)
    own: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for cell in cells.to_pylist():
        own.setdefault(tuple(cell[key] for key in keys), []).append(cell)
    rows = [dict(zip(keys, key, strict=True)) | tell_figures(found) for key, found in own.items()]
    match name:
        case "runs":
            known = known.filter(pc.is_in(known["run"], pc.unique(facts["run"])))
            about = {row["run"]: row for row in known.to_pylist()}
            rows = [row | about[row["run"]] for row in rows]
        case "channels":
            renamed = {"receiver": "process", "messages": "copies", "deliveries": "delivered"}
            rows = [row | {new: row[old] for new, old in renamed.items()} for row in rows]
    return pa.Table.from_pylist(rows, schema_of(name))


def tell_figures(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts, the distribution of each quantity, `wait_share` and `duration_ns`."""
    of: dict[str, list[Mapping[str, Any]]] = {}
    for cell in cells:
        of.setdefault(cell["quantity"], []).append(cell)

    def add(quantity: str, name: str = "count") -> int:
        return sum(int(cell[name] or 0) for cell in of.get(quantity, ()))

    events = [cell for cell in cells if cell["quantity"] not in (*QUANTITIES, NAMED)]
    # A log without times tells no delays, only that there was a delivery.
    delays = [cell for cell in of.get("delay_ns", ()) if cell["timed"]]
    # Of runs that tell when messages arrived.
    whole = sum(int(cell["total"] or 0) for cell in delays if cell["received"])
    sends = add("send")
    told: dict[str, Any] = {
        "events": sum(cell["count"] for cell in events),
        "sends": sends,
        "copies": add("delay_ns"),
        "deliveries": add("deliver"),
        "delivered": sum(cell["count"] for cell in of.get("delay_ns", ()) if cell["low"] is not None),
        "control_packets": add("control send"),
        "control_per_message": add("control send") / sends if sends else None,
        "wait_share": add("wait_ns", "total") / whole if whole and "wait_ns" in of else None,
        "duration_ns": (max(c["greatest"] for c in events) - min(c["least"] for c in events)) or None
        if events
        else None,
    }
    for quantity in QUANTITIES:
        own = delays if quantity == "delay_ns" else of.get(quantity, ())
        told |= zip(spread(quantity), tell_spread(own), strict=True)
    return told


def tell_spread(cells: Iterable[Mapping[str, Any]]) -> list[float | None]:
    """Mean, quantiles and greatest of values; None where there are no values."""
    own = sorted((cell for cell in cells if cell["low"] is not None), key=lambda cell: cell["low"])
    if not own:
        return [None] * 4
    size, greatest = sum(cell["count"] for cell in own), max(cell["greatest"] for cell in own)
    found: list[float | None] = [sum(int(cell["total"]) for cell in own) / size]
    for percent in PERCENTS:
        until = 0
        for cell in own:
            until += cell["count"]
            # The first bucket up to which there are so many percent of the values.
            if until * 100 >= size * percent:
                found.append(min(cell["middle"], greatest))
                break
    return [*found, greatest]
