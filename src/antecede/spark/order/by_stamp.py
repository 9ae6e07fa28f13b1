"""Packets that carry the stamps of a protocol, in the order in which their receivers would deliver them.

A row is a packet at its receiver, in columns that docs/stream.md explains: `receiver`, `sender`, `number`, the stamp,
and perhaps `label`. Each receiver, in each partition, has an order of its own: its packets go through the protocol's
machine in the order of `time`, or by sender and number where there is no time.

What is missing is given up when all rows are in, so every message has a position: those that wait come after those that
do not, as far as stamps can tell. A packet of the protocol itself (its `number` is null) orders others and has no
position. A row that is no packet of this protocol and these processes is refused, and the others are ordered.

The packets of one receiver in one partition have to fit into a task.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import LongType, StringType, StructField

from antecede.errors import BadParameter
from antecede.spark.frames import ByStamp, join_by, read_time
from antecede.spark.run_tasks import extend_partitions, number_groups, one_array, times_of
from antecede.spark.stream.api import name_packets
from antecede.spark.stream.packets import Settings
from antecede.spark.stream.stamps import OWN
from antecede.spark.stream.status import GAVE_UP

__all__ = ["READ", "TOLD", "explain_refused", "find_missing", "order_rows", "refuse_columns"]

NEEDED: Final = ("receiver", "sender", "number")
READ: Final = (*NEEDED, "label")
TOLD: Final = ("receiver", "sender", "first", "last", "counted")


def order_rows(rows: DataFrame, asked: ByStamp, partitions: int | None = None) -> DataFrame:
    """The rows with `position` and `waits_for`: missing messages, as `gave_up` of a stream has them."""
    return run_machines(rows, asked).drop("__reason")


def refuse_columns(rows: DataFrame, asked: ByStamp) -> None:
    named = [asked.stamp, *NEEDED, *asked.partition_by, *([asked.time] if asked.time else [])]
    lacking = [name for name in dict.fromkeys(named) if rows.columns.count(name) != 1]
    if lacking:
        raise BadParameter(
            "order",
            f"the table needs the columns {', '.join(lacking)}, each once: a row is a packet; it "
            f"has {', '.join(rows.columns)}",
        )


def run_machines(rows: DataFrame, asked: ByStamp) -> DataFrame:
    own = name_packets(rows, asked.stamp)
    if asked.time is not None:
        own["__at"] = read_time(rows, asked.time)
    added = [
        StructField("position", LongType()),
        StructField("waits_for", from_arrow_type(GAVE_UP)),
        StructField("__reason", StringType()),
    ]
    settings = Settings(asked.protocol, asked.processes, asked.parameters)
    work = partial(run_table, settings=settings, names=asked.partition_by)
    return extend_partitions(rows, asked.partition_by, own, work, added)


# In tasks


def run_table(table: pa.Table, columns: list[str], settings: Settings, names: tuple[str, ...]) -> pa.Table:
    """Run the machines of whole partitions, and give the rows back in their order."""
    group = number_groups(table, names)
    # What is left after the first step is given up in the second.
    bucket = replace(settings, patience_ms=1).open(None)
    out, _ = bucket.advance(make_packets(table, group), 0)
    places = [] if bucket.table is None else bucket.table["__place"].to_pylist()
    waits = {places[row]: roots for row, roots in bucket.find_missing().items()}
    rest, _ = bucket.advance(None, 1)
    position = np.full(len(table), -1, np.int64)
    reason: list[str | None] = [None] * len(table)
    for found in (out, rest):
        if found is not None:
            place = found["__place"].to_numpy()
            position[place] = found["position"].fill_null(-1).to_numpy()
            for number, words in zip(place.tolist(), found["reason"].to_pylist(), strict=True):
                reason[number] = words
    order = np.lexsort((np.where(position < 0, np.iinfo(np.int64).max, position), group))
    shown = [waits.get(one, []) for one in order.tolist()]
    ordered = table.select(columns).take(pa.array(order))
    ordered = ordered.append_column("position", pa.array(position[order], mask=position[order] < 0))
    ordered = ordered.append_column("waits_for", pa.array(shown, GAVE_UP))
    return ordered.append_column("__reason", pa.array([reason[one] for one in order.tolist()], pa.string()))


def make_packets(table: pa.Table, group: Any) -> pa.Table:
    """The rows as a bucket takes them, with their places."""
    packets = table.select([name for name in OWN if name in table.column_names])
    if "__at" in table.column_names:
        packets = packets.append_column("__arrival", pa.array(times_of(one_array(table["__at"]))))
    packets = packets.append_column("__group", pa.array(group).cast(pa.string()))
    return packets.append_column("__place", pa.array(np.arange(len(table))))


# What comes of it


def find_missing(ordered: DataFrame, asked: ByStamp) -> DataFrame:
    """(partition columns, sender, first, last, counted, waiting): each missing message, and how many wait for it."""
    names = asked.partition_by
    each = ordered.select(*names, F.explode("waits_for").alias("__root"))
    shown = each.groupBy(*names, "__root").agg(F.count(F.lit(1)).alias("waiting"))
    return shown.select(*names, "__root.*", "waiting")


def explain_refused(ordered: DataFrame, asked: ByStamp) -> DataFrame:
    """(partition columns, rows, reason) of rows that are no packets, those of one reason together."""
    names = asked.partition_by
    bad = ordered.where("position is null and number is not null").select(*names).distinct()
    concerned = join_by(ordered.drop("position", "waits_for"), bad, asked.partition_by, "left_semi")
    told = run_machines(concerned, asked).where("__reason is not null")
    counts = told.groupBy(*names, "__reason").agg(F.count(F.lit(1)).alias("rows"))
    return counts.select(*names, "rows", F.col("__reason").alias("reason"))
