"""Witnesses and chains of the violations that one chunk has decided by itself.

Message, witness and chain are all sent in the chunk, so nothing else is needed: what crosses into it brings no news of
what was sent in it.
"""

from __future__ import annotations

import numpy as np

from antecede.trace.columns import Rows
from antecede.verification.chains import ANSWERS, CHAIN, new_watched
from antecede.verification.chunk import MEMORY
from antecede.verification.findings import Findings, Ids, Overtaken, findings_of
from antecede.verification.scanner import Scanner

__all__ = ["Witness"]


class Witness:
    """Reads the rows of a chunk, in order, from which a `Scan` with the same block and keep gave `overtaken`."""

    def __init__(
        self,
        n: int,
        overtaken: Overtaken,
        *,
        block: tuple[int, int] | None = None,
        keep: Ids | None = None,
        memory: int = MEMORY,
    ) -> None:
        self._scanner = Scanner(n, True, block, keep, 0, memory)
        targets = np.column_stack(np.unique(overtaken.sent_at, return_counts=True))
        self._scanner.watch(new_watched(n, self._scanner.state.clocks.shape[1], targets, 64))

    def feed(self, rows: Rows) -> None:
        self._scanner.feed(rows)

    def finish(self) -> Findings:
        """Violations and FIFO breaks, each with `by` and its chain."""
        watched = self._scanner.watched
        answers = watched.answers[: watched.counts[ANSWERS]]
        process, sender, number, index, ends, later, later_number, _ = answers.T
        chain = watched.chain[: watched.counts[CHAIN]]
        assert (chain[:, 0] >= 0).all(), "the rows are not those of the scan"
        return findings_of(process, sender, number, index, ends, chain, later != 0, later_number)
