"""JSON at native speed: where the values of objects are, and vector clocks as integers.

For lines that are as most programs write them: ASCII, no escapes in what is looked at, integers of up to 18 digits. Of
such a line everything is checked, as strictly as RFC 8259 has it. Anything else is not refused but answered with "not
sure" (-1 or False), and the caller asks a reader that takes all of JSON. So this decides nothing by itself.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from antecede.jit import allocating, inlined, native
from antecede.spark.ingest.words import PAD, byte, copied, hashed, number_in, plain_end, same

__all__ = ["Names", "gathered", "interned", "members", "own_entry", "text_of"]

QUOTE, COLON, COMMA, BACKSLASH = 0x22, 0x3A, 0x2C, 0x5C
OPEN, CLOSE, BEGIN, END = 0x7B, 0x7D, 0x5B, 0x5D
DEPTH: Final = 60
"""How deep values may nest: one bit each says whether it is an object."""


@inlined
def space_end(buffer: Any, at: int, end: int) -> int:
    while at < end and byte(buffer, at) <= 32:
        sign = byte(buffer, at)
        if sign != 32 and sign != 9 and sign != 13 and sign != 10:
            break
        at += 1
    return at


@inlined
def string_end(buffer: Any, at: int, end: int) -> int:
    """After the closing quote of a plain string that opens here, or -1."""
    at = plain_end(buffer, at + 1, end)
    return at + 1 if at < end and byte(buffer, at) == QUOTE else -1


@inlined
def digits_end(buffer: Any, at: int, end: int) -> int:
    while at < end and 48 <= byte(buffer, at) <= 57:
        at += 1
    return at


@native
def number_end(buffer: Any, at: int, end: int) -> int:
    if at < end and byte(buffer, at) == 45:
        at += 1
    first = at
    at = digits_end(buffer, at, end)
    if at == first or (buffer[first] == 48 and at > first + 1):
        return -1
    if at < end and byte(buffer, at) == 46:
        over = digits_end(buffer, at + 1, end)
        if over == at + 1:
            return -1
        at = over
    if at < end and (byte(buffer, at) == 101 or byte(buffer, at) == 69):
        at += 1
        if at < end and (byte(buffer, at) == 43 or byte(buffer, at) == 45):
            at += 1
        over = digits_end(buffer, at, end)
        if over == at:
            return -1
        at = over
    return at


@native
def word_end(buffer: Any, at: int, end: int) -> int:
    """After true, false or null, or -1."""
    for word in (b"true", b"false", b"null"):
        if at + len(word) <= end:
            equal = True
            for place in range(len(word)):
                if buffer[at + place] != word[place]:
                    equal = False
                    break
            if equal:
                return at + len(word)
    return -1


@inlined
def value_end(buffer: Any, at: int, end: int) -> int:
    """After the value that begins here, or -1."""
    depth, objects = 0, 0
    value, item, key, first_key, after = 0, 1, 2, 3, 4
    state = value
    while True:
        at = space_end(buffer, at, end)
        if at >= end:
            return -1
        sign = byte(buffer, at)
        closes = False
        if state >= key and state != after:
            if sign == QUOTE:
                at = string_end(buffer, at, end)
                if at < 0:
                    return -1
                at = space_end(buffer, at, end)
                if at >= end or byte(buffer, at) != COLON:
                    return -1
                at += 1
                state = value
            elif sign == CLOSE and state == first_key:
                closes = True
            else:
                return -1
        elif state == after:
            if sign == COMMA:
                at += 1
                state = key if objects & 1 else value
            elif (sign == CLOSE and objects & 1) or (sign == END and not objects & 1):
                closes = True
            else:
                return -1
        elif sign == OPEN or sign == BEGIN:  # noqa: SIM109
            if depth == DEPTH:
                return -1
            depth += 1
            objects = objects << 1 | (1 if sign == OPEN else 0)
            state = first_key if sign == OPEN else item
            at += 1
        elif sign == END and state == item:
            closes = True
        else:
            if sign == QUOTE:
                at = string_end(buffer, at, end)
            elif sign == 45 or 48 <= sign <= 57:
                at = number_end(buffer, at, end)
            else:
                at = word_end(buffer, at, end)
            if at < 0 or depth == 0:
                return at
            state = after
        if closes:
            at += 1
            depth -= 1
            objects >>= 1
            if depth == 0:
                return at
            state = after


@inlined
def integer(buffer: Any, start: int, end: int) -> int:
    """All of this text as a number of up to 18 digits, or -1."""
    number, over = number_in(buffer, start, end)
    return number if over == end else -1


@inlined
def interned(buffer: Any, start: int, end: int, slots: Any, pool: Any, bounds: Any, count: Any) -> int:
    """The number of this name, a new one if need be; -1 if there is no room for another."""
    slot = np.int64(hashed(buffer, start, end) & np.uint64(len(slots) - 1))
    while slots[slot] >= 0:
        name = slots[slot]
        if same(buffer, start, end, pool, bounds[name], bounds[name + 1]):
            return name  # type: ignore[no-any-return]
        slot = (slot + 1) & (len(slots) - 1)
    name = count[0]
    first = bounds[name]
    if name + 1 >= len(bounds) or first + end - start > len(pool) - PAD:
        return -1
    for place in range(end - start):
        pool[first + place] = buffer[start + place]
    bounds[name + 1] = first + end - start
    slots[slot] = name
    count[0] = name + 1
    return name  # type: ignore[no-any-return]


@inlined
def vector(
    buffer: Any, at: int, end: int, row: int, table: Any, seen: Any, codes: Any, values: Any, used: int
) -> tuple[int, int]:
    """Enter a clock's entries from `used` on: where its text ends, and how many are used then; (-1, -1) if not sure.

    `seen` says for each name the last row that had it. Entries of 0 are left out.
    """
    slots, pool, bounds, count = table
    if at >= end or byte(buffer, at) != OPEN:
        return -1, -1
    at = space_end(buffer, at + 1, end)
    while at < end and byte(buffer, at) == QUOTE:
        start = at + 1
        at = string_end(buffer, at, end)
        if at < 0:
            return -1, -1
        name = interned(buffer, start, at - 1, slots, pool, bounds, count)
        at = space_end(buffer, at, end)
        if name < 0 or at >= end or byte(buffer, at) != COLON or seen[name] == row or used == len(codes):
            return -1, -1
        seen[name] = row
        value, at = number_in(buffer, space_end(buffer, at + 1, end), end)
        if value < 0:
            return -1, -1
        if value > 0:
            codes[used], values[used] = name, value
            used += 1
        at = space_end(buffer, at, end)
        if at < end and byte(buffer, at) == COMMA:
            at = space_end(buffer, at + 1, end)
            if at >= end or byte(buffer, at) != QUOTE:
                return -1, -1
        elif at < end and byte(buffer, at) == CLOSE:
            return at + 1, used
        else:
            return -1, -1
    # An empty clock is for another to refuse.
    return -1, -1


@inlined
def own_entry(process: int, codes: Any, values: Any, first: int, used: int) -> int:
    for entry in range(first, used):
        if codes[entry] == process:
            return values[entry]  # type: ignore[no-any-return]
    return 0


@native
def members(
    buffer: Any, at: int, end: int, names: Any, bounds: Any, split: int, deep: int, clock: int, spans: Any,
    row: int, table: Any, seen: Any, codes: Any, values: Any, used: int,
) -> int:  # fmt: skip
    """Where the values of these names are in the object that is all of this text; -1 for one that it has not.

    Name k is names[bounds[k]:bounds[k + 1]], and its value goes to spans[k]. From `split` on, names are inside the
    object that is the value of name `deep`. The value of name `clock` is entered as `vector` does. Gives how many
    entries are used then, or -1: not an object, or a name that comes twice, or else not sure.
    """
    for name in range(len(bounds) - 1):
        spans[name, 0] = spans[name, 1] = -1
    inside = False
    at = space_end(buffer, at, end)
    if at >= end or byte(buffer, at) != OPEN:
        return -1
    at = space_end(buffer, at + 1, end)
    empty = at < end and byte(buffer, at) == CLOSE
    while True:
        if not empty:
            if at >= end or byte(buffer, at) != QUOTE:
                return -1
            start = at + 1
            at = string_end(buffer, at, end)
            if at < 0:
                return -1
            which = -1
            for name in range(split if inside else 0, len(bounds) - 1 if inside else split):
                if same(buffer, start, at - 1, names, bounds[name], bounds[name + 1]):
                    which = name
            at = space_end(buffer, at, end)
            if at >= end or byte(buffer, at) != COLON:
                return -1
            start = space_end(buffer, at + 1, end)
            if which >= 0:
                if spans[which, 0] >= 0:
                    return -1
                spans[which, 0] = start
            if which == deep and which >= 0:
                if start >= end or byte(buffer, start) != OPEN:
                    return -1
                inside = True
                at = space_end(buffer, start + 1, end)
                empty = at < end and byte(buffer, at) == CLOSE
                continue
            if which == clock and which >= 0:
                at, used = vector(buffer, start, end, row, table, seen, codes, values, used)
            else:
                at = value_end(buffer, start, end)
            if at < 0:
                return -1
            if which >= 0:
                spans[which, 1] = at
            at = space_end(buffer, at, end)
        empty = False
        while inside and at < end and byte(buffer, at) == CLOSE:
            inside = False
            spans[deep, 1] = at + 1
            at = space_end(buffer, at + 1, end)
        if at < end and byte(buffer, at) == COMMA:
            at = space_end(buffer, at + 1, end)
        elif at < end and byte(buffer, at) == CLOSE:
            return used if space_end(buffer, at + 1, end) == end else -1
        else:
            return -1


# Names as integers


class Names:
    """Names that were met so far, numbered from 0: a hash table that kernels use and enter into."""

    MOST = 1 << 12
    ROOM = 1 << 18

    def __init__(self, *first: bytes) -> None:
        self.slots = np.full(2 * self.MOST, -1, np.int32)
        self.pool = np.zeros(self.ROOM, np.uint8)
        self.bounds = np.zeros(self.MOST + 1, np.int64)
        self.count = np.zeros(1, np.int64)
        for name in first:
            text = np.frombuffer(name + bytes(PAD), np.uint8)
            interned(text, 0, len(name), self.slots, self.pool, self.bounds, self.count)

    @property
    def table(self) -> tuple[Any, Any, Any, Any]:
        return self.slots, self.pool, self.bounds, self.count

    def texts(self) -> list[str]:
        data, bounds = self.pool.tobytes(), self.bounds
        return [data[bounds[name] : bounds[name + 1]].decode() for name in range(self.count[0])]


@native
def text_of(buffer: Any, start: int, end: int) -> tuple[int, int]:
    """The inside of a string, or a number's digits; (-1, -1) if this is neither."""
    if end - start >= 2 and byte(buffer, start) == QUOTE:
        return start + 1, end - 1
    if integer(buffer, start, end) >= 0:
        return start, end
    return -1, -1


# Texts put together


@allocating
def gathered(buffer: Any, spans: Any, rows: Any, fixed: Any, bounds: Any) -> tuple[Any, Any]:
    """For each of these rows: a fixed text, a span, the next fixed text, the next span ... and a last fixed text.

    An absent span is `null`. Gives offsets and bytes, as Arrow has strings.
    """
    pieces = spans.shape[1]
    offsets = np.empty(len(rows) + 1, np.int32)
    total = 0
    for place in range(len(rows)):
        offsets[place] = total
        total += bounds[pieces + 1]
        for piece in range(pieces):
            start, end = spans[rows[place], piece, 0], spans[rows[place], piece, 1]
            total += end - start if start >= 0 else 4
    offsets[len(rows)] = total
    data = np.empty(total + PAD, np.uint8)
    at = 0
    for place in range(len(rows)):
        for piece in range(pieces + 1):
            at = copied(fixed, bounds[piece], bounds[piece + 1], data, at)
            if piece < pieces:
                start, end = spans[rows[place], piece, 0], spans[rows[place], piece, 1]
                if start >= 0:
                    at = copied(buffer, start, end, data, at)
                else:
                    for sign in (110, 117, 108, 108):
                        data[at] = sign
                        at += 1
    return offsets, data[:total]
