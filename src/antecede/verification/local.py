"""All steps in one process, one chunk after the other: for small runs, and to show the order of the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias, TypeVar

from antecede.trace.columns import Rows
from antecede.verification.chunk import Part, Scan
from antecede.verification.combine import Outcome, combine
from antecede.verification.findings import Findings, Ids
from antecede.verification.search import Found, Search
from antecede.verification.trail import Trail
from antecede.verification.witness import Witness

__all__ = ["verify_chunks", "verify_blocks"]

Chunk: TypeAlias = Callable[[], Iterable[Rows]]
"""Gives the rows of a chunk, each time it is called."""
Block: TypeAlias = tuple[int, int]
T_co = TypeVar("T_co", covariant=True)


class Reader(Protocol[T_co]):
    def feed(self, rows: Rows) -> None: ...
    def finish(self) -> T_co: ...


def read(chunk: Chunk, reader: Reader[T_co]) -> T_co:
    for rows in chunk():
        reader.feed(rows)
    return reader.finish()


def verify_chunks(chunks: Sequence[Chunk], n: int) -> tuple[int, Findings]:
    """How many deliveries there are, and everything that is wrong with them."""
    keep = Ids.none()
    parts = [read(chunk, Scan(n, first=at == 0)) for at, chunk in enumerate(chunks)]
    outcome, found = _searched(chunks, parts, keep, None)
    if len(outcome.keep):
        keep = outcome.keep
        for at in outcome.again:
            parts[at] = read(chunks[at], Scan(n, first=at == 0, keep=keep))
        outcome, _ = _searched(chunks, parts, keep, found)
    findings = [outcome.findings, *(part.findings for part in parts)]
    for chunk, part in zip(chunks, parts, strict=True):
        if len(part.overtaken):
            findings.append(read(chunk, Witness(part.summary.n, part.overtaken, keep=keep)))
    if outcome.trails:
        findings.append(
            outcome.join({at: read(chunks[at], Trail(asked)) for at, asked in outcome.trails.items()})
        )
    return outcome.deliveries, Findings.joined(findings)


def _searched(
    chunks: Sequence[Chunk], parts: Sequence[Part], keep: Ids, found: Sequence[Found] | None
) -> tuple[Outcome, Sequence[Found] | None]:
    """The summaries combined, after a search for suspects if there are any."""
    summaries = [part.summary for part in parts]
    outcome = combine(summaries, found, keep)
    if len(outcome.suspects):
        found = [read(chunk, Search(outcome.suspects)) for chunk in chunks]
        outcome = combine(summaries, found, keep)
    return outcome, found


def verify_blocks(run: Chunk, n: int, blocks: Sequence[Block]) -> tuple[int, Findings]:
    """The same by origin: each block of senders reads the whole run. The blocks cover all processes."""
    keep = Ids.none()
    parts = [read(run, Scan(n, first=True, block=block)) for block in blocks]
    searched = [_searched([run], [part], keep, None) for part in parts]
    keep = Ids.joined([outcome.keep for outcome, _ in searched])
    if len(keep):  # What it brings may be news of any origin.
        parts = [read(run, Scan(n, first=True, block=block, keep=keep)) for block in blocks]
        searched = [
            _searched([run], [part], keep, found) for part, (_, found) in zip(parts, searched, strict=True)
        ]
    findings = [*(outcome.findings for outcome, _ in searched), *(part.findings for part in parts)]
    for block, part in zip(blocks, parts, strict=True):
        if len(part.overtaken):
            findings.append(read(run, Witness(part.summary.n, part.overtaken, block=block, keep=keep)))
    return searched[0][0].deliveries, Findings.joined(findings)
