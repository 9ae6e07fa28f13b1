"""Gather what a page shows of a trace. What comes back is bounded, however long the trace.

Spark is asked by `queries`. A small trace on this machine's disk is asked by `local`, whose
functions have the same names: functions here take one of these two modules as `ask`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession

import antecede
from antecede import storage
from antecede.report import local, queries
from antecede.report.data import Event, Finding, Report, Window
from antecede.report.promises import find_promise
from antecede.report.queries import FINDINGS, Results, Rows, read_results
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
from antecede.spark.measure.api import measure
from antecede.spark.measure.figures import TABLES
from antecede.spark.spans.verify import list_messages, read_aliases, read_messages, verify_spans
from antecede.spark.trace.api import Trace
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
    results = read_results(spark, path)
    table = queries.collect_rows(trace.runs) if trace.table is None else trace.table.to_pylist()
    runs = sorted(table, key=lambda run: str(run["run"]).encode())
    extents = {row["run"]: msgspec.convert(row, Extent) for row in queries.find_extents(trace)}
    ranges = [parse_window(text, extents) for text in windows]
    say("verifying")
    stated = all(is_stated(run["parameters"]) for run in runs) and bool(runs)
    judged = judge_spans(trace) if stated else judge_runs(queries, *verify_trace(trace, results), runs)
    say("measuring")
    priced = price_runs(queries, trace, results.measures or measure_trace(trace), runs, judged["verdicts"])
    say("choosing windows")
    shown = select_events(queries, trace, extents, group_findings(judged["findings"]), ranges)
    tables = Tables(
        runs=runs,
        **judged,
        **priced,
        **shown,
        extents=tuple(extents.values()),
        causality="stated" if stated else None,
        aliases=name_messages(trace, judged["findings"], shown["events"]) if stated else (),
        failed=[] if results.failures is None else queries.collect_rows(results.failures),
    )
    return make_report(tables, path, command)


def gather_local(trace: local.Small, windows: Sequence[str], command: Sequence[str]) -> Report:
    """The same of a small trace, without Spark."""
    extents = local.find_extents(trace)
    ranges = [parse_window(text, extents) for text in windows]
    judged = judge_runs(local, *local.verify_trace(trace), trace.runs)
    measures = local.read_measures(trace) or local.measure_trace(trace)
    tables = Tables(
        runs=trace.runs,
        **judged,
        **price_runs(local, trace, measures, trace.runs, judged["verdicts"]),
        **select_events(local, trace, extents, group_findings(judged["findings"]), ranges),
        extents=tuple(extents.values()),
        failed=local.read_failures(trace),
    )
    return make_report(tables, trace.path, command)


def make_report(tables: Tables, path: str, command: Sequence[str]) -> Report:
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return assemble(tables, source=path, command=command, made=made, version=antecede.__version__)


def judge_runs(ask: ModuleType, findings: Any, judged: Rows, runs: Rows) -> dict[str, Any]:
    """Verdicts, the findings that are listed, and how many there are where a promise covers one process only."""
    broken = [row["run"] for row in judged if row["verdict"] == "no"]
    partly = {
        run["run"]
        for run in runs
        if find_promise(run["protocol"], run["parameters"], run["processes"]).at is not None
    }
    return {
        "verdicts": judged,
        "findings": ask.read_first_findings(findings, limit_findings(len(broken))) if broken else [],
        "found_at": ask.count_findings(findings, partly & set(broken)),
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
    keys = list_messages(findings) | {(row["sender"], row["number"]) for row in events}
    messages = read_messages(trace.spark, trace.path)
    return [] if messages is None else read_aliases(messages, keys)


def verify_trace(trace: Trace, results: Results) -> tuple[DataFrame, Rows]:
    """Findings and verdicts: of a small local trace by this process, as `antecede verify` does it."""
    if results.findings is not None and results.verdicts is not None:
        return results.findings, queries.collect_rows(results.verdicts)
    if (
        trace.path is None
        or storage.local(trace.path) is None
        or sum(file.rows for file in trace.files or ()) > EMBEDDED_MOST
    ):
        verified = verify(trace)
        return verified.findings, queries.collect_rows(verified.runs)
    assert trace.table is not None
    found = verify_local(LocalTrace(trace.path, trace.table, trace.files or ()))
    return trace.spark.createDataFrame(found.findings.to_pylist(), FINDINGS), found.runs.to_pylist()


def price_runs(
    ask: ModuleType, trace: Any, measures: Mapping[str, Any], runs: Rows, verdicts: Rows
) -> dict[str, Any]:
    """What was measured."""
    sizes = {row["run"]: len(row["processes"]) for row in runs}
    broken = {row["run"] for row in verdicts if row["verdict"] == "no"}
    return {
        "measures": ask.collect_rows(measures["runs"]),
        "processes": ask.collect_runs(measures["processes"], choose_detailed(sizes, broken)),
        "channels": ask.add_channels(trace, measures["channels"], limit_channel_bands(len(runs))),
        "histograms": ask.add_histograms(trace, measures["histograms"]),
    }


def measure_trace(trace: Trace) -> dict[str, DataFrame]:
    found = measure(trace)
    return {name: getattr(found, name) for name in TABLES}


def group_findings(rows: Rows) -> dict[str, tuple[Finding, ...]]:
    names = dict.fromkeys(row["run"] for row in rows)
    return {name: sort_findings(row for row in rows if row["run"] == name) for name in names}


# Events


def select_events(
    ask: ModuleType,
    trace: Any,
    extents: Mapping[str, Extent],
    findings: Mapping[str, tuple[Finding, ...]],
    wanted: Sequence[Range],
) -> dict[str, Any]:
    """The events that the page carries, and where the others are."""
    told = ask.read_messages(trace, list_story_keys(findings))
    stories: dict[str, list[Event]] = {}
    for row in told:
        stories.setdefault(row["run"], []).append(msgspec.convert(row, Event))
    planned = plan_selection(extents.values(), findings, stories, wanted)
    inside, cut = ask.read_ranges(trace, planned.ranges, MOST)
    parts = {run: extent for run, extent in extents.items() if run not in planned.whole}
    spans = {run: (extent.time_low or 0, extent.time_high or 0) for run, extent in parts.items()}
    return {
        "events": [*ask.read_runs(trace, planned.whole), *told, *inside],
        "windows": [
            (r.run, Window(f"{r.title}, the first {MOST:,}" if i in cut else r.title, r.axis, r.low, r.high))
            for i, r in enumerate(planned.ranges)
        ],
        "density": ask.count_density(trace, spans, limit_density_bands(len(parts)), BUCKETS),
        "partial": parts.keys(),
    }
