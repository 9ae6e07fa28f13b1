"""`antecede order --stream` as scripts see it, and patience and the listener on a running query."""

import json
import subprocess
import sys
import time
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs

pytest.importorskip("pyspark")

from antecede.errors import BadParameter
from antecede.sim.run import RunSpec
from antecede.spark import order
from antecede.spark.order.files import Source, order_files
from antecede.spark.stream import Watch, simulated, waiting
from antecede.spark.stream.api import Asked

SCHEMA = "receiver string, sender string, number long, stamp binary, payload binary, arrival long"


def antecede(*arguments):
    command = [sys.executable, "-c", "from antecede.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def incomplete(directory):
    """Packets of a run, but for the first."""
    view, rows = simulated(RunSpec(protocol="matrix", processes=3, messages=60, seed=7))
    directory.mkdir()
    pq.write_table(rows.slice(1), directory / "0.parquet")
    return view, rows


def test_a_stream_with_a_missing_cause_is_answered_with_no_and_how_many_wait(warm, tmp_path):
    incomplete(tmp_path / "in")
    options = ["--stream", "--once", "--protocol", "matrix", "--processes", "3", "--json"]
    done = warm("order", tmp_path / "in", "--out", tmp_path / "out", *options)
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert told["verdict"] == "no"
    assert told["delivered"] + told["waiting"] == 59
    assert told["waiting"] > 0
    assert f"no: {told['waiting']} wait for causes that have not come" in done.stderr
    assert pq.read_table(tmp_path / "out" / "delivered").num_rows == told["delivered"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--processes", "3"], "order --stream: --protocol is missing"),
        (["--protocol", "fifo"], "order --stream: --processes is missing"),
        (
            ["--protocol", "fifo", "--processes", "3", "--every", "0"],
            "--every must be more than 0 seconds, not 0.0",
        ),
        (
            ["--protocol", "fifo", "--processes", "3", "--group", "a,b"],
            "--partition-by takes one column with stamps, not a,b",
        ),
    ],
)
def test_a_wrong_request_is_refused_before_spark_starts(tmp_path, options, told):
    done = antecede("order", tmp_path, "--stream", "--out", tmp_path / "out", *options)
    assert done.returncode == 2
    assert told in done.stderr
    assert not (tmp_path / "out").exists()


def test_patience_ends_while_nothing_comes(spark, tmp_path):
    view, rows = incomplete(tmp_path / "in")
    seen: list[Any] = []
    watch = Watch(seen.append)
    spark.streams.addListener(watch)
    stream = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in"))
    writer = order(
        stream, protocol="matrix", processes=view.names, buckets=2, patience="500 milliseconds"
    ).writeStream
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(str(tmp_path / "out"))
    try:
        deadline = time.monotonic() + 120
        while not (seen and seen[-1].status.held == 0 and sum(p.status.delivered for p in seen) == 59):
            assert query.exception() is None
            assert time.monotonic() < deadline, seen[-3:]
            time.sleep(0.1)
    finally:
        query.stop()
        spark.streams.removeListener(watch)
    assert sum(p.status.gave_up for p in seen) > 0
    lost = rows.slice(0, 1).to_pylist()[0]
    out = spark.read.parquet(str(tmp_path / "out")).where("size(waits_for) > 0").toArrow().to_pylist()
    assert all(row["receiver"] == lost["receiver"] for row in out)
    assert {cause["sender"] for row in out for cause in row["waits_for"]} == {lost["sender"]}


def test_a_hot_monitor_is_ordered_by_closed_sets(spark, tmp_path):
    view, rows = simulated(RunSpec(protocol="monitor", processes=4, messages=80, seed=2))
    hot = rows.filter(pa.compute.equal(rows["receiver"], "p1"))
    (tmp_path / "in").mkdir()
    pq.write_table(hot, tmp_path / "in" / "0.parquet")
    source = Source(
        str(tmp_path / "in"), Asked(protocol="monitor", processes=view.names), by="closed", receiver="p1"
    )
    outcome = order_files(spark, source, tmp_path / "out", tmp_path / "checkpoint", once=True)
    assert (outcome.complete, outcome.delivered, outcome.batches) == (True, len(hot), 1)
    assert spark.conf.get("spark.sql.streaming.noDataMicroBatches.enabled") == "true", (
        "the session is as it was"
    )
    with pytest.raises(BadParameter, match="--by closed needs a --receiver"):
        order_files(spark, structs.replace(source, receiver=None), tmp_path / "o", tmp_path / "c", once=True)


def test_events_of_files_are_ordered_by_their_causes(spark, warm, tmp_path):
    (tmp_path / "in").mkdir()
    lines = [{"room": "a", "id": "m2", "after": ["m1"]}, {"room": "a", "id": "m3", "after": "m2"}]
    (tmp_path / "in" / "0.json").write_text("\n".join(map(json.dumps, lines)))
    request = [
        "order",
        tmp_path / "in",
        "--id",
        "id",
        "--causes",
        "after",
        "--partition-by",
        "room",
        "--stream",
    ]
    request += ["--once", "--json", "--out", tmp_path / "out"]
    done = warm(*request)
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert (told["verdict"], told["delivered"], told["waiting"]) == ("no", 0, 2)
    held = waiting(spark, tmp_path / "out" / "checkpoint").orderBy("sender").toArrow().to_pylist()
    assert [(row["sender"], row["awaits"][0]["sender"]) for row in held] == [("m2", "m1"), ("m3", "m1")]
    later = {"room": "a", "id": "m1", "mood": {"good": True}}
    (tmp_path / "in" / "1.json").write_text(f"{json.dumps(later)}\n")
    done = warm(*request)
    assert done.returncode == 0, done.stderr
    rows = pq.read_table(tmp_path / "out" / "delivered").sort_by("position").to_pylist()
    assert [(row["id"], row["kind"]) for row in rows] == [(id, "delivered") for id in ("m1", "m2", "m3")]
    assert [row["after"] for row in rows] == [None, '["m1"]', "m2"]
    assert [row["_rescued"] for row in rows] == ['{"mood":"{\\"good\\":true}"}', None, None]
    done = warm(*request[:4], "--causes", "room", *request[6:])
    assert done.returncode == 2
    assert "of a query with causes after" in done.stderr


def test_a_line_that_is_no_json_goes_through_and_is_told(spark, warm, tmp_path):
    (tmp_path / "in").mkdir()
    lines = ['{"id": "a"}', '{"id": "b", "after', '{"id": "c", "mood": "{"}', "[1]"]
    (tmp_path / "in" / "0.json").write_text("\n".join(lines))
    request = ["order", tmp_path / "in", "--id", "id", "--causes", "after", "--stream", "--once", "--json"]
    (tmp_path / "in" / "1.json").write_text('{"id": "d", "after": "a"}\n')
    done = warm(*request, "--out", tmp_path / "out")
    assert done.returncode == 1, done.stderr
    assert "no: 2 lines are no JSON (column _rescued); 5 rows in 1 micro-batch" in done.stderr
    told = json.loads(done.stdout)
    assert (told["verdict"], told["delivered"], told["broken"], told["waiting"]) == ("no", 5, 2, 0)
    (tmp_path / "out" / "checkpoint" / "totals.json").unlink()
    again = warm(*request, "--out", tmp_path / "out")
    assert json.loads(again.stdout)["broken"] == 2, "counted in what is written"


def test_packets_in_files_keep_the_columns_of_their_owner(warm, tmp_path):
    _, rows = simulated(RunSpec(protocol="matrix", processes=3, messages=40, seed=7))
    (tmp_path / "in").mkdir()
    notes = [f"note {at}" for at in range(len(rows))]
    mine = rows.append_column("a note", pa.array(notes)).append_column("at.ms", rows["arrival"])
    mine = mine.rename_columns(["clock" if name == "stamp" else name for name in mine.column_names])
    pq.write_table(mine.drop_columns(["arrival"]).slice(20), tmp_path / "in" / "0.parquet")
    request = ["order", tmp_path / "in", "--protocol", "matrix", "--processes", "3", "--stamp", "clock"]
    request += ["--time", "at.ms", "--stream", "--once", "--out", tmp_path / "out"]
    assert warm(*request).returncode == 1
    pq.write_table(mine.slice(0, 20), tmp_path / "in" / "1.parquet")
    done = warm(*request)
    assert done.returncode == 0, done.stderr
    out = pq.read_table(tmp_path / "out" / "delivered").to_pylist()
    named = [{name: row[name] for name in ("sender", "number", "a note", "at.ms")} for row in out]
    expected = mine.select(["sender", "number", "a note", "at.ms"]).to_pylist()
    assert sorted(named, key=str) == sorted(expected, key=str)


def test_a_word_that_is_missing_everywhere_may_mean_no_cause(warm, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.csv").write_text("room,id,after\na,m1,root\nb,m2,root\n")
    request = ["order", tmp_path / "in", "--id", "id", "--causes", "after", "--partition-by", "room"]
    done = warm(*request, "--stream", "--once", "--out", tmp_path / "out")
    assert done.returncode == 1
    told, advice = done.stderr.splitlines()[-2:]
    assert "(2 messages hold up 2: root)" in told
    assert advice == "if root means that a row has no cause, add --no-cause root, with another --out"
    done = warm(*request, "--stream", "--once", "--out", tmp_path / "out", "--no-cause", "root")
    assert done.returncode == 2
    assert "give the query the same, or a new checkpoint and output" in done.stderr


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_text_that_is_not_utf_8_is_refused_by_name(warm, tmp_path, kind):
    """Read as UTF-8, both identifiers were one."""

    def write(name, ids, encoding):
        lines = [
            f"{id}," if kind == "csv" else json.dumps({"e": id, "after": ""}, ensure_ascii=False)
            for id in ids
        ]
        lines = ["e,after", *lines] if kind == "csv" else lines
        (tmp_path / "in" / name).write_bytes("\n".join(lines).encode(encoding))

    (tmp_path / "in").mkdir()
    write(f"1.{kind}", ["ß", "ü"], "utf-8")
    request = (
        "order",
        tmp_path / "in",
        "--id",
        "e",
        "--causes",
        "after",
        "--out",
        tmp_path / "out",
        "--stream",
    )
    done = warm(*request, "--once")
    assert done.returncode == 0, done.stderr
    assert sorted(pq.read_table(tmp_path / "out" / "delivered")["e"].to_pylist()) == ["ß", "ü"]
    write(f"2.{kind}", ["ä", "ö"], "latin-1")
    done = warm(*request, "--once")
    assert done.returncode == 2
    assert f"2.{kind}: the text is not UTF-8: convert it" in done.stderr.splitlines()[-1]
    # The name stays, the bytes are repaired: the stream goes on.
    write(f"2.{kind}", ["ä", "ö"], "utf-8")
    assert warm(*request, "--once").returncode == 0
    assert sorted(pq.read_table(tmp_path / "out" / "delivered")["e"].to_pylist()) == ["ß", "ä", "ö", "ü"]


def test_a_cycle_is_told_id_by_id(warm, tmp_path):
    (tmp_path / "in").mkdir()
    rows = [{"id": "a", "after": ["b"]}, {"id": "b", "after": ["a"]}, {"id": "c", "after": []}]
    (tmp_path / "in" / "0.json").write_text("\n".join(map(json.dumps, rows)))
    request = ["order", tmp_path / "in", "--id", "id", "--causes", "after", "--stream", "--once", "--json"]
    done = warm(*request, "--out", tmp_path / "out")
    assert done.returncode == 1, done.stderr
    words = (
        "no: 2 wait for causes that form a cycle or have not come (1 cycle holds up 2: a -> b -> a); 1 row in"
    )
    assert words in done.stderr
    told = json.loads(done.stdout)
    assert (told["waiting"], told["cycles"], told["delivered"]) == (2, 1, 1)
    again = warm(*request, "--out", tmp_path / "out")
    assert words in again.stderr, "nothing came, and it is told from the checkpoint"


def test_patience_with_causes_ends_while_nothing_comes(spark, tmp_path):
    """The session of the query ran no empty micro-batches, so nothing was given up until a file came."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text('{"id": "b", "after": "a"}')
    seen: list[Any] = []
    source = Source(str(tmp_path / "in"), Asked(id="id", causes="after", patience="500 milliseconds"))
    deadline = time.monotonic() + 120
    outcome = order_files(
        spark,
        source,
        tmp_path / "out",
        tmp_path / "checkpoint",
        every=0.2,
        stop=lambda: time.monotonic() > deadline or any(told.status.gave_up for told in seen),
        note=seen.append,
    )
    assert (outcome.released, outcome.waiting) == (1, 0)


def test_events_of_files_are_ordered_by_their_vectors(warm, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.csv").write_text('who,clock\nbob,"{""ann"": 1, ""bob"": 1}"\nann,"{""ann"": 1}"\n')
    request = ["order", tmp_path / "in", "--process", "who", "--vector", "clock", "--stream", "--once"]
    done = warm(*request, "--out", tmp_path / "out", "--patience", "1 hour")
    assert done.returncode == 0, done.stderr
    rows = pq.read_table(tmp_path / "out" / "delivered").sort_by("position").to_pylist()
    assert [row["who"] for row in rows] == ["ann", "bob"]
    done = warm(*request, "--out", tmp_path / "other", "--patience", "soon")
    assert done.returncode == 2
    assert "--patience must be a time such as 30 seconds or 7 days, not 'soon'" in done.stderr
