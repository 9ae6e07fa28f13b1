"""What a vertex reads from a topology while it runs: who is behind whom, who forwards, which sides a separator has.

Sets of vertices are the bits of integers (`model.mask`). Everything follows from the topology; it is worked out when
it is first asked for, once for all machines that share the topology.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, reduce
from operator import or_
from typing import TYPE_CHECKING, TypeAlias

from antecede.model import View, mask

if TYPE_CHECKING:
    from antecede.topology.value import Topology

__all__ = ["Plan", "plan_of"]

Block: TypeAlias = dict[int, int]
"""Stations that are linked with each other -> its vertices and all that other blocks connect with it. Two stations are
in one block together, or in none."""


class Plan:
    """The routes and sides of one topology."""

    def __init__(self, topology: Topology) -> None:
        stations = topology.stations
        self.view = View(topology.names)
        """One for all vertices: to check thousands of names for each of as many takes as long as all the rest."""
        self.numbers = {name: vertex for vertex, name in enumerate(topology.names)}
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
        self._blocks = _find_blocks(self.neighbours)
        """Station -> the blocks that it is in."""
        _fill_blocks(self._blocks, self.members)
        self._behind: dict[int, dict[int, int]] = {}
        self._sides: dict[int, tuple[int, ...]] = {}
        self._reach: dict[int, int] = {}

    def behind(self, station: int) -> Mapping[int, int]:
        """Neighbour -> the vertices to which the way from this station leads through that neighbour."""
        found = self._behind.get(station)
        if found is None:
            found = self._behind[station] = {
                other: hanging
                for block in self._blocks[station]
                for other, hanging in block.items()
                if other != station
            }
        return found

    def reach(self, station: int) -> int:
        """The vertices to which some way leads from this station, its own members included."""
        found = self._reach.get(station)
        if found is None:
            found = self.members[station]
            for side in self.sides(station):
                found |= side
            self._reach[station] = found
        return found

    def sides(self, station: int) -> tuple[int, ...]:
        """The parts into which the trunk falls without this station, each as a set of vertices."""
        found = self._sides.get(station)
        if found is None:
            found = self._sides[station] = tuple(
                reduce(or_, (hanging for other, hanging in block.items() if other != station))
                for block in self._blocks[station]
            )
        return found

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


def _find_blocks(neighbours: Sequence[Sequence[int]]) -> list[list[Block]]:
    """Station -> the blocks that it is in. The trunk's blocks are cliques, so two neighbours tell theirs."""
    sets = [set(others) for others in neighbours]
    result: list[list[Block]] = [[] for _ in neighbours]
    for station, others in enumerate(neighbours):
        placed = {other for block in result[station] for other in block}
        for other in others:
            if other not in placed:
                block = dict.fromkeys(sorted((station, other, *(sets[station] & sets[other]))), 0)
                placed.update(block)
                for member in block:
                    result[member].append(block)
    return result


def _fill_blocks(blocks: Sequence[Sequence[Block]], members: Sequence[int]) -> None:
    """Blocks and stations are a tree. A station has below it what its blocks have; above a block is all the rest."""
    below = list(members)
    reached: set[int] = set()
    for root in range(len(members)):
        if root in reached:
            continue
        order: list[tuple[int, Block]] = []
        todo: list[tuple[int, Block | None]] = [(root, None)]
        while todo:
            top, above = todo.pop()
            reached.add(top)
            for block in blocks[top]:
                if block is not above:
                    order.append((top, block))
                    todo += [(station, block) for station in block if station != top]
        for top, block in reversed(order):
            for station in block:
                block[station] = below[station]
            block[top] = 0
            below[top] |= reduce(or_, block.values())
        for top, block in order:
            block[top] = below[root] & ~reduce(or_, block.values())


@lru_cache(maxsize=64)
def plan_of(topology: Topology) -> Plan:
    return Plan(topology)
