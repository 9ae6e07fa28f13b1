"""Verify: everything that is wrong with the deliveries of each run, found by tasks that read chunks of time.

1. The footers tell how to cut the trace (chunks.py). Each task reads its chunk, with no knowledge of what went before,
   judges what it can and gives a summary of the rest (examine.py, verification/). A short run is finished there.
2. The summaries of a long run meet in one task, which judges what crosses chunks. Where summaries do not tell enough
   (the witness of a violation that crosses chunks, a delivery of a message that nobody had under way), it asks, and the
   chunks concerned are read once more for the answer.
What crosses the network are summaries, questions and findings, never rows; unless the trace is in no order (pack.py).
The driver sees the plan, one line for each long run, and errors.

Definitions are the oracle's (antecede.oracle). No stamp of any protocol is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from antecede.errors import BadTrace
from antecede.spark.storage import absolute, all_whole, join
from antecede.spark.trace.api import Trace
from antecede.spark.verify.plan import SPARK_RESULTS, Reader
from antecede.verification import KINDS
from antecede.verification.schema import FINDING_COLUMNS, error_of
from antecede.verification.tasks import put_together

__all__ = ["COUNTS", "Verification", "verify"]

COUNTS: Final = {
    kind: kind if kind in ("unsent", "unaddressed", "undelivered") else f"{kind}s" for kind in KINDS
}
"""Kind of finding -> the column that counts it."""

ROUNDS_MOST: Final = 16
"""Questions and answers about a run: it takes at most five rounds, and a plan is changed a few times at most."""

QUESTIONS: Final = ("suspects", "keep", "trail")
"""What a run may ask of its parts (examine.py)."""


@dataclass(frozen=True)
class Verification:
    """What was found. The tables are kept by Spark until `release`."""

    findings: DataFrame
    """run, kind, process, sender, number, by_sender, by_number, index, chain: one row for each finding."""
    runs: DataFrame
    """run, verdict, reason, deliveries and a count of each kind: one row for each run."""
    plan: str
    """How the trace was read, in words."""
    kept: tuple[DataFrame, ...] = field(repr=False)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write `findings` and `verdicts` as Parquet into a directory: both, or nothing."""
        with (
            all_whole([join(absolute(path), name) for name in ("findings", "verdicts")]) as [findings, runs],
        ):
            self.findings.write.parquet(findings)
            self.runs.coalesce(1).write.parquet(runs)

    def release(self) -> None:
        """Give back the memory and the disk. The tables cost a new verification from then on."""
        for table in self.kept:
            table.unpersist()


def verify(trace: Trace, *, chunks: int | None = None, rows: int | None = None) -> Verification:
    """Judge every run of the trace. Raises `BadTrace` for rows that cannot be a run.

    A task reads about so many `rows`, or as many as suit the trace. `chunks` asks for that many of each run, if there
    are as many row groups.
    """
    work = Work(Reader.of(trace, chunks, rows))
    work.judge()
    results = every(work.results)
    findings = results.where("what = 'finding'").select(*FINDING_COLUMNS)
    return Verification(findings, verdicts(trace.runs, results), work.reader.explain(), tuple(work.kept))


class Work:
    """The rounds of one verification."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.kept: list[DataFrame] = list(reader.clocked.kept)
        self.results: list[DataFrame] = []
        """Rows of finished runs, and findings that parts have made by themselves."""

    def judge(self) -> None:
        """Scan everything, then ask and answer until every run is finished."""
        scanned = self.keep(self.reader.examine("scan"))
        answers: DataFrame | None = None
        unfinished: set[str] | None = None
        new: DataFrame | None = scanned
        for _ in range(ROUNDS_MOST):
            together = self.together(scanned, answers, unfinished)
            asked = self.heard([table for table in (new, together) if table is not None])
            new = None
            again = asked["tied"] | asked["crowded"]
            if again:
                self.reader = self.reader.replanned(asked["tied"], asked["crowded"])
                scanned = self.replaced(
                    scanned, F.col("run").isin(*again), self.reader.examine("scan", again)
                )
                answers, unfinished, new = None, None, scanned
                self.results.clear()
                continue
            unfinished = set().union(*(asked[what] for what in QUESTIONS))
            if together is not None:
                self.results.append(without(together, unfinished))
            if not unfinished:
                break
            assert together is not None
            scanned, answers = self.answered(scanned, answers, together, asked)
        else:
            raise AssertionError(f"runs that are not finished: {sorted(unfinished or ())[:8]}")
        self.results.append(scanned)

    def together(
        self, scanned: DataFrame, answers: DataFrame | None, only: set[str] | None
    ) -> DataFrame | None:
        """The long runs put together, from their summaries and from answers."""
        long = {run: names for run, names in self.reader.long.items() if only is None or run in only}
        if not long:
            return None
        rows = scanned.where("what = 'summary'").select("run", "part", "what", "blob")
        rows = rows if answers is None else rows.unionByName(answers)
        if only is not None:
            rows = rows.where(F.col("run").isin(*only))
        return self.keep(
            rows.repartition(min(len(long), 64), "run")
            .sortWithinPartitions("run", "part")
            .mapInArrow(lambda batches: put_together(batches, long), SPARK_RESULTS)
        )

    def heard(self, tables: Sequence[DataFrame]) -> dict[str, set[str]]:
        """What tasks tell the driver: for each kind of message, the runs that it is about. Errors are raised."""
        kinds = ["error", "tied", "crowded", "unsorted", *QUESTIONS]
        blob = F.when(F.col("what") == "error", F.col("blob")).alias("blob")
        rows = every(tables).where(F.col("what").isin(*kinds)).select("what", "run", "part", blob).collect()
        errors = [(row["part"], error_of(bytes(row["blob"]))) for row in rows if row["what"] == "error"]
        if errors:
            raise min(errors, key=lambda error: (error[0], str(error[1])))[1]
        asked = {kind: {row["run"] for row in rows if row["what"] == kind} for kind in kinds}
        refuse_second_sends(self.reader.trace, asked["unsorted"])
        return asked

    def answered(
        self, scanned: DataFrame, answers: DataFrame | None, together: DataFrame, asked: dict[str, set[str]]
    ) -> tuple[DataFrame, DataFrame | None]:
        """The questions taken to the parts, and what these say."""
        for what in QUESTIONS:
            if not asked[what]:
                continue
            questions = together.where(F.col("what") == what).select("what", "run", "part", "blob")
            told = self.keep(self.reader.examine(what, asked[what], questions))
            if what == "keep":
                parts = F.broadcast(questions.select("run", "part"))
                old = scanned.join(parts, ["run", "part"], "left_anti")
                scanned = self.keep(old.select(*SPARK_RESULTS.names).unionByName(told))
                told = questions.withColumn("what", F.lit("kept"))
            told = told.select("run", "part", "what", "blob")
            answers = told if answers is None else answers.unionByName(told)
        return scanned, answers

    def replaced(self, old: DataFrame, which: Column, new: DataFrame) -> DataFrame:
        return self.keep(old.where(~which).unionByName(new))

    def keep(self, table: DataFrame) -> DataFrame:
        # Read more than once: by the next round, by the findings and by the verdicts. Summaries are small.
        self.kept.append(table.persist())
        return table


def without(table: DataFrame, runs: Iterable[str]) -> DataFrame:
    names = list(runs)
    return table.where(~F.col("run").isin(*names)) if names else table


def every(tables: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, tables)


def refuse_second_sends(trace: Trace, runs: set[str]) -> None:
    """Where a sender's numbers do not grow, only counting tells whether it uses one twice."""
    if not runs:
        return
    sends = trace.events.where((F.col("kind") == "send") & ~F.col("control") & F.col("run").isin(*runs))
    double = sends.groupBy("run", "sender", "number").count().where("count > 1")
    for row in double.orderBy("run", "sender", "number").limit(1).collect():
        place = f"{trace.path or 'events'}, run {row['run']}, process {row['sender']}"
        raise BadTrace(place, f"{row['count']} sends of message {row['number']}", "one of each number")


# Verdicts


def verdicts(runs: DataFrame, results: DataFrame) -> DataFrame:
    """A verdict for each run: no if anything was found; else unknown if the run says why; else yes."""
    numbers = ["deliveries", *COUNTS.values()]
    # One exchange, where joins would make three.
    known = runs.select(
        "run",
        F.get_json_object("parameters", "$.unknown").alias("unknown"),
        F.lit("run").alias("what"),
        F.lit(None).cast("long").alias("number"),
        F.lit(None).cast("string").alias("kind"),
    )
    told = results.where(F.col("what").isin("counted", "finding")).select(
        "run", F.lit(None).cast("string").alias("unknown"), "what", "number", "kind"
    )
    deliveries = F.sum(F.when(F.col("what") == "counted", F.col("number")))
    table = (
        known.unionByName(told)
        .groupBy("run")
        .agg(
            F.max("unknown").alias("unknown"),
            F.coalesce(deliveries, F.lit(0)).alias("deliveries"),
            *(F.count_if(F.col("kind") == kind).alias(count) for kind, count in COUNTS.items()),
        )
    )
    wrong = reduce(Column.__or__, (F.col(count) > 0 for count in COUNTS.values()))
    verdict = F.when(wrong, "no").when(F.col("unknown").isNotNull(), "unknown").otherwise("yes")
    reason = F.when(wrong, told_counts()).otherwise(F.col("unknown"))
    return table.select("run", verdict.alias("verdict"), reason.alias("reason"), *numbers)


def told_counts() -> Column:
    """`2 violations, 1 undelivered`"""
    words = {kind: kind.replace("_", " ") for kind in KINDS}
    parts = [
        F.when(
            F.col(count) > 0,
            F.concat(
                F.format_number(F.col(count), 0),
                F.lit(" "),
                F.when(F.col(count) == 1, words[kind]).otherwise(count.replace("_", " ")),
            ),
        )
        for kind, count in COUNTS.items()
    ]
    return F.concat_ws(", ", *parts)
