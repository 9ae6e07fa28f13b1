"""Running an experiment on this machine: processes share the runs, and each result is written as it comes.

`out` gets
    results.jsonl    one run a line, as one flat JSON object: the case, `run` (its name), all that `RunSpec` says,
                     all that `Summary` says, `measured`, `cpu_seconds`, `command` (repeats the run), `version`
    failures.jsonl   the runs that failed, with the reason; gone once none does
    trace/           the trace of all runs, if asked for
While a sweep runs, results are in the order in which they came; at its end, in the order of the experiment. A sweep
that was interrupted continues: a run that has its line is not made again, one that failed is.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from antecede.errors import AntecedeError, CannotWrite, InputError
from antecede.sim.experiment import Experiment, Run
from antecede.sim.measure import Measures
from antecede.sim.run import RunSpec
from antecede.sim.summary import Summary
from antecede.trace import TraceWriter
from antecede.trace.schema import version

__all__ = ["Failure", "Row", "perform", "read", "sweep"]

Measured = dict[str, dict[str, int]]


class Row(Struct, frozen=True):
    """One run and what it came to."""

    case: str
    run: str
    spec: RunSpec
    summary: Summary
    measured: Measured
    cpu_seconds: float
    version: str = msgspec.field(default_factory=version)

    def plain(self) -> dict[str, Any]:
        """As a line of results.jsonl has it. `processes` is the summary's: a spec may leave it to the topology."""
        return {
            "case": self.case,
            "run": self.run,
            **msgspec.to_builtins(self.spec),
            **self.summary.plain(),
            "measured": self.measured,
            "cpu_seconds": self.cpu_seconds,
            "command": self.spec.command(),
            "version": self.version,
        }

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Row:
        spec = {key: data[key] for key in RunSpec.__struct_fields__ if key in data}
        own = {key: data[key] for key in cls.__struct_fields__ if key in data}
        return msgspec.convert({**own, "spec": spec, "summary": data}, cls)


class Failure(Struct, frozen=True):
    case: str
    run: str
    seed: int
    command: str
    reason: str


class Stopped(Exception):
    """Whoever started the sweep wants it to end."""


# One run, in any process


def perform(run: Run, trace: str | None = None, look: Callable[[], None] | None = None) -> Row | Failure:
    """Make a run; what goes wrong in it is an answer too."""
    try:
        simulation = run.spec.build()
        measures = Measures(run.measure, simulation)
        gc.collect()
        started = time.process_time()
        if trace is None:
            summary = simulation.finish(look)
        else:
            with TraceWriter(trace, simulation.info(run.key), replace=True) as writer:
                simulation.record(writer.append)
                summary = simulation.finish(look)
        spent = time.process_time() - started
    except Stopped:
        raise
    except Exception as error:
        kind = "" if isinstance(error, AntecedeError) else f"{type(error).__name__}: "
        return failed(run, kind + str(error))
    if summary.undelivered:
        return failed(
            run, f"stuck: {summary.undelivered} copies were never delivered; {'; '.join(summary.stuck)}"
        )
    return Row(run.case, run.key, run.spec, summary, measures.plain(), round(spent, 6))


def failed(run: Run, reason: str) -> Failure:
    return Failure(run.case, run.key, run.spec.seed, run.spec.command(), " ".join(reason.split()))


_stop: Event | None = None
"""In a worker: set when it is to end."""


def _start(stop: Event) -> None:
    global _stop
    _stop = stop
    # Ctrl-C goes to the whole group; what to do about it is for the process that started us to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _look() -> None:
    if _stop is not None and _stop.is_set():
        raise Stopped


def _perform(run: Run, trace: str | None) -> Row | Failure:
    _look()
    return perform(run, trace, _look)


# All runs


def sweep(
    experiment: Experiment,
    out: str | Path,
    *,
    jobs: int = 0,
    traces: bool = False,
    note: Callable[[Row | Failure], None] | None = None,
) -> list[Row | Failure]:
    """Make the runs that `out` does not have yet; every run's answer, in the order of the experiment."""
    out = Path(out)
    done = _done(experiment, out)
    left = [run for run in experiment.runs if run.key not in done]
    results: dict[str, Row | Failure] = dict(done)
    trace = str(out / "trace") if traces else None
    try:
        out.mkdir(parents=True, exist_ok=True)
        _write(out / "results.jsonl", done.values())
        with (out / "results.jsonl").open("ab") as file:
            for result in _answers(left, trace, jobs or os.cpu_count() or 1):
                results[result.run] = result
                if isinstance(result, Row):
                    file.write(_line(result))
                    file.flush()
                if note is not None:
                    note(result)
        ordered = [results[run.key] for run in experiment.runs]
        _write(out / "results.jsonl", [result for result in ordered if isinstance(result, Row)])
        _write(out / "failures.jsonl", [result for result in ordered if isinstance(result, Failure)])
    except OSError as error:
        reason = error.strerror or str(error)
        raise CannotWrite(str(out), reason, "what was written before can be continued") from error
    return ordered


def _answers(runs: list[Run], trace: str | None, jobs: int) -> Iterator[Row | Failure]:
    """In the order in which they are ready. A run that takes its process down with it costs only itself."""
    suspects: list[Run] = []
    left = iter(runs)
    while True:
        lost: list[Run] = []
        yield from _pool(left, trace, min(jobs, max(1, len(runs))), lost)
        if not lost:
            break
        suspects += lost
    for run in suspects:
        # Alone, so that it is clear who did it.
        lost = []
        yield from _pool(iter([run]), trace, 1, lost)
        if lost:
            yield failed(run, "its process was killed: out of memory?")


def _pool(runs: Iterator[Run], trace: str | None, jobs: int, lost: list[Run]) -> Iterator[Row | Failure]:
    """Answers, until there are no more runs, or the pool breaks: then `lost` gets what was under way."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    under_way: dict[Future[Row | Failure], Run] = {}
    with ProcessPoolExecutor(jobs, context, _start, (stop,)) as pool:
        try:
            broken = False
            while True:
                while not broken and len(under_way) < 2 * jobs and (run := next(runs, None)) is not None:
                    try:
                        under_way[pool.submit(_perform, run, trace)] = run
                    except BrokenProcessPool:
                        broken = True
                        lost.append(run)
                if not under_way:
                    return
                for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                    run = under_way.pop(future)
                    try:
                        yield future.result()
                    except BrokenProcessPool:
                        broken = True
                        lost.append(run)
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


# Results on disk


def read(out: str | Path) -> list[Row]:
    """The rows of results.jsonl."""
    path = Path(out) / "results.jsonl"
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"{path}: cannot read: {error.strerror}") from error
    rows = []
    # What follows the last end of a line was being written when the sweep was interrupted.
    for number, line in enumerate(lines[:-1], 1):
        try:
            rows.append(Row.load(msgspec.json.decode(line)))
        except (msgspec.MsgspecError, TypeError, AntecedeError) as error:
            raise InputError(f"{path}, line {number}: {error}, expected a result of this version") from error
    return rows


def _done(experiment: Experiment, out: Path) -> dict[str, Row]:
    if not (out / "results.jsonl").exists():
        return {}
    known = {run.key for run in experiment.runs}
    rows = read(out)
    for row in rows:
        if row.run not in known:
            place, name = out / "results.jsonl", experiment.name
            raise InputError(f"{place}: found {row.run} of case {row.case}, expected runs of {name} only")
    return {row.run: row for row in rows}


def _line(result: Row | Failure) -> bytes:
    data = result.plain() if isinstance(result, Row) else msgspec.to_builtins(result)
    return msgspec.json.encode(data) + b"\n"


def _write(path: Path, results: Iterable[Row | Failure]) -> None:
    """All of them or, if something goes wrong, what was there before; no file for none."""
    lines = [_line(result) for result in results]
    if not lines:
        with suppress(FileNotFoundError):
            path.unlink()
        return
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(b"".join(lines))
    new.replace(path)
