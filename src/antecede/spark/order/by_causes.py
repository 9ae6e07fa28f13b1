"""Rows that name their causes, in causal order: `id`, and `causes` (one identifier, a list of them, or null).

Partitions are ordered each for itself: a cause is looked for in the row's own partition. Two ways, and each partition
goes by the one that fits it:

small    up to `FULL` rows. Rows are brought together by partition, and a task orders many partitions, one after the
         other, with all their columns: one exchange, no sort of names.
large    A task gets the identifiers, causes and times of a whole partition, and no other column, and finds the place
         of each identifier. Then a join brings the places to the rows, and a sort by place finishes. So a partition is
         limited by one task's memory: about 150 bytes and the identifier's own length for each row. The driver
         holds nothing but the names of the large partitions.

A partition in which an identifier is its own ancestor is refused: its rows have no `position`, and `waits_for` has the
cycle. The others are not concerned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from antecede.errors import BadParameter, BadTrace
from antecede.spark.errors import mark_errors, raise_marked
from antecede.spark.frames import quote, to_nanoseconds
from antecede.spark.order.graph import NEVER, Numbers, sort_events
from antecede.spark.order.lamport import whole_pieces

__all__ = ["ByCauses", "count_missing", "explain_refused", "order_by_causes"]

FULL: Final = 1_000_000
"""Rows of a partition that one task orders with all their columns."""
TOGETHER: Final = 1 << 16
"""Rows of small partitions that are ordered in one call."""
WHOLE: Final = (LongType, IntegerType, ShortType, ByteType)


class ByCauses(Struct, frozen=True):
    """Which columns say what."""

    id: str
    causes: str
    partition_by: tuple[str, ...] = ()
    time: str | None = None
    no_cause: tuple[str, ...] = ("",)
    """Causes of text that mean none."""


def order_by_causes(rows: DataFrame, asked: ByCauses, *, full: int = FULL) -> DataFrame:
    """The rows with `position` and `waits_for`. This counts the rows of partitions at once, to find the large ones."""
    refuse_columns(rows, asked)
    total = rows.count()
    if total <= full:
        return order_small(rows, asked)
    if not asked.partition_by:
        return order_large(rows, asked, total)
    names = [quote(name) for name in asked.partition_by]
    counts = rows.groupBy(*names).agg(F.count(F.lit(1)).alias("__rows")).where(F.col("__rows") > full)
    large = counts.toArrow()
    if not len(large):
        return order_small(rows, asked)
    most = int(pc.sum(large["__rows"]).as_py())
    known = F.broadcast(
        rows.sparkSession.createDataFrame(large.drop_columns(["__rows"]), counts.drop("__rows").schema)
    )
    parts = {how: join_names(rows, known, asked.partition_by, how) for how in ("left_anti", "left_semi")}
    return order_small(parts["left_anti"], asked).unionByName(order_large(parts["left_semi"], asked, most))


def join_names(rows: DataFrame, known: DataFrame, names: Iterable[str], how: str) -> DataFrame:
    """The rows of these partitions, or all others. A null is a name like any other."""
    renamed = known.toDF(*(f"__known{place}" for place, _ in enumerate(known.columns)))
    same = F.lit(True)
    for place, name in enumerate(names):
        same &= F.col(quote(name)).eqNullSafe(F.col(f"__known{place}"))
    return rows.join(renamed, same, how)


# What is asked


def refuse_columns(
    rows: DataFrame,
    asked: ByCauses,
    *,
    owner: str = "order",
    added: tuple[str, ...] = ("position", "waits_for"),
) -> None:
    """Refuse names that are no columns, columns of types that mean nothing, and those that the owner adds."""
    named = {"id": asked.id, "causes": asked.causes, **({"time": asked.time} if asked.time else {})}
    named |= {f"partition_by {place + 1}": name for place, name in enumerate(asked.partition_by)}
    for what, name in named.items():
        if rows.columns.count(name) != 1:
            raise BadParameter(owner, what, name, f"one of the columns {', '.join(rows.columns)}")
    for name in added:
        if name in rows.columns:
            raise BadParameter(
                owner, "table", f"one with a column {name}", f"none of that name: {owner} adds it"
            )
    kind = rows.schema[asked.id].dataType
    cause = rows.schema[asked.causes].dataType
    element = cause.elementType if isinstance(cause, ArrayType) else cause
    if not isinstance(kind, (StringType, *WHOLE)):
        raise BadParameter(owner, "id", f"{asked.id} of type {kind.simpleString()}", "text or integers")
    if isinstance(kind, StringType) != isinstance(element, StringType) or not isinstance(
        element, (StringType, *WHOLE)
    ):
        found = f"{asked.causes} of type {cause.simpleString()} with ids of type {kind.simpleString()}"
        raise BadParameter(owner, "causes", found, "one identifier, or an array of them")
    for name in asked.partition_by:
        if isinstance(rows.schema[name].dataType, (ArrayType, MapType, StructType, VariantType)):
            found = f"{name} of type {rows.schema[name].dataType.simpleString()}"
            raise BadParameter(owner, "partition_by", found, "columns of plain values")


def id_type(rows: DataFrame, asked: ByCauses) -> DataType:
    return StringType() if isinstance(rows.schema[asked.id].dataType, StringType) else LongType()


def list_causes(rows: DataFrame, asked: ByCauses) -> Column:
    """The causes as an array of identifiers, without nulls and without what means none."""
    cause = F.col(quote(asked.causes))
    kind = id_type(rows, asked).simpleString()
    listed = cause if isinstance(rows.schema[asked.causes].dataType, ArrayType) else F.array(cause)
    listed = F.coalesce(listed.cast(f"array<{kind}>"), F.array().cast(f"array<{kind}>"))
    if kind != "string":
        return F.filter(listed, lambda one: one.isNotNull())
    return F.filter(listed, lambda one: one.isNotNull() & ~one.isin(*asked.no_cause))


def read_time(rows: DataFrame, asked: ByCauses) -> Column:
    """Times as integers that compare alike."""
    assert asked.time is not None
    kind = rows.schema[asked.time].dataType
    if isinstance(kind, (DoubleType, FloatType)):
        return F.col(quote(asked.time)).cast("double")
    return to_nanoseconds(asked.time, kind.simpleString())


# Small partitions


def order_small(rows: DataFrame, asked: ByCauses) -> DataFrame:
    """Order partitions that fit into a task with all their columns."""
    names = [quote(name) for name in asked.partition_by]
    added = {"__hash": F.xxhash64(*names) if names else F.lit(0).cast("long")}
    if asked.time is not None:
        added["__time"] = read_time(rows, asked)
    spread = rows.withColumns(added)
    spread = spread.repartition("__hash").sortWithinPartitions("__hash") if names else spread.repartition(1)
    kind = id_type(rows, asked)
    fields = [StructField("position", LongType()), StructField("waits_for", ArrayType(kind))]
    task = partial(order_batches, asked=asked, columns=rows.columns)
    return spread.mapInArrow(mark_errors(task), StructType([*rows.schema.fields, *fields]))


def order_batches(
    batches: Iterable[pa.RecordBatch], asked: ByCauses, columns: list[str]
) -> Iterator[pa.RecordBatch]:
    """In a task: the rows of whole partitions, ordered."""
    for table in whole_pieces(iter(batches), ("__hash",), TOGETHER):
        yield from order_table(table, asked, columns).to_batches(max_chunksize=1 << 16)


def order_table(table: pa.Table, asked: ByCauses, columns: list[str], text: bool = True) -> pa.Table:
    """Order a table that holds partitions from end to end."""
    table = table.combine_chunks()
    ids = one_array(widen(table[asked.id]))
    causes, effect = flatten_causes(widen(table[asked.causes]), asked)
    time = times_of(one_array(table["__time"])) if "__time" in table.column_names else None
    found = sort_events(number_groups(table, asked.partition_by), ids, causes, effect, time, text)
    ordered = table.select(columns).take(pa.array(found.rows))
    return ordered.append_column("position", found.position).append_column("waits_for", found.waits_for)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def widen(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Integers of any width as those of 64 bits."""
    if pa.types.is_list(column.type) and pa.types.is_integer(column.type.value_type):
        return column.cast(pa.list_(pa.int64()))
    return column.cast(pa.int64()) if pa.types.is_integer(column.type) else column


def flatten_causes(column: pa.ChunkedArray, asked: ByCauses) -> tuple[pa.Array, Numbers]:
    """All causes, and the rows that name them."""
    array = one_array(column)
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        effect, causes = pc.list_parent_indices(array).to_numpy(), array.flatten()
    else:
        effect, causes = np.arange(len(array)), array
    meant = pc.is_valid(causes)
    if pa.types.is_string(causes.type) and asked.no_cause:
        meant = pc.and_(meant, pc.invert(pc.is_in(causes, pa.array(asked.no_cause, causes.type))))
    if causes.null_count == 0 and pc.all(meant).as_py():
        return causes, effect.astype(np.int64)
    return causes.filter(meant), effect[meant.to_numpy(zero_copy_only=False)].astype(np.int64)


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


# Large partitions


def order_large(rows: DataFrame, asked: ByCauses, total: int) -> DataFrame:
    """Order partitions whose identifiers, causes and times fit into a task, and nothing else has to."""
    names = [quote(name) for name in asked.partition_by]
    keys = [F.col(name).alias(f"__key{place}") for place, name in enumerate(names)]
    kind = id_type(rows, asked)
    causes = list_causes(rows, asked).cast("array<string>")
    time = read_time(rows, asked) if asked.time is not None else F.lit(None).cast("long")
    # Rows without an identifier are one event if nothing tells them apart.
    unnamed = F.concat(F.lit("\0"), F.to_json(F.struct(causes.alias("causes"), time.alias("time"))))
    node = F.coalesce(F.col(quote(asked.id)).cast("string"), unnamed)
    timed = [time.alias("__time")] if asked.time is not None else []
    slim = rows.select(
        *keys,
        (F.xxhash64(*names) if names else F.lit(0).cast("long")).alias("__hash"),
        node.alias("__node"),
        causes.alias("__causes"),
        *timed,
    )
    spread = slim.repartition("__hash").sortWithinPartitions("__hash") if names else slim.repartition(1)
    own = ByCauses(
        "__node", "__causes", tuple(f"__key{place}" for place, _ in enumerate(names)), asked.time, ()
    )
    fields = [rows.schema[name] for name in asked.partition_by]
    schema = StructType(
        [
            *(StructField(f"__key{place}", field.dataType) for place, field in enumerate(fields)),
            StructField("__node", StringType()),
            StructField("__place", LongType()),
            StructField("__waits", ArrayType(StringType())),
        ]
    )
    task = partial(place_batches, asked=own, columns=schema.names[:-2], text=isinstance(kind, StringType))
    places = spread.mapInArrow(mark_errors(task), schema)
    return sort_by_place(join_places(rows, places, asked, node), rows, asked, total)


def place_batches(
    batches: Iterable[pa.RecordBatch], asked: ByCauses, columns: list[str], text: bool
) -> Iterator[pa.RecordBatch]:
    """In a task: the first position of each identifier of whole partitions, -1 in one that is refused."""
    for table in whole_pieces(iter(batches), ("__hash",), 1):
        ordered = order_table(table, asked, columns, text)
        # Copies of an event stand together: the first has the place of all.
        first = np.ones(len(ordered), np.bool_)
        if len(ordered):
            same = pc.equal(one_array(ordered["__node"])[1:], one_array(ordered["__node"])[:-1])
            first[1:] = ~same.to_numpy(zero_copy_only=False)
            first |= one_array(ordered["position"]).fill_null(1).to_numpy() == 0
        ordered = ordered.filter(pa.array(first))
        place = ordered["position"].fill_null(-1)
        told = ordered.select(columns).append_column("__place", place)
        yield from told.append_column("__waits", ordered["waits_for"]).to_batches(max_chunksize=1 << 16)


def join_places(rows: DataFrame, places: DataFrame, asked: ByCauses, node: Column) -> DataFrame:
    same = F.col("__own") == F.col("__node")
    for place, name in enumerate(asked.partition_by):
        same &= F.col(quote(name)).eqNullSafe(F.col(f"__key{place}"))
    # Both sides are large: Spark need not find out.
    joined = rows.withColumn("__own", node).join(places.hint("merge"), same, "left")
    copies = Window.partitionBy(*(quote(name) for name in asked.partition_by), "__own")
    order = quote(asked.time) if asked.time is not None else "__own"
    copy = F.row_number().over(copies.orderBy(order)) - 1
    changed = BadTrace(
        "table", "rows that were not there when they were counted", "a table that stays as it is"
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


def count_missing(ordered: DataFrame, asked: ByCauses) -> DataFrame:
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
    reason = F.concat(F.lit("a cycle: "), F.array_join(F.concat("__cycle", F.slice("__cycle", 1, 1)), " -> "))
    return told.where("rows > 0").select(*names, "rows", reason.alias("reason"))
