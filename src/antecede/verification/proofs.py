"""Proofs of violations: the message that overtook, and the chain of messages that leads to it.

News of overtaken messages, the *targets*, is followed by bits: each process has a word with a bit for each of 64
targets that it has news of, and a message takes its sender's word along. The delivery that first brings a process news
of a target is noted: its `via`. When the target m is then delivered at q, too late, the first that overtook it is
via(q). If that was sent by m's own sender i, the chain is complete: i had sent m before. If it came from j, then j had
news of m when it sent it, from via(j), which it delivered before. And so on, each time to an earlier event, until the
sender is i. A process occurs at most once, so a chain is at most as long as there are processes, and one. Where q is i
itself, its own send is no news. For FIFO breaks, the first delivery at each process of a later message of the same
sender is noted too.

Within a chunk. Message, overtaker and chain are all sent in the chunk that decided the violation: `ProofScan` reads it
again, and nothing else is needed: what crosses into a chunk brings no news of what was sent in it. It holds the rows
between the sends of targets and their last late deliveries, some 25 bytes each.

Across chunks. From the chunk where an overtaken message was sent up to the one where it was delivered, each chunk is
read once more by a `NewsScan`, all at the same time: from the true clocks at its beginning it tells which delivery
first brought news of the message to which process, and the first later message of the same sender. A process learns
of it in one chunk only. Put together that is a `via` for each message and process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antecede.blob import pack, unpack
from antecede.jit import allocating, inlined, native
from antecede.jit.hashtable import look_up, table_of
from antecede.trace.columns import Rows
from antecede.trace.schema import RECEIVE, SEND
from antecede.verification.boundaries import OVERTAKEN, Boundary, Walk, ids_of
from antecede.verification.chunk import MEMORY, Summary, TooMuchInFlight
from antecede.verification.findings import Findings, findings_of
from antecede.verification.state import WORD

__all__ = ["Late", "NewsScan", "ProofScan", "list_late", "prove", "trails_of"]

Array: TypeAlias = NDArray[Any]

TARGETS: Final = WORD
"""Messages that are followed at a time."""
GROUPS: Final = 64
"""So many times they are followed before they are proved."""
TOGETHER: Final = 1 << 20
"""Rows that are held before something is proved with them."""


@dataclass(frozen=True, slots=True)
class Late:
    """Overtaken deliveries, one a row. Chunks and ordinals are told of messages from earlier chunks."""

    process: Array
    sender: Array
    number: Array
    index: Array
    ordinal: Array
    sent_in: Array
    """The chunk ..."""
    sent_at: Array
    """... and the row of it."""
    delivered_in: Array

    def __len__(self) -> int:
        return len(self.process)

    @classmethod
    def concatenate(cls, parts: Sequence[Array]) -> Late:
        """From what `list_late` gives."""
        return cls(*np.concatenate([np.zeros((0, len(fields(cls))), np.int64), *parts]).T)

    def targets(self) -> tuple[Array, Array]:
        """The rows that name each message first, and for each row the position of its message among these."""
        _, rows, which = np.unique(
            np.column_stack((self.sender, self.number)), axis=0, return_index=True, return_inverse=True
        )
        return rows, which.reshape(-1)


# Following news


class Steps(NamedTuple):
    """The sends and deliveries among some rows, in order."""

    position: Array
    """Of the row in the chunk."""
    process: Array
    sender: Array
    number: Array
    sends: Array

    @classmethod
    def of(cls, rows: Rows, before: int) -> Steps:
        """`before` says how many rows of the chunk came before."""
        at = np.flatnonzero((rows.kind != RECEIVE) & ~rows.control)
        return cls(before + at, rows.process[at], rows.sender[at], rows.number[at], rows.kind[at] == SEND)

    @classmethod
    def concatenate(cls, parts: Sequence[Steps]) -> Steps:
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    def find_origins(self) -> Array:
        """For each the one that sent its message, or -1."""
        sends = np.flatnonzero(self.sends)
        found = look_up(table_of(self.sender[sends], self.number[sends]), self.sender, self.number)
        origins: Array = np.append(sends, -1)[found]
        return origins


@native
def follow_news(process, origin, slots, heard, own, carried, passed, via, later, begin, known):  # type: ignore[no-untyped-def]
    """Note the step that first brought a process news of a target, and the first later one of the target's sender.

    Of the steps from `begin` on, `slots` says which target each sends, or -1. So many of them are `known` to be under
    way, with what they carry. `passed` are targets that are at a process, or a later message of their sender.
    """
    for place in range(known, len(slots)):
        step = begin + place
        q, at = process[step], origin[step]
        if at < begin:
            continue
        slot = slots[at - begin]
        mine = np.uint64(0) if slot < 0 else np.uint64(1) << np.uint64(slot)
        if at == step:
            own[q] |= mine
            carried[place] = heard[q] | own[q]
            continue
        brought = carried[at - begin]
        after = brought & own[process[at]] & ~(passed[q] | mine)
        note(via, brought & ~heard[q], q, at)
        note(later, after, q, at)
        heard[q] |= brought
        passed[q] |= after | mine


@inlined
def note(table, bits, q, at):  # type: ignore[no-untyped-def]
    target = 0
    while bits != 0:
        if bits & np.uint64(255) == 0:
            bits >>= np.uint64(8)
            target += 8
            continue
        if bits & np.uint64(1) != 0:
            table[target, q] = at
        bits >>= np.uint64(1)
        target += 1


class News:
    """For each target and process the step that first brought news of it (`via`), and the first `later` one, or -1."""

    def __init__(self, held: Sequence[Steps], n: int) -> None:
        self.steps, self.n = Steps.concatenate(held), n
        self._origin = self.steps.find_origins()

    def begin(self, targets: int) -> None:
        self.via, self.later = np.full((targets, self.n), -1), np.full((targets, self.n), -1)

    def follow(self, first: int, sends: Array, end: int) -> None:
        """Follow up to 64 targets, with numbers from `first` on, that are sent at these steps."""
        slots = np.full(end - int(sends[0]), -1, np.int8)
        slots[sends - sends[0]] = np.arange(len(sends))
        words = (np.zeros(size, np.uint64) for size in (self.n, self.n, len(slots)))
        self.spread(first, (slots, *words), int(sends[0]), 0)

    def spread(self, first: int, given: tuple[Array, ...], begin: int, known: int) -> None:
        """The same, as `follow_news` takes it."""
        some, passed = slice(first, first + TARGETS), np.zeros(self.n, np.uint64)
        noted = passed, self.via[some], self.later[some]
        follow_news(self.steps.process, self._origin, *given, *noted, begin, known)


class ProofScan:
    """Reads the rows of a chunk, in order, of which a `Scan` gave `overtaken`."""

    def __init__(self, n: int, overtaken: Array) -> None:
        self.n, self.position = n, 0
        ordered = overtaken[np.argsort(overtaken[:, 5], kind="stable")]
        _, target = np.unique(ordered[:, 5], return_inverse=True)
        self._left = np.split(ordered, np.flatnonzero(np.diff(target // TARGETS)) + 1)
        self._begin, self._reach = ordered[:, 5], np.maximum.accumulate(ordered[:, 4])
        self._held: list[Steps] = []
        self._enough = TOGETHER
        self._findings = [Findings.none()]

    def feed(self, rows: Rows) -> None:
        if self._left:
            steps = Steps.of(rows, self.position)
            # News of a target matters from its send to its last late delivery: other rows are not held.
            latest = np.searchsorted(self._begin, steps.position, side="right") - 1
            needed = (latest >= 0) & (self._reach[latest] >= steps.position)
            self._held.append(Steps(*(column[needed] for column in steps)))
        self.position += len(rows)
        if sum(len(steps.process) for steps in self._held) >= self._enough:
            self._prove()

    def finish(self) -> Findings:
        """Violations and FIFO breaks, each with `by` and its chain."""
        if self._left:
            self._prove()
        assert not self._left, "the rows are not those of the scan"
        return Findings.concatenate(self._findings)

    def _prove(self) -> None:
        """Prove what is delivered by now, and keep the rows that the rest needs."""
        news, left, done = News(self._held, self.n), list[Array](), list[Array]()
        for group in self._left:
            (done if group[:, 4].max() < self.position else left).append(group)
        for first in range(0, len(done), GROUPS):
            self._findings.append(prove_groups(news, done[first : first + GROUPS]))
        needed = news.steps.position >= (left[0][0, 5] if left else self.position)
        self._left, self._held = left, [Steps(*(column[needed] for column in news.steps))]
        self._enough = TOGETHER + 2 * int(needed.sum())


def prove_groups(news: News, groups: Sequence[Array]) -> Findings:
    """Each group has the late deliveries of up to 64 targets, which were sent one after the other."""
    late, steps = np.concatenate(groups), news.steps
    sent_at, which = np.unique(late[:, 5], return_inverse=True)
    sends, first = np.searchsorted(steps.position, sent_at), 0
    news.begin(len(sends))
    for group in groups:
        last = np.searchsorted(sent_at, group[-1, 5]) + 1
        end = int(np.searchsorted(steps.position, group[:, 4].max() + 1))
        news.follow(first, sends[first:last], end)
        first = last
    process, sender, number, index = late[:, :4].T
    later, numbers = news.later[which, process], np.append(steps.number, 0)
    via = np.append(steps.sender, -1)[news.via], numbers[news.via]
    ends, chain = walk(which, process, sender, number, *via)
    return findings_of(process, sender, number, index, ends, chain, later >= 0, numbers[later])


# Across chunks


def list_late(boundary: Boundary) -> Array:
    late = np.flatnonzero(boundary.said & OVERTAKEN)
    flights = [boundary.flights[symbol] for symbol in boundary.summary.deferred[late, 1].tolist()]
    sent = [(flight.ordinal, flight.chunk, flight.position) for flight in flights if flight is not None]
    ordinal, chunk, position = np.array(sent, np.int64).reshape(-1, 3).T
    here = np.full(len(late), boundary.chunk)
    return np.column_stack((boundary.list_deferred(late)[:, :4], ordinal, chunk, position, here))


def trails_of(summaries: Sequence[Summary], late: Late) -> dict[int, bytes]:
    """For each chunk that news of a late message may have passed through: what to look for, from which clocks."""
    rows, which = late.targets()
    last = np.zeros(len(rows), np.int64)
    np.maximum.at(last, which, late.delivered_in)
    first = late.sent_in[rows]
    trails = {}
    for boundary in Walk(summaries).walk():
        before = np.flatnonzero((first < boundary.chunk) & (boundary.chunk <= last))
        here = np.flatnonzero(first == boundary.chunk)
        if len(before) or len(here):
            trails[boundary.chunk] = pack("trail", _trail(boundary, late, rows, before, here))
    return trails


def _trail(boundary: Boundary, late: Late, rows: Array, before: Array, here: Array) -> dict[str, Array]:
    symbols = boundary.summary.symbols
    known = [symbol for symbol, flight in enumerate(boundary.flights) if flight is not None]
    clocks = [flight.clock for flight in boundary.flights if flight is not None and flight.clock is not None]
    here = here[np.argsort(late.sent_at[rows[here]])]
    messages = ids_of(np.column_stack((late.sender, late.number))[rows[before]])
    names = {message: at for at, message in enumerate(messages)}
    return {
        "clocks": boundary.clocks,
        "seen": boundary.seen,
        "crossing": symbols[known],
        "crossing_targets": np.array([names.get(one, -1) for one in ids_of(symbols[known])], np.int64),
        "crossing_clocks": np.array(clocks, np.int64).reshape(-1, len(boundary.seen)),
        "before": before,
        "before_senders": late.sender[rows[before]],
        "before_ordinals": late.ordinal[rows[before]],
        "here": here,
        "here_positions": late.sent_at[rows[here]],
    }


def prove(late: Late, found: Mapping[int, dict[str, Array]]) -> Findings:
    """Violations and FIFO breaks with their chains, from what was learnt in each chunk."""
    rows, which = late.targets()
    n = max((int(one["n"][0]) for one in found.values()), default=1)
    findings, many = [Findings.none()], max(1, TOGETHER // n)
    for first in range(0, len(rows), many):
        some = (first <= which) & (which < first + many)
        own = Late(*(getattr(late, field.name)[some] for field in fields(late)))
        via, via_chunk = merge_chunks(found, "via", first, (min(many, len(rows) - first), n))
        later, later_chunk = merge_chunks(found, "later", first, via_chunk.shape)
        at = which[some] - first, own.process
        fifo = later_chunk[at] <= own.delivered_in
        ends, chain = walk(at[0], own.process, own.sender, own.number, *via)
        told = findings_of(own.process, own.sender, own.number, own.index, ends, chain, fifo, later[1][at])
        findings.append(told)
    return Findings.concatenate(findings)


def merge_chunks(
    found: Mapping[int, dict[str, Array]], what: str, first: int, shape: tuple[int, ...]
) -> tuple[tuple[Array, Array], Array]:
    """Of each target, from `first` on, and process: sender and number that the first chunk tells, and this chunk."""
    sender, number = np.full(shape, -1, np.int32), np.zeros(shape, np.int64)
    told = np.full(shape, np.iinfo(np.int64).max)
    for chunk in sorted(found, reverse=True):
        target, process, *message = (
            found[chunk][f"{what}_{name}"] for name in ("target", "process", "sender", "number")
        )
        some = (first <= target) & (target < first + shape[0])
        at = target[some] - first, process[some]
        sender[at], number[at], told[at] = message[0][some], message[1][some], chunk
    return (sender, number), told


@allocating
def walk(which, process, sender, number, via_sender, via_number):  # type: ignore[no-untyped-def]
    """Where each one's chain ends among all, and these, one after the other."""
    n = via_sender.shape[1]
    chain = np.empty((len(which) * 4 + n + 2, 2), np.int64)
    ends = np.empty(len(which), np.int64)
    end = 0
    for row in range(len(which)):
        if end + n + 2 > len(chain):
            longer = np.empty((2 * len(chain) + n, 2), np.int64)
            longer[:end] = chain[:end]
            chain = longer
        begin, target, j = end, which[row], process[row]
        while end == begin or j != sender[row]:
            chain[end, 0], chain[end, 1] = via_sender[target, j], via_number[target, j]
            j = via_sender[target, j]
            assert j >= 0
            end += 1
        if chain[end - 1, 1] != number[row]:  # or it learnt of it from the target itself
            chain[end, 0], chain[end, 1] = sender[row], number[row]
            end += 1
        chain[begin:end] = chain[begin:end][::-1].copy()
        ends[row] = end
    return ends, chain[:end]


class NewsScan:
    """Reads the rows of one chunk, in order."""

    def __init__(self, data: bytes, memory: int = MEMORY) -> None:
        """`data` is one of `Outcome.trails`."""
        self._asked, self._position = unpack("trail", data), 0
        sender, number = self._asked["crossing"].T
        # As if what crosses into the chunk were sent at its beginning.
        before = np.full(len(sender), -1)
        self._held = [Steps(before, sender.astype(np.int32), sender.astype(np.int32), number, before < 0)]
        wanted = 16 * len(self._asked["seen"]) * (len(self._asked["before"]) + len(self._asked["here"]))
        if wanted > memory:
            raise TooMuchInFlight(wanted, memory)

    def feed(self, rows: Rows) -> None:
        self._held.append(Steps.of(rows, self._position))
        self._position += len(rows)

    def finish(self) -> bytes:
        asked, crossing = self._asked, len(self._asked["crossing"])
        targets = np.concatenate((asked["before"], asked["here"]))
        news = News(self._held, len(asked["seen"]))
        news.begin(len(targets))
        for first in range(0, len(asked["before"]), TARGETS):
            news.spread(first, self._enter(first, len(news.steps.process)), 0, crossing)
        here = np.searchsorted(news.steps.position, asked["here_positions"])
        for first in range(0, len(here), TARGETS):
            news.follow(len(asked["before"]) + first, here[first : first + TARGETS], len(news.steps.process))
        found = {"n": np.array([news.n])}
        for name, table in (("via", news.via), ("later", news.later)):
            target, process = np.nonzero(table >= 0)
            step = table[target, process]
            found |= {f"{name}_target": targets[target], f"{name}_process": process}
            found |= {f"{name}_sender": news.steps.sender[step], f"{name}_number": news.steps.number[step]}
        return pack("trail found", found)

    def _enter(self, first: int, steps: int) -> tuple[Array, Array, Array, Array]:
        """Slots, and what is heard, sent and carried at the beginning, of up to 64 targets that were sent before."""
        asked, crossing, some = self._asked, len(self._asked["crossing"]), slice(first, first + TARGETS)
        senders, ordinals = asked["before_senders"][some], asked["before_ordinals"][some]
        own = np.arange(len(asked["seen"]))[:, None] == senders
        heard = np.where(own, asked["seen"][:, None], asked["clocks"][:, senders]) >= ordinals
        carried = np.zeros(steps, np.uint64)
        carried[:crossing] = to_words(asked["crossing_clocks"][:, senders] >= ordinals)
        slots, targets = np.full(steps, -1, np.int8), asked["crossing_targets"] - first
        slots[:crossing] = np.where((targets >= 0) & (targets < len(senders)), targets, -1)
        return slots, to_words(heard), to_words(own), carried


def to_words(bits: Array) -> Array:
    """Rows of up to 64 bits as numbers."""
    padded = np.zeros((len(bits), WORD), np.bool_)
    padded[:, : bits.shape[1]] = bits
    return np.packbits(padded, axis=1, bitorder="little").view(np.uint64)[:, 0].copy()
