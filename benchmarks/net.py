"""How fast nodes are: python -m benchmarks.net [--quick] [--out benchmarks/results/net.md]

Peer: the same payloads in frames of four bytes of length over bare asyncio streams, written as asyncio's documentation
has it (write, then drain), without order, acknowledgements or anything that survives a lost connection. In the same
run, in turns with ours, best of several.

The workload: n nodes in one process, over loopback; each sends to each other in turn, as fast as it may, and receives.
One process, so that what is compared is work, not the scheduler: deliveries for a second of CPU, all nodes together.
With a journal, all acknowledge every message; `normal` and `full` are what a commit survives (docs/runtime.md).
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from msgspec import Struct

from antecede.net import Node, Tcp

Run = Callable[[int, int, int], Coroutine[Any, Any, float]]
"""(nodes, messages of each to each, bytes) -> seconds of CPU."""


class Case(Struct, frozen=True):
    name: str
    run: Run


class Result(Struct, frozen=True):
    case: str
    nodes: int
    size: int
    rate: float
    """Deliveries for a second of CPU."""


# The peer


async def bare(n: int, each: int, size: int) -> float:
    """Streams, one connection for each pair and direction."""
    received = 0
    done = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        for _ in range(each):
            await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            received += 1
        writer.close()
        if received == n * (n - 1) * each:
            done.set()

    async def send(port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(each):
            writer.write(size.to_bytes(4, "big") + bytes(size))
            await writer.drain()
        await done.wait()
        writer.close()

    servers = [await asyncio.start_server(accept, "127.0.0.1", 0) for _ in range(n)]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    start = time.process_time()
    await asyncio.gather(*(send(ports[to]) for me in range(n) for to in range(n) if to != me))
    spent = time.process_time() - start
    for server in servers:
        server.close()
    return spent


# Ours


def nodes(protocol: str, sync: Any = None) -> Run:
    async def run(n: int, each: int, size: int) -> float:
        with tempfile.TemporaryDirectory() as directory:
            async with AsyncExitStack() as stack:
                system = await _start(stack, protocol, n, sync, directory)
                start = time.process_time()
                await asyncio.gather(
                    *(_send(node, each, size) for node in system),
                    *(_take(node, (n - 1) * each) for node in system),
                )
                return time.process_time() - start

    return run


async def _start(stack: AsyncExitStack, protocol: str, n: int, sync: Any, directory: str) -> list[Node]:
    names, addresses = [f"p{i:02d}" for i in range(n)], dict[str, str]()
    system = []
    for name in reversed(names):
        journal = None if sync is None else f"{directory}/{name}.db"
        transport = Tcp("127.0.0.1:0", addresses)
        node = Node(name, names, protocol=protocol, transport=transport, journal=journal, sync=sync or "full")
        system.append(await stack.enter_async_context(node))
        addresses[name] = node.address
    while any(len(node.connected) < n - 1 for node in system):
        await asyncio.sleep(0.01)
    return system


async def _send(node: Node, each: int, size: int) -> None:
    others = [name for name in node.view.names if name != node.name]
    for _ in range(each):
        for other in others:
            await node.send(other, bytes(size), durable=False)


async def _take(node: Node, count: int) -> None:
    for _ in range(count):
        (await node.receive()).ack()


CASES = [
    Case("bare streams", bare),
    Case("`fifo`", nodes("fifo")),
    Case("`permit`", nodes("permit")),
    Case("`matrix`", nodes("matrix")),
    Case("`permit`, journal, normal", nodes("permit", "normal")),
    Case("`permit`, journal, full", nodes("permit", "full")),
]


def measure(sizes: Sequence[tuple[int, int, int]], times: int) -> list[Result]:
    """The best of several turns, for each (nodes, messages of each to each, bytes)."""
    results = []
    for n, each, size in sizes:
        best: dict[str, float] = {}
        for _ in range(times):
            for case in CASES:
                spent = asyncio.run(case.run(n, each, size))
                best[case.name] = min(best.get(case.name, spent), spent)
        results += [Result(name, n, size, n * (n - 1) * each / spent) for name, spent in best.items()]
    return results


def table(results: Sequence[Result]) -> list[str]:
    lines = ["| what | nodes | bytes | deliveries a CPU second | × bare streams |", "|---|--:|--:|--:|--:|"]
    peers = {(result.nodes, result.size): result.rate for result in results if result.case == CASES[0].name}
    for result in results:
        ratio = result.rate / peers[result.nodes, result.size]
        lines.append(f"| {result.case} | {result.nodes} | {result.size} | {result.rate:,.0f} | {ratio:.2f} |")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="How fast nodes are.")
    parser.add_argument("--quick", action="store_true", help="few messages, once")
    parser.add_argument("--out", type=Path, help="write the result there too")
    options = parser.parse_args(arguments)
    sizes = [(2, 20, 100)] if options.quick else [(3, 1000, 100), (8, 100, 100), (3, 300, 10_000)]
    lines = table(measure(sizes, 1 if options.quick else 3))
    command = f"`python -m benchmarks.net`, Python {platform.python_version()}, all nodes in one process."
    text = "\n".join(["# The speed of nodes", "", command, "", *lines, ""])
    sys.stdout.write(text)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
