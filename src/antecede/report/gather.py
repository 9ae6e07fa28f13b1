"""Gather what a page shows of a trace. What comes back is bounded, however long the trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession

import antecede
from antecede import storage
from antecede.report.data import Event, Finding, Report, Window
from antecede.report.promises import find_promise
from antecede.report.queries import (
    Rows,
    Table,
    add_channels,
    add_histograms,
    collect_rows,
    collect_runs,
    count_density,
    count_findings,
    find_extents,
    read_first_findings,
    read_ranges,
)
from antecede.report.queries import read_messages as read_events_of
from antecede.report.results import FINDINGS, Results, Small, measure_small, read_results
from antecede.report.selection import (
    BUCKETS,
    MOST,
    Extent,
    Range,
    choose_detailed,
    limit_channel_bands,
    limit_density_bands,
    limit_findings,
    list_story_keys,
    parse_window,
    plan_selection,
)
from antecede.report.tables import Tables, assemble, sort_findings
from antecede.spark.measure.api import TABLES, measure
from antecede.spark.spans.verify import list_messages, read_aliases, read_messages, verify_spans
from antecede.spark.trace import Trace
from antecede.spark.verify.api import verify
from antecede.trace.footers import LocalTrace
from antecede.trace.foreign.formats import is_stated
from antecede.verification.embedded import EMBEDDED_MOST, verify_local

__all__ = ["gather_local", "gather_report"]


def gather_report(
    spark: SparkSession,
    path: str,
    windows: Sequence[str],
    command: Sequence[str],
    say: Callable[[str], None] = lambda step: None,
) -> Report:
    """The values of the page. What the directory does not hold yet, findings and measures, is computed.

    `windows` are RUN:FROM:TO as the user writes them; `say` is told which step begins.
    """
    trace = Trace.read(spark, path)
    results = read_results(path, spark)
    table = collect_rows(trace.runs) if trace.table is None else trace.table.to_pylist()
    runs = sorted(table, key=lambda run: str(run["run"]).encode())
    extents = list_extents(trace.events)
    ranges = [parse_window(text, extents) for text in windows]
    say("verifying")
    stated = all(is_stated(run["parameters"]) for run in runs) and bool(runs)
    judged = judge_spans(trace) if stated else judge_runs(*verify_trace(trace, results), runs)
    say("measuring")
    priced = price_runs(results.measures or measure_trace(trace), runs, judged["verdicts"])
    say("choosing windows")
    shown = select_events(trace.events, runs, extents, group_findings(judged["findings"]), ranges)
    tables = Tables(
        runs=runs,
        **judged,
        **priced,
        **shown,
        extents=tuple(extents.values()),
        causality="stated" if stated else None,
        aliases=name_messages(trace, judged["findings"], shown["events"]) if stated else (),
        failed=results.failures,
    )
    return make_report(tables, path, command)


def gather_local(trace: Small, windows: Sequence[str], command: Sequence[str]) -> Report:
    """The same of a small trace, without Spark."""
    results, runs, extents = read_results(trace.path), trace.runs, list_extents(trace.events)
    ranges = [parse_window(text, extents) for text in windows]
    findings, verdicts = results.findings, results.verdicts
    if findings is None or verdicts is None:
        found = verify_local(trace.read)
        findings, verdicts = found.findings, found.runs
    judged = judge_runs(findings, collect_rows(verdicts), runs)
    tables = Tables(
        runs=runs,
        **judged,
        **price_runs(results.measures or measure_small(trace), runs, judged["verdicts"]),
        **select_events(trace.events, runs, extents, group_findings(judged["findings"]), ranges),
        extents=tuple(extents.values()),
        failed=results.failures,
    )
    return make_report(tables, trace.path, command)


def list_extents(events: Table) -> dict[str, Extent]:
    return {row["run"]: msgspec.convert(row, Extent) for row in find_extents(events)}


def make_report(tables: Tables, path: str, command: Sequence[str]) -> Report:
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return assemble(tables, source=path, command=command, made=made, version=antecede.__version__)


def judge_runs(findings: Table, judged: Rows, runs: Rows) -> dict[str, Any]:
    """Verdicts, the findings that are listed, and how many there are where a promise covers one process only."""
    broken = [row["run"] for row in judged if row["verdict"] == "no"]
    partly = {
        run["run"]
        for run in runs
        if find_promise(run["protocol"], run["parameters"], run["processes"]).at is not None
    }
    return {
        "verdicts": judged,
        "findings": read_first_findings(findings, limit_findings(len(broken))) if broken else [],
        "found_at": count_findings(findings, partly & set(broken)),
    }


def judge_spans(trace: Trace) -> dict[str, Any]:
    """The same of spans, by the causality that they state: what is there already may be of the other one."""
    assert trace.path is not None
    found = verify_spans(trace.spark, trace.path)
    broken = any(row["verdict"] == "no" for row in found.verdicts)
    return {
        "verdicts": found.verdicts,
        "findings": read_first_findings(found.findings, limit_findings(1)) if broken else [],
        "found_at": [],
    }


def name_messages(trace: Trace, findings: Rows, events: Rows) -> Rows:
    """What the user calls the messages that the page has."""
    assert trace.path is not None
    keys = list_messages(findings) | {(row["sender"], row["number"]) for row in events}
    messages = read_messages(trace.spark, trace.path)
    return [] if messages is None else read_aliases(messages, keys)


def verify_trace(trace: Trace, results: Results) -> tuple[DataFrame, Rows]:
    """Findings and verdicts: of a small local trace by this process, as `antecede verify` does it."""
    if results.findings is not None and results.verdicts is not None:
        return results.findings, collect_rows(results.verdicts)
    if (
        trace.path is None
        or storage.local(trace.path) is None
        or sum(file.rows for file in trace.files or ()) > EMBEDDED_MOST
    ):
        verified = verify(trace)
        return verified.findings, collect_rows(verified.runs)
    assert trace.table is not None
    found = verify_local(LocalTrace(trace.path, trace.table, trace.files or ()))
    return trace.spark.createDataFrame(found.findings.to_pylist(), FINDINGS), found.runs.to_pylist()


def price_runs(measures: Mapping[str, Table], runs: Rows, verdicts: Rows) -> dict[str, Any]:
    """What was measured."""
    sizes = {row["run"]: len(row["processes"]) for row in runs}
    broken = {row["run"] for row in verdicts if row["verdict"] == "no"}
    return {
        "measures": collect_rows(measures["runs"]),
        "processes": collect_runs(measures["processes"], choose_detailed(sizes, broken)),
        "channels": add_channels(measures["channels"], runs, limit_channel_bands(len(runs))),
        "histograms": add_histograms(measures["histograms"], runs),
    }


def measure_trace(trace: Trace) -> dict[str, Table]:
    found = measure(trace)
    return {name: getattr(found, name) for name in TABLES}


def group_findings(rows: Rows) -> dict[str, tuple[Finding, ...]]:
    names = dict.fromkeys(row["run"] for row in rows)
    return {name: sort_findings(row for row in rows if row["run"] == name) for name in names}


# Events


def select_events(
    events: Table,
    runs: Rows,
    extents: Mapping[str, Extent],
    findings: Mapping[str, tuple[Finding, ...]],
    wanted: Sequence[Range],
) -> dict[str, Any]:
    """The events that the page carries, and where the others are."""
    told = read_events_of(events, list_story_keys(findings))
    stories: dict[str, list[Event]] = {}
    for row in told:
        stories.setdefault(row["run"], []).append(msgspec.convert(row, Event))
    planned = plan_selection(extents.values(), findings, stories, wanted)
    inside, cut = read_ranges(events, planned.ranges, MOST)
    parts = {run: extent for run, extent in extents.items() if run not in planned.whole}
    spans = {run: (extent.time_low or 0, extent.time_high or 0) for run, extent in parts.items()}
    return {
        "events": [*collect_runs(events, planned.whole), *told, *inside],
        "windows": [
            (r.run, Window(f"{r.title}, the first {MOST:,}" if i in cut else r.title, r.axis, r.low, r.high))
            for i, r in enumerate(planned.ranges)
        ],
        "density": count_density(events, runs, spans, limit_density_bands(len(parts)), BUCKETS),
        "partial": parts.keys(),
    }
