"""The clocks of the events of some runs: one pass, in memory.

The rows come sorted by run, process and index. Those of one process in one run are a *line*. Lines are followed one
after the other, as far as they go: a delivery whose send is in the same run and not reached yet makes its line wait,
and the send wakes it. Each row is looked at once, and no order of time is needed. What is never reached is behind a
cycle: each of some lines waits for a send that is further on in the next.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from antecede.errors import BadTrace
from antecede.jit import allocating
from antecede.jit.hashtable import EMPTY, find, insert, new_table, value_at
from antecede.trace.schema import KINDS

__all__ = ["add_clocks", "causes", "levels", "link_rows"]

Column = NDArray[Any]

NEEDED: Final = ("run", "process", "index", "kind", "sender", "number", "control")
NONE: Final = -1
SHOWN: Final = 6
"""Processes of a cycle that a message names."""


def add_clocks(table: pa.Table) -> pa.Table:
    """The rows with their clocks.

    >>> event = {"run": "r", "index": 0, "sender": "a", "number": 1, "control": False, "clock": None}
    >>> sent, delivered = {"process": "a", "kind": "send"}, {"process": "b", "kind": "deliver"}
    >>> rows = pa.Table.from_pylist([event | sent, event | delivered])
    >>> add_clocks(rows)["clock"].to_pylist()
    [0, 1]
    """
    _, starts, cause = link_rows(table)
    level, heads = levels(np.append(starts, len(table)), cause)
    stuck = heads < np.append(starts[1:], len(table))
    if stuck.any():
        raise cycle(table, starts, heads, cause, int(np.flatnonzero(stuck)[0]))
    at = table.schema.get_field_index("clock")
    return table.set_column(at, "clock", pa.array(level, pa.int64()))


def link_rows(table: pa.Table) -> tuple[Column, Column, Column]:
    """The number of each row's run, where lines start, and for each row the row of the send that it needs, or NONE."""
    refuse(table)
    groups = codes(table["run"])
    names = codes(pa.chunked_array([*table["process"].chunks, *table["sender"].chunks], pa.string()))
    processes, senders = names[: len(table)], names[len(table) :]
    many = int(names.max()) + 1 if len(names) else 1
    keys = groups * many + processes
    starts = np.flatnonzero(np.append(True, np.diff(keys) != 0))[: len(keys)]
    return groups, starts, edges(table, keys, groups * many + senders, starts)


def refuse(table: pa.Table) -> None:
    """Rows without a value that all have, or of a kind that there is not."""
    wrong = pc.invert(pc.is_in(table["kind"], pa.array(KINDS)))
    for name in ("sender", "number", "control"):
        wrong = pc.or_(wrong, pc.is_null(table[name]))
    found = np.flatnonzero(wrong.to_numpy())
    if len(found):
        raise no_event({name: table[name][int(found[0])].as_py() for name in NEEDED})


def no_event(row: dict[str, object]) -> BadTrace:
    """What is wrong with a row that lacks a value or is of no kind."""
    empty = [name for name in NEEDED if row[name] is None]
    if empty:
        return BadTrace(place(row), f"the event has no {' and no '.join(empty)}; these may not be null")
    return BadTrace(place(row), f"the event is of kind {row['kind']}; the kinds are {', '.join(KINDS)}")


def codes(names: pa.ChunkedArray) -> Column:
    """An integer for each name."""
    encoded = names.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    return encoded.indices.to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def edges(table: pa.Table, keys: Column, sent_by: Column, starts: Column) -> Column:
    """For each row the row of the send that it needs, or NONE."""
    counts = np.logical_not(table["control"].combine_chunks().to_numpy(zero_copy_only=False))
    sends = counts & pc.equal(table["kind"], "send").to_numpy()
    deliveries = counts & pc.equal(table["kind"], "deliver").to_numpy()
    foreign = np.flatnonzero(sends & (keys != sent_by))
    if len(foreign):
        row = read_row(table, int(foreign[0]))
        raise BadTrace(
            place(row), f"the process sends message {message(row)}, which only its sender can send"
        )
    lines = keys[starts]
    line = np.searchsorted(lines, sent_by) if (np.diff(lines) > 0).all() else ranks(lines, sent_by)
    known = (line < len(lines)) & (lines[np.minimum(line, len(lines) - 1)] == sent_by)
    line = np.where(known, line, NONE)
    numbers = table["number"].combine_chunks().to_numpy()
    cause: Column
    cause, again = causes(line, numbers, sends, deliveries)
    if again != NONE:
        row = read_row(table, again)
        raise BadTrace(place(row), f"message {message(row)} is sent a second time")
    return cause


def ranks(lines: Column, wanted: Column) -> Column:
    """Positions of the wanted keys among lines that are in the order of names, not of codes."""
    order = np.argsort(lines)
    at = np.searchsorted(lines, wanted, sorter=order)
    return np.where(at < len(lines), order[np.minimum(at, len(lines) - 1)], len(lines))


def causes(line: Column, number: Column, sends: Column, deliveries: Column) -> tuple[Column, int]:
    """For each delivery the row of the send with the same (line, number), and a row that sends one again, or -1."""
    table = new_table(int(sends.sum()))
    return match(table, line, number, sends, deliveries)  # type: ignore[no-any-return]


@allocating
def match(table, line, number, sends, deliveries):  # type: ignore[no-untyped-def]
    cause = np.full(len(line), -1, np.int64)
    again = -1
    for row in range(len(line)):
        if sends[row]:
            at = find(table, line[row], number[row])
            if table[at, 1] == EMPTY:
                insert(table, at, line[row], number[row], row)
            elif again == -1:
                again = row
    for row in range(len(line)):
        if deliveries[row] and line[row] != -1:
            cause[row] = value_at(table, find(table, line[row], number[row]))
    return cause, again


@allocating
def levels(starts: Any, cause: Any) -> Any:
    """The clock of each row, and for each line the first row that was not reached (its end, if all were).

    Line l is rows starts[l] to starts[l + 1]; cause[row] is the row of the send that a row needs, or -1.
    """
    lines = len(starts) - 1
    level = np.full(len(cause), -1, np.int64)
    heads = starts[:-1].copy()
    waiting = np.full(len(cause), -1, np.int32)  # row -> a line that waits for it
    others = np.full(lines, -1, np.int32)  # line -> another that waits for the same row
    ready = np.arange(lines)[::-1].copy()  # a stack; each line is on it at most once
    height = lines
    while height:
        height -= 1
        line = ready[height]
        row = heads[line]
        last = level[row - 1] if row > starts[line] else -1
        while row < starts[line + 1]:
            need = cause[row]
            if need != -1:
                if level[need] == -1:
                    others[line] = waiting[need]
                    waiting[need] = line
                    break
                last = max(last, level[need])
            last += 1
            level[row] = last
            woken = waiting[row]
            while woken != -1:
                ready[height] = woken
                height += 1
                woken = others[woken]
            row += 1
        heads[line] = row
    return level, heads


def cycle(table: pa.Table, starts: Column, heads: Column, cause: Column, line: int) -> BadTrace:
    """The lines that wait for each other, from one that waits behind them."""
    seen: list[int] = []
    while line not in seen:
        seen.append(line)
        line = int(np.searchsorted(starts, cause[heads[line]], side="right")) - 1
    rows = [read_row(table, int(heads[line])) for line in seen[seen.index(line) :]]
    rows = rows[rows.index(min(rows, key=lambda row: str(row["process"]).encode())) :] + rows
    rows = rows[: len({str(row["process"]) for row in rows})]
    told = [f"{row['process']} delivers {message(row)} at index {row['index']}" for row in rows[:SHOWN]]
    more = [f"{len(rows) - SHOWN} more"] if len(rows) > SHOWN else []
    return BadTrace(
        f"run {rows[0]['run']}",
        f"the events form a cycle: {', '.join(told + more)}, each before it sends what the one before it delivers",
    )


def read_row(table: pa.Table, row: int) -> dict[str, object]:
    columns = ("run", "process", "index", "sender", "number")
    return {name: table[name][row].as_py() for name in columns}


def place(row: dict[str, object]) -> str:
    return f"run {row['run']}, process {row['process']}, index {row['index']}"


def message(row: dict[str, object]) -> str:
    return f"{row['sender']}.{row['number']}"
