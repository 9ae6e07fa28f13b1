"""TCP, and TLS over it: a node listens at one address, and dials its peers at theirs.

Beyond loopback there is no talking without TLS (`security`), unless the caller says that the network itself is safe.

>>> parse_address("localhost:7001"), parse_address("[::1]:7001")
(('localhost', 7001), ('::1', 7001))
>>> parse_address("localhost")
Traceback (most recent call last):
antecede.errors.BadParameter: peers: address is 'localhost', expected host:port
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping

from antecede.errors import BadHello, BadParameter
from antecede.net.security import Tls, is_loopback, name_of
from antecede.net.transport import Accept, Connection

__all__ = ["Tcp", "parse_address"]

CHUNK = 1 << 16
"""Bytes that are read at a time."""


def parse_address(address: str) -> tuple[str, int]:
    """Host and port."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise BadParameter("peers", "address", repr(address), "host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


class Tcp:
    """The transport of one node.

    `listen` is the node's own address; port 0 takes any that is free, and `address` then says which. `addresses` are
    the peers'. `plain=True` allows other machines to be talked to in plain text.

    >>> Tcp("0.0.0.0:7000", {})
    Traceback (most recent call last):
    antecede.errors.BadParameter: peers: address is 0.0.0.0:7000, expected one of this machine (loopback), or TLS
    """

    def __init__(
        self, listen: str | None, addresses: Mapping[str, str], tls: Tls | None = None, plain: bool = False
    ) -> None:
        self._listen = None if listen is None else parse_address(listen)
        self._addresses = addresses
        for address in [*addresses.values(), *([listen] if listen else [])]:
            if not is_loopback(parse_address(address)[0]) and tls is None and not plain:
                raise BadParameter("peers", "address", address, "one of this machine (loopback), or TLS")
        self._contexts = (
            (None, None) if tls is None else (tls.context(server=False), tls.context(server=True))
        )
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        """Where it listens, once it does."""
        if self._server is None or not self._server.sockets:
            raise BadParameter("node", "address", "none", "a node that listens")
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def listen(self, accept: Accept) -> None:
        if self._listen is None:
            return

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await accept(TcpConnection(reader, writer, self._contexts[1]))

        host, port = self._listen
        try:
            self._server = await asyncio.start_server(accepted, host, port, limit=CHUNK)
        except OSError as error:
            raise BadParameter("node", "address", f"{host}:{port}", f"one to listen at: {error}") from None

    async def connect(self, peer: str) -> Connection:
        if peer not in self._addresses:
            raise ConnectionError(f"no address of {peer} is known")
        host, port = parse_address(self._addresses[peer])
        reader, writer = await asyncio.open_connection(host, port, limit=CHUNK)
        return TcpConnection(reader, writer, self._contexts[0])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()


class TcpConnection:
    """One end of a TCP connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext | None
    ) -> None:
        self._reader, self._writer, self._context = reader, writer, context
        self.proved: str | None = None
        # Records are batched before they get here: to wait for more is only delay.
        raw = writer.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def open(self) -> None:
        # Nothing may be awaited before this: what the peer sends meanwhile would be read as plain text.
        if self._context is None:
            return
        try:
            await self._writer.start_tls(self._context, server_hostname="antecede")
        except ssl.SSLError as error:
            raise BadHello(f"no TLS: {error.reason or error}", "a certificate of our authority") from None
        self.proved = name_of(self._writer.get_extra_info("peercert"))

    async def read(self) -> bytes:
        return await self._reader.read(CHUNK)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def close(self) -> None:
        # What a peer does not take must not keep a connection that nobody wants any more.
        transport = self._writer.transport
        if transport.get_write_buffer_size():
            transport.abort()
        else:
            self._writer.close()
