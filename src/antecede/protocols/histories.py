"""H and C of one process: the rules R2, R4, R6 to R8, R10 and delta of `protocols.history`, which lists them all.

How the rules are kept fast, without changing what is decided: a send would add the same set to C(i) for all i in H.
Instead each process remembers which of its sends last went to whom (`last`), and each record since which send it is
in H (`since`): q is in C(i) if it was added to `copies`, or if last[q] > since. Within A_i, `copies` is kept exact, so
that R8 is one comparison. H is in order of `since`, so that a send looks only at what is newer than the last send
there: R7 and R6.2 have nothing to say of the rest. With R6.4, C(n) has A_i of every later i of its sender in H as soon
as both are there; so only an entry that is new to H is compared with the others of its sender.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antecede.errors import BadParameter
from antecede.model import Id, mask, members
from antecede.protocols.machine import plain, typed

__all__ = ["Entry", "Histories", "Record", "Rules"]


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
        self._r8, self._r10 = rules.r8, rules.r10
        self.sends = 0
        self.now = 0
        self.last: dict[int, int] = {}
        """process -> which of our sends last went to it"""
        self.H: dict[Id, Record] = {}
        self._lanes: defaultdict[int, dict[int, Record]] = defaultdict(dict)
        """sender -> number -> record"""
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
        records = self._filter(self._find_unreported(to) if self.rules.r7 else self.H.values(), to)
        if self.rules.r6_1:
            return tuple(sorted(replace(record.entry, copies=self.copies(record)) for record in records))
        return tuple(sorted([record.entry for record in records]))

    def _find_unreported(self, to: int) -> list[Record]:
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

    def _filter(self, records: Iterable[Record], to: int) -> Iterable[Record]:
        """What else need not travel to these destinations (R9, in `separator`)."""
        return records

    # R4, R6.2

    def note_sent(self, sender: int, number: int, to: int, label: str) -> None:
        self.sends += 1
        if self.rules.r6:
            told, last = self._reports_to(to), self.last
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
        self._add(Entry(sender, number, to, 0, label), 0)

    def _reports_to(self, to: int) -> int:
        """To whom a send reports everything in H."""
        return to

    # R4, R6.3

    def note_delivered(
        self, sender: int, number: int, to: int, label: str, history: tuple[Entry, ...]
    ) -> None:
        entry = Entry(sender, number, to, 0, label)
        if not self.rules.r6:
            for known in (*history, entry):
                if (known.sender, known.number) not in self.H:
                    self._add(known, 0)
            return
        if self._r10:
            self._prove_delivered(entry, history)
        taken = self._proof(entry, entry) if self._r10 else 0
        if self.rules.r6_4:
            self._report(history, entry)
            self._enter(entry, self._known_to(entry), taken)
        else:
            self._report_earlier(entry)
            listed = {(known.sender, known.number) for known in history}
            for known in history:
                self._report_listed(known, entry, listed)
            self._add(entry, self._known_to(entry), taken)

    # R10

    def _proof(self, known: Entry, m: Entry) -> int:
        """Who of A_n has delivered n for certain, once we have delivered m, in whose stamp n stands, or which is n."""
        return known.to & (1 << self.me | self._knows(m.sender, known))

    def _prove_delivered(self, m: Entry, history: tuple[Entry, ...]) -> None:
        for known in history:
            self.note_taken(known.sender, known.number, self._proof(known, m))

    def note_taken(self, sender: int, number: int, processes: int) -> None:
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
        return 1 << self.me | self._knows(entry.sender, entry)

    def _report_earlier(self, m: Entry) -> None:
        """First part of R6.3: the sender had told the destinations of m of everything that it sent before."""
        for record in list(self._lanes[m.sender].values()):
            if record.entry.number < m.number and record.entry.label == m.label:
                self._grow(record, m.to)

    def _report(self, history: tuple[Entry, ...], m: Entry) -> None:
        """Second part of R6.3, and R6.4: in increasing order, so that what R6.4 removes was looked at before."""
        lanes, source, told, r8 = self._lanes, m.sender, self._find_told(m, False), self._r8
        for known in history:
            sender, to, copies = known.sender, known.to, known.copies | told
            if sender == source and to >> source & 1:
                copies = known.copies | self._find_told(m, True)
            record = lanes[sender].get(known.number)
            if record is None:
                taken = self._proof(known, m) if self._r10 else 0
                self._enter(replace(known, copies=0) if known.copies else known, copies, taken)
            else:
                record.copies = copies = record.copies | copies
                if r8 and not to & ~copies:
                    self._remove(known)

    def _enter(self, entry: Entry, copies: int, taken: int) -> None:
        """Add n to H. R6.4: C(n) grows by A_i of every later i of its sender, where one of the two is new."""
        sender, number, to = entry.sender, entry.number, entry.to
        lane = self._lanes[sender]
        if lane:
            # As `_grow` and `_add` do it: most of what a stamp costs is here.
            label, r8 = entry.label, self._r8
            for other in [*lane.values()]:
                known = other.entry
                if known.label != label:
                    # Neither carried the other.
                    continue
                if known.number > number:
                    copies |= known.to
                    continue
                other.copies = grown = other.copies | to
                if r8 and not known.to & ~grown:
                    del self.H[sender, known.number], lane[known.number]
        copies |= self.gone
        if (self._r8 and not to & ~copies) or (self._r10 and not to & ~taken):
            return
        self.H[sender, number] = lane[number] = Record(entry, copies, self.sends, taken, self.now)

    def _report_listed(self, known: Entry, m: Entry, listed: set[Id]) -> None:
        """Second part of R6.3 without R6.4, for one n in H_m: only what is `listed` in H_m gains by later ones."""
        copies = known.copies | self._find_told(
            m, known.sender == m.sender and bool(known.to >> m.sender & 1)
        )
        lane = self._lanes[known.sender]
        for other in list(lane.values()):
            if other.entry.label != known.label:
                continue
            if other.entry.number > known.number:
                copies |= other.entry.to
            elif other.entry.number < known.number and other.entry.id in listed:
                self._grow(other, known.to)
        record = lane.get(known.number)
        if record is None:
            self._add(replace(known, copies=0), copies, self._proof(known, m) if self._r10 else 0)
        else:
            self._grow(record, copies)

    def _find_told(self, m: Entry, own: bool) -> int:
        """Who was told of n in H_m by m; `own`: n is a message of m's sender to itself too (`_knows`)."""
        return m.to if own else m.to | 1 << m.sender

    # R8

    def _grow(self, record: Record, copies: int) -> None:
        """Add to C(n), and remove n if it has been reported to all of its destinations."""
        record.copies = copies = record.copies | copies
        if self._r8 and not record.entry.to & ~copies:
            self._remove(record.entry)

    def _remove(self, entry: Entry) -> None:
        del self.H[entry.sender, entry.number], self._lanes[entry.sender][entry.number]

    # H, and its lanes

    def _add(self, entry: Entry, copies: int, taken: int = 0) -> None:
        copies |= self.gone
        if (self._r8 and not entry.to & ~copies) or (self._r10 and not entry.to & ~taken):
            return
        record = Record(entry, copies, self.sends, taken, self.now)
        self.H[entry.sender, entry.number] = self._lanes[entry.sender][entry.number] = record

    def _insert(self, entry: Entry, copies: int) -> None:
        """Add what stands in no stamp."""
        if self.rules.r6_4:
            self._enter(entry, copies, 0)
        else:
            self._add(entry, copies)

    def merge(self, other: Histories) -> None:
        """Chapter 6: what precedes the next message here grows by what precedes the other's."""
        for key, record in other.H.items():
            mine = self.H.get(key)
            if mine is None:
                self._insert(record.entry, other.copies(record))
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
            entry = record.entry
            self.H[entry.id] = self._lanes[entry.sender][entry.number] = record


def _by_age(record: Record) -> tuple[int, Id]:
    return record.since, (record.entry.sender, record.entry.number)
