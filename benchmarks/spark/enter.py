"""How long it takes to enter: each step on 4,000 events, as a command, beside a bare Spark with one trivial query.

    python -m benchmarks.spark enter [--rounds 3] [--messages 1000] [--out FILE]

The peer is a program of three lines: a `SparkSession` with default settings on all cores of this machine, one
`range(10).count()`, and `stop()`. Every figure is wall time from starting Python to its end; peer and commands take
turns, and the best of the rounds counts. The ratio is what to look at: 1.0 is as long as the bare Spark.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from antecede.spark.class_archive import find_archive, make_archive

BARE = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
spark.range(10).count()
spark.stop()
"""
SHIVIZ = "event {number}\n{name} {clock}\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=1000, help="each sent once, delivered to three")
    parser.add_argument("--without-archive", action="store_true", help="as on the first day")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        environment = dict(os.environ)
        if given.without_archive:
            environment["XDG_CACHE_HOME"] = str(home / "file")
            (home / "file").write_text("no directory, so that nothing is found or made there")
        else:
            make_archive()
        make_inputs(home, given.messages)
        best: dict[str, float] = {}
        for number in range(given.rounds):
            for name, arguments in commands(home, number).items():
                spent = time_command(arguments, environment, home)
                best[name] = min(spent, best.get(name, spent))
        events = json.loads(measure_start(home, environment))["runs"][0]["sends"] * 4
    figures = {
        name: {"seconds": round(s, 2), "ratio": round(s / best["bare Spark"], 2)} for name, s in best.items()
    }
    archive = (
        "without an archive" if given.without_archive else f"with an archive: {find_archive() is not None}"
    )
    print(f"{events:,} events, best of {given.rounds}, {os.cpu_count()} cores, {archive}")
    for name, figure in figures.items():
        print(f"{name:<12} {figure['seconds']:>7.2f} s  {figure['ratio']:>5.2f} x")
    if given.out:
        given.out.write_text(json.dumps(figures, indent=1) + "\n")


def commands(home: Path, number: int) -> dict[str, list[str]]:
    trace, out = str(home / "trace"), str(home / f"out-{number}")
    command = ["-m", "antecede"]
    return {
        "bare Spark": ["-c", BARE],
        "verify": [*command, "verify", trace],
        "order": [*command, "order", trace, "--out", f"{out}-order"],
        "measure": [*command, "measure", trace],
        "ingest": [*command, "ingest", str(home / "log"), "--format", "shiviz", "--out", f"{out}-ingest"],
        "report": [*command, "report", trace, "--out", f"{out}.html"],
    }


def make_inputs(home: Path, messages: int) -> None:
    words = [
        "simulate",
        "--protocol",
        "matrix",
        "--processes",
        "8",
        "--messages",
        str(messages),
        "--seed",
        "1",
    ]
    words += ["--workload", "groups:size=4", "--out", str(home / "trace")]
    subprocess.run([sys.executable, "-m", "antecede", *words], check=True, capture_output=True)
    (home / "log").mkdir()
    with open(home / "log" / "events.log", "w") as file:
        clocks = [[0] * 8 for _ in range(8)]
        for number in range(4 * messages):
            at, told = number % 8, (number * 5 + 3) % 8
            if number % 3 == 0:
                clocks[at] = [max(pair) for pair in zip(clocks[at], clocks[told], strict=True)]
            clocks[at][at] += 1
            clock = {f"p{i}": count for i, count in enumerate(clocks[at]) if count}
            file.write(SHIVIZ.format(name=f"p{at}", clock=json.dumps(clock), number=number))


def time_command(arguments: list[str], environment: dict[str, str], home: Path) -> float:
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=home, capture_output=True, text=True, check=False
    )
    spent = time.perf_counter() - started
    if done.returncode not in (0, 1):
        sys.exit(f"{arguments}: {done.stderr}")
    return spent


def measure_start(home: Path, environment: dict[str, str]) -> str:
    words = [sys.executable, "-m", "antecede", "measure", str(home / "trace"), "--json"]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
