"""A node's events as its part of a trace (docs/trace.md), while it runs.

Nodes may share the directory, or write to directories whose `events` are put together afterwards: each writes files of
its own events only, `INDEX-RUN@NODE.parquet`, where INDEX is that of the first event. A file appears when it is
complete, so a stream can read the directory while nodes write. There are no clocks in it: happened-before follows from
the events, which are the application's only, without the protocol's own packets.

Rules
  when     after `ROWS` events or `Settings.trace_s`, and when the node closes
  durable  only events that no crash can undo are written
  once     events that are in a visible file are forgotten after it is (`record`); a node that was killed in between
           finds the file, and goes on after it: a file that someone may have read does not change
  failure  a trace that cannot be written stops the node, as a journal does
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from antecede.errors import AntecedeError, CannotWrite
from antecede.model import View
from antecede.net.driver import Host
from antecede.net.signal import outlast
from antecede.process.events import Entry
from antecede.process.inputs import Recorded
from antecede.trace import EVENTS, RUN_KEY, RUNS, RunInfo, read_runs
from antecede.trace.layout import Layout

__all__ = ["ROWS", "Recorder"]

ROWS = 1 << 14
LOOK_S = 0.1
"""How often we look whether there is something to write."""


class Recorder:
    """Writes what one node records."""

    def __init__(
        self, directory: str | os.PathLike[str], run: str, protocol: str, view: View, node: str
    ) -> None:
        # Wherever the program goes meanwhile.
        self._layout = Layout(Layout(directory).root.absolute())
        self._run = RunInfo(run=run, protocol=protocol, processes=view.names)
        self._view, self._node = view, node
        self._layout.file(f"{run}@{node}", 0)  # which refuses a name that is too long
        self._ended = asyncio.Event()

    async def run(self, host: Host, every_s: float) -> None:
        """Write events as they become durable, until told to end; then the rest."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        try:
            while not self._ended.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(every_s, LOOK_S)):
                        await self._ended.wait()
                if len(host.core.record.events) >= ROWS or loop.time() - last >= every_s:
                    await self._write(host)
                    last = loop.time()
            await self._write(host)
        except AntecedeError as error:
            host.fail(error)

    def end(self) -> None:
        self._ended.set()

    async def _write(self, host: Host) -> None:
        events = list(host.core.record.events)
        if not events:
            return
        if len(host.core.view) > len(self._view):
            # Processes that joined: those before them keep their places.
            self._view = host.core.view
            self._run = replace(self._run, processes=self._view.names)
        await host.commits.wait(host.commits.position)
        # To the end, also if the node fails: the next one writes the same file.
        await outlast(asyncio.to_thread(self.write, events))
        host.happen(Recorded(events[-1].index + 1))

    def write(self, events: Sequence[Entry]) -> Path:
        """Make a file of these events, as far as they are in none."""
        layout = self._layout
        name = quote(f"{self._run.run}@{self._node}", safe="=,+@")
        path = layout.events / f"{events[0].index:012d}-{name}.parquet"
        if path.exists():
            rest = events[pq.read_metadata(path).num_rows :]
            return self.write(rest) if rest else path
        table = pa.Table.from_pylist([self._row(event) for event in events], schema=EVENTS)
        try:
            layout.events.mkdir(parents=True, exist_ok=True)
            pq.write_table(
                table.replace_schema_metadata({RUN_KEY: self._run.run.encode()}),
                layout.part(path),
                compression="zstd",
            )
            layout.show(path)
            self._enter()
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            left = f"events before {events[0].index} of {self._node} are in it"
            raise CannotWrite(f"trace {layout.root}", reason, left) from None
        return path

    def _enter(self) -> None:
        """Enter the run, unless another node did: all say the same of it, but some know more of the processes."""
        layout = self._layout
        with layout.lock():
            runs = read_runs(layout.root) if layout.runs.exists() else []
            [known] = [len(run.processes) for run in runs if run.run == self._run.run] or [0]
            if known < len(self._run.processes):
                others = [run for run in runs if run.run != self._run.run]
                runs = sorted([*others, self._run], key=lambda run: run.run.encode())
                pq.write_table(
                    pa.Table.from_pylist([run.row() for run in runs], schema=RUNS), layout.part(layout.runs)
                )
                layout.show(layout.runs)

    def _row(self, event: Entry) -> dict[str, Any]:
        name = self._view.name
        return {
            "run": self._run.run,
            "process": self._node,
            "index": event.index,
            "kind": event.kind,
            "sender": name(event.sender),
            "number": event.number,
            "to": [name(process) for process in event.to] if event.kind == "send" else None,
            "control": False,
            "time_ns": event.time_ns,
            "label": event.label or None,
        }
