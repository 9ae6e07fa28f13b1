"""separator: Rodrigues & Veríssimo 1995, sections 4.3 and 4.4, chapter 5: topological timestamping over routers.

How messages travel and why their order is causal end to end: `protocols.forwarder`; R9: `protocols.topological`. Here
is what section 4.4 adds: failures and joins. Membership is decided outside, one change after the other; `reconfigure`
takes the next topology, at every vertex in its own time: a packet stamped with a later one waits for it.

Failures. `cut` says that a vertex has failed. When the member of a station that forwards fails, the next one forwards
what it has not seen forwarded, in its own order of delivery. A forwarded copy that it has seen is causally before all
that it forwards itself, and reaches all who live (`protocols.relay`), so order holds; what goes out twice is dropped by
the number that its origin gave it, since a station gets each origin's messages in order. So a hop survives as many
failures as its station had members to spare when it was sent. Where nobody is left to forward to, messages wait.
`forget` says that all have cut it, and that nothing is under way among those that live: changes are installed then.

Joins. A member that joins a separator starts from what the others know: `handover` and `adopt`, H and C of all of them
and what none of them knows to be forwarded. In place of a separator of which nobody lives, a new member adopts
  a witness's memory     the same, if a witness lives
  stable memory          the handover of the last that failed, from its journal, with hops that may not have left
  a global checkpoint    what all neighbours know (`checkpoint`): what the failed had received and not sent on is lost
Until it has, and has sent on what it took over (`Resumed`), hops of the failed that are not there are waited for. A
witness alone does not wait, so what it delivers then may follow lost hops, which carried what it keeps. So what it had
before goes on first, with the history of that time (`Stage`), and whoever waits for the lost hops goes on after that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, ClassVar

from antecede.errors import BadParameter, PeerError, Unsupported
from antecede.model import Control, Effect, Message, Packet, Stamp, View, bits, mask, members
from antecede.protocols.forwarder import HopStamp, Retained
from antecede.protocols.handover import Handover, Stage, list_unforwarded, make_portable, merge_stages
from antecede.protocols.machine import plain, typed
from antecede.protocols.receiver import _packet
from antecede.protocols.relay import Relay, Relayed
from antecede.topology import Topology

__all__ = ["HopStamp", "Resumed", "Separator"]

FIXED = (
    "with `reports` the rest of a separator does not know what was forwarded, so nobody may fail or join: "
    "leave `reports` out"
)


class Resumed(Control, frozen=True, gc=False):
    """I have taken the place of these, who failed: wait for none of their hops, after those that I sent on."""

    failed: int
    """As bits."""
    after: int
    """My last hop to you."""
    source: int
    last: int
    """The last that I relayed to you of one of the failed."""
    version: int


VERSIONED = (HopStamp, Relayed, Resumed)
"""What is stamped with a version of the topology, and waits for it."""


class Separator(Relay):
    """One vertex. Processes send and deliver, routers only receive.

    Without a topology, everyone is linked with everyone.

    >>> from antecede.topology import shapes
    >>> star = shapes.star(2)
    >>> p1, p2, hub = (Separator(star.view, name, star) for name in star.names)
    >>> message, [to_hub] = p1.send(1)
    >>> [to_p2] = hub.receive(to_hub)
    >>> p2.receive(to_p2) == [message], (to_p2.source, to_p2.message.sender) == (hub.me, p1.me)
    (True, True)
    """

    stamps: ClassVar[tuple[type[Stamp], ...]] = (*Relay.stamps, Resumed)
    state = {
        **Relay.state,
        "_joining": bool,
        "_to": dict[int, int],
        "_begun": int,
        "_gone": int,
        "_orphans": int,
        "_replaces": int,
        "_resumed": dict[tuple[int, int], Resumed],
        "_stages": tuple[Stage, ...],
    }

    def __init__(
        self,
        view: View,
        me: str | int,
        topology: Topology | Mapping[str, Any] | None = None,
        r9: bool = True,
        reports: int = 0,
        **rules: bool,
    ) -> None:
        self._to: dict[int, int] = {}
        """Vertex -> our last hop to it."""
        self._resumed: dict[tuple[int, int], Resumed] = {}
        """Who took the place of others, and of whom."""
        self._stages: tuple[Stage, ...] = ()
        """Of us as a witness, since the last that forwarded failed."""
        super().__init__(view, me, topology, r9, reports, **rules)
        self._early: dict[tuple[int, str, int], Packet[Any]] = {}
        """From a later topology, or for a member that has not adopted yet."""
        self.early_from: set[int] = set()
        self._waited: list[Retained] = []
        """What had to wait here before the last topology: for a `checkpoint` with it."""
        self.refused: list[tuple[int, PeerError]] = []
        """Who sent, too early to be judged when it came, what no vertex sends: for whoever drives this machine."""
        self._gone = self._orphans = 0
        """Who failed and is still waited for, as bits; and because of whom: their place may be taken."""
        self._begun = self.topology.version
        """The version that we began with: state of an earlier one lacks what was sent without us."""
        self._joining = self._must_adopt()
        others = self.topology.stations[self.place]
        alone = all(v == self.me or v in others.witnesses or v in self.topology.dead for v in others.members)
        self._replaces = self.plan.members[self.place] & self.plan.dead if self._joining and alone else 0
        """Whose place we take, as bits."""

    def _must_adopt(self) -> bool:
        return self.me in self.topology.joining

    def accepts(self, sender: int, to: tuple[int, ...]) -> str | None:
        if self._joining:
            return f"{self.view.name(self.me)} has not adopted the state of its separator yet"
        return super().accepts(sender, to)

    def receive(self, packet: Packet[Any]) -> list[Effect]:
        stamp = packet.stamp
        kind = type(stamp)
        early = kind in VERSIONED and (self._joining or stamp.version > self.topology.version)
        if kind is Relayed and 0 <= stamp.source < self.n:
            # Two that fail in one change may be cut in another order here.
            early = early or not self.plan.dead >> stamp.source & 1
        if early and packet.dest == self.me:
            self._early[_early_key(packet)] = packet
            self.early_from.add(packet.source)
            return []
        return super().receive(self._unwrap(packet) if kind is Relayed else packet)

    def _receive_control(self, packet: Packet[Any]) -> list[Effect]:
        if type(packet.stamp) is Resumed:
            self._resumed[packet.source, packet.stamp.failed] = packet.stamp
            return self._follow_resumed()
        return super()._receive_control(packet)

    def _take_hop(self, packet: Packet[Any]) -> list[Effect]:
        effects = super()._take_hop(packet)
        # Nothing follows from an arrival while nobody is waited for in vain.
        return effects + self._follow_resumed() if self._resumed or self._gone else effects

    def _hop(self, message: Message, to: int, targets: int) -> list[Effect]:
        effects = super()._hop(message, to, targets)
        self._to.update(dict.fromkeys(members(to), self.hops))
        return effects

    # The next topology

    def reconfigure(self, topology: Topology) -> list[Effect]:
        """Take the next topology: forward what is now ours to forward, and what waited for somebody to be there."""
        self._check_may_change()
        if topology.version != self.topology.version + 1 or topology.names[: self.n] != self.view.names:
            raise BadParameter(
                self.name,
                f"the next topology must be version {self.topology.version + 1}, with the same "
                f"vertices and at most one more, not version {topology.version} of "
                f"{', '.join(topology.names)}",
            )
        self._waited = list(self._retained.values())
        self._install(topology)
        return self._release() + self._receive_early()

    @classmethod
    def name_members(cls, parameters: Mapping[str, Any], founders: Sequence[str]) -> dict[str, Any]:
        if parameters.get("reports"):
            raise Unsupported(cls.name, FIXED)
        return super().name_members(parameters, founders)

    def _check_may_change(self) -> None:
        if self.reports:
            raise Unsupported(self.name, FIXED)

    def agree(self, topology: Topology) -> None:
        """Take what all have agreed on: the same failures, perhaps in another order."""
        assert (topology.version, set(topology.dead)) == (self.topology.version, set(self.topology.dead))
        self._install(topology)

    def cut(self, process: int) -> list[Effect]:
        """This vertex has failed: take over from it, and relay what we have of it."""
        if self.plan.dead >> process & 1:
            return []
        self._check_may_change()
        self._take_back(process)
        effects = self.reconfigure(self.topology.fail(self.view.name(process)))
        return effects + self._confirm(1 << process, self.hops) + self._relay()

    def forget(self, process: int) -> list[Effect]:
        """All have cut this vertex, and nothing is under way: wait for it no longer, unless one may take its place.

        Then nor for others: what waits for them may come after what waits for it.
        """
        place = self.plan.place[process]
        self._gone |= 1 << process
        # A witness waits no longer: what it has is what the next one begins with.
        near = place in self.plan.neighbours[self.place]
        if near and self.plan.separator[place] and self.plan.active[place] is None:
            self._orphans |= 1 << process
        return self._waive_gone()

    def _waive_gone(self) -> list[Effect]:
        return [] if self._orphans else self._waive_all(self._gone)

    def _waive_all(self, failed: int) -> list[Effect]:
        """Wait no longer for these of the gone."""
        vertices = [v for v in bits(failed & self._gone) if v not in self._waived]
        self._gone &= ~failed
        mine = mask(vertices) & self.plan.members[self.place]
        if mine and self.plan.active[self.place] is None:
            self._stages += (Stage(mine, list(self._known.H), list(self._retained)),)
        return self._waive(vertices) if vertices else []

    def _follow_resumed(self) -> list[Effect]:
        """Whoever took the place of others has sent on what it took over: wait no longer for what these have lost."""
        effects: list[Effect] = []
        while key := min(filter(self._has_resumed, self._resumed), default=None):
            resumed = self._resumed.pop(key)
            self._orphans &= ~resumed.failed
            if resumed.failed & self.plan.members[self.place]:
                self._stages = ()
            effects += self._waive_all(resumed.failed)
        return effects + self._waive_gone()

    def _has_resumed(self, key: tuple[int, int]) -> bool:
        resumed = self._resumed[key]
        return self._has_come(key[0], resumed.after) and self._has_come(resumed.source, resumed.last)

    def _has_come(self, source: int, number: int) -> bool:
        return self._come.get(source, 0) >= number

    def _receive_early(self) -> list[Effect]:
        early, self._early = sorted(self._early.items()), {}
        self.early_from = set()
        effects: list[Effect] = []
        for _, packet in early:
            # Only now can it be seen whether it is a packet of this system; its arrival is long past.
            try:
                effects += self.receive(packet)
            except PeerError as error:
                self.refused.append((packet.source, error))
        return effects

    def _release(self) -> list[Effect]:
        effects: list[Effect] = []
        for kept in list(self._retained.values()):
            duty = self._duty(kept.targets)
            if duty and not self._joining:
                effects += self._forward(kept.message, duty)
            else:
                self._retain(kept.message, kept.targets & ~self.plan.dead)
        return effects

    # Section 4.4, cases iii and iv

    @property
    def joining(self) -> bool:
        """Whether this vertex has to adopt before it takes part."""
        return self._joining

    @property
    def around(self) -> tuple[int, ...]:
        """Who lives next to us, and at our station."""
        return tuple(bits(self._around))

    @property
    def sources(self) -> tuple[int, ...]:
        """Whose state we need, having joined: the other members', or our neighbours', if none lives."""
        others = self.plan.live[self.place] & ~(1 << self.me)
        return tuple(bits(others)) if others else self.around

    def has_members(self, vertex: int) -> bool:
        """Whether another member of the station of this vertex lives."""
        return bool(self.plan.live[self.plan.place[vertex]] & ~(1 << vertex))

    def handover(self) -> dict[str, Any]:
        """What this member knows, as plain data, for one that joins its separator."""
        new = mask(self.topology.joining) & self.plan.members[self.place]
        known, retained = self._known.report_all(new), list(self._retained.values())
        sent = self._unconfirmed
        return make_portable(
            Handover(
                self.me,
                self.topology.version,
                known,
                self.clock,
                self._seen,
                retained,
                sent,
                stages=list(self._stages),
            )
        )

    def checkpoint(self) -> dict[str, Any]:
        """What this neighbour knows, for one that takes the place of a separator of which nothing is left."""
        known = self._known.report_all(mask(self.topology.joining))
        behind = self.plan.behind(self.place)
        there = reduce(or_, (behind.get(self.plan.place[v], 0) for v in self.topology.joining), 0)
        waited = [Retained(one.message, one.targets & there, one.clock) for one in self._waited]
        waited = [one for one in waited if one.targets] if self.plan.active[self.place] == self.me else []
        version = self.topology.version
        return make_portable(Handover(self.me, version, known, self.clock, {}, waited, checkpoint=True))

    def adopt(self, states: Iterable[Mapping[str, Any] | Handover]) -> list[Effect]:
        """Start from what the other members of the separator know, or the last that failed knew."""
        if not self._joining:
            raise Unsupported(
                self.name, f"{self.view.name(self.me)} cannot adopt a state: it is not joining a separator"
            )
        try:
            given = [one if isinstance(one, Handover) else typed(one, Handover) for one in states]
        except ValueError as error:
            raise BadParameter(self.name, f"a state is not what handover() returned: {error}") from error
        self._check_sources(given)
        for state in given:
            self.clock = max(self.clock, state.clock)
            for origin, number in state.seen.items():
                self._seen[origin] = max(number, self._seen.get(origin, 0))
        self._joining = False
        effects: list[Effect] = []
        relayed: dict[int, tuple[int, int]] = {}
        kept = {one.message.id: one for one in list_unforwarded(given)}
        if any(state.checkpoint for state in given):
            # What neighbours sent to the failed may have come to others of them, and something may follow it. It goes
            # on first, and follows nothing: hops of the failed that it follows are here, or lost.
            first = sorted(kept.values(), key=lambda one: one.clock)
            for one in first:
                self._seen[one.message.sender] = max(
                    one.message.number, self._seen.get(one.message.sender, 0)
                )
            effects += self._take_over(first, 0, relayed)
            kept = {}
        for state in given:
            for number, sent in sorted(state.sent.items()):
                if self.plan.dead >> state.member & 1:
                    hop = Packet(state.member, self.me, sent.stamp, sent.message)
                    effects += self._relay_to(hop, sent.missing)
                    relayed.update(dict.fromkeys(bits(sent.missing), (state.member, number)))
        staged = merge_stages(given)
        for stage in staged:
            known, first = set(stage.hops), [kept.pop(one) for one in stage.messages if one in kept]
            for state in given:
                self._known.learn_all(one for one in state.history if one.entry.id in known)
            effects += self._take_over(first, stage.failed, relayed)
        for state in given:
            self._known.learn_all(state.history)
        rest = self._replaces & ~reduce(or_, (stage.failed for stage in staged), 0)
        effects += self._take_over(kept.values(), rest, relayed)
        return effects + self._receive_early()

    def _take_over(
        self, kept: Iterable[Retained], failed: int, relayed: Mapping[int, tuple[int, int]]
    ) -> list[Effect]:
        """Send on what these, who failed, may not have sent; and say so."""
        for one in kept:
            self._retain(one.message, one.targets)
        effects = self._release()
        for dest in bits(self._around if failed else 0):
            source, last = relayed.get(dest, (self.me, 0))
            after, version = self._to.get(dest, 0), self.topology.version
            effects.append(Packet(self.me, dest, Resumed(failed, after, source, last, version)))
        return effects

    def _check_sources(self, given: list[Handover]) -> None:
        """All that live; if none does, the last that failed, or all neighbours. Each names vertices that there are."""
        for state in given:
            if not state.is_possible(self.n):
                raise BadParameter(self.name, f"a handover names a vertex that is not one of the {self.n}")
        members = self.topology.stations[self.place].members
        needed = [v for v in members if v != self.me and v not in self.topology.dead]
        oldest, what = self._begun, "a member"
        if not needed and any(state.checkpoint for state in given):
            needed, oldest, what = list(bits(self._around)), 0, "a neighbour"
        elif not needed:
            needed, oldest = [next(v for v in reversed(self.topology.dead) if v in members)], 0
            what = "the last member to fail (from stable memory)"
        for vertex in needed:
            if not any(state.member == vertex and state.version >= oldest for state in given):
                found = ", ".join(self.view.name(s.member) for s in given) or "nobody"
                raise BadParameter(
                    self.name,
                    f"adopt() needs the handover of {self.view.name(vertex)}, {what}, and was given those of {found}",
                )

    def dump(self) -> dict[str, Any]:
        return {**super().dump(), "early": [plain(self._early[key]) for key in sorted(self._early)]}

    def _load(self, state: Mapping[str, Any]) -> None:
        packets = [_packet(data, self.stamps) for data in state["early"]]
        self._early = {_early_key(packet): packet for packet in packets}
        self.early_from = {packet.source for packet in packets}
        super()._load(state)


def _early_key(packet: Packet[Any]) -> tuple[int, str, int]:
    stamp = packet.stamp
    if isinstance(stamp, Relayed):
        return stamp.source, "Relayed", stamp.number
    if isinstance(stamp, Resumed):
        return packet.source, "Resumed", stamp.failed
    return packet.source, type(stamp).__name__, getattr(stamp, "number", 0)
