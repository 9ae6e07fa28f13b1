"""What users hand in as a table: is it a DataFrame of Spark, how are its columns named, what do its times mean."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from pyspark.sql import Column, DataFrame
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
)

from antecede.errors import BadParameter
from antecede.spark.errors import raise_bad_trace

__all__ = [
    "CSV", "WHOLE", "alias_columns", "hide_null_lists", "join_by", "quote", "read_time", "refuse_column_names",
    "refuse_other_tables", "refuse_unlike_vectors", "rename_columns", "rename_request", "show_null_lists",
    "to_nanoseconds", "unite",
]  # fmt: skip

Request = TypeVar("Request", bound=Struct)

WHOLE: Final = (LongType, IntegerType, ShortType, ByteType)

CSV: Final[dict[str, Any]] = {
    "header": True,
    # Files are checked against each other's names of columns: without it, Spark goes by the first file alone.
    "enforceSchema": False,
    # A quote within quotes is doubled, as RFC 4180 has it.
    "escape": '"',
}
"""How CSV is read."""


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

    Null where it is neither.
    """
    column = F.col(quote(name))
    if type_name in ("timestamp", "timestamp_ntz", "date"):
        return F.unix_micros(column.cast("timestamp")) * 1000
    if type_name != "string":
        return F.expr(f"try_cast({quote(name)} as bigint)")
    micros = F.expr(f"unix_micros(try_cast({quote(name)} as timestamp))") * 1000
    # Spark's timestamps end at the microsecond.
    rest = F.regexp_extract(column, r"\.\d{6}(\d{1,3})", 1)
    nanos = F.when(rest == "", 0).otherwise(F.rpad(rest, 3, "0").cast("bigint"))
    return F.coalesce(F.expr(f"try_cast({quote(name)} as bigint)"), micros + nanos)
