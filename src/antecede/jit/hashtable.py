"""The hash table of all kernels: from a pair of integers to a small integer, in one array of int64.

Open addressing, linear probing. The key is (sender, number), or any other pair of an integer from 0 to 2³¹ - 1 and an
int64; the value is 0 to 2³¹ - 1. A slot has two columns, the number and the sender (upper half) with the value (lower
half), so that one cache line answers a look-up.

    at = find(table, sender, number)         its slot or, if it is not there, the empty one where it belongs
    if value_at(table, at) == EMPTY:
        insert(table, at, sender, number, value)
    remove(table, at)

Removal moves later entries back, so there are no tombstones, and a table that messages pass through stays as fast as it
was. Its length is a power of two, and at most a quarter of it is used: then most look-ups end at once, which the
processor bets on. Whoever inserts sees to that: `is_full` tells, `grown` gives a table twice as long.

>>> table = new_table(10)
>>> insert(table, find(table, 3, -7), 3, -7, 42)
>>> int(value_at(table, find(table, 3, -7))), int(value_at(table, find(table, 3, 8)))
(42, -1)
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antecede.jit import inlined, native

__all__ = [
    "EMPTY", "find", "grown", "insert", "is_full", "look_up", "new_table", "rehash", "remove", "table_of", "value_at",
]  # fmt: skip

Array: TypeAlias = NDArray[Any]

EMPTY: Final = -1
VALUE: Final = (1 << 31) - 1
SENDERS: Final = np.uint64(0x9E3779B97F4A7C15)
NUMBERS: Final = np.uint64(0xBF58476D1CE4E5B9)
HALF: Final = np.uint64(32)


def new_table(entries: int) -> Array:
    """Empty, with room for so many."""
    length = 64
    while length < 4 * entries:
        length *= 2
    table = np.zeros((length, 2), np.int64)
    table[:, 1] = EMPTY
    return table


def grown(table: Array) -> Array:
    """The same entries in a table twice as long."""
    larger = new_table(len(table) // 2)
    rehash(table, larger)
    return larger


@inlined
def is_full(table, used):  # type: ignore[no-untyped-def]
    """Whether a table with so many entries must grow before the next one."""
    return 4 * used >= len(table)


@inlined
def home(sender, number, mask):  # type: ignore[no-untyped-def]
    """Where the search for a message begins: the upper bits of a product, which spread any sequence (Knuth 6.4)."""
    mixed = (np.uint64(number) * NUMBERS + np.uint64(sender) * SENDERS) >> HALF
    return np.int64((mixed * np.uint64(mask + 1)) >> HALF)


@inlined
def find(table, sender, number):  # type: ignore[no-untyped-def]
    """The slot of the key or, if it is not there, the empty one where it belongs."""
    mask = len(table) - 1
    at = home(sender, number, mask)
    while table[at, 1] != EMPTY and (table[at, 0] != number or table[at, 1] >> 32 != sender):
        at = (at + 1) & mask
    return at


@inlined
def value_at(table, at):  # type: ignore[no-untyped-def]
    """What is there, or EMPTY."""
    packed = table[at, 1]
    return packed if packed == EMPTY else packed & VALUE


@inlined
def insert(table, at, sender, number, value):  # type: ignore[no-untyped-def]
    """At the empty slot that `find` gave."""
    table[at, 0] = number
    table[at, 1] = (np.int64(sender) << 32) | value


@inlined
def remove(table, at):  # type: ignore[no-untyped-def]
    """Empty the slot, and move back what probing would no longer reach."""
    mask = len(table) - 1
    hole = at
    while True:
        at = (at + 1) & mask
        if table[at, 1] == EMPTY:
            break
        begin = home(table[at, 1] >> 32, table[at, 0], mask)
        if (at - begin) & mask >= (at - hole) & mask:
            table[hole, 0], table[hole, 1] = table[at, 0], table[at, 1]
            hole = at
    table[hole, 1] = EMPTY


@native
def rehash(old, table):  # type: ignore[no-untyped-def]
    """Move everything into a larger table."""
    for slot in range(len(old)):
        if old[slot, 1] != EMPTY:
            at = find(table, old[slot, 1] >> 32, old[slot, 0])
            table[at, 0], table[at, 1] = old[slot, 0], old[slot, 1]


@native
def fill(table, sender, number):  # type: ignore[no-untyped-def]
    for value in range(len(sender)):
        at = find(table, sender[value], number[value])
        if table[at, 1] == EMPTY:
            insert(table, at, sender[value], number[value], value)


def table_of(sender: Array, number: Array) -> Array:
    """Identity -> its first position in these columns."""
    table = new_table(len(sender))
    fill(table, np.ascontiguousarray(sender, np.int32), np.ascontiguousarray(number, np.int64))
    return table


def look_up(table: Array, sender: Array, number: Array) -> Array:
    """The values of identities, or EMPTY."""
    values = np.empty(len(sender), np.int64)
    read(table, np.ascontiguousarray(sender, np.int32), np.ascontiguousarray(number, np.int64), values)
    return values


@native
def read(table, sender, number, values):  # type: ignore[no-untyped-def]
    for row in range(len(sender)):
        values[row] = value_at(table, find(table, sender[row], number[row]))
