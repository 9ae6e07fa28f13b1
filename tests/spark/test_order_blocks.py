"""Large partitions in blocks of time: what moves, what waits across blocks, and what a block may rely on."""

from random import Random

import numpy as np
import pyarrow as pa
import pytest

from antecede.errors import BadTrace
from antecede.spark.frames import ByCauses
from antecede.spark.order.api import missing, note_form
from antecede.spark.order.blocks import find_partition_cycles, order_block
from antecede.spark.order.by_causes import order_rows as order_by_causes
from antecede.spark.order.moves import bounds_of, list_doubled

ASKED = ByCauses("id", "causes", (), "at")
TYPES = "id long, causes array<bigint>, at double, text string"


def test_blocks_give_what_one_task_gives(spark):
    """Long components with late clocks, copies at other times, rows without an id or a time, and lost causes."""
    rows: list[tuple] = []
    for seed in (1, 2):
        rng = Random(seed)
        for place in range(300):
            causes = [place - rng.randrange(1, 9) for _ in range(rng.randrange(3)) if place > 9]
            causes += [10_000 + rng.randrange(3)] * (rng.random() < 0.01)
            at = place + rng.choice([0.0, 0.0, 0.0, rng.uniform(-60, 60)])
            own = place if rng.random() < 0.97 else None
            rows.append((seed, own, causes, at if rng.random() < 0.97 else None, f"{place}"))
            if rng.random() < 0.03:
                rows.append((seed, own, [], at + rng.uniform(-90, 90), f"copy of {place}"))
    table = spark.createDataFrame(rows, f"seed int, {TYPES}").repartition(3)

    def positions(full):
        found = order_by_causes(table, ByCauses("id", "causes", ("seed",), "at"), full=full).collect()
        return {(row.seed, row.id, row.text): (row.position, sorted(row.waits_for)) for row in found}

    assert positions(1_000) == positions(40)


def test_all_that_follows_a_lost_event_waits_in_every_block(spark):
    chain = [(place, [place - 1], float(place), "") for place in range(60)]
    found = order_by_causes(spark.createDataFrame(chain, TYPES), ASKED, full=25)
    rows = found.collect()
    assert [row.id for row in rows] == list(range(60))
    assert {tuple(row.waits_for) for row in rows} == {(-1,)}
    [told] = missing(note_form(found, ASKED)).collect()
    assert tuple(told) == (-1, 1, 60)


def test_a_chain_against_time_moves_to_one_block(spark):
    chain = [(place, [place - 1] if place else [], float(-place), "") for place in range(12)]
    found = order_by_causes(spark.createDataFrame(chain, TYPES), ASKED, full=4).collect()
    assert [row.id for row in found] == list(range(12))


def test_a_cycle_through_several_blocks_refuses_its_partition(spark):
    """Its events are in the middle of blocks: what is near their ends does not tell."""
    chain = [(place, [place - 1] if place else [], float(place), "") for place in range(60)]
    chain[10] = (10, [9, 50], 10.0, "")
    table = spark.createDataFrame(chain, TYPES)
    found = order_by_causes(table, ASKED, full=25).collect()
    cycle = [*range(10, 51)]
    assert {(row.position, tuple(row.waits_for)) for row in found} == {(None, tuple(cycle))}
    slim = table.selectExpr(
        "0 __part", "cast(id as string) __name", "cast(causes as array<string>) __causes", "at __time"
    )
    assert find_partition_cycles(slim, [60], 25) == [(0, [str(one) for one in cycle])]


def test_copies_in_far_blocks_are_one_event_with_the_causes_of_all(spark):
    rows = [(place, [place - 1] if place else [], float(place), "") for place in range(60)]
    rows.append((3, [40, 77], 55.0, "copy"))
    del rows[40], rows[4]
    rows += [(4, [], 4.0, ""), (40, [], 40.0, "")]
    table = spark.createDataFrame(rows, TYPES)
    at_once, in_blocks = (
        [(row.id, row.text, row.position, sorted(row.waits_for)) for row in found.collect()]
        for found in (order_by_causes(table, ASKED, full=full).orderBy("position") for full in (100, 20))
    )
    assert in_blocks == at_once
    places = {(own, text): position for own, text, position, _ in in_blocks}
    assert places[40, ""] < places[3, ""] < places[3, "copy"]


def test_hashes_of_two_blocks_are_compared_in_buckets():
    assert bounds_of(4).tolist() == [-(1 << 62), 0, 1 << 62]
    blobs = [np.array(some, np.int64).tobytes() for some in ([-5, 1, 9], [-5, 2, 9], [9, 10])]
    batches = [pa.record_batch({"__hashes": pa.array(blobs, pa.binary())})]
    assert [batch["hash"].to_pylist() for batch in list_doubled(batches)] == [[-5, 9]]
    assert not list(list_doubled([]))


def test_a_table_that_changed_since_it_was_counted_is_told():
    rows = {"id": [1, 2], "__id": [1, 2], "__causes": [[], [1]], "__time": [1.0, 2.0], "__block": [0, 0]}
    table = pa.table(rows)
    [found] = order_block(table, ["id"], {0: (7, 2)})
    assert found["position"].to_pylist() == [7, 8]
    with pytest.raises(BadTrace, match="it changed while it was ordered"):
        list(order_block(table, ["id"], {0: (0, 3)}))
