"""A node as lines of JSON, one object each, so that programs in any language can use one.

Requests
    {"do": "send", "to": "bob", "text": "hello", "ref": 7}   `to` may be a list, of names and groups; "base64" for bytes
                                                             that are no text; "label" and "ref" may be left out
    {"do": "ack", "sender": "bob", "number": 3}              the message has been processed
    {"do": "waiting"}                                        what is held, and for what
    {"do": "status"}                                         how the node is

Events
    {"event": "ready", "name", "address", "sent"}            first; `sent` counts the messages of all its lives
    {"event": "sent", "number", "ref"}                       the message cannot be lost any more
    {"event": "message", "sender", "number", "to", "text" or "base64", "label", "again"}
    {"event": "waiting", "held"}, {"event": "status", ...}   the fields of `delivery.Held` and of `status.Status`
    {"event": "refused", "reason", "ref"}                    what was asked cannot be; nothing was changed
    {"event": "closed"}                                      last

Sends are made in order. While one waits, other requests are answered; after `SENDS` that wait, no more lines are read.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, assert_never

import msgspec
from msgspec import Struct

from antecede.errors import AntecedeError, Closed
from antecede.net.delivery import Delivery
from antecede.net.node import Node

__all__ = ["Lines"]

SENDS = 64

Say: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]


class Request(Struct, frozen=True, tag_field="do", forbid_unknown_fields=True):
    """A line that was read."""


class SendLine(Request, frozen=True, tag="send"):
    to: str | list[str]
    text: str | None = None
    base64: bytes | None = None
    label: str = ""
    ref: str | int | None = None

    def __post_init__(self) -> None:
        if (self.text is None) is (self.base64 is None):
            raise ValueError("a message needs text or base64, and not both")

    @property
    def payload(self) -> bytes:
        return self.text.encode() if self.text is not None else self.base64 or b""


class AckLine(Request, frozen=True, tag="ack"):
    sender: str
    number: int


class WaitingLine(Request, frozen=True, tag="waiting"): ...


class StatusLine(Request, frozen=True, tag="status"): ...


_DECODER = msgspec.json.Decoder(SendLine | AckLine | WaitingLine | StatusLine)


class Lines:
    """Requests in, events out, for one node. `say` writes an event, and waits while nobody reads."""

    def __init__(self, node: Node, say: Say) -> None:
        self.node, self._say = node, say
        self._sends: asyncio.Queue[SendLine] = asyncio.Queue(SENDS)
        self._unacknowledged: dict[tuple[str, int], Delivery] = {}

    async def run(self) -> None:
        """Send and hand over, until the node is closed. Raises what made it fail."""
        ready = {"name": self.node.name, "address": self.node.address, "sent": self.node.sent}
        await self._say({"event": "ready", **ready})
        sending = asyncio.ensure_future(self._send())
        try:
            async for message in self.node:
                await self._hand_over(message)
        finally:
            sending.cancel()
            await asyncio.wait({sending})

    async def request(self, line: bytes) -> None:
        """Do what a line asks for."""
        try:
            await self._do(_DECODER.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError, AntecedeError) as error:
            await self._say({"event": "refused", "reason": str(error), "ref": None})

    async def _do(self, asked: SendLine | AckLine | WaitingLine | StatusLine) -> None:
        match asked:
            case SendLine():
                await self._sends.put(asked)
            case AckLine(sender=sender, number=number):
                await self._acknowledge(sender, number)
            case WaitingLine():
                held = [msgspec.to_builtins(one) for one in self.node.waiting()]
                await self._say({"event": "waiting", "held": held})
            case StatusLine():
                await self._say({"event": "status", **msgspec.to_builtins(self.node.status())})
            case _:
                assert_never(asked)

    async def _acknowledge(self, sender: str, number: int) -> None:
        delivery = self._unacknowledged.pop((sender, number), None)
        if delivery is not None:
            delivery.ack()
        else:
            reason = f"message {number} of {sender} was not handed over, or is acknowledged"
            await self._say({"event": "refused", "reason": reason, "ref": None})

    async def _send(self) -> None:
        while True:
            asked = await self._sends.get()
            try:
                message = await self.node.send(asked.to, asked.payload, asked.label)
            except Closed as error:
                await self._say({"event": "refused", "reason": str(error), "ref": asked.ref})
                return
            except AntecedeError as error:
                await self._say({"event": "refused", "reason": str(error), "ref": asked.ref})
            else:
                await self._say({"event": "sent", "number": message.number, "ref": asked.ref})

    async def _hand_over(self, message: Delivery) -> None:
        event: dict[str, Any] = {"event": "message", "sender": message.sender, "number": message.number}
        try:
            event |= {"to": message.to, "text": message.payload.decode()}
        except UnicodeDecodeError:
            event |= {"to": message.to, "base64": base64.b64encode(message.payload).decode()}
        # Known before it is said: an answer may come at once.
        self._unacknowledged[message.sender, message.number] = message
        await self._say({**event, "label": message.label, "again": message.again})
