"""TLS over any connection: for transports whose way leads through others, such as a broker.

Both ends prove their names to each other (`security`), and whoever carries the bytes can neither read nor change them.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any

from antecede.errors import BadHello
from antecede.net.transports.tls import name_of
from antecede.net.transports.transport import Connection

__all__ = ["Sealed"]

CHUNK = 1 << 16
"""Bytes that are read at a time."""


class Sealed:
    """One end of a connection, sealed."""

    def __init__(self, carrier: Connection, context: ssl.SSLContext, server: bool) -> None:
        self.proved: str | None = None
        self.certificate: Mapping[str, Any] | None = None
        self.origin, self.local = carrier.origin, carrier.local
        self._carrier = carrier
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server)
        # Parts of two records must not be mixed.
        self._writing = asyncio.Lock()

    async def open(self) -> None:
        await self._carrier.open()
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._fetch():
                    raise ConnectionResetError("it closed the connection") from None
            except ssl.SSLError as error:
                raise BadHello(
                    f"the TLS handshake failed: {error.reason or error}; give both nodes certificates of one authority"
                ) from None
        await self._flush()
        self.certificate = self._tls.getpeercert()
        self.proved = name_of(self.certificate)

    async def read(self) -> bytes:
        while True:
            try:
                return self._tls.read(CHUNK)
            except ssl.SSLWantReadError:
                # What TLS itself has to answer goes with the next write: a reader that waited for a writer, which
                # waits for the other end's reader, would wait for ever.
                if not await self._fetch():
                    return b""
            except ssl.SSLZeroReturnError:
                return b""

    async def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._tls.write(left) :]
        await self._flush()

    def close(self) -> None:
        self._carrier.close()

    async def _fetch(self) -> bool:
        data = await self._carrier.read()
        self._in.write(data)
        return bool(data)

    async def _flush(self) -> None:
        async with self._writing:
            if self._out.pending:
                await self._carrier.write(self._out.read())
