"""What a chunk does to the clocks, as a value."""

from __future__ import annotations

__all__ = ["Summary"]


class Summary:
    def encode(self) -> bytes:
        raise NotImplementedError

    @classmethod
    def decode(cls, data: bytes) -> Summary:
        raise NotImplementedError

    deliveries: int
    """All deliveries of the chunk, repeated ones too."""
