"""Protocols with exactly one rule left out or made too generous. Each class says which.

`test_every_condition_matters` shows for each what it breaks, or that it breaks nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from antecede.errors import NotEligible
from antecede.model import Effect, Id, Message, Packet
from antecede.protocols.bounded import Bounded, Extra
from antecede.protocols.broadcast import Broadcast
from antecede.protocols.buffer import Acknowledge, Buffer
from antecede.protocols.fifo import Fifo
from antecede.protocols.histories import Entry, Histories, Record
from antecede.protocols.history import History
from antecede.protocols.matrix import Matrix, MatrixStamp
from antecede.protocols.monitor import Monitor
from antecede.protocols.optimal import LogRow, LogStamp, Optimal, make_rows
from antecede.protocols.permit import Grant, Permit, PermitStamp, Posting, Restraint, Taken
from antecede.protocols.receiver import BEYOND, Need
from antecede.protocols.sparing import Constraint, Sparing
from antecede.protocols.underway import Log, Receipt, Underway, UnderwayStamp

ALL = (1 << 8) - 1
"""Every process, as a set of bits."""


class FifoWithoutWait(Fifo):
    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        return ()


# matrix


class MatrixWithoutMerge(Matrix):
    def _learn(self, packet: Packet[Any]) -> None:
        pass


class MatrixWithoutChannelCondition(Matrix):
    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        return [need for need in super()._needs(packet) if need[0] != packet.source]


class MatrixWithChannelConditionOnly(Matrix):
    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        return [need for need in super()._needs(packet) if need[0] == packet.source]


class MatrixWithoutOwnRowCondition(Matrix):
    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        me, source = self.me, packet.source
        return [need for need in super()._needs(packet) if need[0] != me or source == me]


class MatrixTellsOwnRowOnly(Matrix):
    def _stamp(self, dest: int) -> MatrixStamp:
        return MatrixStamp((self._rows[self.me],))


class MatrixTakesOneAsTellingAll(Matrix):
    """What changed since anyone was told, not since this destination was."""

    def _stamp(self, dest: int) -> MatrixStamp:
        stamp = super()._stamp(dest)
        self._told = [self._clock] * self.n
        return stamp


class MatrixTellsEveryRow(Matrix):
    """Saves nothing: every row travels every time."""

    def _stamp(self, dest: int) -> MatrixStamp:
        rows = [row for row in self._rows if row.process != self.me]
        return MatrixStamp((*rows, self._rows[self.me]))


class MatrixComparesEveryRow(Matrix):
    """Saves nothing: rows no newer than ours are compared too."""

    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        me, source = self.me, packet.source
        needs = [(source, packet.stamp.rows[-1].counts[me] - 1)]
        return needs + [(row.process, row.counts[me]) for row in packet.stamp.rows if row.process != source]


# broadcast


class BroadcastWithoutChannelCondition(Broadcast):
    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        return [need for need in super()._needs(packet) if need[0] != packet.source]


class BroadcastWithChannelConditionOnly(Broadcast):
    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        return [need for need in super()._needs(packet) if need[0] == packet.source]


# bounded


class BoundedKeepsNothingOfTheColumn(Bounded):
    """The column is emptied altogether; the numbers of the channels go on."""

    state = {**Bounded.state, "_last": list[int]}

    def __init__(self, *args: Any, **parameters: Any) -> None:
        super().__init__(*args, **parameters)
        self._last = [0] * self.n

    def _leave(self, dest: int) -> int:
        self._columns[dest] = {}
        self._last[dest] += 1
        return self._last[dest]

    def _check(self, packet: Packet[Any]) -> None:
        """Would refuse these stamps: they contradict themselves."""


class BoundedKeepsTheWholeColumn(Bounded):
    """Saves nothing: a send implies the constraints in the column, but they stay. So k cannot be kept."""

    def _leave(self, dest: int) -> int:
        sequence = self._columns[dest].get(self.me, 0) + 1
        self._columns[dest][self.me] = sequence
        return sequence

    def _relieve(self) -> list[Effect]:
        return []


class BoundedWithoutMulticastTerm(Bounded):
    def _learn_copies(self, source: int, before: dict[int, int]) -> None:
        pass


class BoundedWithoutMerge(Bounded):
    def _learn(self, packet: Packet[Any]) -> None:
        if packet.message is not None and packet.source != self.me:
            own = [(i, j, count) for i, j, count in packet.stamp.matrix if i == packet.source]
            before = dict.fromkeys(packet.message.to, 0) | {j: c for _, j, c in own if j in packet.message.to}
            self._learn_copies(packet.source, before)


class BoundedWithoutWait(Bounded):
    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        return ()


class BoundedWithChannelConditionOnly(Bounded):
    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        return [need for need in super()._needs(packet) if need[0] == packet.source]


class BoundedForgetsWithoutExtraMessage(Bounded):
    """The fullest column is emptied, and its process is not told."""

    def _relieve(self) -> list[Effect]:
        while sum(map(len, self._columns)) >= self.k:
            fullest = max(self._columns, key=len)
            own = fullest.get(self.me)
            fullest.clear()
            if own is not None:
                fullest[self.me] = own
        return []


class BoundedExtraMessageTakesNoNumber(Bounded):
    def _relieve(self) -> list[Effect]:
        effects: list[Effect] = []
        while sum(map(len, self._columns)) >= self.k:
            fullest = max(range(self.n), key=lambda j: len(self._columns[j]))
            column = tuple(sorted(self._columns[fullest].items()))
            sequence = max(1, self._columns[fullest].get(self.me, 0))
            self._columns[fullest] = {self.me: sequence}
            effects.append(Packet(self.me, fullest, Extra(sequence, column)))
        return effects

    def _check(self, packet: Packet[Any]) -> None:
        """Would refuse these extra messages: they contradict themselves."""


class BoundedExtraMessageDoesNotWait(Bounded):
    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        return () if packet.message is None else super()._needs(packet)


class BoundedForgetsOwnColumn(Bounded):
    """The process does not tell others of its messages to itself."""

    def _send(self, message: Message) -> list[Effect]:
        return [_without_self_sends(effect) for effect in super()._send(message)]


def _without_self_sends(effect: Effect) -> Effect:
    if not isinstance(effect, Packet) or effect.message is None:
        return effect
    me = effect.source
    matrix = tuple(entry for entry in effect.stamp.matrix if entry[:2] != (me, me))
    return replace(effect, stamp=replace(effect.stamp, matrix=matrix))


class TakesAnyStampForAProof(Histories):
    """R10 with the stamps of everybody, not only of those that n is addressed to."""

    def _proof(self, known: Entry, m: Entry) -> int:
        return known.to


class TakesTheSenderForAProof(Histories):
    """R10 where a process that has sent n to itself counts as having delivered it."""

    def _proof(self, known: Entry, m: Entry) -> int:
        return known.to & (1 << self.me | 1 << m.sender)


# sparing


class SparingWithoutWait(Sparing):
    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        return ()


class SparingWithoutMerge(Sparing):
    """Learns of the message's other copies, and of nothing else."""

    def _learn(self, packet: Packet[Any]) -> None:
        if packet.message is not None:
            packet = replace(packet, stamp=replace(packet.stamp, matrix=()))
        super()._learn(packet)


class SparingWithoutOtherCopies(Sparing):
    """Takes the columns of other destinations for empty, as they came."""

    def _list_copies(self, packet: Packet[Any]) -> list[Constraint]:
        return []


class SparingLeavesOutTheColumn(Sparing):
    """A copy has no column of any destination, not even of its own."""

    def _send(self, message: Message) -> list[Effect]:
        return [self._strip(effect) for effect in super()._send(message)]

    def _strip(self, effect: Effect) -> Effect:
        if not isinstance(effect, Packet) or effect.message is None:
            return effect
        matrix = tuple(entry for entry in effect.stamp.matrix if entry[1] != effect.dest)
        return replace(effect, stamp=replace(effect.stamp, matrix=matrix))


class SparingTellsArrivedForTaken(Sparing):
    """Says that all that has arrived was delivered."""

    def _send(self, message: Message) -> list[Effect]:
        return [self._exaggerate(effect) for effect in super()._send(message)]

    def _exaggerate(self, effect: Effect) -> Effect:
        if not isinstance(effect, Packet):
            return effect
        here = [self._position(packet) for packet in (*self._held.values(), *self._ready.values())]
        arrived = max([count for source, count in here if source == effect.dest], default=0)
        return replace(effect, stamp=replace(effect.stamp, taken=max(effect.stamp.taken, arrived)))


class SparingKnowsWhatHasArrived(Sparing):
    """Knows of a packet when it has arrived, not when it is delivered."""

    def _receive(self, packet: Packet[Any]) -> list[Effect]:
        if packet.message is not None:
            self._known[packet.source] = max(self._known[packet.source], packet.stamp.number)
        return super()._receive(packet)


class SparingForgetsWhatOthersDoNotKnow(Sparing):
    """Drops all that the other side does not have, whether it has forgotten it or never heard of it."""

    def _read_known(self, packet: Packet[Any]) -> dict[int, int]:
        return dict.fromkeys(range(self.n), BEYOND)

    def _learn(self, packet: Packet[Any]) -> None:
        known = list(self._known)
        super()._learn(packet)
        self._known = known


class SparingForgetsAllThatIsTaken(Sparing):
    """Takes the delivery of a packet of ours for that of everything that we know of for that process."""

    def _learn(self, packet: Packet[Any]) -> None:
        taken = packet.stamp.taken
        if taken and taken >= self._sequence[packet.source]:
            self._columns[packet.source].clear()
        super()._learn(packet)


class SparingForgetsWithoutExtraMessage(Sparing):
    """The fullest column is emptied, and its process is not told."""

    def _make_room(self, to: Sequence[int]) -> list[Effect]:
        super()._make_room(to)
        return []


class SparingExtraMessageDoesNotWait(Sparing):
    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        return () if packet.message is None else super()._needs(packet)


class SparingCountsAColumnAsTold(Sparing):
    """Takes what it has learned for j for what it has told j: a stamp leaves it out."""

    def _send(self, message: Message) -> list[Effect]:
        for column in self._columns:
            for i in [i for i in column if i != self.me]:
                del column[i]
        return super()._send(message)


class SparingLearnsAgain(Sparing):
    """Learns what it has forgotten, too: that only takes room."""

    def _learn(self, packet: Packet[Any]) -> None:
        super()._learn(packet)
        for entry in packet.stamp.matrix if packet.message is not None else ():
            i, j, _, number = entry
            if self.me not in (i, j) and (i not in self._columns[j] or number > self._columns[j][i][3]):
                self._columns[j][i] = entry


# underway


class UnderwayWithoutWait(Underway):
    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        return ()


class UnderwayWithoutMerge(Underway):
    """Learns of the message's other copies, and of nothing else."""

    def _learn(self, packet: Packet[Any]) -> None:
        super()._learn(replace(packet, stamp=UnderwayStamp(())))


class UnderwayWithoutOtherCopies(Underway):
    def _learn(self, packet: Packet[Any]) -> None:
        alone = replace(packet.message, to=(self.me,))  # type: ignore[type-var]
        super()._learn(replace(packet, message=alone))


class UnderwayForgetsSent(Underway):
    """Names nothing of what it sent itself."""

    def _log(self) -> Log:
        return tuple(entry for entry in super()._log() if entry[0] != self.me)


class UnderwayNamesTheEarliest(Underway):
    """Of several messages of a channel, the first."""

    def _log(self) -> Log:
        rows = [(i, row, min(row)) for i, row in enumerate(self._rows) if row]
        return tuple((i, number, row[number]) for i, row, number in rows)


class UnderwayNamesAll(Underway):
    """Of several messages of a channel, all."""

    def _log(self) -> Log:
        return tuple((i, number, row[number]) for i, row in enumerate(self._rows) for number in sorted(row))


class UnderwayAcknowledgesAtArrival(Underway):
    def _receive(self, packet: Packet[Any]) -> list[Effect]:
        effects = super()._receive(packet)
        if packet.message is None or packet.source == self.me:
            return effects
        return [*effects, Packet(self.me, packet.source, Receipt(packet.message.number))]


class UnderwaySettlesWithOneCopy(Underway):
    """Takes one destination's acknowledgement for that of all."""

    def _acknowledge(self, process: int, number: int) -> list[Effect]:
        mine = self._rows[self.me]
        if mine.get(number, 0) >> process & 1:
            mine[number] = 1 << process
        return super()._acknowledge(process, number)


class UnderwaySettlesEachByItself(Underway):
    """Takes the acknowledgement of a message for that of those before it."""

    def _acknowledge(self, process: int, number: int) -> list[Effect]:
        mine = self._rows[self.me]
        if mine.get(number) == 1 << process:
            self._rows[self.me] = {one: dests for one, dests in mine.items() if one >= number}
        return super()._acknowledge(process, number)


class UnderwayTellsNobodyWhatSettled(Underway):
    def _owe(self, dest: int, message: Message, stamp: UnderwayStamp) -> None:
        pass


class UnderwayTellsOnlyTheCopies(Underway):
    """Whoever was told of a message by a stamp is not told that it settled."""

    def _owe(self, dest: int, message: Message, stamp: UnderwayStamp) -> None:
        super()._owe(dest, message, UnderwayStamp(()))


class UnderwayLearnsAgain(Underway):
    def _note(self, i: int, number: int, dests: int) -> None:
        dests &= ~(1 << self.me)
        if dests and i != self.me:
            self._rows[i][number] = self._rows[i].get(number, 0) | dests


class UnderwayNeverPostsAgain(Underway):
    """A message that had to wait is not looked at when something settles."""

    def _acknowledge(self, process: int, number: int) -> list[Effect]:
        kept, self._output = self._output, type(self._output)()
        effects = super()._acknowledge(process, number)
        self._output = kept
        return effects


# monitor (at p1)


class MonitorTellsOnlyTheMonitor(Monitor):
    """Messages to others do not carry the vector."""

    def _send(self, message: Message) -> list[Effect]:
        return [self._untold(effect) for effect in super()._send(message)]

    def _untold(self, effect: Effect) -> Effect:
        if not isinstance(effect, Packet) or effect.dest == self.monitor:
            return effect
        return replace(effect, stamp=replace(effect.stamp, vector=(0,) * self.n))


class MonitorWithoutMulticastTerm(Monitor):
    def _learn(self, packet: Packet[Any]) -> None:
        before = list(self._known)
        super()._learn(packet)
        if self.me != self.monitor:
            self._known = list(map(max, before, packet.stamp.vector))


class MonitorWithoutMerge(Monitor):
    def _learn(self, packet: Packet[Any]) -> None:
        before = list(self._known)
        super()._learn(packet)
        source = packet.source
        self._known = [known if q == source else before[q] for q, known in enumerate(self._known)]


class MonitorWithoutWait(Monitor):
    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        return ()


class MonitorDoesNotCountItself(Monitor):
    """The monitor does not count what it sends to itself, nor tell of it."""

    def _send(self, message: Message) -> list[Effect]:
        return [self._uncount(effect) for effect in super()._send(message)]

    def _uncount(self, effect: Effect) -> Effect:
        if not isinstance(effect, Packet) or self.me != self.monitor:
            return effect
        vector = tuple(0 if q == self.me else count for q, count in enumerate(effect.stamp.vector))
        return replace(effect, stamp=replace(effect.stamp, vector=vector))


class MonitorLearnsNothing(Monitor):
    """The monitor itself neither merges nor counts what it delivers."""

    def _learn(self, packet: Packet[Any]) -> None:
        before = list(self._known)
        super()._learn(packet)
        if self.me == self.monitor:
            self._known = before


# buffer


class BufferDoesNotHoldMulticasts(Buffer):
    def _needs_release(self, message: Message) -> bool:
        return False


class BufferDoesNotWaitForAcknowledgements(Buffer):
    def _may_post(self, message: Message) -> bool:
        return True


class BufferPipelinesToAnyone(Buffer):
    """Over channels that do not reorder, but to other destinations than those in flight."""

    def _may_post(self, message: Message) -> bool:
        return True


class BufferPipelinesOverChannelsThatReorder(Buffer):
    @property
    def needs_fifo(self) -> bool:
        return False


class BufferDeliversAnyOpen(Buffer):
    """Not only the head of the input buffer."""

    def eligible(self) -> list[Message]:
        return [message for message in self._inbox if self._open(message)]

    def deliver(self, message: Message) -> list[Effect]:
        if message not in self._inbox:
            raise NotEligible(self.view.name(self.me), message.id, "it is not here")
        self._inbox.remove(message)
        return self._note_taken(message)


class BufferReleasesAtFirstAcknowledgement(Buffer):
    def _note_acknowledged(self, source: int, number: int) -> list[Effect]:
        flight = self._flight.get(number)
        if flight is not None:
            flight.unacknowledged = 1 << source
        return super()._note_acknowledged(source, number)


class BufferAcknowledgesAtDelivery(Buffer):
    def _receive(self, packet: Packet[Any]) -> list[Effect]:
        effects = super()._receive(packet)
        return [e for e in effects if not (isinstance(e, Packet) and isinstance(e.stamp, Acknowledge))]

    def _note_taken(self, message: Message) -> list[Effect]:
        if message.sender == self.me:
            return []
        return [Packet(self.me, message.sender, Acknowledge(message.number))]


class BufferReleasesEverything(Buffer):
    """Holds messages with a single copy too: slower, not wrong."""

    def _needs_release(self, message: Message) -> bool:
        return True


# permit


class PermitWithoutFlag(Permit):
    def _has_others_pending(self, dest: int) -> bool:
        return False


class PermitFlagForgetsOtherCopies(Permit):
    _others: int

    def _transmit(self, message: Message, effects: list[Effect]) -> None:
        self._others = len(set(message.to) - {self.me})
        super()._transmit(message, effects)

    def _has_others_pending(self, dest: int) -> bool:
        return self._out - self._others > self._sequence[dest] - self._acked[dest] - 1


class PermitFlagForgetsEarlierMessages(Permit):
    _others: int

    def _transmit(self, message: Message, effects: list[Effect]) -> None:
        self._others = len(set(message.to) - {self.me})
        super()._transmit(message, effects)

    def _has_others_pending(self, dest: int) -> bool:
        return self._others > 1


class PermitFlagsEverything(Permit):
    """Flags what goes to the only one that has not acknowledged too: slower, not wrong."""

    def _has_others_pending(self, dest: int) -> bool:
        return True


class PermitForgetsEarlyPermits(Permit):
    """A permit lifts the restraints that are there, and is not remembered for those to come."""

    def _permit(self, source: int, number: int) -> list[Effect]:
        before = self._permitted[source]
        restrained = any(isinstance(item, Restraint) and item.sender == source for item in self._outbox)
        effects = super()._permit(source, number)
        if not restrained:
            self._permitted[source] = before
        return effects


class PermitWithoutRestraint(Permit):
    def _note_taken(self, message: Message) -> list[Effect]:
        self._flagged.get(message.sender, set()).discard(message.number)
        return []


class PermitRestrainsOnlyTheNext(Permit):
    """A restrained message waits, but those behind it do not."""

    def _send(self, message: Message) -> list[Effect]:
        if any(isinstance(item, Posting) for item in self._outbox) and message.to != (self.me,):
            effects: list[Effect] = self._enqueue(message) if self.me in message.to else []
            self._transmit(message, effects)
            return effects
        return super()._send(message)


class PermitAcknowledgesOutOfSequence(Permit):
    def _receive(self, packet: Packet[Any]) -> list[Effect]:
        effects = super()._receive(packet)
        if not effects and isinstance(packet.stamp, PermitStamp):
            return [Packet(self.me, packet.source, Taken(packet.stamp.sequence))]
        return effects


class PermitTakesOutOfSequence(Permit):
    def _receive(self, packet: Packet[Any]) -> list[Effect]:
        if packet.message is None:
            return super()._receive(packet)
        count = self._got[packet.source] + 1
        effects: list[Effect] = [Packet(self.me, packet.source, Taken(count))]
        self._take(replace(packet, stamp=replace(packet.stamp, sequence=count)), effects)
        return effects


class PermitDeliversAny(Permit):
    """Not only the head of the queue."""

    def eligible(self) -> list[Message]:
        return list(self._inbox)

    def deliver(self, message: Message) -> list[Effect]:
        self._inbox.remove(message)
        return self._note_taken(message)


class PermitGrantsEachByItself(Permit):
    """A permit goes out when the flagged message is acknowledged, whatever was sent before it."""

    def _grant(self) -> list[Effect]:
        pending = {number for number, dest, at, _ in self._order if self._acked[dest] < at}
        done = [entry for entry in self._order if entry[0] not in pending]
        self._order = deque(entry for entry in self._order if entry[0] in pending)
        return [Packet(self.me, dest, Grant(number)) for number, dest, _, flagged in done if flagged]


# history


def with_rules(rules: type[Histories]) -> type[History]:
    """History with these rules for H and C."""

    class Mutant(History):
        def _histories(self) -> Histories:
            return rules(self.me, self.rules)

    return Mutant


class HistoryWithoutWait(History):
    """R3"""

    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        return ()


class HistoryComparesExactly(History):
    """R5: a message counts as delivered only while it is its sender's last."""

    def _find_unmet(self, packet: Packet[Any]) -> Need | None:
        for need in self._needs(packet):
            if self._delivered[need[0]] != need[1]:
                return need
        return None


class HistoryComparesTooGenerously(History):
    """R5: a message counts as delivered as soon as any of its sender is."""

    def _find_unmet(self, packet: Packet[Any]) -> Need | None:
        for need in self._needs(packet):
            if not self._delivered[need[0]]:
                return need
        return None


class HistoryConfusesLabelsInD(History):
    """R5 with one last message for each sender, whatever its label."""

    def _lane(self, sender: int, number: int, label: str) -> Need:
        return (sender, ""), number


class ForgetsHm(Histories):
    """R4 without `add H_m`."""

    def note_delivered(
        self, sender: int, number: int, to: int, label: str, history: tuple[Entry, ...]
    ) -> None:
        super().note_delivered(sender, number, to, label, ())


class ForgetsDelivered(Histories):
    """R4 without `delivered: add m`."""

    def note_delivered(
        self, sender: int, number: int, to: int, label: str, history: tuple[Entry, ...]
    ) -> None:
        super().note_delivered(sender, number, to, label, history)
        _forget(self, (sender, number))


class ForgetsSent(Histories):
    """R4 without `sent: add m`."""

    def note_sent(self, sender: int, number: int, to: int, label: str) -> None:
        super().note_sent(sender, number, to, label)
        _forget(self, (sender, number))


def _forget(histories: Histories, key: Id) -> None:
    if key in histories.H:
        histories._remove(histories.H[key].entry)


class SendReportsToAll(Histories):
    """R6.2: C(i) grows by everyone, told or not."""

    def _reports_to(self, to: int) -> int:
        return ALL


class SentIsReportedToItsDestinations(Histories):
    """R6.2: C(m) is A_m instead of empty."""

    def note_sent(self, sender: int, number: int, to: int, label: str) -> None:
        super().note_sent(sender, number, to, label)
        self._grow(self.H[sender, number], to)


class SenderAlwaysKnows(Histories):
    """R6.2 and R6.3 as printed: the sender counts as told of its own messages to itself."""

    def _knows(self, process: int, entry: Entry) -> int:
        return 1 << process

    def _find_told(self, m: Entry, own: bool) -> int:
        return super()._find_told(m, False)


class DeliveryReportsOthersMessages(Histories):
    """R6.3, first part: C(n) grows by A_m for messages n of anyone."""

    def note_delivered(
        self, sender: int, number: int, to: int, label: str, history: tuple[Entry, ...]
    ) -> None:
        for record in list(self.H.values()):
            if self._is_told(record.entry, Entry(sender, number, to, 0, label)):
                self._grow(record, to)
        super().note_delivered(sender, number, to, label, history)

    def _is_told(self, n: Entry, m: Entry) -> bool:
        return True


class DeliveryReportsLaterMessages(DeliveryReportsOthersMessages):
    """R6.3, first part: for later messages of m's sender too."""

    def _is_told(self, n: Entry, m: Entry) -> bool:
        return (n.sender, n.label) == (m.sender, m.label)


class DeliveryReportsOtherLabels(DeliveryReportsOthersMessages):
    """R6.3, first part: for earlier messages of m's sender with another label, which it did not carry."""

    def _is_told(self, n: Entry, m: Entry) -> bool:
        return n.sender == m.sender and n.number < m.number


class HistoryIsReportedToAll(Histories):
    """R6.3: C(n) of n in H_m grows by everyone."""

    def _find_told(self, m: Entry, own: bool) -> int:
        return ALL


class ReportsToOthers(Histories):
    """R6.3: C(n) of n in H_m grows by A_i of messages i that did not carry n: `_others` says which."""

    def _report(self, history: tuple[Entry, ...], m: Entry) -> None:
        super()._report(history, m)
        for known in history:
            record = self.H.get((known.sender, known.number))
            if record is not None:
                union = 0
                for other in self.H.values():
                    if other is not record and self._others(known, other.entry):
                        union |= other.entry.to
                self._grow(record, union)

    def _others(self, known: Entry, other: Entry) -> bool:
        raise NotImplementedError


class EarlierCountAsLater(ReportsToOthers):
    """R6.3: every other message of n's sender in H counts, not only the later ones."""

    def _others(self, known: Entry, other: Entry) -> bool:
        return (other.sender, other.label) == (known.sender, known.label)


class LaterOfAnyLabel(ReportsToOthers):
    """R6.3: later messages with another label, which did not carry the earlier one, count too."""

    def _others(self, known: Entry, other: Entry) -> bool:
        return other.sender == known.sender and other.number > known.number


class LaterOfAnySender(ReportsToOthers):
    """R6.3: messages of other senders count too."""

    def _others(self, known: Entry, other: Entry) -> bool:
        return True


class DeliveredIsReportedToItsDestinations(Histories):
    """R6.3: C(m) is A_m and the sender instead of the sender and me."""

    def _known_to(self, entry: Entry) -> int:
        return super()._known_to(entry) | entry.to


class LeavesOutWhatAnyDestinationKnows(Histories):
    """R7: leave out of H_m what has been reported to one of A_m."""

    def _find_unreported(self, to: int) -> list[Record]:
        return [record for record in super()._find_unreported(to) if not to & self.copies(record)]


class LeavesOutWhatIsForOthers(Histories):
    """R7: leave out of H_m what is not addressed to A_m."""

    def _find_unreported(self, to: int) -> list[Record]:
        return [record for record in super()._find_unreported(to) if to & record.entry.to]


class RemovesWhatAnyDestinationKnows(Histories):
    """R8: remove from H what has been reported to one of its destinations."""

    def _grow(self, record: Record, copies: int) -> None:
        super()._grow(record, copies)
        if record.entry.to & record.copies:
            _forget(self, (record.entry.sender, record.entry.number))


class RemovesWhatIsDeliveredHere(Histories):
    """R8: remove from H what was addressed here, since it is delivered here."""

    def _add(self, entry: Entry, copies: int, taken: int = 0) -> None:
        if not entry.to >> self.me & 1:
            super()._add(entry, copies, taken)


class StampsCopiesAfterTheSend(Histories):
    """R6.1 with A_m already in C_m, which the receiver adds anyway."""

    def stamp(self, to: int) -> tuple[Entry, ...]:
        return tuple(replace(entry, copies=entry.copies | to) for entry in super().stamp(to))


class LearnsNothingFromEarlier(Histories):
    """R6.3 without its first part: only less is left out."""

    def _report_earlier(self, m: Entry) -> None:
        pass


class LearnsNothingFromStamps(Histories):
    """R6.3 without `C_m(n), A_m, the sender` for n in H_m: only less is left out."""

    def _find_told(self, m: Entry, own: bool) -> int:
        return 0


class LearnsNothingFromDelivering(Histories):
    """R6.3 with C(m) empty, as after a send: only less is left out."""

    def _known_to(self, entry: Entry) -> int:
        return 0


# optimal


class OptimalWithoutWait(Optimal):
    def _needs(self, packet: Packet[Any]) -> Iterable[Need]:
        return ()


Listing = list[tuple[LogRow, LogRow]]


class OptimalDropsTheReceiver(Optimal):
    """A copy to d drops d too."""

    def _stamp(self, rest: frozenset[LogRow], listing: Listing, to: int, dest: int) -> frozenset[LogRow]:
        return super()._stamp(rest, listing, to, 0)


class OptimalKeepsOtherReceivers(Optimal):
    """Saves nothing: a copy to d keeps the other members of D."""

    def _stamp(self, rest: frozenset[LogRow], listing: Listing, to: int, dest: int) -> frozenset[LogRow]:
        return frozenset(self._rows)


class OptimalDropsEverythingAfterwards(Optimal):
    """After a send, the log drops all destinations, not only D."""

    def _send(self, message: Message) -> list[Effect]:
        effects = super()._send(message)
        self._log = {key: dests if key == message.id else 0 for key, dests in self._log.items()}
        return effects


class OptimalDropsNothingAfterwards(Optimal):
    """Saves nothing: after a send, the log keeps D."""

    def _drop(self, row: LogRow, to: int) -> LogRow:
        return row


class OptimalForgetsSent(Optimal):
    """A send adds no entry."""

    def _send(self, message: Message) -> list[Effect]:
        effects = super()._send(message)
        self._log = {key: dests for key, dests in self._log.items() if key != message.id}
        return effects


class OptimalForgetsDelivered(Optimal):
    """A delivery adds no entry for the message itself."""

    def _learn(self, packet: Packet[Any]) -> None:
        had = packet.message is not None and packet.message.id in self._log
        super()._learn(packet)
        if packet.message is not None and packet.source != self.me and not had:
            self._log = {key: dests for key, dests in self._log.items() if key != packet.message.id}


class OptimalForgetsStamps(Optimal):
    """A delivery does not merge the stamp."""

    def _learn(self, packet: Packet[Any]) -> None:
        super()._learn(replace(packet, stamp=LogStamp(frozenset())))


class OptimalForgetsWhatTheStampLacks(Optimal):
    """An own entry absent from the stamp goes, newer one of its sender there or not."""

    def _learn(self, packet: Packet[Any]) -> None:
        if packet.source != self.me:
            told = {(row[0], clock) for row in packet.stamp.log for clock, _ in row[2]}
            told.add((packet.source, packet.message.number))  # type: ignore[union-attr]
            self._log = {key: dests for key, dests in self._log.items() if key in told}
        super()._learn(packet)


def _choose(row: LogRow, entries: dict[int, int]) -> LogRow | None:
    """The row of these entries, if there are any."""
    return next(make_rows((row[0], clock, entries[clock]) for clock in sorted(entries)), None)


class OptimalForgetsWhatTheLogLacks(Optimal):
    """An entry of the stamp absent from the own log goes, if the log has any of its sender."""

    def _merge(self, mine: LogRow, theirs: LogRow) -> LogRow:
        known = _choose(theirs, {clock: dests for clock, dests in theirs[2] if clock in dict(mine[2])})
        return mine if known is None else super()._merge(mine, known)


class OptimalForgetsOnOlderEvidence(Optimal):
    """An own entry absent from the stamp goes if the stamp has any entry of its sender, older or newer."""

    def _merge(self, mine: LogRow, theirs: LogRow) -> LogRow:
        known = _choose(mine, {clock: dests for clock, dests in mine[2] if clock in dict(theirs[2])})
        return theirs if known is None else super()._merge(known, theirs)


class OptimalKeepsOwnDestinations(Optimal):
    """Saves nothing: entries on both sides keep the own destinations."""

    def _merge(self, mine: LogRow, theirs: LogRow) -> LogRow:
        merged = {clock: dict(mine[2]).get(clock, dests) for clock, dests in super()._merge(mine, theirs)[2]}
        return _choose(mine, merged) or mine


class OptimalKeepsTheirDestinations(Optimal):
    """Saves nothing: entries on both sides keep the stamp's destinations."""

    def _merge(self, mine: LogRow, theirs: LogRow) -> LogRow:
        merged = {
            clock: dict(theirs[2]).get(clock, dests) for clock, dests in super()._merge(mine, theirs)[2]
        }
        return _choose(mine, merged) or mine


class OptimalKeepsAllDestinations(Optimal):
    """Saves nothing: entries on both sides unite their destinations."""

    def _merge(self, mine: LogRow, theirs: LogRow) -> LogRow:
        ours, others, merged = dict(mine[2]), dict(theirs[2]), super()._merge(mine, theirs)[2]
        return (
            _choose(mine, {clock: ours.get(clock, 0) | others.get(clock, 0) for clock, _ in merged}) or mine
        )


class OptimalNeverForgets(Optimal):
    """Saves nothing: what either side has is kept."""

    def _merge(self, mine: LogRow, theirs: LogRow) -> LogRow:
        ours, others = dict(mine[2]), dict(theirs[2])
        merged = {clock: ours.get(clock, ALL) & others.get(clock, ALL) for clock in (*ours, *others)}
        return _choose(mine, merged) or mine


class OptimalKeepsNoEmptyEntry(Optimal):
    """The newest entry of a sender goes too when it has no destination left."""

    def _stamp(self, rest: frozenset[LogRow], listing: Listing, to: int, dest: int) -> frozenset[LogRow]:
        rows = super()._stamp(rest, listing, to, dest)
        listed = [_choose(row, {clock: dests for clock, dests in row[2] if dests}) for row in rows]
        return frozenset(row for row in listed if row is not None)

    def _learn(self, packet: Packet[Any]) -> None:
        super()._learn(packet)
        self._log = {key: dests for key, dests in self._log.items() if dests}


class OptimalKeepsAllEmptyEntries(Optimal):
    """Saves nothing: every log that arrives stays, with or without destinations left."""

    def _stamp(self, rest: frozenset[LogRow], listing: Listing, to: int, dest: int) -> frozenset[LogRow]:
        kept = {key: dests & ~to | dests & dest for key, dests in self._log.items()}
        return frozenset(make_rows((*key, dests) for key, dests in sorted(kept.items())))
