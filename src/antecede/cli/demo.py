"""antecede demo: the whole pipeline on runs that it makes itself. Every protocol, on three networks: who kept causal
order, and at what price?

Spark and Arrow are imported by the functions that use them: the other commands start without.
"""

from __future__ import annotations

import sys
import tempfile
import time
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import typer
from msgspec import Struct
from rich.console import Console
from rich.text import Text

from antecede.cli.options import Csv, Json, Master, Messages, Open, Remote, option, refuse_two_forms
from antecede.cli.output import (
    VERDICTS,
    describe_promises,
    print_csv,
    print_json,
    print_sentence,
    print_table,
)
from antecede.cli.spark_session import Work, open_work
from antecede.errors import BadParameter
from antecede.protocols import PROTOCOLS
from antecede.report import render
from antecede.storage import put, refuse_existing

__all__ = ["demo"]

NETWORKS: Final = {
    "even": "exponential:20ms",
    "wild": "lognormal:20ms,sigma=2",
    "far": "zones:lan=1ms,wan=50ms",
}
"""Delays that differ little, delays that differ much, and two sites far from each other."""

SPECIAL: Final[Mapping[str, str]] = {
    "broadcast": "broadcast:rate=10/s",
    "monitor": "monitor:rate=20/s,share=50%,at=p1",
}
"""Protocols that are made for one kind of load, and the load."""

LEGEND: Final = (
    "even, wild, far: messages overtaken on a network whose delays differ little, on one where they differ much, and "
    "between two sites. Control packets: for each message. monitor orders for one process alone, p1: only what p1 "
    "delivers is counted there."
)

OBSERVER: Final = "p1"
"""Where `monitor` sees all others' observations. It orders these, and promises nothing elsewhere."""


class Line(Struct, frozen=True):
    """One protocol in the table at the end."""

    protocol: str
    promises: str
    violations: Mapping[str, int]
    """Network -> how many messages were overtaken, where the protocol orders."""
    findings: int
    """Of any kind, where it orders."""
    stamp_bytes: float
    control_per_message: float
    delay_ms: float
    wait_share: float | None

    @property
    def kept(self) -> bool:
        return self.findings == 0

    @property
    def expected(self) -> bool:
        """Kept where it was promised, and broken where it was not: else the networks were too kind to tell."""
        return self.kept == (self.promises == "causal")


def demo(
    out: Path | None = option("Keep everything in this directory.  [default: a new one]"),
    messages: Messages = 1500,
    show: Open = False,
    master: Master = None,
    remote: Remote = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Simulate every protocol on three networks, verify and measure the traces, and report.

    Succeeds if every protocol that promises causal order kept it, and no other did.
    """
    refuse_two_forms("demo", as_json, as_csv)
    if messages < 1:
        raise BadParameter("demo", f"--messages must be 1 or more, not {messages}")
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        refuse_existing(str(out))
    started = time.perf_counter()
    directory = out or Path(tempfile.mkdtemp(prefix="antecede-demo-"))
    with open_work(master, remote, "simulating", small=True) as work:
        lines = perform_runs(work, directory, messages, embedded=master is None and remote is None)
        work.say("writing the report")
        page = directory / "report.html"
        from antecede.report.gather import gather_report

        command = ("antecede", "report", str(directory))
        put(page, render(gather_report(work.spark, str(directory), [], command)).encode())
    if as_json:
        print_json(make_answer(lines, directory, page))
    elif as_csv:
        print_csv(map(make_record, lines))
    else:
        console = Console(stderr=True, highlight=False)
        print_lines(console, lines)
        console.print()
        print_sentence(LEGEND)
        console.print()
    print_sentence(f"{describe_promises('demo', lines)} {time.perf_counter() - started:.0f} s.")
    print(f"Report: {page}", file=sys.stderr)
    if show:
        webbrowser.open(page.absolute().as_uri())
    if not all(line.expected for line in lines):
        raise typer.Exit(1)


def make_experiment(messages: int) -> dict[str, Any]:
    """As a file for `antecede sweep` would say it. Ten processes at two sites send to groups."""
    grid = {
        "processes": 10,
        "messages": messages,
        "seed": 1,
        "topology": "wan-of-lans:zones=2,gateways=2",
        "network": list(NETWORKS.values()),
    }
    usual = [name for name in PROTOCOLS if name not in SPECIAL]
    cases = [{"name": "groups", "protocol": usual, "workload": "groups:size=4,rate=10/s"}]
    cases += [{"name": name, "protocol": name, "workload": load} for name, load in SPECIAL.items()]
    return {"title": "Every protocol on three networks", "grid": grid, "case": cases}


def perform_runs(work: Work, directory: Path, messages: int, *, embedded: bool) -> list[Line]:
    """Simulate, verify, measure; the tables are left in the directory."""
    from antecede.report.queries import collect_rows
    from antecede.sim.experiment import expand
    from antecede.spark import Trace, measure, sweep

    asked = expand(make_experiment(messages), "demo")
    work.say(f"simulating {len(asked.runs)} runs")
    sweep(work.spark, asked, directory, traces=True)
    trace = Trace.read(work.spark, directory)
    work.say("verifying")
    found = find_violations(trace, directory, embedded)
    work.say("measuring")
    measured = measure(trace)
    measured.write(directory)
    runs = collect_rows(trace.runs)
    prices = {price["protocol"]: price for price in collect_rows(measured.overall)}
    return [summarise(protocol, runs, found, prices[protocol]) for protocol in PROTOCOLS]


def find_violations(trace: Any, directory: Path, embedded: bool) -> list[Any]:
    """Count the findings of each kind at each process: in this process, as `antecede verify` does it, or on Spark."""
    from antecede.report.queries import collect_rows
    from antecede.spark import verify
    from antecede.verification.embedded import EMBEDDED_MOST
    from antecede.verification.embedded import verify as verify_here

    keys = ["run", "kind", "process"]
    if embedded and sum(file.rows for file in trace.files or ()) <= EMBEDDED_MOST:
        verified = verify_here(directory)
        verified.write(directory)
        counts = verified.findings.select(keys).group_by(keys).aggregate([([], "count_all")])
        return counts.rename_columns({"count_all": "count"}).to_pylist()  # type: ignore[no-any-return]
    on_spark = verify(trace)
    on_spark.write(directory)
    return collect_rows(on_spark.findings.groupBy(*keys).count())


def summarise(protocol: str, runs: list[Any], found: list[Any], price: Mapping[str, Any]) -> Line:
    names = {text: name for name, text in NETWORKS.items()}
    networks = {row["run"]: names[row["network"]] for row in runs if row["protocol"] == protocol}
    own = [
        row
        for row in found
        if row["run"] in networks and (protocol != "monitor" or row["process"] == OBSERVER)
    ]
    violations = dict.fromkeys(NETWORKS, 0)
    for row in own:
        violations[networks[row["run"]]] += row["count"] if row["kind"] == "violation" else 0
    return Line(
        protocol,
        PROTOCOLS[protocol].order,
        violations,
        sum(row["count"] for row in own),
        price["stamp_bytes_mean"],
        price["control_per_message"],
        price["delay_ns_mean"] / 1e6,
        price["wait_share"],
    )


# For people


def print_lines(console: Console, lines: list[Line]) -> None:
    headings = [
        "protocol",
        "causal\norder",
        *NETWORKS,
        "stamp\nbytes",
        "control\npackets",
        "mean\ndelay",
        "of it\nwaiting",
    ]
    rows: list[list[str | Text]] = [
        [
            Text(line.protocol, "cyan"),
            VERDICTS[line.kept, line.promises == "causal"],
            *(f"{line.violations[network]:,}" for network in NETWORKS),
            f"{line.stamp_bytes:.1f}",
            f"{line.control_per_message:.2f}",
            f"{line.delay_ms:,.0f} ms",
            "" if line.wait_share is None else f"{line.wait_share:.0%}",
        ]
        for line in lines
    ]
    print_table(console, headings, rows, left=2)


# For programs


def make_answer(lines: list[Line], directory: Path, page: Path) -> dict[str, Any]:
    return {
        "verdict": "yes" if all(line.expected for line in lines) else "no",
        "protocols": [make_record(line) for line in lines],
        "results": str(directory),
        "report": str(page),
    }


def make_record(line: Line) -> dict[str, Any]:
    return {name: getattr(line, name) for name in (*Line.__struct_fields__, "kept", "expected")}
