"""What Spark adds up: facts as figures, and the columns of the tables of them. docs/measuring.md says what they mean.

One function, `add_up`, makes the figures of a run, of a process, of a channel and of all runs of a protocol. Spark's
`percentile` needs every value, or interpolates between the middles of buckets; `approx_percentile` bounds the error of
the rank, not of the value. So quantiles come from running sums over buckets.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

__all__ = ["COUNTS", "QUANTITIES", "TABLES", "add_up", "spread"]

QUANTITIES: Final = ("stamp_entries", "stamp_bytes", "delay_ns", "wait_ns")
"""What distributions are of."""
COUNTS: Final = ("events", "sends", "copies", "deliveries", "control_packets")


def spread(quantity: str) -> list[str]:
    """The columns of a distribution."""
    return [f"{quantity}_{name}" for name in ("mean", "p50", "p99", "max")]


def types(*quantities: str) -> str:
    return ", ".join(
        f"{name} {'double' if name.endswith('_mean') else 'long'}" for q in quantities for name in spread(q)
    )


TABLES: Final = {
    "runs": "run string, protocol string, processes int, "
    + ", ".join(f"{name} long" for name in COUNTS)
    + f", control_per_message double, {types(*QUANTITIES)}, wait_share double, concurrency double, "
    "longest_chain long, duration_ns long",
    "processes": "run string, process string, sends long, deliveries long, control_packets long, "
    + types("delay_ns", "wait_ns"),
    "channels": f"run string, sender string, receiver string, messages long, deliveries long, {types('delay_ns')}",
    "histograms": "run string, quantity string, low long, high long, count long",
}
"""Name -> columns and their types."""

PERCENTS: Final = (50, 99)


def add_up(facts: DataFrame, *keys: str) -> DataFrame:
    """The figures of each key: counts, the distribution of each quantity, `wait_share`, `duration_ns`.

    `facts` has a column `received` beside those of `FACTS`: whether the run tells when messages arrived.
    """
    cells = facts.groupBy(*keys, "quantity", "low").agg(
        F.sum("count").alias("count"),
        F.sum("total").alias("total"),
        F.sum(F.when(F.col("received"), F.col("total"))).alias("total_received"),
        F.min("middle").alias("middle"),
        F.min("least").alias("least"),
        F.max("greatest").alias("greatest"),
    )
    every = Window.partitionBy(*keys, "quantity", F.isnull("low"))
    below = every.orderBy("low").rowsBetween(Window.unboundedPreceding, 0)
    ranked = cells.withColumns(
        {
            "until": F.sum("count").over(below),
            "size": F.sum("count").over(every),
        }
    )
    at = F.col("quantity").isin("send", "receive", "deliver") | F.col("quantity").startswith("control ")
    return ranked.groupBy(*keys).agg(
        total("count", at).alias("events"),
        total("count", F.col("quantity") == "send").alias("sends"),
        total("count", F.col("quantity") == "delay_ns").alias("copies"),
        total("count", F.col("quantity") == "deliver").alias("deliveries"),
        total("count", (F.col("quantity") == "delay_ns") & F.col("low").isNotNull()).alias("delivered"),
        total("count", F.col("quantity") == "control send").alias("control_packets"),
        *(column for quantity in QUANTITIES for column in spread_of(quantity)),
        share(
            F.sum(F.when(F.col("quantity") == "wait_ns", F.col("total"))).cast("double"),
            F.sum(F.when(F.col("quantity") == "delay_ns", F.col("total_received"))).cast("double"),
        ).alias("wait_share"),
        (F.max(F.when(at, F.col("greatest"))) - F.min(F.when(at, F.col("least")))).alias("duration_ns"),
    )


def spread_of(quantity: str) -> list[Column]:
    """Mean, quantiles and greatest of a quantity; null where there are no values."""
    own = (F.col("quantity") == quantity) & F.col("low").isNotNull()
    greatest = F.max(F.when(own, F.col("greatest")))
    total, count = F.sum(F.when(own, F.col("total"))), F.sum(F.when(own, F.col("count")))
    # The first bucket up to which there are so many percent of the values.
    ranks = {
        percent: F.min(F.when(own & (F.col("until") * 100 >= F.col("size") * percent), F.col("middle")))
        for percent in PERCENTS
    }
    return [
        (total.cast("double") / count).alias(f"{quantity}_mean"),
        *(F.least(found, greatest).alias(f"{quantity}_p{percent}") for percent, found in ranks.items()),
        greatest.alias(f"{quantity}_max"),
    ]


def total(column: str, where: Column) -> Column:
    return F.coalesce(F.sum(F.when(where, F.col(column))), F.lit(0))


def share(part: Column, whole: Column) -> Column:
    """Null where the whole is nothing."""
    return F.when(whole != 0, part / whole)
