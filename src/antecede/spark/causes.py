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
from antecede.spark.frames import WHOLE, quote, refuse_column_names

__all__ = ["ByCauses", "id_type", "list_causes", "refuse_columns", "split_text"]


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
        raise BadParameter(owner, f"id must be text or integers, and {asked.id} is {kind.simpleString()}")
    if not isinstance(element, StringType if isinstance(kind, StringType) else (StringType, *WHOLE)):
        raise BadParameter(
            owner,
            f"causes must be one identifier or an array of them, as ids are, and {asked.causes} is "
            f"{cause.simpleString()} with ids of {kind.simpleString()}",
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


def split_text(text: Column) -> Column:
    """One identifier in text, or a JSON array of them, as an array."""
    listed = F.coalesce(F.from_json(text, "array<string>"), F.array(text))
    return F.when(text.startswith("["), listed).otherwise(F.array(text))


def list_causes(rows: DataFrame, asked: ByCauses) -> Column:
    """The causes as an array of identifiers, without nulls and without what means none."""
    cause = F.col(quote(asked.causes))
    kind = id_type(rows, asked).simpleString()
    found = rows.schema[asked.causes].dataType
    listed = cause if isinstance(found, ArrayType) else F.array(cause)
    if isinstance(found, StringType):
        listed = split_text(cause)
    listed = F.coalesce(listed.cast(f"array<{kind}>"), F.array().cast(f"array<{kind}>"))
    if kind != "string" or not asked.no_cause:
        return F.filter(listed, lambda one: one.isNotNull())
    return F.filter(listed, lambda one: one.isNotNull() & ~one.isin(*asked.no_cause))
