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
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from antecede.model import Effect, Id, Message, Packet, Stamp, View, set_of
from antecede.protocols.receiver import Need, Receiver

__all__ = ["LogStamp", "Optimal"]


class LogStamp(Stamp, frozen=True, gc=False):
    log: tuple[tuple[int, int, int], ...]
    """(sender, clock, Dests as a set of bits)"""

    def entries(self, n: int) -> int:
        return len(self.log)


class Optimal(Receiver):
    name = "optimal"
    stamps = (LogStamp,)
    state = {**Receiver.state, "_log": dict[Id, int]}
    counted = "sender"
    sparse = True
    stamps_grow = True

    def __init__(self, view: View, me: str | int) -> None:
        super().__init__(view, me)
        self._log: dict[Id, int] = {}
        """(sender, clock) -> Dests"""
        self._in_order: list[tuple[Id, int]] = []
        self._newest: dict[int, int] = {}
        """The log in increasing order, and the newest clock of each sender in it, while a message is sent."""

    def stamp_entries(self, label: str = "") -> int:
        return len(self._log) + 2

    def _send(self, message: Message) -> list[Effect]:
        to = set_of(message.to)
        self._newest = _find_newest(self._log)
        self._in_order = sorted(self._log.items())
        effects = self._copies(message, lambda dest: LogStamp(self._stamp(to, 1 << dest)))
        self._log = _purge({key: self._drop(dests, to) for key, dests in self._log.items()}, self._newest)
        self._log[self.me, message.number] = to
        return effects

    def _stamp(self, to: int, dest: int) -> tuple[tuple[int, int, int], ...]:
        kept, newest = ~(to & ~dest), self._newest
        return tuple(
            [
                (key[0], key[1], dests & kept)
                for key, dests in self._in_order
                if dests & kept or newest[key[0]] == key[1]
            ]
        )

    def _drop(self, dests: int, to: int) -> int:
        return dests & ~to

    def _position(self, packet: Packet[Any]) -> Need:
        return packet.source, packet.message.number  # type: ignore[union-attr]

    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        me = self.me
        return [(sender, clock) for sender, clock, dests in packet.stamp.log if dests >> me & 1]

    def _learn(self, packet: Packet[Any]) -> None:
        message = packet.message
        assert message is not None
        not_me = ~(1 << self.me)
        if message.sender == self.me:
            if message.id in self._log:
                self._log[message.id] &= not_me
                self._log = _purge(self._log, _find_newest(self._log))
            return
        theirs = {(sender, clock): dests & not_me for sender, clock, dests in packet.stamp.log}
        theirs[message.id] = set_of(message.to) & not_me
        merged = self._merge(self._log, theirs)
        self._log = _purge(merged, _find_newest(merged))

    def _merge(self, mine: dict[Id, int], theirs: dict[Id, int]) -> dict[Id, int]:
        newest_mine, newest_theirs = _find_newest(mine), _find_newest(theirs)
        merged: dict[Id, int] = {}
        for key, dests in mine.items():
            if key in theirs:
                merged[key] = dests & theirs[key]
            elif newest_theirs.get(key[0], 0) < key[1]:
                merged[key] = dests
        for key, dests in theirs.items():
            if newest_mine.get(key[0], 0) < key[1]:
                merged[key] = dests
        return merged

    def _check(self, packet: Packet[Any]) -> None:
        message = packet.message
        assert message is not None
        for sender, clock, dests in packet.stamp.log:
            if sender == self.me and clock > self.sent:
                raise self._unsent(packet, clock, self.sent)
            if sender == packet.source and clock >= message.number:
                raise self._bad_stamp(packet, f"its log has ({sender}, {clock}), which was sent later")
            if not 0 <= sender < self.n or clock < 1 or dests < 0 or dests >> self.n:
                raise self._bad_stamp(packet, self._bad_entry(sender, clock))


def _find_newest(log: Iterable[Id]) -> dict[int, int]:
    newest: dict[int, int] = {}
    for sender, clock in log:
        if clock > newest.get(sender, 0):
            newest[sender] = clock
    return newest


def _purge(log: dict[Id, int], newest: dict[int, int]) -> dict[Id, int]:
    """Without the entries that have no destination left, but for the newest of each sender."""
    return {key: dests for key, dests in log.items() if dests or newest[key[0]] == key[1]}
