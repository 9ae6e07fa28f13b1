"""Every protocol on four workloads as the number of processes grows: the tables of docs/protocols-compared.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from antecede.protocols import PROTOCOLS
from antecede.sim.choice import HEADERS
from antecede.sim.sweep import Row
from experiments.buffers import bytes_a_delivery
from experiments.tables import format_table

PAGE = "protocols-compared.md"

WORKLOADS = ("uniform", "client-server", "groups", "document")
PARTIAL = ("unordered", "fifo", "monitor")
"""They do not order causally, or at one process only."""

NEAR = 1.25
"""A protocol is quick if its mean delay is at most so many times the least."""

Cells = Mapping[tuple[str, int], Row]
"""(protocol, processes) -> its run."""


def tables(rows: list[Row]) -> dict[str, str]:
    made = {"take": _take(rows)}
    for workload in WORKLOADS:
        found = _cells(row for row in rows if row.case == workload)
        made[f"{workload}: stamps"] = _grid(found, _stamps)
        made[f"{workload}: control"] = _grid(found, _control)
        made[f"{workload}: delay"] = _grid(found, _delay)
        made[f"{workload}: cpu"] = _grid(found, _cpu)
    made["local networks"] = _local([row for row in rows if row.case.endswith("on local networks")])
    return made


def _cells(rows: Iterable[Row]) -> Cells:
    return {(row.spec.protocol, row.spec.processes): row for row in rows}


def _grid(found: Cells, cell: Callable[[Row], str]) -> str:
    sizes = sorted({n for _, n in found})
    lines = []
    for protocol in PROTOCOLS:
        if any((protocol, n) in found for n in sizes):
            runs = [found.get((protocol, n)) for n in sizes]
            lines.append([f"`{protocol}`", *("–" if run is None else cell(run) for run in runs)])
    return format_table(["", *(f"n = {n}" for n in sizes)], lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _stamps(row: Row) -> str:
    return f"{_number(row.summary.stamp_entries.mean)} / {_number(row.summary.stamp_bytes.mean)}"


def _control(row: Row) -> str:
    return f"{row.summary.control_packets / row.summary.delivered:.2f}"


def _delay(row: Row) -> str:
    delay = row.summary.delay_ns
    return f"{_number(delay.mean / 1e6)} / {_number(delay.p99 / 1e6)}"


def _cpu(row: Row) -> str:
    return _number(1e6 * row.cpu_seconds / row.summary.delivered)


# Which one to take


def _take(rows: list[Row]) -> str:
    lines = []
    for workload in WORKLOADS:
        found = _cells(row for row in rows if row.case == workload and row.spec.protocol not in PARTIAL)
        for n in (4, 16, 64, 256):
            lines.append([workload, n, *_choices([row for (_, size), row in found.items() if size == n])])
    header = [
        "workload",
        "n",
        f"fewest bytes, control packets with {HEADERS} more",
        "fewest bytes, control packets as they are",
        "least CPU",
    ]
    return format_table(header, lines)


def _choices(runs: list[Row]) -> list[str]:
    """The best of those that are quick, by three measures."""
    least = min(run.summary.delay_ns.mean for run in runs)
    quick = [run for run in runs if run.summary.delay_ns.mean <= NEAR * least]
    light = min(quick, key=lambda run: run.cpu_seconds / run.summary.delivered)
    return [_smallest(quick, HEADERS), _smallest(quick, 0), f"`{light.spec.protocol}`"]


def _smallest(runs: list[Row], headers: int) -> str:
    best = min(runs, key=lambda run: bytes_a_delivery(run, headers))
    return f"`{best.spec.protocol}` {_number(bytes_a_delivery(best, headers))}"


def _local(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        s = row.summary
        lines.append(
            [
                row.case.removesuffix(" on local networks"),
                row.spec.processes,
                f"`{row.spec.protocol}`",
                _stamps(row),
                f"{s.packets / s.delivered:.2f}",
                _control(row),
                _delay(row),
                _cpu(row),
            ]
        )
    header = ["workload", "n", "", "entries / bytes", "packets", "control", "delay, ms", "CPU, µs"]
    return format_table(header, lines)
