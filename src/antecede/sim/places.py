"""Where processes are: the topology of a run, by name, and the groups that it comes with.

    mesh                     everyone linked with everyone (the default)
    star                     around one router
    tree:arity=2             each process linked with its parent
    line, ring               in a row
    wan-of-lans:zones=3      local networks of equal size, each with its gateways (gateways=2, witnesses=0)
    hierarchy                organisations of departments of nodes with processes, as in figure 5.1 of Rodrigues &
                             Veríssimo 1995 (inside=4/4/2 for 4 processes, 4 nodes, 2 departments; gateways=2)
    figure-7.1               Rodrigues & Veríssimo 1995, figures 5.2 and 7.1: 6 processes, or 10 (nodes=2/2/2)
    figure-7.5:small=4       its small group beside a larger one, with one gateway
    figure-7.6               its three broadcast networks with two gateways each
With any of them, r9=d1+d3 says where R9 filters: at the stations of these vertices, or with r9=none nowhere.
The figures come with their groups, which the workload `groups` uses; `antecede.topology.shapes` says what was assumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from msgspec import Struct

from antecede.errors import BadParameter
from antecede.model import View
from antecede.sim.specs import Options, Spec, count, word
from antecede.topology import Topology, shapes

if TYPE_CHECKING:
    from antecede.sim.run import RunSpec

__all__ = ["PLACES", "Place", "place"]

PLACES = (
    "mesh",
    "star",
    "tree",
    "line",
    "ring",
    "wan-of-lans",
    "hierarchy",
    "figure-7.1",
    "figure-7.5",
    "figure-7.6",
)

SIZES = {"hierarchy": 64, "figure-7.1": 6, "figure-7.5": 16, "figure-7.6": 12}
"""How many processes a topology has if nobody says."""

Groups = Mapping[str, Sequence[str]]


class Place(Struct, frozen=True):
    """The vertices of a run: its processes first, then routers."""

    names: tuple[str, ...]
    processes: int
    topology: Topology | None = None
    """None: everyone is linked with everyone, which needs no plan."""
    groups: tuple[tuple[int, ...], ...] = ()
    areas: tuple[tuple[int, int], ...] = ()
    """Vertex -> its organisation, and the department in it, where there are some."""
    routers: Mapping[str, Sequence[int]] = {}
    """What routers are for -> those that do it, where there are several kinds."""

    def link(self, a: int, b: int) -> str:
        """What kind of link joins two vertices: in a department, in an organisation, or wide."""
        if not self.areas or self.areas[a] == self.areas[b] != (self.areas[a][0], -1):
            return "lan"
        return "man" if self.areas[a][0] == self.areas[b][0] else "wan"

    @property
    def parts(self) -> Mapping[str, Sequence[int]]:
        """The vertices by what they are for."""
        routers = self.routers or {"routers": range(self.processes, len(self.names))}
        return {"processes": range(self.processes), **routers}

    @property
    def view(self) -> View:
        return View(self.names)

    @property
    def applications(self) -> View:
        return View(self.names[: self.processes])


def place(spec: RunSpec, names: tuple[str, ...] | None = None) -> Place:
    """The place that a run's topology describes. A script brings its own names, and needs a mesh."""
    options = Options("topology", Spec.parse("topology", spec.topology))
    name = options.spec.name
    n = spec.processes or SIZES.get(name, 8)
    if names is not None:
        if name != "mesh":
            raise BadParameter(
                "simulate", f"topology must be mesh, since a script names its own processes, not {name}"
            )
        if spec.processes not in (0, len(names)):
            raise BadParameter(
                "simulate", f"processes must be {len(names)}, as the script has, not {spec.processes}"
            )
        return Place(names, len(names))
    if name == "mesh":
        options.end()
        return Place(View.numbered(n).names, n)
    if name == "hierarchy":
        return _hierarchy(options, n)
    topology, groups = _shape(options, n)
    if options.has("r9"):
        filters = options.option("r9", word, "")
        topology = topology.filter_at(*(() if filters == "none" else filters.split("+")))
    options.end()
    if len(topology.processes) != n:
        raise BadParameter(
            "simulate", f"processes must be {len(topology.processes)}, as {spec.topology} has, not {n}"
        )
    members = tuple(tuple(sorted(topology.id(p) for p in group)) for group in groups.values())
    return Place(topology.names, n, topology, members)


def _shape(options: Options, n: int) -> tuple[Topology, Groups]:
    match options.spec.name:
        case "star":
            return shapes.star(n), {}
        case "line":
            return shapes.line(n), {}
        case "ring":
            return shapes.ring(n), {}
        case "tree":
            return shapes.tree(n, max(1, options.option("arity", count, 2))), {}
        case "wan-of-lans":
            return _wan(options, n), {}
        case "figure-7.1":
            at = options.option("nodes", _nodes, (2, 2, 2))
            return shapes.example(n == 10, at), shapes.example_groups(n == 10)
        case "figure-7.5":
            small = options.option("small", count, 4)
            return shapes.gateway(small, n - small), shapes.gateway_groups(small, n - small)
        case "figure-7.6":
            if n % 3:
                raise BadParameter("simulate", f"processes must be a multiple of 3 in figure-7.6, not {n}")
            return shapes.three_networks(n // 3), shapes.three_networks_groups(n // 3)
    raise BadParameter.choice("topology", "the name", options.spec.name, PLACES)


def _nodes(owner: str, what: str, text: str) -> tuple[int, int, int]:
    numbers = _numbers(owner, what, text)
    if len(numbers) != 3:
        raise BadParameter(owner, f"{what} must be how many are at n1, n2 and n3, such as 2/2/2, not {text}")
    return numbers[0], numbers[1], numbers[2]


def _wan(options: Options, n: int) -> Topology:
    zones = options.option("zones", count, 2)
    if zones < 1 or n % zones:
        raise BadParameter(
            "topology", f"zones must be a divisor of {n}, the number of processes, not {zones}"
        )
    gateways, witnesses = options.option("gateways", count, 2), options.option("witnesses", count, 0)
    return shapes.wan_of_lans(zones, n // zones, gateways, witnesses)


def _hierarchy(options: Options, n: int) -> Place:
    inside = options.option("inside", _numbers, [4, 4, 2])
    gateways = options.option("gateways", count, 2)
    options.end()
    return _build_hierarchy(n, tuple(inside), gateways)


@lru_cache(maxsize=8)
def _build_hierarchy(n: int, inside: tuple[int, ...], gateways: int) -> Place:
    """Built once for the runs of a sweep: a network of thousands takes seconds."""
    whole = prod(inside)
    if not whole or n % whole or n < 2 * whole:
        raise BadParameter(
            "topology",
            f"processes must be two or more times {whole}, as {'/'.join(map(str, inside))} are, not {n}",
        )
    topology = shapes.hierarchy(n // whole, inside, gateways)
    department, organisation = prod(inside[:2]), prod(inside[:3])
    routers: dict[str, Sequence[int]] = {}
    areas = [(p // organisation, p // department) for p in range(n)]
    for at, level in enumerate(shapes.LEVELS[: len(inside)]):
        size, each = prod(inside[: at + 1]), gateways if at else 1
        routers[level] = range(len(areas), len(areas) + n // size * each)
        for first in range(0, n, size):
            # A router of a level is in no part of that level.
            outer = first // organisation if at <= 2 else -1 - first
            areas += [(outer, first // department if at <= 1 else -1)] * each
    return Place(topology.names, n, topology, (), tuple(areas), routers)


def _numbers(owner: str, what: str, text: str) -> list[int]:
    return [count(owner, what, part) for part in text.split("/")]
