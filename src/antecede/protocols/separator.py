"""separator: Rodrigues & Veríssimo 1995, sections 4.3 and 4.4, chapter 5: topological timestamping over routers.

How messages travel and why their order is causal end to end: `protocols.forwarder`; R9: `protocols.topological`. Here
is what section 4.4 adds: failures and joins. Membership is decided outside, one change after the other; `reconfigure`
takes the next topology, at every vertex in its own time: a packet stamped with a later one waits for it.

Failures. When the member of a station that forwards fails, the next one forwards what it has not seen forwarded, in its
own order of delivery. A forwarded copy that it has seen is causally before all that it forwards itself, so order holds;
what goes out twice is dropped by the number that its origin gave it, since a station gets each origin's messages in
order. So a hop survives as many failures as its station had members to spare when it was sent. Where nobody is left to
forward to, messages wait.

Joins. A member that joins a separator starts from what the others know: `handover` and `adopt`, H and C of all of them
and what none of them knows to be forwarded. They give it once all that was sent to them without it is there: every
neighbour says so with a `Flush`, a hop like any other, so delivered after all that it sent before. In place of a
separator of which nobody lives, a new member adopts the handover of the last that failed, from its stable memory (a
snapshot); what that one had not delivered is lost with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from msgspec import Struct

from antecede.errors import BadParameter, PeerError, Unsupported
from antecede.model import Control, Effect, Id, Packet, View, bits, mask
from antecede.protocols.forwarder import Forwarder, HopStamp, Retained
from antecede.protocols.history import Entry
from antecede.protocols.machine import plain, portable, typed
from antecede.protocols.receiver import _packet
from antecede.protocols.topological import Reported
from antecede.topology import Topology

__all__ = ["Flush", "Handover", "HopStamp", "Separator"]


class Flush(Control, frozen=True, gc=False):
    """A hop that says: whatever I sent you before you got a new member, you have it now."""

    number: int
    to: int
    version: int
    history: tuple[Entry, ...]

    def entries(self, n: int) -> int:
        return len(self.history)


class Handover(Struct, frozen=True):
    """What a member of a separator knows, for one that joins it."""

    member: int
    version: int
    history: list[Reported]
    seen: dict[int, int]
    retained: list[Retained]


class Separator(Forwarder):
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

    stamps = (HopStamp, Flush)
    state = {**Forwarder.state, "_unflushed": int, "_joining": bool}

    def __init__(
        self,
        view: View,
        me: str | int,
        topology: Topology | Mapping[str, Any] | None = None,
        r9: bool = True,
        **rules: bool,
    ) -> None:
        super().__init__(view, me, topology, r9, **rules)
        self._early: dict[Id, Packet[Any]] = {}
        """From a later topology, or for a member that has not adopted yet."""
        self._unflushed = 0
        """Neighbours from which something older than the last join may still come, as bits."""
        self._joining = self._must_adopt()

    def _must_adopt(self) -> bool:
        return self.me in self.topology.joining

    def accepts(self, sender: int, to: tuple[int, ...]) -> str | None:
        if self._joining:
            return f"{self.view.name(self.me)} has not adopted the state of its separator yet"
        return super().accepts(sender, to)

    def receive(self, packet: Packet[Any]) -> list[Effect]:
        early = isinstance(packet.stamp, HopStamp | Flush) and (
            self._joining or packet.stamp.version > self.topology.version
        )
        if early and packet.dest == self.me:
            self._early[packet.source, packet.stamp.number] = packet
            return []
        return super().receive(packet)

    def _arrived(self, packet: Packet[Any]) -> list[Effect]:
        if packet.message is None:
            self._unflushed &= ~(1 << packet.source)
            return []
        return super()._arrived(packet)

    # The next topology

    def reconfigure(self, topology: Topology) -> list[Effect]:
        """Take the next topology: forward what is now ours to forward, greet who joined."""
        if topology.version != self.topology.version + 1 or topology.names[: self.n] != self.view.names:
            found = f"version {topology.version} of {', '.join(topology.names)}"
            expected = f"version {self.topology.version + 1}, with the same vertices and at most one more"
            raise BadParameter(self.name, "topology", found, expected)
        self._install(topology)
        self._unflushed &= ~self.plan.dead
        effects = self._flush(topology) + self._release()
        return effects + self._receive_early()

    def _receive_early(self) -> list[Effect]:
        early, self._early = sorted(self._early.items()), {}
        effects: list[Effect] = []
        for _, packet in early:
            # Only now can it be seen whether it is a packet of this system; its arrival is long past.
            with suppress(PeerError):
                effects += self.receive(packet)
        return effects

    def _flush(self, topology: Topology) -> list[Effect]:
        effects: list[Effect] = []
        for vertex in topology.joining:
            place = self.plan.place[vertex]
            old = self.plan.live[place] & ~(1 << vertex)
            if place == self.place:
                for neighbour in self.plan.neighbours[place]:
                    self._unflushed |= self.plan.live[neighbour]
            elif place in self.plan.neighbours[self.place] and old:
                effects += self._say_flushed(old)
        return effects

    def _say_flushed(self, to: int) -> list[Effect]:
        self.hops += 1
        context = self._known
        stamp = Flush(self.hops, to, self.topology.version, context.stamp(to))
        context.sent(self.me, self.hops, to, "")
        return [Packet(self.me, dest, stamp) for dest in bits(to)]

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

    def handover(self) -> dict[str, Any]:
        """What this member knows, as plain data, for one that joins its separator."""
        if self._unflushed:
            late = ", ".join(map(self.view.name, bits(self._unflushed)))
            raise Unsupported(self.name, f"a handover before the flush of {late} has arrived")
        new = mask(self.topology.joining) & self.plan.members[self.place]
        known, retained = self._known.report_all(new), list(self._retained.values())
        result: dict[str, Any] = portable(
            plain(Handover(self.me, self.topology.version, known, self._seen, retained))
        )
        return result

    @property
    def ready(self) -> bool:
        """Whether `handover` can be had: nothing sent before the last join is still under way to here."""
        return not self._unflushed

    def adopt(self, states: Iterable[Mapping[str, Any]]) -> list[Effect]:
        """Start from what the other members of the separator know, or the last that failed knew."""
        if not self._joining:
            raise Unsupported(self.name, f"{self.view.name(self.me)} is not joining a separator")
        try:
            given = [typed(state, Handover) for state in states]
        except ValueError as error:
            raise BadParameter(self.name, "handover", str(error), "what handover() gave") from error
        self._check_sources(given)
        for state in given:
            self._known.learn_all(state.history)
            for origin, number in state.seen.items():
                self._seen[origin] = max(number, self._seen.get(origin, 0))
        for kept in _unforwarded(given):
            self._retain(kept.message, kept.targets)
        self._joining = False
        return self._release() + self._receive_early()

    def _check_sources(self, given: list[Handover]) -> None:
        """All that live, or the last that failed if none does."""
        members = self.topology.stations[self.place].members
        needed = [v for v in members if v != self.me and v not in self.topology.dead]
        oldest = self.topology.version
        if not needed:
            needed, oldest = [next(v for v in reversed(self.topology.dead) if v in members)], 0
        for vertex in needed:
            if not any(state.member == vertex and state.version >= oldest for state in given):
                living = "a member" if oldest else "the last member to fail (from stable memory)"
                expected = f"that of {self.view.name(vertex)}, {living}"
                found = ", ".join(self.view.name(s.member) for s in given) or "nobody"
                raise BadParameter(self.name, "handover", f"that of {found}", expected)

    def dump(self) -> dict[str, Any]:
        return {**super().dump(), "early": [plain(self._early[key]) for key in sorted(self._early)]}

    def _load(self, state: Mapping[str, Any]) -> None:
        packets = [_packet(data, self.stamps) for data in state["early"]]
        self._early = {self._key(packet): packet for packet in packets}
        super()._load(state)


def _unforwarded(given: list[Handover]) -> list[Retained]:
    """What nobody who has seen it knows to be forwarded, in an order that is causal.

    One list after the other is: if m is only in a later list and precedes something in an earlier one, then that
    member had seen m as well, and knows that it was forwarded.
    """
    kept = [{r.message.id: r.targets for r in state.retained} for state in given]
    result: dict[Id, Retained] = {}
    for state in given:
        for retained in state.retained:
            message, targets = retained.message, retained.targets
            for other, theirs in zip(given, kept, strict=True):
                if other.seen.get(message.sender, 0) >= message.number:
                    targets &= theirs.get(message.id, 0)
            if targets:
                result.setdefault(message.id, Retained(message, targets))
    return list(result.values())
