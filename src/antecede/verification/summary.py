"""What a chunk does to the clocks, and what it could not decide, as a value that goes from task to task.

Size, before compression: n processes, S messages that cross into the chunk, D deliveries of these, F messages still
in flight at its end take about 4 n² + n S/8 + F (4 n + S/8 + n/4) + D (40 + S/8) bytes. With n = 64 and a thousand
messages in flight that is half a megabyte, whatever the length of the chunk.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antecede.verification import state as names
from antecede.verification.blob import pack, unpack
from antecede.verification.kernel import LATE
from antecede.verification.scanner import Scanner

__all__ = ["Summary"]

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Summary:
    """Rows are processes, messages in flight, or deferred checks; see state.py for what is in them.

    Marks are in two: `heard`, a bit for each process's entry clock, and `marks`, one for each crossing message.
    """

    shape: Array
    """n, deliveries, rows, and the block of origins: its first, and the one after its last."""
    clocks: Array
    heard: Array
    marks: Array
    seen: Array
    sends: Array
    numbers: Array
    steady: Array
    flights: Array
    flight_clocks: Array
    flight_heard: Array
    flight_marks: Array
    missing: Array
    given: Array
    symbols: Array
    deferred: Array
    deferred_heard: Array
    deferred_marks: Array
    late: Array
    """Deliveries of messages that were sent here, or nowhere: process, sender, number, index, position."""

    @property
    def n(self) -> int:
        return int(self.shape[0])

    @property
    def deliveries(self) -> int:
        """All of the chunk's, repeated ones too."""
        return int(self.shape[1])

    @property
    def block(self) -> tuple[int, int]:
        return int(self.shape[3]), int(self.shape[4])

    def encode(self) -> bytes:
        return pack("summary", {field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def decode(cls, data: bytes) -> Summary:
        return cls(**unpack("summary", data))

    @classmethod
    def of(cls, scanner: Scanner) -> Summary:
        """Of a scan that has read all of its chunk."""
        state, counts, n = scanner.state, scanner.counts, scanner.n
        low, high = scanner.block or (0, n)
        flying = _in_flight(scanner)
        symbols, deferred = int(counts[names.SYMBOLS]), int(counts[names.DEFERRED])
        records = state.records[: counts[names.RECORDS]]
        heard, marks = _halves(scanner, state.marks[:n])
        flight_heard, flight_marks = _halves(scanner, state.flight_marks[flying])
        deferred_heard, deferred_marks = _halves(scanner, state.deferred_marks[:deferred])
        words = names.words_for(n)
        return cls(
            shape=np.array([n, counts[names.DELIVERIES], counts[names.POSITION], low, high], np.int64),
            clocks=state.clocks[:n, : high - low],
            heard=heard,
            marks=marks,
            seen=state.seen[:n],
            sends=state.sends[:n],
            numbers=state.numbers[:n],
            steady=state.steady[:n],
            flights=state.flights[flying],
            flight_clocks=state.flight_clocks[flying, : high - low],
            flight_heard=flight_heard,
            flight_marks=flight_marks,
            missing=state.missing[flying, :words],
            given=state.given[flying, :words],
            symbols=state.symbols[:symbols],
            deferred=state.deferred[:deferred],
            deferred_heard=deferred_heard,
            deferred_marks=deferred_marks,
            late=records[records[:, 0] == LATE, 1:],
        )


def _in_flight(scanner: Scanner) -> Array:
    """The slabs in use, in the order of sends."""
    state = scanner.state
    used = np.ones(len(state.free), bool)
    used[state.free[: scanner.counts[names.FREE]]] = False
    slabs = np.flatnonzero(used)
    ordered: Array = slabs[np.argsort(state.flights[slabs, names.SENT_AT])]
    return ordered


def _halves(scanner: Scanner, marks: Array) -> tuple[Array, Array]:
    """Bits of processes, bits of crossing messages: only the words in use."""
    if scanner.first:
        return np.zeros((len(marks), names.words_for(scanner.n)), np.uint64), marks[:, :0]
    begin = int(scanner.counts[names.PROCESS_WORDS])
    end = begin + names.words_for(int(scanner.counts[names.SYMBOLS]))
    return marks[:, : names.words_for(scanner.n)], marks[:, begin:end]
