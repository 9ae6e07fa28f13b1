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
  R6.4  (ours) the last part of R6.3 holds for every n in H, not only for those in H_m
  R7    leave out of H_m what has been reported to all of A_m
  R8    remove from H (and C) what has been reported to all of its destinations
Further compression (section 4.5), both off unless asked for
  R10   remove from H what is known to be *delivered* to all of its destinations. That n stands in a stamp of q, in A_n,
        shows that q has delivered n (R3). R7 and R8 take identifiers out of stamps, so such evidence is rare.
  delta remove from H what has been in it for so long, in the units of `pass_time`. It trusts that every message is
        delivered at all of its destinations, by applications too, within delta of its send: a wrong delta loses order.

R5, R6.1, R6.4, R7 and R8 can be switched off, and R6 with all that builds on it. Without R6.4 nothing in the report
removes a message to strangers once a newer one of the same sender to the same strangers is known: H grows for ever.

Where delivery is apart from arrival (selective receive), one premise of the report does not hold: that a message is
delivered to its sender at once (footnote 2). So D takes a process's own copy when the application takes it, and
"the sender" in R6.2 and R6.3 does not count for messages of that sender to itself: `_knows`.

Incomplete orders (chapter 6): each label has its own H and C, so that messages with different labels do not delay
each other. `merge` lets the application join what it wants joined: messages of one label that are sent afterwards
follow everything in the other label's history. An inference from "later message of the same sender" (R6.3) is drawn
within a label only, because only there did the later one carry the earlier one. What is kept for a label: H and C until
they are empty; of D one number for each sender, for ever, so one sender has at most `LABELS`.

How the rules are kept fast, without changing what is decided: a send would add the same set to C(i) for all i in H.
Instead each process remembers which of its sends last went to whom (`last`), and each record since which send it is
in H (`since`): q is in C(i) if it was added to `copies`, or if last[q] > since. Within A_i, `copies` is kept exact, so
that R8 is one comparison. H is in order of `since`, so that a send looks only at what is newer than the last send
there: R7 and R6.2 have nothing to say of the rest. With R6.4, C(n) has A_i of every later i of its sender in H as soon
as both are there; so only an entry that is new to H is compared with the others of its sender.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from antecede.errors import BadParameter, Unsupported
from antecede.model import Effect, Id, Message, Packet, Stamp, View, bits, mask, members, set_of
from antecede.protocols.machine import plain, typed
from antecede.protocols.receiver import BEYOND, Need, Receiver

__all__ = ["Entry", "Histories", "History", "HistoryStamp", "Record", "Rules"]


UNBOUNDED = (
    "`delta` trusts that every message is delivered within that time, and nothing bounds how long a node, its network "
    "or its application may take: leave `delta` out"
)

LABELS = 1 << 16
"""Labels of one sender, at most: what was delivered of each must be remembered, since anyone may still name it."""


class Entry(Struct, frozen=True, gc=False, array_like=True, order=True):
    """A message identifier as it travels: uid = (sender, number, destinations), and its label."""

    sender: int
    number: int
    to: int
    """A_n as a set of bits."""
    copies: int = 0
    """C_m(n) as a set of bits, where R6.1 is used."""
    label: str = ""

    @property
    def id(self) -> Id:
        return (self.sender, self.number)


class HistoryStamp(Stamp, frozen=True, gc=False):
    history: tuple[Entry, ...]

    def entries(self, n: int) -> int:
        return len(self.history)


class Record(Struct, gc=False, array_like=True):
    """An element of H with its carbon copies."""

    entry: Entry
    copies: int
    """C(n) as a set of bits: exact within A_n, elsewhere without what the sends after `since` added."""
    since: int
    """How many messages this process had sent when the record entered H."""
    taken: int = 0
    """Who is known to have delivered it, as bits, where R10 is used."""
    at: int = 0
    """When it entered H, where there is a delta."""


class Rules(Struct, frozen=True):
    """Which of the rules that may be left out are used."""

    r5: bool = True
    r6: bool = True
    r6_1: bool = False
    r6_4: bool = True
    r7: bool = True
    r8: bool = True
    r10: bool = False
    delta: int = 0
    """0: no message is forgotten because of its age."""

    def __post_init__(self) -> None:
        if not self.r6 and (self.r6_1 or self.r7 or self.r8):
            raise BadParameter(
                "history", "R6.1, R7 and R8 read the carbon copies of R6: set r6=True, or these to False"
            )
        if type(self.delta) is not int or self.delta < 0:
            raise BadParameter(
                "history", f"delta must be a number of `pass_time`'s units, or 0, not {self.delta!r}"
            )


class Histories:
    """H and C of one process for one label, and the rules that maintain them."""

    def __init__(self, me: int, rules: Rules) -> None:
        self.me = me
        self.rules = rules
        self._r8, self._r10, self._delta = rules.r8, rules.r10, rules.delta
        self.sends = 0
        self.now = 0
        self.last: dict[int, int] = {}
        """process -> which of our sends last went to it"""
        self.H: dict[Id, Record] = {}
        self._lanes: dict[tuple[int, str], dict[int, Record]] = {}
        """(sender, label) -> number -> record"""
        self.gone = 0
        """Who need not be told: the failed, in `separator`. As bits."""

    def copies(self, record: Record) -> int:
        """C(n), all of it."""
        result = record.copies
        if self.rules.r6 and self.sends > record.since:
            result |= self._knows(self.me, record.entry)
            result |= mask(process for process, send in self.last.items() if send > record.since)
        return result

    def _knows(self, process: int, entry: Entry) -> int:
        """`process` as a set, if having sent or stamped something it surely has what it must of this message."""
        bit = 1 << process
        return 0 if entry.sender == process and entry.to & bit else bit

    # R2, R7

    def stamp(self, to: int) -> tuple[Entry, ...]:
        records = self._filtered(self._unreported(to) if self.rules.r7 else self.H.values(), to)
        if self.rules.r6_1:
            return tuple(sorted(replace(record.entry, copies=self.copies(record)) for record in records))
        return tuple(sorted([record.entry for record in records]))

    def _unreported(self, to: int) -> list[Record]:
        last, mine = self.last, 1 << self.me
        # From the newest record on: the older it is, the fewer were last sent to before it entered H.
        told = sorted([(last.get(process, 0), 1 << process) for process in members(to)])
        latest = told[-1][0]
        result: list[Record] = []
        for record in reversed(self.H.values()):
            while record.since < latest:
                to ^= told.pop()[1]
                if not told:
                    # This and all older ones were in H when we last sent to each of these destinations.
                    return result
                latest = told[-1][0]
            missing = to & ~record.copies
            if missing and (missing != mine or not self._knows(self.me, record.entry)):
                result.append(record)
        return result

    def _filtered(self, records: Iterable[Record], to: int) -> Iterable[Record]:
        """What else need not travel to these destinations (R9, in `separator`)."""
        return records

    # R4, R6.2

    def sent(self, sender: int, number: int, to: int, label: str) -> None:
        self.sends += 1
        if self.rules.r6:
            told, last = self._told(to), self.last
            processes = members(told)
            earliest = min([last.get(process, 0) for process in processes])
            touched = []
            for record in reversed(self.H.values()):
                if record.since < earliest:
                    # Our sends since then have told all of these destinations of this and all older ones.
                    break
                if record.entry.to & told:
                    touched.append(record)
            for record in touched:
                self._grow(record, told)
            for process in processes:
                last[process] = self.sends
        self._add(Record(Entry(sender, number, to, 0, label), 0, self.sends))

    def _told(self, to: int) -> int:
        """To whom a send reports everything in H."""
        return to

    # R4, R6.3

    def delivered(self, sender: int, number: int, to: int, label: str, history: tuple[Entry, ...]) -> None:
        entry = Entry(sender, number, to, 0, label)
        if not self.rules.r6:
            for known in (*history, entry):
                if (known.sender, known.number) not in self.H:
                    self._add(Record(known, 0, self.sends))
            return
        if self.rules.r10:
            self._prove_delivered(entry, history)
        self._report_earlier(entry)
        if self.rules.r6_4:
            self._report(history, entry)
        else:
            listed = {(known.sender, known.number) for known in history}
            for known in history:
                self._report_listed(known, entry, listed)
        taken = self._proof(entry, entry) if self.rules.r10 else 0
        self._add(Record(entry, self._known_to(entry), self.sends, taken))

    # R10

    def _proof(self, known: Entry, m: Entry) -> int:
        """Who of A_n has delivered n for certain, once we have delivered m, in whose stamp n stands, or which is n."""
        return known.to & (1 << self.me | (0 if known is m else self._knows(m.sender, known)))

    def _prove_delivered(self, m: Entry, history: tuple[Entry, ...]) -> None:
        for known in history:
            self.took(known.sender, known.number, self._proof(known, m))

    def took(self, sender: int, number: int, processes: int) -> None:
        """These processes have delivered this message."""
        record = self.H.get((sender, number))
        if record is not None:
            record.taken |= processes
            if not record.entry.to & ~record.taken:
                self._remove(record.entry)

    # Delta

    def pass_time(self, now: int) -> None:
        self.now = now
        oldest = now - self.rules.delta
        for record in [record for record in self.H.values() if record.at <= oldest]:
            self._remove(record.entry)

    def _known_to(self, entry: Entry) -> int:
        """C(m) of a message that was just delivered."""
        copies = 1 << self.me | self._knows(entry.sender, entry)
        lane = self._lanes.get((entry.sender, entry.label))
        if lane and self.rules.r6_4:
            for other in lane.values():
                if other.entry.number > entry.number:
                    copies |= other.entry.to
        return copies

    def _report_earlier(self, m: Entry) -> None:
        """First part of R6.3: the sender had told the destinations of m of everything that it sent before."""
        lane = self._lanes.get((m.sender, m.label))
        if lane:
            number, to = m.number, m.to
            for record in list(lane.values()):
                if to & ~record.copies and record.entry.number < number:
                    self._grow(record, to)

    def _report(self, history: tuple[Entry, ...], m: Entry) -> None:
        """Second part of R6.3, and R6.4."""
        lanes, source = self._lanes, m.sender
        told, own = self._told_with(m, False), self._told_with(m, True)
        sender, label, lane, fresh, later = -1, "", None, list[Record](), 0
        for known in reversed(history):
            if known.sender != sender or known.label != label:
                if fresh:
                    self._enter(lane, fresh)
                    fresh = []
                sender, label, later = known.sender, known.label, 0
                lane = lanes.get((sender, label))
            copies = known.copies | (told if sender != source or not known.to >> source & 1 else own)
            record = lane.get(known.number) if lane else None
            if record is None:
                fresh.append(self._record(known, copies | later, m))
            elif copies & known.to:
                self._grow(record, copies)
            else:
                # As `_grow` does it, where R8 cannot remove n.
                record.copies |= copies
            later |= known.to
        if fresh:
            self._enter(lane, fresh)

    def _enter(self, lane: dict[int, Record] | None, fresh: list[Record]) -> None:
        """Add new messages of one sender. R6.4: C(n) grows by A_i of every later i, where one of the two is new."""
        if lane:
            new = {record.entry.number: record for record in fresh}
            later = later_new = 0
            for number in sorted((*lane, *new), reverse=True):
                record = new.get(number)
                if record is not None:
                    record.copies |= later
                    later_new |= record.entry.to
                else:
                    record = lane[number]
                    if later_new & ~record.copies:
                        self._grow(record, later_new)
                later |= record.entry.to
        for record in fresh:
            self._add(record)

    def _report_listed(self, known: Entry, m: Entry, listed: set[Id]) -> None:
        """Second part of R6.3 without R6.4, for one n in H_m: only what is `listed` in H_m gains by later ones."""
        copies = known.copies | self._told_with(
            m, known.sender == m.sender and bool(known.to >> m.sender & 1)
        )
        lane = self._lanes.get((known.sender, known.label), {})
        for other in list(lane.values()):
            if other.entry.number > known.number:
                copies |= other.entry.to
            elif other.entry.number < known.number and other.entry.id in listed:
                self._grow(other, known.to)
        record = lane.get(known.number)
        if record is None:
            self._add(self._record(known, copies, m))
        else:
            self._grow(record, copies)

    def _record(self, known: Entry, copies: int, m: Entry) -> Record:
        """n, which stands in the stamp of m, as a new element of H."""
        taken = self._proof(known, m) if self._r10 else 0
        return Record(replace(known, copies=0) if known.copies else known, copies, self.sends, taken)

    def _told_with(self, m: Entry, own: bool) -> int:
        """Who was told of n in H_m by m; `own`: n is a message of m's sender to itself too (`_knows`)."""
        return m.to if own else m.to | 1 << m.sender

    # R8

    def _grow(self, record: Record, copies: int) -> None:
        """Add to C(n), and remove n if it has been reported to all of its destinations."""
        record.copies = copies = record.copies | copies
        if self._r8 and not record.entry.to & ~copies:
            self._remove(record.entry)

    def _remove(self, entry: Entry) -> None:
        # A peer may have lied about its label: then it is in two lanes, and goes from H with the first.
        self.H.pop((entry.sender, entry.number), None)
        key = (entry.sender, entry.label)
        lane = self._lanes.get(key)
        if lane is not None and lane.pop(entry.number, None) is not None and not lane:
            del self._lanes[key]

    # H, and its lanes

    def _add(self, record: Record) -> None:
        entry = record.entry
        record.copies |= self.gone
        if self._r8 and not entry.to & ~record.copies:
            return
        if self._r10 and not entry.to & ~record.taken:
            return
        if self._delta and not record.at:
            record.at = self.now
        sender, number = entry.sender, entry.number
        self.H[sender, number] = record
        lane = self._lanes.get((sender, entry.label))
        if lane is None:
            self._lanes[sender, entry.label] = {number: record}
        else:
            lane[number] = record

    def _insert(self, record: Record) -> None:
        """Add what came by no stamp."""
        if self.rules.r6_4:
            self._enter(self._lanes.get((record.entry.sender, record.entry.label)), [record])
        else:
            self._add(record)

    def merge(self, other: Histories) -> None:
        """Chapter 6: what precedes the next message here grows by what precedes the other's."""
        for key, record in other.H.items():
            mine = self.H.get(key)
            if mine is None:
                self._insert(Record(record.entry, other.copies(record), self.sends))
            else:
                self._grow(mine, other.copies(record))

    def dump(self) -> dict[str, Any]:
        records = sorted(self.H.values(), key=_by_age)
        state = {"sends": self.sends, "last": plain(self.last), "records": plain(records)}
        return {**state, "now": self.now} if self.rules.delta else state

    def load(self, state: Mapping[str, Any]) -> None:
        self.sends = typed(state["sends"], int)
        self.last = typed(state["last"], dict[int, int])
        self.now = typed(state.get("now", 0), int)
        for record in typed(state["records"], list[Record]):
            self._add(record)


def _by_age(record: Record) -> tuple[int, Id]:
    return record.since, (record.entry.sender, record.entry.number)


class Delivered(dict[tuple[int, str | int], int]):
    """D: (sender, label) -> the last number delivered, under R5; (sender, number) -> number without it."""

    own = -1
    """The process whose messages all count as delivered, at a listener for it."""

    def __init__(self, entries: Mapping[tuple[int, str | int], int] | None = None) -> None:
        super().__init__(entries or {})
        self.labels = Counter(sender for sender, _ in self)
        """How many keys each sender has."""

    def __setitem__(self, key: tuple[int, str | int], number: int) -> None:
        if key not in self:
            self.labels[key[0]] += 1
        super().__setitem__(key, number)

    def __missing__(self, key: tuple[int, str | int]) -> int:
        return BEYOND if key[0] == self.own else 0


class History(Receiver):
    name = "history"
    stamps = (HistoryStamp,)
    state = {**Receiver.state, "_delivered": dict[tuple[int, str | int], int]}
    labels = True
    counted = "sender"
    sparse = True
    stamps_grow = True

    def __init__(self, view: View, me: str | int, **rules: Any) -> None:
        super().__init__(view, me)
        self.rules = Rules(**rules)
        self._delivered = Delivered()
        self._contexts: dict[str, Histories] = {}
        self._now = 0

    @property
    def parameters(self) -> dict[str, Any]:
        return asdict(self.rules)

    def stamp_entries(self, label: str = "") -> int:
        context = self._contexts.get(label)
        return 2 if context is None else len(context.H) + 2

    def _context(self, label: str) -> Histories:
        context = self._contexts.get(label)
        if context is None:
            context = self._contexts[label] = self._histories()
            context.now = self._now
        return context

    def _histories(self) -> Histories:
        return Histories(self.me, self.rules)

    def _forget_empty(self, label: str) -> None:
        """Without H, a context says what a new one says: there is nothing that `last` and `since` could be about."""
        if label and not self._contexts[label].H:
            del self._contexts[label]

    def merge(self, source: str, into: str) -> None:
        """Messages labelled `into` that are sent from now on follow all that is in the history of `source`."""
        self._context(into).merge(self._context(source))

    @classmethod
    def name_members(cls, parameters: Mapping[str, Any], founders: Sequence[str]) -> dict[str, Any]:
        if parameters.get("delta"):
            raise Unsupported(cls.name, UNBOUNDED)
        return super().name_members(parameters, founders)

    @property
    def timed(self) -> bool:
        return self.rules.delta > 0

    def pass_time(self, now: int) -> None:
        """It is so late, in any unit: with a `delta`, forget what is older."""
        self._now = now
        if self.rules.delta:
            for label in list(self._contexts):
                self._contexts[label].pass_time(now)
                self._forget_empty(label)

    def _send(self, message: Message) -> list[Effect]:
        context, to = self._context(message.label), set_of(message.to)
        stamp = HistoryStamp(context.stamp(to))
        context.sent(message.sender, message.number, to, message.label)
        self._forget_empty(message.label)
        return self._copies(message, lambda dest: stamp)

    # R3, R5

    def _lane(self, sender: int, number: int, label: str) -> Need:
        return ((sender, label) if self.rules.r5 else (sender, number)), number

    def _position(self, packet: Packet[Any]) -> Need:
        message = packet.message
        return self._lane(message.sender, message.number, message.label)  # type: ignore[union-attr]

    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        mine = 1 << self.me
        return [self._lane(e.sender, e.number, e.label) for e in packet.stamp.history if e.to & mine]

    def _learn(self, packet: Packet[Any]) -> None:
        message = packet.message
        assert message is not None
        if message.sender == self.me:
            if self.rules.r10 and message.label in self._contexts:
                self._contexts[message.label].took(message.sender, message.number, 1 << self.me)
                self._forget_empty(message.label)
        else:
            self._context(message.label).delivered(
                message.sender, message.number, set_of(message.to), message.label, packet.stamp.history
            )
            self._forget_empty(message.label)

    def _sender(self, key: Any) -> int:
        return int(key[0])

    def _lane_of(self, sender: int, count: int, label: str) -> Any:
        return self._lane(sender, count, label)[0]

    def _label(self, key: Any) -> str:
        return key[1] if isinstance(key[1], str) else ""

    def _gap(self, done: int, count: int) -> int:
        return done + 1 if self.rules.r5 else count

    def _listen(self, delivered: Sequence[int] | None) -> None:
        assert delivered is None, "numbers of labels, not counts of senders"
        self._delivered.own = self.me

    def histories(self, label: str = "") -> dict[Id, tuple[tuple[int, ...], tuple[int, ...]]]:
        """H and C for people: message -> (A_m, C(m))."""
        context = self._context(label)
        records = sorted(context.H.items())
        return {key: (tuple(bits(r.entry.to)), tuple(bits(context.copies(r)))) for key, r in records}

    def dump(self) -> dict[str, Any]:
        contexts = {label: self._contexts[label].dump() for label in sorted(self._contexts)}
        return {**super().dump(), "contexts": contexts}

    def _load(self, state: Mapping[str, Any]) -> None:
        self._delivered = Delivered(self._delivered)
        if self.listens:
            self._delivered.own = self.me
        self._contexts = {}
        for label, context in state["contexts"].items():
            self._context(label).load(context)
        super()._load(state)

    def _check(self, packet: Packet[Any]) -> None:
        message = packet.message
        assert message is not None
        me, n, source, sent = self.me, self.n, message.sender, self.sent
        beyond = 1 << n
        for entry in packet.stamp.history:
            sender, number = entry.sender, entry.number
            if not (0 <= sender < n and number >= 1 and 0 < entry.to < beyond and 0 <= entry.copies < beyond):
                raise self._bad_stamp(packet, self._bad_entry(sender, number))
            if sender == me and number > sent:
                raise self._unsent(packet, number, sent)
            if sender == source and number >= message.number:
                raise self._bad_stamp(packet, f"its history has ({sender}, {number}), which was sent later")
        if self.rules.r5 and self._delivered.labels[message.sender] >= LABELS:
            self._check_label(packet, message)

    def _check_label(self, packet: Packet[Any], message: Message) -> None:
        if (message.sender, message.label) not in self._delivered:
            raise self._bad_stamp(
                packet, f"its label {message.label!r} is one more than the {LABELS} that a sender may use"
            )
