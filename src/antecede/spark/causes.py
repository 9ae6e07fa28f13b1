"""Rows that name their causes: which columns say what, for `order` and `verify`, of tables and of streams.

`causes` has one identifier, an array of them, or null. A text that is a JSON array, `["a", "b"]`, is a list too: files
of text have no other way to write one. Text among integers makes all of them text.
"""

from __future__ import annotations

from msgspec import Struct
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StringType, StructType, VariantType

from antecede.errors import BadParameter
from antecede.spark.frames import WHOLE, quote, read_time, refuse_column_names

__all__ = [
    "ByCauses",
    "event_columns",
    "id_type",
    "list_causes",
    "name_events",
    "read_id",
    "refuse_columns",
    "split_text",
]


class ByCauses(Struct, frozen=True):
    """Which columns say what."""

    id: str
    causes: str
    partition_by: tuple[str, ...] = ()
    time: str | None = None
    no_cause: tuple[str, ...] = ("",)
    """Causes of text that mean none."""


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
