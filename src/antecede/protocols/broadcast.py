"""broadcast: Birman, Schiper & Stephenson 1991, causal broadcast with vector timestamps.

VT[k] is the number of broadcasts of k that are in this process's past.

Rules
  send     VT[me] += 1; attach VT; to everyone, the sender included
  wait     VT_m[source] = delivered[source] + 1, and VT_m[k] <= delivered[k] for all k != source
  deliver  delivered[source] += 1

Everything that a process knows of others it has delivered, so VT is `delivered`, but for the own entry, which counts
what was sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from antecede.model import Effect, Message, Packet, Stamp
from antecede.protocols.receiver import Need, Receiver

__all__ = ["Broadcast", "VectorStamp"]


class VectorStamp(Stamp, frozen=True, gc=False):
    vector: tuple[int, ...]

    def entries(self, n: int) -> int:
        return n


class Broadcast(Receiver):
    name = "broadcast"
    names_all = True
    stamps = (VectorStamp,)
    to_all = True
    counted = "sender"

    def accepts(self, sender: int, to: tuple[int, ...]) -> str | None:
        if len(to) == self.n:
            return None
        missing = sorted(set(range(self.n)) - set(to))
        return f"a broadcast goes to everyone; left out: {', '.join(map(self.view.name, missing[:8]))}"

    def _send(self, message: Message) -> list[Effect]:
        vector = list(self._delivered)
        vector[self.me] = message.number
        stamp = VectorStamp(tuple(vector))
        return self._copies(message, lambda dest: stamp)

    def _position(self, packet: Packet[Any]) -> Need:
        return packet.source, packet.stamp.vector[packet.source]

    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        source, vector, delivered = packet.source, packet.stamp.vector, self._delivered
        needs = [(source, vector[source] - 1)]
        needs += [(k, count) for k, count in enumerate(vector) if count > delivered[k] and k != source]
        return needs

    def _asks(self, packet: Packet[Any]) -> Iterable[Need]:
        source, vector = packet.source, packet.stamp.vector
        return [(k, count - 1 if k == source else count) for k, count in enumerate(vector)]

    def _first(self, done: int, count: int) -> int:
        return done + 1  # Everything is addressed to everyone.

    def _check(self, packet: Packet[Any]) -> None:
        vector, number = packet.stamp.vector, packet.message.number  # type: ignore[union-attr]
        if len(vector) != self.n:
            raise self._bad_stamp(packet, f"its vector has {len(vector)} entries for {self.n} processes")
        if min(vector) < 0:
            raise self._bad_stamp(packet, f"its vector has a count of {min(vector)}, and counts start at 0")
        if vector[self.me] > self.sent:
            raise self._unsent(packet, vector[self.me], self.sent)
        if vector[packet.source] != number:
            raise self._bad_stamp(
                packet,
                f"its vector counts {vector[packet.source]} messages of its sender, and this is message {number}",
            )
