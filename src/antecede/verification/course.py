"""The course of a run through its chunks: summaries one after the other, with the true clocks between them.

Between two chunks stand
  clocks, seen   as in state.py, but absolute: counted from the beginning of the run
  flights        the messages under way
A chunk's summary then tells what its deferred deliveries were, and what stands after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antecede.verification import state as names
from antecede.verification.settle import resolve, resolve_seen, settle
from antecede.verification.state import grown, words_for
from antecede.verification.summary import Summary

__all__ = ["Course", "Flight", "Passage"]

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
class Passage:
    """One chunk, as the run passes through it."""

    chunk: int
    summary: Summary
    base: Array
    """How much each origin had sent before."""
    clocks: Array
    seen: Array
    flights: list[Flight | None]
    """What the symbols stand for: None is a suspect."""
    said: Array
    """What is said of each deferred delivery: flags of settle.py."""


class Course:
    """Walks through the chunks once."""

    def __init__(self, summaries: Sequence[Summary]) -> None:
        self.n = n = max((summary.n for summary in summaries), default=0)
        self.summaries = summaries
        self.flights: dict[Id, Flight] = {}
        self._last_use: dict[Id, int] = {}
        for chunk, summary in enumerate(summaries):
            self._last_use |= dict.fromkeys(ids_of(summary.symbols), chunk)
        self._base = np.zeros(n, np.int64)
        self._clocks = np.zeros((n, n), np.int64)
        self._seen = np.zeros(n, np.int64)

    def passages(self) -> Iterator[Passage]:
        for chunk, summary in enumerate(self.summaries):
            if summary.n < self.n:
                summary = widened(summary, self.n)
            passage = self._enter(chunk, summary)
            yield passage
            if chunk + 1 < len(self.summaries):
                self._leave(passage)
            self._board(passage)

    def _enter(self, chunk: int, summary: Summary) -> Passage:
        """Make the deferred checks."""
        ids = ids_of(summary.symbols)
        flights = [self.flights.get(message) for message in ids]
        words = words_for(self.n)
        missing = np.zeros((len(ids), words), np.uint64)
        given = np.zeros((len(ids), words), np.uint64)
        for symbol, flight in enumerate(flights):
            if flight is not None:
                missing[symbol], given[symbol] = flight.missing, flight.given
        said = settle(
            summary.deferred,
            summary.deferred_heard,
            summary.deferred_marks,
            summary.symbols[:, 0].copy(),
            np.array([flight.ordinal if flight else 0 for flight in flights], np.int64),
            missing,
            given,
            self._clocks,
            self._crossing(flights),
            self._seen,
        )
        for symbol, (message, flight) in enumerate(zip(ids, flights, strict=True)):
            if flight is not None:
                flight.missing, flight.given = missing[symbol], given[symbol]
                if not flight.kept and not missing[symbol].any():
                    del self.flights[message]
        return Passage(chunk, summary, self._base, self._clocks, self._seen, flights, said)

    def _crossing(self, flights: list[Flight | None]) -> Array:
        """The clocks of symbols. What is in no one's flight brings no news."""
        crossing = np.zeros((len(flights), self.n), np.int64)
        for symbol, flight in enumerate(flights):
            if flight is not None:
                assert flight.clock is not None
                crossing[symbol] = flight.clock
        return crossing

    def _leave(self, passage: Passage) -> None:
        """The clocks after the chunk, of processes and of the messages that are delivered later."""
        summary, base, clocks = passage.summary, self._base, self._clocks
        crossing = self._crossing(passage.flights)
        self._seen = resolve_seen(
            summary.seen, summary.heard, summary.marks, base, clocks, crossing, self._seen
        )
        self._clocks = resolve(summary.clocks, summary.heard, summary.marks, base, clocks, crossing)
        used = self._used(passage)
        rows = (summary.flight_clocks[used], summary.flight_heard[used], summary.flight_marks[used])
        for row, clock in zip(used, resolve(*rows, base, clocks, crossing), strict=True):
            self.flights[self._id(summary, row)] = self._flight(passage, row, clock)
        self._base = base + summary.sends

    def _used(self, passage: Passage) -> Array:
        """Rows of the messages in flight that a later chunk delivers."""
        uses = [self._last_use.get(message, -1) for message in ids_of(passage.summary.flights)]
        return np.flatnonzero(np.array(uses, np.int64) > passage.chunk)

    def _board(self, passage: Passage) -> None:
        """The messages in flight that no later chunk delivers: they may be owed to someone."""
        for row, message in enumerate(ids_of(passage.summary.flights)):
            if message not in self.flights:
                self.flights[message] = self._flight(passage, row, None)

    def _flight(self, passage: Passage, row: int, clock: Array | None) -> Flight:
        summary, flight = passage.summary, passage.summary.flights[row]
        ordinal = int(passage.base[flight[names.SENDER]] + flight[names.ORDINAL])
        kept, position = bool(flight[names.KEPT]), int(flight[names.SENT_AT])
        return Flight(passage.chunk, position, ordinal, kept, clock, summary.missing[row], summary.given[row])

    @staticmethod
    def _id(summary: Summary, row: int) -> Id:
        return int(summary.flights[row, names.SENDER]), int(summary.flights[row, names.NUMBER])


def ids_of(rows: Array) -> list[Id]:
    """Sender and number, the first two columns."""
    return list(zip(rows[:, 0].tolist(), rows[:, 1].tolist(), strict=True))


def widened(summary: Summary, n: int) -> Summary:
    """The same chunk of a run that has n processes, some of which do nothing in it."""
    words, flights = words_for(n), len(summary.flights)
    heard = grown(summary.heard, n, words)
    for q in range(summary.n, n):
        heard[q, q // names.WORD] |= np.uint64(1 << q % names.WORD)
    return replace(
        summary,
        clocks=grown(summary.clocks, n, n),
        heard=heard,
        marks=grown(summary.marks, n, summary.marks.shape[1]),
        seen=grown(summary.seen, n),
        sends=grown(summary.sends, n),
        numbers=grown(summary.numbers, n, 2),
        steady=np.append(summary.steady, np.full(n - summary.n, 3, np.uint8)),
        flight_clocks=grown(summary.flight_clocks, flights, n),
        flight_heard=grown(summary.flight_heard, flights, words),
        missing=grown(summary.missing, flights, words),
        given=grown(summary.given, flights, words),
        deferred_heard=grown(summary.deferred_heard, len(summary.deferred), words),
    )
