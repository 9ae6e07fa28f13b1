"""How the news of an overtaken message travels: native parts of a scan that looks for proofs.

The *targets* are messages that a former scan found overtaken. While one is under way, each process's first delivery
that brings news of it is noted: its `via`. When the target m is then delivered at q, too late, the first that overtook
it is via(q). If that was sent by m's own sender i, the chain is complete: i had sent m before. If it came from j, then
j had news of m when it sent it, from via(j), which it delivered before. And so on, each time to an earlier event,
until the sender is i. A process occurs at most once, so a chain is at most as long as there are processes, and one.

Where q is i itself, news is what `seen` counts. For FIFO breaks, the first delivery at each process of a later
message of the same sender is noted too.

A target is forgotten after its last late delivery, so memory is (targets under way) x processes. *Pinned* targets,
which cross chunks, stay, and their chains are put together elsewhere (proofs.py).
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antecede.jit import native
from antecede.verification.state import HIGH, LOW, ORDINAL, Watched, grown

__all__ = ["needs_room", "target", "follow", "answer", "new_watched", "more_watched", "activate", "PINNED"]

Array: TypeAlias = NDArray[Any]

# Fields of `counts`.
NEXT, FREE, ANSWERS, CHAIN = range(4)
# Fields of a slot, one for each target under way. Slots of one origin are linked, the latest message first.
ENTRY, ORDER, USES, NEWER, OLDER = range(5)
# Fields of an answer.
PROCESS, SENDER, NUMBER, INDEX, CHAIN_END, LATER, LATER_NUMBER = range(7)

UNKNOWN, CAME, CLOSED = range(3)
"""Whether a later message of the same sender was delivered before the target; from then on it no longer matters."""

PINNED: Final = -1
"""In the place of how often a target is still to be delivered late."""
NONE: Final = -(1 << 31)
"""Less than every ordinal."""


def new_watched(n: int, width: int, targets: Array, slots: int) -> Watched:
    """To watch these: rows of (position of the send, how often it is delivered late), sorted."""
    watched = Watched(
        counts=np.zeros(8, np.int64),
        targets=np.ascontiguousarray(targets, np.int64),
        newest=np.full(width, NONE, np.int32),
        heads=np.full(width, -1, np.int32),
        slots=np.zeros((slots, 5), np.int64),
        via_sender=np.zeros((slots, n), np.int32),
        via_number=np.zeros((slots, n), np.int64),
        later=np.zeros((slots, n), np.uint8),
        later_number=np.zeros((slots, n), np.int64),
        free=np.arange(slots, dtype=np.int32)[::-1].copy(),
        answers=np.zeros((64, 8), np.int64),
        chain=np.zeros((2 * n + 64, 2), np.int64),
    )
    watched.counts[FREE] = slots
    return watched


def more_watched(watched: Watched) -> Watched:
    """Room for twice as much of whatever is full."""
    counts, (slots, n) = watched.counts, watched.via_sender.shape
    if counts[FREE] == 0:
        counts[FREE] = slots
        names = ("slots", "via_sender", "via_number", "later", "later_number")
        wider = {
            name: grown(old, 2 * slots, old.shape[1])
            for name in names
            if (old := getattr(watched, name)) is not None
        }
        free = grown(np.arange(slots, 2 * slots, dtype=np.int32)[::-1], 2 * slots)
        watched = watched._replace(**wider, free=free)
    if counts[ANSWERS] == len(watched.answers):
        watched = watched._replace(answers=grown(watched.answers, 2 * len(watched.answers), 8))
    if counts[CHAIN] + n + 2 > len(watched.chain):
        watched = watched._replace(chain=grown(watched.chain, 2 * len(watched.chain) + n, 2))
    return watched


@native
def needs_room(watched):  # type: ignore[no-untyped-def]
    """Whether there may be too little room for the next row."""
    counts, n = watched.counts, watched.via_sender.shape[1]
    return (
        counts[FREE] == 0
        or counts[ANSWERS] == len(watched.answers)
        or counts[CHAIN] + n + 2 > len(watched.chain)
    )


@native
def target(watched, position, entry, ordinal):  # type: ignore[no-untyped-def]
    """The slot for the message sent at this position, or -1 if it is no target."""
    counts = watched.counts
    if counts[NEXT] == len(watched.targets) or watched.targets[counts[NEXT], 0] != position:
        return -1
    uses = watched.targets[counts[NEXT], 1]
    counts[NEXT] += 1
    return activate(watched, entry, ordinal, uses)


@native
def activate(watched, entry, ordinal, uses):  # type: ignore[no-untyped-def]
    """Begin to follow a message: the latest of its origin so far."""
    watched.counts[FREE] -= 1
    slot = watched.free[watched.counts[FREE]]
    head = watched.heads[entry]
    fields = watched.slots[slot]
    fields[ENTRY], fields[ORDER], fields[USES], fields[NEWER], fields[OLDER] = entry, ordinal, uses, -1, head
    if head >= 0:
        watched.slots[head, NEWER] = slot
    watched.heads[entry] = slot
    watched.newest[entry] = ordinal
    watched.via_sender[slot, :] = -1
    watched.later[slot, :] = 0
    return slot


@native
def follow(rows, row, slab, state, watched):  # type: ignore[no-untyped-def]
    """Note what the delivery brings news of. The process has not merged it yet."""
    q, i, number = rows.process[row], rows.sender[row], rows.number[row]
    low, high, newest = state.counts[LOW], state.counts[HIGH], watched.newest
    clock, brought = state.clocks[q], state.flight_clocks[slab]
    news = False
    for entry in range(len(clock)):
        news |= (clock[entry] < brought[entry]) & (clock[entry] < newest[entry])
    if news:
        for entry in range(len(clock)):
            if clock[entry] < brought[entry] and clock[entry] < newest[entry]:
                learn(watched, entry, clock[entry], brought[entry], q, i, number)
    if low <= q < high and state.seen[q] < brought[q - low]:
        learn(watched, q - low, state.seen[q], brought[q - low], q, i, number)
    if low <= i < high:
        pass_by(watched, i - low, state.flights[slab, ORDINAL], q, number)


@native
def learn(watched, entry, known, brought, q, i, number):  # type: ignore[no-untyped-def]
    """Process q has news of the origin's messages after `known`, up to `brought`."""
    slot = watched.heads[entry]
    while slot >= 0 and watched.slots[slot, ORDER] > known:
        if watched.slots[slot, ORDER] <= brought:
            watched.via_sender[slot, q] = i
            watched.via_number[slot, q] = number
        slot = watched.slots[slot, OLDER]


@native
def pass_by(watched, entry, ordinal, q, number):  # type: ignore[no-untyped-def]
    """The origin's message of this ordinal is at q: is it the first that was sent after a target?"""
    slot = watched.heads[entry]
    while slot >= 0:
        if watched.slots[slot, ORDER] < ordinal and watched.later[slot, q] == UNKNOWN:
            watched.later[slot, q] = CAME
            watched.later_number[slot, q] = number
        slot = watched.slots[slot, OLDER]


@native
def answer(rows, row, slot, watched):  # type: ignore[no-untyped-def]
    """The target is delivered, too late: put its chain together."""
    fields, counts = watched.slots[slot], watched.counts
    q, i, number = rows.process[row], rows.sender[row], rows.number[row]
    later = watched.later[slot, q] == CAME
    if fields[USES] == PINNED:
        watched.later[slot, q] = CAME if later else CLOSED
        return
    begin, end, by, by_number = counts[CHAIN], counts[CHAIN], q, number
    for _ in range(watched.via_sender.shape[1]):
        by, by_number = watched.via_sender[slot, by], watched.via_number[slot, by]
        watched.chain[end, 0], watched.chain[end, 1] = by, by_number
        end += 1
        if by == i or by < 0:
            break
    if by_number != number:  # or the last one learnt of it from the target itself
        watched.chain[end, 0], watched.chain[end, 1] = i, number
        end += 1
    reverse(watched.chain, begin, end)
    found = watched.answers[counts[ANSWERS]]
    found[PROCESS], found[SENDER], found[NUMBER], found[INDEX] = q, i, number, rows.indices[row]
    found[CHAIN_END], found[LATER], found[LATER_NUMBER] = end, later, watched.later_number[slot, q]
    counts[CHAIN] = end
    counts[ANSWERS] += 1
    fields[USES] -= 1
    if fields[USES] == 0:
        retire(watched, slot)


@native
def retire(watched, slot):  # type: ignore[no-untyped-def]
    """Follow it no more."""
    entry, newer, older = watched.slots[slot, ENTRY], watched.slots[slot, NEWER], watched.slots[slot, OLDER]
    if older >= 0:
        watched.slots[older, NEWER] = newer
    if newer >= 0:
        watched.slots[newer, OLDER] = older
    else:
        watched.heads[entry] = older
        watched.newest[entry] = watched.slots[older, ORDER] if older >= 0 else NONE
    watched.free[watched.counts[FREE]] = slot
    watched.counts[FREE] += 1


@native
def reverse(chain, begin, end):  # type: ignore[no-untyped-def]
    """Chains are found from their end."""
    for back in range((end - begin) // 2):
        a, b = begin + back, end - 1 - back
        for column in range(2):
            chain[a, column], chain[b, column] = chain[b, column], chain[a, column]
