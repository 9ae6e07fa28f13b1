"""The checkpoint of a query: whose it is, how far the query came, and what it counted.

Spark itself starts a query on whatever a checkpoint holds, and one with a new checkpoint on whatever lies at its
output: micro-batches that have the numbers of the other query's are then taken for written, and lost. So a query leaves
a note of what it is in its checkpoint, `antecede.json`, and the next one is compared with it.

`totals.json` has the counts of all micro-batches up to one, written when a query ends. A query that was killed has
counted more than was written: then the output is counted again, once, at the end of the next run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct
from pyspark.sql import SparkSession

from antecede.errors import BadParameter, CannotWrite
from antecede.spark.storage import absolute, files, join, local, open_file, put, readable, vacant

__all__ = ["Checkpoint", "Totals"]

NOTE: Final = "antecede.json"
TOTALS: Final = "totals.json"
COLUMNS: Final = "columns.json"
"""What the files of a query were when it first started."""


class Totals(Struct):
    """Counts by kind of all micro-batches up to `batch`, and an example of each kind where one is named."""

    batch: int = -1
    counts: dict[str, int] = {}
    examples: dict[str, dict[str, Any]] = {}

    def add(self, batch: int, counts: Mapping[str, int], examples: Mapping[str, Any]) -> None:
        """One more micro-batch. One that was counted is not counted again."""
        if batch > self.batch:
            self.batch = batch
            for kind, many in counts.items():
                self.counts[kind] = self.counts.get(kind, 0) + many
            self.examples = {**examples, **self.examples}


class Checkpoint:
    """The directory of a query's checkpoint, on any storage. What PyArrow cannot read has no note and no totals."""

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self.place = absolute(place)

    @property
    def fresh(self) -> bool:
        """Whether no query has begun with this checkpoint. Of storage that we cannot look at, one may have."""
        return readable(self.place) and vacant(join(self.place, "offsets"))

    def claim(self, command: str, what: Mapping[str, Any], out: str | os.PathLike[str]) -> None:
        """Refuse a checkpoint or an output of another query than `what`; else note whose the checkpoint is."""
        target, new = absolute(out), self.fresh
        if not (readable(self.place) and readable(target)):
            return
        wanted = msgspec.json.encode(what)
        if not new:
            self._compare(command, msgspec.json.decode(wanted))
        if new and not vacant(target):
            raise BadParameter(
                command,
                f"the output {target} is there already: take a new place, or the checkpoint of the query that wrote it",
            )
        if vacant(target) and not vacant(join(self.place, "commits")):
            raise BadParameter(
                command,
                f"the output {target} is empty, and the query of {self.place} has written to another: give that one",
            )
        for directory in filter(None, (local(target), local(self.place))):
            _make(directory)
        put(join(self.place, NOTE), wanted)

    def _compare(self, command: str, what: Mapping[str, Any]) -> None:
        try:
            with open_file(join(self.place, NOTE)) as file:
                noted = msgspec.json.decode(file.read(), type=dict[str, Any])
        except FileNotFoundError:
            # Begun by a query of one's own, or before there were notes: its state tells.
            return
        except (OSError, msgspec.MsgspecError) as error:
            raise BadParameter(
                command, f"the checkpoint {self.place} has a note that cannot be read: {error}"
            ) from None
        for name in (*what, *noted):
            if noted.get(name) != what.get(name):
                raise BadParameter(
                    command,
                    f"the checkpoint {self.place} is of a query with {name} "
                    f"{show_value(noted.get(name))}, not {show_value(what.get(name))}",
                )

    def read_columns(self) -> bytes | None:
        """What `write_columns` kept. A query of an older version has kept nothing."""
        try:
            with open_file(join(self.place, COLUMNS)) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def write_columns(self, found: bytes) -> None:
        if readable(self.place):
            put(join(self.place, COLUMNS), found)

    def find_committed(self, spark: SparkSession) -> int:
        """The last micro-batch that Spark has committed, or -1."""
        return self._find_last(spark, "commits")

    def find_planned(self, spark: SparkSession) -> int:
        """The last micro-batch that Spark has planned, or -1. Its rows may be written though it is not committed."""
        return self._find_last(spark, "offsets")

    def _find_last(self, spark: SparkSession, log: str) -> int:
        names = [file.rpartition("/")[2] for file in files(spark, join(self.place, log), "*")]
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    def read_totals(self, spark: SparkSession) -> Totals | None:
        """The counts up to the last micro-batch that was planned, if they were written.

        One that was planned and not committed is repeated. Of rows that are written already Spark then counts nothing.
        """
        last = self.find_planned(spark)
        if last < 0:
            return Totals()
        if not readable(self.place) or last != self.find_committed(spark):
            return None
        try:
            with open_file(join(self.place, TOTALS)) as file:
                totals = msgspec.json.decode(file.read(), type=Totals)
        except (OSError, msgspec.MsgspecError):
            # Written by an older version, or by a query that was killed.
            return None
        return totals if totals.batch == last else None

    def write_totals(self, totals: Totals) -> None:
        if readable(self.place):
            put(join(self.place, TOTALS), msgspec.json.encode(totals))


def show_value(value: Any) -> str:
    """
    >>> show_value(["ann", "bob"]), show_value(None), show_value("fifo"), show_value(["", "root"]), show_value([""])
    ('ann, bob', 'none', 'fifo', "'', root", "''")
    """
    if isinstance(value, list):
        return ", ".join(str(one) or "''" for one in value) or "none"
    return "none" if value is None or value == {} else str(value)


def _make(directory: str) -> None:
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        raise CannotWrite(directory, error.strerror or str(error), "nothing was written") from None
