"""Where the runs of a sweep are put when others make them: whole or not at all, on any storage, gathered in the end.

Beside the files of a sweep (see `antecede.sim.sweep`), while it runs, `out` has
    .runs/RUN.started       somebody makes this run
    .runs/RUN.json          it is made: its line, and where its trace is
    .runs/RUN.ATTEMPT/      its trace, as `TraceWriter` writes the trace of one run
Whoever makes a run writes its trace into a directory of its own and then, as one small file, RUN.json. A run that is
made twice, because the first was thought to be lost, is written twice, and the last RUN.json counts. So makers need no
lock, no rename and no word from each other: a file system of a cluster or an object store will do.

Only who started the sweep gathers: it moves the event files to trace/events, enters the runs in runs.parquet and the
lines in results.jsonl, each renewed once, and then removes .runs. Until then readers see the runs of earlier sweeps,
and after it whole runs only. What a sweep that was killed has left in .runs is gathered by the next.
"""

from __future__ import annotations

import posixpath
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct
from pyarrow import fs

from antecede.trace.schema import RUNS

__all__ = ["Made", "Stage"]

HIDDEN: Final = ".runs"


class Made(Struct, frozen=True):
    """One run as RUN.json has it."""

    run: str
    line: msgspec.Raw
    """Of results.jsonl or failures.jsonl."""
    failed: bool
    trace: str | None
    """The directory in .runs."""


class Stage:
    """The directory of a sweep, on any file system of PyArrow's."""

    def __init__(self, system: Any, root: str) -> None:
        self.system, self.root = system, root

    @property
    def is_local(self) -> bool:
        return isinstance(self.system, fs.LocalFileSystem)

    def path(self, *names: str) -> str:
        return posixpath.join(self.root, *names)

    # Files

    def read(self, *names: str) -> bytes | None:
        """A file's bytes, or None if there is no such file."""
        try:
            with self.system.open_input_file(self.path(*names)) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def write(self, data: bytes, *names: str) -> None:
        """Write a file, or what was there before stays."""
        *above, name = names
        hidden = self.path(*above, f".{name}.{uuid.uuid4().hex[:8]}.part")
        with self.system.open_output_stream(hidden) as file:
            file.write(data)
        self.system.move(hidden, self.path(*names))

    def remove(self, *names: str) -> None:
        info = self.system.get_file_info(self.path(*names))
        if info.type == fs.FileType.Directory:
            self.system.delete_dir(info.path)
        elif info.type == fs.FileType.File:
            self.system.delete_file(info.path)

    def names(self, *names: str) -> list[str]:
        """The names of the files in a directory, sorted; none if it is not there."""
        chosen = fs.FileSelector(self.path(*names), allow_not_found=True)
        found = self.system.get_file_info(chosen)
        return sorted(info.base_name for info in found if info.type == fs.FileType.File)

    # Who makes a run

    def begin(self) -> None:
        """Before anybody makes a run."""
        self.system.create_dir(self.path(HIDDEN), recursive=True)

    def make(self, run: str, traced: bool, perform: Callable[[str | None], tuple[bytes, bool]]) -> bool:
        """Have a run made and put it here. `perform` is given a directory for the trace; its line, and if it failed."""
        self.write(b"", HIDDEN, f"{run}.started")
        name = f"{run}.{uuid.uuid4().hex[:8]}"
        with self._directory(name, traced) as directory:
            line, failed = perform(directory)
        traced = traced and self.system.get_file_info(self.path(HIDDEN, name, "runs.parquet")).is_file
        made = Made(run, msgspec.Raw(line), failed, name if traced else None)
        self.write(msgspec.json.encode(made), HIDDEN, f"{run}.json")
        return failed

    @contextmanager
    def _directory(self, name: str, traced: bool) -> Iterator[str | None]:
        """A directory on a local disk, which becomes the one of that name."""
        if not traced:
            yield None
        elif self.is_local:
            yield self.path(HIDDEN, name)
        else:
            with tempfile.TemporaryDirectory() as scratch:
                yield scratch
                fs.copy_files(
                    scratch, self.path(HIDDEN, name), fs.LocalFileSystem(), self.system, use_threads=False
                )

    # Who gathers

    def under_way(self) -> set[str]:
        """Runs that somebody began and nobody has put here."""
        names = self.names(HIDDEN)
        started, made = (
            {name.removesuffix(end) for name in names if name.endswith(end)} for end in (".started", ".json")
        )
        return started - made

    def gather(self) -> list[Made]:
        """What was made, its traces in their place. Call `end` once its lines are, too."""
        found = []
        for name in self.names(HIDDEN):
            if name.endswith(".json") and not name.startswith("."):
                data = self.read(HIDDEN, name)
                assert data is not None
                found.append(msgspec.json.decode(data, type=Made))
        traces = [made.trace for made in found if made.trace is not None]
        if traces:
            self.system.create_dir(self.path("trace", "events"), recursive=True)
            self._enter([self._move_events(trace) for trace in traces])
        return found

    def _move_events(self, trace: str) -> pa.Table:
        """Event files first: a run that is entered has all of its events. Its row of runs.parquet."""
        for name in self.names(HIDDEN, trace, "events"):
            self.system.move(self.path(HIDDEN, trace, "events", name), self.path("trace", "events", name))
        return self._runs(HIDDEN, trace, "runs.parquet")

    def _runs(self, *names: str) -> pa.Table:
        data = self.read(*names)
        return RUNS.empty_table() if data is None else pq.read_table(pa.BufferReader(data), schema=RUNS)

    def _enter(self, new: list[pa.Table]) -> None:
        rows = {row["run"]: row for row in self._runs("trace", "runs.parquet").to_pylist()}
        rows |= {row["run"]: row for table in new for row in table.to_pylist()}
        ordered = sorted(rows.values(), key=lambda row: row["run"].encode())
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(ordered, schema=RUNS), sink)
        self.write(sink.getvalue().to_pybytes(), "trace", "runs.parquet")

    def list_traced(self) -> set[str]:
        """The runs that the trace has."""
        return set(self._runs("trace", "runs.parquet").column("run").to_pylist())

    def end(self) -> None:
        """Nothing in .runs is needed any more."""
        self.remove(HIDDEN)
