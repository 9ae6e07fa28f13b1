"""Rows that name their causes (`antecede.spark.causes`), as a table in Arrow: ordered by the rules of graph.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    IntegerType,
    StructField,
    StructType,
)

from antecede.spark.causes import ByCauses, list_causes
from antecede.spark.frames import join_by, quote, read_time
from antecede.spark.order.graph import NEVER, Numbers, sort_events

__all__ = [
    "FULL",
    "TOGETHER",
    "Large",
    "Outside",
    "bring_together",
    "order_table",
    "split_partitions",
    "whole_pieces",
]

FULL: Final = 1_000_000
"""Rows of a partition that one task takes with all their columns."""
BUCKETS: Final = 1 << 16
"""Partitions are counted in so many buckets before they are counted one by one."""
TOGETHER: Final = 1 << 16
"""Rows of small partitions that are ordered in one call."""


class Outside(Struct, frozen=True):
    """What a block of a partition knows of the others: causes that wait, or are missing themselves."""

    causes: pa.Array
    names: pa.Array
    """For each of them the missing identifiers, as lists."""

    @classmethod
    def of(cls, causes: pa.Array, names: pa.Array, kind: pa.DataType) -> Outside:
        """`kind` is the type of identifiers; these are text."""
        return cls(causes.cast(kind), names.cast(pa.list_(kind)))

    @classmethod
    def none(cls) -> Outside:
        return cls(pa.nulls(0, pa.string()), pa.nulls(0, pa.list_(pa.string())))

    def replace_causes(self, ids: pa.Array, causes: pa.Array, effect: Numbers) -> tuple[pa.Array, Numbers]:
        """Keep the causes that are in the block; what waits outside becomes what it waits for; the others go."""
        here = pc.is_in(causes, ids.drop_null())
        kept = effect[here.to_numpy(zero_copy_only=False)]
        if not len(self.causes):
            return causes.filter(here), kept
        at = pc.index_in(causes, self.causes)
        far = pc.and_(pc.invert(here), pc.is_valid(at))
        lists = self.names.take(at.filter(far))
        whose = effect[far.to_numpy(zero_copy_only=False)][pc.list_parent_indices(lists).to_numpy()]
        both = pa.concat_arrays([causes.filter(here), lists.flatten().cast(causes.type)])
        return both, np.concatenate([kept, whose])


class Large(NamedTuple):
    """Partitions that no task should hold: their rows with `__part`, their names by that number, their sizes."""

    rows: DataFrame
    names: DataFrame
    sizes: list[int]


def split_partitions(
    rows: DataFrame, partition_by: tuple[str, ...], full: int
) -> tuple[DataFrame | None, Large | None]:
    """The rows of partitions with up to so many rows, and those of larger ones. This counts them at once."""
    total = rows.count()
    if total <= full:
        return rows, None
    spark = rows.sparkSession
    if not partition_by:
        names = spark.createDataFrame([(0,)], "__part int")
        return None, Large(rows.withColumn("__part", F.lit(0)), names, [total])
    groups = [quote(name) for name in partition_by]
    # Names are counted by their hashes first: few groups, no text. Most tables have no bucket that is too large.
    bucket = F.pmod(F.xxhash64(*groups), F.lit(BUCKETS))
    crowded = rows.groupBy(bucket.alias("bucket")).count().where(F.col("count") > full).toArrow()
    some = rows.where(bucket.isin(*crowded["bucket"].to_pylist()))
    counts = some.groupBy(*groups).agg(F.count(F.lit(1)).alias("__rows")).where(F.col("__rows") > full)
    if not len(crowded) or not len(large := counts.toArrow()):
        return rows, None
    known = large.drop_columns(["__rows"]).append_column("__part", pa.array(range(len(large)), pa.int32()))
    names = spark.createDataFrame(
        known, StructType([*counts.schema.fields[:-1], StructField("__part", IntegerType())])
    )
    others = join_by(rows, F.broadcast(names), partition_by, "left_anti")
    those = join_by(rows, F.broadcast(names), partition_by)
    return others, Large(those, names, large["__rows"].to_pylist())


def bring_together(rows: DataFrame, partition_by: Iterable[str]) -> DataFrame:
    """The rows with `__hash`: those of a partition one after the other, in one task."""
    names = [quote(name) for name in partition_by]
    if not names:
        return rows.withColumn("__hash", F.lit(0).cast("long")).repartition(1)
    hashed = rows.withColumn("__hash", F.xxhash64(*names))
    return hashed.repartition("__hash").sortWithinPartitions("__hash")


def name_events(rows: DataFrame, asked: ByCauses) -> Column:
    """The identifier of each row as text. Rows without one are one event if nothing tells them apart."""
    time = read_time(rows, asked.time) if asked.time is not None else F.lit(None).cast("long")
    causes = list_causes(rows, asked).cast("array<string>")
    unnamed = F.concat(F.lit("\0"), F.to_json(F.struct(causes.alias("causes"), time.alias("time"))))
    return F.coalesce(F.col(quote(asked.id)).cast("string"), unnamed)


def order_table(
    table: pa.Table,
    names: tuple[str, ...],
    columns: list[str],
    *,
    text: bool = True,
    outside: Outside | None = None,
) -> pa.Table:
    """Order a table that holds partitions from end to end; or a block of one, which knows others by `outside`.

    `names` tell partitions apart, `columns` are those of the result; `__id`, `__causes` and `__time` are read.
    """
    table = table.combine_chunks()
    ids = one_array(table["__id"])
    causes, effect = flatten_causes(table["__causes"])
    if outside is not None and len(outside.causes):
        causes, effect = outside.replace_causes(ids, causes, effect)
    time = times_of(one_array(table["__time"])) if "__time" in table.column_names else None
    # A block is of one partition.
    group = number_groups(table, names if outside is None else ())
    known_outside = outside is not None and not len(outside.causes)
    found = sort_events(group, ids, causes, effect, time, text, known_outside)
    ordered = table.select(columns).take(pa.array(found.rows))
    return ordered.append_column("position", found.position).append_column("waits_for", found.waits_for)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def flatten_causes(column: pa.ChunkedArray) -> tuple[pa.Array, Numbers]:
    """All causes, and the rows that name them."""
    array = one_array(column)
    return array.flatten(), pc.list_parent_indices(array).to_numpy().astype(np.int64)


def times_of(column: pa.Array) -> Numbers:
    """Times as integers that compare alike; what has none comes first."""
    if pa.types.is_floating(column.type):
        bits = column.fill_null(-np.inf).to_numpy(zero_copy_only=False).astype(np.float64) + 0.0
        whole = bits.view(np.int64)
        return np.asarray(np.where(whole < 0, ~whole ^ np.int64(NEVER), whole))
    return np.asarray(column.fill_null(int(NEVER)).to_numpy(zero_copy_only=False), np.int64)


def number_groups(table: pa.Table | pa.RecordBatch, names: Iterable[str]) -> Numbers:
    """Number the partitions of a table, in the order in which they come."""
    codes = np.zeros(len(table), np.int64)
    for place, name in enumerate(names):
        column = one_array(table[name])
        encoded = column if pa.types.is_dictionary(column.type) else pc.dictionary_encode(column, "encode")
        own = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        if place:
            both = pa.array(codes * (int(own.max(initial=0)) + 1) + own).dictionary_encode()
            own = both.indices.to_numpy().astype(np.int64)
        codes = own
    return codes


def whole_pieces(
    batches: Iterable[pa.RecordBatch], name: str = "__hash", enough: int = TOGETHER
) -> Iterator[pa.Table]:
    """Batches of rows that are sorted by a column, as tables that each hold all rows of its values."""
    complete: list[pa.RecordBatch] = []
    current: list[pa.RecordBatch] = []
    for batch in batches:
        if not len(batch):
            continue
        start = find_last_start(batch.column(name))
        if current and (start or current[-1].column(name)[0] != batch.column(name)[0]):
            # The rows before `start` end what was current, if they belong to it, or are complete by themselves.
            complete += current
            current = []
        if start:
            complete.append(batch.slice(0, start))
        current.append(batch.slice(start))
        if sum(map(len, complete)) >= enough:
            yield pa.Table.from_batches(complete)
            complete = []
    if complete or current:
        yield pa.Table.from_batches(complete + current)


def find_last_start(column: pa.Array) -> int:
    """The first row that has the value of the last: rows are sorted, so a search by halves."""
    low, high = 0, len(column) - 1
    while low < high:
        middle = (low + high) // 2
        if column[middle] == column[-1]:
            high = middle
        else:
            low = middle + 1
    return low
