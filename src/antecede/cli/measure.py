"""antecede measure: what each run of a trace cost.

Spark is imported by the functions that use it: the other commands start without.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from antecede.cli.options import Csv, Json, Master, Remote, Trace, option, refuse_two_forms
from antecede.cli.output import RUNS_MOST, print_csv, print_json, print_sentence, print_table
from antecede.cli.spark_session import open_work, refuse_request
from antecede.storage import absolute, local

if TYPE_CHECKING:
    from antecede.spark.measure.api import Measures

__all__ = ["measure"]


def measure(
    trace: Trace,
    out: str | None = option("Write OUT/measures/runs, processes, channels and histograms, as Parquet."),
    as_json: Json = False,
    as_csv: Csv = False,
    master: Master = None,
    remote: Remote = None,
) -> None:
    """Measure every run of a trace: stamps, control packets, delay, waiting, concurrency, chains.

    Counts, means and maxima are exact, quantiles wrong by less than 1 %. A run that contradicts itself is refused by
    name, the others are measured, and the exit code is 1. docs/measuring.md explains every figure.
    """
    refuse_two_forms("measure", as_json, as_csv)
    places = [] if out is None else [f"{out.rstrip('/')}/measures"]
    refuse_request(master, remote, [trace], places)
    if local(trace) is not None:
        from antecede.trace.footers import list_local, locate

        locate(absolute(trace), list_local)  # else Spark would start to say that there is no trace
    with open_work(master, remote, "reading footers", reads=[trace], writes=places) as work:
        from antecede.spark.measure.api import ERROR, TABLES
        from antecede.spark.measure.api import measure as measure_trace
        from antecede.spark.trace import Trace as SparkTrace

        read = SparkTrace.read(work.spark, trace)
        work.say("measuring")
        found = measure_trace(read)
        if out is not None:
            work.say("writing")
            found.write(out)
        work.say("summing up")
        runs = [row.asDict() for row in found.runs.orderBy("run").collect()]
        protocols = collect_overall(runs, found)
    if as_json:
        written = None if out is None else [f"{out.rstrip('/')}/measures/{name}" for name in TABLES]
        refused = [{"run": run, "reason": str(why)} for run, why in sorted(found.refused.items())]
        outcome = {
            "runs": runs,
            "overall": protocols,
            "refused": refused,
            "quantile_error": ERROR,
            "written": written,
        }
        print_json(outcome)
    elif as_csv:
        print_csv(runs)
    else:
        show(runs, protocols)
    for _, why in sorted(found.refused.items()):
        print_sentence(f"antecede: not measured: {why}")
    if found.refused:
        raise typer.Exit(1)


def collect_overall(runs: Sequence[Mapping[str, Any]], found: Measures) -> list[dict[str, Any]]:
    """All runs of each protocol together. One run needs no adding up, and no further job."""
    if len({row["protocol"] for row in runs}) < len(runs):
        return [row.asDict() for row in found.overall.orderBy("protocol").collect()]
    alone = [
        {"protocol": row["protocol"], "runs": 1} | {key: row[key] for key in row if key != "run"}
        for row in runs
    ]
    return sorted(alone, key=lambda row: str(row["protocol"]))


# For people


def show(runs: Sequence[Mapping[str, Any]], protocols: Sequence[Mapping[str, Any]]) -> None:
    console = Console(stderr=True)
    if len(runs) <= RUNS_MOST:
        print_measures(console, "run", runs)
    if len(runs) > RUNS_MOST or len(protocols) < len(runs):
        if len(runs) <= RUNS_MOST:
            console.print()
        print_measures(console, "protocol", protocols)


def print_measures(console: Console, first: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Print one line for each run, or for each protocol. What is known of none has no column."""
    columns = [
        *([("runs", "runs", format_count)] if first == "protocol" else []),
        ("processes", "processes", format_count),
        ("messages", "sends", format_count),
        ("control\npackets", "control_per_message", format_number),
        ("entries\np50", "stamp_entries_p50", format_count),
        ("bytes\nmean", "stamp_bytes_mean", format_number),
        ("bytes\np99", "stamp_bytes_p99", format_count),
        ("delay\np50", "delay_ns_p50", format_time),
        ("delay\np99", "delay_ns_p99", format_time),
        ("waiting", "wait_share", format_percent),
        ("concurrent", "concurrency", format_percent),
        ("longest\nchain", "longest_chain", format_count),
    ]
    told = list(rows)
    columns = [column for column in columns if any(row[column[1]] is not None for row in told)]
    cells = [
        [row[first], *("-" if row[key] is None else form(row[key]) for _, key, form in columns)]
        for row in told
    ]
    print_table(console, [first, *(heading for heading, _, _ in columns)], cells)


def format_count(value: int) -> str:
    return f"{value:,}"


def format_number(value: float) -> str:
    return f"{value:,.2f}"


def format_percent(value: float) -> str:
    return f"{value:.1%}"


def format_time(nanoseconds: float) -> str:
    for unit, size in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if abs(nanoseconds) >= size:
            return f"{nanoseconds / size:,.1f} {unit}"
    return f"{nanoseconds:,.0f} ns"
