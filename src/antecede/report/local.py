"""What a page shows of a small trace on this machine's disk, read by this process: no Java starts.

The functions have the names of those of `queries`, take rows where those take tables of Spark, and give the same rows:
a test holds them to each other. `Small` is the trace, and stands where those have Spark's.
"""

from __future__ import annotations

import glob
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from antecede.report.selection import Extent, Range
from antecede.report.tables import find_extent
from antecede.spark.measure.api import KNOWN, add_shares, count_here, describe, follow_here, tied
from antecede.spark.measure.figures import TABLES, add_up_here, tell_figures
from antecede.spark.measure.tasks import Found
from antecede.storage import join, local
from antecede.trace import EVENTS
from antecede.trace.footers import LocalTrace
from antecede.trace.foreign.formats import is_stated
from antecede.trace.plan import Plan, plan
from antecede.verification import KINDS
from antecede.verification.embedded import verify_local

__all__ = ["Small", "read_small"]

Rows = list[dict[str, Any]]

SMALL_EVENTS: Final = 100_000
"""Events of a trace up to which this process reads it as rows."""
SHARES: Final = 4


class Small(Struct, frozen=True):
    """A trace whose events are all here."""

    read: LocalTrace
    path: str
    """What the user named: results may stand there."""
    runs: Rows
    events: Rows
    planned: Plan


def read_small(read: LocalTrace, path: str) -> Small | None:
    """The trace; None if it is large, if Spark alone can put its events in order, or spans state its causality."""
    runs = sorted(read.runs.to_pylist(), key=lambda run: str(run["run"]).encode())
    if read.rows > SMALL_EVENTS or any(is_stated(run["parameters"]) for run in runs):
        return None
    processes = {run["run"]: tuple(run["processes"]) for run in runs}
    planned = plan(read.files, processes, merged=tied(read.files))
    if "pack" in planned.ways.values():
        return None
    tables = [pq.read_table(local(file.path), columns=EVENTS.names) for file in read.files]
    return Small(read, path, runs, [row for table in tables for row in table.to_pylist()], planned)


# What is known already


def read_table(trace: Small, *names: str) -> Rows | None:
    """The rows of a table of results, if it is there."""
    place = local(join(trace.path, *names))
    assert place is not None
    found = sorted(glob.glob(os.path.join(glob.escape(place), "[!._]*.parquet")))
    return [row for file in found for row in pq.read_table(file).to_pylist()] if found else None


def read_measures(trace: Small) -> dict[str, Rows] | None:
    found = {name: read_table(trace, "measures", name) for name in TABLES}
    there = {name: rows for name, rows in found.items() if rows is not None}
    return there if len(there) == len(TABLES) else None


def read_failures(trace: Small) -> Rows:
    place = local(join(trace.path, "failures.jsonl"))
    if place is None or not os.path.isfile(place):
        return []
    with open(place, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def verify_trace(trace: Small) -> tuple[Rows, Rows]:
    """Findings and verdicts."""
    findings, verdicts = (read_table(trace, name) for name in ("findings", "verdicts"))
    if findings is not None and verdicts is not None:
        return findings, verdicts
    found = verify_local(trace.read)
    return found.findings.to_pylist(), found.runs.to_pylist()


# Events


def find_extents(trace: Small) -> dict[str, Extent]:
    runs: dict[str, Rows] = {}
    for row in trace.events:
        runs.setdefault(row["run"], []).append(row)
    return {run: find_extent(run, rows) for run, rows in runs.items()}


def collect_rows(rows: Rows) -> Rows:
    return rows


def collect_runs(rows: Rows, runs: Iterable[str]) -> Rows:
    names = set(runs)
    return [row for row in rows if row["run"] in names]


def read_runs(trace: Small, runs: Iterable[str]) -> Rows:
    return collect_runs(trace.events, runs)


def read_messages(trace: Small, keys: Sequence[tuple[str, str, str, int]]) -> Rows:
    wanted = set(keys)
    return [
        row
        for row in trace.events
        if not row["control"] and (row["run"], row["process"], row["sender"], row["number"]) in wanted
    ]


def read_ranges(trace: Small, ranges: Sequence[Range], most: int) -> tuple[Rows, set[int]]:
    found: Rows = []
    cut = set()
    for position, one in enumerate(ranges):
        axis = "clock" if one.axis == "clock" else "time_ns"
        inside = [
            row for row in trace.events if row["run"] == one.run and one.low <= (row[axis] or 0) <= one.high
        ]
        inside.sort(key=lambda row: (row[axis], row["process"], row["index"]))
        found += inside[:most]
        if len(inside) > most:
            cut.add(position)
    return found, cut


def count_density(trace: Small, spans: Mapping[str, tuple[int, int]], bands: int, buckets: int) -> Rows:
    places = place_processes(trace, bands)
    counts: Counter[tuple[Any, ...]] = Counter()
    for row in trace.events:
        if row["run"] in spans and (row["run"], row["process"]) in places:
            low, high = spans[row["run"]]
            bucket = math.floor((row["time_ns"] - low) / (high - low + 1) * buckets)
            counts[row["run"], *places[row["run"], row["process"]], bucket, buckets] += 1
    return name_rows(("run", "band", "bands", "bucket", "buckets"), counts)


# Aggregates


def read_first_findings(findings: Rows, per_run: int) -> Rows:
    def rank(row: Mapping[str, Any]) -> tuple[Any, ...]:
        index = math.inf if row["index"] is None else row["index"]
        return row["run"], KINDS.index(row["kind"]), index, row["process"], row["sender"], row["number"]

    seen: Counter[str] = Counter()
    first = []
    for row in sorted(findings, key=rank):
        seen[row["run"]] += 1
        if seen[row["run"]] <= per_run:
            first.append(row)
    return first


def count_findings(findings: Rows, runs: Iterable[str]) -> Rows:
    keys = ("run", "kind", "process")
    return name_rows(keys, Counter(tuple(row[key] for key in keys) for row in collect_runs(findings, runs)))


def name_rows(keys: Sequence[str], counts: Mapping[tuple[Any, ...], int]) -> Rows:
    return [{**dict(zip(keys, key, strict=True)), "count": count} for key, count in counts.items()]


def add_channels(trace: Small, measured: Rows, bands: int) -> Rows:
    places = place_processes(trace, bands)
    sums: dict[tuple[Any, ...], list[float]] = {}
    for row in measured:
        (sender, many), (receiver, _) = (places[row["run"], row[name]] for name in ("sender", "receiver"))
        own = sums.setdefault((row["run"], sender, receiver, many), [0, 0, 0])
        own[0] += row["messages"]
        if row["delay_ns_mean"] is not None:
            own[1] += row["delay_ns_mean"] * row["deliveries"]
            own[2] += row["deliveries"]
    names = ("run", "sender_band", "receiver_band", "bands")
    return [
        {
            **dict(zip(names, key, strict=True)),
            "messages": int(messages),
            "delay_ns_mean": total / delivered if delivered else None,
        }
        for key, (messages, total, delivered) in sums.items()
    ]


def add_histograms(trace: Small, measured: Rows) -> Rows:
    of = {run["run"]: (run["protocol"], run["network"]) for run in trace.runs}
    bins: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in measured:
        low = row["low"]
        place = math.floor(math.log(low) / math.log(2) * SHARES) if low > 0 else -1
        one = bins.setdefault((*of[row["run"]], row["quantity"], place), {**row, "count": 0})
        one["low"], one["high"] = min(one["low"], low), max(one["high"], row["high"])
        one["count"] += row["count"]
    return [
        {"protocol": protocol, "network": network, "quantity": quantity}
        | {name: one[name] for name in ("low", "high", "count")}
        for (protocol, network, quantity, _), one in bins.items()
    ]


def place_processes(trace: Small, bands: int) -> dict[tuple[str, str], tuple[int, int]]:
    """Run and process -> the band that it is in, and how many there are."""
    return {
        (run["run"], process): (place * width // len(run["processes"]), width)
        for run in trace.runs
        for width in [min(len(run["processes"]), bands)]
        for place, process in enumerate(run["processes"])
    }


# Measures


def measure_trace(trace: Small) -> dict[str, Rows]:
    """The tables of `measure`, added up here: runs, processes, channels, histograms."""
    processes = {run["run"]: tuple(run["processes"]) for run in trace.runs}
    found = add_shares(follow_here(trace.read.files, trace.planned, processes))
    known = [
        describe(run, one)
        for run in trace.runs
        for one in [found.get(run["run"], Found(run["run"]))]
        if one.error is None
    ]
    received = {str(row["run"]): bool(row["received"]) for row in known}
    measured = {run: processes[run] for run in received}
    facts = count_here(trace.planned, measured, received, pa.Table.from_pylist(known, KNOWN))
    cells = facts.filter(pc.field("low").is_valid()).group_by(["run", "quantity", "low", "high"])
    by_run = {row["run"]: row for row in add_up_here(facts, "run").to_pylist()}
    by_process = {
        (row["run"], row["process"]): row for row in add_up_here(facts, "run", "process").to_pylist()
    }
    delays = add_up_here(facts.filter(pc.field("quantity") == "delay_ns"), "run", "sender", "process")
    return {
        "runs": [{**by_run.get(row["run"], tell_figures(())), **row} for row in known],
        "processes": [
            {**by_process.get((run, process), tell_figures(())), "run": run, "process": process}
            for run, names in measured.items()
            for process in names
        ],
        "channels": [
            {**row, "receiver": row["process"], "messages": row["copies"], "deliveries": row["delivered"]}
            for row in delays.to_pylist()
        ],
        "histograms": cells.aggregate([("count", "sum")]).rename_columns({"count_sum": "count"}).to_pylist(),
    }
