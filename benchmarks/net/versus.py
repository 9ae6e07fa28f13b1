"""Two versions of nodes side by side: `python -m benchmarks.net.versus OTHER`, where OTHER is a tree with a `.venv`.

The machine changes all the time, also a quiet one, and so does the memory of a process. So each system runs in a
process of its own, the systems and the versions take turns, and the table has the medians, with the least and the
most. A ratio is the median of the ratios of rounds that ran one after the other.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

__all__ = ["main"]

ROUND = """
import asyncio, json, sys, tempfile
from pathlib import Path
from benchmarks.net.measure import Load, _round
from benchmarks.net.systems import Bare, Nodes

name, nodes, size, each = sys.argv[1], *map(int, sys.argv[2:])
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
        await _round(system, load, max(1, each // 4))
        print(json.dumps([(await _round(system, load, each)) for _ in range(2)]))
        await system.stop()

asyncio.run(main())
"""
EACH = {(3, 100): 2500, (8, 100): 270, (32, 100): 20, (3, 10_000): 400, (8, 10_000): 45, (32, 10_000): 5}


def measure(tree: Path, system: str, nodes: int, size: int) -> tuple[float, float]:
    """Deliveries for a second of CPU, and for a second: the better of two rounds in a new process."""
    arguments = [system, str(nodes), str(size), str(EACH[nodes, size])]
    python = tree / ".venv/bin/python"
    done = subprocess.run(
        [python, "-c", ROUND, *arguments], cwd=tree, stdout=subprocess.PIPE, text=True, check=True
    )
    rounds = json.loads(done.stdout)
    return max(cpu for cpu, _ in rounds), max(wall for _, wall in rounds)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="How fast nodes are, beside bare streams and another version."
    )
    parser.add_argument("other", type=Path, nargs="?", help="another tree, with its .venv")
    parser.add_argument("--systems", default="permit,matrix,normal,full")
    parser.add_argument("--nodes", default="3,8,32")
    parser.add_argument("--bytes", type=int, default=100, dest="size")
    parser.add_argument("--passes", type=int, default=5)
    options = parser.parse_args(arguments)
    here = Path(__file__).parents[2]
    trees = {"here": here} | ({} if options.other is None else {"other": options.other.resolve()})
    systems = ["bare", *options.systems.split(",")]
    print(
        "| system | nodes | bytes | a CPU second: median (least to most) | × bare | × other, CPU | × other, clock |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|")
    for nodes in map(int, options.nodes.split(",")):
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
