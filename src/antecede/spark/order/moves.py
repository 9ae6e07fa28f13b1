"""Which block of a large partition each event is in, and which partitions have a cycle.

A block (blocks.py) should have the events whose keys are in its bounds. The key of an event is the greatest of its own
time and its causes' keys; so its block is that of its own time, unless a cause is in a later one.

survey     Identifiers, causes and times are brought to the blocks of their times. A task follows the causes inside its
           block. It tells a cycle, if there is one; *links*, which are causes that the block does not have; and the
           events near both ends of the block, in the order of their keys, with their causes.
look-up    One more pass over all rows finds the events that links name. If times say something about causes, these are
           few. The same pass finds copies of an event in two blocks, by hashes that tasks have told and compared: such
           copies belong to the earlier block, and blocks are surveyed again.
moves      An event with a cause in a later block moves there, and so do its effects. Their keys are no smaller than its
           own: all that moves is near the end of its block.
cycles     A cycle through several blocks ends up in the last of them. What it has there from the beginning comes before
           a cause that an earlier block names: it is near the beginning.

A block of which more is needed than what is near its ends is surveyed again, and tells all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from antecede.jit import kernels_for
from antecede.spark.errors import mark_errors
from antecede.spark.frames import unite
from antecede.spark.order.graph import flatten_causes, follow_causes
from antecede.spark.run_tasks import Numbers, find_starts, one_array, times_of

__all__ = ["CAUSE", "NO_NAMES", "Cycle", "Plan", "keep", "map_blocks", "move_events", "plan_blocks"]

COUNT, CYCLE, LINK, FIRST, LAST, EDGE, HASHES = range(7)
"""What a survey tells of a block: its rows, a cycle, causes that it does not have, the events near its beginning and
its end (`__number` rows have each), the causes of both in the block, and hashes of identifiers."""
Cycle = tuple[int, list[str]]
"""A partition, and identifiers: each is a cause of the next."""
EVENT: Final = ["__part", "__name"]
CAUSE: Final = ["__part", "__cause"]
"""By what events, and the causes that they name, are joined."""
ENDS: Final = 128
"""Of so many events of a block, one is near its beginning and one near its end."""
BUCKET: Final = 16
"""Hashes of so many full blocks are compared by one task."""
FEW: Final = 500_000
"""Events that every task may be told of."""
NO_NAMES: Final = "cast(array() as array<string>)"
"""An empty list. Spark takes quadratic time to hand a column of null lists to Python."""
SURVEYED: Final = pa.schema(
    {
        "__part": pa.int32(),
        "__block": pa.int32(),
        "__what": pa.int32(),
        "__name": pa.string(),
        "__cause": pa.string(),
        "__number": pa.int64(),
        "__names": pa.list_(pa.string()),
        "__hashes": pa.binary(),
    }
)


class Plan(Struct, frozen=True):
    """What blocks have to agree on before they are ordered side by side."""

    slim: DataFrame
    """The events (part, name, causes, time, block), in the blocks of their keys."""
    moved: DataFrame | None
    """Those whose block is not that of their row's time: (part, name, to)."""
    counts: dict[int, int]
    """Rows of each block."""
    edges: DataFrame
    """(part, name, block, cause, home): the causes in other blocks, or nowhere, and some others."""
    cycles: list[Cycle]


def plan_blocks(slim: DataFrame, many: int, rows: int, full: int) -> Plan:
    """Survey the events in the blocks of their own times, and find which of them move."""
    buckets, copies = -(-rows // (BUCKET * max(1, full))), None
    while True:
        seen = keep(survey_blocks(slim, many, buckets))
        doubled = find_doubled(seen, buckets)
        seen = keep(seen.where(F.col("__what") != HASHES))
        homes = look_up(slim, seen, doubled)
        apart = homes.where("low != high").selectExpr("__part", "__cause __name", "low __to")
        if apart.isEmpty():
            break
        # Copies of an event belong to the earliest block that has one. Once they are there, none are apart.
        copies, slim = apart, move_events(slim, apart)
    edges, moved, seen = find_moves(slim, seen, homes, many)
    told = select_kinds(seen, COUNT, CYCLE).collect()
    counts = {row["__block"]: row["__number"] for row in told if row["__what"] == COUNT}
    cycles = [(row["__part"], row["__names"]) for row in told if row["__what"] == CYCLE]
    if moved is not None:
        edges = keep(move_ends(edges, moved))
        cycles += find_cycles_across(edges, moved, many)
        for row in count_moved(seen, moved).collect():
            counts[row["__block"]] -= row["rows"]
            counts[row["__to"]] = counts.get(row["__to"], 0) + row["rows"]
        slim = move_events(slim, moved)
    both = [table for table in (copies, moved) if table is not None]
    latest = unite(both).groupBy(*EVENT).agg(F.max("__to").alias("__to")) if both else None
    # One of each partition: always the same.
    least = {part: min(ids for own, ids in cycles if own == part) for part, _ in cycles}
    return Plan(slim, latest, counts, edges, list(least.items()))


def survey_blocks(slim: DataFrame, many: int, buckets: int) -> DataFrame:
    """What tasks tell of each block (`SURVEYED`). Without buckets, they tell all events, and no hashes."""
    hashed, work = {"__hash": F.xxhash64(*EVENT)}, partial(survey_block, buckets=buckets)
    return map_blocks(slim, many, work, from_arrow_schema(SURVEYED), hashed)


def map_blocks(
    rows: DataFrame,
    many: int,
    work: Callable[[pa.Table], Iterable[pa.Table]],
    schema: StructType | str,
    own: Mapping[str, Column] | None = None,
) -> DataFrame:
    """What `work` makes of each block, which a task holds, with columns that need not be exchanged."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if held := [batch for batch in batches if len(batch)]:
            table = pa.Table.from_batches(held).combine_chunks()
            with kernels_for(len(table)):
                for done in work(table):
                    yield from done.to_batches(max_chunksize=1 << 16)

    return (
        rows.repartitionById(many, "__block")
        .withColumns(dict(own or {}))
        .mapInArrow(mark_errors(run), schema)
    )


def keep(table: DataFrame) -> DataFrame:
    """The table, computed once."""
    return table.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)


def select_kinds(seen: DataFrame, *kinds: int) -> DataFrame:
    return seen.where(F.col("__what").isin(*kinds))


def find_doubled(seen: DataFrame, buckets: int) -> DataFrame:
    """Hashes of identifiers that more than one block has."""
    hashes = select_kinds(seen, HASHES).select("__number", "__hashes")
    spread = hashes.repartitionById(buckets, F.col("__number").cast("int"))
    return spread.mapInArrow(list_doubled, "hash long")


def look_up(slim: DataFrame, seen: DataFrame, doubled: DataFrame) -> DataFrame:
    """(part, cause, low, high): the blocks of the events that links name, and of those with a doubled hash."""
    links = select_kinds(seen, LINK).select(F.xxhash64(*CAUSE).alias("hash"))
    wanted = keep(links.unionByName(doubled).distinct())
    found = slim.withColumn("hash", F.xxhash64(*EVENT)).join(tell_all(wanted), "hash", "left_semi")
    blocks = F.min("__block").alias("low"), F.max("__block").alias("high")
    return keep(found.groupBy("__part", F.col("__name").alias("__cause")).agg(*blocks))


def find_moves(
    slim: DataFrame, seen: DataFrame, homes: DataFrame, many: int
) -> tuple[DataFrame, DataFrame | None, DataFrame]:
    """The edges, the events that move, and what was surveyed: anew, where too little was told."""
    ends = ["__part", "__name", "__block", "__cause"]
    places = homes.select("__part", "__cause", F.col("low").alias("home"))
    links = keep(select_kinds(seen, LINK).select(*ends).join(places, CAUSE, "left"))
    while True:
        inside = select_kinds(seen, EDGE).select(*ends).withColumn("home", F.col("__block"))
        edges, moved = links.unionByName(inside), raise_blocks(links, inside, many)
        if moved is None:
            return edges, None, seen
        last, first = (select_kinds(seen, kind).select(*EVENT) for kind in (LAST, FIRST))
        early = moved.join(last, EVENT, "left_anti").select("__block")
        named = links.where("home > __block").selectExpr("__part", "__cause __name", "home __block")
        late = named.join(first, EVENT, "left_anti").select("__block")
        blocks = [row["__block"] for row in early.unionByName(late).distinct().collect()]
        if not blocks:
            return edges, moved, seen
        own = F.col("__block").isin(*blocks)
        seen = keep(seen.where(~own).unionByName(survey_blocks(slim.where(own), many, 0)))


def raise_blocks(links: DataFrame, inside: DataFrame, many: int) -> DataFrame | None:
    """Events (part, name, block) that move because of a cause in a later block, and to which.

    Blocks tell each other to which blocks causes have moved, until nothing new is told. Inside a block, the number of
    the block climbs from causes to effects as a time does.
    """
    event, told = [*EVENT, "__block"], F.max("__to").alias("__to")
    back = links.where("home > __block").selectExpr("__part", "__cause __name", "__block", "home __to")
    fresh, moved = keep(back.distinct()), None
    known = fresh
    rows = links.select(*event, "__cause").unionByName(inside.select(*event, "__cause"))
    rows = rows.select(*event, F.array("__cause").alias("__causes"), F.lit(None).cast("int").alias("__to"))
    while concerned := [row["__block"] for row in fresh.select("__block").distinct().collect()]:
        given = fresh.select(*event, F.expr(f"{NO_NAMES} __causes"), "__to")
        both = rows.where(F.col("__block").isin(concerned)).unionByName(given)
        found = map_blocks(both, many, climb_blocks, "__part int, __name string, __block int, __to int")
        moved = found if moved is None else moved.unionByName(found)
        moved = keep(moved.groupBy(*event).agg(told))
        causes = tell_all(moved.select("__part", F.col("__name").alias("__cause"), "__to"))
        news = links.select("__part", "__block", "__cause").join(causes, CAUSE).where("__to > __block")
        news = news.selectExpr("__part", "__cause __name", "__block", "__to").distinct()
        fresh = keep(news.join(known, [*event, "__to"], "left_anti"))
        known = keep(known.unionByName(fresh))
    return moved


def tell_all(events: DataFrame) -> DataFrame:
    return F.broadcast(events) if events.count() <= FEW else events


def move_events(rows: DataFrame, moved: DataFrame | None) -> DataFrame:
    """The rows with their blocks, those of events that move with the new one."""
    if moved is None:
        return rows
    joined = rows.join(tell_all(moved.select(*EVENT, "__to")), EVENT, "left")
    return joined.withColumn("__block", F.coalesce("__to", "__block")).drop("__to")


def move_ends(edges: DataFrame, moved: DataFrame) -> DataFrame:
    """The edges with the new blocks of effects and of causes."""
    causes = tell_all(moved.select("__part", F.col("__name").alias("__cause"), F.col("__to").alias("then")))
    joined = move_events(edges, moved).join(causes, CAUSE, "left")
    return joined.withColumn("home", F.coalesce("then", "home")).drop("then")


def count_moved(seen: DataFrame, moved: DataFrame) -> DataFrame:
    """(block, to, rows): how many rows leave a block for another."""
    joined = select_kinds(seen, LAST).select(*EVENT, "__number").join(moved, EVENT)
    return joined.groupBy("__block", "__to").agg(F.sum("__number").alias("rows"))


# Cycles


def find_cycles_across(edges: DataFrame, moved: DataFrame, many: int) -> list[Cycle]:
    """Cycles through blocks are in the one to which their events move, and among the edges that are known."""
    targets = [row["__to"] for row in moved.select("__to").distinct().collect()]
    some = edges.where(F.col("__block").isin(*targets) & F.col("home").eqNullSafe(F.col("__block")))
    time = F.lit(0).cast("long").alias("__time")
    rows = some.select(*EVENT, F.array("__cause").alias("__causes"), time, "__block")
    found = select_kinds(survey_blocks(rows, many, 0), CYCLE)
    return [(row["__part"], row["__names"]) for row in found.collect()]


# In tasks


def survey_block(table: pa.Table, buckets: int) -> Iterator[pa.Table]:
    """Its cycle, its links, the events near its ends with their causes, and hashes of all identifiers."""
    own = {name: table[name][0] for name in ("__part", "__block")}
    for what, columns in list_told(table, buckets):
        rows = len(next(iter(columns.values())))
        same = own | {"__what": pa.scalar(what, pa.int32())}
        columns |= {name: pa.repeat(value, rows) for name, value in same.items()}
        arrays = [columns.get(field.name, pa.nulls(rows, field.type)) for field in SURVEYED]
        yield pa.Table.from_arrays(arrays, schema=SURVEYED)


def list_told(table: pa.Table, buckets: int) -> Iterator[tuple[int, dict[str, pa.Array]]]:
    causes, row = flatten_causes(table["__causes"])
    time, group = times_of(one_array(table["__time"])), np.zeros(len(table), np.int64)
    events = follow_causes(group, one_array(table["__name"]), causes, row, time, known_outside=True)
    yield COUNT, {"__number": pa.array([len(table)], pa.int64())}
    if events.cycles:
        yield CYCLE, {"__names": pa.array([events.cycles[0]], pa.list_(pa.string()))}

    def name(numbers: Numbers) -> pa.Array:
        return events.names.take(pa.array(numbers))

    here = events.present[events.cause]
    yield LINK, {"__name": name(events.effect[~here]), "__cause": name(events.cause[~here])}
    keys = np.sort(events.key[events.present])
    few = len(keys) // ENDS if buckets else len(keys) - 1
    first = events.present & (events.key <= keys[few])
    last = events.present & (events.key >= keys[-1 - few])
    copies = np.bincount(events.node, minlength=len(events.names))
    for what, chosen in ((FIRST, first), (LAST, last)):
        some = np.flatnonzero(chosen)
        yield what, {"__name": name(some), "__number": pa.array(copies[some])}
    near = here & (first | last)[events.effect]
    yield EDGE, {"__name": name(events.effect[near]), "__cause": name(events.cause[near])}
    if buckets:
        # Sorting is a hundred times faster than `np.unique`, which has a hash table of its own.
        hashes = np.sort(table["__hash"].to_numpy())
        hashes = hashes[find_starts(hashes)]
        parts = np.split(hashes, np.searchsorted(hashes, bounds_of(buckets)))
        blobs = pa.array([part.tobytes() for part in parts], pa.binary())
        yield HASHES, {"__number": pa.array(range(buckets), pa.int64()), "__hashes": blobs}


def climb_blocks(table: pa.Table) -> Iterator[pa.Table]:
    """The events of a block that move, of edges and of what is told of causes outside."""
    block = table["__block"][0].as_py()
    causes, row = flatten_causes(table["__causes"])
    to = table["__to"].fill_null(block).to_numpy().astype(np.int64)
    group = np.zeros(len(table), np.int64)
    events = follow_causes(group, one_array(table["__name"]), causes, row, to, known_outside=True)
    inside = np.zeros(len(events.names), np.bool_)
    inside[events.effect] = True
    some = np.flatnonzero(inside & (events.key > block))
    columns = {name: pa.repeat(table[name][0], len(some)) for name in ("__part", "__block")}
    columns["__name"] = events.names.take(pa.array(some))
    columns["__to"] = pa.array(events.key[some].astype(np.int32))
    yield pa.table(columns).select([*EVENT, "__block", "__to"])


def bounds_of(buckets: int) -> Numbers:
    """Where the hashes of a bucket begin, but for the first."""
    return np.array([(place << 64) // buckets - (1 << 63) for place in range(1, buckets)], np.int64)


def list_doubled(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Hashes that are there twice: a block has each of its own once."""
    blobs = [blob.as_buffer() for batch in batches for blob in batch.column("__hashes")]
    hashes = np.sort(
        np.concatenate([np.zeros(0, np.int64), *(np.frombuffer(blob, np.int64) for blob in blobs)])
    )
    doubled = np.flatnonzero(hashes[1:] == hashes[:-1])
    table = pa.table({"hash": hashes[doubled[find_starts(hashes[doubled])]]})
    yield from table.to_batches(max_chunksize=1 << 16)
