"""What a scan came to, as rows of one table.

A scan gives rows of several kinds (of the run, its processes, its channels, its histograms), and a Spark task has one
output: so they share a schema, `FIGURES`, and `kind` says which columns a row has. The others are null, which costs
Arrow a bit each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from antecede.errors import BadTrace
from antecede.spark.measure import kernel
from antecede.spark.measure.histogram import BITS, HALF, Series, bounds
from antecede.spark.measure.state import Scan

__all__ = [
    "CHANNEL",
    "ERROR",
    "FIGURES",
    "HISTOGRAM",
    "PROCESS",
    "QUANTITIES",
    "RUN",
    "error_of",
    "figures",
    "figures_of_clocks",
    "figures_of_error",
    "spread",
]

RUN, PROCESS, CHANNEL, HISTOGRAM, ERROR = "run", "process", "channel", "histogram", "error"
"""Kinds of rows. An error is what is wrong with the run: a task that raises it would be tried again in vain."""

ROWS: Final = 1 << 14
"""Of a batch at most."""


def spread(quantity: str) -> list[pa.Field]:
    """The columns of a distribution."""
    return [
        pa.field(f"{quantity}_mean", pa.float64()),
        *(pa.field(f"{quantity}_{name}", pa.int64()) for name in ("p50", "p99", "max")),
    ]


QUANTITIES: Final = ("stamp_entries", "stamp_bytes", "delay_ns", "wait_ns")

FIGURES: Final = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("run", pa.string(), nullable=False),
        *(pa.field(name, pa.string()) for name in ("process", "sender", "receiver", "quantity")),
        *(
            pa.field(name, pa.int64())
            for name in (
                "processes", "events", "sends", "copies", "messages", "deliveries", "control_packets", "past",
                "longest_chain", "duration_ns", "low", "high", "count",
            )
        ),
        *(field for quantity in QUANTITIES for field in spread(quantity)),
        pa.field("wait_share", pa.float64()),
        pa.field("error", pa.string()),
    ]
)  # fmt: skip


def figures(run: str, scan: Scan, past: int) -> Iterator[pa.RecordBatch]:
    """All that a scan with counting tells of its run, and the pairs of messages that clocks put in order."""
    found = Counted(scan)
    for kind, columns in (
        (RUN, {**found.run(), "past": [past]}),
        (PROCESS, found.processes()),
        (CHANNEL, found.channels()),
        (HISTOGRAM, found.histograms()),
    ):
        yield from batches(kind, run, columns)


def figures_of_clocks(run: str, past: int) -> Iterator[pa.RecordBatch]:
    """What scans of clocks alone tell: it is added to what the others tell of the run."""
    yield from batches(RUN, run, {"past": [past]})


def figures_of_error(run: str, error: BadTrace) -> Iterator[pa.RecordBatch]:
    """What is wrong with the run, instead of its figures."""
    told = msgspec.json.encode((error.place, error.found, error.expected)).decode()
    yield from batches(ERROR, run, {"error": [told]})


def error_of(text: str) -> BadTrace:
    """The inverse."""
    return BadTrace(*msgspec.json.decode(text, type=tuple[str, str, str]))


def batches(kind: str, run: str, columns: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    size = len(next(iter(columns.values())))
    given = {"kind": [kind] * size, "run": [run] * size, **columns}
    arrays = [
        pa.array(given[field.name], field.type) if field.name in given else pa.nulls(size, field.type)
        for field in FIGURES
    ]
    whole = pa.RecordBatch.from_arrays(arrays, schema=FIGURES)
    yield from (whole.slice(start, ROWS) for start in range(0, size, ROWS))


class Counted:
    """The distributions of a scan, taken apart into those of the run, of its processes and of its channels."""

    def __init__(self, scan: Scan) -> None:
        state = scan.state
        self.totals, self.counts = state.totals, state.counts
        self.n, self.names = len(scan.names), np.array(scan.names.names, object)
        entries = state.channels[state.channels[:, 1] != 0]
        entries = entries[np.argsort(entries[:, kernel.NAME])]
        self.senders, self.receivers = np.divmod(entries[:, 0], self.n)
        cells = state.cells[state.cells[:, 1] != 0]
        self._series = cells[:, 0] >> BITS
        self._buckets = (cells[:, 0] & ((1 << BITS) - 1)) - HALF
        self._counts = cells[:, kernel.COUNT]
        self._sums = state.series[: kernel.WAITS + self.n + len(entries)]

    def run(self) -> dict[str, Any]:
        totals, counts = self.totals, self.counts.sum(axis=0)
        delay, wait = self._spread("delay_ns", self._delays(0)), self._spread("wait_ns", self._waits(0))
        seen, all_delay = totals[kernel.RECEIVES] > 0, self._total(self._delays(0))
        share = self._total(self._waits(0)) / all_delay if seen and all_delay else None
        lasted = int(totals[kernel.LAST] - totals[kernel.FIRST]) if totals[kernel.EVENTS] else 0
        return {
            "processes": [self.n],
            "events": [int(totals[kernel.EVENTS])],
            "sends": [int(counts[kernel.SENDS])],
            "copies": [int(self._sums[:, kernel.ADDRESSED].sum())],
            "deliveries": [int(counts[kernel.DELIVERIES])],
            "control_packets": [int(counts[kernel.CONTROL])],
            "longest_chain": [int(totals[kernel.LONGEST])],
            "duration_ns": [lasted],
            **self._spread("stamp_entries", self._only(kernel.ENTRIES)),
            **self._spread("stamp_bytes", self._only(kernel.BYTES)),
            **delay,
            **(wait if seen else {}),
            "wait_share": [share],
        }

    def processes(self) -> dict[str, Any]:
        seen = self.totals[kernel.RECEIVES] > 0
        return {
            "process": self.names,
            "sends": self.counts[:, kernel.SENDS],
            "deliveries": self.counts[:, kernel.DELIVERIES],
            "control_packets": self.counts[:, kernel.CONTROL],
            **self._spread("delay_ns", self._delays(self.receivers), self.n),
            **(self._spread("wait_ns", self._waits(np.arange(self.n)), self.n) if seen else {}),
        }

    def channels(self) -> dict[str, Any]:
        size = len(self.senders)
        sums = self._sums[kernel.WAITS + self.n :]
        order = np.lexsort((self.receivers, self.senders))
        spread = self._spread("delay_ns", self._delays(np.arange(size)), size)
        return {
            "sender": self.names[self.senders[order]],
            "receiver": self.names[self.receivers[order]],
            "messages": sums[order, kernel.ADDRESSED],
            "deliveries": sums[order, kernel.SIZE],
            **{name: column.take(pa.array(order)) for name, column in spread.items()},
        }

    def histograms(self) -> dict[str, Any]:
        """Buckets that hold something: at least `low`, less than `high`."""
        groups = [
            ("delay_ns", self._delays(0)),
            *([("wait_ns", self._waits(0))] if self.totals[kernel.RECEIVES] else []),
            ("stamp_entries", self._only(kernel.ENTRIES)),
            ("stamp_bytes", self._only(kernel.BYTES)),
        ]
        rows = [
            (quantity, *bounds(int(bucket)), int(count))
            for quantity, group in groups
            for cells in [self._cells(group)]
            for bucket, count in zip(cells.buckets, cells.counts, strict=True)
        ]
        quantity, low, high, count = zip(*rows, strict=True) if rows else ((), (), (), ())
        return {
            "quantity": quantity,
            "low": low,
            "high": [min(h, (1 << 63) - 1) for h in high],
            "count": count,
        }

    # A group says of each series which distribution it is a part of: -1 is none.

    def _only(self, series: int) -> NDArray[np.int64]:
        group = np.full(len(self._sums), -1)
        group[series] = 0
        return group

    def _waits(self, of: Any) -> NDArray[np.int64]:
        group = np.full(len(self._sums), -1)
        group[kernel.WAITS : kernel.WAITS + self.n] = of
        return group

    def _delays(self, of: Any) -> NDArray[np.int64]:
        group = np.full(len(self._sums), -1)
        group[kernel.WAITS + self.n :] = of
        return group

    def _total(self, group: NDArray[np.int64]) -> int:
        sums = self._sums[group >= 0]
        return int(sums[:, kernel.LOW].sum()) + (int(sums[:, kernel.HIGH].sum()) << 32)

    def _cells(self, group: NDArray[np.int64]) -> Series:
        which = group[self._series]
        own = which >= 0
        return Series(which[own], self._buckets[own], self._counts[own])

    def _spread(self, quantity: str, group: NDArray[np.int64], size: int = 1) -> dict[str, pa.Array]:
        """Mean, quantiles and greatest of so many distributions; null where there are no values."""
        own = group >= 0
        which, sums = group[own], self._sums[own]
        number, low, high = (
            np.bincount(which, sums[:, column], size) for column in (kernel.SIZE, kernel.LOW, kernel.HIGH)
        )
        greatest = np.full(size, kernel.NEVER)
        np.maximum.at(greatest, which, sums[:, kernel.GREATEST])
        cells, none = self._cells(group), number == 0
        mean = (high * 2.0**32 + low) / np.where(none, 1, number)
        columns = (mean, cells.quantile(50, greatest), cells.quantile(99, greatest), greatest)
        return {
            field.name: pa.array(column, field.type, mask=none)
            for field, column in zip(spread(quantity), columns, strict=True)
        }
