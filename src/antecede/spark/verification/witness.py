"""Witnesses and chains of the violations that one chunk has decided by itself."""

from __future__ import annotations

from antecede.spark.rows import Rows
from antecede.spark.verification.findings import Findings, Overtaken

__all__ = ["Witness"]


class Witness:
    def __init__(self, n: int, overtaken: Overtaken) -> None:
        raise NotImplementedError

    def feed(self, rows: Rows) -> None:
        raise NotImplementedError

    def finish(self) -> Findings:
        """Violations and FIFO breaks, each with `by` and its chain."""
        raise NotImplementedError
