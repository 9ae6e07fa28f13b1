"""Back-pressure: whether there is room for one more message of a process.

A message finds no room while the view changes; while the protocol holds back too much; to ourselves, while our
application takes too little; or while a destination has too much that it did not acknowledge, or asked for a pause.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Protocol

from antecede.process.core import Core

__all__ = ["Bounds", "Room"]


class Bounds(Protocol):
    """How much may wait; a node's settings are such."""

    @property
    def queue(self) -> int:
        """Messages that a peer has not acknowledged, and that the protocol holds back."""

    @property
    def queue_bytes(self) -> int: ...

    @property
    def held(self) -> int:
        """Messages of a sender that arrived and were not taken."""


class Room:
    """What one process has room for. `paused` are the peers that asked for a pause."""

    def __init__(self, core: Core, bounds: Bounds, paused: Container[int] = ()) -> None:
        self._core, self._bounds, self._paused = core, bounds, paused
        self._routed = core.machine.routed

    def has_room(self, targets: tuple[int, ...]) -> bool:
        """Whether a message to these may be sent now."""
        core, bounds = self._core, self._bounds
        if not core.steady and not core.changing.membership.going:
            return False
        if len(core.unsent) >= bounds.queue or core.unsent_bytes >= bounds.queue_bytes:
            return False
        if core.me in targets and core.held[core.me] >= bounds.held:
            return False
        return not any(self.is_full(peer) for peer in self.list_ways(targets))

    def list_ways(self, targets: tuple[int, ...]) -> Iterable[int]:
        """The links that a message may take: over routers, any."""
        return self._core.links if self._routed else targets

    def is_full(self, peer: int) -> bool:
        """Whether a peer can take no more for now. We are no peer of ours."""
        out, bounds = self._core.out.get(peer), self._bounds
        return out is not None and (
            out.pending >= bounds.queue or out.size >= bounds.queue_bytes or peer in self._paused
        )
