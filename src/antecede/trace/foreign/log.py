"""What is read of a foreign log: one row for each event, and one for each line that could not be read.

An event is at a process, and may tell its vector clock, what it did with which message, and what else the log says
of it. The *own entry* of a vector, that of the process itself, counts its events: 1, 2, 3, ... So it gives the
event's `index`, wherever the line stands in the file. An entry of 0 says the same as none, and is left out.

`LOG` has the columns. `READ` is what a reader makes: those of `LOG`, and `reason`. With a reason, the row is a
line that could not be read, and `text` is that line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa

__all__ = ["LOG", "READ", "Rows", "clock_of", "refusal_of_clock"]

LOG: Final = pa.schema(
    [
        pa.field("run", pa.string(), nullable=False),
        pa.field("process", pa.string()),
        # Its own entry less one, as in a trace: gaps are the log's, and are found by its clocks.
        pa.field("index", pa.int64()),
        # send, deliver, or null for an event of neither kind, or of a log that does not tell.
        pa.field("kind", pa.string()),
        # The message's identity, as the log writes it.
        pa.field("message", pa.string()),
        pa.field("vector", pa.map_(pa.string(), pa.int64())),
        pa.field("text", pa.string()),
        # What else the log says of the event: a JSON object.
        pa.field("fields", pa.string()),
        pa.field("file", pa.string(), nullable=False),
        # Where the event begins in its file, from 1; null for a table, which has no lines.
        pa.field("line", pa.int64()),
        # When it happened, where the log tells.
        pa.field("time_ns", pa.int64()),
    ]
)

READ: Final = LOG.append(pa.field("reason", pa.string()))

LARGEST: Final = (1 << 63) - 1

VECTOR: Final = msgspec.json.Decoder(dict[str, int])


class Rows:
    """Rows on their way into Arrow."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._rows: list[tuple[Any, ...]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self,
        run: str,
        line: int,
        process: str,
        vector: Mapping[str, int],
        text: str,
        kind: str | None = None,
        message: str | None = None,
        fields: str | None = None,
    ) -> None:
        """An event, with a vector that `refusal_of_clock` does not refuse."""
        index = vector[process] - 1
        entries = [(name, entry) for name, entry in vector.items() if entry]
        self._rows.append(
            (run, process, index, kind, message, entries, text, fields, self.file, line, None, None)
        )

    def reject(self, run: str, line: int, text: str, reason: str) -> None:
        """A line, and why it could not be read."""
        absent = (None,) * 5
        self._rows.append((run, *absent, text, None, self.file, line, None, reason))

    def batch(self) -> pa.RecordBatch:
        """The rows, with the columns of `READ`."""
        columns = zip(READ, zip(*self._rows, strict=True) if self._rows else ((),) * len(READ), strict=True)
        return pa.RecordBatch.from_arrays(
            [pa.array(values, field.type) for field, values in columns], schema=READ
        )


def clock_of(text: str | bytes) -> dict[str, int] | str:
    """A vector clock written as a JSON object, or why it is none. Quotes may be escaped, as in a string of JSON.

    >>> clock_of('{"ann": 3, "bob": 1}')
    {'ann': 3, 'bob': 1}
    >>> clock_of('{"ann": 3,')
    'its clock is no JSON object of integers: Input data was truncated'
    """
    try:
        return VECTOR.decode(text)
    except (msgspec.MsgspecError, UnicodeError) as error:
        escaped = b'\\"' in text if isinstance(text, bytes) else '\\"' in text
        if escaped:
            plain = text.replace(b'\\"', b'"') if isinstance(text, bytes) else text.replace('\\"', '"')
            return clock_of(plain)
        return f"its clock is no JSON object of integers: {error}"


def refusal_of_clock(process: str, vector: Mapping[str, int]) -> str | None:
    """Why a vector is no clock of this process, or None.

    >>> refusal_of_clock("ann", {"bob": 1})
    'its clock has no entry of its own process ann'
    """
    own = vector.get(process, 0)
    if own == 0:
        return f"its clock has no entry of its own process {process}"
    for name, entry in vector.items():
        if not 0 <= entry <= LARGEST:
            return f"its clock's entry of {name} is {entry}, and must be 0 to {LARGEST}"
    return None
