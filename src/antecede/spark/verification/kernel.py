"""The scan of one chunk, row by row, at native speed.

The rules, with C_q the clock of process q, counting only this chunk's sends, and M_q its marks (state.py).
  send of m by i       C_i[i] += 1, the ordinal of m; m takes C_i and M_i along
  delivery of m at q   the first one there, and m sent here:
      overtaken        if q has news of m already: C_q[i] >= ordinal of m, or, where q is i itself, seen_q >= ordinal.
                       Then a later message of i may have been delivered at q, too: a FIFO break.
      news             C_q, M_q and seen_q take in what m brought: the greater of two entries, all of the marks
  ... and m crossing   m was sent before everything that was sent here: overtaken for certain if C_q[i] > 0. If not, it
                       depends on the symbols in M_q: deferred, with M_q as it is, to who knows the clocks. Then
                       M_q takes in the symbol of m.
  a repeated delivery  is a duplicate, and changes nothing
  at a stranger        q is no destination: unaddressed, and for the rest like any other
A message that all its destinations have delivered is forgotten. If it is delivered once more, it is *late*: a
duplicate, or unaddressed, which only a search for its send can tell. It is told from a crossing one by its number, if
its sender counts one by one. If not, it gets a symbol of its own, and the search is the same.

The functions return a status: 0, or what is to be done (more room) before the same row is tried again, so they look
for room before they change anything.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit

from antecede.spark.verification.findings import DUPLICATE, FIFO_BREAK, UNADDRESSED, VIOLATION
from antecede.spark.verification.state import (
    CONTIGUOUS,
    DEFERRED,
    DELIVERIES,
    FIRST,
    FREE,
    GROWING,
    HIGH,
    KEPT,
    LEFT,
    LOW,
    NUMBER,
    ORDINAL,
    POSITION,
    PROCESS_WORDS,
    RECORDS,
    SENDER,
    SENT_AT,
    STATUS,
    SYMBOLS,
    TARGET,
    USED,
    WATCHING,
    WORDS,
)
from antecede.spark.verification.table import EMPTY, find, insert, remove, value_at
from antecede.spark.verification.watch import answer, follow, target, wanting
from antecede.trace.schema import RECEIVE, SEND

__all__ = ["scan"]

CROSSING: Final = 1 << 30
"""Set in the value of `table` for a symbol, not a slab."""

LATE: Final = 6
"""A kind of record besides KINDS."""

OVERTAKEN_FOR_CERTAIN, LATER_FOR_CERTAIN = 1, 2
"""Flags of a deferred check."""

# What a status asks for, or says.
MORE_SLABS, MORE_TABLE, MORE_RECORDS, MORE_SYMBOLS, MORE_DEFERRED, MORE_WATCHED = 1, 2, 3, 4, 5, 6
SECOND_SEND, EARLY_DELIVERY, WRONG_SENDER = 7, 8, 9


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def scan(rows, begin, state, watched):  # type: ignore[no-untyped-def]
    """Read rows from `begin`. Returns the row that wants something, see STATUS, or how many there are."""
    state.counts[STATUS] = 0
    for row in range(begin, len(rows.kind)):
        if rows.control[row] or rows.kind[row] == RECEIVE:
            continue
        if rows.kind[row] == SEND:
            status = send(rows, row, state, watched)
        else:
            status = deliver(rows, row, state, watched)
        if status:
            state.counts[STATUS] = status
            return row
    return len(rows.kind)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def send(rows, row, state, watched):  # type: ignore[no-untyped-def]
    counts, q, number = state.counts, rows.process[row], rows.number[row]
    if counts[FREE] == 0:
        return MORE_SLABS
    if 2 * counts[USED] >= len(state.table):
        return MORE_TABLE
    if counts[WATCHING] and wanting(watched):
        return MORE_WATCHED
    if rows.sender[row] != q:
        return WRONG_SENDER
    at = find(state.table, q, number)
    if state.table[at, 1] != EMPTY:
        return EARLY_DELIVERY if value_at(state.table, at) & CROSSING else SECOND_SEND
    count(state, q, number)
    slab = state.free[counts[FREE] - 1]
    position = counts[POSITION] + row
    board(state, slab, q, number, position)
    address(state, slab, rows.to, rows.offsets[row], rows.offsets[row + 1])
    if len(state.keep):
        state.flights[slab, KEPT] = state.keep[find(state.keep, q, number), 1] != EMPTY
    if counts[WATCHING]:
        state.flights[slab, TARGET] = target(watched, position, q - counts[LOW], state.sends[q])
    if state.flights[slab, LEFT] or state.flights[slab, KEPT]:  # To nobody: nobody will ask.
        insert(state.table, at, q, number, slab)
        counts[FREE] -= 1
        counts[USED] += 1
    return 0


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def count(state, q, number):  # type: ignore[no-untyped-def]
    """One more send of q, of this number."""
    counts = state.counts
    if state.sends[q] == 0:
        state.numbers[q, 0] = number
    else:
        if number != state.numbers[q, 0] + state.sends[q]:
            state.steady[q] &= ~np.uint8(CONTIGUOUS)
        if number <= state.numbers[q, 1]:
            state.steady[q] &= ~np.uint8(GROWING)
    if state.sends[q] == 0 or number > state.numbers[q, 1]:
        state.numbers[q, 1] = number
    state.sends[q] += 1
    if counts[LOW] <= q < counts[HIGH]:
        state.clocks[q, q - counts[LOW]] = state.sends[q]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def board(state, slab, q, number, position):  # type: ignore[no-untyped-def]
    """The message takes what its sender knows along. Only the marks in use: later ones it cannot have."""
    flight = state.flights[slab]
    flight[SENDER], flight[NUMBER], flight[ORDINAL] = q, number, state.sends[q]
    flight[KEPT], flight[TARGET], flight[SENT_AT] = 0, -1, position
    clock, taken = state.clocks[q], state.flight_clocks[slab]
    for entry in range(len(clock)):
        taken[entry] = clock[entry]
    words = words_in_use(state)
    flight[WORDS] = words
    for word in range(words):
        state.flight_marks[slab, word] = state.marks[q, word]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def words_in_use(state):  # type: ignore[no-untyped-def]
    counts = state.counts
    return 0 if counts[FIRST] else counts[PROCESS_WORDS] + (counts[SYMBOLS] + 63) // 64


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def address(state, slab, to, begin, end):  # type: ignore[no-untyped-def]
    """Its destinations, each once."""
    missing, given, left = state.missing[slab], state.given[slab], 0
    for word in range(len(missing)):
        missing[word] = 0
        given[word] = 0
    for at in range(begin, end):
        if not has(missing, to[at]):
            flip(missing, to[at])
            left += 1
    state.flights[slab, LEFT] = left


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def has(bits, q):  # type: ignore[no-untyped-def]
    return (bits[q >> 6] >> np.uint64(q & 63)) & np.uint64(1) != 0


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def flip(bits, q):  # type: ignore[no-untyped-def]
    bits[q >> 6] ^= np.uint64(1) << np.uint64(q & 63)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def deliver(rows, row, state, watched):  # type: ignore[no-untyped-def]
    counts, q, i, number = state.counts, rows.process[row], rows.sender[row], rows.number[row]
    if counts[RECORDS] + 2 > len(state.records):
        return MORE_RECORDS
    if counts[WATCHING] and wanting(watched):
        return MORE_WATCHED
    at = find(state.table, i, number)
    slab = value_at(state.table, at)
    if slab == EMPTY or slab & CROSSING:
        return cross(rows, row, at, state)
    counts[DELIVERIES] += 1
    flight = state.flights[slab]
    if has(state.missing[slab], q):
        flip(state.missing[slab], q)
        flight[LEFT] -= 1
    elif has(state.given[slab], q):
        record(state, DUPLICATE, rows, row, 0)
        return 0
    else:
        record(state, UNADDRESSED, rows, row, 0)
    flip(state.given[slab], q)
    judge(rows, row, slab, state, watched)
    if counts[WATCHING]:
        follow(rows, row, slab, state, watched)
    merge(state, q, slab)
    if flight[LEFT] == 0 and not flight[KEPT]:
        remove(state.table, at)
        state.free[counts[FREE]] = slab
        counts[FREE] += 1
        counts[USED] -= 1
    return 0


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def judge(rows, row, slab, state, watched):  # type: ignore[no-untyped-def]
    """Whether the message comes too late."""
    counts, q, i = state.counts, rows.process[row], rows.sender[row]
    if i < counts[LOW] or i >= counts[HIGH]:
        return
    entry, ordinal = i - counts[LOW], state.flights[slab, ORDINAL]
    known = state.seen[q] if q == i else state.clocks[q, entry]
    if known >= ordinal:
        later = state.latest[q, entry] > ordinal
        record(state, FIFO_BREAK if later else VIOLATION, rows, row, state.flights[slab, SENT_AT])
        if counts[WATCHING] and state.flights[slab, TARGET] >= 0:
            answer(rows, row, state.flights[slab, TARGET], later, watched)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def merge(state, q, slab):  # type: ignore[no-untyped-def]
    """The process learns what the message brought."""
    counts, clock, brought = state.counts, state.clocks[q], state.flight_clocks[slab]
    if counts[LOW] <= q < counts[HIGH]:
        state.seen[q] = max(state.seen[q], brought[q - counts[LOW]])
    i = state.flights[slab, SENDER]
    if counts[LOW] <= i < counts[HIGH]:
        entry = i - counts[LOW]
        state.latest[q, entry] = max(state.latest[q, entry], state.flights[slab, ORDINAL])
    for entry in range(len(clock)):
        clock[entry] = max(clock[entry], brought[entry])
    for word in range(state.flights[slab, WORDS]):
        state.marks[q, word] |= state.flight_marks[slab, word]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def cross(rows, row, at, state):  # type: ignore[no-untyped-def]
    """A delivery of a message that is not in flight here: crossing, late, or never sent."""
    counts, q, i, number = state.counts, rows.process[row], rows.sender[row], rows.number[row]
    if state.table[at, 1] == EMPTY:
        if counts[FIRST] or sent_here(state, i, number):
            counts[DELIVERIES] += 1
            record(state, LATE, rows, row, counts[POSITION] + row)
            return 0
        if 2 * counts[USED] >= len(state.table):
            return MORE_TABLE
        if counts[SYMBOLS] == len(state.symbols):
            return MORE_SYMBOLS
    if counts[DEFERRED] == len(state.deferred):
        return MORE_DEFERRED
    if state.table[at, 1] == EMPTY:
        insert(state.table, at, i, number, CROSSING | counts[SYMBOLS])
        state.symbols[counts[SYMBOLS], 0], state.symbols[counts[SYMBOLS], 1] = i, number
        counts[SYMBOLS] += 1
        counts[USED] += 1
    counts[DELIVERIES] += 1
    symbol = value_at(state.table, at) ^ CROSSING
    if has(state.symbol_given[symbol], q):
        record(state, DUPLICATE, rows, row, 0)
        return 0
    flip(state.symbol_given[symbol], q)
    defer(rows, row, symbol, state)
    bit = 64 * counts[PROCESS_WORDS] + symbol
    if not has(state.marks[q], bit):
        flip(state.marks[q], bit)
    return 0


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def sent_here(state, i, number):  # type: ignore[no-untyped-def]
    """Whether its number says that it was sent in this chunk."""
    since = number - state.numbers[i, 0]
    return state.steady[i] & CONTIGUOUS and 0 <= since < state.sends[i]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def defer(rows, row, symbol, state):  # type: ignore[no-untyped-def]
    """Note what the judgement of a crossing message will depend on."""
    counts, q, i = state.counts, rows.process[row], rows.sender[row]
    flags = 0
    if (state.seen[q] if q == i else state.clocks[q, i]) > 0:
        flags |= OVERTAKEN_FOR_CERTAIN
    if state.latest[q, i] > 0:
        flags |= LATER_FOR_CERTAIN
    check = state.deferred[counts[DEFERRED]]
    check[0], check[1], check[2], check[3] = q, symbol, rows.index[row], counts[POSITION] + row
    check[4] = flags
    for word in range(words_in_use(state)):
        state.deferred_marks[counts[DEFERRED], word] = state.marks[q, word]
    counts[DEFERRED] += 1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def record(state, kind, rows, row, position):  # type: ignore[no-untyped-def]
    """A finding, unless it is about another block's message."""
    counts = state.counts
    if counts[LOW] <= rows.sender[row] < counts[HIGH] and not counts[WATCHING]:
        found = state.records[counts[RECORDS]]
        found[0], found[1], found[2] = kind, rows.process[row], rows.sender[row]
        found[3], found[4], found[5] = rows.number[row], rows.index[row], position
        counts[RECORDS] += 1
