"""Events of a large partition that name their causes, verified by joins: no task holds a whole partition.

The definitions are those of tasks.py. If each consumer was handed every cause before its effect, no chain can lead
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

from collections.abc import Mapping
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from antecede.spark.frames import unite
from antecede.spark.order.blocks import find_partition_cycles
from antecede.spark.run_tasks import Large
from antecede.spark.verify.tasks import CHAIN_MOST, COUNTS, UNNAMED, UNPLACED, describe_cycle, describe_rows

__all__ = ["ROUNDS", "TooDeep", "judge_joined"]

ROUNDS: Final = 64
PAIR: Final = ["__part", "__consumer", "__id"]
EVENT: Final = ["__part", "__id"]


class TooDeep(Exception):
    """A chain of more events than there are rounds."""


def judge_joined(
    large: Large, slim: DataFrame, schema: StructType, full: int, rounds: int
) -> tuple[DataFrame, list[DataFrame]]:
    """The findings and counts of large partitions, in these columns; and tables to give back.

    `slim` has __part, __id, __causes, __consumer and __at. A partition with nulls where there may be none is refused.
    """
    reasons: dict[int, list[str]] = {}
    faults = slim.groupBy("__part").agg(
        F.count_if(F.col("__id").isNull()).alias("unnamed"),
        F.count_if(F.col("__consumer").isNotNull() & F.col("__at").isNull()).alias("unplaced"),
    )
    for part, *rows in faults.collect():
        for count, words in zip(rows, (UNNAMED, UNPLACED), strict=True):
            if count:
                reasons.setdefault(part, []).append(describe_rows(count, words))
    named = slim.where(F.col("__part").isin(*reasons) & F.col("__id").isNotNull())
    cycles = look_for_cycles(named, large.sizes, full) if reasons else []

    good = keep_parts(slim, reasons)
    # Both the edges and what was handed over are kept by event: one exchange.
    together = good.repartition(*EVENT)
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
    looked = list_found(links)
    found = [list_duplicates(handed)]
    if state["open"] or state["tied"] or not good.where("__consumer is null").isEmpty():
        cycles += look_for_cycles(good, large.sizes, full)
        found.append(list_missing(edges, good))
    if state["open"]:
        late, looked = follow(links, edges, places, rounds)
        found.append(late)
    for part, ids in cycles:
        reasons.setdefault(part, []).append(describe_cycle(ids))
    findings = unite(found)
    spark = slim.sparkSession
    told = spark.createDataFrame(
        [(part, "; ".join(words)) for part, words in reasons.items()], "__part int, reason string"
    )
    counts = count_rows(slim).join(count_found(looked, findings), "__part", "left")
    unsure = F.col("reason").isNotNull()
    partitions = counts.join(F.broadcast(told), "__part", "left").select(
        "__part",
        F.lit("partition").alias("kind"),
        "reason",
        *COUNTS[: COUNTS.index("judged")],
        # What was not judged has no counts of what was found.
        *(
            F.when(~unsure, F.coalesce(name, F.lit(0))).alias(name)
            for name in COUNTS[COUNTS.index("judged") :]
        ),
    )
    refused = told.withColumn("kind", F.lit("refused"))
    both = unite([keep_parts(findings, reasons), refused, partitions]).join(
        F.broadcast(large.names), "__part"
    )
    blank = spark.createDataFrame([], schema)
    return unite([blank, both.drop("__part")]), kept


def keep_parts(rows: DataFrame, others: Mapping[int, object]) -> DataFrame:
    return rows.where(~F.col("__part").isin(*others)) if others else rows


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
    seen = [list_found(links)]
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
            return list_late(best), unite(seen)
        if best is None:
            best = fresh
        else:
            both = best.unionByName(fresh).groupBy(*keys).agg(F.min("__best").alias("__best"))
            best = both.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)
        behind = fresh.select("__part", "__consumer", F.col("__cause").alias("__id"), "__best.*")
        behind = behind.drop("__own").join(edges, EVENT)
        came = behind.withColumn("__chain", cut_chain(F.concat(F.array("__cause"), "__chain")))
        came = came.join(places, keys, "left").localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)
        seen.append(list_found(came))
    raise TooDeep


def list_found(causes: DataFrame) -> DataFrame:
    """Causes that were looked up, of those that their consumer was handed."""
    return causes.where("__own is not null").selectExpr(
        "__part", "__consumer", "__cause __id", "__first", "__own"
    )


def cut_chain(chain: Column) -> Column:
    """A long chain with a null for what is left out."""
    short = F.concat(
        F.slice(chain, 1, CHAIN_MOST - 2), F.array(F.lit(None)), F.array(F.element_at(chain, -1))
    )
    return F.when(F.size(chain) > CHAIN_MOST, short).otherwise(chain)


def list_late(best: DataFrame) -> DataFrame:
    return best.where("__best.__own is not null").selectExpr(
        "__part",
        "'violation' kind",
        "__consumer consumer",
        "__cause id",
        "__best.__by by",
        "__best.__chain chain",
    )


def list_duplicates(handed: DataFrame) -> DataFrame:
    return handed.where("__times > 1").selectExpr(
        "__part",
        "'duplicate' kind",
        "__consumer consumer",
        "__id id",
        "concat('handed over ', format_number(__times, 0), ' times') reason",
    )


def list_missing(edges: DataFrame, slim: DataFrame) -> DataFrame:
    there = slim.select("__part", F.col("__id").alias("__cause")).distinct()
    lost = edges.join(there, ["__part", "__cause"], "left_anti").groupBy("__part", "__cause")
    sample = F.min(F.struct(F.xxhash64("__id").alias("mark"), "__id"))
    return lost.agg(F.count(F.lit(1)).alias("__times"), sample.alias("__sample")).selectExpr(
        "__part",
        "'missing' kind",
        "__cause id",
        "__sample.__id by",
        "array(__cause, __sample.__id) chain",
        "concat('named by ', format_number(__times, 0), if(__times = 1, ' event', ' events')) reason",
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


def count_found(looked: DataFrame, findings: DataFrame) -> DataFrame:
    """For each partition of which anything was judged or found: judged, ties, and a count of each kind."""
    judged = looked.groupBy(*PAIR).agg(F.min("__first").alias("__first"), F.min("__own").alias("__own"))
    pairs = judged.groupBy("__part").agg(
        F.count(F.lit(1)).alias("judged"), F.count_if(F.col("__first") == F.col("__own")).alias("ties")
    )
    named = {"violation": "violations", "missing": "missing", "duplicate": "duplicates"}
    kinds = [F.count_if(F.col("kind") == kind).alias(name) for kind, name in named.items()]
    return pairs.join(findings.groupBy("__part").agg(*kinds), "__part", "full")
