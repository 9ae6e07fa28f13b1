"""What a chunk does to the clocks, and what it could not decide, as a value that goes from task to task.

Size, before compression: n processes, S messages that cross into the chunk, D deliveries of these, F messages still
in flight at its end take about 4 n² + n S/8 + F (4 n + S/8 + n/4) + D (40 + S/8) bytes. With n = 64 and a thousand
messages in flight that is half a megabyte, whatever the length of the chunk.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from numpy.typing import NDArray

from antecede.blob import pack, unpack

__all__ = ["Summary"]

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Summary:
    """Rows are processes, messages in flight, or deferred checks; see state.py for what is in them.

    Marks are in two: `heard`, a bit for each process's entry clock, and `marks`, one for each crossing message.
    """

    shape: Array
    """n, deliveries, rows, and the block of origins: its first, and the one after its last."""
    clocks: Array
    heard: Array
    marks: Array
    seen: Array
    sends: Array
    numbers: Array
    steady: Array
    flights: Array
    flight_clocks: Array
    flight_heard: Array
    flight_marks: Array
    missing: Array
    given: Array
    symbols: Array
    deferred: Array
    deferred_heard: Array
    deferred_marks: Array
    late: Array
    """Deliveries of messages that were sent here, or nowhere: process, sender, number, index, position."""

    @property
    def n(self) -> int:
        return int(self.shape[0])

    @property
    def deliveries(self) -> int:
        """All of the chunk's, repeated ones too."""
        return int(self.shape[1])

    @property
    def block(self) -> tuple[int, int]:
        return int(self.shape[3]), int(self.shape[4])

    def encode(self) -> bytes:
        return pack("summary", {field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def decode(cls, data: bytes) -> Summary:
        return cls(**unpack("summary", data))
