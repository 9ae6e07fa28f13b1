"""Whether rows are what the contract says: in the order (clock, process, index), each process's index without a gap.

`Sequence` watches the rows of a part as they go by; what it needs to know of a part to judge the next one is `Ends`:
the first and the last row, and of each process its first and its next index. Parts are judged where they are read, and
the borders between them where a run is put together.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Listed
from typing import Any, Final

import numpy as np
from msgspec import Struct

from antecede.errors import BadTrace
from antecede.jit import allocating
from antecede.trace.columns import Column, Names, Rows
from antecede.trace.schema import SEND

__all__ = ["Ends", "Sequence", "Tied", "refuse_borders", "refuse_second_sends"]

FINE, ORDER, GAP = range(3)
LEAST: Final = -(1 << 63)
"""Below every number."""


class Tied(Exception):
    """Two files share a clock, and names are out of order there: the files overlap, and have to be merged."""


class Ends(Struct, frozen=True):
    """What a part begins and ends with."""

    place: str
    first: tuple[int, int, int]
    """clock, process, index"""
    last: tuple[int, int, int]
    starts: bytes
    """int64 for each process: its first index, or -1 if it has no row."""
    nexts: bytes
    """int64 for each process: one more than its last index, or -1."""


class Sequence:
    """Watches the rows of one part of a run."""

    def __init__(self, names: Names, run: str) -> None:
        self._names, self._run = names, run
        self._place = self._first_place = ""
        self._starts = np.full(len(names), -1, np.int64)
        self._nexts = np.full(len(names), -1, np.int64)
        self._key = np.zeros(3, np.int64)
        self._numbers = np.full(len(names), LEAST, np.int64)
        self.shrinking = np.zeros(len(names), bool)
        """Processes whose messages' numbers do not grow: whether one is used twice has not been seen."""
        self._first: tuple[int, int, int] | None = None

    def watch(self, rows: Rows, place: str) -> None:
        """Raises `BadTrace`, or `Tied`."""
        if not len(rows):
            return
        assert rows.clock is not None
        assert rows.index is not None
        new = self._first is None
        if new:
            self._place = self._first_place = place
            self._first = (int(rows.clock[0]), int(rows.process[0]), int(rows.index[0]))
        at, wrong = watch(rows.clock, rows.process, rows.index, self._key, new, self._starts, self._nexts)
        if wrong == ORDER and at == 0 and place != self._place and rows.clock[0] == self._key[0]:
            raise Tied
        if wrong:
            raise self._explain(wrong, rows, int(at), place)
        self._place = place
        note_numbers(rows.kind, rows.control, rows.process, rows.number, self._numbers, self.shrinking)

    def ends(self) -> Ends | None:
        """None if there was no row."""
        if self._first is None:
            return None
        last = (int(self._key[0]), int(self._key[1]), int(self._key[2]))
        starts, nexts = self._starts.tobytes(), self._nexts.tobytes()
        return Ends(self._first_place, self._first, last, starts, nexts)

    def _explain(self, wrong: int, rows: Rows, at: int, place: str) -> BadTrace:
        assert rows.clock is not None
        assert rows.index is not None
        process, index = int(rows.process[at]), int(rows.index[at])
        where = f"{place}, run {self._run}, process {self._names[process]}"
        if wrong == GAP:
            return gap(where, int(self._nexts[process]), index)
        before = f"clock {self._key[0]} of {self._names[int(self._key[1])]}"
        return BadTrace(
            where,
            f"clock {rows.clock[at]}, index {index}, stands after {before}, index {self._key[2]}; "
            "the file says that its rows are sorted by clock, process and index",
        )


@allocating
def watch(
    clock: Column, process: Column, index: Column, key: Column, new: bool, starts: Column, nexts: Column
) -> Any:
    """The first row that is wrong, and how; `key`, `starts` and `nexts` are those of the rows before it."""
    last_clock, last_process, last_index = key[0], key[1], key[2]
    for row in range(len(clock)):
        c, p, i = clock[row], process[row], index[row]
        wrong = FINE
        if not (new and row == 0) and not (
            c > last_clock
            or (c == last_clock and (p > last_process or (p == last_process and i > last_index)))
        ):
            wrong = ORDER
        if nexts[p] != i:
            if nexts[p] >= 0:
                wrong = GAP
            else:
                starts[p] = i
        if wrong != FINE:
            key[0], key[1], key[2] = last_clock, last_process, last_index
            return row, wrong
        nexts[p] = i + 1
        last_clock, last_process, last_index = c, p, i
    key[0], key[1], key[2] = last_clock, last_process, last_index
    return len(clock), FINE


@allocating
def note_numbers(
    kind: Column, control: Column, process: Column, number: Column, latest: Column, shrinking: Column
) -> None:
    """Of each process the number of its latest message, and whether they stopped growing."""
    for row in range(len(kind)):
        if kind[row] == SEND and not control[row]:
            p = process[row]
            if number[row] <= latest[p]:
                shrinking[p] = True
            latest[p] = number[row]


def refuse_second_sends(run: str, names: Names, place: str, rows: Iterable[Rows], senders: Column) -> None:
    """For those of whom it has not been seen: that no message is sent twice."""
    found = [
        np.column_stack((part.process, part.number, part.index))[mine]
        for part in rows
        if part.index is not None
        if (mine := (part.kind == SEND) & ~part.control & senders[part.process]).any()
    ]
    sends = np.concatenate([np.zeros((0, 3), np.int64), *found])
    sends = sends[np.lexsort(sends.T[::-1])]
    for row in np.flatnonzero((sends[1:, :2] == sends[:-1, :2]).all(axis=1)):
        process, number, index = sends[row + 1]
        where = f"{place}, run {run}, process {names[int(process)]}, index {index}"
        raise BadTrace(where, f"message {number} of {names[int(process)]} is sent a second time")


def gap(where: str, expected: int, found: int) -> BadTrace:
    after = f"comes after index {expected - 1}" if expected else "comes first"
    return BadTrace(
        where, f"index {found} {after}; indices must count 0, 1, 2, ..., and clocks grow with them"
    )


def refuse_borders(run: str, names: Names, parts: Listed[Ends]) -> None:
    """The parts of a run, one after the other: each process goes on where it was, from 0. Raises as `watch` does."""
    nexts = np.zeros(len(names), np.int64)
    before: Ends | None = None
    for part in parts:
        starts = np.frombuffer(part.starts, np.int64)
        for process in np.flatnonzero((starts >= 0) & (starts != nexts)):
            where = f"{part.place}, run {run}, process {names[int(process)]}"
            raise gap(where, int(nexts[process]), int(starts[process]))
        if before is not None and before.last >= part.first:
            if before.last[0] == part.first[0]:
                raise Tied
            where = f"{part.place}, run {run}, process {names[part.first[1]]}"
            raise BadTrace(
                where,
                f"clock {part.first[0]} comes after clock {before.last[0]}; the files must be in the order of time",
            )
        nexts = np.maximum(nexts, np.frombuffer(part.nexts, np.int64))
        before = part
