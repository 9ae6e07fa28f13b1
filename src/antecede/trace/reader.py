"""Read a trace back, in order, and say exactly what is wrong with one that cannot be read.

Order. Events of a run come in the order (clock, process, index), names compared as UTF-8: a linear extension of
happened-before. Files that say that they are in this order, each from where the one before ends, are read one after the
other, in memory that does not grow with the run. Any other run is sorted as a whole; if it has events without a clock,
by (process, index), which keeps each process's own order and no more.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from antecede.errors import BadParameter, BadTrace
from antecede.model import Event
from antecede.storage import absolute
from antecede.trace.footers import Footer, list_local, open_parquet, read_footers
from antecede.trace.layout import Layout
from antecede.trace.schema import EVENTS, KINDS, READ, RUNS, RunInfo, refuse_columns, refuse_nulls

__all__ = ["events_of", "read_events", "read_runs"]

BATCH: Final = 1 << 16
KEYS: Final = ("clock", "process", "index")
STRINGS: Final = [field.name for field in EVENTS if pa.types.is_string(field.type)]


def read_runs(path: str | os.PathLike[str]) -> list[RunInfo]:
    """Read the runs of a trace, in the order of their names."""
    layout = Layout(path)
    if not layout.root.is_dir():
        found = "this is a file" if layout.root.exists() else "there is nothing here"
        raise BadTrace(str(layout.root), f"{found}: a trace is a directory with runs.parquet and events/")
    if not layout.runs.exists():
        raise BadTrace(str(layout.runs), "the file is missing: it lists the trace's runs")
    with open_parquet(absolute(layout.runs)) as source:
        file = pq.ParquetFile(source)
        refuse_columns(layout.runs, file.schema_arrow, RUNS)
        table = file.read(columns=RUNS.names, use_threads=False)
    refuse_nulls(table, str(layout.runs), RUNS)
    try:
        runs = [RunInfo.of_row(row) for row in table.to_pylist()]
    except (msgspec.MsgspecError, BadParameter) as error:
        raise BadTrace(
            str(layout.runs), f"a run needs a name, processes and parameters in JSON: {error}"
        ) from None
    return sorted(runs, key=lambda run: run.run.encode())


def read_events(
    path: str | os.PathLike[str], run: str | None = None, columns: Sequence[str] | None = None
) -> pa.RecordBatchReader:
    """Read the events of one run, or of all runs one after the other, in order; with these columns, or all.

    The result can be iterated batch by batch, or read as a table with `read_all()`. Strings are dictionary-encoded.
    """
    runs = [info.run for info in read_runs(path)]
    if run is not None and run not in runs:
        raise BadTrace(
            str(path),
            f"there is no run called {run}; the runs are {', '.join(runs[:8])}{', ...' * (len(runs) > 8)}",
        )
    for name in columns or ():
        if name not in READ.names:
            raise BadParameter.choice("read_events", "a column", name, READ.names)
    wanted = READ if columns is None else pa.schema([READ.field(name) for name in columns])
    events = Layout(path).events
    if not events.is_dir():
        raise BadTrace(str(events), "the directory is missing: it has the trace's event files")
    files = read_footers(list_local(absolute(events)))
    plan = [(name, files_of(path, name, files)) for name in (runs if run is None else [run])]
    batches = (
        batch.select(wanted.names) for name, own in plan for batch in run_events(name, own, wanted.names)
    )
    return pa.RecordBatchReader.from_batches(wanted, batches)


def events_of(path: str | os.PathLike[str], run: str) -> list[Event]:
    """Read a small run as the oracle takes it. Processes have the numbers of their places in `runs.parquet`."""
    columns = ("process", "kind", "sender", "number", "to", "control")
    batches = read_events(path, run, columns)
    [processes] = [info.processes for info in read_runs(path) if info.run == run]
    ids = {name: position for position, name in enumerate(processes)}
    try:
        return [
            Event(ids[process], kind, ids[sender], number, tuple(ids[name] for name in to or ()), control)
            for batch in batches
            for process, kind, sender, number, to, control in zip(
                *(batch.column(name).to_pylist() for name in columns), strict=True
            )
        ]
    except KeyError as error:
        raise BadTrace(
            f"{path}, run {run}",
            f"process {error.args[0]} is not one of the {len(ids)} that runs.parquet names",
        ) from None


# Files


def files_of(path: str | os.PathLike[str], run: str, files: Sequence[Footer]) -> list[Footer]:
    """The files that hold events of the run, or may."""
    own = [file for file in files if file.run in (None, run)]
    if not own:
        raise BadTrace(str(Layout(path).events), f"run {run} is in runs.parquet and has no events")
    return own


# Order


def run_events(run: str, files: Sequence[Footer], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The events of one run in order, with at least these columns."""
    filled = [file for file in files if file.rows]
    if in_sequence(filled):
        for file in filled:
            yield from file_events(file, run, columns)
        return
    names = [*columns, *(key for key in KEYS if key not in columns)]
    yield from in_order(batch for file in filled for batch in file_events(file, run, names))


def in_sequence(files: Sequence[Footer]) -> bool:
    """Whether each file is in order, and ends before the next begins."""
    clocks = [file.clocks for file in files if file.ordered and file.clocks is not None]
    return len(clocks) == len(files) and all(before[1] < after[0] for before, after in pairwise(clocks))


def file_events(file: Footer, run: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The events of a run in one file, as they stand there."""
    names = [*columns, *({"run"} - set(columns) if file.run is None else ())]
    with open_parquet(file.path) as source:
        for batch in pq.ParquetFile(source, read_dictionary=STRINGS).iter_batches(BATCH, columns=names):
            refuse_nulls(batch, file.path)
            if file.run is None:
                batch = batch.filter(pc.equal(batch.column("run"), run))
            if "kind" in columns:
                refuse_kinds(file.path, batch.column("kind"))
            if batch.num_rows:
                yield cast_columns(batch, columns)


def refuse_kinds(path: str, kinds: pa.Array) -> None:
    for kind in pc.unique(kinds).to_pylist():
        if kind not in KINDS:
            raise BadTrace(path, f"an event is of kind {kind}; the kinds are {', '.join(KINDS)}")


def cast_columns(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """The columns in this order, in the types of `READ`."""
    schema = pa.schema([READ.field(name) for name in columns])
    return pa.RecordBatch.from_arrays([batch.column(f.name).cast(f.type) for f in schema], schema=schema)


def in_order(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All of the batches, sorted, as one sequence of batches."""
    rows = list(batches)
    if not rows:
        return
    table = pa.Table.from_batches(rows).unify_dictionaries().combine_chunks()
    keys = KEYS if table.column("clock").null_count == 0 else KEYS[1:]
    # Strings are compared as UTF-8; dictionary codes would be compared as they came.
    plain = pa.table({key: table.column(key).cast(EVENTS.field(key).type) for key in keys})
    order = pc.sort_indices(plain, sort_keys=[(key, "ascending") for key in keys])
    yield from table.take(order).to_batches(BATCH)
