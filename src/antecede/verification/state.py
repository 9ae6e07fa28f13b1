"""What a scan keeps, as arrays that the native kernel writes.

Of each process q, in rows of these
  clocks   how many of each origin's sends of this chunk q knows of: a vector clock over sends
  marks    which *symbols* it has merged in: bits. Symbols stand for clocks that this chunk cannot know. The first ones,
           one a process, are the clocks with which the processes enter; the others are those of *crossing* messages,
           delivered here and sent in an earlier chunk, in the order in which they turn up.
  seen     how many of its own sends it knows of from messages delivered to it: its own sends are no news
  sends    how many it has sent; a message's *ordinal* is its position among these, from 1
  numbers  the first and the greatest `number` it used, `steady` whether they grew one by one, or at all
  depth    the longest chain of messages that ends in one that it sent or delivered, in a scan that counts chains
Of each message in flight (sent here, and not yet delivered everywhere), in a *slab*
  flights  sender, number, ordinal, how many deliveries are missing ...: the names below
  flight_clocks, flight_marks    its sender's, right after the send
  missing, given                 where it is still to be delivered; where it has been: bits
Slabs are used again last in, first out, so that they stay in the cache. `table` finds a message's slab, or its symbol.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antecede.jit.hashtable import new_table

__all__ = ["State", "Columns", "new_state", "words_for", "grown"]

Array: TypeAlias = NDArray[Any]

# Fields of `counts`.
FREE, USED, SYMBOLS, RECORDS, DEFERRED, DELIVERIES, STATUS, PAST = range(8)
# Settings of a scan, in `counts` too: the block's first origin and the one after its last, and whether it is the
# first chunk; how many words of marks belong to processes; how many rows were read before this batch; whether the scan
# counts chains, and the longest one so far.
LOW, HIGH, FIRST, PROCESS_WORDS, POSITION, COUNTING, LONGEST = range(8, 15)

# Fields of a flight.
SENDER, NUMBER, ORDINAL, LEFT, WORDS, KEPT, DEPTH, SENT_AT = range(8)

# Flags of `steady`.
CONTIGUOUS, GROWING = 1, 2

WORD: Final = 64
LANES: Final = 16
"""Clocks are as wide as a multiple of this: whole vectors for the processor."""


class Columns(NamedTuple):
    """The columns of a batch of rows, none of them writable: Numba compiles anew for arrays that differ in this."""

    process: Array
    kind: Array
    sender: Array
    number: Array
    control: Array
    offsets: Array
    to: Array
    indices: Array


class State(NamedTuple):
    counts: Array
    clocks: Array
    marks: Array
    seen: Array
    sends: Array
    numbers: Array
    steady: Array
    depth: Array
    flights: Array
    flight_clocks: Array
    flight_marks: Array
    missing: Array
    given: Array
    free: Array
    table: Array
    keep: Array
    symbols: Array
    records: Array
    deferred: Array
    deferred_marks: Array


def words_for(bits: int) -> int:
    return -(-bits // WORD)


def pad_lanes(n: int) -> int:
    return max(LANES, -(-n // LANES) * LANES)


def new_state(n: int, width: int, symbols: int) -> State:
    """Of n processes that have done nothing, clocks so wide, room for so many crossing messages at first."""
    slabs, words = 64, words_for(n)
    bits = (words + words_for(symbols)) if symbols else 0
    return State(
        counts=np.zeros(15, np.int64),
        clocks=np.zeros((n, width), np.int32),
        marks=np.zeros((n, bits), np.uint64),
        seen=np.zeros(n, np.int32),
        sends=np.zeros(n, np.int32),
        numbers=np.zeros((n, 2), np.int64),
        steady=np.full(n, CONTIGUOUS | GROWING, np.uint8),
        depth=np.zeros(n, np.int64),
        flights=np.zeros((slabs, 8), np.int64),
        flight_clocks=np.zeros((slabs, width), np.int32),
        flight_marks=np.zeros((slabs, bits), np.uint64),
        missing=np.zeros((slabs, words), np.uint64),
        given=np.zeros((slabs, words), np.uint64),
        free=np.arange(slabs, dtype=np.int32)[::-1].copy(),
        table=new_table(slabs),
        keep=np.zeros((0, 2), np.int64),
        symbols=np.zeros((symbols, 2), np.int64),
        records=np.zeros((64, 7), np.int64),
        deferred=np.zeros((64 if symbols else 0, 5), np.int64),
        deferred_marks=np.zeros((64 if symbols else 0, bits), np.uint64),
    )


def grown(array: Array, *shape: int) -> Array:
    """The same in the corner of a larger one of zeros."""
    larger = np.zeros(shape, array.dtype)
    larger[tuple(slice(length) for length in array.shape)] = array
    return larger
