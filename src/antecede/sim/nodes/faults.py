"""How faults happen to simulated nodes (`scenario` lists them)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from antecede.errors import BadJournal
from antecede.process.journal import Journal
from antecede.protocols import PROTOCOLS
from antecede.protocols.separator import Separator
from antecede.sim.nodes.invariants import RAISED
from antecede.sim.nodes.network import LIMITS
from antecede.sim.nodes.node import MILLISECOND, SimNode
from antecede.sim.nodes.operators import SECOND, Wish
from antecede.sim.nodes.scenario import Fault, topology_of
from antecede.wire import Limits

if TYPE_CHECKING:
    from antecede.sim.nodes.system import System

__all__ = ["JOINS", "Faults"]

SMALLER = Limits(packet_bytes=64 << 10, payload_bytes=16 << 10)
JOINS = ("join", "cancel", "sponsor", "replace")
"""Faults with which one joins."""


class Faults:
    """Lets a system's faults happen."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.strikes: list[int] = []
        """Those that wait for one that leads a change, by what chance says of them."""

    def strike(self, fault: Fault) -> None:
        """Let a fault happen."""
        lasts, until = fault.for_ms * MILLISECOND, self._system.now + fault.for_ms * MILLISECOND
        pick = fault.pick
        self._system.counts[fault.kind] += 1
        if fault.kind == "replace":
            self._replace(pick)
            return
        if fault.kind in JOINS:
            name = self._name_joiner()
            give_up = self._system.now + lasts // 4 if fault.kind == "cancel" else None
            topology = topology_of(self._system.scenario)
            separators = () if topology is None else topology.separators
            member = separators[pick % len(separators)][0] if separators else None
            wish = Wish(name, give_up, member)
            wish.strikes = pick >> 8 | 1 if fault.kind == "sponsor" else 0
            self._system.operators.joins.append(wish)
            return
        if fault.kind == "partition":
            part = frozenset(place for place in range(30) if pick >> place & 1)
            self._system.network.parts.append(part)
            self._system.at(until, lambda: self._system.network.heal(part))
            return
        if fault.kind == "strike":
            self.strikes.append(pick)
            return
        living = [
            node for node in self._system.nodes if node is not None and not node.dead and not node.retired
        ]
        if fault.kind == "die" and PROTOCOLS[self._system.scenario.protocol].routed:
            living = [node for node in living if node.place not in self._system.processes] or living
        node = living[pick % len(living)]
        self._hurt(node, fault, until)

    def _name_joiner(self) -> str:
        return f"j{sum(self._system.counts[kind] for kind in JOINS)}"

    def _replace(self, pick: int) -> None:
        """Let all that forward of a separator die for good, and another take their place (case iv)."""
        newest = max(
            self._system.operators.members(), key=lambda node: node.core.changing.roll.number, default=None
        )
        topology = None if newest is None else newest.core.changing.roll.topology
        stations = [] if topology is None else [one for one in topology.stations if one.separator]
        if not stations:
            return
        station = stations[pick % len(stations)]
        living = [one for one in self._system.operators.living() if one.place in station.members]
        witnessed = any(one.place in station.witnesses for one in living)
        forward = [one for one in living if one.place not in station.witnesses]
        ready = all(
            isinstance(one.core.machine, Separator) and not one.core.machine.joining for one in forward
        )
        busy = any(self._system.operators.joins) or any(self._system.operators.wishes)
        if not forward or not ready or busy or not (witnessed or self._system.scenario.topology == "star"):
            return
        last = forward[-1]
        for one in forward:
            self._system.bury(one)
            self._system.operators.remove(one.name)
        memory = None
        if not witnessed and pick >> 8 & 1:
            memory = last.read_memory
        elif not witnessed:
            self._system.judge.forgets = True
        self._system.counts[
            "by a witness" if witnessed else "by a checkpoint" if memory is None else "by a journal"
        ] += 1
        self._system.operators.joins.append(Wish(self._name_joiner(), None, last.name, memory))

    def _hurt(self, node: SimNode, fault: Fault, until: int) -> None:
        pick = fault.pick >> 8
        match fault.kind:
            case "kill" | "outage" | "limits" | "flip":
                if fault.kind == "limits":
                    node.limits = SMALLER if pick & 1 else LIMITS
                if node.up:
                    self._arm(node, pick)
                if fault.kind == "outage" or fault.kind == "flip":
                    self._system.at(
                        self._system.now + 1 + pick % MILLISECOND, lambda: self._ruin(node, fault.kind)
                    )
            case "pause":
                node.paused_until = until
            case "full":
                node.full_until = until
            case "sync":
                node.disk.syncs_fail = 1 + pick % 2
            case "slow":
                node.slow_until = until
            case "jump":
                node.offset += pick << 20
                node.wall += (pick - (1 << 21)) * SECOND
            case "lazy":
                node.lazy_until = until
            case "silent":
                node.silent_until = until
            case "leave" | "linger" if self._system.operators.can_spare(node) and node.up and node.is_member:
                node.leaving, node.lingers = True, fault.kind == "linger"
            case "die" if self._system.operators.can_spare(node):
                self._system.bury(node)
                self._system.operators.remove(node.name)
            case "suspect" if self._system.operators.can_spare(node) and node.up and node.is_member:
                node.expelled = False
                self._system.operators.remove(node.name)

    def _arm(self, node: SimNode, pick: int) -> None:
        """It dies some effects from now, or at once."""
        node.fuse, node.fate = 1 + pick % 97, "kill"

    def _ruin(self, node: SimNode, kind: str) -> None:
        """The power fails, or a bit flips, while the process does not run."""
        if node.dead or node.retired:
            return
        if node.up:
            self._system.crash(node)
        if kind == "flip":
            self._flip(node)
            return
        if self._system.scenario.sync == "normal":
            if not self._system.operators.can_spare(node):
                return
            node.disk.lose_power()
            # It may have forgotten what it told others: whoever runs it so is told by the log, and removes it.
            self._system.bury(node)
            self._system.operators.remove(node.name)
            return
        node.disk.lose_power()

    def _flip(self, node: SimNode) -> None:
        scenario = self._system.scenario

        def recover(flipped: bool) -> dict[str, Any] | None:
            disk = node.disk.clone()
            if flipped:
                disk.flip()
            journal = Journal(disk, "journal", scenario.sync, scenario.snapshot_inputs)
            try:
                return journal.recover(node._new()).snapshot()
            except BadJournal:
                return None

        try:
            found = recover(True)
        except RAISED as error:
            self._system.judge.find(
                "damaged", f"{node.name}: a flipped bit raises {type(error).__name__}: {error}"
            )
            return
        if found is not None and found != recover(False):
            self._system.judge.find("damaged", f"{node.name}: a flipped bit gives another process")

    def end(self) -> None:
        """Nothing goes wrong any more."""
        self._system.calm = True
        self.strikes.clear()
        self._system.network.parts.clear()
        for node in self._system.nodes:
            if node is None:
                continue
            node.paused_until = node.lazy_until = node.silent_until = node.slow_until = node.full_until = 0
            node.disk.syncs_fail = node.fuse = 0
            node.last_words = None
            node.limits = None
            self._system.restart(node)
