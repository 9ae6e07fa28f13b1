"""How far a journal goes, in a small file beside its database, so that a lost end is noticed.

SQLite takes a write-ahead log that is damaged or missing for one that ended there, and opens an older state without a
word. So each group of inputs, once SQLite has it, is followed by one write here: the position of its last input. A
journal that ends before its anchor has lost what was durable.

The file is not synced. A process that is killed leaves it as it wrote it. If the system goes down it may be older than
the journal, which is no harm; with sync = "normal" it may be newer, and then the boot that it was written in tells that
from damage: after another boot such a loss is what "normal" allows.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as directory:
...     anchor = Anchor(f"{directory}/a.db")
...     print(anchor.read())
...     anchor.write(12, full=True)
...     mark = anchor.read()
...     print(mark.position, mark.full, mark.is_of_this_boot)
...     anchor.close()
None
12 True True
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from functools import cache
from uuid import UUID
from zlib import crc32

from msgspec import Struct

from antecede.disk import sync_directory, sync_file
from antecede.errors import BadJournal

__all__ = ["Anchor", "Mark"]

MAGIC = b"AnteEnd1"
RECORD = struct.Struct("<8sQ?xxxI16s")
"""What it is, position, whether each group was synced, the process that wrote it, the boot; then a checksum."""
UNKNOWN = bytes(16)


class Mark(Struct, frozen=True):
    """What an anchor says."""

    position: int
    full: bool
    pid: int
    boot: bytes

    @property
    def is_of_this_boot(self) -> bool:
        """Whether the system has certainly not gone down since."""
        return self.boot == boot_id() != UNKNOWN


class Anchor:
    """The anchor of the journal at `path`. Errors are `OSError`, or `BadJournal` if it is damaged."""

    def __init__(self, path: str) -> None:
        self.path = f"{path}-anchor"
        self._file: int | None = None
        self._pid = os.getpid()

    def read(self) -> Mark | None:
        """What it says; None if there is none."""
        try:
            with open(self.path, "rb") as file:
                data = file.read(RECORD.size + 5)
        except FileNotFoundError:
            return None
        record = data[: RECORD.size]
        if len(data) != RECORD.size + 4 or crc32(record) != int.from_bytes(data[RECORD.size :], "little"):
            raise BadJournal(f"journal anchor {self.path}", "one that is damaged", "how far the journal goes")
        magic, position, full, pid, boot = RECORD.unpack(record)
        if magic != MAGIC:
            raise BadJournal(f"journal anchor {self.path}", "a file of something else", "an anchor")
        return Mark(position, full, pid, boot)

    def write(self, position: int, full: bool) -> None:
        """Say that the journal goes so far."""
        if self._file is None:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            sync_directory(os.path.dirname(self.path) or ".")
        record = RECORD.pack(MAGIC, position, full, self._pid, boot_id())
        os.pwrite(self._file, record + crc32(record).to_bytes(4, "little"), 0)

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                sync_file(self._file)
            os.close(self._file)
            self._file = None


@cache
def boot_id() -> bytes:
    """Which boot of the system this is; zeros where the system does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return UUID(file.read().strip()).bytes
    except (OSError, ValueError):
        return UNKNOWN
