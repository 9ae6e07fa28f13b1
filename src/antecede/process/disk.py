"""What a journal needs of a disk: a few tables that change as a whole, and files beside them.

`Disk` is all that `journal` knows of the world. `antecede.net.storage` has the real one, a SQLite database with files
beside it; `antecede.sim.nodes` has one in memory, which loses, tears, damages and refuses what it is given.

What is promised
  tables   `insert` and `replace` happen as a whole or not at all. With `full` they are on the disk when they return,
           and so is all that was before them; else they outlive the process, and `checkpoint` puts them on the disk
  files    `write` outlives the process. What was written since the last `sync` may be lost, in part or in any order,
           if the system goes down
  errors   what cannot be written raises `OSError`, and the tables are as before; what cannot be read raises
           `BadJournal` or `CannotWrite`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

__all__ = ["Disk", "Files", "Row", "Tables", "Tip"]

Row: TypeAlias = tuple[Any, Any, bytes | None, Any, Any, Any]
"""Position; how many inputs, or (of a snapshot) in which file; the record, or where it starts and its size; checksum.

All but the record are integers, or None, as they are written; what was damaged may be anything."""
Tip: TypeAlias = tuple[Any, Any]
"""Position and checksum of the last row of all."""


class Tables(Struct, frozen=True):
    """All rows of a journal, in the order of positions."""

    snapshots: Sequence[Row]
    inputs: Sequence[Row]
    tips: Sequence[Tip]


class Files(Protocol):
    """Files of one journal, named for what they are there for."""

    pid: int
    """Of the process that writes."""

    @property
    def boot(self) -> bytes:
        """Which boot of the system this is; zeros where nobody knows."""

    def path(self, name: str) -> str:
        """As people find it."""

    def size(self, name: str) -> int | None:
        """In bytes; None if there is no such file."""

    def read(self, name: str, start: int, size: int) -> bytes:
        """Bytes of a file: fewer if it ends before."""

    def write(self, name: str, start: int, data: bytes | memoryview) -> int:
        """Write some of these bytes; how many. A file that is not there is made, and its name is on the disk."""

    def sync(self, name: str) -> None:
        """Have on the disk what was written."""


class Disk(Files, Protocol):
    """The tables and the files of one journal."""

    old: bool
    """An earlier version wrote it, which had no anchor: `upgrade` ends that."""

    def tables(self) -> Tables:
        """All that the tables hold."""

    def insert(self, rows: Sequence[Row]) -> None:
        """Add rows of inputs; the last of them is the tip from now on."""

    def replace(self, snapshot: Row) -> None:
        """Let a snapshot take the place of all rows; it is the tip from now on."""

    def checkpoint(self) -> None:
        """Have on the disk what the tables hold."""

    def upgrade(self) -> None:
        """Say that the present version has written it."""

    def close(self) -> None:
        """Give back what is open."""
