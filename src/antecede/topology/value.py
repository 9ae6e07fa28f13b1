"""The topology: a frozen value that all vertices of a system share.

It is built from links between names (`Topology.of`, `Topology.from_links`) and afterwards changed by `fail` and `join`
only, one change after the other, each giving a new value with the next version. What has been is never forgotten: the
failed stay in it, marked, and the trunk only grows. So routes among those that were there before never change, which
is what keeps the order of messages under way, and a separator stays one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from antecede.errors import UnknownProcess
from antecede.model import View, bits
from antecede.topology.graph import (
    Station,
    bad,
    build_graph,
    build_stations,
    build_trunk,
    find_cuts,
    find_twins,
)
from antecede.topology.joins import Join, add_vertex, mark_failed
from antecede.topology.plan import Plan, plan_of

__all__ = ["Topology"]


class Topology(Struct, frozen=True, cache_hash=True):
    """Who there is, who is linked with whom, what separates, and who has failed.

    >>> line = Topology.from_links([("p", "r"), ("r", "q")], processes=["p", "q"])
    >>> line.names, line.separators, line.zones
    (('p', 'q', 'r'), (('r',),), (('p',), ('q',)))
    """

    names: tuple[str, ...]
    """Processes first, then routers, in the order given; whoever joins comes last, so numbers never change."""
    processes: tuple[int, ...]
    """The vertices that belong to the application: the others only relay."""
    links: tuple[tuple[int, int], ...]
    stations: tuple[Station, ...]
    trunk: tuple[tuple[int, int], ...]
    """Pairs of stations between which messages travel (`topology.graph`)."""
    dead: tuple[int, ...] = ()
    """In the order in which they failed."""
    version: int = 0
    joining: tuple[int, ...] = ()
    """Who joined a separator with this version, and so starts from the state of others."""

    @classmethod
    def of(
        cls,
        links: Iterable[tuple[str, str]],
        processes: Iterable[str],
        routers: Iterable[str] | None = None,
        separators: Iterable[str | Sequence[str]] = (),
        witnesses: Iterable[str] = (),
        islands: bool = False,
    ) -> Topology:
        """A topology with the separators that the caller names, and no others.

        Of a separator, the first member that lives forwards, the others stand by; a single name is a separator of one.
        Without `routers`, every name in `links` that is no process is one. `islands` allows parts that are not
        connected, for a join to connect.
        """
        links = list(links)
        names, processes = _names(links, processes, routers)
        number = _Numbers(names)
        pairs = [number.link(a, b) for a, b in links]
        sets = [number.all("separators", [s] if isinstance(s, str) else s) for s in separators]
        graph = build_graph(names, pairs, islands)
        stations = build_stations(graph, names, sets, number.all("witnesses", witnesses))
        return cls(
            names,
            tuple(range(len(processes))),
            tuple(sorted(set(pairs))),
            stations,
            build_trunk(graph, stations),
        )

    @classmethod
    def from_links(
        cls,
        links: Iterable[tuple[str, str]],
        processes: Iterable[str],
        routers: Iterable[str] | None = None,
        size: int = 2,
        islands: bool = False,
    ) -> Topology:
        """A topology whose separators are found in the graph.

        Sets of two up to `size` routers that can stand in for each other become one separator; and so does every
        single vertex without which what is used of the graph falls apart.
        """
        links = list(links)
        names, processes = _names(links, processes, routers)
        number = _Numbers(names)
        graph = build_graph(names, [number.link(a, b) for a, b in links], islands)
        found = find_twins(graph, range(len(processes), len(names)), size)
        named = [tuple(names[v] for v in members) for members in found]
        return cls.of(links, processes, names[len(processes) :], named, islands=islands).filter_at_cuts()

    def filter_at_cuts(self) -> Topology:
        """The same with R9 at every station without which the trunk falls apart."""
        places = find_cuts(len(self.stations), self.trunk)
        return self.filter_at(*(self.names[self.stations[place].members[0]] for place in places))

    def filter_at(self, *members: str) -> Topology:
        """The same with R9 at the stations of these vertices only."""
        places = {self.plan.place[self.id(name)] for name in members}
        extra = places - find_cuts(len(self.stations), self.trunk)
        if extra:
            names = ", ".join(self.names[v] for p in sorted(extra) for v in self.stations[p].members)
            raise bad(f"{names} cannot filter: the trunk does not fall apart without it")
        stations = tuple(
            Station(s.members, s.witnesses, index in places) for index, s in enumerate(self.stations)
        )
        return msgspec.structs.replace(self, stations=stations)

    @classmethod
    def load(cls, data: Any) -> Topology:
        """The topology of which `plain()` gave this data, or the topology itself."""
        return data if isinstance(data, cls) else msgspec.convert(data, cls)

    def plain(self) -> dict[str, Any]:
        """The topology as plain data."""
        result: dict[str, Any] = msgspec.to_builtins(self)
        return result

    # What there is.

    @property
    def view(self) -> View:
        return self.plan.view

    @property
    def plan(self) -> Plan:
        return plan_of(self)

    def lives(self, name: str) -> bool:
        return self.id(name) not in self.dead

    @property
    def routers(self) -> tuple[str, ...]:
        return tuple(name for v, name in enumerate(self.names) if v not in self.processes)

    @property
    def separators(self) -> tuple[tuple[str, ...], ...]:
        """The separators at which R9 is used."""
        return tuple(self._list_names(s.members) for s in self.stations if s.separator)

    @property
    def zones(self) -> tuple[tuple[str, ...], ...]:
        """Causal zones (chapter 3): what the separators bound. Members of separators are in none."""
        inside = {index for index, station in enumerate(self.stations) if not station.separator}
        zones: list[tuple[str, ...]] = []
        while inside:
            todo, zone = [min(inside)], set[int]()
            while todo:
                index = todo.pop()
                if index in inside:
                    inside.discard(index)
                    zone |= set(self.stations[index].members)
                    todo += self.plan.neighbours[index]
            zones.append(self._list_names(sorted(zone)))
        return tuple(zones)

    def sides(self, member: str) -> tuple[tuple[str, ...], ...]:
        """The sides of the separator that this vertex is a member of: any of them is F, the others B."""
        sides = self.plan.sides(self.plan.place[self.id(member)])
        return tuple(self._list_names(bits(side)) for side in sides)

    def route(self, source: str, dest: str) -> tuple[str, ...]:
        """The vertices that a message passes: the source, those that forward, the destination.

        It ends early where no way leads on, or nobody lives to forward.
        """
        plan, a, b = self.plan, self.id(source), self.id(dest)
        route, way = [a], plan.way(plan.place[a], plan.place[b])
        if not way:
            return self._list_names(route)
        for station in way[1:-1]:
            active = plan.active[station]
            if active is None:
                return self._list_names(route)
            route.append(active)
        return self._list_names(route if a == b else [*route, b])

    def id(self, name: str) -> int:
        found = self.plan.numbers.get(name)
        if found is None:
            raise UnknownProcess(name, self.names)
        return found

    def _list_names(self, vertices: Iterable[int]) -> tuple[str, ...]:
        return tuple(self.names[v] for v in vertices)

    # What changes.

    def fail(self, name: str) -> Topology:
        """The same without this vertex, for good: whoever comes back is a new one."""
        return mark_failed(self, name)

    def join(
        self,
        name: str,
        links: Iterable[str],
        member_of: str | None = None,
        process: bool = False,
        witness: bool = False,
    ) -> Join:
        """A new vertex with links to these: section 4.4, cases i to iv.

        `member_of` names a member of the separator that it joins (iii), or whose place it takes (iv).
        """
        return add_vertex(self, name, list(links), member_of, process, witness)


class _Numbers:
    """Names to numbers, with the place in the error."""

    def __init__(self, names: Sequence[str]) -> None:
        self.number = {name: v for v, name in enumerate(names)}

    def one(self, parameter: str, name: str) -> int:
        if name not in self.number:
            raise bad(f"{parameter} name {name!r}, which is not one of the vertices {', '.join(self.number)}")
        return self.number[name]

    def all(self, parameter: str, names: Iterable[str]) -> tuple[int, ...]:
        return tuple(self.one(parameter, name) for name in names)

    def link(self, a: str, b: str) -> tuple[int, int]:
        if a == b:
            raise bad(f"a link must be between two vertices, not {a} - {b}")
        one, two = self.one("links", a), self.one("links", b)
        return min(one, two), max(one, two)


def _names(
    links: Sequence[tuple[str, str]], processes: Iterable[str], routers: Iterable[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    processes = tuple(processes)
    if routers is None:
        known = set(processes)
        routers = (name for name in dict.fromkeys(n for link in links for n in link) if name not in known)
    names = (*processes, *routers)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise bad(f"{twice} is there twice: name each vertex once, as a process or as a router")
    if not processes:
        raise bad("it needs one process or more")
    return names, processes
