"""Columns of a user in a stream: whatever they are called and hold, they stay, and tell partitions apart."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from antecede.errors import BadParameter
from antecede.spark import order
from tests.spark.killed_streams import remember_causes, write

OURS = (
    "__id", "__causes", "__partition", "__time", "__key 0", "__since", "__row", "__mark", "__sender", "__stamp",
    "user id", "user who", "rows", "bucket", "status", "a.b", "tick`s", "100 %", "%60",
)  # fmt: skip
"""Names that a stream uses itself, and some that have to be quoted."""
MAP = pa.map_(pa.string(), pa.int64())
BY_CAUSES = pa.table({"id": [2, 1], "after": ["1", None]})
BY_VECTORS = pa.table(
    {"who": ["b", "a"], "clock": pa.array([[("a", 1), ("b", 1)], [("a", 1)]], MAP)},
)
BY_STAMPS = pa.table(
    {"receiver": ["b"] * 2, "sender": ["a"] * 2, "number": [2, 1], "stamp": [b"\x02\x02", b"\x02\x01"]}
)
FORMS: list[tuple[pa.Table, dict[str, Any]]] = [
    (BY_CAUSES, {"id": "id", "causes": "after"}),
    (BY_VECTORS, {"process": "who", "vector": "clock"}),
    (BY_STAMPS, {"stamp": "stamp", "protocol": "fifo", "processes": ["a", "b"]}),
]


def run(spark, home, rows, **asked):
    """What comes out of a stream of these rows, in the order of positions."""
    (home / "in").mkdir(parents=True)
    pq.write_table(rows, home / "in" / "0.parquet")
    schema = spark.read.parquet(str(home / "in")).schema
    own = remember_causes(spark)
    own.conf.set("spark.sql.session.timeZone", spark.conf.get("spark.sql.session.timeZone"))
    write(order(own.readStream.schema(schema).parquet(str(home / "in")), buckets=2, **asked), home, True)
    return pq.read_table(home / "out").sort_by("position").to_pylist()


@pytest.mark.parametrize(("rows", "asked"), FORMS, ids=["causes", "vectors", "stamps"])
def test_a_users_column_may_be_called_like_one_of_ours(spark, tmp_path, rows, asked):
    for name in OURS:
        rows = rows.append_column(name, pa.array([f"{name} of the effect", f"{name} of the cause"]))
    rows = rows.append_column("room", pa.array([1, 1])).append_column("at", pa.array([5, 4]))
    out = run(spark, tmp_path, rows, **asked, partition_by="room", time="at")
    assert [row["position"] for row in out] == [0, 1]
    for row, which in zip(out, ("cause", "effect"), strict=True):
        assert {name: row[name] for name in OURS} == {name: f"{name} of the {which}" for name in OURS}
    assert list(out[0])[: len(rows.column_names)] == rows.column_names


@pytest.mark.parametrize("source", ["range", "rate"])
def test_a_column_that_no_task_in_python_can_take_is_refused_by_name(spark, source):
    rows = spark.range(3) if source == "range" else spark.readStream.format("rate").load()
    events = rows.selectExpr("'a' as id", "null :: string as after", "interval '1' month as term")
    with pytest.raises(
        BadParameter, match="column term is interval month, which tasks in Python cannot take"
    ):
        order(events, id="id", causes="after")


def test_partitions_are_told_apart_by_what_they_are_not_by_how_they_are_written(spark, tmp_path):
    """Bytes that are no text; two instants that one clock on the wall shows alike; a zero that is negative."""
    own = spark.newSession()
    own.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    at = [datetime(2026, 10, 25, hour, 30, tzinfo=UTC) for hour in (0, 0, 1, 1)]
    rows = pa.table(
        {
            "id": ["a", "b", "a", "b"],
            "after": [None, "a", None, "a"],
            "key": pa.array([b"\xff\xfe"] * 4),
            "at": pa.array(at, pa.timestamp("us", "UTC")),
            "zero": [0.0, -0.0, -0.0, 0.0],
        }
    )
    out = run(own, tmp_path, rows, id="id", causes="after", partition_by=["key", "at", "zero"])
    assert sorted((row["at"].hour, row["id"], row["position"], row["kind"]) for row in out) == [
        (hour, id, position, "delivered") for hour in (0, 1) for position, id in enumerate("ab")
    ]


def test_a_watermark_before_an_order_does_not_reach_what_follows_it(spark, tmp_path):
    """It would never close a window there, and drop rows that waited; one of the rows that come out does neither."""
    own = remember_causes(spark)
    stream = own.readStream.schema("id string, after string, at timestamp").parquet(str(tmp_path))
    ordered = order(stream.withWatermark("at", "10 seconds"), id="id", causes="after")

    def count(rows):
        counted = rows.groupBy(F.window("at", "10 seconds")).count().writeStream.trigger(availableNow=True)
        query = counted.option("checkpointLocation", str(tmp_path / "checkpoint")).start(
            str(tmp_path / "out")
        )
        query.awaitTermination()

    with pytest.raises(AnalysisException, match="without watermark"):
        count(ordered)
    count(ordered.withWatermark("at", "10 seconds"))
