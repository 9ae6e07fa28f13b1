"""antecede check: every schedule of a program, or of all programs of a size."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import typer
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from antecede.cli.options import Jobs, Json, Protocol, Settings, flag, option, parse_settings
from antecede.cli.output import count_things, print_json, print_sentence
from antecede.cli.progress import hold_interrupts, ignore_interrupts, pause_gc, show_progress
from antecede.errors import BadParameter, BadProgram
from antecede.explore import Explorer, validate
from antecede.model import View
from antecede.plugin import explain_crash, find_protocol
from antecede.program import Program, enumerate_programs, parse
from antecede.protocols import build
from antecede.replay import Counterexample, explain
from antecede.steps import Make, Order
from antecede.topology import Topology, shapes

__all__ = ["Task", "Tally", "check"]

ALIKE = (None, "mesh", "star", "wan")
"""Graphs whose processes are interchangeable."""

CHUNK = 64
"""Programs that a worker takes at a time."""


class Task(Struct, frozen=True):
    """What to check, the same for every program."""

    protocol: str
    parameters: dict[str, Any]
    processes: tuple[str, ...]
    order: Order
    reduce: bool
    deadline: float | None
    """By the wall clock, in seconds."""
    topology: str | None = None

    def make(self) -> Make:
        view, parameters = View(self.processes), self.parameters
        if self.topology is not None:
            shape = _build_topology(self.topology, self.processes)
            view, parameters = shape.view, {**parameters, "topology": shape}
        kind = find_protocol(self.protocol)
        return lambda vertex: build(kind, view, vertex, **parameters)

    def late(self) -> bool:
        return self.deadline is not None and time.time() > self.deadline


class Tally(Struct, frozen=True):
    """What came of some programs."""

    programs: int = 0
    states: int = 0
    transitions: int = 0
    finished: int = 0
    blocked: int = 0
    counterexample: Counterexample | None = None

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.programs + other.programs,
            self.states + other.states,
            self.transitions + other.transitions,
            self.finished + other.finished,
            self.blocked + other.blocked,
            self.counterexample or other.counterexample,
        )


def check(
    protocol: Protocol,
    processes: int = option("How many processes the programs have.", default=3, min=1, max=16),
    messages: int = option("How many messages they send.", default=3, min=1, max=16),
    unicast: bool = flag("Messages to one process each only.", "--unicast"),
    program: Path | None = option("Check this program, not all of a size."),
    order: str = option("What to demand: causal, fifo or none.", default="causal"),
    settings: Settings = None,
    topology: str | None = option("Who is linked with whom, for separator: star, line, ring, diamond ..."),
    seconds: float | None = option("Stop after so long, and say how far it came.", min=0),
    jobs: Jobs = 0,
    reduce: bool = option("Leave out schedules that cannot differ.", default=True),
    symmetry: bool = option("Take programs that differ in names only once.", default=True),
    as_json: Json = False,
) -> None:
    """Run every schedule of small programs, over a network that reorders at will.

    Without --program, all programs of so many processes and messages: who sends to whom, in which order at each
    sender. Safety is checked at each delivery, and at each end that nothing is held or lost.
    """
    started = time.time()
    chosen = [_read_program(program)] if program else None
    names = chosen[0].processes if chosen else View.numbered(processes).names
    if topology is not None:
        names = _build_topology(topology, names).names[: len(names)]
    deadline = None if seconds is None else started + seconds
    with explain_crash(protocol):
        parameters = _parse_parameters(protocol, len(names), settings)
        task = Task(protocol, parameters, names, _parse_order(order), reduce, deadline, topology)
        if chosen is not None:
            validate(chosen[0], task.make())
        else:
            chosen = _list_programs(task, messages, unicast, symmetry)
        tally = _explore_programs(task, chosen, jobs or os.cpu_count() or 1)
    spent = time.time() - started
    size = {} if program else {"messages": messages, "unicast": unicast, "symmetry": symmetry}
    _report(task, tally, len(chosen), spent, size, str(program) if program else None, as_json)
    if tally.counterexample is not None:
        raise typer.Exit(1)


# What is asked


def _read_program(path: Path) -> Program:
    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise BadProgram(str(path), f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BadProgram(str(path), f"is no text: byte {error.start} is no UTF-8") from error


def _parse_order(order: str) -> Order:
    match order:
        case "causal" | "fifo" | "none":
            return order
    raise BadParameter.choice("check", "--order", order, ("causal", "fifo", "none"))


def _parse_parameters(protocol: str, n: int, settings: Iterable[str] | None) -> dict[str, Any]:
    kind = find_protocol(protocol)
    parameters = {**kind.tightest(n), **parse_settings("check", settings)}
    build(kind, View.numbered(n), 0, **parameters)
    return parameters


SHAPES: dict[str, Callable[[int], Topology]] = {
    "mesh": shapes.mesh,
    "star": shapes.star,
    "line": shapes.line,
    "ring": shapes.ring,
    "tree": shapes.tree,
    "diamond": lambda n: shapes.diamond(),
    "wan": lambda n: shapes.wan_of_lans(zones=n, size=1),
}


def _build_topology(name: str, processes: tuple[str, ...]) -> Topology:
    """A graph by its name, with so many processes."""
    if name not in SHAPES:
        raise BadParameter.choice("check", "--topology", name, SHAPES)
    shape = SHAPES[name](len(processes))
    if len(shape.processes) != len(processes):
        raise BadParameter(
            "check", f"--processes must be {len(shape.processes)}, as {name} has, not {len(processes)}"
        )
    return shape


def _list_programs(task: Task, messages: int, unicast: bool, symmetry: bool) -> list[Program]:
    n = len(task.processes)
    machines = [task.make()(process) for process in range(n)]
    programs = enumerate_programs(
        n,
        messages,
        unicast=unicast,
        # Where the protocol orders deliveries only somewhere, that place is not like the others; nor are the places
        # of a graph, unless it looks the same from each.
        classes=[
            process if task.topology not in ALIKE else machines[0].orders_at(process) for process in range(n)
        ],
        symmetry=symmetry,
        accepts=lambda sender, to: machines[sender].accepts(sender, to) is None,
    )
    if not programs:
        raise BadParameter(
            "check", f"{task.protocol} accepts none of the programs: {machines[0].accepts(0, (0,))}"
        )
    return programs


# The work


def _explore_programs(task: Task, programs: list[Program], jobs: int) -> Tally:
    jobs = min(jobs, -(-len(programs) // CHUNK))
    if not sys.stderr.isatty():
        print_sentence(f"checking {count_things(len(programs), 'program')}")
    with show_progress("programs", len(programs)) as advance, pause_gc():
        total = Tally()
        tallies = _explore_here(task, programs) if jobs == 1 else _explore_apart(task, programs, jobs)
        for tally in tallies:
            total += tally
            advance(tally.programs)
            if total.counterexample is not None or task.late():
                break
    return total


def _explore_here(task: Task, programs: list[Program]) -> Iterator[Tally]:
    explorer = Explorer(task.make(), order=task.order, reduce=task.reduce)
    for program in programs:
        yield _explore(task, explorer, program)


def _explore_apart(task: Task, programs: list[Program], jobs: int) -> Iterator[Tally]:
    """Chunks in worker processes, their results in order: the counterexample is always that of the first program."""
    rest = iter(programs)
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _prepare, (task,))
    waiting: list[Future[Tally]] = []
    try:
        while True:
            while len(waiting) < 2 * jobs and (chunk := list(islice(rest, CHUNK))):
                with hold_interrupts():
                    waiting.append(pool.submit(_explore_chunk, chunk))
            if not waiting:
                return
            yield waiting.pop(0).result()
    finally:
        _end_pool(pool)


def _end_pool(pool: ProcessPoolExecutor) -> None:
    """Do not wait for chunks that nobody wants any more."""
    workers = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.join()


_worker: tuple[Task, Explorer] | None = None
"""A worker's explorer: what it learned serves the next chunk too."""


def _prepare(task: Task) -> None:
    global _worker
    ignore_interrupts()
    gc.disable()
    _worker = task, Explorer(task.make(), order=task.order, reduce=task.reduce)


def _explore_chunk(programs: list[Program]) -> Tally:
    assert _worker is not None
    task, explorer = _worker
    total = Tally()
    for program in programs:
        total += _explore(task, explorer, program)
        if total.counterexample is not None or task.late():
            break
    return total


def _explore(task: Task, explorer: Explorer, program: Program) -> Tally:
    found = explorer.run(program, task.late)
    tally = Tally(
        int(found.complete or found.finding is not None),
        found.states,
        found.transitions,
        found.finished,
        found.blocked,
    )
    if found.finding is None:
        return tally
    return replace(tally, counterexample=explain(explorer, found))


# What is said


def _report(
    task: Task, tally: Tally, total: int, spent: float, size: dict[str, Any], file: str | None, as_json: bool
) -> None:
    complete = tally.programs == total and tally.counterexample is None
    verdict: Literal["yes", "no", "unknown"] = "yes" if complete else "unknown"
    if tally.counterexample is not None:
        verdict = "no"
        print(f"{tally.counterexample}\n", file=sys.stderr)
    print_sentence(_describe_answer(task, tally, total, spent, file))
    if as_json:
        result = {
            "verdict": verdict,
            "protocol": task.protocol,
            "parameters": task.parameters,
            "topology": task.topology,
            "order": task.order,
            "program": file,
            "processes": len(task.processes),
            **size,
            "reduce": task.reduce,
            "complete": complete,
            "programs": tally.programs,
            "programs_total": total,
            "schedules": tally.finished + tally.blocked,
            "schedules_blocked": tally.blocked,
            "states": tally.states,
            "transitions": tally.transitions,
            "seconds": round(spent, 3),
            "states_per_second": round(tally.states / max(spent, 1e-9)),
            "counterexample": to_builtins(tally.counterexample),
        }
        print_json(result)


def _describe_answer(task: Task, tally: Tally, total: int, spent: float, file: str | None) -> str:
    """The answer in one line."""
    schedules = tally.finished + tally.blocked
    counts = f"{count_things(schedules, 'schedule')}, {tally.states:,} states, {spent:.1f} s"
    demand = {"causal": "causal order", "fifo": "FIFO order", "none": "delivery"}[task.order]
    counterexample = tally.counterexample
    if counterexample is None and tally.programs == total:
        what = f"every schedule of {file}" if file else f"every schedule of all {total:,} programs"
        return f"{task.protocol}: yes: {what} keeps {demand} and finishes ({counts})"
    if counterexample is None:
        return f"{task.protocol}: explored {tally.programs:,} of {total:,} programs; no counterexample ({counts})"
    if counterexample.kind == "blocked" and file:
        some = "some schedules block, others finish" if tally.finished else "no schedule finishes"
        return f"{task.protocol}: no: {some} ({counts})"
    return f"{task.protocol}: no: {counterexample.why}"
