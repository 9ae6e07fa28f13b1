"""Proofs of violations: the message that overtook, and the chain of messages that leads to it.

Within a chunk. Message, overtaker and chain are all sent in the chunk that decided the violation: `ProofScan` reads it
again, and nothing else is needed: what crosses into a chunk brings no news of what was sent in it.

Across chunks. From the chunk where an overtaken message was sent up to the one where it was delivered, each chunk is
read once more by a `NewsScan`, all at the same time: from the true clocks at its beginning it tells which delivery
first brought news of the message to which process, and the first later message of the same sender. A process learns
of it in one chunk only. Put together that is a `via` for each message and process, and chains are walked as in
chains.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antecede.blob import pack, unpack
from antecede.jit import allocating
from antecede.jit.hashtable import find, insert
from antecede.verification import state as names
from antecede.verification.boundaries import OVERTAKEN, Boundary, Walk, ids_of
from antecede.verification.chains import ANSWERS, CAME, CHAIN, PINNED, activate, new_watched
from antecede.verification.chunk import MEMORY, Scanner, Summary
from antecede.verification.findings import Findings, Ids, findings_of

__all__ = ["Late", "NewsScan", "ProofScan", "list_late", "prove", "trails_of"]

Array: TypeAlias = NDArray[Any]


class ProofScan(Scanner):
    """Reads the rows of a chunk, in order, from which a `Scan` with the same block and keep gave `overtaken`."""

    def __init__(
        self,
        n: int,
        overtaken: Array,
        *,
        block: tuple[int, int] | None = None,
        keep: Ids | None = None,
        memory: int = MEMORY,
    ) -> None:
        super().__init__(n, True, block, keep, 0, memory)
        targets = np.column_stack(np.unique(overtaken, return_counts=True))
        self.watch(new_watched(n, self.state.clocks.shape[1], targets, 64))

    def finish(self) -> Findings:
        """Violations and FIFO breaks, each with `by` and its chain."""
        watched = self.watched
        answers = watched.answers[: watched.counts[ANSWERS]]
        process, sender, number, index, ends, later, later_number, _ = answers.T
        chain = watched.chain[: watched.counts[CHAIN]]
        assert (chain[:, 0] >= 0).all(), "the rows are not those of the scan"
        return findings_of(process, sender, number, index, ends, chain, later != 0, later_number)


# Across chunks

LEAST: Final = -(1 << 31) + 2


@dataclass(frozen=True, slots=True)
class Late:
    """Overtaken deliveries of messages from earlier chunks, one a row."""

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


def list_late(boundary: Boundary) -> Array:
    summary = boundary.summary
    late = np.flatnonzero(boundary.said & OVERTAKEN)
    checks = summary.deferred[late]
    sender, number = summary.symbols[checks[:, 1]].T
    flights = [boundary.flights[symbol] for symbol in checks[:, 1].tolist()]
    sent = [(flight.ordinal, flight.chunk, flight.position) for flight in flights if flight is not None]
    ordinal, chunk, position = np.array(sent, np.int64).reshape(-1, 3).T
    here = np.full(len(late), boundary.chunk)
    return np.column_stack((checks[:, 0], sender, number, checks[:, 2], ordinal, chunk, position, here))


def trails_of(summaries: Sequence[Summary], late: Late, keep: Ids) -> dict[int, bytes]:
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
            trails[boundary.chunk] = pack("trail", _trail(boundary, late, rows, before, here, keep))
    return trails


def _trail(
    boundary: Boundary, late: Late, rows: Array, before: Array, here: Array, keep: Ids
) -> dict[str, Array]:
    """Clocks count from the beginning of the chunk: what was sent before has ordinals up to 0."""
    base, symbols = boundary.base, boundary.summary.symbols
    known = [symbol for symbol, flight in enumerate(boundary.flights) if flight is not None]
    crossing = [flight for flight in boundary.flights if flight is not None]
    ordinals = np.array([flight.ordinal for flight in crossing], np.int64)
    clocks = [flight.clock for flight in crossing if flight.clock is not None]
    before = before[np.argsort(late.ordinal[rows[before]])]
    here = here[np.argsort(late.sent_at[rows[here]])]
    names = {message: at for at, message in enumerate(_ids(late, rows[before]))}
    targets = np.array([names.get(message, -1) for message in ids_of(symbols[known])], np.int64)
    return {
        "clocks": relative(boundary.clocks, base),
        "seen": relative(boundary.seen, base),
        "crossing": symbols[known],
        "crossing_targets": targets,
        "crossing_ordinals": relative(ordinals, base[symbols[known, 0]]),
        "crossing_clocks": relative(np.array(clocks, np.int64).reshape(-1, len(base)), base),
        "before": before,
        "before_senders": late.sender[rows[before]],
        "before_ordinals": relative(late.ordinal[rows[before]], base[late.sender[rows[before]]]),
        "here": here,
        "here_positions": late.sent_at[rows[here]],
        "keep_senders": keep.sender,
        "keep_numbers": keep.number,
    }


def _ids(late: Late, rows: Array) -> list[tuple[int, int]]:
    return list(zip(late.sender[rows].tolist(), late.number[rows].tolist(), strict=True))


def relative(clocks: Array, base: Array) -> Array:
    """As int32. What is too long ago for that is as good as unknown."""
    since: Array = np.maximum(clocks - base, LEAST)
    return since.astype(np.int32)


def prove(late: Late, trails: Mapping[int, bytes]) -> Findings:
    """Violations and FIFO breaks with their chains."""
    if not len(late):
        return Findings.none()
    parts = [unpack("trail found", trails[chunk]) for chunk in sorted(trails)]
    for chunk, part in zip(sorted(trails), parts, strict=True):
        part["later_chunk"] = np.full(len(part["later_target"]), chunk)
    n = int(parts[0]["n"][0])
    via, via_sender, via_number = _first_of(parts, n, "via", ("via_sender", "via_number"))
    later, later_number, later_chunk = _first_of(parts, n, "later", ("later_number", "later_chunk"))
    _, which = late.targets()
    chain, ends = walk(which, late.process, late.sender, late.number, n, via, via_sender, via_number)
    keys = which * n + late.process
    at = np.searchsorted(later, keys)
    fifo = np.isin(keys, later)
    fifo[fifo] = later_chunk[at[fifo]] <= late.delivered_in[fifo]
    by = np.zeros(len(late), np.int64)
    by[fifo] = later_number[at[fifo]]
    return findings_of(late.process, late.sender, late.number, late.index, ends, chain, fifo, by)


def _first_of(parts: Sequence[dict[str, Array]], n: int, what: str, columns: Sequence[str]) -> list[Array]:
    """Sorted keys (message and process), and what the first chunk that has something for it says."""
    targets = np.concatenate([part[f"{what}_target"] for part in parts])
    keys = targets * n + np.concatenate([part[f"{what}_process"] for part in parts])
    unique, first = np.unique(keys, return_index=True)
    return [unique, *(np.concatenate([part[column] for part in parts])[first] for column in columns)]


@allocating
def walk(which, process, sender, number, n, via, via_sender, via_number):  # type: ignore[no-untyped-def]
    """Each one's chain, and where it ends among all. The rule is that of watch.answer."""
    chain = np.empty((len(which) * 4 + n + 2, 2), np.int64)
    ends = np.empty(len(which), np.int64)
    end = 0
    for row in range(len(which)):
        if end + n + 2 > len(chain):
            longer = np.empty((2 * len(chain) + n, 2), np.int64)
            longer[:end] = chain[:end]
            chain = longer
        begin, j = end, process[row]
        while True:
            at = np.searchsorted(via, which[row] * n + j)
            assert at < len(via)
            assert via[at] == which[row] * n + j
            chain[end, 0], chain[end, 1] = via_sender[at], via_number[at]
            end, j = end + 1, via_sender[at]
            if j == sender[row]:
                break
        if chain[end - 1, 1] != number[row]:
            chain[end, 0], chain[end, 1] = sender[row], number[row]
            end += 1
        chain[begin:end] = chain[begin:end][::-1].copy()
        ends[row] = end
    return chain[:end], ends


class NewsScan(Scanner):
    """Reads the rows of one chunk, in order."""

    def __init__(self, data: bytes, memory: int = MEMORY) -> None:
        """`data` is one of `Outcome.trails`."""
        self._asked = asked = unpack("trail", data)
        n = len(asked["seen"])
        keep = Ids(asked["keep_senders"], asked["keep_numbers"])
        super().__init__(n, True, None, keep, 0, memory)
        self.state.clocks[:n, :n] = asked["clocks"]
        self.state.seen[:n] = asked["seen"]
        self._board(asked)
        here = asked["here_positions"]
        targets = np.column_stack((here, np.full(len(here), PINNED)))
        watched = new_watched(n, self.state.clocks.shape[1], targets, len(here) + len(asked["before"]) + 1)
        for sender, ordinal in zip(asked["before_senders"], asked["before_ordinals"], strict=True):
            activate(watched, sender, np.int64(ordinal), np.int64(PINNED))
        self.watch(watched)

    def _board(self, asked: dict[str, Array]) -> None:
        """The messages that cross into the chunk are under way. Who is owed them is not asked here."""
        crossing = asked["crossing"]
        self.reserve(len(crossing))
        state, counts = self.state, self.counts
        for row, (sender, number) in enumerate(crossing):
            counts[names.FREE] -= 1
            counts[names.USED] += 1
            slab = state.free[counts[names.FREE]]
            state.flights[slab] = (sender, number, asked["crossing_ordinals"][row], 0, 0, True, -1, -1)
            state.flights[slab, names.TARGET] = asked["crossing_targets"][row]
            state.flight_clocks[slab, : asked["crossing_clocks"].shape[1]] = asked["crossing_clocks"][row]
            insert(state.table, find(state.table, sender, number), sender, number, np.int64(slab))

    def finish(self) -> bytes:
        watched, n = self.watched, len(self._asked["seen"])
        targets = np.concatenate((self._asked["before"], self._asked["here"]))
        told = np.nonzero(watched.via_sender[: len(targets)] >= 0)
        later = np.nonzero(watched.later[: len(targets)] == CAME)
        return pack(
            "trail found",
            {
                "n": np.array([n]),
                "via_target": targets[told[0]],
                "via_process": told[1],
                "via_sender": watched.via_sender[told],
                "via_number": watched.via_number[told],
                "later_target": targets[later[0]],
                "later_process": later[1],
                "later_number": watched.later_number[later],
            },
        )
