"""Tables of figures for a terminal of any width, and for a file.

No cell is wrapped or cut. Columns that do not fit beside each other follow in a second table with the same first
column; where there is no terminal, the width has no limit.

>>> from rich.console import Console
>>> rows = [["matrix", "72.1", "75 ms"], ["permit", "1.3", "320 ms"]]
>>> print_table(Console(width=80, force_terminal=True, color_system=None), ["protocol", "bytes", "delay"], rows)
protocol  bytes   delay
matrix     72.1   75 ms
permit      1.3  320 ms
>>> print_table(Console(width=16, force_terminal=True, color_system=None), ["protocol", "bytes", "delay"], rows)
protocol  bytes
matrix     72.1
permit      1.3
<BLANKLINE>
protocol   delay
matrix     75 ms
permit    320 ms
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

__all__ = ["print_table"]

GAP = "  "


def print_table(
    console: Console, headings: Sequence[str], rows: Sequence[Sequence[str | Text]], *, left: int = 1
) -> None:
    """Print a table. The first `left` columns hold names, and begin at the left; others hold figures.

    A heading may have several lines. A row that is short has empty cells at its end.
    """
    cells = [[*row, *[""] * (len(headings) - len(row))] for row in rows]
    above = [heading.split("\n") for heading in headings]
    widths = [
        max(len(cell) for cell in (*above[at], *(row[at] for row in cells))) for at in range(len(headings))
    ]
    wide = console.width if console.is_terminal else None
    for number, band in enumerate(split_columns(widths, wide)):
        if number:
            console.print()
        tall = max(len(above[at]) for at in band)
        for heads in zip(*([""] * (tall - len(above[at])) + above[at] for at in band), strict=True):
            print_line(console, [Text(head, "bold") for head in heads], band, widths, left)
        for row in cells:
            print_line(console, [Text.assemble(row[at]) for at in band], band, widths, left)


def split_columns(widths: Sequence[int], wide: int | None) -> Iterator[list[int]]:
    """Columns that stand beside each other, the first one in every table.

    >>> list(split_columns([4, 5, 5, 5], 18)), list(split_columns([4, 5], 3)), list(split_columns([4, 5], None))
    ([[0, 1, 2], [0, 3]], [[0, 1]], [[0, 1]])
    """
    band, used = [0], widths[0]
    for at in range(1, len(widths)):
        if wide is not None and len(band) > 1 and used + len(GAP) + widths[at] > wide:
            yield band
            band, used = [0], widths[0]
        band.append(at)
        used += len(GAP) + widths[at]
    yield band


def print_line(
    console: Console, cells: Sequence[Text], band: Sequence[int], widths: Sequence[int], left: int
) -> None:
    line = Text()
    for cell, at in zip(cells, band, strict=True):
        room = " " * (widths[at] - len(cell))
        line.append(GAP if at else "")
        line += Text.assemble(cell, room) if at < left else Text.assemble(room, cell)
    line.rstrip()
    console.print(line, soft_wrap=True, highlight=False)
