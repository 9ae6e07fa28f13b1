"""Distributions in buckets: small, exact in their counts, and told apart from the true quantile by less than 1 %.

A value below 128 has a bucket of its own. Above, each power of two is divided into 64 buckets of equal width, and a
quantile is told as the middle of its bucket: wrong by less than 1/128 of its value. They are the buckets of
`antecede.sim.summary`, so a run has the same quantiles in its summary and here. Values below zero (of machines whose
clocks disagree) have the mirror images of these buckets.

Counts of equal buckets add up, so histograms of parts are merged by adding.

>>> [bucket(value) for value in (0, 127, 128, 129, 130, -5)]
[0, 127, 128, 128, 129, -6]
>>> bounds(bucket(1_000_000))
(999424, 1007616)
>>> bounds(bucket(-5))
(-5, -4)
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["BITS", "ERROR", "HALF", "Series", "bounds", "bucket", "middle"]

ERROR: Final = 1 / 128
"""How wrong a quantile can be, as a share of its value."""

FINE: Final = 128
BITS: Final = 13
"""Bits that hold a bucket, once `HALF` is added to it."""
HALF: Final = 1 << (BITS - 1)
MIN, MAX = -(1 << 63), (1 << 63) - 1


@njit(cache=True, forceinline=True)
def bucket(value: int) -> int:
    """The bucket of a value; below zero, -1 - the bucket of its mirror image."""
    size = value if value >= 0 else -value
    if size < FINE:
        found = size
    else:
        power, rest = 0, size >> 7
        for step in (32, 16, 8, 4, 2, 1):
            if rest >> step:
                rest >>= step
                power += step
        found = FINE + power * 64 + (size >> (power + 1)) - 64
    return found if value >= 0 else -1 - found


def bounds(found: int) -> tuple[int, int]:
    """The least value of a bucket, and the least of the next one."""
    if found < 0:
        low, high = bounds(-1 - found)
        return 1 - high, 1 - low
    if found < FINE:
        return found, found + 1
    power, part = divmod(found - FINE, 64)
    return (64 + part) << (power + 1), (65 + part) << (power + 1)


def middle(found: int) -> int:
    """The value that stands for a bucket."""
    if found < 0:
        return -middle(-1 - found)
    low, high = bounds(found)
    return low + (high - low) // 2 - (high - low == 2)


@cache
def middles() -> NDArray[np.int64]:
    """The middle of every bucket, at the bucket + HALF."""
    return (
        np.array([middle(found) for found in range(-HALF, HALF)], np.object_).clip(MIN, MAX).astype(np.int64)
    )


class Series:
    """Many distributions, as cells: (which one, bucket, how many), sorted.

    >>> two = Series(np.array([0, 0, 1]), np.array([3, 9, 500]), np.array([90, 10, 1]))
    >>> two.quantile(50, np.array([3, 7, 9_999])).tolist(), two.quantile(99, np.array([9, 7, 9_999])).tolist()
    ([3, 7, 9999], [9, 7, 9999])
    """

    def __init__(self, which: NDArray[Any], buckets: NDArray[Any], counts: NDArray[Any]) -> None:
        """Cells in any order; those of one bucket are added."""
        order = np.lexsort((buckets, which))
        which, buckets, counts = which[order], buckets[order], counts[order]
        new = np.append(True, (np.diff(which) != 0) | (np.diff(buckets) != 0))[: len(which)]
        self.which, self.buckets = which[new], buckets[new]
        self.counts = np.add.reduceat(counts, np.flatnonzero(new)) if len(counts) else counts
        self._ends = np.cumsum(self.counts)

    def quantile(self, percent: int, greatest: NDArray[Any]) -> NDArray[Any]:
        """For distributions 0, 1, 2, ... the least value that so many percent do not exceed: its bucket's middle.

        Or the greatest value, which the caller knows exactly, where that is less or there are no values.
        """
        wanted = np.arange(len(greatest))
        first, last = np.searchsorted(self.which, wanted), np.searchsorted(self.which, wanted, "right")
        ends = np.append(0, self._ends)
        size = ends[last] - ends[first]
        rank = np.maximum(-(-size * percent // 100), 1)
        at = np.minimum(np.searchsorted(self._ends, ends[first] + rank), max(len(self.counts) - 1, 0))
        found = greatest.copy()
        some = np.flatnonzero(size)
        found[some] = np.minimum(middles()[self.buckets[at[some]] + HALF], greatest[some])
        return found
