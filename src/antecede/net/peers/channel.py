"""A connection with a peer that is in use, and what waits to be written to it.

Records that were put together leave in one write, at once where the connection can (`transport.Direct`). Where it
cannot, a task writes, and `writing` says since when the other end takes nothing.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from antecede.link import Frame, Link
from antecede.net.peers.session import Record, Session, pack, pack_frame
from antecede.net.transports.transport import Connection, Direct

__all__ = ["Channel"]


class Channel:
    """A connection in use, and what waits to be written to it."""

    def __init__(self, connection: Connection, session: Session, link: Link) -> None:
        self.connection, self.session, self.link = connection, session, link
        self.loop = asyncio.get_running_loop()
        self.heard = self.spoke = self.loop.time()
        self.writing: float | None = None
        """Since when a write waits for the other end to take it."""
        self.over = False
        """It was given up, and will end soon."""
        self.refused: str | None = None
        """Why the peer ends it, if it refuses what we say."""
        self.catching_up: asyncio.Task[None] | None = None
        self._direct = connection if isinstance(connection, Direct) else None
        self._out: list[bytes] = []
        self._wake = asyncio.Event()

    def put(self, record: Record) -> None:
        theirs, ours = self.session.agreed
        if isinstance(record, Frame):
            self._out += pack_frame(record, (ours, theirs), self.session.limits)
        else:
            self._out.append(pack(record))

    def flush(self) -> None:
        """Write what was put, or see that it will be."""
        if not self._out or self.writing is not None:
            return
        if self._direct is None:
            self._wake.set()
            return
        now = self.loop.time()
        if self._direct.put(self._take_gathered()):
            self.spoke = now
        else:
            self.writing = now
            self._wake.set()

    def _take_gathered(self) -> bytes:
        data = b"".join(self._out)
        self._out = []
        return data

    async def say(self, record: Record, patience_s: float) -> None:
        """Write a last record, after all that waits."""
        self.put(record)
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(patience_s):
                await self.connection.write(self._take_gathered())

    async def write(self) -> None:
        """Write what there is, all at once, until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                self.writing = loop.time()
                while True:
                    # Where a `Direct` was put too much into, there may be nothing to write, but something to wait for.
                    await self.connection.write(self._take_gathered() if self._out else b"")
                    if not self._out:
                        break
                self.spoke, self.writing = loop.time(), None
        except OSError:
            # The reader will see the end too.
            self.connection.close()
