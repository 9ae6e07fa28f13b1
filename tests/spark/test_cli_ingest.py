"""antecede ingest: exit codes, and what goes where."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from antecede.cli import run

pytest.importorskip("pyspark")

LOG = 'hello\nann {"ann":1}\nhi\nbob {"bob":1,"ann":1}\n'


def run_ingest(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = run(["ingest", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (["--format", "shiviz", "--pattern", "("], "pattern must be a regular expression"),
        (
            ["--format", "shiviz", "--pattern", "(?<host>.)"],
            "pattern must have the named groups host, clock and event",
        ),
        (["--format", "table", "--map", "process"], "--map must be OURS=THEIRS"),
        (["--format", "table", "--map", "run=a", "--map", "run=b"], "--map names run twice"),
        (["--format", "csv"], "--format must be one of shiviz, tracing, tlaplus, table"),
        (["--format", "table"], "a table needs map"),
        ([], "Missing option '--format'"),
    ],
)
def test_what_is_wrong_with_a_request_is_said_before_spark_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: list[str], wrong: str
) -> None:
    code, out, err = run_ingest(capsys, "a.log", "--out", tmp_path / "out", *options)
    assert (code, out) == (2, "")
    assert wrong in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (
            ["--format", "table", "--map", "process=host"],
            "the table has no such column; its columns are pod, at",
        ),
        (["--format", "spans"], "the table has no column SpanId, as ClickHouse's otel_traces has"),
    ],
)
def test_a_column_that_is_not_there_is_said_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    options: list[str],
    wrong: str,
) -> None:
    monkeypatch.setattr("antecede.cli.ingest.open_work", None)
    table = tmp_path / "t.csv"
    table.write_text("pod,at\na,1\n")
    code, out, err = run_ingest(capsys, table, "--out", tmp_path / "out", *options)
    assert (code, out) == (2, "")
    assert wrong in err
    assert len(err.splitlines()) == 1


def test_a_table_without_messages_is_no_yes(
    spark: object, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = tmp_path / "t.csv"
    table.write_text("pod,at\na,1\na,1\nb,2\n")
    options = ["--format", "table", "--map", "process=pod", "--map", "time_ns=at"]
    code, printed, err = run_ingest(capsys, table, *options, "--out", tmp_path / "out", "--json")
    assert code == 0, err
    assert json.loads(printed)["verdict"] == "unknown"
    assert err.startswith("unknown: 3 events, 0 messages, 1 run")
    assert "; 1 event tied in time, " in err
    assert (
        "no messages are named, so verify and report have nothing to judge: there are no vector clocks" in err
    )


def test_a_log_is_read_and_what_cannot_be_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log, out = tmp_path / "a.log", tmp_path / "out"
    log.write_text(LOG)
    code, printed, err = run_ingest(capsys, log, "--format", "shiviz", "--out", out, "--json")
    assert code == 0, err
    told = json.loads(printed)
    assert told == {
        "verdict": "yes",
        "runs": 1,
        "events": 2,
        "rejected": 0,
        "clocks": 0,
        "messages": 0,
        "unknown": 1,
        "vectors": 2,
        "tied": 0,
        "examples": [],
        "out": str(out),
    }
    assert {path.name for path in out.iterdir()} == {"runs.parquet", "events", "log", "rejected", "clocks"}
    assert f"nothing to judge: `antecede order {out} --out DIR` orders the events by their clocks" in err

    # Each process of this file counts from 1, so one of them is wrong; and a line says nothing.
    log.write_text(LOG + 'again\nann {"ann":3}\nnoise\n')
    code, printed, err = run_ingest(capsys, log, "--format", "shiviz", "--out", tmp_path / "two", "--json")
    assert code == 1
    told = json.loads(printed)
    assert (told["verdict"], told["rejected"], told["clocks"]) == ("no", 1, 1)
    assert f"rejected: {log}, line 7: it is no part of a record: noise" in err
    assert f"gap: {log}, line 5: event 2 of ann: entry of ann is 3, should be 2" in err
    assert err.splitlines()[-1].startswith("no: 3 events, 0 messages, 1 run, 1 of unknown order; ")

    code, printed, err = run_ingest(
        capsys, tmp_path / "none.log", "--format", "shiviz", "--out", tmp_path / "three"
    )
    assert (code, printed) == (2, "")
    assert "none.log" in err
    assert not (tmp_path / "three").exists()


@pytest.mark.parametrize(("text", "code", "rejected"), [("", 0, 0), ("noise\n" * 3, 1, 3)])
def test_a_log_without_events_is_a_trace_without_runs(
    spark: object, capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, code: int, rejected: int
) -> None:
    (tmp_path / "a.log").write_text(text)
    answer = run_ingest(capsys, tmp_path / "a.log", "--format", "shiviz", "--out", tmp_path / "out", "--json")
    assert answer[0] == code, answer[2]
    told = json.loads(answer[1])
    assert (told["runs"], told["events"], told["rejected"]) == (0, 0, rejected)
    assert pq.read_table(tmp_path / "out" / "runs.parquet").num_rows == 0
