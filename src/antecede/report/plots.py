"""Plots as SVG files: lines over logarithmic axes, and bars side by side. They follow the reader's light or dark page.

>>> text = draw_lines("entries", {"history": {64: 35, 256: 92}}, "processes", "entries of a stamp")
>>> text.startswith("<svg"), text.count("<circle"), "35 at 64" in text
(True, 2, True)
>>> draw_bars("prices", {"bytes": {"history": 12.0}}).count("<rect")        # the bar, on its ground
2
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import ceil, floor, log10

__all__ = ["draw_bars", "draw_lines"]

WIDTH, HEIGHT = 640, 380
LEFT, RIGHT, TOP, BOTTOM = 62, 112, 54, 46
ROW, NAME, VALUE = 22, 92, 70

STYLE = """
svg { font: 12px system-ui, sans-serif; --ink: #1f2430; --line: #d9dce3; --ground: #ffffff; }
text { fill: var(--ink); } .title { font-weight: 600; font-size: 14px; }
 .ground { fill: var(--ground); } path { fill: none; stroke-width: 2; }
.c0 { --c: #3b5bdb; } .c1 { --c: #c2410c; } .c2 { --c: #15803d; } .c3 { --c: #a21caf; } .c4 { --c: #0e7490; }
.c5 { --c: #854d0e; } .c6 { --c: #be123c; } .c7 { --c: #4b5563; }
path, circle { stroke: var(--c); } .grid { stroke: var(--line); stroke-width: 1; }
circle, .bar { fill: var(--c); } .label { fill: var(--c); font-weight: 600; }
@media (prefers-color-scheme: dark) {
  svg { --ink: #e6e8ee; --line: #3a3f4b; --ground: #1b1e26; }
  .c0 { --c: #91a7ff; } .c1 { --c: #ffa94d; } .c2 { --c: #69db7c; } .c3 { --c: #e599f7; } .c4 { --c: #66d9e8; }
  .c5 { --c: #ffd43b; } .c6 { --c: #ff8787; } .c7 { --c: #adb5bd; }
}
"""
COLOURS = 8


def draw_lines(title: str, series: Mapping[str, Mapping[float, float]], x: str, y: str) -> str:
    """One line for each name: x -> y, both above 0. Each line keeps its colour and says its name at its end."""
    points = [(a, b) for line in series.values() for a, b in line.items()]
    xs, ys = sorted({a for a, _ in points}), [b for _, b in points]
    low, high = floor(log10(min(ys))), max(ceil(log10(max(ys))), floor(log10(min(ys))) + 1)
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    span = log10(xs[-1] / xs[0]) or 1.0

    def at(a: float, b: float) -> tuple[float, float]:
        return LEFT + wide * log10(a / xs[0]) / span, TOP + tall * (high - log10(b)) / (high - low)

    parts = []
    for power in range(low, high + 1):
        _, down = at(xs[0], 10.0**power)
        parts.append(f'<path class="grid" d="M{LEFT} {down:.1f}h{wide}"/>')
        parts.append(_draw_text(LEFT - 8, down + 4, _format_value(10.0**power), "end"))
    for a in xs:
        parts.append(_draw_text(at(a, 10.0**low)[0], HEIGHT - BOTTOM + 18, _format_value(a), "middle"))
    parts.append(_draw_text(LEFT + wide / 2, HEIGHT - 8, x, "middle"))
    parts.append(_draw_text(LEFT - 8, TOP - 10, y, "start"))
    places: dict[str, float] = {}
    for a in xs:
        ends = {at(a, line[a])[1]: name for name, line in series.items() if max(line) == a}
        places |= dict(zip((ends[down] for down in sorted(ends)), _spread(sorted(ends)), strict=True))
    for number, (name, line) in enumerate(series.items()):
        found = [at(a, b) for a, b in sorted(line.items())]
        way = "L".join(f"{a:.1f} {b:.1f}" for a, b in found)
        dots = "".join(
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3">'
            f"<title>{escape(name)}: {_format_value(v)} at {_format_value(u)}</title></circle>"
            for (a, b), (u, v) in zip(found, sorted(line.items()), strict=True)
        )
        label = _draw_text(found[-1][0] + 9, places[name] + 4, name, "start", "label")
        parts.append(f'<g class="c{number % COLOURS}"><path d="M{way}"/>{dots}{label}</g>')
    return _wrap_picture(title, WIDTH, HEIGHT, parts)


def draw_bars(title: str, panels: Mapping[str, Mapping[str, float]]) -> str:
    """A panel for each measure, a bar for each name in it; the first panel has the order."""
    names = list(next(iter(panels.values())))
    wide = (WIDTH - NAME) / len(panels)
    height = TOP + 24 + ROW * len(names) + 8
    parts = [
        _draw_text(NAME - 8, TOP + 40 + ROW * row, name, "end", f"label c{row % COLOURS}")
        for row, name in enumerate(names)
    ]
    for number, (measure, values) in enumerate(panels.items()):
        left, most = NAME + number * wide, max(values.values(), default=0) or 1
        parts.append(_draw_text(left, TOP + 14, measure, "start"))
        for row, name in enumerate(names):
            if name not in values:
                continue
            length, down = (wide - VALUE) * values[name] / most, TOP + 26 + ROW * row
            bar = f'<rect class="bar" x="{left:.1f}" y="{down}" width="{max(length, 1):.1f}" height="{ROW - 6}"/>'
            value = _draw_text(left + length + 6, down + 14, _format_value(values[name]), "start")
            parts.append(f'<g class="c{row % COLOURS}">{bar}{value}</g>')
    return _wrap_picture(title, WIDTH, height, parts)


def _wrap_picture(title: str, width: int, height: int, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title)}">\n<style>{STYLE}</style>\n'
        f'<rect class="ground" width="{width}" height="{height}" rx="6"/>\n'
        f"{_draw_text(12, 20, title, 'start', 'title')}\n{body}\n</svg>\n"
    )


def _draw_text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    made = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{made}>{escape(text)}</text>'


def _spread(places: Sequence[float], gap: float = 15) -> Iterator[float]:
    """The same places, from the top, each so far below the one before that names do not cover each other."""
    last = -gap
    for place in places:
        last = max(place, last + gap)
        yield last


def _format_value(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.2g}"
