"""What an application saw, in its order: a file of records of eight bytes, to which all its lives append.

A record is written by one call before anything else happens, so a killed process leaves no part of one, and what it saw
last is there: what the system has taken from a process outlives it.

  START    a life begins; number: how many messages the node says that it has sent
  SENT     the application sent its message `number`
  HANDED   message (sender, number) was handed over; AGAIN: the node said that it was before
  DONE     its acknowledgement was awaited: it must not come again
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["AGAIN", "DONE", "Diary", "HANDED", "RECORD", "SENT", "START", "Tail", "read"]

START, SENT, HANDED, AGAIN, DONE = range(5)
RECORD = np.dtype([("kind", "<u2"), ("sender", "<u2"), ("number", "<u4")])
_PACK = struct.Struct("<HHI").pack

Records = npt.NDArray[Any]


class Diary:
    """Where one application writes."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, kind: int, sender: int, number: int) -> None:
        os.write(self._file, _PACK(kind, sender, number))

    def close(self) -> None:
        os.close(self._file)


def read(path: Path, offset: int = 0) -> Records:
    """The records of a diary from a byte on."""
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read()
    return np.frombuffer(data[: len(data) // RECORD.itemsize * RECORD.itemsize], RECORD)


class Tail:
    """Counts, while it is written, the different messages that a diary says were handed over."""

    def __init__(self, path: Path, n: int, each: int) -> None:
        self._path, self._offset = path, 0
        self._each = each
        self._seen = np.zeros(n * (each + 1), bool)
        self.handed = 0

    def look(self) -> int:
        if self._path.exists():
            records = read(self._path, self._offset)
            self._offset += records.nbytes
            handed = records[(records["kind"] == HANDED) | (records["kind"] == AGAIN)]
            places = np.unique(handed["sender"].astype(np.int64) * (self._each + 1) + handed["number"])
            self.handed += int((~self._seen[places]).sum())
            self._seen[places] = True
        return self.handed
