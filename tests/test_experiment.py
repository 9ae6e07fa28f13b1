"""Experiment files: what they expand to, how they are run, continued and refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from antecede.cli import run as command
from antecede.errors import BadExperiment, InputError
from antecede.sim.experiment import Experiment, expand, load
from antecede.sim.sweep import Failure, Row, perform, read, sweep
from antecede.trace import read_runs

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "experiments").glob("*.toml"))

SMALL = """
[grid]
messages = 40
processes = 4
seeds = 2
[[case]]
name = "clocks"
protocol = ["matrix", "bounded:k=5"]
[[case]]
name = "histories"
protocol = "history"
workload = "groups:size=3"
"""


def write_experiment(tmp_path: Path, text: str = SMALL) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(text)
    return path


# Expansion


def specs(table: dict) -> list[tuple]:
    return [
        (r.spec.protocol, r.spec.parameters, r.spec.processes, r.spec.seed) for r in expand(table, "t").runs
    ]


def test_a_list_is_an_axis_and_the_runs_are_the_product():
    table = {"grid": {"protocol": ["fifo", "matrix"], "processes": [4, 8], "seed": [3, 5]}}
    assert specs(table) == [(p, {}, n, s) for p in ("fifo", "matrix") for n in (4, 8) for s in (3, 5)]


def test_a_case_is_a_grid_of_its_own_so_that_k_can_depend_on_n():
    table = {
        "grid": {"protocol": "bounded", "seeds": 1},
        "case": [
            {"processes": 4, "parameters": {"k": [5, 16]}},
            {"processes": 8, "parameters": {"k": [9]}, "seed": 7},
        ],
    }
    assert specs(table) == [
        ("bounded", {"k": 5}, 4, 0),
        ("bounded", {"k": 16}, 4, 0),
        ("bounded", {"k": 9}, 8, 7),
    ]


def test_parameters_can_stand_with_the_protocol():
    table = {"grid": {"protocol": ["matrix", "separator:r9=false,r6_1=true", "bounded:k=5/9*3"]}}
    assert [parameters for _, parameters, _, _ in specs(table)] == [
        {},
        {"r9": False, "r6_1": True},
        {"k": "5/9*3"},
    ]


def test_the_same_run_has_the_same_name_and_another_case_another():
    one, two = (
        expand({"case": [{"name": n, "protocol": "fifo"} for n in names]}, "t").runs
        for names in (("a", "b"), ("b", "a"))
    )
    assert {run.key for run in one} == {run.key for run in two}
    assert len({run.key for run in one}) == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1", "has the unknown key 'x'; the keys are title, measure, grid, case"),
        ("grid = 3", "grid must be a table, not 3"),
        ("[grid]\nprotocol = 'fifo'\nn = 3", "case 1 has the unknown key 'n'; the keys are protocol,"),
        ("[grid]\nprocesses = 3", "case 1, protocol is missing: name a protocol"),
        ("[grid]\nprotocol = []", "case 1, protocol is an empty list"),
        ("[grid]\nprotocol = 'magic'", "case 1: protocol must be one of"),
        ("[[case]]\nname = 'a'\nprotocol = 'fifo'\nseeds = 0", "case a, seeds is 0: it must be 1 or more"),
        (
            "[grid]\nprotocol = 'fifo'\nprocesses = ['3']",
            "case 1, processes must be a number, or a list of them, not '3'",
        ),
        (
            "[grid]\nprotocol = 'fifo'\nmessages = true",
            "case 1, messages must be a number, or a list of them, not True",
        ),
        ("[grid]\nprotocol = 'fifo'\nmessages = 0", "case 1: messages must be 1 to"),
        ("[grid]\nprotocol = 'fifo:5'", "case 1, protocol is 'fifo:5': write NAME"),
        ("[grid\n", "is no TOML"),
        ("[grid]\nprotocol = 'fifo'\nnetwork = 'pigeons'", "case 1, network"),
        (
            "[grid]\nprotocol = 'fifo'\nworkload = 'uniform:size=99'",
            "case 1, workload: size must be 1 to 7",
        ),
        ("[grid]\nprotocol = 'bounded'\nparameters.k = 3", "case 1, bounded: k must be more than n"),
        (
            "[grid]\nprotocol = 'bounded:k=5/6'",
            "case 1, simulate: k must have values for 8 processes, and 5/6 has 2",
        ),
        (
            "measure = 'weight'\n[grid]\nprotocol = 'fifo'",
            "measure must be stamps, history:PROCESS, ",
        ),
        ("measure = 'history:p1'\n[grid]\nprotocol = 'fifo'", "fifo keeps no history"),
        ("measure = 'stamps:q1'\n[grid]\nprotocol = 'fifo'", "q1"),
        (
            "measure = 'busy:routers'\n[grid]\nprotocol = 'fifo'\ntopology = 'star'",
            "measure busy needs a protocol that routers run",
        ),
        (
            "measure = 'entries:sea'\n[grid]\nprotocol = 'fifo'",
            "measure must be stamps, history:PROCESS, entries:wan and so on, not 'entries:sea'",
        ),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path, capsys, text, told):
    path = write_experiment(tmp_path, text)
    out = tmp_path / "out"
    assert command(["sweep", str(path), "--out", str(out)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert str(path) in line
    assert told in line
    assert not out.exists()


def test_a_file_that_is_not_there_is_refused(tmp_path, capsys):
    assert command(["sweep", str(tmp_path / "no.toml"), "--out", str(tmp_path / "out")]) == 2
    assert "no.toml: cannot read" in capsys.readouterr().err


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_files_of_the_papers_questions_expand_and_can_be_built(path):
    experiment = load(path)
    assert experiment.title
    assert experiment.runs
    experiment.check()


def test_a_large_run_is_built_in_its_turn_and_fails_alone(tmp_path):
    """To build some thousands of processes for each run before the first one begins takes minutes."""
    wrong = {"protocol": "matrix", "workload": "groups:members=p1+p99999", "messages": 1}
    with pytest.raises(InputError, match="p99999"):
        expand({"grid": {**wrong, "processes": 512}}, "small").check()
    large = expand({"grid": {**wrong, "processes": 513}}, "large")
    large.check()
    [failed] = sweep(large, tmp_path, jobs=1)
    assert isinstance(failed, Failure)
    assert "p99999" in failed.reason


# Running


def test_each_run_is_a_line_with_all_that_decides_it_and_all_that_it_came_to(tmp_path, capsys):
    out = tmp_path / "out"
    assert (
        command(
            ["sweep", str(write_experiment(tmp_path)), "--out", str(out), "--local", "--jobs", "2", "--json"]
        )
        == 0
    )
    outcome = json.loads(capsys.readouterr().out)
    assert (outcome["verdict"], outcome["runs"], outcome["made"], outcome["failures"]) == ("yes", 6, 6, [])
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert [(r["case"], r["protocol"], r["seed"]) for r in lines] == [
        *(("clocks", p, s) for p in ("matrix", "bounded") for s in (0, 1)),
        *(("histories", "history", s) for s in (0, 1)),
    ]
    assert lines[2]["parameters"] == {"k": 5}
    assert lines[2]["stamp_entries"]["max"] < 5
    assert all(line["sent"] == 40 and line["cpu_seconds"] > 0 for line in lines)
    assert lines[5]["command"].startswith("antecede simulate --protocol history")


def test_a_row_reads_back_as_it_was(tmp_path):
    experiment = load(write_experiment(tmp_path))
    result = perform(experiment.runs[0])
    assert isinstance(result, Row)
    assert Row.load(json.loads(json.dumps(result.plain()))) == result


def test_the_same_experiment_gives_the_same_figures(tmp_path):
    experiment = load(write_experiment(tmp_path))
    once = [perform(run) for run in experiment.runs]
    again = sweep(experiment, tmp_path / "out", jobs=2)
    assert [r.summary for r in once if isinstance(r, Row)] == [r.summary for r in again if isinstance(r, Row)]


def test_an_interrupted_sweep_continues_where_it_was(tmp_path):
    experiment, out = load(write_experiment(tmp_path)), tmp_path / "out"
    whole = sweep(experiment, out, jobs=1)
    path = out / "results.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[4], lines[1]]) + lines[0][:50])
    made: list[str] = []
    again = sweep(experiment, out, jobs=1, note=lambda result: made.append(result.run))
    assert made == [experiment.runs[i].key for i in (0, 2, 3, 5)]
    assert [r.run for r in again] == [r.run for r in whole]
    assert [r.run for r in read(out)] == [run.key for run in experiment.runs]


def test_ctrl_c_keeps_what_was_made(tmp_path):
    experiment, out = load(write_experiment(tmp_path)), tmp_path / "out"

    def stop(result: Row | Failure) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(experiment, out, jobs=1, note=stop)
    assert len(read(out)) == 1


def test_results_of_another_experiment_are_not_mixed_in(tmp_path):
    experiment, out = load(write_experiment(tmp_path)), tmp_path / "out"
    sweep(Experiment("one", "", experiment.runs[:1]), out, jobs=1)
    with pytest.raises(InputError, match="is not one of other"):
        sweep(Experiment("other", "", experiment.runs[1:]), out, jobs=1)


def test_a_damaged_result_is_refused_with_its_line(tmp_path):
    (tmp_path / "results.jsonl").write_text('{"case": "a"}\n')
    with pytest.raises(InputError, match=r"results.jsonl, line 1 is not a result of this version: "):
        read(tmp_path)


# Raynal & Schiper 1989, figure 1: p3 takes first what it may take only second.
DEADLOCK = (
    "p1: send x to p3; send y to p2\np2: receive y; send z to p3\np3: receive from p2; receive from p1\n"
)


def test_a_run_that_fails_is_told_with_its_command_and_loses_no_other(tmp_path, capsys):
    out, script = tmp_path / "out", tmp_path / "deadlock.txt"
    script.write_text(DEADLOCK)
    case = f"[[case]]\nname = 'deadlock'\nworkload = 'script:{script}'\n[[case]]\nname = 'fine'\n"
    path = write_experiment(tmp_path, f"[grid]\nprotocol = 'matrix'\nmessages = 9\nseeds = 2\n{case}")
    assert command(["sweep", str(path), "--out", str(out), "--local", "--jobs", "1", "--json"]) == 1
    told = capsys.readouterr()
    outcome = json.loads(told.out)
    assert outcome["verdict"] == "no"
    assert [f["case"] for f in outcome["failures"]] == ["deadlock", "deadlock"]
    assert "seed 1: stuck: " in told.err
    assert "repeat with: antecede simulate --protocol matrix" in told.err
    assert f"--workload script:{script}" in told.err
    assert [row.case for row in read(out)] == ["fine", "fine"]
    failures = [json.loads(line) for line in (out / "failures.jsonl").read_text().splitlines()]
    assert [f["seed"] for f in failures] == [0, 1]


def test_traces_are_written_when_asked_for(tmp_path):
    experiment, out = load(write_experiment(tmp_path)), tmp_path / "out"
    sweep(experiment, out, jobs=2, traces=True)
    assert {run.run for run in read_runs(out / "trace")} == {run.key for run in experiment.runs}


def test_distributions_are_measured_when_asked_for(tmp_path):
    table = {
        "measure": ["stamps", "stamps:hops", "stamps:p1+p2", "history:d3"],
        "grid": {
            "protocol": "separator",
            "topology": "figure-7.1",
            "workload": "groups",
            "messages": 100,
            "processes": 6,
        },
    }
    [run] = expand(table, "t").runs
    row = perform(run)
    assert isinstance(row, Row)
    counts = {name: sum(count.values()) for name, count in row.measured.items()}
    assert counts["stamps"] == counts["history:d3"] == row.summary.packets
    assert 0 == counts["stamps:p1+p2"] < counts["stamps:hops"] < counts["stamps"]


@pytest.mark.parametrize("protocol", ["separator", "history"])
def test_links_and_routers_are_measured(protocol):
    links = [f"{what}:{link}" for what in ("entries", "bytes", "control") for link in ("lan", "man", "wan")]
    parts = ["packets:nodes", "packets:departments", "packets:organisations", "history:processes"]
    busy = ["busy:departments", "history:departments"] if protocol == "separator" else []
    grid = {"protocol": protocol, "topology": "hierarchy:inside=2/2/1", "processes": 8, "messages": 60}
    table = {"measure": [*links, *parts, *busy], "grid": {**grid, "workload": "local:share=50%,blocks=2/4"}}
    [run] = expand(table, "t").runs
    row = perform(run)
    assert isinstance(row, Row)
    count = {name: sum(found.values()) for name, found in row.measured.items()}
    total = {name: sum(int(v) * times for v, times in found.items()) for name, found in row.measured.items()}
    crossed = sum(count[f"entries:{link}"] for link in ("lan", "man", "wan"))
    assert 0 < count["entries:wan"] == count["bytes:wan"] < crossed
    assert (count["packets:nodes"], count["packets:departments"], count["packets:organisations"]) == (4, 4, 4)
    assert total["history:processes"] > 0
    if protocol == "separator":
        assert crossed == row.summary.packets
        assert sum(count[f"control:{link}"] for link in ("lan", "man", "wan")) == row.summary.control_packets
        assert total["busy:departments"] > 0
        assert count["history:processes"] == row.summary.sent, (
            "a process transmits what it sends, to its node"
        )
    else:
        assert crossed > row.summary.packets == count["history:processes"]
        # Every message passes the node of its sender; beyond, only the first gateway of two has work.
        assert "0" in row.measured["packets:departments"]


# Texts that the experiments needed


def entries(**values) -> list[float]:
    runs = expand({"grid": {"messages": 300, **values}}, "t").runs
    rows = [row for row in map(perform, runs) if isinstance(row, Row)]
    assert len(rows) == len(runs)
    return [row.summary.stamp_entries.mean for row in rows]


def test_each_process_can_have_a_parameter_of_its_own():
    [run] = expand({"grid": {"protocol": "bounded:k=5*3/16*1", "processes": 4}}, "t").runs
    assert [machine.parameters["k"] for machine in run.spec.build().engine.machines] == [5, 5, 5, 16]
    assert "--set 'k=5*3/16*1'" in run.spec.command()


def test_r9_filters_where_the_topology_says():
    places = ["figure-7.1:r9=none", "figure-7.1:r9=d3", "figure-7.1:r9=d1+d3+n3", "figure-7.1"]
    none, one, three, default = entries(protocol="separator", workload="groups", topology=places)
    assert none > one > three == default


def test_where_processes_are_and_who_is_in_a_group_matters():
    one = {"protocol": "separator", "workload": "groups"}
    assert len({*entries(**one, topology=["figure-7.1", "figure-7.1:nodes=2/2/2"])}) == 1
    assert len({*entries(**one, topology=["figure-7.1", "figure-7.1:nodes=3/2/1"])}) == 2
    given = "groups:members=p1+p2+p3/p3+p4+p5/p1+p6/p5+p6"
    one = {"protocol": "separator", "topology": "figure-7.1"}
    assert len({*entries(**one, workload=["groups", given])}) == 1


@pytest.mark.parametrize(
    ("topology", "workload", "told"),
    [
        ("figure-7.1:nodes=3/3", "groups", "how many are at n1, n2 and n3"),
        ("figure-7.1:nodes=3/3/3", "groups", "p1 to p6 at n1, n2 and n3"),
        ("figure-7.1:r9=d9", "groups", "d9"),
        ("figure-7.1", "groups:members=p1+p99", "p99"),
    ],
)
def test_a_place_that_cannot_be_is_refused(topology, workload, told):
    table = {"grid": {"protocol": "separator", "topology": topology, "workload": workload}}
    with pytest.raises(InputError, match=told):
        expand(table, "t").check()


def test_bad_experiment_has_its_facts_as_fields():
    with pytest.raises(BadExperiment) as caught:
        expand({"grid": {"protocol": 3}}, "file")
    assert (caught.value.place, caught.value.reason) == (
        "file: case 1, protocol",
        "must be a text, or a list of texts, not 3",
    )
