"""Verification's tasks as Spark schedules them: one task a chunk, from files or from packed rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from antecede.errors import BadTrace
from antecede.spark.errors import mark_errors, raise_task_errors
from antecede.spark.order.by_trace import with_clock
from antecede.spark.run_tasks import plan_tasks
from antecede.spark.trace.api import Trace
from antecede.trace.columns import ORDER_COLUMNS
from antecede.trace.parquet import batches_of
from antecede.trace.plan import PARTS_MOST, ROWS, Chunk, Cut, Part, Piece, choose_cuts, group_parts
from antecede.verification.rounds import FOR_COMBINING, FOR_DRIVER, Engine
from antecede.verification.schema import RESULTS, Told
from antecede.verification.tasks import (
    DEALT,
    Questions,
    deal_rows,
    examine_chunk,
    examine_rows,
    put_together,
)

__all__ = ["OnSpark"]

SPARK_RESULTS: Final = from_arrow_schema(RESULTS)

INPUT: Final = from_arrow_schema(DEALT)

COLUMNS: Final = ("run", *ORDER_COLUMNS)


class OnSpark(Engine[DataFrame]):
    """Runs tasks on Spark."""

    def __init__(self, trace: Trace, parts: int | None = None, size: int | None = None) -> None:
        self.trace, self.place = trace, trace.path or "events"
        self.kept: list[DataFrame] = []
        super().__init__(trace.files, trace.known_runs, parts, size)
        self.events, self.own_cuts = self._give_clocks() if self.plan.blind else (trace.events, [])

    def _give_clocks(self) -> tuple[DataFrame, list[Cut]]:
        """The events of runs that footers do not tell how to cut, with clocks; and how to cut them."""
        runs, trace, least = self.plan.blind, self.trace, 0 if self.parts else self.size or ROWS
        events = trace.events if len(runs) == len(self.processes) else trace.events.where(is_of(runs))
        found = count_events(events, least)
        for run in found:
            if run not in self.processes:
                raise BadTrace(
                    self.place, f"it has events of run {run}, which the table of runs does not name"
                )
        if any(clocks < rows for rows, clocks, _ in found.values()):
            # Used twice, and each time it would be computed anew.
            events = self._keep(with_clock(Trace(events, trace.runs)).events)
            with raise_task_errors():
                found = count_events(events, least)
        sizes = {run: (rows, quantiles) for run, (rows, _, quantiles) in found.items()}
        return events, choose_cuts(sizes, self.parts, self.size or ROWS)

    @property
    def packed_chunks(self) -> list[Chunk]:
        """The parts of runs that are packed."""
        parts = [
            (Part(cut.run, number, len(cut.below) + 1, ()), cut.rows // (len(cut.below) + 1))
            for cut in self.cuts.values()
            for number in range(len(cut.below) + 1)
        ]
        return list(group_parts(parts, self.size or ROWS))

    # Tasks

    def examine(self, purpose: str, runs: Collection[str], asked: Questions) -> DataFrame:
        given = list(self.assign(purpose, runs, asked))
        tables = [plan_tasks(self.trace.spark, given, examine_chunk, SPARK_RESULTS)]
        cuts = {run: cut for run, cut in self.cuts.items() if run in runs}
        return self._keep(union([*tables, self._examine_packed(purpose, cuts, asked)] if cuts else tables))

    def _examine_packed(self, purpose: str, cuts: Mapping[str, Cut], asked: Questions) -> DataFrame:
        """Rows are exchanged: each task gets those of its parts."""
        chunks = self.packed_chunks
        serials = {(part.run, part.number): chunk.serial for chunk in chunks for part in chunk.parts}
        blind = {cut.run: cuts[cut.run] for cut in self.own_cuts if cut.run in cuts}
        told = {run: cut for run, cut in cuts.items() if run not in blind}
        tables = [self._pack_files(told, serials)] if told else []
        tables += [self._pack_events(blind, serials)] if blind else []
        place, processes = self.place, {run: self.processes[run] for run in cuts}
        questions = {key: blob for key, blob in asked.items() if key[0] in cuts}
        return (
            union(tables)
            .repartitionById(chunks[-1].serial + 1, F.col("serial"))
            .mapInArrow(
                mark_errors(lambda batches: examine_rows(batches, purpose, place, processes, questions)),
                SPARK_RESULTS,
            )
        )

    def _pack_files(self, cuts: Mapping[str, Cut], serials: Mapping[tuple[str, int], int]) -> DataFrame:
        pieces = [
            tuple(piece for part in chunk.parts if part.run in cuts for piece in part.pieces)
            for chunk in self.plan.packed
        ]
        names = {run: self.processes[run] for run in cuts}

        def deal(share: tuple[Piece, ...]) -> Iterator[pa.RecordBatch]:
            for piece in share:
                yield from deal_rows(batches_of(piece, COLUMNS), names, cuts, serials, piece.path)

        return plan_tasks(self.trace.spark, [share for share in pieces if share], deal, INPUT)

    def _pack_events(self, cuts: Mapping[str, Cut], serials: Mapping[tuple[str, int], int]) -> DataFrame:
        names, place = dict(self.processes), self.place
        return self.events.select(*COLUMNS).mapInArrow(
            mark_errors(lambda batches: deal_rows(batches, names, cuts, serials, place)), INPUT
        )

    def combine(self, tables: Sequence[DataFrame], runs: Collection[str]) -> DataFrame:
        processes = {run: self.processes[run] for run in runs}
        rows = union(tables).where(F.col("what").isin(*FOR_COMBINING) & is_of(runs))
        # A task a run: they share nothing, and one may take long.
        return self._keep(
            rows.select("run", "part", "what", "blob")
            .repartition(len(runs), "run")
            .sortWithinPartitions("run", "part")
            .mapInArrow(mark_errors(lambda batches: put_together(batches, processes)), SPARK_RESULTS)
        )

    # What they tell

    def hear(self, tables: Sequence[DataFrame]) -> Iterator[Told]:
        rows = union(tables).where(F.col("what").isin(*FOR_DRIVER))
        with raise_task_errors():
            told = rows.select(*Told.__struct_fields__).collect()
        for row in told:
            yield Told(
                row["what"], row["run"], row["part"], bytes(row["blob"] or b""), row["number"], row["kind"]
            )

    def drop(
        self, table: DataFrame, runs: Collection[str], parts: Collection[tuple[str, int]] = ()
    ) -> DataFrame:
        if runs:
            table = table.where(~is_of(runs))
        if parts:
            dropped = F.broadcast(self.trace.spark.createDataFrame(list(parts), "run string, part int"))
            table = table.join(dropped, ["run", "part"], "left_anti").select(*SPARK_RESULTS.names)
        return table

    def second_sends(self, runs: Collection[str]) -> Iterator[tuple[str, BadTrace]]:
        """Where a sender's numbers do not grow, only counting tells whether it uses one twice."""
        sends = self.trace.events.where((F.col("kind") == "send") & ~F.col("control") & is_of(runs))
        double = sends.groupBy("run", "sender", "number").count().where("count > 1")
        first = double.groupBy("run").agg(F.min(F.struct("sender", "number", "count")).alias("first"))
        for run, (sender, number, count) in first.collect():
            place = f"{self.place}, run {run}, process {sender}"
            yield run, BadTrace(place, f"message {number} is sent {count} times")

    def _keep(self, table: DataFrame) -> DataFrame:
        # Read more than once: by the next round and by the findings. Summaries are small.
        self.kept.append(table.persist())
        return table


def union(tables: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, tables)


def is_of(runs: Collection[str]) -> Column:
    return F.col("run").isin(*runs)


def count_events(events: DataFrame, least: int) -> dict[str, tuple[int, int, list[int]]]:
    """Of each run how many rows it has, how many clocks, and clocks that cut it evenly, if it has more than `least`."""
    rows = F.count(F.lit(1))
    shares = [i / PARTS_MOST for i in range(PARTS_MOST)]
    quantiles = F.when(rows > least, F.percentile_approx("clock", shares, 10 * PARTS_MOST))
    table = events.groupBy("run").agg(rows, F.count("clock"), quantiles)
    return {run: (rows, clocks, quantiles or []) for run, rows, clocks, quantiles in table.collect()}
