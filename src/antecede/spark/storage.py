"""Where data lies: a local path, or any URI that Spark reads.

A path without a scheme is local, whatever the cluster's default file system is. Files are listed through Spark, which
reads more kinds of storage than we do. Tasks open them with PyArrow: `file`, `hdfs`, `s3`, `gs`, `abfs` and whatever
else PyArrow knows; `readable` tells, and where it says no, the steps let Spark read.

Nothing is half-written. On a local disk a table or a directory is written under a hidden name beside its place, and
then renamed. Elsewhere a rename is often a copy, so Spark's committer writes into the place itself, and what a failure
leaves there is removed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from antecede.errors import BadParameter, CannotWrite
from antecede.storage import absolute, join, local, opened, place, readable

__all__ = [
    "absolute", "escaped", "files", "join", "local", "opened", "place", "put", "readable", "vacant", "whole",
    "write",
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
    target = local(path)
    with whole_local(target, replace) if target else whole_remote(absolute(path), replace) as aside:
        yield aside


@contextmanager
def whole_local(target: str, replace: bool) -> Iterator[str]:
    if os.path.lexists(target) and not replace:
        raise taken(target)
    parent, name = os.path.split(target)
    aside = os.path.join(parent, f".{name}.{os.getpid()}.part")
    try:
        os.makedirs(parent, exist_ok=True)
        yield f"file:{aside}"
        if os.path.lexists(target):
            old = f"{aside}.old"
            os.rename(target, old)
            os.rename(aside, target)
            shutil.rmtree(old)
        else:
            os.rename(aside, target)
    except OSError as error:
        raise CannotWrite(target, error.strerror or str(error), "nothing was left there") from None
    finally:
        with suppress(OSError):
            shutil.rmtree(aside)


@contextmanager
def whole_remote(target: str, replace: bool) -> Iterator[str]:
    system, inside = place(target)
    if system.get_file_info(inside).type != fs.FileType.NotFound:
        if not replace:
            raise taken(target)
        system.delete_dir(inside)
    try:
        yield target
    except BaseException:
        with suppress(OSError, pa.ArrowException):
            system.delete_dir(inside)
        raise


def taken(target: str) -> BadParameter:
    return BadParameter("output", "path", f"{target}, which is there", "a new place, or leave to replace it")
