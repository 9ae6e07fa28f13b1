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

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from antecede.model import Effect, Message, Packet, Stamp, View
from antecede.protocols.receiver import Need, Receiver

__all__ = ["Matrix", "MatrixStamp", "Row"]


class Row(Struct, frozen=True, gc=False, array_like=True):
    """One version of row k of SENT: how many messages k had sent to each process."""

    process: int
    version: int
    """How many messages k had sent when its row looked like this."""
    counts: tuple[int, ...]


class MatrixStamp(Stamp, frozen=True, gc=False):
    rows: tuple[Row, ...]
    """The rows of ST that changed since the last packet to the same destination; the sender's own is the last."""

    def entries(self, n: int) -> int:
        return n * n


class Matrix(Receiver):
    name = "matrix"
    stamps = (MatrixStamp,)
    state = {**Receiver.state, "_rows": list[Row], "_told": list[int], "_changes": list[int], "_clock": int}

    def __init__(self, view: View, me: str | int) -> None:
        super().__init__(view, me)
        zero = (0,) * self.n
        self._rows = [Row(k, 0, zero) for k in range(self.n)]
        self._clock = 0
        """Counts the changes of SENT."""
        self._changes = [0] * self.n
        """When each row of SENT last changed."""
        self._told = [0] * self.n
        """When each destination was last told."""

    # Rule i'

    def _send(self, message: Message) -> list[Effect]:
        me = self.me
        counts = list(self._rows[me].counts)
        for dest in message.to:
            counts[dest] += 1
        self._clock += 1
        self._rows[me] = Row(me, message.number, tuple(counts))
        effects: list[Effect] = []
        for dest in message.to:
            packet = Packet(me, dest, self._stamp(dest), message)
            if dest == me:
                effects += self._receive(packet)
            else:
                effects.append(packet)
        return effects

    def _stamp(self, dest: int) -> MatrixStamp:
        told = self._told[dest]
        self._told[dest] = self._clock
        rows = self._rows
        changed = [rows[k] for k, change in enumerate(self._changes) if change > told]
        changed.append(rows[self.me])
        return MatrixStamp(tuple(changed))

    # Rule ii

    def _position(self, packet: Packet[Any]) -> Need:
        return packet.source, packet.stamp.rows[-1].counts[self.me]

    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        me, source, rows = self.me, packet.source, self._rows
        # The channel comes first: until it is this packet's turn, rows that an earlier packet told may be missing.
        needs = [(source, packet.stamp.rows[-1].counts[me] - 1)]
        for row in packet.stamp.rows:
            k = row.process
            # Our own row is never newer, but copies to ourselves may still be undelivered.
            if k != source and (row.version > rows[k].version or k == me):
                needs.append((k, row.counts[me]))
        return needs

    def _learn(self, packet: Packet[Any]) -> None:
        rows, changes, clock = self._rows, self._changes, self._clock + 1
        self._clock = clock
        for row in packet.stamp.rows:
            k = row.process
            if row.version > rows[k].version:
                rows[k] = row
                changes[k] = clock

    def _check(self, packet: Packet[Any]) -> None:
        rows, message = packet.stamp.rows, packet.message
        assert message is not None
        if not rows or rows[-1].process != packet.source:
            raise self._bad_stamp(packet, "without the sender's row", "the sender's row last")
        for row in rows:
            if not 0 <= row.process < self.n or len(row.counts) != self.n:
                raise self._bad_stamp(
                    packet,
                    f"row {row.process} of {len(row.counts)} counts",
                    f"rows 0..{self.n - 1} of {self.n}",
                )
            if row.version < 0 or row.counts[self.me] < 0:
                raise self._bad_stamp(
                    packet, f"row {row.process} with a count below 0", "counts of 0 or more"
                )
            if row.process == self.me and row.version > self.sent:
                raise self._unsent(packet, row.version, self.sent)
        if rows[-1].counts[self.me] < 1 or rows[-1].version != message.number:
            raise self._bad_stamp(packet, "that does not count its own message", "a count of 1 or more")
