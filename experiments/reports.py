"""Table of experiments/reports.toml: what forced reports save, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antecede.sim.sweep import Row
from experiments.tables import format_table

WHEN = {0: "with each hop", 1: "for 1 entry", 3: "for 3 entries", 1000000: "never"}


def tables(rows: Sequence[Row]) -> Mapping[str, str]:
    header = [
        "workload",
        "gateways",
        "reports",
        "packets a message",
        "entries",
        "bytes of stamps a message",
        "delay, ms",
    ]
    ordered = sorted(
        rows, key=lambda row: (row.spec.workload, row.case, row.spec.parameters.get("reports", 0))
    )
    return {"reports": format_table(header, map(_line, ordered))}


def _line(row: Row) -> list[str]:
    found = row.summary
    return [
        row.spec.workload.partition(":")[0],
        row.case,
        WHEN[row.spec.parameters.get("reports", 0)],
        f"{found.packets / found.sent:.2f}",
        f"{found.stamp_entries.mean:.1f}",
        f"{found.stamp_bytes.mean * found.packets / found.sent:.0f}",
        f"{found.delay_ns.mean / 1e6:.1f}",
    ]
