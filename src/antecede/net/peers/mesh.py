"""The connections of a node with all its peers: who dials, who is let in, and what happens when one is lost.

Rules
  dial      of two nodes, the one that comes first on the roll dials, so there is one connection for each pair; if it
            fails, ends or is refused, again, after a time that doubles and has chance in it. The time is short again
            once a connection has carried something
  meet      what both ends say and prove first, and who is refused, `reception` says
  replace   a peer that dials again has lost its connection: the new one takes its place
  follow    peers are those that the process has links with: as its view changes, they come and go
  knock     a node that nobody talks to for long dials all: if it was removed, they tell it so
  time      nothing is looked at before it is due: a mesh in which nothing happens wakes for its beats alone. While much
            happens, all peers are looked at every `LOOK_S`; between that, acknowledgements that are due go out
  fail      what nobody expected, in any task, stops the node
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from random import Random
from typing import Any

from antecede.errors import BadParameter, NotMember
from antecede.net.driver import Host
from antecede.net.peers.handshake import state_terms
from antecede.net.peers.joining import Admit, Joins
from antecede.net.peers.peer import Peer, Shared
from antecede.net.peers.reception import Reception
from antecede.net.peers.stalls import Stalls
from antecede.net.settings import Backoff, Settings
from antecede.net.transports.transport import Connection, Learns, Transport
from antecede.process.core import Out

__all__ = ["Mesh"]

log = logging.getLogger(__name__)

TICK_S = 0.01
"""How exact the times of acknowledgements are, the shortest there are."""
LOOK_S = 0.25
"""How exact other times are, half a second or more; or a fourth of a beat, if that is shorter."""


class Mesh:
    """All peers of a node."""

    def __init__(
        self,
        host: Host,
        transport: Transport,
        settings: Settings,
        random: Random,
        changed: Callable[[], None] = lambda: None,
        admit: Admit | None = None,
    ) -> None:
        """`changed` is called when the view has, or may have, changed; `admit` decides who may join."""
        self.host, self.transport, self.settings = host, transport, settings
        self.counts: Counter[str] = Counter()
        self.paused: set[int] = set()
        self.pausing: set[int] = set()
        self.peers: dict[int, Peer] = {}
        self._random, self._changed = random, changed
        self.stalls = Stalls(host, self._list_unreachable)
        self._joins = Joins(host, settings, admit, self.stalls)
        self._loop = asyncio.get_running_loop()
        self._shared = Shared(
            host,
            settings,
            state_terms(host.core),
            self.counts,
            self._start,
            self.wake,
            self.paused,
            self.pausing,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._dialling: dict[int, asyncio.Task[None]] = {}
        self._reception = Reception(host, transport, settings, self.counts, self.peers, self._joins)
        self._alone = self._loop.time()
        """Since when nobody talks to us."""
        self._timer: asyncio.TimerHandle | None = None
        """When `run` looks next."""
        self._soon = False
        """It looks within a tick: asked for each frame."""
        self._woken = asyncio.Event()
        self._look_s = min(LOOK_S, settings.beat_s / 4)
        self._looked = self._loop.time() - self._look_s
        """When all peers were looked at last."""
        self._turned = False
        """The view has changed, and nobody has followed it yet."""
        self._follow()
        host.on_turnover = self._turn

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
        if not self._soon:
            self.wake()

    def watch(self, peer: int) -> None:
        """A message of this peer was taken: perhaps it may go on."""
        if peer in self.pausing and peer in self.peers:
            self.peers[peer].watch()

    @property
    def refused(self) -> dict[str, str]:
        """Peers that there is no connection with because one of the two refuses the other, and why."""
        return {
            peer.name: peer.refusal
            for peer in self.peers.values()
            if peer.refusal is not None and not peer.connected
        }

    def may_reach(self, number: int) -> bool:
        """Whether there is, or will be, a connection with this peer: one that has left dials nobody any more."""
        me, members = self.host.core.me, self.host.core.changing.roll.members
        return self.peers[number].connected or (me in members and min(me, number) in members)

    def _list_unreachable(self) -> tuple[str, ...]:
        return tuple(peer.name for peer in self.peers.values() if not peer.connected)

    async def part(self) -> None:
        """Say good-bye to all."""
        await asyncio.gather(*(peer.part() for peer in self.peers.values()))

    # Time

    async def run(self) -> None:
        """Keep connections with all peers, until cancelled: when the node closes, and as soon as it fails."""
        try:
            self._dial_all()
            while True:
                if self._turned:
                    self._turned = False
                    self._follow()
                    self._dial_all()
                    self._changed()
                now = self._loop.time()
                due = self._look(now)
                self._soon = due <= now + TICK_S
                self._plan(max(due, now + TICK_S))
                await self._woken.wait()
                self._woken.clear()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            tasks = list(self._tasks)
            for task in tasks:
                self.host.dismiss(task)
            await asyncio.gather(*tasks, return_exceptions=True)

    def wake(self) -> None:
        """Something has happened that may be due soon: an acknowledgement, or a frame to be sent again."""
        if not self._soon:
            self._soon = True
            self._plan(self._loop.time() + TICK_S)

    def _turn(self) -> None:
        self._turned = self._soon = True
        self._plan(self._loop.time())

    def _plan(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._alarm)

    def _alarm(self) -> None:
        """It is time: for acknowledgements, unless `run` has more to do."""
        now = self._loop.time()
        due = self._looked + self._look_s
        if self._turned or now >= due:
            self._woken.set()
            return
        try:
            self._soon = self._acknowledge()
        except Exception as error:
            # The event loop calls this: nobody else would hear of it.
            self.host.stop(error, "when acknowledgements were due")
            return
        self._plan(now + TICK_S if self._soon else due)

    def _acknowledge(self) -> bool:
        """Let acknowledgements out that are due and found nothing to ride on; whether others will be due."""
        core = self.host.core
        for number in list(core.owing):
            peer = self.peers.get(number)
            if peer is None or not peer.acknowledge():
                core.owing.discard(number)
        return bool(core.owing)

    def _look(self, now: float) -> float:
        """Do what is due; when something is due next."""
        core, self._looked = self.host.core, now
        if core.changing.membership.vouchers:
            self._joins.vouch(now)
        due = [now + 2 * self.settings.dead_s]
        if self.stalls.watch():
            due.append(now + self.settings.beat_s)
        if self._acknowledge():
            due.append(now)
        for peer in self.peers.values():
            next_due = peer.due()
            if next_due is not None and next_due <= now:
                peer.tick(now)
                next_due = peer.due()
            if next_due is not None:
                due.append(next_due)
        if (knocking := self._knock(now)) is not None:
            due.append(knocking)
        return min(due)

    def _knock(self, now: float) -> float | None:
        """Perhaps we were removed, and those that used to dial us do not any more: when to ask, if nobody talks."""
        core = self.host.core
        if core.me not in core.changing.roll.members or any(peer.connected for peer in self.peers.values()):
            self._alone = now
            return None
        if now - self._alone >= 2 * self.settings.dead_s:
            self._alone = now
            for number, peer in self.peers.items():
                if number < core.me:
                    self._start(self._knock_at(peer))
        return self._alone + 2 * self.settings.dead_s

    async def _knock_at(self, peer: Peer) -> None:
        await self._try(peer)

    # Tasks

    def runs(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether this is a task of its own: `run` does not end before it."""
        return task in self._tasks

    def _start(self, part: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task. If it fails, so does the node."""
        task = self.host.start_task(part, "in a task of its connections")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Who our peers are

    def _follow(self) -> None:
        """Have the peers that the process has links with."""
        core, roll = self.host.core, self.host.core.changing.roll
        for number in [number for number in self.peers if number not in core.links]:
            self.peers.pop(number).drop()
            self._reception.forget(number)
            if number in self._dialling:
                self.host.dismiss(self._dialling.pop(number))
        if core.me not in roll.members:
            # Who has left waits for no one. But one that led the change has a word for all who are still there.
            for number in [number for number in self._dialling if not self.peers[number].connected]:
                self.host.dismiss(self._dialling.pop(number))
        for number in core.links:
            if number not in self.peers:
                peer = self.peers[number] = Peer(self._shared, number)
                if peer.name in roll.addresses and isinstance(self.transport, Learns):
                    try:
                        self.transport.learn(peer.name, roll.addresses[peer.name])
                    except BadParameter as error:
                        # Whoever let it in could dial it, perhaps, and we cannot: no reason to stop.
                        log.warning("%s cannot dial %s: %s", self.host.name, peer.name, error)
        if core.changing.orphaned:
            why = "joined, and the member that was to give it its state was removed: remove it too, and join anew"
            self.host.fail(NotMember(self.host.name, why))

    def _dial_all(self) -> None:
        core = self.host.core
        if core.me in core.changing.roll.members:
            for number, peer in self.peers.items():
                if number > core.me and number not in self._dialling:
                    self._dialling[number] = self._start(self._dial(peer))

    # Dial and accept

    async def _dial(self, peer: Peer) -> None:
        backoff = Backoff(self.settings, self._random)
        while True:
            if await self._try(peer):
                backoff.reset()
            if self.host.core.me not in self.host.core.changing.roll.members:
                return
            await asyncio.sleep(backoff.next())

    async def _try(self, peer: Peer) -> bool:
        """Dial once; whether the connection carried something."""
        try:
            async with asyncio.timeout(self.settings.hello_s):
                connection = await self.transport.connect(peer.name)
        except (OSError, ValueError) as error:
            # A host can be no host's name at all, which is not known before it is looked up.
            self.counts["unreachable"] += 1
            log.debug("%s cannot reach %s: %s", self.host.name, peer.name, error)
            return False
        return await self._reception.meet(connection, peer)

    async def accept(self, connection: Connection) -> None:
        """What becomes of a connection that someone dialled. Whoever runs this may forget how it ends."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            self._reception.let_in(connection)
            # Cancelled is how it ends when the node does: not an error of whoever accepted.
            with suppress(asyncio.CancelledError):
                await self._reception.meet(connection, None)
        except BaseException as error:
            self.host.stop(error, "with a connection that was accepted")
        finally:
            self._tasks.discard(task)
