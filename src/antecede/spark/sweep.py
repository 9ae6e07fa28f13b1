"""Sweep: the runs of an experiment on Spark, one task a run.

A task drives the simulator, and its events go as Arrow batches straight into Parquet files in the order of the
contract: Spark's own writer would promise no order in a file and no names in the order of time, which is what spares
the next step a sort. Tasks put what they made into the directory of the sweep as `antecede.sim.staging` says, each run
for itself, and the driver gathers. So a task that is lost and made again does no harm, a run that fails loses no other,
and after Ctrl-C or a crash the same call goes on from where it was.

`out` is a local path that this process and all workers have, or a URI that PyArrow can write to.
The files are those of `antecede.sim.sweep`, which runs without Spark: either can continue what the other began.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from antecede.errors import BadParameter
from antecede.sim.experiment import Experiment, Run
from antecede.sim.staging import Stage
from antecede.sim.sweep import Failure, Results, Row, line, make_failure, perform
from antecede.spark.errors import describe_failure
from antecede.spark.frames import escape_path
from antecede.spark.run_tasks import run_tasks
from antecede.spark.session import SparkError, is_connect
from antecede.storage import absolute, join, local, place, readable

__all__ = ["Swept", "sweep"]

Perform = Callable[[Run, str | None], Row | Failure]

TASKS_MOST: Final = 10_000
"""In one job: of a sweep with more runs, a task has several."""

TEXTS: Final = ("case", "run", "protocol", "network", "workload", "topology", "faults", "command", "version")
NUMBERS: Final = (
    "processes", "messages", "seed", "sent", "delivered", "undelivered", "held", "unsent", "packets",
    "control_packets", "control_bytes", "duration_ns", "resent", "crashes", "frames", "frame_bytes",
)  # fmt: skip
SPREADS: Final = ("stamp_entries", "stamp_bytes", "delay_ns", "waiting_ns")

SPREAD: Final = "struct<mean: double, p50: bigint, p99: bigint, max: bigint>"

RESULTS: Final = ", ".join(
    [
        *(f"`{name}` string" for name in TEXTS),
        # Values differ in their types from protocol to protocol.
        "parameters map<string, string>",
        *(f"{name} bigint" for name in NUMBERS),
        *(f"{name} {SPREAD}" for name in SPREADS),
        "waiting_share double, stuck array<string>, measured map<string, map<string, bigint>>, cpu_seconds double",
    ]
)
"""The columns of results.jsonl as Spark reads them: docs/experiments.md tells what they mean."""


@dataclass(frozen=True)
class Swept:
    """What a sweep came to."""

    results: DataFrame
    """results.jsonl: one row a run, as docs/experiments.md tells it."""
    failures: tuple[Failure, ...]
    made: int
    """Runs that were made now, and not by an earlier call."""
    runs: int
    """All runs of the experiment."""


def sweep(
    spark: SparkSession,
    experiment: Experiment,
    out: str | os.PathLike[str],
    *,
    traces: bool = True,
    perform: Perform = perform,
) -> Swept:
    """Make the runs that `out` does not have yet. Ctrl-C keeps what is done.

    `perform` is what a task does with a run: for tests.
    """
    root = absolute(out)
    if not readable(root):
        raise BadParameter("sweep", f"out must be a path or a URI that PyArrow can write to, not {root}")
    name = local(root) or root
    results = Results(experiment, Stage(*place(root)), name)
    with results.explain_full_disk():
        left = results.begin(traces)
        make_runs(spark, left, root, traces, perform, results)
        found = results.save()
    failures = tuple(result for result in found if isinstance(result, Failure))
    return Swept(
        read_table(spark, root, len(found) - len(failures)), failures, len(left), len(experiment.runs)
    )


def read_table(spark: SparkSession, root: str, rows: int) -> DataFrame:
    if not rows:
        return spark.createDataFrame([], RESULTS)
    return spark.read.schema(RESULTS).json(escape_path(join(root, "results.jsonl")))


# Jobs


def make_runs(
    spark: SparkSession, runs: Sequence[Run], root: str, traces: bool, perform: Perform, results: Results
) -> None:
    """Make the runs, whatever happens to single ones."""
    left, suspects = list(runs), list[Run]()
    while left or suspects:
        # One that was under way when a job died is made alone: then it is clear who did it.
        alone = not left
        batch = [suspects.pop()] if alone else sorted(left, key=estimate_cost, reverse=True)
        results.stage.begin()
        died = run_job(spark, batch, root, traces, perform, results)
        begun, made = results.stage.under_way(), results.gather()
        lost = [run for run in batch if run.key not in made]
        left = [run for run in lost if run.key not in begun]
        if died is not None and len(left) == len(batch):
            raise died  # Nothing was begun: this is not about the runs.
        guilty = [run for run in lost if run.key in begun]
        if alone and died is not None:
            reason = f"its task ended without an answer (out of memory?): {describe_failure(died)}"
            for run in guilty:
                results.add(make_failure(run, reason))
        else:
            suspects += guilty
        results.save()
        results.stage.end()


def estimate_cost(run: Run) -> int:
    """Longest first, as far as one can tell: no long run is left over when the others are done."""
    return run.spec.messages * (run.spec.processes or 8)


def run_job(
    spark: SparkSession, runs: Sequence[Run], root: str, traces: bool, perform: Perform, results: Results
) -> Exception | None:
    """Make these runs in one job. An error that ended it, if one did."""
    tasks = min(len(runs), TASKS_MOST)
    work = partial(make_here, root=root, traces=traces, perform=perform)
    try:
        run_tasks(spark, [runs[task::tasks] for task in range(tasks)], work)
    except SparkError as error:
        return error
    except KeyboardInterrupt:
        cancel(spark)
        # Tasks may be at their last words still: .runs stays for the next call.
        results.gather()
        results.save()
        raise
    return None


def cancel(spark: SparkSession) -> None:
    """End the tasks that are at work. What they leave is gathered when the sweep goes on, or is made again."""
    with suppress(*SparkError):
        if is_connect(spark):
            spark.interruptAll()
        else:
            spark.sparkContext.cancelAllJobs()


# In tasks


def make_here(runs: Sequence[Run], root: str, traces: bool, perform: Perform) -> None:
    """Make the runs, and put each where the driver will find it."""
    stage = Stage(*place(root))

    def make_one(run: Run, trace: str | None) -> tuple[bytes, bool]:
        result = perform(run, trace)
        return line(result), isinstance(result, Failure)

    for run in runs:
        stage.make(run.key, traces, partial(make_one, run))
