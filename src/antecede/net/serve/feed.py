"""A node's live feed: what it records, over TCP, to whoever reads it (`antecede.wire.feed` has the format).

It serves the files of the node's trace, so all that it says is durable, stays as it is, and can be asked for again: a
reader keeps its own place, and nothing is kept for it here. New events are there every `Settings.trace_s`.

Rules
  bounded   one question a connection (`answering`), `PATIENCE_S` for it and for each part of the answer; one part of a
            file in memory for each. A reader that is slow is waited for, and one that stops is cut off.
  safe      beyond loopback over mutual TLS (`security`), with any certificate of the authority; it changes nothing
"""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_right
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from antecede.errors import AntecedeError, BadParameter
from antecede.net.serve.listener import Answering
from antecede.net.transports.tcp import parse_address
from antecede.net.transports.tls import Tls, is_loopback
from antecede.trace import EVENTS
from antecede.trace.layout import Layout
from antecede.wire.feed import LINE_BYTES, Answer, Question, question, tell

__all__ = ["Feed", "Shelf"]

PATIENCE_S = 30.0
ROWS = 4096
"""Events that are read at a time."""


class Shelf:
    """The files of one node in a trace, by the index of their first event. They follow each other without gaps."""

    def __init__(self, trace: str | os.PathLike[str], run: str, node: str) -> None:
        self._events = Layout(trace).events
        self._suffix = f"-{quote(f'{run}@{node}', safe='=,+@')}.parquet"
        self._starts: list[int] = []
        self.next = 0

    @property
    def first(self) -> int:
        return self._starts[0] if self._starts else 0

    def look(self) -> None:
        """Find what has appeared."""
        if not self._starts:
            # The oldest may have been cleared away.
            names = (path.name for path in self._events.glob(f"[!.]*{self._suffix}"))
            heads = (name.removesuffix(self._suffix) for name in names)
            # The names of other runs may end like this one's.
            self.next = min((int(head) for head in heads if head.isdecimal()), default=0)
        while (path := self._path(self.next)).exists():
            self._starts.append(self.next)
            self.next += pq.read_metadata(path).num_rows

    def read(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """The events from `start` to before `end`."""
        for at in range(max(0, bisect_right(self._starts, start) - 1), len(self._starts)):
            index = self._starts[at]
            if index >= end:
                return
            with pq.ParquetFile(self._path(index)) as file:
                for batch in file.iter_batches(ROWS, columns=EVENTS.names):
                    low, high = max(start - index, 0), min(end - index, len(batch))
                    index += len(batch)
                    if low < high:
                        columns = batch.slice(low, high - low).columns
                        yield pa.RecordBatch.from_arrays(
                            [column.cast(field.type) for column, field in zip(columns, EVENTS, strict=True)],
                            schema=EVENTS,
                        )

    def _path(self, index: int) -> Path:
        return self._events / f"{index:012d}{self._suffix}"


class Feed(Answering):
    """Serves what a node records, at an address."""

    kind = "feed"

    def __init__(
        self, address: str, trace: str | os.PathLike[str], run: str, node: str, tls: Tls | None = None
    ) -> None:
        if not is_loopback(parse_address(address)[0]) and tls is None:
            raise BadParameter(
                "feed",
                f"{address} is reached from other machines: give an address of this machine (loopback), or TLS",
            )
        super().__init__(address, LINE_BYTES, None if tls is None else tls.context(server=True))
        self._shelf, self._run, self._node = Shelf(trace, run, node), run, node
        self._looking = asyncio.Lock()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                asked = question(await reader.readuntil(b"\n"))
            async with self._looking:
                await asyncio.to_thread(self._shelf.look)
            self._check(asked)
        except (AntecedeError, pa.ArrowException) as error:
            await self._write(writer, tell(Answer(error=str(error))))
            return
        shelf = self._shelf
        await self._write(writer, tell(Answer(self._node, self._run, shelf.first, shelf.next)))
        if asked.end > asked.start:
            await self._events(writer, asked)

    def _check(self, asked: Question) -> None:
        first, after = self._shelf.first, self._shelf.next
        if asked.end > asked.start and not first <= asked.start < asked.end <= after:
            raise BadParameter(
                "feed", f"{self._node} has events {first} to {after}, not {asked.start} to {asked.end}"
            )

    async def _events(self, writer: asyncio.StreamWriter, asked: Question) -> None:
        sink = BytesIO()
        batches = self._shelf.read(asked.start, asked.end)
        with pa.ipc.new_stream(sink, EVENTS) as stream:
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                stream.write_batch(batch)
                await self._write(writer, _take_bytes(sink))
        await self._write(writer, _take_bytes(sink))

    async def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(data)
        async with asyncio.timeout(PATIENCE_S):
            await writer.drain()


def _take_bytes(sink: BytesIO) -> bytes:
    """What was written so far, which is then forgotten."""
    data = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return data
