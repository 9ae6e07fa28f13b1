"""A node as a member of views that change: how it leaves, has others removed, and comes to each change.

`node.Node` is one. The application comes to a change when it asks for the next message, and has taken all before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from inspect import isawaitable
from typing import Any, NoReturn

from antecede.errors import BadParameter, Closed, NotMember, WrongType
from antecede.model import View
from antecede.net.driver import Host
from antecede.net.peers.mesh import Mesh
from antecede.net.settings import Settings
from antecede.net.signal import is_asked_to_end
from antecede.process.inputs import Pass, Propose, Told, Waive
from antecede.process.outbox import Outgoing
from antecede.process.views.members import Change, Plan
from antecede.process.views.pieces import check_state

__all__ = ["Member"]

log = logging.getLogger(__name__)


class Member:
    """What a node is for its view."""

    # What each message needs. CPython finds a slot at once, and other attributes only while there are at most 30.
    __slots__ = (
        "__dict__", "__weakref__", "_closing", "_easy", "_host", "_ident", "_journal", "_loop", "_me", "_mesh", "_most",
        "_most_bytes", "_nothing", "_taken", "_turns", "_untold", "_yield_every", "view",
    )  # fmt: skip
    name: str
    settings: Settings
    view: View
    state: Callable[[], bytes | Awaitable[bytes]] | None
    changed: Callable[[Change], Awaitable[None] | None] | None
    _host: Host
    _mesh: Mesh
    _ident: int
    """Of the thread that runs it."""
    _loop: asyncio.AbstractEventLoop
    _me: int
    _closing: bool
    _told: bool
    _passing: asyncio.Lock
    _known: dict[str, tuple[int, ...]]
    _easy: dict[str, tuple[tuple[int, ...], Outgoing]]

    _leaving = False
    _calling: asyncio.Task[Any] | None = None
    """The task in which the application is asked for its state, or told of a change."""
    _untold: bool
    """There are changes that the application has come to, and was not told of."""

    def _check_loop(self) -> None:
        raise NotImplementedError

    @property
    def members(self) -> tuple[str, ...]:
        """Who is in the view of now, as far as this node knows."""
        return self._host.core.changing.roll.shown

    @property
    def joining(self) -> tuple[str, ...]:
        """Who joined, and waits for the state of our application."""
        core = self._host.core
        return tuple(core.view.name(place) for place in core.changing.owed)

    async def leave(self) -> None:
        """Stop being a member: all that was sent before arrives, and all that was sent to us is here by then.

        What is here is still handed over, then `async for` ends. Waits first for states of those that join: those that
        our application owes, and our own. While a member cannot be reached, nothing changes, and `send` goes on:
        `waiting()`, the status and the log name that member.
        """
        self._check_outside_callback("leave")
        changing, stalls = self._host.core.changing, self._mesh.stalls
        self._leaving = True
        while not changing.may_leave:
            await self._host.room.wait()
            self._check_open()
        stalls.leaves += 1
        try:
            await self._change(
                Plan(leave=(self.name,)), self._has_left, lambda: stalls.may_propose(self.name)
            )
        finally:
            stalls.leaves -= 1

    async def remove(self, name: str) -> None:
        """Remove a member that has crashed, and will not come back. Returns once all others go on without it.

        Nobody waits for it any longer. What of its messages did not arrive, and what was sent to it, is given up:
        `changed` tells, and the log.
        """
        roll = self._host.core.changing.roll
        if not isinstance(name, str):
            raise WrongType("what is removed", "the name of a node", name)
        if self._host.core.view.id(name) == self._me:
            raise BadParameter(
                "node", f"remove is for other nodes: {name} is this one, and goes with leave()"
            )
        if name in roll.shown or not self._host.core.changing.membership.going:
            membership = self._host.core.changing.membership
            await self._change(Plan(remove=(name,)), lambda: membership.has_removed(name))

    async def _change(
        self, plan: Plan, done: Callable[[], bool], may_propose: Callable[[], bool] = lambda: True
    ) -> None:
        """Have the view changed, as soon as that may be proposed."""
        host, membership = self._host, self._host.core.changing.membership
        while not done():
            self._check_open()
            # Again each time: what others have changed meanwhile may leave no room for it.
            if (error := membership.judge(plan)) is not None:
                raise error
            if may_propose():
                host.happen(Propose(plan))
            with suppress(TimeoutError):
                async with asyncio.timeout(self.settings.beat_s):
                    while not done():
                        await host.room.wait()
                        host.check()
        await self.flush()

    async def flush(self) -> None:
        """Wait until all that was sent, taken and acknowledged so far is durable."""
        host = self._host
        host.check()
        self._check_loop()
        await host.commits.wait(host.commits.position)

    def _check_open(self) -> None:
        failure = self._host.failure
        self._check_loop()
        if failure is not None:
            self._told = True
            self._host.check()
        if self._closing:
            raise Closed(self.name, "is closing")
        if self._has_left():
            if self._leaving:
                raise Closed(self.name, "has left")
            raise NotMember(self.name, "is no member any more: it left before it started")

    def _has_left(self) -> bool:
        core = self._host.core
        return not core.steady and core.me not in core.changing.roll.members

    # Coming to a change

    def _waive(self) -> None:
        """The view has changed. Do now what need not wait until the application comes so far."""
        host, changing = self._host, self._host.core.changing
        if self.state is not None or host.failure is not None:
            return
        for number in changing.list_owing():
            host.happen(Waive(number))
        # One that only sends would never come to a change, and be in none of its views.
        while self.changed is None and (next_change := self._next_change()) is not None:
            self._come_to(next_change, None)

    def _next_change(self) -> Change | None:
        """The change that is next, before any message."""
        core = self._host.core
        if core.steady or core.again or self._closing or self._host.failure is not None:
            return None
        change = core.changing.offer()
        return change if isinstance(change, Change) else None

    def _come_to(self, change: Change, state: bytes | None) -> None:
        self._host.happen(Pass(change.number, state, told=self.changed is None))
        self._untold = self.changed is not None
        self.view = self._host.core.view
        self._known.clear()
        self._easy.clear()
        for lost in change.lost:
            log.warning(
                "%s: view %d begins without %s, which is lost", self.name, change.number, lost.description
            )
        if change.unordered:
            told = ", ".join(f"{sender}.{number}" for sender, number in change.unordered)
            log.warning(
                "%s: messages %s have no known causal order: those that linked them are lost", self.name, told
            )

    def _check_outside_callback(self, call: str) -> None:
        """Refuse what would wait for the callback that waits for it."""
        if self._calling is asyncio.current_task():
            raise BadParameter(
                "node",
                f"{call} cannot be called inside state() or changed(): call it after they have returned",
            )

    async def _pass(self) -> bool:
        """Come to a change, if it is next, and tell it; whether there was one to come to or to tell."""
        self._check_outside_callback("receive")
        async with self._passing:
            self._calling = asyncio.current_task()
            try:
                return await self._pass_one()
            finally:
                self._calling = None

    async def _pass_one(self) -> bool:
        if not self._untold:
            change = self._next_change()
            if change is None:
                return False
            state = None
            if change.owed and self.state is not None:
                try:
                    given = self.state()
                    state = await given if isawaitable(given) else given
                    check_state(state)
                except (Exception, asyncio.CancelledError) as error:
                    self._blame(error, "in the application's state()")
            self._come_to(change, state)
        # Told at least once: again, if the callback was cancelled, or a crash came between.
        await self._tell_changes()
        return True

    async def _tell_changes(self) -> None:
        """Tell the application the changes that it has come to, each until its callback has returned."""
        for change in list(self._host.core.untold):
            try:
                told = None if self.changed is None else self.changed(change)
                if told is not None:
                    await told
            except (Exception, asyncio.CancelledError) as error:
                self._blame(error, "in the application's changed()")
            self._host.happen(Told(change.number))
        self._untold = False

    def _blame(self, error: BaseException, during: str) -> NoReturn:
        """A callback has raised this, or was cancelled with the call that it belongs to: then it is called again."""
        if is_asked_to_end(error):
            raise error
        self._crash(error, during)

    def _crash(self, error: BaseException, during: str) -> NoReturn:
        # Whoever receives hears of it.
        self._told = True
        self._host.crash(error, during)
