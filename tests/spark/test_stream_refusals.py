"""What is wrong with the input, the checkpoint or the output of a stream: one line, code 2, and nothing written."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from antecede.cli import run
from antecede.sim.run import RunSpec
from antecede.spark.stream import simulated
from antecede.trace import DELIVER, SEND, RunInfo, TraceWriter

VIEW, ROWS = simulated(RunSpec(protocol="matrix", processes=3, messages=60, seed=7))
STREAM = ["--stream", "--once"]
MATRIX = [*STREAM, "--protocol", "matrix", "--processes", "3"]


def packets(directory: Path, rows: pa.Table = ROWS, name: str = "0.parquet") -> Path:
    directory.mkdir(exist_ok=True)
    pq.write_table(rows, directory / name)
    return directory / name


def trace(directory: Path) -> Path:
    with TraceWriter(directory, RunInfo(run="r", protocol="none", processes=("p1", "p2"))) as writer:
        writer.append(0, SEND, 0, 1, (1,), clock=0)
        writer.append(1, DELIVER, 0, 1, clock=1)
    return next((directory / "events").glob("*.parquet"))


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def retype_number(path: Path) -> None:
    table = pq.read_table(path)
    at = table.column_names.index("number")
    pq.write_table(table.set_column(at, "number", pa.array(["1"] * len(table))), path)


DAMAGE = {
    "half of it": (half, "the file is not a complete Parquet file: Parquet magic bytes not found"),
    "nothing in it": (
        lambda path: path.write_bytes(b""),
        "the file is not a complete Parquet file: Parquet file size is 0",
    ),
    "text": (lambda path: path.write_text("no Parquet " * 9), "the file is not a complete Parquet file"),
    "other columns": (
        lambda path: pq.write_table(pa.table({"a": [1]}), path),
        r"column (receiver|run) \(string\) is missing; the columns are a$",
    ),
    "other types": (retype_number, "column number has type string, and must have type int64"),
}


def read_refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line."""
    assert run([str(one) for one in arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    [line] = said.err.splitlines()
    return line


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_that_is_no_input_is_named_and_nothing_begins(spark, tmp_path, capsys, damage):
    break_it, words = DAMAGE[damage]
    packets(tmp_path / "in")
    second = packets(tmp_path / "in", name="1.parquet")
    events = trace(tmp_path / "trace")
    break_it(second)
    break_it(events)
    out = tmp_path / "out"
    line = read_refusal(capsys, "order", tmp_path / "in", *MATRIX, "--out", out)
    assert re.match(f"antecede: {second}: {words}", line)
    line = read_refusal(capsys, "verify", tmp_path / "trace", *STREAM, "--out", out)
    assert re.match(f"antecede: {events}: {words}", line)
    assert not out.exists()


def test_a_place_without_files_is_refused_where_none_are_waited_for(spark, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    nowhere, out = tmp_path / "nowhere", tmp_path / "out"
    line = read_refusal(capsys, "order", nowhere, *MATRIX, "--out", out)
    assert f"a directory of files of packets, and {nowhere} is not there" in line
    line = read_refusal(capsys, "order", tmp_path / "empty", *MATRIX, "--out", out)
    assert f"{tmp_path / 'empty'} has no Parquet files of packets" in line
    line = read_refusal(capsys, "verify", nowhere, *STREAM, "--out", out)
    assert f"{nowhere}/events: there are no Parquet files" in line
    assert not nowhere.exists()
    assert not out.exists()


def test_a_query_does_not_go_on_where_another_was(spark, tmp_path, capsys):
    # A row without a stamp is refused as a row: the stream goes on.
    at = ROWS.column_names.index("stamp")
    stamps = pa.array([None, *ROWS["stamp"].to_pylist()[1:]], pa.binary())
    packets(tmp_path / "in", ROWS.set_column(at, "stamp", stamps))
    packets(tmp_path / "other")
    trace(tmp_path / "trace")
    out = tmp_path / "out"
    ordering = ["order", tmp_path / "in", *MATRIX, "--out", out]
    assert run([str(one) for one in ordering]) == 1
    assert "1 refused" in capsys.readouterr().err
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    for arguments, words in (
        (
            [*ordering, "--protocol", "fifo"],
            "of a query with protocol matrix, not fifo",
        ),
        (
            [*ordering, "--processes", "a,b,c"],
            "with processes p1, p2, p3, not a, b, c",
        ),
        (
            ["order", tmp_path / "other", *MATRIX, "--out", out],
            f", not {tmp_path}/other",
        ),
        (
            ["verify", tmp_path / "trace", *STREAM, "--out", out],
            "with command order, not ",
        ),
        ([*ordering, "--checkpoint", tmp_path / "new"], f"the output {out}/delivered is there already"),
    ):
        assert words in read_refusal(capsys, *arguments)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    assert run([str(one) for one in ordering]) == 1, "the query itself goes on"


@pytest.mark.parametrize("command", ["order", "verify"])
def test_an_output_that_cannot_be_written_is_refused(spark, tmp_path, capsys, command):
    packets(tmp_path / "in")
    trace(tmp_path / "trace")
    (tmp_path / "file").write_text("not a directory")
    asked = {"order": [tmp_path / "in", *MATRIX], "verify": [tmp_path / "trace", *STREAM]}[command]
    line = read_refusal(capsys, command, *asked, "--out", tmp_path / "file" / "out")
    assert ": cannot write: Not a directory; nothing was written" in line


@pytest.mark.parametrize("command", ["order", "verify"])
def test_ctrl_c_before_the_first_micro_batch_is_not_an_answer(spark, tmp_path, capsys, command):
    (tmp_path / "in").mkdir()
    trace(tmp_path / "trace").unlink()
    asked = {"order": [tmp_path / "in", *MATRIX], "verify": [tmp_path / "trace", *STREAM]}[command]
    asked.remove("--once")
    note = tmp_path / "out" / "checkpoint" / "antecede.json"

    def interrupt():
        deadline = time.monotonic() + 120
        while not note.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=interrupt)
    pressing.start()
    code = run([command, *map(str, asked), "--out", str(tmp_path / "out")])
    pressing.join()
    assert (code, *capsys.readouterr()) == (130, "", "antecede: stopped\n")


def test_ctrl_c_ends_a_stream_with_its_answer(tmp_path):
    packets(tmp_path / "in", ROWS.slice(1))
    command = [
        sys.executable,
        "-m",
        "antecede",
        "order",
        str(tmp_path / "in"),
        *MATRIX,
        "--out",
        str(tmp_path / "out"),
    ]
    command.remove("--once")
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        deadline = time.monotonic() + 240
        while not list((tmp_path / "out" / "checkpoint").glob("commits/[0-9]*")):
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            assert time.monotonic() < deadline
            time.sleep(0.2)
        # As a terminal does it: to Java and the workers too.
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 1, said
    [line] = said.splitlines()
    assert line.startswith("no: ")
    assert "wait for causes that have not come" in line
