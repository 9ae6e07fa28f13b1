"""What each file of a trace says of itself, read from its footer by tasks: enough to plan with, and to refuse with.

A footer tells how many rows each row group has, whether the file is in the order (clock, process, index), and the least
and greatest run and clock of each group. Some hundred bytes a group come back, never a row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct
from pyspark.sql import SparkSession

from antecede.errors import BadTrace
from antecede.spark.storage import opened
from antecede.trace import EVENTS, ORDER, ORDER_KEY, RUN_KEY, RUNS
from antecede.trace.reader import refuse_columns

__all__ = ["Footer", "Group", "footers", "refuse_files"]

TASKS_MOST = 64
FOOTERS = 16
"""A footer takes some milliseconds on a disk and some fifty from an object store; a task reads about as many."""


class Group(Struct, frozen=True):
    """One row group: how many rows, and the spans of its columns where the file tells and no value is null."""

    rows: int
    runs: tuple[str, str] | None
    clocks: tuple[int, int] | None


class Footer(Struct, frozen=True):
    path: str
    size: int
    ordered: bool
    """Whether its rows are in the order (clock, process, index)."""
    run: str | None
    """The run, if it holds one only."""
    groups: tuple[Group, ...]

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.groups)


class Refused(Struct, frozen=True):
    """A file that cannot be read, as it travels from the task that found out."""

    place: str
    found: str
    expected: str


def footers(spark: SparkSession, runs: Sequence[str], events: Sequence[str]) -> list[Footer]:
    """The footer of each event file, in the order of their names. One job, which reads the tables of runs too.

    A file that is not whole or lacks a column is refused, and so are two runs of one name.
    """
    found = asked(spark, [*runs, *events], looking(frozenset(runs)))
    return sorted(found, key=lambda footer: footer.path.encode())


def refuse_files(
    spark: SparkSession, paths: Sequence[str], schema: pa.Schema, optional: Collection[str] = ()
) -> None:
    """Refuse files that are not whole Parquet, or lack a column of the schema, before anything is made of them."""

    def look(path: str, source: Any) -> None:
        found = pq.read_metadata(source).schema.to_arrow_schema()
        absent = [name for name in optional if name not in found.names]
        refuse_columns(path, found, pa.schema([field for field in schema if field.name not in absent]))

    asked(spark, paths, look)


Look = Callable[[str, Any], "Footer | None"]
"""What a task does with a file: a `BadTrace` is told as one."""


def asked(spark: SparkSession, paths: Sequence[str], look: Look) -> list[Footer]:
    if not paths:
        return []
    table = spark.createDataFrame([(path,) for path in paths], "path string")
    tasks = min(-(-len(paths) // FOOTERS), TASKS_MOST)
    told = table.repartition(tasks).mapInArrow(answering(look), "answer binary").collect()
    read = [DECODER.decode(bytes(row["answer"])) for row in told]
    for refused in sorted((refused for _, refused in read if refused), key=lambda refused: refused.place):
        raise BadTrace(refused.place, refused.found, refused.expected)
    return [footer for footer, _ in read if footer]


DECODER: Final = msgspec.msgpack.Decoder(tuple[Footer | None, Refused | None])


# In tasks


def answering(look: Look) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def answers(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            told = [answer(path, look) for path in batch.column(0).to_pylist()]
            encoded = pa.array([msgspec.msgpack.encode(one) for one in told], pa.binary())
            yield pa.RecordBatch.from_arrays([encoded], names=["answer"])

    return answers


def looking(runs: Collection[str]) -> Look:
    def look(path: str, source: Any) -> Footer | None:
        if path not in runs:
            return footer(path, source)
        check_runs(path, source)
        return None

    return look


def answer(path: str, look: Look) -> tuple[Footer | None, Refused | None]:
    try:
        with opened(path) as source:
            return look(path, source), None
    except BadTrace as error:
        return None, Refused(error.place, error.found, error.expected)
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        return None, Refused(path, f"no whole Parquet file ({reason})", "one that is complete")


def footer(path: str, source: Any) -> Footer:
    """The footer of one event file."""
    metadata = pq.read_metadata(source)
    refuse_columns(path, metadata.schema.to_arrow_schema(), EVENTS)
    notes = metadata.metadata or {}
    columns = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
    groups = tuple(group(metadata.row_group(number), columns) for number in range(metadata.num_row_groups))
    run = notes[RUN_KEY].decode() if RUN_KEY in notes else one_run(groups)
    return Footer(path, source.size(), notes.get(ORDER_KEY) == ORDER, run, groups)


def group(metadata: pq.RowGroupMetaData, columns: dict[str, int]) -> Group:
    def span(name: str) -> Any:
        statistics = metadata.column(columns[name]).statistics
        if statistics is None or not statistics.has_min_max or statistics.null_count:
            return None
        return statistics.min, statistics.max

    return Group(metadata.num_rows, span("run"), span("clock"))


def one_run(groups: Sequence[Group]) -> str | None:
    """The run that all groups are of, if they tell and it is one."""
    runs = {name for group in groups for name in group.runs or (None,)}
    return runs.pop() if len(runs) == 1 else None


def check_runs(path: str, source: Any) -> None:
    """Two runs of one name cannot be told apart in the events."""
    table = pq.ParquetFile(source)
    refuse_columns(path, table.schema_arrow, RUNS)
    names = table.read(columns=["run"]).column("run")
    for count in pc.value_counts(names).to_pylist():
        if count["counts"] > 1:
            raise BadTrace(path, f"{count['counts']} runs called {count['values']}", "one of each name")
