"""Positions: the ranks of one sort, whatever the partitions were before, and however the keys lie."""

import random

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from antecede.errors import BadTrace
from antecede.spark.errors import raise_task_errors
from antecede.spark.order.position import Grid, choose_partitions, deal_cells, number_rows

KEYS = {
    "dense": lambda rng, i: i // 3,
    "one key": lambda rng, i: 7,
    "far below": lambda rng, i: 0 if i < 3 else 1_700_000_000_000_000_000 + 1_000 * i,
    "far on both sides": lambda rng, i: -(1 << 63) if i == 0 else (1 << 63) - 1 if i == 1 else i,
    "negative": lambda rng, i: -rng.randrange(500),
}


def draw_rows(seed):
    rng = random.Random(seed)
    rows = [(name, key(rng, i), i) for name, key in KEYS.items() for i in range(200)]
    rows += [(f"r{i % 5}", i // 2, i) for i in range(40)] + [("é", 5, 1), ("z", 0, 0)]
    rng.shuffle(rows)
    return rows


def table(spark, rows, partitions):
    runs, clocks, indices = zip(*rows, strict=True)
    columns = {"run": pa.array(runs, pa.string()), "clock": pa.array(clocks, pa.int64()), "index": indices}
    return spark.createDataFrame(pa.table(columns)).repartition(partitions)


def number(rows, partitions=None):
    ends = {"__rows": "count(1)", "__low": "min(clock)", "__high": "max(clock)"}
    counted = rows.groupBy("run").agg(*(F.expr(what).alias(name) for name, what in ends.items())).toArrow()
    return number_rows(rows, ["run"], "clock", ["index"], counted, partitions)


def ranks(rows):
    """By the definition."""
    ordered = sorted(rows, key=lambda row: (row[0].encode(), *row[1:]))
    return [(*row, sum(other[0] == row[0] for other in ordered[:place])) for place, row in enumerate(ordered)]


def test_a_position_is_the_rank_in_its_run_whatever_the_partitions(spark):
    rows = draw_rows(1)
    for before, after in ((1, 1), (3, 16)):
        ordered = number(table(spark, rows, before), after)
        # What is collected comes partition by partition, so this is the order of the rows too.
        assert [tuple(row) for row in ordered.collect()] == ranks(rows)


def test_positions_survive_what_is_done_with_them(spark):
    rows = [("a", i, i) for i in range(100)]
    ordered = number(table(spark, rows, 3), 4)
    assert [row.position for row in ordered.where("index % 10 = 3").orderBy("index").collect()] == [
        *range(3, 100, 10)
    ]
    twice = ordered.union(ordered).coalesce(1).selectExpr("sum(position) as total")
    assert twice.collect()[0].total == 2 * sum(range(100))


def test_no_rows_have_no_positions(spark):
    none = table(spark, [("a", 1, 1)], 1).where("false")
    assert number(none).collect() == []


def test_one_giant_group_is_spread_and_small_ones_share():
    counts = {"run": ["s1", "giant", "s2"], "__rows": [10, 10_000, 10]}
    grid = Grid.of(pa.table(counts | {"__low": [0, 0, 5], "__high": [9, 9_999, 5]}), ["run"], 8)
    assert grid.names["run"].to_pylist() == ["giant", "s1", "s2"]
    assert grid.many.tolist() == [True, False, False]
    bucket, _, _ = deal_cells(np.array([0] * 100 + [1, 2]), np.array([100] * 100 + [10, 10]), 8)
    assert np.bincount(bucket).tolist() == [13, 13, 12, 13, 12, 13, 12, 14]


@pytest.mark.parametrize(
    ("rows", "parallel", "expected"),
    [(0, 8, 1), (10, 8, 1), (120_000, 8, 3), (900_000, 8, 8), (20_000_001, 8, 21)],
)
def test_partitions_grow_with_the_rows(rows, parallel, expected):
    assert choose_partitions(rows, parallel) == expected


def test_a_group_of_one_cell_needs_no_second_look():
    """S18: cells began at 0 and not at the lowest key, so that one cell was two."""
    small = pa.table({"run": ["a", "big"], "__rows": [10, 10_000], "__low": [60, 0], "__high": [69, 9_999]})
    assert Grid.of(small, ["run"], 4).many.tolist() == [False, True]


@pytest.mark.parametrize("others", [1, 4])
def test_a_table_that_changes_after_it_was_counted_is_told(spark, tmp_path, others):
    """S4: rows whose cell was not counted vanished, and a second group shared the positions of the first."""
    spark.sql("drop table if exists changing")
    spark.createDataFrame(
        [("a", i, i) for i in range(20)], "run string, clock long, index long"
    ).write.saveAsTable("changing")
    try:
        ordered = number(spark.table("changing"), 2)
        assert ordered.count() == 20
        run = "a" if others == 1 else "b"
        for at in range(others):
            spark.sql(f"insert into changing values ('{run}', {at * 3}, {100 + at})")
        changed = number(spark.table("changing"), 2)
        assert changed.count() == 20 + others
        # What was counted before meets a table with more rows.
        spark.catalog.refreshTable("changing")
        with pytest.raises(BadTrace, match="other rows than when they were counted"), raise_task_errors():
            again(spark, ordered)
    finally:
        spark.sql("drop table changing")


def again(spark, ordered):
    """The same plan with the table as it is now."""
    ordered.createOrReplaceTempView("ordered_before")
    return spark.sql("select * from ordered_before").collect()
