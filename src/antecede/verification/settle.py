"""Native parts of `combine`: symbols become clocks, deferred checks are made.

Clocks here are absolute: they count sends from the beginning of the run. The clock that stands for a row of a
summary is, in each entry, what the row knows of the chunk's own sends if it knows of any, and else the greatest among
the symbols it has merged in: entry clocks of processes (`heard`), clocks of crossing messages (`marks`).
"""

from __future__ import annotations

import numpy as np

from antecede.jit import allocating
from antecede.verification.kernel import flip, has

__all__ = [
    "settle",
    "resolve",
    "resolve_seen",
    "GIVEN",
    "REPEATED",
    "STRANGE",
    "OVERTAKEN",
    "SUSPECT",
]

# Flags of what is said of a deferred delivery.
GIVEN, REPEATED, STRANGE, OVERTAKEN, SUSPECT = 0, 1, 2, 4, 8


@allocating
def settle(deferred, heard, marks, senders, ordinals, missing, given, clocks, crossing, seen):  # type: ignore[no-untyped-def]
    """Judge each deferred delivery, in order. A symbol without an ordinal stands for a suspect."""
    said = np.zeros(len(deferred), np.uint8)
    for check in range(len(deferred)):
        q, symbol, certain = deferred[check, 0], deferred[check, 1], deferred[check, 4]
        i, ordinal = senders[symbol], ordinals[symbol]
        if ordinal == 0:
            said[check] = SUSPECT
            continue
        if has(missing, symbol, q):
            flip(missing, symbol, q)
        elif has(given, symbol, q):
            said[check] = REPEATED
            continue
        else:
            said[check] = STRANGE
        flip(given, symbol, q)
        known = entry_of(heard, marks, check, clocks, crossing, seen, q, i)
        if certain or known >= ordinal:
            said[check] |= OVERTAKEN
    return said


@allocating
def entry_of(heard, marks, row, clocks, crossing, seen, q, i):  # type: ignore[no-untyped-def]
    """What q has news of, of origin i, from symbols. Its own entry clock is no news of itself."""
    known = seen[q] if q == i else np.int64(0)
    for p in range(len(clocks)):
        if has(heard, row, p) and (p != i or q != i):
            known = max(known, clocks[p, i])
    for symbol in range(len(crossing)):
        if has(marks, row, symbol):
            known = max(known, crossing[symbol, i])
    return known


@allocating
def resolve(own, heard, marks, base, clocks, crossing):  # type: ignore[no-untyped-def]
    """The absolute clock of each row. `base` is how much each origin had sent before the chunk."""
    resolved = np.zeros((len(own), len(base)), np.int64)
    for row in range(len(own)):
        clock = resolved[row]
        for p in range(len(clocks)):
            if has(heard, row, p):
                raise_to(clock, clocks[p])
        for symbol in range(len(crossing)):
            if has(marks, row, symbol):
                raise_to(clock, crossing[symbol])
        for i in range(own.shape[1]):
            if own[row, i]:
                clock[i] = base[i] + own[row, i]
    return resolved


@allocating
def raise_to(clock, other):  # type: ignore[no-untyped-def]
    for entry in range(len(clock)):
        clock[entry] = max(clock[entry], other[entry])


@allocating
def resolve_seen(own, heard, marks, base, clocks, crossing, seen):  # type: ignore[no-untyped-def]
    """What each process knows of its own sends from others, after the chunk.

    If its entry clock came back to it, then with a message that it had sent in the chunk: `own` says so.
    """
    resolved = np.zeros(len(seen), np.int64)
    for q in range(len(own)):
        resolved[q] = entry_of(heard, marks, q, clocks, crossing, seen, q, q)
        if own[q]:
            resolved[q] = base[q] + own[q]
    return resolved
