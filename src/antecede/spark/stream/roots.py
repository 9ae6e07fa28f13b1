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
    """Held rows as arrays: of which receiver, the how-manieth of its source, and which counts it names."""

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


def find_roots(waits: Waits, lane: int, delivered: Any, most: int | None = MOST) -> Iterator[Root]:
    """What is missing at a receiver: the first of each source, then the second ones, and so on.

    `delivered` is how far each source came; `most` is how many roots are looked for, all if None.

    >>> own, needs = np.array([[0, 0, 3], [0, 1, 1], [0, 1, 5]]).T, np.array([[1, 0, 3]]).T
    >>> for root in find_roots(Waits(*own, *needs), 0, np.array([1, 0])):
    ...     print(root.source, root.first, root.last, root.blocked.tolist())
    0 2 2 [0, 1, 2]
    1 2 4 [2]
    """
    own = np.flatnonzero(waits.lane == lane)
    source, position = waits.source[own], waits.position[own]
    entries = np.flatnonzero(waits.lane[waits.row] == lane)
    row, process, count = waits.row[entries], waits.process[entries], waits.needed[entries]
    gaps: list[tuple[int, int, int, int]] = []
    for sender in np.unique(np.concatenate([source, process])).tolist():
        here = np.unique(position[source == sender])
        known = max(int(here.max(initial=0)), int(count[process == sender].max(initial=0)))
        edges = [int(delivered[sender]), *here[here > delivered[sender]].tolist(), known + 1]
        open_ = [(before + 1, after - 1) for before, after in pairwise(edges) if after - before > 1]
        gaps += [(rank, sender, *gap) for rank, gap in enumerate(open_[:most])]
    for _, sender, first, last in sorted(gaps)[:most]:
        begin = np.full(len(delivered), NEVER)
        begin[sender] = first
        while True:
            earlier = begin.copy()
            asking = row[count >= begin[process]]
            np.minimum.at(begin, waits.source[asking], waits.position[asking])
            if (begin == earlier).all():
                break
        yield Root(sender, first, last, own[position >= begin[source]])
