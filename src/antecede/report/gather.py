"""Gather what a page shows of a trace, with Spark. What comes back is bounded, however long the trace.

This module and those that it uses (`results`, `queries`) are the only ones of `report` that know Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import antecede
from antecede.report import queries, selection
from antecede.report.data import Event, Finding, Report, Window
from antecede.report.promises import find_promise
from antecede.report.queries import Rows
from antecede.report.results import FINDINGS, Results, read_results
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
from antecede.report.tables import Tables, assemble, find_extent, sort_findings
from antecede.spark.measure.api import measure
from antecede.spark.measure.figures import TABLES
from antecede.spark.spans.verify import read_aliases, read_messages, verify_spans
from antecede.spark.trace.api import Trace
from antecede.spark.verify.api import verify
from antecede.storage import local
from antecede.trace import EVENTS
from antecede.trace.footers import LocalTrace
from antecede.trace.foreign.spans import is_stated
from antecede.verification.embedded import EMBEDDED_MOST, verify_local

__all__ = ["gather_report"]


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
    results = read_results(spark, path)
    table = queries.collect_rows(trace.runs) if trace.table is None else trace.table.to_pylist()
    runs = sorted(table, key=lambda run: str(run["run"]).encode())
    events = read_small(trace)
    extents = (
        {row["run"]: msgspec.convert(row, Extent) for row in queries.find_extents(trace)}
        if events is None
        else find_extents(events)
    )
    ranges = [parse_window(text, extents) for text in windows]
    say("verifying")
    stated = all(is_stated(run["parameters"]) for run in runs) and bool(runs)
    judged = judge_spans(trace) if stated else judge_runs(trace, results, runs)
    say("measuring")
    broken = {row["run"] for row in judged["verdicts"] if row["verdict"] == "no"}
    priced = price_runs(trace, results, runs, broken)
    say("choosing windows")
    shown: dict[str, Any] = (
        select_events(trace, extents, group_findings(judged["findings"]), ranges)
        if events is None
        else {"events": events, "windows": [(r.run, Window(r.title, r.axis, r.low, r.high)) for r in ranges]}
    )
    return assemble(
        Tables(
            runs=runs,
            **judged,
            **priced,
            **shown,
            extents=tuple(extents.values()),
            causality="stated" if stated else None,
            aliases=name_messages(trace, judged["findings"], shown["events"]) if stated else (),
            failed=[] if results.failures is None else queries.collect_rows(results.failures),
        ),
        source=path,
        command=command,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=antecede.__version__,
    )


def judge_runs(trace: Trace, results: Results, runs: Rows) -> dict[str, Any]:
    """Verdicts, the findings that are listed, and how many there are where a promise covers one process only."""
    if results.findings is not None and results.verdicts is not None:
        findings, judged = results.findings, queries.collect_rows(results.verdicts)
    else:
        findings, judged = verify_trace(trace)
    broken = [row["run"] for row in judged if row["verdict"] == "no"]
    partly = {
        run["run"]
        for run in runs
        if find_promise(run["protocol"], run["parameters"], run["processes"]).at is not None
    }
    return {
        "verdicts": judged,
        "findings": queries.read_first_findings(findings, limit_findings(len(broken))) if broken else [],
        "found_at": queries.count_findings(findings, partly & set(broken)),
    }


def judge_spans(trace: Trace) -> dict[str, Any]:
    """The same of spans, by the causality that they state: what is there already may be of the other one."""
    assert trace.path is not None
    found = verify_spans(trace.spark, trace.path)
    broken = any(row["verdict"] == "no" for row in found.verdicts)
    return {
        "verdicts": found.verdicts,
        "findings": queries.read_first_findings(found.findings, limit_findings(1)) if broken else [],
        "found_at": [],
    }


def name_messages(trace: Trace, findings: Rows, events: Rows) -> Rows:
    """What the user calls the messages that the page has."""
    assert trace.path is not None
    keys = {(row["sender"], row["number"]) for row in (*findings, *events)}
    keys |= {(one["sender"], one["number"]) for row in findings for one in row["chain"] or ()}
    messages = read_messages(trace.spark, trace.path)
    return [] if messages is None else read_aliases(messages, keys)


def verify_trace(trace: Trace) -> tuple[DataFrame, Rows]:
    """Findings and verdicts: of a small local trace by this process, as `antecede verify` does it."""
    if trace.path is None or local(trace.path) is None or count_events(trace) > EMBEDDED_MOST:
        verified = verify(trace)
        return verified.findings, queries.collect_rows(verified.runs)
    assert trace.table is not None
    found = verify_local(LocalTrace(trace.path, trace.table, trace.files or ()))
    return trace.spark.createDataFrame(found.findings.to_pylist(), FINDINGS), found.runs.to_pylist()


def price_runs(trace: Trace, results: Results, runs: Rows, broken: set[str]) -> dict[str, Any]:
    """What was measured."""
    measures = results.measures or measure_trace(trace)
    sizes = {row["run"]: len(row["processes"]) for row in runs}
    return {
        "measures": queries.collect_rows(measures["runs"]),
        "processes": queries.collect_runs(measures["processes"], choose_detailed(sizes, broken)),
        "channels": queries.add_channels(trace, measures["channels"], limit_channel_bands(len(runs))),
        "histograms": queries.add_histograms(trace, measures["histograms"]),
    }


def measure_trace(trace: Trace) -> dict[str, DataFrame]:
    found = measure(trace)
    return {name: getattr(found, name) for name in TABLES}


def group_findings(rows: Rows) -> dict[str, tuple[Finding, ...]]:
    names = dict.fromkeys(row["run"] for row in rows)
    return {name: sort_findings(row for row in rows if row["run"] == name) for name in names}


# Events


def count_events(trace: Trace) -> int:
    return sum(file.rows for file in trace.files or ())


def read_small(trace: Trace) -> Rows | None:
    """All events of a local trace of which the page carries every run as a whole; None of any other."""
    if trace.table is None or trace.files is None or count_events(trace) > selection.RUN:
        return None
    tables = [pq.read_table(local(file.path), columns=EVENTS.names) for file in trace.files]
    return [row for table in tables for row in table.to_pylist()]


def find_extents(events: Rows) -> dict[str, Extent]:
    """How long each run is, of events that are all there."""
    runs: dict[str, Rows] = {}
    for row in events:
        runs.setdefault(row["run"], []).append(row)
    return {run: find_extent(run, rows) for run, rows in runs.items()}


def select_events(
    trace: Trace,
    extents: Mapping[str, Extent],
    findings: Mapping[str, tuple[Finding, ...]],
    wanted: Sequence[Range],
) -> dict[str, Any]:
    """The events that the page carries, and where the others are."""
    told = queries.read_messages(trace, list_story_keys(findings))
    stories: dict[str, list[Event]] = {}
    for row in told:
        stories.setdefault(row["run"], []).append(msgspec.convert(row, Event))
    planned = plan_selection(extents.values(), findings, stories, wanted)
    inside, cut = queries.read_ranges(trace, planned.ranges, MOST)
    parts = {run: extent for run, extent in extents.items() if run not in planned.whole}
    spans = {run: (extent.time_low or 0, extent.time_high or 0) for run, extent in parts.items()}
    return {
        "events": [*queries.read_runs(trace, planned.whole), *told, *inside],
        "windows": [
            (r.run, Window(f"{r.title}, the first {MOST:,}" if i in cut else r.title, r.axis, r.low, r.high))
            for i, r in enumerate(planned.ranges)
        ],
        "density": queries.count_density(trace, spans, limit_density_bands(len(parts)), BUCKETS),
        "partial": parts.keys(),
    }
