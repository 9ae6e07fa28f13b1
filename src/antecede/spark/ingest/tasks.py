"""The files of a log, and the tasks that read them.

A task reads whole files, some hundreds of small ones or one large one: only the reading tells where a record begins and
which line it is in. Tasks open their files themselves; text never passes through Java. Spark reads a file that PyArrow
cannot open, as one value. A few files on this machine's disk are read by this process: no Python has to start for them.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import IO, Final, cast

import pyarrow as pa
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from antecede.errors import BadParameter
from antecede.spark.run_tasks import plan_tasks
from antecede.spark.session import is_connect
from antecede.spark.storage import absolute, escape_path, files, local, open_file, readable
from antecede.trace.foreign import lines, shiviz
from antecede.trace.foreign.log import LOG, READ
from antecede.trace.foreign.shiviz import Expressions

__all__ = [
    "SPARK_LOG", "SPARK_REJECTED", "LogFiles", "list_files", "list_log_files", "name_runs", "read_here",
    "read_log_files",
]  # fmt: skip

SPARK_LOG: Final = from_arrow_schema(LOG)
SPARK_READ: Final = from_arrow_schema(READ)
"""Events, and lines that could not be read: those have a reason."""
SPARK_REJECTED: Final = StructType([SPARK_READ[name] for name in ("run", "file", "line", "text", "reason")])

CODECS: Final = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}

SMALL_BYTES: Final = 1 << 20
"""Bytes of local files that this process reads by itself: a task would take longer to start."""
TASKS: Final = 64
"""Files up to which each is a task of its own."""
TOGETHER: Final = 256
"""Files of a task at most, however small: the task opens them one after the other."""


class LogFiles(Struct, frozen=True):
    """What is to be read, and how: the run of each file."""

    format: str
    asked: Expressions
    runs: dict[str, str]

    def deal(self) -> list[list[str]]:
        """The files of each task. Neighbours go to different tasks: they are often of one size."""
        names = list(self.runs)
        tasks = max(min(len(names), TASKS), -(-len(names) // TOGETHER))
        return [names[task::tasks] for task in range(tasks)]


def list_files(spark: SparkSession, paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """The files at these paths and in these directories, each once and in the order of their names."""
    found: set[str] = set()
    for path in paths:
        names = files(spark, os.fspath(path), "*")
        if not names:
            raise BadParameter("ingest", f"{os.fspath(path)} must be a file, or a directory with files")
        found.update(names)
    return sorted(found, key=str.encode)


def list_log_files(
    spark: SparkSession,
    paths: Sequence[str | os.PathLike[str]],
    format: str,
    asked: Expressions,
    run: str | None = None,
) -> LogFiles:
    """Find the files to read. All are one run of this name, or each is a run named for its file."""
    names = list_files(spark, paths)
    return LogFiles(format, asked, dict.fromkeys(names, run) if run is not None else name_runs(names))


def name_runs(names: Sequence[str]) -> dict[str, str]:
    """A run for each file: as much of the end of its path as tells it from the others.

    >>> name_runs(["file:/a/x.log", "file:/b/x.log", "file:/b/y.log"])
    {'file:/a/x.log': 'a/x.log', 'file:/b/x.log': 'b/x.log', 'file:/b/y.log': 'y.log'}
    """
    words = {name: name.split("/") for name in names}
    runs: dict[str, str] = {}
    left, length = set(names), 1
    while left:
        ends: dict[str, list[str]] = {}
        for name in names:
            ends.setdefault("/".join(words[name][-length:]), []).append(name)
        for end, own in ends.items():
            if own[0] in left and (len(own) == 1 or length > len(words[own[0]])):
                left.difference_update(own)
                runs.update(dict.fromkeys(own, end))
        length += 1
    return {name: runs[name] for name in names}


def read_log_files(spark: SparkSession, source: LogFiles) -> DataFrame:
    """Events and lines that could not be read (`SPARK_READ`), read whenever the table is."""
    if not all(map(readable, source.runs)):
        return read_through_spark(spark, source)
    return plan_tasks(spark, source.deal(), partial(read_files, source), SPARK_READ)


def read_here(spark: SparkSession, source: LogFiles) -> DataFrame | None:
    """The same of a few files on this machine's disk, read by this process; None of others."""
    paths = [local(name) for name in source.runs]
    # What is local to a server of Spark Connect need not be here.
    if is_connect(spark) or None in paths or sum(map(os.path.getsize, filter(None, paths))) > SMALL_BYTES:
        return None
    # PySpark takes no table without a chunk.
    batches = [pa.RecordBatch.from_pylist([], READ), *read_files(source, source.runs)]
    return spark.createDataFrame(pa.Table.from_batches(batches, READ), SPARK_READ)


def read_through_spark(spark: SparkSession, source: LogFiles) -> DataFrame:
    """The same, of files that only Spark can open."""

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path, content in zip(*(batch.column(name) for name in ("path", "content")), strict=True):
                yield from read_file(source, absolute(path.as_py()), pa.BufferReader(content.as_buffer()))

    table = spark.read.format("binaryFile").load([escape_path(name) for name in source.runs])
    return table.select("path", "content").mapInArrow(work, SPARK_READ)


# In tasks


def read_files(source: LogFiles, names: Iterable[str]) -> Iterator[pa.RecordBatch]:
    for name in names:
        with open_file(name) as file:
            yield from read_file(source, name, file)


def read_file(source: LogFiles, name: str, file: IO[bytes]) -> Iterator[pa.RecordBatch]:
    """The rows of a file, with the columns of `READ`."""
    codec = CODECS.get(os.path.splitext(name)[1])
    # PyArrow's files do not give lines.
    raw = file if codec is None else pa.CompressedInputStream(file, codec)
    text = cast(IO[bytes], io.BufferedReader(raw, 1 << 20))
    run = source.runs[name]
    if source.format in lines.LINES:
        return lines.read(text, name, run, lines.LINES[source.format])
    return shiviz.read(text, name, run, source.asked)
