"""Rows of tables as the values of a page, wherever the rows came from: Spark, Parquet, or a test.

Rows are mappings with the column names of the trace, of `verify` and of `measure`. A table that is not there is
empty: a run without a row of verdicts is unknown, one without measures shows none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from antecede.report.data import (
    KINDS,
    Alias,
    Channels,
    Density,
    Event,
    Failed,
    Finding,
    Histogram,
    Price,
    ProcessPrice,
    Report,
    Run,
    Window,
)
from antecede.report.promises import count_covered, describe_promise, find_promise, judge
from antecede.report.selection import Extent

__all__ = ["MOST_RUNS", "Tables", "assemble", "find_extent", "sort_findings"]

Rows = Iterable[Mapping[str, Any]]
T = TypeVar("T")

MOST_RUNS = 3_000
"""Runs that a page lists, about."""
UNVERIFIED = "this run was not verified"
COUNTED = {kind: f"{kind}s" if kind in ("violation", "fifo_break", "duplicate") else kind for kind in KINDS}
"""Kind -> the column of its count in verify's table of runs."""


class Tables(Struct, frozen=True, kw_only=True):
    """What is known of a trace, as rows. Each but `runs` may be empty."""

    runs: Rows
    verdicts: Rows = ()
    findings: Rows = ()
    found_at: Rows = ()
    """run, kind, process, count: where findings are, for runs whose protocol promises an order at one process only."""
    measures: Rows = ()
    processes: Rows = ()
    channels: Rows = ()
    """run, sender_band, receiver_band, bands, messages, delay_ns_mean."""
    histograms: Rows = ()
    """protocol, network, quantity, low, high, count."""
    aliases: Rows = ()
    """run, sender, number, id, name: what the user calls a message."""
    causality: str | None = None
    """Which causality the verdicts about spans speak of; None where there are none."""
    extents: Sequence[Extent] = ()
    events: Rows = ()
    windows: Sequence[tuple[str, Window]] = ()
    density: Rows = ()
    """run, band, bands, bucket, buckets, count."""
    failed: Rows = ()
    """run, reason, command: runs that have no trace."""
    partial: Collection[str] = ()
    """Runs of which `events` does not hold all."""


def assemble(
    tables: Tables,
    *,
    source: str,
    command: Sequence[str],
    title: str = "",
    made: str = "",
    version: str = "",
    most: int = MOST_RUNS,
) -> Report:
    """The page's values."""
    by_run = {
        name: _group(getattr(tables, name))
        for name in ("findings", "found_at", "processes", "channels", "density", "aliases")
    }
    verdicts = {row["run"]: row for row in tables.verdicts}
    measures = {row["run"]: row for row in tables.measures}
    extents = {extent.run: extent for extent in tables.extents}
    events = _group(tables.events)
    windows: dict[str, list[Window]] = defaultdict(list)
    for run, window in tables.windows:
        windows[run].append(window)
    runs = []
    for row in tables.runs:
        name = row["run"]
        extent = extents.get(name) or find_extent(name, events[name])
        runs.append(
            Run(
                **_describe(row),
                **_judge(row, verdicts.get(name), by_run["found_at"][name]),
                findings=sort_findings(by_run["findings"][name]),
                price=msgspec.convert(measures[name], Price, strict=False) if name in measures else None,
                process_prices=tuple(_convert(by_run["processes"][name], ProcessPrice)),
                channels=_place_channels(by_run["channels"][name]),
                causality=tables.causality,
                aliases=tuple(_convert(by_run["aliases"][name], Alias)),
                size=extent.events,
                start_ns=extent.time_low or 0,
                whole=name not in tables.partial,
                events=_sort_events(_convert(events[name], Event), extent),
                windows=tuple(windows[name]),
                density=_place_density(by_run["density"][name], extent),
            )
        )
    shown = _bound(runs, most)
    return Report(
        title=title or "Causal delivery",
        source=source,
        command=tuple(command),
        runs=tuple(shown),
        omitted_runs=len(runs) - len(shown),
        failed=tuple(_convert(tables.failed, Failed)),
        histograms=tuple(_collect_histograms(tables.histograms)),
        made=made,
        version=version,
    )


def sort_findings(rows: Rows) -> tuple[Finding, ...]:
    """Rows of findings, violations first, then by process and position."""
    found = _convert(rows, Finding)
    last = 1 << 63
    return tuple(
        sorted(found, key=lambda f: (KINDS.index(f.kind), last if f.index is None else f.index, f.process))
    )


# One run


def _describe(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("run", "protocol", "network", "workload", "topology", "seed", "parameters")
    return {name: row[name] for name in names if name in row} | {"processes": tuple(row["processes"])}


def _judge(
    run: Mapping[str, Any], row: Mapping[str, Any] | None, found_at: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    promise = find_promise(run["protocol"], run.get("parameters") or "{}", run["processes"])
    told = {"promise": describe_promise(promise)}
    if row is None:
        return {**told, "verdict": "unknown", "outcome": "unknown", "reason": UNVERIFIED}
    counts: dict[str, int] = {kind: row.get(column) or 0 for kind, column in COUNTED.items()}
    found = {kind: count for kind, count in counts.items() if count}
    covered = found if promise.at is None else count_covered(promise, found_at)
    return {
        **told,
        "verdict": row["verdict"],
        "outcome": judge(row["verdict"], covered, promise),
        "reason": row.get("reason"),
        "deliveries": row.get("deliveries") or 0,
        "found": found,
    }


def find_extent(run: str, rows: Sequence[Mapping[str, Any]]) -> Extent:
    """Of a run that is there as a whole."""
    times = [row["time_ns"] for row in rows]
    clocks = sum(row.get("clock") is not None for row in rows)
    return Extent(
        run=run,
        events=len(rows),
        clocks=clocks,
        clock_low=min((row["clock"] for row in rows), default=None) if clocks == len(rows) else None,
        clock_high=max((row["clock"] for row in rows), default=None) if clocks == len(rows) else None,
        time_low=min(times, default=None),
        time_high=max(times, default=None),
    )


def _sort_events(events: Iterable[Event], extent: Extent) -> tuple[Event, ...]:
    """A linear extension of happened-before, each event once: windows may overlap."""
    once = {(event.process, event.index): event for event in events}.values()
    if extent.axis == "clock":
        return tuple(sorted(once, key=lambda e: (e.clock or 0, e.process.encode(), e.index)))
    return tuple(sorted(once, key=lambda e: (e.time_ns, e.process.encode(), e.index)))


def _place_channels(rows: Sequence[Mapping[str, Any]]) -> Channels | None:
    if not rows:
        return None
    bands = rows[0]["bands"]
    messages, delays = [0] * bands**2, [None] * bands**2
    for row in rows:
        at = row["sender_band"] * bands + row["receiver_band"]
        messages[at], delays[at] = row["messages"], row["delay_ns_mean"]
    return Channels(bands, tuple(messages), tuple(delays))


def _place_density(rows: Sequence[Mapping[str, Any]], extent: Extent) -> Density | None:
    if not rows:
        return None
    bands, buckets = rows[0]["bands"], rows[0]["buckets"]
    counts = [0] * (bands * buckets)
    for row in rows:
        counts[row["band"] * buckets + row["bucket"]] += row["count"]
    return Density(extent.time_low or 0, extent.time_high or 0, buckets, bands, tuple(counts))


# All runs


def _collect_histograms(rows: Rows) -> Iterable[Histogram]:
    groups: dict[tuple[str, str | None, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["protocol"], row.get("network"), row["quantity"]].append(row)
    for (protocol, network, quantity), bins in groups.items():
        bins.sort(key=lambda row: row["low"])
        low, high, count = (tuple(row[name] for row in bins) for name in ("low", "high", "count"))
        yield Histogram(
            protocol=protocol, network=network, quantity=quantity, low=low, high=high, count=count
        )


def _bound(runs: Sequence[Run], most: int) -> list[Run]:
    """Runs that did not keep their order are listed first, and none of them is left out."""
    ranks = ("broke", "faulty", "unknown", "unpromised", "kept")
    broken = sum(run.outcome != "kept" for run in runs)
    if len(runs) <= most:
        return list(runs)
    return sorted(runs, key=lambda run: ranks.index(run.outcome))[: max(most, broken)]


def _group(rows: Rows) -> defaultdict[str, list[Mapping[str, Any]]]:
    groups: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["run"]].append(row)
    return groups


def _convert(rows: Rows, kind: type[T]) -> Iterable[T]:
    return (msgspec.convert(row, kind, strict=False) for row in rows)
