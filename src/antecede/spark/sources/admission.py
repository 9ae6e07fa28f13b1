"""How much a micro-batch takes from a source of ours: so many rows at most, a share for each of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from antecede.errors import BadParameter

__all__ = ["MOST", "LimitedReader", "read_count", "share"]

MOST: Final = 100_000
"""Rows of a micro-batch, unless told."""

Part = TypeVar("Part", bound=Any)


class LimitedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader of `max_rows` rows a micro-batch, and of what is there when it starts under `Trigger.AvailableNow`."""

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.max_rows)

    def admit(self, there: Mapping[Part, int], limit: ReadLimit) -> dict[Part, int]:
        """How many rows each part gives, of those that it has."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self.max_rows
        return dict(there) if isinstance(limit, ReadAllAvailable) else share(there, most)


def read_count(owner: str, options: Mapping[str, str], name: str, default: int, told: str = "") -> int:
    """A number of 1 or more among options; `told` is its name as people write it."""
    found = options.get(name, str(default))
    if not found.isdecimal() or int(found) < 1:
        raise BadParameter(owner, f"{told or name} must be 1 or more, not {found}")
    return int(found)


def share(there: Mapping[Part, int], most: int) -> dict[Part, int]:
    """How many rows each part gives, of `most` in all: one, so that none starves, and the rest by what it has.

    >>> share({("a", 0): 100, ("a", 1): 300, ("b", 0): 0}, 40)
    {('a', 0): 10, ('a', 1): 30, ('b', 0): 0}
    >>> share({("a", 0): 1, ("a", 1): 1000}, 10)
    {('a', 0): 1, ('a', 1): 9}
    """
    total = sum(there.values())
    if most >= total:
        return dict(there)
    first = {one: min(many, 1) for one, many in there.items()}
    if sum(first.values()) > most:
        first = dict.fromkeys(there, 0)
    rest = most - sum(first.values())
    more = {one: many - first[one] for one, many in there.items()}
    whole = sum(more.values())
    taken = {one: first[one] + many * rest // whole for one, many in more.items()}
    left = most - sum(taken.values())
    # What does not divide goes to those with the largest remainders.
    for one in sorted(more, key=lambda one: (-(more[one] * rest % whole), one)):
        if left and taken[one] < there[one]:
            taken[one] += 1
            left -= 1
    return taken
