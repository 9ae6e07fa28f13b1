"""contexts: Rodrigues & Veríssimo 1995, chapter 6, after Ladin et al.: histories as values that the application merges.

A *causal context* is a set of obligations (n, d): message n must be delivered at d before what is sent after the
context. It is a value: equal sets are equal contexts, merging is their union, and a context can be stored, sent to
another process and used there. An obligation names its message by the channel's count: (sender, d, count).

Rules
  send      m, to A, after context X: m carries X, and its own counts on the channels to A
  deliver   m at d, when all obligations (n, d) of m are met: n was delivered at d
  of m      the context that has m and what m was sent after: the obligations of X but those at A, and (m, a) for each a
            in A. Whoever waits for m at a waits for what m waited for there.
  settled   obligations at p that are met when p makes a context or a stamp are left out of it

Two messages of one sender are ordered only if the second was sent after a context that has the first, so nothing
follows from a sender's counts: what was delivered here, D, is a set with gaps, kept as a floor and what is beyond it.

The process's own history, one for all: a message that is sent without a context is sent *after everything*, that is
after all such messages that this process sent or delivered. These are in causal order. Messages that are sent after a
context are not in the history: they delay nothing but what is sent after a context that has them.
  history   of the messages without a context from s to d the last one stands for all: each was sent after those before
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from antecede.errors import BadParameter
from antecede.model import CausalContext, Effect, Message, Obligation, Packet, Stamp, View
from antecede.protocols.receiver import BEYOND, Need, Receiver
from antecede.protocols.unordered import Seen

__all__ = ["ContextStamp", "Contexts"]


class ContextStamp(Stamp, frozen=True, gc=False):
    counts: tuple[int, ...]
    """Of each destination of the message, in their order: the channel's count."""
    after: frozenset[Obligation]
    explicit: bool
    """Whether the application gave the context. If not, it is the sender's history."""

    def entries(self, n: int) -> int:
        return len(self.counts) + len(self.after)


class Delivered:
    """D as `Receiver` reads it: (sender, count) -> count if that very message was delivered, else 0."""

    __slots__ = ("_seen",)

    def __init__(self, seen: list[Seen]) -> None:
        self._seen = seen

    def __getitem__(self, key: tuple[int, int]) -> int:
        return key[1] if key[1] in self._seen[key[0]] else 0

    def __setitem__(self, key: tuple[int, int], count: int) -> None:
        self._seen[key[0]].add(count)


class Contexts(Receiver):
    """
    >>> from antecede.model import View
    >>> alarm, bulk, page = (Contexts(View.of("alarm", "bulk", "page"), me) for me in range(3))
    >>> first, [packet] = alarm.send("page", b"fire", after=CausalContext())
    >>> fire = alarm.context_of(first)
    >>> upload, [large] = alarm.send("page", b"video", after=CausalContext())
    >>> second, [late] = alarm.send("page", b"fire is out", after=fire)
    >>> page.receive(late)                      # The second alarm waits for the first,
    []
    >>> page.receive(packet) == [first], page.deliver(first) == [second]      # and not for the video.
    (True, True)
    """

    name = "contexts"
    stamps = (ContextStamp,)
    state = {
        "sent": int,
        "_sequence": list[int],
        "_seen": list[Seen],
        "_history": dict[tuple[int, int], int],
    }
    explicit = True
    sparse = True
    stamps_grow = True

    def __init__(self, view: View, me: str | int) -> None:
        super().__init__(view, me)
        self._sequence = [0] * self.n
        self._seen = [Seen() for _ in range(self.n)]
        self._delivered = Delivered(self._seen)
        self._columns: dict[int, dict[int, int]] = {}
        """destination -> sender -> count: the obligations of everything."""
        self._latest: tuple[Message, ContextStamp] | None = None

    @property
    def _history(self) -> dict[tuple[int, int], int]:
        """(sender, destination) -> count"""
        return {(s, d): count for d, column in self._columns.items() for s, count in column.items()}

    @_history.setter
    def _history(self, history: Mapping[tuple[int, int], int]) -> None:
        self._columns = {}
        for (sender, dest), count in history.items():
            self._columns.setdefault(dest, {})[sender] = count

    def stamp_entries(self, label: str = "") -> int:
        return sum(map(len, self._columns.values())) + self.n

    # Contexts

    def context_of(self, message: Message) -> CausalContext:
        """The context that has this message, and what it was sent after: of the last one sent or delivered here."""
        if self._latest is None or self._latest[0].id != message.id:
            raise BadParameter(
                self.name,
                f"message {message.id} is not the last one that was sent or delivered: ask for its context at once",
            )
        return self._of(*self._latest)

    def everything(self) -> CausalContext:
        """The context of all that was sent and delivered here without one."""
        return CausalContext(frozenset(self._list_history()))

    def _list_history(self) -> list[Obligation]:
        return [(s, d, count) for d, column in self._columns.items() for s, count in column.items()]

    def _of(self, message: Message, stamp: ContextStamp) -> CausalContext:
        to = message.to
        rest = {one for one in stamp.after if one[1] not in to}
        rest.update((message.sender, dest, count) for dest, count in zip(to, stamp.counts, strict=True))
        return CausalContext(frozenset(self._find_unsettled(rest)))

    def _find_unsettled(self, obligations: Iterable[Obligation]) -> Iterable[Obligation]:
        me, seen = self.me, self._seen
        return [one for one in obligations if one[1] != me or one[2] not in seen[one[0]]]

    # Send

    def _send_after(self, message: Message, after: CausalContext) -> list[Effect]:
        return self._copies_of(message, after.obligations, True)

    def _check_context(self, after: CausalContext) -> None:
        """Refuse, before the message has a number, a context that is not of this system."""
        for sender, dest, count in after.obligations:
            most = self._sequence[dest] if sender == self.me and 0 <= dest < self.n else BEYOND
            if not (0 <= sender < self.n and 0 <= dest < self.n and 1 <= count <= most):
                found = f"message {count} of {self.view.name(sender)} to {self.view.name(dest)}"
                raise BadParameter(self.name, f"after names {found}, which was never sent in this view")

    def _send(self, message: Message) -> list[Effect]:
        effects = self._copies_of(message, self._list_history(), False)
        self._columns.update({dest: {self.me: self._sequence[dest]} for dest in message.to})
        return effects

    def _copies_of(self, message: Message, after: Iterable[Obligation], explicit: bool) -> list[Effect]:
        counts = []
        for dest in message.to:
            self._sequence[dest] += 1
            counts.append(self._sequence[dest])
        stamp = ContextStamp(tuple(counts), frozenset(self._find_unsettled(after)), explicit)
        self._latest = (message, stamp)
        return self._copies(message, lambda dest: stamp)

    # Receive

    def _position(self, packet: Packet[Any]) -> Need:
        message = packet.message
        assert message is not None
        count = packet.stamp.counts[message.to.index(self.me)]
        return (packet.source, count), count

    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        me = self.me
        return [((sender, count), count) for sender, dest, count in packet.stamp.after if dest == me]

    def _learn(self, packet: Packet[Any]) -> None:
        message, stamp, columns, me = packet.message, packet.stamp, self._columns, self.me
        assert message is not None
        self._latest = (message, stamp)
        if stamp.explicit:
            return
        if message.sender != me:  # Else it was in the history when it was sent.
            to = message.to
            for sender, dest, count in stamp.after:
                if dest not in to:
                    column = columns.get(dest)
                    if column is None:
                        columns[dest] = {sender: count}
                    elif sender not in column or column[sender] < count:
                        column[sender] = count
            for dest, count in zip(to, stamp.counts, strict=True):
                column = columns.setdefault(dest, {})
                column[message.sender] = max(count, column.get(message.sender, 0))
        self._settle_history()

    def _settle_history(self) -> None:
        mine, seen = self._columns.get(self.me, {}), self._seen
        for sender in [sender for sender, count in mine.items() if count in seen[sender]]:
            del mine[sender]

    def _sender(self, key: Any) -> int:
        return int(key[0])

    def _lane_of(self, sender: int, count: int, label: str) -> Any:
        return (sender, count)

    def _gap(self, done: int, count: int) -> int:
        return count

    def _first(self, done: int, count: int) -> int:
        return count

    def _listen(self, delivered: Sequence[int] | None) -> None:
        self._seen[:] = [Seen(int(count)) for count in delivered or [0] * self.n]
        self._seen[self.me] = Seen(BEYOND)
        self._sequence = [BEYOND] * self.n

    def _load(self, state: Mapping[str, Any]) -> None:
        self._delivered = Delivered(self._seen)
        self._latest = None
        super()._load(state)

    def _check(self, packet: Packet[Any]) -> None:
        message, stamp = packet.message, packet.stamp
        assert message is not None
        if len(stamp.counts) != len(message.to) or min(stamp.counts) < 1:
            raise self._bad_stamp(
                packet,
                f"it has counts {stamp.counts} for {len(message.to)} destinations; it needs one for each, from 1",
            )
        own = dict(zip(message.to, stamp.counts, strict=True))
        for sender, dest, count in stamp.after:
            if not (0 <= sender < self.n and 0 <= dest < self.n and count >= 1):
                raise self._bad_stamp(packet, self._bad_entry(sender, dest, count))
            if sender == self.me and count > self._sequence[dest]:
                raise self._unsent(packet, count, self._sequence[dest])
            if sender == message.sender and count >= own.get(dest, BEYOND):
                raise self._bad_stamp(
                    packet, f"it is sent after message {count} of {sender} to {dest}, which was sent later"
                )
