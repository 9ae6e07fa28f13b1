"""Offsets of a source of ours: where each of its parts was read to, and how much a micro-batch takes.

A part (a topic's partition, a node, a stream) numbers its rows, and they keep their numbers. So an offset is the next
row to read of each part, a micro-batch that is read again is the same, and the checkpoint alone says what was read.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from antecede.errors import BadParameter
from antecede.spark.errors import errors_marked

__all__ = ["MOST", "NumberedReader", "Reach", "read_count", "share"]

MOST: Final = 100_000
"""Rows of a micro-batch, unless told."""

Part = TypeVar("Part", bound=Any)


class Reach(NamedTuple):
    """The first row that a part has, and the number of the next one to come."""

    first: int
    end: int


class NumberedReader(DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[Part]):
    """Plans micro-batches of `max_rows` rows; under `Trigger.AvailableNow`, of what is there when the query starts."""

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.target: Mapping[Part, Reach] | None = None

    @abstractmethod
    def reach(self) -> Mapping[Part, Reach]:
        """How far each part reaches now. One that cannot be asked is left out."""

    @abstractmethod
    def find_place(self, part: Part, at: int, reach: Reach) -> int:
        """Where to read on, if row `at` is next. Raises if rows are gone that were not read."""

    def find_start(self, reach: Reach) -> int:
        """Where a query without a checkpoint begins."""
        return reach.first

    def write_offsets(self, offsets: Mapping[Part, int]) -> dict[Any, Any]:
        """Offsets as Spark keeps them, in JSON."""
        return dict(offsets)

    def read_offsets(self, offsets: dict[Any, Any]) -> dict[Part, int]:
        return offsets

    @errors_marked()
    def initialOffset(self) -> dict[Any, Any]:
        return self.write_offsets({part: self.find_start(found) for part, found in self.reach().items()})

    @errors_marked()
    def prepareForTriggerAvailableNow(self) -> None:
        self.target = self.reach()

    @errors_marked()
    def reportLatestOffset(self) -> dict[Any, Any]:
        return self.write_offsets({part: found.end for part, found in self.reach().items()})

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.max_rows)

    @errors_marked()
    def latestOffset(self, start: dict[Any, Any], limit: ReadLimit) -> dict[Any, Any]:
        known, at, there = self.read_offsets(start), dict[Part, int](), dict[Part, int]()
        for part, found in self.reach().items():
            at[part] = self.find_place(part, known.get(part, found.first), found)
            target = found if self.target is None else self.target.get(part, Reach(0, 0))
            there[part] = max(0, min(found.end, target.end) - at[part])
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self.max_rows
        admitted = there if isinstance(limit, ReadAllAvailable) else share(there, most)
        # A part that is not there any more keeps its place, in case it comes back.
        return self.write_offsets({**known, **{part: at[part] + many for part, many in admitted.items()}})


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
