"""Ours, and bare streams, behind one interface: each in the way in which its own users would write it."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from antecede.net import Node, Tcp

__all__ = ["Bare", "Nodes", "System"]


class System(ABC):
    """n nodes that are connected."""

    def __init__(self, n: int, directory: Path) -> None:
        self.n, self.directory = n, directory

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def stop(self) -> None: ...

    @abstractmethod
    async def send(self, me: int, to: int, body: bytes) -> None: ...

    @abstractmethod
    async def receive(self, me: int) -> bytes: ...

    async def flood(self, me: int, each: int, body: bytes) -> None:
        """Send so many to each other, in turn."""
        others = [to for to in range(self.n) if to != me]
        for _ in range(each):
            for to in others:
                await self.send(me, to, body)

    async def drain(self, me: int, count: int) -> None:
        """Receive so many."""
        for _ in range(count):
            await self.receive(me)

    def cpu_s(self) -> float:
        """Seconds of CPU that were spent so far."""
        return time.process_time()


# The peer

PORTIONS = 1024
"""Messages that wait for the application."""


class Bare(System):
    """asyncio streams."""

    async def start(self) -> None:
        self._queues = [asyncio.Queue[bytes](PORTIONS) for _ in range(self.n)]
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers = [
            await asyncio.start_server(self._acceptor(me), "127.0.0.1", 0) for me in range(self.n)
        ]
        ports = [server.sockets[0].getsockname()[1] for server in self._servers]
        self._writers = [
            {
                to: (await asyncio.open_connection("127.0.0.1", ports[to]))[1]
                for to in range(self.n)
                if to != me
            }
            for me in range(self.n)
        ]
        self._sent = 0

    def _acceptor(self, me: int) -> Any:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            queue = self._queues[me]
            try:
                while True:
                    size = int.from_bytes(await reader.readexactly(4), "big")
                    await queue.put(await reader.readexactly(size))
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()

        return accept

    async def send(self, me: int, to: int, body: bytes) -> None:
        writer = self._writers[me][to]
        self._sent += 1
        writer.write((len(body) + 8).to_bytes(4, "big") + self._sent.to_bytes(8, "big") + body)
        await writer.drain()

    async def receive(self, me: int) -> bytes:
        return (await self._queues[me].get())[8:]

    async def flood(self, me: int, each: int, body: bytes) -> None:
        writers, number = list(self._writers[me].values()), 0
        for _ in range(each):
            for writer in writers:
                number += 1
                writer.write((len(body) + 8).to_bytes(4, "big") + number.to_bytes(8, "big") + body)
                await writer.drain()

    async def drain(self, me: int, count: int) -> None:
        queue = self._queues[me]
        for _ in range(count):
            await queue.get()

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        for writers in self._writers:
            for writer in writers.values():
                writer.close()
        await asyncio.wait(self._tasks)


# Ours


class Nodes(System):
    """Nodes of one protocol, with a journal if `sync` says what kind; then all acknowledge every message.

    With `changed` one that was there first has left: the machine has other numbers for all than the application.
    """

    def __init__(
        self, n: int, directory: Path, protocol: str, sync: Any = None, changed: bool = False
    ) -> None:
        super().__init__(n, directory)
        self._protocol, self._sync, self._changed = protocol, sync, changed

    async def start(self) -> None:
        self._stack = await AsyncExitStack().__aenter__()
        names, addresses = [f"p{i:02d}" for i in range(self.n)], dict[str, str]()
        founders = ["leaves", *names] if self._changed else names
        system = []
        for name in reversed(founders):
            journal = None if self._sync is None else self.directory / f"{name}.db"
            node = Node(
                name,
                founders,
                protocol=self._protocol,
                transport=Tcp("127.0.0.1:0", addresses),
                journal=journal,
                sync=self._sync or "full",
            )
            system.append(await self._stack.enter_async_context(node))
            addresses[name] = node.address
        self.nodes, self._names = system[::-1], names
        while any(len(node.connected) < len(founders) - 1 for node in system):
            await asyncio.sleep(0.01)
        if self._changed:
            first = self.nodes.pop(0)
            await first.leave()
            await first.close()
            while any(node.members != tuple(names) for node in self.nodes):
                await asyncio.sleep(0.01)

    async def send(self, me: int, to: int, body: bytes) -> None:
        await self.nodes[me].send(self._names[to], body, durable=False)

    async def receive(self, me: int) -> bytes:
        message = await self.nodes[me].receive()
        message.ack()
        return message.payload

    async def flood(self, me: int, each: int, body: bytes) -> None:
        node = self.nodes[me]
        others = [name for name in self._names if name != node.name]
        for _ in range(each):
            for other in others:
                await node.send(other, body, durable=False)

    async def drain(self, me: int, count: int) -> None:
        node = self.nodes[me]
        for _ in range(count):
            (await node.receive()).ack()

    async def stop(self) -> None:
        await self._stack.aclose()
