"""What an experiment can measure of a run beside its summary: distributions, each as value -> how often.

    stamps               entries of the stamp of every packet with a message
    stamps:hops          the same, but the copies of one send (or of one hop) count once
    stamps:p1+p2+p3      of packets that these send to each other, directly or by way of routers: first hop only
    history:p3           the size of H at this vertex, seen whenever any packet is transmitted (history, separator)
    history:PART         the same at each vertex of a part when it transmits a message itself; `optimal` has its log
    entries:LINK         entries of the stamp on every link of this kind that a message crosses: lan, man or wan
    bytes:LINK           its bytes there
    control:LINK         bytes of the stamps of control packets there
    packets:PART         how many packets each router of a part has handled, control packets too
    busy:PART            microseconds of processor time that each router of a part needed for them (separator)

A PART is processes or routers; in the topology `hierarchy` the routers are nodes, departments and organisations. All
packets together are a fair sample of the time of a run whose load does not change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from time import thread_time_ns
from typing import TYPE_CHECKING, Any

from antecede.errors import BadParameter
from antecede.model import Effect, Packet
from antecede.protocols import Machine
from antecede.protocols.history import History
from antecede.protocols.optimal import Optimal

if TYPE_CHECKING:
    from antecede.sim.run import Simulation

__all__ = ["Measures"]

LINKS = ("lan", "man", "wan")


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
        self.place, self.routed = simulation.place, simulation.routed
        self.machines = simulation.engine.machines
        self._all: list[Counter[int]] = []
        self._hops: list[Counter[int]] = []
        self._among: list[tuple[frozenset[int], Counter[int]]] = []
        self._histories: list[tuple[Any, Counter[int]]] = []
        self._own: dict[int, Counter[int]] = {}
        """Vertex -> where the size of its history is counted when it transmits."""
        self._links: dict[str, dict[str, Counter[int]]] = {"entries": {}, "bytes": {}, "control": {}}
        self._handled: dict[str, Sequence[int]] = {}
        self._packets: Counter[int] = Counter()
        """Router -> packets."""
        self._busy: Counter[int] = Counter()
        """Router -> nanoseconds."""
        self._ways: dict[tuple[int, int], tuple[tuple[str, ...], tuple[int, ...]]] = {}
        self._last: Any = None
        for name in names:
            self._enter(name)
        if names:
            simulation.engine.observe = self.observe

    def _enter(self, name: str) -> None:
        what, _, where = name.partition(":")
        machines, count = self.machines, self.counts[name]
        view, parts = machines[0].view, self.place.parts
        if what == "stamps" and where in ("", "hops"):
            (self._hops if where else self._all).append(count)
        elif what == "stamps":
            self._among.append((frozenset(view.id(word) for word in where.split("+")), count))
        elif what == "history" and where:
            if not isinstance(machines[0], History | Optimal):
                raise BadParameter(
                    "experiment",
                    f"measure cannot be {name}: {machines[0].name} keeps no history; measure stamps",
                )
            if where in parts:
                self._own |= dict.fromkeys(parts[where], count)
            else:
                self._histories.append((machines[view.id(where)], count))
        elif what in self._links and where in LINKS:
            self._links[what][where] = count
        elif what in ("packets", "busy") and where in parts:
            self._handled[name] = parts[where]
            if what == "busy":
                for router in parts[where]:
                    self._time(router)
        else:
            raise BadParameter(
                "experiment", f"measure must be stamps, history:PROCESS, entries:wan and so on, not {name!r}"
            )

    def _time(self, router: int) -> None:
        """Have what a router does with a packet timed."""
        if not self.routed:
            raise BadParameter("experiment", "measure busy needs a protocol that routers run: separator")
        machine, busy = self.machines[router], self._busy
        receive = machine.receive

        def time_receive(packet: Packet[Any]) -> list[Effect]:
            started = thread_time_ns()
            effects = receive(packet)
            busy[router] += thread_time_ns() - started
            return effects

        machine.receive = time_receive  # type: ignore[method-assign]

    def observe(self, now: int, packet: Packet[Any], entries: int, size: int) -> None:
        message = packet.message
        if self._handled or any(self._links.values()):
            self._cross(packet, entries, size)
        if message is None:
            return
        for machine, count in self._histories:
            count[_count_entries(machine)] += 1
        if packet.source in self._own:
            self._own[packet.source][_count_entries(self.machines[packet.source])] += 1
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

    def _cross(self, packet: Packet[Any], entries: int, size: int) -> None:
        """The packet crosses the links on its way."""
        ends = packet.source, packet.dest
        way = self._ways.get(ends)
        if way is None:
            way = self._ways[ends] = self._way(*ends)
        links, routers = way
        values = {"control": size} if packet.message is None else {"entries": entries, "bytes": size}
        for what, value in values.items():
            counts = self._links[what]
            for link in links if counts else ():
                if link in counts:
                    counts[link][value] += 1
        self._packets.update(routers)

    def _way(self, source: int, dest: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """The kinds of the links on the way, and the routers that handle what takes it."""
        place, way = self.place, [source, dest]
        if place.topology is not None and not self.routed:
            route = place.topology.route(place.names[source], place.names[dest])
            way = [place.topology.id(name) for name in route]
        routers = tuple(vertex for vertex in way[1:] if vertex >= place.processes)
        return tuple(place.link(a, b) for a, b in pairwise(way)), routers

    def plain(self) -> dict[str, dict[str, int]]:
        """Name -> value -> how often; the values are texts, as the keys of JSON are."""
        for name, routers in self._handled.items():
            if name.startswith("busy"):
                self.counts[name] = Counter(self._busy[router] // 1000 for router in routers)
            else:
                self.counts[name] = Counter(self._packets[router] for router in routers)
        return {name: {str(v): count[v] for v in sorted(count)} for name, count in self.counts.items()}


def _count_entries(machine: Machine) -> int:
    """How many entries a machine knows that a stamp may have to name; the message itself and its process are not."""
    return machine.stamp_entries() - 2
