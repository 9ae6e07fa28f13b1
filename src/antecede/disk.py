"""How files get onto the disk for good: their bytes, and their names.

`fsync` of a file says nothing of its name: that is in its directory, which has to be synced too. On macOS `fsync`
leaves the bytes in the disk's own memory, and only `F_FULLFSYNC` does what others do; there is no `fdatasync`.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

__all__ = ["sync_directory", "sync_file"]


def sync_file(descriptor: int) -> None:
    """Have the bytes of an open file on the disk."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        try:
            fcntl.fcntl(descriptor, full)
            return
        except OSError:
            # Some file systems do not know it.
            os.fsync(descriptor)
            return
    getattr(os, "fdatasync", os.fsync)(descriptor)


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Have the names of a directory's files on the disk."""
    descriptor = os.open(Path(path), os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
