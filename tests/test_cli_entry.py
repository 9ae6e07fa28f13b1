"""The doors of the command line: what is refused before anything starts, and what a plain installation can do."""

import json
import os
import pty
import shlex
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest
import typer

import antecede
from antecede.cli import COMMANDS, DOORS, EXAMPLES, build_app, run

ALL = """
import contextlib, io, json, sys, traceback
from antecede.cli import run
answers = []
for arguments in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = run(arguments)
        except Exception:
            traceback.print_exc()
            code = None
    answers.append((code, err.getvalue()))
print(json.dumps(answers))
"""


def try_all(python, cases, **environment):
    """The exit code and the words of each, one after the other in one process: starting Python is what takes long."""
    done = subprocess.run(
        [python, "-c", ALL],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_help_shows_the_commands_by_what_they_are_for(capsys):
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    places = [shown.index(f"\n{title}:\n") for title in DOORS]
    assert places == sorted(places)
    assert len(set(COMMANDS)) == len(COMMANDS) == sum(f"\n  {name} " in shown for name in COMMANDS)


WRONG = {
    "keys THERE/../java/bin/java ann": "is a file: give a directory",
    "measure THERE": "THERE: there is no trace here: a trace is a directory with runs.parquet and events/",
    "verify THERE/none": "none: there is no such file or directory",
    "measure THERE/none": "none: there is no such file or directory",
    "report THERE/none": "none: there is no such file or directory",
    "order THERE/none --out THERE/new": "none: there is no such file or directory",
    "ingest THERE/none --format shiviz --out THERE/new": "none: there is no such file or directory",
    "ingest THERE --format morse --out THERE/new": "morse",
    "ingest THERE --format table --out THERE/new --map process": "--map must be OURS=THEIRS",
    "ingest THERE --format shiviz --out THERE": "THERE is there already",
    "order THERE --out THERE/old": "old is there already",
    "measure THERE --out THERE/old": "measures is there already",
    "verify THERE --master local --out THERE/old": "findings is there already",
    "verify THERE --master local --remote sc://x:1": "give --master or --remote, not both",
    "verify THERE --stream": "--out is missing: name a directory for findings",
    "order THERE --out THERE/new --stream": "name the columns by --id and --causes",
    "order THERE": "--out",
    "sweep THERE/none.toml --out THERE/new": "none.toml",
    "demo --messages 0": "--messages must be 1 or more",
    "verfy THERE": "Did you mean",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_an_example_that_the_command_takes(name, capsys):
    group = typer.main.get_command(build_app([name]))
    command = group.get_command(typer.Context(group), name)  # type: ignore[attr-defined]
    for example in EXAMPLES[name]:
        assert len(example) <= 76
        _, named, *arguments = shlex.split(example)
        assert named == name
        unknown = command.make_parser(typer.Context(command)).parse_args(arguments)[1]
        assert unknown == []
    assert run([name, "--help"]) == 0
    assert capsys.readouterr().out.rstrip().endswith(f"$ {EXAMPLES[name][-1]}")


def test_a_wrong_request_is_refused_before_java_starts(tmp_path):
    for name in ("ordered", "measures", "findings"):
        (tmp_path / "there" / "old" / name).mkdir(parents=True)
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho started >> {tmp_path}/started\nexit 1\n")
    java.chmod(0o755)
    there = str(tmp_path / "there")
    cases = [
        case.replace("THERE", there).split()
        for case in [*WRONG, "order THERE --id a --causes b --out THERE/new"]
    ]
    told = try_all(sys.executable, cases, JAVA_HOME=str(java.parent.parent))
    for (case, words), (code, err) in zip(WRONG.items(), told, strict=False):
        assert code == 2, (case, err)
        assert words.replace("THERE", there) in err, case
        assert err.startswith("antecede: "), case
        assert err.count("\n") == 1, case
    # The last one is not wrong, so far as one can tell: Java is asked, once, which shows that it would have been seen.
    assert told[-1][0] == 2
    assert (tmp_path / "started").read_text() == "started\n"


def test_a_refusal_of_binary_garbage_stays_short(tmp_path, capsys):
    (tmp_path / "garbage.csv").write_text("x" * 50_000)
    assert run(["order", str(tmp_path / "garbage.csv"), "--id", "a", "--causes", "b", "--out", "out"]) == 2
    told = capsys.readouterr().err
    assert len(told) < 1100
    assert "--id must be one of the columns xxx" in told
    assert told.endswith("xxx, not 'a'\n")


def test_a_terminal_sees_what_happens_from_the_start_and_a_pipe_does_not(tmp_path):
    pytest.importorskip("pyspark")
    (tmp_path / "events.jsonl").write_text('{"id": "a", "parent": null}\n')
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    os.mkfifo(tmp_path / "go")
    java.write_text(f'#!/bin/sh\nread line < "{tmp_path}/go"\nexit 1\n')
    java.chmod(0o755)
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="17"\n')
    command = [
        sys.executable,
        "-c",
        "from antecede.cli import main; main()",
        *("order", str(tmp_path / "events.jsonl"), "--id", "id", "--causes", "parent"),
        *("--out", str(tmp_path / "out")),
    ]
    environment = {**os.environ, "JAVA_HOME": str(tmp_path / "java"), "TERM": "xterm", "HOME": str(tmp_path)}
    ours, theirs = pty.openpty()
    shown = b""
    with subprocess.Popen(command, stderr=theirs, env=environment) as process:
        os.close(theirs)  # So that reading fails, and does not wait, if the command ends before.
        while b"starting Spark" not in shown:  # Java has not said a word yet: it waits for us.
            shown += os.read(ours, 4096)
        (tmp_path / "go").write_text("\n")
        while b"does not start" not in shown:
            shown += os.read(ours, 4096)
    assert process.returncode == 2
    os.close(ours)
    java.write_text("#!/bin/sh\nexit 1\n")
    piped = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (piped.returncode, piped.stdout) == (2, "")
    assert piped.stderr.startswith("antecede: Spark with master local[*] does not start: ")
    assert piped.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A Python with this package and what a plain installation brings, and nothing else."""
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, with_pip=False)
    [packages] = (home / "lib").glob("python*/site-packages")
    (packages / "antecede").symlink_to(Path(antecede.__file__).parent)
    for name in plain_requirements("antecede"):
        for file in metadata.files(name) or ():
            top = Path(file.parts[0])
            if top.suffix != ".dist-info" and ".." not in file.parts and not (packages / top).exists():
                (packages / top).symlink_to(Path(str(metadata.distribution(name).locate_file(top))))
    return home / "bin" / "python"


def plain_requirements(name):
    """The packages that an installation without extras brings."""
    from packaging.requirements import Requirement

    left, found = [name], set()
    while left:
        for text in metadata.requires(left.pop()) or ():
            requirement = Requirement(text)
            needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if needed and requirement.name not in found:
                found.add(requirement.name)
                left.append(requirement.name)
    return sorted(found)


NEED_SPARK = {
    "measure": "measure TRACE",
    "report": "report TRACE --out OUT.html",
    "order": "order TRACE --out OUT",
    "ingest": "ingest TRACE --format shiviz --out OUT",
    "sweep": "sweep EXPERIMENT --out OUT",
    "demo": "demo --out OUT",
}
NEED_NOTHING = {
    "simulate": "simulate --protocol matrix --processes 3 --messages 9 --seed 1 --out TRACE",
    "verify": "verify TRACE",
    "sweep": "sweep EXPERIMENT --out SWEPT --local",
    "check": "check --protocol matrix",
    "choose": "choose --processes 3 --messages 30 --protocol matrix --protocol history",
    "triangle": "triangle",
    "soak": "soak --runs 1 --messages 50",
    "keys": "keys KEYS ann",
    "watch": "watch TRACE --json",
    "node": "node NODE.toml",
}
EXPERIMENT = """
[grid]
protocol = "fifo"
processes = 3
messages = 20
seed = 1
"""


def test_a_plain_installation_says_which_extra_a_command_needs(bare, tmp_path):
    (tmp_path / "EXPERIMENT").write_text(EXPERIMENT)
    (tmp_path / "NODE.toml").write_text("name = 7\n")
    places = ("TRACE", "EXPERIMENT", "SWEPT", "KEYS", "NODE", "OUT")

    def arguments(case):
        return [f"{tmp_path}/{word}" if word.startswith(places) else word for word in case.split()]

    helps = [[name, "--help"] for name in COMMANDS]
    works, needs = list(NEED_NOTHING.values()), list(NEED_SPARK.values())
    assert set(NEED_NOTHING) | set(NEED_SPARK) == set(COMMANDS)
    environment = {"PYTHONPATH": "", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    lacks = "import importlib.util as u; print(u.find_spec('pyspark'), u.find_spec('numba'), u.find_spec('pandas'))"
    assert subprocess.check_output([bare, "-c", lacks], env=environment, text=True) == "None None None\n"
    told = try_all(bare, [*helps, *map(arguments, works), *map(arguments, needs)], **environment)
    assert [code for code, _ in told[: len(helps)]] == [0] * len(helps)
    for case, (code, err) in zip(works, told[len(helps) :], strict=False):
        # That file describes no node, which is known without any extra.
        assert code == (2 if case.startswith("node") else 0), (case, code, err)
    for case, (code, err) in zip(needs, told[-len(needs) :], strict=True):
        assert (code, err.count("\n")) == (2, 1), (case, err)
        assert "pip install 'antecede[spark]'" in err, case
    assert not list(tmp_path.glob("OUT*"))


def test_a_place_without_permission_is_named_before_spark_starts(monkeypatch, tmp_path, capsys):
    """Root may do everything, so the system's answer is given here."""
    events = tmp_path / "events.csv"
    events.write_text("id,parent\na,\n")
    order = ["order", str(events), "--id", "id", "--causes", "parent", "--out", str(tmp_path / "new" / "out")]
    monkeypatch.setattr("os.access", lambda path, mode: mode == os.R_OK)
    assert run(order) == 2
    assert f"you may not write to {tmp_path}\n" in capsys.readouterr().err
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.R_OK)
    assert run(order) == 2
    assert "events.csv: you may not read it" in capsys.readouterr().err
