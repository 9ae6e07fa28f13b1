"""The files of a log, and the tasks that read them.

Formats of one event a line are cut into parts, wherever that falls, so that one large file is read by all cores. Line
numbers stay exact: the lines of each part of such files are counted first, which is a look at every byte and no more,
and what lies before a part then gives its first number. Where tasks run on this machine we count here, a thread a core;
else a job does. A log read by a regular expression is cut only if the expression is one that we know; else it is one
part, however large, for only the reading tells where a record begins. So is a compressed file. Small files share one.

A task costs about 40 ms of Java and 40 ms of Python before it begins. So parts are large: two for each core, if that
makes them neither small nor larger than what Spark takes for a task of its own.

Tasks open their files themselves; text never passes through Java. Storage that PyArrow cannot open is read by Spark, a
file as one piece of bytes.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, groupby, pairwise
from typing import IO, Any, Final

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession

from antecede.errors import BadParameter
from antecede.spark.ingest.schema import SPARK_READ
from antecede.spark.progress import is_connect
from antecede.spark.storage import absolute, escaped, files, opened, place, readable
from antecede.trace.foreign import lines, shiviz, tlaplus, tracing, twolines
from antecede.trace.foreign.lines import Part
from antecede.trace.foreign.log import READ
from antecede.trace.foreign.shiviz import Expressions

__all__ = ["FORMATS", "LogFiles", "read"]

FORMATS: Final = ("shiviz", "tracing", "tlaplus")
LINES: Final[dict[str, lines.Line]] = {"tracing": tracing.read, "tlaplus": tlaplus.read}

PART: Final = 16 << 20
"""Bytes of a part at least: a tenth of a second's work, the cost of a task."""
LARGE: Final = 128 << 20
"""Bytes of a part at most."""
EACH: Final = 2
"""Parts for each core: one that is slow does not keep all others waiting."""
SMALL: Final = 2 << 20
"""Below this, loading compiled code takes longer than it gains."""
TOGETHER: Final = 256
"""Files of a task at most, however small: each has to be opened."""


class LogFiles(Struct, frozen=True):
    """What is to be read, and how: one list of parts for each task."""

    format: str
    asked: Expressions
    tasks: tuple[tuple[Part, ...], ...]


def log_files(
    spark: SparkSession,
    paths: Sequence[str | os.PathLike[str]],
    format: str,
    asked: Expressions,
    run: str | None = None,
    part: int | None = None,
) -> LogFiles:
    """Plan the reading of files and directories. All are one run of this name, or each is a run named for its file."""
    sizes = listed(spark, paths)
    part = part or part_size(spark, sum(sizes.values()))
    runs = dict.fromkeys(sizes, run) if run is not None else named(list(sizes))
    wholes = [Part(file, runs[file] or "", 0, size) for file, size in sizes.items()]
    cut = [
        replace(whole, start=start, end=end)
        for whole in wholes
        for start, end in pairwise([0, *inner_edges(spark, whole, format, asked, part), whole.end])
    ]
    return LogFiles(format, asked, tuple(together(numbered(spark, cut), part)))


def listed(spark: SparkSession, paths: Sequence[str | os.PathLike[str]]) -> dict[str, int]:
    """The files, each once and in the order of their names, and their sizes."""
    found: dict[str, None] = {}
    for path in paths:
        names = files(spark, os.fspath(path), "*")
        if not names:
            raise BadParameter("ingest", "file", os.fspath(path), "a file, or a directory with files")
        found.update(dict.fromkeys(names))
    names = sorted(found, key=str.encode)
    return sizes_here(spark, names) or sizes_by_job(spark, names)


def sizes_here(spark: SparkSession, names: list[str]) -> dict[str, int] | None:
    """Sizes without a job, if this process sees the files as Spark's driver does."""
    if is_connect(spark) or not all(map(readable, names)):
        return None
    try:
        told = [place(name)[0].get_file_info(place(name)[1]) for name in names]
    except (pa.ArrowException, OSError):
        return None
    if any(info.size is None for info in told):
        return None
    return dict(zip(names, (info.size for info in told), strict=True))


def sizes_by_job(spark: SparkSession, names: list[str]) -> dict[str, int]:
    table = spark.read.format("binaryFile").load([escaped(name) for name in names])
    # Spark reads the contents of files only if they are asked for.
    sizes = {absolute(row["path"]): row["length"] for row in table.select("path", "length").collect()}
    return {name: sizes[name] for name in names}


def part_size(spark: SparkSession, total: int) -> int:
    """How large parts should be, for so many bytes in all."""
    if is_connect(spark):
        # A server does not say how many cores it has.
        return LARGE // 2
    return min(max(total // (EACH * spark.sparkContext.defaultParallelism) + 1, PART), LARGE)


def named(names: Sequence[str]) -> dict[str, str]:
    """A run for each file: as much of the end of its path as tells it from the others.

    >>> named(["file:/a/x.log", "file:/b/x.log", "file:/b/y.log"])
    {'file:/a/x.log': 'a/x.log', 'file:/b/x.log': 'b/x.log', 'file:/b/y.log': 'y.log'}
    """
    runs = {}
    for name in names:
        words = name.split("/")
        for length in range(1, len(words) + 1):
            run = "/".join(words[-length:])
            if sum(other == name or other.endswith("/" + run) for other in names) == 1:
                break
        runs[name] = run
    return runs


def inner_edges(
    spark: SparkSession, whole: Part, format: str, asked: Expressions, size: int
) -> Sequence[int]:
    """Where a file is cut."""
    if whole.end <= size or codec(whole.file) is not None or not readable(whole.file):
        return ()
    if format in LINES:
        pieces = -(-whole.end // size)
        return [whole.end * piece // pieces for piece in range(1, pieces)]
    if is_connect(spark):
        # Only a look into the file tells, and it may not be here.
        return ()
    try:
        with opened(whole.file) as file:
            return twolines.cuts(file, whole, asked, size)
    except (pa.ArrowException, OSError):
        return ()


def numbered(spark: SparkSession, parts: list[Part]) -> list[Part]:
    """Give each part the number of its first line. Only what follows the first part of a file has to be counted."""
    before = [part for part, following in pairwise(parts) if following.start]
    if not before:
        return parts
    count = counted_here if on_this_machine(spark) else counted
    counts = dict(zip(before, count(spark, before), strict=True))
    done: list[Part] = []
    for _, own in groupby(parts, key=lambda part: part.file):
        pieces = list(own)
        first = accumulate((counts[piece] for piece in pieces[:-1]), initial=1)
        done += [replace(piece, line=line) for piece, line in zip(pieces, first, strict=True)]
    return done


def on_this_machine(spark: SparkSession) -> bool:
    """Whether tasks run in this machine's own Java."""
    return not is_connect(spark) and str(spark.sparkContext.master).startswith("local[")


def begun_in(part: Part) -> int:
    with opened(part.file) as file:
        return lines.begun(file, part.start, part.end)


def counted_here(spark: SparkSession, parts: list[Part]) -> list[int]:
    """How many lines begin in each part. NumPy counts without holding Python's lock."""
    with ThreadPoolExecutor(spark.sparkContext.defaultParallelism) as threads:
        return list(threads.map(begun_in, parts))


def counted(spark: SparkSession, parts: list[Part]) -> list[int]:
    """The same by one job, one number a part."""

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in (number for batch in batches for number in batch.column("id").to_pylist()):
            told = {"part": [number], "lines": [begun_in(parts[number])]}
            yield pa.RecordBatch.from_pydict(told)

    told = spark.range(0, len(parts), 1, len(parts)).mapInArrow(count, "part bigint, lines bigint").collect()
    found = {row["part"]: row["lines"] for row in told}
    return [found[number] for number in range(len(parts))]


def together(parts: list[Part], size: int) -> Iterator[tuple[Part, ...]]:
    """Parts in tasks of about that size, none of which mixes more files than it should."""
    task: list[Part] = []
    left = size
    for part in parts:
        if task and (left < part.end - part.start or len(task) == TOGETHER):
            yield tuple(task)
            task, left = [], size
        task.append(part)
        left -= part.end - part.start
    yield tuple(task)


def read(spark: SparkSession, source: LogFiles) -> DataFrame:
    """Events and lines that could not be read (`SPARK_READ`), read whenever the table is."""
    parts = [part for task in source.tasks for part in task]
    if not all(readable(part.file) for part in parts):
        return through_spark(spark, source, parts)
    return each_task(spark, source, plain_of, SPARK_READ)


def each_task(
    spark: SparkSession,
    source: LogFiles,
    work: Callable[[LogFiles, int], Iterator[pa.RecordBatch]],
    schema: Any,
) -> DataFrame:
    """Run `work` for each task, one a partition."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column("id").to_pylist():
                yield from work(source, task)

    return spark.range(0, len(source.tasks), 1, len(source.tasks)).mapInArrow(run, schema)


def through_spark(spark: SparkSession, source: LogFiles, parts: list[Part]) -> DataFrame:
    """The same, of files that only Spark can open."""
    by_name = {part.file: part for part in parts}

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path, content in zip(*(batch.column(name) for name in ("path", "content")), strict=True):
                part, file = unpacked(by_name[absolute(path.as_py())], io.BytesIO(content.as_py()))
                yield from map(decoded, part_read(source, part, file))

    table = spark.read.format("binaryFile").load([escaped(name) for name in by_name])
    return table.select("path", "content").mapInArrow(run, SPARK_READ)


# In tasks


def plain_of(source: LogFiles, task: int) -> Iterator[pa.RecordBatch]:
    """The rows of a task as Spark takes them."""
    for batch in batches_of(source, task):
        yield decoded(batch)


def decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with plain strings."""
    if batch.schema.equals(READ):
        return batch
    from antecede.spark.ingest.fastlines import plain

    return plain(batch)


def batches_of(source: LogFiles, task: int) -> Iterator[pa.RecordBatch]:
    """The rows of a task, with the columns of `READ`; names may be integers (`antecede.spark.ingest.fastlines`)."""
    for part in source.tasks[task]:
        with opened(part.file) as file:
            yield from part_read(source, *unpacked(part, file))


def codec(name: str) -> str | None:
    """How a file is compressed, by the end of its name.

    >>> codec("file:/a.log"), codec("file:/a.log.gz")
    (None, 'gzip')
    """
    return {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}.get(os.path.splitext(name)[1])


def unpacked(part: Part, file: IO[bytes]) -> tuple[Part, IO[bytes]]:
    """A compressed file is one part, and in memory as a whole."""
    if (kind := codec(part.file)) is None:
        return part, file
    data = pa.CompressedInputStream(file, kind).read()
    return replace(part, end=len(data)), io.BytesIO(data)


def part_read(source: LogFiles, part: Part, file: IO[bytes]) -> Iterator[pa.RecordBatch]:
    if source.format not in LINES:
        return records_read(source, part, file)
    if part.end - part.start < SMALL:
        return lines.read(file, part, LINES[source.format])
    # Compiled code, which takes a second to load.
    from antecede.spark.ingest import fastlines

    return fastlines.read(file, part, source.format)


def records_read(source: LogFiles, part: Part, file: IO[bytes]) -> Iterator[pa.RecordBatch]:
    reader = None
    # What is not all of a file is a part only because the expression is known.
    if part.start or part.end >= SMALL or part.end < file.seek(0, io.SEEK_END):
        reader = twolines.known(file, part, source.asked)
    if reader is None:
        file.seek(0)
        return shiviz.read(file, part.file, part.run, source.asked)
    from antecede.spark.ingest import fasttext

    return fasttext.read(file, part, reader)
