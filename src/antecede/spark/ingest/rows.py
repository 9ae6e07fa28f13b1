"""The rows of a log: read from files by their formats, or from any table by a mapping.

Files. A task reads whole files, some hundreds of small ones or one large one: only the reading tells where a record
begins and which line it is in. Tasks open their files themselves; text never passes through Java. Spark reads a file
that PyArrow cannot open, as one value. A few files on this machine's disk are read by this process: no Python has to
start for them.

A table: its columns are given the names of a trace's, by a mapping (docs/ingest.md).

A row that lacks what it needs, or has a value that cannot be what it should, or the index of another row of its
process, is rejected with the reason. Its text is the row, as JSON.

Rows of a process that have one time, or one clock, are *tied*. Deliveries then come before other events, and sends
last; between equals the order of the file decides, and of a DataFrame, which has no order, the text of the row. `runs`
says how many events are tied.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import IO, Final, cast
from urllib.parse import unquote

import pyarrow as pa
from msgspec import Struct
from pyspark.sql import Column, DataFrame, SparkSession, Window, WindowSpec
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from antecede.errors import BadParameter
from antecede.spark.frames import escape_path, files, quote, to_nanoseconds
from antecede.spark.run_tasks import plan_tasks
from antecede.spark.session import is_connect
from antecede.spark.tables import BROKEN, FILE
from antecede.spark.tables import read_files as read_table_files
from antecede.storage import absolute, local, open_file, readable
from antecede.trace.foreign import lines, shiviz
from antecede.trace.foreign.formats import refuse_absent_columns
from antecede.trace.foreign.log import LOG, READ
from antecede.trace.foreign.shiviz import Expressions

__all__ = [
    "COLUMNS", "SPARK_LOG", "SPARK_REJECTED", "LogFiles", "list_files", "list_log_files", "map_columns", "name_runs",
    "read_here", "read_log_files", "read_table",
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


# A table

COLUMNS: Final[dict[str, str]] = {
    "run": "string",
    "process": "string",
    "index": "bigint",
    "kind": "string",
    "message": "string",
    "vector": "map<string,bigint>",
    "text": "string",
    "sender": "string",
    "number": "bigint",
    "to": "array<string>",
    "control": "boolean",
    "time_ns": "bigint",
    "clock": "bigint",
    "stamp_entries": "int",
    "stamp_bytes": "int",
    "label": "string",
}
"""What a column can be, and its type."""

WORDS: Final = {
    "bigint": "an integer",
    "int": "an integer",
    "boolean": "true or false",
    "map<string,bigint>": "a map of integers",
    "array<string>": "a list of names",
}
"""A type, for people."""

RUN: Final = "antecede.run"
AT: Final = "antecede.at"
OWN: Final = (FILE, BROKEN, RUN, AT)
"""Columns that reading adds; of them `RUN` is the run that is named for a file, and `AT` the place of a row in it."""


def read_table(
    spark: SparkSession, paths: Sequence[str | os.PathLike[str]], mapping: Mapping[str, str]
) -> DataFrame:
    """The table in these files: Parquet, CSV with a first line of names, or JSON Lines, by the end of their names."""
    names = list_files(spark, paths)
    types = {"vector": "map<string,string>", "to": "array<string>"}
    fields = {name: types.get(ours) for ours, name in mapping.items()}
    table = read_table_files(spark, "ingest", names, fields)
    # Within a block of a file ids grow with the rows.
    at = F.struct("_metadata.file_block_start", F.monotonically_increasing_id())
    placed = table.withColumn(AT, at)
    written = {absolute(unquote(path)): re.sub("^file:/+", "file:/", path) for path in table.inputFiles()}
    runs = [(written[name], name, run) for name, run in name_runs(names).items() if name in written]
    known = spark.createDataFrame(runs, f"`{FILE}` string, __name string, `{RUN}` string")
    told = placed.join(F.broadcast(known), FILE, "left")
    named = F.coalesce("__name", F.col(quote(FILE)))
    return told.withColumns({FILE: named, RUN: F.coalesce(F.col(quote(RUN)), named)}).drop("__name")


def map_columns(table: DataFrame, mapping: Mapping[str, str], run: str | None) -> DataFrame:
    """The table with our names: the columns of `COLUMNS`, and file, line, fields, tied and reason."""
    refuse_mapping(table, mapping, run)
    types = {field.name: field.dataType.simpleString() for field in table.schema}
    columns = [
        (cast_column(ours, mapping[ours], types[mapping[ours]]) if ours in mapping else F.lit(None).cast(kind))
        .alias(ours)
        for ours, kind in COLUMNS.items()
    ]  # fmt: skip
    given = [F.col(quote(name)).alias(f"_{ours}") for ours, name in mapping.items()]
    row = F.to_json(F.struct([F.col(quote(name)) for name in table.columns if name not in OWN]))
    in_files = FILE in table.columns
    told = table.select(
        *columns,
        *given,
        row.alias("fields"),
        (F.col(quote(FILE)) if in_files else F.lit("table")).alias("file"),
        (F.col(quote(AT)) if in_files else F.lit(0)).alias("__at"),
        (F.col(quote(RUN)) if in_files else F.lit("table")).alias("__run"),
        F.lit(None).cast("bigint").alias("line"),
    )
    if "run" not in mapping:
        told = told.withColumn("run", F.col("__run") if run is None else F.lit(run))
    told = told.withColumn("kind", F.lower("kind")).withColumn("reason", explain_refusal(mapping))
    told = rank_rows(told, mapping)
    text = F.when(F.col("reason").isNull(), F.coalesce("text", "fields")).otherwise(F.col("fields"))
    return told.withColumn("text", text).drop("__at", "__run", *(f"_{ours}" for ours in mapping))


def refuse_mapping(table: DataFrame, mapping: Mapping[str, str], run: str | None) -> None:
    for ours, name in mapping.items():
        if ours not in COLUMNS:
            raise BadParameter.choice("ingest", f"the key of map {ours}={name}", ours, COLUMNS)
    refuse_absent_columns("ingest", mapping, [name for name in table.columns if name not in OWN])
    if "process" not in mapping:
        raise BadParameter("ingest", "map must name the column for process: where each event happened")
    if run is not None and "run" in mapping:
        raise BadParameter("ingest", f"run is given as {run} and as a column of map: give one of them")
    if not {"index", "vector", "clock", "time_ns"} & set(mapping):
        raise BadParameter(
            "ingest", "map must name a column for the order of events: index, vector, clock or time_ns"
        )
    if ("sender" in mapping) != ("number" in mapping):
        raise BadParameter("ingest", "map has only one of sender and number: give both, or message")


def cast_column(ours: str, name: str, found: str) -> Column:
    """A column of theirs as one of ours; null where that cannot be."""
    kind, column = COLUMNS[ours], F.col(quote(name))
    if found == kind:
        return column
    if ours == "time_ns":
        return to_nanoseconds(name, found)
    if ours == "vector" and found == "string":
        return F.from_json(column, kind)
    if ours == "to" and found == "string":
        return F.coalesce(F.from_json(column, kind), F.split(column, r"\s*,\s*"))
    return F.expr(f"try_cast({quote(name)} as {kind})")


def explain_refusal(mapping: Mapping[str, str]) -> Column:
    """Why a row cannot be read: the first thing that is wrong with it, or null."""
    wrong = [
        (
            F.col(f"_{ours}").isNotNull() & F.col(ours).isNull(),
            f"its {ours} is not {'a time' if ours == 'time_ns' else WORDS.get(kind, kind)}: ",
            F.col(f"_{ours}"),
        )
        for ours, kind in COLUMNS.items()
        if ours in mapping
    ]
    needed = [ours for ours in ("run", "process", "index", "vector") if ours in mapping]
    if not {"index", "vector"} & set(mapping):
        needed += [next(ours for ours in ("clock", "time_ns") if ours in mapping)]
    wrong += [(F.col(ours).isNull(), f"it has no {ours}", F.lit("")) for ours in needed]
    if "kind" in mapping:
        known = F.col("kind").isin("send", "deliver", "receive")
        wrong += [(~known, "its kind is none of send, receive and deliver: ", F.col("kind"))]
    if "vector" in mapping:
        own = F.coalesce(F.element_at("vector", F.col("process")), F.lit(0))
        wrong += [(own < 1, "its clock has no entry of its own process ", F.col("process"))]
        least = F.array_min(F.transform(F.map_values("vector"), lambda entry: F.coalesce(entry, F.lit(-1))))
        wrong += [(least < 0, "its clock has an entry that is no number of 0 or more", F.lit(""))]
    chosen = F.lit(None).cast("string")
    for condition, text, shown in reversed(wrong):
        chosen = F.when(condition, F.concat(F.lit(text), shown.cast("string"))).otherwise(chosen)
    return chosen


def rank_rows(told: DataFrame, mapping: Mapping[str, str]) -> DataFrame:
    """The rows with `index` and `tied`; one that repeats an index is refused."""
    if "index" in mapping:
        before = F.lag("index").over(order_rows("index"))
        repeats = F.col("reason").isNull() & (before == F.col("index"))
        reason = F.concat(F.lit("its index is that of another row of its process: "), F.col("index"))
        return told.withColumn("reason", F.when(repeats, reason).otherwise(F.col("reason"))).withColumn(
            "tied", F.lit(False)
        )
    if "vector" in mapping:
        own = F.element_at("vector", F.col("process")) - 1
        return told.withColumn("index", own).withColumn("tied", F.lit(False))
    by = next(ours for ours in ("clock", "time_ns") if ours in mapping)
    tied = F.coalesce(F.lag(by).over(order_rows(by)) == F.col(by), F.lit(False))
    index = F.row_number().over(order_rows(by)).cast("bigint") - 1
    return told.withColumns({"index": index, "tied": tied})


def order_rows(by: str) -> WindowSpec:
    """The rows of a process in their order; rows that cannot be read are apart."""
    kind = F.when(F.col("kind") == "deliver", 0).when(F.col("kind") == "send", 2).otherwise(1)
    return Window.partitionBy("run", "process", F.col("reason").isNull()).orderBy(
        by, kind, "file", "__at", "fields"
    )
