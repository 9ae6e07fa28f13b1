"""Drives a process: gives it its inputs, sees that they are durable, and only then lets out what follows from them.

The rule (write-ahead). An input is applied and written in one step. The frames that follow from it wait until it is
durable, and with it all inputs before it. So a peer never hears of anything that a crash could undo. While one group of
inputs is being made durable, in a thread, the next one gathers: the slower the disk, the larger the groups. What does
not wait for the disk is written at once: to give the interpreter to a thread and to get it back takes longer.

Turns. What happens within one turn of the event loop gathers (`outgoing`), and leaves at its end, as one payload for
each peer: the input `Turn`. The busier a node, the more a payload holds. `FLUSH_BYTES` end a turn early.

A message is handed over once its arrival is durable. That it was taken is durable by the time that anything which the
application sends or acknowledges afterwards is: after a crash before that, it comes again, in the same place.

Without a journal everything counts as durable at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from antecede.errors import AntecedeError, Closed
from antecede.link import Frame
from antecede.model import Id, Message
from antecede.net.storage.journal import Journal
from antecede.process.core import Core, Out
from antecede.process.inputs import Acknowledge, Arrive, Input, Send, Take, Time, Turn

__all__ = ["Host", "Signal"]

log = logging.getLogger("antecede.net")

MILLISECOND = 1_000_000
FLUSH_BYTES = 1 << 18
"""Bytes of payload that gather for a peer, in the mean over all, before they leave."""


TURN = Turn()


class Signal:
    """Wakes everyone who waits for a change."""

    def __init__(self) -> None:
        self.waiters: set[asyncio.Future[None]] = set()

    async def wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self.waiters.add(waiter)
        try:
            await waiter
        finally:
            self.waiters.discard(waiter)

    def fire(self) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()


class Host:
    """One process, running. `transmit` is called with frames that may leave now."""

    def __init__(
        self,
        core: Core,
        journal: Journal | None,
        clock: Callable[[], int],
        transmit: Callable[[list[Out]], None],
        backlog: int,
    ) -> None:
        self.core, self.clock, self.transmit = core, clock, transmit
        self.name = core.view.name(core.me)
        self.arrivals, self.room = Signal(), Signal()
        self.failure: AntecedeError | None = None
        self.fresh: dict[Id, int] = {}
        """Messages whose arrival is not durable yet, with its position; in the order of positions."""
        self.since: dict[Id, int] = {}
        """When each message arrived that was not taken yet."""
        self._journal, self._most = journal, backlog
        self._written = self._durable = journal.position if journal is not None else 0
        self._batch: list[Input] = []
        self._work = asyncio.Event()
        self._out: deque[tuple[int, list[Out]]] = deque()
        """What may leave once a position is durable."""
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._committed = Signal()
        self._ended = False
        self._told = clock() - 2 * MILLISECOND
        self.quick = journal is None and not core.record.on
        """There is nothing to write or to record, and nothing has failed."""
        self._loop = asyncio.get_running_loop()
        self._stirred = False
        """A turn is under way, and its end is planned."""

    # Inputs

    def happen(self, given: Input) -> int:
        """Let something happen now; its position in the journal. An error changes nothing."""
        self._begin()
        out = self.core.apply(given, self.clock())
        position = self._write(given)
        self._let_out(out)
        self._stir()
        return position

    def _begin(self) -> None:
        """Something is about to happen."""
        if self.failure is not None:
            raise self.failure
        if self.core.record.on:
            self._tell_time()

    def send(self, to: tuple[int, ...], payload: bytes, label: str, context: str) -> Message:
        """The application sends a message; `position` is then that of the input."""
        core = self.core
        if not self.quick:
            self._begin()
            message = core.send(to, payload, label, context)
            self._write(Send(to, payload, label, context))
        else:
            message = core.send(to, payload, label, context)
            if core.arrived:
                self._note()
        if core.weight > FLUSH_BYTES * len(core.out):
            self._turn()
        if not self._stirred:
            self._stir()
        return message

    def take(self, message: Message) -> None:
        """The application takes a message that was offered."""
        core, identity = self.core, (message.sender, message.number)
        self.since.pop(identity, None)
        if not core.steady:
            self.happen(Take(*identity))
            if self._journal is None:
                # There is no use for the application's own: nothing comes again.
                self.happen(Acknowledge(*identity))
            return
        self._begin()
        core.take(identity, message, keep=self._journal is not None)
        self._write(Take(*identity))
        if not self._stirred:
            self._stir()

    def acknowledge(self, message: Message) -> int:
        """The application has processed a message: the position of the input."""
        identity = message.sender, message.number
        if not self.core.steady:
            return self.happen(Acknowledge(*identity))
        self._begin()
        self.core.taken.pop(identity, None)
        return self._write(Acknowledge(*identity))

    def take_first(self) -> Message | None:
        """The application takes the message that was offered first, if there is one and the host is `quick`."""
        core = self.core
        if not core.steady:
            return None
        for identity, message in core.inbox.items():
            # As `take` does it, with nothing to write.
            self.since.pop(identity, None)
            core.take(identity, message, keep=False)
            if not self._stirred and (core.gathered or self.arrivals.waiters or self.room.waiters):
                self._stir()
            return message
        return None

    def _stir(self) -> None:
        """Something has happened: plan the end of the turn, if there is something to do, and tell the application."""
        if not self._stirred and (self.core.gathered or self.core.touched or self.room.waiters):
            self._stirred = True
            self._loop.call_soon(self._end_turn)
        self._tell()

    def _tell(self) -> None:
        if self.arrivals.waiters and (self.core.inbox or not self.core.steady):
            self.arrivals.fire()

    def _end_turn(self) -> None:
        self._stirred = False
        if self.failure is None:
            self._turn()
            self.room.fire()
            # What was taken within the turn may have made way for what others wait for.
            self._tell()

    def _turn(self) -> None:
        """Let out what has gathered."""
        now = self.clock()
        gathered = self.core.gathered
        out = self.core.turn(now)
        if gathered:
            self._write(TURN)
        self._let_out(out)

    def _note(self) -> None:
        """Remember when messages arrived."""
        arrived = self.core.arrived
        self.since.update(dict.fromkeys(arrived, self.clock()))
        if self._journal is not None:
            self.fresh.update(dict.fromkeys(arrived, self._written))
        arrived.clear()

    def _tell_time(self) -> None:
        """Events are recorded with a time. It is an input, so that a replay has the same."""
        now = self.clock()
        if now - self._told > MILLISECOND:
            self._told = now
            told = Time(time.time_ns())
            self.core.apply(told, now)
            self._write(told)

    def arrive(self, peer: int, frame: Frame) -> None:
        """A frame of a peer arrives."""
        if self.quick or (frame.bare and not frame.greets):
            # It need not be written.
            self.check()
            out = self.core.arrive(peer, frame, self.clock())
            if self.core.arrived:
                self._note()
            self._let_out(out)
            self._stir()
        else:
            self.happen(Arrive.of(peer, frame))

    def tick(self, peer: int) -> None:
        """What is due on the link to a peer that can be reached."""
        if self.failure is None:
            self._let_out(self.core.tick(peer, self.clock()))

    def resume(self, peer: int) -> None:
        """A new connection to a peer, whose hail has arrived."""
        self._let_out(self.core.resume(peer, self.clock()))

    def check(self) -> None:
        """Raise what ended this host, if something did."""
        if self.failure is not None:
            raise self.failure

    # Durability

    @property
    def position(self) -> int:
        """The position of the last input."""
        return self._written

    @property
    def position_durable(self) -> int:
        """The position of the last input that is durable."""
        return self._durable

    def _write(self, given: Input) -> int:
        if self._journal is not None:
            if not self._batch:
                self._work.set()
            self._written += 1
            self._batch.append(given)
        if self.core.arrived:
            self._note()
        return self._written

    def _let_out(self, out: list[Out]) -> None:
        if not out:
            return
        if self._written == self._durable:
            self.transmit(out)
        else:
            self._out.append((self._written, out))

    async def durable(self, position: int) -> None:
        """Wait until the input at this position, and so all before it, is durable."""
        if position > self._durable:
            self.check()
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append((position, waiter))
            await waiter

    @property
    def behind(self) -> bool:
        """Whether too much is not durable yet."""
        return self._written - self._durable > self._most and self.failure is None

    async def keep_up(self) -> None:
        """Wait while too much is not durable yet."""
        while self.behind:
            await self._committed.wait()

    async def run(self) -> None:
        """Make inputs durable, group by group, until the host ends."""
        if self._journal is None:
            return
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, "antecede-journal") as thread:
            while self.failure is None:
                await self._work.wait()
                self._work.clear()
                batch, self._batch = self._batch, []
                if batch:
                    # The state of this moment is the state after this batch.
                    snapshot = self.core.snapshot() if self._journal.wants_snapshot(len(batch)) else None
                    try:
                        if self._journal.waits(snapshot is not None):
                            await loop.run_in_executor(thread, self._journal.append, batch, snapshot)
                        else:
                            self._journal.append(batch)
                    except AntecedeError as error:
                        self.fail(error)
                        return
                    self._commit(self._durable + len(batch))
                if self._ended and not self._batch:
                    return

    def _commit(self, position: int) -> None:
        self._durable = position
        out: list[Out] = []
        while self._out and self._out[0][0] <= position:
            out += self._out.popleft()[1]
        if out:
            self.transmit(out)
        while self._waiters and self._waiters[0][0] <= position:
            _, waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
        if self.fresh:
            fresh, self.fresh = self.fresh, {}
            if next(reversed(fresh.values())) > position:
                self.fresh = {message: at for message, at in fresh.items() if at > position}
            self.arrivals.fire()
        self._committed.fire()

    # The end

    def end(self) -> None:
        """Let `run` return once everything is durable."""
        self._ended = True
        self._work.set()

    def fail(self, error: AntecedeError) -> None:
        """Stop: nothing happens any more, and nothing that is not durable leaves."""
        if self.failure is not None:
            return
        self.failure, self.quick = error, False
        if not isinstance(error, Closed):
            log.error("%s stops: %s", self.name, error)
        self._out.clear()
        for _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error)
        for signal in (self.arrivals, self.room, self._committed):
            signal.fire()
        self._work.set()
