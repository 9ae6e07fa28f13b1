"""Histograms by expression: exact in their counts, small, and quantiles that are wrong by less than 1 %.

A value below 128 has a bucket of its own. Above, each power of two is divided into 64 buckets of equal width, and a
quantile is told as the middle of its bucket: wrong by less than 1/128 of its value. They are the buckets of
`antecede.sim.summary`, so a run has the same quantiles in its summary and here. Values below zero (of machines whose
clocks disagree) have the mirror images of these buckets: -1 - bucket.

Counts of equal buckets add up, so histograms of parts are merged by adding. Spark's `percentile` needs every value, or
interpolates between the middles; `approx_percentile` bounds the error of the rank, not of the value. So quantiles come
from running sums over buckets.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

__all__ = ["ERROR", "bounds", "bucket", "middle"]

ERROR: Final = 1 / 128
"""How wrong a quantile can be, as a share of its value."""

GREATEST: Final = (1 << 63) - 1


def bucket(value: str) -> Column:
    """The bucket of a column of whole numbers; null for null."""
    size = f"abs({value})"
    # The logarithm of a large number may round up to the next power.
    log = f"least(cast(log2(cast({size} as double)) as int), 62)"
    power = f"({log} - if(shiftleft(1L, {log}) > {size}, 8, 7))"
    found = f"if({size} < 128, cast({size} as int), 64 + 64 * {power} + cast(shiftright({size}, {power} + 1) as int))"
    return F.expr(f"if({value} < 0, -1 - {found}, {found})")


def bounds(of: str = "bucket") -> tuple[Column, Column]:
    """The least value of a bucket, and the least of the next one."""
    mirrored = f"if({of} < 0, -1 - {of}, {of})"
    low, high = least(mirrored), least(f"({mirrored} + 1)")
    return (
        F.expr(f"if({of} < 0, 1 - {high}, {low})"),
        F.expr(f"if({of} < 0, 1 - {low}, {high})"),
    )


def least(found: str) -> str:
    """The least value of a bucket that is not mirrored. That of the bucket after the last is the greatest number."""
    scaled = f"shiftleft(64L + ({found} - 128) % 64, ({found} - 128) div 64 + 1)"
    return f"if({found} < 128, cast({found} as long), if({found} >= 3712, {GREATEST}L, {scaled}))"


def middle(of: str = "bucket") -> Column:
    """The value that stands for a bucket."""
    low, high = bounds(of)
    width = high - low
    half = F.shiftright(width, 1) - (width == 2).cast("long")
    return F.when(F.col(of) >= 0, low + half).otherwise(high - 1 - half)
