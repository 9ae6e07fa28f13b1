"""How a node begins and ends: what it opens, the tasks that it runs, and how all of that is given back.

A node lives once: new, starting, running, closing, closed. `node.Node` is one.

Rules
  start    runs in the event loop that calls it, and so does all the rest. A thread opens and replays the journal
  failure  the node stops to talk at once: it listens no more, and its connections end. `close` gives back the rest
  close    happens once, in a task of its own, and everyone who calls `close` waits for it. If one is cancelled while it
           waits, the node drains no longer, and the rest is done before the cancellation goes on
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from os import PathLike
from random import Random
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, TypeVar
from weakref import WeakSet

from msgspec.structs import replace

from antecede.errors import AntecedeError, BadJournal, BadParameter, Closed, NotDrained, WrongLoop
from antecede.model import View
from antecede.net.delivery import Durable
from antecede.net.driver import Host
from antecede.net.failure import CANCELLED
from antecede.net.peers.joining import Admit, ask_to_join
from antecede.net.peers.mesh import Mesh
from antecede.net.peers.session import Join
from antecede.net.pressure import Pressure
from antecede.net.signal import outlast
from antecede.net.storage.journal import open_journal
from antecede.net.transports.transport import Certified, Connection, Transport
from antecede.net.views import Member
from antecede.process.core import Core, Out
from antecede.process.inputs import Adopt
from antecede.process.journal import Journal
from antecede.process.restarts import list_first_inputs
from antecede.process.views.members import Roll

if TYPE_CHECKING:
    from antecede.net.observe.recorder import Recorder

__all__ = ["Lifecycle"]

log = logging.getLogger(__name__)

T = TypeVar("T")


class Unstarted:
    """Stands where the host will be: whatever a node is asked before its start, it is this that says so."""

    def __init__(self, node: Lifecycle) -> None:
        self._node = node

    def __getattr__(self, name: str) -> NoReturn:
        raise Closed(self._node.name, "has not started: use `async with node`, or `await node.start()`")


class Lifecycle(Member):
    """What a node is from its start to its end."""

    _new: Core
    """The process as it is described: what runs if there is no journal, or a new one."""
    _join: Join | None
    _memory: str | PathLike[str] | None = None
    """The journal to begin with, having joined a separator of which nobody is left."""
    _listed: str | None
    _transport: Transport
    _admit: Admit | None
    _journal_path: str | PathLike[str] | None
    _sync: Literal["full", "normal"]
    _trace: str | PathLike[str] | None
    _run: str

    def __init__(self) -> None:
        self._phase: Literal["new", "starting", "running", "closing", "closed"] = "new"
        self._ident = 0
        self._journal: Journal | None = None
        self._thread: ThreadPoolExecutor | None = None
        """Where the journal is opened, replayed, written and closed."""
        self._recorder: Recorder | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._closes: asyncio.Task[dict[str, int]] | None = None
        self._closing = self._untold = False
        self._host: Host = Unstarted(self)  # type: ignore[assignment]
        self._hurry = self._told = False
        """To drain no longer; the application knows of a failure."""

    @property
    def failure(self) -> AntecedeError | None:
        """Why the node stopped, unless it was closed: what every call raises."""
        failure = self._host.failure if self._begun else None
        return None if isinstance(failure, Closed) else failure

    @property
    def _begun(self) -> bool:
        """Whether there is a process that peers may talk to."""
        return bool(self._tasks)

    # The beginning

    async def start(self) -> None:
        """Come to life: from the journal, if there is one. If it fails or is cancelled, nothing is left open."""
        if self._phase != "new":
            raise Closed(self.name, "was started before: a node lives once, so make a new one")
        self._phase, self._loop, self._ident = "starting", asyncio.get_running_loop(), get_ident()
        started.add(self)
        try:
            await self._open()
        except BaseException:
            await outlast(self._release())
            raise
        self._phase = "running"

    async def _open(self) -> None:
        if self._journal_path is not None or self._memory is not None:
            self._thread = ThreadPoolExecutor(1, "antecede-journal")
        if self._journal_path is not None:
            await self._in_thread(self._open_journal)
        if isinstance(self._transport, Certified):
            self._transport.check_name(self.name)
        await self._transport.listen(self._accept)
        journal = self._journal
        if self._join is not None and (journal is None or journal.is_new):
            self._new = await self._ask(self._join)
        self._new.record.on = self._trace is not None
        core = self._new
        if journal is not None:
            core = await self._in_thread(lambda: journal.recover(self._new))
        self._begin(core)
        if self._memory is not None and core.changing.routes.joining:
            self._host.happen(Adopt(await self._in_thread(self._read_memory)))

    def _read_memory(self) -> bytes:
        """What the last member of our separator knew, from its journal."""
        assert self._memory is not None
        journal = open_journal(self._memory)
        try:
            core = journal.recover(None)
        finally:
            journal.close()
        if not core.changing.routes.on:
            words = f"belongs to protocol {core.machine.name}: give the journal of a router"
            raise BadJournal(f"journal {self._memory}", words)
        return core.changing.routes.hand_over()

    def _open_journal(self) -> None:
        assert self._journal_path is not None
        self._journal = open_journal(self._journal_path, self._sync, self.settings.snapshot_inputs)

    def _begin(self, core: Core) -> None:
        self._me, self.view = core.me, core.view
        settings, clock = self.settings, time.monotonic_ns
        backlog = settings.backlog, settings.backlog_bytes
        host = self._host = Host(core, self._journal, clock, self._transmit, backlog, self._thread)
        if self._trace is not None:
            self._recorder = make_recorder(self._trace, self._run, core)
        if core is not self._new:
            # A new incarnation, durable before anyone hears of it: its frames wait for this input.
            recording = self._recorder is not None
            for given in list_first_inputs(core, recording, settings.limits, make_epoch()):
                host.happen(given)
            host.since = dict.fromkeys(core.inbox, clock())
            self._untold = bool(core.untold)
        self._nothing = Durable(host.commits.wait, 0)
        self._mesh = Mesh(host, self._transport, settings, Random(), self._waive, self._admit)
        self._pressure = Pressure(host, self._mesh.paused, settings)
        self._waive()
        self._tasks = [
            host.start_task(host.run(), "writing its journal"),
            host.start_task(self._mesh.run(), "talking to peers"),
        ]
        if self._recorder is not None:
            work = self._recorder.run(host, settings.trace_s)
            self._tasks.append(host.start_task(work, "recording its events"))
        self._minding = host.start_task(self._mind(), "stopping")

    async def _ask(self, join: Join) -> Core:
        """Become a member."""
        join = replace(join, address=self._listed if self._has_place() else self._transport.address)
        members = [name for name in self._new.view.names if name != self.name]
        roll = await ask_to_join(self._transport, members, join, self.settings, Random())
        return self._make(join.protocol, View(roll.names), join.parameters, roll)

    def _has_place(self) -> bool:
        """Whether we were told where others find us: a port 0 is none."""
        return self._listed is not None and not self._listed.endswith(":0")

    def _make(
        self, protocol: str, view: View, parameters: Mapping[str, Any] | None, roll: Roll | None
    ) -> Core:
        limits, window = self.settings.limits, self.settings.queue
        return Core.new(protocol, view, self.name, make_epoch(), parameters, window, limits, roll)

    async def _accept(self, connection: Connection) -> None:
        if not self._begun or self._host.failure is not None:
            # Not before we know what we are: whoever it is will dial again.
            connection.close()
        else:
            await self._mesh.accept(connection)

    def _transmit(self, out: list[Out]) -> None:
        if self._begun:
            self._mesh.transmit(out)

    # The end

    async def close(self, *, strict: bool = False) -> dict[str, int]:
        """Stop: take no more, wait `drain_s` for what was sent to be acknowledged, make all durable, and part.

        Returns how many messages each peer had not acknowledged by then, if any: with a journal, the next node with it
        sends them; without one, they are lost. With `strict` they raise `NotDrained`, once all is closed. Raises what
        made the node fail, if nobody was told of it before.
        """
        if self._phase == "new":
            self._phase, self._closing = "closed", True
        if self._phase == "starting":
            raise Closed(self.name, "is starting: cancel the task that starts it")
        if not self._begun:
            return {}
        if self._mesh.runs(asyncio.current_task()):
            raise BadParameter(
                "node", "close cannot be awaited inside admit(), which it waits for: start a task that closes"
            )
        if self._closes is None:
            self._check_loop()
            self._closes = asyncio.ensure_future(self._close())
        try:
            left = await asyncio.shield(self._closes)
        except asyncio.CancelledError:
            self._hurry = True
            self._host.room.fire()
            await outlast(self._closes)
            raise
        failure = self._host.failure
        if failure is not None and not isinstance(failure, Closed) and not self._told:
            self._check_open()
        if strict and left:
            raise NotDrained(self.name, left)
        return left

    async def _close(self) -> dict[str, int]:
        self._phase, self._closing, host = "closing", True, self._host
        host.arrivals.fire()
        host.room.fire()
        left: dict[str, int] = {}
        running, _, *recording = self._tasks
        try:
            if host.failure is None:
                left = await self._drain()
            if self._recorder is not None:
                self._recorder.end()
                await asyncio.wait(recording)
            host.end()
            await asyncio.wait({running})
            if host.failure is None:
                await self._mesh.part()
        finally:
            host.fail(Closed(self.name, "is closed"))
            await self._release()
        return left

    async def _drain(self) -> dict[str, int]:
        """Wait a while for peers to acknowledge what was sent; what they had not by then."""
        host = self._host
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_s):
                while not self._is_drained() and not self._hurry and host.failure is None:
                    await host.room.wait()
        core = host.core
        left = {core.view.name(peer): out.pending for peer, out in core.out.items() if out.pending}
        if left:
            kept = "are lost" if self._journal is None else "stay in its journal"
            told = ", ".join(f"{count} for {name}" for name, count in left.items())
            log.warning(
                "%s closes with messages that were not acknowledged and %s: %s", self.name, kept, told
            )
        return left

    def _is_drained(self) -> bool:
        """Whether nobody who is still there has something to acknowledge."""
        core = self._host.core
        there = [
            number
            for number, peer in self._mesh.peers.items()
            if number in core.links and not peer.parted and self._mesh.may_reach(number)
        ]
        return not there or core.is_drained(there)

    async def _mind(self) -> None:
        """Stop to talk as soon as the host has stopped.

        A loop that ends cancels all tasks, this one too: then nobody may come to close the node, and all is given back.
        """
        try:
            await self._host.stopped.wait()
            await self._silence()
        except asyncio.CancelledError:
            if self._ident and not self._host.is_dismissed(self._minding):
                self._host.stop(asyncio.CancelledError(CANCELLED), "stopping")
                await outlast(self._give_back())
            raise

    async def _silence(self) -> None:
        """End all tasks, and with them the connections; listen no more."""
        for task in self._tasks:
            self._host.dismiss(task)
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._transport.close()

    async def _release(self) -> None:
        """Give back all that is open, once nobody else does."""
        if self._tasks:
            self._host.dismiss(self._minding)
            await asyncio.wait({self._minding})
        await self._give_back()

    async def _give_back(self) -> None:
        """Give back all that is open, whatever a transport of the application's own raises."""
        try:
            await self._silence()
        finally:
            thread, self._thread = self._thread, None
            if thread is not None:
                if self._journal is not None:
                    await outlast(asyncio.get_running_loop().run_in_executor(thread, self._journal.close))
                thread.shutdown(wait=False)
            self._phase = "closed"

    async def wait_closed(self) -> None:
        """Wait until the node has been closed. Raises what made it fail, as soon as it does."""
        host = self._host
        if host.failure is None:
            self._check_loop()
        await host.stopped.wait()
        if not isinstance(host.failure, Closed):
            self._check_open()
        if self._closes is not None:
            await asyncio.shield(self._closes)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except AntecedeError:
            if error is None:
                raise
            # What the body raised comes first, and the log has the rest.

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Do something that waits for the disk. If we are cancelled meanwhile, it is still done first."""
        return await outlast(asyncio.get_running_loop().run_in_executor(self._thread, work))

    def _check_loop(self) -> None:
        # One loop runs in a thread at a time. To ask which takes a system call, ten times as long.
        if get_ident() != self._ident or not self._loop.is_running():
            raise WrongLoop(self.name)


started: WeakSet[Lifecycle] = WeakSet()


def _disown() -> None:
    """A fork has copies of all nodes, whose threads and loops do not run: nothing that it sent would ever leave."""
    for node in started:
        node._ident = 0


os.register_at_fork(after_in_child=_disown)


def make_recorder(trace: str | PathLike[str], run: str, core: Core) -> Recorder:
    # PyArrow takes longer to load than all the rest, and few nodes need it.
    from antecede.net.observe.recorder import Recorder

    return Recorder(trace, run, core.machine.name, core.view, core.view.name(core.me))


def make_epoch() -> int:
    """An incarnation later than all that this process ever had, even if its journal was lost: microseconds of now."""
    return time.time_ns() // 1000
