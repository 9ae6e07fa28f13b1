"""All runs of a protocol together: counts and histograms are added, so quantiles are as exact as those of one run."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

__all__ = ["overall"]

SUMS: Final = ("events", "sends", "copies", "deliveries", "control_packets")
QUANTITIES: Final = ("stamp_entries", "stamp_bytes", "delay_ns", "wait_ns")


def overall(runs: DataFrame, histograms: DataFrame) -> DataFrame:
    """One row for each protocol: `runs` and `processes` (the most of any run), then the columns of a run.

    Means and shares are those of all messages of these runs; `concurrency` is the mean of the runs', because pairs of
    messages of different runs are no pairs; `longest_chain` and `duration_ns` are the greatest.
    """
    table = runs.groupBy("protocol").agg(
        F.count(F.lit(1)).alias("runs"),
        F.max("processes").alias("processes"),
        *(F.sum(name).alias(name) for name in SUMS),
        F.avg("concurrency").alias("concurrency"),
        F.max("longest_chain").alias("longest_chain"),
        F.max("duration_ns").alias("duration_ns"),
    )
    for quantity in QUANTITIES:
        table = table.join(merged(runs, histograms, quantity), "protocol", "left")
    spreads = [f"{quantity}_{name}" for quantity in QUANTITIES for name in ("mean", "p50", "p99", "max")]
    return table.select(
        "protocol",
        "runs",
        "processes",
        *SUMS,
        F.when(F.col("sends") != 0, F.col("control_packets") / F.col("sends")).alias("control_per_message"),
        *spreads,
        F.when(F.col("delay_ns_sum") != 0, F.col("wait_ns_sum") / F.col("delay_ns_sum")).alias("wait_share"),
        "concurrency",
        "longest_chain",
        "duration_ns",
    )


def merged(runs: DataFrame, histograms: DataFrame, quantity: str) -> DataFrame:
    """protocol, and mean, p50, p99, max and sum of the quantity in all its runs."""
    cells = histograms.where(F.col("quantity") == quantity)
    sized = cells.groupBy("run").agg(F.sum("count").alias("size"))
    names = runs.select("run", "protocol", *(f"{quantity}_{name}" for name in ("mean", "max")))
    total = F.sum(F.col("size") * F.col(f"{quantity}_mean"))
    exact = (
        sized.join(names, "run")
        .groupBy("protocol")
        .agg(
            total.alias(f"{quantity}_sum"),
            (total / F.sum("size")).alias(f"{quantity}_mean"),
            F.max(f"{quantity}_max").alias(f"{quantity}_max"),
        )
    )
    added = (
        cells.join(runs.select("run", "protocol"), "run")
        .groupBy("protocol", "low", "high")
        .agg(F.sum("count").alias("count"))
    )
    all_of = Window.partitionBy("protocol")
    until = all_of.orderBy("low").rowsBetween(Window.unboundedPreceding, 0)
    ranked = added.select(
        "protocol",
        middle().alias("middle"),
        F.sum("count").over(until).alias("until"),
        F.sum("count").over(all_of).alias("size"),
    )
    quantiles = ranked.groupBy("protocol").agg(
        *(quantile(percent).alias(f"{quantity}_p{percent}") for percent in (50, 99))
    )
    both = exact.join(quantiles, "protocol")
    greatest = F.col(f"{quantity}_max")
    return both.select(
        "protocol",
        f"{quantity}_sum",
        f"{quantity}_mean",
        *(F.least(F.col(f"{quantity}_p{p}"), greatest).alias(f"{quantity}_p{p}") for p in (50, 99)),
        f"{quantity}_max",
    )


def middle() -> Column:
    """Of a bucket, as `antecede.spark.measuring.buckets.middle` tells it; those below zero are mirror images."""
    width = F.col("high") - F.col("low")
    half = F.floor(width / 2) - (width == 2).cast("long")
    return F.when(F.col("low") >= 0, F.col("low") + half).otherwise(F.col("high") - 1 - half)


def quantile(percent: int) -> Column:
    """The middle of the first bucket up to which there are so many percent of the values."""
    reached = F.col("until") * 100 >= F.col("size") * percent
    return F.min(F.when(reached, F.col("middle")))
