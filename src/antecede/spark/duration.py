"""Durations as Spark's watermark takes them: "30 seconds", "1 minute 30 seconds", "7 days"."""

from __future__ import annotations

import re
from typing import Final

from antecede.errors import BadParameter

__all__ = ["REMEMBER", "parse_duration"]

REMEMBER: Final = "7 days"
"""How long a stream knows what came out, unless it is told otherwise."""
UNITS: Final = {
    "millisecond": 1,
    "second": 1000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}
PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+?)s?(?:\s+|$)")


def parse_duration(owner: str, name: str, text: object) -> int:
    """Milliseconds, one at least.

    >>> parse_duration("order", "patience", "30 seconds"), parse_duration("order", "remember", "1 day 12 hours")
    (30000, 129600000)
    >>> parse_duration("order", "patience", "soon")
    Traceback (most recent call last):
    antecede.errors.BadParameter: order: patience must be a time such as 30 seconds or 7 days, not 'soon'
    """
    rest = text.strip().lower().removeprefix("interval ") if isinstance(text, str) else ""
    total, at = 0.0, 0
    while (found := PART.match(rest, at)) is not None and found[2] in UNITS:
        total += float(found[1]) * UNITS[found[2]]
        at = found.end()
    if at < len(rest) or round(total) < 1:
        raise BadParameter(owner, f"{name} must be a time such as 30 seconds or 7 days, not {text!r}")
    return round(total)
