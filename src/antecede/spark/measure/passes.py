"""As many scans of a run as it takes: one, unless its deliveries are astray or its clocks too wide for the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import pyarrow as pa

from antecede.spark.measure.figures import figures, figures_of_clocks
from antecede.spark.measure.state import MOST, Scan, TooWide, kept_table
from antecede.spark.measure.tables import Table
from antecede.trace.columns import Names, Rows

__all__ = ["Reader", "measured"]

Reader: TypeAlias = Callable[[bool], Iterable[Rows]]
"""The events of a run in order, from the start each time; whether times and stamps are wanted, or only the order."""


def measured(
    run: str,
    names: Names,
    read: Reader,
    low: int = 0,
    high: int | None = None,
    *,
    counting: bool = True,
    most: int = MOST,
    place: str = "events",
) -> Iterator[pa.RecordBatch]:
    """What a run comes to, as rows of `FIGURES`, for the processes low to high - 1 of its clocks."""
    past = 0
    high = len(names) if high is None else high
    # The clocks of the processes themselves have to fit, too.
    step = max(1, most // (4 * max(1, len(names))))
    blocks = [
        (at, min(at + step, high), counting and at == low) for at in range(low, max(high, low + 1), step)
    ]
    counted: Scan | None = None
    while blocks:
        low, high, also_counts = blocks.pop()
        try:
            scan = scanned(names, read, low, high, also_counts, most, place)
        except TooWide:
            middle = (low + high) // 2
            blocks += [(low, middle, also_counts), (middle, high, False)]
            continue
        past += scan.past
        counted = scan if also_counts else counted
    yield from figures_of_clocks(run, past) if counted is None else figures(run, counted, past)


def scanned(names: Names, read: Reader, low: int, high: int, counting: bool, most: int, place: str) -> Scan:
    """One scan or, if it lists strays, another that keeps their messages."""
    kept: Table | None = None
    while True:
        scan = Scan(names, low, high, counting=counting, kept=kept, most=most, place=place)
        for rows in read(counting):
            scan.feed(rows)
        if kept is not None or not len(scan.strays):
            return scan
        kept = kept_table(scan.strays)
