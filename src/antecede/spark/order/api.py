"""Events and messages in causal order, what is missing among them, and what waits for it.

order           a trace: by its clocks, or by computed ones where it has none
order_stamped   a table of messages or events that carry vectors

Both are one distributed sort, because a number grows along happened-before: the clock of an event, or the sum of the
entries of a vector (if i precedes j, no entry of i's vector is larger than j's, and one is smaller). What ties is
concurrent, and goes by the names of processes. So the order needs no state, and is the same whatever the partitions
are.

What is missing. In a trace: the send of a message that is delivered. Among vectors: entry i counts the events of
process i, so each number from 1 to the largest that anybody refers to should be there.

What waits. Everything that happened after something that is missing, directly or not. A vector shows it by itself: it
waits if it counts a number that is missing. In a trace it is what lies outside of the greatest consistent cut before
the deliveries whose sends are missing (`antecede.spark.order.cuts`). What waits is ordered with the rest: the column
`waits` tells.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from antecede.spark.errors import raise_task_errors
from antecede.spark.order.cuts import consistent, edges, lines_of
from antecede.spark.order.gaps import survey, unsent
from antecede.spark.order.lamport import with_clock
from antecede.spark.order.position import positioned
from antecede.spark.storage import absolute, all_whole, escaped, join
from antecede.spark.trace.api import Trace

__all__ = ["Ordered", "order"]

KEYS: Final = (["run"], "clock", ["process", "index"])
"""What tells runs apart, what rows are sorted by, and what decides between equals."""


@dataclass(frozen=True)
class Ordered:
    """What `order` gives. The rows are sorted when they are used."""

    rows: DataFrame
    """The rows in order, with `position` (0, 1, 2, ... in each group) and `waits`."""
    missing: DataFrame
    """What they refer to and is not among them."""
    by: str
    """What they are ordered by: `clock`, `computed clock` or `vector`."""
    group: tuple[str, ...] = ("run",)
    """The columns that tell one set of rows from another."""
    kept: tuple[DataFrame, ...] = ()
    """What is persisted for it."""

    @property
    def waiting(self) -> DataFrame:
        """The rows that happened after something that is missing."""
        return self.rows.where("waits")

    def write(self, path: str | os.PathLike[str]) -> Ordered:
        """Write `ordered` and `missing` as Parquet into a directory, both or nothing, and give what is there.

        The names of the files of `ordered` sort in the order of the rows.
        """
        root = absolute(path)
        with (
            raise_task_errors(),
            all_whole([join(root, "ordered"), join(root, "missing")]) as [rows, missing],
        ):
            self.rows.write.parquet(rows)
            self.missing.write.parquet(missing)
        spark, schemas = self.rows.sparkSession, (self.rows.schema, self.missing.schema)
        read = [
            spark.read.schema(schema).parquet(escaped(join(root, name)))
            for name, schema in zip(("ordered", "missing"), schemas, strict=True)
        ]
        return replace(self, rows=read[0], missing=read[1], kept=())

    def counts(self) -> DataFrame:
        """For each group its `rows`, how many predecessors are `missing`, and how many rows are `waiting`."""
        groups = list(self.group)
        many = F.col("last") - F.col("first") + 1 if "first" in self.missing.columns else F.lit(1)
        rows = self.rows.groupBy(*groups).agg(
            F.count(F.lit(1)).alias("rows"), F.count_if(F.col("waits")).alias("waiting")
        )
        missing = self.missing.groupBy(*groups).agg(F.sum(many).alias("missing"))
        both = rows.join(missing, groups, "left") if groups else rows.crossJoin(missing)
        absent = F.coalesce("missing", F.lit(0)).alias("missing")
        told = both.select(*groups, "rows", absent, "waiting")
        return told.orderBy(*groups) if groups else told

    def release(self) -> None:
        """Give back the memory and the disk. The tables cost more from then on."""
        for table in self.kept:
            table.unpersist()


def order(trace: Trace, *, partitions: int | None = None) -> Ordered:
    """The events of a trace in causal order.

    `rows` has the columns of the trace, `position` and `waits`; `missing` has (run, sender, number): messages that are
    delivered and not sent. Events that cannot be a trace are a `BadTrace`.

    This reads a few columns at once, to count. If clocks are missing, it computes them and keeps them on disk, until
    `release`.
    """
    with raise_task_errors():
        runs = survey(trace.events)
        timed = with_clock(trace, surveyed=runs)
        computed = timed is not trace
        if computed:
            # In Python, from all rows: the sort would do it three times, to count, to cut and to place.
            timed.events.persist(StorageLevel.DISK_ONLY)
        concerned, missing = unsent(timed.events)
        rows = marked(timed.events, concerned, missing) if len(concerned) else timed.events
        # Computed clocks are known when they are computed.
        known = None if computed else runs.rename_columns(["run", "__rows", "__low", "__high", "lacking"])
        found = positioned(rows, *KEYS, partitions=partitions, known=known)
    by, kept = ("computed clock", (timed.events,)) if computed else ("clock", ())
    return Ordered(shown(found, trace), missing, by, kept=kept)


def shown(rows: DataFrame, trace: Trace) -> DataFrame:
    # After the sort: a constant need not be shuffled.
    marks = rows if "waits" in rows.columns else rows.withColumn("waits", F.lit(False))
    return marks.select(*trace.events.columns, "position", "waits")


def marked(events: DataFrame, runs: pa.Table, missing: DataFrame) -> DataFrame:
    """The events, with whether each waits. `runs` are those in which something is missing."""
    spark = events.sparkSession
    concerned = events.join(F.broadcast(spark.createDataFrame(runs)), "run", "left_semi")
    lines = waiting_from(concerned, missing)
    known = F.broadcast(spark.createDataFrame(lines))
    waits = F.coalesce(F.col("index") >= F.col("__from"), F.lit(False))
    return events.join(known, ["run", "process"], "left").withColumn("waits", waits).drop("__from")


def waiting_from(events: DataFrame, missing: DataFrame) -> pa.Table:
    """For each process the first index that waits: (run, process, __from)."""
    orphans = events.where("kind = 'deliver' and not control").join(
        missing, ["run", "sender", "number"], "left_semi"
    )
    firsts = orphans.groupBy("run", "process").agg(F.min("index").alias("first"))
    counts = events.groupBy("run", "process").agg(F.count(F.lit(1)).alias("rows"))
    found = counts.join(firsts, ["run", "process"], "left").toArrow()
    lines = lines_of(found)
    # lines_of sorts: the same sort keeps the two side by side.
    found = found.sort_by([("run", "ascending"), ("process", "ascending")])
    first = found["first"].fill_null(np.iinfo(np.int64).max).to_numpy()
    cuts = np.minimum(first, found["rows"].to_numpy())[:, None]
    links = edges(events, lines)
    # Read once for each round.
    links.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        cuts = consistent(links, cuts)
    finally:
        links.unpersist()
    return lines.select(["run", "process"]).append_column("__from", pa.array(cuts[:, 0]))
