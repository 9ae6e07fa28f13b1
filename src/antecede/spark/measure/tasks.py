"""Which task measures what, and what a task does.

A task reads the files of its runs by itself, in order. Short runs share a task. A long run has several: one that
counts, and for the clocks, which cost the most where there are many processes, one for each block of them; each reads
the whole run, and what they find is added. Rows that are in no order come from Spark instead, sorted, one run after the
other, and are kept by the task until it has read them as often as it needs.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import IO, Any, Final

import msgspec
import pyarrow as pa
from msgspec import Struct

from antecede.errors import BadTrace
from antecede.spark.measure.figures import figures_of_error
from antecede.spark.measure.passes import measured
from antecede.trace.checks import Sequence as Watch
from antecede.trace.checks import refuse_borders
from antecede.trace.columns import ORDER_COLUMNS, Names, Rows, by_run, rows_of
from antecede.trace.parquet import read_part
from antecede.trace.plan import ROWS, Part

__all__ = ["COLUMNS", "Share", "shared", "work", "work_sorted"]

MORE: Final = ("time_ns", "stamp_entries", "stamp_bytes")
COLUMNS: Final = ("run", *ORDER_COLUMNS, *MORE)

LONG: Final = 2 * ROWS
"""Rows from which a run is shared by several tasks."""

BLOCK: Final = 256
"""Entries of clocks that one task follows: a merge of so many costs about as much as the rest of an event."""

HELD: Final = 1 << 20
"""Rows that are held in memory; the others of a run go to a file."""


class Share(Struct, frozen=True):
    """What a task does with one run."""

    run: str
    processes: tuple[str, ...]
    parts: tuple[Part, ...]
    rows: int
    low: int
    high: int
    counting: bool


def shared(
    processes: Mapping[str, tuple[str, ...]], parts: Mapping[str, Sequence[Part]], rows: Mapping[str, int]
) -> list[tuple[Share, ...]]:
    """The shares of each task, the longest first: no long one is left over when the others are done."""
    long: list[Share] = []
    short: list[Share] = []
    for run, own in parts.items():
        names, size = processes[run], rows[run]
        whole = Share(run, names, tuple(own), size, 0, len(names), True)
        if size < LONG:
            short.append(whole)
            continue
        count = -(-len(names) // BLOCK)
        edges = [len(names) * i // count for i in range(count + 1)]
        long.append(msgspec.structs.replace(whole, high=0))
        long += [
            msgspec.structs.replace(whole, low=low, high=high, counting=False)
            for low, high in pairwise(edges)
        ]
    tasks: list[tuple[Share, ...]] = [(share,) for share in sorted(long, key=lambda share: -share.rows)]
    held: list[Share] = []
    for share in sorted(short, key=lambda share: -share.rows):
        if held and sum(s.rows for s in held) + share.rows > ROWS:
            tasks.append(tuple(held))
            held = []
        held.append(share)
    return [*tasks, tuple(held)] if held else tasks


# In tasks


def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The figures of shares that come as JSON in the column `share`."""
    for batch in batches:
        for text in batch.column("share").to_pylist():
            yield from measured_share(msgspec.json.decode(text, type=Share))


def measured_share(share: Share) -> Iterator[pa.RecordBatch]:
    names = Names.of(share.processes)
    place = share.parts[0].pieces[0].path.rpartition("/")[0] if share.parts else "events"

    def read(counting: bool) -> Iterator[Rows]:
        watch = Watch(names, share.run)
        for part in share.parts:
            for at, rows in read_part(part, names, MORE if counting else ()):
                watch.watch(rows, at)
                yield rows
        refuse_starts(share.run, names, watch)

    yield from guarded(share.run, names, read, place, share.low, share.high, share.counting)


def work_sorted(
    batches: Iterable[pa.RecordBatch], processes: Mapping[str, tuple[str, ...]], place: str
) -> Iterator[pa.RecordBatch]:
    """The figures of runs that come as rows, one run after the other, each in order."""
    spool: Spool | None = None
    for batch in batches:
        for run, own in by_run(batch):
            if spool is None or spool.run != run:
                if spool is not None:
                    yield from spool.measured(place)
                if run not in processes:
                    told = BadTrace(place, f"events of run {run}", "only runs that the table of runs names")
                    yield from figures_of_error(run, told)
                    return
                spool = Spool(run, Names.of(processes[run]))
            spool.add(own, place)
    if spool is not None:
        yield from spool.measured(place)


class Spool:
    """The rows of a run, to be read more than once: in memory, or in a file if there are many."""

    def __init__(self, run: str, names: Names) -> None:
        self.run, self.names = run, names
        self._held: list[Rows] = []
        self._rows = 0
        self._file: IO[Any] | None = None
        self._watch = Watch(names, run)
        self._wrong: BadTrace | None = None

    def add(self, batch: pa.RecordBatch, place: str) -> None:
        if self._wrong is not None:
            return
        try:
            rows = rows_of(batch, self.names, f"{place}, run {self.run}")
            self._watch.watch(rows, place)
        except BadTrace as error:
            self._wrong = error
            return
        if self._rows < HELD:
            self._held.append(rows)
        else:
            self._file = self._file or tempfile.TemporaryFile()  # noqa: SIM115 (closed by `measured`)
            pickle.dump(rows, self._file, pickle.HIGHEST_PROTOCOL)
        self._rows += len(rows)

    def read(self, counting: bool) -> Iterator[Rows]:
        yield from self._held
        if self._file is not None:
            end = self._file.tell()
            self._file.seek(0)
            while self._file.tell() < end:
                yield pickle.load(self._file)

    def measured(self, place: str) -> Iterator[pa.RecordBatch]:
        try:
            refuse_starts(self.run, self.names, self._watch)
        except BadTrace as error:
            self._wrong = self._wrong or error
        if self._wrong is not None:
            yield from figures_of_error(self.run, self._wrong)
        else:
            yield from guarded(self.run, self.names, self.read, place, 0, len(self.names), True)
        if self._file is not None:
            self._file.close()


def refuse_starts(run: str, names: Names, watch: Watch) -> None:
    """Each process's own order has to begin at 0: what is before would be missing."""
    ends = watch.ends()
    refuse_borders(run, names, [] if ends is None else [ends])


def guarded(
    run: str, names: Names, read: Any, place: str, low: int, high: int, counting: bool
) -> Iterator[pa.RecordBatch]:
    """The figures of a run, or what is wrong with it: never some of both."""
    try:
        where = f"{place}, run {run}"
        found = list(measured(run, names, read, low, high, counting=counting, place=where))
    except BadTrace as error:
        found = list(figures_of_error(run, error))
    yield from found
