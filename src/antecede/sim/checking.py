"""Whether a run kept what was promised: the watch looks at every run, the oracle at small ones too; they must agree.

>>> from antecede.sim.run import RunSpec
>>> simulation = RunSpec(protocol="fifo", processes=4, messages=100, workload="broadcast").build()
>>> checker = Checker(simulation)
>>> _ = simulation.finish()
>>> checker.findings("fifo"), checker.findings("causal")[0]
([], 'violation: p1 delivered p4.1 after p3.1, which it causally precedes: p4.1 -> p3.1')
"""

from __future__ import annotations

from typing import Any, Literal

from antecede.model import Event
from antecede.oracle import Verdict, check
from antecede.sim.run import Simulation
from antecede.sim.watch import Watch
from antecede.trace.schema import KINDS

__all__ = ["Checker"]


class Checker:
    """Records a run that has not begun, and judges it. Runs of at most `small` messages get the oracle's verdict."""

    def __init__(self, simulation: Simulation, small: int = 150) -> None:
        self.simulation = simulation
        n, machine = len(simulation.view), simulation.engine.machines[0]
        self.judged = [process for process in range(n) if machine.orders_at(process)]
        self.watch = Watch(n, self.judged)
        self.small = simulation.spec.messages <= small
        self.record = self._both if self.small else self.watch.record
        self.events: list[Event] = []
        """Of a small run: what was sent and delivered."""
        simulation.record(self.record)

    def _both(
        self, process: int, kind: int, sender: int, number: int, to: Any, control: bool, *_: Any
    ) -> None:
        self.watch.record(process, kind, sender, number, to, control)
        if not control and KINDS[kind] != "receive":
            self.events.append(Event(process, KINDS[kind], sender, number, to or ()))

    def verdict(self) -> Verdict:
        """What the oracle says of a small run."""
        assert self.small
        return check(self.events, len(self.simulation.view), self.simulation.finished, self.judged)

    def findings(self, order: Literal["none", "fifo", "causal"]) -> list[str]:
        """What is wrong, a line for each; if the run is finished, also what was never delivered."""
        view, complete = self.simulation.view, self.simulation.finished
        findings = self.watch.findings(order, complete, view)
        if not self.small:
            return findings
        verdict = self.verdict()
        if verdict.keeps(order) == bool(findings):
            return [f"disagreement: the oracle says {verdict.explain(view)[:200]}", *findings]
        return findings and verdict.explain(view).splitlines()
