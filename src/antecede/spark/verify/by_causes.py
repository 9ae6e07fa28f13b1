"""Verify events that name their causes: was a consumer handed an effect first and its cause later?

A row is an event (`id`), with its `causes`, that was handed to a `consumer` at a `position` or `time`. The same event
may stand in several rows, one for each consumer; a row without a consumer is an event that links others.

*Stated* causality: m precedes m' if a chain of causes leads from m' to m. What a process did before counts only if
someone named it. (A trace is judged by *potential* causality: all that a process did before.)

Partitions share nothing. Small ones, up to `FULL` rows, are brought together with these columns and no others, and a
task judges many, one table after the other (tasks.py). Large ones are judged by joins (joined.py): no
task holds them. The driver holds counts, and the names of large partitions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from antecede.errors import BadParameter, BadTrace
from antecede.spark.errors import raise_task_errors
from antecede.spark.frames import (
    WHOLE,
    ByCauses,
    alias_columns,
    id_type,
    list_causes,
    quote,
    read_id,
    read_time,
    refuse_column_names,
    refuse_columns,
    rename_columns,
    rename_request,
)
from antecede.spark.run_tasks import FULL, bring_together, map_partitions, split_partitions
from antecede.spark.verify.joined import ROUNDS, TooDeep, judge_joined
from antecede.spark.verify.tasks import COUNTS, judge_table
from antecede.storage import absolute, all_whole, join

__all__ = ["UNJUDGED", "CausesVerification", "verify_causes"]

OWN: Final = ("kind", "consumer", "id", "by", "chain", "reason", "verdict", *COUNTS)
"""Columns of the results, which a partition column cannot be named like."""
UNJUDGED: Final = "nothing to judge: no consumer was handed both a cause and an effect of it"
SHOWN: Final = 100
"""Partitions whose refusal is told one by one."""


@dataclass(frozen=True)
class CausesVerification:
    """What was found among events that name their causes. The tables are kept by Spark until `release`."""

    findings: DataFrame
    """kind, the partition columns, consumer, id, by, chain, reason: one row for each finding."""
    partitions: DataFrame
    """The partition columns, verdict, reason and counts: one row for each partition."""
    verdict: str
    """no: something came late or twice. unknown: something is missing or refused, or nothing could be judged."""
    reason: str | None
    counts: Mapping[str, int]
    """Sums over all partitions, and how many partitions there are, are `refused`, and have nothing to judge."""
    partition_by: tuple[str, ...]
    refused: list[dict[str, Any]]
    """The first partitions that cannot be judged: the partition columns and `reason`."""
    kept: tuple[DataFrame, ...] = field(repr=False)

    def examples(self, most: int) -> list[dict[str, Any]]:
        """The first findings, violations before others; partitions that are refused are in `refused`."""
        told = self.findings.where("kind != 'refused'")
        first = (F.col("kind") != "violation").cast("int")
        names = [quote(name) for name in self.partition_by]
        return [
            row.asDict()
            for row in told.orderBy(first, "kind", *names, "consumer", "id").limit(most).collect()
        ]

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write `findings` and `verdicts` as Parquet into a directory: both, or nothing."""
        write_found(path, self.findings, self.partitions)

    def release(self) -> None:
        """Give back the memory and the disk. The tables cost a new verification from then on."""
        for table in self.kept:
            table.unpersist()


def write_found(path: str | os.PathLike[str], findings: DataFrame, verdicts: DataFrame) -> None:
    places = [join(absolute(path), name) for name in ("findings", "verdicts")]
    with all_whole(places) as found:
        for table, place in zip((findings, verdicts), found, strict=True):
            table.write.parquet(place)


def verify_causes(
    rows: DataFrame, asked: ByCauses, consumer: str, *, full: int = FULL, rounds: int = ROUNDS
) -> CausesVerification:
    """Judge every partition; `asked.time` is the column of positions. `BadTrace` if all of them are refused."""
    refuse_request(rows, asked, consumer)
    rows, mine, consumer, own = alias_judged(rows, asked, consumer)
    told, kept = judge(rows, mine, consumer, full, rounds)
    results = told.persist()
    told = results.where("kind = 'partition'").withColumn("refused", F.isnull("judged").cast("long"))
    partitions = told.withColumns(tell_answer()).select(*mine.partition_by, "verdict", "reason", *COUNTS)
    findings = results.where("kind != 'partition'").drop(*COUNTS)
    with raise_task_errors():
        sums = partitions.agg(
            F.count(F.lit(1)).alias("partitions"),
            F.count_if(F.col("reason") == UNJUDGED).alias("unjudged"),
            *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in COUNTS),
            F.count_if(F.col("judged").isNull()).alias("refused"),
            F.lit(None).cast("string").alias("reason"),
        )
        [row] = sums.withColumns(tell_answer()).collect()
        counts = row.asDict()
        verdict, reason = counts.pop("verdict"), counts.pop("reason")
        bad = findings.where("kind = 'refused'").select(*mine.partition_by, "reason")
        first = bad.orderBy(*bad.columns).limit(SHOWN).collect() if counts["refused"] else []
        refused = [dict(zip((*asked.partition_by, "reason"), row, strict=True)) for row in first]
    if refused and counts["refused"] == counts["partitions"]:
        results.unpersist()
        place = ", ".join(f"{name} {refused[0][name]}" for name in asked.partition_by) or "the table"
        raise BadTrace(place, refused[0]["reason"])
    return CausesVerification(
        rename_columns(findings, own),
        rename_columns(partitions, own),
        verdict,
        reason,
        counts,
        asked.partition_by,
        refused,
        (results, *kept),
    )


def tell_answer() -> dict[str, Column]:
    """Verdict and reason, about one partition, or about all of them."""
    wrong = (F.col("violations") > 0) | (F.col("duplicates") > 0)
    unknown = (F.col("refused") > 0) | (F.col("missing") > 0) | (F.col("judged") == 0)

    def count(name: str, one: str, many: str) -> Column:
        several = F.concat(F.format_number(name, 0), F.lit(f" {many}"))
        return F.when(F.col(name) == 1, f"1 {one}").when(F.col(name) > 1, several)

    told = F.concat_ws(
        ", ",
        count("violations", "violation", "violations"),
        count("duplicates", "duplicate", "duplicates"),
        count("missing", "missing", "missing"),
        count("refused", "partition refused", "partitions refused"),
    )
    unjudged = F.when(F.col("judged") == 0, UNJUDGED)
    return {
        "verdict": F.when(wrong, "no").when(unknown, "unknown").otherwise("yes"),
        "reason": F.coalesce("reason", F.when(told != "", told), unjudged),
    }


def refuse_request(rows: DataFrame, asked: ByCauses, consumer: str) -> None:
    assert asked.time is not None
    refuse_column_names("verify", rows, {"consumer": consumer, "position or time": asked.time})
    refuse_columns(rows, asked, owner="verify", added=())
    kind = rows.schema[consumer].dataType
    if not isinstance(kind, (StringType, *WHOLE)):
        raise BadParameter(
            "verify", f"consumer must be text or integers, and {consumer} is {kind.simpleString()}"
        )
    kind = rows.schema[asked.time].dataType
    known = (StringType, DoubleType, FloatType, TimestampType, TimestampNTZType, DateType, *WHOLE)
    if not isinstance(kind, known) and not (isinstance(kind, DecimalType) and kind.scale == 0):
        raise BadParameter(
            "verify",
            f"position or time must be numbers, timestamps or text, and {asked.time} is {kind.simpleString()}",
        )
    for name in asked.partition_by:
        if name.lower() in OWN:
            raise BadParameter(
                "verify", f"partition_by cannot be {name}: findings have the columns {', '.join(OWN)}"
            )


def alias_judged(
    rows: DataFrame, asked: ByCauses, consumer: str
) -> tuple[DataFrame, ByCauses, str, dict[str, str]]:
    """What is read, and only that, under names of our own; and these names."""
    all_columns, own = alias_columns(rows)
    used = dict.fromkeys((*asked.partition_by, asked.id, asked.causes, consumer, asked.time))
    mine = all_columns.select(*(own[name] for name in used if name is not None))
    return mine, rename_request(asked, own), own[consumer], own


# How


def judge(
    rows: DataFrame, asked: ByCauses, consumer: str, full: int, rounds: int
) -> tuple[DataFrame, list[DataFrame]]:
    """The findings, and a row of kind `partition` with the counts of each partition; and tables to give back."""
    small, large = split_partitions(rows, asked.partition_by, full)
    told = None if small is None else judge_small(small, asked, consumer)
    if large is None:
        assert told is not None
        return told, []
    slim, schema = select_judged(large.rows, asked, consumer), judged_schema(large.rows, asked, consumer)
    kept: list[DataFrame] = []
    try:
        more = judge_joined(large, slim, schema, full, rounds, kept)
    except TooDeep:
        more = judge_small(large.rows.drop("__part"), asked, consumer)
    return more if told is None else told.unionByName(more), kept


def select_judged(rows: DataFrame, asked: ByCauses, consumer: str) -> DataFrame:
    """The columns that are judged, under names of our own, after those of partitions."""
    own = read_id(rows, asked)
    assert asked.time is not None
    at = read_time(rows, asked.time, lenient=True)
    if isinstance(rows.schema[asked.time].dataType, (DoubleType, FloatType)):
        at = F.when(~F.isnan(at), at)
    return rows.select(
        *asked.partition_by,
        *(name for name in ("__hash", "__part") if name in rows.columns),
        own.alias("__id"),
        F.xxhash64(own).alias("__mark"),
        list_causes(rows, asked).alias("__causes"),
        F.col(consumer).alias("__consumer"),
        at.alias("__at"),
    )


def findings_schema(rows: DataFrame, asked: ByCauses, consumer: str) -> StructType:
    """The columns of findings."""
    kind = id_type(rows, asked)
    return StructType(
        [
            StructField("kind", StringType()),
            *(StructField(name, rows.schema[name].dataType) for name in asked.partition_by),
            StructField("consumer", rows.schema[consumer].dataType),
            StructField("id", kind),
            StructField("by", kind),
            StructField("chain", ArrayType(kind)),
            StructField("reason", StringType()),
        ]
    )


def judged_schema(rows: DataFrame, asked: ByCauses, consumer: str) -> StructType:
    """Those of findings, and the counts of partitions."""
    counts = [StructField(name, LongType()) for name in COUNTS]
    return StructType([*findings_schema(rows, asked, consumer).fields, *counts])


def judge_small(rows: DataFrame, asked: ByCauses, consumer: str) -> DataFrame:
    """In tasks that hold whole partitions."""
    work = partial(judge_table, names=asked.partition_by)
    # After the exchange: what is made of other columns need not be shuffled.
    judged = select_judged(bring_together(rows, asked.partition_by), asked, consumer)
    return map_partitions(judged, work, judged_schema(rows, asked, consumer))
