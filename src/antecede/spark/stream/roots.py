"""What is missing, at its root: messages that have not come, never those that are held themselves.

Rows are held; each is the `position`-th of its `source`, and names counts of other sources. Messages of one source come
out one after the other. So what a missing message holds up is, for each source, all from some position on.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["MOST", "Root", "Waits", "find_roots"]

Numbers = NDArray[np.int64]
NEVER: Final = np.iinfo(np.int64).max
MOST: Final = 32
"""Roots that are told of one receiver."""


class Waits(NamedTuple):
    """Held rows as arrays: of which receiver or partition, the how-manieth of its source, and which counts it names.

    A source is a number in all lanes together: a process in one lane is another source than in the next.
    """

    lane: Numbers
    source: Numbers
    position: Numbers
    row: Numbers
    """Of each count that is named: which row names it."""
    process: Numbers
    needed: Numbers

    @classmethod
    def none(cls) -> Waits:
        return cls(*(np.zeros(0, np.int64) for _ in range(6)))

    @classmethod
    def of(
        cls, lane: Any, source: Any, position: Any, first: Any, last: Any, process: Any, count: Any
    ) -> Waits:
        sizes = last - first
        row = np.repeat(np.arange(len(lane)), sizes)
        entries = np.repeat(first - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes) + np.arange(
            sizes.sum()
        )
        return cls(lane, source, position, row, process[entries], count[entries])


class Root(NamedTuple):
    """Messages `first` to `last` of a source have not come; `blocked` are the held rows that wait for them."""

    source: int
    first: int
    last: int
    blocked: Numbers


def find_roots(waits: Waits, delivered: Any, most: int | None = MOST) -> Iterator[tuple[int, Root]]:
    """What is missing in each lane: the first of each source, then the second ones, and so on.

    `delivered` is how far each source came; `most` is how many roots are looked for in a lane, all if None.

    >>> own, needs = np.array([[7, 0, 3], [7, 1, 1], [7, 1, 5]]).T, np.array([[1, 0, 3]]).T
    >>> for lane, root in find_roots(Waits(*own, *needs), np.array([1, 0])):
    ...     print(lane, root.source, root.first, root.last, root.blocked.tolist())
    7 0 2 2 [0, 1, 2]
    7 1 2 4 [2]
    """
    lanes = np.unique(waits.lane)
    rows, row_ends = sort_by_lane(waits.lane, lanes)
    entries, entry_ends = sort_by_lane(waits.lane[waits.row], lanes)
    for at, lane in enumerate(lanes.tolist()):
        own = rows[row_ends[at] : row_ends[at + 1]]
        asks = entries[entry_ends[at] : entry_ends[at + 1]]
        sources = np.concatenate([waits.source[own], waits.process[asks]])
        # By the numbers of this lane alone.
        known, numbers = np.unique(sources, return_inverse=True)
        source, process = numbers[: len(own)], numbers[len(own) :]
        position, row, count = waits.position[own], np.searchsorted(own, waits.row[asks]), waits.needed[asks]
        for sender, first, last in find_gaps(source, position, process, count, delivered[known], most):
            begin = np.full(len(known), NEVER)
            begin[sender] = first
            while True:
                earlier = begin.copy()
                asking = row[count >= begin[process]]
                np.minimum.at(begin, source[asking], position[asking])
                if (begin == earlier).all():
                    break
            yield lane, Root(int(known[sender]), first, last, own[position >= begin[source]])


def sort_by_lane(lane: Numbers, lanes: Numbers) -> tuple[Numbers, Numbers]:
    """Places by lane, and where those of each lane end."""
    order = np.argsort(lane, kind="stable")
    return order, np.append(np.searchsorted(lane[order], lanes), len(lane))


def find_gaps(
    source: Numbers, position: Numbers, process: Numbers, count: Numbers, delivered: Numbers, most: int | None
) -> list[tuple[int, int, int]]:
    """(source, first, last) of what is not here, up to the last that is named or held."""
    gaps: list[tuple[int, int, int, int]] = []
    for sender, done in enumerate(delivered.tolist()):
        here = np.unique(position[source == sender])
        known = max(int(here.max(initial=0)), int(count[process == sender].max(initial=0)))
        edges = [done, *here[here > done].tolist(), known + 1]
        open_ = [(before + 1, after - 1) for before, after in pairwise(edges) if after - before > 1]
        gaps += [(rank, sender, *gap) for rank, gap in enumerate(open_[:most])]
    return [gap[1:] for gap in sorted(gaps)[:most]]
