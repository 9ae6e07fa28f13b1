"""Rows that name their causes, in causal order: `id`, and `causes` (one identifier, a list of them, or null).

Partitions are ordered each for itself: a cause is looked for in the row's own partition. Three ways, and each partition
goes by the one that fits it:

small    up to `FULL` rows. Rows are brought together by partition, and a task orders many partitions, one after the
         other, with all their columns: one exchange, no sort of names.
large    with a time: in blocks of time (blocks.py). No task holds a whole partition.
deep     large, and no time that would cut it: a task gets the identifiers and causes of a whole partition, and no other
         column, and finds the place of each identifier. Then a join brings the places to the rows, and a sort by place
         finishes. So such a partition is limited by one task's memory: about 150 bytes and the identifier's own length
         for each row.

The driver holds the names of large partitions.

A partition in which an identifier is its own ancestor is refused: its rows have no `position`, and `waits_for` has the
cycle. The others are not concerned.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from antecede.spark.errors import raise_bad_trace
from antecede.spark.frames import (
    ByCauses,
    event_columns,
    hide_null_lists,
    id_type,
    list_causes,
    name_events,
    refuse_columns,
    show_null_lists,
    unite,
)
from antecede.spark.order.blocks import order_blocks
from antecede.spark.order.graph import order_table
from antecede.spark.run_tasks import (
    FULL,
    bring_together,
    extend_partitions,
    map_partitions,
    one_array,
    split_partitions,
)

__all__ = ["READ", "TOLD", "explain_refused", "find_missing", "order_rows", "refuse_columns"]

READ: Final[tuple[str, ...]] = ()
"""Columns that are read under the names that they have."""
TOLD: Final[tuple[str, ...]] = ()
"""Columns of what is told of a result, beside those that every form has."""


def order_rows(
    rows: DataFrame, asked: ByCauses, partitions: int | None = None, *, full: int = FULL
) -> DataFrame:
    """The rows with `position` and `waits_for`. This counts the rows of partitions at once, to find the large ones."""
    small, large = split_partitions(rows, asked.partition_by, full)
    parts = [] if small is None else [order_small(small, asked)]
    if large is not None and asked.time is not None:
        some, hidden = hide_null_lists(large.rows)
        parts.append(show_null_lists(order_blocks(some, asked, large.sizes, full), hidden))
    elif large is not None:
        parts.append(order_whole(large.rows.drop("__part"), asked))
    return unite(parts)


def order_small(rows: DataFrame, asked: ByCauses) -> DataFrame:
    """Order partitions that fit into a task with all their columns."""
    added = [
        StructField("position", LongType()),
        StructField("waits_for", ArrayType(id_type(rows, asked))),
    ]
    work = partial(order_table, names=asked.partition_by)
    return extend_partitions(rows, asked.partition_by, event_columns(rows, asked), work, added)


# Large partitions without a time


def order_whole(rows: DataFrame, asked: ByCauses) -> DataFrame:
    """Order partitions whose identifiers and causes fit into a task, and nothing else has to."""
    names, kind = asked.partition_by, id_type(rows, asked)
    own = [f"__key{place}" for place, _ in enumerate(names)]
    keys = [F.col(name).alias(key) for name, key in zip(names, own, strict=True)]
    node, causes = name_events(rows, asked), list_causes(rows, asked).cast("array<string>")
    slim = rows.select(*keys, node.alias("__id"), causes.alias("__causes"))
    fields = [StructField("__place", LongType()), StructField("__waits", ArrayType(StringType()))]
    schema = StructType([*(slim.schema[name] for name in (*own, "__id")), *fields])
    work = partial(place_events, names=tuple(own), text=isinstance(kind, StringType))
    places = map_partitions(bring_together(slim, own), work, schema, enough=1)
    same = F.col("__own") == F.col("__id")
    for name, key in zip(names, own, strict=True):
        same &= F.col(name).eqNullSafe(F.col(key))
    # Both sides are large: Spark need not find out.
    joined = rows.withColumn("__own", node).join(places.hint("merge"), same, "left")
    copies = Window.partitionBy(*names, "__own").orderBy("__own")
    changed = raise_bad_trace(
        "the table", "it changed while it was ordered: it has rows that were not there when they were counted"
    )
    place = F.coalesce("__place", changed.cast("long"))
    position = F.when(place >= 0, place + F.row_number().over(copies) - 1).cast("long")
    waits = F.col("__waits").cast(ArrayType(kind))
    found = joined.select(*rows.columns, position.alias("position"), waits.alias("waits_for"))
    return found.orderBy(*names, "position")


def place_events(table: pa.Table, names: tuple[str, ...], text: bool) -> pa.Table:
    """In a task: the first position of each identifier of whole partitions, -1 in one that is refused."""
    ordered = order_table(table, [*names, "__id"], names, text=text)
    # Copies of an event stand together: the first has the place of all.
    first = np.ones(len(ordered), np.bool_)
    same = pc.equal(one_array(ordered["__id"])[1:], one_array(ordered["__id"])[:-1])
    first[1:] = ~same.to_numpy(zero_copy_only=False)
    first |= one_array(ordered["position"]).fill_null(1).to_numpy() == 0
    told = ordered.set_column(len(names) + 1, "__place", ordered["position"].fill_null(-1))
    return told.rename_columns([*told.column_names[:-1], "__waits"]).filter(pa.array(first))


# What comes of it


def find_missing(ordered: DataFrame, asked: ByCauses) -> DataFrame:
    """(partition columns, the identifier, direct, waiting): how many rows name it, and how many wait for it."""
    names = asked.partition_by
    causes = list_causes(ordered, asked)
    each = ordered.where("position is not null").select(
        *names, F.explode("waits_for").alias("__missing"), causes.alias("__causes")
    )
    counts = each.groupBy(*names, "__missing").agg(
        F.count_if(F.array_contains("__causes", F.col("__missing"))).alias("direct"),
        F.count(F.lit(1)).alias("waiting"),
    )
    return counts.withColumnRenamed("__missing", asked.id)


def explain_refused(ordered: DataFrame, asked: ByCauses) -> DataFrame:
    """(partition columns, rows, reason) of each partition that is refused."""
    names = asked.partition_by
    bad = ordered.where("position is null").groupBy(*names)
    cycle = F.first("waits_for").cast("array<string>")
    told = bad.agg(F.count(F.lit(1)).alias("rows"), cycle.alias("__cycle"))
    reason = F.concat(
        F.lit("the causes form a cycle: "),
        F.array_join(F.concat("__cycle", F.slice("__cycle", 1, 1)), " -> "),
    )
    return told.where("rows > 0").select(*names, "rows", reason.alias("reason"))
