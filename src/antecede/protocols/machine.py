"""What every protocol is: a pure state machine. Inputs go in, effects come out.

Inputs                          Effects (`antecede.model.Effect`)
  send(to, payload, label)        a Packet    to be transmitted to packet.dest
  receive(packet)                 a Message   that has become eligible: deliver() may take it now
  deliver(message)

Delivery is the application's choice: eligible() says which messages may be delivered next, the driver picks. Once
eligible, a message stays so until it is delivered. A process's own copy of a message never crosses the network.

Two families differ in who decides, at the receiver (`receiver.Receiver`) or by waiting at the sender (`queue.Queue`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, ClassVar, Literal, get_args

import msgspec

from antecede.errors import (
    BadSnapshot,
    BadStamp,
    Misrouted,
    NoDestination,
    UnknownProcess,
    Unsupported,
)
from antecede.model import CausalContext, Effect, Message, Packet, Stamp, View, Waiting

__all__ = ["Machine", "plain", "portable", "typed"]

SNAPSHOT_VERSION = 1
KNOWN_MOST = 1024
"""Sets of destinations that a machine remembers; then all are forgotten, and looked at again when they are met."""


class Machine(ABC):
    """One process's part of a protocol."""

    name: ClassVar[str]
    order: ClassVar[Literal["none", "fifo", "causal"]] = "causal"
    """What the protocol promises wherever `orders_at` says so."""
    stamps: ClassVar[tuple[type[Stamp], ...]]
    stamps_as_numbers: ClassVar[type[Stamp] | None] = None
    """The stamp of messages that `receive_rows` takes as a number, if there is one."""
    labels: ClassVar[bool] = False
    """Whether messages may carry a label."""
    explicit: ClassVar[bool] = False
    """Whether a message may be sent after a context that the application gives (`contexts`)."""
    selective: ClassVar[bool] = True
    """Whether a message of one sender may be delivered before those of others that arrived earlier."""
    arrivals_commute: ClassVar[bool] = False
    """A packet's arrival changes nothing but what is held, so it makes no difference when it arrives."""
    commuting: ClassVar[tuple[type[Stamp], ...]] = ()
    """The kinds of control packets of which the same can be said."""
    routed: ClassVar[bool] = False
    """Whether packets go over others than their destinations: a topology goes with the view, which never changes."""
    to_all: ClassVar[bool] = False
    """Whether every message goes to all processes."""
    stamps_grow: ClassVar[bool] = False
    """Whether `stamp_entries` changes as messages are sent and delivered."""
    state: ClassVar[Mapping[str, Any]] = {"sent": int}
    """The attributes that are the machine's state, with their types: what a snapshot holds.

    A list has one element for each process.
    """

    sent: int
    early_from: Set[int] = frozenset()
    """Peers whose packets wait for a topology that is to come: what they send meanwhile is kept whole."""

    def __init__(self, view: View, me: str | int) -> None:
        self.view = view
        self.me = view.id(me)
        self.n = len(view)
        self.sent = 0
        self._choosy = type(self).accepts is not Machine.accepts
        """Whether there are destinations to refuse."""
        self._control = {kind: kind.control for kind in self.stamps}
        """Kind of stamp -> whether it is control."""
        self._targets: dict[tuple[str | int, ...], tuple[int, ...]] = {}
        """Destinations, as `send` was given them -> their positions."""
        self._addresses: set[tuple[int, ...]] = set()
        """Destinations of messages that came, which are as they should be."""

    # What a driver asks.

    @classmethod
    def name_members(cls, parameters: Mapping[str, Any], founders: Sequence[str]) -> dict[str, Any]:
        """The parameters as all views understand them: a position among the first members is a name."""
        return dict(parameters)

    @classmethod
    def tightest(cls, n: int) -> dict[str, Any]:
        """The parameters that make it hardest for the protocol to do among n what it promises: for explorers."""
        return {}

    @property
    def parameters(self) -> dict[str, Any]:
        """What the machine was built with, besides view and process."""
        return {}

    @property
    def needs_fifo(self) -> bool:
        """Whether the protocol relies on channels that do not reorder."""
        return False

    @property
    def timed(self) -> bool:
        """Whether it forgets by time: its driver calls `pass_time` before each input."""
        return False

    def pass_time(self, now: int) -> None:
        """Tell the machine what time it is, in any unit that stays the same."""

    def stamp_entries(self, label: str = "") -> int:
        """How many numbers or identifiers the stamp of the next message of a label can have, at most."""
        return self.n + 2

    def orders_at(self, process: int) -> bool:
        """Whether the promise of `order` covers deliveries at this process."""
        return True

    def accepts(self, sender: int, to: tuple[int, ...]) -> str | None:
        """None if the protocol can send to this set, else the reason why not."""
        return None

    def send(
        self,
        to: str | int | Iterable[str | int],
        payload: bytes = b"",
        label: str = "",
        context: str = "",
        after: CausalContext | None = None,
    ) -> tuple[Message, list[Effect]]:
        """Hand over a message for a process or a set of processes, by name or by position.

        `after` is what it follows, and nothing else; without it, all that was sent and delivered here.
        """
        targets = self._targets.get(to) if type(to) is tuple else None
        if targets is None:
            targets = self._resolve(to)
        if self._choosy and (refusal := self.accepts(self.me, targets)) is not None:
            raise Unsupported(self.name, refusal)
        if label and not self.labels:
            raise Unsupported(self.name, f"it cannot order by label {label!r}: only history has labels")
        if after is not None:
            self._check_context(after)
        self.sent = number = self.sent + 1
        message = Message(self.me, number, targets, payload, label, context)
        return message, self._send(message) if after is None else self._send_after(message, after)

    def merge(self, source: str, into: str) -> None:
        """Messages labelled `into` that are sent from now on follow all that is in the history of `source`."""
        raise Unsupported(self.name, "it cannot order by label: only history has labels")

    def context_of(self, message: Message) -> CausalContext:
        """The context that has this message, and what it was sent after: of the last one sent or delivered here."""
        raise Unsupported(self.name, "it has no contexts: use the protocol contexts")

    def _resolve(self, to: str | int | Iterable[str | int]) -> tuple[int, ...]:
        """The positions of these processes, in increasing order."""
        several = (to,) if isinstance(to, str | int) else to
        targets = tuple(sorted({dest if type(dest) is int else self.view.id(dest) for dest in several}))
        if not targets:
            raise NoDestination(self.view.name(self.me))
        if targets[0] < 0 or targets[-1] >= self.n:
            raise UnknownProcess(targets[0] if targets[0] < 0 else targets[-1], self.view.names)
        if type(to) is tuple:
            if len(self._targets) >= KNOWN_MOST:
                self._targets.clear()
            self._targets[to] = targets
        return targets

    def receive(self, packet: Packet[Any]) -> list[Effect]:
        """Take a packet from the network. A duplicate is ignored; a wrong packet is refused and changes nothing."""
        source, message = packet.source, packet.message
        if packet.dest != self.me or source == self.me or not 0 <= source < self.n:
            raise self._misrouted(packet)
        if self._control.get(type(packet.stamp)) is not (message is None):
            raise self._misfit(packet)
        if message is not None:
            self._check_message(packet, message)
        self._check(packet)
        return self._receive(packet)

    def receive_all(self, packets: Iterable[Packet[Any]], effects: list[Effect]) -> None:
        """Take packets from the network, one after the other, and append the effects.

        Control that is cumulative may be said once for several. If one is refused, those before it have been received.
        """
        for packet in packets:
            effects += self.receive(packet)

    def receive_rows(
        self,
        source: int,
        to: tuple[int, ...],
        rows: Sequence[tuple[int, int, bytes]],
        effects: list[Effect],
    ) -> None:
        """As `receive_all`, for messages of `source` to `to` that are rows: number, stamp as a number, payload."""
        raise NotImplementedError("only where `stamps_as_numbers` says so")

    @abstractmethod
    def deliver(self, message: Message) -> list[Effect]:
        """The application takes an eligible message."""

    @abstractmethod
    def eligible(self) -> list[Message]:
        """The messages that may be delivered next."""

    @abstractmethod
    def waiting(self) -> list[Waiting]:
        """What is held here, and exactly which messages it waits for."""

    def cut(self, process: int) -> list[Effect]:
        """Take note that nothing more will ever come here from this process. Others may still hear of it."""
        return []

    def forget(self, process: int) -> list[Effect]:
        """Take note that nothing more will ever come from this process, to anyone: wait for it no longer.

        To be repeated after whatever else happens, until nothing follows from it.
        """
        return []

    def snapshot(self) -> dict[str, Any]:
        """The whole machine as plain data. Equal states give equal snapshots."""
        return {
            "antecede": SNAPSHOT_VERSION,
            "protocol": self.name,
            "view": list(self.view.names),
            "me": self.me,
            "parameters": self.parameters,
            "state": portable(self.dump()) if self.n > 63 else self.dump(),
        }

    def dump(self) -> dict[str, Any]:
        """The state alone, as plain data."""
        return {name: plain(getattr(self, name)) for name in self.state}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over a state that `dump` gave."""
        before = dict(self.__dict__)
        try:
            for name, kind in self.state.items():
                value = typed(state[name], kind)
                if isinstance(value, list) and len(value) != self.n:
                    raise ValueError(f"{name} has {len(value)} elements for {self.n} processes")
                setattr(self, name, value)
            self._load(state)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            self.__dict__.update(before)
            raise BadSnapshot(
                f"the state does not belong to {self.name}: {type(error).__name__}: {error}"
            ) from error

    def _load(self, state: Mapping[str, Any]) -> None:
        """What `load` has to do besides setting the attributes of `state`."""

    # What a protocol says.

    @abstractmethod
    def _send(self, message: Message) -> list[Effect]: ...

    @abstractmethod
    def _receive(self, packet: Packet[Any]) -> list[Effect]: ...

    def _send_after(self, message: Message, after: CausalContext) -> list[Effect]:
        raise NotImplementedError("only where `_check_context` lets a context pass")

    def _check_context(self, after: CausalContext) -> None:
        """Refuse a context that cannot be, before the message has a number."""
        raise Unsupported(self.name, "it cannot send after a context: use the protocol contexts")

    def _check(self, packet: Packet[Any]) -> None:
        """Refuse a stamp that cannot be: raise `_bad_stamp`."""

    def _misrouted(self, packet: Packet[Any]) -> Misrouted:
        if packet.dest != self.me:
            return Misrouted(self.view.name(self.me), f"it is for {self.view.name(packet.dest)}")
        return Misrouted(
            self.view.name(self.me), f"it comes from {self.view.name(packet.source)}, which is no peer"
        )

    def _misfit(self, packet: Packet[Any]) -> BadStamp:
        """A stamp of another protocol, a message without one of its own, or control with a message."""
        kind = type(packet.stamp)
        if kind not in self.stamps:
            return self._bad_stamp(packet, f"its stamp is a {kind.__name__}, which {self.name} does not use")
        if packet.message is None:
            return self._bad_stamp(packet, f"its {kind.__name__} needs a message, and there is none")
        return self._bad_stamp(packet, f"its {kind.__name__} has a message, and may have none")

    def _check_message(self, packet: Packet[Any], message: Message) -> None:
        if message.sender != packet.source:
            raise Misrouted(
                self.view.name(self.me),
                f"{self.view.name(packet.source)} sent a message of {self.view.name(message.sender)}",
            )
        if message.to not in self._addresses:
            self._check_destinations(message.to)
        if self._choosy and (refusal := self.accepts(message.sender, message.to)) is not None:
            reason = f"{self.name} sends no message to {message.to}: {refusal}"
            raise Misrouted(self.view.name(self.me), reason)
        if message.number < 1:
            raise self._bad_stamp(packet, f"its message has number {message.number}, and numbers start at 1")
        if message.label and not self.labels:
            raise self._bad_stamp(
                packet, f"its message has label {message.label!r}, and {self.name} has no labels"
            )

    def _check_destinations(self, to: tuple[int, ...]) -> None:
        me = self.view.name(self.me)
        if self.me not in to:
            names = ", ".join(map(self.view.name, to))
            raise Misrouted(me, f"its message is addressed to {names or 'nobody'}")
        if to[0] < 0 or to[-1] >= self.n or (len(to) > 1 and to != tuple(sorted(set(to)))):
            raise Misrouted(
                me, f"its destinations, {to}, are not processes 0..{self.n - 1} in increasing order"
            )
        self._remember_addresses(to)

    def _remember_addresses(self, to: tuple[int, ...]) -> None:
        if len(self._addresses) >= KNOWN_MOST:
            self._addresses.clear()
        self._addresses.add(to)

    def _unsent(self, packet: Packet[Any], found: int, sent: int) -> BadStamp:
        """A stamp counts messages of ours that we never sent: no honest peer can know them."""
        return self._bad_stamp(packet, f"it counts {found} of our messages, and we sent {sent}")

    def _bad_stamp(self, packet: Packet[Any], reason: str) -> BadStamp:
        return BadStamp(self.view.name(self.me), self.view.name(packet.source), reason)

    def _bad_entry(self, *entry: int) -> str:
        return f"its stamp has the entry {entry}; processes are 0 to {self.n - 1}, and counts start at 1"

    def _copies(self, message: Message, stamp: Callable[[int], Stamp]) -> list[Effect]:
        """The packets of a message, each with the stamp for its destination; the own copy is received at once."""
        me, to = self.me, message.to
        dest = to[0]
        if dest != me and len(to) == 1:
            return [Packet(me, dest, stamp(dest), message)]
        effects: list[Effect] = []
        for dest in to:
            packet = Packet(me, dest, stamp(dest), message)
            if dest == me:
                effects += self._receive(packet)
            else:
                effects.append(packet)
        return effects


def plain(value: Any) -> Any:
    """A state as plain data; equal states give equal data."""
    return msgspec.to_builtins(value, builtin_types=(bytes,), order="deterministic", enc_hook=_from_deque)


def portable(value: Any) -> Any:
    """Plain data that every encoder takes: sets of more than 63 processes, as bits, are no 64-bit numbers."""
    if isinstance(value, int):
        return value if value.bit_length() < 64 else str(value)
    if isinstance(value, dict):
        return {key: portable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [portable(item) for item in value]
    return value


def typed(value: Any, kind: Any) -> Any:
    """Plain data as a state of this type. Not strict: a number may be written out, see `portable`."""
    return msgspec.convert(value, kind, strict=False, builtin_types=(bytes,), dec_hook=_to_deque)


def _from_deque(value: Any) -> Any:
    if isinstance(value, deque):
        return list(value)
    raise NotImplementedError(f"{type(value).__name__} is no plain data")


def _to_deque(kind: Any, value: Any) -> Any:
    return deque(typed(value, list[get_args(kind)[0]]))  # type: ignore[misc]
