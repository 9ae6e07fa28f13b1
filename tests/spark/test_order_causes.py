"""The order of rows that name their causes: against the definitions, small and large, and of real spans."""

import gzip
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import functions as F

from antecede.errors import BadParameter
from antecede.spark.frames import ByCauses
from antecede.spark.order.api import count_rows, missing, note_form, order, refused
from antecede.spark.order.by_causes import order_rows as order_by_causes

SPANS = Path(__file__).parents[3] / "shared" / "data" / "spans"
real = pytest.mark.skipif(not SPANS.is_dir(), reason=f"no spans at {SPANS}: they are no part of the project")

SEED = 7
TYPES = "part string, id string, causes array<string>, at long, more struct<x: int, y: array<string>>"


def draw_rows(seed, name, cyclic):
    """Rows of a partition: with copies, rows without an id, lost causes, and perhaps a cycle."""
    rng = Random(f"{seed}/{name}")
    rows: list[tuple] = []
    for place in range(rng.randrange(1, 30)):
        known = [row[1] for row in rows if row[1] is not None]
        causes = [rng.choice(known) for _ in range(rng.randrange(3)) if known]
        causes += [f"lost{rng.randrange(3)}"] * (rng.random() < 0.05)
        own = f"e{place}" if rng.random() < 0.9 else None
        rows.append((name, own, causes or None, rng.choice([None, *range(20)]), (place, ["z"])))
        if own and rng.random() < 0.1:
            rows.append((*rows[-1][:3], rng.randrange(20), (place, ["copy"])))
    if cyclic:
        rows += [
            (name, "k1", ["k3", "e0"], 1, None),
            (name, "k2", ["k1"], 1, None),
            (name, "k3", ["k2"], 1, None),
        ]
        rows.append((name, "behind", ["k2"], 1, None))
    rng.shuffle(rows)
    return rows


@pytest.fixture(scope="module")
def rows():
    print(f"seed {SEED}")
    parts = [draw_rows(SEED, f"p{i}", i % 3 == 2) for i in range(6)] + [draw_rows(SEED, None, False)]
    return [row for part in parts for row in part]


class Definition:
    """A partition by the rules, as slowly as they read."""

    def __init__(self, rows):
        self.events: dict = {}
        for place, (_, own, causes, at, _) in enumerate(rows):
            event = self.events.setdefault(own if own is not None else place, (set(), []))
            event[0].update(causes or ())
            event[1].append(-1 if at is None else at)

    def past(self, event):
        found, left = set(), list(self.events[event][0])
        while left:
            cause = left.pop()
            if cause not in found:
                found.add(cause)
                left += self.events[cause][0] if cause in self.events else ()
        return found

    @property
    def cyclic(self):
        return any(event in self.past(event) for event in self.events)

    def key(self, event):
        return max(min(self.events[one][1]) for one in {event, *self.past(event)} if one in self.events)

    def lost(self, event):
        return {cause for cause in self.past(event) if cause not in self.events}


def assert_in_order(own, timed):
    """`own`: the rows of a partition as they were ordered."""
    definition = Definition([tuple(row)[:5] for row in own])
    seen: set = set()
    last = -1
    for place, row in enumerate(own):
        event = row.id if row.id is not None else place
        causes = definition.events[event][0]
        assert row.position == place
        assert {cause for cause in causes if cause in definition.events} <= seen | {row.id}
        assert set(row.waits_for) == definition.lost(event)
        if timed:
            assert definition.key(event) >= last
            last = definition.key(event)
        seen.add(row.id)
    # Copies stand together.
    ids = [row.id for row in own if row.id is not None]
    for place, (first, second) in enumerate(pairwise(ids)):
        assert first == second or first not in ids[place + 1 :]


@pytest.mark.parametrize(
    ("timed", "full"), [(True, 1_000_000), (True, 10), (False, 1_000_000), (False, 10), (False, 0)]
)
def test_the_order_is_that_of_the_definition(spark, rows, timed, full):
    """Partitions go by one of two ways, or some by each: the result is the same."""
    asked = ByCauses("id", "causes", ("part",), "at" if timed else None)
    table = spark.createDataFrame(rows, TYPES).repartition(3)
    found = note_form(order_by_causes(table, asked, full=full), asked)
    assert found.columns == [*table.columns, "position", "waits_for"]
    assert found.schema["more"].dataType == table.schema["more"].dataType
    parts: dict = {}
    for row in found.collect():
        parts.setdefault(row.part, []).append(row)
    given = {name: [row for row in rows if row[0] == name] for name in parts}
    assert sum(map(len, given.values())) == len(rows)
    for name, own in parts.items():
        assert len(own) == len(given[name])
        if Definition(given[name]).cyclic:
            assert {row.position for row in own} == {None}
            assert {tuple(row.waits_for) for row in own} == {("k1", "k2", "k3")}
        else:
            assert_in_order(sorted(own, key=lambda row: row.position), timed)
    reasons = {row.part: row.reason for row in refused(found).collect()}
    assert reasons == {f"p{i}": "the causes form a cycle: k1 -> k2 -> k3 -> k1" for i in (2, 5)}


def test_rows_come_out_in_their_order(spark, rows):
    some = [row for row in rows if row[0] == "p1"]
    table = spark.createDataFrame(some, TYPES).repartition(3)
    asked = ByCauses("id", "causes", (), "at")
    for full in (1_000_000, 0):
        found = order_by_causes(table, asked, full=full).collect()
        assert [row.position for row in found] == list(range(len(some)))


def test_what_is_missing_is_named_at_its_root(spark, tmp_path):
    rows = [("a", "lost"), ("b", "a"), ("c", "b"), ("d", "b"), ("e", None), ("f", "other")]
    found = order(spark.createDataFrame(rows, "id string, cause string"), id="id", causes="cause")
    found.write.parquet(str(tmp_path / "ordered"))
    # The result says by itself how it was ordered, in a file too.
    for ordered in (found, spark.read.parquet(str(tmp_path / "ordered"))):
        assert sorted(tuple(row) for row in missing(ordered).collect()) == [("lost", 1, 4), ("other", 1, 1)]
        assert [tuple(row) for row in count_rows(ordered).collect()] == [(6, 5, 2, False)]


@pytest.mark.parametrize("kind", ["int", "bigint", "string"])
@pytest.mark.parametrize("full", [10, 0])
def test_ids_are_text_or_integers(spark, kind, full):
    rows = [("10", ["9"]), ("9", None), ("2", ["1"]), ("11", [])]
    table = spark.createDataFrame(rows, "id string, causes array<string>")
    table = table.select(F.col("id").cast(kind), F.col("causes").cast(f"array<{kind}>"))
    found = order_by_causes(table, ByCauses("id", "causes"), full=full).collect()
    expected = [2, 9, 11, 10] if kind != "string" else ["11", "2", "9", "10"]
    assert [row.id for row in found] == expected
    assert [row.waits_for for row in found if str(row.id) == "2"] == [["1"] if kind == "string" else [1]]


def test_a_text_that_begins_as_a_list_does_is_read_alike_in_all_partitions(spark):
    rows = [
        ("a", None),
        ("b", '["a", "x"]'),
        ("c", '["a"] x'),
        ("d", "[a"),
        ("e", '["a", null, ""]'),
        ("f", "[]"),
    ]
    table = spark.createDataFrame(rows, "id string, causes string")
    found = [
        {row.id: (row.position, row.waits_for) for row in order_by_causes(table, asked, full=full).collect()}
        for asked in [ByCauses("id", "causes")]
        for full in (10, 0)
    ]
    assert found[0] == found[1]
    waits = {id: waits_for for id, (_, waits_for) in found[0].items()}
    assert (waits["b"], waits["d"], waits["e"], waits["f"]) == (["x"], ["[a"], [], [])


def test_some_texts_mean_no_cause(spark):
    table = spark.createDataFrame([("a", "root"), ("b", ""), ("c", "a")], "id string, parent string")
    found = order(table, id="id", causes="parent", no_cause=["root", ""])
    assert [row.waits_for for row in found.collect()] == [[], [], []]
    assert missing(order(table, id="id", causes="parent")).collect()[0].id == "root"


@pytest.mark.parametrize(
    ("kind", "full"),
    [(kind, 10) for kind in ("timestamp", "timestamp_ntz", "date", "double", "string", "bigint")]
    + [("double", 1), ("string", 1)],
)
def test_time_decides_among_concurrent_rows(spark, kind, full):
    days = [("late", None, 3), ("early", None, 1), ("effect", "late", 2), ("timeless", "early", None)]
    day = F.expr("timestamp'2023-01-01' + make_interval(0, 0, 0, day)")
    table = spark.createDataFrame(days, "id string, cause string, day int")
    table = table.withColumn(
        "at", F.unix_micros(day).cast(kind) if kind in ("double", "bigint") else day.cast(kind)
    )
    found = order_by_causes(table, ByCauses("id", "cause", (), "at"), full=full)
    assert [row.id for row in found.collect()] == ["early", "timeless", "late", "effect"]


@pytest.mark.parametrize("full", [10, 2])
def test_null_lists_and_maps_stay_null_and_cost_no_more_than_others(spark, full):
    """Spark takes quadratic time to hand a column of null lists to Python."""
    rows = [("a", None, None, 1), ("b", ["a"], [], 2), ("c", None, ["x"], 3)]
    table = spark.createDataFrame(rows, "id string, causes array<string>, tags array<string>, at int")
    table = table.withColumn("more", F.when(F.col("id") == "b", F.create_map("id", "at")))
    found = order_by_causes(table, ByCauses("id", "causes", (), "at"), full=full)
    assert found.columns == [*table.columns, "position", "waits_for"]
    assert [(row.causes, row.tags, row.more) for row in found.collect()] == [
        (None, None, None),
        (["a"], [], {"b": 2}),
        (None, ["x"], None),
    ]


BAD = [
    ({"id": "nobody", "causes": "c"}, "id must be one of the columns i, c, n, l, not 'nobody'"),
    ({"id": "i", "causes": "n"}, "and n is int with ids of string"),
    ({"id": "l", "causes": "c"}, "id must be text or integers of 64 bits, and l is array<string>"),
    (
        {"id": "i", "causes": "c", "partition_by": "l"},
        "partition_by must name columns of plain values, and l is array<string>",
    ),
    ({"id": "i", "causes": "c", "process": "i"}, "process does not go with explicit causes"),
    ({"id": "i"}, "id does not go with a trace: name id and causes together"),
    ({"process": "i", "vector": "n", "time": "x"}, "time must be one of the columns i, c, n, l, not 'x'"),
    ({"process": "i", "vector": "n", "protocol": "matrix"}, "protocol does not go with vectors"),
]


@pytest.mark.parametrize(("names", "told"), BAD)
def test_what_no_table_could_fulfil_is_refused(spark, names, told):
    table = spark.createDataFrame([], "i string, c string, n int, l array<string>")
    with pytest.raises(BadParameter) as error:
        order(table, **names)
    assert told in str(error.value)


def test_tables_of_others_and_streams_without_causes_are_refused(spark):
    import pandas as pd

    with pytest.raises(BadParameter, match="must be a Spark DataFrame, not a DataFrame of pandas"):
        order(pd.DataFrame({"i": ["a"]}), id="i", causes="i")  # type: ignore[arg-type]
    with pytest.raises(BadParameter, match=r"vector must be map<string,bigint> .*, and value is bigint"):
        order(spark.readStream.format("rate").load(), process="value", vector="value")
    with pytest.raises(BadParameter, match="must be a result of order"):
        missing(spark.range(1))


@real
@pytest.mark.parametrize("name", ["2023-01-29-08_44", "2022-08-22-03_53"])
def test_real_spans_come_in_order(spark, name):
    path = SPANS / f"{name}.csv.gz"
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    table = spark.read.option("header", True).csv(str(path))
    found = order(
        table,
        id="SpanID",
        causes="ParentID",
        partition_by="TraceID",
        time="StartTimeUnixNano",
        no_cause="root",
    )
    rows = found.collect()
    assert len(rows) == len(lines) - 1
    assert found.columns == [*table.columns, "position", "waits_for"]
    places = {(row.TraceID, row.SpanID): row.position for row in rows}
    assert len(places) == len(rows)
    assert all(row.ParentID == "root" or places[row.TraceID, row.ParentID] < row.position for row in rows)
    assert not any(row.waits_for for row in rows)
    # Time is left only where causality makes it: a span that stands behind a later one has a cause that started later.
    by_place = sorted(rows, key=lambda row: (row.TraceID, row.position))
    keys: dict = {}
    for row in by_place:
        parent = keys.get((row.TraceID, row.ParentID), 0)
        keys[row.TraceID, row.SpanID] = max(int(row.StartTimeUnixNano), parent)
    for first, second in pairwise(by_place):
        if first.TraceID == second.TraceID:
            assert keys[first.TraceID, first.SpanID] <= keys[second.TraceID, second.SpanID]
