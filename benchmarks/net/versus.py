"""Two versions of nodes side by side: `python -m benchmarks.net.versus OTHER`, where OTHER is a tree with a `.venv`.

The machine changes all the time, also a quiet one, and so does the memory of a process. So each system runs in a
process of its own, the systems and the versions take turns, and the table has the medians, with the least and the
most. A ratio is the median of the ratios of rounds that ran one after the other.

On a shared machine the same code differs by a third from one round to the next, which hides what a version costs. With
`--instructions` valgrind counts what the processor executes for a delivery: that does not depend on what else runs, and
differs by some 1 % from run to run. It leaves out the kernel, so it compares versions, and nothing with bare streams.
`--functions` counts bytecodes and calls. A process that is counted is some 45 times slower, so timers would come too
often for what is done between them. So the clock of its nodes is as much slower, and is that of its CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

__all__ = ["main"]

CLOCK = """
import selectors, time
idle, spent, passed, slow = 0.0, time.process_time(), 0.0, 1
real = time.monotonic

class Waits(selectors.DefaultSelector):
    def select(self, timeout=None):
        global idle
        begun = real()
        try:
            return super().select(timeout)
        finally:
            idle += real() - begun

def now():
    global spent, passed
    cpu = time.process_time()
    passed, spent = passed + (cpu - spent) / slow, cpu
    return 1000 + passed + idle

time.monotonic, time.monotonic_ns = now, lambda: int(now() * 1e9)
"""
"""Time as a quiet machine would have it, and slower by a factor: what the CPU takes, and what nobody uses it for."""
SLOWER = 45
"""How much slower a process is while it is counted."""

ROUND = """
import asyncio, gc, json, sys, tempfile
from pathlib import Path
from benchmarks.net.measure import Load, _round
from benchmarks.net.systems import Bare, Nodes

name, nodes, size, each, rounds = sys.argv[1], *map(int, sys.argv[2:])
make = {
    "bare": lambda *at: Bare(*at),
    "permit": lambda *at: Nodes(*at, protocol="permit"),
    "changed": lambda *at: Nodes(*at, protocol="permit", changed=True),
    "matrix": lambda *at: Nodes(*at, protocol="matrix"),
    "normal": lambda *at: Nodes(*at, protocol="permit", sync="normal"),
    "full": lambda *at: Nodes(*at, protocol="permit", sync="full"),
}[name]

async def main():
    load = Load(nodes, size, each)
    with tempfile.TemporaryDirectory() as directory:
        system = make(nodes, Path(directory))
        await system.start()
        if not rounds:
            await _round(system, load, max(1, each // 4))
        print(json.dumps([(await _round(system, load, each)) for _ in range(rounds or 2)]))
        await system.stop()

def run(part):
    # Where there is a clock of our own, it knows when the loop waits.
    loop = asyncio.SelectorEventLoop(Waits()) if "Waits" in globals() else asyncio.SelectorEventLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(part)

if rounds:
    # Before each round everything is collected, which would be counted.
    gc.collect = lambda: 0
"""
RUN = "run(main())"
BY_FUNCTION = """
from collections import Counter
bytecodes, calls = Counter(), Counter()

def trace(frame, event, argument):
    code = frame.f_code
    name = code.co_filename.rpartition("/")[2] + " " + code.co_qualname
    if name.startswith("<string>"):
        return None
    if event == "call":
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        calls[name] += 1
    elif event == "opcode":
        bytecodes[name] += 1
    return trace

async def count():
    global slow
    with tempfile.TemporaryDirectory() as directory:
        system = make(nodes, Path(directory))
        await system.start()
        await _round(system, Load(nodes, size, each), each)
        slow = SLOWER
        sys.settrace(trace)
        await _round(system, Load(nodes, size, each), each)
        sys.settrace(None)
        slow = 1
        await system.stop()
    all = nodes * (nodes - 1) * each
    print(json.dumps({name: (found / all, calls[name] / all) for name, found in bytecodes.items()}))

run(count())
"""
EACH = {(3, 100): 2500, (8, 100): 270, (32, 100): 20, (3, 10_000): 400, (8, 10_000): 45, (32, 10_000): 5}


COUNTED = {3: 1000, 8: 108, 32: 8}
"""Messages of each to each other in a round that is counted, by nodes."""
FUNCTIONS = 30
"""How many are shown."""
VALGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")


def _run(
    tree: Path, arguments: Sequence[object], under: Sequence[str] = (), script: str = ROUND + RUN
) -> subprocess.CompletedProcess[str]:
    command = [*under, str(tree / ".venv/bin/python"), "-c", script, *map(str, arguments)]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=True)


def measure(tree: Path, system: str, nodes: int, size: int) -> tuple[float, float]:
    """Deliveries for a second of CPU, and for a second: the better of two rounds in a new process."""
    rounds = json.loads(_run(tree, [system, nodes, size, EACH[nodes, size], 0]).stdout)
    return max(cpu for cpu, _ in rounds), max(wall for _, wall in rounds)


def count_instructions(tree: Path, system: str, nodes: int, size: int) -> float:
    """Instructions of a delivery: what three rounds take more than one."""
    each, found = COUNTED[nodes], list[int]()
    for rounds in (1, 3):
        script = f"{CLOCK}\nslow = {SLOWER}\n{ROUND}{RUN}"
        said = _run(tree, [system, nodes, size, each, rounds], VALGRIND, script).stderr
        counted = re.search(r"I +refs: +([0-9,]+)", said)
        assert counted is not None, said
        found.append(int(counted[1].replace(",", "")))
    return (found[1] - found[0]) / (2 * nodes * (nodes - 1) * each)


def compare_instructions(
    trees: Mapping[str, Path], systems: Sequence[str], nodes: Sequence[int], size: int
) -> None:
    print("| system | nodes | bytes | instructions of a delivery | in the other | other / here |")
    print("|---|--:|--:|--:|--:|--:|")
    for count in nodes:
        for system in systems:
            here, *other = (
                count_instructions(tree, system, count, size)
                for version, tree in trees.items()
                if version == "here" or system != "changed"
            )
            beside = f"{other[0]:,.0f} | {other[0] / here:.2f}" if other else " | "
            print(f"| {system} | {count} | {size:,} | {here:,.0f} | {beside} |", flush=True)


def compare_functions(trees: Mapping[str, Path], system: str, nodes: int, size: int) -> None:
    """Bytecodes and calls of a delivery, by function, those of most first."""
    script = f"{CLOCK}\nSLOWER = {SLOWER}\n{ROUND}{BY_FUNCTION}"
    for version, tree in trees.items():
        each = min(COUNTED[nodes], EACH[nodes, size])
        found = json.loads(_run(tree, [system, nodes, size, each, 1], script=script).stdout)
        bytecodes, calls = map(sum, zip(*found.values(), strict=True))
        print(f"| {version}: {system}, {nodes} nodes, {size:,} bytes | {bytecodes:,.0f} | {calls:,.1f} |")
        print("|---|--:|--:|")
        for name, (count, called) in sorted(found.items(), key=lambda one: -one[1][0])[:FUNCTIONS]:
            print(f"| `{name}` | {count:,.0f} | {called:.2f} |")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="How fast nodes are, beside bare streams and another version."
    )
    parser.add_argument("other", type=Path, nargs="?", help="another tree, with its .venv")
    parser.add_argument("--systems", default="permit,matrix,normal,full")
    parser.add_argument("--nodes", default="3,8,32")
    parser.add_argument("--bytes", type=int, default=100, dest="size")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--instructions", action="store_true", help="count them, and take no times")
    parser.add_argument("--functions", metavar="SYSTEM", help="count bytecodes by function, and nothing else")
    options = parser.parse_args(arguments)
    here = Path(__file__).parents[2]
    trees = {"here": here} | ({} if options.other is None else {"other": options.other.resolve()})
    counts = [int(nodes) for nodes in options.nodes.split(",")]
    if options.functions:
        compare_functions(trees, options.functions, counts[0], options.size)
        return
    if options.instructions:
        compare_instructions(trees, options.systems.split(","), counts, options.size)
        return
    systems = ["bare", *options.systems.split(",")]
    print(
        "| system | nodes | bytes | a CPU second: median (least to most) | × bare | × other, CPU | × other, clock |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|")
    for nodes in counts:
        found: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for _ in range(options.passes):
            for system in systems:
                for version, tree in trees.items():
                    # What only one version has is not compared.
                    if system == "changed" and version == "other":
                        continue
                    found.setdefault((system, version), []).append(measure(tree, system, nodes, options.size))
                    print(system, version, nodes, *found[system, version][-1], file=sys.stderr)
        for system in systems:
            ours, bare = found[system, "here"], found["bare", "here"]
            cpu = sorted(one[0] for one in ours)
            theirs = found.get((system, "other"), [])
            beside = [
                f"{median(one[at] / other[at] for one, other in zip(ours, theirs, strict=True)):.2f}"
                if theirs
                else ""
                for at in (0, 1)
            ]
            ratio = median(one[0] / other[0] for one, other in zip(ours, bare, strict=True))
            print(
                f"| {system} | {nodes} | {options.size:,} | {median(cpu):,.0f} ({cpu[0]:,.0f} to {cpu[-1]:,.0f}) "
                f"| {ratio:.2f} | {' | '.join(beside)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
