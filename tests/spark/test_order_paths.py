"""What can be ordered where: ingested logs, tables of Parquet and JSON; and what is refused."""

import gzip
import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from antecede.errors import BadParameter, BadTrace
from antecede.spark.order.api import read_form
from antecede.spark.order.files import order_path
from antecede.spark.stream.api import Asked
from antecede.spark.tables import find_undecodable

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
    found = order_path(spark, write(tmp_path), Asked())
    assert [row.process for row in found.collect()] == expected
    assert read_form(found).partition_by == group


def test_what_is_no_messages_is_refused(spark, tmp_path):
    with pytest.raises(
        BadTrace, match=r"there are no files: give a trace, an ingested log, or a table .*\.csv"
    ):
        order_path(spark, tmp_path / "absent", Asked())
    (tmp_path / "said.txt").write_text("hello\n")
    with pytest.raises(BadTrace, match=r"it has \.txt: give a trace"):
        order_path(spark, tmp_path / "said.txt", Asked())
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(BadTrace, match=r"torn\.parquet: the file is not a complete Parquet file"):
        order_path(spark, tmp_path / "torn.parquet", Asked())
    (tmp_path / "bad.jsonl").write_text("{")
    with pytest.raises(BadTrace, match="JSON Lines must have an object on each line, and there is none"):
        order_path(spark, tmp_path / "bad.jsonl", Asked())
    with pytest.raises(BadParameter, match="name columns for a table only"):
        order_path(spark, write_log(tmp_path), Asked(vector="vector"))


BROKEN = {
    "no JSON": (
        "a.jsonl",
        b'{"e": "a", "after": null}\n\n{"e": "b",\n',
        r"a\.jsonl, line 3: .* no JSON object: .*\"b\",$",
    ),
    "no object": (
        "a.jsonl",
        b'{"e": "a", "after": "", "_corrupt_record": 1}\n7\n',
        r"line 2: .* no JSON object: 7$",
    ),
    "few values": (
        "a.csv",
        b"e,after\na,\nb\n",
        r"a\.csv: the line must have as many values .*: b$",
    ),
    "a value of two lines": ("a b+c.csv", b'e,after\na,\nb,"a\nc"\n', r"quoted value must end on its line: "),
    "many values": ("a.csv", b"e,after\na,,\nb,a\n", r"a\.csv: the line must have as many values .*: a,,$"),
    "Latin-1": (
        "a.csv",
        ("e,after\n" + "a,\n" * 9999 + "ä,\nö,ä\n").encode("latin-1"),
        r"a\.csv, line 10,001: the text is not UTF-8: convert it",
    ),
    "Latin-1 in JSON": (
        "a.jsonl",
        '{"e": "b", "after": "ä"}\n{"e": "ä", "after": null}\n'.encode().replace(
            b'b", "after": "\xc3', b'b", "after": "'
        ),
        r"a\.jsonl, line 1: the text is not UTF-8: ",
    ),
    "one name twice": ("a.csv", b"e,after,E\na,,\n", r"a\.csv: .* names a column twice, e and E: rename one"),
    "one name twice in JSON": (
        "a.jsonl",
        b'{"e": "a", "after": null, "e": "b"}\n',
        r"a\.jsonl: .* as one table: there are two columns `e`: rename one",
    ),
    "no gzip": ("a.csv.gz", b"\x1f\x8b\x08\x00 and no more", r"a\.csv\.gz: .*cannot read"),
    "half a gzip": (
        "a.csv.gz",
        gzip.compress(b"e,after\n" + b"a,\n" * 9999)[:-30],
        r"a\.csv\.gz: .*cannot read",
    ),
    "half a gzip of JSON": (
        "a.json.gz",
        gzip.compress(b'{"e": 1, "after": 1}\n' * 9)[:-9],
        r"json\.gz: .*cannot",
    ),
}


@pytest.mark.parametrize(("name", "data", "told"), BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("command", ["order", "verify"])
def test_a_file_that_is_not_what_it_says_is_refused_by_name(warm, tmp_path, name, data, told, command):
    (tmp_path / name).write_bytes(data)
    more = ["--consumer", "e", "--position", "e"] if command == "verify" else []
    request = [command, tmp_path / name, "--id", "e", "--causes", "after", *more]
    done = warm(*request, "--out", tmp_path / "out")
    assert done.returncode == 2, done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith(f"antecede: {tmp_path / name}")
    assert re.search(told, line), line
    assert "Parquet" not in line
    assert not (tmp_path / "out").exists()


def test_letters_of_many_bytes_may_stand_anywhere(spark, tmp_path):
    """A file is looked at a mebibyte at a time."""
    text = "e,after\n" + "".join(f"{'ä' * (1 + at % 7)}{at},\n" for at in range(200_000))
    (tmp_path / "a.csv").write_text(text)
    assert find_undecodable(f"file:{tmp_path}/a.csv") is None
    data = text.encode()
    (tmp_path / "a.csv").write_bytes(data + b"b,\xc3")
    assert find_undecodable(f"file:{tmp_path}/a.csv") == 200_002
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(data[:-3] + b"\xff\n"))
    assert find_undecodable(f"file:{tmp_path}/a.csv.gz") == 200_001


def test_a_directory_of_csv_that_names_a_column_twice_is_refused(spark, tmp_path):
    (tmp_path / "1.csv").write_text("e,after,e\nb,a,x\n")
    with pytest.raises(BadTrace, match=r"1\.csv: the first line names a column twice, e and e: rename"):
        order_path(spark, tmp_path, Asked(id="e", causes="after"))
    # What Spark would make of it is a good name, too.
    (tmp_path / "1.csv").write_text("e0,e1,after\nb,x,a\n")
    assert order_path(spark, tmp_path, Asked(id="e0", causes="after")).count() == 1


def test_files_of_csv_with_other_columns_are_refused(warm, tmp_path):
    (tmp_path / "1.csv").write_text("e,after\nb,a\n")
    (tmp_path / "2.csv").write_text("after,e\n,a\n")
    done = warm("order", tmp_path, "--id", "e", "--causes", "after", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert re.search(
        r"antecede: /.*[12]\.csv: .*first line does not name the same columns as the other", done.stderr
    )


@pytest.mark.parametrize("time", ["Mon, 01 Jan 2024 10:00:02 +0000", "1704103200.5"])
def test_a_text_that_is_no_time_is_refused_and_not_passed_over(warm, tmp_path, time):
    (tmp_path / "a.csv").write_text(f'e,after,at\na,,\nb,,3\nc,,"{time}"\n')
    request = "order", tmp_path / "a.csv", "--id", "e", "--causes", "after", "--time", "at"
    done = warm(*request, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr == f"antecede: time: {time} is neither ISO 8601 nor an integer\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("causes", ["b,c", "b c"])
def test_causes_that_are_no_json_are_one_identifier_and_it_is_said(warm, tmp_path, causes):
    (tmp_path / "a.csv").write_text(f'e,after\nd,"{causes}"\nb,\nc,\n')
    done = warm("order", tmp_path / "a.csv", "--id", "e", "--causes", "after", "--out", tmp_path / "out")
    assert done.stderr.splitlines()[:2] == [
        f"missing: e {causes} holds up 1 row, 1 directly",
        f'{causes} is read as one identifier: several causes in a text must be a JSON array, as in ["a", "b"]',
    ]
    assert done.returncode == 1


EVENTS = [("b", ["a", "z"], "2"), ("a", [], "3"), ("c", ["b"], "1")]


def write_causes_as_json(path):
    rows = [{"e": e, "after": after or None, "at": at, "more": 1} for e, after, at in EVENTS]
    rows.append({"e": "d", "after": "c", "at": "2023-01-29T08:43:00Z"})
    (path / "said.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return path / "said.jsonl"


def write_causes_as_csv(path):
    lines = ["e,after,at"] + [
        f'{e},"{json.dumps(after).replace(chr(34), chr(34) * 2)}",{at}' for e, after, at in EVENTS
    ]
    (path / "said.csv").write_text("\n".join([*lines, "d,c,9"]))
    return path / "said.csv"


@pytest.mark.parametrize("write", [write_causes_as_json, write_causes_as_csv])
def test_causes_may_be_text(spark, tmp_path, write):
    found = order_path(spark, write(tmp_path), Asked(id="e", causes="after", time="at"))
    assert found.schema["after"].dataType.simpleString() == "string", "as it came"
    rows = [(row.e, row.position, row.waits_for) for row in found.collect()]
    assert rows == [("a", 0, []), ("b", 1, ["z"]), ("c", 2, ["z"]), ("d", 3, ["z"])]


def test_all_columns_of_json_stay_with_their_types_and_causes_as_they_came(spark, tmp_path):
    rows = [
        {"id": 3, "after": [1, 2], "price": 1.5, "who": {"name": "ann", "tags": ["x"]}, "text": "hi"},
        {"id": 2, "after": 1, "ok": True},
        {"id": 1, "after": None},
    ]
    (tmp_path / "said.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = order_path(spark, tmp_path / "said.jsonl", Asked(id="id", causes="after"))
    kinds = {field.name: field.dataType.simpleString() for field in found.schema}
    assert kinds == {
        "after": "string",
        "id": "bigint",
        "ok": "boolean",
        "price": "double",
        "text": "string",
        "who": "struct<name:string,tags:array<string>>",
        "position": "bigint",
        "waits_for": "array<string>",
    }
    told = [(row.id, row.after, row.price, row.waits_for) for row in found.collect()]
    assert told == [(1, None, None, []), (2, "1", None, []), (3, "[1, 2]", 1.5, [])]
    assert [row.who.name for row in found.where("id = 3").collect()] == ["ann"]
    (tmp_path / "lists.jsonl").write_text('{"id": "b", "after": ["a"]}\n{"id": "a", "after": []}\n')
    found = order_path(spark, tmp_path / "lists.jsonl", Asked(id="id", causes="after"))
    assert [(row.id, row.after) for row in found.collect()] == [("a", []), ("b", ["a"])]


def test_a_table_may_be_named(spark):
    spark.createDataFrame([("b", "a"), ("a", None)], "e string, after string").createOrReplaceTempView(
        "said_things"
    )
    found = order_path(spark, "said_things", Asked(id="e", causes="after"))
    assert [row.e for row in found.collect()] == ["a", "b"]


def test_all_events_of_a_log_are_ordered(spark, tmp_path):
    """Events without a kind were left out, and nothing was missing."""
    from antecede.spark.ingest.api import ingest

    lines = ["p,send,m,10", "p,,,30", "q,deliver,m,20", "q,,,5", "q,deliver,lost,40", "q,,,50"]
    (tmp_path / "t.csv").write_text("\n".join(["p,k,m,t", *lines]))
    mapping = {"process": "p", "kind": "k", "message": "m", "time_ns": "t"}
    ingest(spark, tmp_path / "t.csv", "table", mapping=mapping).write(tmp_path / "out")
    found = order_path(spark, tmp_path / "out", Asked())
    rows = [(row.process, row.time_ns, row.waits_for) for row in found.orderBy("position").collect()]
    lost = ["message lost"]
    assert rows == [
        ("q", 5, []),
        ("p", 10, []),
        ("q", 20, []),
        ("p", 30, []),
        ("q", 40, lost),
        ("q", 50, lost),
    ]
