"""The files of a trace that `ingest` writes: its events in the order of their clocks, and the table of its runs.

A file of events says that it is in order (`antecede.trace.schema`), so readers need no sort: that is a note in the
footer, which Spark's own writer cannot make. So tasks write with PyArrow. A task writes under a hidden name and then
renames the file: a task that is tried again, or runs twice, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame

from antecede.spark.storage import place, put
from antecede.trace.schema import EVENTS, ORDER, ORDER_KEY, RUNS

__all__ = ["write_events", "write_runs"]

FULL: Final = 1_000_000
"""Events of a file at most, about."""
STRINGS: Final = [field.name for field in EVENTS if pa.types.is_string(field.type)]


def write_events(events: DataFrame, rows: int, directory: str) -> None:
    """Write about so many events, sorted by (run, clock, process, index)."""
    keys = ("run", "clock", "process", "index")
    files = -(-rows // FULL)
    spread = events.repartitionByRange(files, *keys) if files > 1 else events.repartition(1)

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"rows": [write_sorted(batches, directory)]})

    told = spread.sortWithinPartitions(*keys).mapInArrow(write, "rows bigint").collect()
    if not any(row["rows"] for row in told):
        # A directory without a file is no table.
        EventFile(directory, "00000.parquet", {ORDER_KEY: ORDER}).write_empty()


def write_runs(runs: DataFrame, path: str) -> None:
    """Write the table of runs as one file, which is what a trace has. One task writes it: a row a run."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = [row for batch in batches for row in batch.to_pylist()]
        put(path, to_bytes(pa.Table.from_pylist(rows, RUNS)))
        yield pa.RecordBatch.from_pydict({"rows": [len(rows)]})

    if not runs.coalesce(1).mapInArrow(write, "rows bigint").collect():
        put(path, to_bytes(RUNS.empty_table()))


def to_bytes(table: pa.Table) -> bytes:
    data = pa.BufferOutputStream()
    pq.write_table(table, data)
    return bytes(data.getvalue().to_pybytes())


# In tasks


def write_sorted(batches: Iterable[pa.RecordBatch], directory: str) -> int:
    """Write a task's events, and how many they were. Runs without clocks have files of their own, in no order."""
    context = TaskContext.get()
    part = context.partitionId() if context else 0
    rows = 0
    writers = {
        True: EventFile(directory, f"{part:05d}.parquet", {ORDER_KEY: ORDER}),
        False: EventFile(directory, f"{part:05d}-unordered.parquet", {}),
    }
    try:
        for batch in batches:
            rows += batch.num_rows
            for events in part_runs(pa.Table.from_batches([batch]).cast(EVENTS)):
                writers[events["clock"].null_count == 0].write(events)
        for writer in writers.values():
            writer.show()
    except BaseException:
        for writer in writers.values():
            writer.drop()
        raise
    return rows


def part_runs(events: pa.Table) -> Iterator[pa.Table]:
    """The events of each run: sorted events are cut where their run changes."""
    if not len(events):
        return
    run = events["run"].combine_chunks()
    changes = pc.not_equal(run[1:], run[:-1]).to_numpy(zero_copy_only=False)
    ends = [*(np.flatnonzero(changes) + 1), len(events)]
    for start, end in pairwise([0, *ends]):
        yield events.slice(int(start), int(end - start))


class EventFile:
    """A file of events that is not seen before it is whole. Each run has row groups of its own."""

    def __init__(self, directory: str, name: str, notes: dict[bytes, bytes]) -> None:
        self._system, self._directory = place(directory)
        context = TaskContext.get()
        attempt = context.taskAttemptId() if context else 0
        self._path = f"{self._directory}/{name}"
        self._aside = f"{self._directory}/.{name}.{attempt}.part"
        self._notes = notes
        self._writer: pq.ParquetWriter | None = None
        self._held: list[pa.Table] = []

    def write(self, events: pa.Table) -> None:
        """Add events of one run."""
        if self._held and self._held[0]["run"][0] != events["run"][0]:
            self._flush()
        self._held.append(events)
        if sum(map(len, self._held)) >= 1 << 17:
            self._flush()

    def show(self) -> None:
        """Make the file visible, if it has events."""
        self._flush()
        if self._writer is not None:
            self._writer.add_key_value_metadata(self._notes)
            self._writer.close()
            self._system.move(self._aside, self._path)

    def write_empty(self) -> None:
        self._open()
        self.show()

    def drop(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._system.delete_file(self._aside)

    def _flush(self) -> None:
        if self._held:
            self._open().write_table(pa.concat_tables(self._held))
            self._held = []

    def _open(self) -> pq.ParquetWriter:
        if self._writer is None:
            self._system.create_dir(self._directory, recursive=True)
            self._writer = pq.ParquetWriter(
                self._aside, EVENTS, filesystem=self._system, use_dictionary=STRINGS
            )
        return self._writer
