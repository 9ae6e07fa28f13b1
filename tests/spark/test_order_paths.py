"""What can be ordered where: ingested logs, tables of Parquet and JSON; and what is refused."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from antecede.errors import BadParameter, BadTrace
from antecede.spark.order.inputs import order_path

VECTORS = [{"b": 1, "a": 1}, {"a": 1}]


def maps():
    return pa.array([list(vector.items()) for vector in VECTORS], pa.map_(pa.string(), pa.int64()))


def write_log(path):
    columns = {
        "run": ["r", "r"],
        "process": ["b", "a"],
        "index": [0, 0],
        "vector": maps(),
        "file": ["f", "f"],
    }
    (path / "log").mkdir()
    pq.write_table(pa.table(columns), path / "log" / "0.parquet")
    return path


def write_parquet(path):
    pq.write_table(pa.table({"process": ["b", "a"], "vector": maps(), "more": [1, 2]}), path / "said.parquet")
    return path / "said.parquet"


def write_objects(path):
    rows = [{"run": "r", "process": p, "vector": v} for p, v in zip("ba", VECTORS, strict=True)]
    (path / "said.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return path / "said.jsonl"


def write_arrays(path):
    rows = [{"process": 1, "vector": [1, 1]}, {"process": 0, "vector": [1, 0]}]
    (path / "part-0.json").write_text("\n".join(map(json.dumps, rows)))
    (path / "_SUCCESS").write_text("")
    return path


@pytest.mark.parametrize(
    ("write", "expected", "group"),
    [
        (write_log, ["a", "b"], ("run",)),
        (write_parquet, ["a", "b"], ()),
        (write_objects, ["a", "b"], ("run",)),
        (write_arrays, [0, 1], ()),
    ],
)
def test_a_path_is_ordered_by_what_is_there(spark, tmp_path, write, expected, group):
    found = order_path(spark, write(tmp_path))
    assert [row.process for row in found.rows.collect()] == expected
    assert (found.by, found.group) == ("vector", group)
    found.release()


def test_what_is_no_messages_is_refused(spark, tmp_path):
    with pytest.raises(BadTrace, match="found nothing, expected a trace, an ingested log, or a table"):
        order_path(spark, tmp_path / "absent")
    (tmp_path / "said.txt").write_text("hello\n")
    with pytest.raises(BadTrace, match=r"found \.txt, expected a trace"):
        order_path(spark, tmp_path / "said.txt")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(BadTrace, match=r"torn\.parquet: found no whole Parquet file"):
        order_path(spark, tmp_path / "torn.parquet")
    (tmp_path / "bad.jsonl").write_text("{")
    with pytest.raises(BadTrace, match="found a row without a name"):
        order_path(spark, tmp_path / "bad.jsonl")
    with pytest.raises(BadParameter, match="columns is named, expected them for a table only"):
        order_path(spark, write_log(tmp_path), vector="vector")
