"""Answers one question a connection, at an address: what `health` and `feed` have in common.

Bounded: `AT_A_TIME` connections, more are closed at once; a question of so many bytes. Whoever asks may be slow, break
off or send nonsense: that ends its connection and nothing else. An answer that fails for another reason is logged.
How long it is waited for, the answer says.
"""

from __future__ import annotations

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from contextlib import suppress
from ssl import SSLContext
from typing import Self

from antecede.errors import CannotListen
from antecede.net.transports.tcp import parse_address

__all__ = ["AT_A_TIME", "Answering"]

log = logging.getLogger(__name__)

AT_A_TIME = 16


class Answering(ABC):
    """Listens while it is entered. `kind` is what the address is called where it is configured."""

    kind: str

    def __init__(self, address: str, question_bytes: int, context: SSLContext | None = None) -> None:
        self._at, self._limit, self._context = parse_address(address), question_bytes, context
        self._busy = 0

    @abstractmethod
    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None: ...

    async def __aenter__(self) -> Self:
        host, port = self._at
        try:
            self._server = await asyncio.start_server(
                self._serve, host, port, limit=self._limit, ssl=self._context
            )
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise CannotListen(self.kind, f"{host}:{port}", reason) from None
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    @property
    def address(self) -> str:
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._busy += 1
        try:
            if self._busy <= AT_A_TIME:
                with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                    await self._answer(reader, writer)
        except Exception:
            log.exception("%s at %s cannot answer", self.kind, self.address)
        finally:
            self._busy -= 1
            writer.close()
