"""antecede choose: which protocol to take, by runs of all of them on one's own topology, load and network.

The simulator is imported by the functions that use it: the other commands start without.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import typer
from rich.console import Console

from antecede.cli import options
from antecede.cli.options import option
from antecede.cli.output import print_csv, print_json, print_sentence, print_table
from antecede.errors import BadParameter
from antecede.storage import put, refuse_file

if TYPE_CHECKING:
    from antecede.sim.choice import Fit, Unfit

__all__ = ["choose"]


def choose(
    processes: options.Processes = 0,
    messages: options.Messages = 1000,
    seed: options.Seed = 0,
    network: options.Network = "exponential:50ms",
    workload: options.Workload = "uniform",
    topology: options.Topology = "mesh",
    faults: options.Faults = "none",
    protocol: list[str] | None = option(
        "A candidate: NAME, or NAME:key=value. May be repeated.  [default: every protocol]", metavar="NAME"
    ),
    seeds: int = option(
        "Runs of each candidate, with seeds from --seed on; their means count.", default=5, min=1
    ),
    seconds: float = option("Processor time that a run may take.", default=60.0),
    out: Path | None = option("Draw the figures into this file, as SVG."),
    as_json: options.Json = False,
    as_csv: options.Csv = False,
) -> None:
    """Say which protocol to take, from runs of every candidate on your own processes, load and network.

    Without --faults, each candidate also runs while one process stands still. docs/protocols-compared.md has the
    further questions to ask.
    """
    from antecede.protocols import PROTOCOLS
    from antecede.sim import RunSpec
    from antecede.sim.choice import advise, try_candidates

    options.refuse_two_forms("choose", as_json, as_csv)
    if seconds <= 0:
        raise BadParameter("choose", f"--seconds must be more than 0, not {seconds:g}")
    if out is not None:
        refuse_file(out)
    started = time.perf_counter()
    asked = RunSpec(
        protocol="unordered",
        processes=processes,
        messages=messages,
        seed=seed,
        network=network,
        workload=workload,
        topology=topology,
        faults=faults,
    )
    console = Console(stderr=True, highlight=False)
    with console.status("") as status:
        fits, unfit = try_candidates(
            asked,
            protocol or tuple(PROTOCOLS),
            seconds=seconds,
            seeds=seeds,
            note=lambda name: status.update(f"simulating {name}"),
        )
    fits.sort(key=lambda fit: fit.bytes)
    advice = advise(fits) if fits else []
    if out is not None and fits:
        put(out, draw(fits).encode())
    if as_json:
        answer = {
            "verdict": "yes" if fits else "no",
            "advice": advice,
            "candidates": msgspec.to_builtins(fits),
            "unfit": msgspec.to_builtins(unfit),
            "plot": str(out) if out is not None and fits else None,
            "seconds": round(time.perf_counter() - started, 3),
        }
        print_json(answer)
    elif as_csv:
        print_csv(map(msgspec.to_builtins, fits))
    else:
        print_fits(console, fits, unfit)
    for sentence in advice:
        print_sentence(sentence)
    if not fits:
        print_sentence("no: none of the candidates will do")
        raise typer.Exit(1)


LEGEND: Final = (
    "For each delivery: bytes of ordering, control packets, mean delay and its 99th percentile, mean delay while one "
    "process stands still for a quarter of the time, and processor time."
)


def print_fits(console: Console, fits: list[Fit], unfit: list[Unfit]) -> None:
    headings = ["protocol", "bytes", "control\npackets", "delay", "p99", "one stands\nstill", "CPU"]
    rows = [
        [
            fit.name,
            f"{fit.bytes:,.1f}",
            f"{fit.control:.2f}",
            f"{fit.delay_ms:,.1f} ms",
            f"{fit.delay_ms_p99:,.1f} ms",
            "" if fit.paused_ms is None else f"{fit.paused_ms:,.1f} ms",
            f"{fit.cpu_us:,.0f} µs",
        ]
        for fit in fits
    ]
    if rows:
        print_table(console, headings, rows)
        print_sentence(LEGEND)
    for fit in fits:
        if fit.needs:
            print_sentence(f"{fit.name} needs {' and '.join(fit.needs)}")
    for one in unfit:
        print_sentence(f"not {one.protocol}: {one.reason}")


def draw(fits: list[Fit]) -> str:
    from antecede.report.plots import draw_bars

    panels = {
        "bytes a delivery": {fit.name: fit.bytes for fit in fits},
        "mean delay, ms": {fit.name: fit.delay_ms for fit in fits},
        "one stands still, ms": {fit.name: fit.paused_ms for fit in fits if fit.paused_ms is not None},
    }
    return draw_bars("What each protocol costs", {name: values for name, values in panels.items() if values})
