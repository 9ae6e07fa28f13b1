"""Which messages were given up: ranges of counts, for each key of a receiver.

What was given up is remembered until it comes after all, so that it is then delivered once, and a copy of it not again.
A long gap is one range: memory grows with the number of gaps, not of messages.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["Gaps"]


class Gaps:
    """Key -> disjoint ranges (first, last), in increasing order.

    >>> gaps = Gaps()
    >>> gaps.add(0, 3, 9)
    >>> gaps.take(0, 5), gaps.take(0, 5)
    (True, False)
    >>> gaps.find(0, 9), gaps.find(0, 5)
    ((6, 9), None)
    >>> list(gaps)
    [(0, 3, 4), (0, 6, 9)]
    """

    def __init__(self, gaps: Sequence[Sequence[Any]] = ()) -> None:
        self.ranges: dict[Any, list[tuple[int, int]]] = {}
        for key, first, last in gaps:
            self.add(tuple(key) if isinstance(key, list) else key, int(first), int(last))

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __iter__(self) -> Iterator[tuple[Any, int, int]]:
        for key in sorted(self.ranges):
            for first, last in self.ranges[key]:
                yield key, first, last

    def add(self, key: Any, first: int, last: int) -> None:
        """None of these is in a range of this key."""
        insort(self.ranges.setdefault(key, []), (first, last))

    def find(self, key: Any, count: int) -> tuple[int, int] | None:
        """The range that holds this count."""
        ranges = self.ranges.get(key, [])
        at = bisect_left(ranges, (count + 1, 0)) - 1
        return ranges[at] if at >= 0 and ranges[at][1] >= count else None

    def take(self, key: Any, count: int) -> bool:
        """Whether this count was given up; from now on it is not."""
        found = self.find(key, count)
        if found is None:
            return False
        ranges, (first, last) = self.ranges[key], found
        ranges.remove(found)
        if first < count:
            insort(ranges, (first, count - 1))
        if count < last:
            insort(ranges, (count + 1, last))
        if not ranges:
            del self.ranges[key]
        return True
