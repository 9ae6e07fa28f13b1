"""antecede report: a trace, or a directory of results, as one page.

Spark and Arrow are imported by the functions that use them: the other commands start without.
"""

from __future__ import annotations

import json
import sys
import time
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from antecede.cli.spark_session import Master, Remote, open_work
from antecede.errors import CannotWrite
from antecede.report import headline, render

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
    with open_work(master, remote, "reading the trace", reads=[path]) as work:
        from antecede.report.gather import gather_report

        command = ("antecede", "report", path, "--out", out)
        made = gather_report(work.spark, path, windows or [], command, work.say)
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
