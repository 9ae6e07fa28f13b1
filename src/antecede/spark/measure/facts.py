"""What Spark SQL counts: the events of a trace as facts, and facts as figures.

A *fact* says: of this run, this process and (for delays) this sender, so many values of a quantity lie in this bucket,
with their sum, least and greatest. Facts of any parts add up, so one function, `add_up`, makes the figures of a run, of
a process, of a channel and of all runs of a protocol.

    quantity        of which values, and at which process
    send ...        time_ns of the events of a kind, without a bucket; `control send` and so on are the protocol's own
    stamp_entries   of each message sent (stamp_bytes alike)
    delay_ns        of each copy of a message, at its receiver: without a bucket if the copy was not delivered
    wait_ns         of each copy that was delivered and whose arrival is known
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from antecede.spark.measure.histogram import bucket, middle
from antecede.spark.measure.schema import QUANTITIES

__all__ = ["add_up", "count_facts"]

KEYS: Final = ("run", "process", "sender", "quantity", "bucket")
FACT: Final = (*KEYS, "count", "total", "least", "greatest")
PERCENTS: Final = (50, 99)


def count_facts(events: DataFrame) -> DataFrame:
    """The facts of all events, in two passes over them: one that counts, one that follows each copy of a message."""
    return count_events(events).unionByName(time_copies(events))


def count_events(events: DataFrame) -> DataFrame:
    sent = "kind = 'send' and not control"
    stamps = events.withColumns(
        {name: F.expr(f"if({sent}, cast({name} as long), null)") for name in ("stamp_entries", "stamp_bytes")}
    )
    counted = stamps.groupBy(
        "run",
        "process",
        F.expr("if(control, concat('control ', kind), kind)").alias("kind"),
        bucket("stamp_entries").alias("entries"),
        bucket("stamp_bytes").alias("bytes"),
    ).agg(
        F.count(F.lit(1)).alias("count"),
        *(
            aggregate(name).alias(f"{name}_{aggregate.__name__}")
            for name in ("time_ns", "stamp_entries", "stamp_bytes")
            for aggregate in (F.min, F.max, F.sum)
            if (name, aggregate) != ("time_ns", F.sum)
        ),
    )

    def fact(quantity: str, bucket: str, total: str, name: str) -> str:
        return (
            f"struct({quantity} as quantity, {bucket} as bucket, count, cast({total} as decimal(38, 0)) as total, "
            f"{name}_min as least, {name}_max as greatest)"
        )

    facts = ", ".join(
        (
            fact("kind", "cast(null as int)", "0", "time_ns"),
            fact("'stamp_entries'", "entries", "stamp_entries_sum", "stamp_entries"),
            fact("'stamp_bytes'", "bytes", "stamp_bytes_sum", "stamp_bytes"),
        )
    )
    told = counted.select(
        "run", "process", F.lit(None).cast("string").alias("sender"), F.inline(F.expr(f"array({facts})"))
    )
    return told.where("bucket is not null or quantity not in ('stamp_entries', 'stamp_bytes')").select(*FACT)


def time_copies(events: DataFrame) -> DataFrame:
    """Sends, receives and deliveries of a copy meet by its identity and receiver; the first of each counts."""
    times = [
        F.expr(f"if(kind = '{kind}', time_ns, null)").alias(kind) for kind in ("send", "receive", "deliver")
    ]
    copies = (
        events.where("not control")
        .select(
            "run",
            "sender",
            "number",
            F.explode(F.expr("if(kind = 'send', array_distinct(to), array(process))")).alias("process"),
            *times,
        )
        .groupBy("run", "sender", "number", "process")
        .agg(*(F.min(kind).alias(kind) for kind in ("send", "receive", "deliver")))
        # What was not addressed to a process has no delay.
        .where("send is not null")
        # A process's own copy is there as soon as it is sent. A receive after the delivery tells nothing of waiting.
        .withColumn("arrival", F.expr("if(sender = process, send, if(receive <= deliver, receive, null))"))
    )
    values = copies.select(
        "run",
        "process",
        F.inline(
            F.expr(
                "array(struct(sender, 'delay_ns' as quantity, try_subtract(deliver, send) as value), "
                "struct(cast(null as string) as sender, 'wait_ns' as quantity, deliver - arrival as value))"
            )
        ),
    )
    # A sum of nanoseconds may not fit into 64 bits: its halves do.
    halves = F.sum(F.shiftright("value", 32)), F.sum(F.expr("value & 4294967295L"))
    return (
        values.where("value is not null or quantity = 'delay_ns'")
        .groupBy("run", "process", "sender", "quantity", bucket("value").alias("bucket"))
        .agg(
            F.count(F.lit(1)).alias("count"),
            halves[0].alias("upper"),
            halves[1].alias("lower"),
            F.min("value").alias("least"),
            F.max("value").alias("greatest"),
        )
        .withColumn(
            "total", F.expr("cast(upper * cast(4294967296 as decimal(18, 0)) + lower as decimal(38, 0))")
        )
        .select(*FACT)
    )


def add_up(facts: DataFrame, *keys: str) -> DataFrame:
    """The figures of each key: counts, the distribution of each quantity, `wait_share`, `duration_ns`.

    `facts` has a column `received` beside those of `FACT`: whether the run tells when messages arrived.
    """
    cells = facts.groupBy(*keys, "quantity", "bucket").agg(
        F.sum("count").alias("count"),
        F.sum("total").alias("total"),
        F.sum(F.when(F.col("received"), F.col("total"))).alias("total_received"),
        F.min("least").alias("least"),
        F.max("greatest").alias("greatest"),
    )
    every = Window.partitionBy(*keys, "quantity", F.isnull("bucket"))
    below = every.orderBy("bucket").rowsBetween(Window.unboundedPreceding, 0)
    ranked = cells.withColumns(
        {
            "until": F.sum("count").over(below),
            "size": F.sum("count").over(every),
            "middle": middle(),
        }
    )
    at = F.col("quantity").isin("send", "receive", "deliver") | F.col("quantity").startswith("control ")
    return ranked.groupBy(*keys).agg(
        total("count", at).alias("events"),
        total("count", F.col("quantity") == "send").alias("sends"),
        total("count", F.col("quantity") == "delay_ns").alias("copies"),
        total("count", F.col("quantity") == "deliver").alias("deliveries"),
        total("count", (F.col("quantity") == "delay_ns") & F.col("bucket").isNotNull()).alias("delivered"),
        total("count", F.col("quantity") == "control send").alias("control_packets"),
        *(column for quantity in QUANTITIES for column in spread_of(quantity)),
        share(
            F.sum(F.when(F.col("quantity") == "wait_ns", F.col("total"))).cast("double"),
            F.sum(F.when(F.col("quantity") == "delay_ns", F.col("total_received"))).cast("double"),
        ).alias("wait_share"),
        (F.max(F.when(at, F.col("greatest"))) - F.min(F.when(at, F.col("least")))).alias("duration_ns"),
    )


def spread_of(quantity: str) -> list[Column]:
    """Mean, quantiles and greatest of a quantity; null where there are no values."""
    own = (F.col("quantity") == quantity) & F.col("bucket").isNotNull()
    greatest = F.max(F.when(own, F.col("greatest")))
    total, count = F.sum(F.when(own, F.col("total"))), F.sum(F.when(own, F.col("count")))
    # The first bucket up to which there are so many percent of the values.
    ranks = {
        percent: F.min(F.when(own & (F.col("until") * 100 >= F.col("size") * percent), F.col("middle")))
        for percent in PERCENTS
    }
    return [
        (total.cast("double") / count).alias(f"{quantity}_mean"),
        *(F.least(found, greatest).alias(f"{quantity}_p{percent}") for percent, found in ranks.items()),
        greatest.alias(f"{quantity}_max"),
    ]


def total(column: str, where: Column) -> Column:
    return F.coalesce(F.sum(F.when(where, F.col(column))), F.lit(0))


def share(part: Column, whole: Column) -> Column:
    """Null where the whole is nothing."""
    return F.when(whole != 0, part / whole)
