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

What is promised
  order     every message is handed over after those that happened before it and are addressed to this node too, as far
            as the protocol promises it; the machine decides, the node only asks
  once      a message is handed over once; with a journal, again after a crash if it was not acknowledged, in the order
            in which it was handed over first, and before any other
  sent      with a journal, a message is never lost once `send` returned. A crash before that may have lost it, or not:
            `sent` says how many were sent, counted for ever
  pressure  `send` waits while a destination is not able to take more (`settings.Settings` has the limits). An
            application that only sends and never receives can so be stopped by another that does the same
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from os import PathLike
from random import Random
from sys import modules
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from antecede.errors import AntecedeError, BadParameter, Closed
from antecede.model import Message, View
from antecede.net.delivery import Delivery, Durable, Held, stuck
from antecede.net.driver import Host
from antecede.net.observe.tracing import OPENTELEMETRY, current
from antecede.net.peers.joining import Admit, ask_to_join
from antecede.net.peers.mesh import Mesh
from antecede.net.peers.session import Join
from antecede.net.settings import Settings
from antecede.net.status import Status
from antecede.net.storage.journal import Journal
from antecede.net.transports.tcp import Tcp
from antecede.net.transports.tls import Tls
from antecede.net.transports.transport import Certified, Connection, Transport
from antecede.net.views import Member, asking, grouped
from antecede.process.core import Core, Out
from antecede.process.inputs import Restart
from antecede.process.views.members import Change, Roll

if TYPE_CHECKING:
    from antecede.net.observe.recorder import Recorder

__all__ = ["Node"]

log = logging.getLogger(__name__)

YIELD_EVERY = 512
"""Messages sent or handed over without a pause, before others get their turn: what one turn sends goes together."""
YIELD_EVERY_PEER = 64
"""The same, for each process of the system: with many of them, some still go together to each."""


class Node(Member):
    """One process of a system.

    `peers` are the names of all processes, each with its address ("host:port") if they talk over TCP; the node's own
    may be among them, and is then where it listens, unless `listen` says otherwise. All nodes of a system are given the
    same names and protocol. `groups` are names for sets of them, that `send` takes. With a `journal`, a file, the node
    survives a crash; `sync` says what kind of crash (`journal`). Beyond loopback, `tls` is needed (`security`). With
    `trace`, a directory that all nodes may share, it records its events as its part of a `run` (`recorder`).

    With `join`, it becomes a member of a system that runs already, and `peers` are members to ask; `groups` are then
    the names of those that it will be in. `state` is called when another node joins, and gives what that one needs to
    know; `changed` is called with each new view. Both are called between messages: when the application asks for the
    next one, and has taken all that were sent in the view before. `admit` decides who may join when this node is asked
    (`peers.joining`): without it, nodes on this machine alone.
    """

    def __init__(
        self,
        name: str,
        peers: Mapping[str, str] | Iterable[str],
        *,
        protocol: str = "permit",
        parameters: Mapping[str, Any] | None = None,
        groups: Mapping[str, Iterable[str]] | Iterable[str] | None = None,
        join: bool = False,
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
        self.name, self.settings = name, settings or Settings()
        addresses = dict(peers) if isinstance(peers, Mapping) else {}
        view = _view({name, *peers}, parameters or {})
        if clash := set(groups or ()) & set(view.names):
            raise BadParameter("node", "groups", ", ".join(sorted(clash)), "other names than the processes'")
        self._join = asking(name, view, protocol, parameters, groups) if join else None
        self.state, self.changed, self._admit = state, changed, admit
        if transport is None and len(addresses) < len(view) - 1:
            raise BadParameter(
                "node", "peers", "names without addresses", "an address for each, or a transport"
            )
        self._listed = listen or addresses.pop(name, None)
        self._transport = transport or Tcp(self._listed, addresses, tls)
        # One that joins only stands for itself until it knows the view; its parameters may not fit so few.
        roll = None if join else Roll.first(view.names, grouped(view, groups))
        self._new = self._make(protocol, view, None if join else parameters, roll)
        self._new.parameters |= parameters or {}
        self.view = self._new.view
        """All processes that are or were members. `members` are those that are."""
        self._journal_path, self._sync = journal, sync
        self._trace, self._run = trace, run
        if trace is not None:
            _recorder(trace, run, self._new)  # which refuses names that are too long
        self._recorder: Recorder | None = None
        self._passing = asyncio.Lock()
        self._journal: Journal | None = None
        self._thread = ThreadPoolExecutor(1, "antecede-journal")
        self._tasks: list[asyncio.Task[None]] = []
        self._yield_every = max(YIELD_EVERY, YIELD_EVERY_PEER * len(self.view))
        self._most, self._routed = self.settings.queue, protocol == "separator"
        self._known: dict[str, tuple[int, ...]] = {}
        """Names and groups that were sent to -> their positions."""
        self._turns = self._taken = 0
        self._full = False
        """Too much is unacknowledged, and that was said."""
        self._closing = False
        self._begun = False
        """There is a process, and it may be talked to."""

    # Life

    async def start(self) -> None:
        """Come to life: from the journal, if there is one."""
        if self._journal_path is not None:
            self._journal = Journal(self._journal_path, self._sync, self.settings.snapshot_inputs)
        try:
            if isinstance(self._transport, Certified):
                self._transport.check_name(self.name)
            await self._transport.listen(self._accept)
            await self._begin()
        except BaseException:
            await self._transport.close()
            if self._journal is not None:
                self._journal.close()
            self._thread.shutdown(wait=False)
            raise

    async def _begin(self) -> None:
        journal = self._journal
        if self._join is not None and (journal is None or journal.is_new):
            self._new = await self._ask(self._join)
        self._new.record.on = self._trace is not None
        core = self._new if journal is None else journal.recover(self._new)
        self._me, self.view = core.me, core.view
        self._host = Host(
            core, journal, time.monotonic_ns, self._transmit, self.settings.backlog, self._thread
        )
        self._nothing = Durable(self._host.durable, 0)
        if self._trace is not None:
            self._recorder = _recorder(self._trace, self._run, core)
        if core is not self._new:
            # A new incarnation, durable before anyone hears of it: its frames wait for this input.
            self._host.happen(Restart(self._recorder is not None, self.settings.limits))
            self._host.since = dict.fromkeys(core.inbox, time.monotonic_ns())
        self._mesh = Mesh(self._host, self._transport, self.settings, Random(), self._waive, self._admit)
        self._waive()
        self._begun = True
        host = self._host
        self._tasks = [
            host.start_task(host.run(), "writing its journal"),
            host.start_task(self._mesh.run(), "talking to peers"),
        ]
        if self._recorder is not None:
            recording = self._recorder.run(host, self.settings.trace_s)
            self._tasks.append(host.start_task(recording, "recording its events"))

    async def _accept(self, connection: Connection) -> None:
        if not self._begun:
            # Not before we know what we are: whoever it is will dial again.
            connection.close()
        else:
            await self._mesh.accept(connection)

    def _make(
        self, protocol: str, view: View, parameters: Mapping[str, Any] | None, roll: Roll | None
    ) -> Core:
        limits, window = self.settings.limits, self.settings.queue
        return Core.new(protocol, view, self.name, _epoch(), parameters, window, limits, roll)

    async def _ask(self, join: Join) -> Core:
        """Become a member."""
        join = replace(join, address=self._listed if self._has_place() else self._transport.address)
        members = [name for name in self._new.view.names if name != self.name]
        roll = await ask_to_join(self._transport, members, join, self.settings, Random())
        return self._make(join.protocol, View(roll.names), join.parameters, roll)

    def _has_place(self) -> bool:
        """Whether we were told where others find us: a port 0 is none."""
        return self._listed is not None and not self._listed.endswith(":0")

    def _transmit(self, out: list[Out]) -> None:
        if self._begun:
            self._mesh.transmit(out)

    async def close(self) -> None:
        """Stop: take no more, wait a while for what was sent to be acknowledged, make all durable, and part."""
        if self._closing:
            return
        self._closing = True
        self._host.arrivals.fire()
        with suppress(TimeoutError, AntecedeError):
            async with asyncio.timeout(self.settings.drain_s):
                while not self._drained():
                    await self._host.room.wait()
                    self._host.check()
        running, meshing, *recording = self._tasks
        if self._recorder is not None:
            self._recorder.end()
            await asyncio.wait(recording)
        self._host.end()
        await asyncio.wait({running})
        await self._mesh.part()
        self._host.fail(Closed(self.name, "is closed"))
        meshing.cancel()
        await asyncio.wait({meshing})
        await self._transport.close()
        if self._journal is not None:
            self._journal.close()
        self._thread.shutdown(wait=False)

    def _drained(self) -> bool:
        """Whether nobody who is still there has something to acknowledge."""
        core = self._host.core
        there = [number for number, peer in self._mesh.peers.items() if not peer.parted]
        return not there or not (
            core.unsent or core.gathered or any(core.links[peer].unacknowledged for peer in there)
        )

    async def __aenter__(self) -> Node:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Sending

    @property
    def sent(self) -> int:
        """How many messages this node has sent, in all its lives: the number of the last one."""
        return self._host.core.sent

    async def send(
        self,
        to: str | Iterable[str],
        payload: bytes,
        label: str = "",
        durable: bool = True,
        context: str | None = None,
        echo: bool = True,
    ) -> Message:
        """Send a message to a process, to a group, or to several of both; itself may be among them.

        Waits while a destination can take no more, and, with a journal, until the message cannot be lost any more.
        With `durable=False` it does not wait for the latter: see `flush`. With `echo=False` groups are without this
        node, whose application knows what it says. The `context` of tracing is that of the
        current span, unless it is given (`tracing`).
        """
        if context is None:
            context = current() if OPENTELEMETRY in modules else ""
        host = self._host
        if self._closing or host.failure is not None:
            self._check_open()
        targets = self._known.get(to) if type(to) is str and echo and host.core.steady else None
        if targets is None:
            self._check_open()
            to = (to,) if isinstance(to, str) else tuple(to)
            targets = self._targets(to, echo)
        self._turns += 1
        if self._turns % self._yield_every == 0:
            await asyncio.sleep(0)
        # A message to nobody takes the longer way, at whose end it is refused.
        core, most, peer = host.core, self._most, targets[0] if targets else self._me
        if (
            len(targets) > 1
            or peer == self._me
            or not core.steady
            or core.out[peer].pending >= most
            or len(core.unsent) >= most
            or self._mesh.paused
            or self._routed
        ):
            # Else it is plain that there is room: for most messages.
            while not self._has_room(targets):
                await host.room.wait()
                self._check_open()
                if not core.steady:
                    targets = self._targets((to,) if isinstance(to, str) else tuple(to), echo)
        message = host.send(targets, payload if type(payload) is bytes else bytes(payload), label, context)
        if durable and host.position > host.position_durable:
            await host.durable(host.position)
        return message

    def _targets(self, to: tuple[str, ...], echo: bool) -> tuple[int, ...]:
        found = self._host.core.changing.targets(to, echo)
        if len(to) == 1 and echo and self._host.core.steady:
            self._known[to[0]] = found
        return found

    def _has_room(self, targets: tuple[int, ...]) -> bool:
        core, most, me = self._host.core, self._most, self._me
        if not core.steady and not core.changing.membership.going:
            return False
        if len(core.unsent) >= most or (me in targets and core.held[me] >= self.settings.held):
            return False
        # Over routers, any link may be the way.
        ways = core.links if self._routed else targets
        out, paused = core.out, self._mesh.paused
        for peer in ways:  # noqa: SIM110 -- a generator would take as long again
            if peer != me and (out[peer].pending >= most or peer in paused):
                return False
        return True

    # Receiving

    async def receive(self, sender: str | None = None) -> Delivery:
        """The next message; with `sender`, the next of that process, if the protocol lets it pass the others.

        What is handed over again after a crash comes in its first order: one of another sender has to be taken first.
        """
        self._turns += 1
        if self._turns % self._yield_every == 0:
            await asyncio.sleep(0)
        host = self._host
        if sender is None and host.quick and not self._closing:
            # As below, where all that could be asked is known.
            message = host.take_first()
            if message is not None:
                self._taken += 1
                if self._mesh.pausing:
                    self._mesh.watch(message.sender)
                return Delivery(self.view, message, False, self._acknowledge)
        wanted = None if sender is None else host.core.view.id(sender)
        while (delivery := self._next(wanted)) is None:
            if not await self._pass():
                self._check_open()
                await self._host.arrivals.wait()
        return delivery

    def __aiter__(self) -> Node:
        return self

    async def __anext__(self) -> Delivery:
        """The next message; ends when the node is closed, and raises what made it fail."""
        try:
            return await self.receive()
        except Closed:
            raise StopAsyncIteration from None

    def _next(self, wanted: int | None) -> Delivery | None:
        host, core = self._host, self._host.core
        if self._closing or host.failure is not None:
            return None
        if core.again:
            if wanted not in (None, core.again[0].sender):
                return None
            return Delivery(core.view, core.again.popleft(), True, self._acknowledge)
        if len(core.taken) >= self.settings.unacknowledged:
            if not self._full:
                log.warning("%s: no more is handed over: %d are not acknowledged", self.name, len(core.taken))
            self._full = True
            return None
        if not core.steady and (core.changing.ready or core.changing.donor is not None):
            first = self._first_ready(wanted)
            if first is None:
                return None
            return self._hand_over(first)
        message = core.next_message(wanted)
        if message is None or message.id in host.fresh:
            return None
        return self._hand_over(message)

    def _hand_over(self, message: Message) -> Delivery:
        again = message.id in self._host.core.repeats
        self._host.take(message)
        self._taken += 1
        if self._mesh.pausing:
            self._mesh.watch(message.sender)
        return Delivery(self._host.core.view, message, again, self._acknowledge)

    def _acknowledge(self, message: Message) -> Durable:
        if self._journal is None:
            return self._nothing
        position = self._host.acknowledge(message)
        if self._full:
            self._full = False
            self._host.arrivals.fire()
        return Durable(self._host.durable, position)

    # Looking

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._transport.address

    def waiting(self) -> list[Held]:
        """What is held here, for which messages of whom, and since when; and what we sent that may not leave yet."""
        core = self._host.core
        held = stuck(core.view, core.changing.waiting(), self._host.since, time.monotonic_ns())
        return held + self._mesh.joins.held()

    @property
    def connected(self) -> tuple[str, ...]:
        """The peers that there is a connection with now."""
        return tuple(peer.name for peer in self._mesh.peers.values() if peer.connected)

    @property
    def counts(self) -> Counter[str]:
        """What has happened, by name: docs/runtime.md has the list."""
        counts = Counter(self._mesh.counts)
        counts["resent"] = sum(link.resent for link in self._host.core.links.values())
        return counts

    def status(self) -> Status:
        """All that an operator looks at."""
        host, core, peers = self._host, self._host.core, self._mesh.peers
        return Status(
            node=self.name,
            protocol=core.machine.name,
            up=host.failure is None and not self._closing,
            failure=None if host.failure is None else str(host.failure),
            sent=self.sent,
            taken=self._taken,
            eligible=len(core.inbox) + len(core.changing.ready),
            unacknowledged=len(core.taken),
            unsent=len(core.unsent),
            held={name: core.held[core.view.id(name)] for name in self.members},
            queued={peer.name: core.links[number].unacknowledged for number, peer in peers.items()},
            connected={peer.name: peer.connected for peer in peers.values()},
            paused={peer.name: peer.paused for peer in peers.values()},
            inputs=host.position,
            durable=host.position_durable,
            counts=dict(self.counts),
            view=core.changing.roll.number,
            members=self.members,
            changing=core.changing.membership.progress(),
            joining=dict(self._mesh.joins.waiting),
            refused=self._mesh.refused,
        )


def _view(names: set[str], parameters: Mapping[str, Any]) -> View:
    """All names in an order that every node finds by itself: sorted, or as the topology has them if there is one."""
    topology = parameters.get("topology")
    if topology is None:
        return View(tuple(sorted(names)))
    ordered = tuple(topology["names"] if isinstance(topology, Mapping) else topology.names)
    if set(ordered) != names:
        raise BadParameter(
            "node", "peers", ", ".join(sorted(names)), f"those of the topology: {', '.join(ordered)}"
        )
    return View(ordered)


def _recorder(trace: str | PathLike[str], run: str, core: Core) -> Recorder:
    # PyArrow takes longer to load than all the rest, and few nodes need it.
    from antecede.net.observe.recorder import Recorder

    return Recorder(trace, run, core.machine.name, core.view, core.view.name(core.me))


def _epoch() -> int:
    """An incarnation later than all that this process ever had, even if its journal was lost: microseconds of now."""
    return time.time_ns() // 1000
