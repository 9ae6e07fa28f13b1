"""antecede sweep: all the runs of an experiment file.

The simulator and Arrow are imported by the function that uses them: the other commands start without.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from antecede.errors import BadParameter

if TYPE_CHECKING:
    from antecede.sim.experiment import Experiment
    from antecede.sim.sweep import Failure, Row

__all__ = ["sweep"]


def sweep(
    experiment: Annotated[Path, typer.Argument(help="A TOML file that says which runs to make.")],
    out: Annotated[Path, typer.Option(help="Write results.jsonl, one run a line, into this directory.")],
    jobs: Annotated[
        int, typer.Option(help="How many runs at a time.  [default: one for each core]", show_default=False)
    ] = 0,
    traces: Annotated[bool, typer.Option("--traces", help="Write the trace of every run too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as one JSON object.")] = False,
) -> None:
    """Make every run of an experiment, each a line of OUT/results.jsonl.

    The same command again continues an interrupted sweep, and repeats what failed. docs/experiments.md explains the
    file.
    """
    from antecede.sim import experiment as experiments
    from antecede.sim.sweep import Failure
    from antecede.sim.sweep import sweep as run_all

    if jobs < 0:
        raise BadParameter("sweep", "--jobs", jobs, "1 or more")
    asked = experiments.load(experiment)
    asked.check()
    made: list[str] = []
    started = time.perf_counter()
    with _progress(asked) as show:

        def note(result: Row | Failure) -> None:
            made.append(result.run)
            show()
            if isinstance(result, Failure):
                _complain(result)

        results = run_all(asked, out, jobs=jobs, traces=traces, note=note)
    failures = [result for result in results if isinstance(result, Failure)]
    _report(asked, out, len(made), failures, time.perf_counter() - started, as_json)
    if failures:
        raise typer.Exit(1)


@contextmanager
def _progress(experiment: Experiment) -> Iterator[Callable[[], None]]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda: None
        return
    columns = TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("sweep", total=len(experiment.runs))
        yield lambda: progress.advance(bar)


def _complain(failure: Failure) -> None:
    print(
        f"failed: case {failure.case}, seed {failure.seed}: {failure.reason}; repeat with: {failure.command}",
        file=sys.stderr,
    )


def _report(
    experiment: Experiment, out: Path, made: int, failures: list[Failure], spent: float, as_json: bool
) -> None:
    total = len(experiment.runs)
    if as_json:
        outcome = {
            "verdict": "no" if failures else "yes",
            "experiment": experiment.name,
            "runs": total,
            "made": made,
            "failures": [
                {"case": f.case, "run": f.run, "seed": f.seed, "command": f.command, "reason": f.reason}
                for f in failures
            ],
            "results": str(out / "results.jsonl"),
            "seconds": round(spent, 3),
        }
        print(json.dumps(outcome, ensure_ascii=False))
    before = f", {total - made} of them before" if made < total else ""
    print(f"{total - len(failures)} of {total} runs{before}: {out / 'results.jsonl'}", file=sys.stderr)
    if failures:
        print(f"no: {len(failures)} of {total} runs failed: {out / 'failures.jsonl'}", file=sys.stderr)
