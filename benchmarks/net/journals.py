"""Journals alone: what the disk and the journal take of a message, with no node, link, protocol or socket round them.

n journals in one event loop, with `sync="full"`. What a node's journal holds of a message is written when a node would
write it: at the sender before it leaves, at the receiver before it is handed over, at the sender what the receiver
answers; and, with the next group, that the message was taken. Nothing is computed, and nothing crosses a network.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from statistics import median

from antecede.disk import sync_file
from antecede.model import View
from antecede.net.storage.journal import open_journal
from antecede.process.core import Core
from antecede.process.inputs import Arrive, Input, Send, Take, Turn
from benchmarks.net.systems import System

__all__ = ["Journals", "time_sync"]

TURN = Turn()
PAGE = 4096
YIELD_EVERY = 512
"""Messages after which a node pauses for others, too."""


class Journals(System):
    """Each send, arrival and answer is an input, in a group with all that gathered since the last."""

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queues = [asyncio.Queue[bytes]() for _ in range(self.n)]
        names = View(tuple(f"p{me:02d}" for me in range(self.n)))
        self._journals = []
        for me, name in enumerate(names.names):
            journal = open_journal(self.directory / f"{name}.db")
            journal.recover(Core.new("permit", names, me, epoch=1))
            self._journals.append(journal)
        self._inputs: list[list[Input]] = [[] for _ in range(self.n)]
        self._gathered: list[list[tuple[int, int, bytes]]] = [[] for _ in range(self.n)]
        """For each journal, what follows once its group is durable: (sender, receiver, body)."""
        self._planned = [False] * self.n

    def _gather(self, me: int, given: Input, follows: tuple[int, int, bytes] | None) -> None:
        self._inputs[me].append(given)
        if follows is not None:
            self._gathered[me].append(follows)
        if not self._planned[me]:
            self._planned[me] = True
            self._loop.call_soon(self._commit, me)

    def _commit(self, me: int) -> None:
        inputs, self._inputs[me] = self._inputs[me], []
        follows, self._gathered[me] = self._gathered[me], []
        self._planned[me] = False
        self._journals[me].append([*inputs, TURN])
        answered = set()
        for sender, receiver, body in follows:
            if me == sender:
                self._gather(
                    receiver, Arrive(sender, 1, 1, 1, 0, 0, body, False, False), (sender, receiver, body)
                )
            else:
                self._queues[me].put_nowait(body)
                answered.add(sender)
        for sender in answered:
            self._gather(sender, Arrive(me, 1, 1, 1, 0, 0, bytes(8), False, False), None)

    async def send(self, me: int, to: int, body: bytes) -> None:
        self._gather(me, Send((to,), body), (me, to, body))

    async def receive(self, me: int) -> bytes:
        body = await self._queues[me].get()
        # Nobody waits for it: it is written with the next group.
        self._inputs[me].append(Take(0, 1))
        return body

    async def flood(self, me: int, each: int, body: bytes) -> None:
        others = [to for to in range(self.n) if to != me]
        for number in range(each * len(others)):
            await self.send(me, others[number % len(others)], body)
            if number % YIELD_EVERY == 0:
                await asyncio.sleep(0)

    async def stop(self) -> None:
        for journal in self._journals:
            journal.close()


def time_sync(directory: Path, times: int = 200) -> float:
    """Milliseconds that a sync of a page takes in a file that is written over, half of the times."""
    taken, path = [], directory / "sync"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(file, bytes(PAGE * times), 0)
        sync_file(file)
        for number in range(times):
            os.pwrite(file, os.urandom(PAGE), PAGE * number)
            begun = time.perf_counter_ns()
            sync_file(file)
            taken.append(time.perf_counter_ns() - begun)
    finally:
        os.close(file)
        path.unlink()
    return median(taken) / 1e6
