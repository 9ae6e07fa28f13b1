"""`antecede order` as scripts see it: exit codes, one JSON object, whole outputs or none."""

import json
import subprocess
import sys
from random import Random

import pyarrow.parquet as pq

from antecede.trace import RUNS, RunInfo
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
    assert done.stderr.startswith("yes: nothing is missing; 2 rows by vector: ")
    rows = pq.read_table(tmp_path / "out" / "ordered").to_pylist()
    assert [json.loads(row["text"])["text"] for row in rows] == ["first", "second"]


def test_a_cycle_is_refused_and_nothing_is_written(tmp_path, warm):
    done = warm("order", written(tmp_path / "trace", CYCLE), "--out", tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith(
        "antecede: run r: found a cycle: a delivers b.1 at index 0, b delivers a.1 at index 0, "
    )
    assert [path.name for path in tmp_path.iterdir()] == ["trace"]
