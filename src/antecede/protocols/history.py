"""history: Rodrigues & Veríssimo 1995, chapter 4: extended causal histories, rules R1 to R8.

H  the messages that precede the next message to be sent       C(m)  to whom m has been "reported"
D  the messages delivered here                                 A_m   the destinations of m

Rules (section 4.2)
  R1    H, C and D start empty
  R2    stamp a message with H
  R3    deliver m when every i in H_m that is addressed to us is in D
  R4    sent: add m to H.  delivered: add H_m and m to H, m to D
  R5    D keeps the last message of each sender; a message is in D if that one is no older
  R6.1  (optional) stamp with C too
  R6.2  sent m: C(i) grows by A_m and the sender, for all i in H; C(m) is empty
  R6.3  delivered m: C(n) grows by A_m, for earlier messages n of m's sender in H; for n in H_m, C(n) grows by
        C_m(n), A_m, the sender, and A_i of every later message i of n's sender in H; C(m) = {sender, me}
  R7    leave out of H_m what has been reported to all of A_m
  R8    remove from H (and C) what has been reported to all of its destinations

R5, R6.1, R7 and R8 can be switched off, and R6 with R7 and R8.

Where delivery is apart from arrival (selective receive), one premise of the report does not hold: that a message is
delivered to its sender at once (footnote 2). So D takes a process's own copy when the application takes it, and
"the sender" in R6.2 and R6.3 does not count for messages of that sender to itself: `_knows`.

Incomplete orders (chapter 6): each label has its own H and C, so that messages with different labels do not delay
each other. `merge` lets the application join what it wants joined: messages of one label that are sent afterwards
follow everything in the other label's history. An inference from "later message of the same sender" (R6.3) is drawn
within a label only, because only there did the later one carry the earlier one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from antecede.errors import BadParameter
from antecede.model import Effect, Id, Message, Packet, Stamp, View, bits, mask
from antecede.protocols.machine import plain, typed
from antecede.protocols.receiver import Need, Receiver

__all__ = ["Entry", "Histories", "History", "HistoryStamp", "Record"]


class Entry(Struct, frozen=True, gc=False, array_like=True):
    """A message identifier as it travels: uid = (sender, number, destinations), and its label."""

    sender: int
    number: int
    to: int
    """A_n as a set of bits."""
    copies: int = 0
    """C_m(n) as a set of bits, where R6.1 is used."""
    label: str = ""


class HistoryStamp(Stamp, frozen=True, gc=False):
    history: tuple[Entry, ...]

    def entries(self, n: int) -> int:
        return len(self.history)


class Record(Struct, gc=False, array_like=True):
    """An element of H with its carbon copies."""

    sender: int
    number: int
    to: int
    copies: int
    label: str = ""


class Histories:
    """H and C of one process for one label, and the rules that maintain them."""

    def __init__(self, me: int, r6_1: bool, r7: bool, r8: bool, r6: bool) -> None:
        self.me = me
        self.r6, self.r6_1, self.r7, self.r8 = r6, r6_1, r7, r8
        self.H: dict[Id, Record] = {}

    def _knows(self, process: int, record: Record) -> int:
        """`process` as a set, if having sent or stamped something it surely has what it must of this message."""
        bit = 1 << process
        return 0 if record.sender == process and record.to & bit else bit

    # R2, R7

    def stamp(self, to: int) -> tuple[Entry, ...]:
        records: Iterable[Record] = self.H.values()
        if self.r7:
            records = [r for r in records if to & ~(r.copies | self._knows(self.me, r))]
        # Not in the order of H: a machine restored from a snapshot must give the same stamps.
        return tuple(
            Entry(r.sender, r.number, r.to, r.copies if self.r6_1 else 0, r.label)
            for r in sorted(self._filtered(records, to), key=_identity)
        )

    def _filtered(self, records: Iterable[Record], to: int) -> Iterable[Record]:
        """What else need not travel to these destinations (R9, in `separator`)."""
        return records

    # R4, R6.2

    def sent(self, sender: int, number: int, to: int, label: str) -> None:
        if self.r6:
            for record in self.H.values():
                self._report_sent(record, to)
            self._prune()
        self.H[sender, number] = Record(sender, number, to, 0, label)

    def _report_sent(self, record: Record, to: int) -> None:
        record.copies |= to | self._knows(self.me, record)

    # R4, R6.3

    def delivered(self, sender: int, number: int, to: int, label: str, history: tuple[Entry, ...]) -> None:
        H = self.H
        if self.r6:
            self._report_earlier(sender, number, to, label)
        for entry in history:
            if (entry.sender, entry.number) not in H:
                H[entry.sender, entry.number] = Record(entry.sender, entry.number, entry.to, 0, entry.label)
        if self.r6:
            self._report_history(sender, to, history)
        record = Record(sender, number, to, 0, label)
        if self.r6:
            record.copies = 1 << self.me | self._knows(sender, record)
        H[sender, number] = record
        self._prune()

    def _report_earlier(self, sender: int, number: int, to: int, label: str) -> None:
        """The first part of R6.3: the sender had told the destinations of m of everything that it sent before."""
        for record in self.H.values():
            if record.sender == sender and record.number < number and record.label == label:
                record.copies |= to

    def _report_history(self, sender: int, to: int, history: tuple[Entry, ...]) -> None:
        later = self._later({(entry.sender, entry.label) for entry in history})
        for entry in history:
            record = self.H[entry.sender, entry.number]
            record.copies |= entry.copies | to | self._knows(sender, record)
            record.copies |= self._told_by_later(later, record)

    def _told_by_later(self, later: dict[Id, int], record: Record) -> int:
        return later.get((record.sender, record.number), 0)

    def _later(self, lanes: set[tuple[int, str]]) -> dict[Id, int]:
        """For each message in H of these senders: the destinations of the sender's later messages in H."""
        mine = sorted((r for r in self.H.values() if (r.sender, r.label) in lanes), key=_newest_first)
        result: dict[Id, int] = {}
        lane, union = None, 0
        for record in mine:
            if lane != (record.sender, record.label):
                lane, union = (record.sender, record.label), 0
            result[record.sender, record.number] = union
            union |= record.to
        return result

    # R8

    def _prune(self) -> None:
        if self.r8:
            told = [key for key, record in self.H.items() if not record.to & ~record.copies]
            for key in told:
                del self.H[key]

    def merge(self, other: Histories) -> None:
        """Chapter 6: what precedes the next message here grows by what precedes the other's."""
        for key, record in other.H.items():
            mine = self.H.get(key)
            if mine is None:
                self.H[key] = Record(record.sender, record.number, record.to, record.copies, record.label)
            else:
                mine.copies |= record.copies


def _identity(record: Record) -> Id:
    return record.sender, record.number


def _newest_first(record: Record) -> tuple[int, str, int]:
    return record.sender, record.label, -record.number


class Delivered(dict[tuple[int, str | int], int]):
    """D: (sender, label) -> the last number delivered, under R5; (sender, number) -> number without it."""

    def __missing__(self, key: tuple[int, str | int]) -> int:
        return 0


class History(Receiver):
    name = "history"
    stamps = (HistoryStamp,)
    state = {**Receiver.state, "_delivered": dict[tuple[int, str | int], int]}
    labels = True
    counted = "sender"

    def __init__(
        self,
        view: View,
        me: str | int,
        r5: bool = True,
        r6: bool = True,
        r6_1: bool = False,
        r7: bool = True,
        r8: bool = True,
    ) -> None:
        super().__init__(view, me)
        if not r6 and (r6_1 or r7 or r8):
            raise BadParameter(self.name, "r6", "off", "on, since R6.1, R7 and R8 read the carbon copies")
        self.r5, self.r6, self.r6_1, self.r7, self.r8 = r5, r6, r6_1, r7, r8
        self._delivered = Delivered()
        self._contexts: dict[str, Histories] = {}

    @property
    def parameters(self) -> dict[str, Any]:
        return {"r5": self.r5, "r6": self.r6, "r6_1": self.r6_1, "r7": self.r7, "r8": self.r8}

    def _context(self, label: str) -> Histories:
        context = self._contexts.get(label)
        if context is None:
            context = self._contexts[label] = self._histories()
        return context

    def _histories(self) -> Histories:
        return Histories(self.me, self.r6_1, self.r7, self.r8, self.r6)

    def merge(self, source: str, into: str) -> None:
        """Messages labelled `into` that are sent from now on follow all that is in the history of `source`."""
        self._context(into).merge(self._context(source))

    def _send(self, message: Message) -> list[Effect]:
        context, to = self._context(message.label), mask(message.to)
        stamp = HistoryStamp(context.stamp(to))
        context.sent(message.sender, message.number, to, message.label)
        return self._copies(message, stamp)

    # R3, R5

    def _lane(self, sender: int, number: int, label: str) -> Need:
        return ((sender, label) if self.r5 else (sender, number)), number

    def _position(self, packet: Packet[Any]) -> Need:
        message = packet.message
        return self._lane(message.sender, message.number, message.label)  # type: ignore[union-attr]

    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        mine = 1 << self.me
        return [self._lane(e.sender, e.number, e.label) for e in packet.stamp.history if e.to & mine]

    def _learn(self, packet: Packet[Any]) -> None:
        message = packet.message
        assert message is not None
        if message.sender != self.me:
            self._context(message.label).delivered(
                message.sender, message.number, mask(message.to), message.label, packet.stamp.history
            )

    def _sender(self, key: Any) -> int:
        return int(key[0])

    def histories(self, label: str = "") -> dict[Id, tuple[tuple[int, ...], tuple[int, ...]]]:
        """H and C for people: message -> (A_m, C(m))."""
        records = sorted(self._context(label).H.items())
        return {key: (tuple(bits(r.to)), tuple(bits(r.copies))) for key, r in records}

    def dump(self) -> dict[str, Any]:
        contexts = {label: plain(context.H) for label, context in sorted(self._contexts.items()) if context.H}
        return {**super().dump(), "contexts": contexts}

    def _load(self, state: Mapping[str, Any]) -> None:
        self._delivered = Delivered(self._delivered)
        self._contexts = {}
        for label, records in typed(state["contexts"], dict[str, dict[Id, Record]]).items():
            self._context(label).H = records
        super()._load(state)

    def _check(self, packet: Packet[Any]) -> None:
        for entry in packet.stamp.history:
            if not 0 <= entry.sender < self.n or entry.number < 1 or entry.to >> self.n or entry.to < 1:
                raise self._bad_stamp(
                    packet,
                    f"entry ({entry.sender}, {entry.number})",
                    f"processes 0..{self.n - 1}, numbers from 1",
                )
