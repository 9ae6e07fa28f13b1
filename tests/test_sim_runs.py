"""Runs: the same from the same seed, kept causal by the causal protocols, and counted as a trace would be."""

from __future__ import annotations

import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from antecede.protocols import PROTOCOLS
from antecede.sim import RunSpec, Simulation, Summary
from antecede.sim.checking import Checker
from antecede.sim.workloads import WORKLOADS
from antecede.trace import TraceWriter
from antecede.trace.schema import DELIVER, RECEIVE, SEND

Row = tuple[Any, ...]
TRIANGLE = "p1: send x to p3; send y to p2\np2: receive y; send z to p3\np3:\n"


def run(spec: RunSpec) -> tuple[list[Row], Simulation, Summary]:
    rows: list[Row] = []
    simulation = spec.build(lambda *row: rows.append(row))
    return rows, simulation, simulation.finish()


def spec(protocol: str, **more: Any) -> RunSpec:
    more.setdefault("workload", "broadcast" if protocol == "broadcast" else "groups:size=3")
    return RunSpec(**{"protocol": protocol, "processes": 5, "messages": 150, "seed": 11, **more})


# The same seed gives the same run.

GOLDEN = {
    "unordered": "a9b9cc8b155e45c2",
    "fifo": "206832f3e99d999c",
    "matrix": "2075f5feca2e991a",
    "bounded": "73387f0edde4d128",
    "monitor": "649c489448a65ef9",
    "buffer": "f4fd1c5e2b3f9483",
    "history": "2075f5feca2e991a",
    "separator": "0b44db6482e2e0c5",
    "broadcast": "58026170fd67dccf",
    "optimal": "2075f5feca2e991a",
    "permit": "60aa31b9cdd34d6a",
    "contexts": "2075f5feca2e991a",
    "sparing": "2075f5feca2e991a",
    "underway": "d4f1126484c8da78",
}


def digest(protocol: str) -> str:
    """Of all that a trace says but the sizes of stamps, which a better encoding may change."""
    rows = [row[:8] for row in run(spec(protocol, network="lognormal:20ms"))[0]]
    return sha256(repr(rows).encode()).hexdigest()[:16]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_seed_is_a_run_on_every_machine(protocol: str) -> None:
    """If this fails after a change that was meant to change runs, take the new digest; else something reads the
    order of a set, or a float."""
    assert digest(protocol) == GOLDEN[protocol]


def test_another_seed_is_another_run() -> None:
    assert run(spec("matrix"))[0] == run(spec("matrix"))[0] != run(spec("matrix", seed=12))[0]


def test_the_order_of_hashing_decides_nothing() -> None:
    code = "from tests.test_sim_runs import digest; print(digest('history'), digest('separator'), digest('permit'))"
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            cwd=Path(__file__).parent.parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_a_trace_is_the_same_byte_for_byte(tmp_path: Path) -> None:
    for name in ("a", "b"):
        simulation = spec("permit").build()
        with TraceWriter(tmp_path / name, simulation.info("r")) as writer:
            simulation.record(writer.append)
            simulation.finish()
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.parquet"))
    assert len(files) == 2
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_recording_a_run_does_not_change_it() -> None:
    """The short way through the loop and the long way are the same way."""
    for protocol in PROTOCOLS:
        for workload in (None, "uniform", "chain"):
            if protocol == "broadcast" and workload:
                continue
            one = spec(protocol, **({"workload": workload} if workload else {}))
            # Whatever is observed, packet by packet, takes the long way.
            rows: list[Row] = []
            long = one.run(lambda *row: rows.append(row), observe=lambda *packet: None)  # noqa: B023
            assert one.run() == long, one.command()
            assert run(one)[0] == rows, one.command()


def test_networks_do_not_change_what_is_said() -> None:
    def sends(**more: str) -> list[Row]:
        return [row[:5] for row in run(spec("fifo", **more))[0] if row[1] == SEND]

    assert sends() == sends(network="constant:3ms,loss=10%") == sends(network="lognormal:9ms")


# Order


NETWORKS = ("exponential:50ms", "zones:lan=1ms,bandwidth=1Mbit/s", "uniform:0,100ms,loss=5%,duplicate=5%")


def judge_run(one: RunSpec) -> tuple[Simulation, Any]:
    simulation = one.build()
    checker = Checker(simulation, one.messages)
    summary = simulation.finish()
    assert summary.complete, f"{one.command()}: {summary.stuck}"
    assert summary.sent == one.messages
    return simulation, checker.verdict()


@pytest.mark.parametrize("protocol", [name for name, kind in PROTOCOLS.items() if kind.order == "causal"])
@pytest.mark.parametrize("workload", [*WORKLOADS])
def test_causal_protocols_keep_the_order_and_lose_nothing(protocol: str, workload: str) -> None:
    if workload == "mix":
        workload = "mix:uniform=4,groups=2,broadcast=1,chain=2,client-server=1"
    if protocol == "broadcast" and workload not in ("broadcast", "document"):
        pytest.skip("sends to everyone only")
    for number, network in enumerate(NETWORKS):
        one = spec(protocol, workload=workload, network=network, seed=number, messages=100)
        simulation, verdict = judge_run(one)
        assert verdict.ok, f"{one.command()}\n{verdict.explain(simulation.view)}"


@pytest.mark.parametrize(
    ("protocol", "parameters"),
    [
        ("bounded", {"k": 6}),
        ("buffer", {"pipelined": True}),
        ("monitor", {"monitor": 2}),
        ("underway", {"k": 2}),
        ("history", {"r8": False}),
    ],
)
def test_parameters_reach_the_machines(protocol: str, parameters: dict[str, Any]) -> None:
    simulation, verdict = judge_run(spec(protocol, parameters=parameters))
    assert verdict.ok
    assert simulation.engine.machines[1].parameters.items() >= parameters.items()


def run_with_delta(delta_ms: int) -> tuple[Summary, bool]:
    """`history` where no message takes longer than 20 ms, and whether the oracle found it in order."""
    given = {"delta": 1_000_000 * delta_ms} if delta_ms else {}
    one = spec(
        "history",
        parameters=given,
        processes=6,
        messages=600,
        network="uniform:0,20ms",
        workload="groups:size=3,rate=100/s",
    )
    simulation = one.build()
    checker = Checker(simulation, one.messages)
    return simulation.finish(), checker.verdict().ok


def test_histories_forget_what_is_older_than_any_delay_and_lose_nothing() -> None:
    plain, forgetful = run_with_delta(0), run_with_delta(20)
    assert (plain[0].complete, plain[1]) == (forgetful[0].complete, forgetful[1]) == (True, True)
    assert forgetful[0].stamp_entries.mean < plain[0].stamp_entries.mean
    assert forgetful[0].delay_ns == plain[0].delay_ns


def test_a_delta_that_is_shorter_than_the_delay_loses_order() -> None:
    assert not run_with_delta(5)[1]


@pytest.mark.parametrize("protocol", ["unordered", "fifo"])
def test_the_controls_break_causal_order_somewhere(protocol: str) -> None:
    verdicts = [judge_run(spec(protocol, workload="uniform", seed=seed))[1] for seed in range(3)]
    assert any(verdict.violations for verdict in verdicts)
    broken = any(verdict.fifo_breaks for verdict in verdicts)
    assert broken == (protocol == "unordered")


TOPOLOGIES = [
    ("star", 5),
    ("tree:arity=3", 7),
    ("line", 4),
    ("wan-of-lans:zones=2,gateways=2", 6),
    ("figure-7.1", 6),
    ("figure-7.1", 10),
    ("figure-7.5", 0),
    ("figure-7.6", 0),
    ("hierarchy:inside=2/2/1", 8),
    ("hierarchy:inside=2/1/1/2", 8),
]


@pytest.mark.parametrize(("topology", "processes"), TOPOLOGIES)
@pytest.mark.parametrize("protocol", ["separator", "history", "permit"])
def test_every_topology_keeps_the_order(protocol: str, topology: str, processes: int) -> None:
    one = spec(protocol, topology=topology, processes=processes, workload="groups", messages=80)
    simulation, verdict = judge_run(one)
    assert verdict.ok, f"{one.command()}\n{verdict.explain(simulation.view)}"
    routers = len(simulation.place.names) - len(simulation.view)
    machines = len(simulation.engine.machines)
    assert machines == len(simulation.view) + (routers if protocol == "separator" else 0)


def test_routers_take_as_long_as_the_path() -> None:
    """Whether routers are machines or only delays, a lone message takes as long."""
    for topology in ("figure-7.1", "tree", "star"):
        found = [
            spec(p, topology=topology, processes=6, network="constant:10ms", workload="ring:rate=1/s")
            .run()
            .delay_ns
            for p in ("separator", "unordered")
        ]
        assert found[0] == found[1]


# Figures


def figures(rows: list[Row], n: int) -> dict[str, Any]:
    """A run's figures from its rows alone, by brute force."""
    sent = {(row[2], row[3]): row for row in rows if row[1] == SEND and not row[5]}
    arrived = {(row[0], row[2], row[3]): row[6] for row in rows if row[1] == RECEIVE and not row[5]}
    delays, held = [], 0
    for row in rows:
        if row[1] == DELIVER:
            process, _, sender, number, *_ = row
            delays.append(row[6] - sent[sender, number][6])
            held += row[6] > arrived.get((process, sender, number), sent[sender, number][6])
    stamps = [(row[8], row[9]) for row in sent.values() if row[8] >= 0]
    return {
        "sent": len(sent),
        "delivered": len(delays),
        "held": held,
        "control_packets": sum(row[1] == SEND and row[5] for row in rows),
        "control_bytes": sum(row[9] for row in rows if row[1] == SEND and row[5]),
        "delays": sorted(delays),
        "stamps": stamps,
    }


@pytest.mark.parametrize("protocol", [name for name in PROTOCOLS if name != "broadcast"])
def test_the_summary_counts_what_the_trace_tells(protocol: str) -> None:
    rows, _, summary = run(spec(protocol, workload="chain", messages=600))
    found = figures(rows, 5)
    for name in ("sent", "delivered", "held", "control_packets", "control_bytes"):
        assert getattr(summary, name) == found[name], name
    delays = found["delays"]
    assert summary.delay_ns.mean == pytest.approx(sum(delays) / len(delays), rel=1e-12)
    assert summary.delay_ns.max == delays[-1]
    for percent, value in ((50, summary.delay_ns.p50), (99, summary.delay_ns.p99)):
        assert value == pytest.approx(delays[-(-len(delays) * percent // 100) - 1], rel=1 / 128)
    if protocol not in ("permit", "buffer"):  # whose messages may leave later than they are sent
        entries, sizes = zip(*found["stamps"], strict=True)
        assert summary.packets == len(entries)
        assert summary.stamp_entries.mean == pytest.approx(sum(entries) / len(entries))
        assert summary.stamp_bytes.mean == pytest.approx(sum(sizes) / len(sizes))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("loss", ["", ",loss=5%"])
def test_what_is_not_waiting_is_the_network(protocol: str, loss: str) -> None:
    """On a network of constant delay, all that a copy takes beyond that is waiting (or, with loss, sending again)."""
    rows, _, summary = run(spec(protocol, network=f"constant:10ms{loss}"))
    own = sum(row[1] == DELIVER and row[0] == row[2] for row in rows)
    if not loss:
        network = summary.delay_ns.mean - summary.waiting_ns.mean
        assert network * summary.delivered == pytest.approx((summary.delivered - own) * 10**7)
        assert summary.resent == 0
    else:
        assert summary.resent > 0
        assert summary.waiting_ns.mean < summary.delay_ns.mean


def test_a_protocol_that_waits_for_the_past_alone_waits_as_long_as_any_other() -> None:
    found = [spec(p, workload="uniform").run() for p in ("matrix", "history", "separator", "optimal")]
    assert len({(s.held, s.delay_ns, s.waiting_ns) for s in found}) == 1
    assert 0 < found[0].waiting_share < 1


def test_rows_are_in_an_order_that_extends_happened_before() -> None:
    rows = run(spec("permit", network="exponential:9ms,loss=5%"))[0]
    assert [row[7] for row in rows] == list(range(len(rows)))
    assert [row[6] for row in rows] == sorted(row[6] for row in rows)
    for control in (False, True):
        sends = {(row[2], row[3]): row[7] for row in rows if row[1] == SEND and row[5] == control}
        others = [row for row in rows if row[1] != SEND and row[5] == control]
        assert others
        assert all(sends[row[2], row[3]] < row[7] for row in others)


def test_control_packets_have_numbers_of_their_own() -> None:
    rows = run(spec("permit"))[0]
    for process in range(5):
        numbers = [row[3] for row in rows if row[1] == SEND and row[5] and row[0] == process]
        assert numbers == list(range(1, len(numbers) + 1))


# Memory


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("network", ["exponential:50ms", "exponential:50ms,loss=5%"])
def test_nothing_is_kept_of_what_is_delivered(protocol: str, network: str) -> None:
    simulation = spec(protocol, network=network, messages=400).build(lambda *row: None)
    summary = simulation.finish()
    assert summary.complete
    engine = simulation.engine
    kept = {name: value for owner in (engine, engine.waits) for name, value in vars(owner).items()}
    for name in ("_heap", "_under_way", "_stalled", "_left", "unsent", "_arrived", "_hops"):
        assert not kept[name], name
    assert engine.waits.known == 0


def test_histograms_do_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antecede.sim.summary.FLUSH", 64)
    simulation = spec("fifo", workload="uniform", messages=2000).build()
    while not simulation.finished:
        simulation.advance(100)
        histograms = simulation.engine.delays, simulation.engine.waiting, simulation.engine.bytes
        assert all(len(histogram.values) < 64 + 100 for histogram in histograms)
    assert simulation.engine.summary().delivered == 2000


# Scripts, and runs that get stuck


def script(tmp_path: Path, text: str, protocol: str = "matrix", **more: Any) -> RunSpec:
    file = tmp_path / "program.txt"
    file.write_text(text)
    return RunSpec(protocol=protocol, workload=f"script:{file}", **more)


def test_a_script_is_run_until_it_has_sent_enough(tmp_path: Path) -> None:
    rows, simulation, summary = run(script(tmp_path, TRIANGLE, messages=30))
    assert summary.sent == 30
    assert simulation.view.names == ("p1", "p2", "p3")
    sends = [(row[0], row[4]) for row in rows if row[1] == SEND]
    assert sorted(sends[:3]) == [(0, (1,)), (0, (2,)), (1, (2,))]


def test_a_script_shows_what_a_protocol_does(tmp_path: Path) -> None:
    for protocol, ok in (("matrix", True), ("permit", True), ("fifo", False)):
        simulation = script(tmp_path, TRIANGLE, protocol, messages=300).build()
        checker = Checker(simulation, 300)
        simulation.finish()
        assert checker.verdict().ok == ok


def test_a_run_that_gets_stuck_says_what_waits(tmp_path: Path) -> None:
    text = "p1: send a to p2; send b to p2\np2: receive b\n"
    summary = script(tmp_path, text, messages=2).run()
    assert (summary.sent, summary.delivered, summary.undelivered) == (2, 0, 2)
    [line] = summary.stuck
    assert line.startswith("p2: message 2 of p1 is held: waits for 1..1 of p1")


def test_a_network_of_four_thousand_processes_and_their_router_runs():
    large = RunSpec(protocol="separator", processes=4096, messages=60, topology="star", seed=3)
    summary = large.run()
    assert (summary.delivered, summary.undelivered) == (60, 0)
