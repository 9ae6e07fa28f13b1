"""Forwarding hop by hop, with causal order end to end: Rodrigues & Veríssimo 1995, chapter 5.

A message travels as a chain of *hops* between neighbours on a communication graph (`antecede.topology`). Every vertex,
process or router, keeps an extended history (`protocols.history`, R1 to R8, and R9) of hops, and stamps its hops with
it. So hops are delivered in causal order between neighbours. That alone is not causal order end to end: two members of
a separator that forward independently break it. These rules are enough, on a trunk where there is one way between any
two stations (`topology.graph`):

  one hop     what a vertex has to forward of a message leaves it as one hop, whatever the number of next stations
  in order    hops are forwarded in the order of their delivery, at once, whether the application takes its copy or not
  one exit    of a station with several members only one forwards, the first that lives
  copies      a hop to a station goes to all its members; so does what one of them forwards, to the others: each such
              hop is a forced report (section 4.3), and R9 never waits for one. `reports` makes them fewer.

Why. Let m be sent before m' in causal order, both to x, and let v be a station on the way of m. Every chain of hops
from the send of m to something behind v passes v, since v is a cut, and reaches v no earlier than m's hop: by induction
along the way, because the hop of m into v was sent causally before. v forwards m before what came later, or in the same
hop; so m's hop into the next station is again causally before all that follows. At x, m is first. The application takes
its messages in the order in which their last hops were delivered, its own copies at the place where it sent them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from itertools import combinations
from typing import Any, ClassVar

from msgspec import Struct

from antecede.errors import BadParameter, Misrouted, Unsupported
from antecede.model import Effect, Id, Message, Packet, Stamp, View, Waiting, bits, members, set_of
from antecede.protocols.histories import Entry
from antecede.protocols.history import History
from antecede.protocols.machine import plain, typed
from antecede.protocols.queue import Queue
from antecede.protocols.receiver import Need
from antecede.protocols.topological import TopologicalHistories
from antecede.topology import Topology

__all__ = ["Forwarder", "HopStamp", "Retained"]


class HopStamp(Stamp, frozen=True, gc=False):
    number: int
    """The source's count of its hops."""
    to: int
    """A: the vertices that this hop goes to, as bits."""
    targets: int
    """The destinations of the message that this hop, with all its copies, is to reach, as bits."""
    version: int
    """Of the topology that the source had."""
    clock: int
    """Lamport's, of hops."""
    history: tuple[Entry, ...]

    def entries(self, n: int) -> int:
        return len(self.history)


class Retained(Struct, frozen=True, gc=False):
    """A message that has to be forwarded, by us or by the member that forwards."""

    message: Message
    targets: int
    clock: int = 0
    """Lamport's, when it was to leave: whatever it follows has less."""


class Forwarder(Queue, History):
    """One vertex of a topology that does not change. Hops are ordered as in `history`, messages taken from a queue."""

    name = "separator"
    routed = True
    stamps: ClassVar[tuple[type[Stamp], ...]] = (HopStamp,)  # type: ignore[assignment]
    state = {**History.state, **Queue.state, "hops": int, "clock": int, "_seen": dict[int, int]}
    labels = False
    arrivals_commute = False

    def __init__(
        self,
        view: View,
        me: str | int,
        topology: Topology | Mapping[str, Any] | None = None,
        r9: bool = True,
        reports: int = 0,
        **rules: bool,
    ) -> None:
        History.__init__(self, view, me, **rules)
        if r9 and not self.rules.r6:
            raise BadParameter(self.name, "R9 reads the carbon copies of R6: set r6=True, or r9=False")
        try:
            self.topology = _mesh(view.names) if topology is None else Topology.load(topology)
        except ValueError as error:
            raise BadParameter(self.name, f"this is not a topology: {error}") from error
        if self.topology.names != view.names:
            raise BadParameter(
                self.name,
                f"the topology is for {', '.join(self.topology.names)}, and the view has {', '.join(view.names)}",
            )
        self.r9 = r9
        if not isinstance(reports, int) or reports < 0:  # type: ignore[redundant-expr]
            raise BadParameter(self.name, f"reports must be a number of entries, 0 or more, not {reports!r}")
        self.reports = reports
        self._inbox: deque[Message] = deque()
        self._retained: dict[Id, Retained] = {}
        """In the order of hop delivery."""
        self._seen: dict[int, int] = {}
        """Origin -> the number of its last message that came by here."""
        self.hops = self.clock = 0
        self._install(self.topology)

    def _install(self, topology: Topology) -> None:
        self.topology, self.view, self.n = topology, topology.view, len(topology.names)
        self.plan = topology.plan
        self.place = self.plan.place[self.me]
        if self._contexts:
            self._known.install(self.plan)

    @property
    def _known(self) -> TopologicalHistories:
        """H and C: there is one context, since hops have no labels."""
        return self._contexts.get("") or self._context("")  # type: ignore[return-value]

    @property
    def parameters(self) -> dict[str, Any]:
        reports = {"reports": self.reports} if self.reports else {}
        return {**super().parameters, "r9": self.r9, **reports, "topology": self.topology.plain()}

    def _histories(self) -> TopologicalHistories:
        return TopologicalHistories(self.me, self.rules, self.plan, self.r9)

    def orders_at(self, process: int) -> bool:
        return bool(self.plan.processes >> process & 1)

    def merge(self, source: str, into: str) -> None:
        raise Unsupported(self.name, "it has no labels: all messages share one history")

    def accepts(self, sender: int, to: tuple[int, ...]) -> str | None:
        plan, name = self.plan, self.view.name
        if not plan.processes >> sender & 1:
            return f"{name(sender)} is a router, which has nothing to send"
        for dest in to:
            if not plan.processes >> dest & 1:
                return f"{name(dest)} is a router, which takes no messages"
            if plan.dead >> dest & 1:
                return f"{name(dest)} has failed"
            if not plan.reach(plan.place[sender]) >> dest & 1:
                return f"no way leads from {name(sender)} to {name(dest)}"
        return None

    # One hop

    def _send(self, message: Message) -> list[Effect]:
        self._seen[self.me] = message.number
        effects = self._enqueue(message) if self.me in message.to else []
        targets = set_of(message.to) & ~(1 << self.me)
        inside = self.plan.members[self.place]
        if self._duty(targets) == targets:
            return effects + self._forward(message, targets)
        # Another member forwards: hand it over, and keep it in case that member fails.
        self._retain(message, targets & ~inside)
        others = self._address(self.place) & ~(1 << self.me)
        return effects + (self._hop(message, others, targets) if others else [])

    def _forward(self, message: Message, targets: int) -> list[Effect]:
        """Send on what can be sent on, as one hop; the rest waits for somebody to be there."""
        plan = self.plan
        targets &= ~plan.dead
        to, reached = 0, targets & plan.members[self.place]
        for station, behind in plan.behind(self.place).items():
            if targets & behind and plan.live[station]:
                to |= self._address(station)
                reached |= targets & behind
        kept = self._retained.get(message.id)
        self._retain(message, (targets | (kept.targets if kept else 0)) & ~(reached | plan.dead))
        if not reached:
            return []
        return self._hop(message, to | self._report(to, reached), reached)

    def _report(self, to: int, reached: int) -> int:
        """Section 4.3: the rest of the separator, if this hop goes there too and so reports H to it.

        Always, but with `reports` only if that many entries stand in the stamp for the want of it.
        """
        others = self._address(self.place) & ~(1 << self.me)
        if not self.reports or reached & self.plan.members[self.place]:
            return others
        return others if self._known.count_unreported(to) >= self.reports else 0

    def _address(self, station: int) -> int:
        """All that live: copies for those that stand by."""
        return self.plan.live[station]

    def _duty(self, targets: int) -> int:
        """What of this is ours to forward: all or nothing, one exit."""
        return targets if self.plan.active[self.place] == self.me else 0

    def _hop(self, message: Message, to: int, targets: int) -> list[Effect]:
        self.hops += 1
        self.clock += 1
        context = self._known
        stamp = HopStamp(self.hops, to, targets, self.topology.version, self.clock, context.stamp(to))
        context.note_sent(self.me, self.hops, to, "")
        return [Packet(self.me, dest, stamp, message) for dest in members(to)]

    def _retain(self, message: Message, targets: int) -> None:
        # With `reports` others do not learn what was forwarded: they keep nothing, and members may not fail.
        if targets and (not self.reports or self._duty(targets)):
            kept = self._retained.get(message.id)
            clock = self.clock + 1 if kept is None else kept.clock
            self._retained[message.id] = Retained(message, targets, clock)
        else:
            self._retained.pop(message.id, None)

    # Hops in causal order: R3, R5

    def _position(self, packet: Packet[Any]) -> Need:
        return self._lane(packet.source, packet.stamp.number, "")

    def _key(self, packet: Packet[Any]) -> Id:
        return (packet.source, packet.stamp.number)

    def _learn(self, packet: Packet[Any]) -> None:
        stamp = packet.stamp
        self.clock = max(self.clock, stamp.clock)
        self._known.note_delivered(packet.source, stamp.number, stamp.to, "", stamp.history)

    def _receive(self, packet: Packet[Any]) -> list[Effect]:
        if self._key(packet) in self._held or self._is_old(self._position(packet)):
            return []
        self._note_arrival(packet)
        return self._admit([packet])

    def _note_arrival(self, packet: Packet[Any]) -> None:
        """A hop has come, for the first time."""

    def _admit(self, packets: list[Packet[Any]]) -> list[Effect]:
        """Hops are delivered as soon as they may be: routers do not wait for an application."""
        effects: list[Effect] = []
        while packets:
            packet = packets.pop()
            need = self._find_unmet(packet)
            if need is not None:
                self._hold(packet, need)
            else:
                woken = self._wake(self._settle(packet))
                effects += self._take_hop(packet)
                packets += woken
        return effects

    def _check_message(self, packet: Packet[Any], message: Message) -> None:
        stamp = packet.stamp
        if message.number < 1 or message.label:
            raise self._bad_stamp(
                packet,
                f"its message has number {message.number} and label {message.label!r}; numbers "
                "start at 1, and there are no labels",
            )
        if message.to not in self._addresses or not 0 <= message.sender < self.n:
            self._check_addresses(message)
        if not stamp.targets or stamp.targets & ~set_of(message.to):
            raise self._bad_stamp(
                packet, f"its targets, {stamp.targets:b}, are not destinations of its message"
            )
        if message.sender == self.me and self.plan.place[packet.source] != self.place:
            me = self.view.name(self.me)
            raise Misrouted(me, f"{self.view.name(packet.source)} sent it a message of its own")

    def _check_addresses(self, message: Message) -> None:
        if not message.to or not all(0 <= process < self.n for process in (*message.to, message.sender)):
            me = self.view.name(self.me)
            raise Misrouted(me, f"message {message.id} to {message.to} names processes outside the view")
        self._remember_addresses(message.to)

    def _check(self, packet: Packet[Any]) -> None:
        stamp, plan, source = packet.stamp, self.plan, self.plan.place[packet.source]
        if source != self.place and source not in plan.neighbours[self.place]:
            raise Misrouted(
                self.view.name(self.me),
                f"it comes from {self.view.name(packet.source)}, which is no neighbour",
            )
        number, to = stamp.number, stamp.to
        if number < 1 or stamp.version < 0 or stamp.clock < 1:
            raise self._bad_stamp(
                packet, f"its hop is {number} in version {stamp.version}, and hops start at 1"
            )
        if to < 0 or to >> self.n or to >> packet.source & 1 or not to >> self.me & 1:
            raise self._bad_stamp(
                packet, f"its hop goes to {to:b}, which is not this vertex and others of the view"
            )
        self._check_history(packet, number, self.hops)

    # In order, one exit

    def _take_hop(self, packet: Packet[Any]) -> list[Effect]:
        """A hop has been delivered."""
        message, stamp = packet.message, packet.stamp
        assert message is not None
        source, inside = self.plan.place[packet.source], self.plan.members[self.place]
        if source != self.place:
            effects = self._take_in(message, stamp.targets & self.plan.behind(source)[self.place])
            return effects + self._hand_on(message, stamp.to)
        if stamp.to & ~inside:
            effects = self._take_in(message, stamp.targets & 1 << self.me)
            self._note_forwarded(message, stamp.targets)
            return effects
        return self._take_in(message, stamp.targets)

    def _hand_on(self, message: Message, to: int) -> list[Effect]:
        """Give what the member that forwards did not get, having joined since it was sent, to it."""
        active = self.plan.active[self.place]
        if active is None or active == self.me or to >> active & 1:
            return []
        kept = self._retained.get(message.id)
        if kept is None:
            return []
        return self._hop(message, self._address(self.place) & ~(1 << self.me), kept.targets)

    def _take_in(self, message: Message, targets: int) -> list[Effect]:
        """A message has come by, for us or to be forwarded; not for the first time if a member failed."""
        if self._seen.get(message.sender, 0) >= message.number:
            return []
        self._seen[message.sender] = message.number
        effects: list[Effect] = []
        if targets >> self.me & 1:
            effects += self._enqueue(message)
        onward = targets & ~self.plan.members[self.place]
        duty = self._duty(onward)
        if duty:
            effects += self._forward(message, duty)
        elif onward:
            self._retain(message, onward)
        return effects

    def _note_forwarded(self, message: Message, targets: int) -> None:
        """Another member has forwarded this."""
        kept = self._retained.get(message.id)
        if kept is not None:
            self._retain(message, kept.targets & ~targets)

    # For people, and for snapshots

    def waiting(self) -> list[Waiting]:
        held = []
        for _, packet in sorted(self._held.items()):
            if packet.message is not None:
                hops = ", ".join(f"{a.last} of {self.view.name(a.sender)}" for a in self._awaits(packet))
                held.append(Waiting(packet.message, (), "held", f"waits for hop {hops}"))
        for kept in self._retained.values():
            if self._duty(kept.targets):
                names = ", ".join(map(self.view.name, bits(kept.targets)))
                held.append(Waiting(kept.message, (), "unsent", f"nobody lives to forward it to {names}"))
        return held + super().waiting()

    def dump(self) -> dict[str, Any]:
        return {**super().dump(), "retained": plain(list(self._retained.values()))}

    def _load(self, state: Mapping[str, Any]) -> None:
        self._retained = {kept.message.id: kept for kept in typed(state["retained"], list[Retained])}
        super()._load(state)


@lru_cache(maxsize=8)
def _mesh(names: tuple[str, ...]) -> Topology:
    return Topology.of(combinations(names, 2), names)
