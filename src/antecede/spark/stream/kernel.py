"""The machines' rule for stamps of counts, at native speed: hold, wake, deliver.

A packet may be delivered when the one before it in its channel was, and every count that it names is reached. As in
`antecede.protocols.receiver`, a held packet is filed under the first thing that it waits for, and a delivery wakes what
waited for it, by sender and number. What becomes deliverable is delivered at once, first what came first. So the order
is the one in which a machine, driven by `lanes`, delivers; tests compare the two on random streams.

Two hash tables (`antecede.jit.hashtable`), keyed by (receiver and sender, count): which packet of a channel is
held, and the first of those that wait for it; `next_` leads to the others.
"""

from __future__ import annotations

from typing import Any

from antecede.jit import inlined, native
from antecede.jit.hashtable import EMPTY, find, insert, new_table, remove, value_at
from antecede.spark.stream.stamps import decode

__all__ = ["DROPPED", "DELIVERED", "HELD", "arrive"]

HELD, DELIVERED, DROPPED = 0, 1, 2


@inlined
def unmet(
    i: int,
    lane: int,
    source: int,
    position: Any,
    first: Any,
    last: Any,
    process: Any,
    count: Any,
    delivered: Any,
) -> int:
    """The first entry that is not met; -2 for the one before it in the channel, -1 if there is none."""
    if delivered[lane, source] < position[i] - 1:
        return -2
    for entry in range(first[i], last[i]):
        if delivered[lane, process[entry]] < count[entry]:
            return entry
    return -1


@inlined
def file(
    i: int, need: int, n: int, lane: int, source: int, position: Any, process: Any, count: Any, waiters: Any,
    next_: Any,
) -> None:  # fmt: skip
    """Hold a packet under what it waits for."""
    key = lane * n + (source if need == -2 else process[need])
    reached = position[i] - 1 if need == -2 else count[need]
    at = find(waiters, key, reached)
    # The one that waited before it, or -1: `EMPTY`.
    next_[i] = value_at(waiters, at)
    insert(waiters, at, key, reached, i)


@native
def arrive(
    code: int, n: int, data: Any, ends: Any, mes: Any, lanes: Any, sources: Any, numbers: Any, position: Any,
    first: Any, last: Any, process: Any, count: Any, delivered: Any, places: Any, state: Any, order: Any, placed: Any,
    held: Any, waiters: Any, next_: Any, queue: Any, woken: Any, set_: Any, rows_: Any, one: Any, cursor: Any,
) -> int:  # fmt: skip
    """Take the packets one after the other; -1 at the end, or else the one that is not sure to be a packet.

    Those that are delivered are in `order`, with their places at their receivers in `placed`; `state` says what became
    of each packet. `cursor` is where to go on: the next packet, the entries used, how many were delivered. A stamp is
    read when its turn comes, against what was delivered by then: of most there is nothing left to keep.
    """
    out = cursor[2]
    for i in range(cursor[0], len(position)):
        lane, source = lanes[i], sources[i]
        if position[i] == 0:
            if 0 <= source < n and source != mes[i]:
                one[0] = i
                cursor[1] = decode(
                    code, n, data, ends, one, mes, lanes, sources, numbers, delivered, position, first, last, process,
                    count, set_, rows_, cursor[1],
                )  # fmt: skip
            if position[i] == 0:
                cursor[0], cursor[2] = i, out
                return i
        key = lane * n + source
        at = find(held, key, position[i])
        if value_at(held, at) != EMPTY or delivered[lane, source] >= position[i]:
            state[i] = DROPPED
            cursor[1] = first[i]
            continue
        need = unmet(i, lane, source, position, first, last, process, count, delivered)
        if need != -1:
            state[i] = HELD
            insert(held, at, key, position[i], 0)
            file(i, need, n, lane, source, position, process, count, waiters, next_)
            continue
        cursor[1] = first[i]
        queue[0] = i
        head, tail = 0, 1
        while head < tail:
            j = queue[head]
            head += 1
            source = sources[j]
            key = lane * n + source
            state[j] = DELIVERED
            delivered[lane, source] = position[j]
            order[out], placed[out] = j, places[lane]
            places[lane] += 1
            out += 1
            at = find(held, key, position[j])
            if value_at(held, at) != EMPTY:
                remove(held, at)
            at = find(waiters, key, position[j])
            k = value_at(waiters, at)
            if k == EMPTY:
                continue
            many = 0
            remove(waiters, at)
            while k >= 0:
                # By sender and number: few wait for the same, so each is put in its place.
                place = many
                while place > 0 and (
                    sources[woken[place - 1]] > sources[k]
                    or (sources[woken[place - 1]] == sources[k] and numbers[woken[place - 1]] > numbers[k])
                ):
                    woken[place] = woken[place - 1]
                    place -= 1
                woken[place] = k
                many += 1
                k = next_[k]
            for place in range(many):
                k = woken[place]
                need = unmet(k, lane, sources[k], position, first, last, process, count, delivered)
                if need == -1:
                    queue[tail] = k
                    tail += 1
                else:
                    file(k, need, n, lane, sources[k], position, process, count, waiters, next_)
    cursor[0], cursor[2] = len(position), out
    return -1


def tables(rows: int) -> tuple[Any, Any]:
    """Empty tables for so many packets."""
    return new_table(rows), new_table(rows)
