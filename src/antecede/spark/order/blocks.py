"""Large partitions that name their causes, ordered in blocks of time: no task holds a whole partition.

The key of an event is the greatest of its own time and its causes' keys. Keys are cut into *blocks*, each with as many
rows as a task orders. What decides the place of an event inside its block is inside that block, too: a cause in an
earlier block has a smaller key than all of the block. So blocks are ordered side by side, once it is known which events
move to a later block because of a cause there, and which partitions have a cycle (moves.py), and what waits:

missing    What waits for causes that are nowhere may be in any later block: blocks tell each other what the events that
           links name wait for, until nothing new is told. A block is walked again only if it was told something.

The driver holds the bounds and sizes of blocks. What limits it: events of one time in one partition are in one block,
which has to fit into a task. Where times say little about causes, links and moves are many, and blocks tell each other
much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

from antecede.errors import BadTrace
from antecede.spark.errors import raise_task_errors
from antecede.spark.frames import ByCauses, event_columns, id_type, list_causes, name_events, read_time, unite
from antecede.spark.order.graph import Outside, flatten_causes, follow_causes, order_table
from antecede.spark.order.moves import (
    CAUSE,
    NO_NAMES,
    Cycle,
    Plan,
    keep,
    map_blocks,
    move_events,
    plan_blocks,
)
from antecede.spark.run_tasks import one_array

__all__ = ["find_partition_cycles", "order_blocks"]

ROW, OUTSIDE, EXPORT = range(3)
"""What a row of a block is: an event, a cause outside and what it waits for, an event that others ask about."""
EXACT: Final = 1000
"""How exact the quantiles are that cut blocks: a block has at most a tenth of a percent of all rows more."""
TOLD: Final = "__part int, __cause string, __names array<string>"


class Blocks(Struct, frozen=True):
    """The bounds of blocks in order: (partition, time), with no time where a partition begins."""

    bounds: tuple[tuple[int, Any], ...]

    def locate(self, part: Column, time: Column) -> Column:
        """The block of a time: a search in halves, compiled by Spark."""

        def search(low: int, high: int) -> Column:
            if low == high:
                return F.lit(low)
            middle = (low + high + 1) // 2
            own, bound = self.bounds[middle]
            after = part > own
            if bound is None:
                after = part >= own
            else:
                after |= (part == own) & (time >= F.lit(bound))
            return F.when(after, search(middle, high)).otherwise(search(low, middle - 1))

        return search(0, len(self.bounds) - 1)


def order_blocks(rows: DataFrame, asked: ByCauses, sizes: Sequence[int], full: int) -> DataFrame:
    """Order partitions that `__part` numbers, and that have so many rows."""
    assert asked.time is not None
    name, time = name_events(rows, asked), read_time(rows, asked.time)
    causes = list_causes(rows, asked).cast("array<string>")
    slim = rows.select("__part", name.alias("__name"), causes.alias("__causes"), time.alias("__time"))
    with raise_task_errors():
        slim, blocks = locate_events(slim, sizes, full)
        plan = plan_blocks(slim, len(blocks.bounds), sum(sizes), full)
        outside = list_waits(plan, len(blocks.bounds))
    located = rows.withColumn("__block", blocks.locate(F.col("__part"), put_first(rows, time)))
    if plan.moved is not None:
        located = move_events(located.withColumn("__name", name), plan.moved).drop("__name")
    return finish(located, rows, asked, blocks, plan, outside)


def find_partition_cycles(slim: DataFrame, sizes: Sequence[int], full: int) -> list[Cycle]:
    """One cycle of each partition that has some. `__time` may be any order that is near that of the causes."""
    slim, blocks = locate_events(slim, sizes, full)
    return plan_blocks(slim, len(blocks.bounds), sum(sizes), full).cycles


def locate_events(slim: DataFrame, sizes: Sequence[int], full: int) -> tuple[DataFrame, Blocks]:
    """The events (part, name, causes, time) with the blocks of their own times, and these."""
    slim = slim.withColumn("__time", put_first(slim, F.col("__time")))
    blocks = cut_blocks(slim, sizes, full)
    return slim.withColumn("__block", blocks.locate(F.col("__part"), F.col("__time"))), blocks


def put_first(rows: DataFrame, time: Column) -> Column:
    """Times, in which what has none comes first."""
    whole = isinstance(rows.select(time).schema[0].dataType, LongType)
    return F.coalesce(time, F.lit(np.iinfo(np.int64).min if whole else float("-inf")))


def cut_blocks(slim: DataFrame, sizes: Sequence[int], full: int) -> Blocks:
    full = max(1, full)
    most = -(-max(sizes) // full)
    shares = [place / most for place in range(1, most)]
    quantiles = F.percentile_approx("__time", shares or [0.5], EXACT * most).alias("bounds")
    found = {row["__part"]: row["bounds"] for row in slim.groupBy("__part").agg(quantiles).collect()}
    bounds: list[tuple[int, Any]] = []
    for part, size in enumerate(sizes):
        own = -(-size // full)
        # A partition that is left out has no rows.
        chosen = [found[part][round(place * most / own) - 1] for place in range(1, own) if part in found]
        # Where many rows have one time, several quantiles are that time.
        bounds += [(part, None), *((part, bound) for bound in sorted(set(chosen)))]
    return Blocks(tuple(bounds))


# What waits


def list_waits(plan: Plan, many: int) -> DataFrame | None:
    """What events wait for that blocks know only from outside: (part, block, node, names)."""
    names = ["__part", "__block", "__name"]
    lost = plan.edges.where("home is null").selectExpr("__part", "__block", "__cause __name")
    if lost.isEmpty():
        return None
    told = keep(lost.distinct().withColumn("__names", F.array("__name")))
    across = keep(plan.edges.where("home < __block").select(*CAUSE, "__block", "home").distinct())
    asked = across.selectExpr("__part", "home __block", "__cause __name", f"{EXPORT} __what").distinct()
    rows = plan.slim.select(*names, "__causes", F.expr(f"{NO_NAMES} __names"), F.lit(ROW).alias("__what"))
    rows = rows.persist(StorageLevel.DISK_ONLY)
    try:
        fresh = told
        while concerned := [row["__block"] for row in fresh.select("__block").distinct().collect()]:
            given = told.withColumn("__what", F.lit(OUTSIDE))
            some = [part.where(F.col("__block").isin(*concerned)) for part in (rows, given, asked)]
            waiting = map_blocks(unite(some), many, tell_block, TOLD)
            # What comes to a block: the event by its name there, and what it waits for.
            news = across.join(waiting, CAUSE).selectExpr("__part", "__block", "__cause __name", "__names")
            fresh = keep(news.join(told, [*names, "__names"], "left_anti"))
            kept = told.join(fresh.select(*names), names, "left_anti")
            told = keep(kept.unionByName(fresh))
        return told
    finally:
        rows.unpersist()


def tell_block(table: pa.Table) -> Iterator[pa.Table]:
    """Of a block: the events that others ask about, and what they wait for."""
    own = table.filter(pc.equal(table["__what"], ROW))
    asked = one_array(table.filter(pc.equal(table["__what"], EXPORT))["__name"])
    ids, group = one_array(own["__name"]), np.zeros(len(own), np.int64)
    told = read_outside(table, pa.string())
    events = follow_causes(group, ids, *told.replace_causes(ids, *flatten_causes(own["__causes"])))
    some = pc.index_in(asked, events.names).drop_null().to_numpy().astype(np.int64)
    some = some[events.held[some] > 0]
    waits = [sorted(names) for names in events.list_waits(some).to_pylist()]
    columns = {
        "__part": pa.repeat(table["__part"][0], len(some)),
        "__cause": events.names.take(pa.array(some)),
    }
    yield pa.table(columns).append_column("__names", pa.array(waits, pa.list_(pa.string())))


def read_outside(table: pa.Table, kind: pa.DataType) -> Outside:
    """What a block is told of others, which is text, in the type of identifiers."""
    told = table.filter(pc.equal(table["__what"], OUTSIDE))
    return Outside(one_array(told["__name"]).cast(kind), one_array(told["__names"]).cast(pa.list_(kind)))


# The order


def finish(
    located: DataFrame,
    rows: DataFrame,
    asked: ByCauses,
    blocks: Blocks,
    plan: Plan,
    outside: DataFrame | None,
) -> DataFrame:
    """Order the blocks side by side; partitions with a cycle are refused."""
    kind, columns = id_type(rows, asked), [name for name in rows.columns if name != "__part"]
    refused = [part for part, _ in plan.cycles]
    starts, before, part = {}, 0, -1
    for block, (own, _) in enumerate(blocks.bounds):
        before = 0 if own != part else before
        starts[block], part = (before, plan.counts.get(block, 0)), own
        before += plan.counts.get(block, 0)
    good = located.where(~F.col("__part").isin(*refused)) if refused else located
    if outside is not None:
        good = good.withColumns({"__what": F.lit(ROW), "__names": F.expr(NO_NAMES)})
        good = good.unionByName(outside.withColumn("__what", F.lit(OUTSIDE)), allowMissingColumns=True)
    fields = [StructField("position", LongType()), StructField("waits_for", ArrayType(kind))]
    schema = StructType([*(rows.schema[name] for name in columns), *fields])
    task = partial(order_block, columns=columns, starts=starts)
    done = map_blocks(good, len(blocks.bounds), task, schema, event_columns(rows, asked))
    for number, cycle in plan.cycles:
        shown = F.array(*map(F.lit, cycle)).cast(ArrayType(kind))
        bad = rows.where(F.col("__part") == number).select(
            *columns, F.lit(None).cast("long").alias("position"), shown.alias("waits_for")
        )
        done = done.unionByName(bad)
    return done


def order_block(
    table: pa.Table, columns: list[str], starts: dict[int, tuple[int, int]]
) -> Iterator[pa.Table]:
    """In a task: the rows of a block, ordered."""
    own, outside = table, Outside.none()
    if "__what" in table.column_names:
        own = table.filter(pc.equal(table["__what"], ROW))
        outside = read_outside(table, table["__id"].type)
    if not len(own):
        return
    start, count = starts[own["__block"][0].as_py()]
    if len(own) != count:
        raise BadTrace(
            "the table", f"it changed while it was ordered: {len(own)} rows are where {count} were counted"
        )
    ordered = order_table(own, columns, outside=outside)
    at = ordered.schema.get_field_index("position")
    yield ordered.set_column(at, "position", pc.add(ordered["position"], start))
