"""antecede soak: runs drawn from a seed, each checked, until told to stop. With --nodes, runs of whole systems."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from itertools import count
from multiprocessing import active_children, get_context
from typing import TYPE_CHECKING, Any

import typer
from msgspec import Struct, to_builtins
from rich.console import Console

from antecede.cli.options import Jobs, Json, Protocols, flag, option
from antecede.cli.output import count_things, print_json, print_sentence
from antecede.cli.progress import can_draw, catch_interrupt, hold_interrupts, ignore_interrupts
from antecede.errors import BadParameter

if TYPE_CHECKING:
    from antecede.sim.outcome import Outcome as AnyOutcome
    from antecede.sim.run import RunSpec

    Outcome = AnyOutcome[Any]

__all__ = ["Tally", "soak"]

SILENCE = 30
"""Seconds between two lines about how far it is, where no terminal can show it all the time."""

MESSAGES = 6000

FAILURES = 10
"""Failing runs after which a soak stops: by then there is something to do."""


class Plan(Struct, frozen=True):
    """Which runs."""

    seed: int
    first: int
    last: int | None
    protocols: tuple[str, ...]
    messages: int
    nodes: bool = False
    scenario: str | None = None

    def work(self, number: int) -> Outcome:
        if self.nodes:
            from antecede.sim.nodes import scenario, soak

            if self.scenario is not None:
                return soak.examine(scenario.parse(self.scenario))
            return soak.examine(scenario.draw(self.seed, number, self.protocols, self.messages))
        from antecede.sim.soak import draw, examine

        return examine(draw(self.seed, number, self.protocols, self.messages))

    def command(self, number: int, outcome: Outcome) -> str:
        """The command line that repeats a run."""
        from antecede.sim.nodes.soak import repeat as repeat_nodes
        from antecede.sim.soak import CAUSAL

        if not self.nodes:
            return tell_command(outcome.run)
        if self.scenario is not None:
            return repeat_nodes(outcome.run)
        more = f" --messages {self.messages}" if self.messages != MESSAGES else ""
        if self.protocols != CAUSAL:
            more += "".join(f" --protocol {name}" for name in self.protocols)
        return f"antecede soak --nodes --seed {self.seed} --first {number} --runs 1{more}"


class Failure(Struct, frozen=True, rename={"number": "run"}):
    """A run that failed, as the command lines that repeat it."""

    number: int
    command: str
    findings: tuple[str, ...]
    shrunk: str | None = None


class Tally:
    """What a soak has come to so far."""

    def __init__(self) -> None:
        self.runs = self.judged = self.crashes = self.resent = 0
        self.deliveries: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        """What else happened, in runs of whole systems."""
        self.failures: list[Failure] = []

    @property
    def total(self) -> int:
        return self.deliveries.total()

    def add(self, outcome: Outcome) -> None:
        self.runs += 1
        self.judged += outcome.judged
        self.crashes += outcome.crashes
        self.resent += outcome.resent
        self.deliveries[outcome.protocol] += outcome.deliveries
        self.counts.update(outcome.counts)

    def describe(self, spent: float) -> str:
        failed = f"{len(self.failures)} failed" if self.failures else "no violation, nothing lost"
        pace = self.total / max(spent, 1e-9)
        more = (
            f"{self.counts['views']:,} views decided"
            if "views" in self.counts
            else f"{count_things(self.resent, 'frame')} sent again"
        )
        return (
            f"{count_things(self.runs, 'run')}, {self.total:,} deliveries, {self.crashes:,} crashes, {more}"
            f": {failed} ({spent:.0f} s, {pace:,.0f} deliveries/s)"
        )


def soak(
    seed: int = option("All runs are drawn from this number.", default=0, min=0),
    seconds: float | None = option("Stop after so long.", min=0),
    deliveries: int | None = option("Stop after so many deliveries.", min=1),
    first: int = option("The number of the first run.", default=0, min=0),
    runs: int | None = option("Stop after so many runs.", min=1),
    messages: int = option("The most messages that a run sends.", default=MESSAGES, min=1),
    protocol: Protocols = None,
    jobs: Jobs = 0,
    nodes: bool = flag("Run whole nodes: journals, disks, views that change.", "--nodes"),
    scenario: str | None = option("With --nodes: only this run, as a soak has printed it."),
    shrink_: bool = flag("Look for a shorter run that fails in the same way.", "--shrink"),
    as_json: Json = False,
) -> None:
    """Draw runs from a seed and check each: protocol, topology, network, faults and workload differ every time.

    Stops after --seconds, --deliveries or --runs, after ten failing runs, or at Ctrl-C: the first one lets the
    runs under way finish, a second one stops at once. Each failing run is printed as the command line that
    repeats it.
    """
    from antecede.protocols import PROTOCOLS
    from antecede.sim.soak import CAUSAL

    protocols = tuple(protocol or CAUSAL)
    for name in protocols:
        if name not in PROTOCOLS:
            raise BadParameter.choice("soak", "--protocol", name, PROTOCOLS)
    started = time.monotonic()
    tally = Tally()

    def is_enough() -> bool:
        late = seconds is not None and time.monotonic() - started >= seconds
        return (
            late or (deliveries is not None and tally.total >= deliveries) or len(tally.failures) >= FAILURES
        )

    if scenario is not None:
        from antecede.sim.nodes.scenario import parse

        parse(scenario)
        nodes, runs = True, 1
    last = None if runs is None else first + runs
    plan = Plan(seed, first, last, protocols, messages, nodes, scenario)
    workers = jobs or os.cpu_count() or 1
    with catch_interrupt(raises=workers == 1) as interrupts, _progress(tally, started) as show:
        for number, outcome in _produce_outcomes(plan, workers, is_enough, interrupts):
            tally.add(outcome)
            if outcome.findings:
                tally.failures.append(_report_failure(plan, number, outcome, shrink_ and not interrupts()))
            show()
    _report(tally, seed, time.monotonic() - started, as_json)
    if tally.failures:
        raise typer.Exit(1)


# The work


def _produce_outcomes(
    plan: Plan, jobs: int, is_enough: Callable[[], bool], interrupts: Callable[[], int]
) -> Iterator[tuple[int, Outcome]]:
    """Runs as they are finished. After the end, or one interrupt, those under way are finished; two end them."""
    numbers = iter(count(plan.first) if plan.last is None else range(plan.first, plan.last))
    if jobs == 1:
        for number in numbers:
            if is_enough() or interrupts():
                return
            yield number, plan.work(number)
        return
    announced = False
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), ignore_interrupts)
    working: dict[Future[Outcome], int] = {}
    try:
        while True:
            while len(working) < 2 * jobs and not is_enough() and not interrupts():
                number = next(numbers, -1)
                if number < 0:
                    break
                with hold_interrupts():
                    working[pool.submit(plan.work, number)] = number
            if not working:
                return
            done, _ = wait(working, timeout=0.2, return_when=FIRST_COMPLETED)
            for future in done:
                yield working.pop(future), future.result()
            if is_enough() or interrupts():
                for future in [future for future in working if future.cancel()]:
                    del working[future]
            if interrupts() and working and not announced:
                announced = True
                print_sentence("stopping when the runs under way are done; Ctrl-C again stops at once")
            if interrupts() > 1:
                for worker in active_children():
                    worker.terminate()
                raise KeyboardInterrupt
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _report_failure(plan: Plan, number: int, outcome: Outcome, shorter: bool) -> Failure:
    command = plan.command(number, outcome)
    print_sentence(f"run {number}: {outcome.findings[0]}; repeat with:", command)
    shrunk = None
    if shorter:
        found = _shrink(plan, outcome)
        if found != command:
            shrunk = found
            print_sentence("shorter:", shrunk)
    return Failure(number, command, outcome.findings[:5], shrunk)


def _shrink(plan: Plan, outcome: Outcome) -> str:
    from antecede.sim.nodes import soak as nodes
    from antecede.sim.soak import shrink

    if plan.nodes:
        return nodes.repeat(nodes.shrink(outcome.run, outcome.kind))
    return tell_command(shrink(outcome.run, outcome.kind))


def tell_command(spec: RunSpec) -> str:
    """The command line that repeats a run and judges it."""
    return f"{spec.command()} --check"


# What is said


@contextmanager
def _progress(tally: Tally, started: float) -> Iterator[Callable[[], None]]:
    console = Console(stderr=True)
    if not can_draw(console):
        print("soaking", file=sys.stderr, flush=True)
        said = [started]

        def say() -> None:
            if time.monotonic() - said[0] >= SILENCE:
                said[0] = time.monotonic()
                print(tally.describe(said[0] - started), file=sys.stderr, flush=True)

        yield say
        return
    with console.status("soaking") as status:
        yield lambda: status.update(tally.describe(time.monotonic() - started))


def _report(tally: Tally, seed: int, spent: float, as_json: bool) -> None:
    print_sentence(f"seed {seed}: {tally.describe(spent)}")
    if as_json:
        result = {
            "verdict": "no" if tally.failures else "yes" if tally.runs else "unknown",
            "seed": seed,
            "runs": tally.runs,
            "runs_judged_by_the_oracle": tally.judged,
            "deliveries": tally.total,
            "deliveries_by_protocol": dict(sorted(tally.deliveries.items())),
            "crashes": tally.crashes,
            "resent": tally.resent,
            **({"counts": dict(sorted(tally.counts.items()))} if tally.counts else {}),
            "failures": to_builtins(tally.failures),
            "seconds": round(spent, 3),
            "deliveries_per_second": round(tally.total / max(spent, 1e-9)),
        }
        print_json(result)
