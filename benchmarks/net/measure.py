"""How many deliveries, and how late."""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from benchmarks.net.systems import System

__all__ = ["Case", "Load", "Result", "measure"]

TICK_S = 0.002
"""How often each node sends, at a given load."""

LEAST_S = 0.001
"""CPU that a round takes at least: while a profiling timer runs, the kernel counts in whole ticks."""


class Case(Struct, frozen=True):
    name: str
    make: Callable[[int, Path], System]


class Load(Struct, frozen=True):
    nodes: int
    size: int
    each: int
    """Messages of each node to each other, in one round."""


class Result(Struct, frozen=True):
    case: str
    nodes: int
    size: int
    cpu_rate: float
    """Deliveries for a second of CPU."""
    rate: float
    """Deliveries a second."""
    p50_ms: float
    p99_ms: float


async def measure(case: Case, load: Load, rounds: int, seconds: float, rate: float | None) -> Result:
    """The best of several rounds; then latencies at this rate, or at half of the system's own."""
    with tempfile.TemporaryDirectory() as directory:
        system = case.make(load.nodes, Path(directory))
        await system.start()
        try:
            await _round(system, load, max(1, load.each // 4))
            found = [await _round(system, load, load.each) for _ in range(rounds)]
            cpu, wall = max(cpu for cpu, _ in found), max(wall for _, wall in found)
            late = await _latencies(system, load, seconds, wall / 2 if rate is None else rate)
        finally:
            await system.stop()
    return Result(case.name, load.nodes, load.size, cpu, wall, _at(late, 0.5), _at(late, 0.99))


async def _round(system: System, load: Load, each: int) -> tuple[float, float]:
    """Deliveries for a second of CPU, and for a second."""
    n, body = system.n, bytes(load.size)
    gc.collect()
    cpu, start = system.cpu_s(), time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for me in range(n):
            tasks.create_task(system.drain(me, (n - 1) * each))
            tasks.create_task(system.flood(me, each, body))
    spent, passed = max(LEAST_S, system.cpu_s() - cpu), time.perf_counter() - start
    return n * (n - 1) * each / spent, n * (n - 1) * each / passed


async def _latencies(system: System, load: Load, seconds: float, rate: float) -> list[int]:
    """Nanoseconds from before the send to after the receive, in order, of all but the first fifth."""
    n, late = system.n, list[int]()
    each = max(1, round(rate * seconds / n))

    async def pace(me: int) -> None:
        padding, sent, start = bytes(max(0, load.size - 8)), 0, time.perf_counter()
        while sent < each:
            due = min(each, int((time.perf_counter() - start) * rate / n) + 1)
            for number in range(sent, due):
                body = time.perf_counter_ns().to_bytes(8, "big") + padding
                await system.send(me, (me + 1 + number % (n - 1)) % n, body)
            sent = max(sent, due)
            await asyncio.sleep(TICK_S)

    async def take(me: int) -> None:
        count = sum(len(range((me - 1 - other) % n, each, n - 1)) for other in range(n) if other != me)
        for _ in range(count):
            stamp = int.from_bytes((await system.receive(me))[:8], "big")
            late.append(time.perf_counter_ns() - stamp)

    async with asyncio.TaskGroup() as tasks:
        for me in range(n):
            tasks.create_task(take(me))
            tasks.create_task(pace(me))
    return sorted(late[len(late) // 5 :])


def _at(ordered: list[int], quantile: float) -> float:
    return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))] / 1e6
