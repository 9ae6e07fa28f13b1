"""The soak: its fast check agrees with the oracle, its runs repeat, and what fails becomes short."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antecede.cli import run as command
from antecede.link import Frame, Link
from antecede.model import Event, View
from antecede.oracle import check
from antecede.protocols import PROTOCOLS
from antecede.protocols.fifo import Fifo
from antecede.protocols.matrix import Matrix
from antecede.sim.run import RunSpec
from antecede.sim.soak import CAUSAL, draw, examine, shrink, simpler
from antecede.sim.watch import Watch
from antecede.trace.schema import KINDS


def watch_events(events: list[Event], n: int, at: list[int] | None = None) -> Watch:
    watch = Watch(n, at)
    for event in events:
        watch.record(
            event.process,
            KINDS.index(event.kind),
            event.sender,
            event.number,
            event.to or None,
            event.control,
        )
    return watch


def wild(random: Random, n: int, unwanted: bool) -> list[Event]:
    """A run without any order: deliveries anywhere after their sends, some lost, some again."""
    events: list[Event] = []
    flying: list[tuple[int, int, int]] = []
    sent = [0] * n
    done: list[tuple[int, int, int]] = []
    for _ in range(random.randrange(60)):
        act = random.random()
        if act < 0.4:
            sender = random.randrange(n)
            sent[sender] += 1
            to = tuple(sorted(random.sample(range(n), random.randint(1, n))))
            events.append(Event(sender, "send", sender, sent[sender], to))
            flying += [(q, sender, sent[sender]) for q in to]
        elif act < 0.9 and flying:
            copy = flying.pop(random.randrange(len(flying)))
            done.append(copy)
            events.append(Event(copy[0], "deliver", *copy[1:]))
        elif unwanted and done:
            process, sender, number = random.choice(done)
            events.append(Event(process, "deliver", sender, number))
        if random.random() < 0.1:
            events.append(Event(0, "receive", random.randrange(n), 1, (), True))
    return events


@given(st.integers(0, 2**32), st.integers(1, 5), st.booleans())
@settings(max_examples=400, deadline=None)
def test_the_watch_finds_what_the_oracle_finds(seed, n, unwanted):
    random = Random(seed)
    events = wild(random, n, unwanted)
    at = sorted(random.sample(range(n), random.randint(1, n)))
    verdict, watch = check(events, n, at=at), watch_events(events, n, at)
    assert {(copy.message, copy.at) for copy in watch.violations} == verdict.marks
    assert {(copy.message, copy.at) for copy in watch.fifo_breaks} == {
        (v.overtaken, v.at) for v in verdict.fifo_breaks
    }
    assert sorted(watch.list_undelivered()) == sorted(verdict.undelivered)
    assert sorted(watch.unwanted) == sorted(verdict.duplicates)
    assert watch.deliveries == verdict.deliveries
    for order in ("none", "fifo"):
        assert bool(watch.findings(order)) != verdict.keeps(order)
    skipped = {copy.at for copy in watch.list_undelivered()}
    assert bool(watch.findings("causal")) != verdict.keeps("causal") or skipped


def test_the_watch_sees_what_nobody_sent_or_addressed():
    watch = watch_events(
        [Event(0, "send", 0, 1, (1,)), Event(2, "deliver", 0, 1), Event(1, "deliver", 2, 7)], 3
    )
    lines = watch.findings(view=View.numbered(3))
    assert [line.partition(":")[0] for line in lines] == ["unwanted", "unsent", "undelivered"]
    assert "p3 delivered p1.1" in lines[0]


def test_the_watch_forgets_what_is_delivered():
    watch = Watch(2)
    for k in range(1, 1000):
        watch.send(0, k, (1,))
        watch.deliver(1, 0, k)
    assert not watch._clocks
    assert not watch._left


# Runs


def test_the_same_seed_draws_the_same_runs():
    assert [draw(3, i) for i in range(20)] == [draw(3, i) for i in range(20)]
    assert draw(3, 0) != draw(4, 0)


def test_every_causal_protocol_has_its_turn_and_every_fault_its_day():
    specs = [draw(0, number) for number in range(60)]
    assert {spec.protocol for spec in specs} == set(CAUSAL)
    faults = " ".join(spec.faults for spec in specs)
    assert all(kind in faults for kind in ("loss", "duplicate", "partition", "pause", "crash", "none"))
    assert len({spec.network for spec in specs}) > 10
    assert len({spec.workload for spec in specs}) > 10
    assert len({spec.topology for spec in specs}) > 4


def test_histories_that_forget_by_time_are_drawn_where_the_network_keeps_it():
    specs = [draw(2, number, ("history",), most=80) for number in range(40)]
    timed = [spec for spec in specs if "delta" in spec.parameters]
    assert 0 < len(timed) < len(specs)
    assert {spec.faults for spec in timed} == {"none"}
    for spec in timed:
        assert examine(spec).findings == (), spec.command()


def test_histories_that_forget_by_proof_are_drawn_too():
    specs = [draw(4, number, ("history",), most=80) for number in range(40)]
    proved = [spec for spec in specs if spec.parameters.get("r10")]
    assert 0 < len(proved) < len(specs)
    # With R7 and R8 hardly any evidence is left, so some leave them out.
    assert any(not spec.parameters.get("r8", True) for spec in proved)
    for spec in proved:
        assert examine(spec).findings == (), spec.command()


def test_drawn_runs_keep_what_their_protocol_promises():
    for number in range(27):
        spec = draw(9, number, most=80)
        outcome = examine(spec)
        assert not outcome.findings, f"{spec.command()}\n{outcome.findings}"
        assert outcome.judged
        assert outcome.deliveries


def test_the_other_protocols_break_causal_order_and_are_caught():
    for protocol in ("unordered", "fifo"):
        spec = RunSpec(protocol=protocol, processes=4, messages=150, workload="broadcast:rate=50/s")
        assert examine(spec).findings == ()
        assert examine(spec, "causal").kind == "violation"
        assert examine(
            RunSpec(protocol=protocol, processes=4, messages=400, workload="broadcast:rate=50/s"), "causal"
        ).kind


# Broken protocols


class Broken(Matrix):
    """Forgets what others told it about third parties: causal order holds between two, not among three."""

    name = "matrix"

    def _needs(self, packet: Any) -> Any:
        return [need for need in super()._needs(packet) if need[0] == packet.source]


class Stuck(Fifo):
    """Drops the third message of each channel."""

    name = "fifo"

    def _receive(self, packet: Any) -> Any:
        return [] if packet.stamp.sequence == 3 else super()._receive(packet)


class Raising(Fifo):
    name = "fifo"

    def deliver(self, message: Any) -> Any:
        if message.number == 5:
            raise KeyError("five")
        return super().deliver(message)


@pytest.fixture
def broken(monkeypatch):
    def put(kind: Any) -> None:
        monkeypatch.setitem(PROTOCOLS, kind.name, kind)

    return put


LARGE: dict[str, Any] = {
    "processes": 8,
    "messages": 150,
    "seed": 77,
    "network": "exponential:20ms,bandwidth=10Mbit/s",
    "workload": "mix:uniform=4,broadcast=1,chain=2,rate=30/s",
    "faults": "loss:1%;duplicate:1%;crash:random:mean=1s,down=100ms",
}


def test_a_failing_run_is_shrunk(broken):
    broken(Broken)
    spec = RunSpec(protocol="matrix", **LARGE)
    outcome = examine(spec)
    assert outcome.kind == "violation"
    heard: list[RunSpec] = []
    short = shrink(spec, outcome.kind, told=heard.append, most=250)
    print(short.command())
    assert examine(short).kind == "violation"
    assert heard[-1] == short
    assert (short.faults, short.topology) == ("none", "mesh")
    assert short.processes <= 4
    assert short.messages <= 12


@pytest.mark.parametrize(("kind", "told"), [(Stuck, "undelivered"), (Raising, "raised")])
def test_a_run_that_gets_stuck_or_raises_is_found_and_shrunk(broken, kind, told):
    broken(kind)
    spec = RunSpec(protocol="fifo", processes=4, messages=200, seed=1)
    assert examine(spec).kind == told
    assert shrink(spec, told, most=150).messages <= 20


def test_shrinking_ends_after_so_many_runs(broken):
    broken(Broken)
    spec = RunSpec(protocol="matrix", **LARGE)
    assert shrink(spec, "violation", most=0) == spec


def test_simpler_specs_are_simpler():
    spec = RunSpec(protocol="bounded", parameters={"k": 70}, topology="star", **LARGE)
    for candidate in simpler(spec):
        assert candidate != spec
        assert candidate.messages <= spec.messages
        assert candidate.processes <= spec.processes


def test_a_link_that_repeats_is_found_out_though_machines_ignore_it(monkeypatch):
    real = Link._take_payload

    def repeat(self: Link, frame: Frame, now: int) -> list[Any]:
        return real(self, frame, now) * 2

    spec = RunSpec(
        protocol="unordered", processes=3, messages=100, faults="crash:random:mean=500ms,down=100ms"
    )
    assert examine(spec).findings == ()
    monkeypatch.setattr(Link, "_take_payload", repeat)
    assert examine(spec).kind == "link"


def test_when_watch_and_oracle_disagree_it_is_said(monkeypatch):
    monkeypatch.setattr(Watch, "findings", lambda self, *a, **k: ["violation: made up"])
    assert examine(RunSpec(protocol="fifo", processes=3, messages=20)).kind == "disagreement"


# The command


def test_soak_says_yes(capsys):
    assert (
        command(["soak", "--runs", "3", "--messages", "50", "--protocol", "permit", "--jobs", "1", "--json"])
        == 0
    )
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert (result["verdict"], result["runs"], result["failures"]) == ("yes", 3, [])
    assert set(result["deliveries_by_protocol"]) == {"permit"}
    assert "no violation, nothing lost" in err


def test_soak_prints_the_command_that_repeats_a_failure(capsys, broken):
    broken(Broken)
    arguments = [
        "--runs",
        "4",
        "--messages",
        "60",
        "--protocol",
        "matrix",
        "--jobs",
        "1",
        "--shrink",
        "--json",
    ]
    assert command(["soak", *arguments]) == 1
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert result["verdict"] == "no"
    failure = result["failures"][0]
    assert failure["command"].startswith("antecede simulate --protocol matrix")
    assert failure["command"] in err
    assert failure["shrunk"] in err


def test_soak_stops_after_so_many_deliveries_or_seconds(capsys):
    assert command(["soak", "--deliveries", "1", "--jobs", "1", "--messages", "20"]) == 0
    assert "1 run, " in capsys.readouterr().err
    assert command(["soak", "--seconds", "0", "--json", "--jobs", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "unknown"


def test_soak_works_in_several_processes(capsys):
    one, two = (
        command(["soak", "--runs", "4", "--messages", "40", "--jobs", jobs, "--json"]) for jobs in ("1", "2")
    )
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (one, two) == (0, 0)
    for field in ("runs", "deliveries", "crashes", "resent"):
        assert first[field] == second[field]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_is_how_a_soak_is_told_to_stop(jobs):
    arguments = ["soak", "--messages", "20", "--jobs", jobs, "--json"]
    process = subprocess.Popen(
        [sys.executable, "-c", "from antecede.cli import main; main()", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    first = process.stderr.readline()
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (first, process.returncode) == ("soaking\n", 0), err
    assert json.loads(out)["verdict"] in ("yes", "unknown")
    *notes, _ = err.splitlines()
    announcement = "stopping when the runs under way are done; Ctrl-C again stops at once"
    assert notes in ([], [announcement]), err


@pytest.mark.skipif(sys.platform != "linux", reason="looks for workers as Linux lists processes")
def test_a_second_ctrl_c_ends_a_soak_without_waiting_for_its_runs():
    long = '{"protocol": "matrix", "messages": 1000000}'
    arguments = ["soak", "--nodes", "--scenario", long, "--jobs", "2"]
    process = subprocess.Popen(
        [sys.executable, "-c", "from antecede.cli import main; main()", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    try:
        assert process.stderr.readline() == "soaking\n"
        deadline = time.monotonic() + 60
        while len(workers.read_text().split()) < 2:  # One of them keeps account of the others.
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        assert process.stderr.readline().startswith("stopping when")
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert (err, process.returncode) == ("antecede: stopped\n", 130)


def test_soak_refuses_an_unknown_protocol(capsys):
    assert command(["soak", "--protocol", "smoke"]) == 2
    assert "smoke" in capsys.readouterr().err
