"""An ordered table on disk, and what came of it in numbers: what the command line says."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from antecede.errors import BadTrace
from antecede.spark.errors import raise_task_errors
from antecede.spark.frames import quote
from antecede.spark.order.api import count_rows, missing, name_form, read_form, refused
from antecede.spark.storage import escaped, join, whole

__all__ = ["Outcome", "write_ordered"]

SHOWN: Final = 100
"""Partitions that are told one by one: those with most that is missing."""
HOLDING: Final = 5
"""Missing events or messages that are told one by one: those that hold up most rows."""


@dataclass(frozen=True)
class Outcome:
    """What an order came to."""

    by: str
    """causes, vector, stamp or trace."""
    rows: int
    missing: int
    waiting: int
    """Rows that wait for something that is missing."""
    direct: int
    """Those of them that name it themselves."""
    partitions: int
    refused: int
    """Partitions that have no order."""
    partition_by: tuple[str, ...]
    groups: list[dict[str, Any]]
    """Some partitions, those with most that is missing first: rows, missing, waiting, direct."""
    holding: list[dict[str, Any]]
    """Some of what is missing, with how many rows wait for it: those that hold up the most first."""
    reasons: list[dict[str, Any]]
    """Some partitions that are refused, and why."""


def write_ordered(ordered: DataFrame, path: str | os.PathLike[str]) -> Outcome:
    """Write `ordered` and `missing` as Parquet into a directory, all or nothing.

    The names of the files of `ordered` sort in the order of the rows. If no partition has an order, the first is a
    `BadTrace`, and nothing is written.
    """
    spark = ordered.sparkSession
    with raise_task_errors(), whole(path) as aside:
        ordered.write.parquet(join(aside, "ordered"))
        # What is asked of the result is asked of what is there: nothing is ordered twice.
        there = spark.read.schema(ordered.schema).parquet(escaped(join(aside, "ordered")))
        counts = count_rows(there)
        [total] = counts.agg(
            *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("rows", "waiting", "direct")),
            F.count(F.lit(1)).alias("partitions"),
            F.count_if("refused").alias("refused"),
        ).collect()
        reasons = collect_reasons(there) if total["refused"] else []
        if reasons and there.where("position is not null").isEmpty():
            raise BadTrace(place_of(reasons[0], read_form(there).partition_by), reasons[0]["reason"])
        lacking = missing(there)
        if not total["waiting"]:
            # Whatever is missing, a row waits for it: there is nothing to look for.
            lacking = spark.createDataFrame([], lacking.schema)
        lacking.write.parquet(join(aside, "missing"))
        lacking = spark.read.schema(lacking.schema).parquet(escaped(join(aside, "missing")))
        many, groups = count_missing(lacking, counts.where("not refused"), there)
        holding = list_holding(lacking) if many else []
    form = read_form(there)
    numbers = {name: total[name] for name in ("rows", "waiting", "direct", "partitions", "refused")}
    return Outcome(
        by=name_form(form),
        missing=many,
        partition_by=form.partition_by,
        groups=groups,
        holding=holding,
        reasons=reasons,
        **numbers,
    )


def list_holding(lacking: DataFrame) -> list[dict[str, Any]]:
    """What holds up the most rows, where that is counted: by causes and by stamps."""
    if "waiting" not in lacking.columns:
        return []
    names = [quote(name) for name in lacking.columns if name != "waiting"]
    first = lacking.orderBy(F.desc("waiting"), *names).limit(HOLDING).collect()
    return [row.asDict() for row in first]


def collect_reasons(ordered: DataFrame) -> list[dict[str, Any]]:
    names = [quote(name) for name in read_form(ordered).partition_by]
    table = refused(ordered)
    return [row.asDict() for row in (table.orderBy(*names) if names else table).limit(SHOWN).collect()]


def place_of(row: dict[str, Any], names: tuple[str, ...]) -> str:
    return ", ".join(f"{name} {row[name]}" for name in names) or "table"


def count_missing(
    lacking: DataFrame, counts: DataFrame, ordered: DataFrame
) -> tuple[int, list[dict[str, Any]]]:
    """How much is missing, and the partitions with most of it."""
    names = list(read_form(ordered).partition_by)
    each = F.col("last") - F.col("first") + 1 if {"first", "last"} <= set(lacking.columns) else F.lit(1)
    by_partition = lacking.groupBy(*map(quote, names)).agg(F.sum(each).alias("missing"))
    renamed = by_partition.toDF(*(f"__{place}" for place, _ in enumerate(names)), "missing")
    same = F.lit(True)
    for place, name in enumerate(names):
        same &= F.col(quote(name)).eqNullSafe(F.col(f"__{place}"))
    both = counts.join(renamed, same, "left").withColumn("missing", F.coalesce("missing", F.lit(0)))
    shown = both.select(*map(quote, names), "rows", "missing", "waiting", "direct")
    first = shown.orderBy(F.desc("missing"), *map(quote, names)).limit(SHOWN).collect()
    total = by_partition.agg(F.coalesce(F.sum("missing"), F.lit(0)).alias("missing")).collect()[0]["missing"]
    return total, [row.asDict() for row in first]
