"""Which events a page carries, of a trace of any length.

1. Each finding that is listed brings its story: the sends and deliveries of its chain, few events however far apart.
2. A run of at most `RUN` events is carried whole, as long as `ALL` allows; runs with findings come first, then the
   shorter ones.
3. Any other run gets windows: round its first findings, and spaced evenly over its length.
4. Whatever the user asked for comes on top.

A window is a range of clocks, which sort by happened-before; of times, where a run has no clocks.

>>> small, large = Extent(run="a", events=40), Extent(run="b", events=10**8, clocks=10**8, clock_high=10**8 - 1)
>>> chosen = plan([small, large])
>>> chosen.whole, len(chosen.ranges)
(('a',), 5)
>>> chosen.ranges[2]
Range(run='b', title='sample 3 of 5', axis='clock', low=49999850, high=50000149)
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Literal

from msgspec import Struct

from antecede.report.data import Event, Finding

__all__ = [
    "BUCKETS",
    "MOST",
    "Extent",
    "Plan",
    "Range",
    "channel_bands",
    "density_bands",
    "detailed",
    "listed",
    "plan",
    "stories",
]

RUN = 5_000
"""Events of a run up to which it is carried whole."""
ALL = 60_000
"""Events on a page, about: what a browser opens at once, a few megabytes."""
SAMPLE = 300
"""Events of a window, about."""
MOST = 2_000
"""Events of a window, at most."""
SAMPLES = 5
"""Evenly spaced windows of a run."""
AROUND = 5
"""Findings of a run that get a window of what happened round them."""
FINDINGS = 2_000
"""Findings that are listed one by one on a page, about; all of them are counted."""
PER_RUN = 50
BUCKETS = 96
"""Columns of the picture of where a run's events are."""
BANDS = 48
"""Its rows, at most: processes, or bands of neighbours."""
SIDE = 64
"""Rows and columns of the picture of a run's channels, at most."""
CELLS = 200_000
"""Of all such pictures of a page, about."""
PROCESSES = 20_000
"""Rows of processes on a page, about."""


class Extent(Struct, frozen=True, kw_only=True):
    """How long a run is, and from when to when."""

    run: str
    events: int = 0
    clocks: int = 0
    """Events that have a clock."""
    clock_low: int | None = None
    clock_high: int | None = None
    time_low: int | None = None
    time_high: int | None = None

    @property
    def axis(self) -> Literal["clock", "time"]:
        return "clock" if self.clocks == self.events else "time"

    @property
    def span(self) -> tuple[int, int]:
        low, high = (
            (self.clock_low, self.clock_high) if self.axis == "clock" else (self.time_low, self.time_high)
        )
        return low or 0, high or 0

    def width(self, events: int) -> int:
        """How much of the axis holds so many events, on average."""
        low, high = self.span
        return max(1, (high - low + 1) * events // max(1, self.events))


class Range(Struct, frozen=True):
    """Events to fetch: those of a run whose clock or time is in a range, both ends included."""

    run: str
    title: str
    axis: Literal["clock", "time"]
    low: int
    high: int


class Plan(Struct, frozen=True):
    whole: tuple[str, ...]
    ranges: tuple[Range, ...]


def listed(broken: int) -> int:
    """How many findings of each run are listed, if so many runs have some."""
    return max(3, min(PER_RUN, FINDINGS // max(1, broken)))


def density_bands(runs: int) -> int:
    """Rows of each picture of where the events are, if so many runs have one."""
    return max(1, min(BANDS, CELLS // BUCKETS // max(1, runs)))


def channel_bands(runs: int) -> int:
    """Rows of each picture of channels, if so many runs have one."""
    return max(1, min(SIDE, math.isqrt(CELLS // max(1, runs))))


def detailed(sizes: Mapping[str, int], first: Collection[str]) -> list[str]:
    """The runs whose processes are shown one by one, if these are their numbers; those of `first` come first."""
    order = sorted(sizes, key=lambda run: (run not in first, sizes[run]))
    totals = accumulate(sizes[run] for run in order)
    return [run for run, total in zip(order, totals, strict=True) if total <= PROCESSES or run == order[0]]


def stories(findings: Mapping[str, Sequence[Finding]]) -> list[tuple[str, str, str, int]]:
    """The (run, process, sender, number) whose events tell these findings.

    >>> late = Finding(kind="violation", process="c", sender="a", number=1, by_sender="b", by_number=7)
    >>> stories({"r": [late]})
    [('r', 'a', 'a', 1), ('r', 'b', 'a', 1), ('r', 'b', 'b', 7), ('r', 'c', 'a', 1), ('r', 'c', 'b', 7)]
    """
    keys = set()
    for run, found in findings.items():
        for finding in found:
            path = finding.path
            for message, following in zip(path, [*path[1:], None], strict=True):
                # Sent by its sender, then known to whoever sent the next one.
                knows = finding.process if following is None else following.sender
                keys |= {(run, place, message.sender, message.number) for place in (message.sender, knows)}
            keys.add((run, finding.process, finding.sender, finding.number))
    return sorted(keys)


def plan(
    extents: Iterable[Extent],
    findings: Mapping[str, Sequence[Finding]] | None = None,
    told: Mapping[str, Sequence[Event]] | None = None,
    asked: Sequence[Range] = (),
) -> Plan:
    """What to fetch. `told` are the events of the findings' stories, which say when they happened."""
    findings, told = findings or {}, told or {}
    whole, ranges, left = [], list(asked), ALL
    order = sorted(extents, key=lambda extent: (not findings.get(extent.run), extent.events))
    parts = []
    for extent in order:
        if extent.events <= min(RUN, left):
            whole.append(extent.run)
            left -= extent.events
        else:
            parts.append(extent)
    for extent in parts:
        around = _around(extent, findings.get(extent.run, ()), told.get(extent.run, ()))
        # Windows are cheap beside whole runs, but a thousand runs with ten windows each are not.
        room = max(1, left // SAMPLE // max(1, len(parts)))
        ranges += [*around[:room], *_samples(extent, max(0, min(SAMPLES, room - len(around))))]
    return Plan(tuple(sorted(whole)), tuple(ranges))


def _around(extent: Extent, findings: Sequence[Finding], told: Sequence[Event]) -> list[Range]:
    """Windows round the first findings, without those that an earlier one shows already."""
    at = {(event.process, event.index): event for event in told}
    half = extent.width(SAMPLE) // 2
    ranges: list[Range] = []
    for number, finding in enumerate(findings, 1):
        event = at.get((finding.process, -1 if finding.index is None else finding.index))
        place = None if event is None else event.clock if extent.axis == "clock" else event.time_ns
        if place is None or any(known.low <= place <= known.high for known in ranges):
            continue
        title = f"round finding {number}"
        ranges.append(Range(extent.run, title, extent.axis, place - half, place + half))
        if len(ranges) == AROUND:
            break
    return ranges


def _samples(extent: Extent, count: int) -> list[Range]:
    """Evenly spaced, from the first event to the last."""
    low, high = extent.span
    width = extent.width(SAMPLE)
    ranges = []
    for i in range(count):
        first = low + (high - low + 1 - width) * i // max(1, count - 1)
        title = f"sample {i + 1} of {count}"
        ranges.append(Range(extent.run, title, extent.axis, first, first + width - 1))
    return ranges
