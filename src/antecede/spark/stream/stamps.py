"""Stamps of counts at native speed: which message of its channel a packet is, and what it waits for.

For the stamps of `fifo`, `matrix`, `monitor` and `broadcast`, as `antecede.wire` writes them. What is not exactly so is
not refused but answered with "not sure", and the caller asks the reader of `antecede.wire` and a machine. So this
decides nothing by itself.

For packet i of receiver `me`: `position[i]` is its place in the channel from its source; the entries from `first[i]` to
`last[i]` of `process` and `count` say that so many messages of that process must be delivered before. Left out: what
`delivered` has reached already, what came earlier in the same channel, and the receiver's own.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from antecede.jit import inlined, native

__all__ = ["CODES", "decode", "vector"]

CODES: Final = {"fifo": 2, "matrix": 3, "monitor": 6, "broadcast": 11}
FIRST, ONE, BITMAP, LIST = range(4)


@inlined
def uint(data: Any, at: int, end: int) -> tuple[Any, int]:
    """A number and where it ends; -1 if it is none."""
    value = np.int64(0)
    for place in range(9):
        if at + place >= end:
            return value, -1
        byte = np.int64(data[at + place])
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            return value, (-1 if byte == 0 and place else at + place + 1)
    return value, -1


@native
def members(data: Any, at: int, end: int, n: int, into: Any) -> tuple[int, int]:
    """A set of processes below n, in increasing order: how many, and where it ends; -1 if it is none."""
    header, at = uint(data, at, end)
    if at < 0:
        return 0, -1
    form, size = header & 3, header >> 2
    if size > n:
        return 0, -1
    found = 0
    if form == FIRST:
        for process in range(size):
            into[process] = process
        return size, at
    if form == ONE:
        into[0] = size
        found = 1
    elif form == BITMAP:
        if at + size > end or size * 8 > n + 7:
            return 0, -1
        for place in range(size):
            for bit in range(8):
                if data[at + place] >> bit & 1:
                    if place * 8 + bit >= n:
                        return 0, -1
                    into[found] = place * 8 + bit
                    found += 1
        at += size
    else:
        expected = np.int64(0)
        for _ in range(size):
            left_out, at = uint(data, at, end)
            if at < 0 or left_out >= n or expected + left_out >= n:
                return 0, -1
            into[found] = expected + left_out
            found += 1
            expected += left_out + 1
    if found == 0 or into[found - 1] >= n:
        return 0, -1
    return found, (at if canonical(form, size, found, into[found - 1] + 1) else -1)


@inlined
def canonical(form: int, size: int, found: int, length: int) -> bool:
    """Whether a set of `found` processes below `length` is written in the form that it must have."""
    if found == length:
        return False
    if found == 1:
        return form == ONE
    octets = (length + 7) >> 3
    if octets <= found:
        return form == BITMAP and size == octets
    return form == LIST


@native
def decode(
    code: int,
    n: int,
    data: Any,
    ends: Any,
    rows: Any,
    mes: Any,
    lanes: Any,
    sources: Any,
    numbers: Any,
    delivered: Any,
    position: Any,
    first: Any,
    last: Any,
    process: Any,
    count: Any,
    set_: Any,
    rows_: Any,
    used: int,
) -> int:
    """Fill the arrays for these rows, from entry `used` on; the answer is where they end. A position of 0: not sure."""
    for i in rows:
        at, end = ends[i], ends[i + 1]
        me, lane, source, number = mes[i], lanes[i], sources[i], numbers[i]
        first[i] = last[i] = used
        position[i] = 0
        if at >= end or data[at] != code or number < 1:
            continue
        at += 1
        place = np.int64(0)
        if code == 2:
            place, at = uint(data, at, end)
        elif code == 3:
            size, at = uint(data, at, end)
            if at < 0 or size != n:
                continue
            others, at = members(data, at, end, n, rows_)
            if at < 0:
                continue
            for other in range(others + 1):
                own = other == others
                k = source if own else rows_[other]
                if not own:
                    _, at = uint(data, at, end)
                    if at < 0 or k == source:
                        at = -1
                        break
                entries, at = members(data, at, end, n, set_)
                if at < 0:
                    break
                told = np.int64(0)
                for entry in range(entries):
                    value, at = uint(data, at, end)
                    if at < 0 or value == 0:
                        at = -1
                        break
                    if set_[entry] == me:
                        told = value
                if at < 0:
                    break
                if own:
                    place = told
                elif k != me and told > delivered[lane, k]:
                    process[used], count[used] = k, told
                    used += 1
        else:
            if code == 6:
                place, at = uint(data, at, end)
                if at < 0:
                    continue
            size, at = uint(data, at, end)
            if at < 0 or size != n:
                continue
            gap = 1 if code == 11 else 0
            entries, at = members(data, at, end, n - gap, set_)
            before = np.int64(0)
            for entry in range(entries):
                value, at = uint(data, at, end)
                if at < 0 or value == 0:
                    at = -1
                    break
                k = set_[entry]
                if gap and k >= source:
                    k += 1
                if k == source:
                    before = value
                elif k != me and value > delivered[lane, k]:
                    process[used], count[used] = k, value
                    used += 1
            if code == 11:
                place = number
            elif place != before + 1:
                at = -1
        if at == end and place > 0:
            position[i], last[i] = place, used
        else:
            used = first[i]
    return used


@native
def vector(
    code: int, n: int, data: Any, at: int, end: int, source: int, number: int, into: Any, set_: Any
) -> tuple[Any, Any]:
    """A stamp that is a whole vector, of `monitor` or `broadcast`: its position and the sum of its entries.

    The counts of the others are in `into` then. A position of 0: not sure.
    """
    for k in range(n):
        into[k] = 0
    place, total = np.int64(number), np.int64(0)
    if at >= end or data[at] != code or number < 1:
        return 0, 0
    at += 1
    gap = 1 if code == 11 else 0
    if not gap:
        place, at = uint(data, at, end)
        if at < 0:
            return 0, 0
    size, at = uint(data, at, end)
    if at < 0 or size != n:
        return 0, 0
    entries, at = members(data, at, end, n - gap, set_)
    if at < 0:
        return 0, 0
    for entry in range(entries):
        value, at = uint(data, at, end)
        if at < 0 or value == 0:
            return 0, 0
        k = set_[entry]
        into[k + 1 if gap and k >= source else k] = value
        total += value
    if gap:
        total += number
    elif place != into[source] + 1:
        return 0, 0
    into[source] = 0
    return (place, total) if at == end and place > 0 else (0, 0)
