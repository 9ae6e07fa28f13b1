"""underway: matrix and buffer combined, as Mattern & Fünfrocken 1995, section 5, ask for.

The matrix of Raynal & Schiper forgets what was acknowledged, so that a stamp names only what may still be under way. If
that is more than k messages, the message waits in the output buffer until acknowledgements make it fewer: with k = 0 no
stamp has an entry and senders wait, as in `buffer`; without k nobody waits to send, as in `matrix`.

M[i, j] is the number of the last message from i to j that is not known to be delivered. S[i]: all messages of i up to
this number are known to be delivered, everywhere. An entry of a stamp is (i, number, all j whose M[i, j] it is).

Rules
  send to D     attach M; then M[me, d] := the message's number, for each d in D
  post          a message whose stamp has at most k entries; what is no longer under way leaves it
  wait          DELIVERED[i] >= ST[i, me] for all i
  deliver       acknowledge; M := max(M, ST) except column me and row me, and M[source, d] := the message's number for
                its other destinations d; what S covers is not learned again
  acknowledged  M[me, j] := 0 up to that number; S[me] := the number before the first that someone has not acknowledged
  settled       when S[i] grows, its entries leave M, and whoever was told of one of them by us is told S[i]. A sender
                tells the destinations of a multicast, who know of each other's copies.

An acknowledgement says delivered, not arrived: so stamps decide as in `matrix`, and each message that may be next is
eligible. The wait for k entries is a delay of the network to all the rest, so order does not rest on it; and what a
message waits for was sent before it, so it ends if applications take what they are offered. With k, an application that
takes only what it chooses can block, as with `buffer`.

A send does not empty a column, as it does in `bounded`: what the message implies may be lost with it, if its sender is
removed. Entries go when they are settled, and that is soon.

Where it beats both, and where not: `python -m experiments.tables underway`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import compress
from typing import Any, ClassVar

from antecede.errors import BadParameter
from antecede.model import Awaited, Control, Effect, Message, Packet, Stamp, View, Waiting, mask
from antecede.protocols.receiver import Need, Receiver

__all__ = ["Receipt", "Settled", "Underway", "UnderwayStamp"]

Log = tuple[tuple[int, int, int], ...]
"""(i, number, the set of all j with M[i, j] = number, as bits)"""


class UnderwayStamp(Stamp, frozen=True, gc=False):
    log: Log

    def entries(self, n: int) -> int:
        return len(self.log)


class Receipt(Control, frozen=True, gc=False):
    """Your messages to me up to this number are delivered."""

    cumulative: ClassVar[bool] = True
    number: int


class Settled(Control, frozen=True, gc=False):
    """All messages of this process up to this number are delivered everywhere."""

    process: int
    number: int


class Underway(Receiver):
    name = "underway"
    stamps = (UnderwayStamp, Receipt, Settled)
    commuting = (UnderwayStamp,)
    arrivals_commute = False
    counted = "sender"
    sparse = True
    names_all = True
    holds_back = True
    stamps_grow = True
    state = {
        **Receiver.state,
        "_rows": list[dict[int, int]],
        "_settled": list[int],
        "_owed": list[dict[int, tuple[int, int]]],
        "_output": deque[tuple[Message, Log]],
    }

    def __init__(self, view: View, me: str | int, k: int | None = None) -> None:
        super().__init__(view, me)
        # The parameters of a snapshot, or of a command, may be of any type.
        if k is not None and (not isinstance(k, int) or k < 0):  # type: ignore[redundant-expr]
            raise BadParameter(self.name, f"k must be a number of entries, 0 or more, or none, not {k!r}")
        self.k = k
        self._rows: list[dict[int, int]] = [{} for _ in range(self.n)]
        """_rows[i]: number -> all j with M[i, j] = number, as bits. Of our own, all that are not acknowledged."""
        self._newest: dict[int, int] = {}
        """Of our own row, M alone: a send looks at no more than n messages, however many are not acknowledged."""
        self._settled = [0] * self.n
        """S"""
        self._owed: list[dict[int, tuple[int, int]]] = [{} for _ in range(self.n)]
        """_owed[i][d]: the first and the last message of i that d was told of by us, and not told that it settled."""
        self._output: deque[tuple[Message, Log]] = deque()
        """Messages that wait to be posted, each with what it names."""

    @classmethod
    def tightest(cls, n: int) -> dict[str, Any]:
        return {"k": 1}

    @property
    def parameters(self) -> dict[str, Any]:
        return {"k": self.k}

    def stamp_entries(self, label: str = "") -> int:
        return sum(map(len, self._rows)) + 2

    # Send

    def _send(self, message: Message) -> list[Effect]:
        me, log = self.me, self._log()
        to = self._rows[me][message.number] = mask(message.to)
        self._newest = _latest({**self._newest, message.number: to})
        effects: list[Effect] = []
        if me in message.to:
            effects += self._receive(Packet(me, me, UnderwayStamp(log), message))
        if message.to != (me,):
            self._output.append((message, log))
            effects += self._post()
        return effects

    def _log(self) -> Log:
        rows = [*self._rows[: self.me], self._newest, *self._rows[self.me + 1 :]]
        # Most rows are empty in a large system, and are passed over in C.
        filled = compress(range(self.n), rows)
        return tuple([(i, number, rows[i][number]) for i in filled for number in sorted(rows[i])])

    def _post(self, anyhow: bool = False) -> list[Effect]:
        """The packets of those messages in the output buffer that may leave."""
        effects: list[Effect] = []
        for _ in range(len(self._output)):
            message, log = self._output.popleft()
            log = self._still_underway(log)
            if self.k is not None and len(log) > self.k and not anyhow:
                self._output.append((message, log))
                continue
            stamp = UnderwayStamp(log)
            for dest in message.to:
                if dest != self.me:
                    self._owe(dest, message, stamp)
                    effects.append(Packet(self.me, dest, stamp, message))
        return effects

    def _still_underway(self, log: Log) -> Log:
        settled, mine = self._settled, self._rows[self.me]
        now = [
            (i, number, dests & mine.get(number, 0) if i == self.me else dests)
            for i, number, dests in log
            if number > settled[i]
        ]
        return tuple([entry for entry in now if entry[2]])

    def _owe(self, dest: int, message: Message, stamp: UnderwayStamp) -> None:
        """Remember what `dest` is told of, to tell it when that settles. Of copies that it gets itself, i tells it."""
        told = [(i, number) for i, number, dests in stamp.log if i != dest and not dests >> dest & 1]
        if len(message.to) > 1:
            told.append((self.me, message.number))
        for i, number in told:
            first, last = self._owed[i].get(dest, (number, number))
            self._owed[i][dest] = (min(first, number), max(last, number))

    # Receive

    def _receive(self, packet: Packet[Any]) -> list[Effect]:
        stamp = packet.stamp
        if isinstance(stamp, Receipt):
            return self._acknowledge(packet.source, stamp.number)
        if isinstance(stamp, Settled):
            return self._settle_up_to(stamp.process, stamp.number)
        return super()._receive(packet)

    def _position(self, packet: Packet[Any]) -> Need:
        return packet.source, packet.message.number  # type: ignore[union-attr]

    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        me = self.me
        return [(i, number) for i, number, dests in packet.stamp.log if dests >> me & 1]

    def _learn(self, packet: Packet[Any]) -> None:
        message = packet.message
        assert message is not None
        if packet.source != self.me:
            for entry in packet.stamp.log:
                self._note(*entry)
            self._note(message.sender, message.number, mask(message.to))

    def _note(self, i: int, number: int, dests: int) -> None:
        dests &= ~(1 << self.me)
        if dests and i != self.me and number > self._settled[i]:
            row = self._rows[i]
            row[number] = row.get(number, 0) | dests
            self._rows[i] = _latest(row)

    def deliver(self, message: Message) -> list[Effect]:
        effects = super().deliver(message)
        if message.sender == self.me:
            return effects + self._acknowledge(self.me, message.number)
        return [*effects, Packet(self.me, message.sender, Receipt(message.number))]

    # What is known to be delivered

    def _acknowledge(self, process: int, number: int) -> list[Effect]:
        mine, bit = self._rows[self.me], 1 << process
        acknowledged = [one for one, dests in mine.items() if one <= number and dests & bit]
        if not acknowledged:
            return []
        for row in (mine, self._newest):
            for one in [one for one in acknowledged if one in row]:
                row[one] &= ~bit
                if not row[one]:
                    del row[one]
        return self._settle_up_to(self.me, min(mine, default=self.sent + 1) - 1) or self._post()

    def _settle_up_to(self, process: int, number: int) -> list[Effect]:
        if number <= self._settled[process]:
            return []
        self._settled[process] = number
        row = self._rows[process]
        for settled in [one for one in row if one <= number]:
            del row[settled]
        effects: list[Effect] = []
        owed = self._owed[process]
        for dest, (first, last) in sorted(owed.items()):
            if first <= number:
                effects.append(Packet(self.me, dest, Settled(process, number)))
                del owed[dest]
                if last > number:
                    owed[dest] = (number + 1, last)
        return effects + self._post()

    def forget(self, process: int) -> list[Effect]:
        """As if it had acknowledged all that we sent. What it was to tell never comes: so nothing waits for k."""
        return self._acknowledge(process, self.sent) + self._post(anyhow=True) + super().forget(process)

    def waiting(self) -> list[Waiting]:
        reason = f"in the output buffer until at most {self.k} of what it follows may be under way"
        return super().waiting() + [
            Waiting(message, tuple([Awaited(i, number, number) for i, number, _ in log]), "unsent", reason)
            for message, log in self._output
        ]

    def _load(self, state: Mapping[str, Any]) -> None:
        self._newest = _latest(dict(self._rows[self.me]))
        super()._load(state)

    def _check(self, packet: Packet[Any]) -> None:
        stamp, message, n, me = packet.stamp, packet.message, self.n, self.me
        if message is None:
            if isinstance(stamp, Receipt) and stamp.number > self.sent:
                raise self._unsent(packet, stamp.number, self.sent)
            if isinstance(stamp, Settled) and (not 0 <= stamp.process < n or stamp.process == me):
                raise self._bad_stamp(
                    packet, f"it tells what settled of process {stamp.process}, which is no other"
                )
            return
        for i, number, dests in stamp.log:
            if not 0 <= i < n or number < 1 or dests < 1 or dests >> n:
                raise self._bad_stamp(packet, self._bad_entry(i, number))
            if i == me and number > self.sent:
                raise self._unsent(packet, number, self.sent)
            if i == packet.source and number >= message.number:
                raise self._bad_stamp(packet, f"it names ({i}, {number}), which was sent later")


def _latest(row: dict[int, int]) -> dict[int, int]:
    """Of the messages to each process the last: channels are FIFO, so it stands for those before it."""
    if len(row) < 2:
        return row
    latest, later = {}, 0
    for number in sorted(row, reverse=True):
        if dests := row[number] & ~later:
            latest[number] = dests
            later |= dests
    return latest
