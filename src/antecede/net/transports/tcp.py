"""TCP, and TLS over it: a node listens at one address, and dials its peers at theirs.

Beyond loopback there is no talking without TLS (`security`), unless the caller says that the network itself is safe.

>>> parse_address("localhost:7001"), parse_address("[::1]:7001")
(('localhost', 7001), ('::1', 7001))
>>> parse_address("localhost")
Traceback (most recent call last):
antecede.errors.BadParameter: peers: an address must be host:port, not 'localhost'
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from antecede.errors import BadHello, BadParameter, CannotListen, WrongType
from antecede.net.transports.tls import Tls, is_loopback, name_of
from antecede.net.transports.transport import Accept, Connection

__all__ = ["Tcp", "parse_address"]

CHUNK = 1 << 19
"""Bytes that are read at a time, at most."""
UNREAD = 1 << 16
"""Bytes that wait for `read`, before no more are taken from the network."""


def parse_address(address: str) -> tuple[str, int]:
    """Host and port."""
    if not isinstance(address, str):
        raise WrongType("an address", "text, as in host:port", address)
    host, colon, port = address.rpartition(":")
    is_port = port.isdecimal() and len(port) <= 5 and int(port) <= 65535
    if not colon or not 0 < len(host) < 256 or not host.isprintable() or not is_port:
        raise BadParameter("peers", f"an address must be host:port, not {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


class Tcp:
    """The transport of one node.

    `listen` is the node's own address; port 0 takes any that is free, and `address` then says which. `addresses` are
    the peers'. `plain=True` allows other machines to be talked to in plain text.

    >>> Tcp("0.0.0.0:7000", {})
    Traceback (most recent call last):
    antecede.errors.BadParameter: peers: 0.0.0.0:7000 is on another machine, or reached from one: give TLS (in \
Python also transport=Tcp(..., plain=True))
    """

    def __init__(
        self, listen: str | None, addresses: Mapping[str, str], tls: Tls | None = None, plain: bool = False
    ) -> None:
        self._listen = None if listen is None else parse_address(listen)
        # The caller may fill it later, and so may we: one dict, if it is one.
        self._addresses = addresses if isinstance(addresses, dict) else dict(addresses)
        self._guarded = tls is None and not plain
        for address in [*addresses.values(), *([listen] if listen else [])]:
            self.check(address)
        self._contexts = (
            (None, None) if tls is None else (tls.context(server=False), tls.context(server=True))
        )
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._chunk = bytearray(CHUNK)

    @property
    def address(self) -> str:
        """Where it listens, once it does."""
        if self._server is None or not self._server.sockets:
            raise BadParameter("node", "it has no address, because it does not listen: start it first")
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def origins(self, peers: Iterable[str]) -> set[str]:
        """Their hosts, and loopback, where whoever is on this machine comes from."""
        known = (self._addresses[peer] for peer in peers if peer in self._addresses)
        return {"127.0.0.1", "::1", *(parse_address(address)[0] for address in known)}

    def check_name(self, name: str) -> None:
        """Raise `BadParameter` unless our certificate is one of this name that peers believe."""
        if self._tls is not None:
            self._tls.check_name(name)

    def check(self, address: str) -> None:
        """Raise `BadParameter` if this address is on another machine, and neither TLS nor `plain` is given."""
        if not is_loopback(parse_address(address)[0]) and self._guarded:
            raise BadParameter(
                "peers",
                f"{address} is on another machine, or reached from one: give TLS (in Python also "
                "transport=Tcp(..., plain=True))",
            )

    def learn(self, peer: str, address: str) -> None:
        """Note where a peer that joined is found."""
        self.check(address)
        self._addresses[peer] = address

    async def listen(self, accept: Accept) -> None:
        if self._listen is None:
            return

        host, port = self._listen
        try:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(
                lambda: TcpConnection(self._chunk, self._contexts[1], accept), host, port
            )
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise CannotListen("node", f"{host}:{port}", reason) from None

    async def connect(self, peer: str) -> Connection:
        if peer not in self._addresses:
            raise ConnectionError(f"no address of {peer} is known")
        host, port = parse_address(self._addresses[peer])
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: TcpConnection(self._chunk, self._contexts[0], None), host, port
        )
        return connection

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()


class TcpConnection(asyncio.BufferedProtocol):
    """One end of a TCP connection. `accept` is run for it if a peer dialled.

    All connections of a node are read into one `chunk`, since each is done with it before the next is read.
    """

    def __init__(self, chunk: bytearray, context: ssl.SSLContext | None, accept: Accept | None) -> None:
        self._chunk, self._context, self._accept = memoryview(chunk), context, accept
        self.proved: str | None = None
        self.certificate: Mapping[str, Any] | None = None
        self.origin, self.local = "", False
        self._unread = bytearray()
        self._take: Callable[[bytes | memoryview], None] | None = None
        self._ended = self._full = False
        """Nothing more comes; the other end takes nothing at the moment."""
        self._error: Exception | None = None
        self._changed = asyncio.Event()

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.origin = str((transport.get_extra_info("peername") or ("",))[0])
        self.local = is_loopback(self.origin)
        # Records are batched before they get here: to wait for more is only delay.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._accept is not None:
            self._accepted = asyncio.ensure_future(self._accept(self))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._chunk

    def buffer_updated(self, nbytes: int) -> None:
        if self._error is not None:
            # To leave it unread would reset the connection when it is closed, and lose the word that says why.
            return
        if self._take is None:
            self._unread += self._chunk[:nbytes]
            if len(self._unread) > UNREAD:
                self._transport.pause_reading()
            self._changed.set()
            return
        try:
            self._take(self._chunk[:nbytes])
        except Exception as error:
            self._take, self._error = None, error
            self._changed.set()

    def eof_received(self) -> bool:
        self._ended = True
        self._changed.set()
        # TLS has no half of a connection.
        return self._context is None

    def connection_lost(self, error: Exception | None) -> None:
        self._ended, self._full = True, False
        self._error = self._error or error
        self._changed.set()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._changed.set()

    # What a node calls

    async def open(self) -> None:
        # Nothing may be awaited before this: what the peer sends meanwhile would be read as plain text.
        if self._context is None:
            return
        server = self._accept is not None
        try:
            transport = await asyncio.get_running_loop().start_tls(
                self._transport,
                self,
                self._context,
                server_side=server,
                server_hostname=None if server else "antecede",
            )
        except ssl.SSLError as error:
            raise BadHello(
                f"the TLS handshake failed: {error.reason or error}; give both nodes certificates of one authority"
            ) from None
        if transport is None:
            raise ConnectionResetError("the connection was lost while names were proved")
        self._transport = transport
        self.certificate = transport.get_extra_info("peercert")
        self.proved = name_of(self.certificate)

    async def read(self) -> bytes:
        while not self._unread and not self._ended and self._error is None:
            await self._change()
        if not self._unread and self._error is not None:
            raise self._error
        data = bytes(self._unread)
        self._unread.clear()
        if not self._transport.is_closing():
            self._transport.resume_reading()
        return data

    async def write(self, data: bytes) -> None:
        self.put(data)
        while self._full:
            await self._change()
        if self._transport.is_closing():
            raise ConnectionResetError("the connection is lost")

    def put(self, data: bytes) -> bool:
        if not self._transport.is_closing():
            self._transport.write(data)
        return not self._full

    def push(self, take: Callable[[bytes | memoryview], None]) -> None:
        if self._unread:
            data = bytes(self._unread)
            self._unread.clear()
            take(data)
        self._take = take
        self.release()

    def hold(self) -> None:
        self._transport.pause_reading()

    def release(self) -> None:
        if not self._transport.is_closing() and self._error is None:
            self._transport.resume_reading()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def close(self) -> None:
        # What a peer does not take must not keep a connection that nobody wants any more.
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()
