"""The reading tasks of a verification as Spark schedules them: one task a chunk, from files or from packed rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from antecede.errors import BadTrace
from antecede.spark.errors import mark_errors, raise_task_errors
from antecede.spark.order.runs import with_clock
from antecede.spark.run_tasks import plan_tasks
from antecede.spark.trace.api import Trace
from antecede.trace.columns import ORDER_COLUMNS
from antecede.trace.parquet import batches_of
from antecede.trace.plan import (
    PARTS_MOST,
    ROWS,
    Chunk,
    Cut,
    Part,
    Piece,
    Plan,
    choose_cuts,
    explain_plan,
    group_parts,
    plan,
    plan_by_origin,
)
from antecede.verification.schema import RESULTS
from antecede.verification.tasks import DEALT, Assignment, Questions, deal_rows, examine_chunk, examine_rows

__all__ = ["SPARK_RESULTS", "Reader"]

SPARK_RESULTS: Final = from_arrow_schema(RESULTS)

INPUT: Final = from_arrow_schema(DEALT)

COLUMNS: Final = ("run", *ORDER_COLUMNS)


@dataclass(frozen=True)
class Size:
    """What is known of a run that footers do not tell of."""

    rows: int
    clocks: int
    quantiles: tuple[int, ...]


@dataclass(frozen=True)
class Clocked:
    events: DataFrame | None
    sizes: Mapping[str, Size]
    kept: tuple[DataFrame, ...] = ()


@dataclass(frozen=True)
class Reader:
    """A trace, and the plan by which it is read."""

    trace: Trace
    processes: Mapping[str, tuple[str, ...]]
    """Run -> its processes."""
    parts: int | None
    """How many of each run, if someone asked."""
    size: int | None
    """About how many rows a task reads, if someone said."""
    plan: Plan
    clocked: Clocked
    """The runs that footers do not tell how to cut."""
    merged: frozenset[str] = frozenset()
    blocks: Mapping[str, int] = field(default_factory=dict)
    """Runs that are read by origin, and in how many blocks. One that is packed then goes to one task as a whole."""

    @classmethod
    def of(cls, trace: Trace, parts: int | None = None, size: int | None = None) -> Reader:
        # What the driver knows of each run: its name and its processes.
        runs = trace.known_runs.select(["run", "processes"]).to_pylist()
        processes = {row["run"]: tuple(row["processes"]) for row in runs}
        found = (
            plan(trace.files, processes, parts, size=size)
            if trace.files is not None
            else Plan((), (), (), dict.fromkeys(sorted(processes), "pack"), tuple(sorted(processes)))
        )
        least = 0 if parts else size or ROWS
        return cls(trace, processes, parts, size, found, give_clocks(trace, found.blind, processes, least))

    def replanned(self, tied: Iterable[str], crowded: Iterable[str]) -> Reader:
        """Read the one as files that overlap, and the other by origin."""
        merged = self.merged | set(tied)
        blocks = {**self.blocks, **{run: 2 * self.blocks.get(run, 1) for run in crowded}}
        if self.trace.files is None:
            return replace(self, blocks=blocks)
        found = plan(self.trace.files, self.processes, self.parts, merged, self.size)
        return replace(self, plan=plan_by_origin(found, blocks, self.processes), merged=merged, blocks=blocks)

    def explain(self) -> str:
        """The plan in words."""
        return explain_plan(self.plan, list(self.all_cuts.values()))

    @property
    def all_cuts(self) -> dict[str, Cut]:
        """How the runs that are packed are cut."""
        found = (*self.plan.cuts, *self._own_cuts)
        return {cut.run: Cut(cut.run, () if cut.run in self.blocks else cut.below, cut.rows) for cut in found}

    @property
    def _own_cuts(self) -> list[Cut]:
        sizes = self.clocked.sizes.items()
        return choose_cuts(
            {run: (size.rows, size.quantiles) for run, size in sizes}, self.parts, self.size or ROWS
        )

    @property
    def packed_chunks(self) -> list[Chunk]:
        """The parts of runs that are packed."""
        parts = [
            (Part(cut.run, number, len(cut.below) + 1, ()), cut.rows // (len(cut.below) + 1))
            for cut in self.all_cuts.values()
            for number in range(len(cut.below) + 1)
        ]
        return list(group_parts(parts, self.size or ROWS))

    @property
    def long_runs(self) -> set[str]:
        """The runs that have several parts."""
        parts = [part for chunk in (*self.plan.chunks, *self.packed_chunks) for part in chunk.parts]
        return {part.run for part in parts if part.of > 1}

    # Tasks

    def examine(
        self, purpose: str, runs: Collection[str] | None = None, questions: Questions | None = None
    ) -> DataFrame:
        """The results of reading: everything, or only some runs; with questions about parts."""
        wanted = self.processes.keys() if runs is None else set(runs)
        asked = questions or {}
        tables = [*self._direct(purpose, wanted, asked), *self._packed(purpose, wanted, asked)]
        if not tables:
            return self.trace.spark.createDataFrame([], SPARK_RESULTS)
        return reduce(DataFrame.unionByName, tables)

    def _direct(self, purpose: str, runs: Collection[str], asked: Questions) -> Iterator[DataFrame]:
        """One task for each chunk. A chunk that is asked nothing is not read."""
        given = []
        for chunk in self.plan.chunks:
            parts = tuple(part for part in chunk.parts if part.run in runs)
            own = {
                key: blob
                for part in parts
                if (key := (part.run, part.number)) in asked
                for blob in [asked[key]]
            }
            if parts and (own or purpose == "scan"):
                names = {part.run: self.processes[part.run] for part in parts}
                given.append(Assignment(Chunk(chunk.serial, chunk.rows, parts), names, purpose, own))
        if given:
            yield plan_tasks(self.trace.spark, given, examine_chunk, SPARK_RESULTS)

    def _packed(self, purpose: str, runs: Collection[str], asked: Questions) -> Iterator[DataFrame]:
        """Rows are exchanged: each task gets those of its parts."""
        chunks = self.packed_chunks
        serials = {(part.run, part.number): chunk.serial for chunk in chunks for part in chunk.parts}
        own = {run: cut for run, cut in self.all_cuts.items() if run in runs}
        blind = {run: cut for run, cut in own.items() if run in self.clocked.sizes}
        told = {run: cut for run, cut in own.items() if run not in blind}
        tables = [self._packed_files(told, serials)] if told else []
        tables += [self._packed_events(blind, serials)] if blind else []
        if not tables:
            return
        place, processes = self.trace.path or "events", {run: self.processes[run] for run in own}
        questions = {key: blob for key, blob in asked.items() if key[0] in own}
        rows = reduce(DataFrame.unionByName, tables)
        yield rows.repartitionById(chunks[-1].serial + 1, F.col("serial")).mapInArrow(
            mark_errors(lambda batches: examine_rows(batches, purpose, place, processes, questions)),
            SPARK_RESULTS,
        )

    def _packed_files(self, own: Mapping[str, Cut], serials: Mapping[tuple[str, int], int]) -> DataFrame:
        pieces = [
            tuple(piece for part in chunk.parts if part.run in own for piece in part.pieces)
            for chunk in self.plan.packed
        ]
        names = {run: self.processes[run] for run in own}

        def deal(share: tuple[Piece, ...]) -> Iterator[pa.RecordBatch]:
            for piece in share:
                yield from deal_rows(batches_of(piece, COLUMNS), names, own, serials, piece.path)

        return plan_tasks(self.trace.spark, [share for share in pieces if share], deal, INPUT)

    def _packed_events(self, own: Mapping[str, Cut], serials: Mapping[tuple[str, int], int]) -> DataFrame:
        events = self.clocked.events
        assert events is not None
        names, place = dict(self.processes), self.trace.path or "events"
        return events.select(*COLUMNS).mapInArrow(
            mark_errors(lambda batches: deal_rows(batches, names, own, serials, place)), INPUT
        )


def give_clocks(trace: Trace, runs: Sequence[str], processes: Collection[str], least: int) -> Clocked:
    """The events of these runs, with clocks, and how they can be cut."""
    if not runs:
        return Clocked(None, {})
    all_runs = len(runs) == len(processes)
    events = trace.events if all_runs else trace.events.where(F.col("run").isin(*runs))
    found = sizes_of(events, least)
    for run in found:
        if run not in processes:
            raise BadTrace(
                trace.path or "events", f"it has events of run {run}, which the table of runs does not name"
            )
    if all(size.clocks == size.rows for size in found.values()):
        return Clocked(events, found)
    # Used twice, and each time it would be computed anew.
    timed = with_clock(Trace(events, trace.runs)).events.persist()
    with raise_task_errors():
        return Clocked(timed, sizes_of(timed, least), (timed,))


def sizes_of(events: DataFrame, least: int) -> dict[str, Size]:
    """Of each run how many rows it has, how many clocks, and clocks that cut it evenly, if it has more than `least`."""
    rows = F.count(F.lit(1))
    shares = [i / PARTS_MOST for i in range(PARTS_MOST)]
    quantiles = F.percentile_approx("clock", shares, 10 * PARTS_MOST)
    table = events.groupBy("run").agg(
        rows.alias("rows"),
        F.count("clock").alias("clocks"),
        F.when(rows > least, quantiles).alias("quantiles"),
    )
    return {
        row["run"]: Size(row["rows"], row["clocks"], tuple(row["quantiles"] or ())) for row in table.collect()
    }
