"""Causes that a consumer was handed after one of their effects: what one task computes, in memory.

An *event* is an identifier, with the causes of all rows that have it. Rules, for each consumer by itself
  1. an event stands where the consumer was handed it first;
  2. the first effect of an event is the one that stands first among all that have the event in their past, whether
     or not the consumer was handed what lies between;
  3. an event is late if its first effect stands before it. Equal positions are in no order: a tie is not late.

Each consumer costs one walk from what it was handed up to all causes of that, and one back: linear in those events and
the causes that they name. The first effect of an event is the least of its effects and of their first effects, so an
event is settled when all its effects are.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antecede.jit import allocating
from antecede.spark.order.graph import make_room

__all__ = ["CHAIN_MOST", "Late", "find_late"]

Numbers = NDArray[np.int64]

CHAIN_MOST: Final = 256
"""Events of a chain that are told, at most. If n events come backwards, all their chains have n²/2 events."""


class Late(NamedTuple):
    """For each entry of `handed`: its first effect, as an entry, or -1; and the chains of those that are late."""

    first: Numbers
    late: Numbers
    """The entries that are late."""
    starts: Numbers
    """Their chains: events pool[starts[i] : starts[i + 1]], from the cause to the effect; -1 for what is left out."""
    pool: Numbers


def find_late(
    up: Numbers, above: Numbers, mark: Numbers, consumers: Numbers, handed: Numbers, at: Numbers
) -> Late:
    """Find what each consumer was handed late.

    The causes of event e are above[up[e] : up[e + 1]] (`list_by`). Consumer c was handed the events
    handed[consumers[c] : consumers[c + 1]], each once, in the order of their positions `at`. `mark` settles which of
    several shortest chains is told. No event may be its own ancestor.

    >>> from antecede.spark.order.graph import list_by
    >>> up, above = list_by(np.array([1, 2]), np.array([0, 1]), 3)
    >>> mark, consumers = np.arange(3), np.array([0, 2])
    >>> found = find_late(up, above, mark, consumers, np.array([2, 0]), np.array([10, 11]))
    >>> found.late.tolist(), found.first[found.late].tolist(), found.pool.tolist()
    ([1], [0], [0, 1, 2])
    """
    first, starts, pool = walk_back(up, above, mark, consumers, handed, at, CHAIN_MOST)
    late = np.flatnonzero((first >= 0) & (at[first] < at)) if len(first) else first
    return Late(first, late, starts, pool)


@allocating
def walk_back(up: Any, above: Any, mark: Any, consumers: Any, handed: Any, at: Any, most: Any) -> Any:
    """Follow effects to their causes: the first effect of each entry, and the chain of each that is late."""
    nodes = len(up) - 1
    own, best = np.full(nodes, -1, np.int64), np.full(nodes, -1, np.int64)
    hops, through = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
    pending, seen = np.zeros(nodes, np.int64), np.zeros(nodes, np.bool_)
    past, ready = np.empty(nodes, np.int64), np.empty(nodes, np.int64)
    first = np.full(len(handed), -1, np.int64)
    starts, pool = np.zeros(16, np.int64), np.empty(64, np.int64)
    chains = 0
    for consumer in range(len(consumers) - 1):
        size = 0
        for entry in range(consumers[consumer], consumers[consumer + 1]):
            own[handed[entry]] = entry
            seen[handed[entry]] = True
            past[size] = handed[entry]
            size += 1
        done = 0
        while done < size:
            node = past[done]
            done += 1
            for place in range(up[node], up[node + 1]):
                cause = above[place]
                pending[cause] += 1
                if not seen[cause]:
                    seen[cause] = True
                    past[size] = cause
                    size += 1
        height = 0
        for place in range(size):
            if pending[past[place]] == 0:
                ready[height] = past[place]
                height += 1
        while height:
            height -= 1
            node = ready[height]
            told, far = best[node], hops[node] + 1
            if own[node] >= 0 and (told < 0 or own[node] < told):
                told, far = own[node], 1
            for place in range(up[node], up[node + 1]):
                cause = above[place]
                better = best[cause] < 0 or told < best[cause]
                if told == best[cause]:
                    nearer = far < hops[cause]
                    better = nearer or (far == hops[cause] and mark[node] < mark[through[cause]])
                if better:
                    best[cause], hops[cause], through[cause] = told, far, node
                pending[cause] -= 1
                if pending[cause] == 0:
                    ready[height] = cause
                    height += 1
        for entry in range(consumers[consumer], consumers[consumer + 1]):
            node = handed[entry]
            first[entry] = best[node]
            if best[node] < 0 or at[best[node]] >= at[entry]:
                continue
            starts, pool = make_room(starts, pool, chains, most)
            end = starts[chains]
            whole = hops[node] + 1 <= most
            left = hops[node] if whole else most - 2
            while left > 0:
                pool[end] = node
                end += 1
                left -= 1
                node = through[node]
            if not whole:
                pool[end] = -1
                end += 1
            pool[end] = handed[first[entry]]
            chains += 1
            starts[chains] = end + 1
        for place in range(size):
            node = past[place]
            own[node], best[node], hops[node], seen[node] = -1, -1, 0, False
    return first, starts[: chains + 1], pool[: starts[chains]]
