"""One connection over a pair of subjects of a NATS server: numbered messages, and a window of bytes.

A message is one byte for its kind, eight for its number (highest first), and a body.

  0 dial     how many bytes the other end may write, and the name of whoever dials; the first of its direction
  1 answer   how many bytes the other end may write; the first of the other direction
  2 data     bytes
  3 credit   how many bytes the other end may write, in all: `window` more than were read. A writer waits for it.
  4 end      the connection ends; what came before it can still be read
  5 reset    to one that publishes to a connection that is not there: it is not numbered

Data is cut into pieces that the server takes (`max_payload`). `nats` makes connections, and gives them what comes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["ANSWER", "CREDIT", "DATA", "DIAL", "END", "HEAD", "RESET", "WORD", "NatsConnection", "word"]

DIAL, ANSWER, DATA, CREDIT, END, RESET = range(6)
WORD = 8
HEAD = 1 + WORD
PIECE = 1 << 16
"""Bytes of a message, where the server takes more."""


class NatsConnection:
    """One end of a connection. `expected` is the number of the first message of the other end that is to come."""

    def __init__(
        self,
        client: Any,
        here: str,
        there: str,
        window: int,
        expected: int,
        forget: Callable[[], None],
        local: bool = False,
    ) -> None:
        self.proved: str | None = None
        self.certificate: Mapping[str, Any] | None = None
        self.origin, self.local = there.rpartition(".")[0], local
        self._client, self._here, self._there, self._window = client, here, there, window
        self._forget = forget
        self._piece = min(PIECE, client.max_payload - HEAD)
        self._expected, self._number = expected, 0
        self._arrived: deque[bytes] = deque()
        self._written = self._granted = 0
        """Bytes that we published, and that we may."""
        self._came = self._read = 0
        self._allowed = window
        """Bytes that came, of these read, and that the other end may publish."""
        self._dialled = expected == 0
        self._answered = self._ended = False
        self._failure: str | None = None
        self._last_words: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    async def open(self) -> None:
        """Answer who dialled. The broker proves nothing."""
        if not self._dialled:
            await self._publish(ANSWER, word(self._allowed))

    async def dial(self, name: str) -> None:
        """Wait until the peer answers."""
        await self._publish(DIAL, word(self._allowed) + name.encode())
        while not self._answered and not self._ended:
            await self._change()
        if not self._answered:
            raise ConnectionRefusedError(self._failure or "it closed the connection")

    async def read(self) -> bytes:
        while not self._arrived and not self._ended:
            await self._change()
        data = b"".join(self._arrived)
        self._arrived.clear()
        if not data and self._failure is not None:
            raise ConnectionResetError(self._failure)
        self._read += len(data)
        if 2 * (self._allowed - self._read) <= self._window and not self._ended:
            self._allowed = self._read + self._window
            await self._publish(CREDIT, word(self._allowed))
        return data

    async def write(self, data: bytes) -> None:
        start = 0
        while start < len(data):
            while self._written >= self._granted and not self._ended:
                await self._change()
            piece = data[start : start + min(self._piece, self._granted - self._written)]
            self._written += len(piece)
            start += len(piece)
            await self._publish(DATA, piece)

    def close(self) -> None:
        if not self._ended:
            self._last_words = asyncio.ensure_future(self._say(END))
            self._end(None)

    def break_off(self, reason: str) -> None:
        """End it, and tell whoever reads or writes."""
        if not self._ended:
            self._end(reason)

    def _end(self, reason: str | None) -> None:
        self._ended, self._failure = True, reason
        self._changed.set()
        self._forget()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _publish(self, kind: int, body: bytes) -> None:
        if self._ended:
            raise ConnectionResetError(self._failure or "the connection is closed")
        await self._say(kind, body)

    async def _say(self, kind: int, body: bytes = b"") -> None:
        """Publish. There is no pause between the number and the client's queue, so numbers leave in order."""
        head = bytes([kind]) + word(self._number)
        self._number += 1
        try:
            await self._client.publish(self._there, head + body, reply="" if kind == END else self._here)
        except Exception as error:  # The client has lost its server, which it says in many ways.
            self.break_off(f"the server is lost: {error}")
            if kind != END:
                raise ConnectionResetError(self._failure) from None

    def take(self, kind: int, number: int, body: bytes) -> None:
        """A message of the other end."""
        if kind == RESET:
            self.break_off("the peer does not know this connection")
        elif number != self._expected:
            self.break_off(f"message {number} came where {self._expected} was due: what is between is lost")
        else:
            self._expected += 1
            self._understand(kind, body)
            self._changed.set()

    def _understand(self, kind: int, body: bytes) -> None:
        if kind == DATA and self._came + len(body) <= self._allowed:
            self._came += len(body)
            self._arrived.append(body)
        elif kind == DATA:
            self.break_off(f"{self._came + len(body)} bytes came, where {self._allowed} are allowed")
        elif kind == CREDIT:
            self.allow(body)
        elif kind == ANSWER:
            self._answered = True
            self.allow(body)
        elif kind == END:
            self._end(None)
        else:
            self.break_off(f"a message of kind {kind} came")

    def allow(self, body: bytes) -> None:
        self._granted = max(self._granted, int.from_bytes(body[:WORD], "big"))


def word(number: int) -> bytes:
    return number.to_bytes(WORD, "big")
