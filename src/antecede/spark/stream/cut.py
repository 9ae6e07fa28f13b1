"""The largest closed set of what has arrived, and its order. Pure functions on arrays.

Hoogerwoord 1995, sections 5 and 6: a set of messages is closed if it contains every message that one of its messages
follows; a closed set is the numbers of messages of each sender, since those of one sender follow each other. Of what
has arrived there is a largest closed set: start from the unbroken numbers of each sender and, while one of their
messages asks for more than there is, cut its sender's numbers off before it. What is left may be delivered in any order
that extends causality, such as by the sum of the entries of the stamps, then by sender and number.

A message may be delivered by a machine exactly when it is in a closed set with what was delivered, so this delivers
what machines deliver, up to the order of concurrent messages.

A file's stamps are read once (`summed`): what is kept of them is where each message stands, its sum, and for each block
of a sender's successive messages the most that one of them asks for. Only where a block asks for more than there is are
its stamps read again, to find which of its messages it is.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from antecede.jit import native
from antecede.spark.stream.kernel import read_vector

__all__ = ["HELD", "KINDS", "REPEATED", "Counts", "Sums", "closed", "octets_of", "place_messages", "summed"]

Counts = NDArray[np.int64]
KINDS: Final = ("monitor", "broadcast")
"""Protocols whose stamps are whole vectors: their sums grow along causality."""
HELD, REPEATED, FAR = -1, -2, -3
BLOCK: Final = 16
"""Messages of a block, at least."""
NUMBERS: Final = 1 << 18
"""Numbers that the blocks of a file have together, about, however large it is."""


class Sums(NamedTuple):
    """What is to be known of a file's packets that were not delivered before, by sender and number."""

    rows: Counts
    """Which rows of the file they are."""
    source: Counts
    position: Counts
    total: Counts
    since: Counts
    """When each came, in milliseconds."""
    starts: Counts
    """Of the blocks, and where the last one ends."""
    least: Counts
    """The first position in each block."""
    most: Counts
    """What is asked for of each process in each block, at most; of the sender itself nothing, one row a block."""

    def packed(self) -> Counts:
        """As one array."""
        sizes = np.array([len(self.rows), len(self.least)], np.int64)
        return np.concatenate([sizes, *(part.reshape(-1) for part in self)])

    @classmethod
    def unpacked(cls, packed: Counts, n: int) -> Sums:
        rows, blocks = packed[:2].tolist()
        ends = np.cumsum([2, rows, rows, rows, rows, rows, blocks + 1, blocks, blocks * n])
        *parts, most = (packed[a:b] for a, b in pairwise(ends))
        return cls._make([*parts, most.reshape(-1, n)])


def octets_of(column: Any) -> tuple[Any, Any]:
    """The bytes of a binary column, and where each value begins and ends."""
    column = column.combine_chunks()
    column = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    _, offsets, data = column.buffers()
    ends = np.array(np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1])
    return np.frombuffer(data if data is not None and data.size else b"\0", np.uint8), ends


# A file


def summed(
    code: int, reached: Counts, stamp: Any, source: Counts, number: Counts, since: Counts
) -> tuple[Sums, NDArray[np.bool_]]:
    """What is to be known of a file's packets after those that were `reached`, and which rows are sure to be packets.

    A row whose source is negative is none.
    """
    n, size = len(reached), len(source)
    order = sort_by_number(source, number, n)
    data, ends = octets_of(stamp)
    block = max(BLOCK, size * n // NUMBERS)
    room = size // block + n + 1
    position, total, rows = (np.zeros(size, np.int64) for _ in range(3))
    starts, least, most = (
        np.zeros(room + 1, np.int64),
        np.zeros(room, np.int64),
        np.zeros((room, n), np.int64),
    )
    fresh, blocks = _sum(
        code, n, data, ends, order, source, number, reached, block, position, total, rows, starts, least, most,
        np.zeros(n, np.int64), np.zeros(n + 8, np.int64),
    )  # fmt: skip
    rows = rows[:fresh]
    found = Sums(
        rows,
        source[rows],
        position[rows],
        total[rows],
        since[rows],
        starts[: blocks + 1],
        least[:blocks],
        most[:blocks],
    )
    return found, position > 0


def sort_by_number(source: Counts, number: Counts, n: int) -> Counts:
    """The rows that have a source, by it and then by number."""
    rows = np.flatnonzero(source >= 0)
    if len(rows) and number[rows].min() >= 0 and number[rows].max() < (1 << 62) // (n + 1):
        # Sorting by one number is much faster than by two.
        return rows[np.argsort(source[rows] * (number[rows].max() + 1) + number[rows], kind="stable")]
    return rows[np.lexsort((number[rows], source[rows]))]


@native
def _sum(
    code: int, n: int, data: Any, ends: Any, order: Any, source: Any, number: Any, reached: Any, block: int,
    position: Any, total: Any, rows: Any, starts: Any, least: Any, most: Any, vector: Any, members: Any,
) -> tuple[int, int]:  # fmt: skip
    fresh, blocks, last = 0, 0, -1
    for i in order:
        s = source[i]
        position[i], total[i] = read_vector(
            code, n, data, ends[i], ends[i + 1], s, number[i], vector, members
        )
        if position[i] <= reached[s]:
            continue
        if s != last or fresh - starts[blocks - 1] == block:
            starts[blocks] = fresh
            least[blocks] = position[i]
            blocks += 1
            last = s
        for k in range(n):
            most[blocks - 1, k] = max(most[blocks - 1, k], vector[k])
        least[blocks - 1] = min(least[blocks - 1], position[i])
        rows[fresh] = i
        fresh += 1
    starts[blocks] = fresh
    return fresh, blocks


# All files


def closed(code: int, reached: Counts, parts: list[Sums], stamp: Any) -> tuple[Counts, Counts, Counts]:
    """How far the largest closed set goes; then, of all rows of the parts, the candidates and each one's place so far.

    `stamp(at)` is the column of stamps of a part. A candidate is the row for each position after those reached, by
    sender and position, or -1; a place is `HELD` or `REPEATED`.
    """
    source, position = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("source", "position")
    )
    candidates, places = np.full(len(source), -1, np.int64), np.full(len(source), REPEATED, np.int64)
    until, base = reached.copy(), based(parts, len(reached))
    _candidates(source, position, base, candidates, places, until)
    far = np.flatnonzero(places == FAR)
    if len(far):
        # Beyond a gap for sure; the same packet may be here twice all the same.
        far = far[np.lexsort((position[far], source[far]))]
        places[far] = REPEATED
        first = np.ones(len(far), bool)
        first[1:] = (np.diff(source[far]) != 0) | (np.diff(position[far]) != 0)
        places[far[first]] = HELD
    n, lower = len(reached), True
    scratch = np.zeros(n, np.int64), np.zeros(n + 8, np.int64)
    octets: dict[int, Any] = {}
    while lower:
        lower = False
        for at, part in enumerate(parts):
            if not _asks(part.source, part.starts, part.least, part.most, until):
                continue
            if at not in octets:
                octets[at] = octets_of(stamp(at))
            if _cut(
                code, n, *octets[at], part.rows, part.source, part.position, part.starts, part.least, part.most, until,
                *scratch,
            ):  # fmt: skip
                lower = True
    return until, candidates, places


def based(parts: list[Sums], n: int) -> Counts:
    """Where the candidates of each sender begin: there is room for as many as are here."""
    many = [np.bincount(part.source, minlength=n) for part in parts]
    return np.cumsum([0, *np.sum(many, axis=0)])


@native
def _candidates(source: Any, position: Any, base: Any, candidates: Any, places: Any, until: Any) -> None:
    for i in range(len(source)):
        s = source[i]
        after = position[i] - until[s] - 1
        if after >= base[s + 1] - base[s]:
            places[i] = FAR
        elif after >= 0 and candidates[base[s] + after] < 0:
            candidates[base[s] + after] = i
            places[i] = HELD
    for s in range(len(until)):
        for at in range(base[s], base[s + 1]):
            if candidates[at] < 0:
                break
            until[s] += 1


@native
def _asks(source: Any, starts: Any, least: Any, most: Any, until: Any) -> bool:
    """Whether a block may ask for more than there is."""
    for b in range(len(least)):
        if least[b] <= until[source[starts[b]]]:
            for k in range(len(until)):
                if most[b, k] > until[k]:
                    return True
    return False


@native
def _cut(
    code: int, n: int, data: Any, ends: Any, rows: Any, source: Any, position: Any, starts: Any, least: Any,
    most: Any, until: Any, vector: Any, members: Any,
) -> bool:  # fmt: skip
    """Cut senders off before the first of these messages that asks for more than there is; whether there was one."""
    lower = False
    for b in range(len(least)):
        s = source[starts[b]]
        if least[b] > until[s]:
            continue
        asks = False
        for k in range(n):
            asks |= most[b, k] > until[k]
        if not asks:
            continue
        for at in range(starts[b], starts[b + 1]):
            if position[at] <= until[s]:
                i = rows[at]
                # The number is needed for its place alone, which is known.
                read_vector(code, n, data, ends[i], ends[i + 1], s, 1, vector, members)
                for k in range(n):
                    if vector[k] > until[k]:
                        until[s] = position[at] - 1
                        lower = True
                        break
    return lower


def place_messages(
    reached: Counts, until: Counts, parts: list[Sums], candidates: Counts, places: Counts, place: int
) -> int:
    """Give each message up to `until` its place in the order of delivery, from `place` on. How many there are."""
    total = np.concatenate([part.total for part in parts])
    base = based(parts, len(reached))[:-1]
    # By sender and position, and a sort that is stable keeps that among equal sums.
    chosen = np.concatenate([candidates[a : a + more] for a, more in zip(base, until - reached, strict=True)])
    if len(chosen):
        sums = total[chosen]
        low, high = sums.min(), sums.max()
        if high - low <= 4 * len(chosen) + 1024:
            _count(sums - low, np.zeros(high - low + 2, np.int64), chosen, places, place)
        else:
            places[chosen[np.argsort(sums, kind="stable")]] = place + np.arange(len(chosen))
    return len(chosen)


@native
def _count(sums: Any, counts: Any, chosen: Any, places: Any, place: int) -> None:
    """Sort by counting: sums are about as many as messages, as a rule."""
    for i in range(len(sums)):
        counts[sums[i] + 1] += 1
    for i in range(1, len(counts)):
        counts[i] += counts[i - 1]
    for i in range(len(sums)):
        places[chosen[i]] = place + counts[sums[i]]
        counts[sums[i]] += 1
