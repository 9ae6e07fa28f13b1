"""Back-pressure: who waits until there is room for one more message (`antecede.process.room`)."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from antecede.net.delivery import Held
from antecede.net.driver import Host
from antecede.net.settings import Settings
from antecede.process.room import Room

__all__ = ["Pressure"]

log = logging.getLogger(__name__)


class Pressure(Room):
    """What stops the sends of one node."""

    def __init__(self, host: Host, paused: set[int], settings: Settings) -> None:
        super().__init__(host.core, settings, paused)
        self._host, self._settings = host, settings
        self._waiting: Counter[int] = Counter()
        """Peers that can take no more, and how many calls of `send` wait for each."""
        self._since: dict[int, float] = {}

    async def wait(self, targets: tuple[int, ...]) -> None:
        """Wait until something has changed. Who waits for one peer for long is told of it, once."""
        full = [peer for peer in self.list_ways(targets) if self.is_full(peer)]
        loop = asyncio.get_running_loop()
        for peer in full:
            self._waiting[peer] += 1
            self._since.setdefault(peer, loop.time())
        telling = loop.call_later(self._settings.dead_s, self._alarm, full)
        try:
            await self._host.room.wait()
        finally:
            telling.cancel()
            self._waiting.subtract(full)
            self._waiting += Counter()
            for peer in full:
                if not self.is_full(peer):
                    self._since.pop(peer, None)

    def _alarm(self, peers: list[int]) -> None:
        try:
            self._tell(peers)
        except Exception as error:
            # The event loop calls this: nobody else would hear of it.
            self._host.stop(error, "when it told for whom a send waits")

    def _tell(self, peers: list[int]) -> None:
        core, name = self._host.core, self._host.name
        if not peers:
            log.warning("%s: send waits, because the protocol holds back %d messages", name, len(core.unsent))
        for peer in peers:
            log.warning(
                "%s: send waits for %s, which %s: %d messages for it are not acknowledged",
                name,
                core.view.name(peer),
                "asked us to pause" if peer in self._paused else "can take no more",
                self._count_pending(peer),
            )

    def _count_pending(self, peer: int) -> int:
        out = self._host.core.out.get(peer)
        return 0 if out is None else out.pending

    # Looking

    @property
    def waiting(self) -> dict[str, int]:
        """Peers that can take no more, and how many calls of `send` wait for each."""
        return {self._host.core.view.name(peer): count for peer, count in self._waiting.items()}

    def held(self) -> list[Held]:
        """The messages that could not be sent yet."""
        if not self._waiting:
            return []
        core, now = self._host.core, asyncio.get_running_loop().time()
        found = []
        for peer in self._waiting:
            name, pending = core.view.name(peer), self._count_pending(peer)
            reason = f"{name} can take no more: {pending} messages for it are not acknowledged"
            since = now - self._since.get(peer, now)
            found.append(Held(self._host.name, core.sent + 1, (), "blocked", reason, since))
        return found
