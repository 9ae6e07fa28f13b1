"""Logs of one event a line, read from any part of a file: parts are read apart, and line numbers stay exact.

A file is cut at any bytes. A line belongs to the part in which it begins, and to no other. A part that begins inside a
line leaves the rest of that line to the part before it. Given how many lines begin in the parts before, each part knows
the numbers of its own: so a large file is read by many tasks, after one quick look at where its lines end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import IO, Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from antecede.trace.foreign.log import Rows

__all__ = ["Line", "Part", "begun", "blocks", "one", "read"]

BLOCK: Final = 4 << 20
STEP: Final = 1 << 16
COUNTED: Final = 1 << 18
"""Bytes looked at together when lines are counted: they stay in the processor's cache."""
NEWLINE: Final = 0x0A

Line = Callable[[Rows, str, int, bytes], None]
"""Adds to the rows what a line says: a run's name, the line's number, its bytes."""


class Part(Struct, frozen=True):
    """Bytes of a file, from `start` up to `end`, and the number of the first line that begins there."""

    file: str
    run: str
    start: int
    end: int
    line: int = 1


def begun(file: Any, start: int, end: int, block: int = COUNTED) -> int:
    """How many lines begin in these bytes, if something follows the newline before the last of them.

    >>> import io
    >>> [begun(io.BytesIO(b"one\\ntwo\\n3"), start, start + 4) for start in (0, 4)]
    [1, 1]
    """
    count = int(start == 0 < end)
    # A line begins after a newline: those from one byte before the part to one before its end.
    first = max(start - 1, 0)
    file.seek(first)
    left = end - 1 - first
    room = bytearray(block)
    signs, marks = np.frombuffer(room, np.uint8), np.empty(block, np.bool_)
    while left > 0 and (size := file.readinto(memoryview(room)[: min(block, left)])):
        count += int(np.count_nonzero(np.equal(signs[:size], NEWLINE, out=marks[:size])))
        left -= size
    return count


def blocks(file: IO[bytes], part: Part, block: int = BLOCK) -> Iterator[bytes]:
    """The lines of a part, whole, many at a time. Each ends in a newline, but for the last of a file.

    >>> import io
    >>> file = io.BytesIO(b"one\\ntwo\\n3")
    >>> [list(blocks(file, Part("f", "r", start, start + 5))) for start in (0, 5)]
    [[b'one\\ntwo\\n'], [b'3']]
    """
    left = to_here(file, part)
    held = b""
    while left > 0 and (data := file.read(min(block, left))):
        left -= len(data)
        held += data
        cut = held.rfind(b"\n") + 1 if left else len(held)
        if cut:
            yield held[:cut]
            held = held[cut:]


def to_here(file: IO[bytes], part: Part) -> int:
    """Go to where the first line of a part begins, and how many bytes its lines are."""
    first = after_newline(file, part.start - 1) if part.start else 0
    left = after_newline(file, part.end - 1) - first
    file.seek(first)
    return left


def after_newline(file: IO[bytes], at: int) -> int:
    """Where the next line begins after this byte, or where the file ends."""
    file.seek(at)
    while data := file.read(STEP):
        found = data.find(b"\n")
        if found >= 0:
            return at + found + 1
        at += len(data)
    return at


def read(file: IO[bytes], part: Part, line: Line, block: int = BLOCK) -> Iterator[pa.RecordBatch]:
    """What a part says, as rows. Blank lines say nothing."""
    number = part.line
    for text in blocks(file, part, block):
        rows = Rows(part.file)
        contents = text.removesuffix(b"\n").split(b"\n")
        for at, content in enumerate(contents, number):
            one(rows, part.run, at, content, line)
        number += len(contents)
        yield rows.batch()


def one(rows: Rows, run: str, number: int, content: bytes, line: Line) -> None:
    """Add what a line says, if it says anything and is text."""
    if not content or content.isspace():
        return
    try:
        content.isascii() or content.decode()
    except UnicodeDecodeError:
        rows.reject(run, number, content.decode(errors="replace"), "it is not UTF-8")
    else:
        line(rows, run, number, content.removesuffix(b"\r"))
