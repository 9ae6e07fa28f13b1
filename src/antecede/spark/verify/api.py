"""Verify on Spark: everything that is wrong with the deliveries of each run, found by tasks that read chunks of time.

The algorithm is `antecede.verification`, which also has the rounds of questions and answers: here its tasks run on
Spark, and its tables are DataFrames. What crosses the network are summaries, questions and findings, never rows; unless
the trace is in no order (trace/blocks.py). The driver sees the plan, counts, questions and errors.

Definitions are the oracle's (antecede.oracle). No stamp of any protocol is read.

Events that name their causes are verified by by_causes.py: a DataFrame instead of a trace.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Required, TypedDict, Unpack, overload

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from antecede.errors import BadParameter, BadTrace
from antecede.spark.errors import mark_errors, raise_task_errors
from antecede.spark.frames import ByCauses, refuse_other_tables, unite
from antecede.spark.order.by_trace import with_clock
from antecede.spark.run_tasks import plan_tasks
from antecede.spark.trace import Trace
from antecede.spark.verify.by_causes import CausesVerification, verify_causes, write_found
from antecede.spark.verify.in_stream import verify_live
from antecede.trace.columns import ORDER_COLUMNS
from antecede.trace.parquet import batches_of
from antecede.trace.plan import PARTS_MOST, ROWS, Chunk, Cut, Part, Piece, choose_cuts, group_parts
from antecede.verification.rounds import FOR_COMBINING, FOR_DRIVER, Engine, judge, make_verdicts
from antecede.verification.schema import FINDINGS, RESULTS, VERDICTS, Told
from antecede.verification.tasks import (
    DEALT,
    Questions,
    deal_rows,
    examine_chunk,
    examine_rows,
    put_together,
)

__all__ = ["CausesVerification", "Verification", "verify"]


@dataclass(frozen=True)
class Verification:
    """What was found. The tables are kept by Spark until `release`."""

    findings: DataFrame
    """run, kind, process, sender, number, by_sender, by_number, index, chain: one row for each finding."""
    runs: DataFrame
    """run, verdict, reason, deliveries and a count of each kind: one row for each run."""
    verdicts: list[dict[str, Any]] = field(repr=False)
    """The rows of `runs`, by name."""
    plan: str
    """How the trace was read, in words."""
    refused: Mapping[str, BadTrace]
    """Runs that cannot be judged, and why: their verdict is `unknown`."""
    kept: tuple[DataFrame, ...] = field(repr=False)

    def examples(self, most: int) -> list[dict[str, Any]]:
        """The first findings, violations before others; FIFO breaks are violations too, and are not told again."""
        told = self.findings.where("kind != 'fifo_break'")
        first, index = F.col("kind") != "violation", F.col("index").asc_nulls_last()
        rows = told.orderBy(first, "run", "kind", "process", index, "sender", "number").limit(most).collect()
        return [row.asDict(recursive=True) for row in rows]

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write `findings` and `verdicts` as Parquet into a directory: both, or nothing."""
        write_found(path, self.findings, self.runs.coalesce(1))

    def release(self) -> None:
        """Give back the memory and the disk. The tables cost a new verification from then on."""
        for table in self.kept:
            table.unpersist()


class CauseColumns(TypedDict, total=False):
    """The parameters that name columns of events."""

    id: Required[str]
    causes: Required[str]
    consumer: Required[str]
    position: str | None
    time: str | None
    partition_by: str | Sequence[str]
    no_cause: str | Sequence[str]


@overload
def verify(table: Trace, *, chunks: int | None = None, rows: int | None = None) -> Verification: ...


@overload
def verify(table: DataFrame, **columns: Unpack[CauseColumns]) -> CausesVerification: ...


@overload
def verify(
    table: DataFrame, *, patience: str | None = None, remember: str | None, **columns: Unpack[CauseColumns]
) -> DataFrame: ...


def verify(
    table: Trace | DataFrame,
    *,
    id: str | None = None,
    causes: str | None = None,
    consumer: str | None = None,
    position: str | None = None,
    time: str | None = None,
    partition_by: str | Sequence[str] = (),
    no_cause: str | Sequence[str] = "",
    patience: str | None = None,
    remember: str | None = None,
    chunks: int | None = None,
    rows: int | None = None,
) -> Any:
    """Find what was handed over out of causal order: in a trace, or among events that name their causes.

    **A trace.** Judge every run. A run whose rows cannot be a run is `unknown`, and `refused` says why. Raises
    `BadTrace` if no run can be judged. A task reads about so many `rows`, or as many as suit the trace. `chunks` asks
    for that many of each run, if there are as many row groups.

    **A DataFrame.** Each row is the event `id`, with its `causes` (one identifier, an array of them, or null; a text in
    `no_cause` means none), handed to `consumer` at `position` or `time`. `partition_by` are the columns that tell one
    set of events from another. A finding is a cause that a consumer was handed after an effect of it, with the chain of
    identifiers between. A partition that cannot be judged is refused by name; `BadTrace` if none can.

    **A stream** (`table.isStreaming`) of such rows: a streaming DataFrame of the same findings, as they can be told.
    Rows are known for the time `remember` ("7 days"); a cause is told to be missing when a row has named it for the
    time `patience`, or is about to be forgotten (docs/live.md).

    >>> from antecede.spark import connect
    >>> spark = connect("local[1]")
    >>> rows = [("ordered", None, "audit", 2), ("paid", "ordered", None, None), ("sent", "paid", "audit", 1)]
    >>> events = spark.createDataFrame(rows, "event string, after string, reader string, place long")
    >>> found = verify(events, id="event", causes="after", consumer="reader", position="place")
    >>> [(row.kind, row.consumer, row.id, row.by, row.chain) for row in found.findings.collect()]
    [('violation', 'audit', 'ordered', 'sent', ['ordered', 'paid', 'sent'])]
    >>> found.verdict, found.reason
    ('no', '1 violation')
    >>> found.release()
    """
    groups = (partition_by,) if isinstance(partition_by, str) else tuple(dict.fromkeys(partition_by))
    if isinstance(table, Trace):
        named = {"id": id, "causes": causes, "consumer": consumer, "position": position, "time": time}
        refuse_names("a trace", **named, partition_by=groups, patience=patience, remember=remember)
        return verify_trace(table, chunks, rows)
    refuse_other_tables("verify", table)
    refuse_names("a DataFrame", chunks=chunks, rows=rows)
    if id is None or causes is None or consumer is None:
        raise BadParameter(
            "verify",
            "a DataFrame needs id, causes and consumer; a table of a trace's events is Trace.of(table)",
        )
    if (position is None) == (time is None):
        raise BadParameter("verify", f"give position or time, one of them (they are {position} and {time})")
    none = (no_cause,) if isinstance(no_cause, str) else tuple(no_cause)
    asked = ByCauses(id, causes, groups, position or time, none)
    if table.isStreaming:
        return verify_live(table, asked, consumer, patience=patience, remember=remember)
    refuse_names("a table", patience=patience, remember=remember)
    return verify_causes(table, asked, consumer)


def refuse_names(form: str, **names: object) -> None:
    for name, given in names.items():
        if given:
            raise BadParameter(
                "verify",
                f"{name} does not go with {form}: name the columns of a DataFrame, or chunks and rows of a trace",
            )


def verify_trace(trace: Trace, chunks: int | None, rows: int | None) -> Verification:
    engine = OnSpark(trace, chunks, rows)
    judgement = judge(engine)
    verdicts = list(make_verdicts(trace.known_runs, judgement.counts, judgement.refused))
    return Verification(
        unite(judgement.tables).where("what = 'finding'").select(*FINDINGS.names),
        trace.spark.createDataFrame(pa.Table.from_pylist(verdicts, schema=VERDICTS)),
        verdicts,
        engine.explain(),
        judgement.refused,
        tuple(engine.kept),
    )


# Tasks as Spark schedules them: one a chunk, from files or from packed rows

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
        return self._keep(unite([*tables, self._examine_packed(purpose, cuts, asked)] if cuts else tables))

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
            unite(tables)
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
        rows = unite(tables).where(F.col("what").isin(*FOR_COMBINING) & is_of(runs))
        # A task a run: they share nothing, and one may take long.
        return self._keep(
            rows.select("run", "part", "what", "blob")
            .repartition(len(runs), "run")
            .sortWithinPartitions("run", "part")
            .mapInArrow(mark_errors(lambda batches: put_together(batches, processes)), SPARK_RESULTS)
        )

    # What they tell

    def hear(self, tables: Sequence[DataFrame]) -> Iterator[Told]:
        rows = unite(tables).where(F.col("what").isin(*FOR_DRIVER))
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


def is_of(runs: Collection[str]) -> Column:
    return F.col("run").isin(*runs)


def count_events(events: DataFrame, least: int) -> dict[str, tuple[int, int, list[int]]]:
    """Of each run how many rows it has, how many clocks, and clocks that cut it evenly, if it has more than `least`."""
    rows = F.count(F.lit(1))
    shares = [i / PARTS_MOST for i in range(PARTS_MOST)]
    quantiles = F.when(rows > least, F.percentile_approx("clock", shares, 10 * PARTS_MOST))
    table = events.groupBy("run").agg(rows, F.count("clock"), quantiles)
    return {run: (rows, clocks, quantiles or []) for run, rows, clocks, quantiles in table.collect()}
