"""Happened-before and causal order by their definitions: slow, and obviously right.

Happened-before (Lamport 1978) is the smallest relation on a run's events such that
1. of two events of one process, the earlier happened before the later;
2. the send of a message happened before each of its deliveries;
3. if a happened before b, and b before c, then a happened before c.
Only sends and deliveries of the application's messages are events here: receives and control packets are no part of
it. Message m *causally precedes* m' when send(m) happened before send(m'). A run is causally ordered when no process
delivers a message after one that it causally precedes (Raynal, Schiper & Toueg 1991).

What is found, and how it is counted. "First" is the first delivery of a message at a process: repeated ones are
duplicates, and nothing else.
  violations   m was delivered at q first after m', and m causally precedes m': one for each (m, q), with one witness
               m', the first that overtook, and a chain of messages that leads from m to m'
  skipped      the same, but m was addressed to q and has not been delivered there: the order is broken as soon as m' is
               delivered, whatever follows; in a complete run m is undelivered as well
  fifo_breaks  violations where m and m' have the same sender (found apart: m' may not be the first that overtook m)
  duplicates   one for each repeated delivery
  unsent       delivered at q, and sent nowhere
  unaddressed  delivered at q, which is not among its destinations; such a delivery still counts for the order
  undelivered  addressed to q and not delivered there: only if the run is said to be complete

A run of N events costs O(N²) bits and O(N³) steps at worst. This file imports no protocol and reads no stamp: it shares
nothing with what it checks. Events may be listed in any order that keeps each process's own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Literal

from msgspec import Struct

from antecede.errors import BadRun
from antecede.model import Event, Id, View

__all__ = ["check", "Verdict", "Violation", "Copy", "happened_before", "Order"]


class Order(Struct, frozen=True):
    """Happened-before over the positions of a run's events; made by `happened_before`."""

    events: tuple[Event, ...]
    sends: Mapping[Id, int]
    """Message -> the position of its send."""
    pasts: tuple[int, ...]
    """Bit a of pasts[b] is set when event a happened before event b."""
    known: Mapping[Id, frozenset[Id]]
    """Message -> what its sender had sent or delivered when it sent it."""

    def before(self, a: int, b: int) -> bool:
        """Whether event a happened before event b. Receives and control are before and after nothing."""
        return bool(self.pasts[b] >> a & 1)

    def precedes(self, m: Id, other: Id) -> bool:
        """Whether message m causally precedes the other. A message that was never sent precedes nothing."""
        return m in self.sends and other in self.sends and self.before(self.sends[m], self.sends[other])

    def past(self, message: Id) -> frozenset[Id]:
        """The messages that causally precede this one."""
        return frozenset(m for m in self.sends if self.precedes(m, message))

    def chain(self, first: Id, last: Id) -> tuple[Id, ...]:
        """A shortest chain of messages from `first` to `last`, which it causally precedes.

        Of two neighbours in it, the second was sent by a process that had sent or delivered the first.
        """
        assert self.precedes(first, last)
        chains: list[tuple[Id, ...]] = [(first,)]
        left = {*self.past(last), last} - {first}
        for chain in chains:
            if chain[-1] == last:
                return chain
            nexts = sorted(message for message in left if chain[-1] in self.known[message])
            chains += [(*chain, message) for message in nexts]
            left.difference_update(nexts)
        raise AssertionError(f"{first} precedes {last}, but no chain leads there")


class Violation(Struct, frozen=True):
    """At one process, one message overtook another."""

    overtaken: Id
    by: Id
    at: int
    chain: tuple[Id, ...]
    """From `overtaken` to `by`: each one's sender had sent or delivered the one before it."""


class Copy(Struct, frozen=True, order=True):
    """One message at one process."""

    message: Id
    at: int


class Verdict(Struct, frozen=True):
    """What was found in a run, each kind in the order of processes, then of events."""

    deliveries: int = 0
    violations: tuple[Violation, ...] = ()
    skipped: tuple[Violation, ...] = ()
    fifo_breaks: tuple[Violation, ...] = ()
    duplicates: tuple[Copy, ...] = ()
    unsent: tuple[Copy, ...] = ()
    unaddressed: tuple[Copy, ...] = ()
    undelivered: tuple[Copy, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing at all was found."""
        return self.keeps("causal")

    def keeps(self, order: Literal["none", "fifo", "causal"]) -> bool:
        """Whether the run keeps what a protocol of this order promises.

        Each order asks for everything to be sent, addressed, delivered once and (in a complete run) delivered.
        """
        broken: dict[str, tuple[Violation, ...]] = {
            "none": (),
            "fifo": self.fifo_breaks,
            "causal": self.violations + self.skipped,
        }
        return not (broken[order] or self.duplicates or self.unsent or self.unaddressed or self.undelivered)

    @property
    def marks(self) -> frozenset[tuple[Id, int]]:
        """The overtaken deliveries, as (message, process)."""
        return frozenset((violation.overtaken, violation.at) for violation in self.violations)

    def explain(self, view: View | None = None, names: Mapping[Id, str] | None = None) -> str:
        """One line for each finding, or one that says that there is none."""
        lines = list(_lines(self, view or View(()), names or {}))
        deliveries = "1 delivery" if self.deliveries == 1 else f"{self.deliveries} deliveries"
        return "\n".join(lines) or f"{deliveries}, nothing wrong"

    def __str__(self) -> str:
        return self.explain()


def happened_before(events: Iterable[Event]) -> Order:
    """Compute happened-before by its definition. Raises `BadRun` if these events cannot be a run.

    >>> x_y_at_p2 = [Event(0, "send", 0, 1, (1,)), Event(1, "deliver", 0, 1), Event(1, "send", 1, 1, (0,))]
    >>> order = happened_before(x_y_at_p2)
    >>> order.before(0, 2), order.before(2, 0), order.past((1, 1))
    (True, False, frozenset({(0, 1)}))
    """
    events = tuple(events)
    sends = _sends(events)
    direct = _direct(events, sends)
    pasts = [0] * len(events)
    try:
        for b in TopologicalSorter(direct).static_order():
            for a in direct[b]:
                pasts[b] |= pasts[a] | 1 << a
    except CycleError as error:
        cycle = [f"events[{position}]" for position in error.args[1]]
        raise BadRun(
            "happened-before", f"has a cycle, which no run can have: {' before '.join(cycle)}"
        ) from None
    return Order(events, sends, tuple(pasts), _collect_known(events))


def check(
    events: Iterable[Event],
    processes: int | None = None,
    complete: bool = True,
    at: Collection[int] | None = None,
) -> Verdict:
    """Find everything that is wrong with a run's deliveries.

    `processes` says how many take part, if their numbers are to be checked. A run that is not `complete` owes no
    deliveries yet. `at` limits the findings about order to some processes, for protocols that promise it only there.

    The triangle: x goes from p1 to p3; y from p1 to p2, which then sends z to p3, where z arrives before x.

    >>> x, y, z = (0, 1), (0, 2), (1, 1)
    >>> verdict = check([
    ...     Event(0, "send", *x, (2,)), Event(0, "send", *y, (1,)),
    ...     Event(1, "deliver", *y), Event(1, "send", *z, (2,)),
    ...     Event(2, "deliver", *z), Event(2, "deliver", *x),
    ... ])
    >>> verdict.ok, verdict.violations[0].chain
    (False, ((0, 1), (0, 2), (1, 1)))
    >>> print(verdict.explain(View.numbered(3), {x: "x", y: "y", z: "z"}))
    violation: p3 delivered x after z, which it causally precedes: x -> y -> z

    Raises `BadRun` if the events cannot be a run at all.
    """
    order = happened_before(events)
    _check_numbers(order.events, processes)
    delivered = _group_deliveries(order.events)
    firsts = {q: list(dict.fromkeys(messages)) for q, messages in delivered.items()}
    judged = [q for q in sorted(firsts) if at is None or q in at]
    copies = [Copy(message, q) for q in sorted(firsts) for message in firsts[q]]
    missing = _find_missing(order, firsts)
    return Verdict(
        deliveries=sum(map(len, delivered.values())),
        violations=tuple(v for q in judged for v in _find_overtaken(order, q, firsts[q])),
        skipped=tuple(v for q in judged for v in _find_skipped(order, q, firsts[q], missing)),
        fifo_breaks=tuple(v for q in judged for v in _fifo_breaks(order, q, firsts[q])),
        duplicates=tuple(Copy(m, q) for q in sorted(delivered) for m in _find_repeated(delivered[q])),
        unsent=tuple(copy for copy in copies if copy.message not in order.sends),
        unaddressed=tuple(copy for copy in copies if _is_unaddressed(order, copy)),
        undelivered=tuple(missing) if complete else (),
    )


# The relation.


def _counts(event: Event) -> bool:
    return event.kind != "receive" and not event.control


def _sends(events: tuple[Event, ...]) -> dict[Id, int]:
    """Message -> the position of its send."""
    sends: dict[Id, int] = {}
    for position, event in enumerate(events):
        if event.kind != "send" or event.control:
            continue
        place, message = f"events[{position}]", f"message {event.number} of process {event.sender}"
        if event.process != event.sender:
            raise BadRun(place, f"process {event.process} sends {message}, which is another process's")
        if event.id in sends:
            raise BadRun(place, f"{message} is sent a second time, after events[{sends[event.id]}]")
        sends[event.id] = position
    return sends


def _direct(events: tuple[Event, ...], sends: Mapping[Id, int]) -> dict[int, list[int]]:
    """Rules 1 and 2: for each event the one before it at its process and, for a delivery, the send."""
    direct: dict[int, list[int]] = {}
    last: dict[int, int] = {}
    for position, event in enumerate(events):
        if not _counts(event):
            continue
        direct[position] = [last[event.process]] if event.process in last else []
        if event.kind == "deliver" and event.id in sends:
            direct[position].append(sends[event.id])
        last[event.process] = position
    return direct


def _collect_known(events: tuple[Event, ...]) -> dict[Id, frozenset[Id]]:
    """Message -> what its sender had sent or delivered when it sent it."""
    known: dict[Id, frozenset[Id]] = {}
    at: dict[int, set[Id]] = {}
    for event in filter(_counts, events):
        here = at.setdefault(event.process, set())
        if event.kind == "send":
            known[event.id] = frozenset(here)
        here.add(event.id)
    return known


def _check_numbers(events: tuple[Event, ...], processes: int | None) -> None:
    """Refuse processes that do not exist."""
    for position, event in enumerate(events):
        for process in (event.process, event.sender, *event.to):
            if process < 0 or (processes is not None and process >= processes):
                known = "0 and more" if processes is None else f"0 to {processes - 1}"
                raise BadRun(f"events[{position}]", f"there is no process {process}: processes are {known}")


# What can be wrong.


def _group_deliveries(events: tuple[Event, ...]) -> dict[int, list[Id]]:
    """Process -> what it delivered, in its order, repetitions included."""
    delivered: dict[int, list[Id]] = {}
    for event in events:
        if event.kind == "deliver" and not event.control:
            delivered.setdefault(event.process, []).append(event.id)
    return delivered


def _find_missing(order: Order, firsts: Mapping[int, list[Id]]) -> list[Copy]:
    """What was addressed to a process and not delivered there."""
    return [
        Copy(message, q)
        for q in sorted({q for event in order.events for q in event.to})
        for message, sent in order.sends.items()
        if q in order.events[sent].to and message not in firsts.get(q, ())
    ]


def _find_overtaken(order: Order, q: int, firsts: list[Id]) -> Iterator[Violation]:
    for position, late in enumerate(firsts):
        for by in firsts[:position]:
            if order.precedes(late, by):
                yield Violation(late, by, q, order.chain(late, by))
                break


def _find_skipped(order: Order, q: int, firsts: list[Id], missing: list[Copy]) -> Iterator[Violation]:
    for copy in missing:
        for by in firsts if copy.at == q else ():
            if order.precedes(copy.message, by):
                yield Violation(copy.message, by, q, order.chain(copy.message, by))
                break


def _fifo_breaks(order: Order, q: int, firsts: list[Id]) -> Iterator[Violation]:
    for position, late in enumerate(firsts):
        for by in firsts[:position]:
            if late[0] == by[0] and order.precedes(late, by):
                yield Violation(late, by, q, (late, by))
                break


def _find_repeated(messages: list[Id]) -> list[Id]:
    return [message for position, message in enumerate(messages) if message in messages[:position]]


def _is_unaddressed(order: Order, copy: Copy) -> bool:
    sent = order.sends.get(copy.message)
    return sent is not None and copy.at not in order.events[sent].to


# In words.


def _lines(verdict: Verdict, view: View, names: Mapping[Id, str]) -> Iterator[str]:
    def name(message: Id) -> str:
        return names.get(message, f"{view.name(message[0])}.{message[1]}")

    for v in verdict.violations:
        chain = " -> ".join(map(name, v.chain))
        late, by = name(v.overtaken), name(v.by)
        yield f"violation: {view.name(v.at)} delivered {late} after {by}, which it causally precedes: {chain}"
    for v in verdict.skipped:
        chain = " -> ".join(map(name, v.chain))
        late, by = name(v.overtaken), name(v.by)
        yield f"skipped: {view.name(v.at)} delivered {by}, but not {late}, which causally precedes it: {chain}"
    for v in verdict.fifo_breaks:
        late, by = name(v.overtaken), name(v.by)
        yield f"fifo break: {view.name(v.at)} delivered {late} after {by}, which its sender sent later"
    for kind, copies, words in (
        ("duplicate", verdict.duplicates, "{at} delivered {message} again"),
        ("unsent", verdict.unsent, "{at} delivered {message}, which nobody sent"),
        ("unaddressed", verdict.unaddressed, "{at} delivered {message}, which was not addressed to it"),
        ("undelivered", verdict.undelivered, "{at} never delivered {message}, which was addressed to it"),
    ):
        for copy in copies:
            yield f"{kind}: {words.format(at=view.name(copy.at), message=name(copy.message))}"
