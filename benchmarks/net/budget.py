"""Where the time of a delivery goes: samples of the stack by a timer of CPU, which slow down little.

A sample counts for the part of the innermost function that is ours; what a function spends in the interpreter's own
code, in the kernel, or in the garbage collector counts as the function's.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType

from benchmarks.net.measure import Load, _round
from benchmarks.net.systems import Nodes

__all__ = ["PARTS", "budget", "table"]

EVERY_S = 0.0005

PARTS = {
    "machine": ("antecede/protocols/", "antecede/model.py"),
    "wire": ("antecede/wire/",),
    "link": ("antecede/link.py", "antecede/process/outbox.py"),
    "core": ("antecede/process/core.py", "antecede/process/arrivals.py"),
    "node, host": (
        "antecede/net/node.py",
        "antecede/net/driver.py",
        "antecede/net/delivery.py",
        "antecede/process/inputs.py",
    ),
    "journal": (
        "antecede/net/commit.py",
        "antecede/net/storage/journal.py",
        "antecede/process/journal.py",
        "concurrent/futures",
        "threading.py",
        "sqlite3",
    ),
    "connections": ("antecede/net/",),
    "asyncio, sockets": ("asyncio/", "selectors.py"),
    "application": ("benchmarks/",),
}


def _part(frame: FrameType | None) -> str:
    while frame is not None:
        path = frame.f_code.co_filename.replace(os.sep, "/")
        for part, places in PARTS.items():
            if any(place in path for place in places):
                return part
        frame = frame.f_back
    return "application"


def budget(protocol: str, load: Load, sync: str | None = None) -> dict[str, float]:
    """Microseconds of a delivery, by part."""
    counts: Counter[str] = Counter()

    def sample(number: int, frame: FrameType | None) -> None:
        counts[_part(frame)] += 1

    async def run() -> float:
        with tempfile.TemporaryDirectory() as directory:
            system = Nodes(load.nodes, Path(directory), protocol, sync)
            await system.start()
            await _round(system, load, max(1, load.each // 4))
            signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)
            try:
                rate, _ = await _round(system, load, load.each)
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            await system.stop()
            return 1e6 / rate

    before = signal.signal(signal.SIGPROF, sample)
    try:
        each_us = asyncio.run(run())
    finally:
        signal.signal(
            signal.SIGPROF, signal.SIG_IGN
        )  # drops one that is still on its way, which would end us
        signal.signal(signal.SIGPROF, before)
    return {part: each_us * counts[part] / max(1, counts.total()) for part in PARTS}


def table(found: dict[str, dict[str, float]]) -> list[str]:
    """A column for each protocol."""
    lines = ["| µs of a delivery | " + " | ".join(found) + " |", "|---|" + "--:|" * len(found)]
    for part in PARTS:
        lines.append(f"| {part} | " + " | ".join(f"{column[part]:.1f}" for column in found.values()) + " |")
    sums = " | ".join(f"{sum(column.values()):.1f}" for column in found.values())
    return [*lines, f"| all | {sums} |"]
