"""Group commit: inputs gather, become durable together, and then what waited for them goes on.

What waits for what is a rule of the process (`process.write_ahead`). While one group of inputs is being made durable,
the next one gathers: the slower the disk, the larger the groups. A group is begun at the end of a turn in which someone
began to wait for it: frames that may not leave yet, a message that may not be handed over yet, a call. What nobody
waits for (that a message was taken, or acknowledged) is written with the next group, or after `LAZY_S`.

Who writes. To give the interpreter to a thread and to get it back takes a busy node longer than most disks take to
sync a page. So the event loop writes a group by itself if that does not hold it up: if the group is small, and needs no
sync, or the disk has shown that it syncs in less than a millisecond (`SyncTimes`). A thread writes all others, and
snapshots.

Without a journal everything counts as durable at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Any

from antecede.errors import AntecedeError
from antecede.model import Id
from antecede.net.signal import Signal
from antecede.process.core import Out
from antecede.process.inputs import Arrive, Input
from antecede.process.journal import LARGE_BYTES, Journal
from antecede.process.write_ahead import WriteAhead

__all__ = ["Commits", "SyncTimes"]

LAZY_S = 0.005
"""How long inputs that nobody waits for may gather before they are written."""
UNSYNCED_BYTES = 1 << 20
"""Payloads of a group that the loop writes without a sync: about 2 ms."""

SHORT_NS = 1_000_000
LONG_NS = 4_000_000
TRIALS = 16
MOST_TRIALS = 1024


class SyncTimes:
    """How long small groups take, sync included, and so whether the event loop may wait for them.

    A thread writes until `TRIALS` groups took less than `SHORT_NS`: its times are long if it had to wait for the
    interpreter, and never too short. Then the loop writes, until a group takes more than `LONG_NS`. Each such group
    doubles the trials that come before the next attempt, up to `MOST_TRIALS`; as many groups in time begin anew.

    >>> times = SyncTimes()
    >>> for _ in range(TRIALS):
    ...     times.note(200_000)
    >>> times.short
    True
    >>> times.note(9_000_000)
    >>> times.short
    False
    """

    def __init__(self) -> None:
        self._trials = self._left = TRIALS
        self._in_time = 0

    @property
    def short(self) -> bool:
        return self._left == 0

    def note(self, took_ns: int) -> None:
        """A small group took so long: in a thread, or in the loop if times are `short`."""
        if not self.short:
            self._left -= took_ns < SHORT_NS
        elif took_ns > LONG_NS:
            self._trials = min(2 * self._trials, MOST_TRIALS)
            self._left, self._in_time = self._trials, 0
        else:
            self._in_time += 1
            if self._in_time == MOST_TRIALS:
                self._trials, self._in_time = TRIALS, 0


class Commits(WriteAhead[Out]):
    """The inputs of one process on their way to its journal, and all that waits for them."""

    __slots__ = ("__dict__", "_journal")

    def __init__(
        self,
        journal: Journal | None,
        thread: Executor | None,
        clock: Callable[[], int],
        backlog: tuple[int, int],
        transmit: Callable[[list[Out]], None],
        arrivals: Signal,
    ) -> None:
        """`backlog` says how many inputs, and how many bytes of peers, may wait for the disk. `transmit` is called with
        frames that may leave now, and `arrivals` is fired when messages may be handed over."""
        super().__init__(journal.position if journal is not None else 0)
        self._journal, self._thread, self._clock = journal, thread, clock
        self._most, self._most_bytes = backlog
        self._transmit, self._arrivals = transmit, arrivals
        self._loop = asyncio.get_running_loop()
        self.times = SyncTimes()
        self._size = 0
        """Bytes of payloads in the batch that gathers."""
        self._gathering = self._writing = 0
        """Bytes of peers in the batch that gathers, and in the one that is written."""
        self._work = asyncio.Event()
        """Someone waits for what has gathered."""
        self._lazy = False
        """A timer will set it."""
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._committed = Signal()
        self._ended = False
        self._failure: AntecedeError | None = None

    # What gathers

    def write(self, given: Input, size: int = 0) -> int:
        """An input, with a payload of this size, was applied: its position."""
        if self._journal is None:
            return self.position
        if not self._lazy:
            self._lazy = True
            self._loop.call_later(LAZY_S, self._end_laziness)
        if size:
            self._size += size
            if type(given) is Arrive:
                self._gathering += size
        # As `WriteAhead` does it: three of these come with each message.
        self.position += 1
        self._batch.append(given)
        return self.position

    def _end_laziness(self) -> None:
        self._lazy = False
        self._work.set()

    def hold_messages(self, arrived: Iterable[Id]) -> None:
        """These messages, which arrived with the last input, are handed over once that is durable."""
        if self._journal is not None:
            super().hold_messages(arrived)
            self._work.set()

    def let_out(self, out: list[Out]) -> None:
        """Let frames out as soon as the inputs so far are durable."""
        if self.hold_frames(out):
            self._work.set()
        else:
            self._transmit(out)

    async def wait(self, position: int) -> None:
        """Wait until the input at this position, and so all before it, is durable."""
        if position > self.position_durable:
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            waiter = self._loop.create_future()
            self._waiters.append((position, waiter))
            self._work.set()
            await waiter

    @property
    def behind(self) -> bool:
        """Whether too much is not durable yet."""
        late = self.position - self.position_durable > self._most
        return (late or self._gathering + self._writing > self._most_bytes) and self._failure is None

    async def keep_up(self) -> None:
        """Wait while too much is not durable yet."""
        while self.behind:
            await self._committed.wait()

    # Groups

    async def run(self, settle: Callable[[], bool], snapshot: Callable[[], dict[str, Any]]) -> None:
        """Make inputs durable, group by group, until the end or a failure.

        `settle` says whether a turn is under way; `snapshot` gives the state after all inputs so far.
        """
        journal = self._journal
        if journal is None:
            return
        while self._failure is None:
            await self._work.wait()
            # What ends the turn in which this was asked for belongs to it: a message, and that it leaves.
            await asyncio.sleep(0)
            if settle():
                await asyncio.sleep(0)
            self._work.clear()
            batch = self.take_batch()
            size, self._size = self._size, 0
            self._writing, self._gathering = self._gathering, 0
            if batch:
                # The state of this moment is the state after this batch.
                state = snapshot() if journal.wants_snapshot(len(batch)) else None
                await self._append(journal, batch, size, state)
                self._writing = 0
                self._go_on(len(batch))
            if self._ended and not self._batch:
                return

    async def _append(
        self, journal: Journal, batch: list[Input], size: int, state: dict[str, Any] | None
    ) -> None:
        small = size < (LARGE_BYTES if journal.full else UNSYNCED_BYTES) and not journal.waits(
            state is not None
        )
        if small and (self.times.short or not journal.full):
            self._write_group(journal, batch, size, timed=journal.full)
        elif state is None:
            await self._loop.run_in_executor(self._thread, self._write_group, journal, batch, size, small)
        else:
            await self._loop.run_in_executor(self._thread, journal.append, batch, state)

    def _write_group(self, journal: Journal, batch: list[Input], size: int, timed: bool) -> None:
        begun = self._clock()
        journal.append(batch, None, size)
        if timed:
            self.times.note(self._clock() - begun)

    def _go_on(self, count: int) -> None:
        """So many more inputs are durable: let go what waited for them."""
        waited = bool(self.fresh)
        if out := self.commit(count):
            self._transmit(out)
        while self._waiters and self._waiters[0][0] <= self.position_durable:
            _, waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
        if waited:
            self._arrivals.fire()
        self._committed.fire()

    # The end

    async def close(self, state: dict[str, Any]) -> None:
        """Leave a snapshot of it all: all inputs are durable."""
        if self._journal is not None:
            await self._loop.run_in_executor(self._thread, self._journal.append, [], state)

    def end(self) -> None:
        """Let `run` return once everything is durable."""
        self._ended = True
        self._work.set()

    def fail(self, error: AntecedeError) -> None:
        """Write nothing more: nothing that is not durable leaves."""
        self._failure = error
        self._frames.clear()
        for _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self._committed.fire()
        self._work.set()
