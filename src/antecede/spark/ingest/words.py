"""Text eight bytes at a time, for kernels: what is found in a word is found in a few instructions, without a branch.

A word is eight bytes of a buffer, the first of them lowest. Each function that marks bytes gives a word with the
highest bit of those bytes set, and of no others (H. S. Warren, Hacker's Delight, 6-1). Words are read up to seven bytes
beyond what was asked for: every buffer that is given to these functions ends with `PAD` bytes more than it has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from antecede.jit import inlined

__all__ = [
    "PAD",
    "byte",
    "byte_end",
    "copied",
    "first",
    "hashed",
    "load",
    "marks_of",
    "number_in",
    "plain_end",
    "same",
]

PAD: Final = 16

ONES: Final = np.uint64(0x0101010101010101)
HIGH: Final = np.uint64(0x8080808080808080)
LOW: Final = np.uint64(0x7F7F7F7F7F7F7F7F)
ALL: Final = np.uint64(0xFFFFFFFFFFFFFFFF)
QUOTES: Final = np.uint64(0x2222222222222222)
BACKSLASHES: Final = np.uint64(0x5C5C5C5C5C5C5C5C)
SPACES: Final = np.uint64(0x6060606060606060)
ZEROS: Final = np.uint64(0x3030303030303030)
NINES: Final = np.uint64(0x7676767676767676)
MIXED: Final = np.uint64(0x9E3779B97F4A7C15)
PAIRS: Final = np.uint64(0x000000FF000000FF)
HUNDREDS: Final = np.uint64(100 + (1000000 << 32))
UNITS: Final = np.uint64(1 + (10000 << 32))
EIGHT: Final = np.uint64(8)
POWERS: Final = np.array([10**digits for digits in range(9)])


def instruction(make: Callable[..., Any]) -> Any:
    """A function that is a few instructions wherever it is called."""
    return intrinsic(make)


def pointer(context: Any, builder: Any, kind: Any, array: Any, at: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), ir.IntType(64).as_pointer())


def lowest_first(builder: Any, word: Any) -> Any:
    return word if sys.byteorder == "little" else builder.bswap(word)


@instruction
def load(_: Any, buffer: Any, at: Any) -> Any:
    """The word that begins at a byte."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        where = pointer(context, builder, signature.args[0], *arguments)
        return lowest_first(builder, builder.load(where, align=1))

    return types.uint64(buffer, types.int64), generate


@instruction
def byte(_: Any, buffer: Any, at: Any) -> Any:
    """One byte. (An index in brackets may count from the end, and is looked at for that each time.)"""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.load(builder.gep(data, [arguments[1]]))

    return types.uint8(buffer, types.int64), generate


@instruction
def store(_: Any, buffer: Any, at: Any, word: Any) -> Any:
    """Write a word from a byte on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        where = pointer(context, builder, signature.args[0], *arguments[:2])
        builder.store(lowest_first(builder, arguments[2]), where, align=1)
        return context.get_dummy_value()

    return types.void(buffer, types.int64, types.uint64), generate


@instruction
def first(_: Any, marks: Any) -> Any:
    """Which byte is the first that is marked: 0 to 7, or 8 for none."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        zeros = builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))
        return builder.lshr(zeros, ir.Constant(ir.IntType(64), 3))

    return types.int64(types.uint64), generate


@inlined
def marks_of(word: Any, signs: Any) -> Any:
    """Mark the bytes that are as those of `signs`."""
    differ = word ^ signs
    return ~(((differ & LOW) + LOW) | differ) & HIGH


@inlined
def not_plain(word: Any) -> Any:
    """Mark the bytes that do not stand for themselves in a string of JSON: quotes, backslashes, and not ASCII."""
    low = word & LOW
    strange = word | ~(low + SPACES) | (low + ONES)
    return (strange & HIGH) | marks_of(word, QUOTES) | marks_of(word, BACKSLASHES)


@inlined
def plain_end(buffer: Any, at: int, end: int) -> int:
    """Where the first byte is that does not stand for itself in a string of JSON, or any place from `end` on."""
    while at < end:
        marks = not_plain(load(buffer, at))
        if marks:
            return at + first(marks)  # type: ignore[no-any-return]
        at += 8
    return at


@inlined
def byte_end(buffer: Any, at: int, end: int, signs: Any) -> int:
    """Where this byte is first, or any place from `end` on. `signs` has it eight times."""
    while at < end:
        marks = marks_of(load(buffer, at), signs)
        if marks:
            return at + first(marks)  # type: ignore[no-any-return]
        at += 8
    return at


@inlined
def beginning(word: Any, size: int) -> Any:
    """The first bytes of a word, 1 to 8 of them, and nothing else."""
    return word & (ALL >> np.uint64(64 - 8 * size))


@inlined
def same(buffer: Any, start: int, end: int, other: Any, begin: int, over: int) -> bool:
    """Whether two texts are the same."""
    if end - start != over - begin:
        return False
    while end - start > 8:
        if load(buffer, start) != load(other, begin):
            return False
        start += 8
        begin += 8
    return end == start or beginning(load(buffer, start) ^ load(other, begin), end - start) == 0


@inlined
def hashed(buffer: Any, start: int, end: int) -> Any:
    """A number for a text. Its high half is the better one."""
    told = np.uint64(end - start)
    while end - start > 8:
        told = (told ^ load(buffer, start)) * MIXED
        told ^= told >> np.uint64(32)
        start += 8
    if end > start:
        told = (told ^ beginning(load(buffer, start), end - start)) * MIXED
    return told ^ (told >> np.uint64(32))


@inlined
def number_in(buffer: Any, at: int, end: int) -> tuple[int, int]:
    """A number of up to 18 digits without a sign, and where it ends; (-1, at) if there is none."""
    number, start = 0, at
    while at < end:
        digits = load(buffer, at) ^ ZEROS
        size = min(first(((digits & LOW) + NINES | digits) & HIGH), end - at)
        if size == 0:
            break
        if size < 8:
            digits <<= np.uint64(64 - 8 * size)
        digits = digits * np.uint64(10) + (digits >> EIGHT)
        digits = (digits & PAIRS) * HUNDREDS + ((digits >> np.uint64(16)) & PAIRS) * UNITS
        number = number * POWERS[size] + np.int64(digits >> np.uint64(32))
        at += size
        if size < 8 or at - start > 18:
            break
    if at == start or at - start > 18 or (byte(buffer, start) == 48 and at > start + 1):
        return -1, start
    return number, at


@inlined
def copied(buffer: Any, start: int, end: int, out: Any, at: int) -> int:
    """Copy a text, and where it ends there. Up to seven bytes after it are spoilt."""
    while start < end:
        store(out, at, load(buffer, start))
        start += 8
        at += 8
    return at - (start - end)
