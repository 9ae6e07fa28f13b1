"""`antecede order` as scripts see it: exit codes, one JSON object, whole outputs or none."""

import json
import subprocess
import sys
from random import Random

import pyarrow.parquet as pq
import pytest

from antecede.sim.run import RunSpec
from antecede.spark.stream.packets import simulated
from antecede.trace import RUNS, RunInfo
from antecede.trace.foreign.formats import NO_UTF8
from tests.spark.made import CYCLE, lamport, random_run, table

CLOCKED = lamport(random_run(Random(5), "r", 4, 60, orphans=0.05))


def antecede(*arguments):
    command = [sys.executable, "-c", "from antecede.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def written(directory, rows):
    (directory / "events").mkdir(parents=True)
    pq.write_table(table(rows), directory / "events" / "0.parquet")
    info = RunInfo(run="r", protocol="drawn", processes=tuple(sorted({row["process"] for row in rows})))
    pq.write_table(table([]).from_pylist([info.row()], schema=RUNS), directory / "runs.parquet")
    return directory


def test_a_trace_with_missing_sends_is_ordered_and_the_answer_is_no(tmp_path):
    done = antecede("order", written(tmp_path / "trace", CLOCKED), "--out", tmp_path / "out", "--json")
    told = json.loads(done.stdout)
    rows = pq.read_table(tmp_path / "out" / "ordered").to_pylist()
    missing = pq.read_table(tmp_path / "out" / "missing").to_pylist()
    assert done.returncode == 1
    assert told["verdict"] == "no"
    assert (told["rows"], told["missing"]) == (len(CLOCKED), len(missing))
    assert told["waiting"] == sum(bool(row["waits_for"]) for row in rows) > 0
    assert told["groups"] == [
        {"run": "r", **{key: told[key] for key in ("rows", "missing", "waiting", "direct")}}
    ]
    assert [row["position"] for row in rows] == list(range(len(CLOCKED)))
    [line] = done.stderr.splitlines()
    assert line.startswith(
        f"no: {len(missing)} missing, {told['waiting']} rows wait for them (most in run r); "
    )


def test_a_table_of_json_is_ordered_and_the_answer_is_yes(tmp_path, warm):
    lines = [
        {"who": "b", "stamp": {"a": 1, "b": 1}, "text": "second"},
        {"who": "a", "stamp": {"a": 1}, "text": "first"},
    ]
    (tmp_path / "said.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    options = "--process", "who", "--vector", "stamp"
    done = warm("order", tmp_path / "said.jsonl", "--out", tmp_path / "out", *options)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("yes: nothing is missing; 2 rows by vector; written to ")
    rows = pq.read_table(tmp_path / "out" / "ordered").to_pylist()
    assert [row["text"] for row in rows] == ["first", "second"]


def test_a_cycle_is_refused_and_nothing_is_written(tmp_path, warm):
    done = warm("order", written(tmp_path / "trace", CYCLE), "--out", tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith(
        "antecede: run r: the events form a cycle: a delivers b.1 at index 0, b delivers a.1 at index 0, "
    )
    assert [path.name for path in tmp_path.iterdir()] == ["trace"]


ID = ("--id", "id", "--causes", "cause")
WRONG = [
    (
        (),
        "name the columns: --id and --causes, or --process and --vector, of id, cause",
    ),
    (("--id", "id"), "give --id and --causes together, or neither"),
    ((*ID, "--process", "p"), "name the columns of one form: --id and --causes or "),
    (
        (*ID, "--time", "at", "--window", "noon"),
        "--window must be two times, separated by a comma, not 'noon'",
    ),
    ((*ID, "--window", "1,2"), "--window needs --time"),
    (("--no-cause", "root"), "--no-cause needs --id and --causes"),
    (("--protocol", "matrix"), "give --protocol and --processes together, or neither"),
    ((*ID, "--set", "x"), "--set must be key=value, each key once, not 'x'"),
    (
        (*ID, "--time", "at", "--window", "noon,night"),
        "window must be two times, ISO 8601 or integers, and has 'noon'",
    ),
    ((*ID, "--time", "at"), "--time must be one of the columns id, cause, not 'at'"),
    (("--id", "nobody", "--causes", "cause"), "--id must be one of the columns id, cause, not 'nobody'"),
]


@pytest.mark.parametrize(("options", "told"), WRONG)
def test_wrong_options_are_code_2_before_spark_starts(options, told, capsys, tmp_path):
    from antecede.cli import run

    (tmp_path / "e.csv").write_text("id,cause\n")
    assert run(["order", str(tmp_path / "e.csv"), "--out", str(tmp_path / "out"), *options]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"id;cause\nb;a\n", "columns id;cause (in CSV, values are separated by commas), not 'id'"),
        ("id,cause\n".encode("utf-16"), f"e.csv: {NO_UTF8}"),
        (b"id,cause,ID\n", "e.csv: the first line names a column twice, id and ID: rename one of them"),
    ],
)
def test_a_first_line_of_another_kind_is_said_before_spark_starts(data, told, capsys, tmp_path):
    from antecede.cli import run

    (tmp_path / "e.csv").write_bytes(data)
    assert run(["order", str(tmp_path / "e.csv"), "--out", str(tmp_path / "out"), *ID]) == 2
    assert capsys.readouterr().err.endswith(f"{told}\n")


def test_a_window_of_a_table_and_a_table_of_packets(tmp_path, warm):
    (tmp_path / "empty.csv").write_text("id,cause\n")
    done = warm("order", tmp_path / "empty.csv", *ID, "--out", tmp_path / "none")
    assert (done.returncode, done.stderr[:42]) == (0, "yes: nothing is missing; 0 rows by causes;")
    (tmp_path / "e.csv").write_text("id,cause,at\nb,a,2024-05-01T00:00:02Z\na,,2024-05-01T00:00:03Z\nc,b,\n")
    window = "2024-05-01T00:00:02Z,2024-05-01T00:00:03Z"
    done = warm(
        "order", tmp_path / "e.csv", *ID, "--time", "at", "--window", window, "--out", tmp_path / "one"
    )
    assert done.returncode == 0, done.stderr
    rows = pq.read_table(tmp_path / "one" / "ordered").to_pylist()
    assert [(row["id"], row["position"]) for row in rows] == [("b", 1)]
    _, packets = simulated(RunSpec(protocol="matrix", processes=3, messages=30, seed=1))
    pq.write_table(packets.slice(1), tmp_path / "packets.parquet")
    options = "--protocol", "matrix", "--processes", "3", "--out", tmp_path / "two", "--json"
    told = json.loads(warm("order", tmp_path / "packets.parquet", *options).stdout)
    assert (told["verdict"], told["by"], told["rows"]) == ("no", "stamp", len(packets) - 1)
    [lost] = pq.read_table(tmp_path / "two" / "missing").to_pylist()
    assert (lost["receiver"], lost["sender"]) == tuple(
        packets.slice(0, 1).to_pylist()[0][name] for name in ("receiver", "sender")
    )
    assert told["waiting"] == lost["waiting"] > 0
