"""Chance: everything drawn in a run comes from one seed, by name.

Each user of chance has a stream of its own, derived from the seed and the user's name, so that a change to one (say, a
network that loses packets) leaves the draws of the others as they were. Streams are words of 32 bits of the Mersenne
Twister, drawn in blocks: integers only, so the same on every machine.

>>> words = stream(7, "network")
>>> [next(words) for _ in range(3)] == [next(again) for again in [stream(7, "network")] for _ in range(3)]
True
>>> pick(words, 6) in range(6)
True
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import chain
from random import Random

__all__ = ["Words", "pick", "stream", "subset"]

Words = Iterator[int]
"""Random integers below 2**32, without end."""

BLOCK = 4096


def stream(seed: int, name: str) -> Words:
    """The words that this user of chance draws in runs with this seed."""
    source = Random(int.from_bytes(sha256(f"{seed}/{name}".encode()).digest(), "big"))
    return chain.from_iterable(_blocks(source))


def _blocks(source: Random) -> Iterator[array[int]]:
    code = next(code for code in "IL" if array(code).itemsize == 4)
    while True:
        block = array(code, source.getrandbits(32 * BLOCK).to_bytes(4 * BLOCK, "little"))
        if sys.byteorder == "big":
            block.byteswap()
        yield block


def pick(words: Words, n: int) -> int:
    """One of 0..n-1. With n far below 2**32 none is preferred by more than n parts in 2**32."""
    return next(words) * n >> 32


def subset(words: Words, population: Sequence[int], size: int) -> tuple[int, ...]:
    """So many different members of a population, in increasing order."""
    chosen: set[int] = set()
    while len(chosen) < size:
        chosen.add(population[next(words) * len(population) >> 32])
    return tuple(sorted(chosen))
