"""Rows of tables as the values of a page, wherever the rows came from: Spark, Parquet, or a test.

Rows are mappings with the column names of the trace, of `verify` and of `measure`. A table that is not there is
empty: a run without a row of verdicts is unknown, one without measures shows none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from antecede.protocols import PROTOCOLS, Machine
from antecede.report.carried import Extent
from antecede.report.data import (
    KINDS,
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

__all__ = ["MOST_RUNS", "Tables", "assemble", "findings_of", "promise"]

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
    measures: Rows = ()
    processes: Rows = ()
    channels: Rows = ()
    """run, sender_band, receiver_band, bands, messages, delay_ns_mean."""
    histograms: Rows = ()
    """protocol, network, quantity, low, high, count."""
    extents: Sequence[Extent] = ()
    events: Rows = ()
    windows: Sequence[tuple[str, Window]] = ()
    density: Rows = ()
    """run, band, bands, bucket, buckets, count."""
    failed: Rows = ()
    """run, reason, command: runs that have no trace."""
    whole: Iterable[str] | None = None
    """Runs of which `events` holds all. None: every run."""


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
        name: _grouped(getattr(tables, name)) for name in ("findings", "processes", "channels", "density")
    }
    verdicts = {row["run"]: row for row in tables.verdicts}
    measures = {row["run"]: row for row in tables.measures}
    extents = {extent.run: extent for extent in tables.extents}
    events = _grouped(tables.events)
    windows: dict[str, list[Window]] = defaultdict(list)
    for run, window in tables.windows:
        windows[run].append(window)
    whole = None if tables.whole is None else set(tables.whole)
    runs = []
    for row in tables.runs:
        name = row["run"]
        extent = extents.get(name) or _extent(name, events[name])
        runs.append(
            Run(
                **_described(row),
                promise=promise(row["protocol"]),
                **_judged(verdicts.get(name)),
                findings=findings_of(by_run["findings"][name]),
                price=msgspec.convert(measures[name], Price, strict=False) if name in measures else None,
                process_prices=tuple(_convert(by_run["processes"][name], ProcessPrice)),
                channels=_channels(by_run["channels"][name]),
                size=extent.events,
                start_ns=extent.time_low or 0,
                whole=whole is None or name in whole,
                events=_in_order(_convert(events[name], Event), extent),
                windows=tuple(windows[name]),
                density=_density(by_run["density"][name], extent),
            )
        )
    shown = _bounded(runs, most)
    return Report(
        title=title or "Causal delivery",
        source=source,
        command=tuple(command),
        runs=tuple(shown),
        omitted_runs=len(runs) - len(shown),
        failed=tuple(_convert(tables.failed, Failed)),
        histograms=tuple(_histograms(tables.histograms)),
        made=made,
        version=version,
    )


def findings_of(rows: Rows) -> tuple[Finding, ...]:
    """Rows of findings, violations first, then by process and position."""
    found = _convert(rows, Finding)
    last = 1 << 63
    return tuple(
        sorted(found, key=lambda f: (KINDS.index(f.kind), last if f.index is None else f.index, f.process))
    )


# One run


def promise(protocol: str) -> str | None:
    """In which way a protocol of ours promises less than causal order everywhere; None if it does not, or is not ours.

    >>> [promise(name) for name in ("matrix", "fifo", "unordered", "monitor", "someone's own")]
    [None, 'FIFO order only', 'no order', 'causal order at one process', None]
    """
    machine = PROTOCOLS.get(protocol)
    if machine is None:
        return None
    if machine.order != "causal":
        return {"fifo": "FIFO order only", "none": "no order"}[machine.order]
    return None if machine.orders_at is Machine.orders_at else "causal order at one process"


def _described(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("run", "protocol", "network", "workload", "topology", "seed", "parameters")
    return {name: row[name] for name in names if name in row} | {"processes": tuple(row["processes"])}


def _judged(row: Mapping[str, Any] | None) -> dict[str, Any]:
    if row is None:
        return {"verdict": "unknown", "reason": UNVERIFIED}
    found = {kind: row.get(column) or 0 for kind, column in COUNTED.items()}
    return {
        "verdict": row["verdict"],
        "reason": row.get("reason"),
        "deliveries": row.get("deliveries") or 0,
        "found": {kind: count for kind, count in found.items() if count},
    }


def _extent(run: str, rows: Sequence[Mapping[str, Any]]) -> Extent:
    """Of a run that is there as a whole."""
    times = [row["time_ns"] for row in rows]
    clocks = sum(row.get("clock") is not None for row in rows)
    return Extent(
        run=run,
        events=len(rows),
        clocks=clocks,
        time_low=min(times, default=None),
        time_high=max(times, default=None),
    )


def _in_order(events: Iterable[Event], extent: Extent) -> tuple[Event, ...]:
    """A linear extension of happened-before, each event once: windows may overlap."""
    once = {(event.process, event.index): event for event in events}.values()
    if extent.axis == "clock":
        return tuple(sorted(once, key=lambda e: (e.clock or 0, e.process.encode(), e.index)))
    return tuple(sorted(once, key=lambda e: (e.time_ns, e.process.encode(), e.index)))


def _channels(rows: Sequence[Mapping[str, Any]]) -> Channels | None:
    if not rows:
        return None
    bands = rows[0]["bands"]
    messages, delays = [0] * bands**2, [None] * bands**2
    for row in rows:
        at = row["sender_band"] * bands + row["receiver_band"]
        messages[at], delays[at] = row["messages"], row["delay_ns_mean"]
    return Channels(bands, tuple(messages), tuple(delays))


def _density(rows: Sequence[Mapping[str, Any]], extent: Extent) -> Density | None:
    if not rows:
        return None
    bands, buckets = rows[0]["bands"], rows[0]["buckets"]
    counts = [0] * (bands * buckets)
    for row in rows:
        counts[row["band"] * buckets + row["bucket"]] += row["count"]
    return Density(extent.time_low or 0, extent.time_high or 0, buckets, bands, tuple(counts))


# All runs


def _histograms(rows: Rows) -> Iterable[Histogram]:
    groups: dict[tuple[str, str | None, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["protocol"], row.get("network"), row["quantity"]].append(row)
    for (protocol, network, quantity), bins in groups.items():
        bins.sort(key=lambda row: row["low"])
        low, high, count = (tuple(row[name] for row in bins) for name in ("low", "high", "count"))
        yield Histogram(
            protocol=protocol, network=network, quantity=quantity, low=low, high=high, count=count
        )


def _bounded(runs: Sequence[Run], most: int) -> list[Run]:
    """Runs that did not keep their order are listed first, and none of them is left out."""
    ranks = {"no": 0, "unknown": 1, "yes": 2}
    broken = sum(run.verdict != "yes" for run in runs)
    if len(runs) <= most:
        return list(runs)
    return sorted(runs, key=lambda run: ranks[run.verdict])[: max(most, broken)]


def _grouped(rows: Rows) -> defaultdict[str, list[Mapping[str, Any]]]:
    groups: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["run"]].append(row)
    return groups


def _convert(rows: Rows, kind: type[T]) -> Iterable[T]:
    return (msgspec.convert(row, kind, strict=False) for row in rows)
