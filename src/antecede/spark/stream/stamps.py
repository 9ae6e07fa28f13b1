"""Causal order for a live stream of packets that carry stamps: any protocol whose delivery is decided at the receiver.

A row is a packet at a receiver, as `packets` explains it, with as many other columns as its owner likes. What decides
is a `Bucket`, which also keeps the rows that wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import (
    ByteType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from antecede.errors import BadParameter
from antecede.spark.frames import quote, refuse_column_names
from antecede.spark.schema import GROUP_MARK
from antecede.spark.stream.bucket import ADDED, StampedSettings
from antecede.spark.stream.operator import BUCKETS, keep_rows, unpack
from antecede.spark.stream.packets import GAVE_UP, encode_names
from antecede.spark.stream.settings import Settings

__all__ = ["assign_buckets", "order_stamps", "select_columns"]


def order_stamps(
    df: DataFrame,
    *,
    protocol: str,
    processes: Sequence[str],
    stamp: str = "stamp",
    parameters: Mapping[str, Any] | None = None,
    partition_by: Sequence[str] = (),
    time: str | None = None,
    patience: str | None = None,
    buckets: int = BUCKETS,
) -> DataFrame:
    """Packets in the order of arrival -> the same rows in causal order, each with its position at its receiver.

    A row has `receiver`, `sender`, `number` and the column `stamp`; `label` for `history`. `processes` are the names of
    all that take part, in the order that their stamps count in; `parameters` are those of the protocol. `partition_by`
    is a column that tells several systems of the same processes apart (default: `group`, if there is one), `time` the
    one that rows are taken by (default: `arrival`, if there is one).
    """
    if len(partition_by) > 1:
        raise BadParameter(
            "order", f"partition_by takes one column with stamps, not {', '.join(partition_by)}"
        )
    settings = Settings.of(protocol, processes, parameters, patience, buckets)
    group = partition_by[0] if partition_by else None
    rows = select_columns(df, stamp, group, time)
    columns = to_arrow_schema(StructType(df.schema.fields)).serialize().to_pybytes()
    opened = StampedSettings(settings, columns, group)
    packed = keep_rows(rows, opened.open, buckets, patience is not None, assign_buckets)
    return unpack(packed, output_schema(df, group))


def select_columns(df: DataFrame, stamp: str, group: str | None, time: str | None) -> DataFrame:
    """The columns of packets, under names of our own, and all of the user's."""
    found = {field.name: field.dataType for field in df.schema}
    time = time or ("arrival" if "arrival" in found else None)
    wanted = ["receiver", "sender", "number", stamp, *(name for name in (group, time) if name is not None)]
    missing = [name for name in wanted if name not in found]
    if missing:
        raise BadParameter(
            "order",
            f"the table needs the columns {', '.join(missing)}: a row is a packet; it has {', '.join(found)}",
        )
    refuse_column_names("order", df, {}, added=ADDED)
    columns = [
        F.col("receiver").cast("string").alias("__receiver"),
        F.col("sender").cast("string").alias("__sender"),
        F.col("number").cast("long").alias("__number"),
        # No stamp is one that nobody can read: refused as a row, not as a stream.
        F.coalesce(F.col(quote(stamp)).cast("binary"), F.lit(b"")).alias("__stamp"),
    ]
    if time is not None:
        columns.append(arrival_column(time, found[time]))
    if "label" in found:
        columns.append(F.col("label").cast("string").alias("__label"))
    if group is not None:
        columns.append(F.coalesce(F.col(quote(group)).cast("string"), F.lit("")).alias("__group"))
    elif "group" in found:
        # Null where there are no groups: such rows go where they would without the column.
        columns.append(F.col("group").cast("string").alias("__group"))
    return df.select(*columns, *(F.col(quote(name)) for name in df.columns))


def arrival_column(time: str, kind: Any) -> Any:
    column = F.col(quote(time))
    if isinstance(kind, TimestampType):
        return F.unix_micros(column).alias("__arrival")
    if isinstance(kind, ByteType | ShortType | IntegerType | LongType):
        return column.cast("long").alias("__arrival")
    raise BadParameter("order", f"time must be integers or timestamps, and {time} is {kind.simpleString()}")


def output_schema(df: DataFrame, group: str | None) -> StructType:
    """The columns that come out."""
    group = group or ("group" if "group" in df.columns else None)
    # Positions count by group and receiver: a sink must know.
    marked = [
        StructField(field.name, field.dataType, field.nullable, {**(field.metadata or {}), GROUP_MARK: True})
        if field.name == group
        else field
        for field in df.schema
    ]
    added = [
        StructField("position", LongType()),
        StructField("waits_for", from_arrow_type(GAVE_UP)),
        StructField("kind", StringType()),
        StructField("reason", StringType()),
    ]
    return StructType([*marked, *added])


def assign_buckets(rows: pa.Table, buckets: int) -> Any:
    """The bucket of each row: by its receiver, and its group where it has one."""
    found = hash_names(rows["__receiver"])
    if "__group" in rows.column_names:
        grouped = found * 31 + hash_names(rows["__group"])
        found = np.where(rows["__group"].is_null().to_numpy(), found, grouped)
    # The highest of the low bits are the best mixed ones.
    return (found ^ found >> 16) % buckets


def hash_names(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """A hash of each string. There are few different ones."""
    encoded = encode_names(column)
    values = encoded.dictionary.to_pylist()
    hashed = np.array([crc32((value or "").encode()) for value in values] + [0], np.int64)
    found: NDArray[np.int64] = hashed[encoded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)]
    return found
