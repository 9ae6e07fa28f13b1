"""What stops a node, and who hears of it: the first error that nobody expected, with its traceback in the log.

stop     the node has a failure from then on, and every call raises it (`NodeFailed`, with the cause). An error that
         says itself why a node stopped, as a full disk does, is told as it is
crash    stops the node, and raises what all others are told
tasks    all that a node does by itself runs in tasks that are started here: an exception of one stops the node, and so
         does a cancellation by somebody else, after which nobody would do its work
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, NoReturn

from antecede.errors import AntecedeError, CannotWrite, Closed, NodeFailed, NotMember

__all__ = ["CANCELLED", "Supervisor"]

log = logging.getLogger(__name__)

EXPECTED = (CannotWrite, Closed, NodeFailed, NotMember)
"""Errors that say themselves why a node stopped."""
CANCELLED = "somebody else cancelled it"


class Supervisor(ABC):
    """Runs the tasks of a node, and stops it when one of them, or anything else, fails."""

    # Each message asks for it.
    __slots__ = ("__dict__", "__weakref__", "failure")

    def __init__(self, name: str) -> None:
        self.name = name
        self.failure: AntecedeError | None = None
        self.stopped = asyncio.Event()
        """Set once `failure` says why."""
        self._dismissed: set[asyncio.Task[None]] = set()

    @abstractmethod
    def _end(self, error: AntecedeError) -> None:
        """Let nothing happen any more: it has stopped for this."""

    def check(self) -> None:
        """Raise what stopped this, if something did."""
        if self.failure is not None:
            # One error is told to many, each with a traceback of its own.
            raise self.failure.with_traceback(None)

    def start_task(self, work: Coroutine[Any, Any, None], during: str) -> asyncio.Task[None]:
        """Run a task of the node. If it raises, the host stops: no exception of a task is lost. So it does if somebody
        else cancels the task: nobody would do its work any more."""
        task = asyncio.ensure_future(work)

        def look(task: asyncio.Task[None]) -> None:
            if not task.cancelled():
                error = task.exception()
            elif task in self._dismissed or self.failure is not None:
                error = None
            else:
                error = asyncio.CancelledError(CANCELLED)
            self._dismissed.discard(task)
            if error is not None:
                self.stop(error, during)

        task.add_done_callback(look)
        return task

    def is_dismissed(self, task: asyncio.Task[None]) -> bool:
        """Whether it is cancelled because its work is done."""
        return task in self._dismissed

    def dismiss(self, task: asyncio.Task[None]) -> None:
        """End a task of the node whose work is done."""
        if not task.done():
            self._dismissed.add(task)
            task.cancel()

    def crash(self, error: BaseException, during: str) -> NoReturn:
        """Stop because of an error that nobody expected, and raise what all others are told."""
        self.stop(error, during)
        # A task that ends as if it was cancelled, and nobody cancelled it, would tell nobody.
        if not isinstance(error, Exception | asyncio.CancelledError):
            raise error
        self.check()
        raise AssertionError("a host that stopped has a failure")

    def stop(self, error: BaseException, during: str) -> None:
        """Stop because of an error that nobody expected."""
        if isinstance(error, EXPECTED):
            self.fail(error)
        else:
            # Also if it has stopped for another: no error is lost.
            try:
                log.error("%s failed %s", self.name, during, exc_info=error)
            finally:
                # Whatever the program's own handlers of logs do.
                self.fail(NodeFailed(self.name, during, error))

    def fail(self, error: AntecedeError) -> None:
        """Stop: nothing happens any more, and nothing that is not durable leaves."""
        if self.failure is not None:
            return
        self.failure = error
        self.stopped.set()
        try:
            if not isinstance(error, Closed):
                log.error("%s stops: %s", self.name, error)
        finally:
            self._end(error)
