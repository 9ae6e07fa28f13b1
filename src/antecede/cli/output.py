"""What commands print: sentences for people, tables of figures, and CSV and JSON for programs.

Sentences go to standard error, wrapped between words on a terminal, one line each in a pipe or a file. Tables fit a
terminal of any width, and a file.

No cell is wrapped or cut. A table that is too wide is turned, if its rows fit beside each other; else the columns that
do not fit follow in a second table with the same first column, without the rows that are empty there. Where there is no
terminal, the width has no limit.

>>> from rich.console import Console
>>> rows = [["matrix", "72.1", "75 ms"], ["permit", "1.3", "320 ms"], ["buffer", "4.0"]]
>>> print_table(Console(width=80, force_terminal=True, color_system=None), ["protocol", "bytes", "delay"], rows)
protocol  bytes   delay
matrix     72.1   75 ms
permit      1.3  320 ms
buffer      4.0
>>> print_table(Console(width=16, force_terminal=True, color_system=None), ["protocol", "bytes", "delay"], rows)
protocol  bytes
matrix     72.1
permit      1.3
buffer      4.0
<BLANKLINE>
protocol   delay
matrix     75 ms
permit    320 ms
>>> print_table(Console(width=16, force_terminal=True, color_system=None), ["protocol", "bytes", "delay"], rows[:1])
protocol  matrix
bytes       72.1
delay      75 ms
>>> print_csv([{"protocol": "matrix", "found": {"lost": 2}, "waits": ["M1"], "mean": None}])
protocol,found.lost,waits,mean
matrix,2,"[""M1""]",
>>> print("\\n".join(wrap_sentence("no: 1 of 1 run, 500 deliveries: 22 violations", 30)))
no: 1 of 1 run, 500
  deliveries: 22 violations
"""

from __future__ import annotations

import csv
import json
import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

from rich.console import Console
from rich.text import Text

__all__ = [
    "RUNS_MOST",
    "SHOWN",
    "VERDICTS",
    "count_things",
    "describe_promises",
    "print_csv",
    "print_json",
    "print_sentence",
    "print_table",
]

GAP: Final = "  "
SHOWN: Final = 5
"""Findings that are told in words."""
RUNS_MOST: Final = 20
"""Runs that are shown one by one; of more, only what they come to by protocol."""
VERDICTS: Final = {
    (True, True): Text("kept", "green"),
    (True, False): Text("kept", "green"),
    (False, True): Text("broken", "bold red"),
    (False, False): Text("not promised", "yellow"),
}
"""Whether causal order was kept, and promised: the words of the report."""


def count_things(count: int, thing: str, things: str | None = None) -> str:
    """
    >>> count_things(1, "run"), count_things(2000, "run"), count_things(0, "delivery", "deliveries")
    ('1 run', '2,000 runs', '0 deliveries')
    """
    return f"{count:,} {thing if count == 1 else things or f'{thing}s'}"


def describe_promises(command: str, outcomes: Sequence[Any]) -> str:
    """Which protocols kept causal order, in one sentence. An outcome has `protocol`, `kept` and `expected`."""
    wrong = [outcome.protocol for outcome in outcomes if not outcome.expected]
    if wrong:
        return f"{command}: no: not as promised: {', '.join(wrong)}"
    broken = [outcome.protocol for outcome in outcomes if not outcome.kept]
    promise = "which does not promise it" if len(broken) == 1 else "which do not promise it"
    rest = f", not by {' and '.join(broken)}, {promise}" if broken else ""
    many = count_things(len(outcomes), "protocol")
    return f"Causal order kept by {len(outcomes) - len(broken)} of {many}{rest}."


def print_json(result: Any) -> None:
    """Print one object on standard output. What JSON has no form for is written as text."""
    print(json.dumps(result, ensure_ascii=False, default=str))


def print_csv(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print rows on standard output. A value inside another is named by its path; a list is written as JSON."""
    flat = [dict(flatten(row)) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    writer = csv.DictWriter(sys.stdout, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)


def flatten(row: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{path}{name}.")
        else:
            plain = value is None or isinstance(value, str)
            yield path + name, value if plain else json.dumps(value, ensure_ascii=False)


def print_table(
    console: Console, headings: Sequence[str], rows: Sequence[Sequence[str | Text]], *, left: int = 1
) -> None:
    """Print a table. The first `left` columns hold names, and begin at the left; others hold figures.

    A heading may have several lines. A row that is short has empty cells at its end.
    """
    cells = [[*row, *[""] * (len(headings) - len(row))] for row in rows]
    above = [heading.split("\n") for heading in headings]
    widths = measure_columns([*zip_longest(*above, fillvalue=""), *cells])
    wide = console.width if console.is_terminal else None
    if wide is not None and sum_widths(widths) > wide:
        turned = [*zip(map(" ".join, above), *cells, strict=True)]
        if sum_widths(measure_columns(turned)) <= wide:
            head, *lines = turned
            print_table(console, [str(cell) for cell in head], lines)
            return
    for number, band in enumerate(split_columns(widths, wide)):
        if number:
            console.print()
        tall = max(len(above[at]) for at in band)
        for heads in zip(*([""] * (tall - len(above[at])) + above[at] for at in band), strict=True):
            print_line(console, [Text(head, "bold") for head in heads], band, widths, left)
        for row in cells:
            if not number or any(row[at] for at in band[1:]):
                print_line(console, [Text.assemble(row[at]) for at in band], band, widths, left)


def measure_columns(rows: Iterable[Sequence[str | Text]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def sum_widths(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


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


# Sentences


def print_sentence(sentence: str, command: str = "") -> None:
    """Print a sentence of one line or several, and the command that it ends with: on a terminal in a line of its own.

    A command is never folded, so that it can be copied.
    """
    wide = find_width()
    lines = sentence.split("\n")
    if wide is not None:
        lines = [part for line in lines for part in wrap_sentence(line, wide)] + [f"  {command}"] * bool(
            command
        )
    elif command:
        # A script may read what is no terminal line by line.
        lines[-1] += f" {command}"
    print("\n".join(lines), file=sys.stderr, flush=True)


def wrap_sentence(line: str, wide: int) -> list[str]:
    """Part a line between words. No word is broken: a path or an id is to be copied."""
    lines = textwrap.wrap(
        line, max(wide, 20), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return lines or [""]


def find_width() -> int | None:
    """Columns of the terminal, or none where there is no terminal."""
    if not sys.stderr.isatty():
        return None
    asked = os.environ.get("COLUMNS", "")
    if asked.isdigit():
        return int(asked)
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or None
    except OSError:
        return None
