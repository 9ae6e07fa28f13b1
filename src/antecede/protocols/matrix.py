"""matrix: Raynal & Schiper 1989, section 3.2, with the multicast rule i'.

SENT[k, l] is what this process knows of the number of messages sent from k to l; REC[k] counts the messages of k
delivered here.

Rules (section 3.2)
  i'  send to S      for all l in S: SENT[me, l] += 1; then attach SENT
  ii  wait           REC[j] + 1 = ST[j, me], and REC[k] >= ST[k, me] for all k != j
      deliver        REC[j] += 1; SENT := max(SENT, ST), entry by entry

How it is kept small, without changing what is decided:
- Only process k changes row k, so any two versions of row k are ordered, and the entry-wise maximum of two matrices
  takes each row from whichever side has the newer version. A version is the sender's own message count. Rows are
  immutable and shared: no n x n copy, no n x n comparison.
- Only column `me` decides: the rest is someone else's order.
- A stamp carries the rows that changed since the last packet to the same destination. The wait makes each channel
  FIFO, so whatever an earlier packet of the channel told has been merged by the time it matters; and a row that is
  no newer than ours asks for nothing that was not delivered here.

The paper counts n x n entries and so does `entries`; the bytes on the wire are those of the changed rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from antecede.errors import BadStamp
from antecede.model import Effect, Message, Packet, Stamp, Uint, View
from antecede.protocols.receiver import BEYOND, Need, Receiver

__all__ = ["Matrix", "MatrixStamp", "Row"]


class Row(Struct, frozen=True, gc=False, array_like=True):
    """One version of row k of SENT: how many messages k had sent to each process."""

    process: Uint
    version: Uint
    """How many messages k had sent when its row looked like this."""
    counts: tuple[Uint, ...]


class MatrixStamp(Stamp, frozen=True, gc=False):
    rows: tuple[Row, ...]
    """The rows of ST that changed since the last packet to the same destination; the sender's own is the last."""

    def entries(self, n: int) -> int:
        return n * n


class Matrix(Receiver):
    name = "matrix"
    names_all = True
    stamps = (MatrixStamp,)
    state = {**Receiver.state, "_rows": list[Row], "_told": list[int], "_changes": list[int], "_clock": int}

    def __init__(self, view: View, me: str | int) -> None:
        super().__init__(view, me)
        zero = (0,) * self.n
        self._rows = [Row(k, 0, zero) for k in range(self.n)]
        self._versions = [0] * self.n
        """The versions of the rows."""
        self._clock = 0
        """Counts the changes of SENT."""
        self._changes = [0] * self.n
        """When each row of SENT last changed."""
        self._told = [0] * self.n
        """When each destination was last told."""
        self._learnt = 0
        """When SENT last changed by a delivery: whoever was told since need be told our own row only."""
        self._sifted: tuple[MatrixStamp | None, list[Row]] = (None, [])
        """The stamp that was looked at last, and its rows that were newer than ours: versions only grow."""

    def stamp_entries(self, label: str = "") -> int:
        return self.n * (self.n + 2)

    # Rule i'

    def _send(self, message: Message) -> list[Effect]:
        me = self.me
        counts = list(self._rows[me].counts)
        for dest in message.to:
            counts[dest] += 1
        self._clock += 1
        self._rows[me] = Row(me, message.number, tuple(counts))
        self._versions[me] = message.number
        return self._copies(message, self._stamp)

    def _stamp(self, dest: int) -> MatrixStamp:
        told = self._told[dest]
        self._told[dest] = self._clock
        own = self._rows[self.me]
        if told >= self._learnt:
            return MatrixStamp((own,))
        changed = [row for row, change in zip(self._rows, self._changes, strict=True) if change > told]
        changed.append(own)
        return MatrixStamp(tuple(changed))

    # Rule ii

    def _position(self, packet: Packet[Any]) -> Need:
        return packet.source, packet.stamp.rows[-1].counts[self.me]

    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        me, rows = self.me, packet.stamp.rows
        # The channel comes first: until it is this packet's turn, rows that an earlier packet told may be missing.
        yield packet.source, rows[-1].counts[me] - 1
        if len(rows) == 1:
            return
        for row in self._newer(packet.stamp):
            if row is not rows[-1]:
                yield row.process, row.counts[me]
        if self._delivered[me] < self._rows[me].counts[me]:
            # Our own row is never newer than we know, but copies to ourselves are still undelivered.
            yield from [(me, row.counts[me]) for row in rows[:-1] if row.process == me]

    def _learn(self, packet: Packet[Any]) -> None:
        versions, rows, changes = self._versions, self._rows, self._changes
        self._clock = self._learnt = clock = self._clock + 1
        told = packet.stamp.rows
        for row in told if len(told) == 1 else self._newer(packet.stamp):
            k = row.process
            if row.version > versions[k]:
                rows[k], versions[k], changes[k] = row, row.version, clock

    def _newer(self, stamp: MatrixStamp) -> list[Row]:
        """The rows of a stamp that are newer than ours."""
        versions = self._versions
        sifted, newer = self._sifted
        rows = newer if sifted is stamp else stamp.rows
        return [row for row in rows if row.version > versions[row.process]]

    def _listen(self, delivered: Sequence[int] | None) -> None:
        super()._listen(delivered)
        # Newer than any version of our own row: it is never looked at.
        self._rows[self.me] = Row(self.me, BEYOND, (0,) * self.n)
        self._versions[self.me] = BEYOND

    def _load(self, state: Mapping[str, Any]) -> None:
        self._versions = [row.version for row in self._rows]
        self._learnt = max(self._changes)
        super()._load(state)

    def _check(self, packet: Packet[Any]) -> None:
        rows, message = packet.stamp.rows, packet.message
        assert message is not None
        if not rows or rows[-1].process != packet.source:
            raise self._bad_stamp(packet, "its last row is not the sender's")
        if len(rows) > 1:
            self._check_rows(packet, rows)
        own = rows[-1]
        if len(own.counts) != self.n or own.counts[self.me] < 1 or own.version != message.number:
            raise self._bad_stamp(packet, "its sender's row does not count its own message")

    def _check_rows(self, packet: Packet[Any], rows: tuple[Row, ...]) -> None:
        n, versions = self.n, self._versions
        try:
            # A row that is no newer than ours is never looked at.
            newer = [row for row in rows if row.version > versions[row.process]]
            self._sifted = packet.stamp, newer
        except IndexError:
            raise self._bad_stamp(
                packet, f"it has row {max(row.process for row in rows)} for {n} processes"
            ) from None
        bad = [
            row
            for row in newer
            if row.process < 0 or len(row.counts) != n or row.counts[self.me] < 0 or row.process == self.me
        ]
        if bad:
            raise self._bad_row(packet, bad[0])

    def _bad_row(self, packet: Packet[Any], row: Row) -> BadStamp:
        if row.process == self.me:
            return self._unsent(packet, row.version, self.sent)
        return self._bad_stamp(
            packet,
            f"it has row {row.process} of {len(row.counts)} counts, the least "
            f"{min(row.counts, default=0)}, for {self.n} processes; counts start at 0",
        )
