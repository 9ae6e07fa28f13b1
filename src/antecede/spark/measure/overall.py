"""All runs of a protocol together: counts and histograms are added, so quantiles are as exact as those of one run."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

__all__ = ["overall"]

SUMS: Final = ("events", "sends", "copies", "deliveries", "control_packets")
QUANTITIES: Final = ("stamp_entries", "stamp_bytes", "delay_ns", "wait_ns")
PERCENTS: Final = (50, 99)


def overall(runs: DataFrame, histograms: DataFrame) -> DataFrame:
    """One row for each protocol: `runs` and `processes` (the most of any run), then the columns of a run.

    Means and shares are those of all messages of these runs; `concurrency` is the mean of the runs', because messages
    of different runs are no pairs; `longest_chain` and `duration_ns` are the greatest.
    """
    table = added(runs, histograms).join(quantiles(runs, histograms), "protocol", "left")
    return table.select(
        "protocol",
        "runs",
        "processes",
        *SUMS,
        ratio("control_packets", "sends").alias("control_per_message"),
        *(column for quantity in QUANTITIES for column in spread(quantity)),
        ratio("wait_ns_sum", "delay_of_waits").alias("wait_share"),
        "concurrency",
        "longest_chain",
        "duration_ns",
    )


def added(runs: DataFrame, histograms: DataFrame) -> DataFrame:
    """What can be added up, for each protocol; with the sum, number and greatest of each quantity."""
    sizes = histograms.groupBy("run").agg(
        *(F.sum(F.when(F.col("quantity") == q, F.col("count"))).alias(f"{q}_size") for q in QUANTITIES)
    )
    return (
        runs.join(sizes, "run", "left")
        .groupBy("protocol")
        .agg(
            F.count(F.lit(1)).alias("runs"),
            F.max("processes").alias("processes"),
            *(F.sum(name).alias(name) for name in SUMS),
            F.avg("concurrency").alias("concurrency"),
            F.max("longest_chain").alias("longest_chain"),
            F.max("duration_ns").alias("duration_ns"),
            *(F.sum(F.col(f"{q}_size") * F.col(f"{q}_mean")).alias(f"{q}_sum") for q in QUANTITIES),
            # A run without receives tells nothing of waiting, so its delays are no part of the share.
            F.sum(F.when(F.col("wait_ns_size") > 0, F.col("delay_ns_size") * F.col("delay_ns_mean"))).alias(
                "delay_of_waits"
            ),
            *(F.sum(f"{q}_size").alias(f"{q}_size") for q in QUANTITIES),
            *(F.max(f"{q}_max").alias(f"{q}_max") for q in QUANTITIES),
        )
    )


def quantiles(runs: DataFrame, histograms: DataFrame) -> DataFrame:
    """For each protocol, the quantiles of each quantity: from the histograms of its runs, added."""
    cells = (
        histograms.join(runs.select("run", "protocol"), "run")
        .groupBy("protocol", "quantity", "low", "high")
        .agg(F.sum("count").alias("count"))
    )
    all_of = Window.partitionBy("protocol", "quantity")
    until = all_of.orderBy("low").rowsBetween(Window.unboundedPreceding, 0)
    ranked = cells.select(
        "protocol",
        "quantity",
        middle().alias("middle"),
        F.sum("count").over(until).alias("until"),
        F.sum("count").over(all_of).alias("size"),
    )
    # The first bucket up to which there are so many percent of the values.
    return ranked.groupBy("protocol").agg(
        *(
            F.min(
                F.when(
                    (F.col("quantity") == q) & (F.col("until") * 100 >= F.col("size") * percent),
                    F.col("middle"),
                )
            ).alias(f"{q}_p{percent}")
            for q in QUANTITIES
            for percent in PERCENTS
        )
    )


def middle() -> Column:
    """Of a bucket, as `antecede.spark.measure.histogram.middle` tells it; those below zero are mirror images."""
    width = F.col("high") - F.col("low")
    half = F.shiftright(width, 1) - (width == 2).cast("long")
    return F.when(F.col("low") >= 0, F.col("low") + half).otherwise(F.col("high") - 1 - half)


def spread(quantity: str) -> list[Column]:
    greatest = F.col(f"{quantity}_max")
    return [
        ratio(f"{quantity}_sum", f"{quantity}_size").alias(f"{quantity}_mean"),
        *(F.least(F.col(f"{quantity}_p{p}"), greatest).alias(f"{quantity}_p{p}") for p in PERCENTS),
        greatest,
    ]


def ratio(part: str, whole: str) -> Column:
    """Null where the whole is nothing."""
    return F.when(F.col(whole) != 0, F.col(part) / F.col(whole))
