"""Random runs for tests of the pipeline's order: drawn from a seed, as rows of a trace and as the oracle's events."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa

from antecede.model import Event
from antecede.trace import EVENTS

Row = dict[str, Any]

CYCLE: list[Row] = [
    {
        "run": "r",
        "process": me,
        "index": i,
        "kind": kind,
        "sender": sender,
        "number": 1,
        "control": False,
        "time_ns": 0,
    }
    for me, other in (("a", "b"), ("b", "a"))
    for i, (kind, sender) in enumerate([("deliver", other), ("send", me)])
]
"""Each of two processes delivers the other's message before it sends its own."""


def random_run(rng: Random, run: str, processes: int, steps: int, *, orphans: float = 0.0) -> list[Row]:
    """A run in the order in which it happened. A share of the deliveries is of messages that nobody sends.

    Names do not sort as they are drawn, times are those of clocks that are wrong by a little or by much.
    """
    names = [f"p{rng.randrange(1000)}-{p}" for p in range(processes)]
    skew = {name: rng.randrange(rng.choice([1, 50, 10_000])) for name in names}
    sent: dict[str, int] = dict.fromkeys(names, 0)
    under_way: list[tuple[str, str, int]] = []
    counts: dict[str, int] = dict.fromkeys(names, 0)
    rows: list[Row] = []

    def add(
        process: str, kind: str, sender: str, number: int, to: list[str] | None = None, control: bool = False
    ):
        row = dict.fromkeys(EVENTS.names) | {"run": run, "process": process, "kind": kind, "to": to}
        row |= {"sender": sender, "number": number, "control": control, "index": counts[process]}
        row["time_ns"] = 10 * len(rows) + skew[process] + rng.randrange(5)
        counts[process] += 1
        rows.append(row)

    for _ in range(steps):
        me = rng.choice(names)
        mine = [copy for copy in under_way if copy[0] == me]
        if rng.random() < orphans:
            add(me, "deliver", rng.choice([*names, "stranger"]), 1_000_000 + len(rows))
        elif mine and rng.random() < 0.7:
            copy = rng.choice(mine)
            if rng.random() > 0.1:  # else it stays, to be delivered again
                under_way.remove(copy)
            add(me, "receive", *copy[1:])
            add(me, "deliver", *copy[1:])
        elif rng.random() < 0.1:
            add(me, rng.choice(["send", "receive"]), me, rng.randrange(5), [], control=True)
        else:
            sent[me] += rng.choice([1, 1, 1, 200])
            to = rng.sample(names, rng.randrange(1, min(4, processes + 1)))
            add(me, "send", me, sent[me], to)
            under_way += [(other, me, sent[me]) for other in to]
    return rows


def lamport(rows: list[Row]) -> list[Row]:
    """The same rows, which are in the order in which they happened, with Lamport clocks."""
    last: dict[str, int] = {}
    sends: dict[tuple[str, int], int] = {}
    clocked = []
    for row in rows:
        clock = last.get(row["process"], -1) + 1
        message = row["sender"], row["number"]
        if not row["control"]:
            if row["kind"] == "deliver":
                clock = max(clock, sends.get(message, -1) + 1)
            elif row["kind"] == "send":
                sends[message] = clock
        last[row["process"]] = clock
        clocked.append(row | {"clock": clock})
    return clocked


def table(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=EVENTS)


def oracle_events(rows: list[Row]) -> tuple[Event, ...]:
    """As the oracle takes them, in this order."""
    numbers: dict[str, int] = {}

    def n(name: str) -> int:
        return numbers.setdefault(name, len(numbers))

    return tuple(
        Event(
            n(row["process"]),
            row["kind"],
            n(row["sender"]),
            row["number"],
            tuple(map(n, row["to"] or ())),
            control=row["control"],
        )
        for row in rows
    )


def after(rows: list[Row], starts: set[int]) -> set[int]:
    """Positions of the rows that are in `starts` or happened after one of them: by steps along every edge.

    Unlike the oracle's, this past has receives and control packets in it, by the order of their process.
    """
    sends = {
        (r["sender"], r["number"]): i for i, r in enumerate(rows) if r["kind"] == "send" and not r["control"]
    }
    found = set(starts)
    while True:
        more = set()
        for b, row in enumerate(rows):
            before = {
                a
                for a, other in enumerate(rows)
                if other["process"] == row["process"] and other["index"] < row["index"]
            }
            if row["kind"] == "deliver":
                before |= {sends[m] for m in [(row["sender"], row["number"])] if m in sends}
            if b not in found and before & found:
                more.add(b)
        if not more:
            return found
        found |= more
