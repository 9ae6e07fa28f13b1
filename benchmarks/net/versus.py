"""Two versions of nodes side by side: `python -m benchmarks.net.versus OTHER`, where OTHER is a tree with a `.venv`.

The machine changes all the time, also a quiet one, and so does the memory of a process. So each system runs in a
process of its own, the systems and the versions take turns, and the table has the medians, with the least and the
most. A ratio is the median of the ratios of rounds that ran one after the other.

On a shared machine the same code differs by a third from one round to the next, which hides what a version costs. With
`--instructions` valgrind counts what the processor executes for a delivery: that does not depend on what else runs, and
differs by some 1 % from run to run. It leaves out the kernel, so it compares versions, and nothing with bare streams.
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

if rounds:
    # Before each round everything is collected, which would be counted.
    gc.collect = lambda: 0
asyncio.run(main())
"""
BY_FUNCTION = """
from collections import Counter
bytecodes = Counter()

def trace(frame, event, argument):
    if event == "call":
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
    elif event == "opcode":
        code = frame.f_code
        bytecodes[code.co_filename.rpartition("/")[2] + " " + code.co_qualname] += 1
    return trace

async def count():
    with tempfile.TemporaryDirectory() as directory:
        system = make(nodes, Path(directory))
        await system.start()
        await _round(system, Load(nodes, size, each), each)
        sys.settrace(trace)
        await _round(system, Load(nodes, size, each), each)
        sys.settrace(None)
        await system.stop()
    print(json.dumps({name: found / (nodes * (nodes - 1) * each) for name, found in bytecodes.items()}))

asyncio.run(count())
"""
EACH = {(3, 100): 2500, (8, 100): 270, (32, 100): 20, (3, 10_000): 400, (8, 10_000): 45, (32, 10_000): 5}


COUNTED = {3: 1000, 8: 108, 32: 8}
"""Messages of each to each other in a round that is counted, by nodes."""
FUNCTIONS = 30
"""How many are shown."""
VALGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")


def _run(
    tree: Path, arguments: Sequence[object], under: Sequence[str] = (), script: str = ROUND
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
        said = _run(tree, [system, nodes, size, each, rounds], VALGRIND).stderr
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
    """Bytecodes of a delivery, by function, those of most first."""
    # Without the part that runs rounds: what it defines is enough.
    script = ROUND.partition("async def main")[0] + BY_FUNCTION
    for version, tree in trees.items():
        found = json.loads(_run(tree, [system, nodes, size, COUNTED[nodes] // 4, 1], script=script).stdout)
        print(
            f"| {version}: {system}, {nodes} nodes, {size:,} bytes | {sum(found.values()):,.0f} |\n|---|--:|"
        )
        for name, count in sorted(found.items(), key=lambda one: -one[1])[:FUNCTIONS]:
            print(f"| `{name}` | {count:,.0f} |")


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
