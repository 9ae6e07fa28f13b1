"""monitor: Hoogerwoord 1995, section 6: one process, the monitor, receives in causal order; all others take part.

f[q] is the number of messages from q to the monitor that this process knows of; k[q] the number of q's messages that
the monitor has delivered. Both stand for closed sets of messages, represented by their sizes.

Rules (section 6)
  send j to others       e_j := f
  send j to the monitor  e_j := f; f[me] += 1
  deliver at others      f := f max e_j
  deliver at the monitor when e_j <= k; then f := f max e_j, f[source] += 1, k[source] += 1

Only messages to the monitor are counted, but every message between any processes carries the vector. Order is
promised at the monitor alone; elsewhere messages are delivered as they come.

Beyond the note, which sends to one process:
- Whoever delivers a copy of a message that also went to the monitor has that message in its past, so it counts it:
  f[source] becomes at least e_j[source] + 1.
- The same maximum serves at the monitor, where `+= 1` would count the monitor's messages to itself twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from antecede.model import Effect, Message, Packet, Stamp, View
from antecede.protocols.receiver import BEYOND, Need, Receiver
from antecede.protocols.unordered import Seen

__all__ = ["Monitor", "MonitorStamp"]


class MonitorStamp(Stamp, frozen=True, gc=False):
    sequence: int
    """The channel's count: e[source] + 1 at the monitor; elsewhere it only tells duplicates."""
    vector: tuple[int, ...]

    def entries(self, n: int) -> int:
        return n


class Monitor(Receiver):
    name = "monitor"
    names_all = True
    stamps = (MonitorStamp,)
    state = {**Receiver.state, "_known": list[int], "_sequence": list[int], "_seen": list[Seen]}

    def __init__(self, view: View, me: str | int, monitor: str | int = 0) -> None:
        super().__init__(view, me)
        self.monitor = view.id(monitor)
        self._known = [0] * self.n
        self._sequence = [0] * self.n
        self._seen = [Seen() for _ in range(self.n)]

    @classmethod
    def name_members(cls, parameters: Mapping[str, Any], founders: Sequence[str]) -> dict[str, Any]:
        place = parameters.get("monitor", 0)
        if isinstance(place, int) and 0 <= place < len(founders):
            return {**parameters, "monitor": founders[place]}
        return dict(parameters)

    @property
    def parameters(self) -> dict[str, Any]:
        return {"monitor": self.monitor}

    def orders_at(self, process: int) -> bool:
        return process == self.monitor

    def _send(self, message: Message) -> list[Effect]:
        vector = tuple(self._known)
        if self.monitor in message.to:
            self._known[self.me] += 1
        return self._copies(message, lambda dest: MonitorStamp(self._next(dest), vector))

    def _next(self, dest: int) -> int:
        self._sequence[dest] += 1
        return self._sequence[dest]

    def _position(self, packet: Packet[Any]) -> Need:
        return packet.source, packet.stamp.sequence

    def _is_old(self, position: Need) -> bool:
        return position[1] in self._seen[position[0]]

    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        if self.me != self.monitor:
            return ()
        delivered = self._delivered
        return [(q, count) for q, count in enumerate(packet.stamp.vector) if count > delivered[q]]

    def _asks(self, packet: Packet[Any]) -> Iterable[Need]:
        return list(enumerate(packet.stamp.vector)) if self.me == self.monitor else ()

    def _learn(self, packet: Packet[Any]) -> None:
        stamp, source, known = packet.stamp, packet.source, self._known
        known[:] = map(max, known, stamp.vector)
        if self.monitor in packet.message.to:  # type: ignore[union-attr]
            known[source] = max(known[source], stamp.vector[source] + 1)
        self._seen[source].add(stamp.sequence)

    def _overhear(self, packet: Packet[Any]) -> None:
        self._seen[packet.source].add(packet.stamp.sequence)

    def _listen(self, delivered: Sequence[int] | None) -> None:
        super()._listen(delivered)
        self._known[self.me] = BEYOND
        if delivered is not None:
            self._seen = [Seen(int(count)) for count in delivered]

    def _check(self, packet: Packet[Any]) -> None:
        stamp = packet.stamp
        if len(stamp.vector) != self.n:
            raise self._bad_stamp(
                packet, f"its vector has {len(stamp.vector)} entries for {self.n} processes"
            )
        if min(stamp.vector) < 0:
            raise self._bad_stamp(
                packet, f"its vector has a count of {min(stamp.vector)}, and counts start at 0"
            )
        if stamp.vector[self.me] > self._known[self.me]:
            raise self._unsent(packet, stamp.vector[self.me], self._known[self.me])
        if stamp.sequence < 1 or (
            self.me == self.monitor and stamp.sequence != stamp.vector[packet.source] + 1
        ):
            raise self._bad_stamp(
                packet, f"its sequence is {stamp.sequence}, not the count after those in its vector"
            )
