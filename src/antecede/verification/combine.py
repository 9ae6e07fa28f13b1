"""The chunks' summaries one after the other: findings about messages that cross from one into another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antecede.blob import unpack
from antecede.verification.boundaries import REPEATED, STRANGE, Boundary, Walk
from antecede.verification.chunk import Summary
from antecede.verification.findings import DUPLICATE, UNADDRESSED, UNDELIVERED, Findings, Ids
from antecede.verification.proofs import Late, list_late, prove, trails_of
from antecede.verification.state import GROWING
from antecede.verification.unknown_sends import Found, Resolved, distinct, resolve_unknown, unknown_of

__all__ = ["Outcome", "Question", "combine"]

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Question:
    """What some chunks must be read for before a run is judged.

    what      chunks             to be read by
    unknown   all: Ids           `Search`, for the sends of these messages
    keep      some: Ids          a new `Scan` that never forgets these messages, in the place of the first one
    news      some: bytes        `NewsScan`, for how the news of overtaken messages travelled
    """

    what: Literal["unknown", "keep", "news"]
    chunks: Mapping[int, Any]
    """Position of a chunk -> what it is asked."""


@dataclass(frozen=True, slots=True)
class Outcome:
    findings: Findings
    """Complete ones, of all kinds but violations and FIFO breaks, which `join` gives."""
    chunks: int
    deliveries: int
    """Of the whole run (all summaries)."""
    violations: int
    """Of deliveries whose message came from an earlier chunk: how many `join` will give."""
    unknown: Ids
    """To be searched for in every chunk, if there are any; then `combine` again with what was found."""
    keep: Ids
    """To be kept, if there are any, in a new scan of the chunks in `again`."""
    again: tuple[int, ...]
    """Positions of chunks."""
    trails: Mapping[int, bytes]
    """Position of a chunk -> what `NewsScan` is to look for in it."""
    unsorted: tuple[int, ...]
    """Processes whose numbers do not grow: that none is used twice has not been seen, so count them."""
    _late: Late

    def question(self, keep: Ids | None, trails: Mapping[int, bytes]) -> Question | None:
        """The next question, if there is one, with what was kept and the trails that are known. One after the other."""
        if len(self.unknown):
            return Question("unknown", dict.fromkeys(range(self.chunks), self.unknown))
        if len(self.keep) and keep is None:
            return Question("keep", dict.fromkeys(self.again, self.keep))
        if self.trails and not trails:
            return Question("news", self.trails)
        return None

    def join(self, trails: Mapping[int, bytes]) -> Findings:
        """Violations and FIFO breaks with their proofs, from what each `NewsScan.finish()` gave."""
        return prove(self._late, {chunk: unpack("trail found", data) for chunk, data in trails.items()})


def combine(summaries: Sequence[Summary], found: Sequence[Found] | None = None) -> Outcome:
    """What the summaries of all chunks of a run, in order, tell together.

    `found` are the results of the search for unknown, one for each chunk.
    Raises `Impossible` if a message was delivered before it was sent.
    """
    walk = Walk(summaries)
    findings, unknown, late = [Findings.none()], [np.zeros((0, 6), np.int64)], list[Array]()
    for boundary in walk.walk():
        findings += _collect_decided(boundary)
        unknown.append(unknown_of(boundary))
        late.append(list_late(boundary))
    findings.append(_find_undelivered(walk))
    unknown_rows, all_late = np.concatenate(unknown), Late.concatenate(late)
    settled, wanted = Resolved(Findings.none(), Ids.none(), ()), Ids.none()
    if len(unknown_rows) and found is None:
        wanted = distinct(unknown_rows)
    elif len(unknown_rows) and found is not None:
        settled = resolve_unknown(unknown_rows, found, _block(walk))
    complete = not len(wanted) and not len(settled.keep)
    return Outcome(
        findings=Findings.concatenate([*findings, settled.findings]),
        chunks=len(summaries),
        deliveries=sum(summary.deliveries for summary in summaries),
        violations=len(all_late),
        unknown=wanted,
        keep=settled.keep,
        again=settled.again,
        trails=trails_of(summaries, all_late) if complete and len(all_late) else {},
        unsorted=_list_unsorted(summaries, walk.n),
        _late=all_late,
    )


def _collect_decided(boundary: Boundary) -> list[Findings]:
    """Deferred deliveries that were repeated, or at strangers."""
    return [
        Findings.plain(kind, *boundary.list_deferred(boundary.said & flag != 0)[:, :4].T)
        for kind, flag in ((DUPLICATE, REPEATED), (UNADDRESSED, STRANGE))
    ]


def _block(walk: Walk) -> tuple[int, int]:
    """The senders whose messages are judged: all, unless the only chunk is the whole run, for a block of them."""
    return walk.summaries[0].block if len(walk.summaries) == 1 else (0, walk.n)


def _find_undelivered(walk: Walk) -> Findings:
    """What is owed to someone at the end of the run."""
    low, high = _block(walk)
    owed = [
        (message, flight.missing)
        for message, flight in walk.flights.items()
        if low <= message[0] < high and flight.missing.any()
    ]
    if not owed:
        return Findings.none()
    missing = np.array([bits for _, bits in owed])
    rows, process = np.nonzero(np.unpackbits(missing.view(np.uint8), axis=1, bitorder="little"))
    sender = np.array([message[0] for message, _ in owed], np.int64)[rows]
    number = np.array([message[1] for message, _ in owed], np.int64)[rows]
    return Findings.plain(UNDELIVERED, process, sender, number, np.full(len(rows), -1))


def _list_unsorted(summaries: Sequence[Summary], n: int) -> tuple[int, ...]:
    greatest = np.zeros(n, np.int64)
    started, strange = np.zeros(n, bool), np.zeros(n, bool)
    for summary in summaries:
        here = np.flatnonzero(summary.sends)
        first, last = summary.numbers[here].T
        strange[here] |= (summary.steady[here] & GROWING == 0) | (started[here] & (first <= greatest[here]))
        greatest[here] = np.where(started[here], np.maximum(greatest[here], last), last)
        started[here] = True
    return tuple(np.flatnonzero(strange).tolist())
