"""Ready-made topologies, by name.

>>> star(3).names, star(3).separators
(('p1', 'p2', 'p3', 'hub'), (('hub',),))
>>> wan_of_lans(zones=2, size=2, gateways=2).zones
(('p1', 'p2'), ('p3', 'p4'))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, pairwise, product
from math import prod

from antecede.topology.graph import bad
from antecede.topology.value import Topology

__all__ = [
    "LEVELS",
    "SHAPES",
    "clique_with_tails",
    "diamond",
    "example",
    "example_groups",
    "gateway",
    "gateway_groups",
    "hierarchy",
    "line",
    "mesh",
    "ring",
    "star",
    "three_networks",
    "three_networks_groups",
    "tree",
    "wan_of_lans",
]


def mesh(n: int) -> Topology:
    """Everyone linked with everyone: no router, no separator, one hop."""
    names = _processes(n)
    return Topology.from_links(combinations(names, 2), names)


def star(n: int) -> Topology:
    """Processes around one router."""
    names = _processes(n)
    return Topology.from_links([(name, "hub") for name in names], names)


def line(n: int) -> Topology:
    """Processes in a row, each relaying for the others."""
    names = _processes(n)
    return Topology.from_links(pairwise(names), names)


def ring(n: int) -> Topology:
    """Processes in a ring, of which one link is left unused so that there is one way."""
    names = _processes(n)
    return Topology.from_links([*pairwise(names), *([(names[-1], names[0])] if n > 2 else [])], names)


def tree(n: int, arity: int = 2) -> Topology:
    """Processes in a tree, each linked with its parent."""
    names = _processes(n)
    return Topology.from_links([(names[(i - 1) // arity], names[i]) for i in range(1, n)], names)


def diamond() -> Topology:
    """p - n1 - {d1, d2} - d3 - {q, x}: where hop-by-hop order alone is not enough."""
    pair = [("n1", "d1"), ("n1", "d2"), ("d1", "d2"), ("d1", "d3"), ("d2", "d3")]
    return Topology.from_links([("p", "n1"), *pair, ("d3", "q"), ("d3", "x")], ["p", "q", "x"])


def clique_with_tails(n: int) -> Topology:
    """n processes linked with each other, and n more, each hanging on one of them."""
    names = _processes(2 * n)
    return Topology.from_links([*combinations(names[:n], 2), *zip(names[:n], names[n:], strict=True)], names)


def wan_of_lans(zones: int, size: int, gateways: int = 2, witnesses: int = 0) -> Topology:
    """Local networks whose processes are linked with each other and with all of their gateways; the gateways of all
    zones are linked with each other (figure 7.6). Zone z has the separator {z.g1, z.g2, ...}; the last ones of a
    zone can be witnesses: z.w1, ...
    """
    if min(zones, size, gateways) < 1:
        raise bad(f"zones, size and gateways must be 1 or more, not {zones}, {size} and {gateways}")
    names = _processes(zones * size)
    links: list[tuple[str, str]] = []
    gates = [
        (*(f"{z + 1}.g{i + 1}" for i in range(gateways)), *(f"{z + 1}.w{i + 1}" for i in range(witnesses)))
        for z in range(zones)
    ]
    for z, gate in enumerate(gates):
        links += combinations((*names[z * size : (z + 1) * size], *gate), 2)
    for one, two in combinations(gates, 2):
        links += product(one, two)
    if zones == 1:
        return Topology.of(links, names)
    watching = [name for gate in gates for name in gate[gateways:]]
    return Topology.of(links, names, separators=gates, witnesses=watching)


LEVELS = ("nodes", "departments", "organisations", "countries")
"""What a hierarchy is made of, from the inside; its routers are called n1, d1.g1, o1.g1 and c1.g1."""


def hierarchy(outermost: int, inside: Sequence[int] = (4, 4, 2), gateways: int = 2) -> Topology:
    """Processes on nodes, nodes in departments, departments in organisations (figure 5.1 of the report).

    `inside` has the processes on a node, the nodes in a department, the departments in an organisation and, if there is
    a fourth level, the organisations in a country; there are so many of the `outermost`, linked with each other.
    The text gives a communication server on each node, which serializes what its processes send, routers of departments
    and of organisations that run the protocol, and a WAN that joins the organisations. Assumed, since the figure is not
    at hand: the numbers, and `gateways` routers side by side at each level above the nodes. Every level is a separator:
    n1, {d1.g1, d1.g2}, {o1.g1, o1.g2}.
    """
    if outermost < 2 or not 1 <= len(inside) <= len(LEVELS) or min(*inside, gateways) < 1:
        found = f"{outermost} of {'/'.join(map(str, inside))} with {gateways} gateways"
        raise bad(
            f"a hierarchy needs two or more of the outermost, one to four levels, and one or more in each, not {found}"
        )
    names = _processes(outermost * prod(inside))
    below: list[tuple[str, ...]] = [(name,) for name in names]
    links: list[tuple[str, str]] = []
    separators: list[tuple[str, ...]] = []
    for level, size in zip(LEVELS, inside, strict=False):
        ends = [""] if level == "nodes" else [f".g{k + 1}" for k in range(gateways)]
        here = [tuple(f"{level[0]}{i + 1}{end}" for end in ends) for i in range(len(below) // size)]
        for i, members in enumerate(below):
            links += product(members, here[i // size])
        for members in here:
            links += combinations(members, 2)
        separators += here
        below = here
    for one, two in combinations(below, 2):
        links += product(one, two)
    return Topology.of(links, names, separators=separators)


def example(extended: bool = False, at: tuple[int, int, int] = (2, 2, 2)) -> Topology:
    """The network of figures 5.2 and 7.1 of the report, as far as its text tells.

    The text gives: processes p1 to p6; the chain p1 -> n1 -> {d1, d2} -> d3 -> n3 -> p6; the separators S1 = {d1, d2},
    S2 = {d3} and S3 = {n3}; and the larger network with two more processes at n1 and two more at n3 (`extended`).
    Assumed, since the figures are not at hand: p1 and p2 at node n1, p3 and p4 at n2, p5 and p6 at n3; n1 and n2 in
    the department of d1 and d2, n3 in that of d3; a link between d1 and d2. `at` places p1 to p6 otherwise: so many at
    n1, n2 and n3.
    """
    if sum(at) != 6 or min(at) < 0:
        raise bad(f"nodes must place p1 to p6 at n1, n2 and n3, such as 2/2/2, not {'/'.join(map(str, at))}")
    names = _processes(6)
    nodes = {"n1": names[: at[0]], "n2": names[at[0] : at[0] + at[1]], "n3": names[at[0] + at[1] :]}
    if extended:
        nodes["n1"] += ["p7", "p8"]
        nodes["n3"] += ["p9", "p10"]
    links = [(process, node) for node, inside in nodes.items() for process in inside]
    links += product(("n1", "n2", "d3"), ("d1", "d2"))
    links += [("d1", "d2"), ("d3", "n3")]
    return Topology.of(links, _processes(10 if extended else 6), separators=[("d1", "d2"), "d3", "n3"])


def example_groups(extended: bool = False) -> Mapping[str, tuple[str, ...]]:
    """The groups of figure 7.1. The text gives G_C = {p1, p6}, p1 in G_A, the sizes 3, 3, 2, 2 and, extended, two more
    members of G_A at n1 and of G_D at n3. The other members are assumed.
    """
    groups = {"A": ("p1", "p2", "p3"), "B": ("p3", "p4", "p5"), "C": ("p1", "p6"), "D": ("p5", "p6")}
    if extended:
        groups["A"] += ("p7", "p8")
        groups["D"] += ("p9", "p10")
    return groups


def gateway(small: int = 4, large: int = 12) -> Topology:
    """The network of figure 7.5: "a small group of nodes interacts with a larger group through a single gateway".

    The text gives the gateway, used as a separator, and no sizes. Assumed, since the figure is not at hand: two
    broadcast networks: the processes of each are linked with each other and with the gateway, which is a router;
    p1 to p4 in the small one and 12 in the large one, unless told otherwise.
    """
    if min(small, large) < 2:
        raise bad(f"each side needs two processes or more, and they have {small} and {large}")
    names = _processes(small + large)
    links = [*combinations((*names[:small], "g"), 2), *combinations((*names[small:], "g"), 2)]
    return Topology.of(links, names, separators=["g"])


def gateway_groups(small: int = 4, large: int = 12) -> Mapping[str, tuple[str, ...]]:
    """The groups of figure 7.5. The text gives G1 on the small side, G2, whose "causal information" does not concern
    it, and G3 and G4, which do. Assumed: G1 and G2 are all the processes of a side, G3 and G4 each one of either side.
    """
    names = _processes(small + large)
    one, two = names[:small], names[small:]
    return {"1": tuple(one), "2": tuple(two), "3": (one[-1], two[0]), "4": (one[-2], two[1])}


def three_networks(size: int = 4) -> Topology:
    """The network of figure 7.6: "three interconnected broadcast networks" in each of which "both gateways receive all
    out-going traffic".

    The text gives the three networks and their two gateways each, together a separator. Assumed, since the figure is
    not at hand: four processes in each network unless told otherwise, and every two gateways of different networks
    linked, as in `wan_of_lans`.
    """
    return wan_of_lans(zones=3, size=size, gateways=2)


def three_networks_groups(size: int = 4) -> Mapping[str, tuple[str, ...]]:
    """The groups of figure 7.6. The text names G1, with p1 in it, and "remote groups". Assumed: G1, G2 and G3 are all
    the processes of a network, and three more groups join a process of one network with one of the next.
    """
    if size < 2:
        raise bad(f"a network needs two processes or more, not {size}")
    names = _processes(3 * size)
    nets = [tuple(names[z * size : (z + 1) * size]) for z in range(3)]
    groups = {str(z + 1): net for z, net in enumerate(nets)}
    return groups | {str(z + 4): (nets[z][-1], nets[(z + 1) % 3][0]) for z in range(3)}


def _processes(n: int) -> list[str]:
    if n < 1:
        raise bad(f"it needs one process or more, not {n}")
    return [f"p{i + 1}" for i in range(n)]


SHAPES: Mapping[str, Callable[..., Topology]] = {
    "mesh": mesh,
    "star": star,
    "line": line,
    "ring": ring,
    "tree": tree,
    "diamond": diamond,
    "clique-with-tails": clique_with_tails,
    "wan-of-lans": wan_of_lans,
    "hierarchy": hierarchy,
    "example": example,
    "gateway": gateway,
    "three-networks": three_networks,
}
