"""A round of a change: what its leader knows of it, what others may see of it, and what it asks of a process.

>>> led = Led(2, Plan())
>>> led.note(0, Report(2, {1: 3}, {1: 0}, 3))
>>> led.unreported((0, 1))
[1]
>>> led.note(1, Report(2, {0: 0}, {0: 2}, 0))
>>> led.unreported((0, 1)), "process 1 has got two of three payloads"
([1], 'process 1 has got two of three payloads')
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from antecede.errors import CallerError
from antecede.process.views.members import Plan, Roll
from antecede.process.views.notes import Report

__all__ = ["Body", "Counts", "Led", "Progress"]


class Counts(Struct, frozen=True):
    """Payloads that carry packets, by the position of the other end; and messages sent."""

    out: dict[int, int]
    into: dict[int, int]
    sent: int


class Progress(Struct, frozen=True):
    """A change that is under way, or wanted, as one process sees it: what users of a system that stands still ask."""

    stage: str
    """wanted (not begun), stop, flush or install at its leader; follow at others."""
    leader: str
    awaits: tuple[str, ...]
    """Whom it waits for: members that did not say yet that they have done their part."""
    join: tuple[str, ...]
    leave: tuple[str, ...]
    remove: tuple[str, ...]


class Body(Protocol):
    """The process that a change happens to."""

    def cut(self, place: int) -> None:
        """Hear nothing more of this process, and tell it nothing more."""

    def settle(self, removed: tuple[int, ...]) -> None:
        """Let nothing wait for these. From now on whatever can be delivered is, at once."""

    def counts(self) -> Counts | None:
        """What was sent, and what was got without a gap; None if something is still to be done here."""

    def install(self, roll: Roll) -> None:
        """Begin a new view. Nothing of the old one is under way."""

    def part(self, roll: Roll) -> None:
        """All have installed this view: whoever is not in it can be forgotten."""

    def accepts(self, names: tuple[str, ...]) -> CallerError | None:
        """Why the protocol cannot run among these, if it cannot."""

    def rules(self) -> int:
        """Of which version the inputs are that are replayed (`restarts.RULES`)."""

    def strangers(self) -> tuple[int, ...]:
        """Members that joined and were never heard here."""


class Led(Struct):
    """What a leader knows of the round that it leads."""

    round: int
    plan: Plan
    stage: str = "stop"
    stopped: set[int] = set()
    reports: dict[int, Report] = {}
    awaited: set[int] = set()
    """Who has not installed the view that was decided."""

    def note(self, source: int, report: Report) -> None:
        """One has reported. Counts only grow: one with less was overtaken."""
        before = self.reports.get(source)
        if before is None or _total(before) < _total(report):
            self.reports[source] = report

    def unreported(self, members: tuple[int, ...]) -> list[int]:
        """Who has not reported, or has not got all that others say they sent to it."""
        reports = self.reports
        missing = [place for place in members if place not in reports]
        return missing or [
            q
            for q in members
            if any(reports[p].out.get(q, 0) != reports[q].into.get(p, 0) for p in members if p != q)
        ]


def _total(report: Report) -> int:
    return sum(report.out.values()) + sum(report.into.values())
