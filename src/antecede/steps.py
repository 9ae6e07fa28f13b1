"""What one process can do next, worked out once and remembered: the explorer's table of local steps.

Machines are deterministic, so a step depends only on the local state and the input. Local states are interned as
integers, and each machine runs once for each (local state, input), over all the programs of a check: a step of the
whole system is then a few look-ups.

A local state is the machine's state, the position in the script, and three ghosts, which no protocol sees:
  past       the messages that happened before, here and now (for each label apart: only messages of the same label
             make an order there, Rodrigues & Veríssimo 1995, chapter 6)
  delivered  the messages delivered here
  known      of each message that is here, the past of its send
Ghosts are kept by program order and message edges alone, so the check shares nothing with the stamps. Sets of
messages are the bits of an integer; a message's bit does not depend on the program.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from antecede.errors import AntecedeError
from antecede.model import Id, Message, Packet, Stamp
from antecede.program import Receive, Send, Step
from antecede.protocols import Machine
from antecede.protocols.queue import Queue

__all__ = [
    "Arrival",
    "Entry",
    "Fault",
    "Local",
    "Make",
    "Move",
    "Order",
    "Posted",
    "Steps",
    "bit",
    "describe_crash",
    "identity",
]

Make: TypeAlias = Callable[[int], Machine]
"""The machine of a process (or of a router), by its position in the view."""

Order: TypeAlias = Literal["causal", "fifo", "none"]


Posted: TypeAlias = tuple[tuple[int, int], ...]
"""Transmitted packets: (destination, packet)."""


class Local(NamedTuple):
    """A local state."""

    vertex: int
    machine: int
    """The machine's state, interned."""
    position: int
    """How many steps of the script are done."""
    past: tuple[tuple[str, int], ...]
    """For each label, the messages that happened before."""
    delivered: int
    known: tuple[tuple[int, int], ...]


class Fault(NamedTuple):
    """A step that no correct machine makes."""

    kind: Literal["duplicate", "unaddressed", "refused", "broken"]
    why: str


class Move(NamedTuple):
    """One thing that a process can do: its next send, or a delivery."""

    local: int
    """The local state afterwards."""
    packets: Posted
    suspects: int
    """On a delivery: what happened before the message and was not delivered here. Bad if it is addressed here."""
    number: int
    """The bit number of the message that is sent or delivered."""
    deliver: bool
    fault: Fault | None = None


class Arrival(NamedTuple):
    """What the arrival of a packet makes of a local state, and what is transmitted in answer."""

    local: int
    packets: Posted
    fault: Fault | None = None


class Entry(NamedTuple):
    """What a process can do in a local state."""

    moves: tuple[Move, ...]
    situation: int
    """Bit 0: it can do something. Bit q + 1: its script may still send to q."""


def bit(message: Id, n: int) -> int:
    """The bit number of a message among those of n processes.

    >>> bit((1, 1), 3), bit((1, 2), 3), identity(4, 3)
    (1, 4, (1, 2))
    """
    return (message[1] - 1) * n + message[0]


def identity(number: int, n: int) -> Id:
    return number % n, number // n + 1


class Steps:
    """The tables of one protocol: shared by all the programs that are explored with it."""

    def __init__(self, make: Make, order: Order = "causal") -> None:
        self.make = make
        self.n = make(0).n
        self.order = order
        first = make(0)
        self.judged = [first.orders_at(vertex) for vertex in range(self.n)]
        control = any(stamp.control for stamp in first.stamps)
        self.commute = first.arrivals_commute and not first.needs_fifo
        self.fifo = first.needs_fifo
        self.queues = isinstance(first, Queue)
        """Only one message is eligible at a time, arrivals do not change which, deliveries transmit nothing."""
        self.commuting: tuple[type[Stamp], ...] = getattr(first, "commuting", ())
        """The stamps of packets whose arrival commutes with all that can happen at its process."""
        self.direct = self.commute and not control
        """Packets leave only when the application sends, and go straight to the message's destinations."""
        self.clear()

    def clear(self) -> None:
        """Forget everything, to give memory back."""
        self.locals: list[Local] = []
        self.packets: list[tuple[Packet[Any], int]] = []
        """Each packet that was ever transmitted, with the past of its message."""
        self.channels: list[tuple[int, int]] = []
        self.urgent: list[bool] = []
        """Of each packet: its channel, and whether its arrival commutes with all else."""
        self._local_ids: dict[Local, int] = {}
        self._packet_ids: dict[tuple[bytes, int], int] = {}
        self._states: list[tuple[int, bytes]] = []
        self._state_ids: dict[tuple[int, bytes], int] = {}
        self._runs: dict[tuple[Any, ...], tuple[int, list[Packet[Any]]] | Fault] = {}
        self._eligible: list[tuple[Message, ...]] = []
        self._holds: dict[int, bool] = {}
        self.arrivals: dict[tuple[int, int], Arrival] = {}
        self._entries: dict[tuple[tuple[Step, ...], tuple[int, ...]], dict[int, Entry]] = {}

    def __len__(self) -> int:
        return len(self.locals)

    # Local states

    def start(self, vertex: int) -> int:
        return self._intern(Local(vertex, self._freeze(vertex, self.make(vertex)), 0, (), 0, ()))

    def _intern(self, local: Local) -> int:
        number = self._local_ids.get(local)
        if number is None:
            number = self._local_ids[local] = len(self.locals)
            self.locals.append(local)
        return number

    def _freeze(self, vertex: int, machine: Machine) -> int:
        plain = machine.dump()
        frozen = (vertex, msgspec.msgpack.encode(plain))
        number = self._state_ids.get(frozen)
        if number is None:
            # The same state may have been filled in another order.
            canonical = (vertex, msgspec.msgpack.encode(_in_order(plain)))
            number = self._state_ids.setdefault(canonical, len(self._states))
            if number == len(self._states):
                self._states.append(canonical)
                self._eligible.append(tuple(machine.eligible()))
            self._state_ids[frozen] = number
        return number

    def thaw(self, state: int) -> Machine:
        """A machine in this state."""
        vertex, frozen = self._states[state]
        machine = self.make(vertex)
        machine.load(msgspec.msgpack.decode(frozen))
        return machine

    def holds(self, local: int) -> bool:
        """Whether something is stuck in this local state."""
        state = self.locals[local].machine
        found = self._holds.get(state)
        if found is None:
            machine = self.thaw(state)
            found = self._holds[state] = bool(machine.waiting() or machine.eligible())
        return found

    # Steps

    def entries(self, script: tuple[Step, ...], after: tuple[int, ...]) -> dict[int, Entry]:
        """The table of a script, to be filled by `entry`. `after` has the messages (a mask) each step waits for."""
        return self._entries.setdefault((script, after), {})

    def entry(self, local: int, script: tuple[Step, ...], after: tuple[int, ...]) -> Entry:
        """What a process can do in a local state."""
        state = self.locals[local]
        moves = []
        targets = 0
        for step in script[state.position :]:
            if isinstance(step, Send):
                for dest in step.to:
                    targets |= 1 << dest
        step_now = script[state.position] if state.position < len(script) else None
        if isinstance(step_now, Send) and not after[state.position] & ~state.delivered:
            earlier = sum(isinstance(step, Send) for step in script[: state.position])
            moves.append(self._send(state, step_now, bit((state.vertex, earlier + 1), self.n)))
        receives = any(isinstance(step, Receive) for step in script)
        if step_now is None or not receives or isinstance(step_now, Receive):
            wanted = after[state.position] if isinstance(step_now, Receive) else 0
            for message in self._eligible[state.machine]:
                if self._wants(step_now, wanted, message):
                    moves.append(self._deliver(state, message, isinstance(step_now, Receive)))
        result = Entry(tuple(moves), targets << 1 | bool(moves))
        return self._entries[script, after].setdefault(local, result)

    def _wants(self, step: Step | None, wanted: int, message: Message) -> bool:
        if not isinstance(step, Receive):
            return True
        if step.sender is not None:
            return message.sender == step.sender
        return not wanted or bool(wanted >> bit(message.id, self.n) & 1)

    def _send(self, state: Local, step: Send, number: int) -> Move:
        ran = self._run(state.machine, "send", step.to, step.label)
        if isinstance(ran, Fault):
            return Move(-1, (), 0, number, False, ran)
        machine, sent = ran
        before = dict(state.past).get(step.label, 0)
        known = dict(state.known) | {number: before}
        packets = self._post(sent, known)
        if self.direct and state.vertex not in step.to:
            del known[number]
        past = _grow_past(state.past, step.label, 1 << number)
        local = Local(state.vertex, machine, state.position + 1, past, state.delivered, _sort(known))
        return Move(self._intern(local), packets, 0, number, False)

    def _deliver(self, state: Local, message: Message, by_receive: bool) -> Move:
        number = bit(message.id, self.n)
        ran = self._run(state.machine, "deliver", message)
        if isinstance(ran, Fault):
            return Move(-1, (), 0, number, True, ran)
        if state.delivered >> number & 1:
            return Move(-1, (), 0, number, True, Fault("duplicate", "it was delivered here before"))
        if state.vertex not in message.to:
            return Move(-1, (), 0, number, True, Fault("unaddressed", "it is addressed to others"))
        machine, sent = ran
        known = dict(state.known)
        before = known[number]
        packets = self._post(sent, known)
        if self.direct:
            del known[number]
        local = Local(
            state.vertex,
            machine,
            state.position + by_receive,
            _grow_past(state.past, message.label, before | 1 << number),
            state.delivered | 1 << number,
            _sort(known),
        )
        suspects = self._suspects(before & ~state.delivered, number) if self.judged[state.vertex] else 0
        return Move(self._intern(local), packets, suspects, number, True)

    def _suspects(self, missing: int, number: int) -> int:
        if self.order == "causal":
            return missing
        if self.order == "none":
            return 0
        same, sender = 0, number % self.n
        while missing:
            low = missing & -missing
            if (low.bit_length() - 1) % self.n == sender:
                same |= low
            missing ^= low
        return same

    def arrive(self, local: int, packet: int) -> Arrival:
        found = self.arrivals.get((local, packet))
        if found is None:
            found = self.arrivals[local, packet] = self._arrive(self.locals[local], packet)
        return found

    def _arrive(self, state: Local, packet: int) -> Arrival:
        value, before = self.packets[packet]
        ran = self._run(state.machine, "receive", packet)
        if isinstance(ran, Fault):
            return Arrival(-1, (), ran)
        machine, sent = ran
        known = dict(state.known)
        if value.message is not None:
            known.setdefault(bit(value.message.id, self.n), before)
        after = state._replace(machine=machine, known=_sort(known))
        return Arrival(self._intern(after), self._post(sent, known))

    def _post(self, packets: list[Packet[Any]], known: dict[int, int]) -> Posted:
        """Transmitted packets, each with the past of its message, as (destination, number)."""
        result = []
        for packet in packets:
            before = 0 if packet.message is None else known[bit(packet.message.id, self.n)]
            key = (msgspec.msgpack.encode([packet, type(packet.stamp).__name__]), before)
            number = self._packet_ids.get(key)
            if number is None:
                number = self._packet_ids[key] = len(self.packets)
                self.packets.append((packet, before))
                self.channels.append((packet.source, packet.dest))
                self.urgent.append(isinstance(packet.stamp, self.commuting))
            result.append((packet.dest, number))
        return tuple(result)

    # The machine itself

    def _run(self, state: int, *call: Any) -> tuple[int, list[Packet[Any]]] | Fault:
        key = (state, *call)
        found = self._runs.get(key)
        if found is None:
            found = self._runs[key] = self._really_run(state, call)
        return found

    def _really_run(self, state: int, call: tuple[Any, ...]) -> tuple[int, list[Packet[Any]]] | Fault:
        machine = self.thaw(state)
        try:
            if call[0] == "send":
                effects = machine.send(call[1], label=call[2])[1]
            elif call[0] == "receive":
                effects = machine.receive(self.packets[call[1]][0])
            else:
                effects = machine.deliver(call[1])
        except AntecedeError as error:
            return Fault("refused", str(error))
        except AssertionError as error:
            return Fault("broken", str(error) or "an invariant of the machine does not hold")
        except Exception as error:
            # The schedule that led here says more than a traceback, so the line goes with it.
            return Fault("broken", describe_crash(error))
        packets = [effect for effect in effects if isinstance(effect, Packet)]
        assert call[0] == "send" or not packets or not self.direct, (
            "a direct protocol transmits only on sends"
        )
        return self._freeze(machine.me, machine), packets


def describe_crash(error: Exception) -> str:
    """What the code of a machine raised, and where."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.name} raised {type(error).__name__}: {error} ({frame.filename}, line {frame.lineno})"


def _sort(known: dict[int, int]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted(known.items()))


def _grow_past(past: tuple[tuple[str, int], ...], label: str, more: int) -> tuple[tuple[str, int], ...]:
    pasts = dict(past)
    pasts[label] = pasts.get(label, 0) | more
    return tuple(sorted(pasts.items()))


def _in_order(value: Any) -> Any:
    """Plain data with its mappings sorted, so that equal values have equal encodings."""
    if type(value) is dict:
        return {key: _in_order(value[key]) for key in sorted(value)}
    if type(value) is list:
        return [item if type(item) is int else _in_order(item) for item in value]
    return value
