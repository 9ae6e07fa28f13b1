"""Large records of a journal, in files beside its database: what is large costs a write, and not what a page costs.

SQLite splits a large value into pages, adds up each, writes it to its log, copies it from there into the database, and
visits every page again to delete it: for 10 KB that took 40 µs or more, where a write to a file takes 1 to 3. So the
database says where a record is, how long, and with which checksum; the bytes are here.

There are two files, and one is in use. `turn` begins anew, in the other: what the database said before stays where it
was until the next `turn`. By then the database must have on disk that it is not wanted any more.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as directory:
...     bulk = Bulk(f"{directory}/a.db")
...     first, second = bulk.put(b"one"), bulk.put(b"three")
...     print(first, second, bulk.get(second, 5), bulk.get(second, 6))
...     bulk.close()
0 3 b'three' b''
"""

from __future__ import annotations

import os

from antecede.disk import sync_directory, sync_file

__all__ = ["Bulk"]


class Bulk:
    """The two files beside the database at `path`. Errors are `OSError`."""

    def __init__(self, path: str) -> None:
        self._paths = [f"{path}-bulk0", f"{path}-bulk1"]
        self._files: dict[int, int] = {}
        self.half = self.end = 0
        """Which file is in use, and where the next record goes."""
        self._fresh = False
        """Something was put that may not be on disk."""

    def put(self, record: bytes | bytearray) -> int:
        """Write a record; where it starts."""
        start, view = self.end, memoryview(record)
        file, self._fresh = self._file(), True
        while view:
            done = os.pwrite(file, view, self.end)
            self.end += done
            view = view[done:]
        return start

    def get(self, start: int, size: int) -> bytes:
        """The record that starts here; nothing if it is not there."""
        path = self._paths[self.half]
        if not os.path.exists(path) or os.path.getsize(path) < start + size:
            return b""
        return os.pread(self._file(), size, start)

    def sync(self) -> None:
        """Have on disk what was put."""
        if self._fresh:
            sync_file(self._file())
            self._fresh = False

    def turn(self) -> None:
        """Begin anew."""
        self.half, self.end = 1 - self.half, 0

    def _file(self) -> int:
        file = self._files.get(self.half)
        if file is None:
            path = self._paths[self.half]
            file = self._files[self.half] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # Or a file that is new could be missing after a power failure, with all that is in it.
            sync_directory(os.path.dirname(path) or ".")
        return file

    def close(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])
