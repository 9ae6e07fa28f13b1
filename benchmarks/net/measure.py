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

__all__ = ["Case", "Load", "Result", "half_load", "measure"]

TICK_S = 0.002
"""How often each node sends, at a given load, at most."""

TRIES = 6
"""How often a rate is tried, to find the one that keeps a system busy half of the time."""

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
    paced: float
    """Messages a second, all nodes together, while latencies were taken."""
    p50_ms: float
    p99_ms: float


async def measure(case: Case, load: Load, rounds: int, seconds: float, rate: float) -> Result:
    """The best of several rounds; then latencies at this rate."""
    with tempfile.TemporaryDirectory() as directory:
        system = case.make(load.nodes, Path(directory))
        await system.start()
        try:
            await _round(system, load, max(1, load.each // 4))
            found = [await _round(system, load, load.each) for _ in range(rounds)]
            cpu, wall = max(cpu for cpu, _ in found), max(wall for _, wall in found)
            late = await _latencies(system, load, seconds, rate)
        finally:
            await system.stop()
    return Result(case.name, load.nodes, load.size, cpu, wall, rate, _at(late, 0.5), _at(late, 0.99))


async def half_load(case: Case, load: Load, seconds: float) -> float:
    """The messages a second, paced as for latencies, that keep a system busy half of the time.

    Half of what it takes at most is another question: then many messages travel together, and each costs less.
    """
    with tempfile.TemporaryDirectory() as directory:
        system = case.make(load.nodes, Path(directory))
        await system.start()
        try:
            rate = (await _round(system, load, max(1, load.each // 4)))[0] / 2
            for _ in range(TRIES):
                before = system.cpu_s()
                await _latencies(system, load, seconds, rate)
                busy = max(LEAST_S, system.cpu_s() - before) / seconds
                # The more, the cheaper is each: so a step that would do if all cost the same does not overshoot.
                rate *= min(2.0, 0.5 / busy)
        finally:
            await system.stop()
    return rate


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
            await asyncio.sleep(max(TICK_S, start + sent * n / rate - time.perf_counter()))

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
