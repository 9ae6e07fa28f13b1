"""Connections whose other end has not said yet who it is: how many there may be, and from where.

Rules
  address   from one address, `each` connections and one more for every peer, where a peer may be (loopback, and the
            addresses of peers); from any other address `each`
  all       from addresses where no peer is, `most` connections in all: so strangers never compete with known peers
  make way  beyond a limit the connection that has waited longest makes way for the new one. A connection that says
            nothing keeps nobody out; a peer says hello within milliseconds
  seldom    what strangers do is logged with their address, once in `EVERY_S` for each address and kind

>>> class At:
...     def __init__(self, origin): self.origin = origin
>>> door = Door(most=2, each=2)
>>> idle = [At("10.0.0.9") for _ in range(2)]
>>> [door.enter(one, known=set(), peers=1) for one in idle]
[None, None]
>>> door.enter(At("10.0.0.9"), known=set(), peers=1) is idle[0]
True
>>> door.enter(At("10.0.0.1"), known={"10.0.0.1"}, peers=1) is None
True
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection
from typing import Generic, Protocol, TypeVar

__all__ = ["Door", "Seldom"]

EVERY_S = 60.0
ADDRESSES = 1024
"""Addresses whose log is told apart: beyond, what was logged is forgotten."""


class Origin(Protocol):
    """A connection, as far as it matters here."""

    origin: str


Waiting = TypeVar("Waiting", bound=Origin)


class Door(Generic[Waiting]):
    """Those that wait."""

    def __init__(self, most: int, each: int) -> None:
        self._most, self._each = most, each
        self._waiting: dict[Waiting, None] = {}
        """In the order of their coming."""

    def enter(self, connection: Waiting, known: Collection[str], peers: int) -> Waiting | None:
        """One more waits; which one makes way for it, if one has to. `known` are addresses where peers may be."""
        origin, waiting = connection.origin, self._waiting
        same = [one for one in waiting if one.origin == origin]
        strangers = [one for one in waiting if one.origin not in known]
        longest = None
        if len(same) >= self._each + (peers if origin in known else 0):
            longest = same[0]
        elif origin not in known and len(strangers) >= self._most:
            longest = strangers[0]
        if longest is not None:
            del waiting[longest]
        waiting[connection] = None
        return longest

    def leave(self, connection: Waiting) -> None:
        """It has said who it is, or has gone."""
        self._waiting.pop(connection, None)

    def __len__(self) -> int:
        return len(self._waiting)


class Seldom:
    """A log that says the same of one address once in a while, and then how often it happened."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float]) -> None:
        self._log, self._clock = log, clock
        self._last: dict[tuple[str, str], float] = {}
        self._more: Counter[tuple[str, str]] = Counter()

    def warn(self, kind: str, origin: str, sentence: str, *values: object) -> None:
        """Log a sentence, unless one of this kind and address was logged a short while ago."""
        key, now = (kind, origin), self._clock()
        if now - self._last.get(key, -EVERY_S) < EVERY_S:
            self._more[key] += 1
            return
        if len(self._last) >= ADDRESSES:
            self._last.clear()
            self._more.clear()
        more = self._more.pop(key, 0)
        self._last[key] = now
        self._log.warning(
            sentence + (f" (and {more} times since it was last logged)" if more else ""), *values
        )
