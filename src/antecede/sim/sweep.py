"""Running an experiment on this machine: processes share the runs, and each result is written as it comes.

This is the runner for machines without Spark; `antecede.spark.sweep` is the other one. What a run comes to is defined
here for both (`perform`), and so is what they write: a sweep that one has begun, the other can continue.

`out` gets
    results.jsonl    one run a line, as one flat JSON object: the case, `run` (its name), all that `RunSpec` says,
                     all that `Summary` says, `measured`, `cpu_seconds`, `command` (repeats the run), `version`
    failures.jsonl   the runs that failed, with the reason; gone once none does
    trace/           the trace of all runs, if asked for
    .runs/           while others make the runs: see `antecede.sim.staging`
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
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from pyarrow.fs import LocalFileSystem

from antecede.errors import AntecedeError, CannotWrite, InputError
from antecede.sim.experiment import Experiment, Run
from antecede.sim.measure import Measures
from antecede.sim.run import RunSpec
from antecede.sim.staging import Made, Stage
from antecede.sim.summary import Summary
from antecede.trace import TraceWriter
from antecede.trace.schema import version

__all__ = ["Failure", "Results", "Row", "line", "perform", "read", "sweep"]

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
        """As a line of results.jsonl has it. `processes` is the summary's: a spec may leave it to the topology.

        `protocol` is the spec's: with a machine from a file it names the file, and the summary the machine.
        """
        return {
            "case": self.case,
            "run": self.run,
            **msgspec.to_builtins(self.spec),
            **self.summary.plain(),
            "protocol": self.spec.protocol,
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
        return make_failure(run, kind + str(error))
    if summary.undelivered:
        return make_failure(
            run, f"stuck: {summary.undelivered} copies were never delivered; {'; '.join(summary.stuck)}"
        )
    return Row(run.case, run.key, run.spec, summary, measures.plain(), round(spent, 6))


def make_failure(run: Run, reason: str) -> Failure:
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
    results = Results(experiment, Stage(LocalFileSystem(), str(out.absolute())), str(out))
    trace = str(out / "trace") if traces else None
    with results.explain_full_disk():
        left = results.begin(traces)
        with (out / "results.jsonl").open("ab") as file:
            for result in _answers(left, trace, jobs or os.cpu_count() or 1):
                results.add(result)
                if isinstance(result, Row):
                    file.write(line(result))
                    file.flush()
                if note is not None:
                    note(result)
        return results.save()


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
            yield make_failure(run, "its process was killed: out of memory?")


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


class Results:
    """The files of a sweep: what is there is read at its beginning, and written in order at its end."""

    def __init__(self, experiment: Experiment, stage: Stage, name: str) -> None:
        self.experiment, self.stage, self.name = experiment, stage, name
        self.found: dict[str, Row | Failure] = {}

    @contextmanager
    def explain_full_disk(self) -> Iterator[None]:
        """Within this, a disk that fills up is told with what became of the results."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise CannotWrite(self.name, reason, "what was written before can be continued") from error

    def begin(self, traces: bool) -> list[Run]:
        """The runs that are still to be made: if traces are wanted, also those that left none before."""
        data = self.stage.read("results.jsonl")
        rows = [] if data is None else read_lines(data, f"{self.name}/results.jsonl")
        known = {run.key for run in self.experiment.runs}
        for row in rows:
            if row.run not in known:
                place, name = f"{self.name}/results.jsonl", self.experiment.name
                raise InputError(
                    f"{place}: run {row.run} of case {row.case} is not one of {name}: sweep into a new directory"
                )
        self.found = {row.run: row for row in rows}
        self.stage.system.create_dir(self.stage.root, recursive=True)
        self.gather()
        done = {key for key, result in self.found.items() if isinstance(result, Row)}
        self._write("results.jsonl", [result for result in self.found.values() if isinstance(result, Row)])
        self.stage.end()
        if traces:
            done &= self.stage.list_traced()
        return [run for run in self.experiment.runs if run.key not in done]

    def add(self, result: Row | Failure) -> None:
        self.found[result.run] = result

    def gather(self) -> set[str]:
        """Take in what others have made: which runs."""
        made = self.stage.gather()
        for one in made:
            self.add(load_result(one))
        return {one.run for one in made}

    def save(self) -> list[Row | Failure]:
        """Every run's answer that is there, in the order of the experiment, also on the disk."""
        ordered = [self.found[run.key] for run in self.experiment.runs if run.key in self.found]
        self._write("results.jsonl", [result for result in ordered if isinstance(result, Row)])
        self._write("failures.jsonl", [result for result in ordered if isinstance(result, Failure)])
        return ordered

    def _write(self, name: str, results: Iterable[Row | Failure]) -> None:
        """All of them or, if something goes wrong, what was there before; no file for none."""
        data = b"".join(map(line, results))
        if data:
            self.stage.write(data, name)
        else:
            self.stage.remove(name)


def read(out: str | Path) -> list[Row]:
    """The rows of results.jsonl."""
    path = Path(out) / "results.jsonl"
    try:
        return read_lines(path.read_bytes(), str(path))
    except OSError as error:
        raise InputError(f"{path}: cannot read: {error.strerror}") from error


def read_lines(data: bytes, place: str) -> list[Row]:
    rows = []
    # What follows the last end of a line was being written when the sweep was interrupted.
    for number, text in enumerate(data.split(b"\n")[:-1], 1):
        try:
            rows.append(Row.load(msgspec.json.decode(text)))
        except (msgspec.MsgspecError, TypeError, AntecedeError) as error:
            raise InputError(f"{place}, line {number} is not a result of this version: {error}") from error
    return rows


def line(result: Row | Failure) -> bytes:
    data = result.plain() if isinstance(result, Row) else msgspec.to_builtins(result)
    return msgspec.json.encode(data) + b"\n"


def load_result(made: Made) -> Row | Failure:
    """What another has made."""
    if made.failed:
        return msgspec.json.decode(made.line, type=Failure)
    return Row.load(msgspec.json.decode(made.line))
