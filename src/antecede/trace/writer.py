"""Write the events of a run, streamed: memory does not grow with the length of the run.

`append` packs a row of integers into a buffer of one row group; names are put in when the group is full, as
dictionaries over the integers, so no string is touched for a row. The same rows give the same bytes.

What is visible when. An event file becomes visible when it is complete; the first one enters the run into
`runs.parquet`. `close` at any time leaves a valid, perhaps shorter, trace; `abort`, and an exception inside `with`,
leave nothing of the run. A disk that fills up is one `CannotWrite`, and nothing of the run is left either.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from antecede.errors import BadParameter, CannotWrite
from antecede.trace.layout import Layout
from antecede.trace.reader import read_runs
from antecede.trace.rows import ROW, WRITTEN, Renderer
from antecede.trace.schema import ABSENT, EVENTS, ORDER, ORDER_KEY, RUN_KEY, RUNS, RunInfo

__all__ = ["TraceWriter", "ROW_GROUP", "GROUPS_PER_FILE"]

ROW_GROUP: Final = 1 << 16
"""Rows that are buffered, and then written as one row group."""

GROUPS_PER_FILE: Final = 64
"""Row groups in a file: about 4 million rows, so that many tasks can share a long run."""

# Strings go in as a dictionary, numbers that mostly grow by little as differences.
OPTIONS: Final[dict[str, Any]] = {
    "store_schema": False,
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": [field.name for field in EVENTS if pa.types.is_string(field.type)]
    + ["to.list.element"],
    "column_encoding": dict.fromkeys(("index", "number", "time_ns", "clock"), "DELTA_BINARY_PACKED"),
}

PACK: Final = ROW.pack_into
SIZE: Final = ROW.size


class TraceWriter:
    """Writes one run into a trace. Runs of different names may share the directory, also at the same time.

    >>> import tempfile
    >>> from antecede.trace import DELIVER, SEND, RunInfo, events_of
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with TraceWriter(directory, RunInfo(run="r1", protocol="fifo", processes=("p1", "p2"))) as writer:
    ...         writer.append(0, SEND, 0, 1, (1,), clock=0)
    ...         writer.append(1, DELIVER, 0, 1, clock=1)
    ...     [event.kind for event in events_of(directory, "r1")]
    ['send', 'deliver']
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        run: RunInfo,
        *,
        replace: bool = False,
        row_group: int = ROW_GROUP,
        groups_per_file: int = GROUPS_PER_FILE,
    ) -> None:
        self.run = run
        self._layout = Layout(directory)
        self._renderer = Renderer(run)
        self._groups_per_file = groups_per_file
        self._serial = 0
        self._file: EventFile | None = None
        self._claim: IO[bytes] | None = None
        self._flushed = 0
        self._buffer = bytearray(row_group * SIZE)
        self._at = 0
        self._to: dict[tuple[int, ...], int] = {}
        self._labels: dict[str, int] = {}
        self._made = [path for path in (self._layout.events, self._layout.root) if not path.exists()]
        with self._abort_on_error():
            self._enter(replace)

    @property
    def rows(self) -> int:
        """How many events were appended so far."""
        return self._flushed + self._at // SIZE

    def append(
        self,
        process: int,
        kind: int,
        sender: int,
        number: int,
        to: tuple[int, ...] | None = None,
        control: bool = False,
        time_ns: int = 0,
        clock: int = ABSENT,
        stamp_entries: int = ABSENT,
        stamp_bytes: int = ABSENT,
        label: str = "",
    ) -> None:
        """Record one event; its index is the writer's to count. `to` and the stamp's size belong to a send."""
        at = self._at
        to_id = ABSENT if to is None else self._to.setdefault(to, len(self._to))
        label_id = self._labels.setdefault(label, len(self._labels)) if label else ABSENT
        try:
            PACK(
                self._buffer, at, time_ns, clock, number, process, sender, to_id, label_id, stamp_entries, stamp_bytes,
                control, kind,
            )  # fmt: skip
        except struct.error as error:
            raise self._explain(error) from None
        self._at = at = at + SIZE
        if at == len(self._buffer):
            self._flush()

    def close(self) -> None:
        """Make all that was appended visible: a valid trace, whatever the run had still to come."""
        if self._claim is not None:
            self._flush()
            with self._abort_on_error():
                self._show()
            self._end()

    def abort(self) -> None:
        """Remove every trace of this run."""
        if self._claim is None:
            return
        if self._file is not None:
            self._file.drop()
        # What cannot be removed is not made better by a second error.
        with suppress(OSError), self._layout.lock():
            for path in self._layout.files(self.run.run):
                path.unlink()
            self._renew_runs(None)
        for path in self._made:
            with suppress(OSError):  # another run's files may be there by now
                path.rmdir()
        self._end()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            self.abort()  # which a closed writer ignores

    def _enter(self, replace: bool) -> None:
        """Take the run's name, unless a run has it or another writer is at work on it."""
        layout, run = self._layout, self.run.run
        place = f"trace {layout.root}"
        first = layout.part(layout.file(run, 0))
        layout.events.mkdir(parents=True, exist_ok=True)
        with layout.lock():
            taken = layout.runs.exists() and any(known.run == run for known in read_runs(layout.root))
            if taken and not replace:
                raise BadParameter(
                    place, f"run {run} is there already: take another name, or allow it to be replaced"
                )
            claim = first.open("ab")
            try:
                fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                claim.close()
                raise BadParameter(
                    place, f"run {run} is being written by another writer: take another name"
                ) from None
            self._claim = claim
            for path in layout.files(run):
                if path != first:
                    path.unlink()
            if taken:
                self._renew_runs(None)

    def _flush(self) -> None:
        """Write the buffered rows as one row group."""
        if not self._at:
            return
        with memoryview(self._buffer) as buffer:
            batch = self._renderer.render(buffer[: self._at], self._to, self._labels)
        with self._abort_on_error():
            if self._file is None:
                self._file = EventFile(self._layout, self.run, self._serial)
            self._file.write(batch)
        self._flushed += batch.num_rows
        self._at = 0
        self._to.clear()
        self._labels.clear()
        if self._file.groups == self._groups_per_file:
            with self._abort_on_error():
                self._show()

    def _show(self) -> None:
        """Complete the current file. A run without events has a file too: nothing tells it from a lost one else."""
        if self._file is None and self._serial:
            return
        file = self._file or EventFile(self._layout, self.run, self._serial)
        self._file = file
        file.finish(self._renderer.ordered)
        with self._layout.lock():
            self._layout.show(file.path)
            if self._serial == 0:
                self._renew_runs(self.run)
        self._file = None
        self._serial += 1
        self._renderer.restart()

    def _renew_runs(self, run: RunInfo | None) -> None:
        """Write `runs.parquet` anew with or without this run, sorted, so that the order of writers does not show."""
        path = self._layout.runs
        runs = [] if not path.exists() else [r for r in read_runs(self._layout.root) if r.run != self.run.run]
        if run is not None:
            runs.append(run)
        if runs:
            runs.sort(key=lambda run: run.run.encode())
            table = pa.Table.from_pylist([run.row() for run in runs], schema=RUNS)
            pq.write_table(table, self._layout.part(path))
            self._layout.show(path)
        else:
            path.unlink(missing_ok=True)

    def _end(self) -> None:
        if self._claim is not None:
            self._claim.close()
        self._claim = None
        self._buffer = bytearray()

    def _explain(self, error: struct.error) -> Exception:
        if self._claim is None:
            return BadParameter(f"run {self.run.run}", "its writer is closed: open another")
        return BadParameter(
            f"run {self.run.run}", f"an event has a value that does not fit its column: {error}"
        )

    @contextmanager
    def _abort_on_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.abort()
            reason = os.strerror(error.errno) if error.errno else str(error)
            left = f"nothing of run {self.run.run} was left"
            raise CannotWrite(f"trace {self._layout.root}", reason, left) from None


class EventFile:
    """One event file while it is written, under its hidden name."""

    def __init__(self, layout: Layout, run: RunInfo, serial: int) -> None:
        self.path: Path = layout.file(run.run, serial)
        self.groups = 0
        self._run = run.run
        self._sink = pa.OSFile(str(layout.part(self.path)), "wb")
        self._parquet = pq.ParquetWriter(self._sink, WRITTEN, **OPTIONS)

    def write(self, batch: pa.RecordBatch) -> None:
        self._parquet.write_batch(batch)
        self.groups += 1

    def finish(self, ordered: bool) -> None:
        notes = {RUN_KEY: self._run.encode()}
        if ordered:
            notes[ORDER_KEY] = ORDER
        self._parquet.add_key_value_metadata(notes)
        self._parquet.close()
        self._sink.close()

    def drop(self) -> None:
        """Stop without completing it."""
        self._parquet.is_open = False  # else it completes the file when it is collected, and fails again
        with suppress(OSError):
            self._sink.close()
