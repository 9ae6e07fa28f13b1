"""antecede check: the answers, the exit codes, and what goes where."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from antecede.cli import main
from antecede.program import parse
from antecede.protocols import create
from antecede.replay import replay

TRIANGLE = "p1: send x to p3; send y to p2\np2: receive y; send z to p3\np3:\n"
LAST = "p1: send x to p2\np2: receive from p1; receive from p3\np3: send y to p2\n"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any], str]:
    code, out, err = run(capsys, "check", *arguments, "--json")
    return code, json.loads(out), err.splitlines()[-1]


@pytest.fixture
def triangle(tmp_path: Path) -> str:
    path = tmp_path / "triangle.txt"
    path.write_text(TRIANGLE)
    return str(path)


def test_yes_is_exit_code_0_with_the_counts(capsys: pytest.CaptureFixture[str]) -> None:
    code, result, line = answer(capsys, "--protocol", "matrix", "--messages", "2", "--jobs", "1")
    assert code == 0
    assert (result["verdict"], result["complete"], result["counterexample"]) == ("yes", True, None)
    assert result["programs"] == result["programs_total"] == 57
    assert result["schedules"] > result["programs"]
    assert result["states"] > 0
    assert line.startswith("matrix: yes: every schedule of all 57 programs keeps causal order and finishes (")


def test_no_is_exit_code_1_with_a_counterexample_that_replays(
    capsys: pytest.CaptureFixture[str], triangle: str
) -> None:
    code, result, line = answer(capsys, "--protocol", "fifo", "--program", triangle)
    assert code == 1
    assert (result["verdict"], result["complete"]) == ("no", False)
    assert line == "fifo: no: p3 delivers z before x, which happened before it"
    found = result["counterexample"]
    program = parse(found["program"])
    events = replay(lambda p: create("fifo", program.view, p), program, found["schedule"])
    assert [event.kind for event in events].count("deliver") == 3


def test_people_read_on_standard_error(capsys: pytest.CaptureFixture[str], triangle: str) -> None:
    code, out, err = run(capsys, "check", "--protocol", "unordered", "--program", triangle)
    assert (code, out) == (1, "")
    assert "p3 delivers x (from p1), overtaken" in err
    assert "✗x" in err


def test_a_control_keeps_the_order_that_it_promises(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "--protocol", "fifo", "--messages", "2", "--order", "fifo")[0] == 0
    code, result, _ = answer(capsys, "--protocol", "unordered", "--messages", "2", "--order", "none")
    assert (code, result["verdict"]) == (0, "yes")


@pytest.mark.parametrize(
    ("protocol", "code", "line"),
    [
        ("matrix", 0, "matrix: yes: every schedule of "),
        ("buffer", 1, "buffer: no: some schedules block, others finish ("),
    ],
)
def test_programs_that_block_say_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, protocol: str, code: int, line: str
) -> None:
    path = tmp_path / "last.txt"
    path.write_text(LAST)
    found, result, said = answer(capsys, "--protocol", protocol, "--program", str(path))
    assert found == code
    assert said.startswith(line)
    assert (result["schedules_blocked"] > 0) == bool(code)


def test_time_that_is_up_is_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    code, result, line = answer(capsys, "--protocol", "matrix", "--seconds", "0", "--jobs", "1")
    assert code == 0
    assert (result["verdict"], result["complete"]) == ("unknown", False)
    assert result["programs"] < result["programs_total"] == 598
    assert "of 598 programs; no counterexample (" in line


@pytest.mark.parametrize("protocol", ["optimal", "unordered"])
def test_workers_find_what_one_process_finds(capsys: pytest.CaptureFixture[str], protocol: str) -> None:
    arguments = ("--protocol", protocol, "--messages", "4", "--unicast")
    alone, together = (answer(capsys, *arguments, "--jobs", jobs) for jobs in ("1", "2"))
    assert alone[0] == together[0]
    for field in ("verdict", "schedules", "states", "transitions", "counterexample"):
        assert alone[1][field] == together[1][field]


def test_bounded_is_checked_at_its_hardest_unless_told_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--protocol", "bounded", "--messages", "1")
    assert answer(capsys, *small)[1]["parameters"] == {"k": 4}
    assert answer(capsys, *small, "--set", "k=6")[1]["parameters"] == {"k": 6}


def test_every_choice_of_the_monitor_is_tried(capsys: pytest.CaptureFixture[str]) -> None:
    code, result, _ = answer(capsys, "--protocol", "monitor", "--messages", "1", "--unicast")
    assert (code, result["programs"]) == (0, 5)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["--protocol", "matrux"],
            "antecede: protocol: the name must be one of unordered, fifo, matrix",
        ),
        (["--protocol", "matrix", "--set", "k=4"], "antecede: matrix: it has no parameter k"),
        (
            ["--protocol", "bounded", "--set", "k=2"],
            "antecede: bounded: k must be more than n and at most n*n",
        ),
        (
            ["--protocol", "bounded", "--set", "k"],
            "antecede: check: --set must be key=value, each key once, not 'k'",
        ),
        (
            ["--protocol", "matrix", "--order", "total"],
            "antecede: check: --order must be one of causal, fifo",
        ),
        (
            ["--protocol", "matrix", "--program", "missing.txt"],
            "antecede: missing.txt: cannot be read: No such file",
        ),
        (
            ["--protocol", "broadcast", "--unicast"],
            "antecede: check: broadcast accepts none of the programs",
        ),
        (["--protocol", "matrix", "--processes", "none"], "antecede: Invalid value for '--processes'"),
        (["--protocol", "matrix", "--fast"], "antecede: No such option: --fast"),
        ([], "antecede: Missing option '--protocol'; antecede check --help"),
    ],
)
def test_a_wrong_request_is_exit_code_2_and_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    code, out, err = run(capsys, "check", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(line)
    assert err.count("\n") == 1


def test_a_bad_program_is_refused_with_its_file_and_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "bad.txt"
    path.write_text("p1: send x to p2\np2: recieve x\n")
    code, out, err = run(capsys, "check", "--protocol", "matrix", "--program", str(path))
    assert (code, out) == (2, "")
    assert err.startswith(f"antecede: {path}:2: 'recieve x' is no step: write ")


def test_a_message_that_the_protocol_refuses_is_named(
    capsys: pytest.CaptureFixture[str], triangle: str
) -> None:
    code, _, err = run(capsys, "check", "--protocol", "broadcast", "--program", triangle)
    assert code == 2
    assert err.startswith("antecede: broadcast: message x: ")


def test_the_version_and_the_help_are_answers(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--version")
    assert (code, out.split()[0]) == (0, "antecede")
    code, out, _ = run(capsys, "check", "--help")
    assert code == 0
    assert "--protocol" in out


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is a signal")
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_stops_with_one_line(jobs: str) -> None:
    code = "from antecede.cli import main; main()"
    check = ["check", "--protocol", "permit", "--messages", "5", "--unicast", "--jobs", jobs]
    with subprocess.Popen([sys.executable, "-c", code, *check], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "checking 857 programs\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "antecede: stopped\n"
    assert process.returncode == 130
