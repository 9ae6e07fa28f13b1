"""Where data lies: a local path, or any URI that Spark reads.

A path without a scheme is local, whatever the cluster's default file system is. Files are listed through Spark, which
reads more kinds of storage than we do. Tasks open them with PyArrow: `file`, `hdfs`, `s3`, `gs`, `abfs` and whatever
else PyArrow knows; `readable` tells, and where it says no, the steps let Spark read.

Nothing is half-written (`whole`, and `all_whole` for several directories that belong together). On a local disk a
directory is written under a hidden name beside its place, and then renamed; what it replaces is renamed first and
removed last. If a rename fails, those before it are undone. A process that is killed between two renames leaves both,
the old directory and the new one, under their hidden names.

Elsewhere a rename is often a copy, so Spark's committer writes into a new place itself, and what a failure leaves there
is removed. Only what replaces something is written beside it and then moved, file by file: if that fails, the error
says where the new files are.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from antecede.errors import BadParameter, CannotWrite
from antecede.storage import absolute, join, local, opened, place, readable

__all__ = [
    "absolute", "escaped", "files", "join", "local", "opened", "place", "put", "readable", "vacant",
    "whole", "all_whole", "write",
]  # fmt: skip


def files(spark: SparkSession, path: str, pattern: str = "*.parquet") -> list[str]:
    """The visible files in a directory, or the one file, in the order of their names; none if nothing is there."""
    listing = spark.read.format("binaryFile").option("pathGlobFilter", pattern)
    try:
        # Listed while the plan is made: this costs no job.
        found = listing.load(escaped(absolute(path))).inputFiles()
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return []
        raise
    return sorted((absolute(unquote(file)) for file in found), key=str.encode)


def escaped(path: str) -> str:
    """The path as Spark's readers take it: what would be a pattern is not meant as one."""
    return "".join(f"\\{sign}" if sign in "*?[]{}\\" else sign for sign in path)


def vacant(path: str) -> bool:
    """Whether nothing is there, or an empty directory. For storage that PyArrow reads."""
    system, inside = place(path)
    found = system.get_file_info(inside).type
    if found != fs.FileType.Directory:
        return bool(found == fs.FileType.NotFound)
    return not system.get_file_info(fs.FileSelector(inside))


# Writing


def write(table: DataFrame, path: str | os.PathLike[str], *, replace: bool = False) -> None:
    """Write a table as Parquet, whole or not at all."""
    with whole(path, replace=replace) as aside:
        table.write.mode("overwrite").parquet(aside)


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
            raise taken(swap.target)
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


def taken(target: str) -> BadParameter:
    return BadParameter("output", "path", f"{target}, which is there", "a new place, or leave to replace it")
