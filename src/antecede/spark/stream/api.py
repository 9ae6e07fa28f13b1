"""A live stream in causal order, in one of three forms: what `antecede.spark.order` does with a streaming DataFrame.

    id, causes                    `causes`: identifiers are remembered, rows wait for those that they name
    process, vector               `vectors`: counts are remembered, the compiled kernel decides
    stamp, protocol, processes    `stamps`: the machines of the protocols decide

All columns stay. `position`, `waits_for` and `kind` are added; by vectors and stamps also `reason`, why a row that
cannot be ordered is `refused`.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from antecede.errors import BadParameter
from antecede.spark.causes import ByCauses
from antecede.spark.duration import REMEMBER, parse_duration
from antecede.spark.frames import quote, read_time, refuse_column_names, refuse_unlike_vectors
from antecede.spark.stream.bucket import ADDED
from antecede.spark.stream.causes import order_causes
from antecede.spark.stream.operator import BUCKETS, keep_rows, name_partition, unpack
from antecede.spark.stream.stamps import order_stamps
from antecede.spark.stream.vectors import VectorSettings

__all__ = ["Asked", "order_stream"]

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


def order_stream(df: DataFrame, asked: Asked) -> DataFrame:
    """The rows of a stream in causal order."""
    buckets = BUCKETS if asked.buckets is None else asked.buckets
    if buckets < 1:
        raise BadParameter("order", f"buckets must be 1 or more, not {buckets}")
    groups = asked.partition_by or ()
    if asked.id is not None and asked.causes is not None:
        refuse_others(asked, "explicit causes", "process", "vector", "stamp", "protocol", "processes")
        named = ByCauses(asked.id, asked.causes, groups, asked.time, asked.no_cause)
        return order_causes(df, named, patience=asked.patience, remember=asked.remember, buckets=buckets)
    if asked.process is not None and asked.vector is not None:
        refuse_others(asked, "vectors", "id", "causes", "stamp", "protocol", "processes")
        return order_vectors(df, asked, buckets)
    refuse_others(asked, "stamps", "id", "causes", "process", "vector", "remember")
    if asked.protocol is None or not asked.processes:
        raise BadParameter("order", f"a stream needs the names of its columns: {FORMS}")
    return order_stamps(
        df,
        protocol=asked.protocol,
        processes=asked.processes,
        stamp=asked.stamp or "stamp",
        parameters=asked.parameters,
        partition_by=groups,
        time=asked.time,
        patience=asked.patience,
        buckets=buckets,
    )


def refuse_others(asked: Asked, form: str, *names: str) -> None:
    for name in names:
        if getattr(asked, name):
            raise BadParameter("order", f"{name} does not go with {form}: name {FORMS}")


def order_vectors(df: DataFrame, asked: Asked, buckets: int) -> DataFrame:
    """A stream of rows that carry vectors: a map from names to numbers, or an array."""
    assert asked.process is not None
    assert asked.vector is not None
    settings = VectorSettings(
        asked.process,
        asked.vector,
        None if asked.patience is None else parse_duration("order", "patience", asked.patience),
        parse_duration("order", "remember", asked.remember or REMEMBER),
        buckets,
    )
    named = {"process": asked.process, "vector": asked.vector, "time": asked.time}
    refuse_column_names("order", df, named, asked.partition_by or (), ADDED)
    name = refuse_unlike_vectors(df, asked.process, asked.vector)
    bucket, partition = name_partition(asked.partition_by or (), buckets)
    times = [] if asked.time is None else [read_time(df, asked.time).alias("__time")]
    rows = df.select(bucket, partition, *times, *(F.col(quote(column)) for column in df.columns))
    packed = keep_rows(rows, settings.open, buckets, settings.patience_ms is not None)
    waits = ArrayType(StructType([StructField("process", name), StructField("number", LongType())]))
    added = zip(ADDED, (LongType(), waits, StringType(), StringType()), strict=True)
    return unpack(packed, StructType([*df.schema.fields, *(StructField(*field) for field in added)]))
