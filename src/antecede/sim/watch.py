"""A fast check of a run while it runs: one look-up for each delivery, and memory only for messages under way.

Like the oracle it knows program order and message edges alone, never a stamp or a protocol. Of each message it keeps
the vector clock of its send, which counts for every process the sends that happened before or at it, until the last
copy is delivered; of each process the greatest of the clocks of what it delivered.

Message m, the k-th of its sender s, is overtaken at q exactly when q has delivered before it some m' with send(m)
before send(m'), that is, when what q delivered counts at least k sends of s. (The clock of m' counts k sends of s only
if send(m) happened before send(m') or m' is m itself, which would be a duplicate.)

>>> watch = Watch(3)
>>> watch.send(0, 1, (2,)); watch.send(0, 2, (1,)); watch.deliver(1, 0, 2); watch.send(1, 1, (2,))
>>> watch.deliver(2, 1, 1); watch.deliver(2, 0, 1)
>>> watch.findings()
['violation: #2 delivered #0.1 after a message that it causally precedes']
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from antecede.model import Id, View, bits, mask
from antecede.oracle import Copy
from antecede.trace.schema import DELIVER, SEND

__all__ = ["Watch"]

MOST = 1000
"""Findings of each kind that are kept."""


class Watch:
    """Watches the sends and deliveries of n processes, given in an order that extends happened-before.

    `at` limits the findings about order to some processes, for protocols that promise it only there.
    """

    def __init__(self, n: int, at: Collection[int] | None = None) -> None:
        self.n = n
        self.deliveries = 0
        self.violations: list[Copy] = []
        self.fifo_breaks: list[Copy] = []
        self.unwanted: list[Copy] = []
        """Delivered where they were not addressed, or a second time: which of the two, the oracle can tell."""
        self.unsent: list[Copy] = []
        self._judged = [at is None or process in at for process in range(n)]
        self._delivered = [[0] * n for _ in range(n)]
        """Process -> the greatest of the clocks of what it delivered."""
        self._latest = [[0] * n for _ in range(n)]
        """Process, sender -> the latest message of this sender that it delivered."""
        self._sent = [0] * n
        self._clocks: dict[Id, list[int]] = {}
        """Message under way -> the clock of its send."""
        self._left: dict[Id, int] = {}
        """Message under way -> where it is still to be delivered, as bits."""

    def record(
        self,
        process: int,
        kind: int,
        sender: int,
        number: int,
        to: tuple[int, ...] | None,
        control: bool,
        *_: Any,
    ) -> None:
        """An event, as an engine tells it."""
        if control:
            return
        if kind == DELIVER:
            self.deliver(process, sender, number)
        elif kind == SEND:
            assert to is not None
            self.send(process, number, to)

    def send(self, sender: int, number: int, to: tuple[int, ...]) -> None:
        assert number == self._sent[sender] + 1, f"message {number} after {self._sent[sender]} of #{sender}"
        self._sent[sender] = number
        clock = self._delivered[sender].copy()
        clock[sender] = number
        self._clocks[sender, number] = clock
        self._left[sender, number] = mask(to)

    def deliver(self, process: int, sender: int, number: int) -> None:
        self.deliveries += 1
        message = (sender, number)
        left = self._left.get(message, 0)
        here = 1 << process
        if not left & here:
            sent = 0 <= sender < self.n and 0 < number <= self._sent[sender]
            self._note(self.unwanted if sent else self.unsent, message, process)
            return
        delivered, latest = self._delivered[process], self._latest[process]
        if self._judged[process]:
            if delivered[sender] >= number:
                self._note(self.violations, message, process)
            if latest[sender] > number:
                self._note(self.fifo_breaks, message, process)
        if latest[sender] < number:
            latest[sender] = number
        if left == here:
            del self._left[message]
            clock = self._clocks.pop(message)
        else:
            self._left[message] = left ^ here
            clock = self._clocks[message]
        self._delivered[process] = list(map(max, delivered, clock))

    def _note(self, kind: list[Copy], message: Id, process: int) -> None:
        if len(kind) < MOST:
            kind.append(Copy(message, process))

    def list_missed(self, process: int, sender: int) -> list[int]:
        """Messages of a sender that this process was to deliver, and has not, though it delivered what follows them."""
        known = self._delivered[process][sender]
        return [
            number
            for (source, number), left in self._left.items()
            if source == sender and number <= known and left >> process & 1
        ]

    def list_undelivered(self) -> list[Copy]:
        """What was addressed to a process and has not been delivered there."""
        return [Copy(message, process) for message, left in self._left.items() for process in bits(left)]

    def findings(self, order: str = "causal", complete: bool = True, view: View | None = None) -> list[str]:
        """One line for each finding against a promise of this order, as the oracle's `Verdict.keeps` counts them."""
        view = view or View(())
        orders = {
            "causal": (("violation", self.violations, "after a message that it causally precedes"),),
            "fifo": (("fifo break", self.fifo_breaks, "after a later one of the same sender"),),
            "none": (),
        }
        kinds = [
            *orders[order],
            ("unwanted", self.unwanted, "again, or without being addressed"),
            ("unsent", self.unsent, "that nobody sent"),
        ]
        lines = [
            f"{kind}: {view.name(copy.at)} delivered {view.name(copy.message[0])}.{copy.message[1]} {words}"
            for kind, copies, words in kinds
            for copy in copies
        ]
        for copy in self.list_undelivered()[:MOST] if complete else ():
            name = f"{view.name(copy.message[0])}.{copy.message[1]}"
            lines.append(f"undelivered: {view.name(copy.at)} never delivered {name}")
        return lines
