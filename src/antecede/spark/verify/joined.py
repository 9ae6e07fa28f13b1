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
CAUSE: Final = ["__part", "__consumer", "__cause"]
FAULTS: Final = {"unnamed": UNNAMED, "unplaced": UNPLACED}


class TooDeep(Exception):
    """A chain of more events than there are rounds."""


def judge_joined(
    large: Large, slim: DataFrame, schema: StructType, full: int, rounds: int, kept: list[DataFrame]
) -> DataFrame:
    """The findings and counts of large partitions, in these columns; `kept` gets tables to give back.

    `slim` has __part, __id, __causes, __consumer and __at. A partition with nulls where there may be none is refused.
    """

    def keep(table: DataFrame) -> DataFrame:
        kept.append(table.persist(StorageLevel.DISK_ONLY))
        return table

    # All that follows asks by event: one exchange, and the table is read once.
    together = keep(slim.repartition(*EVENT))
    counts = {row["__part"]: row.asDict() for row in count_rows(together).collect()}
    reasons: dict[int, list[str]] = {}
    for part, row in sorted(counts.items()):
        if faults := [describe_rows(row[name], words) for name, words in FAULTS.items() if row[name]]:
            reasons[part] = faults
    named = together.where(F.col("__part").isin(*reasons) & F.col("__id").isNotNull())
    cycles = look_for_cycles(named, large.sizes, full) if reasons else []
    good = together.where(~F.col("__part").isin(*reasons)) if reasons else together
    edges = keep(good.select(*EVENT, F.explode("__causes").alias("__cause")).distinct())
    pairs = good.where("__consumer is not null").groupBy(*PAIR)
    handed = keep(pairs.agg(F.min("__at").alias("__at"), F.count(F.lit(1)).alias("__times")))
    places = handed.selectExpr("__part", "__consumer", "__id __cause", "__at __own")
    asked = handed.join(edges, EVENT).withColumnRenamed("__at", "__first").drop("__times")
    links = keep(asked.join(places, CAUSE, "left"))
    [state] = links.agg(
        F.count_if(F.col("__own").isNull() | (F.col("__own") > F.col("__first"))).alias("open"),
        F.count_if(F.col("__own") == F.col("__first")).alias("tied"),
    ).collect()
    looked, found = list_found(links), [list_duplicates(handed)]
    if state["open"] or state["tied"] or not good.where("__consumer is null").isEmpty():
        cycles += look_for_cycles(good, large.sizes, full)
        found.append(list_missing(edges, good))
    if state["open"]:
        late, looked = follow(links, edges, places, rounds)
        found.append(late)
    for part, ids in cycles:
        reasons.setdefault(part, []).append(describe_cycle(ids))
    findings = keep(unite(found))
    for told in count_found(looked, findings).collect():
        counts[told["__part"]] |= told.asDict()
    why = {part: "; ".join(words) for part, words in reasons.items()}
    rows: list[tuple[Any, ...]] = [
        (part, "refused", reason, *(None,) * len(COUNTS)) for part, reason in why.items()
    ]
    rows += [
        (part, "partition", why.get(part), *tell_counts(row, part in why)) for part, row in counts.items()
    ]
    spark = slim.sparkSession
    columns = ", ".join(("__part int, kind string, reason string", *(f"{name} long" for name in COUNTS)))
    sound = findings.where(~F.col("__part").isin(*why)) if why else findings
    both = sound.unionByName(spark.createDataFrame(rows, columns), allowMissingColumns=True)
    blank = spark.createDataFrame([], schema)
    return unite([blank, both.join(F.broadcast(large.names), "__part").drop("__part")])


def tell_counts(row: Mapping[str, int | None], refused: bool) -> list[int | None]:
    """The counts of a partition. What was not judged has none of what was found."""
    judged = COUNTS.index("judged")
    return [None if refused and place >= judged else row.get(name) or 0 for place, name in enumerate(COUNTS)]


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
    came = links.withColumns({"__by": F.col("__id"), "__chain": F.array("__cause", "__id")})
    seen, best = [], links.select(*CAUSE, F.lit(None).alias("__best")).limit(0)
    for number in range(rounds):
        # What is no better than what is known stays as it is, with the number of its round.
        about = F.struct(
            "__first", F.xxhash64("__by").alias("mark"), F.size("__chain").alias("hops"), F.lit(number).alias("round"),
            F.xxhash64("__id").alias("through"), "__by", "__chain", "__own",
        )  # fmt: skip
        still = came.where("__own is null or __own > __first").select(*CAUSE, about.alias("__best"))
        both = best.unionByName(still).groupBy(*CAUSE).agg(F.min("__best").alias("__best"))
        seen.append(list_found(came))
        best = both.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)
        fresh = best.where(F.col("__best.round") == number)
        if fresh.isEmpty():
            return list_late(best), unite(seen)
        behind = fresh.select("__part", "__consumer", F.col("__cause").alias("__id"), "__best.*").drop(
            "__own"
        )
        came = behind.join(edges, EVENT).withColumn(
            "__chain", cut_chain(F.concat(F.array("__cause"), "__chain"))
        )
        came = came.join(places, CAUSE, "left").localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)
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
    """For each partition: rows, events, causes, handed, and the rows that have a fault."""
    events = slim.groupBy(*EVENT).agg(
        F.count(F.lit(1)).alias("rows"),
        F.sum(F.size("__causes")).alias("causes"),
        F.count("__consumer").alias("handed"),
        F.count_if(F.col("__consumer").isNotNull() & F.col("__at").isNull()).alias("unplaced"),
    )
    sums = [F.sum(name).alias(name) for name in ("rows", "causes", "handed", "unplaced")]
    unnamed = F.sum(F.when(F.col("__id").isNull(), F.col("rows"))).alias("unnamed")
    # An event without an identifier is none; a partition with such is refused.
    return events.groupBy("__part").agg(*sums, F.count("__id").alias("events"), unnamed)


def count_found(looked: DataFrame, findings: DataFrame) -> DataFrame:
    """For each partition of which anything was judged or found: judged, ties, and a count of each kind."""
    judged = looked.groupBy(*PAIR).agg(F.min("__first").alias("__first"), F.min("__own").alias("__own"))
    pairs = judged.groupBy("__part").agg(
        F.count(F.lit(1)).alias("judged"), F.count_if(F.col("__first") == F.col("__own")).alias("ties")
    )
    named = {"violation": "violations", "missing": "missing", "duplicate": "duplicates"}
    kinds = [F.count_if(F.col("kind") == kind).alias(name) for kind, name in named.items()]
    return pairs.join(findings.groupBy("__part").agg(*kinds), "__part", "full")
