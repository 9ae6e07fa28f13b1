"""How the news of overtaken messages that cross chunks travelled within one chunk."""

from __future__ import annotations

from antecede.spark.rows import Rows

__all__ = ["Trail"]


class Trail:
    def __init__(self, data: bytes) -> None:
        """`data` is one of `Outcome.trails`."""
        raise NotImplementedError

    def feed(self, rows: Rows) -> None:
        raise NotImplementedError

    def finish(self) -> bytes:
        raise NotImplementedError
