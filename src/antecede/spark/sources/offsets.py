"""What our sources share: options, offsets, and how much a micro-batch takes.

A part (a topic's partition, a node, a stream) numbers its rows, and they keep their numbers. So an offset is the next
row to read of each part, a micro-batch that is read again is the same, and the checkpoint alone says what was read.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from antecede.errors import AtPlace, BadParameter, InputError
from antecede.spark.errors import errors_marked, mark_errors

__all__ = ["MOST", "RETRY_S", "LostRecords", "NumberedSource", "Reach", "Span", "load_client", "share"]

MOST: Final = 100_000
"""Rows of a micro-batch, unless told."""
RETRY_S: Final = 0.2

Part = TypeVar("Part", bound=Any)


class LostRecords(AtPlace, InputError):
    """What was to be read is not there any more."""


class Reach(NamedTuple):
    """The first row that a part has, and the number of the next one to come."""

    first: int
    end: int


class Span(InputPartition):
    """The rows of a part from `start` to before `end`."""

    def __init__(self, part: Any, start: int, end: int) -> None:
        super().__init__((part, start, end))
        self.part, self.start, self.end = part, start, end


class NumberedSource(DataSource, DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[Part]):
    """Plans micro-batches of `max_rows` rows; under `Trigger.AvailableNow`, of what is there when the query starts.

    As Spark knows it: the source, which checks its options when it is made, and its reader.
    """

    owner: ClassVar[str]
    limit: ClassVar[str] = "maxRows"
    """The option that limits a micro-batch."""
    target: Mapping[Part, Reach] | None = None

    def __init__(self, options: Mapping[str, str]) -> None:
        # Spark hands them so.
        super().__init__({name.lower(): value for name, value in options.items()})
        self.max_rows = self.read_count(self.limit, MOST)

    def read_option(self, name: str) -> str:
        if not (found := self.options.get(name.lower())):
            raise BadParameter(self.owner, f"the option {name} is missing")
        return found

    def read_count(self, name: str, default: int) -> int:
        found = self.options.get(name.lower(), str(default))
        if not found.isdecimal() or int(found) < 1:
            raise BadParameter(self.owner, f"{name} must be 1 or more, not {found}")
        return int(found)

    def read_choice(self, name: str, *choices: str) -> str:
        """One of these; the first, unless told."""
        found = self.options.get(name.lower(), choices[0])
        if found not in choices:
            raise BadParameter.choice(self.owner, name, found, choices)
        return found

    @abstractmethod
    def reach(self) -> Mapping[Part, Reach]:
        """How far each part reaches now. One that cannot be asked is left out."""

    @abstractmethod
    def find_place(self, part: Part, at: int, reach: Reach) -> int:
        """Where to read on, if row `at` is next. Raises if rows are gone that were not read."""

    @abstractmethod
    def read_span(self, span: Span) -> Iterator[pa.RecordBatch]:
        """The rows of a span, in a task."""

    def find_start(self, reach: Reach) -> int:
        """Where a query without a checkpoint begins."""
        return reach.first

    def write_offsets(self, offsets: Mapping[Part, int]) -> dict[Any, Any]:
        """Offsets as Spark keeps them, in JSON."""
        return dict(offsets)

    def read_offsets(self, offsets: dict[Any, Any]) -> dict[Part, int]:
        return offsets

    @classmethod
    def open(cls, spark: SparkSession, options: Mapping[str, Any]) -> DataFrame:
        """A streaming DataFrame of this source. Wrong options are refused here; None is not said."""
        spark.dataSource.register(cls)
        given = {name: str(value) for name, value in options.items() if value is not None}
        cls(given)
        return spark.readStream.format(cls.name()).options(**given).load()

    # What Spark calls

    @classmethod
    def name(cls) -> str:
        return f"antecede_{cls.owner}"

    def streamReader(self, schema: StructType) -> NumberedSource[Part]:
        return self

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

    @errors_marked()
    def partitions(self, start: dict[Any, Any], end: dict[Any, Any]) -> Sequence[Span]:
        begins, ends = self.read_offsets(start), self.read_offsets(end)
        if ends.keys() - begins.keys():
            # Parts that were not there before, or could not be asked.
            begins = {part: found.first for part, found in self.reach().items()} | begins
        spans = [Span(part, begins.get(part, 0), until) for part, until in ends.items()]
        return [span for span in spans if span.start < span.end]

    @mark_errors
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Span)
        return self.read_span(partition)


def load_client(owner: str, module: str, package: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise BadParameter(owner, f"{package} is not installed: pip install 'antecede[{extra}]'") from None


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
    rest, taken, before = most - sum(first.values()), dict[Part, int](), 0
    whole = total - sum(first.values())
    for one, many in there.items():
        after = before + many - first[one]
        taken[one] = first[one] + after * rest // whole - before * rest // whole
        before = after
    return taken
