"""One micro-batch of a bucket of vectors: what comes out of the rows that were held and those that came.

The compiled kernel lets rows out. Here is what it does not know: rows that were given up before they came, what a row
was released without, copies, and rows that are refused. The rules are those of `vectors`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antecede.spark.stream import kernel
from antecede.spark.stream.roots import Root, Waits, find_roots

if TYPE_CHECKING:
    from antecede.spark.stream.vectors import VectorBucket

__all__ = ["LATE", "ON_TIME", "REFUSED", "RELEASED", "REPEATED", "Step", "Vectors"]

ON_TIME, LATE, RELEASED, REPEATED, REFUSED = range(5)

Numbers = NDArray[np.int64]


class Vectors(NamedTuple):
    """Rows as arrays: the entries of row i are those from `first[i]` to `last[i]`."""

    lane: Numbers
    code: Numbers
    """The process of each row, -1 for none."""
    number: Numbers
    total: Numbers
    fault: Numbers
    first: Numbers
    last: Numbers
    named: Numbers
    """The process of each entry."""
    counts: Numbers

    @property
    def row(self) -> Numbers:
        """The row of each entry."""
        return np.repeat(np.arange(len(self.lane)), self.last - self.first)


class Step:
    """One micro-batch of a bucket: what comes out of the rows that were held and those that came."""

    def __init__(self, bucket: VectorBucket, read: Vectors) -> None:
        self.bucket, self.read = bucket, read
        row = read.row
        size = len(read.lane)
        ones = np.ones(size, np.int64)
        self.good = read.fault == 0
        self.channel = np.zeros(size, np.int64)
        good = np.flatnonzero(self.good)
        self.channel[good] = bucket.number_channels(read.lane[good], read.code[good], ones[good], ones[good])
        self.process = bucket.number_channels(read.lane[row], read.named, read.counts, self.channel[row])
        self.out: list[int] = []
        self.positions: list[int] = []
        self.kinds: list[int] = []
        self.lacks: dict[int, list[tuple[int, int]]] = {}
        self.faults: list[int] = []
        self.last = read.last.copy()
        self.forced: dict[int, list[tuple[int, int]]] = {}
        """Rows of a circle -> what they go without."""
        self.held: Numbers = good

    def take(self) -> None:
        """Let the kernel take all rows, and note what comes out and what is left."""
        self._run()
        for row in np.flatnonzero(~self.good).tolist():
            self.faults.append(int(self.read.fault[row]))
            self._emit(row, 0, REFUSED)

    def _run(self) -> None:
        bucket, read = self.bucket, self.read
        rows = self.held
        position, channel = read.number[rows], self.channel[rows]
        late = self._find_late(rows)
        size = len(rows)
        state = np.zeros(size, np.int8)
        order, placed, next_, queue, woken = (np.zeros(size, np.int64) for _ in range(5))
        cursor, none = np.zeros(3, np.int64), np.zeros(1, np.int64)
        ended = kernel.arrive(
            0, 0, none.view(np.uint8), none.astype(np.int32), none, read.lane[rows], none, position, channel, position,
            read.first[rows], self.last[rows], self.process, read.counts, late, bucket.delivered, bucket.places, state,
            order, placed, *kernel.tables(size), next_, queue, woken, none, none, cursor,
        )  # fmt: skip
        assert ended == -1, "every vector has a number"
        out = int(cursor[2])
        self._note(rows[order[:out]], placed[:out], late[order[:out]])
        delivered = bucket.delivered[channel] >= position
        again = (state == kernel.DROPPED) | ((state == kernel.COPY) & delivered)
        for row in rows[again].tolist():
            lane = read.lane[row]
            self._emit(row, int(bucket.places[lane]), REPEATED)
            bucket.places[lane] += 1
        self.held = rows[(state == kernel.HELD) | ((state == kernel.COPY) & ~delivered)]

    def _find_late(self, rows: Numbers) -> NDArray[np.int8]:
        """Which rows were given up before they came."""
        late = np.zeros(len(rows), np.int8)
        if self.bucket.gaps:
            behind = self.bucket.delivered[self.channel[rows]] >= self.read.number[rows]
            for at in np.flatnonzero(behind).tolist():
                gaps = self.bucket.gaps.get(int(self.channel[rows[at]]), ())
                late[at] = find_gap(gaps, int(self.read.number[rows[at]])) is not None
        return late

    def _note(self, rows: Numbers, placed: Numbers, late: NDArray[np.int8]) -> None:
        """Rows come out, in this order."""
        if not self.bucket.gaps and not self.forced:
            self.out += rows.tolist()
            self.positions += placed.tolist()
            self.kinds += [ON_TIME] * len(rows)
            return
        for row, place, was_late in zip(rows.tolist(), placed.tolist(), late.tolist(), strict=True):
            lacks = self._lacks(row)
            if lacks:
                self.lacks[len(self.out)] = lacks
            kind = RELEASED if lacks else ON_TIME
            if was_late:
                # A second copy of it finds nothing that was given up.
                kind = (
                    LATE if self._close_gap(int(self.channel[row]), int(self.read.number[row])) else REPEATED
                )
            self._emit(row, place, kind)

    def _lacks(self, row: int) -> list[tuple[int, int]]:
        """Processes whose event just before this one has not come, and the first number that has not."""
        read, bucket = self.read, self.bucket
        found = []
        for entry in range(read.first[row], read.last[row]):
            channel = int(self.process[entry])
            own = channel == self.channel[row]
            asked = int(read.number[row]) - 1 if own else int(read.counts[entry])
            if own and read.named[entry] != read.code[row]:
                continue
            gap = find_gap(bucket.gaps.get(channel, ()), asked)
            if gap is not None:
                found.append((int(read.named[entry]), gap[0]))
        return found or self.forced.get(row, [])

    def _force(self, row: int) -> None:
        """Let a row go without what it names."""
        read, delivered = self.read, self.bucket.delivered
        entries = np.arange(read.first[row], read.last[row])
        other = entries[self.process[entries] != self.channel[row]]
        lacks = other[delivered[self.process[other]] < read.counts[other]]
        self.forced[row] = [(int(read.named[at]), int(delivered[self.process[at]]) + 1) for at in lacks]
        self.last[row] = read.first[row]
        own = self.channel[row]
        delivered[own] = max(delivered[own], read.number[row] - 1)

    def _close_gap(self, channel: int, number: int) -> bool:
        """What was given up has come. Whether it was given up."""
        gaps = self.bucket.gaps.get(channel, [])
        gap = find_gap(gaps, number)
        if gap is None:
            return False
        del self.bucket.gaps[channel]
        left = [one for one in gaps if one != gap]
        left += [one for one in ((gap[0], number - 1), (number + 1, gap[1])) if one[0] <= one[1]]
        if left:
            self.bucket.gaps[channel] = sorted(left)
        return True

    def _emit(self, row: int, place: int, kind: int) -> None:
        self.out.append(row)
        self.positions.append(place)
        self.kinds.append(kind)

    def waits(self) -> Waits:
        """What the rows that are held wait for."""
        rows = self.held
        return Waits.of(
            self.read.lane[rows],
            self.channel[rows],
            self.read.number[rows],
            self.read.first[rows],
            self.read.last[rows],
            self.process,
            self.read.counts,
        )

    def give_up(self, tired: Numbers) -> None:
        """Give up what these rows wait for and is not here, and go on."""
        waits, bucket = self.waits(), self.bucket
        asked = np.isin(self.held, tired)
        roots = [root for _, root in find_roots(waits, bucket.delivered, None) if asked[root.blocked].any()]
        # The first of each source: what is beyond a row that is here is for that row to wait for.
        first: dict[int, Root] = {}
        for root in roots:
            if root.source not in first or root.first < first[root.source].first:
                first[root.source] = root
        for channel, root in sorted(first.items()):
            if bucket.delivered[channel] == root.first - 1:
                bucket.gaps.setdefault(channel, []).append((root.first, root.last))
                bucket.delivered[channel] = root.last
        if not any(bucket.delivered[channel] == root.last for channel, root in first.items()):
            # Vectors that contradict each other wait in a circle: the least of them goes without what it names.
            least = tired[np.lexsort((self.read.code[tired], self.read.total[tired]))[0]]
            self._force(int(least))
        self._run()


def find_gap(gaps: Iterable[tuple[int, int]], number: int) -> tuple[int, int] | None:
    return next((gap for gap in gaps if gap[0] <= number <= gap[1]), None)
