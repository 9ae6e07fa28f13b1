"""Logs of one event a line.

Blank lines say nothing, and lines that are not UTF-8 are rejected, whatever the format is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import IO, Final

import pyarrow as pa

from antecede.trace.foreign.log import Rows

__all__ = ["Line", "read"]

ROWS: Final = 1 << 14
"""Lines that become one batch."""

Line = Callable[[Rows, str, int, bytes], None]
"""Adds to the rows what a line says: a run's name, the line's number, its bytes."""


def read(file: IO[bytes], name: str, run: str, read_line: Line, most: int = ROWS) -> Iterator[pa.RecordBatch]:
    """Read a file, some rows at a time. `name` is the file's in the rows.

    >>> import io
    >>> from antecede.trace.foreign import tlaplus
    >>> [batch] = read(io.BytesIO(b'{"event":"d","node":1,"pkt":{"vc":{"1":2}}}\\n'), "a.ndjson", "a", tlaplus.read)
    >>> batch.select(["process", "index", "line"]).to_pylist()
    [{'process': '1', 'index': 1, 'line': 1}]
    """
    rows = Rows(name)
    for number, content in enumerate(file, 1):
        add_line(rows, run, number, content.removesuffix(b"\n").removesuffix(b"\r"), read_line)
        if len(rows) >= most:
            yield rows.batch()
            rows = Rows(name)
    if len(rows):
        yield rows.batch()


def add_line(rows: Rows, run: str, number: int, content: bytes, read_line: Line) -> None:
    """Add what a line says, if it says anything and is text."""
    if not content or content.isspace():
        return
    try:
        content.isascii() or content.decode()
    except UnicodeDecodeError:
        rows.reject(run, number, content.decode(errors="replace"), "it is not UTF-8")
    else:
        read_line(rows, run, number, content)
