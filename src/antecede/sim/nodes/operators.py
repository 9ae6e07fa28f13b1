"""The operators of simulated nodes: they let nodes join, leave and be removed, as people and programs do for real ones.

They look at the system every `BEAT`: whoever wants to join, to leave or to have someone removed asks again and again,
as nodes do, and whoever is awaited and will never come back is removed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from antecede.model import bits
from antecede.process.views.members import Joiner, Plan, Where
from antecede.protocols import PROTOCOLS
from antecede.protocols.separator import Separator
from antecede.sim.nodes.node import MILLISECOND, SimNode

if TYPE_CHECKING:
    from antecede.sim.nodes.system import System

__all__ = ["BEAT", "SECOND", "Operators", "Wish"]

SECOND = 1000 * MILLISECOND
BEAT = SECOND // 2
VOUCH = 20 * SECOND
"""How long one that joined may be silent before the member that it asked has it removed (`net.peers.joining`)."""
DRAIN = 5 * SECOND
"""How long one that has left waits for others to have what it said: as long as a node does (`Settings.drain_s`)."""


class Wish:
    """Someone joins, or is removed."""

    def __init__(
        self,
        name: str,
        give_up: int | None = None,
        member_of: str | None = None,
        memory: Callable[[], bytes] | None = None,
    ) -> None:
        self.name, self.give_up = name, give_up
        self.member_of, self.memory = member_of, memory
        """A member of the separator that a router joins; and what the last that failed knew, if its journal is read."""
        self.by: SimNode | None = None
        """The member that is asked."""
        self.position: int | None = None
        """Of that member's last input when it found that the wish is fulfilled: to be durable before that is told."""
        self.strikes = 0
        """What chance says of how the member that is asked dies in that; 0: it does not."""


class Operators:
    """What is wanted of the view, and by whom."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.wishes: list[Wish] = []
        """Who is to be removed."""
        self.joins: list[Wish] = []
        self.asked: dict[str, set[str]] = {}
        """Who wanted to join -> the members that it asked."""

    def members(self) -> list[SimNode]:
        """Nodes that run and are members, as far as they know."""
        return [node for node in self._system.nodes if node is not None and node.up and node.is_member]

    def living(self) -> list[SimNode]:
        """Nodes that stay members, as far as anyone knows."""
        return [
            node
            for node in self._system.nodes
            if node is not None and not (node.dead or node.retired or node.leaving or node.expelled)
        ]

    def can_spare(self, node: SimNode) -> bool:
        """Whether at least two are left without it, and the protocol does without it."""
        if self._system.calm:
            return False
        if PROTOCOLS[self._system.scenario.protocol].routed:
            return self._has_deputy(node)
        if self._system.scenario.protocol == "monitor" and node.name == "a":
            return False
        removed = {wish.name for wish in self.wishes}
        left = [one for one in self.living() if one is not node and one.name not in removed]
        return len(left) >= 2

    def _has_deputy(self, node: SimNode) -> bool:
        """Whether it is a router, and another of its separator forwards."""
        topology = node.core.changing.roll.topology
        if topology is None or node.place not in topology.plan.place or node.place in topology.processes:
            return False
        station = topology.stations[topology.plan.place[node.place]]
        others = set(station.members) - {node.place, *station.witnesses}
        # One that joined may not have begun to live.
        able = [one.core.machine for one in self.living() if one.place in others]
        return any(not isinstance(machine, Separator) or not machine.joining for machine in able)

    def _where(self, by: SimNode, member: str | None) -> Where | None:
        """The place of a router that joins the separator of this member, with the links that it needs."""
        topology = by.core.changing.roll.topology
        if topology is None or member is None:
            return None
        plan = topology.plan
        place = plan.place[topology.id(member)]
        near = plan.live[place] | reduce(or_, (plan.live[other] for other in plan.neighbours[place]), 0)
        return Where(tuple(topology.names[v] for v in bits(near)), member, "router")

    def remove(self, name: str) -> None:
        """Have one removed."""
        if all(wish.name != name for wish in self.wishes):
            self.wishes.append(Wish(name))
            self._system.counts["removed"] += 1

    def beat(self) -> None:
        """Look at the system, and ask again for what is not done."""
        self._system.at(self._system.now + BEAT, self.beat)
        for node in list(self._system.nodes):
            if node is None or self._system.now < node.paused_until:
                continue
            self.look_at_leaver(node)
            if node.wants_to_leave:
                self._system.do(node, lambda node=node: node.propose(Plan(leave=(node.name,))))  # type: ignore[misc]
        if not self.living():
            # Nobody is left to ask.
            self.wishes.clear()
            self.joins.clear()
        for wish in list(self.wishes):
            self._repeat_removal(wish)
        for wish in list(self.joins):
            self._repeat_join(wish)
        members = self.members()
        for node in members:
            self._system.do(node, node.waive)
            self._vouch(node)
            self._see_to_awaited(node)
        if members:
            self._tell_those_left_behind(members)

    def _tell_those_left_behind(self, members: list[SimNode]) -> None:
        """Nobody talks to a node that all go on without: so it asks whether it is a member still."""
        newest = max((node.core.changing.roll for node in members), key=lambda roll: roll.number)
        behind = [node for node in members if node.place not in newest.members]
        rolls = self._system.judge.rolls.values()
        if all(node.core.changing.membership.going for node in members if node.place in newest.members):
            for node in behind:
                if not any(node.place in (*roll.left, *roll.removed) for roll in rolls):
                    began = f"{node.name} began to live in view {node.core.changing.roll.number}"
                    self._system.judge.find("views", f"{began}, which is forgotten")
                self.tell_gone(node.place)

    def _asker(self, wish: Wish, but: str) -> SimNode | None:
        """The member that does what an operator wants: the same one, while it can."""
        suspected = {but, *(other.name for other in self.wishes)}
        by = wish.by
        if by is None or not by.up or not by.is_member or by.expelled or by.name in suspected:
            able = [node for node in self.members() if node.name not in suspected and not node.expelled]
            wish.by, wish.position = self._system.random.choice(able) if able else None, None
        return wish.by if wish.by is not None and self._system.now >= wish.by.paused_until else None

    def _repeat_removal(self, wish: Wish) -> None:
        by = self._asker(wish, wish.name)
        if by is None:
            return
        if by.core.changing.membership.has_removed(wish.name):
            self.wishes.remove(wish)
            return
        self._system.do(by, lambda: by.propose(Plan(remove=(wish.name,))))

    def _repeat_join(self, wish: Wish) -> None:
        by = self._asker(wish, wish.name)
        if wish.give_up is not None and self._system.now >= wish.give_up:
            self.joins.remove(wish)
            if by is not None and wish.name not in by.core.changing.roll.names:
                self._system.do(by, lambda: by.withdraw(wish.name))
            return
        if by is None:
            return
        membership = by.core.changing.membership
        roll = membership.roll
        if wish.name in membership.refused or (wish.name in roll.names and wish.name not in roll.shown):
            self.joins.remove(wish)
            return
        if membership.has_joined(wish.name):
            self._let_begin(wish, by)
            return
        down = [roll.names[place] for place in roll.members if not self._is_up(place)]
        if membership.may_propose(wish.name, down):
            groups = ("all",) if wish.member_of is None else ()
            joiner = Joiner(wish.name, "", groups, by.name, self._where(by, wish.member_of))
            self.asked.setdefault(wish.name, set()).add(by.name)
            self._system.do(by, lambda: by.propose(Plan(join=(joiner,))))
            if wish.strikes and by.up and not by.fuse and self.can_spare(by):
                by.fuse, by.fate = 1 + wish.strikes % 23, "die"
                if wish.strikes >> 8 & 1:
                    self.joins.remove(wish)
                wish.strikes = 0

    def look_at_joins(self, by: SimNode) -> None:
        """This member has made something durable: perhaps that one has joined by it, which may begin to live now."""
        for wish in [wish for wish in self.joins if wish.by is by]:
            if by.core.changing.membership.has_joined(wish.name):
                self._let_begin(wish, by)

    def _let_begin(self, wish: Wish, by: SimNode) -> None:
        """Let one that has joined begin to live, once that is durable at the member that it asked."""
        roll = by.core.changing.roll
        if wish.position is None:
            wish.position = by.written
        if by.durable >= wish.position:
            self.joins.remove(wish)
            self._system.counts["joined"] += 1
            node = self._system.make(wish.name, roll.place(wish.name), roll, wish.memory)
            node.application.runs = wish.member_of is None

    def _is_up(self, place: int) -> bool:
        node = self._system.nodes[place] if place < len(self._system.nodes) else None
        return node is not None and node.up

    def _see_to_awaited(self, node: SimNode) -> None:
        """Have removed whom a change waits for, and who has ended."""
        progress = node.core.changing.membership.progress()
        for name in () if progress is None else progress.awaits:
            place = node.core.changing.roll.place(name)
            there = self._system.nodes[place] if place < len(self._system.nodes) else None
            if there is not None and (there.dead or there.retired):
                self.remove(name)

    def _vouch(self, node: SimNode) -> None:
        """Let a member have those removed that joined by it, and never came."""
        asking, now = {wish.name for wish in self.joins}, self._system.now
        mine = set(node.core.changing.membership.list_vouched()) - asking
        node.unheard = {name: node.unheard.get(name, now) for name in sorted(mine)}
        for name, since in node.unheard.items():
            if now - since >= VOUCH:
                self._system.do(node, lambda name=name: node.propose(Plan(remove=(name,))))  # type: ignore[misc]

    def look_at_leaver(self, node: SimNode) -> None:
        """Whoever has left ends once all is taken, and what it had to say has arrived, or is not wanted any more, or
        was not heard for `DRAIN`: its leader may be dead, and nobody tells one that has left."""
        if node.up and node.core.me not in node.core.changing.roll.members:
            core = node.core
            node.left_at = node.left_at or self._system.now
            left = core.inbox or core.changing.ready or core.taken or core.again or core.untold
            drained = core.is_drained(core.links)
            late = self._system.now >= node.left_at + DRAIN
            if node.lingers and any(self._counts_on(other, node) for other in self._system.nodes):
                return
            if not left and node.written == node.durable and (drained or node.expelled or late):
                node.up, node.retired = False, True
                self._system.counts["left"] += 1

    def _counts_on(self, other: SimNode | None, node: SimNode) -> bool:
        """Whether another that lives has this one among its members."""
        if other is None or other is node or other.dead or other.retired:
            return False
        return other.is_member and node.place in other.core.changing.roll.members

    def tell_gone(self, place: int) -> None:
        """Whoever talks to a system that it is no member of is told so, some time."""
        node = self._system.nodes[place] if place < len(self._system.nodes) else None
        if node is not None and node.up and not node.expelled:
            node.expelled = True
            self._system.plan(self._system.random.randrange(10 * SECOND), node, lambda: self._expel(node))

    def _expel(self, node: SimNode) -> None:
        if node.is_member:
            # It stops, and says that it is no member any more.
            left = any(node.place in roll.left for roll in self._system.judge.rolls.values())
            if left and not self._system.counts["removed"]:
                self._system.judge.find("views", f"{node.name} has left, and was not told so by who led it")
            self._system.bury(node)
            self._system.counts["expelled"] += 1
        # Else it has left, and ends when its application has taken everything.

    def orphan(self, node: SimNode) -> None:
        """It will never be given its state: it stops, and is removed."""
        self._system.counts["orphaned"] += 1
        donor = node.core.changing.donor
        if any(donor in roll.left for roll in self._system.judge.rolls.values()):
            self._system.judge.find("states", f"#{donor} has left, and owes {node.name} its state")
        self._system.bury(node)
        self.remove(node.name)
