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
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from antecede.spark.errors import raise_bad_trace
from antecede.spark.run_tasks import Numbers, find_starts

__all__ = ["Cells", "Grid", "choose_partitions", "deal_cells", "number_rows"]

CELLS: Final = 64
FULL: Final = 1_000_000
"""Rows of a partition: a sort of so many stays in memory."""
FEW: Final = 50_000
"""Rows that are not worth another task."""
TAILS: Final = (0.005, 0.995)
RANK_BITS: Final = 33
"""Of what Spark gives as a monotonically increasing id: the partition is above, the rank of the row below."""

Cells = dict[str, Numbers]
"""`__cell` and `__rows`: cells that have rows, and how many."""


@dataclass(frozen=True)
class Grid:
    """The groups, in their order, and how the keys of each are cut into cells.

    The cell of a key is `(key >> bits) - (low >> bits)`: widths are powers of two, so no difference can overflow.
    """

    names: pa.Table
    counts: Numbers
    ends: tuple[Numbers, Numbers]
    """The least and the largest key of each group."""
    low: Numbers
    high: Numbers
    bits: Numbers
    many: NDArray[np.bool_]
    """Which groups have more than one cell."""

    @classmethod
    def of(
        cls, groups: pa.Table, names: Sequence[str], partitions: int, finest: Numbers | None = None
    ) -> Grid:
        """Cells in proportion to the rows, each at least one key wide, or as wide as `finest` says for each group."""
        if finest is not None:
            groups = groups.append_column("__finest", pa.array(finest))
        groups = groups.sort_by([(name, "ascending") for name in names])
        counts, low, high = (
            groups[name].to_numpy().astype(np.int64) for name in ("__rows", "__low", "__high")
        )
        least = groups["__finest"].to_numpy() if finest is not None else np.zeros(len(counts), np.int64)
        bare = cls(groups.select(list(names)), counts, (low, high), low, high, least, counts > 0)
        return bare.cut(low, high, partitions)

    def cut(self, low: Numbers, high: Numbers, partitions: int) -> Grid:
        """The same groups, with cells between these keys."""
        most = np.maximum(1, self.counts * (CELLS * partitions) // max(1, int(self.counts.sum())))
        # Two's complement: right even where the difference takes all 64 bits.
        span = (high.astype(np.uint64) - low.astype(np.uint64)) // most.astype(np.uint64)
        bits = np.array([int(width).bit_length() for width in span], np.int64)
        bits = np.minimum(np.maximum(bits, self.bits), 63)
        many = (most > 1) & ((high >> bits) != (low >> bits))
        return replace(self, low=low, high=high, bits=bits, many=many)

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

    def table(self, of: NDArray[np.bool_] | None = None) -> pa.Table:
        """For the tasks: a row for each of these groups."""
        bases = self.bases()
        columns = {"__group": np.arange(len(self.counts)), "__low": self.low, "__high": self.high}
        columns |= {"__bits": self.bits.astype(np.int32), "__base": self.low if bases is None else bases}
        table = self.names.append_column("__many", pa.array(self.many))
        for name, column in columns.items():
            table = table.append_column(name, pa.array(column))
        return table if of is None else table.filter(pa.array(of))


def deal_cells(group: Numbers, count: Numbers, partitions: int) -> tuple[Numbers, Numbers, Numbers]:
    """For cells in order: the partition of each, the rank of its first row there, and that row's position in its group.

    >>> deal_cells(np.array([0, 0, 1]), np.array([2, 2, 2]), 2)
    (array([0, 0, 1]), array([0, 2, 0]), array([0, 2, 0]))
    >>> deal_cells(np.array([0, 0, 0]), np.array([2, 2, 2]), 3)
    (array([0, 1, 2]), array([0, 0, 0]), array([0, 2, 4]))
    """
    before = np.cumsum(count) - count
    bucket = np.minimum(before * partitions // max(1, int(count.sum())), partitions - 1)
    return bucket, before - find_first(bucket, before), before - find_first(group, before)


def find_first(label: Numbers, before: Numbers) -> Numbers:
    """For each cell, how many rows are before the first cell of the same label."""
    starts = find_starts(label)
    lengths = np.diff(np.append(starts, len(label)))
    return np.repeat(before[starts], lengths)


def choose_partitions(rows: int, parallel: int) -> int:
    """As many as keep each sort in memory, and as many as work side by side, if there is work for them."""
    return max(-(-rows // FULL), min(parallel, -(-rows // FEW)), 1)


def number_rows(
    rows: DataFrame,
    group: Sequence[str],
    key: str,
    ties: Sequence[str],
    counted: pa.Table,
    partitions: int | None = None,
) -> DataFrame:
    """The rows with `position`, in order: partitions one after the other, and inside each.

    No two rows of a group may be equal in key and ties, and none of these columns may be null. `counted` is the result
    of the first pass: (group..., __rows, __low, __high). If the table is another one when the result is used than when
    it was counted, the result is a `BadTrace`.
    """
    keyed = rows.withColumn("__key", F.col(key).cast("long"))
    total = int(np.sum(counted["__rows"].to_numpy())) if len(counted) else 0
    if not total:
        return rows.withColumn("position", F.lit(None).cast("long"))
    if partitions is None:
        partitions = default_partitions(rows, total)
    grid = Grid.of(counted, group, partitions)
    return sort_rows(keyed, group, ties, *count_cells(keyed, group, grid, partitions), partitions)


def default_partitions(rows: DataFrame, total: int) -> int:
    return choose_partitions(total, int(rows.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1))


def sort_rows(
    keyed: DataFrame, group: Sequence[str], ties: Sequence[str], grid: Grid, cells: Cells, partitions: int
) -> DataFrame:
    """The sort itself, of rows with a column `__key`, whose cells are counted."""
    order = np.argsort(cells["__cell"])
    numbers, counts = cells["__cell"][order], cells["__rows"][order]
    bucket, start, place = deal_cells(numbers >> 32, counts, partitions)
    columns = {"__cell": numbers, "__bucket": bucket.astype(np.int32), "__start": start, "__place": place}
    dealt = keyed.sparkSession.createDataFrame(pa.table(columns | {"__rows": counts}))
    exact = grid.bases() is not None
    line = F.col("__key") + F.col("__base") if exact else F.col("__cell")
    # Left: a row of a cell that nobody counted must not vanish.
    located = locate_cells(keyed, group, grid).join(F.broadcast(dealt), "__cell", "left")
    # What the shuffle need not carry.
    spread = located.withColumn("__line", line).drop("__cell", "__base", *["__key"] * exact)
    spread = spread.withColumn("__bucket", F.coalesce("__bucket", F.lit(0)))
    ordered = spread.repartitionById(partitions, "__bucket").sortWithinPartitions(
        *(["__line"] if exact else ["__line", "__key"]), *ties
    )
    rank = F.monotonically_increasing_id().bitwiseAND(F.lit((1 << RANK_BITS) - 1)) - F.col("__start")
    # A rank counts from the partition's first row: a plan that splits or joins partitions would make it wrong.
    moved = F.raise_error(F.lit("a partition of the sort was split or joined with another"))
    counted = rank.between(F.lit(0), F.col("__rows") - 1)
    changed = raise_bad_trace(
        "the table", "it changed while it was ordered: it has other rows than when they were counted"
    )
    position = (
        F.when(F.spark_partition_id() != F.col("__bucket"), moved.cast("long"))
        .when(counted, rank + F.col("__place"))
        .otherwise(changed.cast("long"))
    )
    return ordered.withColumn("position", position).drop(
        "__line", "__key", "__bucket", "__start", "__place", "__rows"
    )


def locate_cells(
    keyed: DataFrame, group: Sequence[str], grid: Grid, of: NDArray[np.bool_] | None = None
) -> DataFrame:
    """The rows of these groups with their cells, or all rows: one of a group that nobody counted has no cell."""
    table = grid.table(of)
    if len(grid.counts) == 1:
        # All rows should be of one group: no need to look it up for each.
        [known] = table.to_pylist()
        types = {"__many": "boolean", "__bits": "int"}
        mine = F.lit(True)
        for name in group:
            mine &= F.col(name) == F.lit(known.pop(name))
        found = keyed.withColumns(
            {name: F.lit(value).cast(types.get(name, "long")) for name, value in known.items()}
        ).withColumn("__group", F.when(mine, F.col("__group")))
    else:
        how = "left" if of is None else "inner"
        found = keyed.join(F.broadcast(keyed.sparkSession.createDataFrame(table)), list(group), how)
    inside = F.greatest(F.least(F.col("__key"), F.col("__high")), F.col("__low"))
    found = found.withColumn("__at", inside)
    number = F.expr("shiftright(__at, __bits) - shiftright(__low, __bits)")
    cell = F.expr("shiftleft(__group, 32)") + F.when(F.col("__many"), number).otherwise(F.lit(0))
    return found.withColumn("__cell", cell).drop("__group", "__low", "__high", "__bits", "__many", "__at")


def count_cells(
    keyed: DataFrame, group: Sequence[str], grid: Grid, partitions: int, cells: Cells | None = None
) -> tuple[Grid, Cells]:
    """How many rows each cell has, and the grid of these cells: a finer one, if the first was too coarse."""
    cells = aggregate_cells(keyed, group, grid) if cells is None else cells
    heavy = cells["__rows"] > 2 * grid.counts.sum() // partitions
    coarse = np.zeros(len(grid.counts), bool)
    coarse[(cells["__cell"][heavy] >> 32)] = True
    coarse &= grid.many & (grid.bits > 0)
    if partitions == 1 or not coarse.any():
        return grid, cells
    names = grid.names.filter(pa.array(coarse))
    few = F.broadcast(keyed.sparkSession.createDataFrame(names))
    tails = F.percentile_approx("__key", list(TAILS), 1000)
    found = keyed.join(few, list(group)).groupBy(*group).agg(tails.alias("__tails")).toArrow()
    found = found.sort_by([(name, "ascending") for name in group])
    low, high = grid.low.copy(), grid.high.copy()
    low[coarse], high[coarse] = np.array(found["__tails"].to_pylist(), np.int64).T
    finer = replace(grid, bits=np.zeros_like(grid.bits)).cut(low, high, partitions)
    return finer, aggregate_cells(keyed, group, finer)


def aggregate_cells(keyed: DataFrame, group: Sequence[str], grid: Grid) -> Cells:
    """Cells and their counts. Groups of one cell are known already."""
    whole = np.flatnonzero(~grid.many)
    cells, counts = [whole << 32], [grid.counts[whole]]
    if grid.many.any():
        found = locate_cells(keyed.select(*group, "__key"), group, grid, grid.many)
        table = found.groupBy("__cell").count().toArrow()
        cells.append(table["__cell"].to_numpy())
        counts.append(table["count"].to_numpy())
    return {"__cell": np.concatenate(cells), "__rows": np.concatenate(counts)}
