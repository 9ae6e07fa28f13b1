"""Selection: which events a page carries, of a trace of any length.

1. Each finding that is listed brings its story: the sends and deliveries of its chain, few events however far apart.
2. A run of at most `RUN` events is carried whole, as long as `ALL` allows; runs with findings come first, then the
   shorter ones.
3. Any other run gets windows: round its first findings, and spaced evenly over its length.
4. The windows that the user asks for (`--window RUN:FROM:TO`) come on top.

A window is a range of clocks, which sort by happened-before; of times, where a run has no clocks.

>>> small, large = Extent(run="a", events=40), Extent(run="b", events=10**8, clocks=10**8, clock_high=10**8 - 1)
>>> chosen = plan_selection([small, large])
>>> chosen.whole, len(chosen.ranges)
(('a',), 5)
>>> chosen.ranges[2]
Range(run='b', title='sample 3 of 5', axis='clock', low=49999850, high=50000149)
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import accumulate
from typing import Final, Literal

from msgspec import Struct

from antecede.errors import BadParameter
from antecede.report.data import Event, Finding

__all__ = [
    "BUCKETS", "MOST", "Extent", "Selection", "Range", "limit_channel_bands", "limit_density_bands",
    "choose_detailed", "limit_findings", "plan_selection", "list_story_keys", "parse_window",
]  # fmt: skip

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


class Selection(Struct, frozen=True):
    """Runs to fetch as a whole, and ranges of others."""

    whole: tuple[str, ...]
    ranges: tuple[Range, ...]


def limit_findings(broken: int) -> int:
    """How many findings of each run are listed, if so many runs have some."""
    return max(3, min(PER_RUN, FINDINGS // max(1, broken)))


def limit_density_bands(runs: int) -> int:
    """Rows of each picture of where the events are, if so many runs have one."""
    return max(1, min(BANDS, CELLS // BUCKETS // max(1, runs)))


def limit_channel_bands(runs: int) -> int:
    """Rows of each picture of channels, if so many runs have one."""
    return max(1, min(SIDE, math.isqrt(CELLS // max(1, runs))))


def choose_detailed(sizes: Mapping[str, int], first: Collection[str]) -> list[str]:
    """The runs whose processes are shown one by one, if these are their numbers; those of `first` come first."""
    order = sorted(sizes, key=lambda run: (run not in first, sizes[run]))
    totals = accumulate(sizes[run] for run in order)
    return [run for run, total in zip(order, totals, strict=True) if total <= PROCESSES or run == order[0]]


def list_story_keys(findings: Mapping[str, Sequence[Finding]]) -> list[tuple[str, str, str, int]]:
    """The (run, process, sender, number) whose events tell these findings.

    >>> late = Finding(kind="violation", process="c", sender="a", number=1, by_sender="b", by_number=7)
    >>> list_story_keys({"r": [late]})
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


def plan_selection(
    extents: Iterable[Extent],
    findings: Mapping[str, Sequence[Finding]] | None = None,
    told: Mapping[str, Sequence[Event]] | None = None,
    wanted: Sequence[Range] = (),
) -> Selection:
    """What to fetch. `told` are the events of the findings' stories, which say when they happened.

    `wanted` are the windows that the user asks for.
    """
    findings, told = findings or {}, told or {}
    whole, ranges, left = [], list(wanted), ALL
    order = sorted(extents, key=lambda extent: (not findings.get(extent.run), extent.events))
    parts = []
    for extent in order:
        if extent.events <= min(RUN, left):
            whole.append(extent.run)
            left -= extent.events
        else:
            parts.append(extent)
    for extent in parts:
        around = _plan_around(extent, findings.get(extent.run, ()), told.get(extent.run, ()))
        # Windows are cheap beside whole runs, but a thousand runs with ten windows each are not.
        room = max(1, left // SAMPLE // max(1, len(parts)))
        ranges += [*around[:room], *_plan_samples(extent, max(0, min(SAMPLES, room - len(around))))]
    return Selection(tuple(sorted(whole)), tuple(ranges))


def _plan_around(extent: Extent, findings: Sequence[Finding], told: Sequence[Event]) -> list[Range]:
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


def _plan_samples(extent: Extent, count: int) -> list[Range]:
    """Evenly spaced, from the first event to the last."""
    low, high = extent.span
    width = extent.width(SAMPLE)
    ranges = []
    for i in range(count):
        first = low + (high - low + 1 - width) * i // max(1, count - 1)
        title = f"sample {i + 1} of {count}"
        ranges.append(Range(extent.run, title, extent.axis, first, first + width - 1))
    return ranges


# Windows that the user asks for

UNITS: Final = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
}
EXPECTED: Final = "RUN:FROM:TO, with clocks (1200) or times since the start of the run (2.5s, 300ms)"


def parse_window(text: str, extents: Mapping[str, Extent]) -> Range:
    """The range that `RUN:FROM:TO` means.

    FROM and TO are clocks, which are whole numbers; or times since the run's first event, which have a unit. The name
    of a run may hold colons: the last two count.

    >>> extents = {"a:b": Extent(run="a:b", events=9, clocks=9, clock_low=0, clock_high=9, time_low=500, time_high=900)}
    >>> parse_window("a:b:2:7", extents)
    Range(run='a:b', title='2 to 7', axis='clock', low=2, high=7)
    >>> parse_window("a:b:0s:0.3us", extents)
    Range(run='a:b', title='0s to 0.3us', axis='time', low=500, high=800)
    """
    parts = text.rsplit(":", 2)
    if len(parts) != 3:
        raise BadParameter("report", f"--window must be {EXPECTED}, not {text!r}")
    run, first, last = parts
    extent = extents.get(run)
    if extent is None:
        near = get_close_matches(run, extents, 1) or sorted(extents)[:1]
        raise BadParameter(
            "report", f"--window names run {run!r}, which has no events; one with events is {', '.join(near)}"
        )
    title = f"{first} to {last}"
    if first.isdigit() and last.isdigit():
        low, high = int(first), int(last)
        if extent.axis == "time":
            raise BadParameter("report", f"--window {text!r} must be in times: run {run} has no clocks")
        found = Range(run, title, "clock", low, high)
    else:
        start = extent.time_low or 0
        found = Range(run, title, "time", start + _parse_time(first, text), start + _parse_time(last, text))
    if found.low > found.high:
        raise BadParameter("report", f"--window must have FROM before TO, and is {text!r}")
    return found


def _parse_time(word: str, text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(\D+)", word)
    if match is None or match[2] not in UNITS:
        raise BadParameter("report", f"--window must be {EXPECTED}, not {text!r}")
    whole, _, fraction = match[1].partition(".")
    unit = UNITS[match[2]]
    # Whole nanoseconds: a float would miss an event of a long run.
    return int(whole) * unit + (int(fraction) * unit // 10 ** len(fraction) if fraction else 0)
