"""The rule of vectors and of stamps of counts, at native speed: read, hold, wake, deliver.

Stamps. For those of `fifo`, `matrix`, `monitor` and `broadcast`, as `antecede.wire` writes them; tests compare the two
on damaged ones. For packet i of receiver `me`: `position[i]` is its place in the channel from its source, 0 if it is no
packet; the entries from `first[i]` to `last[i]` of `process` and `count` say that so many messages of that process must
be delivered before. Left out: what `delivered` has reached already, what came earlier in the same channel, and the
receiver's own.

Delivery. A packet may be delivered when the one before it in its channel was, and every count that it names is reached.
As in `antecede.protocols.receiver`, a held packet is filed under the first thing that it waits for, and a delivery
wakes what waited for it, by sender and number. What becomes deliverable is delivered at once, first what came first. So
the order is the one in which a machine delivers; tests compare the two on random streams.

Two hash tables, keyed by (receiver and sender, count): which packet of a channel is held, and the first of those that
wait for it; `next_` leads to the others.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from antecede.jit import inlined, native
from antecede.jit.hashtable import EMPTY, find, insert, is_full, new_table, remove, value_at

__all__ = [
    "CODES", "COPY", "DROPPED", "HELD", "LATE", "NO_STAMPS", "OLD", "Numbers", "Rows", "Stamps", "arrive", "make_rows",
    "number_channels", "resume",
]  # fmt: skip

Numbers = NDArray[np.int64]

CODES: Final = {"fifo": 2, "matrix": 3, "monitor": 6, "broadcast": 11}
FIRST, ONE, BITMAP, LIST = range(4)
HELD, DELIVERED, DROPPED, COPY = range(4)
UNKNOWN, LATE, OLD = range(3)
"""What is known of a row whose position was passed before it came."""


Stamps = namedtuple("Stamps", "code n octets ends receivers sources set_ rows_")
"""Stamps to be read: of which protocol and how many processes, their bytes, and whose they are, at whom."""
NO_STAMPS: Final = Stamps(
    0, 0, np.zeros(1, np.uint8), np.zeros(1, np.int32), *(np.zeros(8, np.int64) for _ in range(4))
)

Rows = namedtuple(
    "Rows",
    "stamps lane channel number position first last process count delivered places gapped late state order placed "
    "next_ queue woken held waiters cursor",
)
"""Rows of one micro-batch, and what is noted of them.

The entries of row i are those from `first[i]` to `last[i]` of `process`, which are channels, and `count`. By channel:
`delivered`, and `gapped`, whether something was given up; `places` by lane. `order` has the rows that came out, and
`placed` their positions; `cursor` the next row, the entries that are used, and how many came out."""


def make_rows(stamps: Stamps, lane: Any, *given: Any) -> Rows:
    """All fields up to `gapped` are given."""
    size = len(lane)
    flags = [np.zeros(size, np.int8) for _ in range(2)]
    numbers = [np.zeros(size, np.int64) for _ in range(5)]
    noted = *flags, *numbers, new_table(size), new_table(size), np.zeros(3, np.int64)
    return Rows._make((stamps, lane, *given, *noted))


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
def decode(rows: Any, i: int, whole: int) -> None:
    """Read the stamp of row i: its position, and its entries from the cursor on. A position of 0: it is none."""
    code, n, data = rows.stamps.code, rows.stamps.n, rows.stamps.octets
    me, source, lane = rows.stamps.receivers[i], rows.stamps.sources[i], rows.lane[i]
    set_, rows_, delivered = rows.stamps.set_, rows.stamps.rows_, rows.delivered
    at, end, used = rows.stamps.ends[i], rows.stamps.ends[i + 1], rows.cursor[1]
    rows.first[i] = rows.last[i] = used
    if at >= end or data[at] != code or rows.number[i] < 1:
        return
    at += 1
    place = np.int64(0)
    if code == 2:
        place, at = uint(data, at, end)
    elif code == 3:
        size, at = uint(data, at, end)
        if at < 0 or size != n:
            return
        others, at = members(data, at, end, n, rows_)
        if at < 0:
            return
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
            elif k != me and (whole or told > delivered[lane * n + k]):
                rows.process[used], rows.count[used] = lane * n + k, told
                used += 1
    else:
        if code == 6:
            place, at = uint(data, at, end)
            if at < 0:
                return
        size, at = uint(data, at, end)
        if at < 0 or size != n:
            return
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
            elif k != me and (whole or value > delivered[lane * n + k]):
                rows.process[used], rows.count[used] = lane * n + k, value
                used += 1
        if code == 11:
            place = np.int64(rows.number[i])
        elif place != before + 1:
            at = -1
    if at == end and place > 0:
        rows.position[i], rows.last[i], rows.cursor[1] = place, used, used


# Delivery


@inlined
def unmet(rows: Any, i: int) -> int:
    """The first entry that is not met; -2 for the one before it in the channel, -1 if there is none."""
    channel = rows.channel[i]
    if rows.delivered[channel] < rows.position[i] - 1:
        return -2
    for entry in range(rows.first[i], rows.last[i]):
        key = rows.process[entry]
        if rows.delivered[key] < rows.count[entry] and key != channel:
            return entry
    return -1


@inlined
def file(rows: Any, i: int, need: int) -> None:
    """Hold a row under what it waits for."""
    key = rows.channel[i] if need == -2 else rows.process[need]
    reached = rows.position[i] - 1 if need == -2 else rows.count[need]
    at = find(rows.waiters, key, reached)
    # The one that waited before it, or -1: `EMPTY`.
    rows.next_[i] = value_at(rows.waiters, at)
    insert(rows.waiters, at, key, reached, i)


@inlined
def wake(rows: Any, key: int, reached: int, tail: int) -> int:
    """Queue what waited for this and may be delivered, file the rest under what else it waits for; the new tail."""
    channels, numbers, woken = rows.channel, rows.number, rows.woken
    at = find(rows.waiters, key, reached)
    k = value_at(rows.waiters, at)
    if k == EMPTY:
        return tail
    many = 0
    remove(rows.waiters, at)
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
        k = rows.next_[k]
    for place in range(many):
        need = unmet(rows, woken[place])
        if need == -1:
            rows.queue[tail] = woken[place]
            tail += 1
        else:
            file(rows, woken[place], need)
    return tail


@inlined
def deliver(rows: Any, tail: int) -> None:
    """Deliver what is queued, and what that wakes."""
    head, out = 0, rows.cursor[2]
    while head < tail:
        j = rows.queue[head]
        head += 1
        lane, channel, position = rows.lane[j], rows.channel[j], rows.position[j]
        rows.state[j] = DELIVERED
        rows.delivered[channel] = max(rows.delivered[channel], position)
        rows.order[out], rows.placed[out] = j, rows.places[lane]
        rows.places[lane] += 1
        out += 1
        at = find(rows.held, channel, position)
        if value_at(rows.held, at) != EMPTY:
            remove(rows.held, at)
        tail = wake(rows, channel, position, tail)
    rows.cursor[2] = out


@native
def arrive(rows: Any, whole: int) -> int:
    """Take the rows one after the other; -1 at the end, or else the one that the caller is asked about.

    The caller is asked whether the row is late: in a channel that is `gapped` it may have been given up, and counted as
    delivered, before it came. `late` has the answer.

    A stamp whose position is 0 is read when its turn comes, against what was delivered by then: of most nothing is left
    to keep. With `whole`, all entries are kept. Vectors come with all positions, and are not read.
    """
    stamps, cursor, late = rows.stamps, rows.cursor, rows.late
    for i in range(cursor[0], len(rows.lane)):
        cursor[0] = i
        if rows.position[i] == 0:
            if 0 <= stamps.sources[i] < stamps.n and stamps.sources[i] != stamps.receivers[i]:
                decode(rows, i, whole)
            if rows.position[i] == 0:
                rows.state[i] = DROPPED
                continue
        channel, position = rows.channel[i], rows.position[i]
        at = find(rows.held, channel, position)
        if value_at(rows.held, at) != EMPTY:
            rows.state[i] = COPY
            continue
        if rows.delivered[channel] >= position and late[i] != LATE:
            if rows.gapped[channel] and late[i] == UNKNOWN:
                return i
            rows.state[i] = DROPPED
            continue
        need = unmet(rows, i)
        if need != -1:
            rows.state[i] = HELD
            insert(rows.held, at, channel, position, 0)
            file(rows, i, need)
            continue
        if not whole:
            cursor[1] = rows.first[i]
        rows.queue[0] = i
        deliver(rows, 1)
    cursor[0] = len(rows.lane)
    return -1


@native
def resume(rows: Any, keys: Any, reached: Any) -> None:
    """Go on as if these counts of these channels had been reached by a delivery."""
    tail = 0
    for at in range(len(keys)):
        tail = wake(rows, keys[at], reached[at], tail)
    deliver(rows, tail)


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
