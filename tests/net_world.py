"""Nodes that talk, and a record of what they said for the oracle: what the tests of `antecede.net` share.

Everything that a run draws comes from one `random.Random`; what the network and the scheduler do does not, so a seed
names the conversation, not the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from antecede.model import Event
from antecede.net import Memory, Node, Settings, Tcp
from antecede.oracle import Verdict, check
from antecede.protocols import PROTOCOLS

QUICK = Settings(first_retry_s=0.01, last_retry_s=0.05, drain_s=2.0)
"""For tests: lost connections are made anew at once."""

PATIENCE_S = 20.0
"""No test waits so long unless something is wrong."""


def names(n: int) -> list[str]:
    return [f"p{i + 1}" for i in range(n)]


@asynccontextmanager
async def in_memory(n: int, network: Memory | None = None, **options: Any) -> AsyncIterator[list[Node]]:
    """n nodes in one program."""
    network = network or Memory()
    options = {"settings": QUICK, **options}
    async with AsyncExitStack() as stack:
        nodes = [Node(name, names(n), transport=network.at(name), **options) for name in names(n)]
        yield [await stack.enter_async_context(node) for node in nodes]


@asynccontextmanager
async def over_tcp(n: int, **options: Any) -> AsyncIterator[list[Node]]:
    """n nodes over loopback, on whatever ports are free."""
    addresses: dict[str, str] = {}
    options = {"settings": QUICK, **options}
    nodes: list[Node] = []
    async with AsyncExitStack() as stack:
        # Names dial those after them, whose addresses must be there by then.
        for name in reversed(names(n)):
            transport = Tcp("127.0.0.1:0", addresses)
            node = Node(name, names(n), transport=transport, **options)
            nodes.append(await stack.enter_async_context(node))
            addresses[name] = transport.address
        yield nodes[::-1]


@dataclass
class Conversation:
    """What every node of a system sends, and what became of it."""

    nodes: list[Node]
    random: Random
    events: list[Event] = field(default_factory=list)
    owed: list[int] = field(default_factory=list)
    """For each node, how many messages are addressed to it and were not delivered yet."""

    async def hold(self, each: int) -> None:
        """Every node sends so many messages, to sets that its protocol takes, while it receives."""
        plan = [list(self._destinations(each)) for _ in self.nodes]
        self.owed = [sum(q in to for sets in plan for to in sets) for q in range(len(self.nodes))]
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
            for process, sets in enumerate(plan):
                tasks.create_task(self._send(process, sets))
                tasks.create_task(self._receive(process))

    def _destinations(self, each: int) -> Iterator[tuple[int, ...]]:
        n = len(self.nodes)
        everyone = self.nodes[0]._new.machine.name == "broadcast"
        for _ in range(each):
            size = n if everyone else self.random.choice([1, 1, 2, n])
            yield tuple(sorted(self.random.sample(range(n), min(size, n))))

    async def _send(self, process: int, sets: Iterable[tuple[int, ...]]) -> None:
        node = self.nodes[process]
        for to in sets:
            # No pause between the send and its record: the receiver beside it must not come between.
            message = await node.send([node.view.name(q) for q in to], b"x" * 20, durable=False)
            self.events.append(Event(process, "send", process, message.number, to))
            await asyncio.sleep(0)

    async def _receive(self, process: int) -> None:
        node = self.nodes[process]
        while self.owed[process]:
            delivery = await node.receive()
            self.events.append(Event(process, "deliver", node.view.id(delivery.sender), delivery.number))
            delivery.ack()
            self.owed[process] -= 1

    def verdict(self) -> Verdict:
        n = len(self.nodes)
        machine = self.nodes[0]._new.machine
        return check(self.events, n, at=[q for q in range(n) if machine.orders_at(q)])

    def judge(self) -> None:
        """The run kept what its protocol promises."""
        protocol = self.nodes[0]._new.machine.name
        verdict = self.verdict()
        assert verdict.deliveries == sum(event.kind == "deliver" for event in self.events)
        assert verdict.keeps(PROTOCOLS[protocol].order), verdict.explain(self.nodes[0].view)


class Proxy:
    """Stands between a dialler and a TCP address, and can cut what passes through it."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._writers: set[asyncio.StreamWriter] = set()
        self.accepted = 0

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Break every connection, whatever is under way."""
        for writer in self._writers:
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            there = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, there[1]}
        await asyncio.gather(self._pump(reader, there[1]), self._pump(there[0], writer))
        self._writers -= {writer, there[1]}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 14):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.transport.abort()
