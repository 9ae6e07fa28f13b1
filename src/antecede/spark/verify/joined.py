"""Events of a large partition that name their causes, verified by joins: no task holds a whole partition.

The definitions are those of overtaken.py. If each consumer was handed every cause before its effect, no chain can lead
backwards: one join says so, and that is all for a log that is in order. What is left are pairs (consumer, event) that a
chain goes on from:

late      the consumer was handed the event after an effect of it
unseen    the consumer was never handed the event, which links an effect to its causes

From each of them, with its first effect and the chain to it, the causes are looked up, as long as they are late or
unseen too. A cause that the consumer was handed in time ends the chain: what comes late before it shows in its own
edge. So there are as many rounds as the longest such chain has events, each a join of what is left with the causes.

A cycle needs a cause that was not handed over strictly before its effect: only then it is looked for (order/blocks.py).
After some rounds (`ROUNDS`) a task is given the whole partition after all.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from antecede.spark.order.blocks import find_partition_cycles
from antecede.spark.verify.overtaken import CHAIN_MOST

__all__ = ["ROUNDS", "Joined", "TooDeep", "count_rows", "verify_joined"]

ROUNDS: Final = 64
PAIR: Final = ["__part", "__consumer", "__id"]
EVENT: Final = ["__part", "__id"]


class TooDeep(Exception):
    """A chain of more events than there are rounds."""


class Joined(NamedTuple):
    """What was found, by the number of the partition. `kept` are tables to give back."""

    findings: DataFrame
    """__part, kind, consumer, id, by, chain, reason"""
    counts: DataFrame
    """__part, judged, ties, violations, missing, duplicates: rows for those of which there is something."""
    cycles: list[tuple[int, list[str]]]
    kept: list[DataFrame]


def verify_joined(slim: DataFrame, sizes: list[int], full: int, rounds: int) -> Joined:
    """`slim` has __part, __id, __causes, __consumer and __at: nulls only where nobody was handed the event."""
    # Both the edges and what was handed over are kept by event: one exchange.
    together = slim.repartition(*EVENT)
    edges = together.select(*EVENT, F.explode("__causes").alias("__cause")).distinct()
    pairs = together.where("__consumer is not null").groupBy(*PAIR)
    handed = pairs.agg(F.min("__at").alias("__at"), F.count(F.lit(1)).alias("__times"))
    kept = [table.persist(StorageLevel.DISK_ONLY) for table in (edges, handed)]
    places = handed.select(
        "__part", "__consumer", F.col("__id").alias("__cause"), F.col("__at").alias("__own")
    )
    asked = handed.join(edges, EVENT).select(
        "__part", "__consumer", "__cause", "__id", F.col("__at").alias("__first")
    )
    links = asked.join(places, ["__part", "__consumer", "__cause"], "left")
    kept.append(links.persist(StorageLevel.DISK_ONLY))
    [state] = links.agg(
        F.count_if(F.col("__own").isNull() | (F.col("__own") > F.col("__first"))).alias("open"),
        F.count_if(F.col("__own") == F.col("__first")).alias("tied"),
    ).collect()
    silent = not slim.where("__consumer is null").isEmpty()
    looked = links.where("__own is not null").select(
        "__part", "__consumer", F.col("__cause").alias("__id"), "__first", "__own"
    )
    found = [list_duplicates(handed)]
    cycles: list[tuple[int, list[str]]] = []
    if state["open"] or state["tied"] or silent:
        cycles = look_for_cycles(slim, sizes, full)
        found.append(list_missing(edges, slim))
    if state["open"]:
        late, more = follow(links, edges, places, rounds)
        found.append(late)
        kept.append(more)
        looked = looked.unionByName(more)
    judged = looked.groupBy(*PAIR).agg(F.min("__first").alias("__first"), F.min("__own").alias("__own"))
    findings = found[0]
    for table in found[1:]:
        findings = findings.unionByName(table)
    return Joined(findings, count_found(judged, findings), cycles, kept)


def look_for_cycles(slim: DataFrame, sizes: list[int], full: int) -> list[tuple[int, list[str]]]:
    """Positions are times here: any order will do that is near that of the causes."""
    rows = slim.select(
        "__part",
        F.col("__id").cast("string").alias("__name"),
        F.col("__causes").cast("array<string>").alias("__causes"),
        F.col("__at").alias("__time"),
    )
    return find_partition_cycles(rows, sizes, full)


def follow(links: DataFrame, edges: DataFrame, places: DataFrame, rounds: int) -> tuple[DataFrame, DataFrame]:
    """Follow chains of causes that are late or unseen: the violations, and all causes that were looked up and found."""
    keys = ["__part", "__consumer", "__cause"]
    came = links.withColumn("__by", F.col("__id")).withColumn("__chain", F.array("__cause", "__id"))
    best: DataFrame | None = None
    seen: list[DataFrame] = []
    for _ in range(rounds):
        still = F.col("__own").isNull() | (F.col("__own") > F.col("__first"))
        about = F.struct(
            "__first", F.xxhash64("__by").alias("mark"), F.size("__chain").alias("hops"),
            F.xxhash64("__id").alias("through"), "__by", "__chain", "__own",
        )  # fmt: skip
        fresh = came.where(still).groupBy(*keys).agg(F.min(about).alias("__best"))
        if best is not None:
            known = best.withColumnRenamed("__best", "__known")
            fresh = fresh.join(known, keys, "left").where(
                F.col("__known").isNull() | (F.struct("__best.__first", "__best.mark", "__best.hops")
                < F.struct("__known.__first", "__known.mark", "__known.hops"))
            ).drop("__known")  # fmt: skip
        fresh = fresh.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)
        if fresh.isEmpty():
            assert best is not None
            return list_late(best), union_all(seen, links)
        if best is None:
            best = fresh
        else:
            both = best.unionByName(fresh).groupBy(*keys).agg(F.min("__best").alias("__best"))
            best = both.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)
        behind = fresh.select("__part", "__consumer", F.col("__cause").alias("__id"), "__best.*")
        behind = behind.drop("__own").join(edges, EVENT)
        came = behind.withColumn("__chain", cut_chain(F.concat(F.array("__cause"), "__chain")))
        came = came.join(places, keys, "left").localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)
        seen.append(
            came.where("__own is not null").select(
                "__part", "__consumer", F.col("__cause").alias("__id"), "__first", "__own"
            )
        )
    raise TooDeep


def union_all(tables: list[DataFrame], like: DataFrame) -> DataFrame:
    whole = like.where(F.lit(False)).select("__part", "__consumer", "__id", "__first", "__own")
    for table in tables:
        whole = whole.unionByName(table)
    return whole


def cut_chain(chain: Column) -> Column:
    """A long chain with a null for what is left out."""
    short = F.concat(
        F.slice(chain, 1, CHAIN_MOST - 2), F.array(F.lit(None)), F.array(F.element_at(chain, -1))
    )
    return F.when(F.size(chain) > CHAIN_MOST, short).otherwise(chain)


def list_late(best: DataFrame) -> DataFrame:
    return best.where("__best.__own is not null").select(
        "__part",
        F.lit("violation").alias("kind"),
        F.col("__consumer").alias("consumer"),
        F.col("__cause").alias("id"),
        F.col("__best.__by").alias("by"),
        F.col("__best.__chain").alias("chain"),
        F.lit(None).cast("string").alias("reason"),
    )


def list_duplicates(handed: DataFrame) -> DataFrame:
    times = F.concat(F.lit("handed over "), F.format_number("__times", 0), F.lit(" times"))
    return handed.where("__times > 1").select(
        "__part",
        F.lit("duplicate").alias("kind"),
        F.col("__consumer").alias("consumer"),
        F.col("__id").alias("id"),
        null_like(handed, "__id").alias("by"),
        F.when(F.lit(False), F.array("__id")).alias("chain"),
        times.alias("reason"),
    )


def null_like(table: DataFrame, name: str) -> Column:
    return F.lit(None).cast(table.schema[name].dataType)


def list_missing(edges: DataFrame, slim: DataFrame) -> DataFrame:
    there = slim.select("__part", F.col("__id").alias("__cause")).distinct()
    lost = edges.join(there, ["__part", "__cause"], "left_anti").groupBy("__part", "__cause")
    sample = F.min(F.struct(F.xxhash64("__id").alias("mark"), "__id"))
    told = lost.agg(F.count(F.lit(1)).alias("__times"), sample.alias("__sample"))
    many = F.when(F.col("__times") == 1, " event").otherwise(" events")
    consumer = null_like(slim, "__consumer")
    return told.select(
        "__part",
        F.lit("missing").alias("kind"),
        consumer.alias("consumer"),
        F.col("__cause").alias("id"),
        F.col("__sample.__id").alias("by"),
        F.array("__cause", "__sample.__id").alias("chain"),
        F.concat(F.lit("named by "), F.format_number("__times", 0), many).alias("reason"),
    )


def count_rows(slim: DataFrame) -> DataFrame:
    """For each partition: rows, events, causes, handed."""
    events = slim.groupBy(*EVENT).agg(
        F.count(F.lit(1)).alias("rows"),
        F.sum(F.size("__causes")).alias("causes"),
        F.count("__consumer").alias("handed"),
    )
    sums: list[Any] = [F.sum(name).alias(name) for name in ("rows", "causes", "handed")]
    # An event without an identifier is none; a partition with such is refused.
    return events.groupBy("__part").agg(*sums, F.count("__id").alias("events"))


def count_found(judged: DataFrame, findings: DataFrame) -> DataFrame:
    """For each partition of which anything was judged or found: judged, ties, and a count of each kind."""
    pairs = judged.groupBy("__part").agg(
        F.count(F.lit(1)).alias("judged"), F.count_if(F.col("__first") == F.col("__own")).alias("ties")
    )
    kinds = findings.groupBy("__part").agg(
        *(
            F.count_if(F.col("kind") == kind).alias(name)
            for kind, name in (
                ("violation", "violations"),
                ("missing", "missing"),
                ("duplicate", "duplicates"),
            )
        )
    )
    return pairs.join(kinds, "__part", "full")
