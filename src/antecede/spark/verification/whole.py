"""All steps in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from antecede.spark.rows import Rows
from antecede.spark.verification.findings import Findings

__all__ = ["verify_chunks"]

Chunk: TypeAlias = Callable[[], Iterable[Rows]]
"""Gives the rows of a chunk, each time it is called."""


def verify_chunks(chunks: Sequence[Chunk], n: int) -> tuple[int, Findings]:
    """How many deliveries there are, and everything that is wrong with them."""
    raise NotImplementedError
