"""antecede choose: which protocol to take, by runs of all of them on one's own topology, load and network.

The simulator is imported by the functions that use it: the other commands start without.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console

from antecede.cli.tables import print_table
from antecede.errors import BadParameter, CannotWrite

if TYPE_CHECKING:
    from antecede.sim.choice import Fit, Unfit

__all__ = ["choose"]


def choose(
    processes: Annotated[int, typer.Option(help="How many take part; 0: as the topology says, or 8.")] = 0,
    messages: Annotated[int, typer.Option(help="How many messages are sent in each run.")] = 1000,
    seed: Annotated[int, typer.Option(help="All chance comes from this number.")] = 0,
    network: Annotated[
        str, typer.Option(help="Delays, bandwidth, loss: exponential:50ms,bandwidth=1Mbit/s,loss=1%.")
    ] = "exponential:50ms",
    workload: Annotated[
        str, typer.Option(help="Who sends to whom: uniform:rate=10/s, groups:size=4, local:share=90% ...")
    ] = "uniform",
    topology: Annotated[
        str, typer.Option(help="Where they are: mesh, star, wan-of-lans:zones=3, hierarchy ...")
    ] = "mesh",
    faults: Annotated[
        str, typer.Option(help="What goes wrong in every run; none: also try a process that stands still.")
    ] = "none",
    protocol: Annotated[
        list[str] | None,
        typer.Option(
            help="A candidate: NAME, or NAME:key=value. May be repeated.  [default: every protocol]"
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Processor time that a run may take.")] = 60.0,
    out: Annotated[Path | None, typer.Option(help="Draw the figures into this file, as SVG.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as one JSON object.")] = False,
) -> None:
    """Say which protocol to take, from runs of every candidate on your own processes, load and network.

    The options are those of `simulate`. docs/protocols-compared.md has the questions to ask besides.
    """
    from antecede.protocols import PROTOCOLS
    from antecede.sim import RunSpec
    from antecede.sim.choice import advise, try_candidates

    if seconds <= 0:
        raise BadParameter("choose", f"--seconds must be more than 0, not {seconds:g}")
    if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):
        why = "it is a directory" if out.is_dir() else "there is no such directory"
        raise CannotWrite(str(out), why, "nothing was written")
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
            note=lambda name: status.update(f"simulating {name}"),
        )
    fits.sort(key=lambda fit: fit.bytes)
    advice = advise(fits) if fits else []
    if out is not None and fits:
        out.write_text(_draw(fits), encoding="utf-8")
    if as_json:
        answer = {
            "verdict": "yes" if fits else "no",
            "advice": advice,
            "candidates": msgspec.to_builtins(fits),
            "unfit": msgspec.to_builtins(unfit),
            "plot": str(out) if out is not None and fits else None,
            "seconds": round(time.perf_counter() - started, 3),
        }
        print(json.dumps(answer, ensure_ascii=False))
    else:
        _print(console, fits, unfit)
    for sentence in advice:
        print(sentence, file=sys.stderr)
    if not fits:
        print("no: none of the candidates will do", file=sys.stderr)
        raise typer.Exit(1)


def _print(console: Console, fits: list[Fit], unfit: list[Unfit]) -> None:
    headings = ["protocol", "bytes", "control\npackets", "delay", "p99", "one stands\nstill", "CPU", "needs"]
    rows = [
        [
            fit.name,
            f"{fit.bytes:,.1f}",
            f"{fit.control:.2f}",
            f"{fit.delay_ms:,.1f} ms",
            f"{fit.delay_ms_p99:,.1f} ms",
            "" if fit.paused_ms is None else f"{fit.paused_ms:,.1f} ms",
            f"{fit.cpu_us:,.0f} µs",
            "; ".join(fit.needs),
        ]
        for fit in fits
    ]
    if rows:
        print_table(console, headings, rows)
    for one in unfit:
        print(f"not {one.protocol}: {one.reason}", file=sys.stderr)


def _draw(fits: list[Fit]) -> str:
    from antecede.report.plots import draw_bars

    panels = {
        "bytes a delivery": {fit.name: fit.bytes for fit in fits},
        "mean delay, ms": {fit.name: fit.delay_ms for fit in fits},
        "one stands still, ms": {fit.name: fit.paused_ms for fit in fits if fit.paused_ms is not None},
    }
    return draw_bars("What each protocol costs", {name: values for name, values in panels.items() if values})
