"""Machines that decide at the receiver: a stamp names what must be delivered first.

A held packet is filed under the first thing that it waits for. The delivery of that thing wakes it, and only what
waited for the same: the cost of a delivery does not grow with the number of held messages.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, TypeAlias, cast

from antecede.errors import NotEligible
from antecede.model import Awaited, Effect, Id, Message, Packet, Stamp, View, Waiting
from antecede.protocols.machine import Machine, plain, typed

__all__ = ["Need", "Receiver"]

Need: TypeAlias = tuple[Any, int]
"""(key, count): `delivered[key] >= count` must hold. The key is a sender, or a sender and a label."""


class Receiver(Machine):
    """A machine that decides at the receiver, from the stamp, what must be delivered first.

    A protocol says three things of a packet:
    `_position`  which (key, count) its delivery reaches
    `_needs`     which (key, count) must have been reached before
    `_learn`     what the process knows after its delivery
    """

    state = {**Machine.state, "_delivered": list[int]}
    arrivals_commute = True
    counted: ClassVar[Literal["sender", "channel"]] = "channel"
    """By which count `_needs` speaks: the sender's own, or the channel's from the sender to here."""

    _delivered: Any
    """key -> the highest count delivered here."""

    def __init__(self, view: View, me: str | int) -> None:
        super().__init__(view, me)
        self._delivered = [0] * self.n
        self._held: dict[Id, Packet[Any]] = {}
        self._ready: dict[Id, Packet[Any]] = {}
        self._waiters: dict[Need, list[Packet[Any]]] = {}

    @abstractmethod
    def _position(self, packet: Packet[Any]) -> Need: ...

    @abstractmethod
    def _needs(self, packet: Packet[Any]) -> Iterable[Need]: ...

    def _learn(self, packet: Packet[Any]) -> None:
        """Update what this process knows, at the delivery of a packet."""

    def _unmet(self, packet: Packet[Any]) -> Need | None:
        delivered = self._delivered
        for need in self._needs(packet):
            if delivered[need[0]] < need[1]:
                return need
        return None

    def _is_old(self, position: Need) -> bool:
        """Whether the packet at this position was delivered before."""
        old: bool = self._delivered[position[0]] >= position[1]
        return old

    def _receive(self, packet: Packet[Any]) -> list[Effect]:
        message = packet.message
        key = self._key(packet) if message is None else (message.sender, message.number)
        if key in self._ready or key in self._held or self._is_old(self._position(packet)):
            return []
        if message is None:
            return self._admit([packet])
        # As `_admit` does it, for one: there is nothing to wake.
        need = self._unmet(packet)
        if need is None:
            self._ready[key] = packet
            return [message]
        self._hold(packet, need)
        return []

    def _hold(self, packet: Packet[Any], need: Need) -> None:
        self._held[self._key(packet)] = packet
        self._waiters.setdefault(need, []).append(packet)

    def _admit(self, packets: list[Packet[Any]]) -> list[Effect]:
        """Offer what may be delivered, file the rest under the first thing that it waits for."""
        effects: list[Effect] = []
        while packets:
            packet = packets.pop()
            need = self._unmet(packet)
            if need is not None:
                self._hold(packet, need)
            elif packet.message is None:
                # Control waits its turn like a message, but no application has to take it.
                packets += self._wake(self._settle(packet))
            else:
                message = packet.message
                self._ready[message.sender, message.number] = packet
                effects.append(message)
        return effects

    def deliver(self, message: Message) -> list[Effect]:
        packet = self._ready.pop((message.sender, message.number), None)
        if packet is None:
            raise self._not_eligible(message)
        position = self._settle(packet)
        return self._admit(self._wake(position)) if position in self._waiters else []

    def _settle(self, packet: Packet[Any]) -> Need:
        position = self._position(packet)
        self._delivered[position[0]] = position[1]
        self._learn(packet)
        return position

    def _wake(self, position: Need) -> list[Packet[Any]]:
        woken = self._waiters.pop(position, None)
        if not woken:
            return []
        for packet in woken:
            del self._held[self._key(packet)]
        if len(woken) > 1:
            # Not in order of arrival: a machine restored from a snapshot must give the same effects.
            woken.sort(key=self._key, reverse=True)
        return woken

    def _key(self, packet: Packet[Any]) -> Id:
        message = packet.message
        if message is None:
            return (packet.source, -self._position(packet)[1])
        return (message.sender, message.number)

    def _not_eligible(self, message: Message) -> NotEligible:
        packet = self._held.get(message.id)
        if packet is None:
            why = "it is not here"
        else:
            why = "it waits for " + ", ".join(
                f"{a.first}..{a.last} of {self.view.name(a.sender)}" for a in self._awaits(packet)
            )
        return NotEligible(self.view.name(self.me), message.id, why)

    def eligible(self) -> list[Message]:
        return [cast(Message, self._ready[key].message) for key in sorted(self._ready)]

    def waiting(self) -> list[Waiting]:
        return [
            Waiting(packet.message, self._awaits(packet))
            for _, packet in sorted(self._held.items())
            if packet.message is not None
        ]

    def _awaits(self, packet: Packet[Any]) -> tuple[Awaited, ...]:
        awaits = []
        for key, count in self._needs(packet):
            done = int(self._delivered[key])
            if done < count:
                awaits.append(Awaited(self._sender(key), self._first(done, count), int(count), self.counted))
        return tuple(sorted(awaits))

    def _first(self, done: int, count: int) -> int:
        """The first message that is awaited: of a sender's numbers, not all are addressed here."""
        return done + 1 if self.counted == "channel" else count

    def _sender(self, key: Any) -> int:
        return int(key)

    def dump(self) -> dict[str, Any]:
        pending = {**self._held, **self._ready}
        return {**super().dump(), "pending": [plain(pending[key]) for key in sorted(pending)]}

    def _load(self, state: Mapping[str, Any]) -> None:
        self._held, self._ready, self._waiters = {}, {}, {}
        # Which packets are eligible follows from the rest, so it is worked out again, not stored.
        self._admit([_packet(packet, self.stamps) for packet in state["pending"]])


def _packet(data: Any, stamps: tuple[type[Stamp], ...]) -> Packet[Any]:
    """A packet of plain data; its stamp must be one of these kinds."""
    for kind in stamps:
        if kind.__struct_config__.tag == data["stamp"]["stamp"]:
            stamp, message = typed(data["stamp"], kind), typed(data["message"], Message | None)
            return Packet(typed(data["source"], int), typed(data["dest"], int), stamp, message)
    raise ValueError(f"stamp {data['stamp']['stamp']!r}")
