"""Hash tables for the scan: open addressing in plain arrays of int64, a row an entry.

Each table has a power of two of rows and is never more than half full: whoever inserts sees to that (`room`). A key
is two numbers, the second of which is stored plus one, so that 0 there is an empty row. What follows the key is the
user's. Entries are looked for from their home row on; one that is removed is filled by those behind it, so a table
whose entries come and go, as messages do, stays as fast as a new one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["find", "grown", "insert", "remove", "room", "table"]

Table = NDArray[np.int64]


def table(rows: int, width: int) -> Table:
    """An empty table: two columns for the key, the others for what belongs to it."""
    assert rows & (rows - 1) == 0
    return np.zeros((rows, width), np.int64)


@njit(cache=True, forceinline=True)
def home(entries: Table, first: int, second: int) -> int:
    """Where an entry with this key would be if there were no others."""
    mixed = np.uint64(first) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(second) * np.uint64(
        0xD1B54A32D192ED03
    )
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0xD6E8FEB86659FD93)
    mixed ^= mixed >> np.uint64(32)
    return np.int64(mixed & np.uint64(len(entries) - 1))  # type: ignore[return-value]


@njit(cache=True, forceinline=True)
def find(entries: Table, first: int, second: int) -> int:
    """The row of this key or, if there is none, -1 - the empty row where it would go."""
    at, last = home(entries, first, second), len(entries) - 1
    while entries[at, 1] != 0:
        if entries[at, 0] == first and entries[at, 1] == second + 1:
            return at
        at = (at + 1) & last
    return -1 - at


@njit(cache=True, forceinline=True)
def insert(entries: Table, missing: int, first: int, second: int) -> int:
    """Enter a key where `find` said that it was missing; its row."""
    at = -1 - missing
    entries[at, 0] = first
    entries[at, 1] = second + 1
    return at


@njit(cache=True, forceinline=True)
def remove(entries: Table, at: int) -> None:
    """Take an entry out, and move up what would not be found behind an empty row."""
    last = len(entries) - 1
    hole, look = at, (at + 1) & last
    while entries[look, 1] != 0:
        start = home(entries, entries[look, 0], entries[look, 1] - 1)
        if ((look - start) & last) >= ((look - hole) & last):
            entries[hole] = entries[look]
            hole = look
        look = (look + 1) & last
    entries[hole, 1] = 0


@njit(cache=True, forceinline=True)
def room(entries: Table, used: int, more: int) -> bool:
    """Whether so many more entries may be inserted."""
    return 2 * (used + more) <= len(entries)


@njit(cache=True, forceinline=True)
def copied(entries: Table, into: Table) -> None:
    for row in range(len(entries)):
        if entries[row, 1] != 0:
            first, second = entries[row, 0], entries[row, 1] - 1
            at = insert(into, find(into, first, second), first, second)
            into[at] = entries[row]


def grown(entries: Table, used: int, more: int) -> Any:
    """A table with the same entries and room for so many more."""
    rows = len(entries)
    while 2 * (used + more) > rows:
        rows *= 2
    into = table(rows, entries.shape[1])
    copied(entries, into)
    return into
