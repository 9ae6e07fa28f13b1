"""antecede verify on the command line: exit codes, one JSON object, sentences. One Spark for all of it, apart."""

import json
import subprocess
import sys

import pytest

from antecede.trace import DELIVER, SEND, RunInfo, TraceWriter

pytest.importorskip("pyspark")

# Several commands in one process: Java starts once.
SCRIPT = """
import contextlib, io, json, sys
from antecede.cli import run
told = []
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(arguments)
    told.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(told))
"""

KEYS = [
    "run",
    "verdict",
    "reason",
    "deliveries",
    "violations",
    "fifo_breaks",
    "duplicates",
    "unsent",
    "unaddressed",
    "undelivered",
]


def write(path, name, overtaken):
    """x goes from p1 to p3; y from p1 to p2, which then sends z to p3."""
    run = RunInfo(run=name, protocol="none", processes=("p1", "p2", "p3"))
    with TraceWriter(path, run) as writer:
        writer.append(0, SEND, 0, 1, (2,), clock=0)
        writer.append(0, SEND, 0, 2, (1,), clock=1)
        writer.append(1, DELIVER, 0, 2, clock=2)
        writer.append(1, SEND, 1, 1, (2,), clock=3)
        for position, sender in enumerate((1, 0) if overtaken else (0, 1)):
            writer.append(2, DELIVER, sender, 1, clock=4 + position)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    home = tmp_path_factory.mktemp("cli")
    write(home / "good", "kept", False)
    write(home / "bad", "kept", False)
    write(home / "bad", "broken", True)
    (home / "nothing").mkdir()
    commands = {
        "good": ["verify", str(home / "good"), "--explain"],
        "bad": ["verify", str(home / "bad"), "--out", str(home / "out")],
        "json": ["verify", str(home / "bad"), "--json"],
        "nothing": ["verify", str(home / "nothing"), "--json"],
        "taken": ["verify", str(home / "good"), "--out", str(home / "out")],
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(list(commands.values()))],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    return {"home": home, **dict(zip(commands, answers, strict=True))}


def test_yes_is_code_0(told):
    code, out, err = told["good"]
    assert (code, out) == (0, "")
    assert "sequence: 1 run (kept): files in order" in err
    assert err.splitlines()[-1] == "yes: 1 run, 3 deliveries, nothing wrong"


def test_no_is_code_1_and_shows_what_broke_it(told):
    code, out, err = told["bad"]
    assert (code, out) == (1, "")
    words = (
        "broken: violation: p3 delivered p1.1 after p2.1, which it causally precedes: p1.1 -> p1.2 -> p2.1"
    )
    assert words in err.splitlines()
    assert err.splitlines()[-1] == "no: 1 of 2 runs, 6 deliveries: run broken: 1 violation"
    assert sorted(path.name for path in (told["home"] / "out").iterdir()) == ["findings", "verdicts"]


def test_json_is_one_object_with_the_keys_of_the_contract(told):
    code, out, _ = told["json"]
    assert code == 1
    answer = json.loads(out)
    assert answer["verdict"] == "no"
    assert [list(run) for run in answer["runs"]] == [KEYS, KEYS]
    assert [(run["run"], run["verdict"], run["violations"]) for run in answer["runs"]] == [
        ("broken", "no", 1),
        ("kept", "yes", 0),
    ]


@pytest.mark.parametrize(
    ("command", "words"), [("nothing", "no runs.parquet"), ("taken", "findings, which is there")]
)
def test_what_cannot_be_done_is_code_2_and_one_line(told, command, words):
    code, out, err = told[command]
    assert (code, out) == (2, "")
    [line] = [line for line in err.splitlines() if line.startswith("antecede:")]
    assert words in line
