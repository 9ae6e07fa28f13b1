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

from collections.abc import Iterable, Iterator
from functools import partial, reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from antecede.errors import BadTrace
from antecede.spark.causes import ByCauses, add_events, id_type, list_causes, refuse_columns
from antecede.spark.errors import mark_errors, raise_marked
from antecede.spark.frames import hide_null_lists, quote, show_null_lists
from antecede.spark.order.blocks import order_blocks
from antecede.spark.order.causes import (
    FULL,
    bring_together,
    name_events,
    one_array,
    order_table,
    split_partitions,
    whole_pieces,
)

__all__ = ["ByCauses", "explain_refused", "find_missing", "order_by_causes"]


def order_by_causes(rows: DataFrame, asked: ByCauses, *, full: int = FULL) -> DataFrame:
    """The rows with `position` and `waits_for`. This counts the rows of partitions at once, to find the large ones."""
    refuse_columns(rows, asked)
    rows, hidden = hide_null_lists(rows)
    small, large = split_partitions(rows, asked.partition_by, full)
    parts = [] if small is None else [order_small(small, asked)]
    if large is not None:
        parts.append(order_large(large.rows, asked, large.sizes, full))
    return show_null_lists(reduce(DataFrame.unionByName, parts), hidden)


def order_large(rows: DataFrame, asked: ByCauses, sizes: list[int], full: int) -> DataFrame:
    """Order partitions that `__part` numbers."""
    if asked.time is not None:
        return order_blocks(rows, asked, sizes, full)
    return order_whole(rows.drop("__part"), asked, sum(sizes))


# Small partitions


def order_small(rows: DataFrame, asked: ByCauses) -> DataFrame:
    """Order partitions that fit into a task with all their columns."""
    fields = [
        StructField("position", LongType()),
        StructField("waits_for", ArrayType(id_type(rows, asked))),
    ]
    task = partial(order_batches, names=asked.partition_by, columns=rows.columns)
    # After the exchange: what is made of other columns need not be shuffled.
    events = add_events(bring_together(rows, asked.partition_by), asked)
    return events.mapInArrow(mark_errors(task), StructType([*rows.schema.fields, *fields]))


def order_batches(
    batches: Iterable[pa.RecordBatch], names: tuple[str, ...], columns: list[str]
) -> Iterator[pa.RecordBatch]:
    """In a task: the rows of whole partitions, ordered."""
    for table in whole_pieces(batches):
        yield from order_table(table, names, columns).to_batches(max_chunksize=1 << 16)


# Large partitions without a time


def order_whole(rows: DataFrame, asked: ByCauses, total: int) -> DataFrame:
    """Order partitions whose identifiers and causes fit into a task, and nothing else has to."""
    names = [quote(name) for name in asked.partition_by]
    keys = [F.col(name).alias(f"__key{place}") for place, name in enumerate(names)]
    kind = id_type(rows, asked)
    causes = list_causes(rows, asked).cast("array<string>")
    node = name_events(rows, asked)
    slim = rows.select(
        *keys,
        node.alias("__id"),
        causes.alias("__causes"),
    )
    spread = bring_together(slim, [f"__key{place}" for place, _ in enumerate(names)])
    fields = [rows.schema[name] for name in asked.partition_by]
    schema = StructType(
        [
            *(StructField(f"__key{place}", field.dataType) for place, field in enumerate(fields)),
            StructField("__id", StringType()),
            StructField("__place", LongType()),
            StructField("__waits", ArrayType(StringType())),
        ]
    )
    task = partial(place_batches, columns=schema.names[:-2], text=isinstance(kind, StringType))
    places = spread.mapInArrow(mark_errors(task), schema)
    return sort_by_place(join_places(rows, places, asked, node), rows, asked, total)


def place_batches(
    batches: Iterable[pa.RecordBatch], columns: list[str], text: bool
) -> Iterator[pa.RecordBatch]:
    """In a task: the first position of each identifier of whole partitions, -1 in one that is refused."""
    for table in whole_pieces(batches, enough=1):
        ordered = order_table(table, tuple(columns[:-1]), columns, text=text)
        # Copies of an event stand together: the first has the place of all.
        first = np.ones(len(ordered), np.bool_)
        if len(ordered):
            same = pc.equal(one_array(ordered["__id"])[1:], one_array(ordered["__id"])[:-1])
            first[1:] = ~same.to_numpy(zero_copy_only=False)
            first |= one_array(ordered["position"]).fill_null(1).to_numpy() == 0
        ordered = ordered.filter(pa.array(first))
        place = ordered["position"].fill_null(-1)
        told = ordered.select(columns).append_column("__place", place)
        yield from told.append_column("__waits", ordered["waits_for"]).to_batches(max_chunksize=1 << 16)


def join_places(rows: DataFrame, places: DataFrame, asked: ByCauses, node: Column) -> DataFrame:
    same = F.col("__own") == F.col("__id")
    for place, name in enumerate(asked.partition_by):
        same &= F.col(quote(name)).eqNullSafe(F.col(f"__key{place}"))
    # Both sides are large: Spark need not find out.
    joined = rows.withColumn("__own", node).join(places.hint("merge"), same, "left")
    copies = Window.partitionBy(*(quote(name) for name in asked.partition_by), "__own")
    copy = F.row_number().over(copies.orderBy("__own")) - 1
    changed = BadTrace(
        "table", "it changed while it was ordered: it has rows that were not there when they were counted"
    )
    known = F.when(F.col("__place").isNull(), raise_marked(changed).cast("long")).otherwise(F.col("__place"))
    return joined.withColumn("position", F.when(known >= 0, known + copy).cast("long"))


def sort_by_place(joined: DataFrame, rows: DataFrame, asked: ByCauses, total: int) -> DataFrame:
    """The rows by their positions: each task gets as many that follow each other."""
    parallel = int(rows.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    tasks = max(-(-total // FULL), parallel)
    share = -(-total // tasks)
    bucket = F.coalesce(F.floor(F.col("position") / share), F.lit(0))
    kind = id_type(rows, asked).simpleString()
    waits = F.col("__waits").cast(f"array<{kind}>").alias("waits_for")
    kept = [F.col(quote(name)) for name in rows.columns]
    if asked.partition_by:
        spread = joined.repartition(tasks, *(quote(name) for name in asked.partition_by), bucket)
        ordered = spread.sortWithinPartitions(*(quote(name) for name in asked.partition_by), "position")
    else:
        numbered = joined.withColumn("__bucket", F.least(bucket, F.lit(tasks - 1)).cast("int"))
        ordered = numbered.repartitionById(tasks, "__bucket").sortWithinPartitions("position")
    return ordered.select(*kept, "position", waits)


# What comes of it


def find_missing(ordered: DataFrame, asked: ByCauses) -> DataFrame:
    """(partition columns, the identifier, direct, waiting): how many rows name it, and how many wait for it."""
    names = [quote(name) for name in asked.partition_by]
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
    names = [quote(name) for name in asked.partition_by]
    bad = ordered.where("position is null").groupBy(*names)
    cycle = F.first("waits_for").cast("array<string>")
    told = bad.agg(F.count(F.lit(1)).alias("rows"), cycle.alias("__cycle"))
    reason = F.concat(
        F.lit("the causes form a cycle: "),
        F.array_join(F.concat("__cycle", F.slice("__cycle", 1, 1)), " -> "),
    )
    return told.where("rows > 0").select(*names, "rows", reason.alias("reason"))
