"""antecede simulate: exit codes, what goes where, and what Ctrl-C leaves."""

from __future__ import annotations

import csv
import io
import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from antecede.cli import run
from antecede.trace import events_of, read_runs

QUICK = ["simulate", "--protocol", "matrix", "--processes", "4", "--messages", "120", "--seed", "5"]


def run_simulate(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> tuple[int, str, str]:
    code = run(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def test_a_summary_for_people_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_simulate(capsys, QUICK)
    assert (code, out) == (0, "")
    for line in (
        "sent",
        "delivered",
        "held",
        "control packets",
        "stamp entries",
        "stamp bytes",
        "delay",
        "causality",
    ):
        assert line in err
    assert "16" in err  # entries of a matrix of four


def test_json_is_one_object_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_simulate(capsys, [*QUICK, "--json"])
    result = json.loads(out)
    assert (code, err) == (0, "")
    assert result["verdict"] == "unknown"  # nobody asked whether the order was kept
    assert result["delivered"] == result["sent"] == 120
    assert result["stamp_entries"] == {"mean": 16.0, "p50": 16, "p99": 16, "max": 16}
    assert set(result["delay_ns"]) == {"mean", "p50", "p99", "max"}


def test_csv_has_a_line_for_each_figure_with_the_values_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_simulate(capsys, [*QUICK, "--csv"])
    rows = {row["figure"]: row for row in csv.DictReader(io.StringIO(out))}
    assert (code, err) == (0, "")
    result = json.loads(run_simulate(capsys, [*QUICK, "--json"])[1])
    assert rows["delivered"]["total"] == "120"
    for name in ("mean", "p50", "p99", "max"):
        assert json.loads(rows["delay_ns"][name]) == result["delay_ns"][name]
    assert (rows["delay_ns"]["total"], rows["sent"]["mean"]) == ("", "")
    code, _, err = run_simulate(capsys, [*QUICK, "--csv", "--json"])
    assert (code, err) == (2, "antecede: simulate: give --json or --csv, not both\n")


def test_the_command_in_the_result_repeats_it(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*QUICK, "--workload", "groups:size=3", "--network", "zones:lan=1ms", "--json"]
    first = json.loads(run_simulate(capsys, arguments)[1])
    again = json.loads(run_simulate(capsys, [*first["command"].split()[1:], "--json"])[1])
    first.pop("seconds"), again.pop("seconds")
    assert first == again


def test_a_trace_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, _ = run_simulate(
        capsys, [*QUICK, "--out", str(tmp_path / "trace"), "--topology", "star", "--protocol", "separator"]
    )
    assert code == 0
    [info] = read_runs(tmp_path / "trace")
    assert (info.run, info.protocol, info.seed, info.workload) == ("separator-5", "separator", 5, "uniform")
    assert info.processes == ("p1", "p2", "p3", "p4")
    events = list(events_of(tmp_path / "trace", "separator-5"))
    assert sum(event.kind == "deliver" for event in events) == 120


def test_a_trace_leaves_out_what_routers_tell_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--processes", "6", "--topology", "wan-of-lans:zones=2,gateways=2", "--out", str(tmp_path / "t")]
    code, out, _ = run_simulate(
        capsys, ["simulate", "--protocol", "separator", "--messages", "200", *where, "--json"]
    )
    assert (code, json.loads(out)["control_packets"] > 0) == (0, True)
    [info] = read_runs(tmp_path / "t")
    events = list(events_of(tmp_path / "t", info.run))
    assert {event.process for event in events} == set(range(6))


def test_a_run_is_not_overwritten_unless_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_simulate(capsys, [*QUICK, "--out", str(tmp_path)])[0] == 0
    code, _, err = run_simulate(capsys, [*QUICK, "--out", str(tmp_path)])
    assert code == 2
    assert "matrix-5" in err
    assert run_simulate(capsys, [*QUICK, "--out", str(tmp_path), "--run", "other"])[0] == 0
    assert run_simulate(capsys, [*QUICK, "--out", str(tmp_path), "--replace"])[0] == 0
    assert sorted(info.run for info in read_runs(tmp_path)) == ["matrix-5", "other"]


@pytest.mark.parametrize("judged", ["--check", "--shrink"])
def test_a_checked_run_of_a_causal_protocol_is_a_yes(judged: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_simulate(capsys, [*QUICK, judged])
    assert (code, out) == (0, "")
    assert err.splitlines()[-1] == "yes: 120 deliveries, each message once, in causal order"
    code, out, err = run_simulate(capsys, [*QUICK, judged, "--json"])
    assert (code, json.loads(out)["verdict"], len(err.splitlines())) == (0, "yes", 1)
    assert "yes" not in run_simulate(capsys, QUICK)[2]


def test_a_checked_run_names_the_only_process_whose_order_is_promised(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = run_simulate(capsys, [*QUICK, "--protocol", "monitor", "--check"])
    assert (code, err.splitlines()[-1]) == (
        0,
        "yes: 120 deliveries, each message once, in causal order at p1",
    )


def test_a_violation_is_a_no_with_its_seed_and_command(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*QUICK, "--protocol", "unordered", "--check"]
    code, _, err = run_simulate(capsys, arguments)
    assert code == 1
    last = err.splitlines()[-1]
    assert last.startswith("no")
    assert "seed 5, repeat with: antecede simulate --protocol unordered" in last
    code, out, _ = run_simulate(capsys, [*arguments, "--json"])
    assert code == 1
    assert json.loads(out)["verdict"] == "no"
    assert json.loads(out)["findings"][0].startswith("violation: ")


def test_a_long_run_is_checked_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_simulate(capsys, [*QUICK, "--messages", "3000", "--check"])[0] == 0
    code, _, err = run_simulate(capsys, [*QUICK, "--messages", "3000", "--check", "--protocol", "unordered"])
    assert code == 1
    assert "after a message that it causally precedes" in err


def test_a_shorter_run_that_fails_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_simulate(capsys, [*QUICK, "--protocol", "unordered", "--shrink", "--json"])
    assert code == 1
    shorter = json.loads(out)["shorter"]
    assert f"shorter: {shorter}" in err
    assert int(shorter.split("--messages ")[1].split()[0]) < 20
    assert run_simulate(capsys, shlex.split(shorter)[1:])[0] == 1
    assert json.loads(run_simulate(capsys, [*QUICK, "--shrink", "--json"])[1])["shorter"] is None


def test_a_stuck_run_is_a_no_that_says_what_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "stuck.txt"
    program.write_text("p1: send a to p2; send b to p2\np2: receive b\n")
    code, _, err = run_simulate(
        capsys, ["simulate", "--protocol", "fifo", "--messages", "2", "--workload", f"script:{program}"]
    )
    assert code == 1
    assert "stuck: 2 copies were never delivered" in err
    assert "p2: message 2 of p1 is held" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--protocol", "magic"], "antecede: run: protocol must be one of"),
        (["--set", "k"], "antecede: simulate: --set must be key=value, each key once, not 'k'"),
        (["--messages", "many"], "antecede: Invalid value for '--messages'"),
        (["--network", "warp"], "antecede: network: the name must be one of"),
        (["--faults", "crash:p9@1s-2s"], "antecede: process 'p9' is not in the view"),
    ],
)
def test_a_wrong_request_is_one_line_and_leaves_nothing(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run_simulate(capsys, [*QUICK, *arguments, "--out", str(tmp_path / "trace")])
    assert (code, out) == (2, "")
    [line] = err.splitlines()
    assert line.startswith(sentence)
    assert not (tmp_path / "trace").exists()


def test_ctrl_c_leaves_a_valid_shorter_trace(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from antecede.cli import main; main()"]
    arguments = [
        "simulate",
        "--protocol",
        "fifo",
        "--messages",
        "100000000",
        "--json",
        "--out",
        str(tmp_path / "t"),
    ]
    process = subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    hidden = tmp_path / "t" / "events"
    for _ in range(600):
        if hidden.exists() and any(path.stat().st_size for path in hidden.iterdir()):
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "antecede: stopped"
    result = json.loads(out)
    assert result["verdict"] == "unknown"
    assert 0 < result["delivered"] < 100_000_000
    [info] = read_runs(tmp_path / "t")
    delivered = sum(event.kind == "deliver" for event in events_of(tmp_path / "t", info.run))
    assert delivered == result["delivered"]
