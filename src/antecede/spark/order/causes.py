"""Rows that name their causes (`antecede.spark.causes`), as a table in Arrow: ordered by the rules of graph.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec
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

__all__ = ["FULL", "TOGETHER", "Large", "Outside", "order_table", "split_partitions", "whole_pieces"]

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
        own = pa.int64() if pa.types.is_integer(kind) else pa.string()
        return cls(causes.cast(own), names.cast(pa.list_(own)))

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


def name_events(rows: DataFrame, asked: ByCauses) -> Column:
    """The identifier of each row as text. Rows without one are one event if nothing tells them apart."""
    time = read_time(rows, asked.time) if asked.time is not None else F.lit(None).cast("long")
    causes = list_causes(rows, asked).cast("array<string>")
    unnamed = F.concat(F.lit("\0"), F.to_json(F.struct(causes.alias("causes"), time.alias("time"))))
    return F.coalesce(F.col(quote(asked.id)).cast("string"), unnamed)


def order_table(
    table: pa.Table,
    asked: ByCauses,
    columns: list[str],
    *,
    text: bool = True,
    outside: Outside | None = None,
) -> pa.Table:
    """Order a table that holds partitions from end to end; or a block of one, which knows others by `outside`."""
    table = table.combine_chunks()
    ids = one_array(widen(table[asked.id]))
    causes, effect = flatten_causes(widen(table[asked.causes]), asked.no_cause)
    if outside is not None:
        causes, effect = outside.replace_causes(ids, causes, effect)
    time = times_of(one_array(table["__time"])) if "__time" in table.column_names else None
    # A block is of one partition.
    one = outside is not None
    group = np.zeros(len(table), np.int64) if one else number_groups(table, asked.partition_by)
    found = sort_events(group, ids, causes, effect, time, text)
    ordered = table.select(columns).take(pa.array(found.rows))
    return ordered.append_column("position", found.position).append_column("waits_for", found.waits_for)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def widen(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Integers of any width as those of 64 bits."""
    if pa.types.is_list(column.type) and pa.types.is_integer(column.type.value_type):
        return column.cast(pa.list_(pa.int64()))
    return column.cast(pa.int64()) if pa.types.is_integer(column.type) else column


def flatten_causes(column: pa.ChunkedArray, no_cause: tuple[str, ...]) -> tuple[pa.Array, Numbers]:
    """All causes, and the rows that name them: the rules of `list_causes`."""
    array = split_lists(one_array(column))
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        effect, causes = pc.list_parent_indices(array).to_numpy(), array.flatten()
    else:
        effect, causes = np.arange(len(array)), array
    meant = pc.is_valid(causes)
    if pa.types.is_string(causes.type) and no_cause:
        meant = pc.and_(meant, pc.invert(pc.is_in(causes, pa.array(no_cause, causes.type))))
    if causes.null_count == 0 and pc.all(meant).as_py():
        return causes, effect.astype(np.int64)
    return causes.filter(meant), effect[meant.to_numpy(zero_copy_only=False)].astype(np.int64)


def split_lists(causes: pa.Array) -> pa.Array:
    """Causes as lists, if some of them are a JSON array in text; else as they are.

    >>> split_lists(pa.array(["a", '["b", 2]', "[c", None])).to_pylist()
    [['a'], ['b', '2'], ['[c'], [None]]
    """
    if not pa.types.is_string(causes.type) or not pc.any(pc.starts_with(causes, "[")).as_py():
        return causes

    def split(text: str | None) -> list[str | None]:
        try:
            found = msgspec.json.decode(text) if text is not None and text.startswith("[") else text
        except msgspec.DecodeError:
            return [text]
        if not isinstance(found, list):
            return [text]
        return [one if isinstance(one, str | None) else msgspec.json.encode(one).decode() for one in found]

    return pa.array([split(text) for text in causes.to_pylist()], pa.list_(pa.string()))


def times_of(column: pa.Array) -> Numbers:
    """Times as integers that compare alike; what has none comes first."""
    if pa.types.is_floating(column.type):
        bits = column.fill_null(-np.inf).to_numpy(zero_copy_only=False).astype(np.float64) + 0.0
        whole = bits.view(np.int64)
        return np.asarray(np.where(whole < 0, ~whole ^ np.int64(NEVER), whole))
    return np.asarray(column.fill_null(int(NEVER)).to_numpy(zero_copy_only=False), np.int64)


def number_groups(table: pa.Table, names: Iterable[str]) -> Numbers:
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
