"""Views of a system as values: who is a member, and how that is to change.

A *roll* is one view, as all its members have it. Every process that ever was a member has a position on it, for ever,
in the order of their coming, so a position means the same process at all times and at all members. A name is used
once: whoever comes back after it left or was removed comes under another.

>>> roll = Roll.first(("a", "b", "c"), {"all": ("a", "b", "c")})
>>> plan = Plan(join=(Joiner("d", "10.0.0.4:7000", ("all",), "a"),), remove=("b",))
>>> later = roll.follow(2, plan, {0: 7, 2: 1})
>>> later.shown, later.groups["all"], later.sent, later.donors
(('a', 'c', 'd'), (0, 2, 3), (7, 0, 1, 0), {3: 0})
>>> plan.left(later)
Plan(join=(), leave=(), remove=())
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from antecede.topology import Topology

__all__ = ["HIGHEST", "Change", "Joiner", "Lost", "Plan", "Roll", "Where"]

HIGHEST = 1 << 62
"""Numbers of views, rounds and messages are below: one more can always be written."""


class Where(Struct, frozen=True):
    """The place of one that joins in a topology (`antecede.topology.joins`)."""

    links: tuple[str, ...]
    member_of: str | None = None
    """A member of the separator that it joins, or whose place it takes."""
    role: Literal["process", "router", "witness"] = "process"


class Joiner(Struct, frozen=True):
    """One that wants to be a member."""

    name: str
    address: str
    """Where members find it."""
    groups: tuple[str, ...]
    by: str
    """The member that it asked, whose application gives it its state."""
    where: Where | None = None


class Plan(Struct, frozen=True):
    """How a view is to change."""

    join: tuple[Joiner, ...] = ()
    leave: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    """Crashed, the operator says: nobody waits for them."""

    def __bool__(self) -> bool:
        return bool(self.join or self.leave or self.remove)

    def __or__(self, other: Plan) -> Plan:
        joining = {joiner.name: joiner for joiner in (*other.join, *self.join)}
        removed = sorted({*self.remove, *other.remove})
        return Plan(
            tuple(joiner for name, joiner in sorted(joining.items()) if name not in removed),
            tuple(sorted({*self.leave, *other.leave}.difference(removed))),
            tuple(removed),
        )

    def without(self, names: Iterable[str], by: str) -> Plan:
        """The plan, but for those of these that would join by this member."""
        gone = set(names)
        join = tuple(joiner for joiner in self.join if joiner.name not in gone or joiner.by != by)
        return Plan(join, self.leave, self.remove)

    def without_leaves(self, names: Iterable[str]) -> Plan:
        """The plan, but for these that would leave."""
        gone = set(names)
        return Plan(self.join, tuple(name for name in self.leave if name not in gone), self.remove)

    def left(self, roll: Roll, also: Iterable[str] = ()) -> Plan:
        """What of it is not done in this view. Whoever is in `also` is removed though it is no member."""
        members, also = set(roll.shown), set(also)
        return Plan(
            tuple(joiner for joiner in self.join if joiner.name not in roll.names),
            tuple(name for name in self.leave if name in members),
            tuple(name for name in self.remove if name in members or name in also),
        )


class Roll(Struct, frozen=True):
    """One view."""

    number: int
    """The round in which it was decided; 1 for the first. Numbers grow, not always by one."""
    names: tuple[str, ...]
    """All that are or were members, by position."""
    members: tuple[int, ...]
    """The positions of those that are, in increasing order."""
    sent: tuple[int, ...]
    """By position, how many messages each had sent before this view."""
    groups: dict[str, tuple[int, ...]]
    addresses: dict[str, str]
    """Of those that joined."""
    founders: int
    """How many there were in the first view."""
    donors: dict[int, int] = {}
    """Who joined with this view -> whose application gives it its state."""
    left: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    """Who left, or was removed, with this view."""
    topology: Topology | None = None
    founding: Topology | None = None
    """Where packets go over others than their destinations: by which ways now, and in the first view."""

    def __post_init__(self) -> None:
        size, members = len(self.names), set(self.members)
        if len(set(self.names)) != size or len(self.sent) != size or not 0 <= self.founders <= size:
            raise ValueError("the member list names a process twice, or counts messages of unnamed processes")
        if list(self.members) != sorted(members) or not members <= set(range(size)):
            raise ValueError("the member list has members without a name, or not in order")
        if any(not members.issuperset(some) for some in (self.donors, *self.groups.values())):
            raise ValueError("the member list has processes in groups or joining that are no members")
        if not (members - set(self.donors)).issuperset(self.donors.values()):
            raise ValueError("the member list has donors that are no members, or that join")
        gone = {*self.left, *self.removed}
        if not gone <= set(range(size)) - members or len(gone) != len(self.left) + len(self.removed):
            raise ValueError("the member list removes a member twice, or a process that was no member")
        if self.topology is not None and self.topology.names != self.names:
            raise ValueError("the member list has a topology of other processes")
        if not all(0 <= number < HIGHEST for number in (self.number, *self.sent)):
            raise ValueError("the member list has numbers that are negative or too large")

    @classmethod
    def first(cls, names: tuple[str, ...], groups: Mapping[str, Iterable[str]]) -> Roll:
        """The view that all founders begin with."""
        places = {
            group: tuple(sorted({names.index(name) for name in members})) for group, members in groups.items()
        }
        return cls(1, names, tuple(range(len(names))), (0,) * len(names), places, {}, len(names))

    @property
    def shown(self) -> tuple[str, ...]:
        """The members' names."""
        return tuple(self.names[place] for place in self.members)

    def describe_groups(self) -> str:
        """Who is in which group.

        >>> Roll.first(("ann", "bob"), {"all": ["bob", "ann"], "ops": ["bob"]}).describe_groups()
        'all: ann, bob; ops: bob'
        """
        named = [
            f"{group}: {', '.join(self.names[place] for place in places)}"
            for group, places in sorted(self.groups.items())
        ]
        return "; ".join(named) or "none"

    def place(self, name: str) -> int:
        return self.names.index(name)

    def without(self, names: Iterable[str]) -> tuple[int, ...]:
        """The members but these."""
        gone = set(names)
        return tuple(place for place in self.members if self.names[place] not in gone)

    def follow(self, number: int, plan: Plan, sent: Mapping[int, int]) -> Roll:
        """The view that a plan makes of this one; `sent` says how many messages of each member there were by then.

        Raises `BadParameter` if somebody has no place in the topology.
        """
        stay = self.without((*plan.remove, *plan.leave))
        names = self.names + tuple(joiner.name for joiner in plan.join)
        first = len(self.names)
        places = range(first, len(names))
        groups = {group: tuple(q for q in members if q in stay) for group, members in self.groups.items()}
        donors: dict[int, int] = {}
        for place, joiner in zip(places, plan.join, strict=True):
            for group in dict.fromkeys(joiner.groups):
                groups[group] = (*groups.get(group, ()), place)
            if stay:
                by = self.names.index(joiner.by) if joiner.by in self.names else -1
                donors[place] = by if by in stay else stay[0]
        return Roll(
            number,
            names,
            (*stay, *places),
            tuple(sent.get(q, self.sent[q] if q < first else 0) for q in range(len(names))),
            groups,
            self.addresses | {joiner.name: joiner.address for joiner in plan.join},
            self.founders,
            donors,
            tuple(q for q in self.members if self.names[q] in plan.leave),
            tuple(q for q in self.members if self.names[q] in plan.remove),
            None if self.topology is None else _reroute(self.topology, plan),
            self.founding,
        )


def _reroute(topology: Topology, plan: Plan) -> Topology:
    """The topology after a change: first all fail, or leave, then others join."""
    for name in (*plan.remove, *plan.leave):
        if name in topology.names and topology.id(name) not in topology.dead:
            topology = topology.fail(name)
    for joiner in plan.join:
        where = joiner.where or Where(())
        links = [name for name in where.links if name not in topology.names or topology.lives(name)]
        process, witness = where.role == "process", where.role == "witness"
        topology = topology.join(joiner.name, links, where.member_of, process, witness).topology
    return topology


class Lost(Struct, frozen=True):
    """Messages that a removed process sent, or was to get, and that are given up."""

    sender: str
    first: int
    last: int
    to: tuple[str, ...]
    counted: str = "sender"
    """By whose count, as `model.Awaited` says."""

    @property
    def description(self) -> str:
        """In words."""
        which = f"{self.first}" if self.first == self.last else f"{self.first} to {self.last}"
        by = "" if self.counted == "sender" else " (by the count of those to it)"
        return f"message {which} of {self.sender} to {', '.join(self.to)}{by}"


class Change(Struct, frozen=True):
    """A view that takes the place of another, as the application is told of it: between the messages of both."""

    number: int
    members: tuple[str, ...]
    joined: tuple[str, ...]
    left: tuple[str, ...]
    removed: tuple[str, ...]
    lost: tuple[Lost, ...]
    owed: tuple[int, ...] = ()
    """The positions of those whom our application gives their state."""
    heirs: tuple[int, ...] = ()
    """Those that joined later by one of them: their state will have that one in it."""
    unordered: tuple[tuple[str, int], ...] = ()
    """Messages, by sender and number, that came last in the view before, in an order that nobody knows to be causal:
    each waited for something that is given up, and several of the removed had sent it."""

    @property
    def shown(self) -> dict[str, Any]:
        """As plain data, for programs."""
        shown: dict[str, Any] = msgspec.to_builtins(self)
        del shown["owed"], shown["heirs"]
        return shown
