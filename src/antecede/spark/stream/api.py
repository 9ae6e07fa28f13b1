"""A live stream in causal order, in one of three forms: what `antecede.spark.order` does with a streaming DataFrame.

    id, causes                    `causes`: identifiers are remembered, rows wait for those that they name
    process, vector               `vectors`: counts are remembered, the compiled kernel decides
    stamp, protocol, processes    `stamps`: the kernel decides about stamps of counts, machines about others

All columns stay. `position`, `waits_for` and `kind` are added; by vectors and stamps also `reason`, why a row that
cannot be ordered is `refused`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import (
    ArrayType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from antecede.errors import BadParameter
from antecede.spark.duration import REMEMBER, parse_duration
from antecede.spark.frames import (
    GROUP_MARK,
    WHOLE,
    ByCauses,
    ByStamp,
    ByVector,
    id_type,
    list_causes,
    quote,
    read_time,
    refuse_column_names,
    refuse_columns,
    refuse_unlike_vectors,
)
from antecede.spark.stream.bucket import ADDED, encode_names, hide_name
from antecede.spark.stream.causes import CausesSettings
from antecede.spark.stream.kernel import Numbers
from antecede.spark.stream.operator import BUCKETS, ByPartition, hash_names, run_buckets, spread
from antecede.spark.stream.packets import GAVE_UP, Settings
from antecede.spark.stream.vectors import VectorSettings

__all__ = ["Asked", "assign_buckets", "name_packets", "order_stream", "select_packets"]

WATERMARK: Final = "spark.watermarkDelayMs"
"""What Spark notes of a column with a watermark."""


class Asked(Struct, frozen=True):
    """What `order` was asked for: its parameters. None is not said."""

    id: str | None = None
    causes: str | None = None
    process: str | None = None
    vector: str | None = None
    stamp: str | None = None
    protocol: str | None = None
    processes: tuple[str, ...] = ()
    parameters: dict[str, Any] = {}
    partition_by: tuple[str, ...] | None = None
    """None: those that the form of the table suggests (`order.files`)."""
    time: str | None = None
    window: tuple[Any, Any] | None = None
    no_cause: tuple[str, ...] = ("",)
    patience: str | None = None
    remember: str | None = None
    buckets: int | None = None


def order_stream(
    df: DataFrame,
    form: ByCauses | ByVector | ByStamp,
    *,
    patience: str | None = None,
    remember: str | None = None,
    buckets: int | None = None,
) -> DataFrame:
    """The rows of a stream in causal order."""
    buckets = BUCKETS if buckets is None else buckets
    if buckets < 1:
        raise BadParameter("order", f"buckets must be 1 or more, not {buckets}")
    if isinstance(form, ByStamp):
        if remember is not None:
            raise BadParameter(
                "order", "leave out remember: by stamps a stream keeps counts, and forgets none"
            )
        return order_stamps(df, form, patience, buckets)
    patience_ms = None if patience is None else parse_duration("order", "patience", patience)
    durations = patience_ms, parse_duration("order", "remember", remember or REMEMBER)
    if isinstance(form, ByCauses):
        return order_causes(df, form, durations, buckets)
    return order_vectors(df, form, durations, buckets)


def order_causes(df: DataFrame, form: ByCauses, durations: tuple[int | None, int], buckets: int) -> DataFrame:
    """Events that name their causes, which are looked for among the rows with the same values of `partition_by`."""
    refuse_columns(df, form, added=ADDED[:3])
    kind = id_type(df, form)
    # A column that is what a bucket needs does not cross into Python twice.
    id = hide_name(form.id) if df.schema[form.id].dataType == kind else "__id"
    columns = {"id": f"{form.id} ({kind.simpleString()})", "partition_by": ", ".join(form.partition_by)}
    settings = CausesSettings(*durations, buckets, id, columns)
    own = [] if id != "__id" else [F.col(quote(form.id)).cast(kind).alias(id)]
    rows, assign = select_rows(df, form, [*own, list_causes(df, form).alias("__causes")])
    schema = add_columns(list_fields(df), ArrayType(kind), ADDED[:3])
    found = run_buckets(rows, settings, assign, schema, remember_ms=settings.remember_ms)
    return found.toDF(*df.columns, *ADDED[:3])


def order_vectors(
    df: DataFrame, form: ByVector, durations: tuple[int | None, int], buckets: int
) -> DataFrame:
    """Rows that carry vectors: a map from names to numbers, or an array."""
    named = {"process": form.process, "vector": form.vector}
    columns = {**named, "partition_by": ", ".join(form.partition_by)}
    settings = VectorSettings(hide_name(form.process), hide_name(form.vector), *durations, buckets, columns)
    refuse_column_names("order", df, {**named, "time": form.time}, form.partition_by, ADDED)
    name = refuse_unlike_vectors(df, form.process, form.vector)
    rows, assign = select_rows(df, form, [])
    waits = ArrayType(StructType([StructField("process", name), StructField("number", LongType())]))
    found = run_buckets(rows, settings, assign, add_columns(list_fields(df), waits))
    return found.toDF(*df.columns, *ADDED)


def select_rows(df: DataFrame, form: ByCauses | ByVector, own: list[Column]) -> tuple[DataFrame, ByPartition]:
    """The rows with the columns of our own that a bucket reads, and what assigns them to buckets."""
    assign, keys = ByPartition.of(df, form.partition_by, hide_name)
    times = [] if form.time is None else [read_time(df, form.time).alias("__time")]
    return df.select(*keys, *own, *times, *hide_columns(df)), assign


def hide_columns(df: DataFrame) -> list[Column]:
    return [F.col(quote(name)).alias(hide_name(name)) for name in df.columns]


def list_fields(df: DataFrame, group: str | None = None) -> list[StructField]:
    """The columns that come out of a stream: those of the user, under hidden names.

    A watermark of theirs ends here. Rows that waited would be behind it, and dropped by an operator that follows; its
    own is one of the rows that come out.
    """

    def keep(field: StructField) -> dict[str, Any]:
        known = {name: value for name, value in (field.metadata or {}).items() if name != WATERMARK}
        # Positions count by group and receiver: a sink must know.
        return known | ({GROUP_MARK: True} if field.name == group else {})

    return [
        StructField(hide_name(field.name), field.dataType, field.nullable, keep(field)) for field in df.schema
    ]


def add_columns(fields: list[StructField], waits: DataType, added: tuple[str, ...] = ADDED) -> StructType:
    kinds = {"position": LongType(), "waits_for": waits}
    return StructType([*fields, *(StructField(name, kinds.get(name, StringType())) for name in added)])


# Packets with stamps: a row is a packet at a receiver, as `packets` explains it


def order_stamps(df: DataFrame, form: ByStamp, patience: str | None, buckets: int) -> DataFrame:
    """Packets in the order of arrival -> the same rows in causal order, each with its position at its receiver.

    `partition_by` has a column before the receiver that tells several systems of the same processes apart (default:
    `group`, if there is one); `time` is the one that rows are taken by.
    """
    groups = form.partition_by[:-1]
    if len(groups) > 1:
        raise BadParameter("order", f"partition_by takes one column with stamps, not {', '.join(groups)}")
    group = groups[0] if groups else None
    settings = Settings.of(
        form.protocol, form.processes, form.parameters, patience, buckets=buckets, group=group
    )
    rows = select_packets(df, form.stamp, group, form.time)
    schema = add_columns(list_fields(df, group=group or "group"), from_arrow_type(GAVE_UP))
    return run_buckets(rows, settings, assign_buckets, schema).toDF(*df.columns, *ADDED)


def select_packets(df: DataFrame, stamp: str, group: str | None, time: str | None) -> DataFrame:
    """The columns of packets, under names of our own, and all of the user's, under hidden ones."""
    found = {field.name: field.dataType for field in df.schema}
    wanted = ["receiver", "sender", "number", stamp, *(name for name in (group, time) if name is not None)]
    missing = [name for name in wanted if name not in found]
    if missing:
        raise BadParameter(
            "order",
            f"the table needs the columns {', '.join(missing)}: a row is a packet; it has {', '.join(found)}",
        )
    refuse_column_names("order", df, {}, added=ADDED)
    own = name_packets(df, stamp)
    if time is not None:
        column = F.col(quote(time))
        if not isinstance(found[time], (TimestampType, *WHOLE)):
            kind = found[time].simpleString()
            raise BadParameter("order", f"time must be integers or timestamps, and {time} is {kind}")
        stamped = isinstance(found[time], TimestampType)
        own["__arrival"] = F.unix_micros(column) if stamped else column.cast("long")
    if group is not None:
        own["__group"] = F.coalesce(F.col(quote(group)).cast("string"), F.lit(""))
    elif "group" in found:
        # Null where there are no groups: such rows go where they would without the column.
        own["__group"] = F.col("group").cast("string")
    return df.select(*(column.alias(name) for name, column in own.items()), *hide_columns(df))


def name_packets(df: DataFrame, stamp: str) -> dict[str, Column]:
    """What packet a row is, under names of our own."""
    own = {
        "__receiver": F.col("receiver").cast("string"),
        "__sender": F.col("sender").cast("string"),
        "__number": F.col("number").cast("long"),
        # No stamp is one that nobody can read: refused as a row, not as a stream.
        "__stamp": F.coalesce(F.col(quote(stamp)).cast("binary"), F.lit(b"")),
    }
    return own | ({"__label": F.col("label").cast("string")} if "label" in df.columns else {})


def assign_buckets(rows: pa.Table, buckets: int) -> tuple[pa.Table, Numbers]:
    """The bucket of each row: by its receiver, and its group where it has one."""
    found = hash_column(rows["__receiver"])
    if "__group" in rows.column_names:
        grouped = found * 31 + hash_column(rows["__group"])
        found = np.where(rows["__group"].is_null().to_numpy(), found, grouped)
    return rows, spread(found, buckets)


def hash_column(column: pa.ChunkedArray) -> Numbers:
    """A hash of each string. There are few different ones."""
    encoded = encode_names(column)
    hashed = hash_names([*encoded.dictionary.to_pylist(), None])
    places = encoded.indices.fill_null(len(hashed) - 1).to_numpy(zero_copy_only=False)
    found: Numbers = hashed[places]
    return found
