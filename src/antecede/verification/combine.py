"""The chunks' summaries one after the other: findings about messages that cross from one into another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antecede.verification.course import Course, Passage
from antecede.verification.crossing import Late, late_of, trails_of, witnessed
from antecede.verification.findings import DUPLICATE, UNADDRESSED, UNDELIVERED, Findings, Ids
from antecede.verification.search import Found
from antecede.verification.settle import REPEATED, STRANGE
from antecede.verification.state import GROWING
from antecede.verification.summary import Summary
from antecede.verification.unknown_sends import Resolved, distinct, resolved, suspects_of

__all__ = ["combine", "Outcome"]

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    findings: Findings
    """Complete ones, of all kinds but violations and FIFO breaks, which `join` gives."""
    deliveries: int
    """Of the whole run (all summaries)."""
    violations: int
    """Of deliveries whose message came from an earlier chunk: how many `join` will give."""
    suspects: Ids
    """To be searched for in every chunk, if there are any; then `combine` again with what was found."""
    keep: Ids
    """To be kept, if there are any, in a new scan of the chunks in `again`."""
    again: tuple[int, ...]
    """Positions of chunks."""
    trails: Mapping[int, bytes]
    """Position of a chunk -> what `Trail` is to look for in it."""
    unsorted: tuple[int, ...]
    """Processes whose numbers do not grow: that none is used twice has not been seen, so count them."""
    _late: Late

    def join(self, trails: Mapping[int, bytes]) -> Findings:
        """Violations and FIFO breaks with witnesses and chains, from what each `Trail.finish()` gave."""
        return witnessed(self._late, trails)


def combine(
    summaries: Sequence[Summary], found: Sequence[Found] | None = None, keep: Ids | None = None
) -> Outcome:
    """What the summaries of all chunks of a run, in order, tell together.

    `found` are the results of the search for suspects, one for each chunk; `keep` is what the scans were told to keep.
    Raises `Impossible` if a message was delivered before it was sent.
    """
    course = Course(summaries)
    findings, suspects, late = [Findings.none()], [np.zeros((0, 6), np.int64)], [Late.none()]
    for passage in course.passages():
        findings += _decided(passage)
        suspects.append(suspects_of(passage))
        late.append(late_of(passage))
    findings.append(_undelivered(course))
    suspicious, all_late = np.concatenate(suspects), Late.joined(late)
    settled, wanted = Resolved(Findings.none(), Ids.none(), ()), Ids.none()
    if len(suspicious) and found is None:
        wanted = distinct(suspicious)
    elif len(suspicious) and found is not None:
        settled = resolved(suspicious, found, _block(course))
    complete = not len(wanted) and not len(settled.keep)
    return Outcome(
        findings=Findings.joined([*findings, settled.findings]),
        deliveries=sum(summary.deliveries for summary in summaries),
        violations=len(all_late),
        suspects=wanted,
        keep=settled.keep,
        again=settled.again,
        trails=trails_of(summaries, all_late, keep or Ids.none()) if complete and len(all_late) else {},
        unsorted=_unsorted(summaries, course.n),
        _late=all_late,
    )


def _decided(passage: Passage) -> list[Findings]:
    """Deferred deliveries that were repeated, or at strangers."""
    summary, said = passage.summary, passage.said
    kinds = []
    for kind, flag in ((DUPLICATE, REPEATED), (UNADDRESSED, STRANGE)):
        checks = summary.deferred[said & flag != 0]
        sender, number = summary.symbols[checks[:, 1]].T
        kinds.append(Findings.plain(kind, checks[:, 0], sender, number, checks[:, 2]))
    return kinds


def _block(course: Course) -> tuple[int, int]:
    """The senders whose messages are judged: all, unless the only chunk is the whole run, for a block of them."""
    return course.summaries[0].block if len(course.summaries) == 1 else (0, course.n)


def _undelivered(course: Course) -> Findings:
    """What is owed to someone at the end of the run."""
    low, high = _block(course)
    owed = [
        (message, flight.missing)
        for message, flight in course.flights.items()
        if low <= message[0] < high and flight.missing.any()
    ]
    if not owed:
        return Findings.none()
    missing = np.array([bits for _, bits in owed])
    rows, process = np.nonzero(np.unpackbits(missing.view(np.uint8), axis=1, bitorder="little"))
    sender = np.array([message[0] for message, _ in owed], np.int64)[rows]
    number = np.array([message[1] for message, _ in owed], np.int64)[rows]
    return Findings.plain(UNDELIVERED, process, sender, number, np.full(len(rows), -1))


def _unsorted(summaries: Sequence[Summary], n: int) -> tuple[int, ...]:
    greatest = np.zeros(n, np.int64)
    started, strange = np.zeros(n, bool), np.zeros(n, bool)
    for summary in summaries:
        here = np.flatnonzero(summary.sends)
        first, last = summary.numbers[here].T
        strange[here] |= (summary.steady[here] & GROWING == 0) | (started[here] & (first <= greatest[here]))
        greatest[here] = np.where(started[here], np.maximum(greatest[here], last), last)
        started[here] = True
    return tuple(np.flatnonzero(strange).tolist())
