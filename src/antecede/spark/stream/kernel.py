"""The rule of vectors and of stamps of counts, at native speed: read, hold, wake, deliver.

Stamps. For those of `fifo`, `matrix`, `monitor` and `broadcast`, as `antecede.wire` writes them. What is not exactly so
is not refused but answered with "not sure", and the caller asks the reader of `antecede.wire` and a machine. So this
decides nothing by itself. For packet i of receiver `me`: `position[i]` is its place in the channel from its source; the
entries from `first[i]` to `last[i]` of `process` and `count` say that so many messages of that process must be
delivered before. Left out: what `delivered` has reached already, what came earlier in the same channel, and the
receiver's own.

Delivery. A packet may be delivered when the one before it in its channel was, and every count that it names is reached.
As in `antecede.protocols.receiver`, a held packet is filed under the first thing that it waits for, and a delivery
wakes what waited for it, by sender and number. What becomes deliverable is delivered at once, first what came first. So
the order is the one in which a machine delivers; tests compare the two on random streams.

Two hash tables, keyed by (receiver and sender, count): which packet of a channel is held, and the first of those that
wait for it; `next_` leads to the others.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from antecede.jit import inlined, native
from antecede.jit.hashtable import EMPTY, find, insert, is_full, new_table, remove, value_at

__all__ = [
    "CODES", "COPY", "DELIVERED", "DROPPED", "HELD", "arrive", "decode", "number_channels", "tables",
]  # fmt: skip

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
    code: int, n: int, data: Any, ends: Any, i: int, me: int, lane: int, source: int, number: int, delivered: Any,
    position: Any, first: Any, last: Any, process: Any, count: Any, set_: Any, rows_: Any, used: int,
) -> int:  # fmt: skip
    """Read the stamp of packet i: entries from `used` on, to where the answer says. A position of 0: not sure."""
    at, end = ends[i], ends[i + 1]
    first[i] = last[i] = used
    position[i] = 0
    if at >= end or data[at] != code or number < 1:
        return used
    at += 1
    place = np.int64(0)
    if code == 2:
        place, at = uint(data, at, end)
    elif code == 3:
        size, at = uint(data, at, end)
        if at < 0 or size != n:
            return used
        others, at = members(data, at, end, n, rows_)
        if at < 0:
            return used
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
            elif k != me and told > delivered[lane * n + k]:
                process[used], count[used] = lane * n + k, told
                used += 1
    else:
        if code == 6:
            place, at = uint(data, at, end)
            if at < 0:
                return used
        size, at = uint(data, at, end)
        if at < 0 or size != n:
            return used
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
            elif k != me and value > delivered[lane * n + k]:
                process[used], count[used] = lane * n + k, value
                used += 1
        if code == 11:
            place = np.int64(number)
        elif place != before + 1:
            at = -1
    if at != end or place <= 0:
        return int(first[i])
    position[i], last[i] = place, used
    return used


# Delivery

HELD, DELIVERED, DROPPED, COPY = range(4)


@inlined
def unmet(
    i: int, channel: int, position: Any, first: Any, last: Any, process: Any, count: Any, delivered: Any
) -> int:
    """The first entry that is not met; -2 for the one before it in the channel, -1 if there is none."""
    if delivered[channel] < position[i] - 1:
        return -2
    for entry in range(first[i], last[i]):
        if delivered[process[entry]] < count[entry] and process[entry] != channel:
            return entry
    return -1


@inlined
def file(
    i: int, need: int, channel: int, position: Any, process: Any, count: Any, waiters: Any, next_: Any
) -> None:
    """Hold a packet under what it waits for."""
    key = channel if need == -2 else process[need]
    reached = position[i] - 1 if need == -2 else count[need]
    at = find(waiters, key, reached)
    # The one that waited before it, or -1: `EMPTY`.
    next_[i] = value_at(waiters, at)
    insert(waiters, at, key, reached, i)


@native
def arrive(
    code: int, n: int, data: Any, ends: Any, mes: Any, lanes: Any, sources: Any, numbers: Any, channels: Any,
    position: Any, first: Any, last: Any, process: Any, count: Any, late: Any, delivered: Any, places: Any, state: Any,
    order: Any, placed: Any, held: Any, waiters: Any, next_: Any, queue: Any, woken: Any, set_: Any, rows_: Any,
    cursor: Any,
) -> int:  # fmt: skip
    """Take the packets one after the other; -1 at the end, or else the one that is not sure to be a packet.

    A channel is a sender at a receiver; `delivered` counts by channel, and `process` names channels. Those that are
    delivered are in `order`, with their places at their receivers in `placed`; `state` says what became of each packet.
    One that is `late` was given up, and counted as delivered, before it came. `cursor` is where to go on: the next
    packet, the entries used, how many were delivered. A stamp whose position is 0 is read when its turn comes, against
    what was delivered by then: of most nothing is left to keep. Vectors come with all positions, and are not read.
    """
    out = cursor[2]
    for i in range(cursor[0], len(position)):
        lane, channel = lanes[i], channels[i]
        if position[i] == 0:
            if 0 <= sources[i] < n and sources[i] != mes[i]:
                cursor[1] = decode(
                    code, n, data, ends, i, mes[i], lane, sources[i], numbers[i], delivered, position, first, last,
                    process, count, set_, rows_, cursor[1],
                )  # fmt: skip
            if position[i] == 0:
                cursor[0], cursor[2] = i, out
                return i
        at = find(held, channel, position[i])
        here = value_at(held, at) != EMPTY
        if here or (delivered[channel] >= position[i] and not late[i]):
            state[i] = COPY if here else DROPPED
            cursor[1] = first[i]
            continue
        need = unmet(i, channel, position, first, last, process, count, delivered)
        if need != -1:
            state[i] = HELD
            insert(held, at, channel, position[i], 0)
            file(i, need, channel, position, process, count, waiters, next_)
            continue
        cursor[1] = first[i]
        queue[0] = i
        head, tail = 0, 1
        while head < tail:
            j = queue[head]
            head += 1
            channel = channels[j]
            state[j] = DELIVERED
            delivered[channel] = max(delivered[channel], position[j])
            order[out], placed[out] = j, places[lane]
            places[lane] += 1
            out += 1
            at = find(held, channel, position[j])
            if value_at(held, at) != EMPTY:
                remove(held, at)
            at = find(waiters, channel, position[j])
            k = value_at(waiters, at)
            if k == EMPTY:
                continue
            many = 0
            remove(waiters, at)
            while k >= 0:
                # By sender and number: few wait for the same, so each is put in its place.
                place = many
                while place > 0 and (
                    channels[woken[place - 1]] > channels[k]
                    or (channels[woken[place - 1]] == channels[k] and numbers[woken[place - 1]] > numbers[k])
                ):
                    woken[place] = woken[place - 1]
                    place -= 1
                woken[place] = k
                many += 1
                k = next_[k]
            for place in range(many):
                k = woken[place]
                need = unmet(k, channels[k], position, first, last, process, count, delivered)
                if need == -1:
                    queue[tail] = k
                    tail += 1
                else:
                    file(k, need, channels[k], position, process, count, waiters, next_)
    cursor[0], cursor[2] = len(position), out
    return -1


def tables(rows: int) -> tuple[Any, Any]:
    """Empty tables for so many packets."""
    return new_table(rows), new_table(rows)


# Vectors


@native
def number_channels(lanes: Any, codes: Any, counts: Any, own: Any, table: Any, into: Any, cursor: Any) -> int:
    """Number the channel (lane, process) of each entry; how many are numbered.

    `cursor` has the next entry and how many channels there are. An entry of 0 asks for nothing: it gets the row's `own`
    channel. It stops where the table is full.
    """
    at = cursor[0]
    while at < len(codes):
        if counts[at] <= 0:
            into[at] = own[at]
        else:
            slot = find(table, lanes[at], codes[at])
            found = value_at(table, slot)
            if found == EMPTY:
                if is_full(table, cursor[1]):
                    break
                found = cursor[1]
                insert(table, slot, lanes[at], codes[at], found)
                cursor[1] += 1
            into[at] = found
        at += 1
    cursor[0] = at
    return int(at)
