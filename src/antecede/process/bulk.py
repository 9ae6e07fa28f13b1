"""Large records of a journal, in files beside its database: what is large costs a write, and not what a page costs.

SQLite splits a large value into pages, adds up each, writes it to its log, copies it from there into the database, and
visits every page again to delete it: for 10 KB that took 40 µs or more, where a write to a file takes 1 to 3. So the
database says where a record is, how long, and with which checksum; the bytes are here.

There are two files, and one is in use. `turn` begins anew, in the other: what the database said before stays where it
was until the next `turn`. By then the database must have on disk that it is not wanted any more.
"""

from __future__ import annotations

from antecede.process.disk import Files

__all__ = ["Bulk"]

NAMES = ("bulk0", "bulk1")


class Bulk:
    """The two files. Errors are `OSError`."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.half = self.end = 0
        """Which file is in use, and where the next record goes."""
        self._fresh = False
        """Something was put that may not be on disk."""

    def put(self, record: bytes | bytearray) -> int:
        """Write a record; where it starts."""
        start, view = self.end, memoryview(record)
        self._fresh = True
        while view:
            done = self._files.write(NAMES[self.half], self.end, view)
            self.end += done
            view = view[done:]
        return start

    def get(self, start: int, size: int) -> bytes:
        """The record that starts here; nothing if it is not there."""
        there = self._files.size(NAMES[self.half])
        if there is None or there < start + size:
            return b""
        return self._files.read(NAMES[self.half], start, size)

    def sync(self) -> None:
        """Have on disk what was put."""
        if self._fresh:
            self._files.sync(NAMES[self.half])
            self._fresh = False

    def turn(self) -> None:
        """Begin anew."""
        self.half, self.end = 1 - self.half, 0
