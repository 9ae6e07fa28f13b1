"""What an experiment can measure of a run beside its summary: distributions, each as value -> how often.

    stamps               entries of the stamp of every packet with a message
    stamps:hops          the same, but the copies of one send (or of one hop) count once
    stamps:p1+p2+p3      of packets that these send to each other, directly or by way of routers: first hop only
    history:p3           the size of H at this vertex, seen whenever any packet is transmitted (history, separator)

All packets together are a fair sample of the time of a run whose load does not change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from antecede.errors import BadParameter
from antecede.model import Packet
from antecede.protocols.history import History

if TYPE_CHECKING:
    from antecede.sim.run import RunSpec, Simulation

__all__ = ["Measures", "check"]


class Measures:
    """Counts what was asked for; `observe` is for an engine.

    >>> from antecede.sim import RunSpec
    >>> simulation = RunSpec(protocol="history", processes=3, messages=10).build()
    >>> measures = Measures(["stamps"], simulation)
    >>> summary = simulation.finish()
    >>> sum(measures.plain()["stamps"].values())
    10
    """

    def __init__(self, names: Sequence[str], simulation: Simulation) -> None:
        self.counts: dict[str, Counter[int]] = {name: Counter() for name in names}
        self._all: list[Counter[int]] = []
        self._hops: list[Counter[int]] = []
        self._among: list[tuple[frozenset[int], Counter[int]]] = []
        self._histories: list[tuple[Any, Counter[int]]] = []
        self._last: Any = None
        for name in names:
            self._enter(name, simulation)
        if names:
            simulation.engine.observe = self.observe

    def _enter(self, name: str, simulation: Simulation) -> None:
        what, _, where = name.partition(":")
        machines, count = simulation.engine.machines, self.counts[name]
        view = machines[0].view
        if what == "stamps" and where in ("", "hops"):
            (self._hops if where else self._all).append(count)
        elif what == "stamps":
            self._among.append((frozenset(view.id(word) for word in where.split("+")), count))
        elif what == "history" and where:
            machine = machines[view.id(where)]
            if not isinstance(machine, History):
                raise BadParameter("experiment", "measure", name, f"stamps: {machine.name} keeps no history")
            self._histories.append((machine, count))
        else:
            raise BadParameter("experiment", "measure", repr(name), "stamps, stamps:..., history:PROCESS")

    def observe(self, now: int, packet: Packet[Any], entries: int, size: int) -> None:
        message = packet.message
        if message is None:
            return
        for machine, count in self._histories:
            count[len(machine._context("").H)] += 1
        for count in self._all:
            count[entries] += 1
        # The copies of one send share its stamp, or are sent one after the other.
        sent = packet.source, message.id, getattr(packet.stamp, "number", 0)
        if sent != self._last:
            for count in self._hops:
                count[entries] += 1
        self._last = sent
        for members, count in self._among:
            if packet.source == message.sender and members.issuperset((message.sender, *message.to)):
                count[entries] += 1

    def plain(self) -> dict[str, dict[str, int]]:
        """Name -> value -> how often; the values are texts, as the keys of JSON are."""
        return {name: {str(v): count[v] for v in sorted(count)} for name, count in self.counts.items()}


def check(names: Sequence[str], spec: RunSpec) -> None:
    """Refuse what cannot be measured of such a run."""
    if names:
        Measures(names, spec.build())
