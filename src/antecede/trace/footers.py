"""What an event file says of itself in its footer: enough to plan with, and to refuse with, before a row is read.

A footer tells how many rows each row group has, whether the file is in the order (clock, process, index), and the least
and greatest run and clock of each group.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from antecede.errors import BadTrace
from antecede.storage import absolute, join, local, open_file
from antecede.trace.schema import EVENTS, ORDER, ORDER_KEY, RUN_KEY, RUNS, refuse_columns

__all__ = [
    "Footer", "Group", "LocalTrace", "list_local", "locate", "open_parquet", "read_footer", "read_footers",
    "read_local_trace", "read_runs_table",
]  # fmt: skip

THREADS: Final = 8
"""Footers that are read at the same time."""


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
    others: bool = False
    """Whether it has columns that the contract does not have."""

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.groups)

    @property
    def clocks(self) -> tuple[int, int] | None:
        """The least and the greatest clock, if each row has one and the file tells."""
        spans = [group.clocks for group in self.groups if group.clocks is not None]
        whole = spans and len(spans) == len(self.groups)
        return (min(low for low, _ in spans), max(high for _, high in spans)) if whole else None


@contextmanager
def open_parquet(path: str) -> Iterator[Any]:
    """A file that is read as Parquet. Whatever is wrong with it is said of the file, by name."""
    try:
        source = open_file(path)
    except (pa.ArrowException, OSError) as error:
        raise BadTrace(path, f"the file cannot be opened: {one_line(error)}") from None
    with source:
        try:
            yield source
        except (pa.ArrowException, OSError) as error:
            raise BadTrace(path, f"the file is not a complete Parquet file: {one_line(error)}") from None


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def read_footer(path: str) -> Footer:
    """The footer of one event file."""
    with open_parquet(path) as source:
        metadata = pq.read_metadata(source)
        size = source.size()
    found = metadata.schema.to_arrow_schema()
    refuse_columns(path, found, EVENTS)
    notes = metadata.metadata or {}
    groups = tuple(describe_group(metadata, number) for number in range(metadata.num_row_groups))
    run = notes[RUN_KEY].decode() if RUN_KEY in notes else one_run(groups)
    others = not set(found.names) <= set(EVENTS.names)
    return Footer(path, size, notes.get(ORDER_KEY) == ORDER, run, groups, others)


def describe_group(metadata: pq.FileMetaData, number: int) -> Group:
    group = metadata.row_group(number)
    spans: dict[str, Any] = {}
    for at in range(metadata.num_columns):
        column = metadata.schema.column(at)
        if column.path in ("run", "clock"):
            spans[column.path] = span(group.column(at).statistics, column.max_definition_level == 0)
    return Group(group.num_rows, spans["run"], spans["clock"])


def span(statistics: Any, required: bool) -> Any:
    """The least and the greatest value, if the file tells them and tells that no value is null."""
    if statistics is None or not statistics.has_min_max:
        return None
    # A writer may leave out how many values are null: then there may be some, unless the column has none by its type.
    nulls = statistics.null_count if statistics.has_null_count else None
    return (statistics.min, statistics.max) if required or nulls == 0 else None


def one_run(groups: Sequence[Group]) -> str | None:
    """The run that all groups are of, if they tell and it is one."""
    runs = {name for group in groups for name in group.runs or (None,)}
    return runs.pop() if len(runs) == 1 else None


def read_runs_table(paths: Sequence[str]) -> pa.Table:
    """The table of runs in these files. Two runs of one name cannot be told apart in the events."""
    tables = []
    for path in paths:
        with open_parquet(path) as source:
            file = pq.ParquetFile(source)
            refuse_columns(path, file.schema_arrow, RUNS)
            tables.append(file.read(columns=RUNS.names, use_threads=False).cast(RUNS))
    table = pa.concat_tables(tables)
    for count in pc.value_counts(table["run"]).to_pylist():
        if count["counts"] > 1:
            raise BadTrace(
                paths[0], f"{count['counts']} runs are called {count['values']}; each needs a name of its own"
            )
    return table


# A trace on this machine's disk


class LocalTrace(Struct, frozen=True):
    """A trace as its footers tell it."""

    root: str
    """As a URI."""
    runs: pa.Table
    files: tuple[Footer, ...]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


def read_local_trace(path: str | os.PathLike[str]) -> LocalTrace:
    """The trace in a local directory, or in `trace/` of a directory of results."""
    inside = local(path)
    if inside is not None and not os.path.exists(inside):
        raise BadTrace(inside, "there is no such file or directory")
    root, tables = locate(absolute(path), list_local)
    files = list_local(join(root, "events"))
    if not files:
        raise BadTrace(
            join(root, "events"), "there are no Parquet files: the events of the trace's runs are missing"
        )
    return LocalTrace(root, read_runs_table(tables), read_footers(files))


def read_footers(paths: Sequence[str]) -> tuple[Footer, ...]:
    """The footer of each event file, in the order of their names."""
    ordered = sorted(paths, key=str.encode)
    if len(ordered) < THREADS:
        return tuple(map(read_footer, ordered))
    with ThreadPoolExecutor(THREADS) as pool:
        return tuple(pool.map(read_footer, ordered))


def locate(root: str, list_files: Callable[[str], list[str]]) -> tuple[str, list[str]]:
    """Where the trace is, and the files of its table of runs."""
    for place in (root, join(root, "trace")):
        if tables := list_files(join(place, "runs.parquet")):
            return place, tables
    raise BadTrace(
        root,
        "there is no trace here: a trace is a directory with runs.parquet and events/; "
        "antecede ingest makes one of logs and spans",
    )


def list_local(path: str) -> list[str]:
    """The visible Parquet files in a local directory, or the one file, in the order of their names."""
    inside = local(path)
    assert inside is not None
    if os.path.isfile(inside):
        return [path]
    found = [
        join(path, name)
        for name in (os.listdir(inside) if os.path.isdir(inside) else ())
        if name.endswith(".parquet") and name[0] not in "._"
    ]
    return sorted(found, key=str.encode)
