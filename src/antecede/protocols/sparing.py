"""sparing: `bounded` with fewer extra messages, which Sánchez & Álvarez leave open (section 5, first line).

k bounds the stamp of every packet, as in `bounded`. These rules are ours:
  late      extra messages leave just before a stamp that would have k entries or more, not when M grows: until then a
            message to the same process may carry its column, and what was learned meanwhile goes with it. Only when
            M has `ROOM` times k entries do they leave at once, so that M is bounded, too.
  taken     every packet to q tells how many packets of q were delivered here (not: have arrived). What q took need not
            be waited for: q drops M[q, me] up to that count.
  told      M[i, j] is not learned again where a packet of ours to j carried at least as much: whoever knows our last
            packet to j waits for it at j, and with it for that; and if it is dropped as taken, j has met it.
So M[me, j] may return to zero, and a packet says its own counts: the one of its channel, and those of its other copies.

What it saves beside `bounded`: `python -m experiments.tables sparing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from antecede.model import Control, Effect, Message, Packet, Stamp, View
from antecede.protocols.bounded import Bounded
from antecede.protocols.receiver import BEYOND, Need, Receiver

__all__ = ["Sparing", "SparingExtra", "SparingStamp"]

ROOM = 3


class SparingStamp(Stamp, frozen=True, gc=False):
    counts: tuple[int, ...]
    """Of each destination of the message, in their order: the channel's count."""
    taken: int
    """How many packets of the destination the source has delivered."""
    matrix: tuple[tuple[int, int, int], ...]
    """(i, j, M[i, j]) where M[i, j] > 0."""

    def entries(self, n: int) -> int:
        return len(self.matrix)


class SparingExtra(Control, frozen=True, gc=False):
    """An extra message: the constraints that the receiver alone has to meet."""

    sequence: int
    taken: int
    column: tuple[tuple[int, int], ...]
    """(i, M[i, dest]) where M[i, dest] > 0."""

    def entries(self, n: int) -> int:
        return len(self.column)


class Sparing(Bounded):
    name = "sparing"
    stamps = (SparingStamp, SparingExtra)  # type: ignore[assignment]
    state = {
        **Bounded.state,
        "_sequence": list[int],
        "_taken": list[int],
        "_told": list[dict[int, int]],
    }

    def __init__(self, view: View, me: str | int, k: int | None = None) -> None:
        super().__init__(view, me, k)
        self._sequence = [0] * self.n
        """How many packets went to each process."""
        self._taken = [0] * self.n
        """How many of them it is known to have delivered."""
        self._told: list[dict[int, int]] = [{} for _ in range(self.n)]
        """_told[j][i]: the most that a packet of ours to j asked for of i."""

    # Send

    def _send(self, message: Message) -> list[Effect]:
        effects = self._relieve(self.k)
        matrix = self._entries()
        counts = tuple([self._leave(dest) for dest in message.to])
        return effects + self._copies(
            message, lambda dest: SparingStamp(counts, self._delivered[dest], matrix)
        )

    def _leave(self, dest: int) -> int:
        told = self._told[dest]
        for i, count in self._columns[dest].items():
            if count > told.get(i, 0):
                told[i] = count
        self._sequence[dest] = sequence = self._sequence[dest] + 1
        self._columns[dest] = {self.me: sequence}
        return sequence

    def _relieve(self, most: int = 0) -> list[Effect]:
        """Extra messages, if M has that many entries or more: until it has fewer than k."""
        effects: list[Effect] = []
        if sum(map(len, self._columns)) >= (most or ROOM * self.k):
            for fullest, column in self._excess():
                taken = self._delivered[fullest]
                effects.append(Packet(self.me, fullest, SparingExtra(self._leave(fullest), taken, column)))
        return effects

    # Receive

    def _position(self, packet: Packet[Any]) -> Need:
        stamp, message = packet.stamp, packet.message
        if message is None:
            return packet.source, stamp.sequence
        return packet.source, stamp.counts[message.to.index(self.me)]

    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        # The one before it in its channel is in the column, or was taken; whoever starts anew may not have it.
        source, count = self._position(packet)
        stamp = packet.stamp
        if packet.message is None:
            return [(source, count - 1), *stamp.column]
        return [(source, count - 1), *((i, count) for i, j, count in stamp.matrix if j == self.me)]

    def _learn(self, packet: Packet[Any]) -> None:
        source, stamp, message = packet.source, packet.stamp, packet.message
        if source == self.me:
            self._forget_taken(source, self._delivered[source])
            return
        self._forget_taken(source, stamp.taken)
        if message is None:
            return
        for i, j, count in stamp.matrix:
            self._note(i, j, count)
        for dest, count in zip(message.to, stamp.counts, strict=True):
            self._note(source, dest, count)

    def _forget_taken(self, process: int, count: int) -> None:
        if count > self._taken[process]:
            self._taken[process] = count
        if self._columns[process].get(self.me, BEYOND) <= self._taken[process]:
            del self._columns[process][self.me]

    def _note(self, i: int, j: int, count: int) -> None:
        """Learn M[i, j]; what we sent ourselves we know, and what we have met or told needs no entry."""
        me, column = self.me, self._columns[j]
        if i != me and j != me and count > column.get(i, 0) and count > self._told[j].get(i, 0):
            column[i] = count

    def _listen(self, delivered: Sequence[int] | None) -> None:
        Receiver._listen(self, delivered)
        self._sequence = [BEYOND] * self.n

    def _load(self, state: Mapping[str, Any]) -> None:
        if not len(self._told) == len(self._columns) == self.n:
            raise ValueError(f"_told of {len(self._told)} processes, not {self.n}")
        super()._load(state)

    def _check(self, packet: Packet[Any]) -> None:
        stamp, message, n, me = packet.stamp, packet.message, self.n, self.me
        if message is None:
            entries: Iterable[tuple[int, int, int]] = [(i, me, count) for i, count in stamp.column]
            own = {me: stamp.sequence}
        else:
            entries = stamp.matrix
            if len(stamp.counts) != len(message.to):
                raise self._bad_stamp(
                    packet, f"it has {len(stamp.counts)} counts for {len(message.to)} destinations"
                )
            own = dict(zip(message.to, stamp.counts, strict=True))
        if min(own.values()) < 1:
            raise self._bad_stamp(packet, f"its counts are {own}, and counts start at 1")
        if stamp.taken > self._sequence[packet.source]:
            raise self._unsent(packet, stamp.taken, self._sequence[packet.source])
        for i, j, count in entries:
            if not (0 <= i < n and 0 <= j < n and count > 0):
                raise self._bad_stamp(packet, self._bad_entry(i, j, count))
            if i == me and count > self._sequence[j]:
                raise self._unsent(packet, count, self._sequence[j])
            if i == packet.source and count >= own.get(j, BEYOND):
                raise self._bad_stamp(
                    packet, f"its entry {(i, j, count)} counts its own message, {own[j]}, or a later one"
                )
