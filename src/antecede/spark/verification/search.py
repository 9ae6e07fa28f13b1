"""A scan that looks for the sends of some messages, and nothing else."""

from __future__ import annotations

from antecede.spark.rows import Rows
from antecede.spark.verification.findings import Ids

__all__ = ["Search", "Found"]


class Found:
    """The sends found in one chunk."""

    def encode(self) -> bytes:
        raise NotImplementedError

    @classmethod
    def decode(cls, data: bytes) -> Found:
        raise NotImplementedError


class Search:
    def __init__(self, ids: Ids) -> None:
        raise NotImplementedError

    def feed(self, rows: Rows) -> None:
        raise NotImplementedError

    def finish(self) -> Found:
        raise NotImplementedError
