"""One peer of a node: the connection with it, if there is one, and what passes over it.

Frames that may leave together leave in one write (`channel`). Back-pressure is by word, not by silence: a node that
holds too many messages of a peer asks it to pause (`session.Beat`), and goes on reading, so that acknowledgements and
permits still pass. A peer that goes on regardless is cut off.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antecede.errors import BadFrame, BadHello, PeerError, Refused
from antecede.link import Frame, Link
from antecede.net.driver import Host
from antecede.net.peers.channel import Channel
from antecede.net.peers.holding import Holding
from antecede.net.peers.session import Beat, Bye, Code, Gone, Hello, Join, Record, Session, Welcome
from antecede.net.peers.terms import Terms, digest
from antecede.net.settings import MOST_QUEUE, MOST_QUEUE_BYTES, Settings
from antecede.net.transports.transport import Connection, Direct

__all__ = ["Peer", "Shared", "name_refusal"]

log = logging.getLogger(__name__)

COUNTED = {"WireError": "refused_bytes", "BadFrame": "refused_frame"}
NANOSECOND = 1e-9


def name_refusal(error: PeerError) -> str:
    """Under which name a refused peer is counted."""
    if isinstance(error, BadHello):
        return "refused_hello"
    kind = error.kind if isinstance(error, Refused) else type(error).__name__
    return COUNTED.get(kind, "refused_packet")


class Shared(Struct, frozen=True):
    """What all peers of a node have in common."""

    host: Host
    settings: Settings
    terms: Terms
    counts: Counter[str]
    start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    """Run a task whose failure is the node's."""
    wake: Callable[[], None]
    """Look soon at what time makes necessary."""
    paused: set[int]
    """Peers that asked us to pause."""
    pausing: set[int]
    """Peers that we asked to pause."""


class Peer:
    """One peer, as a node sees it."""

    def __init__(self, shared: Shared, number: int) -> None:
        self.host, self.settings, self.counts = shared.host, shared.settings, shared.counts
        self._paused, self._pausing = shared.paused, shared.pausing
        self._shared, self.number = shared, number
        self.name = self.host.core.view.name(number)
        self.parted = False
        """It stopped, and has not come back."""
        self.refusal: str | None = None
        """Why the last connection with it was refused, here or there."""
        self._channel: Channel | None = None
        self._holding = Holding()
        self._most = self._most_bytes = 0
        """Messages and bytes that are held of it at most."""

    @property
    def paused(self) -> bool:
        """It asked us to pause."""
        return self.number in self._paused

    @property
    def pausing(self) -> bool:
        """We asked it to pause."""
        return self.number in self._pausing

    @property
    def connected(self) -> bool:
        return self._channel is not None and not self._channel.over

    def hello(self) -> Hello:
        """What we say first. It tells what has arrived, so it may leave only once that is durable."""
        core = self.host.core
        names = core.view.name(core.me), self.name
        if self.number not in core.links:
            raise Gone(f"{self.name} is no member any more")
        return Hello.of(*names, core.changing.founders, self._state_terms(), core.hail(self.number))

    def _state_terms(self) -> Terms:
        """What we state to it: more may be under way than our settings allow now, from before a restart."""
        core, settings, out = self.host.core, self.settings, self.host.core.out[self.number]
        pending, size = out.pending + len(core.unsent), out.size + core.unsent_bytes
        return replace(
            self._shared.terms,
            queue=max(settings.queue, min(pending, MOST_QUEUE)),
            queue_bytes=max(settings.queue_bytes, min(size, MOST_QUEUE_BYTES)),
            groups=(core.changing.roll.number, digest(core.changing.roll.describe_groups())),
        )

    def drop(self) -> None:
        """Have no more to do with it."""
        self._paused.discard(self.number)
        self._pausing.discard(self.number)
        if self._channel is not None:
            self._channel.connection.close()

    def transmit(self, frame: Frame) -> None:
        """Let a frame out, with the next `flush`. Without a connection it is lost, and sent again over the next."""
        if self._channel is not None:
            self._channel.put(frame)

    def flush(self) -> None:
        if self._channel is not None:
            self._channel.flush()

    def beat(self) -> None:
        if self._channel is not None:
            self._channel.put(Beat(self.pausing))
            self._channel.flush()

    async def part(self) -> None:
        """Say good-bye, if the peer takes it soon."""
        if self._channel is not None:
            await self._channel.say(Bye(Code.STOPS, f"{self.host.name} stops"), self.settings.beat_s)

    def refuse(self, reason: str) -> bool:
        """It was refused, or refused us; whether that is news."""
        news, self.refusal = reason != self.refusal, reason
        return news

    def tick(self, now: float) -> None:
        """What time makes necessary, now and then."""
        channel = self._channel
        if channel is None or channel.over:
            return
        silence = now - channel.heard
        if silence >= self.settings.dead_s:
            self._give_up(channel, "silent", f"{self.name} has said nothing for {silence:.1f} s")
        elif channel.writing is not None:
            # To send again what it does not take would only make more of it.
            if now - channel.writing >= self.settings.dead_s:
                self._give_up(
                    channel, "clogged", f"{self.name} has taken nothing for {now - channel.writing:.1f} s"
                )
        else:
            self.host.tick(self.number)
            if now - channel.spoke >= self.settings.beat_s:
                self.beat()

    def acknowledge(self) -> bool:
        """Let an acknowledgement out if it is due; whether one will be due later, over this connection."""
        channel = self._channel
        if channel is None or channel.over or channel.writing is not None:
            # What it says next, or over another connection, carries it.
            return False
        host, link = self.host, channel.link
        if not host.stirred:
            host.tick(self.number)
        elif (due := link.deadline()) is not None and due <= host.clock():
            # The turn that is under way may have something to carry it; if not, it goes alone at the end of the turn.
            host.core.touched[self.number] = None
        return link.owes

    def due(self) -> float | None:
        """When `tick` has something to do, if nothing happens before: perhaps a time that is past."""
        channel, settings = self._channel, self.settings
        if channel is None or channel.over:
            return None
        silent = channel.heard + settings.dead_s
        if channel.writing is not None:
            return min(silent, channel.writing + settings.dead_s)
        due = min(silent, channel.spoke + settings.beat_s)
        link = self.host.core.links.get(self.number)
        deadline = None if link is None else link.deadline()
        return due if deadline is None else min(due, deadline * NANOSECOND)

    def _give_up(self, channel: Channel, counted: str, reason: str) -> None:
        self.counts[counted] += 1
        log.warning("%s ends a connection: %s", self.host.name, reason)
        channel.over = True
        channel.connection.close()

    def watch(self) -> None:
        """Ask the peer to pause, or to go on, by what is held of it."""
        settings, held = self.settings, self.host.core.held[self.number]
        size = self._holding.count(held)
        if self.pausing:
            turn = held <= settings.held // 2 and size <= settings.held_bytes // 2
        else:
            turn = held >= settings.held or size >= settings.held_bytes
        if turn:
            self._pausing ^= {self.number}
            self.counts["pauses"] += self.pausing
            self.beat()

    # A connection

    async def serve(self, connection: Connection, session: Session, hello: Hello, rest: list[Record]) -> bool:
        """Carry on over this connection until it ends; whether it carried something, and nobody refused.

        Raises `PeerError` if the peer sends what it must not.
        """
        if self._channel is not None:
            # The peer has lost the old one, or it would not have made another.
            self._channel.connection.close()
        channel = self._channel = Channel(connection, session, self.host.core.links[self.number])
        writing = self._shared.start(channel.write())
        self.counts["connections"] += 1
        self.host.contacts.fire()
        self.parted = False
        self.host.room.fire()
        link = channel.link
        link.limit(hello.window)
        self._expect(hello)
        before = link.acked, link.received
        self._shared.wake()
        try:
            self.host.arrive(self.number, hello.hail)
            self.host.resume(self.number)
            self.watch()
            self.beat()
            self._take(channel, rest)
            await self._read(channel)
        finally:
            for task in filter(None, (writing, channel.catching_up)):
                self.host.dismiss(task)
            if self._channel is channel:
                self._channel = None
                self._paused.discard(self.number)
                self.counts["lost"] += 1
                self.host.contacts.fire()
                self.host.room.fire()
            await asyncio.wait({writing})
        if channel.refused is None and (link.acked, link.received) != before:
            self.refusal = None
            return True
        return False

    def _expect(self, hello: Hello) -> None:
        """Whoever obeys has a queue under way when it is asked to pause, another that its protocol lets out later, and
        sends a third if it hears of the first before."""
        settings, queue = self.settings, self.host.core.window if hello.queue is None else hello.queue
        self._most = 4 * max(settings.held, queue)
        self._most_bytes = 4 * max(settings.held_bytes, hello.queue_bytes or 0)

    async def _read(self, channel: Channel) -> None:
        connection = channel.connection
        if isinstance(connection, Direct):
            connection.push(lambda data: self._feed(channel, data))
        while data := await connection.read():
            self._feed(channel, data)
            await self.host.commits.keep_up()

    def _feed(self, channel: Channel, data: bytes | memoryview) -> None:
        self._take(channel, channel.session.feed(data))
        if (
            self.host.commits.behind
            and isinstance(channel.connection, Direct)
            and channel.catching_up is None
        ):
            channel.connection.hold()
            channel.catching_up = self._shared.start(self._catch_up(channel, channel.connection))

    async def _catch_up(self, channel: Channel, connection: Direct) -> None:
        await self.host.commits.keep_up()
        channel.catching_up = None
        connection.release()

    def _take(self, channel: Channel, records: list[Record]) -> None:
        for record in records:
            match record:
                case Frame():
                    self._arrive(channel.link, record)
                case Beat(paused=paused):
                    (self._paused.add if paused else self._paused.discard)(self.number)
                    self.host.room.fire()
                case Bye():
                    self._hear_bye(channel, record)
                case Hello() | Join() | Welcome():
                    raise BadHello(f"{self.name} said hello twice")
        if records:
            channel.heard = channel.loop.time()
            if not self._keeps_early(channel.link):
                self._holding.close_gap()
            self._check()
            if self.host.core.owing:
                self._shared.wake()

    def _arrive(self, link: Link, frame: Frame) -> None:
        held, number = self.host.core.held, self.number
        before = held[number]
        self.host.arrive(number, frame)
        if not frame.bare:
            if came := held[number] - before:
                self._holding.arrive(came, len(frame.payload))
            elif self._keeps_early(link) and (frame.number > link.received or not link.gapped):
                self._holding.come_early(len(frame.payload))

    def _keeps_early(self, link: Link) -> bool:
        """Whether something of this peer came early: a link that keeps the order keeps it, or the machine does."""
        return (link.ordered and link.gapped) or self.number in self.host.core.machine.early_from

    def _hear_bye(self, channel: Channel, bye: Bye) -> None:
        if bye.code is Code.REFUSED:
            channel.refused = bye.reason
            if self.refuse(f"{self.name} refuses {self.host.name}: {bye.reason}"):
                log.warning("%s", self.refusal)
        else:
            log.info("%s: %s ends the connection: %s", self.host.name, self.name, bye.reason)
            self.parted = True
        self.host.room.fire()

    def _check(self) -> None:
        core, settings = self.host.core, self.settings
        if core.refused and self.number in core.refused:
            raise core.refused[self.number]
        held = core.held[self.number]
        size = self._holding.count(held)
        if held < settings.held and size < settings.held_bytes and not self._pausing:
            return
        self.watch()
        if held > self._most or size > self._most_bytes:
            raise BadFrame(
                f"{self.name} was asked to pause, and went on: {held} of its messages wait, with {size} bytes, and at "
                f"most {self._most} may, with {self._most_bytes}"
            )
