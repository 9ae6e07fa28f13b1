"""Nothing that a node does holds up the event loop: opening and replaying a journal, snapshots, many messages at once.

What is measured is the CPU time of the loop's thread between two turns of the loop, so that a busy machine does not
matter, without the collector of garbage: what it costs depends on all that other tests have left.
`python -m tests.test_net_loop` prints the figures of docs/runtime.md.
"""

from __future__ import annotations

import asyncio
import gc
import shutil
import time
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from antecede.net import Memory, Node, Settings
from antecede.net.node import YIELD_EVERY

MOST_S = 0.05
"""Far more than is found, and far less than what would be found if a thread's work were the loop's."""


@asynccontextmanager
async def longest_turn():
    """Yields a list that has, in the end, the CPU seconds of the longest turn of the loop."""
    turns = [0.0]

    async def watch() -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            turns[0], last = max(turns[0], now - last), now

    watching = asyncio.ensure_future(watch())
    await asyncio.sleep(0)
    gc.disable()
    try:
        yield turns
    finally:
        gc.enable()
        watching.cancel()


def build(journal: Path, snapshot_inputs: int = 20_000) -> Node:
    settings = Settings(snapshot_inputs=snapshot_inputs, held=10**6)
    return Node("a", ["a"], transport=Memory().at("a"), journal=journal, settings=settings)


async def fill(directory: Path, messages: int, size: int) -> Path:
    """The journal of a node that was killed: so many inputs of a message each, and no snapshot."""
    copy = directory / "killed"
    copy.mkdir()
    async with build(directory / "a.db", snapshot_inputs=10**9) as node:
        for _ in range(messages):
            await node.send("a", bytes(size), durable=False)
        await node.flush()
        for file in directory.glob("a.db*"):
            shutil.copy(file, copy)
    return copy / "a.db"


async def measure(directory: Path, messages: int, size: int) -> dict[str, float]:
    found = {}
    journal = await fill(directory, messages, size)
    node = build(journal)
    async with longest_turn() as turns:
        await node.start()
    found["open and replay"] = turns[0]
    async with longest_turn() as turns:
        await node.close()
    found["close, with a snapshot"] = turns[0]
    async with build(journal, snapshot_inputs=200) as node:
        async with longest_turn() as turns:
            for _ in range(1000):
                await (await node.receive()).ack()
        found["snapshots under way"] = turns[0]
    return found


def test_a_journal_does_not_hold_up_the_loop(tmp_path):
    found = asyncio.run(measure(tmp_path, messages=2000, size=100))
    assert max(found.values()) < MOST_S, found


def test_a_loop_that_is_held_up_is_noticed():
    async def main():
        async with longest_turn() as turns:
            start = time.thread_time()
            while time.thread_time() - start < 2 * MOST_S:
                pass
            await asyncio.sleep(0)
        return turns[0]

    assert asyncio.run(main()) > MOST_S


@pytest.mark.parametrize(("size", "most"), [(100, YIELD_EVERY), (1 << 20, 1 + YIELD_EVERY // 65)])
def test_large_payloads_give_others_their_turn_sooner(size, most):
    """However large they are, as many bytes or messages are sent in one turn of the loop."""

    async def main() -> list[int]:
        turns = [0]

        async def watch() -> None:
            while True:
                await asyncio.sleep(0)
                turns.append(0)

        settings = Settings(queue=4 * most, queue_bytes=1 << 30, drain_s=0)
        async with Node("a", ["a", "b"], transport=Memory().at("a"), settings=settings) as node:
            watching = asyncio.ensure_future(watch())
            while len(turns) == 1:
                await asyncio.sleep(0)
            for _ in range(3 * most):
                await node.send("b", bytes(size))
                turns[-1] += 1
            watching.cancel()
        return turns

    assert max(asyncio.run(main())) == most


if __name__ == "__main__":
    for messages, size in ((2000, 100), (20_000, 100), (1000, 10_000)):
        with TemporaryDirectory() as directory:
            found = asyncio.run(measure(Path(directory), messages, size))
            print(messages, size, {what: f"{seconds * 1e3:.1f} ms" for what, seconds in found.items()})
