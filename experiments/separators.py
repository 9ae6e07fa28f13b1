"""Tables of experiments/separators.toml: table 7.1 and figures 7.2 to 7.4 of Rodrigues & Veríssimo 1995."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antecede.sim.sweep import Row
from antecede.topology import shapes
from experiments.tables import add_counts, average, format_table, histogram, spread

SCENARIOS = {"No R9": "r9=none", "R9 at S2": "r9=d3", "R9 at S1, S2 and S3": "r9=d1+d3+n3"}
"""Name in the report -> in the text of the topology."""

THEIRS = {
    "Matrix clock": (36.0, 100.0),
    "Vector clocks": (10.0, 14.0),
    "No R9": (3.55, 3.46),
    "R9 at S2": (2.70, 3.09),
    "R9 at S1, S2 and S3": (2.10, 2.76),
}
"""Table 7.1 of the report: n = 6 and n = 10."""

DESCRIBED = "as described"


def tables(rows: Sequence[Row]) -> Mapping[str, str]:
    made = {"table 7.1": _table(rows), "open": _open(rows)}
    for vertex in ("p3", "d2", "d3"):
        made[f"figure 7.2, {vertex}"] = _sizes(rows, 6, f"history:{vertex}", "history size", 13)
    made["figure 7.3"] = _sizes(rows, 6, "stamps:hops", "stamp size", 10)
    made["figure 7.4"] = _sizes(rows, 10, "stamps:hops", "stamp size", 10)
    return made


def _of(rows: Sequence[Row], case: str, scenario: str, n: int) -> list[Row]:
    text = SCENARIOS[scenario]
    return [r for r in rows if r.case == case and r.spec.topology.endswith(text) and r.spec.processes == n]


def _means(rows: Sequence[Row], case: str, scenario: str, n: int, what: str) -> list[float]:
    return [average(add_counts([row.measured[what]])) for row in _of(rows, case, scenario, n)]


def _table(rows: Sequence[Row]) -> str:
    matrix = {r.spec.processes: f"{r.summary.stamp_entries.mean:.0f}" for r in rows if r.case == "matrix"}
    vectors = {n: sum(map(len, shapes.example_groups(n == 10).values())) for n in (6, 10)}
    lines = [
        _line("Matrix clock", [(matrix[n], "") for n in (6, 10)]),
        _line("Vector clocks", [(str(vectors[n]), "") for n in (6, 10)]),
    ]
    for scenario in SCENARIOS:
        cells = [
            tuple(spread(_means(rows, DESCRIBED, scenario, n, what)) for what in ("stamps:hops", "stamps"))
            for n in (6, 10)
        ]
        lines.append(_line(scenario, cells))
    header = ["scenario"]
    for n in (6, 10):
        header += [f"n = {n}: theirs", "ours, a hop", "ours, a packet"]
    return format_table(header, lines)


def _line(scenario: str, ours: Sequence[Sequence[str]]) -> list[str]:
    line = [scenario]
    for theirs, cells in zip(THEIRS[scenario], ours, strict=True):
        line += [f"{theirs:g}", *cells]
    return line


def _open(rows: Sequence[Row]) -> str:
    """A hop's mean in every variant: n = 6 / n = 10."""
    cases = dict.fromkeys(row.case for row in rows if row.case != "matrix")
    lines = [["theirs", *(f"{THEIRS[s][0]:.2f} / {THEIRS[s][1]:.2f}" for s in SCENARIOS)]]
    for case in cases:
        cells = []
        for scenario in SCENARIOS:
            means = [_mean(_means(rows, case, scenario, n, "stamps:hops")) for n in (6, 10)]
            cells.append(f"{means[0]:.2f} / {means[1]:.2f}")
        lines.append([case, *cells])
    return format_table(["variant", *SCENARIOS], lines)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _sizes(rows: Sequence[Row], n: int, what: str, title: str, last: int) -> str:
    columns = {
        scenario: add_counts(row.measured[what] for row in _of(rows, DESCRIBED, scenario, n))
        for scenario in SCENARIOS
    }
    return histogram(columns, f"{title}, % of all", last)
