"""Nodes that meet at a broker: connections over the subjects of a NATS server, where no node can reach another itself.

A node listens at the subjects `PREFIX.NAME.*`. A connection has an id of its own, and is a pair of subjects: each end
publishes to `PREFIX.OTHER.ID`. NATS promises to deliver at most once: what is under way when a server, a route between
servers or a slow reader fails is lost, and nobody is told. So a connection numbers what it publishes, and breaks at the
first number that is not the next one (`subjects`). Links then resume over another connection, as they do over TCP.

Rules
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
from collections.abc import Iterable
from contextlib import suppress
from os import PathLike, fspath
from random import Random
from typing import Any
from urllib.parse import quote, urlsplit

from antecede.errors import BadParameter
from antecede.net.settings import Backoff, Settings
from antecede.net.transports.nats_connection import DIAL, END, HEAD, RESET, WORD, NatsConnection, word
from antecede.net.transports.tls import Tls, is_loopback
from antecede.net.transports.tls_stream import Sealed
from antecede.net.transports.transport import Accept, Connection

__all__ = ["Nats", "make_token"]

log = logging.getLogger(__name__)

CONNECT_S = 2
LOOK_S = 1.0
"""How often a server that says nothing is looked at."""
END_S = 0.02
"""How long a client may take to end, once it has said that something is wrong."""
PING_S = 2
"""A server that answers two pings in a row with nothing is taken for dead."""
PENDING = 1 << 26
"""Bytes that have come and were not looked at, of all peers together. More are lost, which breaks connections."""
NOBODY = "503"
"""The status of a message that nobody listens for."""

ID = re.compile("[0-9a-f]{32}")
TOKEN = re.compile("[A-Za-z0-9_%~-]{1,1000}")


def make_token(name: str) -> str:
    """A name as one part of a subject.

    >>> make_token("orders"), make_token("eu.orders *")
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
    antecede.errors.BadParameter: nats: the server 10.0.0.1 is on another machine: give tls, or Nats(..., plain=True)
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
                raise BadParameter(
                    "nats", f"the server {host} is on another machine: give tls, or Nats(..., plain=True)"
                )
        if not all(TOKEN.fullmatch(part) for part in prefix.split(".")):
            raise BadParameter(
                "nats", f"prefix must be words of letters, digits, _ and -, joined by dots, not {prefix!r}"
            )
        if window < 1:
            raise BadParameter("nats", f"window must be 1 byte or more, not {window}")
        self._tls, self._local = tls, all(is_loopback(_host(url)) for url in self._urls)
        self._client_class = _client_class()
        self._name, self._prefix, self._window = name, prefix, window
        self._credentials = None if credentials is None else fspath(credentials)
        self._contexts = (
            (None, None) if tls is None else (tls.context(server=False), tls.context(server=True))
        )
        self._backoff = Backoff(settings or Settings(), Random())
        self._client: Any = None
        self._taking: asyncio.Task[Any] | None = None
        self._accept: Accept | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._connections: dict[str, NatsConnection] = {}
        self._accepted: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """The subject under which it listens."""
        return f"{self._prefix}.{make_token(self._name)}"

    def origins(self, peers: Iterable[str]) -> set[str]:
        """Their subjects. Whoever dials says which is its own, and proves it with `tls`."""
        return {f"{self._prefix}.{make_token(peer)}" for peer in peers}

    def check_name(self, name: str) -> None:
        """Raise `BadParameter` unless our certificate is one of this name that peers believe."""
        if self._tls is not None:
            self._tls.check_name(name)

    async def listen(self, accept: Accept) -> None:
        """Take connections. A server that is not there is looked for until it is."""
        self._accept = accept
        attempted = asyncio.Event()
        self._keeping = asyncio.ensure_future(self._keep(attempted))
        await attempted.wait()

    async def connect(self, peer: str) -> Connection:
        if self._client is None:
            raise ConnectionRefusedError(f"there is no connection to {self._where}")
        connection = self._connection(self._client, secrets.token_hex(16), make_token(peer), expected=0)
        try:
            await connection.dial(make_token(self._name))
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
                except Exception:  # To look for a server again is right, whatever is wrong with this one.
                    log.exception("%s gives up its connection to NATS at %s", self._name, self._where)
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
        probe, probed = secrets.token_hex(16), asyncio.get_running_loop().create_future()

        async def take(message: Any) -> None:
            if message.subject.endswith(probe):
                # What runs this is ours to end, should the client fail while it closes.
                self._taking = asyncio.current_task()
                if not probed.done():
                    probed.set_result(None)
            else:
                await self._take(client, message)

        await client.subscribe(f"{self.address}.*", cb=take, pending_bytes_limit=PENDING)
        # Once our own message comes back, the server knows that we listen.
        await client.publish(f"{self.address}.{probe}", b"")
        async with asyncio.timeout(CONNECT_S):
            await probed
        return client

    async def _lose(self, client: Any) -> None:
        self._client = None
        for connection in list(self._connections.values()):
            connection.break_off("the server is lost")
        # What was published has left by then: such as ends of connections.
        try:
            await client.close()
        except Exception as error:  # It may fail to write to a server that is gone, and leave a task behind.
            log.debug("%s: NATS: %r", self._name, error)
        if self._taking is not None:
            self._taking.cancel()

    # Messages

    def _connection(self, client: Any, id: str, peer: str, expected: int) -> NatsConnection:
        here, there = f"{self.address}.{id}", f"{self._prefix}.{peer}.{id}"

        def forget() -> None:
            self._connections.pop(id, None)

        connection = NatsConnection(client, here, there, self._window, expected, forget, self._local)
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
                connection.break_off("nobody listens there")
        elif len(data) >= HEAD:
            kind, number, body = data[0], int.from_bytes(data[1:HEAD], "big"), data[HEAD:]
            if connection is not None:
                connection.take(kind, number, body)
            elif kind == DIAL:
                self._hear_dial(client, id, number, body)
            elif kind not in (RESET, END) and message.reply:
                await self._reset(client, id, message.reply)

    def _hear_dial(self, client: Any, id: str, number: int, body: bytes) -> None:
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
            await client.publish(reply, bytes([RESET]) + word(0))


def _host(url: str) -> str:
    """
    >>> _host("nats://ann:secret@localhost:4222")
    'localhost'
    """
    parts = urlsplit(url)
    if parts.scheme not in ("nats", "tls") or not parts.hostname:
        # Not the address itself, which may have a password in it.
        raise BadParameter("nats", f"url must be nats://host:port, and has the scheme {parts.scheme!r}")
    return parts.hostname


def _client_class() -> Any:
    try:
        from nats.aio.client import Client
    except ImportError:
        raise BadParameter("nats", "nats-py is not installed: pip install 'antecede[nats]'") from None
    return Client


async def _until_lost(client: Any, lost: asyncio.Event) -> None:
    while client.is_connected:
        # Not all the ways in which a client ends are told; what is told may come before its end.
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await lost.wait()
            await asyncio.sleep(END_S)
        lost.clear()
