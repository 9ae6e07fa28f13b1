"""Machines that decide at the receiver: a stamp names what must be delivered first.

A held packet is filed under the first thing that it waits for. The delivery of that thing wakes it, and only what
waited for the same: the cost of a delivery does not grow with the number of held messages.

What never comes can be given up: `losses`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, cast

from antecede.model import Effect, Message, Packet, Stamp
from antecede.protocols.gaps import Gaps
from antecede.protocols.losses import Losses, Need
from antecede.protocols.machine import Machine, plain, typed

__all__ = ["Need", "Receiver"]

BEYOND = 1 << 62
"""More messages than anyone sends."""


class Receiver(Losses):
    """A machine that decides at the receiver, from the stamp, what must be delivered first.

    A protocol says three things of a packet:
    `_position`  which (key, count) its delivery reaches
    `_needs`     which (key, count) must have been reached before
    `_learn`     what the process knows after its delivery
    """

    state = {**Machine.state, "_delivered": list[int]}
    arrivals_commute = True
    listens: ClassVar[bool] = False
    """Whether it stands for a process that sends elsewhere (`listener`)."""

    sparse: ClassVar[bool] = False
    """Whether counts have gaps, and a message does not name the one of its sender before it."""

    names_all: ClassVar[bool] = False
    """Whether a stamp names all that a message follows here, also what the messages that it names follow."""

    holds_back: ClassVar[bool] = False
    """Whether messages may wait at their sender: `forget` lets them leave."""

    def _asks(self, packet: Packet[Any]) -> Iterable[Need]:
        """What it needs, with what was reached already."""
        return self._needs(packet)

    def _learn(self, packet: Packet[Any]) -> None:
        """Update what this process knows, at the delivery of a packet."""

    def _find_unmet(self, packet: Packet[Any]) -> Need | None:
        delivered = self._delivered
        for need in self._needs(packet):
            if delivered[need[0]] < need[1]:
                return need
        return None

    def _is_old(self, position: Need) -> bool:
        """Whether the packet at this position was delivered before."""
        old: bool = self._delivered[position[0]] >= position[1]
        return old and not (self._skipped.ranges and self._skipped.find(*position))

    def _receive(self, packet: Packet[Any]) -> list[Effect]:
        message = packet.message
        if message is None:
            return self._receive_control(packet)
        key = (message.sender, message.number)
        if key in self._ready or key in self._held or self._is_old(self._position(packet)):
            return []
        # As `_admit` does it, for one: there is nothing to wake.
        need = self._find_unmet(packet)
        if need is None:
            self._ready[key] = packet
            return [message]
        self._held[key] = packet
        self._file(packet, need)
        return []

    def _receive_control(self, packet: Packet[Any]) -> list[Effect]:
        """Control waits its turn like a message, but no application has to take it."""
        position = self._position(packet)
        key = (packet.source, -position[1])
        if key in self._held or self._is_old(position):
            return []
        need = self._find_unmet(packet)
        if need is not None:
            self._held[key] = packet
            self._file(packet, need)
            return []
        self._settle(packet)
        return self._admit(self._wake(position)) if position in self._waiters else []

    def _hold(self, packet: Packet[Any], need: Need) -> None:
        self._held[self._key(packet)] = packet
        self._file(packet, need)

    def _file(self, packet: Packet[Any], need: Need) -> None:
        waiters = self._waiters.get(need)
        if waiters is None:
            self._waiters[need] = [packet]
        else:
            waiters.append(packet)

    def _admit(self, packets: list[Packet[Any]]) -> list[Effect]:
        """Offer what may be delivered, file the rest under the first thing that it waits for."""
        effects: list[Effect] = []
        while packets:
            packet = packets.pop()
            need = self._find_unmet(packet)
            if need is not None:
                self._hold(packet, need)
            elif packet.message is None:
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
        woken = self._waiters.get(position)
        if woken is None:
            return []
        packet, after = woken[0], woken[0].message
        if len(woken) > 1 or after is None:
            return self._admit(self._wake(position))
        # As `_admit` does it, for one message: the next of its channel, as a rule.
        del self._waiters[position]
        need = self._find_unmet(packet)
        if need is not None:
            self._file(packet, need)
            return []
        key = (after.sender, after.number)
        del self._held[key]
        self._ready[key] = packet
        return [after]

    def _settle(self, packet: Packet[Any]) -> Need:
        position = self._position(packet)
        if not (self._skipped.ranges and self._skipped.take(*position)):
            self._delivered[position[0]] = position[1]
        # else it comes late: others of its sender were delivered since.
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

    def eligible(self) -> list[Message]:
        return [cast(Message, self._ready[key].message) for key in sorted(self._ready)]

    # A process that sends elsewhere (`listener`): what a protocol says of it

    def _listen(self, delivered: Sequence[int] | None) -> None:
        """What a listener starts from: what it has delivered so far, for each sender, if not nothing."""
        if delivered is not None:
            self._delivered = [int(count) for count in delivered]
        self._delivered[self.me] = BEYOND

    def _overhear(self, packet: Packet[Any]) -> None:
        """What a listener must remember at a delivery. It stamps nothing, so as a rule it need not learn."""

    def dump(self) -> dict[str, Any]:
        pending = {**self._held, **self._ready}
        state = {**super().dump(), "pending": [plain(pending[key]) for key in sorted(pending)]}
        # Only where they are used: most machines never are.
        if self._skipped:
            state["skipped"] = plain(list(self._skipped))
        return state

    def _load(self, state: Mapping[str, Any]) -> None:
        self._held, self._ready, self._waiters = {}, {}, {}
        self._skipped = Gaps(state.get("skipped", ()))
        # Which packets are eligible follows from the rest, so it is worked out again, not stored.
        self._admit([_packet(packet, self.stamps) for packet in state["pending"]])


def _packet(data: Any, stamps: tuple[type[Stamp], ...]) -> Packet[Any]:
    """A packet of plain data; its stamp must be one of these kinds."""
    for kind in stamps:
        if kind.__struct_config__.tag == data["stamp"]["stamp"]:
            stamp, message = typed(data["stamp"], kind), typed(data["message"], Message | None)
            return Packet(typed(data["source"], int), typed(data["dest"], int), stamp, message)
    raise ValueError(f"stamp {data['stamp']['stamp']!r}")
