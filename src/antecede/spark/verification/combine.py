"""The chunks' summaries one after the other: what crosses from one into another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from antecede.spark.verification.findings import Findings, Ids
from antecede.spark.verification.search import Found
from antecede.spark.verification.summary import Summary

__all__ = ["combine", "Outcome"]


@dataclass(frozen=True)
class Outcome:
    findings: Findings
    """Complete ones, of all kinds but violations and FIFO breaks, which `join` gives."""
    deliveries: int
    """Of the whole run (all summaries)."""
    violations: int
    fifo_breaks: int
    """Of deliveries whose message came from an earlier chunk: what `join` will give."""
    suspects: Ids
    """To be searched for in every chunk, if there are any; then `combine` again with what was found."""
    keep: Ids
    """To be kept, if there are any, in a new scan of the chunks in `again`."""
    again: tuple[int, ...]
    """Positions of chunks."""
    trails: Mapping[int, bytes]
    """Position of a chunk -> what `Trail` is to look for in it."""
    unsorted: tuple[int, ...]
    """Processes whose numbers do not grow: that none is used twice has not been seen, so count them."""

    def join(self, trails: Mapping[int, bytes]) -> Findings:
        """Violations and FIFO breaks with witnesses and chains, from what each `Trail.finish()` gave."""
        raise NotImplementedError


def combine(summaries: Sequence[Summary], found: Sequence[Found] | None = None) -> Outcome:
    """Raises `Impossible` if a message was delivered before it was sent."""
    raise NotImplementedError
