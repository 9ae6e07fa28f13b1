"""antecede verify: was every message delivered once, to whom it was addressed, in causal order?

Spark is imported by the functions that use it: the other commands start without.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from antecede.cli.spark_session import Master, Remote, working
from antecede.cli.stream_options import Asked, Every, Once, Patience, Place
from antecede.cli.verify_stream import verify_stream
from antecede.errors import BadParameter

if TYPE_CHECKING:
    from antecede.spark.verify.api import Verification

__all__ = ["verify"]

RUNS_MOST = 20
"""Runs that are shown one by one; more are summed up by protocol."""
SHOWN = 5
"""Findings that are told in words."""

COUNTS = ("deliveries", "violations", "fifo_breaks", "duplicates", "unsent", "unaddressed", "undelivered")


def verify(
    trace: Annotated[
        str, typer.Argument(help="A trace, or a directory of results that has one: a path or a URI.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdicts as one JSON object.")] = False,
    out: Annotated[
        str | None, typer.Option(help="Write OUT/findings and OUT/verdicts, as Parquet.", show_default=False)
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say how the trace is read.")] = False,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="Verify what comes, as it comes. TRACE may be feed://HOST:PORT,... or nats://HOST:PORT/STREAM.",
        ),
    ] = False,
    checkpoint: Place = None,
    once: Once = False,
    patience: Patience = None,
    every: Every = 1.0,
    forget: Annotated[
        float | None,
        typer.Option(
            help="With --stream: seconds of silence after which a run is over.  [default: never]",
            show_default=False,
        ),
    ] = None,
    master: Master = None,
    remote: Remote = None,
) -> None:
    """Say of every run of a trace whether causal order was kept, and show what broke it.

    Exit code 0: yes, or not known to be broken. 1: no. docs/verification.md explains findings and cost.
    """
    if stream:
        if out is None:
            raise BadParameter("verify --stream", "--out", "not given", "where findings go, and what is kept")
        asked = Asked("verify --stream", out, checkpoint, once, every, patience, as_json, master, remote)
        verify_stream(trace, asked, forget)
        return
    with working(master, remote, "reading footers") as work:
        from antecede.spark.trace.api import Trace
        from antecede.spark.verify.api import verify as judge

        read = Trace.read(work.spark, trace)
        work.say("verifying")
        found = judge(read)
        if out is not None:
            work.say("writing")
            found.write(out)
        work.say("counting")
        protocols = read.runs.select("run", "protocol")
        rows = [row.asDict() for row in found.runs.join(protocols, "run", "left").orderBy("run").collect()]
        first = examples(found)
    if explain:
        print(found.plan, file=sys.stderr)
    verdict = overall(rows)
    report(rows, first, verdict, as_json)
    if verdict == "no":
        raise typer.Exit(1)


def examples(found: Verification) -> list[str]:
    """The first findings in words, violations before others."""
    table = found.findings.orderBy("kind", "run", "process", "index", "sender", "number")
    violations = table.where("kind = 'violation'").limit(SHOWN).collect()
    others = table.where("kind not in ('violation', 'fifo_break')").limit(SHOWN - len(violations)).collect()
    return [told(row.asDict()) for row in (*violations, *others)]


def told(row: Mapping[str, Any]) -> str:
    """A finding in words."""
    at, message = row["process"], f"{row['sender']}.{row['number']}"
    match row["kind"]:
        case "violation":
            chain = " -> ".join(f"{link['sender']}.{link['number']}" for link in row["chain"])
            by = f"{row['by_sender']}.{row['by_number']}"
            words = f"{at} delivered {message} after {by}, which it causally precedes: {chain}"
        case "duplicate":
            words = f"{at} delivered {message} again"
        case "unsent":
            words = f"{at} delivered {message}, which nobody sent"
        case "unaddressed":
            words = f"{at} delivered {message}, which was not addressed to it"
        case _:
            words = f"{at} never delivered {message}, which was addressed to it"
    return f"{row['run']}: {row['kind']}: {words}"


def overall(rows: Iterable[Mapping[str, Any]]) -> str:
    verdicts = {row["verdict"] for row in rows}
    return next((verdict for verdict in ("no", "unknown") if verdict in verdicts), "yes")


def report(rows: Sequence[Mapping[str, Any]], first: Sequence[str], verdict: str, as_json: bool) -> None:
    if as_json:
        keys = ("run", "verdict", "reason", *COUNTS)
        print(
            json.dumps(
                {"verdict": verdict, "runs": [{k: row[k] for k in keys} for row in rows]}, ensure_ascii=False
            )
        )
    else:
        Console(stderr=True).print(by_run(rows) if len(rows) <= RUNS_MOST else by_protocol(rows))
    for line in first:
        print(line, file=sys.stderr)
    print(sentence(rows, verdict), file=sys.stderr)


def sentence(rows: Sequence[Mapping[str, Any]], verdict: str) -> str:
    """The answer in one line."""
    runs, deliveries = len(rows), sum(row["deliveries"] for row in rows)
    of = f"{runs} run{'s' * (runs != 1)}, {deliveries:,} deliver{'y' if deliveries == 1 else 'ies'}"
    own = [row for row in rows if row["verdict"] == verdict]
    match verdict:
        case "yes":
            return f"yes: {of}, nothing wrong"
        case "no":
            return f"no: {len(own)} of {of}: run {own[0]['run']}: {own[0]['reason']}"
        case _:
            return f"unknown: {len(own)} of {of}: run {own[0]['run']}: {own[0]['reason']}"


def by_run(rows: Sequence[Mapping[str, Any]]) -> Table:
    counts = worth_showing(rows)
    table = columns("run", "verdict", *counts)
    for row in rows:
        table.add_row(row["run"], row["verdict"], *(f"{row[count]:,}" for count in counts))
    return table


def by_protocol(rows: Sequence[Mapping[str, Any]]) -> Table:
    counts = worth_showing(rows)
    table = columns("protocol", "runs", "yes", "no", "unknown", *counts)
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["protocol"] or "", []).append(row)
    for protocol, own in sorted(groups.items()):
        verdicts = [sum(row["verdict"] == verdict for row in own) for verdict in ("yes", "no", "unknown")]
        sums = [sum(row[count] for row in own) for count in counts]
        table.add_row(protocol, *(f"{number:,}" for number in (len(own), *verdicts, *sums)))
    return table


def worth_showing(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Deliveries, and what was found anywhere: a row of zeros says nothing."""
    return [count for count in COUNTS if count == "deliveries" or any(row[count] for row in rows)]


def columns(*names: str) -> Table:
    table = Table(show_header=True, box=None, pad_edge=False)
    for name in names:
        table.add_column(
            name.replace("_", " "), justify="left" if name in ("run", "protocol", "verdict") else "right"
        )
    return table
