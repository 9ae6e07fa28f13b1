"""Drives a process: gives it its inputs, sees that they are durable, and only then lets out what follows from them.

The rule (write-ahead). An input is applied and written in one step. The frames that follow from it wait until it is
durable, and with it all inputs before it. So a peer never hears of anything that a crash could undo. While one group of
inputs is being made durable, in a thread, the next one gathers: the slower the disk, the larger the groups. What does
not wait for the disk is written by the event loop: to give the interpreter to a thread and to get it back takes longer.
A group is begun at the end of a turn in which someone began to wait for it: frames that may not leave yet, a message
that may not be handed over yet, a call. What nobody waits for (that a message was taken, or acknowledged) is written
with the next group, or after `LAZY_S`.

Turns. What happens within one turn of the event loop gathers (`outgoing`), and leaves at its end, as one payload for
each peer: the input `Turn`. The busier a node, the more a payload holds. `FLUSH_BYTES` end a turn early.

A message is handed over once its arrival is durable. That it was taken is durable by the time that anything which the
application sends or acknowledges afterwards is: after a crash before that, it comes again, in the same place.

Without a journal everything counts as durable at once.

Failure. A refusal is declared (`REFUSALS`): it has changed nothing, and the host goes on. Nobody expected whatever else
is raised: by the process, by frames that leave, at the end of a turn, in the journal's thread, or in a task of the node
(`start_task`). The process may be half changed by then. So the host stops (`crash`, `fail`): it takes and writes no
input any more, lets out no frame, and tells all who ask or wait by `NodeFailed`. The journal has nothing of the input
that failed, so a new node goes on from it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, NoReturn

from antecede.errors import (
    AntecedeError,
    CallerError,
    CannotWrite,
    Closed,
    NodeFailed,
    NotMember,
    PeerError,
)
from antecede.link import Frame
from antecede.model import CausalContext, Id, Message
from antecede.process.core import Core, Out
from antecede.process.inputs import Acknowledge, Arrive, Close, Input, Propose, Send, Take, Time, Turn
from antecede.process.journal import Journal

__all__ = ["Host", "Signal"]

log = logging.getLogger(__name__)

MILLISECOND = 1_000_000
FLUSH_BYTES = 1 << 18
"""Bytes of payload that gather for a peer, in the mean over all, before they leave."""


LAZY_S = 0.005
"""How long inputs that nobody waits for may gather before they are written."""

TURN = Turn()

REFUSALS: dict[type[Input], type[AntecedeError]] = {
    Send: CallerError,
    Propose: CallerError,
    Arrive: PeerError,
}
"""Inputs that may be refused, and how the process says so."""
EXPECTED = (CannotWrite, Closed, NodeFailed, NotMember)
"""Errors that say themselves why a node stopped."""


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

    # What each message needs. CPython finds a slot at once, and other attributes only while there are at most 30.
    __slots__ = (
        "__dict__", "__weakref__", "_journal", "arrivals", "core", "failure", "flush_bytes", "position",
        "position_durable", "quick", "room", "since", "stirred",
    )  # fmt: skip

    def __init__(
        self,
        core: Core,
        journal: Journal | None,
        clock: Callable[[], int],
        transmit: Callable[[list[Out]], None],
        backlog: tuple[int, int],
        thread: Executor | None = None,
    ) -> None:
        """The journal is written to by `thread`, where that waits for the disk. `backlog` says how many inputs, and how
        many bytes of peers, may wait for it."""
        self.core, self.clock, self.transmit = core, clock, transmit
        self.name = core.view.name(core.me)
        self.arrivals, self.room, self.contacts = Signal(), Signal(), Signal()
        """Fired when something may be taken, when something may be sent, and when a connection begins or ends."""
        self.failure: AntecedeError | None = None
        self.fresh: dict[Id, int] = {}
        """Messages whose arrival is not durable yet, with its position; in the order of positions."""
        self.since: dict[Id, int] = {}
        """When each message arrived that was not taken yet."""
        self._journal, self._thread = journal, thread
        self._most, self._most_bytes = backlog
        self._gathering = self._writing = 0
        """Bytes of peers in the batch that gathers, and in the one that is written."""
        self.position = self.position_durable = journal.position if journal is not None else 0
        """Of the last input, and of the last one that is durable."""
        self._batch: list[Input] = []
        self._work = asyncio.Event()
        """Someone waits for what has gathered."""
        self._lazy = False
        """A timer will set it."""
        self._out: deque[tuple[int, list[Out]]] = deque()
        """What may leave once a position is durable."""
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._committed = Signal()
        self._ended = False
        self._told = clock() - 2 * MILLISECOND
        self.quick = journal is None and not core.record.on and not core.machine.explicit
        """There is nothing to write or to record, and nothing has failed."""
        self._loop = asyncio.get_running_loop()
        self.stopped = asyncio.Event()
        """Set once `failure` says why."""
        self.stirred = False
        """A turn is under way, and its end is planned."""
        self.on_turnover: Callable[[], None] = lambda: None
        """Called when the process has other peers than before, or its view has changed."""
        self._turnover = core.changing.turnover
        self.flush_bytes = FLUSH_BYTES * len(core.out)
        """Payload that gathers before it leaves within a turn."""

    # Inputs

    def happen(self, given: Input) -> int:
        """Let something happen now; its position in the journal. A refusal changes nothing."""
        self._begin()
        try:
            out = self.core.apply(given, self.clock())
            position = self._write(given)
            self._let_out(out)
            self._stir()
        except BaseException as error:
            if isinstance(error, REFUSALS.get(type(given), ())):
                raise
            self.crash(error, f"in an input {type(given).__name__}")
        return position

    def _begin(self) -> None:
        """Something is about to happen."""
        if self.failure is not None:
            self.check()
        if self.core.record.on:
            self._tell_time()

    def send(
        self,
        to: tuple[int, ...],
        payload: bytes,
        label: str,
        context: str,
        after: CausalContext | None = None,
    ) -> Message:
        """The application sends a message, here as the machine has it; `position` is then that of the input."""
        core, quick = self.core, self.quick
        if not quick:
            self._begin()
        try:
            message = core.send(to, payload, label, context, after)
            if not quick:
                self._write(Send(to, payload, label, context, None if after is None else after.encode()))
            elif core.arrived:
                self._note()
            if core.weight > self.flush_bytes:
                self._turn()
            if not self.stirred:
                self._stir()
        except CallerError:
            raise
        except BaseException as error:
            self.crash(error, "in an input Send")
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
        try:
            core.take(identity, keep=self._journal is not None or core.machine.explicit)
            self._write(Take(*identity))
            if self._journal is None:
                core.acknowledge(identity)
            if not self.stirred:
                self._stir()
        except BaseException as error:
            self.crash(error, "in an input Take")

    def acknowledge(self, identity: Id) -> int:
        """The application has processed a message: the position of the input."""
        if not self.core.steady:
            return self.happen(Acknowledge(*identity))
        self._begin()
        try:
            self.core.acknowledge(identity)
            return self._write(Acknowledge(*identity))
        except BaseException as error:
            self.crash(error, "in an input Acknowledge")

    def take_first(self) -> Message | None:
        """The application takes the message that was offered first, if there is one and the host is `quick`.

        It is as the machine has it.
        """
        core = self.core
        if not core.steady:
            return None
        for identity, message in core.inbox.items():
            # As `take` does it, with nothing to write.
            self.since.pop(identity, None)
            try:
                core.take(identity, keep=False)
                if not self.stirred and (core.gathered or self.arrivals.waiters or self.room.waiters):
                    self._stir()
            except BaseException as error:
                self.crash(error, "in an input Take")
            return message
        return None

    def _stir(self) -> None:
        """Something has happened: plan the end of the turn, if there is something to do, and tell the application."""
        if not self.stirred and (self.core.gathered or self.core.touched or self.room.waiters):
            self.stirred = True
            self._loop.call_soon(self._end_turn)
        self._tell()

    def _tell(self) -> None:
        if self.arrivals.waiters and (self.core.inbox or not self.core.steady):
            self.arrivals.fire()
        if self.core.changing.turnover != self._turnover:
            self._turnover = self.core.changing.turnover
            self.flush_bytes = FLUSH_BYTES * len(self.core.out)
            self.on_turnover()

    def _end_turn(self) -> None:
        self.stirred = False
        if self.failure is not None:
            return
        try:
            self._turn()
            self.room.fire()
            # What was taken within the turn may have made way for what others wait for.
            self._tell()
        except Exception as error:
            # The event loop calls this: nobody else would hear of it.
            self.stop(error, "at the end of a turn")

    def _turn(self) -> None:
        """Let out what has gathered. No refusal is declared here: what leaves was accepted before."""
        now = self.clock()
        gathered = self.core.gathered
        try:
            out = self.core.turn(now)
            if gathered:
                self._write(TURN)
            self._let_out(out)
        except BaseException as error:
            self.crash(error, "in an input Turn")

    def _note(self) -> None:
        """Remember when messages arrived."""
        arrived = self.core.arrived
        self.since.update(dict.fromkeys(arrived, self.clock()))
        if self._journal is not None:
            self.fresh.update(dict.fromkeys(arrived, self.position))
            self._work.set()
        arrived.clear()

    def _tell_time(self) -> None:
        """Events are recorded with a time. It is an input, so that a replay has the same."""
        now = self.clock()
        if now - self._told > MILLISECOND:
            self._told = now
            told = Time(time.time_ns())
            try:
                self.core.apply(told, now)
            except BaseException as error:
                self.crash(error, "in an input Time")
            self._write(told)

    def arrive(self, peer: int, frame: Frame) -> None:
        """A frame of a peer arrives."""
        if not self.quick and (not frame.bare or frame.greets):
            self.happen(Arrive.of(peer, frame))
            if self._journal is not None and frame.payload is not None:
                self._gathering += len(frame.payload)
            return
        # It need not be written.
        if self.failure is not None:
            self.check()
        try:
            out = self.core.arrive(peer, frame, self.clock())
            if self.core.arrived:
                self._note()
            self._let_out(out)
            self._stir()
        except PeerError:
            raise
        except BaseException as error:
            self.crash(error, "in an input Arrive")

    def tick(self, peer: int) -> None:
        """What is due on the link to a peer that can be reached."""
        if self.failure is not None:
            return
        try:
            self._let_out(self.core.tick(peer, self.clock()))
        except BaseException as error:
            self.crash(error, "when time passed")

    def resume(self, peer: int) -> None:
        """A new connection to a peer, whose hail has arrived."""
        self.check()
        try:
            self._let_out(self.core.resume(peer, self.clock()))
        except BaseException as error:
            self.crash(error, "over a new connection")

    def check(self) -> None:
        """Raise what ended this host, if something did."""
        if self.failure is not None:
            # One error is told to many, each with a traceback of its own.
            raise self.failure.with_traceback(None)

    # Durability

    def _write(self, given: Input) -> int:
        if self._journal is not None:
            if not self._lazy:
                self._lazy = True
                self._loop.call_later(LAZY_S, self._end_laziness)
            self.position += 1
            self._batch.append(given)
        if self.core.arrived:
            self._note()
        return self.position

    def _end_laziness(self) -> None:
        self._lazy = False
        self._work.set()

    def _let_out(self, out: list[Out]) -> None:
        if not out:
            return
        if self.position == self.position_durable:
            self._transmit(out)
        else:
            self._out.append((self.position, out))
            self._work.set()

    def _transmit(self, out: list[Out]) -> None:
        try:
            self.transmit(out)
        except BaseException as error:
            self.crash(error, "when frames left")

    async def durable(self, position: int) -> None:
        """Wait until the input at this position, and so all before it, is durable."""
        if position > self.position_durable:
            self.check()
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append((position, waiter))
            self._work.set()
            await waiter

    @property
    def behind(self) -> bool:
        """Whether too much is not durable yet."""
        late = self.position - self.position_durable > self._most
        return (late or self._gathering + self._writing > self._most_bytes) and self.failure is None

    async def keep_up(self) -> None:
        """Wait while too much is not durable yet."""
        while self.behind:
            await self._committed.wait()

    async def run(self) -> None:
        """Make inputs durable, group by group, until the host ends; then leave a snapshot of it all."""
        journal = self._journal
        if journal is None:
            return
        while self.failure is None:
            await self._work.wait()
            # What ends the turn in which this was asked for belongs to it: a message, and that it leaves.
            await asyncio.sleep(0)
            if self.stirred:
                await asyncio.sleep(0)
            self._work.clear()
            batch, self._batch = self._batch, []
            self._writing, self._gathering = self._gathering, 0
            if batch:
                # The state of this moment is the state after this batch.
                snapshot = self.core.snapshot() if journal.wants_snapshot(len(batch)) else None
                if journal.waits(snapshot is not None):
                    await self._loop.run_in_executor(self._thread, journal.append, batch, snapshot)
                else:
                    journal.append(batch)
                self._writing = 0
                self._commit(self.position_durable + len(batch))
            if self._ended and not self._batch and self.failure is None:
                # All that was handed over is durable: nothing else may have been.
                self.core.apply(Close(), self.clock())
                await self._loop.run_in_executor(self._thread, journal.append, [], self.core.snapshot())
                return

    def _commit(self, position: int) -> None:
        self.position_durable = position
        out: list[Out] = []
        while self._out and self._out[0][0] <= position:
            out += self._out.popleft()[1]
        if out:
            self._transmit(out)
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

    def start_task(self, work: Coroutine[Any, Any, None], during: str) -> asyncio.Task[None]:
        """Run a task of the node. If it raises, the host stops: no exception of a task is lost."""
        task = asyncio.ensure_future(work)

        def look(task: asyncio.Task[None]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                self.stop(error, during)

        task.add_done_callback(look)
        return task

    def crash(self, error: BaseException, during: str) -> NoReturn:
        """Stop because of an error that nobody expected, and raise what all others are told."""
        self.stop(error, during)
        if not isinstance(error, Exception):
            raise error
        self.check()
        raise AssertionError("a host that stopped has a failure")

    def stop(self, error: BaseException, during: str) -> None:
        """Stop because of an error that nobody expected."""
        if isinstance(error, EXPECTED):
            self.fail(error)
        elif self.failure is None:
            log.error("%s failed %s", self.name, during, exc_info=error)
            self.fail(NodeFailed(self.name, during, error))

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
        for signal in (self.arrivals, self.room, self.contacts, self._committed):
            signal.fire()
        self._work.set()
        self.stopped.set()
