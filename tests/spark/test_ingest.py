"""Foreign logs on Spark: what is read, what is rejected, what is a trace and what is unknown."""

import gzip
import io
import json
from pathlib import Path

import pytest

from antecede.errors import BadParameter
from antecede.oracle import check
from antecede.trace import events_of, read_runs
from antecede.trace.foreign import lines

LOGS = Path(__file__).parents[3] / "shared" / "data" / "logs"
real = pytest.mark.skipif(not LOGS.is_dir(), reason=f"no logs at {LOGS}: they are no part of the project")


def event(process, tag, clock, token=None):
    body = {"Token": token} if token else {}
    return json.dumps(
        {"TracerIdentity": process, "TraceID": 1, "Tag": tag, "Body": body, "VectorClock": clock}
    )


def send(process, token, clock):
    return event(process, "GenerateTokenTrace", clock, token)


def deliver(process, token, clock):
    return event(process, "ReceiveTokenTrace", clock, token)


GOOD = [
    send("ann", "t1", {"ann": 1}),
    event("ann", "Think", {"ann": 2}),
    send("ann", "t2", {"ann": 3}),
    deliver("bob", "t1", {"bob": 1, "ann": 1}),
    deliver("bob", "t2", {"bob": 2, "ann": 3}),
    deliver("eve", "t2", {"eve": 1, "ann": 3}),
]

# Everything that can be wrong with a log that can be read.
ODD = [
    send("ann", "t1", {"ann": 1}),
    "nonsense",
    "",
    send("ann", "t1", {"ann": 2}),  # the same message again
    send("ann", "lost", {"ann": 3}),
    deliver("bob", "t1", {"bob": 1, "ann": 1}),
    deliver("bob", "never sent", {"bob": 2, "ann": 1}),
    event("bob", "Think", {"bob": 4, "ann": 1}),  # one is missing
    '{"TracerIdentity": "bob"}',
]


@pytest.fixture(scope="module")
def written(spark, tmp_path_factory):
    """Two logs, read and written together."""
    from antecede.spark.ingest.api import ingest

    place = tmp_path_factory.mktemp("logs [1] {x}")
    (place / "good.jsonl").write_text("\n".join(GOOD) + "\n")
    (place / "odd %20.jsonl").write_text("\n".join(ODD))
    return ingest(spark, place, "tracing").write(tmp_path_factory.mktemp("out") / "trace"), place


def test_every_line_is_in_the_log_or_rejected(written):
    read, place = written
    log = {(row["run"], row["line"]) for row in read.log.collect()}
    bad = {(row["run"], row["line"]): row for row in read.rejected.collect()}
    assert log == {("good.jsonl", n) for n in range(1, 7)} | {
        ("odd %20.jsonl", n) for n in (1, 4, 5, 6, 7, 8)
    }
    assert {at: (row["text"], row["reason"][:20]) for at, row in bad.items()} == {
        ("odd %20.jsonl", 2): ("nonsense", "no event in JSON: JS"),
        ("odd %20.jsonl", 4): ("GenerateTokenTrace", "its message was sent"),
        ("odd %20.jsonl", 9): (ODD[8], "no event in JSON: Ob"),
    }
    assert {row["file"] for row in bad.values()} == {f"file:{place}/odd %20.jsonl"}


def test_what_was_written_is_a_trace_that_the_oracle_reads(written):
    read, _ = written
    path = read.path.removeprefix("file:")
    good, odd = read_runs(path)
    assert (good.run, good.processes, good.parameters) == (
        "good.jsonl",
        ("ann", "bob", "eve"),
        {"format": "tracing"},
    )
    verdict = check(events_of(path, "good.jsonl"))
    assert (verdict.violations, verdict.undelivered, verdict.unsent) == ((), (), ())
    assert odd.processes == ("(nobody)", "ann", "bob")
    assert odd.parameters["unknown"] == (
        "a message was delivered nowhere, and the log does not say to whom it was sent; "
        "3 lines could not be read; an entry of a clock is wrong"
    )
    assert len(check(events_of(path, "odd %20.jsonl")).unsent) == 1


def test_messages_become_sender_and_number(written):
    read, _ = written
    rows = read.events.where("run = 'good.jsonl'").orderBy("clock", "process").collect()
    assert [
        (row["process"], row["index"], row["kind"], row["sender"], row["number"], row["to"], row["clock"])
        for row in rows
    ] == [
        ("ann", 0, "send", "ann", 1, ["bob"], 1),
        ("bob", 0, "deliver", "ann", 1, None, 2),
        ("ann", 1, "send", "ann", 2, ["bob", "eve"], 3),
        ("eve", 0, "deliver", "ann", 2, None, 4),
        ("bob", 1, "deliver", "ann", 2, None, 5),
    ]


def test_where_clocks_are_wrong_they_order_nothing(written):
    read, _ = written
    assert [(row["run"], row["kind"], row["found"], row["expected"]) for row in read.clocks.collect()] == [
        ("odd %20.jsonl", "gap", 4, 3)
    ]
    assert {row["clock"] for row in read.events.where("run != 'good.jsonl'").collect()} == {None}


def test_counts(written):
    read, _ = written
    counts = read.counts()
    assert (counts.runs, counts.events, counts.rejected, counts.clocks) == (2, 12, 3, 1)
    assert (counts.messages, counts.unknown) == (4, 1)


def test_nothing_is_left_where_something_is(spark, written):
    from antecede.spark.ingest.api import ingest

    read, place = written
    with pytest.raises(BadParameter, match="is there already"):
        ingest(spark, place, "tracing").write(read.path)


def test_tasks_write_what_this_process_writes(spark, written, tmp_path, monkeypatch):
    """Small logs are read, and few events written, without a task: the same trace, byte for byte."""
    from antecede.spark.ingest import rows, to_trace
    from antecede.spark.ingest.api import ingest

    read, place = written
    monkeypatch.setattr(rows, "SMALL_BYTES", 0)
    monkeypatch.setattr(to_trace, "FEW", 0)
    by_tasks = ingest(spark, place, "tracing").write(tmp_path / "out")
    assert by_tasks.counts() == read.counts()
    for name in ("log", "rejected", "clocks"):
        assert rows_of(getattr(by_tasks, name)) == rows_of(getattr(read, name))
    here, there = Path(read.path.removeprefix("file:")), tmp_path / "out"
    files = {str(file.relative_to(here)) for file in [here / "runs.parquet", *here.glob("events/*.parquet")]}
    assert files == {"runs.parquet", "events/00000.parquet", "events/00000-unordered.parquet"}
    assert all((here / name).read_bytes() == (there / name).read_bytes() for name in files)


def rows_of(table):
    rows = [row.asDict(recursive=True) for row in table.collect()]
    return sorted(rows, key=lambda row: (row["run"], row["line"]))


def test_files_of_any_storage_are_read_with_exact_line_numbers(spark, tmp_path, monkeypatch):
    from antecede.spark.ingest import rows
    from antecede.trace.foreign.shiviz import Expressions

    text = "\n".join(
        line for number in range(1, 60) for line in (event("ann", "x", {"ann": number}), "?", "")
    )
    (tmp_path / "a.jsonl").write_text(text)
    (tmp_path / "b.jsonl").write_text(text[:50])
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    expected = []
    for name in ("a.jsonl", "b.jsonl", "c.jsonl.gz"):
        data = text[:50].encode() if name == "b.jsonl" else text.encode()
        for batch in lines.read(io.BytesIO(data), f"file:{tmp_path}/{name}", name, lines.read_tracing):
            expected += batch.to_pylist(maps_as_pydicts="strict")
    source = rows.list_log_files(spark, [tmp_path], "tracing", Expressions())
    here = rows.read_here(spark, source)
    assert here is not None
    assert rows_of(here) == expected
    assert rows_of(rows.read_log_files(spark, source)) == expected
    # Many files share a task.
    monkeypatch.setattr(rows, "TASKS", 2)
    assert [len(own) for own in source.deal()] == [2, 1]
    assert rows_of(rows.read_log_files(spark, source)) == expected
    # Storage that only Spark can open gives the same.
    monkeypatch.setattr(rows, "readable", lambda path: False)
    assert rows_of(rows.read_log_files(spark, source)) == expected


TABLE = """where,what,id,at,note
ann,SEND,m1,10,hello
bob,deliver,m1,20,
bob,shouts,m1,30,
,send,m2,30,
ann,send,m2,late,
"""


def test_a_table_with_other_names(spark, tmp_path):
    from antecede.spark.ingest.api import ingest

    (tmp_path / "t.csv").write_text(TABLE)
    mapping = {"process": "where", "kind": "what", "message": "id", "time_ns": "at"}
    read = ingest(spark, tmp_path / "t.csv", "table", mapping=mapping).write(tmp_path / "out")
    assert sorted(row["reason"] for row in read.rejected.collect()) == [
        "it has no process",
        "its kind is none of send, receive and deliver: shouts",
        "its time_ns is not a time: late",
    ]
    events = sorted(read.events.collect())
    assert [(row["run"], row["process"], row["kind"], row["time_ns"], row["to"]) for row in events] == [
        ("t.csv", "ann", "send", 10, ["bob"]),
        ("t.csv", "bob", "deliver", 20, None),
    ]
    assert check(events_of(tmp_path / "out", "t.csv")).violations == ()


def test_a_table_with_the_identities_of_a_trace(spark):
    from antecede.spark.ingest.api import ingest_table

    columns = "r string, p string, i bigint, k string, s string, n int, dest array<string>, v map<string,int>"
    rows = [
        ("one", "ann", 3, "send", "ann", 7, ["bob", "eve"], {"ann": 1}),
        ("one", "bob", 5, "deliver", "ann", 7, None, {"ann": 1, "bob": 1}),
    ]
    mapping = dict(
        zip(("run", "process", "index", "kind", "sender", "number", "to", "vector"), "rpiks", strict=False)
    )
    mapping |= {"number": "n", "to": "dest", "vector": "v"}
    read = ingest_table(spark.createDataFrame(rows, columns), mapping)
    assert [
        (row["index"], row["sender"], row["number"], row["to"]) for row in sorted(read.events.collect())
    ] == [
        (0, "ann", 7, ["bob", "eve"]),
        (0, "ann", 7, None),
    ]


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"paths": "nowhere.log", "format": "shiviz"}, "nowhere.log must be a file"),
        ({"paths": "x", "format": "csv"}, "format must be one of shiviz, .*, not 'csv'"),
        ({"paths": "x", "format": "tracing", "pattern": "x"}, "pattern is for shiviz, not for tracing"),
        ({"paths": "x", "format": "shiviz", "pattern": "("}, "a regular expression"),
        ({"paths": "x", "format": "table"}, "a table needs map"),
        ({"paths": [], "format": "shiviz"}, "name one file or more"),
    ],
)
def test_a_wrong_request_is_refused(spark, arguments, wrong):
    from antecede.spark.ingest.api import ingest

    with pytest.raises(BadParameter, match=wrong):
        ingest(spark, **arguments)


@pytest.mark.parametrize(
    ("mapping", "wrong"),
    [
        ({"process": "x"}, "the table has no such column; its columns are p, t"),
        ({"place": "p"}, "one of run, process"),
        ({"time_ns": "t"}, "map must name the column for process: where each event happened"),
        ({"process": "p"}, "index, vector, clock or time_ns"),
        ({"process": "p", "time_ns": "t", "sender": "p"}, "both, or message"),
    ],
)
def test_a_mapping_that_cannot_be_is_refused(spark, mapping, wrong):
    from antecede.spark.ingest.api import ingest_table

    with pytest.raises(BadParameter, match=wrong):
        ingest_table(spark.createDataFrame([], "p string, t bigint"), mapping)


CHORD = r"(?<host>\S*) (?<clock>{.*})\n(?<event>.*)"


@real
@pytest.mark.parametrize(
    ("name", "format", "pattern", "events", "unknown"),
    [("chord.log", "shiviz", CHORD, 1235, 1), ("tracing-example1.jsonl", "tracing", None, 809, 0)],
)
def test_real_logs_are_consistent(spark, tmp_path, name, format, pattern, events, unknown):
    from antecede.spark.ingest.api import ingest

    counts = ingest(spark, LOGS / name, format, pattern=pattern).write(tmp_path / "out").counts()
    assert (counts.events, counts.rejected, counts.clocks, counts.unknown) == (events, 0, 0, unknown)
    if not unknown:
        verdict = check(events_of(tmp_path / "out", name))
        assert (verdict.violations, verdict.fifo_breaks, verdict.undelivered) == ((), (), ())


SCRIPT = """
import sys
from antecede.spark.ingest import rows, to_trace
from antecede.spark.ingest.api import ingest
# What is small is read and written by this process: here tasks are to do it.
rows.SMALL_BYTES = to_trace.FEW = 0
read = ingest(spark, sys.argv[1], "tracing").write(sys.argv[2])
print(read.counts())
"""


@pytest.mark.parametrize("where", ["on_cluster", "on_connect"])
def test_on_other_kinds_of_spark_it_is_the_same(where, request, written, tmp_path):
    read, place = written
    told = request.getfixturevalue(where)(SCRIPT, place, tmp_path / "out")
    assert told.strip().splitlines()[-1] == str(read.counts())


# What was wrong with tables


def ingest_rows(spark, rows, columns, *names, **more):
    from antecede.spark.ingest.api import ingest_table

    mapping = dict(name.split("=") for name in names)
    return ingest_table(spark.createDataFrame(rows, columns), mapping, **more)


@pytest.mark.parametrize(
    ("kind", "times"),
    [
        ("timestamp", ["2023-01-29 08:43:00.000001", "2023-01-29 08:43:00.000002"]),
        ("timestamp_ntz", ["2023-01-29 08:43:00.000001", "2023-01-29 08:43:00.000002"]),
        ("string", ["2023-01-29T08:43:00.000001Z", "2023-01-29T09:43:00.000002+01:00"]),
        ("string", ["1674981780000001000", "1674981780000002000"]),
    ],
)
def test_times_of_any_type_keep_their_fractions(spark, kind, times):
    from antecede.spark.ingest.api import ingest_table

    table = spark.createDataFrame(
        [("p", "send", times[1]), ("p", "deliver", times[0])], "p string, k string, t string"
    )
    table = table.withColumn("t", table["t"].cast(kind))
    read = ingest_table(table, {"process": "p", "kind": "k", "time_ns": "t"})
    assert sorted((row["index"], row["kind"], row["time_ns"]) for row in read.log.collect()) == [
        (0, "deliver", 1674981780000001000),
        (1, "send", 1674981780000002000),
    ]


def test_text_has_times_to_the_nanosecond(spark):
    rows = [("p", "2023-01-29T08:43:00.123456789Z"), ("p", "2023-01-29T08:43:00.1234567Z"), ("p", "noon")]
    read = ingest_rows(spark, rows, "p string, t string", "process=p", "time_ns=t")
    assert sorted(row["time_ns"] % 10**9 for row in read.log.collect()) == [123456700, 123456789]
    assert [row["reason"] for row in read.rejected.collect()] == ["its time_ns is not a time: noon"]


def test_ties_are_counted_and_settled_by_the_rule(spark, tmp_path):
    from antecede.spark.ingest.api import ingest

    lines = [
        "p,send,m2,5,z",
        "p,,,5,y",
        "p,deliver,m1,5,x",
        "p,send,m3,5,a",
        "q,send,m1,4,b",
        "q,deliver,m2,9,c",
    ]
    (tmp_path / "t.csv").write_text("p,k,m,t,note\n" + "\n".join(lines))
    mapping = {"process": "p", "kind": "k", "message": "m", "time_ns": "t", "text": "note"}
    for setting in ("true", "false"):
        spark.conf.set("spark.sql.adaptive.enabled", setting)
        try:
            read = ingest(spark, tmp_path / "t.csv", "table", mapping=mapping).write(tmp_path / setting)
        finally:
            spark.conf.unset("spark.sql.adaptive.enabled")
        rows = read.log.where("process = 'p'").orderBy("index").collect()
        assert [row["text"] for row in rows] == ["x", "y", "z", "a"]
        assert read.counts().tied == 3
        assert json.loads(read.runs.collect()[0]["parameters"])["tied"] == 3


def test_a_repeated_index_is_refused_whatever_the_plan_is(spark):
    """S20: rows of one index came in an order that changed with the plan."""
    rows = [("p", 3, "b"), ("p", 3, "a"), ("p", 4, "c"), ("q", 3, "d")]
    told = []
    for setting in ("true", "false"):
        spark.conf.set("spark.sql.adaptive.enabled", setting)
        try:
            read = ingest_rows(spark, rows, "p string, i int, n string", "process=p", "index=i", "text=n")
            told.append(
                (
                    sorted(row["text"] for row in read.log.collect()),
                    [(row["text"], row["reason"]) for row in read.rejected.collect()],
                )
            )
        finally:
            spark.conf.unset("spark.sql.adaptive.enabled")
    [first, second] = told
    assert first == second
    assert first == (
        ["a", "c", "d"],
        [('{"p":"p","i":3,"n":"b"}', "its index is that of another row of its process: 3")],
    )


def test_each_file_of_a_table_is_a_run(spark, tmp_path):
    from antecede.spark.ingest.api import ingest

    place = tmp_path / "a b%20"
    place.mkdir()
    for name in ("x 1.csv", "y.csv"):
        (place / name).write_text("p,t\np,1\n")
    (place / "z.csv.gz").write_bytes(gzip.compress(b"p,t\nq,1\n"))
    mapping = {"process": "p", "time_ns": "t"}
    read = ingest(spark, place, "table", mapping=mapping).write(tmp_path / "out")
    assert sorted(row["run"] for row in read.runs.collect()) == ["x 1.csv", "y.csv", "z.csv.gz"]
    assert {row["file"] for row in read.log.where("run = 'x 1.csv'").collect()} == {f"file:{place}/x 1.csv"}
    one = ingest(spark, place, "table", mapping=mapping, run="all")
    assert [(row["run"], row["count"]) for row in one.log.groupBy("run").count().collect()] == [("all", 3)]


def test_an_empty_table_is_named(spark, tmp_path):
    from antecede.errors import BadTrace
    from antecede.spark.ingest.api import ingest

    (tmp_path / "t.csv").write_text("")
    with pytest.raises(BadTrace, match=r"t\.csv: the file is empty; its first line"):
        ingest(spark, tmp_path / "t.csv", "table", mapping={"process": "p", "time_ns": "t"})


def test_a_table_of_another_library_is_refused_by_name():
    import pandas as pd

    from antecede.spark.ingest.api import ingest_table

    with pytest.raises(BadParameter, match="the table must be a Spark DataFrame, not a DataFrame of pandas"):
        ingest_table(pd.DataFrame({"p": ["a"]}), {"process": "p"})  # type: ignore[arg-type]


def test_a_null_entry_of_a_vector_is_refused(spark):
    rows = [("p", {"p": 1, "q": None}), ("p", {"p": 2, "q": -1}), ("p", {"p": 1})]
    read = ingest_rows(spark, rows, "p string, v map<string,int>", "process=p", "vector=v")
    assert [row["index"] for row in read.log.collect()] == [0]
    assert {row["reason"] for row in read.rejected.collect()} == {
        "its clock has an entry that is no number of 0 or more"
    }


def test_a_trace_that_was_written_says_its_order(written):
    """S14: verify took its slow path on every trace that came from a log."""
    from antecede.spark.trace import Trace
    from antecede.trace.plan import plan

    read, _ = written
    trace = Trace.read(read.log.sparkSession, read.path)
    runs = [row["run"] for row in read.runs.collect()]
    assert trace.files is not None
    ways = plan(trace.files, runs).ways
    assert ways == {"good.jsonl": "sequence", "odd %20.jsonl": "pack"}
