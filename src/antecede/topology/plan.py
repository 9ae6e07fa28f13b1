"""What a vertex reads from a topology while it runs: who is behind whom, who forwards, which sides a separator has.

Sets of vertices are the bits of integers (`model.mask`). Everything follows from the topology; it is worked out when
it is first asked for, once for all machines that share the topology.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from antecede.model import mask

if TYPE_CHECKING:
    from antecede.topology.value import Topology

__all__ = ["Plan", "plan_of"]


class Plan:
    """The routes and sides of one topology."""

    def __init__(self, topology: Topology) -> None:
        stations = topology.stations
        self.place = {v: index for index, station in enumerate(stations) for v in station.members}
        """Vertex -> its station."""
        self.members = [mask(station.members) for station in stations]
        self.dead = mask(topology.dead)
        self.live = [members & ~self.dead for members in self.members]
        self.active = [
            next((v for v in s.members if v not in s.witnesses and v not in topology.dead), None)
            for s in stations
        ]
        """Station -> the one member that forwards: the first that lives and is no witness."""
        self.separator = [station.separator for station in stations]
        self.processes = mask(topology.processes)
        self.neighbours: list[list[int]] = [[] for _ in stations]
        for a, b in topology.trunk:
            self.neighbours[a].append(b)
            self.neighbours[b].append(a)
        self._behind: dict[int, dict[int, int]] = {}
        self._sides: dict[int, tuple[int, ...]] = {}

    def behind(self, station: int) -> Mapping[int, int]:
        """Neighbour -> the vertices to which the way from this station leads through that neighbour."""
        if station not in self._behind:
            self._behind[station] = self._search(station)
        return self._behind[station]

    def reach(self, station: int) -> int:
        """The vertices to which some way leads from this station, its own members included."""
        result = self.members[station]
        for behind in self.behind(station).values():
            result |= behind
        return result

    def _search(self, start: int) -> dict[int, int]:
        through = {b: b for b in self.neighbours[start]}
        queue = deque(self.neighbours[start])
        result = {b: self.members[b] for b in queue}
        while queue:
            here = queue.popleft()
            for station in self.neighbours[here]:
                if station != start and station not in through:
                    through[station] = through[here]
                    result[through[here]] |= self.members[station]
                    queue.append(station)
        return result

    def sides(self, station: int) -> tuple[int, ...]:
        """The parts into which the trunk falls without this station, each as a set of vertices."""
        if station not in self._sides:
            self._sides[station] = self._parts(station)
        return self._sides[station]

    def _parts(self, station: int) -> tuple[int, ...]:
        behind = self.behind(station)
        parts: list[int] = []
        placed: set[int] = set()
        for first in self.neighbours[station]:
            if first in placed:
                continue
            # Neighbours that are linked with each other lie in one block, so on one side.
            block = {first, *(b for b in self.neighbours[first] if b in behind)}
            placed |= block
            part = 0
            for b in block:
                part |= behind[b]
            parts.append(part)
        return tuple(parts)

    def way(self, a: int, b: int) -> list[int]:
        """The stations on the one way from a to b, both included; empty if there is none."""
        way = [a]
        goal = self.members[b]
        while way[-1] != b:
            step = next((n for n, behind in self.behind(way[-1]).items() if behind & goal), None)
            if step is None:
                return []
            way.append(step)
        return way


@lru_cache(maxsize=64)
def plan_of(topology: Topology) -> Plan:
    return Plan(topology)
