"""Waiting: for a change that many may wait for, and for an end that no cancellation may overtake; and who cancels."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

__all__ = ["Signal", "is_asked_to_end", "outlast"]

T = TypeVar("T")


class Signal:
    """Wakes everyone who waits for a change."""

    def __init__(self) -> None:
        self.waiters: set[asyncio.Future[None]] = set()

    async def wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self.waiters.add(waiter)
        try:
            await waiter
        finally:
            self.waiters.discard(waiter)

    def fire(self) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()


def is_asked_to_end(error: BaseException) -> bool:
    """Whether this is raised because somebody cancels the task that runs: not by what it called, of its own."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


async def outlast(work: Awaitable[T]) -> T:
    """Wait for the end of this, however often we are cancelled meanwhile; then the cancellation goes on."""
    doing, cancelled = asyncio.ensure_future(work), None
    while not doing.done():
        try:
            await asyncio.wait({doing})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from doing.exception()
    return doing.result()
