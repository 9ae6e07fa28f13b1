"""The connections of a node with all its peers: who dials, who is let in, and what happens when one is lost.

Rules
  dial      of two nodes, the one that comes first on the roll dials, so there is one connection for each pair;
            if it fails or ends, again, after a time that doubles and has chance in it
  hello     both say who they are and whom they mean (`session`); a stranger has `hello_s` for it and `HELLO_BYTES`
  refuse    another name, view, protocol or version; a name that is not proved, where the transport proves names; bytes
            that are no records; links that contradict each other. Each is logged, counted, and told to the peer.
  replace   a peer that dials again has lost its connection: the new one takes its place
  follow    peers are those that the process has links with: as its view changes, they come and go
  knock     a node that nobody talks to for long dials all: if it was removed, they tell it so
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from random import Random
from typing import Any

from antecede.errors import AntecedeError, BadHello, BadParameter, NotMember, PeerError
from antecede.net.driver import Host
from antecede.net.peers.joining import admit, is_gone
from antecede.net.peers.peer import GONE, Peer, refusal
from antecede.net.peers.session import Bye, Hello, Join, Record, Session, check_hello, pack
from antecede.net.settings import Backoff, Settings
from antecede.net.transports.transport import Connection, Learns, Transport
from antecede.process.core import Out

__all__ = ["Mesh"]

log = logging.getLogger("antecede.net")

TICK_S = 0.01
"""How exact times are. Acknowledgements are the shortest of them, and wait about as long."""
LOOK_EVERY = 5
"""Ticks, after which the links that owe none are looked at too."""


class Mesh:
    """All peers of a node."""

    def __init__(
        self,
        host: Host,
        transport: Transport,
        settings: Settings,
        random: Random,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`changed` is called when the view has, or may have, changed."""
        self.host, self.transport, self.settings = host, transport, settings
        self.counts: Counter[str] = Counter()
        self.paused: set[int] = set()
        """Peers that asked us to pause."""
        self.pausing: set[int] = set()
        """Peers that we asked to pause."""
        self.peers: dict[int, Peer] = {}
        self._dialling: dict[int, asyncio.Task[None]] = {}
        self._turnover = -1
        self._alone = 0.0
        """Since when nobody talks to us."""
        self._random, self._changed = random, changed
        self._follow()
        self._strangers = 0
        self._serving: set[asyncio.Task[Any]] = set()

    def transmit(self, out: Iterable[Out]) -> None:
        """Let frames out: those of one peer in one write."""
        touched = {}
        for peer, frame in out:
            one = self.peers.get(peer)
            if one is not None:
                one.transmit(frame)
                touched[peer] = one
        for one in touched.values():
            one.flush()

    def watch(self, peer: int) -> None:
        """A message of this peer was taken: perhaps it may go on."""
        if peer in self.pausing and peer in self.peers:
            self.peers[peer].watch()

    async def run(self) -> None:
        """Keep connections with all peers, until cancelled."""
        loop = asyncio.get_running_loop()
        changing = self.host.core.changing
        self._alone = loop.time()
        self._dial_all()
        try:
            for tick in count():
                await asyncio.sleep(TICK_S)
                now = loop.time()
                if changing.turnover != self._turnover:
                    self._follow()
                    self._dial_all()
                    self._changed()
                if tick % LOOK_EVERY == 0:
                    self._knock(now)
                    for peer in self.peers.values():
                        peer.tick(now)
                elif self.host.core.owing:
                    self._acknowledge()
        finally:
            tasks = [*self._dialling.values(), *self._serving]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # Who our peers are

    def _follow(self) -> None:
        """Have the peers that the process has links with."""
        core, roll = self.host.core, self.host.core.changing.roll
        self._turnover = core.changing.turnover
        for number in [number for number in self.peers if number not in core.links]:
            self.peers.pop(number).drop()
            if number in self._dialling:
                self._dialling.pop(number).cancel()
        if core.me not in roll.members:
            # Who has left waits for no one.
            while self._dialling:
                self._dialling.popitem()[1].cancel()
        for number in core.links:
            if number not in self.peers:
                peer = Peer(self.host, number, self.settings, self.counts, self.paused, self.pausing)
                self.peers[number] = peer
                if peer.name in roll.addresses and isinstance(self.transport, Learns):
                    try:
                        self.transport.learn(peer.name, roll.addresses[peer.name])
                    except BadParameter as error:
                        # Whoever let it in could dial it, perhaps, and we cannot: no reason to stop.
                        log.warning("%s cannot dial %s: %s", self.host.name, peer.name, error)
        if core.changing.orphaned:
            why = "joined, and whoever was to give it its state was removed: remove it too, and join anew"
            self.host.fail(NotMember(self.host.name, why))

    def _dial_all(self) -> None:
        core = self.host.core
        if core.me in core.changing.roll.members:
            for number, peer in self.peers.items():
                if number > core.me and number not in self._dialling:
                    self._dialling[number] = asyncio.ensure_future(self._dial(peer))

    def _knock(self, now: float) -> None:
        """Perhaps we were removed, and those that used to dial us do not any more."""
        core = self.host.core
        if core.me not in core.changing.roll.members or any(peer.connected for peer in self.peers.values()):
            self._alone = now
        elif now - self._alone > 2 * self.settings.dead_s:
            self._alone = now
            for number, peer in self.peers.items():
                if number < core.me:
                    task = asyncio.ensure_future(self._try(peer))
                    self._serving.add(task)
                    task.add_done_callback(self._serving.discard)

    def _acknowledge(self) -> None:
        """Let out acknowledgements that are due."""
        core = self.host.core
        for peer in list(core.owing):
            if peer in self.peers and self.peers[peer].connected:
                self.host.tick(peer)
            if peer not in core.links or not core.links[peer].owes:
                core.owing.discard(peer)

    async def part(self) -> None:
        """Say good-bye to all."""
        await asyncio.gather(*(peer.part() for peer in self.peers.values()))

    # Dial and accept

    async def _dial(self, peer: Peer) -> None:
        backoff = Backoff(self.settings, self._random)
        while True:
            if await self._try(peer):
                backoff.reset()
            await asyncio.sleep(backoff.next())

    async def _try(self, peer: Peer) -> bool:
        try:
            async with asyncio.timeout(self.settings.hello_s):
                connection = await self.transport.connect(peer.name)
        except (OSError, TimeoutError, ValueError) as error:
            # A host can be no host's name at all, which is not known before it is looked up.
            self.counts["unreachable"] += 1
            log.debug("%s cannot reach %s: %s", self.host.name, peer.name, error)
            return False
        return await self._meet(connection, peer)

    async def accept(self, connection: Connection) -> None:
        """What becomes of a connection that someone dialled."""
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            if self._strangers >= self.settings.strangers:
                self.counts["refused_busy"] += 1
                connection.close()
                return
            # Cancelled is how it ends when the node does: not an error of whoever accepted.
            with suppress(asyncio.CancelledError):
                await self._meet(connection, None)
        finally:
            self._serving.discard(task)

    async def _meet(self, connection: Connection, peer: Peer | None) -> bool:
        """Say hello, carry on until the connection ends; whether it came so far as to carry anything."""
        met = False
        try:
            session = Session(self.host.core.epoch, self.settings.limits)
            async with asyncio.timeout(self.settings.hello_s):
                greeted = await self._greet(connection, session, peer)
            if isinstance(greeted, Join):
                self._check_place(greeted)
                await admit(self.host, connection, greeted, self.settings)
                return False
            met = True
            found, hello, rest = greeted
            await found.serve(connection, session, hello, rest)
        except PeerError as error:
            met = False
            self.counts[refusal(error)] += 1
            log.warning("%s: %s", self.host.name, error)
            await self._refuse(connection, str(error))
            core = self.host.core
            if is_gone(error) and peer is not None and core.me in core.changing.roll.members:
                self.host.fail(NotMember(self.host.name, "is no member any more: it left, or was removed"))
        except TimeoutError:
            self.counts["refused_slow"] += 1
            log.warning("%s: a connection without a hello for %g s", self.host.name, self.settings.hello_s)
        except (OSError, AntecedeError) as error:
            if not met and peer is not None:
                self.counts["unanswered"] += 1
                log.info("%s: %s was dialled and does not say hello: %s", self.host.name, peer.name, error)
        finally:
            connection.close()
        return met

    def _check_place(self, join: Join) -> None:
        """Refuse one that nobody could dial."""
        if isinstance(self.transport, Learns):
            try:
                self.transport.check(join.address)
            except BadParameter as error:
                raise BadHello(f"{join.name[:100]} at {join.address[:100]!r}", error.expected) from None

    async def _refuse(self, connection: Connection, reason: str) -> None:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(self.settings.beat_s):
                await connection.write(pack(Bye(reason)))

    # Hello

    async def _greet(
        self, connection: Connection, session: Session, peer: Peer | None
    ) -> tuple[Peer, Hello, list[Record]] | Join:
        """Exchange hellos; who dials speaks first. It may be one that wants to join."""
        if peer is not None:
            await connection.open()
            ours = await self._say_hello(connection, peer)
            said, rest = await self._hear_hello(connection, session)
        else:
            self._strangers += 1
            try:
                await connection.open()
                said, rest = await self._hear_hello(connection, session)
            finally:
                self._strangers -= 1
            if isinstance(said, Join):
                return said
            peer = self._known(said.name)
            ours = peer.hello()
        if isinstance(said, Join):
            raise BadHello(f"{said.name} joining", "a hello, of one that was dialled")
        theirs = said
        check_hello(theirs, ours)
        if connection.proved is not None and connection.proved != theirs.name:
            raise BadHello(f"{theirs.name} with the certificate of {connection.proved}", "its own")
        if peer.number < self.host.core.me:
            await self._say_hello(connection, peer)
        return peer, theirs, rest

    def _known(self, name: str) -> Peer:
        """The peer of this name, which has dialled."""
        for peer in self.peers.values():
            if peer.name == name and peer.number < self.host.core.me:
                return peer
        names, roll = self.host.core.view.names, self.host.core.changing.roll
        if name in names and names.index(name) not in roll.members:
            raise BadHello(f"{name}, {GONE}", "a member: it joins anew, under another name")
        raise BadHello(f"{name[:100]!r}", "a peer that dials this node")

    async def _say_hello(self, connection: Connection, peer: Peer) -> Hello:
        hello = peer.hello()
        await self.host.durable(self.host.position)
        await connection.write(pack(hello))
        return hello

    async def _hear_hello(
        self, connection: Connection, session: Session
    ) -> tuple[Hello | Join, list[Record]]:
        while data := await connection.read():
            records = session.feed(data)
            if not records:
                continue
            match records[0]:
                case Hello() | Join() as said:
                    return said, records[1:]
                case Bye(reason=reason):
                    raise BadHello(f"a refusal: {reason}", "a hello")
        # One that refuses our certificate does no more than this.
        raise ConnectionResetError("it closed the connection")
