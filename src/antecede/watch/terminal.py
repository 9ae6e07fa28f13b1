"""The view for a terminal: the same figures, as a table that is drawn anew."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from antecede.watch.status import Status, describe_causes

__all__ = ["STALLED_MS", "format_age", "draw_view"]

STALLED_MS = 30_000
"""Without a batch for so long: somebody should look. A stream with nothing to do is silent too."""

CAUSES_SHOWN = 12
RATE_OVER = 10
"""Batches that a rate is taken over."""


def draw_view(statuses: Sequence[Status], now_ms: int | None = None) -> RenderableType:
    """What there is to say, newest last in `statuses`."""
    if not statuses:
        return Text("no micro-batch yet", style="dim")
    last = statuses[-1]
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    parts: list[RenderableType] = [Text(describe_state(last, now)), collect_figures(statuses, now)]
    if last.causes:
        parts.append(draw_causes(last, now))
    if last.found:
        parts.append(draw_findings(last))
    return Group(*parts)


def describe_state(last: Status, now: int) -> str:
    if last.ended is not None:
        return f"{last.query}: ended after batch {last.batch:,}: {last.ended}"
    silent = now - last.time_ms
    if silent > STALLED_MS:
        return f"{last.query}: silent for {format_age(silent)}, since batch {last.batch:,}"
    return f"{last.query}: running, batch {last.batch:,}, {format_age(silent)} ago"


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures below their names, in as many rows as the terminal needs."""

    cells: Mapping[str, str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table, used = Table(box=None, pad_edge=False, header_style="dim"), 0
        row: list[str] = []
        for name, figure in self.cells.items():
            wide = max(len(name), len(figure)) + 2
            if row and used + wide - 2 > options.max_width:
                table.add_row(*row)
                yield table
                table, used, row = Table(box=None, pad_edge=False, header_style="dim"), 0, []
            table.add_column(name, justify="right", no_wrap=True)
            row.append(figure)
            used += wide
        table.add_row(*row)
        yield table


def collect_figures(statuses: Sequence[Status], now: int) -> Figures:
    last = statuses[-1]
    rate_in, rate_out = compute_rates(statuses, now if now - last.time_ms > STALLED_MS else last.time_ms)
    cells = {
        "in per second": f"{rate_in:,.0f}",
        "out per second": f"{rate_out:,.0f}",
        "held": f"{last.held:,}",
        "longest wait": "–" if last.oldest_ms is None else format_age(now - last.oldest_ms),
        "given up": f"{last.all_given_up:,}",
        "late": f"{last.all_late:,}",
        "refused": f"{last.all_refused:,}",
        "findings": f"{last.all_found:,}",
    }
    return Figures(cells)


def compute_rates(statuses: Sequence[Status], until_ms: int) -> tuple[float, float]:
    """Rows a second, in and out, over the last batches: of the time that passed until then, idle time included.

    >>> one = Status(query="q", batch=0, time_ms=5000, duration_ms=1000, rows_in=10, rows_out=8)
    >>> two = Status(query="q", batch=1, time_ms=9000, duration_ms=1000, rows_in=10, rows_out=12)
    >>> compute_rates([one], 5000), compute_rates([one, two], 9000), compute_rates([one, two], 24000)
    ((10.0, 8.0), (4.0, 4.0), (1.0, 1.0))
    """
    some = statuses[-RATE_OVER:]
    passed = max(1, until_ms - some[0].time_ms + some[0].duration_ms) / 1000
    return sum(s.rows_in for s in some) / passed, sum(s.rows_out for s in some) / passed


def draw_causes(last: Status, now: int) -> RenderableType:
    # Who waits is known of stamps, not of identifiers.
    places = [one.place for one in last.causes]
    table = make_table("waits for", *(["at"] if any(places) else []))
    table.add_column("held", justify="right")
    table.add_column("since", justify="right")
    for cause, place in list(zip(last.causes, places, strict=True))[:CAUSES_SHOWN]:
        table.add_row(
            Text(cause.words),
            *([Text(place)] if any(places) else []),
            f"{cause.held:,}",
            format_age(now - cause.since_ms),
        )
    more = len(last.causes) - CAUSES_SHOWN
    if more > 0:
        table.add_row(f"and {more:,} more", style="dim")
    return Group(Text(describe_causes(last.causes, last.held)), table)


def make_table(*names: str) -> Table:
    """A table whose words are parted where they are too long, and never cut."""
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")
    return table


def draw_findings(last: Status) -> Table:
    table = make_table("found", "run", "message", "at", "overtaken by")
    for one in reversed(last.found):
        by = "" if one.by_sender is None else f"{one.by_sender} {one.by_number}"
        message = "" if one.sender is None else f"{one.sender} {one.number}"
        cells = (one.kind.replace("_", " "), one.run, message, one.process, by)
        table.add_row(*(Text(cell) for cell in cells))
    return table


def format_age(milliseconds: int) -> str:
    """How long, in one unit.

    >>> format_age(-3), format_age(950), format_age(61_000), format_age(7_300_000), format_age(200_000_000)
    ('0 ms', '950 ms', '61 s', '122 min', '56 h')
    """
    value = max(0, milliseconds)
    for unit, size, most in (("ms", 1, 1000), ("s", 1000, 120), ("min", 60_000, 180)):
        if value < size * most:
            return f"{value / size:.0f} {unit}"
    return f"{value / 3_600_000:.0f} h"
