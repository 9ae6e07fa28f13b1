"""`antecede triangle`: what it shows, to people and to programs."""

import csv
import io
import json

import pytest

from antecede.cli import run
from antecede.cli.figure import M1, S3, perform
from antecede.protocols import PROTOCOLS
from antecede.protocols.fifo import Fifo


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def run_triangle(capsys, *arguments: str) -> dict:
    """Its JSON; protocols that it left out are in none of its lists but `skipped`."""
    assert run(["triangle", "--json", *arguments]) == 0
    result: dict = json.loads(capsys.readouterr().out)
    return result


def test_people_read_standard_error_in_eighty_columns(capsys):
    assert run(["triangle"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert max(map(len, err.splitlines())) <= 80
    assert "✗ S3 delivered M1 after M3, which it causally precedes: M1 -> M2 -> M3" in err
    assert "◌ M3 waits at its receiver S3 for M1" in err
    for protocol in PROTOCOLS:
        assert any(line.startswith(protocol) for line in err.splitlines()), protocol
    # A verdict is relative to what a protocol promises, here as in the demo and in the report.
    told = [line.split("  ")[0] for line in err.splitlines() if " not promised " in line]
    assert told == ["unordered", "fifo"]
    assert " broken " not in err


def test_programs_read_one_object(capsys):
    result = run_triangle(capsys)
    assert result["verdict"] == "yes"
    assert [p["protocol"] for p in result["protocols"]] + [*result["skipped"]] == [*PROTOCOLS]
    for performance in result["protocols"]:
        assert performance["kept"] == (performance["promises"] == "causal") == (not performance["findings"])


def test_csv_has_a_line_for_each_protocol(capsys):
    assert run(["triangle", "--protocol", "fifo", "--protocol", "matrix", "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["protocol"], row["kept"], row["delivered.S3"]) for row in rows] == [
        ("fifo", "false", '["M3", "M1"]'),
        ("matrix", "true", '["M1", "M3"]'),
    ]


def test_one_protocol_can_be_asked_for(capsys):
    result = run_triangle(capsys, "--protocol", "buffer", "--protocol", "fifo")
    assert [p["protocol"] for p in result["protocols"]] == ["buffer", "fifo"]


def test_an_unknown_protocol_is_refused(capsys):
    assert run(["triangle", "--protocol", "causality"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("antecede: triangle: --protocol must be one of unordered, ")


def test_a_broken_promise_is_a_no(capsys, monkeypatch):
    monkeypatch.setattr(Fifo, "order", "causal")
    assert run(["triangle", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["verdict"] == "no"
    assert err == "triangle: no: not as promised: fifo\n"


@pytest.mark.parametrize(
    ("protocol", "waits"),
    [
        ("unordered", []),
        ("fifo", []),
        ("matrix", [("M3", "S3", "receiver", ("M1",))]),
        ("bounded", [("M3", "S3", "receiver", ("M1",))]),
        ("contexts", [("M3", "S3", "receiver", ("M1",))]),
        ("sparing", [("M3", "S3", "receiver", ("M1",))]),
        ("underway", [("M3", "S3", "receiver", ("M1",))]),
        ("monitor", [("M3", "S3", "receiver", ("M1",))]),
        ("history", [("M3", "S3", "receiver", ("M1",))]),
        ("optimal", [("M3", "S3", "receiver", ("M1",))]),
        ("broadcast", [("M2", "S3", "receiver", ("M1",)), ("M3", "S3", "receiver", ("M1", "M2"))]),
        ("buffer", [("M2", "S1", "sender", ("M1",))]),
        ("permit", [("M3", "S2", "sender", ("M2",))]),
    ],
)
def test_who_waits_and_what_for(protocol, waits):
    assert [(w.message, w.at, w.side, w.awaits) for w in perform(protocol).waits] == waits


@pytest.mark.parametrize("protocol", ["unordered", "fifo", "matrix", "history", "broadcast"])
def test_the_slow_packet_is_the_last_to_arrive(protocol):
    arrivals = [(event.process, event.id) for event in perform(protocol).events if event.kind == "receive"]
    assert arrivals[-1] == (S3, M1)


@pytest.mark.parametrize(("protocol", "control"), [("matrix", 0), ("buffer", 3), ("permit", 4)])
def test_control_packets_are_counted(protocol, control):
    assert perform(protocol).control_packets == control
