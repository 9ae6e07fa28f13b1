"""A node as lines of JSON, one object each, so that programs in any language can use one.

Requests
    {"do": "send", "to": "bob", "text": "hello", "ref": 7}   `to` may be a list, of names and groups; "base64" for bytes
                                                             that are no text; "label" and "ref" may be left out;
                                                             "traceparent" and "tracestate" go along (`tracing`)
    {"do": "ack", "sender": "bob", "number": 3}              the message has been processed
    {"do": "receive"}                                        hand messages over to this client (`local` only)
    {"do": "leave"}                                          be no member any more; then `left`, what is still here,
                                                             and `closed`
    {"do": "remove", "name": "bob"}                          remove a member that has crashed; then `removed`
    {"do": "state", "text": "..."}                           the answer to `wanted`; or "base64"
    {"do": "waiting"}                                        what is held, and for what
    {"do": "status"}                                         how the node is

Events
    {"event": "ready", "name", "address", "sent"}            first; `sent` counts the messages of all its lives
    {"event": "sent", "number", "ref"}                       the message cannot be lost any more
    {"event": "message", "sender", "number", "to", "text" or "base64", "label", "again"}
                                                             and "traceparent", "tracestate" if it came with them
    {"event": "state", "sender", "number": 0, "text" or "base64", "again"}
                                                             first of all, if this node joined and was given a state
    {"event": "wanted", "for"}                               these join, and wait for the state of this application:
                                                             all that it was handed, and all that it said, so far
    {"event": "view", "number", "members", "joined", "left", "removed", "lost"}
                                                             what follows was sent in this view
    {"event": "left"}, {"event": "removed", "name"}          it is done
    {"event": "waiting", "held"}, {"event": "status", ...}   the fields of `delivery.Held` and of `status.Status`
    {"event": "refused", "reason", "ref"}                    what was asked cannot be; nothing was changed
    {"event": "closed"}                                      last
    {"event": "failed", "reason"}                            last instead, if the node stopped for what nobody expected,
                                                             was removed, or cannot write its journal

Sends are made in order. While one waits, other requests are answered; after `SENDS` that wait, no more lines are read.
Messages that are not acknowledged are kept, `Settings.unacknowledged` of them: beyond, or beyond as many bytes, no
other is handed over.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias, assert_never

import msgspec
from msgspec import Struct

from antecede.errors import AntecedeError, Closed
from antecede.net.delivery import Delivery
from antecede.net.node import Node
from antecede.net.observe.tracing import join_headers
from antecede.process.views.members import Change

__all__ = ["Desk", "LONGEST", "Lines", "Say", "last_word", "ready"]

log = logging.getLogger(__name__)

SENDS = 64
LONGEST = 4 << 20
"""Bytes of a line."""

Say: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]


class Request(Struct, frozen=True, tag_field="do", forbid_unknown_fields=True):
    """A line that was read."""


class SendLine(Request, frozen=True, tag="send"):
    to: str | list[str]
    text: str | None = None
    base64: bytes | None = None
    label: str = ""
    traceparent: str = ""
    tracestate: str = ""
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


class ReceiveLine(Request, frozen=True, tag="receive"): ...


class LeaveLine(Request, frozen=True, tag="leave"): ...


class RemoveLine(Request, frozen=True, tag="remove"):
    name: str


class StateLine(Request, frozen=True, tag="state"):
    text: str = ""
    base64: bytes = b""

    @property
    def state(self) -> bytes:
        return self.text.encode() or self.base64


class WaitingLine(Request, frozen=True, tag="waiting"): ...


class StatusLine(Request, frozen=True, tag="status"): ...


Asked: TypeAlias = (
    SendLine | AckLine | ReceiveLine | WaitingLine | StatusLine | LeaveLine | RemoveLine | StateLine
)

_DECODER = msgspec.json.Decoder(Asked)


class Desk:
    """Where messages are handed over, to one client at a time: what it leaves, the next one gets again."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.taken = False
        """A client receives."""
        self._unacknowledged: dict[tuple[str, int], Delivery] = {}
        self._bytes = 0
        """Of their payloads."""
        self._room = asyncio.Event()
        self._say: Say | None = None
        self._gone: OSError | None = None
        """What the client that receives was lost by, while it was told something."""
        self._given: asyncio.Future[bytes] | None = None
        node.changed = self._tell_view
        if node.state is not None:
            node.state = self._ask_state

    # Called by the node while it looks for the next message: so there is a client.

    async def _tell_view(self, change: Change) -> None:
        await self._tell({"event": "view", **change.shown})

    async def _ask_state(self) -> bytes:
        self._given = asyncio.get_running_loop().create_future()
        try:
            await self._tell({"event": "wanted", "for": self.node.joining})
            return await self._given
        finally:
            self._given = None

    async def _tell(self, event: dict[str, Any]) -> None:
        """Say what the node asks the application. A client that has gone is no failure of the node: the call that hands
        over to it is cancelled, and the next client is told the same."""
        receiving = asyncio.current_task()
        assert self._say is not None
        assert receiving is not None
        try:
            await self._say(event)
        except OSError as error:
            self._gone = error
            receiving.cancel()
            await asyncio.sleep(0)

    def give(self, state: bytes) -> bool:
        """Whether a state was wanted."""
        if self._given is None or self._given.done():
            return False
        self._given.set_result(state)
        return True

    async def hand_over(self, say: Say) -> None:
        """Hand over to a client: first what an earlier one left, in its order. Until the node is closed.

        Raises what made it fail.
        """
        assert not self.taken
        self.taken, self._say = True, say
        try:
            for message in list(self._unacknowledged.values()):
                await say(_event(message, again=True))
            while True:
                await self._wait_for_room()
                message = await self.node.receive()
                # Known before it is said: an answer may come at once, or the client may go.
                self._unacknowledged[message.sender, message.number] = message
                self._bytes += len(message.payload)
                await say(_event(message, message.again))
        except Closed:
            return
        except asyncio.CancelledError:
            receiving = asyncio.current_task()
            if self._gone is None or receiving is None or receiving.uncancel():
                raise
            raise self._gone from None
        finally:
            self.taken, self._gone = False, None

    async def _wait_for_room(self) -> None:
        settings = self.node.settings
        while (
            len(self._unacknowledged) >= settings.unacknowledged
            or self._bytes >= settings.unacknowledged_bytes
        ):
            self._room.clear()
            await self._room.wait()

    def acknowledge(self, sender: str, number: int) -> bool:
        """Whether there was something to acknowledge."""
        delivery = self._unacknowledged.pop((sender, number), None)
        if delivery is None:
            return False
        self._bytes -= len(delivery.payload)
        delivery.ack()
        self._room.set()
        return True


def _event(message: Delivery, again: bool) -> dict[str, Any]:
    is_state = message.number == 0
    event: dict[str, Any] = {"event": "state" if is_state else "message"}
    event |= {"sender": message.sender, "number": message.number}
    if not is_state:
        event["to"] = message.to
    try:
        event["text"] = message.payload.decode()
    except UnicodeDecodeError:
        event["base64"] = base64.b64encode(message.payload).decode()
    if is_state:
        return {**event, "again": again}
    if message.traceparent:
        event |= {"traceparent": message.traceparent, "tracestate": message.tracestate}
    return {**event, "label": message.label, "again": again}


def ready(node: Node) -> dict[str, Any]:
    """The first event."""
    return {"event": "ready", "name": node.name, "address": node.address, "sent": node.sent}


def last_word(node: Node) -> dict[str, Any]:
    """The last event."""
    failure = node.failure
    return {"event": "closed"} if failure is None else {"event": "failed", "reason": str(failure)}


class Lines:
    """Requests in, events out, for one client. `say` writes an event, and waits while nobody reads."""

    def __init__(self, node: Node, say: Say, desk: Desk | None = None) -> None:
        self.node, self._say = node, say
        self._desk = desk or Desk(node)
        self._sends: asyncio.Queue[SendLine] = asyncio.Queue(SENDS)
        self._sending = self._run(self._send())
        self._receiving: asyncio.Future[None] | None = None
        self._changing: set[asyncio.Future[None]] = set()

    def _run(self, part: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something for the client while others ask. Nobody waits for how it ends: so it says so itself."""
        task = asyncio.ensure_future(part)
        task.add_done_callback(self._look)
        return task

    def _look(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        # A client that has gone, or a node that has failed, is told elsewhere.
        if error is not None and not isinstance(error, OSError | AntecedeError):
            log.error("%s failed on the request of a client", self.node.name, exc_info=error)

    async def run(self) -> None:
        """Greet, and hand over until the node is closed. Raises what made it fail."""
        try:
            await self._say(ready(self.node))
            await self._desk.hand_over(self._say)
            if self._changing:
                # One that has left says so, before it ends.
                await asyncio.wait(self._changing, timeout=self.node.settings.beat_s)
        finally:
            await self.end()

    async def finish(self) -> None:
        """Make the sends that were asked for, unless the node is closed before."""
        waiting = asyncio.ensure_future(self._sends.join())
        await asyncio.wait({waiting, self._sending}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()

    async def end(self) -> None:
        """Do no more for this client."""
        tasks = [task for task in (self._sending, self._receiving, *self._changing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def request(self, line: bytes) -> None:
        """Do what a line asks for."""
        try:
            await self._do(_DECODER.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, AntecedeError) as error:
            await self.refuse(str(error))

    async def refuse(self, reason: str, ref: str | int | None = None) -> None:
        await self._say({"event": "refused", "reason": reason, "ref": ref})

    async def _do(self, asked: Asked) -> None:
        match asked:
            case SendLine():
                await self._sends.put(asked)
            case AckLine(sender=sender, number=number):
                if not self._desk.acknowledge(sender, number):
                    await self.refuse(f"message {number} of {sender} waits for no acknowledgement here")
            case ReceiveLine():
                await self._receive()
            case LeaveLine():
                self._start(self.node.leave(), {"event": "left"})
            case RemoveLine(name=name):
                self._start(self.node.remove(name), {"event": "removed", "name": name})
            case StateLine():
                if not self._desk.give(asked.state):
                    await self.refuse("no node waits for a state now")
            case WaitingLine():
                held = [msgspec.to_builtins(one) for one in self.node.waiting()]
                missing = [msgspec.to_builtins(one) for one in self.node.missing()]
                await self._say({"event": "waiting", "held": held, "missing": missing})
            case StatusLine():
                await self._say({"event": "status", **msgspec.to_builtins(self.node.status())})
            case _:
                assert_never(asked)

    def _start(self, change: Coroutine[Any, Any, None], done: dict[str, Any]) -> None:
        """Have the view changed, and say so; other requests do not wait for it."""

        async def wait() -> None:
            try:
                await change
                await self._say(done)
            except AntecedeError as error:
                await self.refuse(str(error))

        task = self._run(wait())
        self._changing.add(task)
        task.add_done_callback(self._changing.discard)

    async def _receive(self) -> None:
        if self._desk.taken:
            await self.refuse("another client receives: only one can at a time")
        else:
            self._receiving = self._run(self._desk.hand_over(self._say))
            # It begins, so that nobody else can.
            await asyncio.sleep(0)

    async def _send(self) -> None:
        while True:
            asked = await self._sends.get()
            try:
                context = join_headers(asked.traceparent, asked.tracestate)
                message = await self.node.send(asked.to, asked.payload, label=asked.label, context=context)
            except Closed as error:
                await self.refuse(str(error), asked.ref)
                return
            except AntecedeError as error:
                await self.refuse(str(error), asked.ref)
            else:
                await self._say({"event": "sent", "number": message.number, "ref": asked.ref})
            self._sends.task_done()
