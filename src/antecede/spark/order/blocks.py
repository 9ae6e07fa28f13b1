"""Large partitions that name their causes, ordered in blocks of time: no task holds a whole partition.

The key of an event is the greatest of its own time and its causes' keys. Keys are cut into *blocks*, each with as many
rows as a task orders. What decides the place of an event inside its block is inside that block, too: a cause in an
earlier block has a smaller key than all of the block. So three things are found before blocks are ordered side by side:

block      The block of an event is that of its own time, unless a cause is in a later one: then it is that. One join
           finds such events; most often they are few, near the ends of blocks. Their effects may have to move too:
           that is looked for as long as anything moves, and reads the causes of all rows each time.
cycles     A cycle lies in one block, and needs a cause whose time is not before its effect's. If there are such
           causes, each block is walked once, to find the cycle that refuses the partition.
missing    The same join finds causes that are nowhere. What waits for them may be in any later block: blocks tell
           each other what the events that are named across their ends wait for, until nothing new is told. A block is
           walked again only if it was told something.

The driver holds the bounds and sizes of blocks. What limits it: events of one time in one partition are in one block,
which has to fit into a task. Where times say little about causes, many events move, and blocks tell each other much.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

from antecede.errors import BadTrace
from antecede.jit import kernels_for
from antecede.spark.errors import mark_errors, raise_task_errors
from antecede.spark.frames import ByCauses, event_columns, id_type, list_causes, name_events, read_time, unite
from antecede.spark.order.graph import Outside, flatten_causes, follow_causes, order_table
from antecede.spark.run_tasks import one_array

__all__ = ["find_partition_cycles", "order_blocks"]

MISSING, BACK, TIED = range(3)
ROW, OUTSIDE, EXPORT = range(3)
"""What a row of a block is: an event, a cause outside and what it waits for, an event that others ask about."""
Cycle = tuple[int, list[str]]
"""A partition, and identifiers: each is a cause of the next."""
EVENT: Final = ["__part", "__name"]
CAUSE: Final = ["__part", "__cause"]
"""By what events, and the causes that they name, are joined."""
EXACT: Final = 1000
"""How exact the quantiles are that cut blocks: a block has at most a tenth of a percent of all rows more."""
FEW: Final = 500_000
"""Events that every task may be told of."""
NO_NAMES: Final = "cast(array() as array<string>)"
"""An empty list. Spark takes quadratic time to hand a column of null lists to Python."""
SURVEYED: Final = pa.schema(
    {"__part": pa.int32(), "__what": pa.int32(), "__node": pa.string(), "__names": pa.list_(pa.string())}
)


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
        moved, links, copies = find_moves(slim)
        slim = move_events(slim, moved)
        counts = {row["__block"]: row["count"] for row in slim.groupBy("__block").count().collect()}
        kinds = {row["kind"] for row in links.select("kind").distinct().collect()}
        outside: DataFrame | None = None
        cycles: list[Cycle] = []
        if kinds or copies:
            outside, cycles = survey(slim, links if MISSING in kinds else None, len(blocks.bounds))
    located = rows.withColumn("__block", blocks.locate(F.col("__part"), put_first(rows, time)))
    if moved is not None:
        located = move_events(located.withColumn("__name", name), moved).drop("__name")
    return finish(located, rows, asked, blocks, counts, outside, cycles)


def find_partition_cycles(slim: DataFrame, sizes: Sequence[int], full: int) -> list[Cycle]:
    """One cycle of each partition that has some. `__time` may be any order that is near that of the causes."""
    located, blocks = locate_events(slim, sizes, full)
    moved, *_ = find_moves(located)
    return survey(move_events(located, moved), None, len(blocks.bounds))[1]


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


# Which events move


def find_moves(slim: DataFrame) -> tuple[DataFrame | None, DataFrame, bool]:
    """Events that move, and to which block; causes that are missing, in later blocks, or tied; are there copies?"""
    events = slim.groupBy(*EVENT).agg(
        F.min("__time").alias("__first"),
        F.min("__block").alias("__low"),
        F.max("__block").alias("__high"),
        F.count(F.lit(1)).alias("__rows"),
    )
    events = events.persist(StorageLevel.DISK_ONLY)
    try:
        copies = events.where("__rows > 1").select(*EVENT, F.col("__low").alias("__to"), "__high")
        copies = copies.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)
        doubled = not copies.isEmpty()
        moved = copies.where("__to != __high").drop("__high") if doubled else None
        if moved is not None and moved.isEmpty():
            moved = None
        edges = list_edges(move_events(slim, moved))
        both = edges.join(name_causes(events), CAUSE, "left")
        kind = (
            F.when(F.col("__first").isNull(), MISSING)
            .when(F.col("__low") > F.col("__block"), BACK)
            .when(F.col("__first") >= F.col("__time"), TIED)
        )
        told = both.select(*EVENT, "__cause", F.col("__low").alias("__to"), kind.alias("kind"))
        links = told.where("kind is not null").localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)
    finally:
        events.unpersist()
    back = links.where(F.col("kind") == BACK).groupBy(*EVENT).agg(F.max("__to").alias("__to"))
    return raise_blocks(slim, moved, back), links, doubled


def list_edges(slim: DataFrame) -> DataFrame:
    return slim.select(*EVENT, "__block", "__time", F.explode("__causes").alias("__cause"))


def name_causes(events: DataFrame) -> DataFrame:
    """Events as causes that others name."""
    return events.withColumnRenamed("__name", "__cause")


def raise_blocks(slim: DataFrame, moved: DataFrame | None, found: DataFrame) -> DataFrame | None:
    """Events that move, and those that move because of them."""
    while True:
        found = found.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)
        if found.isEmpty():
            return moved
        if moved is not None:
            both = moved.unionByName(found).groupBy(*EVENT).agg(F.max("__to").alias("__to"))
            moved = both.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)
        else:
            moved = found
        causes = tell_all(name_causes(found).withColumnRenamed("__to", "__then"))
        further = list_edges(move_events(slim, moved)).join(causes, CAUSE)
        found = further.where("__then > __block").groupBy(*EVENT).agg(F.max("__then").alias("__to"))


def tell_all(events: DataFrame) -> DataFrame:
    return F.broadcast(events) if events.count() <= FEW else events


def move_events(rows: DataFrame, moved: DataFrame | None) -> DataFrame:
    """The rows with their blocks, those of events that move with the new one."""
    if moved is None:
        return rows
    joined = rows.join(tell_all(moved), EVENT, "left")
    return joined.withColumn("__block", F.coalesce("__to", "__block")).drop("__to")


# Cycles, and what waits


def survey(slim: DataFrame, links: DataFrame | None, many: int) -> tuple[DataFrame | None, list[Cycle]]:
    """What events wait for that blocks know only from outside, and the cycles: (part, identifiers)."""
    of_rows, none = ("__part", "__block", f"{ROW} __what"), f"{NO_NAMES} __names"
    base = slim.selectExpr(*of_rows, "__name __node", "__causes", none)
    if links is None:
        # Numbers are compared faster than texts, which only a cycle needs.
        hashed = "xxhash64(__name) __node", "transform(__causes, name -> xxhash64(name)) __causes", none
        cyclic = collect_cycles(survey_blocks(slim.selectExpr(*of_rows, *hashed), many))
        return None, cyclic and collect_cycles(survey_blocks(base, many))
    names = ["__part", "__block", "__node"]
    edges = slim.selectExpr("__part", "__block", "explode(__causes) __cause").distinct()
    missing = links.where(F.col("kind") == MISSING).select(*CAUSE).distinct()
    # By the blocks of the rows that name them, which may have moved.
    lost = edges.join(missing, CAUSE, "left_semi")
    told = lost.selectExpr("__part", "__block", "__cause __node", "array(__cause) __names").localCheckpoint()
    homes = slim.selectExpr("__part", "__name __cause", "__block __home").distinct()
    across = edges.join(homes, ["__part", "__cause"]).where("__home < __block").localCheckpoint()
    exports = across.selectExpr("__part", "__home __block", f"{EXPORT} __what", "__cause __node").distinct()
    base = base.persist(StorageLevel.DISK_ONLY)
    try:
        concerned = list(range(many))
        cycles: list[Cycle] | None = None
        while True:
            given = told.withColumn("__what", F.lit(OUTSIDE))
            asked = [part.where(F.col("__block").isin(*concerned)) for part in (base, given, exports)]
            both = unite(asked)
            found = survey_blocks(both, many).localCheckpoint()
            cycles = collect_cycles(found) if cycles is None else cycles
            waiting = found.where(F.col("__what") == EXPORT).selectExpr("__part", "__node __cause", "__names")
            # What comes to a block: the event by its name there, and what it waits for.
            news = across.join(waiting, ["__part", "__cause"])
            news = news.selectExpr("__part", "__block", "__cause __node", "__names")
            fresh = news.join(told, [*names, "__names"], "left_anti").localCheckpoint()
            concerned = [row["__block"] for row in fresh.select("__block").distinct().collect()]
            if not concerned:
                return told, cycles
            kept = told.join(fresh.select(*names), names, "left_anti")
            told = kept.unionByName(fresh).localCheckpoint()
    finally:
        base.unpersist()


def collect_cycles(found: DataFrame) -> list[Cycle]:
    """One cycle of each partition that has some."""
    told = found.where(F.col("__what") == ROW).groupBy("__part").agg(F.min("__names").alias("__names"))
    return [(row["__part"], row["__names"]) for row in told.collect()]


def survey_blocks(rows: DataFrame, many: int) -> DataFrame:
    """Rows (part, ROW, cycle), and (part, EXPORT, node, what it waits for)."""
    spread = rows.repartitionById(many, "__block")
    return spread.mapInArrow(mark_errors(survey_batches), from_arrow_schema(SURVEYED))


def survey_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    held = [batch for batch in batches if len(batch)]
    if not held:
        return
    table = pa.Table.from_batches(held).combine_chunks()
    own = table.filter(pc.equal(table["__what"], ROW))
    with kernels_for(len(own)):
        found = list(survey_table(own, *split_outside(table, table["__node"].type)))
    part = table["__part"][0].as_py()
    rows = [
        {"__part": part, "__what": what, "__node": node, "__names": [*map(str, names)]}
        for what, node, names in found
    ]
    yield from pa.Table.from_pylist(rows, SURVEYED).to_batches()


def split_outside(table: pa.Table, kind: pa.DataType) -> tuple[Outside, pa.Array]:
    """What is told to a block, and the events that others ask about."""
    told, asked = (table.filter(pc.equal(table["__what"], what)) for what in (OUTSIDE, EXPORT))
    return Outside.of(one_array(told["__node"]), one_array(told["__names"]), kind), one_array(asked["__node"])


def survey_table(
    table: pa.Table, outside: Outside, exports: pa.Array
) -> Iterator[tuple[int, str | None, list[str]]]:
    ids = one_array(table["__node"])
    causes, effect = flatten_causes(table["__causes"])
    if len(outside.causes):
        causes, effect = outside.replace_causes(ids, causes, effect)
    # If nothing waits outside, all that is not here is in earlier blocks.
    inside = not len(outside.causes)
    events = follow_causes(np.zeros(len(table), np.int64), ids, causes, effect, known_outside=inside)
    if events.cycles:
        yield ROW, None, events.cycles[0]
    if len(exports):
        asked = pc.index_in(exports, events.names).drop_null().to_numpy().astype(np.int64)
        asked = asked[events.held[asked] > 0]
        for number, waits in zip(asked.tolist(), events.list_waits(asked).to_pylist(), strict=True):
            yield EXPORT, events.names[number].as_py(), sorted(waits)


# The order


def finish(
    located: DataFrame,
    rows: DataFrame,
    asked: ByCauses,
    blocks: Blocks,
    counts: dict[int, int],
    outside: DataFrame | None,
    cycles: list[Cycle],
) -> DataFrame:
    """Order the blocks side by side; partitions with a cycle are refused."""
    kind, columns = id_type(rows, asked), [name for name in rows.columns if name != "__part"]
    refused = [part for part, _ in cycles]
    starts, before, part = {}, 0, -1
    for block, (own, _) in enumerate(blocks.bounds):
        before = 0 if own != part else before
        starts[block], part = (before, counts.get(block, 0)), own
        before += counts.get(block, 0)
    good = located.where(~F.col("__part").isin(*refused)) if refused else located
    if outside is not None:
        good = good.withColumns({"__what": F.lit(ROW), "__names": F.expr(NO_NAMES)})
        good = good.unionByName(outside.withColumn("__what", F.lit(OUTSIDE)), allowMissingColumns=True)
    fields = [StructField("position", LongType()), StructField("waits_for", ArrayType(kind))]
    schema = StructType([*(rows.schema[name] for name in columns), *fields])
    task = partial(order_block, columns=columns, starts=starts)
    spread = good.repartitionById(len(blocks.bounds), "__block").withColumns(event_columns(rows, asked))
    done = spread.mapInArrow(mark_errors(task), schema)
    for number, cycle in cycles:
        shown = F.array(*map(F.lit, cycle)).cast(ArrayType(kind))
        bad = rows.where(F.col("__part") == number).select(
            *columns, F.lit(None).cast("long").alias("position"), shown.alias("waits_for")
        )
        done = done.unionByName(bad)
    return done


def order_block(
    batches: Iterable[pa.RecordBatch], columns: list[str], starts: dict[int, tuple[int, int]]
) -> Iterator[pa.RecordBatch]:
    """In a task: the rows of a block, ordered."""
    held = [batch for batch in batches if len(batch)]
    if not held:
        return
    table = own = pa.Table.from_batches(held).combine_chunks()
    outside = Outside.none()
    if "__what" in table.column_names:
        own = table.filter(pc.equal(table["__what"], ROW))
        outside, _ = split_outside(table, table["__id"].type)
    if not len(own):
        return
    start, count = starts[own["__block"][0].as_py()]
    if len(own) != count:
        raise BadTrace(
            "the table", f"it changed while it was ordered: {len(own)} rows are where {count} were counted"
        )
    with kernels_for(len(own)):
        ordered = order_table(own, columns, outside=outside)
    at = ordered.schema.get_field_index("position")
    placed = ordered.set_column(at, "position", pc.add(ordered["position"], start))
    yield from placed.to_batches(max_chunksize=1 << 16)
