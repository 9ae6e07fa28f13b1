"""What every protocol is: a pure state machine. Inputs go in, effects come out.

Inputs                          Effects (`antecede.model.Effect`)
  send(to, payload, label)        a Packet    to be transmitted to packet.dest
  receive(packet)                 a Message   that has become eligible: deliver() may take it now
  deliver(message)

Delivery is the application's choice: eligible() says which messages may be delivered next, the driver picks. Once
eligible, a message stays so until it is delivered. A process's own copy of a message never crosses the network.

Two families differ in who decides:
- `Receiver`: a stamp names what must be delivered first. Held packets are filed under the first thing that they wait
  for, so a delivery wakes exactly those, however many are held.
- `Queue`: the senders see to it that packets arrive in an order that is causal; only the head of the queue is eligible.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, TypeAlias, cast, get_args

import msgspec

from antecede.errors import (
    BadSnapshot,
    BadStamp,
    Misrouted,
    NoDestination,
    NotEligible,
    UnknownProcess,
    Unsupported,
)
from antecede.model import Awaited, Effect, Id, Message, Packet, Stamp, View, Waiting

__all__ = ["Machine", "Need", "Queue", "Receiver", "plain", "typed"]

SNAPSHOT_VERSION = 1

Need: TypeAlias = tuple[Any, int]
"""(key, count): `delivered[key] >= count` must hold. The key is a sender, or a sender's lane."""


class Machine(ABC):
    """One process's part of a protocol."""

    name: ClassVar[str]
    order: ClassVar[Literal["none", "fifo", "causal"]] = "causal"
    """What the protocol promises wherever `orders_at` says so."""
    stamps: ClassVar[tuple[type[Stamp], ...]]
    labels: ClassVar[bool] = False
    """Whether messages may carry a label."""
    arrivals_commute: ClassVar[bool] = False
    """A packet's arrival changes nothing but what is held, so it makes no difference when it arrives."""
    state: ClassVar[Mapping[str, Any]] = {"sent": int}
    """The attributes that are the machine's state, with their types: what a snapshot holds."""

    sent: int

    def __init__(self, view: View, me: str | int) -> None:
        self.view = view
        self.me = view.id(me)
        self.n = len(view)
        self.sent = 0

    # What a driver asks.

    @property
    def parameters(self) -> dict[str, Any]:
        """What the machine was built with, besides view and process."""
        return {}

    @property
    def needs_fifo(self) -> bool:
        """Whether the protocol relies on channels that do not reorder."""
        return False

    def orders_at(self, process: int) -> bool:
        """Whether the promise of `order` covers deliveries at this process."""
        return True

    def accepts(self, sender: int, to: tuple[int, ...]) -> str | None:
        """None if the protocol can send to this set, else the reason why not."""
        return None

    def send(
        self, to: int | Iterable[int], payload: bytes = b"", label: str = ""
    ) -> tuple[Message, list[Effect]]:
        """Hand over a message for a process or a set of processes."""
        targets = (to,) if isinstance(to, int) else tuple(sorted(set(to)))
        if not targets:
            raise NoDestination(self.view.name(self.me))
        if targets[0] < 0 or targets[-1] >= self.n:
            raise UnknownProcess(targets[0] if targets[0] < 0 else targets[-1], self.view.names)
        refusal = self.accepts(self.me, targets)
        if refusal is not None:
            raise Unsupported(self.name, refusal)
        if label and not self.labels:
            raise Unsupported(self.name, f"label {label!r}: only histories order by label")
        message = Message(self.me, self.sent + 1, targets, payload, label)
        self.sent += 1
        return message, self._send(message)

    def receive(self, packet: Packet[Any]) -> list[Effect]:
        """Take a packet from the network. A duplicate is ignored; a wrong packet is refused and changes nothing."""
        stamp, message = packet.stamp, packet.message
        if packet.dest != self.me:
            raise Misrouted(self.view.name(self.me), f"for {self.view.name(packet.dest)}", "one for itself")
        if not 0 <= packet.source < self.n or packet.source == self.me:
            raise Misrouted(self.view.name(self.me), f"from {self.view.name(packet.source)}", "a peer's")
        if type(stamp) not in self.stamps:
            raise self._bad_stamp(packet, type(stamp).__name__, f"one of {self.name}")
        if message is None:
            if not stamp.control:
                raise self._bad_stamp(packet, f"{type(stamp).__name__} without a message", "a message")
        elif stamp.control:
            raise self._bad_stamp(packet, f"{type(stamp).__name__} with a message", "no message")
        else:
            self._check_message(packet, message)
        self._check(packet)
        return self._receive(packet)

    @abstractmethod
    def deliver(self, message: Message) -> list[Effect]:
        """The application takes an eligible message."""

    @abstractmethod
    def eligible(self) -> list[Message]:
        """The messages that may be delivered next."""

    @abstractmethod
    def waiting(self) -> list[Waiting]:
        """What is held here, and exactly which messages it waits for."""

    def snapshot(self) -> dict[str, Any]:
        """The whole machine as plain data. Equal states give equal snapshots."""
        return {
            "antecede": SNAPSHOT_VERSION,
            "protocol": self.name,
            "view": list(self.view.names),
            "me": self.me,
            "parameters": self.parameters,
            "state": self.dump(),
        }

    def dump(self) -> dict[str, Any]:
        """The state alone, as plain data."""
        return {name: plain(getattr(self, name)) for name in self.state}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over a state that `dump` gave."""
        try:
            for name, kind in self.state.items():
                setattr(self, name, typed(state[name], kind))
            self._load(state)
        except (KeyError, TypeError, ValueError) as error:
            raise BadSnapshot("state", str(error), f"the state of {self.name}") from error

    def _load(self, state: Mapping[str, Any]) -> None:
        """What `load` has to do besides setting the attributes of `state`."""

    # What a protocol says.

    @abstractmethod
    def _send(self, message: Message) -> list[Effect]: ...

    @abstractmethod
    def _receive(self, packet: Packet[Any]) -> list[Effect]: ...

    def _check(self, packet: Packet[Any]) -> None:
        """Refuse a stamp that cannot be: raise `_bad_stamp`."""

    def _check_message(self, packet: Packet[Any], message: Message) -> None:
        if message.sender != packet.source:
            raise Misrouted(
                self.view.name(self.me),
                f"from {self.view.name(packet.source)} with a message of {self.view.name(message.sender)}",
                "the sender's own",
            )
        if self.me not in message.to:
            raise Misrouted(
                self.view.name(self.me),
                f"with a message to {', '.join(map(self.view.name, message.to))}",
                "one addressed to itself",
            )
        if message.number < 1:
            raise self._bad_stamp(packet, f"message number {message.number}", "1 or more")
        if message.label and not self.labels:
            raise self._bad_stamp(packet, f"label {message.label!r}", "none")

    def _bad_stamp(self, packet: Packet[Any], found: str, expected: str) -> BadStamp:
        return BadStamp(self.view.name(self.me), self.view.name(packet.source), found, expected)

    def _copies(self, message: Message, stamp: Stamp) -> list[Effect]:
        """The packets of a message whose copies all carry the same stamp; the own copy is received at once."""
        me = self.me
        if me not in message.to:
            return [Packet(me, dest, stamp, message) for dest in message.to]
        effects: list[Effect] = [Packet(me, dest, stamp, message) for dest in message.to if dest != me]
        return effects + self._receive(Packet(me, me, stamp, message))


class Receiver(Machine):
    """A machine that decides at the receiver, from the stamp, what must be delivered first.

    A protocol says three things of a packet:
    `_position`  which (key, count) its delivery reaches
    `_needs`     which (key, count) must have been reached before
    `_learn`     what the process knows after its delivery
    """

    state = {**Machine.state, "_delivered": list[int]}
    arrivals_commute = True
    counted: ClassVar[Literal["sender", "channel"]] = "channel"
    """By which count `_needs` speaks: the sender's own, or the channel's from the sender to here."""

    _delivered: Any
    """key -> the highest count delivered here."""

    def __init__(self, view: View, me: str | int) -> None:
        super().__init__(view, me)
        self._delivered = [0] * self.n
        self._held: dict[Id, Packet[Any]] = {}
        self._ready: dict[Id, Packet[Any]] = {}
        self._waiters: dict[Need, list[Packet[Any]]] = {}

    @abstractmethod
    def _position(self, packet: Packet[Any]) -> Need: ...

    @abstractmethod
    def _needs(self, packet: Packet[Any]) -> Iterable[Need]: ...

    def _learn(self, packet: Packet[Any]) -> None:
        """Update what this process knows, at the delivery of a packet."""

    def _unmet(self, packet: Packet[Any]) -> Need | None:
        delivered = self._delivered
        for need in self._needs(packet):
            if delivered[need[0]] < need[1]:
                return need
        return None

    def _is_old(self, position: Need) -> bool:
        """Whether the packet at this position was delivered before."""
        return bool(self._delivered[position[0]] >= position[1])

    def _receive(self, packet: Packet[Any]) -> list[Effect]:
        key = self._key(packet)
        if key in self._held or key in self._ready or self._is_old(self._position(packet)):
            return []
        return self._admit([packet])

    def _admit(self, packets: list[Packet[Any]]) -> list[Effect]:
        """Offer what may be delivered, file the rest under the first thing that it waits for."""
        effects: list[Effect] = []
        while packets:
            packet = packets.pop()
            need = self._unmet(packet)
            if need is not None:
                self._held[self._key(packet)] = packet
                self._waiters.setdefault(need, []).append(packet)
            elif packet.message is None:
                # Control waits its turn like a message, but no application has to take it.
                packets += self._wake(self._settle(packet))
            else:
                self._ready[packet.message.id] = packet
                effects.append(packet.message)
        return effects

    def deliver(self, message: Message) -> list[Effect]:
        packet = self._ready.pop(message.id, None)
        if packet is None:
            raise self._not_eligible(message)
        woken = self._wake(self._settle(packet))
        return self._admit(woken) if woken else []

    def _settle(self, packet: Packet[Any]) -> Need:
        position = self._position(packet)
        self._delivered[position[0]] = position[1]
        self._learn(packet)
        return position

    def _wake(self, position: Need) -> list[Packet[Any]]:
        woken = self._waiters.pop(position, None)
        if not woken:
            return []
        for packet in woken:
            del self._held[self._key(packet)]
        if len(woken) > 1:
            # Not in order of arrival: a machine restored from a snapshot must give the same effects.
            woken.sort(key=self._key, reverse=True)
        return woken

    def _key(self, packet: Packet[Any]) -> Id:
        message = packet.message
        if message is None:
            return (packet.source, -self._position(packet)[1])
        return (message.sender, message.number)

    def _not_eligible(self, message: Message) -> NotEligible:
        packet = self._held.get(message.id)
        if packet is None:
            why = "it is not here"
        else:
            why = "it waits for " + ", ".join(
                f"{a.first}..{a.last} of {self.view.name(a.sender)}" for a in self._awaits(packet)
            )
        return NotEligible(self.view.name(self.me), message.id, why)

    def eligible(self) -> list[Message]:
        return [cast(Message, self._ready[key].message) for key in sorted(self._ready)]

    def waiting(self) -> list[Waiting]:
        return [
            Waiting(packet.message, self._awaits(packet))
            for _, packet in sorted(self._held.items())
            if packet.message is not None
        ]

    def _awaits(self, packet: Packet[Any]) -> tuple[Awaited, ...]:
        awaits = []
        for key, count in self._needs(packet):
            done = int(self._delivered[key])
            if done < count:
                first = done + 1 if self.counted == "channel" else count
                awaits.append(Awaited(self._sender(key), first, int(count), self.counted))
        return tuple(sorted(awaits))

    def _sender(self, key: Any) -> int:
        return int(key)

    def dump(self) -> dict[str, Any]:
        pending = {**self._held, **self._ready}
        return {**super().dump(), "pending": [plain(pending[key]) for key in sorted(pending)]}

    def _load(self, state: Mapping[str, Any]) -> None:
        self._held, self._ready, self._waiters = {}, {}, {}
        # Which packets are eligible follows from the rest, so it is worked out again, not stored.
        self._admit([_packet(packet, self.stamps) for packet in state["pending"]])


class Queue(Machine):
    """A machine whose packets arrive in an order that is causal, because their senders waited.

    Received messages stand in one queue, in the order in which they came; only its head may be delivered, and only
    once `_open` says so. An application that receives selectively must therefore take the head or wait.
    """

    state = {**Machine.state, "_inbox": deque[Message]}

    def __init__(self, view: View, me: str | int) -> None:
        super().__init__(view, me)
        self._inbox: deque[Message] = deque()

    def _open(self, message: Message) -> bool:
        """Whether the head of the queue may be delivered."""
        return True

    def _reason(self, message: Message) -> str:
        return ""

    def _enqueue(self, message: Message) -> list[Effect]:
        self._inbox.append(message)
        return [message] if len(self._inbox) == 1 and self._open(message) else []

    def deliver(self, message: Message) -> list[Effect]:
        inbox = self._inbox
        if not inbox or inbox[0].id != message.id or not self._open(inbox[0]):
            raise NotEligible(
                self.view.name(self.me), message.id, "only the head of the input buffer may be taken"
            )
        inbox.popleft()
        effects = self._taken(message)
        if inbox and self._open(inbox[0]):
            effects.append(inbox[0])
        return effects

    def _taken(self, message: Message) -> list[Effect]:
        """What the delivery of a message makes of the protocol's own state."""
        return []

    def eligible(self) -> list[Message]:
        return [self._inbox[0]] if self._inbox and self._open(self._inbox[0]) else []

    def waiting(self) -> list[Waiting]:
        result = []
        ahead: Message | None = None
        for message in self._inbox:
            if not self._open(message):
                result.append(Waiting(message, (), "held", self._reason(message)))
            elif ahead is not None:
                behind = Awaited(ahead.sender, ahead.number, ahead.number)
                result.append(Waiting(message, (behind,), "held", "behind the head of the input buffer"))
            ahead = message
        return result


def plain(value: Any) -> Any:
    """A state as plain data; equal states give equal data."""
    return msgspec.to_builtins(value, builtin_types=(bytes,), order="deterministic", enc_hook=_from_deque)


def typed(value: Any, kind: Any) -> Any:
    """Plain data as a state of this type."""
    return msgspec.convert(value, kind, builtin_types=(bytes,), dec_hook=_to_deque)


def _from_deque(value: Any) -> Any:
    if isinstance(value, deque):
        return list(value)
    raise NotImplementedError(f"{type(value).__name__} is no plain data")


def _to_deque(kind: Any, value: Any) -> Any:
    return deque(typed(value, list[get_args(kind)[0]]))  # type: ignore[misc]


def _packet(data: Any, stamps: tuple[type[Stamp], ...]) -> Packet[Any]:
    """A packet of plain data; its stamp must be one of these kinds."""
    for kind in stamps:
        if kind.__struct_config__.tag == data["stamp"]["stamp"]:
            stamp, message = typed(data["stamp"], kind), typed(data["message"], Message | None)
            return Packet(typed(data["source"], int), typed(data["dest"], int), stamp, message)
    raise ValueError(f"stamp {data['stamp']['stamp']!r}")
