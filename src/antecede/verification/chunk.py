"""A scan of one chunk: what it decides, and the summary of what it does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from antecede.trace.columns import Rows
from antecede.verification import state as names
from antecede.verification.findings import (
    DUPLICATE,
    UNADDRESSED,
    VIOLATION,
    Findings,
    Ids,
    Overtaken,
)
from antecede.verification.scanner import Scanner
from antecede.verification.summary import Summary

__all__ = ["Scan", "Part", "MOST_SYMBOLS", "MEMORY"]

MOST_SYMBOLS: Final = 1 << 14
MEMORY: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Part:
    """What one scan gives."""

    summary: Summary
    """For `combine`; goes over the network as bytes."""
    findings: Findings
    """Decided here: duplicates and unaddressed deliveries."""
    overtaken: Overtaken
    """Violations decided here, for a `Witness` over the same rows."""


class Scan:
    """Reads the rows of one chunk of a run, in order.

    n: how many processes there are (it grows by itself if there are more). first: nothing precedes this chunk.
    block: only these origins' clock entries, from low up to and without high; needs `first`, and the whole run.
    keep: messages never to forget, see the package. symbols, memory: how many messages may cross, bytes allowed.
    """

    def __init__(
        self,
        n: int,
        first: bool = False,
        *,
        block: tuple[int, int] | None = None,
        keep: Ids | None = None,
        symbols: int = MOST_SYMBOLS,
        memory: int = MEMORY,
    ) -> None:
        self._scanner = Scanner(n, first, block, keep, symbols, memory)

    def feed(self, rows: Rows) -> None:
        """Raises `Impossible`, `TooManySymbols`, `TooMuchInFlight`."""
        self._scanner.feed(rows)

    def finish(self) -> Part:
        state, counts = self._scanner.state, self._scanner.counts
        records = state.records[: counts[names.RECORDS]]
        plain = []
        for kind in (DUPLICATE, UNADDRESSED):
            _, process, sender, number, index, _ = records[records[:, 0] == kind].T
            plain.append(Findings.plain(kind, process, sender, number, index))
        _, process, sender, number, index, sent_at = records[records[:, 0] == VIOLATION].T
        overtaken = Overtaken(
            process=process.astype("i4"),
            sender=sender.astype("i4"),
            number=number.copy(),
            index=index.copy(),
            sent_at=sent_at.copy(),
        )
        return Part(Summary.of(self._scanner), Findings.joined(plain), overtaken)
