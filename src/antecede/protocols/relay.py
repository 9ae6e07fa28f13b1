"""Hops that reach all of their addressees that live, or none: what Rodrigues & Veríssimo 1995 (4.1) ask of the network.

A vertex that is killed while it sends a hop has told some of its addressees and not the others. Whoever heard of the
hop would wait for it for ever, or lose its message. So hops are kept until all have them:

  keep     whoever gets a hop that others get too keeps it; so does its source
  got      whoever gets hops tells their source, once in `EVERY` hops, which have been delivered
  stable   the source tells all which of its hops everyone has: these need not be kept
  relay    when the source has failed (`cut`), whoever keeps hops of it sends them to the other addressees that live
  waive    when all know that, and nothing is under way among those that live (`forget`), nobody waits any longer for a
           hop of the failed that is not here: nobody who lives has it. What is held behind it counts no more
  back     what nobody at a station is known to have when the last one there fails waits at its source for the next

Why nothing is overtaken by what is waived, nor lost. A hop that a member of a station sends on goes to the others,
too (*copies*). If none of those that live has it, it is missing at all of them; so they deliver no later hop of the
failed either, and the next one that forwards has all these messages still, and has forwarded them by the time of
`forget`. All that waits for a lost hop is delivered after that. What the lost hop alone told of (R7) is here by then,
delivered or held; so what is held is delivered in the order of Lamport's clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, ClassVar

from msgspec import Struct
from msgspec.structs import replace

from antecede.model import Control, Effect, Id, Message, Packet, Stamp, bits
from antecede.protocols.forwarder import Forwarder, HopStamp, Retained
from antecede.protocols.machine import plain
from antecede.protocols.receiver import Need, _packet

__all__ = ["Got", "Relay", "Relayed", "Stable"]

EVERY, LARGE = 16, 4096
"""Hops of one source after which it hears that they have come; bytes of payload that count as one more."""


class Got(Control, frozen=True, gc=False):
    """I have all your hops to me up to this number."""

    cumulative = True
    number: int


class Stable(Control, frozen=True, gc=False):
    """Everyone has what I sent to them up to this number."""

    cumulative = True
    number: int


class Relayed(HopStamp, frozen=True, gc=False):
    """A hop of a vertex that failed, from one that got it; the version is of the topology in which it has failed."""

    source: int


class Sent(Struct, gc=False):
    """A hop of ours, until all have it."""

    missing: int
    """Who has not said that it has it, as bits."""
    stamp: HopStamp
    message: Message


class Relay(Forwarder):
    """A vertex whose neighbours may fail."""

    stamps: ClassVar[tuple[type[Stamp], ...]] = (HopStamp, Got, Stable, Relayed)
    state = {
        **Forwarder.state,
        "_unconfirmed": dict[int, Sent],
        "_come": dict[int, int],
        "_ungot": dict[int, int],
        "_waived": dict[int, int],
    }

    def __init__(self, *given: Any, **rules: Any) -> None:
        self._unconfirmed: dict[int, Sent] = {}
        """Our hops that not all are known to have."""
        self._kept: defaultdict[int, dict[int, Packet[Any]]] = defaultdict(dict)
        """Source -> number -> a hop to us and others, which is not known to be with all of them."""
        self._come: dict[int, int] = {}
        """Source -> its last hop that was delivered here."""
        self._ungot: dict[int, int] = {}
        """Source -> how many of its hops came since we told it; large ones count as several."""
        self._waived: dict[int, int] = {}
        """Who failed, and is not waited for -> its last hop that counts here."""
        super().__init__(*given, **rules)

    # Keep, got, stable

    def _hop(self, message: Message, to: int, targets: int) -> list[Effect]:
        effects = super()._hop(message, to, targets)
        first = effects[0]
        assert isinstance(first, Packet)
        self._unconfirmed[self.hops] = Sent(to, first.stamp, message)
        return effects

    def _unwrap(self, packet: Packet[Any]) -> Packet[Any]:
        """The hop that this packet relays."""
        stamp = packet.stamp
        if not 0 <= packet.source < self.n or packet.source == self.me:
            raise self._misrouted(packet)
        if not 0 <= stamp.source < self.n or not self.plan.dead >> stamp.source & 1:
            raise self._bad_stamp(packet, f"it relays a hop of vertex {stamp.source}, which has not failed")
        hop = HopStamp(stamp.number, stamp.to, stamp.targets, stamp.version, stamp.clock, stamp.history)
        return Packet(stamp.source, packet.dest, hop, packet.message)

    def _check(self, packet: Packet[Any]) -> None:
        stamp = packet.stamp
        if type(stamp) is HopStamp:
            super()._check(packet)
        elif type(stamp) is Got and stamp.number > self.hops:
            raise self._unsent(packet, stamp.number, self.hops)

    def _receive(self, packet: Packet[Any]) -> list[Effect]:
        stamp = packet.stamp
        if type(stamp) is not HopStamp:
            return self._receive_control(packet)
        # If it is lost, another that still waits has relayed it again.
        return [] if self._is_lost(packet.source, stamp.number) else super()._receive(packet)

    def _receive_control(self, packet: Packet[Any]) -> list[Effect]:
        stamp = packet.stamp
        if type(stamp) is Got:
            return self._confirm(1 << packet.source, stamp.number)
        kept = self._kept[packet.source]
        for number in [number for number in kept if number <= stamp.number]:
            del kept[number]
        return []

    def _note_arrival(self, packet: Packet[Any]) -> None:
        to = packet.stamp.to
        if to & (to - 1):
            self._kept[packet.source][packet.stamp.number] = packet

    def _take_hop(self, packet: Packet[Any]) -> list[Effect]:
        source, number, message = packet.source, packet.stamp.number, packet.message
        assert message is not None
        self._come[source] = number
        effects = super()._take_hop(packet)
        if not self.plan.dead >> source & 1:
            ungot = self._ungot.get(source, 0) + 1 + len(message.payload) // LARGE
            if ungot >= EVERY:
                ungot = 0
                effects.append(Packet(self.me, source, Got(number)))
            self._ungot[source] = ungot
        return effects

    def _confirm(self, who: int, number: int) -> list[Effect]:
        """These have our hops up to this number, or will never need them: tell what all have."""
        before = self._stable
        for hop in [hop for hop in self._unconfirmed if hop <= number]:
            sent = self._unconfirmed[hop]
            sent.missing &= ~who
            if not sent.missing:
                del self._unconfirmed[hop]
        if self._stable == before:
            return []
        return [Packet(self.me, dest, Stable(self._stable)) for dest in bits(self._around)]

    @property
    def _stable(self) -> int:
        """Our last hop that all have, and all before it."""
        return min(self._unconfirmed, default=self.hops + 1) - 1

    @property
    def _around(self) -> int:
        """Who lives at the stations next to ours, and at ours."""
        plan, around = self.plan, self.plan.live[self.place]
        for station in plan.neighbours[self.place]:
            around |= plan.live[station]
        return around & ~(1 << self.me)

    # Relay, waive

    def _relay(self) -> list[Effect]:
        """Send what is kept of those that failed to whoever else was to get it."""
        effects: list[Effect] = []
        for packet in self._list_kept():
            if self.plan.dead >> packet.source & 1:
                effects += self._relay_to(packet, packet.stamp.to & ~(1 << self.me))
        return effects

    def _list_kept(self) -> list[Packet[Any]]:
        return [kept[number] for _, kept in sorted(self._kept.items()) for number in sorted(kept)]

    def _relay_to(self, packet: Packet[Any], to: int) -> list[Effect]:
        hop, version = packet.stamp, self.topology.version
        stamp = Relayed(hop.number, hop.to, hop.targets, version, hop.clock, hop.history, packet.source)
        return [Packet(self.me, dest, stamp, packet.message) for dest in bits(to & ~self.plan.dead)]

    def _take_back(self, vertex: int) -> None:
        """Keep what this vertex, which fails, may not have got, and nobody else at its station gets, for the next."""
        place, dead = self.plan.place[vertex], self.plan.dead | 1 << vertex
        behind = self.plan.behind(self.place).get(place, 0) & ~dead
        back: dict[Id, Retained] = {}
        for _, sent in sorted(self._unconfirmed.items()):
            if sent.missing >> vertex & 1 and not sent.stamp.to & self.plan.members[place] & ~dead:
                _merge(back, Retained(sent.message, sent.stamp.targets & behind, sent.stamp.clock))
        for kept in self._retained.values():
            _merge(back, kept)
        self._retained = back

    def _waive(self, vertices: Iterable[int]) -> list[Effect]:
        """Wait no longer for what is not here of these, who failed."""
        failed = list(vertices)
        for vertex in failed:
            self._waived[vertex] = self._come.get(vertex, 0)
            self._kept.pop(vertex, None)
        for key in [key for key in self._held if key[0] in failed]:
            del self._held[key]
        # In the order of a clock: what the lost hops alone told of, they tell no more.
        held = sorted(self._held.values(), key=lambda packet: (packet.stamp.clock, self._key(packet)))
        self._held.clear()
        self._waiters.clear()
        return [effect for packet in held for effect in self._admit([packet])]

    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        needs = super()._needs(packet)
        return [need for need in needs if not self._is_lost(need[0][0], need[1])] if self._waived else needs

    def _is_lost(self, source: int, number: int) -> bool:
        """Whether a hop to us never counts."""
        return source in self._waived and number > self._waived[source]

    def _learn(self, packet: Packet[Any]) -> None:
        if self._waived:
            # Nobody is to wait for what counts no more: whoever takes the place of its source sends it on.
            mine, history = 1 << self.me, packet.stamp.history
            rest = tuple(e for e in history if not (e.to & mine and self._is_lost(e.sender, e.number)))
            packet = replace(packet, stamp=replace(packet.stamp, history=rest))
        super()._learn(packet)

    def dump(self) -> dict[str, Any]:
        return {**super().dump(), "kept": [plain(packet) for packet in self._list_kept()]}

    def _load(self, state: Any) -> None:
        self._kept.clear()
        for packet in [_packet(data, self.stamps) for data in state.get("kept", ())]:
            self._note_arrival(packet)
        super()._load(state)


def _merge(back: dict[Id, Retained], kept: Retained) -> None:
    known = back.get(kept.message.id, replace(kept, targets=0))
    if known.targets or kept.targets:
        back[kept.message.id] = replace(known, targets=known.targets | kept.targets)
