"""What a run came to: counts, and distributions kept in logarithmic buckets, so that memory does not grow with the run.

A value below 128 has a bucket of its own; above, each power of two is divided into 64 buckets, and a quantile is told
as the middle of its bucket: wrong by less than 0.8 %. Means are exact.

>>> sizes = Histogram()
>>> for size in range(1000):
...     sizes.values.append(size)
>>> sizes.quantile(50), sizes.quantile(99), sizes.mean
(498, 988, 499.5)

delay     from the send to the delivery of a copy
waiting   for causality, of that: unsent at the sender, and held at the receiver (with routers: anywhere on the way)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct, to_builtins

__all__ = ["ERROR", "Distribution", "Histogram", "Summary"]

ERROR = 1 / 128
"""How wrong a quantile can be, as a share of its value."""

FINE = 128
FLUSH = 1 << 15


class Histogram:
    """A distribution of whole numbers from 0. A hot loop appends to `values`, and calls `fold` now and then."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self.count = 0
        self.total = 0
        self.greatest = 0
        self._buckets = np.zeros(FINE + 64 * 64, dtype=np.int64)

    def fold(self, least: int | None = None) -> None:
        """Move the values into their buckets, if there are as many."""
        if len(self.values) < (FLUSH if least is None else least) or not self.values:
            return
        values = np.array(self.values, dtype=np.int64)
        self.values.clear()
        self.count += len(values)
        self.total += int(values.sum())
        self.greatest = max(self.greatest, int(values.max()))
        self._buckets += np.bincount(_bucket(values), minlength=len(self._buckets))

    def add(self, value: int, times: int) -> None:
        """The same value, so many times."""
        if times:
            self.count += times
            self.total += value * times
            self.greatest = max(self.greatest, value)
            self._buckets[int(_bucket(np.int64(value)))] += times

    @property
    def size(self) -> int:
        """How many values there are."""
        return self.count + len(self.values)

    @property
    def mean(self) -> float:
        self.fold(1)
        return self.total / self.count if self.count else 0.0

    def quantile(self, percent: int) -> int:
        """The least value that so many percent of all do not exceed."""
        self.fold(1)
        if not self.count:
            return 0
        rank = -(-self.count * percent // 100)
        bucket = int(np.searchsorted(np.cumsum(self._buckets), max(rank, 1)))
        return min(_middle(bucket), self.greatest)

    def distribution(self) -> Distribution:
        return Distribution(self.mean, self.quantile(50), self.quantile(99), self.greatest)


def _bucket(values: Any) -> Any:
    """The bucket of each value. `frexp` takes a float apart without rounding."""
    mantissa, exponent = np.frexp(values.astype(np.float64))
    coarse = FINE + (exponent.astype(np.int64) - 8) * 64 + ((mantissa - 0.5) * 128).astype(np.int64)
    return np.where(values < FINE, values, coarse)


def _middle(bucket: int) -> int:
    if bucket < FINE:
        return bucket
    power, part = divmod(bucket - FINE, 64)
    low = (64 + part) << (power + 1)
    return low + (1 << power) - (power == 0)


class Distribution(Struct, frozen=True):
    """How the values of a figure spread. Quantiles are wrong by less than 1 %, mean and maximum are exact."""

    mean: float
    p50: int
    p99: int
    max: int


class Summary(Struct, frozen=True):
    """The figures of one run. Copies are counted: a message to three processes is delivered three times."""

    protocol: str
    processes: int
    sent: int
    """Messages."""
    delivered: int
    """Copies."""
    undelivered: int
    """Copies that were sent and never delivered: 0 unless the run was stopped or got stuck."""
    held: int
    """Copies that had to wait at their receiver for another message, or for the protocol."""
    unsent: int
    """Messages that had to wait at their sender."""
    packets: int
    """What crossed the network with a message: a copy each, or with routers one for each hop."""
    control_packets: int
    control_bytes: int
    """Of their stamps."""
    stamp_entries: Distribution
    """Of the packets with a message."""
    stamp_bytes: Distribution
    delay_ns: Distribution
    waiting_ns: Distribution
    waiting_share: float
    """The part of all delay that was waiting."""
    duration_ns: int
    """From the start to the last event, in simulated time."""
    resent: int = 0
    """Frames that the links sent again."""
    frames: int = 0
    frame_bytes: int = 0
    """Where whole processes run, since something goes wrong: what crosses the network, in the bytes that nodes send."""
    crashes: int = 0
    stuck: tuple[str, ...] = ()
    """If copies are undelivered and nothing can happen any more: what waits, and for what."""

    @property
    def complete(self) -> bool:
        return not self.undelivered

    def plain(self) -> dict[str, Any]:
        result: dict[str, Any] = to_builtins(self)
        return result
