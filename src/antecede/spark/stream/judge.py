"""The events of one run, judged as they come: what `antecede.oracle` finds in a whole run, found while it goes on.

A pure state machine: rows in, findings out, and `snapshot` is all that has to be kept. Rows may come in any order and
more than once. Each process's events are taken in the order of their indices, and a delivery after the send of its
message: until then, what has come waits here.

The rules, with C_q the clock of process q over sends (as in `antecede.verification.kernel`):
  send of m by i       C_i[i] += 1, the ordinal of m; m takes C_i along
  delivery of m at q   the first one there: *overtaken* if C_q[i] >= the ordinal of m (where q is i itself: what others
                       have told q of its own sends). Then C_q takes in what m brought
  witness              when a delivery raises C_q[i], the messages of i that are addressed to q, are not there, and have
                       ordinals that C_q[i] passes, are overtaken by that very message: it is noted for when they come.
                       The same for the first later message of the same sender (FIFO breaks)
  repeated delivery    a duplicate, and nothing else

So a finding comes as soon as the delivery and all that happened before it are here. docs/live.md says what is told of
what does not come for `patience_ms`: deliveries without a send, and what is impossible, are told and passed over, and a
gap is waited for.

State is bounded by what waits and what is in flight. Of messages that all destinations have, the last `messages` are
kept, to tell a repeated delivery from one that was not addressed; an older one is told as a duplicate, if its sender
numbers its messages 1, 2, 3 ..., and else counts as never sent. A delivery that was not addressed has no witness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct

from antecede.errors import BadSnapshot

__all__ = ["Arrived", "Found", "Judge", "State", "decode_state"]

VERSION: Final = 1
MESSAGES: Final = 1024

Id = tuple[int, int]
"""Sender and number."""


class Step(Struct, array_like=True):
    """An event that waits for its turn. Sender -1: nothing to be judged, a receive or a control packet."""

    sender: int
    number: int
    to: list[int] | None
    """On a send."""


class Flight(Struct, array_like=True):
    """A message that was sent."""

    sender: int
    number: int
    ordinal: int
    clock: bytes
    left: set[int]
    given: set[int]
    since_ms: int
    overtaken: dict[int, Id] = {}
    """Process that it is addressed to -> the first message that overtook it there."""
    broken: dict[int, Id] = {}
    """The same, of the same sender."""
    given_up: set[int] = set()

    @property
    def id(self) -> Id:
        return self.sender, self.number


class Process(Struct, array_like=True):
    """Where a process is."""

    name: str
    next: int = 0
    sends: int = 0
    seen: int = 0
    """How many of its own sends others have told it of."""
    steady: bool = True
    """Whether it has numbered its messages 1, 2, 3 ..."""
    held: dict[int, Step] = {}
    """By index."""
    since_ms: int | None = None
    """Since when it waits for an event or for a send."""
    told: bool = False
    """Whether a gap was told."""


class Arrived(Struct, frozen=True, gc=False):
    """A row of a trace, as it comes."""

    process: str
    index: int
    kind: str
    sender: str
    number: int
    to: Sequence[str] | None
    control: bool


class Found(Struct, frozen=True):
    """A finding: the columns of `verify`, without the run and the chain."""

    kind: str
    process: str
    sender: str | None
    number: int | None
    by_sender: str | None = None
    by_number: int | None = None
    index: int | None = None
    """Of the event that it is about, in the order of `process`. An undelivered message has none."""


class Judge:
    """Judges one run. `now_ms` is any clock that does not go back; it decides about patience and nothing else.

    The triangle: x goes from p1 to p3; y from p1 to p2, which then sends z to p3, where z arrives before x.

    >>> judge = Judge()
    >>> triangle = [
    ...     ("p3", 1, "deliver", "p1", 1), ("p3", 0, "deliver", "p2", 1),
    ...     ("p2", 0, "deliver", "p1", 2), ("p2", 1, "send", "p2", 1, ["p3"]),
    ...     ("p1", 0, "send", "p1", 1, ["p3"]), ("p1", 1, "send", "p1", 2, ["p2"]),
    ... ]
    >>> rows = [Arrived(*row[:5], row[5] if len(row) > 5 else None, False) for row in triangle]
    >>> judge.take(rows[:4])
    []
    >>> Judge.restore(judge.snapshot()).take(rows[4:])
    [Found(kind='violation', process='p3', sender='p1', number=1, by_sender='p2', by_number=1, index=1)]
    """

    def __init__(self, messages: int = MESSAGES) -> None:
        self.messages = messages
        self.deliveries = 0
        self.processes: list[Process] = []
        self.flights: dict[Id, Flight] = {}
        self.remembered: dict[Id, Flight] = {}
        self.orphans: dict[Id, set[int]] = {}
        """Deliveries that were told as unsent."""
        self._ids: dict[str, int] = {}
        self._causal, self._fifo = self._orders = Order("overtaken"), Order("broken")
        self._coming: set[Id] = set()
        """Messages whose send is here and waits."""
        self._waiting: dict[Id, list[int]] = {}
        """Message -> the processes that wait for its send."""
        self._found: list[Found] = []

    # Rows

    def take(self, rows: Iterable[Arrived], now_ms: int = 0) -> list[Found]:
        """Take rows, and give what is found by them."""
        touched: dict[int, None] = {}
        for row in rows:
            q = self._id(row.process)
            process = self.processes[q]
            if row.index >= process.next and row.index not in process.held:
                process.held[row.index] = self._step(row)
                touched[q] = None
        self._run(list(touched), now_ms)
        return self._take_found()

    def expire(self, now_ms: int, patience_ms: int) -> list[Found]:
        """Give up what has waited for so long."""
        before = now_ms - patience_ms
        self._give_up(lambda process: process.since_ms is not None and process.since_ms <= before, now_ms)
        for process in self.processes:
            late = process.since_ms is not None and process.since_ms <= before
            if late and process.held and process.next not in process.held and not process.told:
                process.told = True
                self._found.append(Found("gap", process.name, None, None, index=process.next))
        busy = {q for q, process in enumerate(self.processes) if process.held}
        for flight in [flight for flight in self.flights.values() if flight.since_ms <= before]:
            self._abandon(flight, flight.left - busy)
        return self._take_found()

    def finish(self) -> list[Found]:
        """The run is over, and all of its events have come: whatever waits is told."""
        self._give_up(lambda process: True, 0)
        for flight in list(self.flights.values()):
            self._abandon(flight, set(flight.left))
        return self._take_found()

    @property
    def idle(self) -> bool:
        """Whether nothing waits or is in flight."""
        return not self.flights and not any(process.held for process in self.processes)

    def _step(self, row: Arrived) -> Step:
        if row.control or row.kind == "receive":
            return Step(-1, 0, None)
        sender = self._id(row.sender)
        if row.kind == "send":
            self._coming.add((sender, row.number))
            return Step(sender, row.number, [self._id(name) for name in (() if row.to is None else row.to)])
        return Step(sender, row.number, None)

    def _id(self, name: str) -> int:
        found = self._ids.get(name)
        if found is None:
            found = self._ids[name] = len(self.processes)
            self.processes.append(Process(name))
            for order in self._orders:
                order.add()
        return found

    def _take_found(self) -> list[Found]:
        found, self._found = self._found, []
        return found

    # Turns

    def _run(self, ready: list[int], now_ms: int) -> None:
        """Let processes go on as far as they can, and those that waited for them."""
        while ready:
            q = ready.pop()
            process = self.processes[q]
            before = process.next
            while (step := process.held.get(process.next)) is not None:
                if step.sender >= 0 and step.to is None and not self._known(q, step):
                    queue = self._waiting.setdefault((step.sender, step.number), [])
                    if q not in queue:
                        queue.append(q)
                    break
                del process.held[process.next]
                process.next += 1
                if step.sender >= 0:
                    if step.to is None:
                        self._deliver(q, step)
                    else:
                        ready += self._send(q, step, now_ms)
            if not process.held:
                process.since_ms = None
            elif process.since_ms is None or process.next > before:
                process.since_ms, process.told = now_ms, False

    def _known(self, q: int, step: Step) -> bool:
        """Whether the delivery can be judged: its message was sent, or given up here before."""
        id = step.sender, step.number
        return (
            id in self.flights
            or id in self.remembered
            or q in self.orphans.get(id, ())
            or (self.processes[step.sender].steady and 0 < step.number <= self.processes[step.sender].sends)
        )

    def _give_up(self, which: Callable[[Process], bool], now_ms: int) -> None:
        """Pass over deliveries whose sends are not here, at these processes, and go on until there is none."""
        while True:
            stuck = {
                q: step
                for q, process in enumerate(self.processes)
                if (step := process.held.get(process.next)) is not None and which(process)
            }
            lost = [q for q, step in stuck.items() if (step.sender, step.number) not in self._coming]
            for q in lost:
                id = stuck[q].sender, stuck[q].number
                self.deliveries += 1
                self.orphans.setdefault(id, set()).add(q)
                self._find("unsent", q, id, index=self.processes[q].next)
            passed = lost or _circle({q: step.sender for q, step in stuck.items()})
            if not passed:
                return
            for q in passed:
                process, id = self.processes[q], (stuck[q].sender, stuck[q].number)
                if not lost:
                    self._find("impossible", q, id, index=process.next)
                del process.held[process.next]
                process.next += 1
                self._waiting[id].remove(q)
            self._run(passed, now_ms)

    # Events

    def _send(self, i: int, step: Step, now_ms: int) -> list[int]:
        """One more send. Returns who waited for it."""
        id = step.sender, step.number
        self._coming.discard(id)
        process = self.processes[i]
        if step.sender != i or id in self.flights or id in self.remembered:
            self._find("impossible", i, id, index=process.next - 1)
            return []
        process.sends += 1
        process.steady = process.steady and step.number == process.sends
        self._causal.reached[i, i] = process.sends
        clock = self._causal.reached[i, : len(self.processes)].tobytes()
        flight = Flight(i, step.number, process.sends, clock, set(step.to or ()), set(), now_ms)
        for q in self.orphans.pop(id, ()):
            self._find("retracted", q, id)
            flight.left.discard(q)
            flight.given.add(q)
        self.flights[id] = flight
        for order in self._orders:
            order.watch(flight)
        self._settle(flight)
        return self._waiting.pop(id, [])

    def _deliver(self, q: int, step: Step) -> None:
        id, index = (step.sender, step.number), self.processes[q].next - 1
        self.deliveries += 1
        flight = self.flights.get(id) or self.remembered.get(id)
        if flight is None or q in flight.given:
            self._find("duplicate", q, id, index=index)
            return
        if q in flight.left:
            flight.left.discard(q)
            for order in self._orders:
                order.unwatch(q, flight)
        elif q in flight.given_up:
            flight.given_up.discard(q)
            self._find("retracted", q, id, index=index)
        else:
            self._find("unaddressed", q, id, index=index)
        flight.given.add(q)
        i, reached = flight.sender, self._causal.reached[q]
        if (self.processes[q].seen if q == i else reached[i]) >= flight.ordinal:
            self._find("violation", q, id, flight.overtaken.pop(q, None), index)
        if self._fifo.reached[q, i] > flight.ordinal:
            self._find("fifo_break", q, id, flight.broken.pop(q, None), index)
        self._learn(q, flight)
        self._settle(flight)

    def _learn(self, q: int, flight: Flight) -> None:
        """The process learns what the message brought; messages that are not there yet are overtaken by it."""
        process, i, brought = self.processes[q], flight.sender, np.frombuffer(flight.clock, np.int64)
        mine = self._causal.reached[q]
        np.maximum(mine[: len(brought)], brought, out=mine[: len(brought)])
        if q < len(brought):
            process.seen = max(process.seen, int(brought[q]))
        # Only senders that have something under way to q.
        for sender in list(self._causal.under_way[q]):
            self._causal.overtake(q, sender, process.seen if sender == q else int(mine[sender]), flight.id)
        self._fifo.overtake(q, i, flight.ordinal - 1, flight.id)
        if self._fifo.reached[q, i] < flight.ordinal:
            self._fifo.reached[q, i] = flight.ordinal

    def _settle(self, flight: Flight) -> None:
        """A message that all have is remembered for a while, and forgotten."""
        if flight.left or self.flights.pop(flight.id, None) is None:
            return
        self.remembered[flight.id] = flight
        while len(self.remembered) > self.messages:
            del self.remembered[next(iter(self.remembered))]
        while len(self.orphans) > self.messages:
            del self.orphans[next(iter(self.orphans))]

    def _abandon(self, flight: Flight, there: set[int]) -> None:
        for q in sorted(there):
            self._find("undelivered", q, flight.id)
            for order in self._orders:
                order.unwatch(q, flight)
        flight.given_up |= there
        flight.left -= there
        self._settle(flight)

    def _find(self, kind: str, q: int, id: Id, by: Id | None = None, index: int | None = None) -> None:
        at, sender = self.processes[q].name, self.processes[id[0]].name
        who, number = (None, None) if by is None else (self.processes[by[0]].name, by[1])
        self._found.append(Found(kind, at, sender, id[1], who, number, index))

    # State

    def snapshot(self) -> bytes:
        clocks, highest = self._causal.dump(), self._fifo.dump()
        flights, remembered = list(self.flights.values()), list(self.remembered.values())
        orphans = list(self.orphans.items())
        state = State(VERSION, self.deliveries, self.processes, clocks, highest, flights, remembered, orphans)
        return msgspec.msgpack.encode(state)

    @classmethod
    def restore(cls, snapshot: bytes, messages: int = MESSAGES) -> Judge:
        """The inverse. A snapshot of another version is refused."""
        state = decode_state(snapshot)
        judge = cls(messages)
        for process in state.processes:
            judge._id(process.name)
        judge.deliveries, judge.processes = state.deliveries, state.processes
        judge._causal.load(state.clocks)
        judge._fifo.load(state.highest)
        judge.flights = {flight.id: flight for flight in state.flights}
        judge.remembered = {flight.id: flight for flight in state.remembered}
        judge.orphans = dict(state.orphans)
        for flight in state.flights:
            for order in judge._orders:
                order.watch(flight)
        for q, process in enumerate(state.processes):
            judge._coming |= {(one.sender, one.number) for one in process.held.values() if one.to is not None}
            first = process.held.get(process.next)
            if first is not None:
                judge._waiting.setdefault((first.sender, first.number), []).append(q)
        return judge


def _circle(waits: dict[int, int]) -> list[int]:
    """Processes that wait for each other.

    >>> _circle({0: 1, 1: 2, 2: 1, 3: 9}), _circle({0: 1, 1: 2})
    ([1, 2], [])
    """
    for start in waits:
        path: list[int] = []
        at = start
        while at in waits and at not in path:
            path.append(at)
            at = waits[at]
        if at in path:
            return path[path.index(at) :]
    return []


class Order:
    """An order that deliveries keep or break: what each process has reached of the sends of each."""

    def __init__(self, broken: str) -> None:
        self._broken = broken
        """Where a message notes what overtook it."""
        self.reached = np.zeros((0, 0), np.int64)
        """[q, i]: the ordinal of a send of i."""
        self.under_way: list[dict[int, dict[int, Flight]]] = []
        """Process -> sender -> ordinal -> a message to the process that is not there, and not overtaken; in order."""

    def add(self) -> None:
        """One more process."""
        self.under_way.append({})
        size, before = len(self.under_way), self.reached
        if size > len(before):
            self.reached = np.zeros((2 * size + 2, 2 * size + 2), np.int64)
            self.reached[: len(before), : len(before)] = before

    def watch(self, flight: Flight) -> None:
        """Look out for what overtakes the message, at each of its destinations."""
        broken: dict[int, Id] = getattr(flight, self._broken)
        for q in flight.left:
            if q not in broken:
                self.under_way[q].setdefault(flight.sender, {})[flight.ordinal] = flight

    def unwatch(self, q: int, flight: Flight) -> None:
        if q not in getattr(flight, self._broken):
            self._drop(q, flight.sender, flight.ordinal)

    def overtake(self, q: int, sender: int, ordinal: int, by: Id) -> None:
        """Messages of a sender up to this ordinal that are not at a process are overtaken there."""
        lane = self.under_way[q].get(sender)
        while lane and (one := next(iter(lane))) <= ordinal:
            getattr(self._drop(q, sender, one), self._broken)[q] = by

    def _drop(self, q: int, sender: int, ordinal: int) -> Flight:
        lanes = self.under_way[q]
        flight = lanes[sender].pop(ordinal)
        if not lanes[sender]:
            del lanes[sender]
        return flight

    def dump(self) -> bytes:
        n = len(self.under_way)
        return self.reached[:n, :n].tobytes()

    def load(self, reached: bytes) -> None:
        """What was dumped, of as many processes."""
        n = len(self.under_way)
        self.reached[:n, :n] = np.frombuffer(reached, np.int64).reshape(n, n)


class State(Struct, array_like=True):
    """All of it. `clocks` and `highest` are n x n numbers."""

    version: int
    deliveries: int
    processes: list[Process]
    clocks: bytes
    highest: bytes
    flights: list[Flight]
    remembered: list[Flight]
    orphans: list[tuple[Id, set[int]]]


def decode_state(snapshot: bytes) -> State:
    """The inverse. A snapshot of another version is refused."""
    try:
        fields = msgspec.msgpack.decode(snapshot)
        if fields[0] != VERSION:
            raise BadSnapshot.version("live verification", fields[0], VERSION)
        return msgspec.convert(fields, State)
    except (msgspec.MsgspecError, LookupError, TypeError) as error:
        raise BadSnapshot(f"the checkpoint does not have the state of live verification: {error}") from None
