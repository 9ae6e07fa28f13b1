"""antecede simulate: one run over a simulated network, as a trace and a summary.

The simulator and Arrow are imported by the functions that use them: the other commands start without.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.console import Console

from antecede.cli import options
from antecede.cli.options import flag, option
from antecede.cli.output import count_things, print_csv, print_json, print_sentence, print_table
from antecede.cli.progress import catch_interrupt, pause_gc, show_progress

if TYPE_CHECKING:
    from antecede.sim import RunSpec, Simulation, Summary
    from antecede.sim.checking import Checker

__all__ = ["simulate"]


ORACLE_MOST = 500
"""Messages of a run up to which the oracle judges it, with a chain of messages for each violation."""


def simulate(
    protocol: options.Protocol,
    processes: options.Processes = 0,
    messages: options.Messages = 1000,
    seed: options.Seed = 0,
    network: options.Network = "exponential:50ms",
    workload: options.Workload = "uniform",
    topology: options.Topology = "mesh",
    faults: options.Faults = "none",
    settings: options.Settings = None,
    out: Path | None = option("Write the trace into this directory."),
    run: str | None = option("The run's name in the trace.  [default: PROTOCOL-SEED]"),
    replace: bool = flag("Replace a run of this name.", "--replace"),
    check: bool = flag("Judge the run: was every message delivered once, in causal order?", "--check"),
    shrink: bool = flag("Check, and if the answer is no, look for a shorter run that fails.", "--shrink"),
    as_json: options.Json = False,
    as_csv: options.Csv = False,
) -> None:
    """Run a protocol over a simulated network and say what it cost.

    The same command gives the same run, event for event, on every machine. docs/simulator.md lists networks,
    workloads and topologies.
    """
    from antecede.plugin import explain_crash
    from antecede.sim import RunSpec
    from antecede.sim.checking import Checker

    options.refuse_two_forms("simulate", as_json, as_csv)
    spec = RunSpec(
        protocol=protocol,
        parameters=options.parse_settings("simulate", settings),
        processes=processes,
        messages=messages,
        seed=seed,
        network=network,
        workload=workload,
        topology=topology,
        faults=faults,
    )
    started = time.perf_counter()
    with explain_crash(protocol):
        simulation = spec.build()
        judge = Checker(simulation, small=ORACLE_MOST) if check or shrink else None
        summary, stopped = _run_simulation(simulation, judge, out, run, replace)
        findings = _list_findings(judge, summary, stopped)
        shorter = _find_shorter(spec, findings) if shrink and findings and not stopped else None
    kept = None if judge is None or stopped or findings else _describe_order(judge, summary)
    _report(spec, summary, findings, kept, time.perf_counter() - started, out, shorter, as_json, as_csv)
    if stopped:
        raise typer.Exit(130)
    if findings:
        raise typer.Exit(1)


# The work


def _run_simulation(
    simulation: Simulation, judge: Checker | None, out: Path | None, run: str | None, replace: bool
) -> tuple[Summary, bool]:
    """The summary, and whether Ctrl-C ended the run before its end."""
    from antecede.trace import TraceWriter

    engine, info = simulation.engine, simulation.info(run)
    with (
        nullcontext() if out is None else TraceWriter(out, info, replace=replace) as writer,
        catch_interrupt() as interrupts,
        pause_gc(),
        show_progress("messages", simulation.spec.messages) as show,
    ):
        records = [*([] if writer is None else [writer.append]), *([] if judge is None else [judge.record])]

        def record_all(*row: Any) -> None:
            for record in records:
                record(*row)

        if records:
            simulation.record(records[0] if len(records) == 1 else record_all)
        while not engine.finished and not interrupts():
            before = engine.sent
            engine.advance(2048)
            show(engine.sent - before)
        return engine.summary(), interrupts() > 0


def _list_findings(judge: Checker | None, summary: Summary, stopped: bool) -> list[str]:
    """What is wrong with the run: what got stuck, and how it breaks causal order."""
    findings = []
    if summary.undelivered and not stopped:
        findings = [f"stuck: {summary.undelivered} copies were never delivered", *summary.stuck]
    return findings if judge is None else findings + judge.findings("causal")


def _describe_order(judge: Checker, summary: Summary) -> str:
    """What a run without findings has kept."""
    names = judge.simulation.view.names
    some = [names[process] for process in judge.judged]
    where = f" at {', '.join(some)}" if len(some) < len(names) else ""
    return f"{count_things(summary.delivered, 'delivery', 'deliveries')}, each message once, in causal order{where}"


def _find_shorter(spec: RunSpec, findings: list[str]) -> str | None:
    """The command line of a shorter run that fails in the same way, if one was found."""
    from antecede.sim.soak import shrink

    kind = findings[0].partition(":")[0]
    found = shrink(spec, "undelivered" if kind == "stuck" else kind, "causal")
    return None if found == spec else f"{found.command()} --check"


# What is said


def _report(
    spec: RunSpec,
    summary: Summary,
    findings: list[str],
    kept: str | None,
    spent: float,
    out: Path | None,
    shorter: str | None,
    as_json: bool,
    as_csv: bool,
) -> None:
    if as_json:
        result = {
            "verdict": "no" if findings else "yes" if kept else "unknown",
            "command": spec.command(),
            **summary.plain(),
            "findings": findings,
            "shorter": shorter,
            "trace": None if out is None else str(out),
            "seconds": round(spent, 3),
        }
        print_json(result)
    elif as_csv:
        print_csv(list_figures(summary))
    else:
        print_summary(Console(stderr=True), summary)
    for line in findings[:10]:
        print_sentence(line)
    if findings:
        more = f" ({len(findings)} findings)" if len(findings) > 10 else ""
        print_sentence(
            f"no{more}: {findings[0]}; seed {spec.seed}, repeat with:", f"{spec.command()} --check"
        )
    if shorter is not None:
        print_sentence("shorter:", shorter)
    if kept is not None:
        print_sentence(f"yes: {kept}")


def print_summary(console: Console, summary: Summary) -> None:
    lines = []
    for figure in list_figures(summary):
        name, form = FIGURES[figure["figure"]]
        lines.append([name, *("" if figure[key] is None else form(figure[key]) for key in SPREAD)])
    print_table(console, ["", *SPREAD], lines)


def list_figures(summary: Summary) -> Iterator[dict[str, Any]]:
    """The figures of a summary: each is a total, or says how its values spread."""
    for name in FIGURES:
        value = getattr(summary, name)
        if name in ("frames", "frame_bytes") and not summary.frames:
            continue
        total = {"total": value} if isinstance(value, int | float) else {}
        yield {"figure": name} | {key: getattr(value, key, None) for key in SPREAD} | total


def _format_number(value: float) -> str:
    return f"{value:,.2f}".removesuffix(".00")


def _format_time(nanoseconds: float) -> str:
    if nanoseconds >= 10**10:
        return f"{nanoseconds / 10**9:,.1f} s"
    return f"{nanoseconds / 10**6:,.2f} ms"


def _format_share(value: float) -> str:
    return f"{value:.1%}"


SPREAD: Final = ("total", "mean", "p50", "p99", "max")
FIGURES: Final[dict[str, tuple[str, Callable[[float], str]]]] = {
    "sent": ("sent", _format_number),
    "delivered": ("delivered", _format_number),
    "held": ("held at the receiver", _format_number),
    "unsent": ("kept back at the sender", _format_number),
    "packets": ("packets with messages", _format_number),
    "control_packets": ("control packets", _format_number),
    "stamp_entries": ("stamp entries", _format_number),
    "stamp_bytes": ("stamp bytes", _format_number),
    "delay_ns": ("delay", _format_time),
    "waiting_ns": ("waiting for causality", _format_time),
    "waiting_share": ("its share of the delay", _format_share),
    "frames": ("frames", _format_number),
    "frame_bytes": ("bytes of frames", _format_number),
    "duration_ns": ("simulated time", _format_time),
}
"""The name of each figure, and how it is written."""
