"""Tables of experiments/extra.toml: the questions of section 5 of Sánchez & Álvarez."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antecede.sim.sweep import Row
from experiments.tables import format_table, group_rows, mean, spread

HEADER = 28
"""Bytes that a packet costs before its first byte of content: UDP over IPv4."""


def tables(rows: Sequence[Row]) -> Mapping[str, str]:
    made = {}
    for (n, workload), chosen in group_rows(
        rows, lambda row: (row.spec.processes, row.spec.workload)
    ).items():
        made[f"n = {n}, {workload.partition(':')[0]}"] = _table(chosen)
    return made


def _table(rows: Sequence[Row]) -> str:
    matrix = {row.spec.seed: row for row in rows if row.spec.protocol == "matrix"}
    kinds = group_rows(rows, lambda row: (row.spec.protocol, str(row.spec.parameters.get("k", ""))))
    order = sorted(kinds, key=lambda kind: kind[0] == "bounded")
    return format_table(
        [
            "protocol",
            "extra messages",
            "entries",
            "stamp bytes",
            "all bytes",
            "with headers",
            "delay, ms",
            "more than matrix, ms",
            "waiting, ms",
        ],
        [_line(kind, kinds[kind], matrix) for kind in order],
    )


def _line(kind: tuple[str, str], rows: Sequence[Row], matrix: Mapping[int, Row]) -> list[str]:
    protocol, k = kind
    return [
        # As code: a bound for each process has a star in it, which Markdown would read as emphasis.
        f"{protocol}, k = `{k}`" if k else protocol,
        spread(_extra(row) for row in rows),
        f"{mean(row.summary.stamp_entries.mean for row in rows):.1f}",
        f"{mean(row.summary.stamp_bytes.mean for row in rows):.1f}",
        f"{mean(_bytes(row) for row in rows):.1f}",
        f"{mean(_bytes(row) + HEADER * (1 + _extra(row)) for row in rows):.1f}",
        f"{mean(_delay(row) for row in rows):.1f}",
        spread([_delay(row) - _delay(matrix[row.spec.seed]) for row in rows], 1)
        if protocol != "matrix"
        else "",
        f"{mean(row.summary.waiting_ns.mean / 1e6 for row in rows):.1f}",
    ]


def _extra(row: Row) -> float:
    """Extra messages for each message."""
    return row.summary.control_packets / row.summary.sent


def _bytes(row: Row) -> float:
    """Of stamps and extra messages, for each message."""
    summary = row.summary
    return (summary.stamp_bytes.mean * summary.packets + summary.control_bytes) / summary.sent


def _delay(row: Row) -> float:
    return row.summary.delay_ns.mean / 1e6
