"""A run from chunk to chunk: summaries one after the other, with the true clocks at each boundary.

Between two chunks stand
  clocks, seen   as in state.py, but absolute: counted from the beginning of the run
  flights        the messages under way
A chunk's summary then tells what its deferred deliveries were, and what stands after it. The clock that stands for a
row of a summary is, in each entry, what the row knows of the chunk's own sends if it knows of any, and else the
greatest among the symbols it has merged in: entry clocks of processes, clocks of crossing messages (`marks`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antecede.jit import allocating
from antecede.verification import state as names
from antecede.verification.chunk import Summary
from antecede.verification.kernel import flip, has
from antecede.verification.state import WORD, words_for

__all__ = ["OVERTAKEN", "REPEATED", "STRANGE", "UNKNOWN", "Boundary", "Flight", "Walk", "ids_of"]

Array: TypeAlias = NDArray[Any]

Id: TypeAlias = tuple[int, int]


@dataclass(slots=True)
class Flight:
    """A message under way between chunks."""

    chunk: int
    """Where it was sent ..."""
    position: int
    """... and at which row of it."""
    ordinal: int
    kept: bool
    clock: Array | None
    """Unless no later chunk delivers it."""
    missing: Array
    given: Array


@dataclass(frozen=True, slots=True)
class Boundary:
    """One chunk, as the run passes through it."""

    chunk: int
    summary: Summary
    base: Array
    """How much each origin had sent before."""
    clocks: Array
    seen: Array
    flights: list[Flight | None]
    """What the symbols stand for: None is a suspect."""
    sources: Array
    """The clocks that marks stand for."""
    said: Array
    """What is said of each deferred delivery: the flags below."""

    def list_deferred(self, which: Array) -> Array:
        """Some deferred deliveries: process, sender, number, index, position."""
        checks = self.summary.deferred[which]
        return np.column_stack((checks[:, 0], self.summary.symbols[checks[:, 1]], checks[:, 2:4]))


class Walk:
    """Walks through the chunks once."""

    def __init__(self, summaries: Sequence[Summary]) -> None:
        self.n = n = summaries[0].n if summaries else 0
        self.summaries = summaries
        self.flights: dict[Id, Flight] = {}
        self._last_use: dict[Id, int] = {}
        for chunk, summary in enumerate(summaries):
            self._last_use |= dict.fromkeys(ids_of(summary.symbols), chunk)
        self._base = np.zeros(n, np.int64)
        self._clocks = np.zeros((n, n), np.int64)
        self._seen = np.zeros(n, np.int64)

    def walk(self) -> Iterator[Boundary]:
        for chunk, summary in enumerate(self.summaries):
            boundary = self._enter(chunk, summary)
            yield boundary
            if chunk + 1 < len(self.summaries):
                self._leave(boundary)
            self._board(boundary)

    def _enter(self, chunk: int, summary: Summary) -> Boundary:
        """Make the deferred checks."""
        ids = ids_of(summary.symbols)
        flights = [self.flights.get(message) for message in ids]
        words = words_for(self.n)
        missing = np.zeros((len(ids), words), np.uint64)
        given = np.zeros((len(ids), words), np.uint64)
        for symbol, flight in enumerate(flights):
            if flight is not None:
                missing[symbol], given[symbol] = flight.missing, flight.given
        sources = self._list_sources(flights)
        said = settle(
            summary.deferred,
            summary.deferred_marks,
            summary.symbols[:, 0].copy(),
            np.array([flight.ordinal if flight else 0 for flight in flights], np.int64),
            missing,
            given,
            sources,
            self._seen,
        )
        for symbol, (message, flight) in enumerate(zip(ids, flights, strict=True)):
            if flight is not None:
                flight.missing, flight.given = missing[symbol], given[symbol]
                if not flight.kept and not missing[symbol].any():
                    del self.flights[message]
        return Boundary(chunk, summary, self._base, self._clocks, self._seen, flights, sources, said)

    def _list_sources(self, flights: list[Flight | None]) -> Array:
        """The clocks of processes, and of symbols. What is in no one's flight brings no news."""
        before = WORD * words_for(self.n)
        sources = np.zeros((before + len(flights), self.n), np.int64)
        sources[: self.n] = self._clocks
        for symbol, flight in enumerate(flights, before):
            if flight is not None:
                assert flight.clock is not None
                sources[symbol] = flight.clock
        return sources

    def _leave(self, boundary: Boundary) -> None:
        """The clocks after the chunk, of processes and of the messages that are delivered later."""
        summary, base, sources = boundary.summary, self._base, boundary.sources
        news = [entry_of(summary.marks, q, sources, self._seen, q, q) for q in range(self.n)]
        # If its entry clock came back to a process, then with a message that it had sent in the chunk.
        self._seen = np.where(summary.seen > 0, base + summary.seen, news)
        self._clocks = resolve(summary.clocks, summary.marks, base, sources)
        used = self._list_used(boundary)
        clocks = resolve(summary.flight_clocks[used], summary.flight_marks[used], base, sources)
        for message, row, clock in zip(ids_of(summary.flights[used]), used, clocks, strict=True):
            self.flights[message] = self._flight(boundary, row, clock)
        self._base = base + summary.sends

    def _list_used(self, boundary: Boundary) -> Array:
        """Rows of the messages in flight that a later chunk delivers."""
        uses = [self._last_use.get(message, -1) for message in ids_of(boundary.summary.flights)]
        return np.flatnonzero(np.array(uses, np.int64) > boundary.chunk)

    def _board(self, boundary: Boundary) -> None:
        """The messages in flight that no later chunk delivers: they may be owed to someone."""
        for row, message in enumerate(ids_of(boundary.summary.flights)):
            if message not in self.flights:
                self.flights[message] = self._flight(boundary, row, None)

    def _flight(self, boundary: Boundary, row: int, clock: Array | None) -> Flight:
        summary, flight = boundary.summary, boundary.summary.flights[row]
        ordinal = int(boundary.base[flight[names.SENDER]] + flight[names.ORDINAL])
        kept, position = bool(flight[names.KEPT]), int(flight[names.SENT_AT])
        return Flight(
            boundary.chunk, position, ordinal, kept, clock, summary.missing[row], summary.given[row]
        )


def ids_of(rows: Array) -> list[Id]:
    """Sender and number, the first two columns."""
    return list(zip(rows[:, 0].tolist(), rows[:, 1].tolist(), strict=True))


# Native parts: symbols become clocks, deferred checks are made

# Flags of what is said of a deferred delivery.
GIVEN, REPEATED, STRANGE, OVERTAKEN, UNKNOWN = 0, 1, 2, 4, 8


@allocating
def settle(deferred, marks, senders, ordinals, missing, given, sources, seen):  # type: ignore[no-untyped-def]
    """Judge each deferred delivery, in order. A symbol without an ordinal stands for a suspect."""
    said = np.zeros(len(deferred), np.uint8)
    for check in range(len(deferred)):
        q, symbol, certain = deferred[check, 0], deferred[check, 1], deferred[check, 4]
        i, ordinal = senders[symbol], ordinals[symbol]
        if ordinal == 0:
            said[check] = UNKNOWN
            continue
        if has(missing, symbol, q):
            flip(missing, symbol, q)
        elif has(given, symbol, q):
            said[check] = REPEATED
            continue
        else:
            said[check] = STRANGE
        flip(given, symbol, q)
        known = entry_of(marks, check, sources, seen, q, i)
        if certain or known >= ordinal:
            said[check] |= OVERTAKEN
    return said


@allocating
def entry_of(marks, row, sources, seen, q, i):  # type: ignore[no-untyped-def]
    """What q has news of, of origin i, from symbols. Its own entry clock is no news of itself."""
    known = seen[q] if q == i else np.int64(0)
    for symbol in range(len(sources)):
        if has(marks, row, symbol) and (symbol != i or q != i):
            known = max(known, sources[symbol, i])
    return known


@allocating
def resolve(own, marks, base, sources):  # type: ignore[no-untyped-def]
    """The absolute clock of each row. `base` is how much each origin had sent before the chunk."""
    absolute = np.zeros((len(own), len(base)), np.int64)
    for row in range(len(own)):
        clock = absolute[row]
        for symbol in range(len(sources)):
            if has(marks, row, symbol):
                for entry in range(len(clock)):
                    clock[entry] = max(clock[entry], sources[symbol, entry])
        for i in range(own.shape[1]):
            if own[row, i]:
                clock[i] = base[i] + own[row, i]
    return absolute
