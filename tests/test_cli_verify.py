"""antecede verify on the command line: exit codes, one JSON object, sentences; in this process."""

import csv
import io
import json
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from antecede.cli import run
from antecede.trace import DELIVER, SEND, RunInfo, TraceWriter

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
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("cli")
    write(home / "good", "kept", False)
    write(home / "bad", "kept", False)
    write(home / "bad", "broken", True)
    (home / "nothing").mkdir()
    return home


@pytest.fixture
def told(capsys):
    """`told(*arguments)`: the exit code of a command, and what it says."""

    def tell(*arguments):
        code = run(["verify", *map(str, arguments)])
        return code, *capsys.readouterr()

    return tell


def test_yes_is_code_0(told, home):
    code, out, err = told(home / "good", "--explain")
    assert (code, out) == (0, "")
    assert err.startswith(
        "in this process, without Spark: 6 events on a local disk; kernels run as plain Python"
    )
    assert "sequence: 1 run (kept): files in order" in err
    assert err.splitlines()[-1] == "yes: 1 run, 3 deliveries, nothing wrong"


def test_no_is_code_1_and_shows_what_broke_it(told, home, tmp_path):
    code, out, err = told(home / "bad", "--out", tmp_path / "out")
    assert (code, out) == (1, "")
    words = (
        "broken: violation: p3 delivered p1.1 after p2.1, which it causally precedes: p1.1 -> p1.2 -> p2.1"
    )
    assert words in err.splitlines()
    assert err.splitlines()[-1] == "no: 1 of 2 runs, 6 deliveries: run broken: 1 violation"
    assert pq.read_table(tmp_path / "out" / "findings")["kind"].to_pylist() == ["violation"]
    assert pq.read_table(tmp_path / "out" / "verdicts")["verdict"].to_pylist() == ["no", "yes"]


def test_a_table_of_events_needs_the_names_of_its_columns(told, tmp_path):
    (tmp_path / "events.csv").write_text("id,parent\na,\n")
    code, out, err = told(tmp_path / "events.csv")
    assert (code, out) == (2, "")
    assert (
        "is a file, and a trace is a directory; to verify a table of events, name its columns with --id"
        in err
    )


def test_json_is_one_object_with_the_keys_of_the_contract(told, home):
    code, out, _ = told(home / "bad", "--json")
    assert code == 1
    answer = json.loads(out)
    assert answer["verdict"] == "no"
    assert [list(run) for run in answer["runs"]] == [KEYS, KEYS]
    assert [(run["run"], run["verdict"], run["violations"]) for run in answer["runs"]] == [
        ("broken", "no", 1),
        ("kept", "yes", 0),
    ]


def test_csv_has_a_line_for_each_run_with_the_values_of_json(told, home):
    code, out, err = told(home / "bad", "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 1
    assert err.splitlines()[-1].startswith("no: ")
    assert list(rows[0]) == KEYS
    runs = json.loads(told(home / "bad", "--json")[1])["runs"]
    assert rows == [{key: "" if run[key] is None else str(run[key]) for key in KEYS} for run in runs]
    assert told(home / "bad", "--csv", "--json")[0] == 2
    assert "--csv prints a table of runs" in told(home / "bad", "--csv", "--stream")[2]


def test_what_cannot_be_done_is_code_2_and_one_line(told, home, tmp_path):
    (tmp_path / "out" / "findings").mkdir(parents=True)
    for arguments, words in (
        ((home / "nothing", "--json"), "antecede ingest makes one of logs and spans"),
        ((home / "nowhere",), "nowhere: there is no such file or directory"),
        ((home / "good", "--out", tmp_path / "out"), "findings is there already"),
    ):
        code, out, err = told(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith("antecede: ")
        assert words in err
        assert err.count("\n") == 1


def test_a_bad_run_is_unknown_and_code_2_unless_another_says_no(told, home, tmp_path):
    def spoil(place):
        write(place, "spoilt", False)
        [path] = [path for path in (place / "events").iterdir() if "spoilt" in path.name]
        table = pq.read_table(path)
        gap = table.column("index").to_pylist()
        gap[-1] += 1
        at = table.schema.get_field_index("index")
        pq.write_table(table.set_column(at, table.schema.field(at), [gap]), path)

    write(tmp_path / "one", "kept", False)
    spoil(tmp_path / "one")
    code, _, err = told(tmp_path / "one")
    assert code == 2
    assert "unknown: 1 of 2 runs, 3 deliveries: run spoilt: " in err
    assert "index 2 comes after index 0; indices must count 0, 1, 2" in err
    write(tmp_path / "two", "broken", True)
    spoil(tmp_path / "two")
    assert told(tmp_path / "two")[0] == 1


def test_a_small_trace_is_verified_with_nothing_but_what_a_plain_install_has(home):
    """No Spark, no Numba, and none of what other commands import."""
    script = """
import sys
from antecede.cli import run
code = run(["verify", *sys.argv[1:]])
assert not {"numba", "pyspark", "py4j", "antecede.net", "antecede.sim", "antecede.report"} & sys.modules.keys()
sys.exit(code)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, home / "bad", "--json"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["verdict"] == "no"
