"""Makes the faults of a run happen, each at its time: what the network does, and what becomes of processes."""

from __future__ import annotations

from collections.abc import Sequence

from antecede.errors import BadParameter
from antecede.model import View
from antecede.sim.chance import Words, pick
from antecede.sim.delays import Delay
from antecede.sim.engine import Engine
from antecede.sim.faults import Always, Fault, Outage, Partition, Random, check, needs_journal, needs_links
from antecede.sim.processes import Processes

__all__ = ["Troubles", "install"]


class Troubles:
    """Makes the faults of a run happen, each at its time."""

    def __init__(self, engine: Engine, faults: Sequence[Fault], view: View, words: Words) -> None:
        self.engine, self.view, self.words = engine, view, words
        self.processes: Processes | None = None
        self._second = Delay.exponential(10**9)
        self._cuts: list[tuple[tuple[int, ...], ...]] = []
        for fault in faults:
            self._plan(fault)

    def _plan(self, fault: Fault) -> None:
        engine = self.engine
        match fault:
            case Always(kind="loss", share=share):
                engine.network.loss = share
            case Always(share=share):
                engine.network.duplicate = share
            case Partition(groups=names, start_ns=start, end_ns=end):
                groups = tuple(tuple(self.view.id(name) for name in group) for group in names)
                engine.at(start, lambda now: self._cut(groups, end))
            case Outage(kind=kind, process=process, start_ns=start, end_ns=end):
                vertex = self.view.id(process)
                engine.at(start, lambda now: self._stop(vertex, kind == "crash", end))
            case Random():
                self._again(fault)

    def _again(self, fault: Random) -> None:
        self.engine.at(self.engine.now + self._draw(fault.mean_ns), lambda now: self._strike(fault))

    def _draw(self, mean: int) -> int:
        """A time with this mean, exponentially distributed."""
        return self._second.draw(self.words) * mean // 10**9

    def _strike(self, fault: Random) -> None:
        engine = self.engine
        if engine.sent >= engine.messages or engine.finished:
            return
        end = engine.now + 1 + self._draw(fault.down_ns)
        n = len(self.view)
        if fault.kind == "partition":
            side = tuple(v for v in range(n) if next(self.words) & 1)
            if 0 < len(side) < n:
                self._cut((side,), end)
        else:
            vertex = pick(self.words, n)
            if not engine.is_stalled(vertex):
                self._stop(vertex, fault.kind == "crash", end)
        self._again(fault)

    # Partitions: several at a time cut wherever one of them does.

    def _cut(self, groups: tuple[tuple[int, ...], ...], end: int) -> None:
        self._cuts.append(groups)
        self._apply()
        self.engine.at(end, lambda now: self._heal(groups))

    def _heal(self, groups: tuple[tuple[int, ...], ...]) -> None:
        self._cuts.remove(groups)
        self._apply()

    def _apply(self) -> None:
        if not self._cuts:
            self.engine.network.heal()
            return
        parts: dict[tuple[int, ...], list[int]] = {}
        for v in range(len(self.view)):
            part = tuple(next((i for i, g in enumerate(cut) if v in g), -1) for cut in self._cuts)
            parts.setdefault(part, []).append(v)
        self.engine.network.cut(list(parts.values()))

    # Processes

    def _stop(self, process: int, crash: bool, end: int) -> None:
        engine = self.engine
        if engine.is_stalled(process):
            raise BadParameter(
                "faults",
                f"an outage of {self.view.name(process)} comes during another: a process can have one at a time",
            )
        engine.stall(process, lose=crash)
        if not crash:
            engine.at(end, lambda now: engine.resume(process))
            return
        engine.crashes += 1
        engine.at(end, lambda now: self._recover(process))

    def _recover(self, process: int) -> None:
        assert self.processes is not None
        self.processes.restart(process)
        self.engine.resume(process)


def install(engine: Engine, faults: Sequence[Fault], view: View, words: Words, every: int = 1000) -> None:
    """Let these faults happen in a run that has not begun, with whole processes as far as they need them.

    A journal takes a snapshot after every so many inputs.
    """
    check(faults, view)
    troubles = Troubles(engine, faults, view, words)
    if needs_links(faults) or not engine.network.reliable:
        troubles.processes = Processes(engine, every if needs_journal(faults) else None)
        engine.carrier = troubles.processes
