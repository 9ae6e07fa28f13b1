"""Where files lie: on this machine's disk, or in any storage that PyArrow reads. No Spark.

A path without a scheme is local, whatever a cluster's default file system is. PyArrow opens `file`, `hdfs`, `s3`, `gs`,
`abfs` and whatever else it knows; `readable` tells whether it knows a place; what only Spark reads, the
steps on Spark read through it.

Nothing is half-written (`whole`, and `all_whole` for several directories that belong together). On a local disk a
directory is written under a hidden name beside its place, and then renamed; what it replaces is renamed first and
removed last. If a rename fails, those before it are undone. A process that is killed between two renames leaves both,
the old directory and the new one, under their hidden names.

Elsewhere a rename is often a copy, so a writer writes into a new place itself, and what a failure leaves there
is removed. Only what replaces something is written beside it and then moved, file by file: if that fails, the error
says where the new files are.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import IO, Any, NoReturn
from urllib.parse import quote, urlsplit

import pyarrow as pa
from pyarrow import fs

from antecede.errors import BadParameter, CannotWrite

__all__ = [
    "absolute", "join", "local", "make_directory", "open_file", "place", "put", "readable", "remove_directory",
    "vacant", "whole", "all_whole", "refuse_existing", "refuse_file",
]  # fmt: skip


def absolute(path: str | os.PathLike[str]) -> str:
    """The path as a URI that means the same to every process of a cluster that has it.

    >>> absolute("s3a://lake/trace/")
    's3a://lake/trace'
    >>> absolute("file:///tmp/trace"), absolute("/tmp/a b")
    ('file:/tmp/trace', 'file:/tmp/a b')
    """
    text = os.fspath(path)
    scheme = urlsplit(text).scheme if ":" in text else ""
    if scheme and scheme != "file":
        return text.rstrip("/")
    bare = text.removeprefix("file:")
    return f"file:{os.path.abspath('/' + bare.lstrip('/') if scheme else bare)}"


def local(path: str | os.PathLike[str]) -> str | None:
    """The path on this machine's disk, or None if it is elsewhere."""
    place = absolute(path)
    return place.removeprefix("file:") if place.startswith("file:") else None


def join(path: str, *names: str) -> str:
    """A place below a path.

    >>> join("s3a://lake/trace", "events")
    's3a://lake/trace/events'
    """
    return "/".join([path.rstrip("/"), *names])


@cache
def filesystem(scheme: str, host: str) -> tuple[Any, str]:
    """PyArrow's file system for URIs of this kind, and what it puts before a path. What Spark calls s3a is s3."""
    scheme = {"s3a": "s3", "s3n": "s3", "abfss": "abfs"}.get(scheme, scheme)
    system, root = fs.FileSystem.from_uri(f"{scheme}://{host}/")
    return system, root


def place(path: str) -> tuple[Any, str]:
    """PyArrow's file system, and the path in it."""
    if path.startswith("file:"):
        return fs.LocalFileSystem(), "/" + path.removeprefix("file:").lstrip("/")
    parts = urlsplit(quote(path, safe="/:@"))
    system, root = filesystem(parts.scheme, parts.netloc)
    return system, f"{root.rstrip('/')}/{path.split('://', 1)[1].partition('/')[2]}"


def readable(path: str) -> bool:
    """Whether PyArrow can read this kind of storage by itself."""
    try:
        place(path)
    except (pa.ArrowException, OSError, ImportError, ValueError):
        return False
    return True


def open_file(path: str) -> IO[bytes]:
    """A file, for a task to read."""
    system, inside = place(path)
    return system.open_input_file(inside)  # type: ignore[no-any-return]


def vacant(path: str) -> bool:
    """Whether nothing is there, or an empty directory. For storage that PyArrow reads."""
    system, inside = place(path)
    found = system.get_file_info(inside).type
    if found != fs.FileType.Directory:
        return bool(found == fs.FileType.NotFound)
    return not system.get_file_info(fs.FileSelector(inside))


# Writing


def make_directory(path: str) -> str:
    """Make a directory, and give its path. For storage that PyArrow reads."""
    system, inside = place(path)
    system.create_dir(inside)
    return path


def remove_directory(path: str) -> None:
    """Remove a directory and all that is in it. For storage that PyArrow reads."""
    system, inside = place(path)
    system.delete_dir(inside)


def put(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file, whole or not at all; one of that name is replaced. An object store shows it when it is whole."""
    target = local(path)
    try:
        if target is None:
            system, inside = place(absolute(path))
            with system.open_output_stream(inside) as file:
                file.write(data)
        else:
            put_local(target, data)
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise CannotWrite(os.fspath(path), reason, "what was there is unchanged") from None


def refuse_file(path: str | os.PathLike[str]) -> None:
    """Refuse a place where `put` could not write, before the work that makes what it would write."""
    target = local(path)
    if target is None:
        return
    if os.path.isdir(target):
        raise CannotWrite(os.fspath(path), "it is a directory", "nothing was written")
    if not os.path.isdir(os.path.dirname(target)):
        raise CannotWrite(os.fspath(path), "there is no such directory", "nothing was written")


def put_local(target: str, data: bytes) -> None:
    parent, name = os.path.split(target)
    aside = os.path.join(parent, f".{name}.{os.getpid()}.part")
    try:
        with open(aside, "wb") as file:
            file.write(data)
        os.replace(aside, target)
    finally:
        with suppress(OSError):
            os.unlink(aside)


@contextmanager
def whole(path: str | os.PathLike[str], *, replace: bool = False) -> Iterator[str]:
    """A place to write into, which becomes `path` when the block ends well and is removed when it does not."""
    with all_whole([path], replace=replace) as [aside]:
        yield aside


@contextmanager
def all_whole(paths: Sequence[str | os.PathLike[str]], *, replace: bool = False) -> Iterator[list[str]]:
    """Places to write into, one for each path, which become the paths together or not at all."""
    swaps = [LocalSwap(target) if (target := local(path)) else RemoteSwap(absolute(path)) for path in paths]
    for swap in swaps:
        if swap.replaces and not replace:
            refuse_existing(swap.target)
    begun: list[LocalSwap | RemoteSwap] = []
    current = swaps[0]
    try:
        for current in swaps:
            current.prepare()
        yield [swap.aside for swap in swaps]
        for current in swaps:
            begun.append(current)
            current.swap()
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise CannotWrite(current.target, reason, undo(begun)) from None
    else:
        begun.clear()
        for swap in swaps:
            swap.finish()
    finally:
        for swap in swaps:
            swap.discard()


def undo(begun: Sequence[LocalSwap | RemoteSwap]) -> str:
    """Put back what was renamed, the last first, and say what is there now."""
    left = [where for swap in reversed(begun) if (where := swap.undo())]
    if left:
        return "; ".join(left)
    return "what was there is unchanged" if any(swap.replaces for swap in begun) else "nothing was left there"


class LocalSwap:
    """A directory beside its place, and the renames that put it there."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.replaces = os.path.lexists(target)
        self._parent, name = os.path.split(target)
        self._aside = os.path.join(self._parent, f".{name}.{os.getpid()}.part")
        self._old = f"{self._aside}.old"
        self.aside = f"file:{self._aside}"
        self._renamed: list[tuple[str, str]] = []

    def prepare(self) -> None:
        os.makedirs(self._parent, exist_ok=True)

    def swap(self) -> None:
        if self.replaces:
            self._rename(self.target, self._old)
        self._rename(self._aside, self.target)

    def _rename(self, source: str, goal: str) -> None:
        os.rename(source, goal)
        self._renamed.append((source, goal))

    def undo(self) -> str | None:
        """Rename back. What could not be put back, if anything."""
        try:
            while self._renamed:
                source, goal = self._renamed[-1]
                os.rename(goal, source)
                self._renamed.pop()
        except OSError:
            return f"what was {source} is in {goal}"
        return None

    def finish(self) -> None:
        if self.replaces:
            remove(self._old)

    def discard(self) -> None:
        remove(self._aside)


class RemoteSwap:
    """A directory in a storage that has no renames, or slow ones: new files are written in place."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._system, self._inside = place(target)
        self.replaces = self._system.get_file_info(self._inside).type != fs.FileType.NotFound
        parent, _, name = target.rpartition("/")
        self.aside = f"{parent}/.{name}.{os.getpid()}.part" if self.replaces else target
        self._aside = place(self.aside)[1]
        self._whole = False

    def prepare(self) -> None:
        pass

    def swap(self) -> None:
        self._whole = True
        if not self.replaces:
            return
        new = self._system.get_file_info(fs.FileSelector(self._aside, recursive=True))
        self._system.delete_dir(self._inside)
        for info in new:
            if info.type == fs.FileType.File:
                goal = self._inside + info.path.removeprefix(self._aside)
                self._system.create_dir(goal.rpartition("/")[0], recursive=True)
                self._system.move(info.path, goal)

    def undo(self) -> str | None:
        if self.replaces:
            return f"the new files are in {self.aside} and in {self.target}, the old ones may be gone"
        self._whole = False
        return None

    def finish(self) -> None:
        if self.replaces:
            self._whole = False

    def discard(self) -> None:
        if not self._whole:
            with suppress(OSError, pa.ArrowException):
                self._system.delete_dir(self._aside)


def remove(path: str) -> None:
    """What is in the way of nobody any more. If it cannot be removed, it stays under its hidden name."""
    with suppress(OSError):
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)


def refuse_existing(target: str) -> NoReturn:
    raise BadParameter("output", f"{target} is there already: write to a new place, or remove it first")
