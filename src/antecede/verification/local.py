"""A run whose chunks this process reads: the questions are answered as they come up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Protocol, TypeAlias, TypeVar

from antecede.trace.columns import Rows
from antecede.trace.plan import edges_of
from antecede.verification.chunk import Scan, TooMuchInFlight
from antecede.verification.combine import combine
from antecede.verification.findings import Findings, Ids
from antecede.verification.proofs import NewsScan, ProofScan
from antecede.verification.unknown_sends import Found, Search

__all__ = ["Chunk", "Reader", "read_chunk", "verify_chunks", "verify_run"]

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


def verify_chunks(
    chunks: Sequence[Chunk], n: int, block: tuple[int, int] | None = None
) -> tuple[int, Findings]:
    """How many deliveries there are, and everything that is wrong with them.

    With a `block` there is one chunk, the whole run, and only messages of these senders are judged.
    """
    keep: Ids | None = None
    found: list[Found] | None = None
    trails: dict[int, bytes] = {}
    parts = [read_chunk(chunk, Scan(n, first=at == 0, block=block)) for at, chunk in enumerate(chunks)]
    while True:
        outcome = combine([part.summary for part in parts], found, keep)
        question = outcome.question(keep, trails)
        if question is None:
            break
        if question.what == "unknown":
            found = [read_chunk(chunks[at], Search(ids)) for at, ids in question.chunks.items()]
        elif question.what == "keep":
            for at, keep in question.chunks.items():
                parts[at] = read_chunk(chunks[at], Scan(n, first=at == 0, block=block, keep=keep))
        else:
            trails = {at: read_chunk(chunks[at], NewsScan(asked)) for at, asked in question.chunks.items()}
    findings = [outcome.findings, outcome.join(trails), *(part.findings for part in parts)]
    for chunk, part in zip(chunks, parts, strict=True):
        if len(part.overtaken):
            proofs = ProofScan(part.summary.n, part.overtaken, block=block, keep=keep)
            findings.append(read_chunk(chunk, proofs))
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
