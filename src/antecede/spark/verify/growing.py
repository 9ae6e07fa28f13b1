"""A partition of events that name their causes, judged as it grows: a row costs what it changes, not all that is known.

The definitions are those of tasks.py. For each event and consumer two things are known: where the consumer was
handed the event first, and where its *first effect* stands, of all that have come. A row that is handed over, or names
a cause, tells the causes above it where an effect stands. Telling ends at an event

  1. that has an effect which stands before it: then all above know of one, too;
  2. that the consumer was handed before: then all above know of that.

So an event that comes after its causes, and is handed over after them, is told to these alone. What comes late tells
more: each event once for each consumer, and again only of effects that stand before.

An event that is named and has not come is kept with its effects, so that rows may come in any order. Those that are
forgotten leave first effects behind them: a first effect is a bound, and `explain_late` finds the one that is there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from antecede.spark.verify.tasks import CHAIN_MOST, UNNAMED, UNPLACED, describe_cycle, describe_rows

__all__ = ["Event", "GrowingPartition"]


class Event(Struct, gc=False):
    """An identifier: with `came` None it is named as a cause, and has not come.

    No search for garbage passes it: Spark does one after each task.
    """

    came: int | None = None
    """When a row of it came last."""
    mark: int = 0
    causes: dict[Any, None] = {}
    effects: dict[Any, None] = {}
    handed: dict[Any, Any] = {}
    """Consumer -> where it was handed over first."""
    copies: dict[Any, int] = {}
    """Consumer -> how often, if more than once."""
    first: dict[Any, Any] = {}
    """Consumer -> where the first effect stands."""

    def stands_before(self, consumer: Any, at: Any) -> bool:
        """Whether it, or an effect of it, stands before a position at a consumer."""
        handed, first = self.handed.get(consumer), self.first.get(consumer)
        return (handed is not None and handed < at) or (first is not None and first < at)


class GrowingPartition:
    """A partition, and what is known of each of its events.

    >>> shop = GrowingPartition(())
    >>> for row in (("sent", 1, ["paid"], "audit", 1), ("paid", 2, ["ordered"], None, None)):
    ...     shop.take(*row, now=0)
    >>> shop.take("ordered", 3, [], "audit", 2, now=0)
    >>> [(consumer, id, *shop.explain_late(consumer, id)) for consumer, id in shop.late]
    [('audit', 'ordered', 'sent', ['ordered', 'paid', 'sent'])]
    """

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.values = values
        """The columns that tell it from others."""
        self.events: dict[Any, Event] = {}
        self.unnamed = self.unplaced = 0
        self.cycle: list[Any] | None = None
        self.late: dict[tuple[Any, Any], None] = {}
        """(consumer, identifier) of what may have come late since this was last cleared."""
        self.again: dict[tuple[Any, Any], None] = {}
        """The same of what came more than once."""
        self.visited = 0
        """Events that were looked at, ever."""

    # A row

    def take(self, id: Any, mark: int, causes: Iterable[Any], consumer: Any, at: Any, now: int) -> None:
        if id is None:
            self.unnamed += 1
            return
        event = self._know(id)
        event.came, event.mark = now, mark
        for cause in causes:
            if cause not in event.causes:
                self._link(cause, id)
        if consumer is None:
            return
        if at is None:
            self.unplaced += 1
            return
        self._hand(id, event, consumer, at)

    def _know(self, id: Any) -> Event:
        event = self.events.get(id)
        if event is None:
            event = self.events[id] = Event()
        return event

    def _link(self, cause: Any, id: Any) -> None:
        event, above = self.events[id], self._know(cause)
        if self.cycle is None:
            self.cycle = self._find_cycle(cause, id)
        event.causes[cause] = None
        above.effects[id] = None
        for told in (event.handed, event.first):
            for consumer, at in told.items():
                self._tell(cause, consumer, at)

    def _hand(self, id: Any, event: Event, consumer: Any, at: Any) -> None:
        known = event.handed.get(consumer)
        if known is not None:
            event.copies[consumer] = event.copies.get(consumer, 1) + 1
            self.again[consumer, id] = None
            if at >= known:
                return
        event.handed[consumer] = at
        first = event.first.get(consumer)
        if first is not None and first < at:
            self.late[consumer, id] = None
        for cause in event.causes:
            self._tell(cause, consumer, at)

    def _tell(self, cause: Any, consumer: Any, at: Any) -> None:
        """An effect of a cause stands here."""
        todo = [cause]
        while todo:
            id = todo.pop()
            self.visited += 1
            event = self.events[id]
            first = event.first.get(consumer)
            if first is not None and first <= at:
                continue
            event.first[consumer] = at
            handed = event.handed.get(consumer)
            if handed is None:
                todo += event.causes
            elif handed > at:
                self.late[consumer, id] = None
                todo += event.causes

    def _find_cycle(self, cause: Any, id: Any) -> list[Any] | None:
        """The cycle that a new cause closes: is it an effect of what names it? Both sides are searched alike."""
        if cause == id:
            return [id]
        down: dict[Any, Any] = {id: None}
        up: dict[Any, Any] = {cause: None}
        below, above = deque([id]), deque([cause])
        while below and above:
            for todo, seen, others, side in ((below, down, up, "effects"), (above, up, down, "causes")):
                node = todo.popleft()
                for one in getattr(self.events[node], side):
                    self.visited += 1
                    if one not in seen:
                        seen[one] = node
                        todo.append(one)
                        if one in others:
                            return rotate([*follow(one, down)[::-1], *follow(one, up)[1:]])
                if not todo:
                    break
        return None

    # What is told

    @property
    def fault(self) -> str | None:
        """Why it cannot be judged."""
        told = [
            describe_rows(count, words)
            for count, words in ((self.unnamed, UNNAMED), (self.unplaced, UNPLACED))
            if count
        ]
        return "; ".join(told + ([] if self.cycle is None else [describe_cycle(self.cycle)])) or None

    def explain_late(self, consumer: Any, id: Any) -> tuple[Any, list[Any]] | None:
        """The first effect that a consumer was handed before an event, and a shortest chain to it; None without."""
        events = self.events
        limit = events[id].handed.get(consumer) if id in events else None
        if limit is None:
            return None
        inside, todo, best = {id}, deque([id]), None
        while todo:
            for effect in events[todo.popleft()].effects:
                self.visited += 1
                event = events[effect]
                if effect in inside or not event.stands_before(consumer, limit):
                    continue
                inside.add(effect)
                todo.append(effect)
                handed = event.handed.get(consumer)
                if handed is not None and (best is None or (handed, event.mark) < best[:2]):
                    best = handed, event.mark, effect
        if best is None or best[0] >= limit:
            return None
        return best[2], self._find_chain(id, best[2], inside)

    def _find_chain(self, id: Any, by: Any, inside: set[Any]) -> list[Any]:
        """A shortest chain of causes through these events; of several, that with the least marks."""
        far, todo = {by: 0}, deque([by])
        while id not in far:
            node = todo.popleft()
            for cause in self.events[node].causes:
                if cause in inside and cause not in far:
                    far[cause] = far[node] + 1
                    todo.append(cause)
        chain = [id]
        while chain[-1] != by:
            left = far[chain[-1]] - 1
            near = [effect for effect in self.events[chain[-1]].effects if far.get(effect) == left]
            chain.append(min(near, key=lambda effect: self.events[effect].mark))
        return chain if len(chain) <= CHAIN_MOST else [*chain[: CHAIN_MOST - 2], None, by]

    def find_missing(self, id: Any) -> list[Any]:
        """The causes of an event that have not come."""
        event = self.events.get(id)
        return [] if event is None else [one for one in event.causes if self.events[one].came is None]

    def name_effect(self, id: Any) -> tuple[Any, int]:
        """One of the events that name this one, and how many do."""
        effects = self.events[id].effects
        return min(effects, key=lambda effect: self.events[effect].mark), len(effects)

    # Time

    def forget(self, id: Any, before: int) -> None:
        """Forget an event of which nothing has come since. What names it is kept."""
        event = self.events.get(id)
        if event is None or event.came is None or event.came > before:
            return
        for cause in event.causes:
            above = self.events[cause]
            del above.effects[id]
            if above.came is None and not above.effects:
                del self.events[cause]
        if event.effects:
            left = self.events[id] = Event()
            left.effects = event.effects
        elif id in self.events:
            del self.events[id]


def follow(node: Any, before: dict[Any, Any]) -> list[Any]:
    """From a node to where a search began."""
    found = [node]
    while before[found[-1]] is not None:
        found.append(before[found[-1]])
    return found


def rotate(cycle: list[Any]) -> list[Any]:
    """The same cycle from its least identifier on.

    >>> rotate(["c", "a", "b"])
    ['a', 'b', 'c']
    """
    least = cycle.index(min(cycle))
    return cycle[least:] + cycle[:least]
