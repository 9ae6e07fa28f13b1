"""Where the border of separators is: which generalisations keep causal order end to end, and which break it.

Members that are no twins forward for different destinations, so that nothing orders what they forward: the explorer
finds the smallest graph, and prints its schedule (`pytest -s -k smallest`). Separators of twins that overlap do not
exist: a member of the second that is not in the first has the same neighbours, and leads around the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations, permutations
from typing import Any

import networkx as nx
import pytest

from antecede.explore import Explorer, explore
from antecede.model import mask
from antecede.program import parse
from antecede.protocols.separator import Separator
from antecede.replay import explain
from antecede.topology import Topology
from antecede.topology.graph import find_twins
from antecede.topology.plan import Plan

TRAP = "p: send m to x; send z to q\nq: receive z; send y to x\nx:"
"""m precedes y, and both are for x."""
ANSWER = "p: send m to q, x\nq: receive m; send y to p, x\nx:"
"""The same for messages to two."""


def graphs(n: int) -> Iterator[Any]:
    """Every connected graph of so many vertices, one of each shape."""
    atlas: list[Any] = nx.graph_atlas_g()
    return (graph for graph in atlas if len(graph) == n and nx.is_connected(graph))


def systems(n: int) -> Iterator[Topology]:
    """Three processes, and routers, at all places of all graphs of so many vertices; routers may change places."""
    routers = tuple(f"d{k}" for k in range(1, n - 2))
    names = ("p", "q", "x", *routers)
    swaps = [dict(zip(names, (*names[:3], *order), strict=True)) for order in permutations(routers)]
    for graph in graphs(n):
        found = {link(graph.edges, of) for of in permutations(names)}
        for links in {min(link(links, swap) for swap in swaps) for links in found}:
            yield Topology.from_links(links, names[:3])


def link(edges: Iterable[tuple[Any, Any]], names: Any) -> tuple[tuple[str, str], ...]:
    """The links of a graph whose vertices have these names."""
    return tuple(sorted((min(names[a], names[b]), max(names[a], names[b])) for a, b in edges))


class ShortestWays(Plan):
    """Every message takes a shortest way to each destination, over routers if there are several."""

    def __init__(self, topology: Topology) -> None:
        super().__init__(topology)
        graph = nx.Graph(topology.links)
        self.neighbours = [sorted(graph[v]) for v in range(len(topology.names))]
        self._first: list[dict[int, int]] = []
        for v in range(len(topology.names)):
            ways = {t: max(nx.all_shortest_paths(graph, v, t)) for t in graph if t != v}
            self._first.append({u: mask(t for t, way in ways.items() if way[1] == u) for u in graph[v]})

    def behind(self, station: int) -> Mapping[int, int]:
        return self._first[station]


class ByShortestWays(Separator):
    """Hops in causal order, over any members: the report's routing, read as it stands."""

    def _install(self, topology: Topology) -> None:
        super()._install(topology)
        self.plan = ShortestWays(topology)


def finds(topology: Topology) -> bool:
    explorer = Explorer(lambda v: ByShortestWays(topology.view, v, topology, r9=False))
    result = explorer.run(parse(TRAP))
    if result.finding is not None:
        assert result.finding.kind == "order"
        links = ", ".join(f"{topology.names[a]} - {topology.names[b]}" for a, b in topology.links)
        print(f"\n{links}\n{explain(explorer, result)}")
    return result.finding is not None


def test_the_smallest_graph_on_which_members_that_are_no_twins_break_the_order_has_four_vertices():
    assert not any(finds(topology) for topology in systems(3))
    broken = [topology for topology in systems(4) if finds(topology)]
    assert broken
    for topology in broken:
        # Both q and the router lie between p and x, and both forward: linked with each other or not.
        links = {frozenset((topology.names[a], topology.names[b])) for a, b in topology.links}
        assert links >= {frozenset(pair) for pair in ("pq", "qx", ("p", "d1"), ("d1", "x"))}
        assert frozenset("px") not in links


@pytest.mark.parametrize("program", [TRAP, ANSWER])
@pytest.mark.parametrize("n", [3, 4, 5])
def test_one_way_between_any_two_keeps_the_order_on_every_graph(n, program):
    for topology in systems(n):
        result = explore(parse(program), lambda v, topology=topology: Separator(topology.view, v, topology))  # type: ignore[misc]
        assert result.verdict == "holds", topology


def test_separators_of_twins_do_not_overlap_in_any_graph_of_up_to_six_vertices():
    found = 0
    for graph in (graph for n in range(3, 7) for graph in graphs(n)):
        sets = [set(members) for members in separators(graph) if is_of_twins(graph, members)]
        found += len(sets)
        assert not any(a & b for a, b in combinations(sets, 2)), graph.edges
    assert found > 100


def test_separators_that_are_not_of_twins_do_overlap():
    ring = nx.cycle_graph(5)
    assert any(set(a) & set(b) for a, b in combinations(separators(ring), 2))
    assert not any(is_of_twins(ring, members) for members in separators(ring))


def separators(graph: Any) -> list[tuple[int, ...]]:
    """Sets of vertices without which the rest is in more than one part, of which each member is needed."""

    def parts(members: tuple[int, ...]) -> int:
        rest = graph.subgraph(set(graph) - set(members))
        return nx.number_connected_components(rest) if len(rest) else 0

    every = [s for size in range(1, len(graph) - 1) for s in combinations(graph, size) if parts(s) > 1]
    return [s for s in every if not any(set(t) < set(s) for t in every)]


def is_of_twins(graph: Any, members: tuple[int, ...]) -> bool:
    return len(members) == 1 or members in find_twins(graph, members, len(members))
