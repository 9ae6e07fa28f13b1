"""Nodes that meet at a broker: connections over the subjects of a NATS server, where no node can reach another itself.

A node listens at the subjects `PREFIX.NAME.*`. A connection has an id of its own, and is a pair of subjects: each end
publishes to `PREFIX.OTHER.ID`. NATS promises to deliver at most once: what is under way when a server, a route between
servers or a slow reader fails is lost, and nobody is told. So a connection numbers what it publishes, and breaks at the
first number that is not the next one. Links then resume over another connection, as they do over TCP.

A message is one byte for its kind, eight for its number (highest first), and a body.

  0 dial     how many bytes the other end may write, and the name of whoever dials; the first of its direction
  1 answer   how many bytes the other end may write; the first of the other direction
  2 data     bytes
  3 credit   how many bytes the other end may write, in all: `window` more than were read. A writer waits for it.
  4 end      the connection ends; what came before it can still be read
  5 reset    to one that publishes to a connection that is not there: it is not numbered

Rules
  size       data is cut into pieces that the server takes (`max_payload`)
  lost peer  each message says where an answer would go; if nobody listens there any more, the server says so at once.
             A peer that started again does not know the connection, and answers with a reset.
  lost server  breaks all connections; the node looks for a server again, after times that double and have chance in
             them
  names      the broker proves none. With `tls`, nodes prove them to each other, end to end (`sealed`), and need not
             trust the broker; beyond loopback there is no talking without.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from os import PathLike, fspath
from random import Random
from typing import Any
from urllib.parse import quote, urlsplit

from antecede.errors import BadParameter
from antecede.net.sealed import Sealed
from antecede.net.security import Tls, is_loopback
from antecede.net.settings import Backoff, Settings
from antecede.net.transport import Accept, Connection

__all__ = ["Nats", "token"]

log = logging.getLogger("antecede.net")

DIAL, ANSWER, DATA, CREDIT, END, RESET = range(6)
WORD = 8
HEAD = 1 + WORD
PIECE = 1 << 16
"""Bytes of a message, where the server takes more."""
CONNECT_S = 2
LOOK_S = 0.1
PING_S = 2
"""A server that answers two pings in a row with nothing is taken for dead."""
PENDING = 1 << 26
"""Bytes that have come and were not looked at, of all peers together. More are lost, which breaks connections."""
NOBODY = "503"
"""The status of a message that nobody listens for."""

ID = re.compile("[0-9a-f]{32}")
TOKEN = re.compile("[A-Za-z0-9_%~-]{1,1000}")


def token(name: str) -> str:
    """A name as one part of a subject.

    >>> token("orders"), token("eu.orders *")
    ('orders', 'eu%2Eorders%20%2A')
    """
    return quote(name, safe="").replace(".", "%2E")


class Nats:
    """The transport of one node.

    `url` is a server's, or several with commas between, such as `nats://127.0.0.1:4222`; a user and a password may be
    in it, or `credentials` is a file of NATS. All nodes of a system use one `prefix`. `plain=True` allows to talk
    through a server on another machine without `tls`. `window` is how many bytes may be under way to us from one peer.

    >>> Nats("nats://10.0.0.1:4222", "orders")
    Traceback (most recent call last):
    antecede.errors.BadParameter: nats: server is 10.0.0.1, expected one of this machine (loopback), or tls
    """

    def __init__(
        self,
        url: str,
        name: str,
        *,
        prefix: str = "antecede",
        tls: Tls | None = None,
        credentials: str | PathLike[str] | None = None,
        plain: bool = False,
        window: int = 1 << 19,
        settings: Settings | None = None,
    ) -> None:
        self._urls = [part.strip() for part in url.split(",")]
        for host in map(_host, self._urls):
            if not is_loopback(host) and tls is None and not plain:
                raise BadParameter("nats", "server", host, "one of this machine (loopback), or tls")
        if not all(TOKEN.fullmatch(part) for part in prefix.split(".")):
            raise BadParameter("nats", "prefix", repr(prefix), "words of letters, digits, _ and -, and dots")
        if window < 1:
            raise BadParameter("nats", "window", window, "1 or more bytes")
        self._client_class = _client_class()
        self._name, self._prefix, self._window = name, prefix, window
        self._credentials = None if credentials is None else fspath(credentials)
        self._contexts = (
            (None, None) if tls is None else (tls.context(server=False), tls.context(server=True))
        )
        self._backoff = Backoff(settings or Settings(), Random())
        self._client: Any = None
        self._subscription: Any = None
        self._accept: Accept | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._connections: dict[str, NatsConnection] = {}
        self._accepted: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """The subject under which it listens."""
        return f"{self._prefix}.{token(self._name)}"

    async def listen(self, accept: Accept) -> None:
        """Take connections. A server that is not there is looked for until it is."""
        self._accept = accept
        attempted = asyncio.Event()
        self._keeping = asyncio.ensure_future(self._keep(attempted))
        await attempted.wait()

    async def connect(self, peer: str) -> Connection:
        if self._client is None:
            raise ConnectionRefusedError(f"there is no connection to {self._where}")
        connection = self._connection(self._client, secrets.token_hex(16), token(peer), expected=0)
        try:
            await connection.dial(token(self._name))
        except BaseException:
            connection.close()
            raise
        return self._seal(connection, server=False)

    async def close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})

    # The server

    @property
    def _where(self) -> str:
        return ", ".join(map(_host, self._urls))

    async def _keep(self, attempted: asyncio.Event) -> None:
        """Have a connection to a server, until cancelled."""
        while True:
            lost = asyncio.Event()
            try:
                client = await self._reach(lost)
            except Exception as error:  # The client raises errors of many kinds, and of its own.
                log.warning("%s cannot reach NATS at %s: %s", self._name, self._where, error)
            else:
                self._backoff.reset()
                self._client = client
                attempted.set()
                try:
                    await _until_lost(client, lost)
                    log.warning("%s has lost NATS at %s: %s", self._name, self._where, client.last_error)
                finally:
                    await self._lose(client)
            attempted.set()
            await asyncio.sleep(self._backoff.next())

    async def _reach(self, lost: asyncio.Event) -> Any:
        async def gone(error: Exception | None = None) -> None:
            # The client reports what it also raises, what breaks connections, and its end.
            log.debug("%s: NATS: %r", self._name, error)
            lost.set()

        client = self._client_class()
        more = {} if self._credentials is None else {"user_credentials": self._credentials}
        # Its own way to come back would hide from connections that they have lost something.
        await client.connect(
            self._urls,
            name=f"antecede {self._name}",
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=CONNECT_S,
            ping_interval=PING_S,
            closed_cb=gone,
            error_cb=gone,
            # Windows bound what waits here. A writer that waits inside the client could not be cancelled.
            pending_size=1 << 40,
            **more,
        )
        take = partial(self._take, client)
        self._subscription = await client.subscribe(f"{self.address}.*", cb=take, pending_bytes_limit=PENDING)
        # The ping of a flush passes what waits to be written: only the second comes after the subscription.
        await client.flush(CONNECT_S)
        await client.flush(CONNECT_S)
        return client

    async def _lose(self, client: Any) -> None:
        self._client = None
        for connection in list(self._connections.values()):
            connection.broken("the server is lost")
        await _bury(client, self._subscription)

    # Messages

    def _connection(self, client: Any, id: str, peer: str, expected: int) -> NatsConnection:
        here, there = f"{self.address}.{id}", f"{self._prefix}.{peer}.{id}"

        def forget() -> None:
            self._connections.pop(id, None)

        connection = NatsConnection(client, here, there, self._window, expected, forget)
        self._connections[id] = connection
        return connection

    def _seal(self, connection: NatsConnection, server: bool) -> Connection:
        context = self._contexts[server]
        return connection if context is None else Sealed(connection, context, server)

    async def _take(self, client: Any, message: Any) -> None:
        """What came for one of our connections, or for none."""
        id, data = message.subject.rpartition(".")[2], message.data
        connection = self._connections.get(id)
        if message.headers and message.headers.get("Status") == NOBODY:
            if connection is not None:
                connection.broken("nobody listens there")
        elif len(data) >= HEAD:
            kind, number, body = data[0], int.from_bytes(data[1:HEAD], "big"), data[HEAD:]
            if connection is not None:
                connection.take(kind, number, body)
            elif kind == DIAL:
                self._dialled(client, id, number, body)
            elif kind not in (RESET, END) and message.reply:
                await self._reset(client, id, message.reply)

    def _dialled(self, client: Any, id: str, number: int, body: bytes) -> None:
        peer = body[WORD:].decode("ascii", errors="replace")
        if self._accept is None or number or not ID.fullmatch(id) or not TOKEN.fullmatch(peer):
            return
        connection = self._connection(client, id, peer, expected=1)
        connection.allow(body[:WORD])
        task = asyncio.ensure_future(self._accept(self._seal(connection, server=True)))
        self._accepted.add(task)
        task.add_done_callback(self._accepted.discard)

    async def _reset(self, client: Any, id: str, reply: str) -> None:
        """Tell a peer that its connection is not here; at no other subject, whatever a stranger wants."""
        peer = reply.removeprefix(f"{self._prefix}.").removesuffix(f".{id}")
        if ID.fullmatch(id) and TOKEN.fullmatch(peer) and reply == f"{self._prefix}.{peer}.{id}":
            await client.publish(reply, bytes([RESET]) + _word(0))


class NatsConnection:
    """One end of a connection. `expected` is the number of the first message of the other end that is to come."""

    def __init__(
        self, client: Any, here: str, there: str, window: int, expected: int, forget: Callable[[], None]
    ) -> None:
        self.proved: str | None = None
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
            await self._publish(ANSWER, _word(self._allowed))

    async def dial(self, name: str) -> None:
        """Wait until the peer answers."""
        await self._publish(DIAL, _word(self._allowed) + name.encode())
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
            await self._publish(CREDIT, _word(self._allowed))
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

    def broken(self, reason: str) -> None:
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
        head = bytes([kind]) + _word(self._number)
        self._number += 1
        try:
            await self._client.publish(self._there, head + body, reply="" if kind == END else self._here)
        except Exception as error:  # The client has lost its server, which it says in many ways.
            self.broken(f"the server is lost: {error}")
            if kind != END:
                raise ConnectionResetError(self._failure) from None

    def take(self, kind: int, number: int, body: bytes) -> None:
        """A message of the other end."""
        if kind == RESET:
            self.broken("the peer does not know this connection")
        elif number != self._expected:
            self.broken(f"message {number} came where {self._expected} was due: what is between is lost")
        else:
            self._expected += 1
            self._understand(kind, body)
            self._changed.set()

    def _understand(self, kind: int, body: bytes) -> None:
        if kind == DATA and self._came + len(body) <= self._allowed:
            self._came += len(body)
            self._arrived.append(body)
        elif kind == DATA:
            self.broken(f"{self._came + len(body)} bytes came, where {self._allowed} are allowed")
        elif kind == CREDIT:
            self.allow(body)
        elif kind == ANSWER:
            self._answered = True
            self.allow(body)
        elif kind == END:
            self._end(None)
        else:
            self.broken(f"a message of kind {kind} came")

    def allow(self, body: bytes) -> None:
        self._granted = max(self._granted, int.from_bytes(body[:WORD], "big"))


def _word(number: int) -> bytes:
    return number.to_bytes(WORD, "big")


def _host(url: str) -> str:
    """
    >>> _host("nats://ann:secret@localhost:4222")
    'localhost'
    """
    parts = urlsplit(url)
    if parts.scheme not in ("nats", "tls") or not parts.hostname:
        # Not the address itself, which may have a password in it.
        raise BadParameter("nats", "url", f"of the scheme {parts.scheme!r}", "nats://host:port")
    return parts.hostname


def _client_class() -> Any:
    try:
        from nats.aio.client import Client
    except ImportError:
        raise BadParameter("nats", "transport", "without nats-py", "pip install 'antecede[nats]'") from None
    return Client


async def _until_lost(client: Any, lost: asyncio.Event) -> None:
    while client.is_connected:
        # Not all the ways in which a client ends are told.
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await lost.wait()
        lost.clear()
        await asyncio.sleep(0)


async def _bury(client: Any, subscription: Any) -> None:
    """Close a client, once what was published has left: such as ends of connections."""
    await client.close()
    # One that fails while it closes leaves its tasks and its socket behind.
    subscription._stop_processing()
    client._transport.close()
    for task in (client._flusher_task, client._reading_task):
        if task.done() and not task.cancelled():
            task.exception()
