"""The scan: one pass over a run's events in the order of time, at native speed.

What is kept
  copies    (number, sender and destination) -> the message, its channel, when it was received: from send to delivery
  messages  when it was sent, copies still to be delivered, its depth, its clock: until its last copy is delivered
  clocks    for each process, how many sends of each process of the block happened before its next event
  deep      for each process, the longest chain of messages that ends in one that it sent or delivered
So memory is (processes + messages under way) x block, and does not grow with the run.

What comes out
  counts    of each process: sends, deliveries, control packets
  series    number, sum and greatest of many distributions: stamp entries, stamp bytes, waits at each process, delays
            on each channel
  cells     their histograms: (series, bucket) -> how many
  past      the sum over all sends of how many sends happened before, of the processes of the block: blocks add up
  longest   the greatest depth

A delivery of a copy that is not under way (a duplicate, or of a message that was not addressed to the process, or not
sent) is *stray*. It has no delay. But it may carry news, and its message may be forgotten: strays are listed, and a
second scan is given their messages to keep.

Three things that Numba asks for. The columns of rows are never written to, because it compiles a function anew for
arrays that differ in this. Arrays are taken out of their tuples before the loop, handed on one by one and never sliced
in it: each time, their owners would be counted, which takes longer than all the rest. And what is called in the loop
is compiled into it.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from numba import njit
from numpy.typing import NDArray

from antecede.spark.measure.histogram import BITS, HALF, bucket
from antecede.spark.measure.tables import find, insert, remove, room
from antecede.trace.schema import RECEIVE, SEND

__all__ = ["Columns", "State", "scan"]

Array = NDArray[Any]

NEVER: Final = -(1 << 63)
"""A time that is none."""

# Columns of the tables: the first two are the key.
MESSAGE, CHANNEL, RECEIVED = 2, 3, 4
"""Of copies."""
NAME = 2
"""Of channels: its number."""
COUNT = 2
"""Of cells."""
KEPT = 2
"""Of kept: the message, or one of the next two."""
UNSEEN, EARLY = -1, -2

# Columns of other arrays.
SENT, LEFT, DEPTH = 0, 1, 2
"""Of messages."""
SENDS, DELIVERIES, CONTROL = 0, 1, 2
"""Of counts."""
SIZE, LOW, HIGH, GREATEST, ADDRESSED = 0, 1, 2, 3, 4
"""Of series. A sum is kept as two numbers, of the lower and the upper 32 bits of its values: it cannot overflow."""

# Totals.
(
    EVENTS, RECEIVES, FIRST, LAST, PAST, LONGEST, COPIES, CELLS, CHANNELS, FREE, STRAYS, WRONG
) = range(12)  # fmt: skip

ENTRIES, BYTES, WAITS = 0, 1, 2
"""Series: stamp entries, stamp bytes, waits of process 0 and so on; delays of channel 0 and so on follow."""

# What is wrong with a row.
FINE, FOREIGN, SECOND, LATE = range(4)


class Columns(NamedTuple):
    """Events of one run. A scan that only follows clocks needs none of the last three, and they are empty."""

    process: Array
    kind: Array
    sender: Array
    number: Array
    control: Array
    offsets: Array
    to: Array
    time_ns: Array
    stamp_entries: Array
    stamp_bytes: Array


class State(NamedTuple):
    """What the scan keeps and counts; see above."""

    totals: Array
    counts: Array
    deep: Array
    clocks: Array
    copies: Array
    messages: Array
    news: Array
    """The clocks of messages."""
    free: Array
    """Places in `messages` that are free: the first totals[FREE]."""
    channels: Array
    series: Array
    cells: Array
    strays: Array
    kept: Array


@njit(cache=True)
def scan(rows: Columns, start: int, state: State, low: int, counting: bool) -> int:
    """Go on from row `start`; the row before which a table is to be made larger, or the end, or what is wrong."""
    process, kind, sender, number, control, offsets, to, time_ns, stamp_entries, stamp_bytes = rows
    totals, counts, deep, clocks, copies, messages, news, free, channels, series, cells, strays, kept = state
    n, width = counts.shape[0], clocks.shape[1]
    for row in range(start, len(kind)):
        p, fan = process[row], offsets[row + 1] - offsets[row]
        if not (
            room(copies, totals[COPIES], fan)
            and room(channels, totals[CHANNELS], fan)
            and len(series) >= WAITS + n + totals[CHANNELS] + fan
            and room(cells, totals[CELLS], 2)
            and totals[FREE] > 0
            and totals[STRAYS] < len(strays)
        ):
            return row
        now = 0
        if counting:
            now = time_ns[row]
            totals[EVENTS] += 1
            totals[FIRST] = min(totals[FIRST], now)
            totals[LAST] = max(totals[LAST], now)
        if control[row]:
            if kind[row] == SEND:
                counts[p, CONTROL] += 1
        elif kind[row] == SEND:
            if sender[row] != p:
                totals[WRONG] = FOREIGN
                return row
            message = taken(totals, free)
            totals[PAST] += told(clocks, news, p, message, width)
            if 0 <= p - low < width:
                clocks[p, p - low] += 1
                news[message, p - low] += 1
            counts[p, SENDS] += 1
            deep[p] += 1
            totals[LONGEST] = max(totals[LONGEST], deep[p])
            messages[message, SENT], messages[message, LEFT], messages[message, DEPTH] = now, 0, deep[p]
            for i in range(offsets[row], offsets[row + 1]):
                at = address(totals, copies, messages, message, number[row], p, to[i], n)
                if counting and at >= 0:
                    copies[at, CHANNEL] = WAITS + n + channel_of(totals, channels, copies[at, 1] - 1)
                    series[copies[at, CHANNEL], ADDRESSED] += 1
            if len(kept) > 0:
                keep(totals, messages, kept, number[row], p, message)
            if messages[message, LEFT] == 0:
                released(totals, free, message)
            if totals[WRONG] != FINE:
                return row
            if counting and stamp_entries[row] >= 0:
                add(totals, series, cells, ENTRIES, stamp_entries[row])
            if counting and stamp_bytes[row] >= 0:
                add(totals, series, cells, BYTES, stamp_bytes[row])
        elif kind[row] == RECEIVE:
            if counting:
                totals[RECEIVES] += 1
                at = find(copies, number[row], sender[row] * n + p)
                if at >= 0 and copies[at, RECEIVED] == NEVER:
                    copies[at, RECEIVED] = now
        else:
            counts[p, DELIVERIES] += 1
            at = find(copies, number[row], sender[row] * n + p)
            if at < 0:
                message = stray(totals, strays, kept, number[row], sender[row])
            else:
                message = copies[at, MESSAGE]
                if counting:
                    add(totals, series, cells, copies[at, CHANNEL], now - messages[message, SENT])
                    if copies[at, RECEIVED] != NEVER:
                        add(totals, series, cells, WAITS + p, now - copies[at, RECEIVED])
                remove(copies, at)
                totals[COPIES] -= 1
            if message >= 0:
                learn(clocks, news, p, message, width)
                deep[p] = max(deep[p], messages[message, DEPTH])
            if at >= 0:
                messages[message, LEFT] -= 1
                if messages[message, LEFT] == 0:
                    released(totals, free, message)
    return len(kind)


# Distributions


@njit(cache=True, forceinline=True)
def add(totals: Array, series: Array, cells: Array, which: int, value: int) -> None:
    """One more value of a distribution."""
    series[which, SIZE] += 1
    series[which, LOW] += value & 0xFFFFFFFF
    series[which, HIGH] += value >> 32
    series[which, GREATEST] = max(series[which, GREATEST], value)
    key = which << BITS | (bucket(value) + HALF)
    at = find(cells, key, 0)
    if at < 0:
        at = insert(cells, at, key, 0)
        cells[at, COUNT] = 0
        totals[CELLS] += 1
    cells[at, COUNT] += 1


@njit(cache=True, forceinline=True)
def channel_of(totals: Array, channels: Array, pair: int) -> int:
    at = find(channels, pair, 0)
    if at < 0:
        at = insert(channels, at, pair, 0)
        channels[at, NAME] = totals[CHANNELS]
        totals[CHANNELS] += 1
    return channels[at, NAME]  # type: ignore[no-any-return]


# Messages under way


@njit(cache=True, forceinline=True)
def taken(totals: Array, free: Array) -> int:
    """A place for a message."""
    totals[FREE] -= 1
    return free[totals[FREE]]  # type: ignore[no-any-return]


@njit(cache=True, forceinline=True)
def released(totals: Array, free: Array, message: int) -> None:
    free[totals[FREE]] = message
    totals[FREE] += 1


@njit(cache=True, forceinline=True)
def address(
    totals: Array, copies: Array, messages: Array, message: int, number: int, sender: int, dest: int, n: int
) -> int:
    """Enter a copy for a destination: its row, or -1 if it has one already."""
    pair = sender * n + dest
    at = find(copies, number, pair)
    if at >= 0:
        if copies[at, MESSAGE] != message:
            totals[WRONG] = SECOND
        return -1  # One who is named twice gets one copy.
    at = insert(copies, at, number, pair)
    totals[COPIES] += 1
    messages[message, LEFT] += 1
    copies[at, MESSAGE] = message
    # Its own copy is there from the start.
    copies[at, RECEIVED] = messages[message, SENT] if dest == sender else NEVER
    return at


@njit(cache=True, forceinline=True)
def told(clocks: Array, news: Array, process: int, message: int, width: int) -> int:
    """A message takes the clock of its sender along; how many sends happened before it."""
    past = 0
    for i in range(width):
        past += clocks[process, i]
        news[message, i] = clocks[process, i]
    return past


@njit(cache=True, forceinline=True)
def learn(clocks: Array, news: Array, process: int, message: int, width: int) -> None:
    """What happened before the send of a message has now happened before whatever this process does."""
    for i in range(width):
        clocks[process, i] = max(clocks[process, i], news[message, i])


# Deliveries astray


@njit(cache=True, forceinline=True)
def stray(totals: Array, strays: Array, kept: Array, number: int, sender: int) -> int:
    """A delivery of what is not under way: list it, or find what was kept because an earlier scan listed it."""
    at = find(kept, number, sender) if len(kept) > 0 else -1
    if at < 0:
        strays[totals[STRAYS], 0] = number
        strays[totals[STRAYS], 1] = sender
        totals[STRAYS] += 1
        return -1
    if kept[at, KEPT] < 0:
        kept[at, KEPT] = EARLY
    return kept[at, KEPT]  # type: ignore[no-any-return]


@njit(cache=True, forceinline=True)
def keep(totals: Array, messages: Array, kept: Array, number: int, sender: int, message: int) -> None:
    """A message that is delivered astray, too, stays to the end."""
    at = find(kept, number, sender)
    if at < 0:
        return
    if kept[at, KEPT] == UNSEEN:
        kept[at, KEPT] = message
        messages[message, LEFT] += 1
    else:
        totals[WRONG] = LATE if kept[at, KEPT] == EARLY else SECOND
