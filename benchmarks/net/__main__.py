"""The command: see `benchmarks.net`."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec

from benchmarks.net import budget, counts
from benchmarks.net.journals import Journals, time_sync
from benchmarks.net.measure import Case, Load, Result, half_load, measure
from benchmarks.net.others import NatsCore, Zmq, nats_server
from benchmarks.net.systems import Bare, Nodes

__all__ = ["CASES", "LOADS", "main", "table"]

BARE, PERMIT = "bare streams", "`permit`"
FULL, ALONE = "`permit`, journal, full", "journals alone, full"

PASSES = 2
CASES = [
    Case(PERMIT, partial(Nodes, protocol="permit")),
    Case(BARE, Bare),
    Case("`permit`, after a view change", partial(Nodes, protocol="permit", changed=True)),
    Case("`matrix`", partial(Nodes, protocol="matrix")),
    Case("`permit`, journal, normal", partial(Nodes, protocol="permit", sync="normal")),
    Case(FULL, partial(Nodes, protocol="permit", sync="full")),
    Case(ALONE, Journals),
    Case("pyzmq", Zmq),
    Case("nats core", NatsCore),
]
LOADS = [
    Load(3, 100, 2500),
    Load(8, 100, 270),
    Load(32, 100, 20),
    Load(3, 10_000, 400),
    Load(8, 10_000, 45),
    Load(32, 10_000, 5),
]
QUICK = [Load(2, 100, 20)]
COUNT_PART = 8
"""What part of a round is counted, which takes many times as long."""


def run(loads: Sequence[Load], rounds: int, seconds: float, rate: float | None = None) -> list[Result]:
    """All cases under all loads; latencies at this rate, or at half load of the first case."""
    results: list[Result] = []
    for load in loads:
        half = rate or asyncio.run(half_load(CASES[0], load, seconds))
        found: dict[str, Result] = {}
        # A machine that is busy with other things changes all the time: so each has its chance in each pass.
        for _ in range(PASSES):
            for case in CASES:
                if case.make is NatsCore and nats_server() is None:
                    continue
                result = asyncio.run(measure(case, load, rounds, seconds, half))
                found[case.name] = better(found.get(case.name, result), result)
                _say(result)
        results += found.values()
    return results


def better(result: Result, again: Result) -> Result:
    """The better of two results of one case."""
    return msgspec.structs.replace(
        result,
        cpu_rate=max(result.cpu_rate, again.cpu_rate),
        rate=max(result.rate, again.rate),
        p50_ms=min(result.p50_ms, again.p50_ms),
        p99_ms=min(result.p99_ms, again.p99_ms),
    )


def _say(result: Result) -> None:
    said = f"{result.cpu_rate:,.0f} deliveries a CPU second, {result.rate:,.0f} a second, p99 {result.p99_ms:.1f} ms"
    print(f"{result.case}, {result.nodes} nodes, {result.size} bytes: {said}", file=sys.stderr)


def table(results: Sequence[Result]) -> list[str]:
    """Every system against bare streams of the same size."""
    lines = [
        "| what | nodes | bytes | deliveries a CPU second | × bare | a second | × bare "
        "| latency at | p50 ms | p99 ms | × bare |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    peers = {(result.nodes, result.size): result for result in results if result.case == BARE}
    for result in results:
        peer = peers[result.nodes, result.size]
        lines.append(
            f"| {result.case} | {result.nodes} | {result.size:,} "
            f"| {result.cpu_rate:,.0f} | {result.cpu_rate / peer.cpu_rate:.2f} "
            f"| {result.rate:,.0f} | {result.rate / peer.rate:.2f} "
            f"| {result.paced:,.0f} | {result.p50_ms:.2f} | {result.p99_ms:.2f} | {result.p99_ms / peer.p99_ms:.2f} |"
        )
    return lines


def limits(results: Sequence[Result], loads: Sequence[Load]) -> list[str]:
    """What `full` is measured against: the disk, journals that do nothing else, and nodes without a journal."""
    lines = [f"| nodes | bytes | three syncs | {ALONE} | {PERMIT} | {FULL} |", "|--:|--:|--:|--:|--:|--:|"]
    p50 = {(result.case, result.nodes, result.size): result.p50_ms for result in results}
    for load in loads:
        with tempfile.TemporaryDirectory() as directory:
            syncs = 3 * time_sync(Path(directory))
        found = " | ".join(f"{p50[case, load.nodes, load.size]:.2f}" for case in (ALONE, PERMIT, FULL))
        lines.append(f"| {load.nodes} | {load.size:,} | {syncs:.2f} | {found} |")
    return lines


def count(loads: Sequence[Load]) -> Iterator[tuple[str, str, dict[str, float]]]:
    """Counts of each system that is ours, and of bare streams: as fast as they may, and one message at a time."""
    counted = [case for case in CASES if case.make is Bare or isinstance(case.make, partial)]
    for load in loads:
        fewer = msgspec.structs.replace(load, each=max(2, load.each // COUNT_PART))
        said = f"{load.nodes} nodes, {load.size:,} bytes"
        for case in counted:
            print(f"counting {case.name}, {said}", file=sys.stderr)
            yield case.name, said, counts.count_flood(case, fewer)
            yield case.name, f"{said}, one at a time", counts.count_alone(case, load.nodes, load.size)


def profile(load: Load) -> list[str]:
    """Where the time of a delivery goes, as fast as nodes may."""
    found = {name: budget.budget(name, load) for name in ("permit", "matrix")}
    found["permit, journal"] = budget.budget("permit", load, "normal")
    return [f"Where the time goes, {load.nodes} nodes, {load.size:,} bytes:", "", *budget.table(found)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="How fast nodes are.")
    parser.add_argument("--quick", action="store_true", help="few messages, once")
    parser.add_argument("--profile", action="store_true", help="sample where the time goes, and nothing else")
    parser.add_argument("--nodes", type=int, help="with so many nodes alone: 3, 8 or 32")
    parser.add_argument(
        "--bytes", type=int, dest="size", help="with messages of this size alone: 100 or 10000"
    )
    parser.add_argument(
        "--counts", action="store_true", help="count bytecodes, frames, writes and groups, and nothing else"
    )
    parser.add_argument(
        "--each", type=int, help="messages of each to each other in a round, not as the table has it"
    )
    parser.add_argument("--rate", type=float, help="messages a second for latency, not half load of permit")
    parser.add_argument("--out", type=Path, help="write the result there too")
    options = parser.parse_args(arguments)
    loads = [
        load for load in LOADS if options.nodes in (None, load.nodes) and options.size in (None, load.size)
    ]
    if not loads:
        parser.error("there is no such load: nodes are 3, 8 or 32, and bytes 100 or 10000")
    if options.quick:
        loads = QUICK
    if options.each is not None:
        loads = [msgspec.structs.replace(load, each=options.each) for load in loads]
    if options.counts:
        _write(counts.table(list(count(loads))), options.out)
        return
    if options.profile:
        _write([line for load in loads for line in profile(load)], options.out)
        return
    results = run(loads, 1, 0.05, options.rate) if options.quick else run(loads, 4, 0.4, options.rate)
    lines = [
        "# The speed of nodes",
        "",
        f"`python -m benchmarks.net`, Python {platform.python_version()}, all nodes in one process. What the peers do",
        "is said in `benchmarks/net/__init__.py`, and at which rates latency is taken, the same for all.",
        f"The machine has {os.cpu_count()} cores; load when this was written: {os.getloadavg()[0]:.1f}.",
        "",
        *table(results),
        "",
        "What bounds `full`, p50 in ms: its aim is three syncs of a page, in the same run.",
        "",
        *limits(results, loads),
    ]
    _write(lines, options.out)


def _write(lines: Sequence[str], out: Path | None) -> None:
    text = "\n".join([*lines, ""])
    sys.stdout.write(text)
    if out is not None:
        out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
