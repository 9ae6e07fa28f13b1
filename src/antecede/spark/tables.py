"""Tables in files, whole or as a stream: Parquet, CSV with a first line of names, JSON Lines, each also compressed.

All columns stay. Parquet tells their types; CSV has text; of JSON, Spark finds the types in a first pass over all
files, so that nobody has to name the columns that only pass through. A table with a line that is no JSON, or a line of
CSV that has more or fewer values than the first line has names, is refused, and the line is named. So is text that is
not UTF-8: Spark would read each of its letters as the same sign, and two identifiers as one.

A stream has the columns of the files that are there when it first starts, also after a restart: a checkpoint keeps
them. What a line of JSON has besides is in `_rescued`, as JSON; a line that is none is there as it is.

Vectors in text are JSON: an object, or an array.
"""

from __future__ import annotations

import os
from codecs import getincrementaldecoder
from collections.abc import Mapping, Sequence
from io import TextIOWrapper
from typing import Final, NoReturn
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from msgspec import Struct
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructField, StructType

from antecede.errors import BadParameter, BadTrace
from antecede.spark.errors import describe_failure, find_error, raise_bad_trace
from antecede.spark.frames import CSV, escape_path, files, quote
from antecede.spark.session import SparkError, is_connect
from antecede.spark.stream.query import Checkpoint
from antecede.spark.trace import refuse_files
from antecede.storage import absolute, local, place, readable
from antecede.trace.foreign.formats import NO_UTF8, refuse_repeated_columns

__all__ = [
    "BROKEN", "FILE", "StreamFiles", "TableFiles", "name_file", "open_reader", "read_files", "read_table",
    "refuse_directory",
]  # fmt: skip

FORMATS: Final = {".parquet": "parquet", ".csv": "csv"} | dict.fromkeys(
    (".json", ".jsonl", ".ndjson"), "json"
)
PACKED: Final = (".gz", ".bz2", ".zst", ".lz4")
FILE, BROKEN = "antecede.file", "antecede.broken"
"""Columns that `read_files` adds: the file of a row, and the text of a row that is none."""
SHOWN: Final = 200
"""Letters of a line that are shown."""
NO_COLUMNS: Final = {
    "parquet": "the table has no columns",
    "csv": "the first line of a CSV file must name the columns, and there is none",
    "json": "JSON Lines must have an object on each line, and there is none: `jq -c '.[]'` writes an array so",
}
TORN: Final = (
    "the line must have as many values as the first line names, and a quoted value must end on its line"
)
CHUNK: Final = 1 << 20
MAP, ARRAY = "map<string,bigint>", "array<bigint>"
"""What a vector in text can be."""


class TableFiles(Struct, frozen=True):
    """What the files of a table are."""

    format: str
    """parquet, csv or json."""
    columns: str
    """Their schema, as Spark writes it in JSON."""
    vectors: str | None = None
    """The type that vectors in text have."""

    @property
    def schema(self) -> StructType:
        return StructType.fromJson(msgspec.json.decode(self.columns))


class StreamFiles(Struct, frozen=True):
    """Files of a table that appear in a directory."""

    path: str
    process: str | None = None
    vector: str | None = None
    files_per_batch: int | None = None

    def describe(self, spark: SparkSession, command: str, checkpoint: Checkpoint) -> TableFiles:
        """What the files are, or were when the query first started."""
        refuse_directory(command, self.path)
        if (known := checkpoint.read_columns()) is not None:
            return msgspec.json.decode(known, type=TableFiles)
        names = visible_files(spark, self.path)
        if not names:
            raise BadParameter(
                command, f"{self.path} is empty: put a first file there, whose columns the query takes"
            )
        return describe_files(spark, self.path, names, self.vector)

    def read(self, spark: SparkSession, found: TableFiles) -> DataFrame:
        """The rows of the files that are there, and of those that will be."""
        reader, place = open_reader(spark, self.files_per_batch), escape_path(absolute(self.path))
        if found.format == "csv":
            return read_vectors(read_bytes(reader, found, place), found, self.process, self.vector)
        if found.format != "json":
            return read_vectors(open_files(reader, found, place), found, self.process, self.vector)
        fault = raise_bad_trace(tell_file(), NO_UTF8).cast("boolean")
        lines = reader.text(place).where(
            F.when(F.is_valid_utf8("value"), F.trim("value") != "").otherwise(fault)
        )
        fields = F.from_json("value", "map<string,string>")
        others = F.map_filter(fields, lambda name, value: ~name.isin(*found.schema.names))
        rescued = F.when(fields.isNull(), F.col("value")).when(F.size(others) > 0, F.to_json(others))
        read = lines.select(F.from_json("value", found.schema).alias("row"), rescued.alias("_rescued"))
        return read_vectors(read.select("row.*", "_rescued"), found, self.process, self.vector)


def open_reader(spark: SparkSession, files_per_batch: int | None) -> DataStreamReader:
    reader = spark.readStream
    return reader if files_per_batch is None else reader.option("maxFilesPerTrigger", files_per_batch)


def refuse_directory(command: str, path: str, what: str = "events") -> None:
    """A stream reads a directory."""
    here = local(absolute(path))
    if here is not None and not os.path.isdir(here):
        found = "is a file" if os.path.exists(here) else "is not there"
        raise BadParameter(command, f"the input must be a directory of files of {what}, and {path} {found}")


def read_table(
    spark: SparkSession, path: str, *, process: str | None = None, vector: str | None = None
) -> DataFrame:
    """A table, in one file, in the files of a directory, or in the catalogue. `process` and `vector` are columns."""
    names = visible_files(spark, path)
    if not names and "/" not in path and spark.catalog.tableExists(path):
        return spark.table(path)
    if not all(name.endswith(".parquet") for name in names):
        refuse_encoding(spark, names)
    found = describe_files(spark, path, names, vector, whole=True)
    places = [escape_path(name) for name in names]
    rows = (
        read_lines(spark, found, places) if found.format == "csv" else open_files(spark.read, found, places)
    )
    return read_vectors(rows, found, process, vector)


def visible_files(spark: SparkSession, path: str) -> list[str]:
    return [name for name in files(spark, path, "*") if not os.path.basename(name).startswith(("_", "."))]


def kind_of(name: str) -> str:
    """The end of a file's name, which says what it is.

    >>> kind_of("file:/a.csv"), kind_of("file:/a.csv.gz")
    ('.csv', '.csv')
    """
    base, end = os.path.splitext(name)
    return os.path.splitext(base)[1] if end in PACKED else end


def one_format(owner: str, names: Sequence[str]) -> str:
    """What all of these files are: parquet, csv or json."""
    kinds = sorted({kind_of(name) for name in names})
    format = FORMATS.get(" ".join(kinds))
    if format is None:
        raise BadParameter(
            owner, f"the files must be Parquet, CSV or JSON Lines, all of one kind, not {', '.join(kinds)}"
        )
    return format


def read_files(
    spark: SparkSession, owner: str, names: Sequence[str], fields: Mapping[str, str | None]
) -> DataFrame:
    """The table in these files, with the columns `FILE` and `BROKEN`.

    JSON has no columns before it is read: `fields` names them, with the types of those that are no text.
    """
    format, places = one_format(owner, names), [escape_path(name) for name in names]
    if format == "parquet":
        table = spark.read.parquet(*places).withColumn(BROKEN, F.lit(None).cast("string"))
    else:
        refuse_encoding(spark, names)
        kinds = dict(fields)
        if format == "csv":
            kinds = dict.fromkeys(spark.read.options(**CSV).csv(places).columns)
            if not kinds:
                raise BadTrace(names[0], "the file is empty; its first line must name the columns")
            refuse_repeated_names(spark, names, list(kinds))
        # Without `columnPruning` Spark counts the values of each line, whatever columns are asked for.
        options = {**CSV, "columnPruning": False} if format == "csv" else {}
        schema = ", ".join(
            f"{quote(name)} {kind or 'string'}" for name, kind in {**kinds, BROKEN: None}.items()
        )
        reader = spark.read.format(format).schema(schema).options(columnNameOfCorruptRecord=BROKEN, **options)
        table = reader.load(places)
    return table.withColumn(FILE, name_file())


def name_file() -> Column:
    """The file of a row. Spark writes the beginning of a local path in two ways."""
    return F.regexp_replace("_metadata.file_path", "^file:/+", "file:/")


def tell_file() -> Column:
    """The file of a row, for people."""
    # Only `%` is special in a path that Spark writes; the decoder of URLs makes a space of `+`, too.
    return F.try_url_decode(F.replace(name_file(), F.lit("+"), F.lit("%2B")))


def describe_files(
    spark: SparkSession, path: str, names: Sequence[str], vector: str | None = None, *, whole: bool = False
) -> TableFiles:
    """Find out what these files are; `BadTrace` if they are no table, or if one that is to be `whole` is not."""
    kinds = sorted({kind_of(name) for name in names})
    format = FORMATS.get(" ".join(kinds))
    if format is None:
        shown = ", ".join(kind or "files without an ending" for kind in kinds)
        found = f"it has {shown}" if shown else "there are no files"
        raise BadTrace(
            absolute(path),
            f"{found}: give a trace, an ingested log, or a table in files of one kind, {', '.join(FORMATS)}",
        )
    if format == "parquet" and readable(absolute(path)):
        refuse_files(spark, names, pa.schema([]))
    options = CSV if format == "csv" else {"columnNameOfCorruptRecord": BROKEN}
    try:
        table = spark.read.format(format).options(**options).load([escape_path(name) for name in names])
    except SparkError as error:
        raise find_error(error) or BadTrace(
            absolute(path), f"Spark cannot read the files as one table: {describe_failure(error)}"
        ) from None
    if not set(table.columns) - {BROKEN}:
        raise BadTrace(absolute(path), NO_COLUMNS[format])
    if format == "csv":
        refuse_repeated_names(spark, names, table.columns)
    if whole and BROKEN in table.columns:
        refuse_line(table)
    schema, text = StructType([field for field in table.schema if field.name != BROKEN]), None
    if vector is not None and vector in table.columns and format != "parquet":
        if isinstance(schema[vector].dataType, StringType):
            first = table.select(quote(vector)).where(F.col(quote(vector)).isNotNull()).limit(1).collect()
            text = ARRAY if first and first[0][0].startswith("[") else MAP
        else:
            # Spark takes an object for a struct of all the names that there are.
            array = isinstance(schema[vector].dataType, ArrayType)
            kind = ArrayType(LongType()) if array else MapType(StringType(), LongType())
            schema = StructType(
                [StructField(vector, kind) if field.name == vector else field for field in schema]
            )
    return TableFiles(format, schema.json(), text)


def refuse_repeated_names(spark: SparkSession, names: Sequence[str], columns: Sequence[str]) -> None:
    """Refuse CSV that names a column twice. Spark then puts the place of a column behind its name: `id0`, `id2`."""
    if sum(column.endswith(str(at)) for at, column in enumerate(columns)) < 2:
        return
    for name in names:
        first = spark.read.options(**CSV | {"header": False}).csv(escape_path(name)).first()
        refuse_repeated_columns(name, [value or "" for value in first or ()])


def refuse_encoding(spark: SparkSession, names: Sequence[str]) -> None:
    """Refuse text that is not UTF-8. This process looks at local files: it reads a gigabyte in a second."""
    others = []
    for name in names:
        if local(name) is None or is_connect(spark):
            others.append(escape_path(name))
        elif (line := find_undecodable(name)) is not None:
            raise BadTrace(f"{name}, line {line:,}", NO_UTF8)
    if others:
        wrong = spark.read.text(others).where(~F.is_valid_utf8("value")).select(name_file())
        if row := wrong.first():
            raise BadTrace(unquote(row[0]), NO_UTF8)


def find_undecodable(file: str) -> int | None:
    """The number of the first line that is not UTF-8, from 1."""
    system, inside = place(file)
    decoder, line = getincrementaldecoder("utf-8")(), 1
    try:
        with system.open_input_stream(inside) as stream:
            while data := stream.read(CHUNK):
                try:
                    decoder.decode(data)
                except UnicodeDecodeError as error:
                    return line + error.object.count(b"\n", 0, error.start)
                line += data.count(b"\n")
            decoder.decode(b"", True)
    except UnicodeDecodeError:
        return line
    except (OSError, pa.ArrowException):
        # Spark's reader says what is wrong with it.
        return None
    return None


def refuse_line(table: DataFrame) -> NoReturn:
    """Name the first line of JSON that is none, in a table that has one."""
    # All columns are asked for: Spark does not read lines that are no JSON alone.
    row = table.where(F.col(quote(BROKEN)).isNotNull()).withColumn(FILE, name_file()).limit(1).collect()[0]
    file, text = unquote(row[FILE]), row[BROKEN]
    number = find_line(file, text) if readable(file) else None
    place = file if number is None else f"{file}, line {number:,}"
    raise BadTrace(place, f"the line is no JSON object: {text[:SHOWN]}")


def find_line(file: str, text: str) -> int | None:
    """The number of a line in a file, from 1."""
    system, inside = place(file)
    with TextIOWrapper(system.open_input_stream(inside), "utf-8", errors="replace") as lines:
        return next((number for number, line in enumerate(lines, 1) if line.rstrip("\n") == text), None)


def read_lines(spark: SparkSession, found: TableFiles, places: list[str]) -> DataFrame:
    """The rows of CSV. A line that has not as many values as there are names ends the query: it names the line."""
    fields = [*found.schema.fields, StructField(BROKEN, StringType())]
    # Without `columnPruning` Spark counts the values of each line, whatever columns are asked for.
    options = {**CSV, "columnPruning": False, "columnNameOfCorruptRecord": BROKEN}
    rows = spark.read.options(**options).schema(StructType(fields)).csv(places)
    broken = F.col(quote(BROKEN))
    words = F.concat(F.lit(f"{TORN}: "), broken)
    fault = raise_bad_trace(tell_file(), F.left(words, F.lit(SHOWN)))
    # Spark does not read lines that are none without a column of others.
    other = F.length(F.concat_ws("", F.col(quote(found.schema.names[0])))) >= 0
    sound = F.when(broken.isNull(), other).otherwise(fault.cast("boolean"))
    return rows.where(sound).drop(BROKEN)


def read_bytes(reader: DataStreamReader, found: TableFiles, place: str) -> DataFrame:
    """The rows of CSV in a stream. Spark takes each byte for a letter, so that text that is not UTF-8 shows."""
    names = found.schema.names
    letters = StructType([StructField(name.encode().decode("latin-1"), StringType()) for name in names])
    rows = reader.options(**CSV, encoding="ISO-8859-1").schema(letters).csv(place)
    texts = [F.encode(F.col(quote(name)), "ISO-8859-1").cast("string") for name in letters.names]
    fault = raise_bad_trace(tell_file(), NO_UTF8).cast("string")
    checked = (F.when(~F.is_valid_utf8(text), fault).otherwise(text) for text in texts)
    return rows.select(*(text.alias(name) for text, name in zip(checked, names, strict=True)))


def open_files(
    reader: DataFrameReader | DataStreamReader, found: TableFiles, places: str | list[str]
) -> DataFrame:
    return reader.format(found.format).schema(found.schema).load(places)  # type: ignore[arg-type]


def read_vectors(table: DataFrame, found: TableFiles, process: str | None, vector: str | None) -> DataFrame:
    """Vectors in text become maps or arrays, and processes in text the places in arrays."""
    if vector is None or vector not in table.columns:
        return table
    if found.vectors is not None:
        table = table.withColumn(vector, F.from_json(quote(vector), found.vectors))
    places = isinstance(table.schema[vector].dataType, ArrayType)
    if places and process in table.columns and isinstance(table.schema[process].dataType, StringType):
        table = table.withColumn(process, F.expr(f"try_cast({quote(process)} as bigint)"))
    return table
