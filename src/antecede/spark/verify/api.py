"""Verify on Spark: everything that is wrong with the deliveries of each run, found by tasks that read chunks of time.

The algorithm is `antecede.verification`, which also has the rounds of questions and answers: here its tasks run on
Spark, and its tables are DataFrames. What crosses the network are summaries, questions and findings, never rows; unless
the trace is in no order (trace/blocks.py). The driver sees the plan, counts, questions and errors.

Definitions are the oracle's (antecede.oracle). No stamp of any protocol is read.

Events that name their causes are verified by by_causes.py: a DataFrame instead of a trace.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Required, TypedDict, Unpack, overload

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from antecede.errors import BadParameter, BadTrace
from antecede.spark.causes import ByCauses
from antecede.spark.frames import refuse_other_tables
from antecede.spark.trace.api import Trace
from antecede.spark.verify.by_causes import CausesVerification, verify_causes
from antecede.spark.verify.engine import OnSpark
from antecede.spark.verify.in_stream import verify_live
from antecede.storage import absolute, all_whole, join
from antecede.verification.rounds import judge, make_verdicts
from antecede.verification.schema import FINDINGS, VERDICTS

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
        places = [join(absolute(path), name) for name in ("findings", "verdicts")]
        with all_whole(places) as [findings, runs]:
            self.findings.write.parquet(findings)
            self.runs.coalesce(1).write.parquet(runs)

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
    groups = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
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
    results = reduce(DataFrame.unionByName, judgement.tables)
    return Verification(
        results.where("what = 'finding'").select(*FINDINGS.names),
        trace.spark.createDataFrame(pa.Table.from_pylist(verdicts, schema=VERDICTS)),
        verdicts,
        engine.explain(),
        judgement.refused,
        tuple(engine.kept),
    )
