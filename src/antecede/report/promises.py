"""Whether a run kept what its protocol promises: the one place that decides, for pages, headlines and the demo.

    kept         causal order held wherever the protocol promises it
    unpromised   causal order was broken, and the protocol promises less
    broke        the promised order was broken
    faulty       the order was kept; messages were lost, repeated or misdelivered
    unknown      there is no verdict

A run of a protocol that is not ours promises causal order: that is what was asked of it. Only a run that was simulated
with a machine from a file says itself what that promises, in its parameter `order`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from antecede.protocols import PROTOCOLS

__all__ = ["Outcome", "Promise", "count_covered", "describe_promise", "find_promise", "judge"]

ORDERS = ("violation", "fifo_break")
"""Kinds of findings that are about order."""

Outcome = Literal["kept", "unpromised", "broke", "faulty", "unknown"]


class Promise(Struct, frozen=True):
    """What a protocol promises: an order, at every process or at one."""

    order: Literal["causal", "fifo", "none"] = "causal"
    at: str | None = None
    """The only process at which it holds; None: at every one."""


def find_promise(protocol: str, parameters: str = "{}", processes: Sequence[str] = ()) -> Promise:
    """The promise of a run, from its row in `runs`.

    >>> find_promise("monitor", '{"monitor": 1}', ["p1", "p2"])
    Promise(order='causal', at='p2')
    >>> find_promise("separator"), find_promise("fifo").order
    (Promise(order='causal', at=None), 'fifo')
    """
    machine = PROTOCOLS.get(protocol)
    if machine is None:
        order = json.loads(parameters or "{}").get("order")
        return Promise(order) if order in ("fifo", "none") else Promise()
    if protocol != "monitor" or not processes:
        return Promise(machine.order)
    monitor = json.loads(parameters or "{}").get("monitor", 0)
    return Promise(machine.order, processes[monitor] if isinstance(monitor, int) else str(monitor))


def describe_promise(promise: Promise) -> str | None:
    """In words, if it is less than causal order everywhere.

    >>> [describe_promise(p) for p in (Promise(), Promise("fifo"), Promise("none"), Promise(at="p1"))]
    [None, 'FIFO order only', 'no order', 'causal order at p1 only']
    """
    if promise.order == "causal":
        return None if promise.at is None else f"causal order at {promise.at} only"
    return {"fifo": "FIFO order only", "none": "no order"}[promise.order]


def count_covered(promise: Promise, rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many findings of each kind the promise covers. Rows have kind, process and count.

    An order may be promised at one process only. Nowhere may a message be lost, repeated or misdelivered.
    """
    counts: dict[str, int] = {}
    for row in rows:
        if row["kind"] not in ORDERS or promise.at is None or row["process"] == promise.at:
            counts[row["kind"]] = counts.get(row["kind"], 0) + row["count"]
    return counts


def judge(verdict: str, found: Mapping[str, int], promise: Promise) -> Outcome:
    """`found` counts the findings of each kind at the processes that the promise covers.

    >>> judge("no", {"violation": 3}, Promise()), judge("no", {"violation": 3}, Promise("fifo"))
    ('broke', 'unpromised')
    >>> judge("no", {"violation": 3, "fifo_break": 1}, Promise("fifo")), judge("no", {}, Promise(at="p1"))
    ('broke', 'kept')
    >>> judge("no", {"violation": 3, "undelivered": 1}, Promise("fifo")), judge("yes", {}, Promise())
    ('faulty', 'kept')
    """
    if verdict != "no":
        return "kept" if verdict == "yes" else "unknown"
    promised = {"causal": ORDERS, "fifo": ("fifo_break",), "none": ()}[promise.order]
    if any(found.get(kind) for kind in promised):
        return "broke"
    if any(count for kind, count in found.items() if kind not in ORDERS):
        return "faulty"
    if any(found.values()):
        return "unpromised"
    return "kept" if promise.at is not None else "faulty"
