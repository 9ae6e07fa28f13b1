"""`antecede verify --stream` as scripts see it."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

pytest.importorskip("pyspark")

from antecede.cli import run
from antecede.errors import BadParameter
from antecede.spark.stream.api import events_at, verify_events
from tests.spark.planted import find_by_oracle, lamport, write_file
from tests.spark.random_traces import make_trace


def plant_violation(directory):
    """A trace with a violation in it, and what the oracle finds."""
    for seed in range(100):
        names, rows = make_trace(seed, events=60)
        _, found, _, _ = find_by_oracle(names, rows)
        kinds = {key[0] for key in found}
        if "violation" in kinds and "unsent" not in kinds:
            break
    (directory / "events").mkdir(parents=True)
    write_file(directory / "events" / "0.parquet", lamport(rows), 50, None, None)
    return {key: many for key, many in found.items() if key[0] != "undelivered"}


def test_what_was_found_is_written_told_and_not_found_again(spark, tmp_path):
    wanted = plant_violation(tmp_path / "trace")
    noted: list[Mapping[str, int]] = []

    def judge():
        place, out, kept = (str(tmp_path / name) for name in ("trace", "found", "kept"))
        return verify_events(spark, place, out, kept, once=True, note=noted.append)

    first = judge()
    assert sum(first.counts.values()) == sum(wanted.values())
    assert first.examples["violation"]["kind"] == "violation"
    assert noted[0] == first.counts
    assert judge().counts == first.counts


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "verify --stream: --out is missing: name a directory for findings"),
        (["--out", "x", "--every", "0"], "--every must be more than 0 seconds, not 0.0"),
        *(
            (
                ["--out", "x", f"--{name}", "0"],
                f"--{name} must be a time such as 30 seconds or 7 days, not '0'",
            )
            for name in ("patience", "remember")
        ),
    ],
)
def test_a_wrong_request_is_refused_before_spark_starts(tmp_path, capsys, options, told):
    assert run(["verify", str(tmp_path), "--stream", *options]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        ["order", "--id", "id", "--causes", "parent"],
        ["order", "--protocol", "fifo", "--processes", "3"],
        ["verify", "--id", "id", "--causes", "parent", "--consumer", "who", "--time", "at"],
    ],
)
def test_an_input_that_is_no_directory_is_refused_before_spark_starts(tmp_path, monkeypatch, capsys, options):
    monkeypatch.setattr("antecede.spark.session.open_session", None)
    events = tmp_path / "events.csv"
    events.write_text("id,parent,who,at\n")
    assert run([options[0], str(events), "--stream", "--out", str(tmp_path / "out"), *options[1:]]) == 2
    assert f"{events} is a file" in capsys.readouterr().err


def test_a_broker_without_a_stream_is_refused(spark):
    with pytest.raises(BadParameter, match="names a server and no stream"):
        events_at(spark, "nats://localhost:4222")


def test_the_answer_in_json_and_in_words(capsys):
    from antecede.cli.verify_stream import report
    from antecede.spark.stream.query import Totals

    row = {
        "run": "r",
        "kind": "violation",
        "process": "q",
        "sender": "p",
        "number": 1,
        "by_sender": "s",
        "by_number": 2,
    }
    report(Totals(0, {"violation": 1}, {"violation": row}), "out/findings", as_json=True)
    said = capsys.readouterr()
    assert json.loads(said.out) == {"verdict": "no", "found": {"violation": 1}, "out": "out/findings"}
    assert said.err == "r: violation: p.1 at q, after s.2\nno: 1 violation; written to out/findings\n"
    report(Totals(0), "out/findings", as_json=False)
    assert capsys.readouterr().err == "yes: nothing wrong so far\n"
