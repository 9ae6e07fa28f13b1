"""history: Rodrigues & Veríssimo 1995, chapter 4: extended causal histories, rules R1 to R8.

H  the messages that precede the next message to be sent       C(m)  to whom m has been "reported"
D  the messages delivered here                                 A_m   the destinations of m

Rules (section 4.2)
  R1    H, C and D start empty
  R2    stamp a message with H
  R3    deliver m when every i in H_m that is addressed to us is in D
  R4    sent: add m to H.  delivered: add H_m and m to H, m to D
  R5    D keeps the last message of each sender; a message is in D if that one is no older
  R6.1  (optional) stamp with C too
  R6.2  sent m: C(i) grows by A_m and the sender, for all i in H; C(m) is empty
  R6.3  delivered m: C(n) grows by A_m, for earlier messages n of m's sender in H; for n in H_m, C(n) grows by
        C_m(n), A_m, the sender, and A_i of every later message i of n's sender in H; C(m) = {sender, me}
  R6.4  (ours) the last part of R6.3 holds for every n in H, not only for those in H_m
  R7    leave out of H_m what has been reported to all of A_m
  R8    remove from H (and C) what has been reported to all of its destinations
Further compression (section 4.5), both off unless asked for
  R10   remove from H what is known to be *delivered* to all of its destinations. That n stands in a stamp of q, in A_n,
        shows that q has delivered n (R3). R7 and R8 take identifiers out of stamps, so such evidence is rare.
  delta remove from H what has been in it for so long, in the units of `pass_time`. It trusts that every message is
        delivered at all of its destinations, by applications too, within delta of its send: a wrong delta loses order.

R5, R6.1, R6.4, R7 and R8 can be switched off, and R6 with all that builds on it. Without R6.4 nothing in the report
removes a message to strangers once a newer one of the same sender to the same strangers is known: H grows for ever.

Where delivery is apart from arrival (selective receive), one premise of the report does not hold: that a message is
delivered to its sender at once (footnote 2). So D takes a process's own copy when the application takes it, and
"the sender" in R6.2 and R6.3 does not count for messages of that sender to itself: `_knows`.

Incomplete orders (chapter 6): each label has its own H and C, so that messages with different labels do not delay
each other. `merge` lets the application join what it wants joined: messages of one label that are sent afterwards
follow everything in the other label's history. An inference from "later message of the same sender" (R6.3) is drawn
within a label only, because only there did the later one carry the earlier one. What is kept for a label: H and C until
they are empty; of D one number for each sender, for ever, so one sender has at most `LABELS`.

H and C, and the rules that maintain them (R2, R4, R6 to R8, R10, delta): `protocols.histories`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import asdict

from antecede.errors import Unsupported
from antecede.model import Effect, Id, Message, Packet, Stamp, View, bits, set_of
from antecede.protocols.histories import Entry, Histories, Rules
from antecede.protocols.receiver import BEYOND, Need, Receiver

__all__ = ["History", "HistoryStamp"]


UNBOUNDED = (
    "`delta` trusts that every message is delivered within that time, and nothing bounds how long a node, its network "
    "or its application may take: leave `delta` out"
)

LABELS = 1 << 16
"""Labels of one sender, at most: what was delivered of each must be remembered, since anyone may still name it."""


class HistoryStamp(Stamp, frozen=True, gc=False):
    history: tuple[Entry, ...]

    def entries(self, n: int) -> int:
        return len(self.history)


class Delivered(dict[tuple[int, str | int], int]):
    """D: (sender, label) -> the last number delivered, under R5; (sender, number) -> number without it."""

    own = -1
    """The process whose messages all count as delivered, at a listener for it."""

    def __missing__(self, key: tuple[int, str | int]) -> int:
        return BEYOND if key[0] == self.own else 0


class History(Receiver):
    name = "history"
    stamps = (HistoryStamp,)
    state = {**Receiver.state, "_delivered": dict[tuple[int, str | int], int]}
    labels = True
    counted = "sender"
    sparse = True
    stamps_grow = True

    def __init__(self, view: View, me: str | int, **rules: Any) -> None:
        super().__init__(view, me)
        self.rules = Rules(**rules)
        self._delivered = Delivered()
        self._labels: defaultdict[int, set[str]] = defaultdict(set)
        """Sender -> labels of what was delivered of it, under R5."""
        self._contexts: dict[str, Histories] = {}
        self._now = 0

    @property
    def parameters(self) -> dict[str, Any]:
        return asdict(self.rules)

    def stamp_entries(self, label: str = "") -> int:
        context = self._contexts.get(label)
        return 2 if context is None else len(context.H) + 2

    def _context(self, label: str) -> Histories:
        context = self._contexts.get(label)
        if context is None:
            context = self._contexts[label] = self._histories()
            context.now = self._now
        return context

    def _histories(self) -> Histories:
        return Histories(self.me, self.rules)

    def _forget_empty(self, label: str) -> None:
        """Without H, a context says what a new one says: there is nothing that `last` and `since` could be about."""
        if label in self._contexts and not self._contexts[label].H:
            del self._contexts[label]

    def merge(self, source: str, into: str) -> None:
        """Messages labelled `into` that are sent from now on follow all that is in the history of `source`."""
        self._context(into).merge(self._context(source))

    @classmethod
    def name_members(cls, parameters: Mapping[str, Any], founders: Sequence[str]) -> dict[str, Any]:
        if parameters.get("delta"):
            raise Unsupported(cls.name, UNBOUNDED)
        return super().name_members(parameters, founders)

    @property
    def timed(self) -> bool:
        return self.rules.delta > 0

    def pass_time(self, now: int) -> None:
        """It is so late, in any unit: with a `delta`, forget what is older."""
        if self.rules.delta:
            self._now = now
            for label in list(self._contexts):
                self._contexts[label].pass_time(now)
                if label:
                    self._forget_empty(label)

    def _send(self, message: Message) -> list[Effect]:
        context, to = self._context(message.label), set_of(message.to)
        stamp = HistoryStamp(context.stamp(to))
        context.note_sent(message.sender, message.number, to, message.label)
        if message.label:
            self._forget_empty(message.label)
        return self._copies(message, lambda dest: stamp)

    # R3, R5

    def _lane(self, sender: int, number: int, label: str) -> Need:
        return ((sender, label) if self.rules.r5 else (sender, number)), number

    def _position(self, packet: Packet[Any]) -> Need:
        message = packet.message
        return self._lane(message.sender, message.number, message.label)  # type: ignore[union-attr]

    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        mine = 1 << self.me
        return [self._lane(e.sender, e.number, e.label) for e in packet.stamp.history if e.to & mine]

    def _learn(self, packet: Packet[Any]) -> None:
        message = packet.message
        assert message is not None
        sender, number, label = message.sender, message.number, message.label
        if sender != self.me:
            self._context(label).note_delivered(
                sender, number, set_of(message.to), label, packet.stamp.history
            )
        elif self.rules.r10 and label in self._contexts:
            self._contexts[label].note_taken(sender, number, 1 << self.me)
        if label:
            self._labels[sender].add(label)
            self._forget_empty(label)

    def _sender(self, key: Any) -> int:
        return int(key[0])

    def _lane_of(self, sender: int, count: int, label: str) -> Any:
        return self._lane(sender, count, label)[0]

    def _label(self, key: Any) -> str:
        return key[1] if isinstance(key[1], str) else ""

    def _gap(self, done: int, count: int) -> int:
        return done + 1 if self.rules.r5 else count

    def _listen(self, delivered: Sequence[int] | None) -> None:
        assert delivered is None, "numbers of labels, not counts of senders"
        self._delivered.own = self.me

    def histories(self, label: str = "") -> dict[Id, tuple[tuple[int, ...], tuple[int, ...]]]:
        """H and C for people: message -> (A_m, C(m))."""
        context = self._context(label)
        records = sorted(context.H.items())
        return {key: (tuple(bits(r.entry.to)), tuple(bits(context.copies(r)))) for key, r in records}

    def dump(self) -> dict[str, Any]:
        contexts = {label: self._contexts[label].dump() for label in sorted(self._contexts)}
        return {**super().dump(), "contexts": contexts}

    def _load(self, state: Mapping[str, Any]) -> None:
        self._delivered = Delivered(self._delivered)
        if self.listens:
            self._delivered.own = self.me
        self._labels = defaultdict(set)
        for sender, label in self._delivered:
            if isinstance(label, str) and label:
                self._labels[sender].add(label)
        self._contexts = {}
        for label, context in state["contexts"].items():
            self._context(label).load(context)
        super()._load(state)

    def _check(self, packet: Packet[Any]) -> None:
        message = packet.message
        assert message is not None
        self._check_history(packet, message.number, self.sent)
        known = self._labels[message.sender] if message.label and self.rules.r5 else ()
        if len(known) >= LABELS and message.label not in known:
            raise self._bad_stamp(
                packet, f"its label {message.label!r} is one more than the {LABELS} that a sender may use"
            )

    def _check_history(self, packet: Packet[Any], number: int, sent: int) -> None:
        """Refuse entries that cannot be in the stamp of this number, where we have sent so many."""
        n, me, source, union = self.n, self.me, packet.source, 0
        for entry in packet.stamp.history:
            sender, count, to = entry.sender, entry.number, entry.to
            union |= to | entry.copies
            if not 0 <= sender < n or count < 1 or not to:
                raise self._bad_stamp(packet, self._bad_entry(sender, count))
            if sender == source:
                if count >= number:
                    raise self._bad_stamp(
                        packet, f"its history has ({sender}, {count}), which was sent later"
                    )
            elif sender == me and count > sent:
                raise self._unsent(packet, count, sent)
        if not 0 <= union < 1 << n:
            [wrong, *_] = [e for e in packet.stamp.history if not 0 <= e.to | e.copies < 1 << n]
            raise self._bad_stamp(packet, self._bad_entry(wrong.sender, wrong.number))
