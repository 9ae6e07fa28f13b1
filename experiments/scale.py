"""Hierarchies of 64 to 4,096 processes: the tables and plots of docs/scale.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from antecede.report.plots import draw_lines
from antecede.sim.specs import Spec
from antecede.sim.sweep import Row
from experiments.tables import add_counts, average, format_table

PAGE = "scale.md"

LINKS = {"lan": "local", "man": "middle", "wan": "wide"}
PROTOCOLS = ("separator", "history", "optimal", "matrix", "permit", "buffer")
SHARES = ("50%", "90%", "99%")
ROUTERS = ("nodes", "departments", "organisations", "countries")

Cells: TypeAlias = Mapping[tuple[str, int, str], Row]
"""(protocol, processes, local share) -> its run."""


def tables(rows: list[Row]) -> dict[str, str]:
    found = _cells(rows)
    return {
        **count_tables(found),
        "routers": _routers(found),
        "cpu": _grid(found, lambda row: _number(1e6 * row.cpu_seconds / row.summary.delivered)),
        "longer": _longer([r for r in rows if r.case == "longer"], found),
        "neighbourhood": _neighbourhood([r for r in rows if r.case == "neighbourhood"]),
        "four levels": _levels([r for r in rows if r.case == "four levels"], found),
    }


def count_tables(found: Cells) -> dict[str, str]:
    """The tables of counts, each cell from runs of its own: the same on every machine."""
    return {
        "entries": _by_link(found, "entries"),
        "bytes": _by_link(found, "bytes"),
        "histories": _histories(found),
        "hops": _grid(found, lambda row: _number(_count_crossings(row, "entries") / row.summary.delivered)),
        "control": _grid(
            found, lambda row: _number(_count_crossings(row, "control") / row.summary.delivered)
        ),
        "delay": _grid(found, lambda row: _number(row.summary.delay_ns.mean / 1e6)),
        "waiting": _grid(found, lambda row: f"{100 * row.summary.waiting_share:.1f}"),
    }


def plots(rows: list[Row]) -> dict[str, str]:
    """File of docs/pictures -> SVG."""
    found = _cells(rows)
    wide = _series(found, "wan")
    levels = {r.spec.processes: _mean(r, "bytes:wan") for r in rows if r.case == "four levels"}
    wide["four levels"] = {float(n): value for n, value in levels.items()}
    histories = {
        f"{protocol}": {float(n): _mean(row, "history:processes") for n, row in _sizes(found, protocol)}
        for protocol in ("history", "optimal")
    }
    for part in ("processes", *ROUTERS[:3]):
        runs = _sizes(found, "separator")
        histories[part] = {float(n): _mean(row, f"history:{part}") for n, row in runs}
    local, share = _series(found, "lan"), "90 % local traffic"
    return {
        "scale-local.svg": draw_lines(f"A stamp on a local link, {share}", local, "processes", "bytes"),
        "scale-wide.svg": draw_lines(f"A stamp on a wide link, {share}", wide, "processes", "bytes"),
        "scale-histories.svg": draw_lines(
            f"Entries kept by parts of separator, and by others, {share}",
            histories,
            "processes",
            "entries",
        ),
    }


def _cells(rows: Iterable[Row]) -> Cells:
    return {(r.spec.protocol, r.spec.processes, _share(r)): r for r in rows if r.case == "size"}


def _share(row: Row) -> str:
    return Spec.parse("workload", row.spec.workload).options["share"]


def _sizes(found: Cells, protocol: str, share: str = "90%") -> list[tuple[int, Row]]:
    return [(n, row) for (name, n, part), row in found.items() if (name, part) == (protocol, share)]


def _series(found: Cells, link: str) -> dict[str, dict[float, float]]:
    """Protocol -> processes -> bytes on such a link; a stamp without any cannot be drawn."""
    lines = {}
    for protocol in PROTOCOLS:
        values = {float(n): _mean(row, f"bytes:{link}") for n, row in _sizes(found, protocol)}
        lines[protocol] = {n: value for n, value in values.items() if value > 0}
    return {name: line for name, line in lines.items() if line}


def _mean(row: Row, what: str) -> float:
    count = add_counts([row.measured[what]])
    return average(count) if count else 0.0


def _count_crossings(row: Row, what: str) -> int:
    """How often a link was crossed."""
    return sum(sum(row.measured[f"{what}:{link}"].values()) for link in LINKS)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _by_link(found: Cells, what: str) -> str:
    lines = []
    for protocol in PROTOCOLS:
        for link, name in LINKS.items():
            cells = _cell_row(found, protocol, _mean_of(f"{what}:{link}"))
            lines.append([f"`{protocol}`, {name}", *cells])
    return format_table(_header(found), lines)


def _grid(found: Cells, cell: Callable[[Row], str]) -> str:
    return format_table(_header(found), [[f"`{p}`", *_cell_row(found, p, cell)] for p in PROTOCOLS])


def _header(found: Cells) -> list[str]:
    return ["", *(f"n = {n:,}" for n in sorted({n for _, n, _ in found}))]


def _cell_row(found: Cells, protocol: str, cell: Callable[[Row], str]) -> list[str]:
    """For each size, what 50, 90 and 99 % local traffic came to."""
    rows = [[found.get((protocol, n, share)) for share in SHARES] for n in sorted({n for _, n, _ in found})]
    return [
        "–" if not any(runs) else " / ".join("–" if run is None else cell(run) for run in runs)
        for runs in rows
    ]


def _histories(found: Cells) -> str:
    pairs = [("separator", part) for part in ("processes", *ROUTERS[:3])]
    pairs += [("history", "processes"), ("optimal", "processes")]
    lines = [
        [f"`{protocol}`, {part}", *_cell_row(found, protocol, _mean_of(f"history:{part}"))]
        for protocol, part in pairs
    ]
    return format_table(_header(found), lines)


def _mean_of(what: str) -> Callable[[Row], str]:
    return lambda row: _number(_mean(row, what))


def _routers(found: Cells) -> str:
    """A router's load at 90 % local traffic."""
    lines = []
    for n, row in _sizes(found, "separator"):
        plain = found["matrix", n, "90%"]
        for part in ROUTERS[:3]:
            seconds = row.summary.duration_ns / 1e9
            packets = add_counts([row.measured[f"packets:{part}"]])
            each = _mean(row, f"busy:{part}") / max(average(packets), 1)
            rate = average(packets) / seconds
            lines.append(
                [
                    f"{part}, n = {n:,}",
                    _number(_mean(plain, f"packets:{part}") / (plain.summary.duration_ns / 1e9)),
                    _number(rate),
                    _number(max(packets) / seconds),
                    _number(each),
                    f"{rate * each / 1e4:.1f}",
                ]
            )
    header = ["", "a second, as plain routers", "a second", "the busiest", "µs each", "% of a processor"]
    return format_table(header, lines)


def _longer(rows: Sequence[Row], found: Cells) -> str:
    lines = []
    for protocol in ("separator", "history", "optimal"):
        runs = [found[protocol, 256, "90%"], *(r for r in rows if r.spec.protocol == protocol)]
        for row in runs:
            cells = [_number(_mean(row, f"entries:{link}")) for link in LINKS]
            kept = [
                _number(_mean(row, f"history:{part}")) if f"history:{part}" in row.measured else ""
                for part in ("processes", "organisations")
            ]
            lines.append([f"`{protocol}`, {row.spec.messages // 256} a process", *cells, *kept])
    header = ["n = 256, 90 % local", "entries, local", "middle", "wide", "H of processes", "of organisations"]
    return format_table(header, lines)


def _neighbourhood(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        inside = Spec.parse("topology", row.spec.topology).options["inside"]
        cells = [_number(_mean(row, f"entries:{link}")) for link in LINKS]
        kept = [_number(_mean(row, f"history:{part}")) for part in ("processes", "organisations")]
        lines.append([inside, *cells, *kept])
    header = [
        "n = 1,024: on a node / nodes / departments",
        "entries, local",
        "middle",
        "wide",
        "H of processes",
        "of organisations",
    ]
    return format_table(header, lines)


def _levels(rows: Sequence[Row], found: Cells) -> str:
    lines = []
    for deep in rows:
        for name, row in (
            ("three levels", found["separator", deep.spec.processes, "90%"]),
            ("four levels", deep),
        ):
            links = [_number(_mean(row, f"entries:{link}")) for link in LINKS]
            parts = [part for part in ROUTERS if f"history:{part}" in row.measured]
            top = parts[-1]
            lines.append(
                [
                    f"n = {row.spec.processes:,}, {name}",
                    *links,
                    *(_number(_mean(row, f"history:{part}")) for part in ("processes", top)),
                    _number(row.summary.delay_ns.mean / 1e6),
                ]
            )
    header = [
        "90 % local",
        "entries, local",
        "middle",
        "wide",
        "H of processes",
        "of the outermost",
        "delay, ms",
    ]
    return format_table(header, lines)
