"""What a message takes, counted: bytecodes, frames, writes to sockets, groups and inputs of journals.

Counts depend little on the machine, where times depend on all that runs on it. Two loads are counted: all send as fast
as they may, as in a round of the benchmark; and one message after the other, each alone on its way, with all that time
makes necessary after it (`QUIET_S`). A slow machine has some more timers for a message, a fast one some fewer.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from antecede.net.peers.peer import Peer
from antecede.net.transports.tcp import TcpConnection
from antecede.process.inputs import Input
from antecede.process.journal import Journal
from benchmarks.net.measure import Case, Load, _round
from benchmarks.net.systems import System

__all__ = ["COUNTED", "count_alone", "count_flood", "table"]

COUNTED = ("bytecodes", "frames", "writes", "groups", "inputs")
ALONE = 40
"""Messages that are counted, one after the other."""
QUIET_S = 0.05
"""After this nothing follows from a message any more but beats: acknowledgements of links have gone."""

CALLS: tuple[tuple[type, str, str], ...] = (
    (Peer, "transmit", "frames"),
    (TcpConnection, "put", "writes"),
    (asyncio.StreamWriter, "write", "writes"),
)
"""Whose calls are counted, and as what."""


@contextmanager
def _counting(counts: Counter[str], bytecodes: bool) -> Iterator[None]:
    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            counts["bytecodes"] += 1
        return trace

    def count_calls(owner: type, name: str, counted: str) -> Callable[..., Any]:
        call = getattr(owner, name)

        def counting(*arguments: Any) -> Any:
            counts[counted] += 1
            return call(*arguments)

        return counting

    append = Journal.append

    def count_group(self: Journal, inputs: Sequence[Input], *more: Any) -> None:
        counts["groups"] += 1
        counts["inputs"] += len(inputs)
        append(self, inputs, *more)

    with ExitStack() as stack:
        if bytecodes:
            # A pass of its own: what counts calls has bytecodes too.
            sys.settrace(trace)
            stack.callback(sys.settrace, None)
        else:
            for owner, name, counted in CALLS:
                stack.enter_context(patch.object(owner, name, count_calls(owner, name, counted)))
            stack.enter_context(patch.object(Journal, "append", count_group))
        yield


def _count(
    case: Case, nodes: int, work: Callable[[System], Coroutine[Any, Any, int]], warm: Load
) -> dict[str, float]:
    """For each delivery of `work`, which returns how many there were."""
    counts: Counter[str] = Counter()

    async def run() -> int:
        delivered = 0
        with tempfile.TemporaryDirectory() as directory:
            system = case.make(nodes, Path(directory))
            await system.start()
            await _round(system, warm, max(1, warm.each // 4))
            for bytecodes in (True, False):
                await asyncio.sleep(QUIET_S)
                with _counting(counts, bytecodes):
                    delivered = await work(system)
                    # What nobody waits for is written, and acknowledged, a little later.
                    await asyncio.sleep(QUIET_S)
            await system.stop()
        return delivered

    delivered = asyncio.run(run())
    return {counted: counts[counted] / delivered for counted in COUNTED}


def count_flood(case: Case, load: Load) -> dict[str, float]:
    """A delivery, while all send as fast as they may."""

    async def work(system: System) -> int:
        await _round(system, load, load.each)
        return system.n * (system.n - 1) * load.each

    return _count(case, load.nodes, work, load)


def count_alone(case: Case, nodes: int, size: int) -> dict[str, float]:
    """A message that travels alone: more than the same time without one, in which nodes say that they are there."""

    async def idle(system: System) -> int:
        for _ in range(ALONE):
            await asyncio.sleep(QUIET_S)
        return ALONE

    async def work(system: System) -> int:
        for number in range(ALONE):
            me = number % system.n
            to = (me + 1 + number // system.n % (system.n - 1)) % system.n
            await system.send(me, to, bytes(size))
            await system.receive(to)
            await asyncio.sleep(QUIET_S)
        return ALONE

    warm = Load(nodes, size, 20)
    found, without = _count(case, nodes, work, warm), _count(case, nodes, idle, warm)
    return {counted: found[counted] - without[counted] for counted in COUNTED}


def table(found: Sequence[tuple[str, str, dict[str, float]]]) -> list[str]:
    """A row for each system and load."""
    lines = [
        "| counts for a delivery | load | " + " | ".join(COUNTED) + " |",
        "|---|---|" + "--:|" * len(COUNTED),
    ]
    for name, load, counts in found:
        figures = " | ".join(
            f"{counts[one]:,.0f}" if counts[one] >= 100 else f"{counts[one]:.2f}" for one in COUNTED
        )
        lines.append(f"| {name} | {load} | {figures} |")
    return lines
