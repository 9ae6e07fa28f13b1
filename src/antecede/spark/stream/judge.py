"""The events of one run, judged as they come: what `antecede.oracle` finds in a whole run, found while it goes on.

A pure state machine: rows in, findings out, and `snapshot` is all that has to be kept. Rows may come in any order and
more than once. Each process's events are taken in the order of their indices, and a delivery after the send of its
message: until then, what has come waits here.

The rules, with C_q the clock of process q over sends (as in `antecede.verification.kernel`; `judge_state` has them):
  send of m by i       C_i[i] += 1, the ordinal of m; m takes C_i along
  delivery of m at q   the first one there: *overtaken* if C_q[i] >= the ordinal of m (where q is i itself: what others
                       have told q of its own sends). Then C_q takes in what m brought
  witness              when a delivery raises C_q[i], the messages of i that are addressed to q, are not there, and have
                       ordinals that C_q[i] passes, are overtaken by that very message: it is noted for when they come.
                       The same for the first later message of the same sender (FIFO breaks)
  repeated delivery    a duplicate, and nothing else

So a finding comes as soon as the delivery and all that happened before it are here. What never comes:
  unsent        a delivery whose send is not here holds its process up. Whether the send is late or was never made,
                nobody can know; after `patience_ms`, or when the run is said to be over, it is told as unsent and
                passed over
  undelivered   a message that is addressed to q and not delivered there for `patience_ms`, while nothing of q waits
                here; or when the run is over
  retracted     the send, or the delivery, came after all. What was said of it is taken back; what followed from the
                missing edge in between stays
  gap           the next event of a process has not come for `patience_ms`, though later ones have. It is told once,
                with its index, and waited for
  impossible    a second send of a number, a send by another than its sender, or deliveries that wait for each other in
                a circle: these events are passed over

State is bounded by what waits and what is in flight. Of messages that all destinations have, the last `messages` are
kept, to tell a repeated delivery from one that was not addressed; an older one is told as a duplicate, if its sender
numbers its messages 1, 2, 3 ..., and else counts as never sent. A delivery that was not addressed has no witness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct

from antecede.spark.stream.judge_state import (
    VERSION,
    Clocks,
    Flight,
    Id,
    Process,
    State,
    Step,
    decode_state,
    encode_state,
)

__all__ = ["Arrived", "Found", "Judge"]

MESSAGES: Final = 1024


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
        self._clocks = Clocks()
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
            self._clocks.add()
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
        clock = self._clocks.sent(i, process.sends)
        flight = Flight(i, step.number, process.sends, clock, set(step.to or ()), set(), now_ms)
        for q in self.orphans.pop(id, ()):
            self._find("retracted", q, id)
            flight.left.discard(q)
            flight.given.add(q)
        self.flights[id] = flight
        self._clocks.watch(flight)
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
            self._clocks.unwatch(q, flight)
        elif q in flight.given_up:
            flight.given_up.discard(q)
            self._find("retracted", q, id, index=index)
        else:
            self._find("unaddressed", q, id, index=index)
        flight.given.add(q)
        process = self.processes[q]
        if self._clocks.overtaken(q, flight, process.seen):
            self._find("violation", q, id, flight.overtaken.pop(q, None), index)
        if self._clocks.broken(q, flight):
            self._find("fifo_break", q, id, flight.broken.pop(q, None), index)
        self._clocks.learn(q, flight, process)
        self._settle(flight)

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
            self._clocks.unwatch(q, flight)
        flight.given_up |= there
        flight.left -= there
        self._settle(flight)

    def _find(self, kind: str, q: int, id: Id, by: Id | None = None, index: int | None = None) -> None:
        at, sender = self.processes[q].name, self.processes[id[0]].name
        who, number = (None, None) if by is None else (self.processes[by[0]].name, by[1])
        self._found.append(Found(kind, at, sender, id[1], who, number, index))

    # State

    def snapshot(self) -> bytes:
        return encode_state(
            State(
                VERSION,
                self.deliveries,
                self.processes,
                *self._clocks.dump(),
                list(self.flights.values()),
                list(self.remembered.values()),
                list(self.orphans.items()),
            )
        )

    @classmethod
    def restore(cls, snapshot: bytes, messages: int = MESSAGES) -> Judge:
        """The inverse. A snapshot of another version is refused."""
        state = decode_state(snapshot)
        judge = cls(messages)
        for process in state.processes:
            judge._id(process.name)
        judge._restore(state)
        return judge

    def _restore(self, state: State) -> None:
        self.deliveries, self.processes = state.deliveries, state.processes
        self._clocks.load(state.clocks, state.highest)
        self.flights = {flight.id: flight for flight in state.flights}
        self.remembered = {flight.id: flight for flight in state.remembered}
        self.orphans = dict(state.orphans)
        for flight in state.flights:
            self._clocks.watch(flight)
        for q, process in enumerate(state.processes):
            for step in process.held.values():
                if step.to is not None:
                    self._coming.add((step.sender, step.number))
            first = process.held.get(process.next)
            if first is not None:
                self._waiting.setdefault((first.sender, first.number), []).append(q)


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
