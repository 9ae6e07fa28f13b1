"""antecede report: a trace, or a directory of results, as one page.

Spark and Arrow are imported by the functions that use them: the other commands start without.
"""

from __future__ import annotations

import sys
import time
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from antecede.cli.options import Json, Master, Open, Remote, argument, option
from antecede.cli.output import print_json, print_sentence
from antecede.cli.spark_session import open_work, refuse_request
from antecede.report import Report, headline, render
from antecede.storage import local, put, refuse_file

__all__ = ["report"]


def report(
    path: str = argument("A trace, or a directory of results.", metavar="DIR"),
    out: str = option("The page: a path, or a URI.", default="report.html"),
    windows: list[str] | None = option(
        "Also carry these events: clocks (1200) or times since the run's start (2.5s). May be repeated.",
        "--window",
        metavar="RUN:FROM:TO",
    ),
    show: Open = False,
    master: Master = None,
    remote: Remote = None,
    as_json: Json = False,
) -> None:
    """Show verdicts, prices and space-time diagrams as one HTML page that needs nothing else.

    Findings and measures that a directory of results lacks are computed now. docs/report.md explains the page.
    """
    started = time.perf_counter()
    refuse_file(out)
    refuse_request(master, remote, [path], [])
    command = ("antecede", "report", path, "--out", out)
    made = gather_here(path, windows or [], command) if master is None and remote is None else None
    if made is None:
        with open_work(master, remote, "reading the trace", reads=[path]) as work:
            from antecede.report.gather import gather_report

            made = gather_report(work.spark, path, windows or [], command, work.say)
    put(out, render(made).encode())
    outcome = {
        "report": out,
        "headline": headline(made),
        "runs": len(made.runs) + made.omitted_runs,
        "events": sum(run.size for run in made.runs),
        "carried": sum(len(run.events) for run in made.runs),
        "seconds": round(time.perf_counter() - started, 3),
    }
    if as_json:
        print_json(outcome)
    else:
        print(out, flush=True)
    print_sentence(headline(made))
    here = local(out)
    if show and not webbrowser.open(out if here is None else Path(here).as_uri()):
        print(f"antecede: no browser to open it with: {out}", file=sys.stderr)


def gather_here(path: str, windows: Sequence[str], command: Sequence[str]) -> Report | None:
    """The page of a small trace on this machine's disk, without Spark; None of any other."""
    if local(path) is None:
        return None
    from antecede.report.gather import gather_local
    from antecede.report.results import read_small
    from antecede.trace.footers import read_local_trace

    trace = read_small(read_local_trace(path), path)
    return None if trace is None else gather_local(trace, windows, command)
