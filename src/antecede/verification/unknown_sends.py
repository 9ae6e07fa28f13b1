"""Deliveries of messages that were in no one's flight: never sent, or sent and delivered everywhere long ago.

A search for their sends (`Search`) tells which:
  sent nowhere             unsent; repeated deliveries at the same process are duplicates
  sent after the delivery  the rows are in no order of happened-before: `Impossible`
  sent before, and the process is a destination    all destinations had it already, so: a duplicate
  sent before, to others   an unaddressed delivery, or its repetition. It brings news, and its clock is gone: the chunk
                           where it was sent must be scanned again, and keep it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antecede.jit.hashtable import EMPTY, look_up, table_of
from antecede.trace.columns import Rows
from antecede.trace.schema import SEND
from antecede.verification.boundaries import UNKNOWN, Boundary
from antecede.verification.findings import DUPLICATE, UNSENT, Encoded, Findings, Ids, Impossible

__all__ = ["Found", "Resolved", "Search", "distinct", "resolve_unknown", "unknown_of"]

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Found(Encoded):
    """The sends found in one chunk, in order. Destinations of r: `to[start[r] : start[r + 1]]`."""

    sender: Array
    number: Array
    position: Array
    """Which row of the chunk it is."""
    start: Array
    to: Array

    @classmethod
    def concatenate(cls, found: Sequence[Found]) -> Found:
        none = np.zeros(0, np.int64)
        parts = [*found, cls(none.astype(np.int32), none, none, np.zeros(1, np.int64), none.astype(np.int32))]
        ends = np.cumsum([0, *(len(part.to) for part in parts)])
        starts = [part.start[:-1] + end for part, end in zip(parts, ends, strict=False)]
        columns = {f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)}
        return cls(**columns | {"start": np.append(np.concatenate(starts), ends[-1])})


class Search:
    """Reads the rows of one chunk, in order, for the sends of these messages."""

    def __init__(self, ids: Ids) -> None:
        self._wanted = table_of(ids.sender, ids.number)
        self._position = 0
        self._found: list[Found] = []

    def feed(self, rows: Rows) -> None:
        sends = np.flatnonzero((rows.kind == SEND) & ~rows.control)
        hits = sends[look_up(self._wanted, rows.sender[sends], rows.number[sends]) != EMPTY]
        found = rows.take(hits)
        offsets = found.offsets.astype(np.int64)
        self._found.append(Found(found.sender, found.number, self._position + hits, offsets, found.to))
        self._position += len(rows)

    def finish(self) -> Found:
        return Found.concatenate(self._found)


@dataclass(frozen=True, slots=True)
class Resolved:
    findings: Findings
    keep: Ids
    again: tuple[int, ...]
    """The chunks that sent what is to be kept."""


def unknown_of(boundary: Boundary) -> Array:
    """Rows of process, sender, number, index, chunk, position; those of one message in order."""
    # The order of the two does not matter: no message is in both.
    rows = np.concatenate((boundary.list_deferred(boundary.said == UNKNOWN), boundary.summary.late))
    return np.insert(rows, 4, boundary.chunk, axis=1)


def distinct(rows: Array) -> Ids:
    """The messages of rows whose second and third columns are sender and number."""
    pairs = np.unique(rows[:, 1:3], axis=0)
    return Ids(pairs[:, 0].astype(np.int32), pairs[:, 1].copy())


def resolve_unknown(unknown: Array, found: Sequence[Found], block: tuple[int, int]) -> Resolved:
    """Findings are about messages of the block; what is to be kept may be anyone's."""
    sent = Found.concatenate(found)
    chunk = np.repeat(np.arange(len(found)), [len(part.sender) for part in found])
    at = look_up(table_of(sent.sender, sent.number), unknown[:, 1], unknown[:, 2])
    known = unknown[at >= 0]
    at_known = at[at >= 0]
    _refuse_early(known, chunk[at_known], sent.position[at_known])
    addressed = is_among(known[:, 0], sent.to, sent.start[at_known], sent.start[at_known + 1])
    repeated = known[addressed & _within(known, block)]
    nowhere = unknown[at < 0]
    nowhere = nowhere[_within(nowhere, block)]
    # Whether each is the first of its process, sender and number.
    first = np.zeros(len(nowhere), bool)
    first[np.unique(nowhere[:, :3], axis=0, return_index=True)[1]] = True
    findings = [
        Findings.plain(DUPLICATE, *repeated[:, :4].T),
        Findings.plain(UNSENT, *nowhere[first, :4].T),
        Findings.plain(DUPLICATE, *nowhere[~first, :4].T),
    ]
    again = np.unique(chunk[at_known[~addressed]])
    return Resolved(Findings.concatenate(findings), distinct(known[~addressed]), tuple(again.tolist()))


def _refuse_early(unknown: Array, chunk: Array, position: Array) -> None:
    early = (chunk > unknown[:, 4]) | ((chunk == unknown[:, 4]) & (position > unknown[:, 5]))
    if early.any():
        process, sender, number, index = (int(x) for x in unknown[np.argmax(early), :4])
        raise Impossible("is delivered before it is sent, by its clocks", process, index, sender, number)


def _within(rows: Array, block: tuple[int, int]) -> Array:
    inside: Array = (rows[:, 1] >= block[0]) & (rows[:, 1] < block[1])
    return inside


def is_among(processes: Array, to: Array, begin: Array, end: Array) -> Array:
    """Whether each process is among its destinations."""
    rows, first = np.repeat(np.arange(len(processes)), end - begin), np.cumsum(end - begin) - end
    among = np.zeros(len(processes), np.bool_)
    among[rows[to[np.arange(len(rows)) - first[rows]] == processes[rows]]] = True
    return among
