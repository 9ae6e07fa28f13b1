"""A scan under way: its tables, which grow when they are full, and what goes wrong in it, in words.

Memory is bounded. If the clocks of the messages under way take more than `most` bytes, the scan gives up with
`TooWide`, and the caller scans twice, each time for half of the processes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from antecede.errors import BadTrace
from antecede.spark.measure import kernel
from antecede.spark.measure.kernel import Columns, State, scan
from antecede.spark.measure.tables import Table, find, grown, insert, table
from antecede.trace.columns import Names, Rows

__all__ = ["MOST", "Scan", "TooWide", "kept_table"]

MOST: Final = 1 << 30
"""Bytes that the clocks of messages under way may take."""

FIRST_ROWS: Final = 64
"""Rows of a new table: most runs of a sweep are short."""


class TooWide(Exception):
    """The clocks do not fit: fewer of their entries would."""


class Scan:
    """One pass over a run, for the processes low, low + 1, ... high - 1 of its clocks. `feed` takes rows in order.

    Without `counting`, only clocks are followed: that is what several tasks share.
    """

    def __init__(
        self,
        names: Names,
        low: int = 0,
        high: int | None = None,
        *,
        counting: bool = True,
        kept: Table | None = None,
        most: int = MOST,
        place: str = "events",
    ) -> None:
        n = len(names)
        width = (n if high is None else high) - low
        self.names, self.low, self.width, self.counting, self.place = names, low, width, counting, place
        self._most = most
        totals = np.zeros(12, np.int64)
        totals[kernel.FIRST], totals[kernel.LAST] = (1 << 63) - 1, kernel.NEVER
        totals[kernel.FREE] = FIRST_ROWS
        self.state = State(
            totals=totals,
            counts=np.zeros((n, 3), np.int64),
            deep=np.zeros(n, np.int64),
            clocks=np.zeros((n, width), np.int32),
            copies=table(2 * FIRST_ROWS, 5),
            messages=np.zeros((FIRST_ROWS, 3), np.int64),
            news=np.zeros((FIRST_ROWS, width), np.int32),
            free=np.arange(FIRST_ROWS, dtype=np.int64),
            channels=table(2 * FIRST_ROWS, 3),
            series=no_values(kernel.WAITS + n + FIRST_ROWS),
            cells=table(4 * FIRST_ROWS, 3),
            strays=np.zeros((FIRST_ROWS, 2), np.int64),
            kept=table(0, 3) if kept is None else kept.copy(),
        )

    def feed(self, rows: Rows) -> None:
        """Go on with these events."""
        columns = self._columns(rows)
        at = 0
        while (at := scan(columns, at, self.state, self.low, self.counting)) < len(rows):
            if self.state.totals[kernel.WRONG]:
                raise self._wrong(rows, at)
            self._grow(int(rows.offsets[at + 1] - rows.offsets[at]))

    @property
    def strays(self) -> NDArray[np.int64]:
        """(number, sender) of messages that another scan has to keep."""
        return self.state.strays[: self.state.totals[kernel.STRAYS]]

    @property
    def past(self) -> int:
        """Pairs of messages, the first of a process of the block, of which the first happened before the second."""
        return int(self.state.totals[kernel.PAST])

    def _columns(self, rows: Rows) -> Columns:
        def plain(column: NDArray[Any] | None, kind: Any) -> NDArray[Any]:
            found = np.ascontiguousarray(np.empty(0, kind) if column is None else column, kind).view()
            found.flags.writeable = False
            return found

        assert not self.counting or rows.time_ns is not None
        return Columns(
            plain(rows.process, np.int32),
            plain(rows.kind, np.int8),
            plain(rows.sender, np.int32),
            plain(rows.number, np.int64),
            plain(rows.control, np.bool_),
            plain(rows.offsets, np.int32),
            plain(rows.to, np.int32),
            plain(rows.time_ns, np.int64),
            plain(rows.stamp_entries, np.int32),
            plain(rows.stamp_bytes, np.int32),
        )

    def _grow(self, fan: int) -> None:
        """Make room for what a row with so many destinations brings."""
        state, totals = self.state, self.state.totals
        new: dict[str, Any] = {}
        for name, used, more in (
            ("copies", kernel.COPIES, fan),
            ("channels", kernel.CHANNELS, fan),
            ("cells", kernel.CELLS, 2),
        ):
            entries = getattr(state, name)
            if 2 * (totals[used] + more) > len(entries):
                new[name] = grown(entries, int(totals[used]), more)
        series = kernel.WAITS + len(state.counts) + int(totals[kernel.CHANNELS]) + fan
        if series > len(state.series):
            new["series"] = np.concatenate((state.series, no_values(series)))
        if totals[kernel.STRAYS] == len(state.strays):
            new["strays"] = np.concatenate((state.strays, np.zeros_like(state.strays)))
        if totals[kernel.FREE] == 0:
            new |= self._more_messages()
        self.state = state._replace(**new)

    def _more_messages(self) -> dict[str, Any]:
        state, size = self.state, len(self.state.messages)
        if 3 * state.news.nbytes > self._most and self.width > 1:
            raise TooWide
        # All are in use: the new ones are free.
        state.totals[kernel.FREE] = size
        return {
            "messages": np.concatenate((state.messages, np.zeros_like(state.messages))),
            "news": np.concatenate((state.news, np.zeros_like(state.news))),
            "free": np.concatenate((np.arange(size, 2 * size), np.zeros(size, np.int64))),
        }

    def _wrong(self, rows: Rows, at: int) -> BadTrace:
        process, sender = self.names[int(rows.process[at])], self.names[int(rows.sender[at])]
        message = f"message {rows.number[at]} of {sender}"
        found, expected = {
            kernel.FOREIGN: (f"a send of {message}", "its sender to send it"),
            kernel.SECOND: (f"a second send of {message}", "one"),
            kernel.LATE: (
                f"the send of {message} after a delivery of it, by the order of clock, process and index",
                "a clock that extends happened-before",
            ),
        }[int(self.state.totals[kernel.WRONG])]
        return BadTrace(f"{self.place}, process {process}", found, expected)


def no_values(size: int) -> NDArray[np.int64]:
    series = np.zeros((size, 5), np.int64)
    series[:, kernel.GREATEST] = kernel.NEVER
    return series


def kept_table(strays: NDArray[np.int64]) -> Table:
    """The messages that a scan is to keep, that another has listed as strays."""
    wanted = np.unique(strays, axis=0)
    found = grown(table(2 * FIRST_ROWS, 3), 0, len(wanted))
    for number, sender in wanted:
        at = insert(found, find(found, number, sender), number, sender)
        found[at, kernel.KEPT] = kernel.UNSEEN
    return found  # type: ignore[no-any-return]
