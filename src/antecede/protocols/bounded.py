"""bounded: Sánchez & Álvarez, sections 3 and 4: a sparse matrix kept below k entries by extra messages.

M[i, j] is what this process knows of the number of packets sent from i to j; an entry is a constraint on j: deliver
that many of i first. DELIV[i] counts the packets of i consumed here, extra messages included.

Rules (section 3)
  send to D       attach M, then for each j in D: column j := only M[me, j] + 1 (the delivery of this message implies
                  the constraints that the column held)
  wait            DELIV[i] >= ST[i, me] for all i
  deliver         DELIV[source] += 1; M := max(M, ST) except column me, whose constraints have just been met
  extra message   while M has k entries or more: to the j with the fullest column, that column alone; then the column
                  is left behind as after a send. It takes a number of the same channel, changes no matrix at the
                  receiver, and is no event of the application.

Beyond the paper, which sends to one process:
- Multicast: M is attached before it is incremented, so the stamp does not tell of the message's other copies. The
  receiver adds M[source, q] >= ST[source, q] + 1 for every other destination q.
- Column me keeps one entry, M[me, me], once the process has sent to itself: its own copy may still be undelivered.
- k may differ from process to process: it bounds what this process stamps.

M[me, j] never returns to zero, so a process that has sent to all keeps n entries; hence n < k <= n * n (alone: k = 2).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any

from antecede.errors import BadParameter
from antecede.model import Control, Effect, Message, Packet, Stamp, View
from antecede.protocols.receiver import BEYOND, Need, Receiver

__all__ = ["Bounded", "BoundedStamp", "Extra"]


class BoundedStamp(Stamp, frozen=True, gc=False):
    sequence: int
    """M[source, dest] + 1, written out so that no receiver has to look for it."""
    matrix: tuple[tuple[int, int, int], ...]
    """(i, j, M[i, j]) where M[i, j] > 0."""

    def entries(self, n: int) -> int:
        return len(self.matrix)


class Extra(Control, frozen=True, gc=False):
    """An extra message: the constraints that the receiver alone has to meet."""

    sequence: int
    column: tuple[tuple[int, int], ...]
    """(i, M[i, dest]) where M[i, dest] > 0."""

    def entries(self, n: int) -> int:
        return len(self.column)


class Bounded(Receiver):
    name = "bounded"
    stamps = (BoundedStamp, Extra)
    state = {**Receiver.state, "_columns": list[dict[int, int]]}

    def __init__(self, view: View, me: str | int, k: int | None = None) -> None:
        super().__init__(view, me)
        n = self.n
        self.k = 2 * n if k is None else k
        # One that is left alone has a matrix of one entry, which no k below 2 allows.
        most = max(2, n * n)
        # The parameters of a snapshot, or of a command, may be of any type.
        if not isinstance(self.k, int) or not n < self.k <= most:  # type: ignore[redundant-expr]
            raise BadParameter(
                self.name,
                f"k must be more than n and at most n*n, that is {n} < k <= {most} for {n} processes, not {self.k}",
            )
        self._columns: list[dict[int, int]] = [{} for _ in range(n)]
        """_columns[j][i] = M[i, j], where it is more than 0."""

    @classmethod
    def tightest(cls, n: int) -> dict[str, Any]:
        return {"k": n + 1}

    @property
    def parameters(self) -> dict[str, Any]:
        return {"k": self.k}

    def stamp_entries(self, label: str = "") -> int:
        # The column of a destination may grow by one before the extra messages leave.
        return 3 * (self.k + self.n)

    def _send(self, message: Message) -> list[Effect]:
        matrix = self._entries()
        effects = self._copies(message, lambda dest: BoundedStamp(self._leave(dest), matrix))
        return effects + self._relieve()

    def _entries(self) -> tuple[tuple[int, int, int], ...]:
        """M, column by column."""
        entries: list[tuple[int, int, int]] = []
        for j in self._list_filled():
            column = self._columns[j]
            entries += [(i, j, column[i]) for i in (sorted(column) if len(column) > 1 else column)]
        return tuple(entries)

    def _list_filled(self) -> Iterable[int]:
        """The columns that have entries: most have none in a large system, and they are passed over in C."""
        return compress(range(self.n), self._columns)

    def _leave(self, dest: int) -> int:
        """Empty a destination's column but for the packet that is now on its way there."""
        sequence = self._columns[dest].get(self.me, 0) + 1
        self._columns[dest] = {self.me: sequence}
        return sequence

    def _relieve(self) -> list[Effect]:
        """Extra messages to those with the fullest columns, until M has fewer than k entries."""
        sizes = list(map(len, self._columns))
        effects: list[Effect] = []
        total = sum(sizes)
        if total >= self.k:
            # What was left has one entry: it is not the fullest again.
            for j in sorted(range(self.n), key=sizes.__getitem__, reverse=True):
                column = tuple(sorted(self._columns[j].items()))
                effects.append(Packet(self.me, j, Extra(self._leave(j), column)))
                total -= sizes[j] - 1
                if total < self.k:
                    break
        return effects

    def _position(self, packet: Packet[Any]) -> Need:
        return packet.source, packet.stamp.sequence

    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        if packet.message is None:
            return packet.stamp.column  # type: ignore[no-any-return]
        me = self.me
        return [(i, count) for i, j, count in packet.stamp.matrix if j == me]

    def _learn(self, packet: Packet[Any]) -> None:
        message = packet.message
        if message is None or packet.source == self.me:
            return
        columns, me, source = self._columns, self.me, packet.source
        before = dict.fromkeys(message.to, 0)
        for i, j, count in packet.stamp.matrix:
            column = columns[j]
            if (i not in column or column[i] < count) and j != me:
                column[i] = count
            if i == source and j in before:
                before[j] = count
        self._learn_copies(source, before)

    def _learn_copies(self, source: int, before: dict[int, int]) -> None:
        """The message's copies to others: one more than the stamp, attached before it was incremented, tells."""
        for dest, count in before.items():
            if dest != self.me and count + 1 > self._columns[dest].get(source, 0):
                self._columns[dest][source] = count + 1

    def deliver(self, message: Message) -> list[Effect]:
        effects = super().deliver(message)
        return effects if self.listens else effects + self._relieve()

    def _listen(self, delivered: Sequence[int] | None) -> None:
        super()._listen(delivered)
        self._columns = [{self.me: BEYOND} for _ in range(self.n)]

    def _check(self, packet: Packet[Any]) -> None:
        stamp, n, me, source, columns = packet.stamp, self.n, self.me, packet.source, self._columns
        before = 0
        for i, j, count in [(i, me, c) for i, c in stamp.column] if packet.message is None else stamp.matrix:
            if i < 0 or j < 0 or i >= n or j >= n or count < 1:
                raise self._bad_stamp(packet, self._bad_entry(i, j, count))
            if i == me and count > columns[j].get(me, 0):
                raise self._unsent(packet, count, columns[j].get(me, 0))
            if i == source and j == me:
                before = count
        if stamp.sequence != before + 1:
            raise self._bad_stamp(
                packet, f"its sequence is {stamp.sequence}, and it counts {before} messages before it"
            )
