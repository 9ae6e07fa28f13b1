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

__all__ = ["Asked", "assign_buckets", "order_stream", "select_packets"]

WATERMARK: Final = "spark.watermarkDelayMs"
"""What Spark notes of a column with a watermark."""
FORMS: Final = "id and causes, or process and vector, or stamp, protocol and processes"


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

    def refuse_others(self, form: str, *names: str) -> None:
        for name in names:
            if getattr(self, name):
                raise BadParameter("order", f"{name} does not go with {form}: name {FORMS}")

    @property
    def patience_ms(self) -> int | None:
        return None if self.patience is None else parse_duration("order", "patience", self.patience)

    @property
    def remember_ms(self) -> int:
        return parse_duration("order", "remember", self.remember or REMEMBER)


def order_stream(df: DataFrame, asked: Asked) -> DataFrame:
    """The rows of a stream in causal order."""
    buckets = BUCKETS if asked.buckets is None else asked.buckets
    if buckets < 1:
        raise BadParameter("order", f"buckets must be 1 or more, not {buckets}")
    if asked.id is not None and asked.causes is not None:
        asked.refuse_others("explicit causes", "process", "vector", "stamp", "protocol", "processes")
        return order_causes(df, asked, buckets)
    if asked.process is not None and asked.vector is not None:
        asked.refuse_others("vectors", "id", "causes", "stamp", "protocol", "processes")
        return order_vectors(df, asked, buckets)
    asked.refuse_others("stamps", "id", "causes", "process", "vector", "remember")
    if asked.protocol is None or not asked.processes:
        raise BadParameter("order", f"a stream needs the names of its columns: {FORMS}")
    return order_stamps(df, asked, buckets)


def order_causes(df: DataFrame, asked: Asked, buckets: int) -> DataFrame:
    """Events that name their causes, which are looked for among the rows with the same values of `partition_by`."""
    assert asked.id is not None
    assert asked.causes is not None
    named = ByCauses(asked.id, asked.causes, asked.partition_by or (), asked.time, asked.no_cause)
    durations = asked.patience_ms, asked.remember_ms
    refuse_columns(df, named, added=ADDED[:3])
    kind = id_type(df, named)
    # A column that is what a bucket needs does not cross into Python twice.
    id = hide_name(asked.id) if df.schema[asked.id].dataType == kind else "__id"
    columns = {"id": f"{asked.id} ({kind.simpleString()})", "partition_by": ", ".join(named.partition_by)}
    settings = CausesSettings(*durations, buckets, id, columns)
    own = [] if id != "__id" else [F.col(quote(asked.id)).cast(kind).alias(id)]
    rows, assign = select_rows(df, asked, [*own, list_causes(df, named).alias("__causes")])
    schema = add_columns(list_fields(df), ArrayType(kind), ADDED[:3])
    found = run_buckets(rows, settings, assign, schema, remember_ms=settings.remember_ms)
    return found.toDF(*df.columns, *ADDED[:3])


def order_vectors(df: DataFrame, asked: Asked, buckets: int) -> DataFrame:
    """Rows that carry vectors: a map from names to numbers, or an array."""
    assert asked.process is not None
    assert asked.vector is not None
    durations, groups = (asked.patience_ms, asked.remember_ms), asked.partition_by or ()
    named = {"process": asked.process, "vector": asked.vector}
    columns = {**named, "partition_by": ", ".join(groups)}
    settings = VectorSettings(hide_name(asked.process), hide_name(asked.vector), *durations, buckets, columns)
    refuse_column_names("order", df, {**named, "time": asked.time}, groups, ADDED)
    name = refuse_unlike_vectors(df, asked.process, asked.vector)
    rows, assign = select_rows(df, asked, [])
    waits = ArrayType(StructType([StructField("process", name), StructField("number", LongType())]))
    found = run_buckets(rows, settings, assign, add_columns(list_fields(df), waits))
    return found.toDF(*df.columns, *ADDED)


def select_rows(df: DataFrame, asked: Asked, own: list[Column]) -> tuple[DataFrame, ByPartition]:
    """The rows with the columns of our own that a bucket reads, and what assigns them to buckets."""
    assign, keys = ByPartition.of(df, asked.partition_by or (), hide_name)
    times = [] if asked.time is None else [read_time(df, asked.time).alias("__time")]
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


def order_stamps(df: DataFrame, asked: Asked, buckets: int) -> DataFrame:
    """Packets in the order of arrival -> the same rows in causal order, each with its position at its receiver.

    `partition_by` is a column that tells several systems of the same processes apart (default: `group`, if there is
    one), `time` the one that rows are taken by (default: `arrival`, if there is one).
    """
    groups = asked.partition_by or ()
    if len(groups) > 1:
        raise BadParameter("order", f"partition_by takes one column with stamps, not {', '.join(groups)}")
    group = groups[0] if groups else None
    named = str(asked.protocol), asked.processes, asked.parameters, asked.patience
    settings = Settings.of(*named, buckets=buckets, group=group)
    rows = select_packets(df, asked.stamp or "stamp", group, asked.time)
    schema = add_columns(list_fields(df, group=group or "group"), from_arrow_type(GAVE_UP))
    return run_buckets(rows, settings, assign_buckets, schema).toDF(*df.columns, *ADDED)


def select_packets(df: DataFrame, stamp: str, group: str | None, time: str | None) -> DataFrame:
    """The columns of packets, under names of our own, and all of the user's, under hidden ones."""
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
    own = {
        "__receiver": F.col("receiver").cast("string"),
        "__sender": F.col("sender").cast("string"),
        "__number": F.col("number").cast("long"),
        # No stamp is one that nobody can read: refused as a row, not as a stream.
        "__stamp": F.coalesce(F.col(quote(stamp)).cast("binary"), F.lit(b"")),
    }
    if time is not None:
        column = F.col(quote(time))
        if not isinstance(found[time], (TimestampType, *WHOLE)):
            kind = found[time].simpleString()
            raise BadParameter("order", f"time must be integers or timestamps, and {time} is {kind}")
        stamped = isinstance(found[time], TimestampType)
        own["__arrival"] = F.unix_micros(column) if stamped else column.cast("long")
    if "label" in found:
        own["__label"] = F.col("label").cast("string")
    if group is not None:
        own["__group"] = F.coalesce(F.col(quote(group)).cast("string"), F.lit(""))
    elif "group" in found:
        # Null where there are no groups: such rows go where they would without the column.
        own["__group"] = F.col("group").cast("string")
    return df.select(*(column.alias(name) for name, column in own.items()), *hide_columns(df))


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
