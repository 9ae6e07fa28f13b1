"""Reliable links between the processes of a run, and the faults that they are for.

`Links` stands between machines and network: every packet is the payload of an `antecede.link`, so whatever the network
loses, repeats or reorders, a machine receives each packet once (and in order if its protocol relies on that).
`Troubles` makes the faults of a run happen. A process that crashes loses its machine and the ends of its links; both
come back from its journal, the ends as new incarnations, and what was in flight is sent again by the other side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from antecede.errors import BadParameter
from antecede.link import Frame, Link
from antecede.model import Packet, View
from antecede.protocols import Machine, restore
from antecede.sim.chance import Words, pick
from antecede.sim.delays import Delay
from antecede.sim.engine import Engine
from antecede.sim.faults import Always, Fault, Outage, Partition, Random, check, needs_journal, needs_links
from antecede.sim.journal import Journal, Journaled

__all__ = ["FRAME_BYTES", "Links", "Troubles", "install"]

FRAME_BYTES = 12
"""What a frame adds to its packet: incarnations, number, acknowledgement. Stated, as no wire has been built for it."""


class End:
    """One end of a link: at a process, towards a peer."""

    __slots__ = ("journal", "link", "peer", "process", "wake")

    def __init__(self, process: int, peer: int, link: Link, journal: Journal | None) -> None:
        self.process, self.peer, self.link, self.journal = process, peer, link, journal
        self.wake: int | None = None
        """When its next tick stands in the heap."""


class Links:
    """Carries the packets of all machines, a link for each pair of processes that talk."""

    def __init__(self, engine: Engine, ordered: bool = False, window: int = 256) -> None:
        self.engine, self.ordered, self.window = engine, ordered, window
        self.journals: dict[int, Journal] = {}
        """Of the processes that may crash."""
        self._ends: dict[tuple[int, int], End] = {}
        """By process and peer."""
        self.taken = self.handed_over = 0
        """Packets: at the end of a run, as many of the one as of the other."""
        self._resent = 0
        """By ends that crashed."""

    @property
    def resent(self) -> int:
        return self._resent + sum(end.link.resent for end in self._ends.values())

    def send(self, now: int, packet: Packet[Any], size: int) -> None:
        """A machine transmits a packet."""
        end = self._ends.get((packet.source, packet.dest)) or self._open(packet.source, packet.dest)
        payload = (packet, size)
        self.taken += 1
        if end.journal is not None:
            end.journal.write(end.peer, "send", payload, now)
        self._transmit(end, end.link.send(payload, now))

    def _open(self, process: int, peer: int) -> End:
        # An acknowledgement waits for the end of its event: see `arrive`.
        link = Link(window=self.window, ordered=self.ordered, ack_delay_ns=1)
        journal = self.journals.get(process)
        if journal is not None:
            journal.add(peer, link, Link.restore)
        end = self._ends[process, peer] = End(process, peer, link, journal)
        return end

    def _transmit(self, end: End, frames: list[Frame]) -> None:
        """Let frames out, now that what they follow from is durable, and see to the next tick."""
        if end.journal is not None:
            end.journal.commit()
        for frame in frames:
            size = FRAME_BYTES if frame.bare else FRAME_BYTES + frame.payload[1]
            self.engine.carry(end.process, end.peer, size, _Arrival(self, end.peer, end.process, frame))
        self._see_to(end)

    def _see_to(self, end: End) -> None:
        due = end.link.deadline()
        if due is not None and (end.wake is None or due < end.wake):
            now = self.engine.now
            end.wake = due if due > now else now
            self.engine.at(end.wake, _Tick(self, end))

    def arrive(self, process: int, peer: int, frame: Frame) -> None:
        """A frame of a peer arrives at a process that runs."""
        end = self._ends.get((process, peer)) or self._open(process, peer)
        now = self.engine.now
        if end.journal is not None:
            end.journal.write(peer, "receive", frame, now)
        payloads, frames = end.link.receive(frame, now)
        if frames or not payloads:
            self._transmit(end, frames)
        self.handed_over += len(payloads)
        for packet, _ in payloads:
            self.engine.arrive(packet)
        if payloads:
            # If the machine answered at once, the answer carries the acknowledgement.
            self._transmit(end, end.link.acknowledge())

    def tick(self, end: End, now: int) -> None:
        if end.wake == now:
            end.wake = None
        # Time alone changes nothing that a restart needs: a tick is no input of the journal.
        frames = end.link.tick(now)
        if frames:
            self._transmit(end, frames)
        else:
            self._see_to(end)

    def restart(self, process: int, machines: dict[Any, Any]) -> None:
        """The ends of a process come back as these, in a new incarnation."""
        for end in self._ends.values():
            if end.process == process:
                self._resent += end.link.resent
                end.link = machines[end.peer]
                end.link.restart()
                self._see_to(end)
        # A new incarnation is a change of state like any other: durable before anyone hears of it.
        self.journals[process].compact()


class _Arrival:
    """A frame on its way. What happens at a process waits or is lost while the process does not run."""

    __slots__ = ("frame", "links", "peer", "process")

    def __init__(self, links: Links, process: int, peer: int, frame: Frame) -> None:
        self.links, self.process, self.peer, self.frame = links, process, peer, frame

    def __call__(self, now: int) -> None:
        engine = self.links.engine
        if engine.stalled(self.process):
            engine._put_off(self.process, self)
        else:
            self.links.arrive(self.process, self.peer, self.frame)


class _Tick:
    __slots__ = ("end", "links")

    def __init__(self, links: Links, end: End) -> None:
        self.links, self.end = links, end

    def __call__(self, now: int) -> None:
        engine, end = self.links.engine, self.end
        if engine.stalled(end.process):
            end.wake = None
            engine._put_off(end.process, self)
        else:
            self.links.tick(end, now)


class Troubles:
    """Makes the faults of a run happen, each at its time."""

    def __init__(self, engine: Engine, faults: Sequence[Fault], view: View, words: Words) -> None:
        self.engine, self.view, self.words = engine, view, words
        self.links: Links | None = None
        self._second = Delay.exponential(10**9)
        self._cuts: list[tuple[tuple[int, ...], ...]] = []
        self._lost: dict[int, Machine] = {}
        """Process that is down -> the machine that it lost, to compare with the one that comes back."""
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
            if not engine.stalled(vertex):
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
        if engine.stalled(process):
            raise BadParameter(
                "faults", f"outage of {self.view.name(process)}", "during another", "one at a time"
            )
        engine.stall(process, lose=crash)
        if not crash:
            engine.at(end, lambda now: engine.resume(process))
            return
        engine.crashes += 1
        self._lost[process] = cast(Journaled, engine.machines[process]).machine
        engine.at(end, lambda now: self._recover(process))

    def _recover(self, process: int) -> None:
        assert self.links is not None
        journal = self.links.journals[process]
        machines = journal.recover()
        machine = machines["machine"]
        assert machine.snapshot() == self._lost.pop(process).snapshot(), "a journal gives back what was lost"
        self.engine.replace(process, cast(Machine, Journaled(machine, journal)))
        self.links.restart(process, machines)
        self.engine.resume(process)


def install(engine: Engine, faults: Sequence[Fault], view: View, words: Words, every: int = 1000) -> None:
    """Let these faults happen in a run that has not begun, with links and journals as far as they need them.

    A journal takes a snapshot after every so many inputs.
    """
    check(faults, view)
    troubles = Troubles(engine, faults, view, words)
    if needs_links(faults) or not engine.network.reliable:
        troubles.links = Links(engine, any(machine.needs_fifo for machine in engine.machines))
        engine.carrier = troubles.links
    if needs_journal(faults):
        assert troubles.links is not None
        for process, machine in enumerate(engine.machines):
            journal = troubles.links.journals[process] = Journal(every)
            journal.add("machine", machine, restore)
            engine.replace(process, cast(Machine, Journaled(machine, journal)))
