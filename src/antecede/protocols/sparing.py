"""sparing: `bounded` with fewer extra messages, which Sánchez & Álvarez leave open (section 5, first line).

k bounds the stamp of every packet, as in `bounded`. The rules are ours, the last after Kshemkalyani & Singhal 1998:
  late       extra messages leave just before a stamp that would have k entries or more, not when M grows: until then a
             message to the same process may carry its column, and what was learned meanwhile goes with it. So k
             bounds stamps, and M has at most one entry for each channel.
  apart      the copy to q has no column of another destination d: whoever has it knows of the copy to d, and with that
             of all that d was told to wait for.
  taken      every packet to q tells how many packets of q were delivered here (not: have arrived). q drops M[q, me] up
             to that count.
  numbered   M[i, j] says which of all packets of i that was. A stamp tells the last packet of its receiver that its
             sender knows of, and has room below k for the last packets of others.
  forgotten  whoever knows of a packet of i, and has no M[i, j] that is as old or older, has forgotten it for a reason:
             j has it, or j was told by a later packet to wait for it. So at a delivery M and the stamp drop what the
             other side has forgotten.
So M[me, j] may return to zero, and a packet says its own counts: the one of its channel, and those of its other copies.

Why a reason stays one. Of the packets to j that a process knows of, each one that it has forgotten was delivered, or
precedes, at j, one that it has not. Of the packets that either side of a delivery has, the last to j (in the order in
which j must take them) cannot be one that the other side has forgotten: it stays.

What it saves beside `bounded`: `python -m experiments.tables sparing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from operator import gt
from typing import Any, TypeAlias

from antecede.model import Control, Effect, Message, Packet, Stamp, View
from antecede.protocols.bounded import Bounded
from antecede.protocols.receiver import BEYOND, Need, Receiver

__all__ = ["Sparing", "SparingExtra", "SparingStamp"]

Constraint: TypeAlias = tuple[int, int, int, int]
"""(i, j, M[i, j], which of all packets of i that was)"""


class SparingStamp(Stamp, frozen=True, gc=False):
    counts: tuple[int, ...]
    """Of each destination of the message, in their order: the channel's count."""
    taken: int
    """How many packets of the destination the source has delivered."""
    number: int
    """Which of all packets of the source this is; copies of a message have one number."""
    heard: int
    """The last packet of the destination that the source knows of."""
    known: tuple[tuple[int, int], ...]
    """(i, number): the last packet of i that the source knows of."""
    matrix: tuple[Constraint, ...]
    """M where it is more than 0, column by column."""

    def entries(self, n: int) -> int:
        return len(self.matrix) + len(self.known)


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
        **Receiver.state,
        "_columns": list[dict[int, Constraint]],
        "_sequence": list[int],
        "_known": list[int],
    }

    def __init__(self, view: View, me: str | int, k: int | None = None) -> None:
        super().__init__(view, me, k)
        self._columns: list[dict[int, Constraint]] = [{} for _ in range(self.n)]  # type: ignore[assignment]
        """_columns[j][i]: M[i, j], where it is more than 0."""
        self._sequence = [0] * self.n
        """How many packets went to each process."""
        self._known = [0] * self.n
        """The number of the last packet of each process that is known here."""

    def stamp_entries(self, label: str = "") -> int:
        return 4 * self.k + self.n

    # Send

    def _send(self, message: Message) -> list[Effect]:
        to = message.to
        effects = self._make_room(to)
        columns = {j: sorted(self._columns[j].values()) for j in self._list_filled()}
        rest = [entry for j, column in columns.items() if j not in to for entry in column]
        known = self._choose_known(to, rest)
        number = self._count_packet()
        counts = tuple([self._leave(dest, number) for dest in to])

        def stamp(dest: int) -> SparingStamp:
            matrix = rest
            if dest in columns:
                matrix = [e for j, column in columns.items() if j == dest or j not in to for e in column]
            return SparingStamp(
                counts, self._delivered[dest], number, self._known[dest], known, tuple(matrix)
            )

        return effects + self._copies(message, stamp)

    def _make_room(self, to: Sequence[int]) -> list[Effect]:
        """Extra messages, until the stamps of a message have fewer than k entries."""
        columns = self._columns
        effects: list[Effect] = []
        total = sum(map(len, columns))
        if total >= self.k:
            rest = total - sum([len(columns[dest]) for dest in to])
            for j in sorted(range(self.n), key=lambda j: (j in to, -len(columns[j]))):
                if rest + max([len(columns[dest]) for dest in to]) < self.k:
                    break
                if len(columns[j]) > 1:
                    rest -= 0 if j in to else len(columns[j]) - 1
                    effects.append(self._tell(j))
        return effects

    def _choose_known(self, to: Sequence[int], entries: Iterable[Constraint]) -> tuple[tuple[int, int], ...]:
        """What else is known, as far as there is room: those first of whom the entries say least."""
        told = [0] * self.n
        room = self.k - 1 - max([len(self._columns[dest]) for dest in to])
        for i, _, _, number in entries:
            room -= 1
            if number > told[i]:
                told[i] = number
        for i in (self.me, *to):
            told[i] = BEYOND
        known = self._known
        more = [(known[i] - told[i], i) for i in compress(range(self.n), map(gt, known, told))]
        if len(more) > room:
            more = sorted(more, reverse=True)[:room]
        return tuple(sorted([(i, known[i]) for _, i in more]))

    def _count_packet(self) -> int:
        self._known[self.me] += 1
        return self._known[self.me]

    def _leave(self, dest: int, number: int) -> int:  # type: ignore[override]
        self._sequence[dest] = sequence = self._sequence[dest] + 1
        self._columns[dest] = {self.me: (self.me, dest, sequence, number)}
        return sequence

    def _tell(self, dest: int) -> Packet[SparingExtra]:
        column = tuple([(i, count) for i, _, count, _ in sorted(self._columns[dest].values())])
        sequence = self._leave(dest, self._count_packet())
        return Packet(self.me, dest, SparingExtra(sequence, self._delivered[dest], column))

    def _relieve(self) -> list[Effect]:
        return []

    # Receive

    def _position(self, packet: Packet[Any]) -> Need:
        stamp, message = packet.stamp, packet.message
        if message is None:
            return packet.source, stamp.sequence
        return packet.source, stamp.counts[message.to.index(self.me)]

    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        # The one before it in its channel is in the column, or was forgotten; whoever starts anew may not have it.
        source, count = self._position(packet)
        stamp = packet.stamp
        if packet.message is None:
            return [(source, count - 1), *stamp.column]
        me = self.me
        return [(source, count - 1), *[(i, count) for i, j, count, _ in stamp.matrix if j == me]]

    def _learn(self, packet: Packet[Any]) -> None:
        source, stamp, message, me = packet.source, packet.stamp, packet.message, self.me
        columns, known = self._columns, self._known
        taken = self._delivered[me] if source == me else stamp.taken
        if me in columns[source] and columns[source][me][2] <= taken:
            del columns[source][me]
        if message is None or source == me:
            return
        said = self._read_known(packet)
        entries = [*stamp.matrix, *self._list_copies(packet)]
        # What the stamp asks of us was met: its column is not learned, and ours has nothing that others could forget.
        own, columns[me] = columns[me], {}
        for entry in entries:
            if entry[3] > known[entry[0]]:
                columns[entry[1]][entry[0]] = entry
        theirs = {entry[:2] for entry in entries}
        columns[me] = {}
        for column in filter(None, columns):
            for i in [e[0] for e in column.values() if e[3] <= said.get(e[0], 0) and e[:2] not in theirs]:
                del column[i]
        columns[me] = own
        for i, number in said.items():
            if number > known[i]:
                known[i] = number

    def _read_known(self, packet: Packet[Any]) -> dict[int, int]:
        """Which packet of each process the source knows of, at least."""
        stamp, me = packet.stamp, self.me
        said = dict(stamp.known)
        for i, _, _, number in stamp.matrix:
            if i not in said or number > said[i]:
                said[i] = number
        said[packet.source] = stamp.number
        said[me] = max(said.get(me, 0), stamp.heard)
        return said

    def _list_copies(self, packet: Packet[Any]) -> list[Constraint]:
        """What the source tells of the message itself: where else it went."""
        stamp, to = packet.stamp, packet.message.to  # type: ignore[union-attr]
        return [
            (packet.source, dest, count, stamp.number) for dest, count in zip(to, stamp.counts, strict=True)
        ]

    def _listen(self, delivered: Sequence[int] | None) -> None:
        Receiver._listen(self, delivered)
        self._sequence = [BEYOND] * self.n
        self._known[self.me] = BEYOND

    def _check(self, packet: Packet[Any]) -> None:
        stamp, message, n, me = packet.stamp, packet.message, self.n, self.me
        if stamp.taken > self._sequence[packet.source]:
            raise self._unsent(packet, stamp.taken, self._sequence[packet.source])
        if message is None:
            self._check_counts(packet, [stamp.sequence])
            for i, count in stamp.column:
                if not 0 <= i < n or count < 1:
                    raise self._bad_stamp(packet, self._bad_entry(i, me, count))
                if i == me and count > self._sequence[me]:
                    raise self._unsent(packet, count, self._sequence[me])
                if i == packet.source and count >= stamp.sequence:
                    raise self._bad_stamp(packet, f"its entry {(i, count)} counts itself, or a later one")
            return
        if len(stamp.counts) != len(message.to):
            raise self._bad_stamp(
                packet, f"it has {len(stamp.counts)} counts for {len(message.to)} destinations"
            )
        self._check_counts(packet, [*stamp.counts, stamp.number])
        own = dict(zip(message.to, stamp.counts, strict=True))
        source, last = packet.source, self._known[me]
        if stamp.matrix:
            self._check_matrix(packet, own)
        for i, number in [(me, stamp.heard), *stamp.known]:
            if not 0 <= i < n or number < (i != me):
                raise self._bad_stamp(packet, self._bad_entry(i, number))
            if i == me and number > last:
                raise self._unsent(packet, number, last)
            if i == source and number >= stamp.number:
                raise self._bad_stamp(packet, f"it knows of {number}, itself or a later one")

    def _check_matrix(self, packet: Packet[Any], own: Mapping[int, int]) -> None:
        """Refuse entries that cannot be. `own`: destination -> the count of the message itself."""
        n, me, source, matrix = self.n, self.me, packet.source, packet.stamp.matrix
        senders, dests, counts, numbers = zip(*matrix, strict=True)
        least, most = min(*senders, *dests, 0), max(*senders, *dests, 0)
        if least < 0 or most >= n or min(counts) < 1 or min(numbers) < 1:
            wrong = [e for e in matrix if min(e) < 0 or max(e[:2]) >= n or min(e[2:]) < 1]
            raise self._bad_stamp(packet, self._bad_entry(*wrong[0]))
        for i, j, count, number in [e for e in matrix if e[0] == me or e[0] == source]:
            if i == me and (count > self._sequence[j] or number > self._known[me]):
                raise self._unsent(packet, number, self._known[me])
            if i == source and (number >= packet.stamp.number or count >= own.get(j, BEYOND)):
                raise self._bad_stamp(
                    packet, f"its entry {(i, j, count, number)} counts itself, or a later one"
                )
        others = own.keys() - {me}
        if not others.isdisjoint(dests):
            raise self._bad_stamp(packet, f"it tells what other destinations, {sorted(others)}, wait for")

    def _check_counts(self, packet: Packet[Any], counts: Sequence[int]) -> None:
        if min(counts) < 1:
            raise self._bad_stamp(packet, f"its counts are {counts}, and counts start at 1")
