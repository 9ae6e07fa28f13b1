"""optimal: Kshemkalyani & Singhal 1998, the yardstick that Sánchez & Álvarez, section 5, ask to be compared with.

A log entry (sender, clock, Dests) says: that message must be delivered at Dests before what follows it. Two
propagation constraints say when a destination may be dropped: it is known to have delivered the message, or a later
message to it will wait for it anyway.

Rules
  send to D   to each d in D goes the log with D dropped from every entry's Dests, but d kept where it stood;
              afterwards the own log drops D from every entry and adds (me, clock, D)
  wait        for every entry of the stamp that lists me
  deliver     add (source, clock, D) to the stamp, drop me from all its Dests, and merge it with the log:
              an entry absent on one side that has a newer entry of the same sender there was forgotten for a reason,
              so it goes; entries on both sides intersect their Dests
  always      an entry with no Dests stays only if it is its sender's newest: it stands for all that was forgotten

A log is a set of rows, one for each sender. A row that log and stamp share merges to itself, and most are shared: so a
delivery looks at no more than the difference of two sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from itertools import groupby
from operator import itemgetter, or_
from typing import Any, TypeAlias

from antecede.model import Effect, Id, Message, Packet, Stamp, View, set_of
from antecede.protocols.receiver import Need, Receiver

__all__ = ["LogRow", "LogStamp", "Optimal", "make_rows"]

LogRow: TypeAlias = tuple[int, int, tuple[tuple[int, int], ...]]
"""(sender, all Dests of its entries, entries): an entry is (clock, Dests), in increasing order. Dests are bits."""


NOT_COMPARED: tuple[frozenset[LogRow] | None, frozenset[LogRow]] = (None, frozenset())


class LogStamp(Stamp, frozen=True, gc=False):
    log: frozenset[LogRow]

    def entries(self, n: int) -> int:
        return sum([len(row[2]) for row in self.log])


class Optimal(Receiver):
    name = "optimal"
    stamps = (LogStamp,)
    state = {**Receiver.state, "_log": dict[Id, int]}
    counted = "sender"
    sparse = True
    stamps_grow = True

    def __init__(self, view: View, me: str | int) -> None:
        super().__init__(view, me)
        self._rows: set[LogRow] = set()
        """The log."""
        self._row_of: dict[int, LogRow] = {}
        """The same: sender -> its row."""
        self._compared = NOT_COMPARED
        """A stamp, and the rows that it has and the log has not."""

    @property
    def _log(self) -> dict[Id, int]:
        """(sender, clock) -> Dests"""
        return {(row[0], clock): dests for row in self._rows for clock, dests in row[2]}

    @_log.setter
    def _log(self, log: Mapping[Id, int]) -> None:
        self._rows = set(make_rows((*key, dests) for key, dests in sorted(log.items())))
        self._row_of = {row[0]: row for row in self._rows}
        self._compared = NOT_COMPARED

    def stamp_entries(self, label: str = "") -> int:
        return sum([len(row[2]) for row in self._rows]) + 2

    def _send(self, message: Message) -> list[Effect]:
        to, me = set_of(message.to), self.me
        listing = [(row, self._drop(row, to)) for row in self._rows if row[1] & to]
        rest = frozenset(self._rows.difference([row for row, _ in listing]))
        effects = self._copies(message, lambda dest: LogStamp(self._stamp(rest, listing, to, 1 << dest)))
        for _, row in listing:
            self._put(row)
        self._put(_add(self._row_of.get(me), me, message.number, to))
        return effects

    def _stamp(
        self, rest: frozenset[LogRow], listing: list[tuple[LogRow, LogRow]], to: int, dest: int
    ) -> frozenset[LogRow]:
        """The log with all of D but one dropped: `listing` are rows that list some of D, before and after."""
        return rest.union([_keep(row, ~to | dest) if row[1] & dest else less for row, less in listing])

    def _drop(self, row: LogRow, to: int) -> LogRow:
        return _keep(row, ~to)

    def _put(self, row: LogRow) -> None:
        self._rows.discard(self._row_of.get(row[0]))
        self._row_of[row[0]] = row
        self._rows.add(row)
        self._compared = NOT_COMPARED

    def _find_new(self, log: frozenset[LogRow]) -> frozenset[LogRow]:
        """The rows that a stamp has and the log has not: asked for at each step of a packet, worked out once."""
        if self._compared[0] is not log:
            self._compared = (log, log - self._rows)
        return self._compared[1]

    def _position(self, packet: Packet[Any]) -> Need:
        return packet.source, packet.message.number  # type: ignore[union-attr]

    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        bit, log, own = 1 << self.me, packet.stamp.log, self._row_of.get(self.me)
        # Of our rows only our own lists us, while a message to ourselves is not delivered.
        rows = log if own and own[1] & bit else self._find_new(log)
        return [(row[0], clock) for row in rows if row[1] & bit for clock, dests in row[2] if dests & bit]

    def _learn(self, packet: Packet[Any]) -> None:
        message, log, mine = packet.message, packet.stamp.log, self._row_of
        assert message is not None
        source, bit = message.sender, 1 << self.me
        if source == self.me:
            if source in mine:
                taken, entries = message.number, mine[source][2]
                left = tuple([(c, d & ~bit if c == taken else d) for c, d in entries])
                self._put(_keep((source, 0, left), ALL))
            return
        theirs = {row[0]: row for row in self._find_new(log)}
        own = theirs.get(source) or (mine[source] if mine.get(source) in log else None)
        theirs[source] = _add(own, source, message.number, set_of(message.to))
        for sender, row in theirs.items():
            if row[1] & bit:
                row = _keep(row, ~bit)
            known = mine.get(sender)
            if known is not None:
                row = self._merge(known, row)
            if row is not known:
                self._put(row)

    def _merge(self, mine: LogRow, theirs: LogRow) -> LogRow:
        ours, others = mine[2], theirs[2]
        if others[0][0] > ours[-1][0]:
            return theirs
        if others[-1][0] < ours[0][0]:
            return mine
        told, newest, entries = dict(others), others[-1][0], []
        for clock, dests in ours:
            if clock in told:
                entries.append((clock, dests & told[clock]))
            elif clock > newest:
                entries.append((clock, dests))
        if newest > ours[-1][0]:
            entries += [entry for entry in others if entry[0] > ours[-1][0]]
        return _keep((mine[0], 0, tuple(entries)), ALL)

    def _load(self, state: Mapping[str, Any]) -> None:
        super()._load({**state, "pending": [_group_rows(packet) for packet in state["pending"]]})

    def _check(self, packet: Packet[Any]) -> None:
        message, source, log = packet.message, packet.source, packet.stamp.log
        assert message is not None
        me, number, beyond = self.me, message.number, 1 << self.n
        rows, known = self._find_new(log), self._row_of.get(source)
        if known and known[2][-1][0] >= number and known in log:
            rows |= {known}
        # Other rows of ours were checked when we learned them.
        for sender, listed, entries in rows:
            if sender == me and entries[-1][0] > self.sent:
                raise self._unsent(packet, entries[-1][0], self.sent)
            if sender == source and entries[-1][0] >= number:
                raise self._bad_stamp(
                    packet, f"its log has ({sender}, {entries[-1][0]}), which was sent later"
                )
            if not 0 <= sender < self.n or not 0 <= listed < beyond or entries[0][0] < 1:
                raise self._bad_stamp(packet, self._bad_entry(sender, entries[0][0]))


ALL = -1
"""Every destination, as bits."""


def make_rows(entries: Iterable[tuple[int, int, int]]) -> Iterator[LogRow]:
    """Rows of entries (sender, clock, Dests) that are in increasing order."""
    for sender, row in groupby(entries, itemgetter(0)):
        pairs = tuple([entry[1:] for entry in row])
        yield sender, reduce(or_, [dests for _, dests in pairs]), pairs


def _add(row: LogRow | None, sender: int, clock: int, dests: int) -> LogRow:
    """The row with a newer entry."""
    newest = ((clock, dests),)
    if row is None:
        return sender, dests, newest
    return sender, row[1] | dests, row[2] + newest if row[2][-1][1] else row[2][:-1] + newest


def _keep(row: LogRow, kept: int) -> LogRow:
    """The row with only these Dests, and without the entries that have none left, but for the newest."""
    listed, entries = 0, []
    for clock, dests in row[2]:
        dests &= kept
        if dests:
            listed |= dests
            entries.append((clock, dests))
    if not dests:
        entries.append((clock, dests))
    return row[0], listed, tuple(entries)


def _group_rows(packet: Mapping[str, Any]) -> dict[str, Any]:
    """A packet of a snapshot with rows, where 0.1 wrote entries (sender, clock, Dests)."""
    log = packet["stamp"]["log"]
    if any(isinstance(row[2], list | tuple) for row in log):
        return dict(packet)
    entries = sorted((int(sender), int(clock), int(dests)) for sender, clock, dests in log)
    return {**packet, "stamp": {**packet["stamp"], "log": [*make_rows(entries)]}}
