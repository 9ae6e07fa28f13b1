"""Where a trace's files are, and how they become visible: whole, or not at all.

A file is written under a hidden name in its own directory (`.NAME.part`), which readers of Parquet directories skip, is
flushed to the disk and then renamed. Writers of different runs may share a directory: what they share, `runs.parquet`,
is renewed under a lock on the directory itself, which leaves no lock file behind.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from antecede.disk import sync_directory, sync_file
from antecede.errors import BadParameter

__all__ = ["Layout"]

LONGEST = 200
"""Bytes of a run's name in the name of a file: file systems take 255 for all of it."""


class Layout:
    """The paths of one trace.

    >>> trace = Layout("traces/monday")
    >>> trace.file("a/b", 7).as_posix()
    'traces/monday/events/00007-a%2Fb.parquet'
    >>> Layout("s3://bucket/trace")
    Traceback (most recent call last):
    antecede.errors.BadParameter: trace: the directory must be a local path, not s3://bucket/trace
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        text = os.fspath(directory)
        if "://" in text and not text.startswith("file://"):
            raise BadParameter("trace", f"the directory must be a local path, not {text}")
        self.root = Path(text.removeprefix("file://"))
        self.events = self.root / "events"
        self.runs = self.root / "runs.parquet"

    def file(self, run: str, serial: int) -> Path:
        """A run's file of that number. Whatever a file system or Hadoop may not take in a name is escaped."""
        name = quote(run, safe="=,+@")
        if len(name) > LONGEST:
            raise BadParameter(
                "trace",
                f"the name of run {run[:20]}... has {len(name)} bytes when escaped, and may have {LONGEST}",
            )
        return self.events / f"{serial:05d}-{name}.parquet"

    def files(self, run: str) -> list[Path]:
        """All files of a run that are named as `file` names them, hidden ones too."""
        own = self.file(run, 0).name[len("00000") :]
        hidden = f"{own}.part"
        return [path for path in sorted(self.events.glob("*")) if is_numbered(path.name, own, hidden)]

    def part(self, path: Path) -> Path:
        """The hidden name under which a file is written."""
        return path.with_name(f".{path.name}.part")

    def show(self, path: Path) -> None:
        """Make a file that was written under its hidden name visible, once the disk has it. Its name lasts, too."""
        descriptor = os.open(self.part(path), os.O_RDONLY)
        try:
            sync_file(descriptor)
        finally:
            os.close(descriptor)
        self.part(path).replace(path)
        sync_directory(path.parent)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Alone with what writers share. The lock goes when its holder does, however it ends."""
        descriptor = os.open(self.root, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def is_numbered(name: str, own: str, hidden: str) -> bool:
    """Whether a name is digits and then `own`, or the hidden form of such a name."""
    if name.startswith(".") and name.endswith(hidden):
        return name[1 : -len(hidden)].isdigit()
    return name.endswith(own) and name[: -len(own)].isdigit()
