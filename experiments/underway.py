"""Tables of experiments/underway.toml: matrix and buffer combined, beside both and `permit`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from antecede.sim.sweep import Row
from experiments.buffers import bytes_a_delivery
from experiments.tables import format_table, group_rows

NEAR = 1.1
"""A mean delay is as short as the shortest if it is at most so many times that."""


def tables(rows: Sequence[Row]) -> Mapping[str, str]:
    cells: Mapping[str, Callable[[Row], str]] = {
        "delay": lambda row: f"{_delay(row):.1f}",
        "bytes": lambda row: f"{bytes_a_delivery(row):.1f}",
        "entries": lambda row: f"{row.summary.stamp_entries.mean:.1f}",
        "control": lambda row: f"{row.summary.control_packets / row.summary.delivered:.2f}",
    }
    kinds = group_rows(rows, lambda row: (row.spec.workload, row.spec.processes))
    made = {name: _grid(kinds, cell) for name, cell in cells.items()}
    header = [
        "workload",
        "n",
        "as quick as the quickest",
        "of these the fewest bytes",
        "bytes beside `matrix`",
    ]
    return {"verdict": format_table(header, [_line(kind, found) for kind, found in kinds.items()]), **made}


def _grid(kinds: Mapping[tuple[str, int], Sequence[Row]], cell: Callable[[Row], str]) -> str:
    found = {kind: {_name(row): cell(row) for row in rows} for kind, rows in kinds.items()}
    names = list(dict.fromkeys(name for cells in found.values() for name in cells))
    lines = [[*kind, *(cells[name] for name in names)] for kind, cells in found.items()]
    return format_table(["workload", "n", *names], lines)


def _line(kind: tuple[str, int], rows: Sequence[Row]) -> list[object]:
    least = min(map(_delay, rows))
    quick = [row for row in rows if _delay(row) <= NEAR * least]
    best = min(quick, key=bytes_a_delivery)
    [matrix] = [row for row in rows if row.spec.protocol == "matrix"]
    ratio = bytes_a_delivery(matrix) / bytes_a_delivery(best)
    return [
        *kind,
        ", ".join(map(_name, quick)),
        _name(best),
        f"{ratio:.1f}x fewer" if best is not matrix else "",
    ]


def _name(row: Row) -> str:
    k = row.spec.parameters.get("k")
    return f"`{row.spec.protocol}`" if k is None else f"k = {k}"


def _delay(row: Row) -> float:
    return row.summary.delay_ns.mean / 1e6
