"""antecede report: a trace, or a directory of results, as one page.

Spark and Arrow are imported by the functions that use them: the other commands start without.
"""

from __future__ import annotations

import json
import sys
import time
import webbrowser
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

import antecede
from antecede.cli.spark_session import Master, Remote, Work, working
from antecede.errors import CannotWrite
from antecede.report import Report, Tables, Window, assemble, headline, render
from antecede.report.asked import window
from antecede.report.carried import (
    BUCKETS,
    MOST,
    Extent,
    Plan,
    channel_bands,
    density_bands,
    detailed,
    listed,
    plan,
    stories,
)
from antecede.report.data import Event, Finding
from antecede.report.tables import findings_of

if TYPE_CHECKING:
    from antecede.spark.trace.api import Trace
    from antecede.spark.windows import Rows

__all__ = ["report"]


def report(
    path: Annotated[str, typer.Argument(metavar="DIR", help="A trace, or a directory of results.")],
    out: Annotated[str, typer.Option(help="The page: a path, or a URI.")] = "report.html",
    windows: Annotated[
        list[str] | None,
        typer.Option(
            "--window",
            metavar="RUN:FROM:TO",
            help="Also carry these events: clocks (1200) or times since the run's start (2.5s). May be repeated.",
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    master: Master = None,
    remote: Remote = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as one JSON object.")] = False,
) -> None:
    """Show verdicts, prices and space-time diagrams as one HTML page that needs nothing else.

    What a directory of results does not hold yet, findings and measures, is computed. docs/report.md explains the page.
    """
    started = time.perf_counter()
    refuse(out)
    with working(master, remote, "reading the trace") as work:
        made = gathered(work, path, windows or [], ("antecede", "report", path, "--out", out))
    write(out, render(made))
    outcome = {
        "report": out,
        "headline": headline(made),
        "runs": len(made.runs) + made.omitted_runs,
        "events": sum(run.size for run in made.runs),
        "carried": sum(len(run.events) for run in made.runs),
        "seconds": round(time.perf_counter() - started, 3),
    }
    print(headline(made), file=sys.stderr)
    print(json.dumps(outcome, ensure_ascii=False) if as_json else out)
    here = on_this_machine(out)
    if show and not webbrowser.open(here.as_uri() if here else out):
        print(f"antecede: no browser to open it with: {out}", file=sys.stderr)


# What the page shows


def gathered(work: Work, path: str, asked: list[str], command: tuple[str, ...]) -> Report:
    """Everything, by Spark; what comes back is bounded, however long the trace."""
    from antecede.spark import windows as spark
    from antecede.spark.sweep.recorded import recorded
    from antecede.spark.trace.api import Trace

    trace = Trace.read(work.spark, path)
    there = recorded(work.spark, path)
    runs = sorted(spark.rows(trace.runs), key=lambda run: str(run["run"]).encode())
    extents = {row["run"]: msgspec.convert(row, Extent) for row in spark.extents(trace)}
    ranges = [window(text, extents) for text in asked]

    findings, verdicts = there.findings, there.verdicts
    if findings is None or verdicts is None:
        from antecede.spark.verify.api import verify

        work.say("verifying")
        verified = verify(trace)
        findings, verdicts = verified.findings, verified.runs
    judged = spark.rows(verdicts)
    broken = [row["run"] for row in judged if row["verdict"] == "no"]
    found = spark.first_findings(findings, listed(len(broken))) if broken else []

    work.say("measuring")
    measured = there.measures or measures(trace)
    sizes = {row["run"]: len(row["processes"]) for row in runs}
    tables: dict[str, Any] = {
        "runs": runs,
        "verdicts": judged,
        "findings": found,
        "measures": spark.rows(measured["runs"]),
        "processes": spark.of_runs(measured["processes"], detailed(sizes, set(broken))),
        "channels": spark.channels(trace, measured["channels"], channel_bands(len(runs))),
        "histograms": spark.histograms(trace, measured["histograms"]),
        "extents": tuple(extents.values()),
        "failed": spark.rows(there.failures) if there.failures is not None else [],
    }

    work.say("choosing windows")
    tables |= chosen(trace, extents, by_run(found), ranges)
    # A run without events is whole too.
    tables["whole"] = sizes.keys() - tables.pop("parts").keys()
    return assemble(
        Tables(**tables),
        source=path,
        command=command,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=antecede.__version__,
    )


def measures(trace: Trace) -> dict[str, Any]:
    from antecede.spark.measure.api import measure

    found = measure(trace)
    return {name: getattr(found, name) for name in ("runs", "processes", "channels", "histograms")}


def by_run(rows: Rows) -> dict[str, tuple[Finding, ...]]:
    names = dict.fromkeys(row["run"] for row in rows)
    return {name: findings_of(row for row in rows if row["run"] == name) for name in names}


def chosen(
    trace: Trace, extents: dict[str, Extent], findings: dict[str, tuple[Finding, ...]], ranges: list[Any]
) -> dict[str, Any]:
    """The events that the page carries, and where the others are."""
    from antecede.spark import windows as spark

    told = spark.events_of_messages(trace, stories(findings))
    own: dict[str, list[Event]] = {}
    for row in told:
        own.setdefault(row["run"], []).append(msgspec.convert(row, Event))
    planned: Plan = plan(extents.values(), findings, own, ranges)
    asked = [spark.Asked(r.run, r.axis, r.low, r.high) for r in planned.ranges]
    inside, cut = spark.events_of_ranges(trace, asked, MOST)
    parts = {run: extent for run, extent in extents.items() if run not in planned.whole}
    spans = {run: (extent.time_low or 0, extent.time_high or 0) for run, extent in parts.items()}
    return {
        "events": [*spark.events_of_runs(trace, planned.whole), *told, *inside],
        "windows": [
            (r.run, Window(f"{r.title}, the first {MOST:,}" if i in cut else r.title, r.axis, r.low, r.high))
            for i, r in enumerate(planned.ranges)
        ],
        "density": spark.density(trace, spans, density_bands(len(parts)), BUCKETS),
        "parts": parts,
        "whole": {*planned.whole, *(run["run"] for run in spark.rows(trace.runs.select("run")))}
        - parts.keys(),
    }


# The file


def on_this_machine(out: str) -> Path | None:
    """The absolute path, or None if it is elsewhere."""
    from antecede.spark.storage import local

    path = local(out)
    return None if path is None else Path(path)


def refuse(out: str) -> None:
    """Say now what would be said after all the work."""
    path = on_this_machine(out)
    if path is not None and path.is_dir():
        raise CannotWrite(out, "it is a directory", "nothing was written")
    if path is not None and not path.parent.is_dir():
        raise CannotWrite(out, "there is no such directory", "nothing was written")


def write(out: str, page: str) -> None:
    """Whole or not at all; a page of that name is replaced."""
    from antecede.spark.storage import put

    put(out, page.encode())
