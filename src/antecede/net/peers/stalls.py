"""Whom changes of the view wait for, as one node sees it: what `waiting()`, the status, the metrics and the log say.

A change needs all members. The process knows whom a change waits for (`Membership.progress`), and a node besides sees
which members it cannot reach.

Rules
  wait     nobody asks for a join or for its own leave while a member cannot be reached: `send` goes on everywhere
  log      once for each set of members that a change waits for, once it has waited for a beat: a connection that is
           just being made is no stall
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from antecede.net.delivery import Held
from antecede.net.driver import Host
from antecede.process.views.members import Plan
from antecede.process.views.round import Progress

__all__ = ["Stalls"]

log = logging.getLogger(__name__)


class Stalls:
    """The changes that a node has part in, and the members that each waits for. `down` says whom it cannot reach."""

    def __init__(self, host: Host, down: Callable[[], tuple[str, ...]]) -> None:
        self._host, self._down = host, down
        self.joiners: dict[str, None] = {}
        """Who asked this node to join."""
        self.leaves = 0
        """How many calls of `leave` wait."""
        self._before: dict[str, str] = {}
        self._logged: dict[str, str] = {}

    @property
    def joining(self) -> dict[str, tuple[str, ...]]:
        """Who asked this node to join -> the members that it waits for."""
        progress, down, found = self.progress(), self._down(), {}
        for name in self.joiners:
            begun = progress is not None and name in progress.join
            awaits = progress.awaits if progress is not None and begun else down
            found[name] = tuple(sorted({*awaits} - {self._host.name, name}))
        return found

    def progress(self) -> Progress | None:
        """The change of the view that is under way or wanted, and whom it waits for; None if there is none."""
        membership, down = self._host.core.changing.membership, self._down()
        progress = membership.progress(down)
        if progress is None and self.leaves:
            return membership.foresee(Plan(leave=(self._host.name,)), down)
        return progress

    def may_propose(self, name: str) -> bool:
        """Whether to ask now for this node to join, or to leave."""
        return self._host.core.changing.membership.may_propose(name, self._down())

    def list_held(self) -> list[Held]:
        """What waits, as `Node.waiting` tells it: nodes that want to join, and a change that all wait for."""
        held = [
            Held(name, 0, (), "joining", f"waits to join until {', '.join(awaits)} can be reached", None)
            for name, awaits in self.joining.items()
            if awaits
        ]
        changing = self._host.core.changing
        if changing.donor is not None:
            name = changing.roll.names[changing.donor]
            reason = f"it joined by {name}, whose application has not come to that: it gives the state that comes first"
            held.append(Held(self._host.name, 0, (), "joining", reason, None))
        for place in changing.owed:
            reason = "it joined by this node, whose application has not come to that, and gives the state it waits for"
            held.append(Held(changing.roll.names[place], 0, (), "joining", reason, None))
        for name, by in changing.membership.list_unheard().items():
            reason = f"it joined by {by} and never connected: nobody else joins or leaves until it does, or is removed"
            held.append(Held(name, 0, (), "joining", reason, None))
        progress = self.progress()
        if progress is not None and progress.awaits:
            reason = f"{describe(progress)}, and waits for {', '.join(progress.awaits)}"
            held.append(Held(progress.leader, 0, (), "changing", reason, None))
        return held

    def watch(self) -> bool:
        """Log what has waited since the last call, once; whether to look again after a beat."""
        found = dict(self._list_stalls())
        for what, words in found.items():
            if words == self._before.get(what) != self._logged.get(what):
                self._logged[what] = words
                log.warning("%s: %s; remove those that will not come back", self._host.name, words)
        self._before = found
        self._logged = {what: words for what, words in self._logged.items() if what in found}
        return bool(found)

    def _list_stalls(self) -> Iterator[tuple[str, str]]:
        """What waits for members that cannot be reached; and the same with their names."""
        down = self._down()
        if not down:
            return
        for name, awaits in self.joining.items():
            if found := [one for one in awaits if one in down]:
                yield name, f"{name} waits to join until {', '.join(found)} can be reached"
        progress = self.progress()
        if progress is not None and (found := [name for name in progress.awaits if name in down]):
            what = describe(progress)
            yield what, f"{what}, and waits for {', '.join(found)}, which cannot be reached"


def describe(progress: Progress) -> str:
    """What changes, in words."""
    parts = (("joins", progress.join), ("leaves", progress.leave), ("is removed", progress.remove))
    what = "; ".join(f"{name} {verb}" for verb, names in parts for name in names) or "nobody comes or goes"
    return f"the view {'is to change' if progress.stage == 'wanted' else 'changes'} ({what})"
