"""A node behind a local socket: clients on this machine, in any language, by the lines of `lines`.

Rules
  who       the socket is a file that only its owner may open (0600), before anyone can connect to it: who can open
            it may do everything
  many      up to `AT_A_TIME` clients at once; each gets the answers to its own requests
  one       messages go to the one client that asked for them ({"do": "receive"}). When it goes, the next one that asks
            gets again, first and in their order, those that were not acknowledged; any client may acknowledge
  end       a client that closes its end has its sends made first. A node that closes says `closed` to all, and one
            that fails `failed`, with the reason
  slow      a client that does not read holds up its own answers, and what is handed over to it; nobody else

The file of a node that was killed is taken over; one where something listens is not.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from antecede.errors import AntecedeError, BadParameter, CannotListen
from antecede.net.node import Node
from antecede.net.serve.lines import LONGEST, Desk, Lines, last_word, ready

__all__ = ["Local"]

AT_A_TIME = 64
LAST_WORD_S = 1.0
"""How long a client has to take the last event."""


class Local:
    """Serves a node that runs, at a path, while in it."""

    def __init__(self, node: Node, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._node, self._desk = node, Desk(node)
        self._clients: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Local:
        self._check_free()
        door = socket.socket(socket.AF_UNIX)
        try:
            self.path.unlink(missing_ok=True)
            door.bind(str(self.path))
            # Nobody can connect before it listens: so nobody could while the file was open to others.
            self.path.chmod(0o600)
            self._server = await asyncio.start_unix_server(self._serve, sock=door, limit=LONGEST)
        except OSError as error:
            door.close()
            raise CannotListen("socket", str(self.path), error.strerror or str(error)) from None
        self._minding = asyncio.ensure_future(self._mind())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._minding.cancel()
        await self._end()
        self.path.unlink(missing_ok=True)

    async def _mind(self) -> None:
        """End with the node."""
        with suppress(AntecedeError):
            await self._node.wait_closed()
        await self._end()

    async def _end(self) -> None:
        """Say the last word to all clients, and take no other."""
        self._server.close()
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    def _check_free(self) -> None:
        """Refuse a path that is taken: asyncio would remove the socket of another node."""
        try:
            if not stat.S_ISSOCK(self.path.stat().st_mode):
                raise BadParameter("node", f"{self.path} is a file and no socket: give another path")
        except FileNotFoundError:
            return
        with socket.socket(socket.AF_UNIX) as probe, suppress(ConnectionRefusedError):
            probe.connect(str(self.path))
            raise CannotListen("socket", str(self.path), "another process listens there")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        writing = asyncio.Lock()

        async def say(event: dict[str, Any]) -> None:
            async with writing:
                writer.write(msgspec.json.encode(event) + b"\n")
                await writer.drain()

        lines = Lines(self._node, say, self._desk)
        try:
            # Cancelled is how it ends when the node does.
            with suppress(OSError, asyncio.CancelledError):
                if len(self._clients) > AT_A_TIME:
                    await lines.refuse(f"the socket has {AT_A_TIME} clients, its most: close one first")
                else:
                    await say(ready(self._node))
                    await self._listen(reader, lines)
            await lines.end()
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(LAST_WORD_S):
                    await say(last_word(self._node))
        finally:
            self._clients.discard(task)
            writer.close()

    async def _listen(self, reader: asyncio.StreamReader, lines: Lines) -> None:
        try:
            while line := await reader.readline():
                if line.strip():
                    await lines.request(line)
        except ValueError:
            # What is too long is no request, and where the next one begins cannot be known.
            await lines.refuse(f"the line has more than {LONGEST} bytes: send less in one request")
            return
        await lines.finish()
