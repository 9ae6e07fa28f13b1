"""How many sends happened before each send, and the longest causal chain: one pass over a run in the order of time.

What the scan keeps
  clocks    for each process, how many sends of each process of a block happened before its next event
  depth     for each process, the longest chain of messages that ends in one that it sent or delivered
  messages  for each message under way: its clock, its depth, and how many of its copies were not delivered yet
So memory is (processes + messages under way) x block, and does not grow with the run. Blocks of processes add up: the
sum of a message's clock is the number of messages before it.

A message leaves the table with the delivery of its last copy. A delivery that finds no message (a duplicate, a
delivery after duplicates, or of a message that was not sent) is a *stray*. It may carry news, so the scan lists it,
and a second scan keeps the messages of all strays to its end.

Clocks are 32 bits wide until a process could have sent more than that counts; then they become 64 bits wide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from antecede.errors import BadTrace
from antecede.jit import inlined, native
from antecede.jit.hashtable import EMPTY, find, grown, insert, is_full, new_table, remove, table_of, value_at
from antecede.trace.columns import Names, Rows
from antecede.trace.schema import RECEIVE, SEND

__all__ = ["MOST", "Chains", "Reader", "Scan", "follow_chains"]

Array: TypeAlias = NDArray[Any]
Reader: TypeAlias = Callable[[], Iterable[Rows]]
"""Reads the events of a run in order, from the start each time."""

MOST: Final = 1 << 30
"""Bytes that the clocks of messages under way may take."""
FIRST_ROWS: Final = 64
"""Room of a new table: most runs of a sweep are short."""
NARROW: Final = (1 << 31) - 1
"""What a clock of 32 bits counts to."""
FOREVER: Final = 1 << 62
"""Copies of a message that stays to the end."""

PAST, LONGEST, RECEIVES, SENDS, USED, FREE, STRAYS, WRONG = range(8)
"""Totals."""
LEFT, DEPTH = 0, 1
"""Columns of messages: copies to be delivered, and the longest chain that ends in it."""
UNSEEN, EARLY = -1, -2
"""A stray's message that was not sent yet, and one that was delivered before its send."""
FINE, FOREIGN, SECOND, LATE = range(4)
"""What is wrong with a row."""


class Chains(Struct, frozen=True):
    """What the scans of a run found."""

    past: int
    """Pairs of messages of which the first happened before the second."""
    sends: int
    """Messages."""
    longest: int
    """Messages in the longest causal chain."""
    received: bool
    """Whether the run tells when messages arrived."""


class TooWide(Exception):
    """The clocks do not fit into the memory. Fewer of their entries would."""


def follow_chains(
    names: Names,
    read: Reader,
    low: int = 0,
    high: int | None = None,
    *,
    most: int = MOST,
    place: str = "events",
) -> Chains:
    """Scan a run as often as it takes, for the processes low to high - 1 of its clocks. Raises `BadTrace`."""
    high = len(names) if high is None else high
    # The clocks of the processes themselves have to fit, too.
    step = max(1, most // (4 * max(1, len(names))))
    blocks = [(at, min(at + step, high)) for at in range(low, max(high, low + 1), step)]
    past = 0
    while True:
        low, high = blocks.pop()
        try:
            scan = scan_block(names, read, low, high, most, place)
        except TooWide:
            blocks += [(low, (low + high) // 2), ((low + high) // 2, high)]
            continue
        past += scan.past
        if not blocks:
            totals = scan.state.totals
            return Chains(past, int(totals[SENDS]), int(totals[LONGEST]), bool(totals[RECEIVES]))


def scan_block(names: Names, read: Reader, low: int, high: int, most: int, place: str) -> Scan:
    """One scan or, if it lists strays, a second one that keeps their messages."""
    scan = Scan(names, low, high, most=most, place=place)
    for rows in read():
        scan.feed(rows)
    if not scan.state.totals[STRAYS]:
        return scan
    strays = scan.state.strays[: scan.state.totals[STRAYS]]
    scan = Scan(names, low, high, kept=np.unique(strays, axis=0), most=most, place=place)
    for rows in read():
        scan.feed(rows)
    return scan


class Columns(NamedTuple):
    process: Array
    kind: Array
    sender: Array
    number: Array
    control: Array
    offsets: Array
    to: Array


class State(NamedTuple):
    totals: Array
    clocks: Array
    depth: Array
    marks: Array
    """For each process, the latest send that was addressed to it: one who is named twice gets one copy."""
    table: Array
    """Message -> its row in `messages`."""
    messages: Array
    news: Array
    """The clocks of messages."""
    free: Array
    """Rows of `messages` that are free: the first totals[FREE]."""
    strays: Array
    """(sender, number)"""
    kept: Array
    """Message -> its position in `found`."""
    found: Array


class Scan:
    """One pass over a run, for the processes low to high - 1 of its clocks. `feed` takes rows in order."""

    def __init__(
        self,
        names: Names,
        low: int,
        high: int,
        *,
        kept: Array | None = None,
        most: int = MOST,
        place: str = "events",
    ) -> None:
        self.names, self.low, self.place, self.past = names, low, place, 0
        self._most = most
        kept = np.zeros((0, 2), np.int64) if kept is None else kept
        self.state = State(
            totals=np.array([0, 0, 0, 0, 0, FIRST_ROWS, 0, FINE], np.int64),
            clocks=np.zeros((len(names), high - low), np.int32),
            depth=np.zeros(len(names), np.int64),
            marks=np.zeros(len(names), np.int64),
            table=new_table(FIRST_ROWS),
            messages=np.zeros((FIRST_ROWS, 2), np.int64),
            news=np.zeros((FIRST_ROWS, high - low), np.int32),
            free=np.arange(FIRST_ROWS, dtype=np.int64),
            strays=np.zeros((FIRST_ROWS, 2), np.int64),
            kept=table_of(kept[:, 0], kept[:, 1]),
            found=np.full(len(kept), UNSEEN, np.int64),
        )

    def feed(self, rows: Rows) -> None:
        """Go on with these events."""
        state = self.state
        if state.clocks.dtype == np.int32 and int(state.clocks.max(initial=0)) + len(rows) > NARROW:
            wide = {"clocks": state.clocks.astype(np.int64), "news": state.news.astype(np.int64)}
            self.state = state._replace(**wide)
        columns, at = columns_of(rows), 0
        while (at := scan_rows(columns, at, self.state, self.low)) < len(rows):
            if self.state.totals[WRONG]:
                raise self._refused(rows, at)
            self._grow()
        # A Python integer: the sum over all messages of a long run may not fit into 64 bits.
        self.past += int(self.state.totals[PAST])
        self.state.totals[PAST] = 0

    def _grow(self) -> None:
        """Double whatever is full."""
        state, totals = self.state, self.state.totals
        new: dict[str, Array] = {}
        if is_full(state.table, totals[USED]):
            new["table"] = grown(state.table)
        if totals[STRAYS] == len(state.strays):
            new["strays"] = np.concatenate((state.strays, np.zeros_like(state.strays)))
        if totals[FREE] == 0:
            size, width = state.news.shape
            if 3 * state.news.nbytes > self._most and width > 1:
                raise TooWide
            totals[FREE] = size
            new["messages"] = np.concatenate((state.messages, np.zeros_like(state.messages)))
            new["news"] = np.concatenate((state.news, np.zeros_like(state.news)))
            new["free"] = np.concatenate((np.arange(size, 2 * size), np.zeros(size, np.int64)))
        self.state = state._replace(**new)

    def _refused(self, rows: Rows, at: int) -> BadTrace:
        process, sender = self.names[int(rows.process[at])], self.names[int(rows.sender[at])]
        reason = {
            FOREIGN: "is sent by another process than its sender",
            SECOND: "is sent a second time",
            LATE: "is sent after a delivery of it, by the order of clock, process and index",
        }[int(self.state.totals[WRONG])]
        message = f"message {rows.number[at]} of {sender}"
        return BadTrace(f"{self.place}, process {process}", f"{message} {reason}")


def columns_of(rows: Rows) -> Columns:
    """The columns as the kernel is compiled for them: never written to, because Numba compiles anew for the others."""

    def plain(column: Array, kind: Any) -> Array:
        found = np.ascontiguousarray(column, kind).view()
        found.flags.writeable = False
        return found

    return Columns(
        plain(rows.process, np.int32),
        plain(rows.kind, np.int8),
        plain(rows.sender, np.int32),
        plain(rows.number, np.int64),
        plain(rows.control, np.bool_),
        plain(rows.offsets, np.int32),
        plain(rows.to, np.int32),
    )


# Compiled. Arrays are taken out of their tuples before the loop and never sliced in it: Numba would count references.


@native
def scan_rows(rows, start, state, low):  # type: ignore[no-untyped-def]
    """Go on from row `start`; the row before which a table is to be made larger, or the end, or what is wrong."""
    process, kind, sender, number, control, offsets, to = rows
    totals, clocks, depth, marks, table, messages, news, free, strays, kept, found = state
    width = clocks.shape[1]
    for row in range(start, len(kind)):
        if control[row]:
            continue
        if totals[FREE] == 0 or is_full(table, totals[USED]) or totals[STRAYS] == len(strays):
            return row
        p = process[row]
        if kind[row] == RECEIVE:
            totals[RECEIVES] += 1
        elif kind[row] == SEND:
            at = find(table, p, number[row])
            if sender[row] != p or table[at, 1] != EMPTY:
                totals[WRONG] = FOREIGN if sender[row] != p else SECOND
                return row
            totals[SENDS] += 1
            depth[p] += 1
            totals[LONGEST] = max(totals[LONGEST], depth[p])
            copies = 0
            for i in range(offsets[row], offsets[row + 1]):
                copies += marks[to[i]] != totals[SENDS]
                marks[to[i]] = totals[SENDS]
            position = EMPTY
            if len(found) > 0:
                position = value_at(kept, find(kept, p, number[row]))
            if position != EMPTY:
                if found[position] != UNSEEN:
                    totals[WRONG] = LATE
                    return row
                copies = FOREVER
            # A message that nobody waits for needs a place for its clock only while this row lasts.
            message = free[totals[FREE] - 1]
            totals[PAST] += count_past(clocks, news, p, message, width)
            if 0 <= p - low < width:
                clocks[p, p - low] += 1
                news[message, p - low] += 1
            if copies > 0:
                totals[FREE] -= 1
                totals[USED] += 1
                messages[message, LEFT], messages[message, DEPTH] = copies, depth[p]
                insert(table, at, p, number[row], message)
        else:
            at = find(table, sender[row], number[row])
            message = value_at(table, at)
            if message == EMPTY:
                note_stray(totals, strays, kept, found, sender[row], number[row])
                continue
            for i in range(width):
                clocks[p, i] = max(clocks[p, i], news[message, i])
            depth[p] = max(depth[p], messages[message, DEPTH])
            messages[message, LEFT] -= 1
            if messages[message, LEFT] == 0:
                remove(table, at)
                free[totals[FREE]] = message
                totals[FREE] += 1
                totals[USED] -= 1
    return len(kind)


@inlined
def count_past(clocks, news, process, message, width):  # type: ignore[no-untyped-def]
    """A message takes the clock of its sender along; how many sends happened before it."""
    past = 0
    for i in range(width):
        past += clocks[process, i]
        news[message, i] = clocks[process, i]
    return past


@inlined
def note_stray(totals, strays, kept, found, sender, number):  # type: ignore[no-untyped-def]
    """List a delivery that found no message; or, in a second scan, note that its message was not sent before it."""
    if len(found) > 0:
        found[value_at(kept, find(kept, sender, number))] = EARLY
    else:
        strays[totals[STRAYS], 0] = sender
        strays[totals[STRAYS], 1] = number
        totals[STRAYS] += 1
