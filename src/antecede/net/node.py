"""A node: one process of a system, that talks to the others over a network. What an application embeds.

>>> import asyncio
>>> from antecede.net import Memory, Node
>>> async def main():
...     network = Memory()
...     names = ["audit", "billing", "orders"]
...     nodes = [Node(name, names, protocol="matrix", transport=network.at(name)) for name in names]
...     async with nodes[0] as audit, nodes[1] as billing, nodes[2] as orders:
...         await orders.send({"audit", "billing"}, b"order placed")
...         placed = await billing.receive()
...         await billing.send("audit", b"charged")      # an answer, so nobody sees it before what it answers
...         placed.ack()
...         return [(await audit.receive()).payload for _ in range(2)]
>>> asyncio.run(main())
[b'order placed', b'charged']

One file: the class that an application sees, with its calls and what each promises. How it lives is in `lifecycle`, its
views in `views`, what it shows in `status`, and who may be given what in `arguments`.

What is promised
  order     every message is handed over after those that happened before it and are addressed to this node too, as far
            as the protocol promises it; the machine decides, the node only asks
  once      a message is handed over once; with a journal, again after a crash if it was not acknowledged, in the order
            in which it was handed over first, and before any other
  sent      with a journal, a message is never lost once `send` returned. A crash before that may have lost it, or not:
            `sent` says how many were sent, counted for ever
  pressure  `send` waits while a destination is not able to take more (`settings.Settings` has the limits). An
            application that only sends and never receives can so be stopped by another that does the same
  failure   a node at which something happened that nobody expected stops. Every call then raises `NodeFailed`, with
            the cause; its journal is as it was, and a new node goes on from it

What cancellation does (`asyncio.timeout` round a call)
  start     closes all that it had opened; the node cannot be used
  send      while it waits for room: nothing was sent. While it waits for the disk: the message is sent, and
            `sent` has counted it
  receive   takes nothing: the next call gets the message
  flush, await ack(), wait_closed
            only the waiting ends
  close     the node waits no longer for acknowledgements, and is closed by the time that the cancellation goes on
  leave, remove
            a change that has begun goes on by itself; call again to wait for it. A leave that waits for a member
            that cannot be reached has not begun
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from sys import modules
from threading import get_ident
from typing import Any, Literal, Self, Unpack

from msgspec.structs import replace

from antecede.errors import BadParameter, Closed, Unsupported, WrongLoop, WrongType
from antecede.model import CausalContext, Id, Message
from antecede.net.arguments import (
    Buffer,
    NodeOptions,
    check_bytes,
    check_name,
    check_names,
    check_options,
    group_names,
    make_join,
    make_view,
)
from antecede.net.delivery import Delivery, Durable, Sent
from antecede.net.lifecycle import Lifecycle, make_recorder
from antecede.net.observe.tracing import OPENTELEMETRY, NodeSpans, current
from antecede.net.peers.joining import Admit
from antecede.net.settings import Settings
from antecede.net.status import Observed
from antecede.net.transports.tcp import Tcp
from antecede.net.transports.tls import Tls
from antecede.net.transports.transport import Transport
from antecede.process.inputs import Merge
from antecede.process.outbox import Outgoing
from antecede.process.views.members import Change, Roll, Where
from antecede.process.views.numbering import Numbering
from antecede.protocols import PROTOCOLS

__all__ = ["Node"]

log = logging.getLogger(__name__)

YIELD_EVERY = 512
"""Messages sent or handed over without a pause, before others get their turn: what one turn sends goes together."""
YIELD_BYTES = 1 << 14
"""Bytes of a payload that count as one more: large payloads must not hold up others for longer than many small ones."""
YIELD_EVERY_PEER = 64
"""The same, for each process of the system: with many of them, some still go together to each."""


class Node(Observed):
    """One process of a system, and one of its founders; `Node.join` makes one that joins a system that runs.

    `peers` are the names of all processes, each with its address ("host:port") if they talk over TCP; the node's own
    may be among them, and is then where it listens, unless `listen` says otherwise. All nodes of a system are given the
    same names and protocol. `groups` are names for sets of them, that `send` takes. With a `journal`, a file, the node
    survives a crash; `sync` says what kind of crash (`journal`). Beyond loopback, `tls` is needed (`security`). With
    `trace`, a directory that all nodes may share, it records its events as its part of a `run` (`recorder`).

    `state` is called when another node joins, and gives what that one needs to know; `changed` is called with each new
    view. Both are called between messages: when the application asks for the next one, and has taken all that were sent
    in the view before. A view is told at least once: again, if `changed` was cancelled, or the node was killed, before
    it returned. Neither may call `receive` or `leave`. `admit` decides who may join when this node is asked
    (`peers.joining`): without it, nodes on this machine alone.
    """

    def __init__(
        self,
        name: str,
        peers: Mapping[str, str] | Iterable[str],
        *,
        groups: Mapping[str, Iterable[str]] | None = None,
        protocol: str = "permit",
        parameters: Mapping[str, Any] | None = None,
        state: Callable[[], bytes | Awaitable[bytes]] | None = None,
        changed: Callable[[Change], Awaitable[None] | None] | None = None,
        admit: Admit | None = None,
        listen: str | None = None,
        journal: str | PathLike[str] | None = None,
        sync: Literal["full", "normal"] = "full",
        trace: str | PathLike[str] | None = None,
        run: str = "nodes",
        tls: Tls | None = None,
        transport: Transport | None = None,
        settings: Settings | None = None,
    ) -> None:
        super().__init__()
        options = NodeOptions(
            protocol=protocol, parameters=parameters, state=state, changed=changed, admit=admit,
            listen=listen, journal=journal, sync=sync, trace=trace, run=run, tls=tls, transport=transport,
            settings=settings,
        )  # fmt: skip
        self._describe(name, peers, set(groups or ()), options)
        view = self._named
        # All founders are in the first view.
        roll = Roll.first(view.names, group_names(view, groups))
        self._new = self._make(protocol, view, parameters, roll)
        self._prepare(parameters)

    @classmethod
    def join(
        cls,
        name: str,
        members: Mapping[str, str] | Iterable[str],
        *,
        groups: Iterable[str] = (),
        where: Where | None = None,
        memory: str | PathLike[str] | None = None,
        **options: Unpack[NodeOptions],
    ) -> Self:
        """Make a node that joins a running system when it starts.

        It asks `members`, some of those that are in the system, each with its address over TCP; its own address, if it
        is among them, is where it listens. It will be in these `groups`. With a journal that it has filled before, it
        comes back as the member that it was.

        In a topology, `where` says with whom it is linked, and which separator it joins, if any. `memory` is
        the journal of the last member of that separator, if all have failed: without it, and without a witness, what
        that one had received and not sent on is lost.
        """
        node = cls.__new__(cls)
        Lifecycle.__init__(node)
        groups = tuple(groups)
        node._describe(name, members, set(groups), options)
        view, parameters = node._named, options.get("parameters")
        protocol = options.get("protocol", "permit")
        node._join = make_join(name, view, protocol, parameters, groups, where)
        if memory is not None:
            node._memory = memory
        # It only stands for itself until it knows the view; its parameters may not fit so few.
        node._new = node._make(protocol, view, None, None)
        node._prepare(parameters)
        return node

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> Node:
        """Make the node that a TOML file describes (`antecede.net.config`). Paths in it are relative to the file."""
        from antecede.net.config import load

        path = Path(path)
        return load(path).node(path.parent)

    def _describe(
        self,
        name: str,
        peers: Mapping[str, str] | Iterable[str],
        groups: set[str],
        options: NodeOptions,
    ) -> None:
        if isinstance(peers, str) or not isinstance(peers, Iterable):
            raise WrongType("peers of a node", "names, or names with their addresses", peers)
        peers = peers if isinstance(peers, Mapping) else tuple(peers)
        check_options(options)
        for kind, some in (
            ("node", (name, *peers)),
            ("group", groups),
            ("run", [options.get("run", "nodes")]),
        ):
            for one in some:
                check_name(kind, one)
        self.name, self.settings = name, options.get("settings") or Settings()
        addresses = dict(peers) if isinstance(peers, Mapping) else {}
        view = self._named = make_view({name, *peers}, options.get("parameters") or {})
        if clash := groups & set(view.names):
            raise BadParameter(
                "node", f"groups must not have the names of processes: {', '.join(sorted(clash))}"
            )
        transport, listen = options.get("transport"), options.get("listen")
        if transport is None and len(addresses) < len(view) - 1:
            raise BadParameter(
                "node", "peers need an address each, or a transport: give a mapping of names to host:port"
            )
        self.state, self.changed = options.get("state"), options.get("changed")
        self._admit = options.get("admit")
        self._listed = listen or addresses.pop(name, None)
        if transport is None and self._listed is None and view.names[0] != name:
            raise BadParameter(
                "node",
                f"{name} has no address at which {view.names[0]} can reach it: add it to peers, or give listen",
            )
        self._transport = transport or Tcp(self._listed, addresses, options.get("tls"))
        self._join = None
        self._journal_path, self._sync = options.get("journal"), options.get("sync", "full")
        self._trace, self._run = options.get("trace"), options.get("run", "nodes")

    def _prepare(self, parameters: Mapping[str, Any] | None) -> None:
        new = self._new
        new.parameters |= parameters or {}
        self.view = new.view
        """All processes that are or were members. `members` are those that are."""
        if self._trace is not None:
            make_recorder(self._trace, self._run, new)  # which refuses names that are too long
        self._passing = asyncio.Lock()
        self._yield_every = max(YIELD_EVERY, YIELD_EVERY_PEER * len(self.view))
        self._most = self.settings.queue
        self._explicit = new.machine.explicit
        self._most_bytes = self.settings.queue_bytes
        self._known: dict[str, tuple[int, ...]] = {}
        """Names and groups that were sent to -> their positions."""
        self._easy: dict[str, tuple[tuple[int, ...], Outgoing]] = {}
        """Peers that were sent to by name, if nothing but what waits for them can stop a message -> that, too."""
        self._turns, self._taken = self._yield_every, 0
        self._full = False
        """Too much is unacknowledged, and that was said."""
        self._spans = NodeSpans(self.name)

    # Sending

    @property
    def sent(self) -> int:
        """How many messages this node has sent, in all its lives: the number of the last one."""
        return self._host.core.sent

    async def send(
        self,
        to: str | Iterable[str],
        payload: Buffer,
        *,
        label: str = "",
        durable: bool = True,
        context: str | None = None,
        echo: bool = True,
        after: CausalContext | None = None,
    ) -> Sent:
        """Send a message to a process, to a group, or to several of both; itself may be among them.

        Waits while a destination can take no more, and, with a journal, until the message cannot be lost any more.
        The message does not follow what another task receives during the latter wait.
        With `durable=False` it does not wait for the latter: see `flush`. With `echo=False` groups are without this
        node, whose application knows what it says. The `context` of tracing is that of a span of the
        send, unless it is given (`tracing`). Under the protocol `contexts`, a message that is sent `after` a
        causal context, or several (`one | two`), follows what they have and nothing else.
        """
        if type(payload) is not bytes:
            payload = check_bytes(payload)
        host = self._host
        if self._closing or host.failure is not None:
            self._check_open()
        if not (host.stirred or self._loop.is_running()) or get_ident() != self._ident:
            self._check_loop()
        self._turns -= 1 + len(payload) // YIELD_BYTES
        if self._turns <= 0:
            await self._pause()
            self._check_open()
        core, most = host.core, self._most
        easy = self._easy.get(to) if type(to) is str and core.steady else None
        if (
            easy is None
            or (out := easy[1]).pending >= most
            or out.size >= self._most_bytes
            or (core.unsent and (len(core.unsent) >= most or core.unsent_bytes >= self._most_bytes))
            or self._mesh.paused
        ):
            targets = await self._find_room(check_names(to), echo)
        else:
            # It is plain that there is room: for most messages.
            targets = easy[0]
        if context is None and OPENTELEMETRY in modules:
            sent = self._send_in_span(targets, payload, label, after)
        else:
            sent = Sent(core.numbering, host.send(targets, payload, label, context or "", after))
        if self._explicit:
            sent = replace(sent, causal_context=core.context_of(sent._message))
        if durable and (commits := host.commits).position > commits.position_durable:
            await commits.wait(commits.position)
        return sent

    def _send_in_span(
        self, targets: tuple[int, ...], payload: bytes, label: str, after: CausalContext | None
    ) -> Sent:
        host, sent = self._host, None
        try:
            with self._spans.send(",".join(map(host.core.view.name, targets))) as span:
                sent = Sent(host.core.numbering, host.send(targets, payload, label, current(), after))
                span.set_attribute("messaging.message.id", f"{self.name}.{sent.number}")
        except BaseException as error:
            if sent is not None:
                self._crash(error, "in the span of a message that was sent")
            raise
        return sent

    def merge(self, source: str, *, into: str) -> None:
        """What is sent with the label `into` from now on follows all that has the label `source`, as known here."""
        for label in (source, into):
            if not isinstance(label, str):
                raise WrongType("a label", "text", label)
        self._check_open()
        self._host.core.machine.merge("", "")  # Refused where there are no labels; else it changes nothing.
        self._host.happen(Merge(source, into))

    async def _pause(self) -> None:
        """Give others their turn."""
        self._turns = self._yield_every
        await asyncio.sleep(0)

    async def _find_room(self, to: tuple[str, ...], echo: bool) -> tuple[int, ...]:
        """Who is meant, once there is room for a message to them."""
        self._check_open()
        targets = self._targets(to, echo)
        while not self._pressure.has_room(targets):
            await self._pressure.wait(targets)
            self._check_open()
            if not self._host.core.steady:
                targets = self._targets(to, echo)
        return targets

    def _targets(self, to: tuple[str, ...], echo: bool) -> tuple[int, ...]:
        core, known = self._host.core, len(to) == 1 and echo and self._host.core.steady
        if known and to[0] in self._known:
            return self._known[to[0]]
        found = core.changing.targets(to, echo)
        if known:
            self._known[to[0]] = found
            if (
                len(found) == 1
                and found[0] in core.out
                and not core.machine.routed
                and to[0] in core.view.names
            ):
                self._easy[to[0]] = found, core.out[found[0]]
        return found

    # Receiving

    async def receive(self, *, sender: str | None = None) -> Delivery:
        """The next message; with `sender`, the next of that process, past those of others that came before.

        What is handed over again after a crash comes in its first order: one of another sender has to be taken first.
        Under a protocol that has one order for all senders, `sender` is refused.
        """
        host = self._host
        if not (host.stirred or self._loop.is_running()) or get_ident() != self._ident:
            self._check_loop()
        self._turns -= 1
        if self._turns <= 0:
            await self._pause()
        if sender is not None:
            if not host.core.machine.selective:
                able = ", ".join(name for name, kind in PROTOCOLS.items() if kind.selective)
                why = f"messages cannot be received by sender ({sender!r}); protocols that can: {able}"
                raise Unsupported(host.core.machine.name, why)
            check_names(sender)
        elif host.quick and not self._closing and not self._untold:
            # As below, where all that could be asked is known.
            message = host.take_first()
            if message is not None:
                self._taken += 1
                numbering = host.core.numbering
                if self._mesh.pausing:
                    self._watch(numbering.identify(message)[0])
                first = Delivery(numbering, message, False, self._acknowledge)
                return self._show(first) if OPENTELEMETRY in modules else first
        wanted = None if sender is None else host.core.view.id(sender)
        while (delivery := self._next(wanted)) is None:
            if not await self._pass():
                self._check_open()
                await self._host.arrivals.wait()
        return self._show(delivery) if OPENTELEMETRY in modules else delivery

    def _show(self, delivery: Delivery) -> Delivery:
        """A message that is handed over has a span, if the program uses OpenTelemetry."""
        try:
            self._spans.deliver(delivery.sender, delivery.number, delivery.to, delivery.traceparent)
        except BaseException as error:
            # It was taken, and nobody else will hear of it.
            self._crash(error, "in the span of a message that was handed over")
        return delivery

    def _watch(self, sender: int) -> None:
        """A message of this sender was taken: perhaps it may go on."""
        try:
            self._mesh.watch(sender)
        except BaseException as error:
            self._crash(error, "when a message was handed over")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        """The next message. Ends when the application has closed the node or left; raises what made it fail."""
        try:
            return await self.receive()
        except Closed:
            if self._phase in ("new", "starting"):
                raise
            raise StopAsyncIteration from None

    def _next(self, wanted: int | None) -> Delivery | None:
        host, core = self._host, self._host.core
        if self._closing or host.failure is not None or self._untold:
            return None
        if core.again:
            repeated = core.offer((), wanted)
            if not isinstance(repeated, Message):
                return None
            core.again.popleft()
            return Delivery(core.outside, repeated, True, self._acknowledge, core.contexts.get(repeated.id))
        settings = self.settings
        if len(core.taken) >= settings.unacknowledged or core.taken_bytes >= settings.unacknowledged_bytes:
            if not self._full:
                log.warning(
                    "%s hands over no more messages until the application acknowledges some of %d messages, %d bytes",
                    self.name,
                    len(core.taken),
                    core.taken_bytes,
                )
            self._full = True
            return None
        message = core.offer(host.commits.fresh, wanted)
        if not isinstance(message, Message):
            return None
        again = message.id in core.repeats if core.repeats else False
        host.take(message)
        self._taken += 1
        if self._mesh.pausing:
            self._watch(message.sender)
        context = self._context(message.id) if self._explicit else None
        return Delivery(core.outside, message, again, self._acknowledge, context)

    def _context(self, identity: Id) -> CausalContext:
        """The causal context of the message that was just taken."""
        latest, known = self._host.core.latest
        return known if latest == identity else CausalContext()

    def _acknowledge(self, numbering: Numbering, message: Message) -> Durable:
        if self._journal is None:
            return self._nothing
        if get_ident() != self._ident:
            raise WrongLoop(self.name)
        # With a journal, all that is handed over has the names that it has outside.
        position = self._host.acknowledge((message.sender, message.number))
        if self._full:
            self._full = False
            self._host.arrivals.fire()
        return Durable(self._host.commits.wait, position)
