"""From a graph of links to what is used of it: stations, and the trunk between them.

A *vertex* is a process of the application, a router, or both. A *separator* (Rodrigues & Veríssimo 1995, chapter 3) is
a set S of vertices without which the graph falls apart: every path between two of its sides passes through S.

A *station* is where a message can be: a separator of several members, which stand in for each other, or a single other
vertex. Members of one station are interchangeable: they are linked with each other and have the same neighbours, so
that whatever one of them gets or sends, the others can.

The *trunk* is what messages travel on, stations joined by links, such that there is one way between any two: every
biconnected block of the graph of stations is kept if all of its stations are linked with each other, and otherwise
reduced to a spanning tree. So every station that a message passes on its way is a cut: whoever is behind it hears of
what is before it only by what it forwards. That is what end-to-end causal order rests on (`protocols.separator`).

networkx is imported where a graph is read, which happens once for a topology: a program that uses none does not wait
for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

from msgspec import Struct

from antecede.errors import BadParameter

__all__ = [
    "Station",
    "bad",
    "build_graph",
    "build_stations",
    "build_trunk",
    "find_cuts",
    "find_twins",
    "format_members",
]

Graph = Any
"""A networkx graph: of vertices or of stations, by number."""


class Station(Struct, frozen=True):
    """One place on the way: its members, in the order in which they take over from each other."""

    members: tuple[int, ...]
    witnesses: tuple[int, ...] = ()
    """Members that get every copy and never forward (section 4.4)."""
    separator: bool = False
    """Whether its members use rule R9."""


def bad(reason: str) -> BadParameter:
    return BadParameter("topology", reason)


def format_members(names: Sequence[str], vertices: Iterable[int]) -> str:
    return "{" + ", ".join(names[v] for v in vertices) + "}"


def build_graph(names: Sequence[str], links: Iterable[tuple[int, int]], islands: bool) -> Graph:
    """The graph of vertices; refused if it is not in one piece, unless `islands` says that this is meant."""
    import networkx as nx

    graph: Graph = nx.Graph()
    graph.add_nodes_from(range(len(names)))
    graph.add_edges_from(links)
    parts = sorted(sorted(part) for part in nx.connected_components(graph))
    if len(parts) > 1 and not islands:
        pair = f"{names[parts[0][0]]} and {names[parts[1][0]]}"
        raise bad(f"the graph must be connected, and has {len(parts)} parts: there is no path between {pair}")
    return graph


def build_stations(
    graph: Graph, names: Sequence[str], separators: Sequence[tuple[int, ...]], witnesses: Sequence[int]
) -> tuple[Station, ...]:
    """The separators that were named, checked, and every other vertex by itself; in the order of vertices."""
    owner: dict[int, tuple[int, ...]] = {}
    for members in separators:
        _check_members(graph, names, members, witnesses)
        for vertex in members:
            if vertex in owner:
                both = f"{format_members(names, owner[vertex])} and {format_members(names, members)}"
                raise bad(f"{names[vertex]} is in two separators, {both}: a vertex can be in one")
            owner[vertex] = members
    for vertex in witnesses:
        if vertex not in owner:
            raise bad(f"witness {names[vertex]} must be a member of a separator")
    found = {
        Station(
            owner.get(vertex, (vertex,)),
            tuple(w for w in witnesses if w in owner.get(vertex, ())),
            vertex in owner,
        )
        for vertex in range(len(names))
    }
    stations = tuple(sorted(found, key=lambda station: min(station.members)))
    _check_separators(graph, names, stations)
    return stations


def _check_members(
    graph: Graph, names: Sequence[str], members: tuple[int, ...], witnesses: Sequence[int]
) -> None:
    if not members or len(set(members)) != len(members):
        raise bad(f"a separator must be one or more different vertices, not {format_members(names, members)}")
    if all(vertex in witnesses for vertex in members):
        raise bad(
            f"separator {format_members(names, members)} needs a member that forwards, and has only witnesses"
        )
    neighbours = sorted({u for v in members for u in graph[v]} - set(members))
    for a, b in (*combinations(members, 2), *product(members, neighbours)):
        if not graph.has_edge(a, b):
            raise bad(
                f"the members of separator {format_members(names, members)} must be able to stand in for "
                f"each other: the link {names[a]} - {names[b]} is missing"
            )


def _check_separators(graph: Graph, names: Sequence[str], stations: Sequence[Station]) -> None:
    """Refuse one that a path avoids. The graph of stations falls apart without it exactly if the graph of vertices
    does, since the members of a station are linked; and one search there looks at all of them.
    """
    import networkx as nx

    cut = set(nx.articulation_points(_contract(graph, stations)))
    for index, station in enumerate(stations):
        if station.separator and index not in cut:
            members = format_members(names, station.members)
            neighbours = sorted({u for v in station.members for u in graph[v]} - set(station.members))
            if len(neighbours) < 2:
                raise bad(f"separator {members} must be between two others, and has one side only")
            rest = graph.subgraph(set(graph) - set(station.members))
            path = " - ".join(names[v] for v in nx.shortest_path(rest, neighbours[0], neighbours[-1]))
            raise bad(f"separator {members} must be on every path, and {path} avoids it")


def _contract(graph: Graph, stations: Sequence[Station]) -> Graph:
    """The graph of stations, by index."""
    import networkx as nx

    place = {vertex: index for index, station in enumerate(stations) for vertex in station.members}
    contracted: Graph = nx.Graph()
    contracted.add_nodes_from(range(len(stations)))
    contracted.add_edges_from((place[a], place[b]) for a, b in graph.edges if place[a] != place[b])
    return contracted


def find_twins(graph: Graph, vertices: Iterable[int], size: int) -> list[tuple[int, ...]]:
    """Vertices of these that are interchangeable and together a separator, in sets of two up to `size`."""
    alike: dict[frozenset[int], list[int]] = {}
    for vertex in sorted(vertices):
        alike.setdefault(frozenset({vertex, *graph[vertex]}), []).append(vertex)
    sets = [tuple(members) for members in alike.values() if 2 <= len(members) <= size]
    return [s for s in sets if _falls_apart(graph, s)]


def _falls_apart(graph: Graph, members: tuple[int, ...]) -> bool:
    import networkx as nx

    before = nx.number_connected_components(graph)
    rest = graph.subgraph(set(graph) - set(members))
    return len(rest) > 0 and nx.number_connected_components(rest) > before


def build_trunk(graph: Graph, stations: Sequence[Station]) -> tuple[tuple[int, int], ...]:
    """The pairs of stations between which messages travel."""
    import networkx as nx

    used: set[tuple[int, int]] = set()
    # By their edges: to ask a view of the graph for those of one block takes as long as its largest station has links.
    for edges in nx.biconnected_component_edges(_contract(graph, stations)):
        block = {station for edge in edges for station in edge}
        if len(edges) < len(block) * (len(block) - 1) // 2:
            # Shallow and the same everywhere: from the station with most neighbours, the first of equals.
            inside: Graph = nx.Graph(edges)
            root = min(block, key=lambda s: (-inside.degree[s], s))
            edges = list(nx.bfs_tree(inside, root, sort_neighbors=sorted).edges)
        used |= {(min(a, b), max(a, b)) for a, b in edges}
    return tuple(sorted(used))


def find_cuts(stations: int, trunk: Iterable[tuple[int, int]]) -> set[int]:
    """The stations without which the trunk falls apart."""
    import networkx as nx

    graph: Graph = nx.Graph()
    graph.add_nodes_from(range(stations))
    graph.add_edges_from(trunk)
    return set(nx.articulation_points(graph))
