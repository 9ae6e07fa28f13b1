"""R9, topological timestamping: Rodrigues & Veríssimo 1995, section 4.3, over the hops between neighbours.

R9  p, in separator S, leaves n out of the stamp of m when A_m lies in F and S, A_n in B, and S is within C_p(n).

Whoever comes back from F to B passes a member of S, and all of S knows n. The report has A_m in F alone; a member of S
among the destinations has been told of n already (the last condition), so for it R7 says the same. F and B are any
split of the sides of S. What R9 leaves out counts as reported to A_m, since R6.2 says so to the letter: such a claim
about F is never used in B, where n is addressed.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from antecede.model import bits
from antecede.protocols.histories import Entry, Histories, Record, Rules
from antecede.topology import Plan

__all__ = ["Reported", "TopologicalHistories"]


class Reported(Struct, frozen=True, gc=False):
    """An element of H with its carbon copies, as it is handed over."""

    entry: Entry
    copies: int


class TopologicalHistories(Histories):
    """H and C of hops, with R9. Each of its conditions is a method."""

    def __init__(self, me: int, rules: Rules, plan: Plan, r9: bool) -> None:
        super().__init__(me, rules)
        self.r9 = r9
        self.plan = plan
        self.gone = plan.dead
        self._backward: dict[tuple[int, int], int] = {}

    def install(self, plan: Plan) -> None:
        self.plan = plan
        self.gone = plan.dead
        self._backward = {}
        for record in list(self.H.values()):
            self._grow(record, self.gone)

    def _filter(self, records: Iterable[Record], to: int) -> Iterable[Record]:
        for separator in self._separators() if self.r9 else ():
            records = [record for record in records if not self._may_omit(separator, record, to)]
        return records

    def _may_omit(self, separator: int, record: Record, to: int) -> bool:
        return self._is_behind(separator, record, to) and self._is_known(separator, record)

    def count_unreported(self, to: int) -> int:
        """How many entries a stamp would have only because not all of the separator know them."""
        separators = self._separators() if self.r9 else []
        records = self._filter(self._find_unreported(to), to) if separators else ()
        return sum(any(self._is_behind(s, record, to) for s in separators) for record in records)

    def _separators(self) -> list[int]:
        """Those that p is a member of."""
        place = self.plan.place[self.me]
        return [place] if self.plan.separator[place] else []

    def _is_behind(self, separator: int, record: Record, to: int) -> bool:
        """A_n lies in B. The failed count nowhere: nobody waits for what they do not get."""
        return not record.entry.to & ~(self._b(separator, to) | self.plan.dead)

    def _b(self, separator: int, to: int) -> int:
        """B, if F is made of the sides that A_m reaches into: all the other sides."""
        found = self._backward.get((separator, to))
        if found is None:
            found = 0
            for side in self.plan.sides(separator):
                found |= 0 if side & to else side
            self._backward[separator, to] = found
        return found

    def _is_known(self, separator: int, record: Record) -> bool:
        """S is within C_p(n)."""
        others = self.plan.live[separator] & ~(record.copies | 1 << self.me)
        return not others or all(self.last.get(q, 0) > record.since for q in bits(others))

    # Section 4.4

    def report_all(self, to: int) -> list[Reported]:
        """Everything in H with its C, told to these; but not that what is addressed to them has come."""
        records = list(self.H.values())
        for record in records:
            self._grow(record, to & ~record.entry.to)
        return [Reported(record.entry, self.copies(record)) for record in records]

    def learn_all(self, reported: Iterable[Reported]) -> None:
        for one in reported:
            known = self.H.get(one.entry.id)
            if known is None:
                self._insert(one.entry, one.copies | 1 << self.me)
            else:
                self._grow(known, one.copies)
