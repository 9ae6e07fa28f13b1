"""The largest closed set of what has arrived, and its order. Pure functions on arrays.

Hoogerwoord 1995, sections 5 and 6: a set of messages is closed if it contains every message that one of its messages
follows; a closed set is the numbers of messages of each sender, since those of one sender follow each other. Of what
has arrived there is a largest closed set: start from the unbroken numbers of each sender and, while one of their
messages asks for more than there is, cut its sender's numbers off before it. What is left may be delivered in any order
that extends causality, such as by the sum of the entries of the stamps, then by sender and number.

A message may be delivered by a machine exactly when it is in a closed set with what was delivered, so this delivers
what machines deliver, up to the order of concurrent messages.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from antecede.spark.native import native
from antecede.spark.stream import stamps

__all__ = ["HELD", "KINDS", "Counts", "asking", "octets_of", "prefixes", "ranked", "sums"]

Counts = NDArray[np.int64]
KINDS: Final = ("monitor", "broadcast")
"""Protocols whose stamps are whole vectors: their sums grow along causality."""
HELD, REPEATED = -1, -2


def octets_of(column: Any) -> tuple[Any, Any]:
    """The bytes of a binary column, and where each value begins and ends."""
    column = column.combine_chunks()
    column = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    _, offsets, data = column.buffers()
    ends = np.array(np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1])
    return np.frombuffer(data if data is not None and data.size else b"\0", np.uint8), ends


def prefixes(reached: Counts, source: Counts, position: Counts) -> Counts:
    """How far the numbers of each sender go on without a break, after those that were reached."""
    result = reached.copy()
    order = np.lexsort((position, source))
    source, position = source[order], position[order]
    starts = np.searchsorted(source, np.arange(len(reached) + 1))
    for sender in range(len(reached)):
        own = np.unique(position[starts[sender] : starts[sender + 1]])
        own = own[own > reached[sender]]
        broken = np.flatnonzero(own != reached[sender] + 1 + np.arange(len(own)))
        result[sender] += broken[0] if len(broken) else len(own)
    return result


def asking(
    code: int, me: int, stamp: Any, source: Counts, number: Counts, position: Counts, reached: Counts
) -> Counts:
    """The numbers of each sender, cut off before the first of these messages that asks for more than `reached`."""
    n = len(reached)
    rows = np.flatnonzero(position <= reached[source])
    data, ends = octets_of(stamp)
    total = len(source)
    lanes, mes = np.zeros(total, np.int64), np.full(total, me, np.int64)
    first, last, place = (np.zeros(total, np.int64) for _ in range(3))
    room = int(ends[-1] - ends[0]) + 1 if total else 1
    process, count = np.zeros(room, np.int32), np.zeros(room, np.int64)
    scratch = np.zeros(n + 8, np.int64), np.zeros(n + 8, np.int64)
    stamps.decode(
        code, n, data, ends, rows, mes, lanes, source, number, reached.reshape(1, n), place, first, last, process,
        count, *scratch, 0,
    )  # fmt: skip
    result = reached.copy()
    asks = rows[last[rows] > first[rows]]
    np.minimum.at(result, source[asks], position[asks] - 1)
    return result


def sums(code: int, n: int, stamp: Any, source: Counts, number: Counts) -> tuple[Counts, Counts]:
    """Of stamps that are sound: the position of each in its channel, and the sum of its entries."""
    data, ends = octets_of(stamp)
    position, total = np.zeros(len(source), np.int64), np.zeros(len(source), np.int64)
    _sum(code, n, data, ends, number, position, total, np.zeros(n + 8, np.int64))
    return position, total


@native
def _sum(
    code: int, n: int, data: Any, ends: Any, number: Any, position: Any, total: Any, members: Any
) -> None:
    for i in range(len(total)):
        at, end = ends[i] + 1, ends[i + 1]
        position[i] = number[i]
        if code == 6:
            position[i], at = stamps.uint(data, at, end)
        _, at = stamps.uint(data, at, end)
        entries, at = stamps.members(data, at, end, n, members)
        for _ in range(entries):
            value, at = stamps.uint(data, at, end)
            total[i] += value
        if code == 11:
            total[i] += number[i]


def ranked(
    reached: Counts, cut: Counts, source: Counts, position: Counts, total: Counts, place: int
) -> Counts:
    """For each message its place in the order of delivery, from `place` on; or `HELD`, or `REPEATED`."""
    places = np.full(len(source), REPEATED, np.int64)
    fresh = np.flatnonzero(position > reached[source])
    fresh = fresh[np.lexsort((position[fresh], source[fresh]))]
    first = np.ones(len(fresh), bool)
    first[1:] = (np.diff(source[fresh]) != 0) | (np.diff(position[fresh]) != 0)
    # By sender and number already, and a sort that is stable keeps that among equal sums.
    order = fresh[first]
    order = order[np.argsort(total[order], kind="stable")]
    places[order] = HELD
    chosen = order[position[order] <= cut[source[order]]]
    places[chosen] = place + np.arange(len(chosen))
    return places
