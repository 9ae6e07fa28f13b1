r"""The two expressions that nearly all ShiViz logs are read by, and where a file that is read by one may be cut.

    (?<host>\S*) (?<clock>{.*})\n(?<event>.*)     GoVector's: the event comes after
    (?<event>.*)\n(?<host>\S*) (?<clock>{.*})     ShiViz's own: the event comes before

A match of either is in two lines. With the event after, a line without a `}` at its end begins no match, and a search
is free at the line after it, whatever came before. With the event before, a line without a `}` is no record's second,
and no match goes across its beginning. So parts may meet there, and are then read apart as they are together.

A delimiter between executions forbids it: only those before a part tell which execution it is in.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import IO, Final

from antecede.trace.foreign.lines import Part, after_newline
from antecede.trace.foreign.shiviz import Expressions, Reader

__all__ = ["cuts", "event_first", "known", "opening_end"]

EVENT_AFTER: Final = r"(?P<host>\S*) (?P<clock>{.*})\n(?P<event>.*)"
EVENT_BEFORE: Final = r"(?P<event>.*)\n(?P<host>\S*) (?P<clock>{.*})"

HEAD: Final = 1 << 16
FAR: Final = 1 << 20
"""How far from where a cut is wanted it may be."""


def known(file: IO[bytes], part: Part, asked: Expressions) -> Reader | None:
    """A reader that stands after the opening of a file, if its expression is one of the two and nothing divides it."""
    file.seek(0)
    head = file.read(HEAD)
    if len(head) == HEAD and head.count(b"\n") < 2:
        return None
    reader = Reader(io.BytesIO(head), part.file, part.run, asked, HEAD + 1, HEAD)
    if reader.delimiter is not None or plainly(reader) not in (EVENT_AFTER, EVENT_BEFORE):
        return None
    return reader


def plainly(reader: Reader) -> str:
    return reader.pattern.pattern.replace(r"\{", "{").replace(r"\}", "}")


def event_first(reader: Reader) -> bool:
    return plainly(reader) == EVENT_BEFORE


def opening_end(file: IO[bytes], reader: Reader) -> int:
    """Where a file's log begins: after the expressions, if it opens with them."""
    at = 0
    for _ in range(reader.line - 1):
        at = after_newline(file, at)
    return at


def cuts(file: IO[bytes], whole: Part, asked: Expressions, size: int) -> list[int]:
    """Where a file may be cut into parts of about this size: none where no good place is near."""
    reader = known(file, whole, asked)
    if reader is None:
        return []
    start, first = opening_end(file, reader), event_first(reader)
    pieces = -(-whole.end // size)
    wanted = (whole.end * piece // pieces for piece in range(1, pieces))
    found = (meeting(file, at, first) for at in wanted if at > start)
    return sorted({at for at in found if at is not None and at < whole.end})


def meeting(file: IO[bytes], at: int, event_first: bool) -> int | None:
    """The first line that begins from this byte on, and before which parts may meet; None if it is not near.

    >>> file = io.BytesIO(b'ann {"ann": 1}\\nhello\\nann {"ann": 2}\\nbye\\n')
    >>> meeting(file, 3, event_first=False), meeting(file, 3, event_first=True)
    (21, 15)
    """
    place = after_newline(file, at - 1)
    for line in lines_from(file, place):
        if event_first and b"}" not in line:
            return place
        place += len(line)
        if not event_first and not line.rstrip(b"\r\n").endswith(b"}"):
            return place
    return None


def lines_from(file: IO[bytes], start: int) -> Iterator[bytes]:
    """The whole lines that begin here and end before it is too far."""
    file.seek(start)
    *whole, _ = file.read(FAR).split(b"\n")
    yield from (line + b"\n" for line in whole)
