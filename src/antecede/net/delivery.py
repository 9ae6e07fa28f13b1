"""What a node tells its application: messages that it hands over, and messages that are stuck, by name."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct

from antecede.model import CausalContext, Id, Message, View, Waiting
from antecede.net.observe.tracing import extract
from antecede.process.views.numbering import Numbering

__all__ = ["Contact", "Delivery", "Durable", "Held", "Missing", "Sent", "list_held"]


class Durable(Struct, frozen=True, eq=False, gc=False):
    """Await it to know that something is durable; or do not, and it will be."""

    _durable: Callable[[int], Coroutine[Any, Any, None]]
    _position: int

    def __await__(self) -> Generator[Any, None, None]:
        return self._durable(self._position).__await__()


class Named(Struct, frozen=True, eq=False, gc=False):
    """A message with names. It looks them up only when it is asked for them: most are asked for little."""

    _numbering: Numbering
    _message: Message

    @property
    def sender(self) -> str:
        return self._numbering.names[self._message.sender]

    @property
    def number(self) -> int:
        """The sender's count of its messages: (sender, number) is the message's identity."""
        return self._message.number + self._numbering.bases[self._message.sender]

    @property
    def to(self) -> tuple[str, ...]:
        names = self._numbering.names
        return tuple([names[one] for one in self._message.to])

    @property
    def label(self) -> str:
        return self._message.label


class Sent(Named, frozen=True, eq=False, gc=False):
    """A message that was sent."""

    causal_context: CausalContext | None = None
    """What follows this message is sent `after` it; None if the protocol is another than `contexts`."""

    def __repr__(self) -> str:
        return f"<message {self.number} of {self.sender} to {', '.join(self.to)}>"


class Contact(Struct, frozen=True):
    """A peer, and whether there is a connection with it now."""

    peer: str
    connected: bool


class Delivery(Named, frozen=True, eq=False, gc=False):
    """A message that a node hands to the application."""

    again: bool
    """It was handed over before a restart, or may have been, and was not acknowledged. If False, nobody has seen it."""
    _acknowledge: Callable[[Numbering, Message], Durable]
    causal_context: CausalContext | None = None
    """What follows this message is sent `after` it; None if the protocol is another than `contexts`."""

    @property
    def payload(self) -> bytes:
        """What the sender gave to `send`."""
        return self._message.payload

    @property
    def traceparent(self) -> str:
        """The span in which it was sent, as W3C Trace Context writes it; empty if there was none."""
        return self._message.context.partition("\n")[0]

    @property
    def tracestate(self) -> str:
        """What tracing systems added to it, as W3C Trace Context writes it; empty if there was nothing."""
        return self._message.context.partition("\n")[2]

    def context(self) -> Any:
        """The same as a context of OpenTelemetry: what is done with the message is a child of the span that sent it."""
        return extract(self._message.context)

    def ack(self) -> Durable:
        """Say that the message is processed, and need not come again. Await the answer: then no crash undoes it."""
        return self._acknowledge(self._numbering, self._message)

    def __repr__(self) -> str:
        return f"<message {self.number} of {self.sender}: {len(self.payload)} bytes>"


class Missing(Struct, frozen=True):
    """Messages first..last of a sender that something waits for, counted as `model.Awaited` says."""

    sender: str
    first: int
    last: int
    counted: Literal["sender", "channel"]


class Held(Struct, frozen=True):
    """A message that is stuck at a node, and exactly what it waits for."""

    sender: str
    number: int
    awaits: tuple[Missing, ...]
    where: Literal["held", "unsent", "blocked", "joining", "changing", "missing"]
    """Not deliverable yet; not let out by the protocol yet; not sent, because a destination can take no more; a node
    that waits to join; a change of the view that waits for members; a router that cannot be reached."""
    reason: str
    since_s: float | None
    """Seconds since it arrived here, or since the node started; None if it is our own."""


def list_held(view: View, waiting: Iterable[Waiting], since: Mapping[Id, int], now: int) -> list[Held]:
    """What a machine says that it holds, in the application's words."""
    return [
        Held(
            view.name(held.message.sender),
            held.message.number,
            tuple(Missing(view.name(one.sender), one.first, one.last, one.counted) for one in held.awaits),
            held.where,
            held.reason,
            (now - since[held.message.id]) / 1e9 if held.message.id in since else None,
        )
        for held in waiting
    ]
