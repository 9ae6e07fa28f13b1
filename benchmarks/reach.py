"""How far exhaustive exploration comes: python -m benchmarks.reach [--seconds S] [--out benchmarks/results/reach.md]

For each causal protocol, all programs of a size, up to renaming processes, every schedule of each. The first two sizes
are run to their end; the larger ones as far as S seconds each allow, small programs first. The limit is the number of
programs: how many of them were done stands beside it. Each row is one `antecede check`; its command is in the row.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SIZES: tuple[tuple[str, bool], ...] = (
    ("--processes 3 --messages 3", False),
    ("--processes 3 --messages 4 --unicast", False),
    ("--processes 4 --messages 4 --unicast", True),
    ("--processes 3 --messages 5 --unicast", True),
    ("--processes 4 --messages 4", True),
)
VARIANTS = (
    "matrix",
    "bounded",
    "monitor",
    "buffer",
    "buffer --set pipelined=true",
    "history",
    "history --set r6_4=false",
    "history --set r6_1=true",
    "broadcast",
    "optimal",
    "permit",
)
ROUTED = (
    ("separator --topology star", "--messages 3"),
    ("separator --topology line", "--messages 3"),
    ("separator --topology ring", "--messages 3"),
    ("separator --topology star", "--processes 3 --messages 4 --unicast"),
    ("separator --topology diamond", "--messages 3 --unicast"),
    ("separator --topology wan", "--messages 3 --unicast"),
    ("separator --topology wan --set r9=false", "--messages 3 --unicast"),
)


def check(protocol: str, size: str, seconds: float | None) -> dict[str, Any] | None:
    antecede = Path(sys.executable).parent / "antecede"
    command = [str(antecede), "check", "--json", "--protocol", *protocol.split(), *size.split()]
    if seconds is not None:
        command += ["--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 2:
        # The protocol accepts no program of this size: broadcast has no unicasts.
        print(done.stderr.strip().splitlines()[-1], file=sys.stderr, flush=True)
        return None
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def row(protocol: str, size: str, found: dict[str, Any]) -> str:
    holds = {"yes": "yes", "unknown": "so far"}.get(found["verdict"], "NO")
    programs = f"{found['programs']:,}" + ("" if found["complete"] else f" of {found['programs_total']:,}")
    rate = found["states"] / found["seconds"] if found["seconds"] else 0
    return (
        f"| `{protocol}` | `{size}` | {holds} | {programs} | {found['schedules']:.2e} | {found['states']:,} "
        f"| {found['seconds']:.1f} | {rate:,.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="How far exhaustive exploration comes.")
    parser.add_argument("--seconds", type=float, default=600, help="for each of the larger sizes")
    parser.add_argument("--protocol", action="append", help="only these")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = [
        "# How far exhaustive exploration comes",
        "",
        f"`python -m benchmarks.reach --seconds {options.seconds:g}`: every schedule of every program of a size, for "
        "each causal protocol. Schedules are counted after reduction.",
        "",
        "| protocol | `antecede check` | holds | programs | schedules | states | seconds | states/s |",
        "|---|---|---|--:|--:|--:|--:|--:|",
    ]
    cases = [(variant, size, limited) for variant in VARIANTS for size, limited in SIZES]
    cases += [(variant, size, True) for variant, size in ROUTED]
    for variant, size, limited in cases:
        if options.protocol and variant.split()[0] not in options.protocol:
            continue
        found = check(variant, size, options.seconds if limited else None)
        if found is None:
            continue
        lines.append(row(variant, size, found))
        print(lines[-1], file=sys.stderr, flush=True)
        if options.out is not None:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
