"""What must be true of a system of nodes, whatever happened to it. The only file that says so.

  order       each process delivers in causal order, across views: by the watch, and by the oracle in small runs. But
              for messages that a change tells as `unordered`: what linked them is lost with several removed at once
  durable     nothing is lost that was durable: a process comes back with every input that its journal said it had, and
              what was sent and is not given up is delivered, once, at each destination. But for a global checkpoint
              (case iv), which loses what a router had told its neighbours that it has, and had not sent on
  again       nothing is handed over again that was acknowledged, durably; what was taken and was not comes again after
              a restart; and what was handed over before, perhaps, is said to be so
  views       all that have a view of one number have the same one, and in the end all members have the last; nobody
              joins on the word of members alone that are removed; whoever leaves hears of it, if nobody dies
  states      all members know the same of what was said in the group, those that joined by the state they were given
  told        what is given up with a removed process is told: to who sent it what it was to get and has not got; and,
              under protocols that hold a message until what it follows is there, to who was to get it what something
              delivered there in the same view follows. (`permit` and `buffer` know of no such message; `history`,
              `optimal` and `underway` name the last ones, which the others came before.)
  refused     no sound process refuses another, and no sound journal is refused
  damaged     a damaged journal is refused, or gives the same process
  liveness    once faults end, every wait ends
  bounded     in the end nothing is kept that nobody needs; a journal is never longer than its snapshot and the inputs
              that it may have since

An event counts when its input is durable. That order extends happened-before: nothing that follows from an input leaves
a node before it is durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias

from antecede.errors import AntecedeError
from antecede.model import Event, Id, View
from antecede.oracle import check
from antecede.process.core import Core
from antecede.process.views.members import Change, Lost, Roll
from antecede.protocols import Machine
from antecede.protocols.history import History
from antecede.protocols.optimal import Optimal
from antecede.protocols.receiver import Receiver
from antecede.protocols.underway import Underway
from antecede.sim.watch import Watch

__all__ = ["RAISED", "Judge"]

RAISED = (AntecedeError, AssertionError, LookupError, TypeError, ValueError, AttributeError, OSError)
"""What a wrong process may raise: a finding."""

MOST = 20
"""Findings that are kept."""
SMALL = 150
"""Messages up to which the oracle judges too."""
KEPT_BYTES = 3000
KEPT_BYTES_EACH = 400
"""What a process at rest keeps, at most, besides what its protocol does: for itself, and for each that ever was."""

Entry: TypeAlias = tuple[int, str, Any, Any]
"""Position, what, and what of it."""


class Judge:
    """Hears of everything that happens, and keeps what is wrong."""

    def __init__(self, places: int, protocol: type[Machine], at: Iterable[int] | None, small: bool) -> None:
        order = protocol.order
        self._holds = issubclass(protocol, Receiver)
        self._names_last = issubclass(protocol, (History, Optimal, Underway))
        """The protocol holds a message until what it follows has arrived; its stamps name the last of that alone."""
        self.order, self.findings = order, list[str]()
        self._at = None if at is None else tuple(at)
        self.watch = Watch(places, self._at)
        self.events: list[Event] | None = [] if small else None
        self._pending: dict[int, deque[Entry]] = {}
        self._handed: dict[int, set[Id]] = {}
        self._acknowledged: dict[int, set[Id]] = {}
        self._open: dict[int, set[Id]] = {}
        """What each has taken, and not acknowledged."""
        self._got: dict[int, set[Id]] = {}
        """What has arrived at each, durably."""
        self._told: dict[int, list[Lost]] = {}
        self._unordered: set[tuple[Id, int]] = set()
        """Messages whose order, at this process, was told as unknown."""
        self.rolls: dict[int, Roll] = {}
        self.forgets = False
        """A router began with a global checkpoint: what the one before it had, and had not sent on, is lost."""
        self.changes = 0
        """Changes of a view that applications came to."""

    def find(self, kind: str, words: str) -> None:
        if len(self.findings) < MOST:
            self.findings.append(f"{kind}: {words}")

    # What happens at a process, by its place

    def begin(self, me: int) -> None:
        self._pending[me] = deque()
        for kept in (self._handed, self._acknowledged, self._open, self._got):
            kept.setdefault(me, set())
        self._told.setdefault(me, [])

    def send(self, me: int, number: int, to: tuple[int, ...], position: int) -> None:
        self._pending[me].append((position, "send", number, to))

    def arrive(self, me: int, messages: list[Id], position: int) -> None:
        self._pending[me].append((position, "arrive", messages, None))

    def take(self, me: int, message: Id, again: bool, position: int) -> None:
        handed = self._handed[me]
        if message in handed:
            if not again:
                self.find("again", f"#{me} is handed {message} again, and not told so")
            if message in self._acknowledged[me]:
                self.find("again", f"#{me} is handed {message}, which it acknowledged")
        handed.add(message)
        if message[1]:
            self._pending[me].append((position, "take", message, None))

    def hand_again(self, me: int, message: Id) -> None:
        """A message comes that was taken before a restart."""
        if message not in self._handed[me]:
            self.find("again", f"#{me} is handed {message} as one that it had, and never was")
        if message in self._acknowledged[me]:
            self.find("again", f"#{me} is handed {message}, which it acknowledged")

    def acknowledge(self, me: int, message: Id, position: int) -> None:
        self._pending[me].append((position, "acknowledge", message, None))

    def pass_on(self, me: int, change: Change, places: View, position: int) -> None:
        self._pending[me].append((position, "pass", change, places))

    def see(self, roll: Roll) -> None:
        if self.rolls.setdefault(roll.number, roll) is not roll and self.rolls[roll.number] != roll:
            self.find(
                "views", f"two views of number {roll.number}: {self.rolls[roll.number].shown}, {roll.shown}"
            )

    def commit(self, me: int, position: int) -> None:
        """All inputs of a process up to this position are durable."""
        pending, watch, events = self._pending[me], self.watch, self.events
        while pending and pending[0][0] <= position:
            _, kind, what, more = pending.popleft()
            if kind == "take":
                watch.deliver(me, what[0], what[1])
                self._open[me].add(what)
                if events is not None:
                    events.append(Event(me, "deliver", what[0], what[1]))
            elif kind == "send":
                watch.send(me, what, more)
                if events is not None:
                    events.append(Event(me, "send", me, what, more))
            elif kind == "acknowledge":
                self._acknowledged[me].add(what)
                self._open[me].discard(what)
            elif kind == "arrive":
                self._got[me].update(what)
            else:
                self._pass(me, what, more)

    def crash(self, me: int, position: int, told: int, taken: Iterable[Id]) -> None:
        """A process comes back with the inputs up to this position; it had said that so many are durable. It knows of
        these messages that its application took and did not acknowledge."""
        if position < told:
            self.find("durable", f"#{me} comes back with {position} inputs, and {told} were durable")
        self.commit(me, position)
        self._pending[me].clear()
        if (known := {one for one in taken if one[1]}) != self._open[me]:
            words = f"#{me} comes back with {sorted(known)[:3]} to acknowledge, and had {sorted(self._open[me])[:3]}"
            self.find("again", words)

    def _pass(self, me: int, change: Change, places: View) -> None:
        self.changes += 1
        told = self._told[me]
        told += change.lost
        self._unordered |= {((places.id(name), number), me) for name, number in change.unordered}
        promised = self._holds and (self._at is None or me in self._at)
        for name in change.removed if promised else ():
            sender = places.id(name)
            for number in self.watch.list_missed(me, sender):
                if not _covers(told, name, number, places.name(me)) and not (
                    self._names_last and change.lost
                ):
                    words = (
                        f"#{me} delivered what follows {name}.{number}, which is given up, and was not told"
                    )
                    self.find("told", words)

    # The end

    def judge_order(self, view: View, gone: set[int], unfinished: set[int]) -> None:
        """What was delivered, and what was not. `gone` were removed or are dead; of the `unfinished` too, nobody knows
        what they took."""
        watch = self.watch
        watch.violations = [
            copy for copy in watch.violations if (copy.message, copy.at) not in self._unordered
        ]
        self.findings += watch.findings(self.order, complete=False, view=view)[:MOST]
        for copy in watch.list_undelivered():
            (sender, number), at = copy.message, copy.at
            if sender in gone or at in unfinished or self.forgets:
                continue
            if at not in gone:
                self.find("durable", f"{view.name(at)} never delivered {view.name(sender)}.{number}")
            elif copy.message not in self._got.get(at, ()) and not _covers(
                self._told.get(sender, ()), view.name(sender), number, view.name(at)
            ):
                words = f"{view.name(sender)} was not told that {number} to {view.name(at)} is given up"
                self.find("told", words)
        if self.events is not None:
            self._ask_oracle(view)

    def _ask_oracle(self, view: View) -> None:
        assert self.events is not None
        verdict = check(self.events, len(view), complete=False, at=self._at)
        mine = any(line.startswith(("violation", "fifo", "unwanted", "unsent")) for line in self.findings)
        violations = [one for one in verdict.violations if (one.overtaken, one.at) not in self._unordered]
        broken = bool(violations) if self.order == "causal" else bool(verdict.fifo_breaks)
        if self.order == "none":
            broken = False
        theirs = broken or bool(verdict.duplicates or verdict.unsent or verdict.unaddressed)
        if mine != theirs:
            self.find("disagreement", f"the oracle says {verdict.explain(view)[:200]}")

    def judge_joins(self, asked: Mapping[str, Collection[str]]) -> None:
        """Nobody joined when all members that it had asked were removed: nobody would know whether it lives."""
        removed: set[str] = set()
        for _, roll in sorted(self.rolls.items()):
            removed.update(roll.names[place] for place in roll.removed)
            for name in (roll.names[place] for place in roll.donors):
                if removed.issuperset(asked[name]):
                    self.find(
                        "views", f"{name} joined, and {sorted(asked[name])}, whom it asked, were removed"
                    )

    def judge_views(self, members: dict[str, Core], known: dict[str, set[Id]], gone: set[int]) -> None:
        """All members are in one view, and know the same."""
        numbers = {core.changing.roll.number for core in members.values()}
        if len(numbers) > 1:
            self.find("views", f"in the end members are in views {sorted(numbers)}")
        for name, core in members.items():
            if set(core.changing.roll.shown) != set(members):
                self.find(
                    "views", f"{name} has members {core.changing.roll.shown}, and {sorted(members)} are there"
                )
        whole = {one for some in known.values() for one in some if one[0] not in gone}
        for name, some in known.items():
            if lacking := {one for one in whole if one not in some}:
                self.find("states", f"{name} lacks {sorted(lacking)[:3]} of {len(whole)} in its state")

    def judge_rest(self, name: str, core: Core, size: int, allowed: int) -> None:
        """A process at rest keeps nothing that nobody needs; `size` of its snapshot, of which its protocol may take
        `allowed`."""
        kept = {
            "inbox": len(core.inbox),
            "ready": len(core.changing.ready),
            "taken": len(core.taken),
            "repeats": len(core.repeats),
            "unsent": len(core.unsent),
            "held": sum(core.held),
            "lost": len(core.changing.removal.lost),
            "untold": len(core.untold),
            "notes": len(core.changing.membership.notes),
            "links": sum(link.unacknowledged for link in core.links.values()),
            "out": sum(out.pending + out.size for out in core.out.values()),
            "record": len(core.record.events),
        }
        left = {what: count for what, count in kept.items() if count}
        if left:
            self.find("bounded", f"{name} is at rest, and keeps {left}")
        most = KEPT_BYTES + KEPT_BYTES_EACH * len(core.view) + allowed
        if size > most:
            self.find("bounded", f"{name} is at rest, and its snapshot has {size} bytes, of {most} at most")


def _covers(told: Iterable[Lost], sender: str, number: int, to: str) -> bool:
    """Whether one of these tells that a message is given up. What is counted by channel may be any of the sender."""
    return any(
        lost.sender == sender
        and to in lost.to
        and (lost.counted != "sender" or lost.first <= number <= lost.last)
        for lost in told
    )
