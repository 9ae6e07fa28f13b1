"""A change that many may wait for."""

from __future__ import annotations

import asyncio

__all__ = ["Signal"]


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
