"""What commands print on a narrow terminal, and into a pipe: no value is cut, no line is longer than the terminal."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from rich.console import Console

from antecede.cli import run
from antecede.cli.measure import print_measures
from antecede.cli.output import print_table

HIDE_CURSOR = b"\x1b[?25l"
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

CALLS = {
    "a trace with violations": ["verify", "trace"],
    "a trace that is not there": ["verify", "a/rather/long/path/to/some/directory/that/nobody/made"],
    "advice": ["choose", "--processes", "4", "--messages", "60", "--seconds", "0.01"],
    "a counterexample": ["check", "--protocol", "fifo"],
    "a soak": ["soak", "--seconds", "0.1", "--messages", "50"],
    "a simulation": ["simulate", "--protocol", "matrix", "--messages", "50"],
    "a simulation out of order": ["simulate", "--protocol", "unordered", "--messages", "50", "--check"],
    "a sweep": ["sweep", "stuck.toml", "--out", "swept", "--local", "--jobs", "1"],
    "logs that are not there": ["ingest", "a.log", "--format", "shiviz", "--out", "a"],
    "a node without a file": ["node", "--config", "nowhere.toml"],
    "a node that cannot be": ["node", "--config", "node.toml"],
    "the triangle": ["triangle"],
}


class Terminal(io.StringIO):
    """Standard error of a person."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A directory with a trace in it that is out of causal order."""
    place: Path = tmp_path_factory.mktemp("width")
    request = ["simulate", "--protocol", "unordered", "--messages", "200", "--json"]
    assert run([*request, "--out", str(place / "trace")]) == 0
    # p3 takes first what it may take only second, and the run is stuck.
    program = (
        "p1: send x to p3; send y to p2\np2: receive y; send z to p3\np3: receive from p2; receive from p1\n"
    )
    (place / "stuck.txt").write_text(program)
    (place / "stuck.toml").write_text(
        "[grid]\nprotocol = 'matrix'\nmessages = 9\nworkload = 'script:stuck.txt'\n"
    )
    (place / "node.toml").write_text(
        "name = 'ann'\npeers = {ann = '127.0.0.1:0'}\nprotocol = 'no protocol of ours'\n"
    )
    return place


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("name", CALLS)
def test_no_line_is_cut_or_longer_than_the_terminal(monkeypatch, place, name, columns):
    terminal = Terminal()
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "stderr", terminal)
    run(CALLS[name])
    lines = CONTROL.sub("", terminal.getvalue()).splitlines()
    assert any(lines)
    for line in lines:
        # A word is not broken, nor is a command: a path or a command is to be copied.
        copied = line.startswith("  antecede ") or len(line.split()) == 1
        assert len(line) <= columns or copied, line
        assert "…" not in line


@pytest.mark.parametrize("name", ["a simulation out of order", "a sweep"])
def test_a_command_that_repeats_a_run_is_not_folded(monkeypatch, place, name):
    terminal = Terminal()
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys, "stderr", terminal)
    assert run(CALLS[name]) == 1
    lines = terminal.getvalue().splitlines()
    [command] = [line for line in lines if line.startswith("  antecede simulate ")]
    assert len(command) > 60
    assert command.endswith(("--check", "--workload script:stuck.txt"))


def read_terminal(ours: int) -> bytes:
    shown = b""
    try:
        while more := os.read(ours, 1 << 16):
            shown += more
    except OSError:
        pass  # Linux says so when nobody writes any more.
    os.close(ours)
    return shown


def test_the_width_is_that_of_the_terminal(place):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 40, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    command = [sys.executable, "-c", "from antecede.cli import main; main()", "verify", "trace"]
    with subprocess.Popen(command, cwd=place, env=environment, stdout=subprocess.DEVNULL, stderr=theirs):
        os.close(theirs)
        shown = read_terminal(ours)
    lines = CONTROL.sub("", shown.decode()).split("\r\n")
    assert any("->" in line for line in lines)
    assert max(map(len, lines)) <= 40


@pytest.mark.parametrize("where", ["foreground", "background"])
def test_a_command_in_the_background_draws_no_bar_over_what_is_typed(tmp_path, where):
    """A bar hides the cursor, and SIGKILL would leave it hidden."""
    ours, theirs = pty.openpty()
    simulate = [sys.executable, "-m", "antecede", "simulate", "--protocol", "fifo", "--messages", "50"]
    group = "process_group=0" if where == "background" else ""
    shell = (
        "import fcntl, subprocess, termios\n"
        "fcntl.ioctl(2, termios.TIOCSCTTY, 0)\n"
        f"raise SystemExit(subprocess.run({simulate}, {group}).returncode)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", shell],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown = read_terminal(ours)
    assert process.wait() == 0
    assert (HIDE_CURSOR in shown) == (where == "foreground")


def test_a_sentence_in_a_pipe_is_one_line(capsys, monkeypatch, place):
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "60")
    assert run(["verify", "trace"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert any("which it causally precedes: p" in line and len(line) > 60 for line in lines)
    assert not [line for line in lines if line.startswith(" ")]


def show(headings: list[str], rows: list[list[str]], width: int) -> list[str]:
    console = Console(width=width, force_terminal=True, color_system=None, file=io.StringIO())
    print_table(console, headings, rows)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text.splitlines()


def test_the_measures_of_one_run_stand_below_each_other_where_they_do_not_fit():
    names = (
        "processes sends control_per_message stamp_entries_p50 stamp_bytes_mean stamp_bytes_p99 delay_ns_p50 "
        "delay_ns_p99 wait_share concurrency longest_chain duration_ns"
    )
    figures = dict.fromkeys(names.split(), 1)
    for width, lines in ((60, 12), (200, 3)):
        console = Console(width=width, force_terminal=True, color_system=None, file=io.StringIO())
        print_measures(console, "run", [{"run": "history-0", **figures}])
        shown = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        assert len(shown) == lines
    assert max(map(len, shown)) > 80


def test_what_a_log_without_times_and_stamps_does_not_tell_has_no_column():
    none = dict.fromkeys(["stamp_entries_p50", "stamp_bytes_mean", "stamp_bytes_p99", "wait_share"])
    none |= dict.fromkeys(["delay_ns_p50", "delay_ns_p99"])
    zero = dict.fromkeys(["control_per_message", "duration_ns"], 0)
    some = dict.fromkeys(["processes", "sends", "concurrency", "longest_chain"], 1)
    console = Console(width=200, file=io.StringIO())
    print_measures(console, "run", [{"run": "a.log", **none, **zero, **some}])
    shown = console.file.getvalue().split()  # type: ignore[attr-defined]
    assert "delay" not in shown
    assert "bytes" not in shown
    assert "-" not in shown
    assert shown[-6:] == ["a.log", "1", "1", "0.00", "100.0%", "1"]


def test_a_table_of_many_rows_is_parted_where_it_does_not_fit():
    headings = ["protocol", "stamp\nbytes", "mean delay"]
    rows = [[f"protocol-{number}", "1.0", "28 ms"] for number in range(9)]
    assert show(headings, rows, 24)[:2] == ["            stamp", "protocol    bytes"]
    assert len(show(headings, rows, 24)) == 11 + 1 + 10
    assert show(headings, rows[:1], 24) == [
        "protocol     protocol-0",
        "stamp bytes         1.0",
        "mean delay        28 ms",
    ]
