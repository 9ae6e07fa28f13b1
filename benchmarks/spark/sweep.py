"""How well a sweep uses two cores: the same runs on `local[1]` and on `local[2]`, in turns, best of several.

    python -m benchmarks.spark.sweep [--runs 24] [--messages 20000] [--rounds 3] [--out FILE]

Throughput is runs a second from the call to the last file in its place, without the start of Spark. Peers: the plain
pool of `antecede sweep --local`, and a bound: two processes that simulate without writing or talking, against one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from antecede.sim.experiment import Experiment, Run, expand
from antecede.sim.sweep import perform
from antecede.sim.sweep import sweep as sweep_here
from antecede.spark import connect
from antecede.spark.sweep import sweep

PROTOCOLS = ("history", "matrix", "fifo", "optimal")


def experiment(runs: int, messages: int) -> Experiment:
    grid = {
        "protocol": list(PROTOCOLS),
        "processes": 8,
        "messages": messages,
        "seeds": max(1, runs // len(PROTOCOLS)),
    }
    return expand({"grid": grid}, "benchmark")


def time_work(work: Callable[[Path], object]) -> float:
    with tempfile.TemporaryDirectory() as scratch:
        started = time.perf_counter()
        work(Path(scratch) / "out")
        return time.perf_counter() - started


def on_spark(asked: Experiment, cores: int, rounds: int) -> float:
    """Seconds. A first sweep of a few runs starts the workers, which stay."""
    with tempfile.NamedTemporaryFile() as log:
        spark = connect(f"local[{cores}]", log=log.name)
        try:
            warm = Experiment("warm", "", tuple(asked.runs[: 2 * cores]))
            time_work(lambda out: sweep(spark, warm, out))
            return min(time_work(lambda out: sweep(spark, asked, out)) for _ in range(rounds))
        finally:
            spark.stop()


def in_pool(asked: Experiment, cores: int, rounds: int) -> float:
    return min(time_work(lambda out: sweep_here(asked, out, jobs=cores, traces=True)) for _ in range(rounds))


def simulate(run: Run) -> None:
    perform(run)


def bound(asked: Experiment, cores: int, rounds: int) -> float:
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        pool.map(simulate, asked.runs[: 2 * cores], 1)
        return min(time_work(lambda out: pool.map(simulate, asked.runs, 1)) for _ in range(rounds))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    asked = experiment(chosen.runs, chosen.messages)
    lines = ["| runner | 1 core, runs/s | 2 cores, runs/s | ratio |", "|---|---:|---:|---:|"]
    for name, runner in (("Spark", on_spark), ("--local", in_pool), ("bound: simulate only", bound)):
        one, two = (len(asked.runs) / runner(asked, cores, chosen.rounds) for cores in (1, 2))
        lines.append(f"| {name} | {one:.2f} | {two:.2f} | {two / one:.2f} |")
        print(lines[-1], flush=True)
    load = os.getloadavg()[0]
    text = f"""# Sweeps on one core and on two

`python -m benchmarks.spark.sweep --runs {chosen.runs} --messages {chosen.messages} --rounds {chosen.rounds}`:
{len(asked.runs)} runs of {chosen.messages:,} messages among 8 processes ({", ".join(PROTOCOLS)}),
traces written. The best of {chosen.rounds} rounds, without the start of Spark.
The machine has {os.cpu_count()} cores; its load at the end was {load:.1f}.

{chr(10).join(lines)}

A run is made by one Python process, and what Spark adds to it are some kilobytes: the tasks are bound by the
simulator, so throughput grows with cores until there are fewer runs than cores. On 100 machines nothing is exchanged
but the descriptions of runs, and a name and a bit for each; the driver gathers by renaming one file a run (on an
object store, by having it copied), a few milliseconds a run: that is the part that does not spread.
"""
    if chosen.out:
        chosen.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
