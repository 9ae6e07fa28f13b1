"""Tables of experiments/sparing.toml: extra messages of the paper's rule, and of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antecede.sim.sweep import Row
from experiments.extra import _bytes, _delay, _extra
from experiments.tables import format_table, group_rows, mean


def tables(rows: Sequence[Row]) -> Mapping[str, str]:
    kinds = group_rows(
        rows, lambda row: (row.spec.workload.partition(":")[0], row.spec.processes, row.spec.parameters["k"])
    )
    header = [
        "workload",
        "n",
        "k",
        "extra messages: `bounded`",
        "`sparing`",
        "fewer",
        "delay, ms: `bounded`",
        "`sparing`",
        "ratio",
        "bytes a message: `bounded`",
        "`sparing`",
    ]
    return {
        "extra messages": format_table(
            header, [_line(kind, chosen) for kind, chosen in sorted(kinds.items())]
        )
    }


def _line(kind: tuple[str, int, int], rows: Sequence[Row]) -> list[str]:
    workload, n, k = kind
    ours = [row for row in rows if row.spec.protocol == "sparing"]
    paper = [row for row in rows if row.spec.protocol == "bounded"]
    before, after = mean(map(_extra, paper)), mean(map(_extra, ours))
    slow, slower = mean(map(_delay, paper)), mean(map(_delay, ours))
    return [
        workload,
        str(n),
        str(k),
        f"{before:.2f}",
        f"{after:.2f}",
        f"{before / after:.1f}x" if after else "",
        f"{slow:.1f}",
        f"{slower:.1f}",
        f"{slower / slow:.2f}",
        f"{mean(map(_bytes, paper)):.0f}",
        f"{mean(map(_bytes, ours)):.0f}",
    ]
