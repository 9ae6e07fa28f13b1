"""Table of experiments/delta.toml: what forgetting by time saves beside R8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antecede.sim.sweep import Row
from experiments.tables import add_counts, average, format_table

HEADER = ["workload", "n", "rules", "entries", "bytes", "H", "delay, ms"]


def tables(rows: Sequence[Row]) -> Mapping[str, str]:
    ordered = sorted(rows, key=lambda row: (row.spec.workload, row.spec.processes))
    return {"delta": format_table(HEADER, map(_line, ordered))}


def _line(row: Row) -> list[str]:
    found, parameters = row.summary, row.spec.parameters
    rules = "R8 and R10" if "r10" in parameters else "R8"
    if delta := parameters.get("delta"):
        rules += f" and {delta // 1_000_000} ms"
    return [
        row.spec.workload.partition(":")[0],
        str(row.spec.processes),
        rules,
        f"{found.stamp_entries.mean:.1f}",
        f"{found.stamp_bytes.mean:.0f}",
        f"{average(add_counts([row.measured['history:processes']])):.0f}",
        f"{found.delay_ns.mean / 1e6:.1f}",
    ]
