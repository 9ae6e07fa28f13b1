"""Mattern & Fünfrocken 1995, 4.3: the tables of docs/results/buffers.md.

Load is the share of the time that an output buffer waits for acknowledgements: a process's rate times a round trip.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from antecede.sim import choice
from antecede.sim.choice import HEADERS
from antecede.sim.specs import Spec, duration, rate
from antecede.sim.sweep import Row
from experiments.tables import format_table

SAME = 0.1
"""A difference of mean delays that one seed does not show."""

Cells = Mapping[str, Row]
"""Protocol -> its run, all else being the same."""


def tables(rows: list[Row]) -> dict[str, str]:
    border = [row for row in rows if row.case == "border"]
    return {
        "load": _load([row for row in rows if row.case == "load"]),
        "footnote": _footnote([row for row in rows if row.case == "footnote"]),
        "border": _border(border),
        "delay": _delay(border),
        "bytes": _bytes(border),
    }


def latency(row: Row) -> int:
    """The mean time under way, in nanoseconds."""
    return duration("network", "delay", Spec.parse("network", row.spec.network).values[0])


def load(row: Row) -> float:
    return (
        2 * latency(row) / rate("workload", "rate", Spec.parse("workload", row.spec.workload).options["rate"])
    )


def bandwidth(row: Row) -> str:
    return Spec.parse("network", row.spec.network).options["bandwidth"]


def bytes_a_delivery(row: Row, headers: int = 0) -> float:
    """What the order costs: stamps, and control packets whole, with so many bytes of other layers' headers each."""
    return choice.bytes_a_delivery(row.summary, headers)


def cells(rows: Iterable[Row]) -> Mapping[tuple[int, str, str, float], Cells]:
    """(processes, network, pattern, load) -> protocol -> run."""
    found: dict[tuple[int, str, str, float], dict[str, Row]] = {}
    for row in rows:
        pattern = Spec.parse("workload", row.spec.workload).name
        key = row.spec.processes, row.spec.network, pattern, round(load(row), 4)
        name = row.spec.protocol + (" pipelined" if row.spec.parameters.get("pipelined") else "")
        found.setdefault(key, {})[name] = row
    return found


def _times(row: Row) -> str:
    """The mean delay, in multiples of the latency."""
    return f"{row.summary.delay_ns.mean / latency(row):.2f}"


def _milliseconds(row: Row) -> float:
    return row.summary.delay_ns.mean / 1e6


def _load(rows: list[Row]) -> str:
    lines = []
    for (_, network, _, share), cell in cells(rows).items():
        lines.append(
            [
                network,
                f"{share:.0%}",
                *(_times(cell[name]) for name in ("fifo", "matrix", "buffer")),
                _predict(network, share),
                _times(cell["permit"]),
                *(
                    f"{cell[name].summary.control_packets / cell[name].summary.sent:.2f}"
                    for name in ("buffer", "permit")
                ),
            ]
        )
    header = [
        "network",
        "load",
        "fifo",
        "matrix",
        "buffer",
        "M/G/1",
        "permit",
        "control: buffer",
        "control: permit",
    ]
    return format_table(header, lines)


def _predict(network: str, share: float) -> str:
    """A queue in front of one server, which serves for a round trip (Pollaczek and Khinchine)."""
    if share >= 1:
        return "grows"
    # The second moment of a round trip, in squares of its mean: two exponential ways vary, two constant ones do not.
    moment = 1.5 if network.startswith("exponential") else 1.0
    return f"{1 + moment * share / (1 - share):.2f}"


def _footnote(rows: list[Row]) -> str:
    lines = [
        [pattern, f"{share:.0%}", _times(cell["buffer"]), _times(cell["buffer pipelined"])]
        for (_, _, pattern, share), cell in cells(rows).items()
    ]
    return format_table(["workload", "load", "buffer", "buffer, pipelined"], lines)


def _delay(rows: list[Row]) -> str:
    """Milliseconds of matrix / buffer / permit; the least in bold."""
    found = cells(rows)
    sizes = sorted({key[0] for key in found})
    kinds = dict.fromkeys((key[1], key[3]) for key in found)
    lines = []
    for network, share in kinds:
        line = [network.removeprefix("exponential:").replace(",bandwidth=", ", "), f"{share:.0%}"]
        for n in sizes:
            cell = found[n, network, "uniform", share]
            line.append(_least([_milliseconds(cell[name]) for name in ("matrix", "buffer", "permit")]))
        lines.append(line)
    return format_table(["latency, bandwidth", "load", *(f"n = {n}" for n in sizes)], lines)


def _least(values: list[float]) -> str:
    shown = [f"{value:.2f}" if value < 100 else f"{value:.0f}" for value in values]
    return " / ".join(
        f"**{text}**" if value == min(values) else text for text, value in zip(shown, values, strict=True)
    )


def _border(rows: list[Row]) -> str:
    """At each load, whether `buffer`, and `permit`, are quicker than `matrix`."""
    found = cells(rows)
    sizes = sorted({key[0] for key in found})
    shares = sorted({key[3] for key in found})
    lines = []
    for network in dict.fromkeys(key[1] for key in found):
        for name in ("buffer", "permit"):
            line = [network.removeprefix("exponential:").replace(",bandwidth=", ", "), f"`{name}`"]
            for n in sizes:
                runs = [found[n, network, "uniform", share] for share in shares]
                line.append(" ".join(_sign(run[name], run["matrix"]) for run in runs))
            lines.append(line)
    return format_table(["latency, bandwidth", "", *(f"n = {n}" for n in sizes)], lines)


def _sign(ours: Row, theirs: Row) -> str:
    """The two do not meet the same delays, one by one: less than SAME means nothing."""
    ratio = _milliseconds(ours) / _milliseconds(theirs)
    return "**+**" if ratio < 1 - SAME else "−" if ratio > 1 + SAME else "="


def _bytes(rows: list[Row]) -> str:
    """At 1 ms, the widest band and a load of 20 %: the others differ by what processes had time to learn."""
    lines = []
    for (n, network, _, share), cell in cells(rows).items():
        if network == "exponential:1ms,bandwidth=100Mbit/s" and share == 0.2:
            plain = [bytes_a_delivery(cell[name]) for name in ("matrix", "buffer", "permit")]
            whole = [bytes_a_delivery(cell[name], HEADERS) for name in ("matrix", "buffer", "permit")]
            packets = [
                1 + cell[name].summary.control_packets / cell[name].summary.sent
                for name in ("buffer", "permit")
            ]
            lines.append([n, _least(plain), _least(whole), *(f"{value:.2f}" for value in packets)])
    header = ["n", "bytes", f"with {HEADERS} more a control packet", "packets, buffer", "packets, permit"]
    return format_table(header, lines)
