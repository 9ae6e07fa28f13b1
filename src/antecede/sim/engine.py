"""The event loop: it drives the machines of `antecede.protocols` through a simulated network, and nothing else.

Time is an integer of nanoseconds. What is to happen stands in one heap as (time, sequence, thing, sent); the sequence
decides between things of the same time, so the order is always the same. A thing is
    a Packet      it arrives at its destination
    an int        this process sends on its own account, and then again after a while
    a function    anything else; it is called with the time
`sent` is -1, but for a packet that is the only copy of its message and left as that was sent: then it is when.
An application delivers what is eligible at once, unless the workload takes that over (`Script`).

An event is a send, a receive or a delivery; `record` is called for each, in an order that extends happened-before. A
message is kept here from its send until its last copy is delivered, and no longer: memory does not grow with the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush, heapreplace
from itertools import count
from typing import Any, Protocol

from antecede.model import Effect, Message, Packet
from antecede.protocols import Machine
from antecede.sim.delays import Delay
from antecede.sim.network import Network
from antecede.sim.sizes import Sizes, brief
from antecede.sim.summary import Histogram, Summary
from antecede.sim.waits import Waits
from antecede.sim.workloads import Workload
from antecede.trace.schema import ABSENT, DELIVER, RECEIVE, SEND

__all__ = ["Carrier", "Engine", "Observe", "Record"]

Record = Callable[..., None]
"""Called for each event as `TraceWriter.append` is, with a clock that counts the events of the run."""

Observe = Callable[[int, Packet[Any], int, int], None]
"""Called for each packet that a machine transmits: time, packet, entries and bytes of its stamp."""


class Carrier(Protocol):
    """What can stand between machines and network: it must see to it that each packet arrives once.

    It says of each packet when it leaves (`Engine.account`) and when it has arrived (`Engine.received`).
    """

    frames: int
    frame_bytes: int

    @property
    def resent(self) -> int: ...

    def send(self, now: int, packet: Packet[Any]) -> None: ...


class Engine:
    """A run. `advance` takes it a number of steps further, until `finished`."""

    def __init__(
        self,
        machines: Sequence[Machine],
        network: Network,
        workload: Workload,
        messages: int,
        *,
        record: Record | None = None,
        observe: Observe | None = None,
        routed: bool = False,
    ) -> None:
        self.machines = list(machines)
        self.applications = len(workload.view)
        """The first so many are processes of the application; the others are routers."""
        self.network = network
        self.workload = workload
        self.messages = messages
        """How many may be sent in all."""
        self.carrier: Carrier | None = None
        self.record, self.observe = record, observe
        self.now = self.sent = self.clock = 0
        self.control_packets = self.control_bytes = self.crashes = 0
        self.entries, self.bytes = Histogram(), Histogram()
        self.delays, self.waiting = Histogram(), Histogram()
        self.waits = Waits(self.applications, routed)
        self.sizes = Sizes()
        self._further = 0
        """Copies beyond the first of each message."""
        self._heap: list[tuple[int, int, Any, int]] = []
        self._sequence = count()
        self._controls = [0] * len(machines)
        """How many control packets each has sent: their numbers in the trace."""
        self._under_way: dict[Any, list[int]] = {}
        """A control packet that has not arrived -> its number; equal ones arrive in any order."""
        self._stalled: dict[int, list[Any] | None] = {}
        """Process that is not running -> what came for it meanwhile, or None if that is lost."""
        self._plain: Delay | None = None
        """While `_race` is at work: the delay that is all there is to the network."""
        self._timed = any(machine.timed for machine in machines)
        """Whether machines are told the time before each input."""
        self._brief = brief(machines[0].stamps)
        """Whether stamps can be measured together: they are small enough to be kept for a while."""
        self._last_stamp: Any = None
        self._last_size = (0, 0)
        for process in workload.starters():
            self.at(workload.first(), process)

    # What a driver asks

    @property
    def finished(self) -> bool:
        """Whether nothing can happen any more. A workload may then have more to do."""
        if not self._heap:
            self.workload.idle(self)
        return not self._heap

    @property
    def expected(self) -> int:
        """Copies of all that was sent."""
        return self.sent + self._further

    @property
    def delivered(self) -> int:
        """Copies."""
        return self.delays.size

    def at(self, time: int, thing: Any) -> None:
        """Have something happen: see above."""
        heappush(self._heap, (time, next(self._sequence), thing, -1))

    def advance(self, steps: int) -> None:
        """Take up to so many things from the heap."""
        delay = self.network.uniform
        extras = self.observe, self.carrier, self.workload.offer
        if self.waits.routed or self._timed or any(extra is not None for extra in extras):
            delay = None
        self._plain = delay
        if delay is None:
            self._advance(steps)
        else:
            self._race(steps, delay)
        self._plain = None
        for histogram in (self.entries, self.bytes, self.delays, self.waiting):
            histogram.fold()

    def _advance(self, steps: int) -> None:
        while self._heap and steps:
            steps -= 1
            self._step()

    def _step(self) -> None:
        self.now, _, thing, sent = heappop(self._heap)
        kind = type(thing)
        if kind is Packet:
            if sent >= 0:
                self.waits.note_sent(sent, thing.message)
            if thing.dest in self._stalled:
                self.put_off(thing.dest, thing)
            else:
                self.arrive(thing)
        elif kind is int:
            self._own_account(thing)
        else:
            thing(self.now)

    def _race(self, steps: int, delay: Delay) -> None:
        """The same where there is nothing but machines and one kind of delay: what happens most, written out.

        What happens most is a message to one process that leaves as it is sent and is delivered as it arrives. Nothing
        is kept of it but what stands in the heap, and what need not be known at once is counted together at the end.
        """
        heap, stalled, machines, waits = self._heap, self._stalled, self.machines, self.waits
        sequence, record, sized = self._sequence, self.record, self._size
        words, values, shift = self.network.words, delay.values, delay.shift
        draft, choices, gap = self.workload.draft, self.workload.words, self.workload.gap
        gaps, gap_shift, reacts = gap.values, gap.shift, self.workload.reacts
        note_delay = self.delays.values.append
        note_entries, note_bytes = self.entries.values.append, self.bytes.values.append
        stamps: list[Any] | None = [] if self._brief else None
        prompt = 0
        for _ in range(steps):
            if not heap:
                break
            # What is at work stays at the head: all that it leads to comes later.
            now, _, thing, sent = heap[0]
            self.now = now
            if sent >= 0 and not stalled:
                heappop(heap)
                process, message = thing.dest, thing.message
                machine = machines[process]
                effects = machine.receive(thing)
                if record is not None:
                    self._record_receive(thing)
                if effects and effects[0] is message:
                    if len(effects) > 1:
                        # What a machine asks for besides are packets, and they leave before its next input.
                        self.follow(process, effects[1:])
                    effects = machine.deliver(message)
                    note_delay(now - sent)
                    prompt += 1
                    if record is not None:
                        self._record_event(record, process, DELIVER, message.sender, message.number)
                    if reacts:
                        effects = self._react(process, message, effects)
                else:
                    waits.note_sent(sent, message)
                    waits.note_arrived(now, thing)
                if effects:
                    self.follow(process, effects)
            elif type(thing) is int and not stalled and self.sent < self.messages:
                to, payload = draft(thing)
                message, effects = machines[thing].send(to, payload)
                self.sent += 1
                if record is not None:
                    self._record_send(message, effects)
                if len(effects) == 1 and len(to) == 1 and type(packet := effects[0]) is Packet:
                    if stamps is not None:
                        stamps.append(packet.stamp)
                    else:
                        entries, size = sized(packet)
                        note_entries(entries)
                        note_bytes(size)
                    heappush(heap, (now + values[next(words) >> shift], next(sequence), packet, now))
                else:
                    self._further += len(to) - 1
                    waits.note_sent(now, message)
                    self.follow(thing, effects)
                heapreplace(heap, (now + gaps[next(choices) >> gap_shift], next(sequence), thing, -1))
            elif type(thing) is Packet and not stalled:
                heappop(heap)
                self.arrive(thing)
            else:
                self._step()
        self.waiting.add(0, prompt)
        if stamps:
            self.entries.add(stamps[0].entries(len(machines)), len(stamps))
            for size, times in self.sizes.many(stamps).items():
                self.bytes.add(size, times)

    def send(self, process: int, to: tuple[int, ...], payload: bytes, label: str = "") -> Message:
        """The application of a process sends, now."""
        message, effects = self._send(process, to, payload, label)
        self.follow(process, effects)
        return message

    def deliver(self, process: int, message: Message) -> None:
        """The application of a process takes an eligible message, now."""
        self.follow(process, self._deliver(process, message))

    def arrive(self, packet: Packet[Any]) -> None:
        """A packet arrives, now."""
        effects = self._tell_time(packet.dest).receive(packet)
        self.note_received(packet)
        if effects:
            self.follow(packet.dest, effects)

    def note_received(self, packet: Packet[Any]) -> None:
        """A machine has received a packet, now."""
        if self.record is not None:
            self._record_receive(packet)
        if packet.message is not None:
            self.waits.note_arrived(self.now, packet)

    def carry(self, source: int, dest: int, size: int, thing: Any) -> None:
        """Have something happen when a packet of this size, sent now, arrives: perhaps never, perhaps twice."""
        for time in self.network.transmit(self.now, source, dest, size):
            self.at(time, thing)

    # Processes that do not run

    def stall(self, process: int, lose: bool = False) -> None:
        """From now on this process does nothing; what comes for it waits, or is lost."""
        self._stalled[process] = None if lose else []

    def resume(self, process: int) -> None:
        for thing in self._stalled.pop(process, None) or ():
            self.at(self.now, thing)

    def is_stalled(self, process: int) -> bool:
        return process in self._stalled

    def replace(self, process: int, machine: Machine) -> None:
        """Another machine stands for this process from now on."""
        self.machines[process] = machine

    def put_off(self, process: int, thing: Any) -> None:
        missed = self._stalled[process]
        if missed is not None:
            missed.append(thing)

    # What happens

    def _own_account(self, process: int) -> None:
        """A process sends on its own account, and will again."""
        if self.sent >= self.messages:
            return
        workload = self.workload
        if self._stalled and process in self._stalled:
            # Its application is not running either: it goes on when it can.
            missed = self._stalled[process]
            if missed is not None:
                missed.append(process)
                return
        else:
            to, payload = workload.draft(process)
            effects = self._send(process, to, payload)[1]
            if effects:
                self.follow(process, effects)
        gap = workload.gap
        self.at(self.now + gap.draw(workload.words), process)

    def _send(
        self, process: int, to: tuple[int, ...], payload: bytes, label: str = ""
    ) -> tuple[Message, list[Effect]]:
        message, effects = self._tell_time(process).send(to, payload, label)
        self.sent += 1
        self._further += len(to) - 1
        self.waits.note_sent(self.now, message)
        if self.record is not None:
            self._record_send(message, effects)
        return message, effects

    def _deliver(self, process: int, message: Message) -> list[Effect]:
        effects = self._tell_time(process).deliver(message)
        delay, wait = self.waits.note_delivered(self.now, process, message)
        self.delays.values.append(delay)
        self.waiting.values.append(wait)
        if self.record is not None:
            self._record_event(self.record, process, DELIVER, message.sender, message.number)
        return self._react(process, message, effects) if self.workload.reacts else effects

    def _tell_time(self, process: int) -> Machine:
        """The machine of a process, which knows how late it is if it has to."""
        machine = self.machines[process]
        if self._timed:
            machine.pass_time(self.now)
        return machine

    def _react(self, process: int, message: Message, effects: list[Effect]) -> list[Effect]:
        for to, payload in self.workload.follow(process, message):
            if self.sent < self.messages:
                effects = effects + self._send(process, to, payload)[1]
        return effects

    def follow(self, process: int, effects: list[Effect]) -> None:
        """Do what a machine asks."""
        offer = self.workload.offer
        eligible: list[Message] = []
        taken = 0
        while True:
            for effect in effects:
                if isinstance(effect, Packet):
                    self._transmit(effect)
                else:
                    eligible.append(effect)
            if taken == len(eligible):
                return
            # Packets leave before the machine gets its next input: on channels that do not reorder, their order counts.
            message = eligible[taken]
            taken += 1
            if offer is None:
                effects = self._deliver(process, message)
            else:
                self.waits.note_offered(self.now, process, message)
                offer(self, process, message)
                effects = []

    def _transmit(self, packet: Packet[Any]) -> None:
        now = self.now
        if self.carrier is not None:
            self.carrier.send(now, packet)
            return
        self.account(packet)
        if self._plain is not None:
            delay = self._plain
            time = now + delay.values[next(self.network.words) >> delay.shift]
            heappush(self._heap, (time, next(self._sequence), packet, -1))
            return
        network = self.network
        whole = self.sizes.packet(packet) if network.bandwidth else 0
        for time in network.transmit(now, packet.source, packet.dest, whole):
            heappush(self._heap, (time, next(self._sequence), packet, -1))

    def account(self, packet: Packet[Any]) -> None:
        """A packet leaves, now."""
        message = packet.message
        entries, size = self._size(packet)
        if message is None:
            self._control(packet, entries, size)
        else:
            self.entries.values.append(entries)
            self.bytes.values.append(size)
            self.waits.note_transmitted(self.now, packet, message)
        if self.observe is not None:
            self.observe(self.now, packet, entries, size)

    def _size(self, packet: Packet[Any]) -> tuple[int, int]:
        """Entries and bytes of its stamp; the copies of a message often share one."""
        if packet.stamp is not self._last_stamp:
            self._last_stamp = packet.stamp
            self._last_size = packet.stamp.entries(len(self.machines)), self.sizes.stamp(packet)
        return self._last_size

    def _control(self, packet: Packet[Any], entries: int, size: int) -> None:
        source = packet.source
        self.control_packets += 1
        self.control_bytes += size
        if self.record is not None and max(source, packet.dest) < self.applications:
            self._controls[source] += 1
            number = self._controls[source]
            self._under_way.setdefault(self._identify(packet), []).append(number)
            self._record_event(self.record, source, SEND, source, number, (packet.dest,), True, entries, size)

    def _identify(self, packet: Packet[Any]) -> Any:
        """How a control packet is known until it arrives: a carrier makes another of its bytes."""
        return id(packet) if self.carrier is None else (packet.source, packet.dest, packet.stamp)

    # The trace

    def _record_event(
        self,
        record: Record,
        process: int,
        kind: int,
        sender: int,
        number: int,
        to: tuple[int, ...] | None = None,
        control: bool = False,
        entries: int = ABSENT,
        size: int = ABSENT,
        label: str = "",
    ) -> None:
        if process < self.applications:  # Routers are no part of a trace.
            record(process, kind, sender, number, to, control, self.now, self.clock, entries, size, label)
            self.clock += 1

    def _record_send(self, message: Message, effects: list[Effect]) -> None:
        """With the size of the largest stamp among the copies that leave at once, if any does."""
        assert self.record is not None
        sender, number = message.sender, message.number
        copies = [
            e for e in effects if type(e) is Packet and e.message is not None and e.message.id == message.id
        ]
        sizes = [self._size(packet) for packet in copies]
        entries, size = max(sizes, default=(ABSENT, ABSENT))
        self._record_event(
            self.record, sender, SEND, sender, number, message.to, False, entries, size, message.label
        )

    def _record_receive(self, packet: Packet[Any]) -> None:
        """Packets that only pass by, on their way to others, are no event of the application."""
        assert self.record is not None
        message = packet.message
        if message is None:
            if max(packet.source, packet.dest) >= self.applications:
                return  # Routers are no part of a trace.
            name = self._identify(packet)
            number, *rest = self._under_way.pop(name)
            if rest:
                self._under_way[name] = rest
            self._record_event(self.record, packet.dest, RECEIVE, packet.source, number, None, True)
        elif packet.dest in message.to:
            self._record_event(self.record, packet.dest, RECEIVE, message.sender, message.number)

    # What it came to

    def stuck(self) -> list[str]:
        """What waits, and for what, in the words of the machines."""
        lines = []
        for process, machine in enumerate(self.machines):
            for item in machine.waiting():
                name, m = machine.view.name, item.message
                awaits = ", ".join(
                    f"{a.first}..{a.last} of {name(a.sender)} by its {a.counted}'s count" for a in item.awaits
                )
                why = item.reason or (f"waits for {awaits}" if awaits else "waits")
                lines.append(
                    f"{name(process)}: message {m.number} of {name(m.sender)} is {item.where}: {why}"
                )
        return lines

    def summary(self) -> Summary:
        undelivered = self.expected - self.delivered
        return Summary(
            protocol=self.machines[0].name,
            processes=self.applications,
            sent=self.sent,
            delivered=self.delivered,
            undelivered=undelivered,
            held=self.waits.held,
            unsent=self.waits.kept_back,
            packets=self.entries.size,
            control_packets=self.control_packets,
            control_bytes=self.control_bytes,
            stamp_entries=self.entries.distribution(),
            stamp_bytes=self.bytes.distribution(),
            delay_ns=self.delays.distribution(),
            waiting_ns=self.waiting.distribution(),
            waiting_share=self.waiting.total / self.delays.total if self.delays.total else 0.0,
            duration_ns=self.now,
            resent=self.carrier.resent if self.carrier else 0,
            frames=self.carrier.frames if self.carrier else 0,
            frame_bytes=self.carrier.frame_bytes if self.carrier else 0,
            crashes=self.crashes,
            stuck=tuple(self.stuck()) if undelivered and self.finished else (),
        )
