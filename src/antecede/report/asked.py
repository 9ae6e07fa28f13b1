"""Windows that the user asks for: `RUN:FROM:TO`.

FROM and TO are clocks, which are whole numbers; or times since the run's first event, which have a unit. The name of a
run may hold colons: the last two count.

>>> extents = {"a:b": Extent(run="a:b", events=10, clocks=10, clock_low=0, clock_high=9, time_low=500, time_high=900)}
>>> window("a:b:2:7", extents)
Range(run='a:b', title='2 to 7', axis='clock', low=2, high=7)
>>> window("a:b:0s:0.3us", extents)
Range(run='a:b', title='0s to 0.3us', axis='time', low=500, high=800)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

from antecede.errors import BadParameter
from antecede.report.carried import Extent, Range

__all__ = ["window"]

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


def window(text: str, extents: Mapping[str, Extent]) -> Range:
    """The range that `RUN:FROM:TO` means."""
    parts = text.rsplit(":", 2)
    if len(parts) != 3:
        raise BadParameter("report", "--window", repr(text), EXPECTED)
    run, first, last = parts
    extent = extents.get(run)
    if extent is None:
        near = get_close_matches(run, extents, 1) or sorted(extents)[:1]
        raise BadParameter(
            "report", "--window", f"of run {run!r}", f"a run with events, such as {', '.join(near)}"
        )
    title = f"{first} to {last}"
    if first.isdigit() and last.isdigit():
        low, high = int(first), int(last)
        if extent.axis == "time":
            raise BadParameter("report", "--window", repr(text), f"times: run {run} has no clocks")
        found = Range(run, title, "clock", low, high)
    else:
        start = extent.time_low or 0
        found = Range(run, title, "time", start + _time(first, text), start + _time(last, text))
    if found.low > found.high:
        raise BadParameter("report", "--window", repr(text), "FROM before TO")
    return found


def _time(word: str, text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(\D+)", word)
    if match is None or match[2] not in UNITS:
        raise BadParameter("report", "--window", repr(text), EXPECTED)
    whole, _, fraction = match[1].partition(".")
    unit = UNITS[match[2]]
    # Whole nanoseconds: a float would miss an event of a long run.
    return int(whole) * unit + (int(fraction) * unit // 10 ** len(fraction) if fraction else 0)
