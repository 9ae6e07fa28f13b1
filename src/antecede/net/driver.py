"""Drives a process: gives it its inputs, and hands what follows from them to `commit`, which lets it out once durable.

An input is applied and written in one step.

Turns. What happens within one turn of the event loop gathers (`outgoing`), and leaves at its end, as one payload for
each peer: the input `Turn`. The busier a node, the more a payload holds. `FLUSH_BYTES` end a turn early.

That a message was taken is durable by the time that anything which the application sends or acknowledges afterwards
is: after a crash before that, it comes again, in the same place.

Failure. A refusal is declared (`REFUSALS`): it has changed nothing, and the host goes on. Nobody expected whatever else
is raised: by the process, by frames that leave, at the end of a turn, by the journal, or in a task of the node
(`start_task`). The process may be half changed by then. So the host stops (`crash`, `fail`): it takes and writes no
input any more, lets out no frame, and tells all who ask or wait by `NodeFailed`. The journal has nothing of the input
that failed, so a new node goes on from it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor

from antecede.errors import AntecedeError, CallerError, PeerError
from antecede.link import Frame
from antecede.model import CausalContext, Id, Message
from antecede.net.commit import Commits
from antecede.net.failure import Supervisor
from antecede.net.signal import Signal
from antecede.process.core import Core, Out
from antecede.process.inputs import Acknowledge, Arrive, Close, Input, Propose, Send, Take, Time, Turn
from antecede.process.journal import Journal

__all__ = ["Host"]

MILLISECOND = 1_000_000
FLUSH_BYTES = 1 << 18
"""Bytes of payload that gather for a peer, in the mean over all, before they leave."""

TURN = Turn()

REFUSALS: dict[type[Input], type[AntecedeError]] = {
    Send: CallerError,
    Propose: CallerError,
    Arrive: PeerError,
}
"""Inputs that may be refused, and how the process says so."""


class Host(Supervisor):
    """One process, running. `transmit` is called with frames that may leave now."""

    # What each message needs. CPython finds a slot at once, and other attributes only while there are at most 30.
    __slots__ = (
        "_journaled", "arrivals", "commits", "core", "flush_bytes", "quick", "room", "since", "stirred",
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
        """`commit` says what `thread` and `backlog` are for."""
        super().__init__(core.view.name(core.me))
        self.core, self.clock, self.transmit = core, clock, transmit
        self.arrivals, self.room, self.contacts = Signal(), Signal(), Signal()
        """Fired when something may be taken, when something may be sent, and when a connection begins or ends."""
        self.since: dict[Id, int] = {}
        """When each message arrived that was not taken yet."""
        self._journaled = journal is not None
        self.commits = Commits(journal, thread, clock, backlog, self._transmit, self.arrivals)
        self._told = clock() - 2 * MILLISECOND
        self.quick = journal is None and not core.record.on and not core.machine.explicit
        """There is nothing to write or to record, and nothing has failed."""
        self._loop = asyncio.get_running_loop()
        self.stirred = False
        """A turn is under way, and its end is planned."""
        self.on_turnover: Callable[[], None] = lambda: None
        """Called when the process has other peers than before, or its view has changed."""
        self._turnover = core.changing.turnover
        self.flush_bytes = FLUSH_BYTES * len(core.out)
        """Payload that gathers before it leaves within a turn."""

    # Inputs

    def happen(self, given: Input, size: int = 0) -> int:
        """Let something happen now, with a payload of this size; its position. A refusal changes nothing."""
        self._begin()
        try:
            out = self.core.apply(given, self.clock())
            position = self._write(given, size)
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
        """The application sends a message, here as the machine has it."""
        core, quick = self.core, self.quick
        if not quick and (self.failure is not None or core.record.on):
            self._begin()
        try:
            message = core.send(to, payload, label, context, after)
            if not quick:
                given = Send(to, payload, label, context, None if after is None else after.encode())
                self.commits.write(given, len(payload))
            if core.arrived:
                self._note()
            if core.weight > self.flush_bytes:
                self._turn()
            if not self.stirred:
                self._stir()
                # Also if the protocol lets nothing out yet: for the rest of the turn, nothing is to be planned.
                self._plan_end(self._end_turn)
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
            if not self._journaled:
                # There is no use for the application's own: nothing comes again.
                self.happen(Acknowledge(*identity))
            return
        if self.failure is not None or core.record.on:
            self._begin()
        try:
            core.take(identity, keep=self._journaled or core.machine.explicit)
            # Nothing arrives with this, so there is nothing to note.
            self.commits.write(Take(*identity))
            if not self._journaled:
                core.acknowledge(identity)
            if not self.stirred and (core.gathered or self.arrivals.waiters or self.room.waiters):
                self._stir()
        except BaseException as error:
            self.crash(error, "in an input Take")

    def acknowledge(self, identity: Id) -> int:
        """The application has processed a message: the position of the input."""
        if not self.core.steady:
            return self.happen(Acknowledge(*identity))
        if self.failure is not None or self.core.record.on:
            self._begin()
        try:
            self.core.acknowledge(identity)
            return self.commits.write(Acknowledge(*identity))
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
        """Something has happened: tell the application, and plan the end of the turn, if there is something to do."""
        told = self._tell()
        if self.core.gathered or self.core.touched or self.room.waiters:
            # Whoever was told may answer, and what the protocol has to say rides on the answer.
            self._plan_end(self._await_answer if told else self._end_turn)

    def _plan_end(self, end: Callable[[], None]) -> None:
        if not self.stirred:
            self.stirred = True
            self._loop.call_soon(end)

    def _await_answer(self) -> None:
        self._loop.call_soon(self._end_turn)

    def _tell(self) -> bool:
        """Tell the application what is new; whether it waited for messages."""
        told = bool(self.arrivals.waiters) and (bool(self.core.inbox) or not self.core.steady)
        if told:
            self.arrivals.fire()
        if self.core.changing.turnover != self._turnover:
            self._turnover = self.core.changing.turnover
            self.flush_bytes = FLUSH_BYTES * len(self.core.out)
            self.on_turnover()
        return told

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
        self.commits.hold_messages(arrived)
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
            self.happen(Arrive.of(peer, frame), 0 if frame.payload is None else len(frame.payload))
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

    # Durability

    def _write(self, given: Input, size: int = 0) -> int:
        position = self.commits.write(given, size)
        if self.core.arrived:
            self._note()
        return position

    def _let_out(self, out: list[Out]) -> None:
        if out:
            self.commits.let_out(out)

    def _transmit(self, out: list[Out]) -> None:
        try:
            self.transmit(out)
        except BaseException as error:
            self.crash(error, "when frames left")

    async def run(self) -> None:
        """Make inputs durable until the host ends; then leave a snapshot of it all."""
        await self.commits.run(lambda: self.stirred, lambda: self.core.snapshot())
        if self._journaled and self.failure is None:
            # All that was handed over is durable: nothing else may have been.
            self.core.apply(Close(), self.clock())
            await self.commits.close(self.core.snapshot())

    # The end

    def end(self) -> None:
        """Let `run` return once everything is durable."""
        self.commits.end()

    def _end(self, error: AntecedeError) -> None:
        self.quick = False
        self.commits.fail(error)
        for signal in (self.arrivals, self.room, self.contacts):
            signal.fire()
