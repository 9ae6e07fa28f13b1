"""What users hand in: tables, their columns and what they mean, paths, times and durations.

A path is a local one, or any URI that Spark reads. Files are listed through Spark, which reads more kinds of storage
than we do (`antecede.storage`): tasks open files with PyArrow where it can, and else the steps let Spark read.

Rows that name their causes (`ByCauses`) mean the same to `order` and `verify`, in tables and in streams. `causes` has
one identifier, an array of them, or null. A text that is a JSON array, `["a", "b"]`, is a list too: files of text have
no other way to write one. Text among integers makes all of them text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    VariantType,
)

from antecede.errors import BadParameter
from antecede.spark.errors import raise_bad_trace
from antecede.storage import absolute

__all__ = [
    "ALL_PACKETS", "CSV", "GROUP_MARK", "PACKETS", "REMEMBER", "VECTOR_FAULTS", "WHOLE", "ByCauses", "ByStamp",
    "ByVector", "alias_columns", "escape_path", "event_columns", "files", "hide_null_lists", "id_type", "join_by",
    "list_causes", "name_events", "parse_duration", "quote", "read_id", "read_time", "refuse_column_names",
    "refuse_columns", "refuse_other_tables", "refuse_unlike_vectors", "rename_columns", "rename_request",
    "show_null_lists", "split_text", "to_nanoseconds", "unite",
]  # fmt: skip

Request = TypeVar("Request", bound=Struct)

WHOLE: Final = (LongType, IntegerType, ShortType, ByteType)

FAR: Final = (1 << 63) // 1000 - 1
"""Microseconds, as many as nanoseconds of 64 bits can tell, with all digits after them."""

CSV: Final[dict[str, Any]] = {
    "header": True,
    # Files are checked against each other's names of columns: without it, Spark goes by the first file alone.
    "enforceSchema": False,
    # A quote within quotes is doubled, as RFC 4180 has it.
    "escape": '"',
}
"""How CSV is read."""

PACKETS: Final = pa.schema(
    [
        pa.field("receiver", pa.string(), nullable=False),
        pa.field("sender", pa.string(), nullable=False),
        pa.field("number", pa.int64()),
        pa.field("stamp", pa.binary(), nullable=False),
        pa.field("payload", pa.binary()),
        pa.field("arrival", pa.int64()),
    ]
)
"""The columns that every stream of packets may have: docs/stream.md explains them."""

ALL_PACKETS: Final = pa.schema([*PACKETS, pa.field("label", pa.string()), pa.field("group", pa.string())])
"""With those that only some protocols and some streams need."""

VECTOR_FAULTS: Final = (
    "no name of its process",
    "no vector",
    "an entry that is null",
    "a negative entry",
    "no number of its own",
)
"""What rows with vectors are refused for."""

GROUP_MARK: Final = "antecede.group"
"""The key in a column's metadata that says: positions count by this column and the receiver."""

REMEMBER: Final = "7 days"
"""How long a stream knows what came out, unless it is told otherwise."""

UNITS_MS: Final = {
    "millisecond": 1,
    "second": 1000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}
DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+?)s?(?:\s+|$)")


def refuse_other_tables(owner: str, table: object) -> None:
    """A table of another library has to become one of Spark first.

    >>> refuse_other_tables("order", [1, 2])
    Traceback (most recent call last):
    antecede.errors.BadParameter: order: the table must be a Spark DataFrame, not a list: \
spark.createDataFrame makes one
    """
    if not isinstance(table, DataFrame):
        kind = type(table)
        library = kind.__module__.partition(".")[0]
        name = kind.__name__ if library == "builtins" else f"{kind.__name__} of {library}"
        raise BadParameter(
            owner, f"the table must be a Spark DataFrame, not a {name}: spark.createDataFrame makes one"
        )


def refuse_column_names(
    owner: str,
    rows: DataFrame,
    named: Mapping[str, str | None],
    partition_by: Sequence[str] = (),
    added: Sequence[str] = (),
) -> None:
    """Refuse names that are no columns (None is not said), and columns that have the names of those that are added."""
    groups = {f"partition_by {place + 1}": name for place, name in enumerate(partition_by)}
    for what, name in {**named, **groups}.items():
        if name is not None and rows.columns.count(name) != 1:
            raise BadParameter(
                owner, f"{what} must be one of the columns {', '.join(rows.columns)}, not {name!r}"
            )
    for name in rows.columns:
        # Spark takes names that differ in case for one.
        if name.lower() in added:
            raise BadParameter(
                owner, f"the table has a column {name}, and {owner} adds one of that name: rename it"
            )


def alias_columns(rows: DataFrame, kept: Collection[str] = ()) -> tuple[DataFrame, dict[str, str]]:
    """The rows with columns `u0`, `u1`, ..., but for those that are `kept`; and how each name has become another.

    Whatever a user calls his columns, none is then called like one of ours (`__id`), like another but for case, or by a
    name that has to be quoted. `rename_columns` gives them back.
    """
    own = [name if name in kept else f"u{place}" for place, name in enumerate(rows.columns)]
    return rows.toDF(*own), dict(zip(rows.columns, own, strict=True))


def rename_columns(rows: DataFrame, own: Mapping[str, str]) -> DataFrame:
    """The rows with the columns of `own` under the names that users know, and any others as they are."""
    known = {ours: name for name, ours in own.items()}
    return rows.toDF(*(known.get(name, name) for name in rows.columns))


def rename_request(asked: Request, own: Mapping[str, str]) -> Request:
    """The same request of columns that are named anew: `ByCauses` and its like."""
    new: dict[str, Any] = {
        field: own[name]
        for field in ("id", "causes", "process", "vector", "stamp", "time")
        if (name := getattr(asked, field, None)) is not None
    }
    return replace(asked, **new, partition_by=tuple(own[name] for name in asked.partition_by))  # type: ignore[attr-defined]


def refuse_unlike_vectors(rows: DataFrame, process: str, vector: str) -> DataType:
    """The type of processes: names with vectors that are maps, positions with arrays. Else a `BadParameter`."""
    kind, own = rows.schema[vector].dataType, rows.schema[process].dataType
    match kind:
        case MapType(keyType=StringType(), valueType=value) if isinstance(value, WHOLE):
            wanted: tuple[type[DataType], ...] = (StringType,)
        case ArrayType(elementType=value) if isinstance(value, WHOLE):
            wanted = WHOLE
        case _:
            raise BadParameter(
                "order",
                f"vector must be map<string,bigint> or array<bigint>, and {vector} is {kind.simpleString()}",
            )
    if not isinstance(own, wanted):
        raise BadParameter(
            "order",
            f"process must be text with maps and integers with arrays, and {process} is "
            f"{own.simpleString()} with vectors of {kind.simpleString()}",
        )
    return StringType() if wanted == (StringType,) else LongType()


def hide_null_lists(rows: DataFrame) -> tuple[DataFrame, list[str]]:
    """The rows with empty lists and maps for null ones, columns that tell which were null, and the names of all these.

    Spark asks after each row how large a batch for Python has become, and Arrow then walks over all nulls since the
    last list: a column that is mostly null takes quadratic time (60,000 rows: 3.7 s, and 0.3 s without).
    """
    names = [
        field.name
        for field in rows.schema
        if field.nullable and isinstance(field.dataType, (ArrayType, MapType))
    ]
    if not names:
        return rows, names
    hidden: dict[str, Column] = {}
    for name in names:
        kind = rows.schema[name].dataType
        empty = F.array() if isinstance(kind, ArrayType) else F.create_map()
        hidden[f"__null {name}"] = F.col(quote(name)).isNull()
        hidden[name] = F.coalesce(F.col(quote(name)), empty.cast(kind))
    return rows.withColumns(hidden), names


def show_null_lists(rows: DataFrame, names: list[str]) -> DataFrame:
    """The inverse."""
    if not names:
        return rows
    shown = {name: F.when(~F.col(quote(f"__null {name}")), F.col(quote(name))) for name in names}
    return rows.withColumns(shown).drop(*(f"__null {name}" for name in names))


def join_by(rows: DataFrame, others: DataFrame, names: Sequence[str], how: str = "inner") -> DataFrame:
    """Join by columns that both have, in which a null is a name like any other."""
    known = {name: f"__known {place}" for place, name in enumerate(names)}
    same = F.lit(True)
    for name, other in known.items():
        same &= F.col(quote(name)).eqNullSafe(F.col(quote(other)))
    return rows.join(others.withColumnsRenamed(known), same, how).drop(*known.values())


def unite(tables: Iterable[DataFrame]) -> DataFrame:
    """All rows, with nulls in columns that a table does not have."""
    return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), tables)


def quote(name: str) -> str:
    """A column's name, as an expression has it.

    >>> quote("span.id")
    '`span.id`'
    """
    return "`" + name.replace("`", "``") + "`"


def read_time(rows: DataFrame, name: str, *, lenient: bool = False) -> Column:
    """A column of times as numbers that compare alike: nanoseconds, or what it has if that is no integer.

    A text that is no time ends the query, and is named. It is null if that is `lenient`, and in a stream, which would
    end for one bad row again and again.
    """
    kind = rows.schema[name].dataType
    if isinstance(kind, (DoubleType, FloatType)):
        return F.col(quote(name)).cast("double")
    time = to_nanoseconds(name, kind.simpleString())
    if lenient or not isinstance(kind, StringType) or rows.isStreaming:
        return time
    text = F.col(quote(name))
    fault = raise_bad_trace("time", F.concat(text, F.lit(" is neither ISO 8601 nor an integer")))
    return F.coalesce(time, F.when(F.trim(text) != "", fault.cast("bigint")))


def to_nanoseconds(name: str, type_name: str) -> Column:
    """A column of this type as nanoseconds since 1970: integers are that; text may be ISO 8601, to the nanosecond.

    Null where it is neither. Nanoseconds of 64 bits reach from 1677 to 2262: other times stand at the ends.
    """
    column = F.col(quote(name))

    def scale(micros: Column) -> Column:
        return F.when(micros > FAR, FAR).when(micros < -FAR, -FAR).otherwise(micros) * 1000

    if type_name in ("timestamp", "timestamp_ntz", "date"):
        return scale(F.unix_micros(column.cast("timestamp")))
    if type_name != "string":
        return F.expr(f"try_cast({quote(name)} as bigint)")
    whole = scale(F.expr(f"unix_micros(try_cast({quote(name)} as timestamp))"))
    # Spark's timestamps end at the microsecond.
    rest = F.regexp_extract(column, r"\.\d{6}(\d{1,3})", 1)
    nanos = F.when(rest == "", 0).otherwise(F.rpad(rest, 3, "0").cast("bigint"))
    return F.coalesce(F.expr(f"try_cast({quote(name)} as bigint)"), whole + nanos)


def parse_duration(owner: str, name: str, text: object) -> int:
    """Milliseconds, one at least, of a duration as Spark's watermark takes it.

    >>> parse_duration("order", "patience", "30 seconds"), parse_duration("order", "remember", "1 day 12 hours")
    (30000, 129600000)
    >>> parse_duration("order", "patience", "soon")
    Traceback (most recent call last):
    antecede.errors.BadParameter: order: patience must be a time such as 30 seconds or 7 days, not 'soon'
    """
    rest = text.strip().lower().removeprefix("interval ") if isinstance(text, str) else ""
    total, at = 0.0, 0
    while (found := DURATION.match(rest, at)) is not None and found[2] in UNITS_MS:
        total += float(found[1]) * UNITS_MS[found[2]]
        at = found.end()
    if at < len(rest) or round(total) < 1:
        raise BadParameter(owner, f"{name} must be a time such as 30 seconds or 7 days, not {text!r}")
    return round(total)


# Paths


def files(spark: SparkSession, path: str, pattern: str = "*.parquet") -> list[str]:
    """The visible files in a directory, or the one file, in the order of their names; none if nothing is there."""
    listing = spark.read.format("binaryFile").option("pathGlobFilter", pattern)
    try:
        # Listed while the plan is made: this costs no job.
        found = listing.load(escape_path(absolute(path))).inputFiles()
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return []
        raise
    return sorted((absolute(unquote(file)) for file in found), key=str.encode)


def escape_path(path: str) -> str:
    """The path as Spark's readers take it: what would be a pattern is not meant as one."""
    return "".join(f"\\{sign}" if sign in "*?[]{}\\" else sign for sign in path)


# Rows that name their causes


class ByCauses(Struct, frozen=True):
    """Which columns say what."""

    id: str
    causes: str
    partition_by: tuple[str, ...] = ()
    time: str | None = None
    no_cause: tuple[str, ...] = ("",)
    """Causes of text that mean none."""


class ByVector(Struct, frozen=True):
    """Which columns have the vectors of rows, and the processes that counted them."""

    process: str
    vector: str
    partition_by: tuple[str, ...] = ()
    time: str | None = None


class ByStamp(Struct, frozen=True):
    """Which column has the stamps of packets, and of which protocol they are."""

    stamp: str
    protocol: str
    processes: tuple[str, ...]
    parameters: dict[str, Any] = {}
    partition_by: tuple[str, ...] = ("receiver",)
    """The columns that tell one order from another: the last is the receiver."""
    time: str | None = None


def refuse_columns(
    rows: DataFrame,
    asked: ByCauses,
    *,
    owner: str = "order",
    added: tuple[str, ...] = ("position", "waits_for"),
) -> None:
    """Refuse names that are no columns, columns of types that mean nothing, and those that the owner adds."""
    named = {"id": asked.id, "causes": asked.causes, "time": asked.time}
    refuse_column_names(owner, rows, named, asked.partition_by, added)
    kind = rows.schema[asked.id].dataType
    cause = rows.schema[asked.causes].dataType
    element = cause.elementType if isinstance(cause, ArrayType) else cause
    if not isinstance(kind, (StringType, *WHOLE)):
        raise BadParameter(
            owner,
            f"id must be text or integers of 64 bits, and {asked.id} is {kind.simpleString()}: make it text",
        )
    if not isinstance(element, StringType if isinstance(kind, StringType) else (StringType, *WHOLE)):
        raise BadParameter(
            owner,
            f"causes must be one identifier or an array of them, as ids are, and {asked.causes} is "
            f"{cause.simpleString()} with ids of {kind.simpleString()}: make both text",
        )
    for name in asked.partition_by:
        if isinstance(rows.schema[name].dataType, (ArrayType, MapType, StructType, VariantType)):
            raise BadParameter(
                owner,
                f"partition_by must name columns of plain values, and {name} is "
                f"{rows.schema[name].dataType.simpleString()}",
            )


def id_type(rows: DataFrame, asked: ByCauses) -> DataType:
    """Text if identifiers are text, or causes are: text among integers makes all of them text."""
    cause = rows.schema[asked.causes].dataType
    element = cause.elementType if isinstance(cause, ArrayType) else cause
    text = isinstance(rows.schema[asked.id].dataType, StringType) or isinstance(element, StringType)
    return StringType() if text else LongType()


def read_id(rows: DataFrame, asked: ByCauses) -> Column:
    return F.col(quote(asked.id)).cast(id_type(rows, asked))


def event_columns(rows: DataFrame, asked: ByCauses) -> dict[str, Column]:
    """`__id`, `__causes` and, if there is a time, `__time`: what tasks read, whatever the columns are."""
    added = {"__id": read_id(rows, asked), "__causes": list_causes(rows, asked)}
    if asked.time is not None:
        added["__time"] = read_time(rows, asked.time)
    return added


def name_events(rows: DataFrame, asked: ByCauses) -> Column:
    """The identifier of each row as text. Rows without one are one event if nothing tells them apart."""
    time = read_time(rows, asked.time) if asked.time is not None else F.lit(None).cast("long")
    causes = list_causes(rows, asked).cast("array<string>")
    unnamed = F.concat(F.lit("\0"), F.to_json(F.struct(causes.alias("causes"), time.alias("time"))))
    return F.coalesce(F.col(quote(asked.id)).cast("string"), unnamed)


def split_text(text: Column) -> Column:
    """One identifier in text, or a JSON array of them, as an array."""
    listed = F.coalesce(F.from_json(text, "array<string>"), F.array(text))
    return F.when(text.startswith("["), listed).otherwise(F.array(text))


def list_causes(rows: DataFrame, asked: ByCauses) -> Column:
    """The causes as an array of identifiers, without nulls and without what means none."""
    kind, found = id_type(rows, asked), rows.schema[asked.causes].dataType
    cause, empty = F.col(quote(asked.causes)), F.array().cast(ArrayType(kind))

    def is_meant(one: Column) -> Column:
        text = isinstance(kind, StringType) and asked.no_cause
        return one.isNotNull() & ~one.isin(*asked.no_cause) if text else one.isNotNull()

    if isinstance(found, ArrayType):
        return F.filter(F.coalesce(cause.cast(ArrayType(kind)), empty), is_meant)
    # Most are one identifier: no list has to be filtered.
    one = cause.cast(kind)
    alone = F.when(is_meant(one), F.array(one)).otherwise(empty)
    if not isinstance(found, StringType):
        return alone
    return F.when(one.startswith("["), F.filter(split_text(one), is_meant)).otherwise(alone)
