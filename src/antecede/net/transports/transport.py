"""How bytes get from one node to another: the one small interface, and the transport within a program.

A transport dials and listens; a connection reads and writes. It may lose, at its end, whatever was under way, but
within itself it neither loses nor reorders. Nothing else is asked: links number frames, sessions find where they end.

  `Memory`         nodes of one program: for tests, notebooks and examples
  `tcp.Tcp`        TCP, and TLS over it
  `nats.Nats`      a NATS server, where nodes meet

`Connection.proved` is the name that the other end has proved to have, None where the transport proves nothing.
`Connection.origin` is where the other end is, as far as the transport knows; `local` whether that is this machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

from antecede.errors import BadParameter

__all__ = ["Accept", "Certified", "Connection", "Direct", "Learns", "Memory", "MemoryTransport", "Transport"]


class Connection(Protocol):
    """One connection, seen from one end."""

    proved: str | None
    certificate: Mapping[str, Any] | None
    """What the other end proved its name with, as `ssl.SSLSocket.getpeercert` gives it."""
    origin: str
    local: bool

    async def open(self) -> None:
        """Do what comes before the first byte, such as proving names. Raises `BadHello` if the other end cannot."""

    async def read(self) -> bytes:
        """Some bytes, none at the end. Raises `OSError` if the connection broke."""

    async def write(self, data: bytes) -> None:
        """Write, and wait while the other end takes none. Raises `OSError` if the connection broke."""

    def close(self) -> None:
        """End it at once, for both ends: what was not transmitted yet may be lost."""


@runtime_checkable
class Direct(Connection, Protocol):
    """A connection that can also do its work at once, without a task that waits: for what passes all the time."""

    def put(self, data: bytes) -> bool:
        """Write; whether there may be more at once. If not, `write` waits until there may be."""

    def push(self, take: Callable[[bytes | memoryview], None]) -> None:
        """Give what arrives to `take`, from now on; it keeps nothing of it that it did not copy.

        `read` then waits for the end, and raises what `take` raised.
        """

    def hold(self) -> None:
        """Give nothing to `take` until `release`."""

    def release(self) -> None: ...


Accept: TypeAlias = Callable[[Connection], Coroutine[Any, Any, None]]
"""What is run for each connection that a peer dialled."""


class Transport(Protocol):
    """A node's way to its peers."""

    @property
    def address(self) -> str:
        """Where it listens, once it does."""

    def origins(self, peers: Iterable[str]) -> set[str]:
        """Where connections of these peers may come from, as far as it knows."""

    async def listen(self, accept: Accept) -> None:
        """Take connections from now on."""

    async def connect(self, peer: str) -> Connection:
        """Dial a peer. Raises `OSError` if it cannot be reached."""

    async def close(self) -> None:
        """Listen no more."""


@runtime_checkable
class Learns(Protocol):
    """A transport that dials addresses, and is told those of nodes that join."""

    def check(self, address: str) -> None:
        """Raise `BadParameter` if no peer can be found there."""

    def learn(self, peer: str, address: str) -> None:
        """Where a peer is found from now on."""


@runtime_checkable
class Certified(Protocol):
    """A transport that proves our name to peers."""

    def check_name(self, name: str) -> None:
        """Raise `BadParameter` if it would prove another name than this, or none that peers believe."""


class Memory:
    """A network in memory, for tests. It can be cut like a cable.

    >>> network = Memory()
    >>> transport = network.at("orders")
    """

    BUFFER = 1 << 16
    """Bytes on their way in one direction, before a writer waits."""

    def __init__(self) -> None:
        self._accepting: dict[str, Accept] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: dict[MemoryConnection, tuple[str, str]] = {}
        self._cut: set[frozenset[str]] = set()

    def at(self, name: str) -> MemoryTransport:
        """The transport of one node."""
        return MemoryTransport(self, name)

    def cut(self, a: str, b: str) -> None:
        """Break what is open between two nodes, and let them make no other, until `heal`."""
        self._cut.add(frozenset((a, b)))
        self.reset(a, b)

    def heal(self, a: str, b: str) -> None:
        self._cut.discard(frozenset((a, b)))

    def reset(self, a: str, b: str) -> None:
        """Break what is open between two nodes."""
        for connection in [one for one, ends in self._open.items() if set(ends) == {a, b}]:
            connection.close()

    def listen(self, name: str, accept: Accept) -> None:
        if name in self._accepting:
            raise BadParameter("transport", f"{name} listens already: take another name")
        self._accepting[name] = accept

    def forget(self, name: str) -> None:
        self._accepting.pop(name, None)

    def connect(self, name: str, peer: str) -> MemoryConnection:
        if peer not in self._accepting or frozenset((name, peer)) in self._cut:
            raise ConnectionRefusedError(f"{peer} cannot be reached")
        near, far = MemoryConnection(self._open.pop, peer), MemoryConnection(self._open.pop, name)
        near.other, far.other = far, near
        self._open |= {near: (name, peer), far: (peer, name)}
        task = asyncio.ensure_future(self._accepting[peer](far))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return near


class MemoryTransport:
    """One node's place in a `Memory`."""

    def __init__(self, network: Memory, name: str) -> None:
        self._network, self._name = network, name

    @property
    def address(self) -> str:
        return self._name

    def origins(self, peers: Iterable[str]) -> set[str]:
        return set(peers)

    async def listen(self, accept: Accept) -> None:
        self._network.listen(self._name, accept)

    async def connect(self, peer: str) -> Connection:
        return self._network.connect(self._name, peer)

    async def close(self) -> None:
        self._network.forget(self._name)


class MemoryConnection:
    """One end. What was written before the end closed can still be read, as with TCP."""

    def __init__(self, on_close: Callable[[MemoryConnection], object], origin: str) -> None:
        self.proved: str | None = None
        self.certificate: Mapping[str, Any] | None = None
        self.origin, self.local = origin, True
        self.other: MemoryConnection = self
        self._on_close = on_close
        self._arrived = bytearray()
        self._closed = False
        self._changed = asyncio.Event()

    async def open(self) -> None:
        """Nothing is proved within a program."""

    async def read(self) -> bytes:
        while not self._arrived and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        data = bytes(self._arrived)
        self._arrived.clear()
        self.other._changed.set()
        return data

    async def write(self, data: bytes) -> None:
        while len(self.other._arrived) > Memory.BUFFER and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        if self._closed:
            raise ConnectionResetError("the connection is closed")
        self.other._arrived += data
        self.other._changed.set()

    def close(self) -> None:
        for end in (self, self.other):
            if not end._closed:
                end._closed = True
                end._changed.set()
                end._on_close(end)
