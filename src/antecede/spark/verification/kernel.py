"""The scan of one chunk."""

from __future__ import annotations

from dataclasses import dataclass

from antecede.spark.rows import Rows
from antecede.spark.verification.findings import Findings, Ids, Overtaken
from antecede.spark.verification.summary import Summary

__all__ = ["Part", "Scan", "TooManySymbols", "TooMuchInFlight"]

SYMBOLS = 1 << 14
MEMORY = 1 << 30


class TooManySymbols(Exception):
    """More messages cross into this chunk than a summary has room for: plan by origin instead."""


class TooMuchInFlight(Exception):
    """The clocks of the messages in flight do not fit into the memory allowed: plan smaller blocks of origins."""


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
        symbols: int = SYMBOLS,
        memory: int = MEMORY,
    ) -> None:
        raise NotImplementedError

    def feed(self, rows: Rows) -> None:
        """Raises `Impossible`, `TooManySymbols`, `TooMuchInFlight`."""
        raise NotImplementedError

    def finish(self) -> Part:
        raise NotImplementedError
