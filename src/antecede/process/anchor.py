"""How far a journal goes, in a small file beside its database, so that a lost end is noticed.

SQLite takes a write-ahead log that is damaged or missing for one that ended there, and opens an older state without a
word. So each group of inputs, once SQLite has it, is followed by one write here: the position of its last input. A
journal that ends before its anchor has lost what was durable.

The file is synced when it is made, and not again. It is shorter than a sector of a disk, so that it holds what one
write put there. A process that is killed leaves it as it wrote it. If the system goes down it may be older than the
journal, which is no harm; with sync = "normal" it may be newer, and then the boot that it was written in tells that
from damage: after another boot such a loss is what "normal" allows.
"""

from __future__ import annotations

import struct
from zlib import crc32

from msgspec import Struct

from antecede.errors import BadJournal
from antecede.process.disk import Files

__all__ = ["REJOIN", "Anchor", "Mark"]

NAME = "anchor"
MAGIC = b"AnteEnd1"
RECORD = struct.Struct("<8sQ?xxxI16s")
"""What it is, position, whether each group was synced, the process that wrote it, the boot; then a checksum."""
UNKNOWN = bytes(16)

REJOIN = "remove the node at another member, and let it join under another name"
"""What to do about a journal that is lost."""


class Mark(Struct, frozen=True):
    """What an anchor says."""

    position: int
    full: bool
    pid: int
    boot: bytes


class Anchor:
    """The anchor of a journal. Errors are `OSError`, or `BadJournal` if it is damaged."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._made = False
        """It is there, and on the disk."""

    @property
    def path(self) -> str:
        return self._files.path(NAME)

    def read(self) -> Mark | None:
        """What it says; None if there is none, or it was being made when the power failed."""
        if not self._files.size(NAME):
            return None
        data = self._files.read(NAME, 0, RECORD.size + 5)
        record = data[: RECORD.size]
        if len(data) != RECORD.size + 4 or crc32(record) != int.from_bytes(data[RECORD.size :], "little"):
            raise BadJournal(
                f"journal anchor {self.path}", f"is damaged: nobody knows how far the journal went; {REJOIN}"
            )
        magic, position, full, pid, boot = RECORD.unpack(record)
        if magic != MAGIC:
            raise BadJournal(
                f"journal anchor {self.path}",
                "is a file of another program: choose another path for the journal",
            )
        return Mark(position, full, pid, boot)

    def is_of_this_boot(self, mark: Mark) -> bool:
        """Whether the system has certainly not gone down since."""
        return mark.boot == self._files.boot != UNKNOWN

    def write(self, position: int, full: bool) -> None:
        """Say that the journal goes so far."""
        record = RECORD.pack(MAGIC, position, full, self._files.pid, self._files.boot)
        self._files.write(NAME, 0, record + crc32(record).to_bytes(4, "little"))
        if not self._made:
            # Or it could be empty after a power failure, which nobody could tell from damage.
            self._files.sync(NAME)
            self._made = True
