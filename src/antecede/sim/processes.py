"""Whole processes, as nodes run them (`antecede.process`), in place of bare machines: for runs with faults.

`Processes` stands between machines and network. Each process is a `Core`: its machine, its links, and what gathers for
each peer within a moment, which leaves as one frame of a link, in the bytes that nodes send. So whatever the network
loses, repeats or reorders, a machine receives each packet once (and in order if its protocol relies on that).

A process that may crash has a journal: a snapshot, and the inputs since, encoded as on a disk. An input is written as
it is applied, before anything that follows from it leaves. After a crash the process comes back from the bytes of its
journal, by the code that nodes come back by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from antecede.errors import BadParameter
from antecede.link import Frame, Link
from antecede.model import Effect, Id, Message, Packet
from antecede.process.core import Core, Out
from antecede.process.inputs import (
    Acknowledge,
    Arrive,
    Input,
    Restart,
    Send,
    Take,
    Turn,
    decode_inputs,
    encode_inputs,
)
from antecede.process.views.members import Roll
from antecede.protocols import Machine
from antecede.protocols.permit import PermitStamp
from antecede.sim.engine import Engine
from antecede.wire import Limits
from antecede.wire.frames import encode_frame

__all__ = ["Host", "Processes"]

LIMITS = Limits(packet_bytes=1 << 30, payload_bytes=1 << 28, processes=1 << 20, entries=1 << 28)
"""Runs have more processes than systems; what a protocol costs is measured, not limited."""
WINDOW = 256
TIMES = {
    "timeout_ns": 200_000_000,
    "least_timeout_ns": 10_000_000,
    "most_timeout_ns": 60_000_000_000,
    # It waits for the end of the moment: what the machine answers at once carries it.
    "ack_delay_ns": 1,
}


class Watched:
    """A machine inside a process, which shows what it was given and what that led to, since it was last looked at."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._packets: list[Packet[Any]] = []
        self._effects: list[Effect] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.machine, name)

    def send(self, *given: Any) -> tuple[Message, list[Effect]]:
        message, effects = self.machine.send(*given)
        self._effects += effects
        return message, effects

    def receive_all(self, packets: Sequence[Packet[Any]], effects: list[Effect]) -> None:
        self._packets += packets
        self.machine.receive_all(packets, effects)
        self._effects += effects

    def receive_rows(
        self,
        source: int,
        to: tuple[int, ...],
        rows: Sequence[tuple[int, int, bytes]],
        effects: list[Effect],
    ) -> None:
        stamp, me = cast(type[PermitStamp], self.machine.stamps_as_numbers), self.machine.me
        self._packets += [
            Packet(source, me, stamp.from_number(n), Message(source, number, to, payload))
            for number, n, payload in rows
        ]
        self.machine.receive_rows(source, to, rows, effects)
        self._effects += effects

    def deliver(self, message: Message) -> list[Effect]:
        effects = self.machine.deliver(message)
        self._effects += effects
        return effects

    def look(self) -> tuple[list[Packet[Any]], list[Effect]]:
        """Packets that arrived, and effects."""
        seen = self._packets, self._effects
        self._packets, self._effects = [], []
        return seen


class Host:
    """One process of a run: for the engine, a machine. `every` is how many inputs a snapshot takes the place of."""

    def __init__(self, machine: Machine, every: int | None) -> None:
        if every is not None and every < 1:
            raise BadParameter("journal", f"a snapshot must take the place of 1 input or more, not {every}")
        view, me = machine.view, machine.me
        links = {
            peer: Link(window=WINDOW, ordered=machine.needs_fifo, **TIMES)
            for peer in range(len(view))
            if peer != me
        }
        roll = Roll.first(view.names, {})
        self._watch(Core(machine, links, LIMITS, roll, 1, machine.parameters, WINDOW))
        self.now = 0
        self._every = every
        self._state = b""
        self._inputs: list[bytes] = []
        if every is not None:
            self._rest()

    def __getattr__(self, name: str) -> Any:
        """All else is the machine's."""
        return getattr(self.watched.machine, name)

    def _watch(self, core: Core) -> None:
        self.core, self.watched = core, Watched(core.machine)
        core.machine = cast(Machine, self.watched)

    def apply(self, given: Input) -> list[Out]:
        out = self.core.apply(given, self.now)
        if self._every is not None:
            self._inputs.append(encode_inputs([given]))
            if len(self._inputs) >= self._every:
                self._rest()
        return out

    def _rest(self) -> None:
        """A snapshot takes the place of the inputs."""
        self._state, self._inputs = msgspec.msgpack.encode(self.core.snapshot()), []

    def recover(self) -> None:
        """Crash, and be again what the journal says."""
        before = self.core.machine.snapshot()
        core = Core.restore(msgspec.msgpack.decode(self._state))
        for record in self._inputs:
            for given in decode_inputs(record):
                core.apply(given, 0)
        assert core.machine.snapshot() == before, "a journal gives back what was lost"
        self._watch(core)

    # As the engine drives a machine

    def send(
        self, to: tuple[int, ...], payload: bytes = b"", label: str = ""
    ) -> tuple[Message, list[Effect]]:
        self.watched.look()
        self.apply(Send(to, payload, label))
        _, effects = self.watched.look()
        return Message(self.core.me, self.core.sent, to, payload, label), effects

    def deliver(self, message: Message) -> list[Effect]:
        self.watched.look()
        self.apply(Take(message.sender, message.number))
        # The application is done with it at once: after a crash it does not come again.
        self.apply(Acknowledge(message.sender, message.number))
        return self.watched.look()[1]


class Processes:
    """Carries what all processes say: see above."""

    def __init__(self, engine: Engine, every: int | None = None) -> None:
        self.engine = engine
        self.hosts = [Host(machine, every) for machine in engine.machines]
        for process, host in enumerate(self.hosts):
            engine.replace(process, host)  # type: ignore[arg-type]
        self.taken = self.handed_over = 0
        """Packets: at the end of a run, as many of the one as of the other."""
        self.frames = self.frame_bytes = 0
        """That left, those that were sent again among them."""
        self._resent = 0
        """By processes that crashed."""
        self._turning: set[int] = set()
        """Processes of which something leaves at the end of this moment."""
        self._wakes: dict[Id, int] = {}
        """(process, peer) -> when the next tick of its link stands in the heap."""

    @property
    def resent(self) -> int:
        return self._resent + sum(link.resent for host in self.hosts for link in host.core.links.values())

    def send(self, now: int, packet: Packet[Any]) -> None:
        """A machine transmits a packet: it has gathered, and leaves with all others of this moment."""
        self.hosts[packet.source].now = now
        if packet.source not in self._turning:
            self._turning.add(packet.source)
            self.engine.at(now, _Turn(self, packet.source))

    def turn(self, process: int) -> None:
        """Let out what has gathered."""
        self._turning.discard(process)
        host = self.hosts[process]
        if host.core.gathered:
            self._account(host)
            self._transmit(process, host.apply(Turn()))

    def _account(self, host: Host) -> None:
        """What has gathered leaves now."""
        for waiting in host.core.out.values():
            for packet in waiting.packets():
                self.taken += 1
                self.engine.account(packet)

    def _transmit(self, process: int, out: list[Out]) -> None:
        """Let frames out, and see to the next ticks."""
        bandwidth, peers = self.engine.network.bandwidth, set()
        for peer, frame in out:
            size = len(encode_frame(frame, (frame.epoch, frame.peer), LIMITS))
            self.frames += 1
            self.frame_bytes += size
            self.engine.carry(process, peer, size if bandwidth else 0, _Arrival(self, peer, process, frame))
            peers.add(peer)
        for peer in sorted(peers):
            self._see_to(process, peer)

    def _see_to(self, process: int, peer: int) -> None:
        due, wake = self.hosts[process].core.links[peer].deadline(), self._wakes.get((process, peer))
        if due is not None and (wake is None or due < wake):
            self._wakes[process, peer] = time = max(due, self.engine.now)
            self.engine.at(time, _Tick(self, process, peer))

    def arrive(self, process: int, peer: int, frame: Frame) -> None:
        """A frame of a peer arrives at a process that runs."""
        host = self.hosts[process]
        host.now = self.engine.now
        host.watched.look()
        if frame.bare and not frame.greets:
            # No input of the journal: what it teaches can be had again.
            out = host.core.arrive(peer, frame, host.now)
        else:
            out = host.apply(Arrive.of(peer, frame))
        for refused in host.core.refused.values():
            raise refused
        packets, effects = host.watched.look()
        self.handed_over += len(packets)
        for packet in packets:
            self.engine.note_received(packet)
        if effects:
            self.engine.follow(process, effects)
        self._transmit(process, out)
        self._see_to(process, peer)

    def tick(self, process: int, peer: int, now: int) -> None:
        if self._wakes.get((process, peer)) == now:
            del self._wakes[process, peer]
        self._transmit(process, self.hosts[process].core.tick(peer, now))
        self._see_to(process, peer)

    def forget_wake(self, process: int, peer: int) -> None:
        self._wakes.pop((process, peer), None)

    def restart(self, process: int) -> None:
        """A process that crashed comes back from its journal, as a new incarnation."""
        host = self.hosts[process]
        self._resent += sum(link.resent for link in host.core.links.values())
        host.recover()
        host.now = self.engine.now
        self._turning.discard(process)
        self._account(host)
        self._transmit(process, host.apply(Restart()))
        host.watched.look()
        for peer in host.core.links:
            self.forget_wake(process, peer)
            self._see_to(process, peer)


class _Event:
    """Something that happens at a process: it waits, or is lost, while the process does not run."""

    __slots__ = ("process", "processes")

    def __init__(self, processes: Processes, process: int) -> None:
        self.processes, self.process = processes, process

    def __call__(self, now: int) -> None:
        engine = self.processes.engine
        if engine.is_stalled(self.process):
            self._miss()
            engine.put_off(self.process, self)
        else:
            self._happen(now)

    def _miss(self) -> None:
        """The process does not run."""

    def _happen(self, now: int) -> None:
        raise NotImplementedError


class _Turn(_Event):
    __slots__ = ()

    def _happen(self, now: int) -> None:
        self.processes.turn(self.process)


class _Arrival(_Event):
    __slots__ = ("frame", "peer")

    def __init__(self, processes: Processes, process: int, peer: int, frame: Frame) -> None:
        super().__init__(processes, process)
        self.peer, self.frame = peer, frame

    def _happen(self, now: int) -> None:
        self.processes.arrive(self.process, self.peer, self.frame)


class _Tick(_Event):
    __slots__ = ("peer",)

    def __init__(self, processes: Processes, process: int, peer: int) -> None:
        super().__init__(processes, process)
        self.peer = peer

    def _miss(self) -> None:
        self.processes.forget_wake(self.process, self.peer)

    def _happen(self, now: int) -> None:
        self.processes.tick(self.process, self.peer, now)
