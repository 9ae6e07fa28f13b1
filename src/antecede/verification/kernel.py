"""The scan of one chunk, row by row, at native speed.

The rules, with C_q the clock of process q, counting only this chunk's sends, and M_q its marks (state.py).
  send of m by i       C_i[i] += 1, the ordinal of m; m takes C_i and M_i along
  delivery of m at q   the first one there, and m sent here:
      overtaken        if q has news of m already: C_q[i] >= ordinal of m, or, where q is i itself, seen_q >= ordinal.
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

from antecede.jit import inlined, native
from antecede.jit.hashtable import EMPTY, VALUE, find, insert, is_full, remove, value_at
from antecede.trace.schema import RECEIVE, SEND
from antecede.verification.findings import DUPLICATE, UNADDRESSED, VIOLATION
from antecede.verification.state import (
    CONTIGUOUS,
    COUNTING,
    DEFERRED,
    DELIVERIES,
    DEPTH,
    FIRST,
    FREE,
    GROWING,
    HIGH,
    KEPT,
    LEFT,
    LONGEST,
    LOW,
    NUMBER,
    ORDINAL,
    PAST,
    POSITION,
    PROCESS_WORDS,
    RECORDS,
    SENDER,
    SENT_AT,
    STATUS,
    SYMBOLS,
    USED,
    WORDS,
)

__all__ = ["scan"]

CROSSING: Final = 1 << 30
"""Set in the value of `table` for a symbol, not a slab."""

LATE: Final = 6
"""A kind of record besides KINDS."""

# What a status asks for, or says.
MORE_SLABS, MORE_TABLE, MORE_RECORDS, MORE_SYMBOLS, MORE_DEFERRED = 1, 2, 3, 4, 5
SECOND_SEND, EARLY_DELIVERY, WRONG_SENDER = 6, 7, 8


@native
def scan(rows, begin, state):  # type: ignore[no-untyped-def]
    """Read rows from `begin`. Returns the row that wants something, see STATUS, or how many there are."""
    for row in range(begin, len(rows.kind)):
        if rows.control[row] or rows.kind[row] == RECEIVE:
            continue
        at = find(state.table, rows.sender[row], rows.number[row])
        if rows.kind[row] == SEND:
            status = send(rows, row, at, state)
        else:
            status = deliver(rows, row, at, state)
        if status:
            state.counts[STATUS] = status
            return row
    return len(rows.kind)


@inlined
def send(rows, row, at, state):  # type: ignore[no-untyped-def]
    """`at` is the empty slot of the table where the message belongs."""
    counts, q, number = state.counts, np.int64(rows.process[row]), rows.number[row]
    if counts[FREE] == 0:
        return MORE_SLABS
    if is_full(state.table, counts[USED]):
        return MORE_TABLE
    if rows.sender[row] != q:
        return WRONG_SENDER
    if state.table[at, 1] != EMPTY:
        return EARLY_DELIVERY if state.table[at, 1] & CROSSING else SECOND_SEND
    count(state.sends, state.numbers, state.steady, q, number)
    if counts[LOW] <= q < counts[HIGH]:
        state.clocks[q, q - counts[LOW]] = state.sends[q]
    slab = np.int64(state.free[counts[FREE] - 1])
    board(state, slab, q, number, counts[POSITION] + row)
    left = address(state.missing, state.given, slab, rows.to, rows.offsets[row], rows.offsets[row + 1])
    kept = len(state.keep) > 0 and state.keep[find(state.keep, q, number), 1] != EMPTY
    state.flights[slab, LEFT], state.flights[slab, KEPT] = left, kept
    if counts[COUNTING]:
        count_past(state, slab, q)
    # A message without destinations is never delivered, so nobody looks it up.
    if left or kept:
        insert(state.table, at, q, number, slab)
        counts[FREE] -= 1
        counts[USED] += 1
    return 0


@inlined
def board(state, slab, q, number, position):  # type: ignore[no-untyped-def]
    """The message takes along what its sender knows: only the marks in use, the others of a slab are zero."""
    flights, clocks, taken = state.flights, state.clocks, state.flight_clocks
    flights[slab, SENDER], flights[slab, NUMBER], flights[slab, ORDINAL] = q, number, state.sends[q]
    flights[slab, SENT_AT] = position
    for entry in range(clocks.shape[1]):
        taken[slab, entry] = clocks[q, entry]
    words = words_in_use(state.counts)
    flights[slab, WORDS] = words
    for word in range(words):
        state.flight_marks[slab, word] = state.marks[q, word]


@inlined
def deliver(rows, row, at, state):  # type: ignore[no-untyped-def]
    """`at` is the slot of the table where the message is, or should be."""
    counts, q, flights = state.counts, np.int64(rows.process[row]), state.flights
    if counts[RECORDS] + 2 > len(state.records):
        return MORE_RECORDS
    found = state.table[at, 1]
    if found == EMPTY or found & CROSSING:
        return cross(rows, row, at, state)
    counts[DELIVERIES] += 1
    slab = found & VALUE
    if has(state.missing, slab, q):
        flip(state.missing, slab, q)
        flights[slab, LEFT] -= 1
    elif has(state.given, slab, q):
        record(counts, state.records, DUPLICATE, rows, row, 0)
        return 0
    else:
        record(counts, state.records, UNADDRESSED, rows, row, 0)
    flip(state.given, slab, q)
    judge(rows, row, slab, state)
    merge(state, q, slab)
    if counts[COUNTING]:
        state.depth[q] = max(state.depth[q], flights[slab, DEPTH])
    if flights[slab, LEFT] == 0 and not flights[slab, KEPT]:
        remove(state.table, at)
        state.free[counts[FREE]] = slab
        counts[FREE] += 1
        counts[USED] -= 1
    return 0


@inlined
def judge(rows, row, slab, state):  # type: ignore[no-untyped-def]
    """Whether the message comes too late."""
    counts, q, i = state.counts, np.int64(rows.process[row]), np.int64(rows.sender[row])
    if i < counts[LOW] or i >= counts[HIGH]:
        return
    entry, ordinal = i - counts[LOW], state.flights[slab, ORDINAL]
    known = state.seen[q] if q == i else state.clocks[q, entry]
    if known >= ordinal:
        record(counts, state.records, VIOLATION, rows, row, state.flights[slab, SENT_AT])


@inlined
def merge(state, q, slab):  # type: ignore[no-untyped-def]
    """The process learns what the message brought."""
    counts, clocks, taken, flights = state.counts, state.clocks, state.flight_clocks, state.flights
    if counts[LOW] <= q < counts[HIGH]:
        state.seen[q] = max(state.seen[q], taken[slab, q - counts[LOW]])
    for entry in range(clocks.shape[1]):
        clocks[q, entry] = max(clocks[q, entry], taken[slab, entry])
    for word in range(flights[slab, WORDS]):
        state.marks[q, word] |= state.flight_marks[slab, word]


@inlined
def count(sends, numbers, steady, q, number):  # type: ignore[no-untyped-def]
    """One more send of q, of this number."""
    if sends[q] == 0:
        numbers[q, 0] = number
        numbers[q, 1] = number
    else:
        if number != numbers[q, 0] + sends[q]:
            steady[q] &= ~np.uint8(CONTIGUOUS)
        if number <= numbers[q, 1]:
            steady[q] &= ~np.uint8(GROWING)
        numbers[q, 1] = max(number, numbers[q, 1])
    sends[q] += 1


@native
def count_past(state, slab, q):  # type: ignore[no-untyped-def]
    """How many messages of the block are before this one of q, and how long is the chain that ends in it."""
    counts, clocks = state.counts, state.clocks
    state.depth[q] += 1
    state.flights[slab, DEPTH] = state.depth[q]
    counts[LONGEST] = max(counts[LONGEST], state.depth[q])
    # Its clock counts the message itself.
    past = np.int64(-1) if counts[LOW] <= q < counts[HIGH] else np.int64(0)
    for entry in range(clocks.shape[1]):
        past += clocks[q, entry]
    counts[PAST] += past


@inlined
def words_in_use(counts):  # type: ignore[no-untyped-def]
    return 0 if counts[FIRST] else counts[PROCESS_WORDS] + (counts[SYMBOLS] + 63) // 64


@inlined
def address(missing, given, slab, to, begin, end):  # type: ignore[no-untyped-def]
    """The message's destinations, each once. Returns how many."""
    left = 0
    for word in range(missing.shape[1]):
        missing[slab, word] = 0
        given[slab, word] = 0
    for at in range(begin, end):
        if not has(missing, slab, to[at]):
            flip(missing, slab, to[at])
            left += 1
    return left


@inlined
def has(bits, row, q):  # type: ignore[no-untyped-def]
    return (bits[row, q >> 6] >> np.uint64(q & 63)) & np.uint64(1) != 0


@inlined
def flip(bits, row, q):  # type: ignore[no-untyped-def]
    bits[row, q >> 6] ^= np.uint64(1) << np.uint64(q & 63)


@native
def cross(rows, row, at, state):  # type: ignore[no-untyped-def]
    """A delivery of a message that is not in flight here: crossing, late, or never sent."""
    counts, q, i, number = state.counts, rows.process[row], rows.sender[row], rows.number[row]
    if state.table[at, 1] == EMPTY:
        if counts[FIRST] or sent_here(state, i, number):
            counts[DELIVERIES] += 1
            record(counts, state.records, LATE, rows, row, 0)
            return 0
        if is_full(state.table, counts[USED]):
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
    defer(rows, row, symbol, state)
    bit = 64 * counts[PROCESS_WORDS] + symbol
    if not has(state.marks, q, bit):
        flip(state.marks, q, bit)
    return 0


@native
def sent_here(state, i, number):  # type: ignore[no-untyped-def]
    """Whether its number says that it was sent in this chunk."""
    since = number - state.numbers[i, 0]
    return state.steady[i] & CONTIGUOUS and 0 <= since < state.sends[i]


@native
def defer(rows, row, symbol, state):  # type: ignore[no-untyped-def]
    """Note what the judgement of a crossing message will depend on."""
    counts, q, i = state.counts, rows.process[row], rows.sender[row]
    check, certain = counts[DEFERRED], (state.seen[q] if q == i else state.clocks[q, i]) > 0
    state.deferred[check, 0], state.deferred[check, 1], state.deferred[check, 2] = (
        q,
        symbol,
        rows.indices[row],
    )
    state.deferred[check, 3], state.deferred[check, 4] = counts[POSITION] + row, certain
    for word in range(words_in_use(counts)):
        state.deferred_marks[check, word] = state.marks[q, word]
    counts[DEFERRED] += 1


@native
def record(counts, records, kind, rows, row, sent_at):  # type: ignore[no-untyped-def]
    """A finding, unless it is about another block's message. Late ones may bring news of this block's, though."""
    if counts[LOW] <= rows.sender[row] < counts[HIGH] or kind == LATE:
        at = counts[RECORDS]
        records[at, 0], records[at, 1], records[at, 2] = kind, rows.process[row], rows.sender[row]
        records[at, 3], records[at, 4] = rows.number[row], rows.indices[row]
        records[at, 5], records[at, 6] = counts[POSITION] + row, sent_at
        counts[RECORDS] += 1
