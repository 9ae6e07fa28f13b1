"""What a failure and a join make of a topology: Rodrigues & Veríssimo 1995, section 4.4.

  i    the new vertex changes no separator: it hangs on one station, or is linked with a whole block of direct links
  ii   it connects parts that were never connected
  iii  it joins a separator that lives: it starts from the state of every member that lives
  iv   it takes the place of a separator whose forwarding members all failed: it starts from the state of the witnesses
       that live, or else from the stable memory of the last member that failed

Membership is decided outside, one change after the other, the same for all (the report assumes it). Anything else
would open a second way around a separator, and is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from antecede.model import bits, mask
from antecede.topology.graph import Station, bad, format_members

if TYPE_CHECKING:
    from antecede.topology.value import Topology

__all__ = ["Join", "add_vertex", "mark_failed"]


class Join(Struct, frozen=True):
    """What a join is, and what it needs."""

    case: Literal["i", "ii", "iii", "iv"]
    topology: Topology
    sources: tuple[str, ...] = ()
    """Whose state the new vertex has to adopt."""


def mark_failed(topology: Topology, name: str) -> Topology:
    vertex = topology.id(name)
    if vertex in topology.dead:
        raise bad(f"{name} cannot fail: it has failed before")
    return msgspec.structs.replace(
        topology, dead=(*topology.dead, vertex), version=topology.version + 1, joining=()
    )


def add_vertex(
    topology: Topology,
    name: str,
    links: Sequence[str],
    member_of: str | None,
    process: bool,
    witness: bool,
) -> Join:
    if name in topology.names:
        raise bad(f"{name} cannot join: the name is taken: a vertex that comes back needs a new name")
    linked = [topology.id(n) for n in links]
    for vertex in linked:
        if vertex in topology.dead:
            raise bad(f"{name} cannot join with a link to {topology.names[vertex]}, which has failed")
    if not linked:
        raise bad(f"{name} cannot join without links: give one or more")
    if member_of is not None:
        return _as_member(topology, name, linked, topology.id(member_of), process, witness)
    if witness:
        raise bad(
            f"{name} cannot join as a witness of nothing: give member_of, the separator that it witnesses"
        )
    return _as_station(topology, name, linked, process)


# Cases iii and iv


def _as_member(
    topology: Topology, name: str, linked: list[int], member: int, process: bool, witness: bool
) -> Join:
    plan, names = topology.plan, topology.names
    place = plan.place[member]
    station = topology.stations[place]
    if not station.separator:
        raise bad(
            f"{name} cannot join as a member of {format_members(names, station.members)}, which is no separator"
        )
    needed = plan.live[place]
    for neighbour in plan.neighbours[place]:
        needed |= plan.live[neighbour]
    for vertex in bits(needed & ~mask(linked)):
        raise bad(
            f"{name} cannot join without a link to {names[vertex]}: it needs the links of the other members"
        )
    for vertex in bits(mask(linked) & ~needed):
        raise bad(f"{name} cannot join with a link to {names[vertex]}, which the other members do not have")
    if plan.active[place] is None and witness:
        raise bad(f"{name} cannot join as a witness: none of the other members lives, and one must forward")
    if not plan.live[place]:
        _check_order_at_neighbours(topology, name, place)
    vertex = len(names)
    changed = Station(
        (*station.members, vertex), (*station.witnesses, *([vertex] if witness else [])), station.separator
    )
    stations = tuple(changed if index == place else s for index, s in enumerate(topology.stations))
    after = _grow(topology, name, linked, process, stations, topology.trunk, (vertex,))
    return Join("iv" if plan.active[place] is None else "iii", after, _sources(topology, place))


def _sources(topology: Topology, place: int) -> tuple[str, ...]:
    living = list(bits(topology.plan.live[place]))
    if not living:
        members = topology.stations[place].members
        living = [next(v for v in reversed(topology.dead) if v in members)]
    return tuple(topology.names[v] for v in living)


def _check_order_at_neighbours(topology: Topology, name: str, place: int) -> None:
    """Without a witness, what is under way waits at the neighbours; linked ones do not know each other's order."""
    plan, names = topology.plan, topology.names
    for a, b in combinations(plan.neighbours[place], 2):
        if b in plan.neighbours[a]:
            both = " and ".join(format_members(names, topology.stations[s].members) for s in (a, b))
            raise bad(
                f"{name} cannot join in place of {format_members(names, topology.stations[place].members)} "
                f"without a witness that lives: {both} are linked, so what waits at them has no order"
            )


# Cases i and ii


def _as_station(topology: Topology, name: str, linked: list[int], process: bool) -> Join:
    plan, names = topology.plan, topology.names
    places = sorted({plan.place[v] for v in linked})
    for place in places:
        for vertex in bits(plan.live[place] & ~mask(linked)):
            station = format_members(names, topology.stations[place].members)
            raise bad(
                f"{name} cannot join without a link to {names[vertex]}: it needs links to all that live of {station}"
            )
    parts: list[list[int]] = []
    for place in places:
        part = next((p for p in parts if plan.way(p[0], place)), None)
        if part is None:
            parts.append([place])
        else:
            part.append(place)
    for part in parts:
        _check_block(topology, name, part)
    vertex, new = len(names), len(topology.stations)
    stations = (*topology.stations, Station((vertex,), (), len(parts) > 1))
    trunk = tuple(sorted((*topology.trunk, *((place, new) for place in places))))
    after = _grow(topology, name, linked, process, stations, trunk, ())
    return Join("ii" if len(parts) > 1 else "i", after)


def _check_block(topology: Topology, name: str, part: list[int]) -> None:
    """Links to several stations are fine if these, and no others, are linked with each other: a block."""
    plan, names = topology.plan, topology.names
    for a, b in combinations(part, 2):
        if b in plan.neighbours[a]:
            continue
        links = " and ".join(format_members(names, topology.stations[s].members) for s in (a, b))
        between = plan.way(a, b)[1:-1]
        gone = next((s for s in between if plan.active[s] is None), None)
        place = format_members(names, topology.stations[between[0] if gone is None else gone].members)
        reason = f"{name} cannot join with links to {links}, a second way around {place}"
        if gone is not None:
            reason += ", which failed: join as a member of it, with the state that it left (case iv)"
        raise bad(reason)
    if len(part) > 1:
        for other in plan.neighbours[part[0]]:
            if other not in part and all(other in plan.neighbours[s] for s in part):
                missing = format_members(names, topology.stations[other].members)
                raise bad(
                    f"{name} cannot join without a link to {missing}: it needs links to the whole "
                    "block, or to one of it"
                )


def _grow(
    topology: Topology,
    name: str,
    linked: list[int],
    process: bool,
    stations: tuple[Station, ...],
    trunk: tuple[tuple[int, int], ...],
    joining: tuple[int, ...],
) -> Topology:
    vertex = len(topology.names)
    return msgspec.structs.replace(
        topology,
        names=(*topology.names, name),
        processes=(*topology.processes, vertex) if process else topology.processes,
        links=tuple(sorted({*topology.links, *((v, vertex) for v in linked)})),
        stations=stations,
        trunk=trunk,
        version=topology.version + 1,
        joining=joining,
    )
