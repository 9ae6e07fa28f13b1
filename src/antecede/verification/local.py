"""A run whose chunks this process reads: the questions are answered as they come up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from antecede.trace.columns import Rows
from antecede.trace.plan import edges_of
from antecede.verification.chunk import MEMORY, Part, Scan, TooMuchInFlight
from antecede.verification.combine import Outcome, combine
from antecede.verification.findings import Findings, Ids
from antecede.verification.proofs import NewsScan, ProofScan
from antecede.verification.unknown_sends import Found, Search

__all__ = ["Chains", "Chunk", "Reader", "follow_chains", "read_chunk", "verify_chunks", "verify_run"]

Chunk: TypeAlias = Callable[[], Iterable[Rows]]
"""Gives the rows of a chunk, each time it is called."""
T_co = TypeVar("T_co", covariant=True)


class Reader(Protocol[T_co]):
    """Whatever reads the rows of a chunk, in order."""

    def feed(self, rows: Rows) -> None: ...
    def finish(self) -> T_co: ...


def read_chunk(chunk: Chunk, reader: Reader[T_co]) -> T_co:
    for rows in chunk():
        reader.feed(rows)
    return reader.finish()


def scan_chunks(
    chunks: Sequence[Chunk],
    n: int,
    block: tuple[int, int] | None = None,
    *,
    chains: bool = False,
    memory: int = MEMORY,
) -> tuple[list[Part], Outcome]:
    """Scan all chunks of a run, with all that they have to keep."""
    keep: Ids | None = None
    found: list[Found] | None = None

    def scan(at: int) -> Part:
        reader = Scan(n, first=at == 0, block=block, keep=keep, chains=chains, memory=memory)
        return read_chunk(chunks[at], reader)

    parts = [scan(at) for at in range(len(chunks))]
    while True:
        outcome = combine([part.summary for part in parts], found)
        question = outcome.question(keep, {})
        if question is None or question.what == "news":
            return parts, outcome
        if question.what == "unknown":
            found = [read_chunk(chunks[at], Search(ids)) for at, ids in question.chunks.items()]
        else:
            keep = outcome.keep
            for at in question.chunks:
                parts[at] = scan(at)


def verify_chunks(
    chunks: Sequence[Chunk], n: int, block: tuple[int, int] | None = None
) -> tuple[int, Findings]:
    """How many deliveries there are, and everything that is wrong with them.

    With a `block` there is one chunk, the whole run, and only messages of these senders are judged.
    """
    parts, outcome = scan_chunks(chunks, n, block)
    trails = {at: read_chunk(chunks[at], NewsScan(asked)) for at, asked in outcome.trails.items()}
    findings = [outcome.findings, outcome.join(trails), *(part.findings for part in parts)]
    for chunk, part in zip(chunks, parts, strict=True):
        if len(part.overtaken):
            findings.append(read_chunk(chunk, ProofScan(part.summary.n, part.overtaken)))
    return outcome.deliveries, Findings.concatenate(findings)


def verify_run(run: Chunk, n: int) -> tuple[int, Findings]:
    """A run that is one chunk: by origin, in as many blocks as it takes, if too much is under way at a time."""
    blocks: list[tuple[int, int] | None] = [None]
    while True:
        try:
            told = [verify_chunks([run], n, block) for block in blocks]
        except TooMuchInFlight:
            if len(blocks) >= n:
                raise
            blocks = [*pairwise(edges_of(n, 2 * len(blocks)))]
            continue
        # Blocks of origins have all seen the whole run: one of them counts.
        return told[0][0], Findings.concatenate([findings for _, findings in told])


class Chains(NamedTuple):
    """What orders the messages of a run."""

    past: int
    """Pairs of messages of which the first happened before the second."""
    sends: int
    """Messages."""
    longest: int
    """Messages in the longest causal chain."""


def follow_chains(run: Chunk, n: int, block: tuple[int, int], memory: int = MEMORY) -> Chains:
    """Count the messages of these senders that happened before each message, and the longest chain of all.

    Blocks of senders add up. A block is followed in halves if too much is under way at a time.
    """
    blocks, past = [block], 0
    while True:
        low, high = blocks.pop()
        try:
            [part], _ = scan_chunks([run], n, (low, high), chains=True, memory=memory)
        except TooMuchInFlight:
            if high - low < 2:
                raise
            blocks += [(low, (low + high) // 2), ((low + high) // 2, high)]
            continue
        past += part.past
        if not blocks:
            return Chains(past, int(part.summary.sends.sum()), part.longest)
