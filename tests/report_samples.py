"""Rows as Spark would give them, from the simulator and the oracle: reports to test pages with, and no JVM."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from antecede.model import Event
from antecede.oracle import check
from antecede.report import Extent, Report, Tables, assemble
from antecede.sim import RunSpec
from antecede.trace import KINDS

Row = dict[str, Any]
COMMAND = ("antecede", "report", "results", "--out", "report.html")


def simulate_run(
    spec: RunSpec, name: str | None = None, names: Sequence[str] | None = None
) -> tuple[Row, list[Row]]:
    """The row of a run, and the rows of its events; `names` are given to its processes."""
    rows: list[Row] = []
    simulation = spec.build()
    info = simulation.info(name).row()
    called = list(names or info["processes"])
    seen: Counter[int] = Counter()

    def record(process: int, kind: int, sender: int, number: int, to: Any, control: bool, *rest: Any) -> None:
        time_ns, clock, entries, size, label = rest
        rows.append(
            {
                "run": info["run"], "process": called[process], "index": seen[process], "kind": KINDS[kind],
                "sender": called[sender], "number": number, "to": None if to is None else [called[q] for q in to],
                "control": control, "time_ns": time_ns, "clock": clock, "label": label or None,
                "stamp_entries": None if entries < 0 else entries, "stamp_bytes": None if size < 0 else size,
            }
        )  # fmt: skip
        seen[process] += 1

    simulation.record(record)
    simulation.finish()
    return {**info, "processes": called}, rows


def judge_run(run: Row, events: Sequence[Row]) -> tuple[Row, list[Row]]:
    """The row of its verdict and the rows of its findings, as the oracle has them."""
    names = run["processes"]
    ids = {name: i for i, name in enumerate(names)}
    own = [row for row in events if not row["control"] and row["kind"] != "receive"]
    steps = [
        Event(
            ids[r["process"]], r["kind"], ids[r["sender"]], r["number"], tuple(ids[q] for q in r["to"] or ())
        )
        for r in own
    ]
    verdict = check(steps, len(names), complete=True)
    index = {
        (r["process"], r["sender"], r["number"]): r["index"] for r in reversed(own) if r["kind"] == "deliver"
    }
    findings: list[Row] = []

    def add_finding(kind: str, at: int, message: tuple[int, int], by: Any = None, chain: Any = None) -> None:
        key = names[at], names[message[0]], message[1]
        findings.append(
            {
                "run": run["run"], "kind": kind, "process": key[0], "sender": key[1], "number": key[2],
                "by_sender": by and names[by[0]], "by_number": by and by[1], "index": index.get(key),
                "chain": chain and [{"sender": names[s], "number": n} for s, n in chain],
            }
        )  # fmt: skip

    for kind, violations in (("violation", verdict.violations), ("fifo_break", verdict.fifo_breaks)):
        for v in violations:
            add_finding(kind, v.at, v.overtaken, v.by, v.chain if kind == "violation" else None)
    for kind in ("duplicates", "unsent", "unaddressed", "undelivered"):
        for copy in getattr(verdict, kind):
            add_finding(kind.removesuffix("s"), copy.at, copy.message)
    counts = Counter(row["kind"] for row in findings)
    columns = {kind: counts[kind] for kind in ("unsent", "unaddressed", "undelivered")}
    columns |= {f"{kind}s": counts[kind] for kind in ("violation", "fifo_break", "duplicate")}
    verdict_row = {"run": run["run"], "verdict": "no" if findings else "yes", "reason": None}
    return {**verdict_row, "deliveries": verdict.deliveries, **columns}, findings


def measure_run(run: Row, events: Sequence[Row]) -> dict[str, list[Row]]:
    """What `measure` would say, by hand and without its care: quantiles are exact here."""
    sends = {(r["sender"], r["number"]): r for r in events if r["kind"] == "send" and not r["control"]}
    control = [r for r in events if r["kind"] == "send" and r["control"]]
    received = {
        (r["process"], r["sender"], r["number"]): r["time_ns"]
        for r in events
        if r["kind"] == "receive" and not r["control"]
    }
    delays, waits = [], []
    channels: dict[tuple[int, int], list[int]] = defaultdict(list)
    at: dict[str, list[int]] = defaultdict(list)
    place = {name: i for i, name in enumerate(run["processes"])}
    for r in events:
        if r["kind"] == "deliver" and (r["sender"], r["number"]) in sends:
            delays.append(r["time_ns"] - sends[r["sender"], r["number"]]["time_ns"])
            waits.append(r["time_ns"] - received.get((r["process"], r["sender"], r["number"]), r["time_ns"]))
            channels[place[r["sender"]], place[r["process"]]].append(delays[-1])
            at[r["process"]].append(waits[-1])
    entries = [r["stamp_entries"] or 0 for r in sends.values()]
    sizes = [r["stamp_bytes"] or 0 for r in sends.values()]
    row = {
        "run": run["run"], "protocol": run["protocol"], "processes": len(place), "events": len(events),
        "sends": len(sends),
        "control_packets": len(control), "control_per_message": len(control) / max(1, len(sends)),
        **spread("stamp_entries", entries), **spread("stamp_bytes", sizes),
        **spread("delay_ns", delays), **spread("wait_ns", waits),
        "wait_share": sum(waits) / max(1, sum(delays)), "concurrency": 0.42, "longest_chain": 17,
        "duration_ns": max((r["time_ns"] for r in events), default=0),
    }  # fmt: skip
    processes = [
        {"run": run["run"], "process": p, "sends": sum(s == p for s, _ in sends), "deliveries": len(at[p]),
         "control_packets": sum(r["process"] == p for r in control), **spread("wait_ns", at[p])}
        for p in place
    ]  # fmt: skip
    bands = min(len(place), 64)
    cells: dict[tuple[int, int], list[int]] = defaultdict(list)
    for (sender, receiver), values in channels.items():
        cells[sender * bands // len(place), receiver * bands // len(place)] += values
    return {
        "measures": [row],
        "processes": processes,
        "channels": [
            {"run": run["run"], "sender_band": s, "receiver_band": r, "bands": bands, "messages": len(v),
             "delay_ns_mean": sum(v) / len(v)}
            for (s, r), v in cells.items()
        ],
        "histograms": [
            {"protocol": run["protocol"], "network": run["network"], "quantity": quantity, **bucket}
            for quantity, values in (
                ("delay_ns", delays), ("wait_ns", waits), ("stamp_bytes", sizes), ("stamp_entries", entries),
            )
            for bucket in count_bins(values)
        ],
    }  # fmt: skip


def spread(name: str, values: Sequence[int]) -> Row:
    ordered = sorted(values) or [0]
    cut = {"p50": ordered[len(ordered) // 2], "p99": ordered[-1 - len(ordered) // 100], "max": ordered[-1]}
    return {
        f"{name}_mean": sum(ordered) / len(ordered),
        **{f"{name}_{key}": value for key, value in cut.items()},
    }


def count_bins(values: Iterable[int]) -> list[Row]:
    """Four to each power of two."""
    counts = Counter(-1 if value <= 0 else math.floor(4 * math.log2(value)) for value in values)
    return [
        {"low": 0 if b < 0 else 2 ** (b / 4), "high": 0 if b < 0 else 2 ** ((b + 1) / 4), "count": count}
        for b, count in sorted(counts.items())
    ]


def tables(runs: Iterable[tuple[Row, list[Row]]], *, measure: bool = True) -> dict[str, list[Row]]:
    """The rows of all tables of these runs."""
    parts: dict[str, list[Row]] = defaultdict(list)
    for run, events in runs:
        verdict, findings = judge_run(run, events)
        parts["runs"].append(run)
        parts["verdicts"].append(verdict)
        parts["findings"] += findings
        parts["events"] += events
        for name, rows in measure_run(run, events).items() if measure else ():
            parts[name] += rows
    merged: dict[tuple[Any, ...], int] = Counter()
    for row in parts.pop("histograms", []):
        merged[row["protocol"], row["network"], row["quantity"], row["low"], row["high"]] += row["count"]
    names = ("protocol", "network", "quantity", "low", "high")
    parts["histograms"] = [{**dict(zip(names, key, strict=True)), "count": n} for key, n in merged.items()]
    return parts


def extent(run: Row, events: Sequence[Row]) -> Extent:
    times, clocks = ([row[name] for row in events] for name in ("time_ns", "clock"))
    return Extent(
        run=run["run"], events=len(events), clocks=len(events), clock_low=min(clocks), clock_high=max(clocks),
        time_low=min(times), time_high=max(times),
    )  # fmt: skip


def report(parts: dict[str, Any], **more: Any) -> Report:
    made = {"source": "results", "command": COMMAND, "title": "Causal delivery", **more}
    return assemble(Tables(**parts), **made)


def specs(
    protocols: Sequence[str], networks: Sequence[str], seeds: int = 1, **more: Any
) -> Iterable[tuple[RunSpec, str]]:
    for protocol in protocols:
        for at, network in enumerate(networks):
            for seed in range(seeds):
                settings = {"processes": 4, "messages": 60, "workload": "uniform:rate=40/s", **more}
                yield (
                    RunSpec(protocol=protocol, network=network, seed=seed, **settings),
                    f"{protocol}-{at + 1}-{seed}",
                )


def compare_protocols(
    protocols: Sequence[str] = ("fifo", "matrix", "unordered"), seeds: int = 1, **more: Any
) -> dict[str, list[Row]]:
    """Protocols side by side on two networks."""
    networks = ("exponential:50ms", "constant:20ms")
    return tables(simulate_run(spec, name) for spec, name in specs(protocols, networks, seeds, **more))


def triangle(names: Sequence[str] = ("a", "b", "c")) -> dict[str, list[Row]]:
    """Raynal & Schiper's first figure: the third process delivers the first message last."""
    a, b, c = names
    lines = [
        (a, "send", a, 1, [c]), (a, "send", a, 2, [b]), (b, "deliver", a, 2, None), (b, "send", b, 1, [c]),
        (c, "deliver", b, 1, None), (c, "deliver", a, 1, None),
    ]  # fmt: skip
    seen: Counter[str] = Counter()
    events = []
    for clock, (process, kind, sender, number, to) in enumerate(lines):
        events.append(
            {
                "run": "triangle", "process": process, "index": seen[process], "kind": kind, "sender": sender,
                "number": number, "to": to, "control": False, "time_ns": clock * 1_000_000, "clock": clock,
            }
        )  # fmt: skip
        seen[process] += 1
    run = {"run": "triangle", "protocol": "unordered", "processes": list(names), "network": None}
    return tables([(run, events)], measure=False)
