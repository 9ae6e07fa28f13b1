"""Machines for a process that sends elsewhere, of which only the arrivals come here: a stream of packets, as a rule.

A listener takes everyone's word about its process, and stamps nothing, so it learns nothing either. Whoever drives it
is told what a delivery lacks because it was given up (`lacks`), and what comes late (`late`).

Where a protocol's counts have gaps that mean nothing (`Receiver.sparse`), a listener may pass a message that no stamp
told of. So it remembers the last counts that it delivered, `RECENT` of each sender, to know a repeat from a late one.

>>> from antecede.protocols import create, listen
>>> p1, p2 = create("fifo", View.numbered(2), 0), listen("fifo", View.numbered(2), 1)
>>> (lost, [first]), (kept, [second]) = p1.send(1), p1.send(1)
>>> p2.receive(second)
[]
>>> p2.skip(0, 1) == [kept], p2.lacks(kept)
(True, (Awaited(sender=0, first=1, last=1, counted='channel'),))
>>> p2.receive(first) == [lost], p2.late(lost)
(True, True)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

from antecede.errors import BadParameter, Misrouted
from antecede.model import Awaited, Id, Message, Packet, View
from antecede.protocols.machine import Machine, plain, typed
from antecede.protocols.receiver import BEYOND, Need, Receiver

__all__ = ["Listener", "heard_by", "listener_of"]

RECENT = 256
"""How many of a sender's counts are remembered."""


class Listener(Receiver):
    """What all listeners do; `listener_of` makes one of a protocol."""

    listens = True

    def __init__(self, view: View, me: str | int, **parameters: Any) -> None:
        super().__init__(view, me, **parameters)
        self._recent: dict[Any, list[int]] = {}
        """If counts are sparse: key -> the last counts delivered, in increasing order."""

    def listen(self, delivered: Sequence[int] | None = None) -> None:
        """Begin. `delivered` says what the process has delivered so far, for each sender, if not nothing."""
        assert not self.sent, "a machine that has sent knows what it sent"
        self.sent = BEYOND
        self._listen(delivered)

    # What was delivered

    def _is_old(self, position: Need) -> bool:
        if not super()._is_old(position):
            return False
        key, count = position
        if self._is_forgotten(key, count):
            raise Misrouted(
                self.view.name(self.me),
                f"whether message {count} of {self.view.name(self._sender(key))} was delivered is forgotten: "
                f"{self._recent[key][0]} and later are known",
            )
        return self._is_reached(key, count)

    def _is_forgotten(self, key: Any, count: int) -> bool:
        recent = self._recent.get(key, [])
        return len(recent) == RECENT and count < recent[0]

    def _is_reached(self, key: Any, count: int) -> bool:
        """Where counts are sparse, whether that very one was delivered."""
        if self._delivered[key] < count:
            return False
        recent = self._recent.get(key)
        if not recent or count < 1 or self._is_forgotten(key, count) or self._skipped.find(key, count):
            return True
        at = bisect_left(recent, count)
        return at < len(recent) and recent[at] == count

    def _find_unmet(self, packet: Packet[Any]) -> Need | None:
        if not self.sparse:
            return super()._find_unmet(packet)
        for need in self._needs(packet):
            if not self._is_reached(*need):
                return need
        return None

    def _settle(self, packet: Packet[Any]) -> Need:
        self._overhear(packet)
        key, count = position = self._position(packet)
        if not (self._skipped and self._skipped.take(*position)) and self._delivered[key] < count:
            self._delivered[key] = count
        if self.sparse:
            recent = self._recent.setdefault(key, [])
            insort(recent, count)
            if len(recent) > RECENT:
                del recent[0]
        return position

    # What a driver asks

    def awaits(self, message: Id) -> tuple[Awaited, ...]:
        """What one held message waits for."""
        return self._awaits(self._held[message])

    def holds(self, message: Id) -> bool:
        """Whether this message is here and waits."""
        return message in self._held

    def held(self, message: Id) -> Packet[Any]:
        """The packet of one held message."""
        return self._held[message]

    def reached(self) -> list[int]:
        """For each sender, the highest count delivered here; 0 for itself."""
        counts, delivered = [0] * self.n, self._delivered
        for key, count in delivered.items() if isinstance(delivered, dict) else enumerate(delivered):
            sender = self._sender(key)
            counts[sender] = max(counts[sender], 0 if count >= BEYOND else int(count))
        return counts

    def late(self, message: Message) -> bool:
        """Whether an eligible message had been given up, or passed over because no stamp told of it."""
        key, count = self._position(self._ready[message.id])
        if self.sparse and self._delivered[key] >= count:
            return True
        return bool(self._skipped) and self._skipped.find(key, count) is not None

    def lacks(self, message: Message) -> tuple[Awaited, ...]:
        """What an eligible message asks to be delivered just before it, and was given up."""
        if not self._skipped:
            return ()
        lacking = []
        for key, count in self._asks(self._ready[message.id]):
            gap = self._skipped.find(key, count)
            if gap is not None:
                first = self._first(gap[0] - 1, count)
                lacking.append(Awaited(self._sender(key), first, int(count), self.counted))
        return tuple(sorted(set(lacking)))

    def given_up(self) -> tuple[Awaited, ...]:
        """All that was given up and has not come since."""
        return tuple(
            Awaited(self._sender(key), first, last, self.counted) for key, first, last in self._skipped
        )

    # Snapshots

    def dump(self) -> dict[str, Any]:
        recent = [[plain(key), counts] for key, counts in sorted(self._recent.items())]
        return {**super().dump(), "listens": recent}

    def _load(self, state: Mapping[str, Any]) -> None:
        recent = typed(state[heard_by(state)], list[tuple[Any, list[int]]])
        self._recent = {tuple(key) if isinstance(key, list) else key: counts for key, counts in recent}
        super()._load(state)


def heard_by(state: Mapping[str, Any]) -> str:
    """Where the state of a listener says that it is one: under another name, in 0.1; nowhere, if it is none."""
    return "listens" if "listens" in state else "witness" if "witness" in state else ""


@cache
def listener_of(kind: type[Machine]) -> type[Listener]:
    """The listener of a protocol. Raises `BadParameter` if it does not decide at the receiver."""
    if not issubclass(kind, Receiver):
        raise BadParameter(
            "listener", f"{kind.name} does not decide at the receiver: a listener cannot follow it"
        )
    return cast(type[Listener], type(f"{kind.__name__}Listener", (Listener, kind), {}))
