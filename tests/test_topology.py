"""Graphs, separators found and named, zones, routes, failures and joins; and what is refused, in which words."""

from itertools import combinations

import pytest

from antecede.errors import BadParameter, UnknownProcess
from antecede.topology import Topology, shapes

PAIR = [("n1", "d1"), ("n1", "d2"), ("d1", "d2"), ("d1", "d3"), ("d2", "d3")]
"""n1 - {d1, d2} - d3"""


def sets(topology: Topology) -> set[frozenset[str]]:
    return {frozenset(separator) for separator in topology.separators}


# Separators and zones


def test_processes_come_first_and_then_routers():
    topology = Topology.of([("r", "p"), ("r", "q")], ["q", "p"])
    assert topology.names == ("q", "p", "r")
    assert topology.processes == (0, 1)
    assert topology.routers == ("r",)


def test_two_routers_that_can_stand_in_for_each_other_are_found():
    assert sets(shapes.diamond()) == {frozenset({"n1"}), frozenset({"d1", "d2"}), frozenset({"d3"})}


def test_without_the_link_between_them_two_routers_are_no_separator():
    links = [link for link in PAIR if link != ("d1", "d2")]
    topology = Topology.from_links([("p", "n1"), *links, ("d3", "q")], ["p", "q"])
    assert frozenset({"d1", "d2"}) not in sets(topology)
    # One of the two links a cycle through: what is left is a tree, and one of them only hangs on it.
    assert topology.route("p", "q") in {("p", "n1", "d1", "d3", "q"), ("p", "n1", "d2", "d3", "q")}


def test_a_larger_set_is_found_only_if_asked_for():
    routers = ["g1", "g2", "g3"]
    links = [*combinations(routers, 2), *(("p", g) for g in routers), *(("q", g) for g in routers)]
    assert frozenset(routers) not in sets(Topology.from_links(links, ["p", "q"]))
    assert frozenset(routers) in sets(Topology.from_links(links, ["p", "q"], size=3))


def test_named_separators_are_used_and_no_others():
    topology = Topology.of([("p", "n1"), *PAIR, ("d3", "q")], ["p", "q"], separators=[("d2", "d1"), "d3"])
    assert topology.separators == (("d2", "d1"), ("d3",))
    assert topology.zones == (("p", "n1"), ("q",))
    assert topology.route("p", "q") == ("p", "n1", "d2", "d3", "q")


def test_r9_can_be_used_at_some_separators_only():
    topology = shapes.example().filter_at("d3")
    assert topology.separators == (("d3",),)
    assert topology.route("p1", "p6") == shapes.example().route("p1", "p6")
    with pytest.raises(BadParameter, match="p1 cannot filter: the trunk does not fall apart without it"):
        topology.filter_at("p1")


def test_sides_of_a_separator():
    topology = shapes.wan_of_lans(zones=2, size=2, gateways=2)
    assert set(topology.sides("1.g1")) == {("p1", "p2"), ("p3", "p4", "2.g1", "2.g2")}
    hub = shapes.star(3)
    assert set(hub.sides("hub")) == {("p1",), ("p2",), ("p3",)}


def test_a_clique_is_one_side_of_the_vertex_that_hangs_on_it():
    assert set(shapes.clique_with_tails(3).sides("p1")) == {("p2", "p3", "p5", "p6"), ("p4",)}


@pytest.mark.parametrize(
    ("topology", "trunk"),
    [
        (shapes.mesh(4), 6),
        (shapes.ring(5), 4),
        (shapes.ring(3), 3),
        (shapes.line(4), 3),
        (shapes.tree(7), 6),
        (shapes.clique_with_tails(4), 10),
    ],
)
def test_cliques_keep_their_links_and_other_cycles_are_cut(topology, trunk):
    assert len(topology.trunk) == trunk


@pytest.mark.parametrize("shape", sorted(shapes.SHAPES))
def test_between_any_two_there_is_one_way_and_it_is_the_same_back(shape):
    sizes = {"wan-of-lans": (3, 2), "hierarchy": (2, (2, 1, 2)), "diamond": (), "example": ()}
    topology = shapes.SHAPES[shape](*sizes.get(shape, (4,)))
    for a, b in combinations(topology.names, 2):
        route = topology.route(a, b)
        assert route[0] == a
        assert route[-1] == b
        assert len(set(route)) == len(route)
        assert topology.route(b, a)[1:-1] == route[1:-1][::-1]


def test_the_example_of_the_report():
    topology = shapes.example()
    assert topology.route("p1", "p6") == ("p1", "n1", "d1", "d3", "n3", "p6")
    assert sets(topology) == {frozenset({"d1", "d2"}), frozenset({"d3"}), frozenset({"n3"})}
    groups = shapes.example_groups()
    assert [len(groups[name]) for name in "ABCD"] == [3, 3, 2, 2]
    assert groups["C"] == ("p1", "p6")
    assert len(shapes.example(extended=True).processes) == 10


def test_a_hierarchy_separates_at_every_level():
    topology = shapes.hierarchy(2, (2, 2, 1))
    found = {frozenset({"d1.g1", "d1.g2"}), frozenset({"d2.g1", "d2.g2"})}
    found |= {frozenset({"o1.g1", "o1.g2"}), frozenset({"o2.g1", "o2.g2"})}
    assert sets(topology) == found | {frozenset({f"n{i}"}) for i in range(1, 5)}
    assert topology.route("p1", "p8") == ("p1", "n1", "d1.g1", "o1.g1", "o2.g1", "d2.g1", "n4", "p8")
    assert topology.route("p1", "p2") == ("p1", "n1", "p2")


def test_many_separators_are_checked_by_one_search():
    import networkx as nx

    seen = []
    search = nx.articulation_points

    def count(graph):
        seen.append(len(graph))
        return search(graph)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nx, "articulation_points", count)
        patch.setattr(nx, "node_connected_component", None)
        shapes.hierarchy(8)
    assert len(seen) == 1, f"{len(seen)} searches of graphs of {seen}"


def test_plain_data_and_back():
    topology = shapes.wan_of_lans(2, 2, 2, 1).fail("1.g1")
    assert Topology.load(topology.plain()) == topology


# What is refused


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            {"links": [("p", "q"), ("a", "b")], "processes": ["p", "q"]},
            "topology: the graph must be connected, and has 2 parts: there is no path between p and a",
        ),
        (
            {"links": [("p", "q")], "processes": ["p", "q"], "routers": [], "separators": ["r"]},
            "topology: separators name 'r', which is not one of the vertices p, q",
        ),
        (
            {"links": [("p", "r")], "processes": ["p"], "routers": []},
            "topology: links name 'r', which is not one of the vertices p",
        ),
        (
            {"links": [("p", "p")], "processes": ["p"]},
            "topology: a link must be between two vertices, not p - p",
        ),
        (
            {"links": [("p", "q")], "processes": ["p", "q"], "routers": ["p"]},
            "topology: p is there twice: name each vertex once, as a process or as a router",
        ),
        (
            {"links": [], "processes": []},
            "topology: it needs one process or more",
        ),
        (
            {"links": [("p", "n1"), *PAIR, ("d3", "q")], "processes": ["p", "q"], "separators": ["d1"]},
            "topology: separator {d1} must be on every path, and n1 - d2 - d3 avoids it",
        ),
        (
            {"links": [("p", "r"), ("r", "q")], "processes": ["p", "q"], "separators": ["p"]},
            "topology: separator {p} must be between two others, and has one side only",
        ),
        (
            {
                "links": [link for link in PAIR if link != ("d1", "d2")],
                "processes": ["n1", "d3"],
                "separators": [("d1", "d2")],
            },
            "topology: the members of separator {d1, d2} must be able to stand in for each other: "
            "the link d1 - d2 is missing",
        ),
        (
            {
                "links": [*PAIR, ("d1", "x")],
                "processes": ["n1", "d3", "x"],
                "separators": [("d1", "d2")],
            },
            "topology: the members of separator {d1, d2} must be able to stand in for each other: "
            "the link d2 - x is missing",
        ),
        (
            {"links": PAIR, "processes": ["n1", "d3"], "separators": [("d1", "d2"), ("d1", "d2")]},
            "topology: d1 is in two separators, {d1, d2} and {d1, d2}: a vertex can be in one",
        ),
        (
            {
                "links": PAIR,
                "processes": ["n1", "d3"],
                "separators": [("d1", "d2")],
                "witnesses": ["d1", "d2"],
            },
            "topology: separator {d1, d2} needs a member that forwards, and has only witnesses",
        ),
        (
            {"links": PAIR, "processes": ["n1", "d3"], "witnesses": ["d1"]},
            "topology: witness d1 must be a member of a separator",
        ),
    ],
)
def test_a_topology_that_cannot_be_is_refused(arguments, told):
    with pytest.raises(BadParameter) as error:
        Topology.of(**arguments)
    assert str(error.value) == told


def test_unknown_names_are_refused():
    with pytest.raises(UnknownProcess):
        shapes.star(2).route("p1", "p9")


# Failures


def test_the_next_member_takes_over_and_routes_stay():
    topology = shapes.diamond()
    after = topology.fail("d1")
    assert after.version == 1
    assert after.trunk == topology.trunk
    assert after.route("p", "x") == ("p", "n1", "d2", "d3", "x")


def test_a_route_ends_where_nobody_lives_to_forward():
    assert shapes.diamond().fail("d1").fail("d2").route("p", "x") == ("p", "n1")


def test_a_witness_does_not_forward():
    topology = shapes.wan_of_lans(2, 1, gateways=1, witnesses=1)
    assert topology.fail("1.g1").route("p1", "p2") == ("p1",)


def test_nobody_fails_twice():
    with pytest.raises(BadParameter, match="it has failed before"):
        shapes.diamond().fail("d1").fail("d1")


# Joins: section 4.4


def test_case_i_a_leaf_changes_no_separator():
    topology = shapes.diamond()
    join = topology.join("y", ["d3"], process=True)
    assert (join.case, join.sources) == ("i", ())
    assert join.topology.separators == topology.separators
    assert join.topology.names[: len(topology.names)] == topology.names
    assert join.topology.route("p", "y") == ("p", "n1", "d1", "d3", "y")


def test_case_i_a_whole_block_takes_a_new_one_in():
    join = shapes.wan_of_lans(2, 2, 1).join("p5", ["p1", "p2", "1.g1"], process=True)
    assert join.case == "i"
    assert join.topology.route("p5", "p1") == ("p5", "p1")
    assert join.topology.route("p5", "p3") == ("p5", "1.g1", "2.g1", "p3")


def test_case_ii_connects_what_was_never_connected():
    topology = Topology.of([("p1", "p2"), ("p3", "p4")], ["p1", "p2", "p3", "p4"], islands=True)
    assert topology.route("p1", "p4") == ("p1",)
    join = topology.join("r", ["p2", "p3"])
    assert (join.case, join.sources) == ("ii", ())
    assert join.topology.route("p1", "p4") == ("p1", "p2", "r", "p3", "p4")
    assert ("r",) in join.topology.separators


def test_case_iii_expands_a_separator_with_the_state_of_all_that_live():
    topology = shapes.diamond().fail("d1")
    join = topology.join("d4", ["n1", "d2", "d3"], member_of="d2")
    assert (join.case, join.sources) == ("iii", ("d2",))
    assert join.topology.joining == (len(topology.names),)
    assert join.topology.route("p", "x") == ("p", "n1", "d2", "d3", "x")
    assert join.topology.fail("d2").route("p", "x") == ("p", "n1", "d4", "d3", "x")


def test_case_iv_takes_its_state_from_the_witnesses():
    topology = shapes.wan_of_lans(2, 1, gateways=1, witnesses=1).fail("1.g1")
    join = topology.join("1.g2", ["p1", "1.w1", "2.g1", "2.w1"], member_of="1.g1")
    assert (join.case, join.sources) == ("iv", ("1.w1",))
    assert join.topology.route("p1", "p2") == ("p1", "1.g2", "2.g1", "p2")


def test_case_iv_takes_its_state_from_the_last_that_failed():
    topology = shapes.diamond().fail("d2").fail("d1")
    join = topology.join("d4", ["n1", "d3"], member_of="d2")
    assert (join.case, join.sources) == ("iv", ("d1",))


@pytest.mark.parametrize(
    ("topology", "arguments", "told"),
    [
        (
            shapes.diamond(),
            {"name": "d4", "links": ["n1", "d3"]},
            "d4 cannot join with links to {n1} and {d3}, a second way around {d1, d2}",
        ),
        (
            shapes.diamond().fail("d1").fail("d2"),
            {"name": "d4", "links": ["n1", "d3"]},
            "d4 cannot join with links to {n1} and {d3}, a second way around {d1, d2}, which failed: "
            "join as a member of it, with the state that it left (case iv)",
        ),
        (
            shapes.diamond(),
            {"name": "d4", "links": ["n1", "d1", "d3"], "member_of": "d1"},
            "d4 cannot join without a link to d2: it needs the links of the other members",
        ),
        (
            shapes.diamond(),
            {"name": "d4", "links": ["n1", "d1", "d2", "d3", "x"], "member_of": "d1"},
            "d4 cannot join with a link to x, which the other members do not have",
        ),
        (
            shapes.diamond(),
            {"name": "y", "links": ["d1"]},
            "y cannot join without a link to d2: it needs links to all that live of {d1, d2}",
        ),
        (
            shapes.diamond().fail("d1"),
            {"name": "d1", "links": ["n1"]},
            "d1 cannot join: the name is taken: a vertex that comes back needs a new name",
        ),
        (
            shapes.diamond().fail("d1"),
            {"name": "d4", "links": ["d1"]},
            "d4 cannot join with a link to d1, which has failed",
        ),
        (shapes.diamond(), {"name": "y", "links": []}, "y cannot join without links: give one or more"),
        (
            shapes.diamond(),
            {"name": "y", "links": ["d3"], "member_of": "x"},
            "y cannot join as a member of {x}, which is no separator",
        ),
        (
            shapes.diamond(),
            {"name": "w", "links": ["d3"], "witness": True},
            "w cannot join as a witness of nothing: give member_of, the separator that it witnesses",
        ),
        (
            shapes.mesh(4),
            {"name": "p5", "links": ["p1", "p2"]},
            "p5 cannot join without a link to {p3}: it needs links to the whole block, or to one of it",
        ),
        (
            shapes.wan_of_lans(2, 2, 1).fail("1.g1"),
            {"name": "1.g2", "links": ["p1", "p2", "2.g1"], "member_of": "1.g1"},
            "1.g2 cannot join in place of {1.g1} without a witness that lives: {p1} and {p2} are linked, "
            "so what waits at them has no order",
        ),
    ],
)
def test_a_join_that_cannot_be_is_refused(topology, arguments, told):
    with pytest.raises(BadParameter) as error:
        topology.join(**arguments)
    assert str(error.value) == f"topology: {told}"
