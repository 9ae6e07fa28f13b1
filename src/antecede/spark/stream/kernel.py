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

Roots. What is missing is named at its root: messages that have not come, never those that are held themselves. Messages
of one source come out one after the other, so what a missing message holds up is, for each source, all from some
position on.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antecede.jit import inlined, native
from antecede.jit.hashtable import EMPTY, find, insert, is_full, new_table, remove, value_at

__all__ = [
    "CODES", "COPY", "DROPPED", "HELD", "MOST", "Numbers", "Root", "Rows", "Stamps", "Waits", "find_roots",
    "number_channels",
]  # fmt: skip

Numbers = NDArray[np.int64]
NEVER: Final = np.iinfo(np.int64).max
MOST: Final = 32
"""Roots that are told of one receiver."""

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
    code: int, n: int, data: Any, ends: Any, mes: Any, sources: Any, lanes: Any, numbers: Any, channels: Any,
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


class Stamps(NamedTuple):
    """Stamps to be read: of which protocol and how many processes, their bytes, and whose they are, at whom."""

    code: int = 0
    n: int = 0
    octets: Any = np.zeros(1, np.uint8)
    ends: Any = np.zeros(1, np.int32)
    receivers: Any = np.zeros(1, np.int64)
    sources: Any = np.zeros(1, np.int64)


NO_STAMPS: Final = Stamps()


class Rows:
    """Rows for `arrive`, with what it notes of them."""

    def __init__(
        self, lane: Any, channel: Any, number: Any, position: Any, first: Any, last: Any, process: Any, count: Any,
        late: Any, stamps: Stamps = NO_STAMPS,
    ) -> None:  # fmt: skip
        size = len(lane)
        self.lane, self.channel, self.number, self.position = lane, channel, number, position
        self.first, self.last, self.process, self.count = first, last, process, count
        self.late, self.stamps = late, stamps
        self.state = np.zeros(size, np.int8)
        self._order, self._placed, *self._scratch = (np.zeros(size, np.int64) for _ in range(5))
        self._tables = new_table(size), new_table(size)
        self._sets = np.zeros(stamps.n + 8, np.int64), np.zeros(stamps.n + 8, np.int64)
        self.cursor = np.zeros(3, np.int64)

    def run(self, delivered: Numbers, places: Numbers) -> int:
        ended = arrive(
            *self.stamps, self.lane, self.number, self.channel, self.position, self.first, self.last, self.process,
            self.count, self.late, delivered, places, self.state, self._order, self._placed, *self._tables,
            *self._scratch, *self._sets, self.cursor,
        )  # fmt: skip
        return int(ended)

    def waits(self, held: Numbers) -> Waits:
        """What these rows wait for."""
        sizes = self.last[held] - self.first[held]
        starts = self.first[held] - np.concatenate([[0], np.cumsum(sizes)[:-1]])[: len(held)]
        entries = np.repeat(starts, sizes) + np.arange(sizes.sum())
        row = np.repeat(np.arange(len(held)), sizes)
        named = row, self.process[entries], self.count[entries]
        return Waits(self.lane[held], self.channel[held], self.position[held], *named)

    @property
    def order(self) -> Numbers:
        """The rows that are delivered, in order."""
        return self._order[: self.cursor[2]]

    @property
    def placed(self) -> Numbers:
        """Their places at their receivers."""
        return self._placed[: self.cursor[2]]


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


# Roots


class Waits(NamedTuple):
    """Held rows as arrays: of which receiver or partition, the how-manieth of its source, and which counts it names.

    A source is a number in all lanes together: a process in one lane is another source than in the next.
    """

    lane: Numbers
    source: Numbers
    position: Numbers
    row: Numbers
    """Of each count that is named: which row names it."""
    process: Numbers
    needed: Numbers

    @classmethod
    def none(cls) -> Waits:
        return cls(*(np.zeros(0, np.int64) for _ in range(6)))


class Root(NamedTuple):
    """Messages `first` to `last` of a source have not come; `blocked` are the held rows that wait for them."""

    source: int
    first: int
    last: int
    blocked: Numbers


def find_roots(waits: Waits, delivered: Any, most: int | None = MOST) -> Iterator[tuple[int, Root]]:
    """What is missing in each lane: the first of each source, then the second ones, and so on.

    `delivered` is how far each source came; `most` is how many roots are looked for in a lane, all if None.

    >>> own, needs = np.array([[7, 0, 3], [7, 1, 1], [7, 1, 5]]).T, np.array([[1, 0, 3]]).T
    >>> for lane, root in find_roots(Waits(*own, *needs), np.array([1, 0])):
    ...     print(lane, root.source, root.first, root.last, root.blocked.tolist())
    7 0 2 2 [0, 1, 2]
    7 1 2 4 [2]
    """
    lanes = np.unique(waits.lane)
    rows, row_ends = sort_by_lane(waits.lane, lanes)
    entries, entry_ends = sort_by_lane(waits.lane[waits.row], lanes)
    for at, lane in enumerate(lanes.tolist()):
        own = rows[row_ends[at] : row_ends[at + 1]]
        asks = entries[entry_ends[at] : entry_ends[at + 1]]
        sources = np.concatenate([waits.source[own], waits.process[asks]])
        # By the numbers of this lane alone.
        known, numbers = np.unique(sources, return_inverse=True)
        source, process = numbers[: len(own)], numbers[len(own) :]
        position, row, count = waits.position[own], np.searchsorted(own, waits.row[asks]), waits.needed[asks]
        for sender, first, last in find_gaps(source, position, process, count, delivered[known], most):
            begin = np.full(len(known), NEVER)
            begin[sender] = first
            while True:
                earlier = begin.copy()
                asking = row[count >= begin[process]]
                np.minimum.at(begin, source[asking], position[asking])
                if (begin == earlier).all():
                    break
            yield lane, Root(int(known[sender]), first, last, own[position >= begin[source]])


def sort_by_lane(lane: Numbers, lanes: Numbers) -> tuple[Numbers, Numbers]:
    """Places by lane, and where those of each lane end."""
    order = np.argsort(lane, kind="stable")
    return order, np.append(np.searchsorted(lane[order], lanes), len(lane))


def find_gaps(
    source: Numbers, position: Numbers, process: Numbers, count: Numbers, delivered: Numbers, most: int | None
) -> list[tuple[int, int, int]]:
    """(source, first, last) of what is not here, up to the last that is named or held."""
    gaps: list[tuple[int, int, int, int]] = []
    for sender, done in enumerate(delivered.tolist()):
        here = np.unique(position[source == sender])
        known = max(int(here.max(initial=0)), int(count[process == sender].max(initial=0)))
        edges = [done, *here[here > done].tolist(), known + 1]
        open_ = [(before + 1, after - 1) for before, after in pairwise(edges) if after - before > 1]
        gaps += [(rank, sender, *gap) for rank, gap in enumerate(open_[:most])]
    return [gap[1:] for gap in sorted(gaps)[:most]]
