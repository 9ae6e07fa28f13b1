"""antecede sweep: all the runs of an experiment file, on Spark or on this machine alone.

The simulator, Arrow and Spark are imported by the functions that use them: the other commands start without.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from msgspec import to_builtins

from antecede.cli.options import Json, Master, Remote, argument, flag, option
from antecede.cli.output import print_json, print_sentence
from antecede.cli.progress import show_progress
from antecede.cli.spark_session import open_work
from antecede.errors import BadParameter, NoSpark

if TYPE_CHECKING:
    from antecede.sim.experiment import Experiment
    from antecede.sim.sweep import Failure, Row

__all__ = ["sweep"]


def sweep(
    experiment: Path = argument("A TOML file that says which runs to make."),
    out: str = option("Where results.jsonl and trace/ go: a directory or a URI.", default=...),
    traces: bool = option("Write the trace of every run too.", default=True),
    jobs: int = option(
        "How many runs at a time on this machine.  [default: one for each core]",
        default=0,
        show_default=False,
    ),
    local: bool = flag("Without Spark, on this machine.", "--local"),
    as_json: Json = False,
    master: Master = None,
    remote: Remote = None,
) -> None:
    """Make every run of an experiment: its result becomes a line of OUT/results.jsonl, its events go to OUT/trace.

    The same command again continues an interrupted sweep, and repeats what failed; with or without --local, the files
    are the same. docs/experiments.md explains them.
    """
    from antecede.sim import experiment as experiments

    if jobs < 0:
        raise BadParameter("sweep", f"--jobs must be 1 or more, not {jobs}")
    if local and (master or remote):
        raise BadParameter("sweep", "--local does not go with --master or --remote: give one of them")
    asked = experiments.load(experiment)
    asked.check()
    started = time.perf_counter()
    try:
        if local:
            made, failures = _run_here(asked, out, jobs, traces)
        else:
            made, failures = _run_on_spark(asked, out, jobs, traces, master, remote)
    except KeyboardInterrupt:
        print_sentence(f"what is done is in {out}; the same command goes on from there")
        raise
    _report(asked, out, made, failures, time.perf_counter() - started, as_json)
    if failures:
        raise typer.Exit(1)


def _run_here(experiment: Experiment, out: str, jobs: int, traces: bool) -> tuple[int, Sequence[Failure]]:
    """How many runs were made, and those that failed."""
    from antecede.sim.sweep import Failure
    from antecede.sim.sweep import sweep as run_all

    made: list[str] = []
    with show_progress("runs", len(experiment.runs)) as show:

        def note(result: Row | Failure) -> None:
            made.append(result.run)
            show(1)

        results = run_all(experiment, out, jobs=jobs, traces=traces, note=note)
    return len(made), [result for result in results if isinstance(result, Failure)]


def _run_on_spark(
    experiment: Experiment, out: str, jobs: int, traces: bool, master: str | None, remote: str | None
) -> tuple[int, Sequence[Failure]]:
    if find_spec("pyspark") is None:
        raise NoSpark("Spark", "is not installed: pip install 'antecede[spark]', or add --local")
    if jobs and (master or remote):
        raise BadParameter("sweep", "--jobs does not go with --master or --remote: give one of them")
    with open_work(f"local[{jobs}]" if jobs else master, remote, "simulating") as work:
        from antecede.spark.sweep import sweep as run_all

        swept = run_all(work.spark, experiment, out, traces=traces)
    return swept.made, swept.failures


def _report(
    experiment: Experiment, out: str, made: int, failures: Sequence[Failure], spent: float, as_json: bool
) -> None:
    total, place = len(experiment.runs), out.rstrip("/")
    if as_json:
        outcome = {
            "verdict": "no" if failures else "yes",
            "experiment": experiment.name,
            "runs": total,
            "made": made,
            "failures": to_builtins(failures),
            "results": f"{place}/results.jsonl",
            "seconds": round(spent, 3),
        }
        print_json(outcome)
    for failed in failures:
        told = f"failed: case {failed.case}, seed {failed.seed}: {failed.reason}; repeat with:"
        print_sentence(told, failed.command)
    before = f", {total - made} of them before" if made < total else ""
    print_sentence(f"{total - len(failures)} of {total} runs{before}: {place}/results.jsonl")
    if failures:
        print_sentence(f"no: {len(failures)} of {total} runs failed: {place}/failures.jsonl")
