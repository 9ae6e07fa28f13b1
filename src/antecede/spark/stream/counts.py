"""The waiting room of rows that name counts, by vectors or stamps: what comes out, what waits, what is given up.

A row is the how-manieth of its channel, and names counts of other channels that must be reached before. A channel is a
source in a lane, which is a receiver or a partition; the numbers of channels are all different, in all lanes together.
The compiled kernel decides (`kernel`). It knows no time, so `Step` has the rest, by the rules of
`antecede.protocols.losses`; tests compare the two on random streams:

  given up   what a row has waited for too long and is not here counts as if it had come out. A row whose own past was
             given up, at its newest, is `released`; what was given up and comes after all is `late`
  circles    rows that contradict each other wait for each other. When their time is over, the least of a lane goes
             without what it names

Roots. What is missing is named at its root: messages that have not come, never those that are held themselves. Messages
of one channel come out one after the other, so what a missing message holds up is, for each channel, all from some
position on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from antecede.protocols.gaps import Gaps
from antecede.spark.stream import kernel
from antecede.spark.stream.kernel import NO_STAMPS, Numbers, Stamps

__all__ = ["MOST", "Counts", "Lack", "Step", "enlarge", "find_roots"]

NEVER: Final = np.iinfo(np.int64).max
MOST: Final = 32
"""Roots that are told of one lane."""


class Lack(NamedTuple):
    """What a row goes without: of which channel, from where on it was given up, and the count that the row names."""

    channel: int
    first: int
    last: int


class Counts:
    """What is known between two micro-batches."""

    def __init__(self) -> None:
        self.delivered: Numbers = np.zeros(0, np.int64)
        """Channel -> how many of its messages came out, or were given up."""
        self.places: Numbers = np.zeros(0, np.int64)
        """Lane -> the next position."""
        self.gaps = Gaps()
        """Of each channel, what was given up and has not come."""
        self.waits = Waits.none()
        """What the rows that are held wait for, as of the last micro-batch."""

    def dump(self, lanes: int, channels: int) -> dict[str, Any]:
        """Of so many lanes and channels."""
        places, delivered = self.places[:lanes].tobytes(), self.delivered[:channels].tobytes()
        return {"places": places, "delivered": delivered, "gaps": list(self.gaps)}

    @classmethod
    def load(cls, state: dict[str, Any]) -> Counts:
        counts = cls()
        counts.places, counts.delivered = (
            np.frombuffer(state[name], np.int64).copy() for name in ("places", "delivered")
        )
        counts.gaps = Gaps(state["gaps"])
        return counts

    def pick(self, lanes: Numbers, channels: Numbers) -> Counts:
        """Of these lanes and channels alone, by new numbers."""
        counts, numbers = Counts(), {channel: number for number, channel in enumerate(channels.tolist())}
        counts.places, counts.delivered = self.places[lanes], self.delivered[channels]
        counts.gaps = Gaps([(numbers[channel], *gap) for channel, *gap in self.gaps if channel in numbers])
        return counts

    def make_room(self, lanes: int, channels: int) -> None:
        self.places, self.delivered = enlarge(self.places, lanes), enlarge(self.delivered, channels)

    def find_roots(self, most: int | None) -> Iterator[tuple[int, Root]]:
        return find_roots(self.waits, self.delivered, most)


class Step:
    """One micro-batch: rows that were held and rows that came, in order, with all that `Rows` has up to `count`."""

    def __init__(self, counts: Counts, *given: Any, stamps: Stamps = NO_STAMPS) -> None:
        gapped = np.zeros(len(counts.delivered), np.int8)
        gapped[list(counts.gaps.ranges)] = 1
        self.counts = counts
        self.rows = rows = kernel.make_rows(stamps, *given, counts.delivered, counts.places, gapped)
        self.late: set[int] = set()
        """Places in `rows.order` of what had been given up."""
        self.lacks: dict[int, list[Lack]] = {}
        """Place in `rows.order` -> what the row goes without."""
        self._forced: dict[int, list[Lack]] = {}
        self._noted = 0
        came = set[tuple[int, int]]()
        while (row := kernel.arrive(rows, bool(counts.gaps))) >= 0:
            at = int(rows.channel[row]), int(rows.position[row])
            # A second copy of it is none that was given up.
            late = at not in came and counts.gaps.find(*at) is not None
            rows.late[row] = kernel.LATE if late else kernel.OLD
            came.add(at)
        self._note()

    @property
    def many(self) -> int:
        """How many came out."""
        return int(self.rows.cursor[2])

    def find_waits(self, held: Numbers) -> Waits:
        """What these rows wait for."""
        rows = self.rows
        sizes = rows.last[held] - rows.first[held]
        starts = rows.first[held] - np.concatenate([[0], np.cumsum(sizes)[:-1]])[: len(held)]
        entries = np.repeat(starts, sizes) + np.arange(sizes.sum())
        row = np.repeat(np.arange(len(held)), sizes)
        named = row, rows.process[entries], rows.count[entries]
        return Waits(rows.lane[held], rows.channel[held], rows.position[held], *named)

    def _note(self) -> None:
        """Note of what came out what it lacks, and whether it is late."""
        rows, gaps, before = self.rows, self.counts.gaps, self._noted
        self._noted = self.many
        if not gaps and not self._forced:
            return
        fresh = rows.order[before : self._noted]
        named = self.find_waits(fresh)
        concerned = (self.rows.gapped[named.source] > 0) | np.isin(fresh, list(self._forced))
        concerned[named.row[self.rows.gapped[named.process] > 0]] = True
        for place in (before + np.flatnonzero(concerned)).tolist():
            row = int(rows.order[place])
            if lacks := self._find_lacks(row):
                self.lacks[place] = lacks
            if gaps.take(int(rows.channel[row]), int(rows.position[row])):
                self.late.add(place)

    def _find_lacks(self, row: int) -> list[Lack]:
        """What was given up of what this row asks to come out just before it."""
        rows, channel = self.rows, int(self.rows.channel[row])
        found = dict.fromkeys(self._forced.get(row, ()))
        asked = [(channel, int(rows.position[row]) - 1)]
        for entry in range(rows.first[row], rows.last[row]):
            if rows.process[entry] != channel and self.rows.gapped[rows.process[entry]]:
                asked.append((int(rows.process[entry]), int(rows.count[entry])))
        for key, count in asked:
            if (gap := self.counts.gaps.find(key, count)) is not None:
                found[Lack(key, gap[0], count)] = None
        return sorted(found)

    # What is given up

    def expire(self, is_tired: Any) -> None:
        """Give up what these rows wait for and is not here, and go on, until none of them waits."""
        while True:
            held = np.flatnonzero(self.rows.state == kernel.HELD)
            tired = is_tired[held]
            if not tired.any():
                return
            waits = self.find_waits(held)
            here = sorted(zip(waits.source.tolist(), waits.position.tolist(), strict=True))
            needs, asked = find_missing(waits, self.counts.delivered, tired)
            given_up = [self._give_up(*one, here, needs) for one in asked]
            if not any(given_up):
                for at in find_least(waits, tired).tolist():
                    self._force(int(held[at]), needs)

    def _give_up(self, channel: int, last: int, here: list[tuple[int, int]], needs: Numbers) -> bool:
        """Go on as if a channel had come so far. Not while one of those is here: what it waits for goes first."""
        first = int(self.counts.delivered[channel]) + 1
        at = bisect_left(here, (channel, first))
        if first > last or (at < len(here) and here[at] <= (channel, last)):
            return False
        self._note()
        self.counts.gaps.add(channel, first, last)
        self.rows.gapped[channel] = 1
        self.counts.delivered[channel] = last
        begin, end = np.searchsorted(needs[:, 0], [channel, channel + 1])
        inside = begin + np.searchsorted(needs[begin:end, 1], [first, last + 1])
        self._resume(needs[inside[0] : inside[1]])
        return True

    def _force(self, row: int, needs: Numbers) -> None:
        """Let a row go without what it names. Those before it in its channel may be here, and come late."""
        rows, delivered, channel = self.rows, self.counts.delivered, int(self.rows.channel[row])
        before = int(rows.position[row]) - 1
        entries = np.arange(rows.first[row], rows.last[row])
        other = entries[rows.process[entries] != channel]
        unmet = other[delivered[rows.process[other]] < rows.count[other]]
        lacks = self._find_lacks(row)
        for key, count in zip(rows.process[unmet].tolist(), rows.count[unmet].tolist(), strict=True):
            lacks.append(Lack(key, int(delivered[key]) + 1, count))
        self._forced[row] = lacks
        rows.last[row] = rows.first[row]
        if delivered[channel] < before:
            self._give_up(channel, before, [], needs)
        self._resume(np.array([[lack.channel, lack.last] for lack in lacks], np.int64).reshape(-1, 2))

    def _resume(self, reached: Numbers) -> None:
        kernel.resume(self.rows, *(np.ascontiguousarray(part) for part in reached.T))
        self._note()


# What has not come


class Waits(NamedTuple):
    """Held rows as arrays: of which lane, the how-manieth of its source, and which counts it names."""

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


def find_missing(waits: Waits, delivered: Numbers, asking: Any) -> tuple[Numbers, list[tuple[int, int]]]:
    """All (channel, count) that rows need, and those of them that are not here and that some rows wait for.

    What they wait for may be held itself: then it is what that waits for. In the order to give it up in.

    >>> own, needs = np.array([[7, 0, 3], [7, 1, 1], [7, 1, 5]]).T, np.array([[1, 0, 3]]).T
    >>> every, missing = find_missing(Waits(*own, *needs), np.array([1, 0]), np.array([False, True, False]))
    >>> every.tolist(), missing
    ([[0, 2], [0, 3], [1, 4]], [(0, 2)])
    """
    row = np.concatenate([np.arange(len(waits.lane)), waits.row])
    channel = np.concatenate([waits.source, waits.process])
    count = np.concatenate([waits.position - 1, waits.needed])
    unmet = delivered[channel] < count
    unmet[len(waits.lane) :] &= waits.process != waits.source[waits.row]
    row, channel, count = row[unmet], channel[unmet], count[unmet]
    ahead = waits.position > delivered[waits.source]
    reach = np.zeros(len(delivered), np.int64)
    while True:
        asked = asking[row]
        np.maximum.at(reach, channel[asked], count[asked])
        more = asking | (ahead & (waits.position <= reach[waits.source]))
        if (more == asking).all():
            break
        asking = more
    here = set(zip(waits.source.tolist(), waits.position.tolist(), strict=True))
    named = np.unique(np.stack([channel, count], 1), axis=0)
    some = set(zip(channel[asked].tolist(), count[asked].tolist(), strict=True))
    return named, sorted(some - here)


def find_least(waits: Waits, tired: Any) -> Numbers:
    """Of these rows, the least of each lane: by the sum of what it names, and then by its channel."""
    total = waits.position.copy()
    np.add.at(total, waits.row, waits.needed)
    order = np.lexsort((waits.source, total))
    order = order[tired[order]]
    least: Numbers = order[np.unique(waits.lane[order], return_index=True)[1]]
    return least


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


def enlarge(values: Numbers, size: int) -> Numbers:
    """With room for so many, and for as many again when it grows."""
    if size <= len(values):
        return values
    larger = np.zeros(max(8, 2 * size), np.int64)
    larger[: len(values)] = values
    return larger
