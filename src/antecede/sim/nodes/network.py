"""The network between simulated nodes: it delays, loses, reorders and repeats frames, and parts nodes from others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antecede.link import Frame
from antecede.sim.nodes.node import MILLISECOND, SimNode
from antecede.wire import Limits
from antecede.wire.frames import decode_frame, encode_frame

if TYPE_CHECKING:
    from antecede.sim.nodes.system import System

__all__ = ["LIMITS", "Network"]

LIMITS = Limits(packet_bytes=4 << 20, payload_bytes=1 << 20)


class Network:
    """Takes frames from node to node, as bytes."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._delay = system.scenario.delay_ms * MILLISECOND
        self.parts: list[frozenset[int]] = []
        """Nothing passes between one of these, by place, and the rest."""

    def carry(self, source: SimNode, dest: int, frame: Frame, hails: bool) -> None:
        """Take a frame to its destination, or lose it."""
        scenario, random = self._system.scenario, self._system.random
        self._system.counts["frames"] += 1
        agreed = frame.epoch, frame.peer
        data = encode_frame(frame, agreed, LIMITS)
        copies = 1
        if not self._system.calm:
            if scenario.loss and random.random() < scenario.loss:
                return
            if scenario.repeats and random.random() < scenario.repeats:
                copies = 2
        here = source.place
        for _ in range(copies):
            wait = int(self._delay * min(10.0, random.expovariate(1)))
            self._system.at(self._system.now + wait, lambda: self._arrive(here, dest, agreed, data, hails))

    def _arrive(self, source: int, dest: int, agreed: tuple[int, int], data: bytes, hails: bool) -> None:
        node = self._system.nodes[dest] if dest < len(self._system.nodes) else None
        if node is None or not node.up or not self._passes(source, dest):
            return
        if self._system.now < node.paused_until:
            # It waits in the system's memory.
            self._system.at(node.paused_until, lambda: self._arrive(source, dest, agreed, data, hails))
            return
        frame = decode_frame(data, agreed, node.core.limits)
        self._system.do(node, lambda: node.arrive(source, frame, hails))

    def _passes(self, one: int, other: int) -> bool:
        return all((one in part) == (other in part) for part in self.parts)

    def heal(self, part: frozenset[int]) -> None:
        """Let everything pass again, over new connections."""
        if part in self.parts:
            self.parts.remove(part)
        for node in self._system.nodes:
            if node is not None and node.up and self._system.now >= node.paused_until:
                self._system.do(node, node.hail_all)
