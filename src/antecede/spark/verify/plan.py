"""The reading tasks of a verification as Spark schedules them: one task a chunk, from files or from packed rows.

A task's input are rows (serial, what, run, part, of, blob). Those of one serial go to one task: the description of its
chunk, or its rows; and the questions about its parts.
"""

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
from antecede.spark.errors import raise_task_errors
from antecede.spark.order.lamport import with_clock
from antecede.spark.trace.api import Trace
from antecede.trace.blocks import packed
from antecede.trace.columns import ORDER_COLUMNS, Names
from antecede.trace.parquet import batches_of
from antecede.trace.plan import (
    PARTS_MOST,
    ROWS,
    Chunk,
    Cut,
    Part,
    Plan,
    blocked,
    chunked,
    cuts,
    explained,
    plan,
)
from antecede.verification.schema import RESULTS, refusal
from antecede.verification.tasks import Assignment, examined

__all__ = ["SPARK_RESULTS", "Reader"]

SPARK_RESULTS: Final = from_arrow_schema(RESULTS)

INPUT: Final = "serial int, what string, run string, part int, of int, blob binary"
ARROW_INPUT: Final = pa.schema(
    [
        ("serial", pa.int32()),
        ("what", pa.string()),
        ("run", pa.string()),
        ("part", pa.int32()),
        ("of", pa.int32()),
        ("blob", pa.binary()),
    ]
)

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
        rows = trace.runs.select("run", "processes").collect()
        processes = {row["run"]: tuple(row["processes"]) for row in rows}
        found = (
            plan(trace.files, processes, parts, size=size)
            if trace.files is not None
            else Plan((), (), (), dict.fromkeys(sorted(processes), "pack"), tuple(sorted(processes)))
        )
        least = 0 if parts else size or ROWS
        return cls(trace, processes, parts, size, found, clocked(trace, found.blind, processes, least))

    def replanned(self, tied: Iterable[str], crowded: Iterable[str]) -> Reader:
        """Read the one as files that overlap, and the other by origin."""
        merged = self.merged | set(tied)
        blocks = {**self.blocks, **{run: 2 * self.blocks.get(run, 1) for run in crowded}}
        if self.trace.files is None:
            return replace(self, blocks=blocks)
        found = plan(self.trace.files, self.processes, self.parts, merged, self.size)
        return replace(self, plan=blocked(found, blocks, self.processes), merged=merged, blocks=blocks)

    def explain(self) -> str:
        """The plan in words."""
        return explained(self.plan, list(self.all_cuts.values()))

    @property
    def all_cuts(self) -> dict[str, Cut]:
        """How the runs that are packed are cut."""
        found = (*self.plan.cuts, *self._own_cuts)
        return {cut.run: Cut(cut.run, () if cut.run in self.blocks else cut.below, cut.rows) for cut in found}

    @property
    def _own_cuts(self) -> list[Cut]:
        sizes = self.clocked.sizes.items()
        return cuts({run: (size.rows, size.quantiles) for run, size in sizes}, self.parts, self.size or ROWS)

    @property
    def packed_chunks(self) -> list[Chunk]:
        """The parts of runs that are packed."""
        parts = [
            (Part(cut.run, number, len(cut.below) + 1, ()), cut.rows // (len(cut.below) + 1))
            for cut in self.all_cuts.values()
            for number in range(len(cut.below) + 1)
        ]
        return list(chunked(parts, self.size or ROWS))

    @property
    def long(self) -> dict[str, tuple[str, ...]]:
        """The runs that have several parts."""
        runs = {
            part.run
            for chunk in (*self.plan.chunks, *self.packed_chunks)
            for part in chunk.parts
            if part.of > 1
        }
        return {run: self.processes[run] for run in sorted(runs)}

    # Tasks

    def examine(
        self, purpose: str, only: Iterable[str] | None = None, questions: DataFrame | None = None
    ) -> DataFrame:
        """The results of reading: everything, or only some runs; with questions (what, run, part, blob) about parts."""
        wanted = self.processes.keys() if only is None else set(only)
        tables = [
            read
            for read in (self._direct(purpose, wanted, questions), self._packed(purpose, wanted, questions))
            if read is not None
        ]
        if not tables:
            return self.trace.spark.createDataFrame([], SPARK_RESULTS)
        return reduce(DataFrame.unionByName, tables)

    def _direct(self, purpose: str, only: Collection[str], questions: DataFrame | None) -> DataFrame | None:
        chunks = [
            Chunk(chunk.serial, chunk.rows, tuple(part for part in chunk.parts if part.run in only))
            for chunk in self.plan.chunks
        ]
        if not any(chunk.parts for chunk in chunks):
            return None
        return self._tasks(self._orders(chunks), chunks, purpose, questions, {})

    def _packed(self, purpose: str, only: Collection[str], questions: DataFrame | None) -> DataFrame | None:
        chunks = self.packed_chunks
        serials = {(part.run, part.number): chunk.serial for chunk in chunks for part in chunk.parts}
        own = {run: cut for run, cut in self.all_cuts.items() if run in only}
        blind = {run: cut for run, cut in own.items() if run in self.clocked.sizes}
        told = {run: cut for run, cut in own.items() if run not in blind}
        tables = [self._packed_files(told, serials)] if told else []
        tables += [self._packed_events(blind, serials)] if blind else []
        if not tables:
            return None
        processes = {run: self.processes[run] for run in own}
        return self._tasks(reduce(DataFrame.unionByName, tables), chunks, purpose, questions, processes)

    def _orders(self, chunks: Iterable[Chunk]) -> DataFrame:
        rows = [
            (
                chunk.serial,
                "plan",
                "",
                0,
                0,
                Assignment(chunk, {part.run: self.processes[part.run] for part in chunk.parts}).encode(),
            )
            for chunk in chunks
            if chunk.parts
        ]
        return self.trace.spark.createDataFrame(rows, INPUT)

    def _tasks(
        self,
        rows: DataFrame,
        chunks: list[Chunk],
        purpose: str,
        questions: DataFrame | None,
        processes: Mapping[str, tuple[str, ...]],
    ) -> DataFrame:
        """One task for each chunk."""
        if questions is not None:
            rows = rows.unionByName(self._addressed(purpose, questions, chunks))
        place = self.trace.path or "events"
        count = chunks[-1].serial + 1
        return rows.repartitionById(count, F.col("serial")).mapInArrow(
            lambda batches: examined(batches, purpose, place, processes), SPARK_RESULTS
        )

    def _addressed(self, purpose: str, questions: DataFrame, chunks: list[Chunk]) -> DataFrame:
        """Each question to the task that has the part; what is asked of a whole run, to all that have some of it."""
        places = self.trace.spark.createDataFrame(
            [(c.serial, p.run, p.number, p.of) for c in chunks for p in c.parts],
            "serial int, run string, part int, of int",
        )
        # One join, not one for each kind: a plan that refers to a table twice is twice as large, and so on.
        if purpose == "suspects":
            addressed = questions.drop("part").join(F.broadcast(places), "run")
        else:
            addressed = questions.join(F.broadcast(places), ["run", "part"])
        return addressed.select("serial", "what", "run", "part", "of", "blob")

    def _packed_files(self, own: Mapping[str, Cut], serials: Mapping[tuple[str, int], int]) -> DataFrame:
        chunks = [chunk for chunk in self.plan.packed if any(part.run in own for part in chunk.parts)]
        names = {run: self.processes[run] for run in own}

        def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for row in batch.to_pylist():
                    parts = Assignment.decode(row["blob"]).chunk.parts
                    for piece in (piece for part in parts if part.run in own for piece in part.pieces):
                        yield from dealt(batches_of(piece, COLUMNS), names, own, serials, piece.path)

        orders = self._orders(chunks).repartitionById(chunks[-1].serial + 1, F.col("serial"))
        return orders.mapInArrow(work, INPUT)

    def _packed_events(self, own: Mapping[str, Cut], serials: Mapping[tuple[str, int], int]) -> DataFrame:
        events = self.clocked.events
        assert events is not None
        names, place = dict(self.processes), self.trace.path or "events"
        return events.select(*COLUMNS).mapInArrow(
            lambda batches: dealt(batches, names, own, serials, place), INPUT
        )


def dealt(
    batches: Iterable[pa.RecordBatch],
    processes: Mapping[str, tuple[str, ...]],
    cuts: Mapping[str, Cut],
    serials: Mapping[tuple[str, int], int],
    place: str,
) -> Iterator[pa.RecordBatch]:
    """In a task: rows packed, each with the serial of the task that it goes to."""
    names = {run: Names.of(own) for run, own in processes.items()}
    try:
        for one in packed(batches, names, cuts, place):
            row = {"serial": serials[one.run, one.part], "what": "rows", "run": one.run, "part": one.part}
            yield input_batch({**row, "of": len(cuts[one.run].below) + 1, "blob": one.data})
    except BadTrace as error:
        blob = refusal(error).blob
        yield input_batch({"serial": 0, "what": "error", "run": "", "part": 0, "of": 0, "blob": blob})


def input_batch(row: dict[str, object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([row], schema=ARROW_INPUT)


def clocked(trace: Trace, runs: Sequence[str], processes: Collection[str], least: int) -> Clocked:
    """The events of these runs, with clocks, and how they can be cut."""
    if not runs:
        return Clocked(None, {})
    all_runs = len(runs) == len(processes)
    events = trace.events if all_runs else trace.events.where(F.col("run").isin(*runs))
    found = sizes_of(events, least)
    for run in found:
        if run not in processes:
            raise BadTrace(
                trace.path or "events", f"events of run {run}", "only runs that are in the table of runs"
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
