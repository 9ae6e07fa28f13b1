"""Machines whose senders wait: packets arrive in an order that is causal, and are delivered in that order."""

from __future__ import annotations

from collections import deque
from typing import ClassVar

from antecede.errors import NotEligible
from antecede.model import Awaited, Effect, Message, View, Waiting
from antecede.protocols.machine import Machine

__all__ = ["Queue"]


class Queue(Machine):
    """A machine whose packets arrive in an order that is causal, because their senders waited.

    Received messages stand in one queue, in the order in which they came; only its head may be delivered, and only
    once `_open` says so. An application that receives selectively must therefore take the head or wait.
    """

    state = {**Machine.state, "_inbox": deque[Message]}
    selective = False
    _gated: ClassVar[bool] = False
    """Whether the head may have to wait."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._gated = cls._open is not Queue._open

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
        return [message] if len(self._inbox) == 1 and (not self._gated or self._open(message)) else []

    def deliver(self, message: Message) -> list[Effect]:
        inbox = self._inbox
        if (
            not inbox
            or (inbox[0] is not message and inbox[0].id != message.id)
            or (self._gated and not self._open(inbox[0]))
        ):
            raise NotEligible(
                self.view.name(self.me), message.id, "only the head of the input buffer may be taken"
            )
        effects = self._note_taken(inbox.popleft())
        if inbox and (not self._gated or self._open(inbox[0])):
            effects.append(inbox[0])
        return effects

    def _note_taken(self, message: Message) -> list[Effect]:
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
