"""What an event file says of itself in its footer: enough to plan with, and to refuse with, before a row is read.

A footer tells how many rows each row group has, whether the file is in the order (clock, process, index), and the least
and greatest run and clock of each group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from antecede.errors import BadTrace
from antecede.trace.reader import refuse_columns
from antecede.trace.schema import EVENTS, ORDER, ORDER_KEY, RUN_KEY, RUNS

__all__ = ["Footer", "Group", "check_runs", "footer"]


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
