"""Users call their columns what they like: no name of ours, no case, dot or quote changes what comes out."""

import re
from functools import partial
from pathlib import Path

import pytest

import antecede.spark
from antecede.errors import BadParameter
from antecede.sim.run import RunSpec
from antecede.spark.frames import ByCauses
from antecede.spark.order import by_causes
from antecede.spark.order.api import count_rows, missing, order, refused
from antecede.spark.order.files import write_ordered
from antecede.spark.stream.packets import simulated
from antecede.spark.trace import SPARK_EVENTS, Trace
from antecede.spark.verify.api import verify
from antecede.spark.verify.by_causes import verify_causes

OURS = sorted(
    {
        name
        for path in Path(antecede.spark.__file__).parent.rglob("*.py")
        for name in re.findall(r"\b__[a-z][a-z ]*\d?\b(?!__)", path.read_text())
    }
)
"""Whatever any module of ours calls a column."""
OTHERS = [
    "u0", "u1", "u2", "id", "Id", "a.b", "a`b", "a b", " ", "__ID", "kind", "by", "chain", "word", "count", "bucket",
    "Event", "__null after", "__known 0", "__key 0", "__key0", "__group0",
]  # fmt: skip
NAMES = list(dict.fromkeys([*OURS, *OTHERS]))
PARTITIONS = [
    "__id",
    "__key0",
    "__key 0",
    "__part",
    "__null after",
    "__hash",
    "a.b",
    "Event",
    "u1",
    "__group0",
]
ROWS = [("t", "b", ["a"], 1), ("t", "a", None, 5), ("t", "c", ["b", "z"], 2), (None, "d", ["a"], 3)]


def make_table(spark, own, rows):
    """The rows, with a column of each name besides, which has its name in it."""
    names = [name for name in NAMES if name not in own]
    types = ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind in own.items())
    others = ", ".join(f"`{name.replace('`', '``')}` string" for name in names)
    return spark.createDataFrame([(*row, *names) for row in rows], f"{types}, {others}")


def test_names_of_ours_are_found():
    assert {"__id", "__key", "__hash", "__part", "__group0"} <= set(OURS)
    assert len(OURS) > 50


@pytest.mark.parametrize(("full", "time"), [(None, "at"), (None, None), (1, "at"), (1, None)])
def test_order_by_causes(spark, monkeypatch, full, time):
    if full is not None:
        monkeypatch.setattr(by_causes, "order_rows", partial(by_causes.order_rows, full=full))
    own = {"event": "string", "after": "array<string>", "at": "long", **dict.fromkeys(PARTITIONS, "string")}
    rows = [(*row[1:], *[row[0]] * len(PARTITIONS)) for row in ROWS]
    table = make_table(spark, own, rows)
    ordered = order(table, id="event", causes="after", partition_by=PARTITIONS, time=time)
    assert ordered.columns == [*table.columns, "position", "waits_for"]
    found = sorted(ordered.collect(), key=lambda row: row["event"])
    assert [tuple(row[: len(own)]) for row in found] == sorted(rows)
    assert all(list(row[len(own) : -2]) == table.columns[len(own) :] for row in found)
    assert [tuple(row[-2:]) for row in found] == [(0, []), (1, []), (2, ["z"]), (0, ["a"])]
    lost = missing(ordered)
    assert lost.columns == [*PARTITIONS, "event", "direct", "waiting"]
    assert {tuple(row[-4:]) for row in lost.collect()} == {("t", "z", 1, 1), (None, "a", 1, 1)}
    assert refused(ordered).collect() == []
    assert {tuple(row[-5:]) for row in count_rows(ordered).collect()} == {
        ("t", 3, 1, 1, False),
        (None, 1, 1, 1, False),
    }


@pytest.mark.parametrize("time", ["at", None])
@pytest.mark.parametrize("part", ["__group0"])
def test_order_by_vectors(spark, part, time):
    own = {part: "string", "who": "string", "clock": "map<string,long>", "at": "long"}
    rows = [
        ("t", "x", {"x": 2, "y": 1}, 1),
        ("t", "x", {"x": 1}, 7),
        (None, "y", {"y": 1}, 3),
        ("t", "y", {}, 1),
    ]
    table = make_table(spark, own, rows[:3])
    ordered = order(table, process="who", vector="clock", partition_by=part, time=time)
    found = sorted(ordered.collect(), key=lambda row: (str(row[0]), row[-2]))
    assert ordered.columns == [*table.columns, "position", "waits_for"]
    assert [tuple(row[:4]) for row in found] == [rows[2], rows[1], rows[0]]
    assert all(list(row[4:-2]) == table.columns[4:] for row in found)
    assert [tuple(map(tuple, row[-1])) for row in found] == [(), (), (("y", 1),)]
    assert [tuple(row) for row in missing(ordered).collect()] == [("t", "y", 1, 1)]
    bad = order(make_table(spark, own, rows), process="who", vector="clock", partition_by=part, time=time)
    assert [(row[part], row["rows"]) for row in refused(bad).collect()] == [("t", 3)]


def test_order_by_stamps(spark):
    view, packets = simulated(RunSpec(protocol="fifo", processes=3, messages=20, seed=3))
    own = {"receiver": "string", "sender": "string", "number": "long", "stamp": "binary", "__place": "string"}
    given = [
        (row["receiver"], row["sender"], row["number"], row["stamp"], "r") for row in packets.to_pylist()
    ]
    table = make_table(spark, own, given[1:])
    ordered = order(table, protocol="fifo", processes=view.names, partition_by="__place")
    assert ordered.columns == [*table.columns, "position", "waits_for"]
    found = ordered.collect()
    assert {tuple(map(str, row[:5])) for row in found} == {tuple(map(str, row)) for row in given[1:]}
    assert all(list(row[5:-2]) == table.columns[5:] for row in found)
    [lost] = missing(ordered).collect()
    assert (lost["__place"], lost["receiver"], lost["sender"], lost["first"]) == ("r", *given[0][:3])


def test_order_of_a_trace(spark):
    own = {field.name: field.dataType.simpleString() for field in SPARK_EVENTS}
    rows = [
        ("r", "x", 1, "deliver", "y", 1, None, False, 4, 3, None, None, None),
        ("r", "x", 0, "send", "x", 1, ["y"], False, 2, 0, None, None, None),
    ]
    for clocks in ((3, 0), (None, None)):
        given = [(*row[:9], clock, *row[10:]) for row, clock in zip(rows, clocks, strict=True)]
        table = make_table(spark, own, given)
        ordered = order(Trace.of(table))
        assert ordered.columns == [*table.columns, "position", "waits_for"]
        found = ordered.orderBy("position").collect()
        assert [row["index"] for row in found] == [0, 1]
        assert all(list(row[len(own) : -2]) == table.columns[len(own) :] for row in found)


@pytest.mark.parametrize("full", [1_000_000, 1])
def test_verify_by_causes(spark, full):
    part = "__id"
    own = {part: "string", "event": "string", "after": "array<string>", "to": "string", "at": "long"}
    rows = [
        ("t", "b", ["a"], "c", 1),
        ("t", "a", None, "c", 2),
        ("t", "e", ["z"], "c", 3),
        (None, "a", [], "c", 1),
    ]
    table = make_table(spark, own, rows)
    found = verify_causes(table, ByCauses("event", "after", (part, *PARTITIONS[1:]), "at"), "to", full=full)
    try:
        told = {(row["kind"], row[part], row["id"], row["by"]) for row in found.findings.collect()}
        assert told == {("violation", "t", "a", "b"), ("missing", "t", "z", "e")}
        assert {(row[part], row["verdict"]) for row in found.partitions.collect()} == {
            ("t", "no"),
            (None, "unknown"),
        }
        assert [row[part] for row in found.examples(5)] == ["t", "t"]
    finally:
        found.release()


def test_columns_that_differ_in_case_are_two(spark):
    rows = [("b", "a", "X", 1), ("a", None, "X", 2)]
    table = spark.createDataFrame(rows, "id string, after string, ID string, at long")
    ordered = order(table, id="id", causes="after")
    assert [tuple(row[:5]) for row in ordered.collect()] == [("a", None, "X", 2, 0), ("b", "a", "X", 1, 1)]
    found = verify(table, id="id", causes="after", consumer="ID", position="at")
    assert (found.verdict, found.counts["violations"]) == ("no", 1)
    found.release()


@pytest.mark.parametrize("name", ["position", "Position", "WAITS_FOR"])
def test_a_column_that_is_added_is_refused_in_any_case(spark, name):
    table = spark.createDataFrame([("a", None, 1)], f"id string, causes string, {name} long")
    with pytest.raises(BadParameter, match=f"has a column {name}"):
        order(table, id="id", causes="causes")


def test_partitions_cannot_be_named_as_what_is_told_of_them(spark, tmp_path):
    table = spark.createDataFrame([("a", None, 1)], "id string, causes string, Rows long")
    with pytest.raises(BadParameter, match="partition_by cannot be Rows"):
        order(table, id="id", causes="causes", partition_by="Rows")
    write_ordered(order(table, id="id", causes="causes"), tmp_path / "out")
