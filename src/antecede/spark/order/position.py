"""A position for each row: 0, 1, 2, ... in each group, by one distributed sort.

Rows are sorted by (group, key, ties). A position is the number of rows before, so it needs a count of what lies in
other partitions: two passes over the keys, then the sort. All that leaves the tasks is a histogram.

1. How many rows does each group have, and what are its least and largest key?
2. The keys of each group are cut into *cells* of equal width, about `CELLS` for each partition's worth of rows. How
   many rows has each cell? A group with one cell needs no second look.
3. Cells in order are dealt to partitions so that each gets about the same number of rows: a giant group is spread
   over many, and many small ones share one. Each row goes to the partition of its cell, and is sorted there. Its
   position is its rank in the partition, plus what the histogram says was before.

Where a row goes depends on its key and on the histogram only, which is part of the plan. So a task that is run again
finds the same rows, and positions do not depend on how the rows were spread before. (Spark's own range partitioning
draws a sample, each time that it is asked.)

If some keys lie far from all others, cells of equal width are too coarse: then they are cut between the quantiles of
`TAILS`, and the first and the last cell take the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

__all__ = ["Cells", "Grid", "deal", "partitions_for", "placed", "positioned"]

CELLS: Final = 64
FULL: Final = 1_000_000
"""Rows of a partition: a sort of so many stays in memory."""
FEW: Final = 50_000
"""Rows that are not worth another task."""
TAILS: Final = (0.005, 0.995)
RANK_BITS: Final = 33
"""Of what Spark gives as a monotonically increasing id: the partition is above, the rank of the row below."""

Numbers = NDArray[np.int64]
Cells = dict[str, Numbers]
"""`__cell` and `__rows`: cells that have rows, and how many."""


@dataclass(frozen=True)
class Grid:
    """The groups, in their order, and how the keys of each are cut into cells."""

    names: pa.Table
    counts: Numbers
    ends: tuple[Numbers, Numbers]
    """The least and the largest key of each group."""
    low: Numbers
    high: Numbers
    width: Numbers

    @classmethod
    def of(cls, groups: pa.Table, names: Sequence[str], partitions: int) -> Grid:
        """Cells in proportion to the rows, each at least one key wide."""
        groups = groups.sort_by([(name, "ascending") for name in names])
        counts, low, high = (
            groups[name].to_numpy().astype(np.int64) for name in ("__rows", "__low", "__high")
        )
        return cls(groups.select(list(names)), counts, (low, high), low, high, low).cut(low, high, partitions)

    def cut(self, low: Numbers, high: Numbers, partitions: int) -> Grid:
        """The same groups, with cells between these keys."""
        most = np.maximum(1, self.counts * (CELLS * partitions) // max(1, int(self.counts.sum())))
        # Two's complement: right even where the difference takes all 64 bits.
        span = high.astype(np.uint64) - low.astype(np.uint64)
        width = (span // most.astype(np.uint64) + np.uint64(1)).astype(np.int64)
        return Grid(self.names, self.counts, self.ends, low, high, np.maximum(width, 1))

    def bases(self) -> Numbers | None:
        """What to add to the keys of each group, so that one number sorts by group and key; None if it would overflow.

        Sorting by a number is much faster than by a name: Spark compares most pairs without looking at the rows.
        """
        least, most = self.ends
        spans = most.astype(float) - least.astype(float) + 1
        if spans.sum() >= 1 << 61 or np.abs(least.astype(float)).max(initial=0) >= 1 << 61:
            return None
        width = most - least + 1
        return np.asarray(np.cumsum(width) - width - least)

    @property
    def many(self) -> NDArray[np.bool_]:
        """Which groups have more than one cell."""
        several: NDArray[np.bool_] = self.high // self.width != self.low // self.width
        return several

    def table(self, of: NDArray[np.bool_] | None = None) -> pa.Table:
        """For the tasks: a row for each of these groups."""
        bases = self.bases()
        columns = {"__group": np.arange(len(self.counts)), "__low": self.low, "__high": self.high}
        columns |= {"__width": self.width, "__base": self.low if bases is None else bases}
        table = self.names.append_column("__many", pa.array(self.many))
        for name, column in columns.items():
            table = table.append_column(name, pa.array(column))
        return table if of is None else table.filter(pa.array(of))


def deal(group: Numbers, count: Numbers, partitions: int) -> tuple[Numbers, Numbers]:
    """For cells in order: the partition of each, and what to add to a rank there to get the position in the group.

    >>> deal(np.array([0, 0, 1]), np.array([2, 2, 2]), 2)
    (array([0, 0, 1]), array([0, 0, 0]))
    >>> deal(np.array([0, 0, 0]), np.array([2, 2, 2]), 3)
    (array([0, 1, 2]), array([0, 2, 4]))
    """
    before = np.cumsum(count) - count
    bucket = np.minimum(before * partitions // max(1, int(count.sum())), partitions - 1)
    return bucket, first_of(bucket, before) - first_of(group, before)


def first_of(label: Numbers, before: Numbers) -> Numbers:
    """For each cell, how many rows are before the first cell of the same label."""
    starts = np.flatnonzero(np.append(True, np.diff(label) != 0))[: len(label)]
    lengths = np.diff(np.append(starts, len(label)))
    return np.repeat(before[starts], lengths)


def partitions_for(rows: int, parallel: int) -> int:
    """As many as keep each sort in memory, and as many as work side by side, if there is work for them."""
    return max(-(-rows // FULL), min(parallel, -(-rows // FEW)), 1)


def placed(
    rows: DataFrame,
    group: Sequence[str],
    key: str,
    ties: Sequence[str],
    grid: Grid,
    cells: Cells,
    partitions: int,
) -> DataFrame:
    """As `positioned`, by who has counted the cells."""
    return sorted_by(keyed_by(rows, key), group, ties, grid, partitions, cells)


def keyed_by(rows: DataFrame, key: str) -> DataFrame:
    return rows.withColumn("__key", F.col(key).cast("long"))


def positioned(
    rows: DataFrame,
    group: Sequence[str],
    key: str,
    ties: Sequence[str],
    *,
    partitions: int | None = None,
    known: pa.Table | None = None,
) -> DataFrame:
    """The rows with `position`, in order: partitions one after the other, and inside each.

    No two rows of a group may be equal in key and ties, and none of these columns may be null. `known` is the result of
    the first pass, if the caller has it: (group..., __rows, __low, __high).
    """
    spark = rows.sparkSession
    keyed = keyed_by(rows, key)
    groups = keyed.groupBy(*group).agg(
        F.count(F.lit(1)).alias("__rows"), F.min("__key").alias("__low"), F.max("__key").alias("__high")
    )
    counted = groups.toArrow() if known is None else known
    total = int(np.sum(counted["__rows"].to_numpy())) if len(counted) else 0
    if not total:
        return rows.withColumn("position", F.lit(None).cast("long"))
    if partitions is None:
        partitions = partitions_for(total, int(spark.conf.get("spark.sql.shuffle.partitions") or 1))
    return sorted_by(keyed, group, ties, Grid.of(counted, group, partitions), partitions)


def sorted_by(
    keyed: DataFrame,
    group: Sequence[str],
    ties: Sequence[str],
    grid: Grid,
    partitions: int,
    cells: Cells | None = None,
) -> DataFrame:
    """The sort itself. `cells` are those of the grid, if they are counted."""
    grid, cells = histogram(keyed, group, grid, partitions, cells)
    order = np.argsort(cells["__cell"])
    numbers, counts = cells["__cell"][order], cells["__rows"][order]
    bucket, shift = deal(numbers >> 32, counts, partitions)
    dealt = keyed.sparkSession.createDataFrame(
        pa.table({"__cell": numbers, "__bucket": bucket.astype(np.int32), "__shift": shift})
    )
    exact = grid.bases() is not None
    line = F.col("__key") + F.col("__base") if exact else F.col("__cell")
    dealt_to = located(keyed, group, grid).join(F.broadcast(dealt), "__cell").withColumn("__line", line)
    # What the shuffle need not carry.
    spread = dealt_to.drop("__cell", "__base", *["__key"] * exact)
    spread = spread.repartitionById(partitions, "__bucket")
    ordered = spread.sortWithinPartitions(*(["__line"] if exact else ["__line", "__key"]), *ties)
    rank = F.monotonically_increasing_id().bitwiseAND(F.lit((1 << RANK_BITS) - 1))
    # A rank counts from the partition's first row: a plan that splits or joins partitions would make it wrong.
    moved = F.raise_error(F.lit("a partition of the sort was split or joined with another"))
    position = F.when(F.spark_partition_id() == F.col("__bucket"), rank + F.col("__shift")).otherwise(moved)
    return ordered.withColumn("position", position.cast("long")).drop(
        "__line", "__key", "__bucket", "__shift"
    )


def located(
    keyed: DataFrame, group: Sequence[str], grid: Grid, of: NDArray[np.bool_] | None = None
) -> DataFrame:
    """The rows of these groups, with their cells."""
    table = grid.table(of)
    if len(grid.counts) == 1:
        # All rows are of one group: no need to look it up for each.
        known = table.drop_columns(list(group)).to_pylist()[0]
        types = {"__many": "boolean"}
        found = keyed.withColumns(
            {name: F.lit(value).cast(types.get(name, "long")) for name, value in known.items()}
        )
    else:
        found = keyed.join(F.broadcast(keyed.sparkSession.createDataFrame(table)), list(group))
    inside = F.greatest(F.least(F.col("__key"), F.col("__high")), F.col("__low"))
    # Quotients, not a quotient of the difference: that may take more than 64 bits.
    number = F.expr("__at div __width - __low div __width")
    found = found.withColumn("__at", inside)
    cell = F.expr("shiftleft(__group, 32)") + F.when(F.col("__many"), number).otherwise(F.lit(0))
    return found.withColumn("__cell", cell).drop("__group", "__low", "__high", "__width", "__many", "__at")


def histogram(
    keyed: DataFrame, group: Sequence[str], grid: Grid, partitions: int, cells: Cells | None = None
) -> tuple[Grid, Cells]:
    """How many rows each cell has, and the grid of these cells: a finer one, if the first was too coarse."""
    cells = counted(keyed, group, grid) if cells is None else cells
    heavy = cells["__rows"] > 2 * grid.counts.sum() // partitions
    coarse = np.zeros(len(grid.counts), bool)
    coarse[(cells["__cell"][heavy] >> 32)] = True
    coarse &= grid.many & (grid.width > 1)
    if partitions == 1 or not coarse.any():
        return grid, cells
    names = grid.names.filter(pa.array(coarse))
    few = F.broadcast(keyed.sparkSession.createDataFrame(names))
    tails = F.percentile_approx("__key", list(TAILS), 1000)
    found = keyed.join(few, list(group)).groupBy(*group).agg(tails.alias("__tails")).toArrow()
    found = found.sort_by([(name, "ascending") for name in group])
    low, high = grid.low.copy(), grid.high.copy()
    low[coarse], high[coarse] = np.array(found["__tails"].to_pylist(), np.int64).T
    finer = grid.cut(low, high, partitions)
    return finer, counted(keyed, group, finer)


def counted(keyed: DataFrame, group: Sequence[str], grid: Grid) -> Cells:
    """Cells and their counts. Groups of one cell are known already."""
    whole = np.flatnonzero(~grid.many)
    cells, counts = [whole << 32], [grid.counts[whole]]
    if grid.many.any():
        found = located(keyed.select(*group, "__key"), group, grid, grid.many)
        found = found.groupBy("__cell").count().toArrow()
        cells.append(found["__cell"].to_numpy())
        counts.append(found["count"].to_numpy())
    return {"__cell": np.concatenate(cells), "__rows": np.concatenate(counts)}
