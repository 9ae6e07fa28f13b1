"""Tables of experiments/gateways.toml: figures 7.5 to 7.7 of Rodrigues & Veríssimo 1995."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antecede.sim.sweep import Row
from experiments.tables import add_counts, average, format_table, histogram

STAMPS, HISTORY = "stamps:p1+p2+p3+p4", "history:p1"


def tables(rows: Sequence[Row]) -> Mapping[str, str]:
    return {"means": _means(rows), "figure 7.7": _figure(rows)}


def _of(rows: Sequence[Row], case: str, n: int, r7: bool, r9: bool) -> list[Row]:
    return [
        row
        for row in rows
        if (row.case, row.spec.processes) == (case, n)
        and row.spec.parameters.get("r7", True) is r7
        and row.spec.topology.endswith("none") is not r9
    ]


def _means(rows: Sequence[Row]) -> str:
    lines = []
    for case, n in dict.fromkeys((row.case, row.spec.processes) for row in rows):
        for r7 in (True, False):
            cells = []
            for what in (STAMPS, HISTORY):
                for r9 in (False, True):
                    chosen = _of(rows, case, n, r7, r9)
                    cells.append(f"{average(add_counts(row.measured[what] for row in chosen)):.1f}")
            lines.append([f"{case}, {n} processes{'' if r7 else ', without R7'}", *cells])
    header = ["network", "stamps in G1, no R9", "with R9", "H of p1, no R9", "with R9"]
    return format_table(header, lines)


def _figure(rows: Sequence[Row]) -> str:
    columns = {}
    for what, name in ((STAMPS, "stamp in G1"), (HISTORY, "H of p1")):
        for r9 in (False, True):
            chosen = _of(rows, "figure 7.6", 12, True, r9)
            columns[f"{name}, {'R9' if r9 else 'no R9'}"] = add_counts(row.measured[what] for row in chosen)
    return histogram(columns, "size, % of all", 25)
