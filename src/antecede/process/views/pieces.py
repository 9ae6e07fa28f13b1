"""A value too large for one note, cut into pieces and put together again, whatever order they arrive in.

>>> pieces = Pieces()
>>> cut = [(b"b", True, 1), (b"a", False, 0)]
>>> [pieces.add(*piece) for piece in cut]
[None, b'ab']
>>> list(cut_up(b"")), pieces.size
([(b'', True, 0)], 2)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from antecede.errors import BadFrame, BadParameter, WrongType
from antecede.protocols.machine import typed

__all__ = ["STATE_BYTES", "Pieces", "check_state", "cut_up"]

PIECE = 1 << 18
"""Bytes that travel in one note."""
STATE_BYTES = 1 << 28
"""Bytes of one value, at most: more than memory should hold twice is better fetched by the application itself."""


def cut_up(value: bytes) -> Iterator[tuple[bytes, bool, int]]:
    """The pieces of a value: each with whether it is the last, and which it is."""
    starts = range(0, max(1, len(value)), PIECE)
    for at, start in enumerate(starts):
        yield value[start : start + PIECE], start == starts[-1], at


class Pieces:
    """What has arrived of one value."""

    def __init__(self) -> None:
        self._pieces: dict[int, bytes] = {}
        self._last: int | None = None
        self.size = 0
        """Bytes that have arrived."""

    def add(self, piece: bytes, last: bool, at: int) -> bytes | None:
        """The whole value, if this was the piece that was missing. Raises `BadFrame` beyond `STATE_BYTES`."""
        at = at if at >= 0 else len(self._pieces)
        if at in self._pieces or at > STATE_BYTES // PIECE + 1:
            raise BadFrame(f"piece {at} of a state came twice, or is beyond the last that a state can have")
        self.size += len(piece)
        if self.size > STATE_BYTES:
            raise BadFrame(f"the state for a node that joins has more than {STATE_BYTES} bytes")
        self._pieces[at] = piece
        if last:
            self._last = at
        return self.whole

    @property
    def whole(self) -> bytes | None:
        """The value, if all of it is there."""
        if self._last is None or self._last + 1 != len(self._pieces):
            return None
        return b"".join(piece for _, piece in sorted(self._pieces.items()))

    def snapshot(self) -> list[list[Any]]:
        return [[at, piece, at == self._last] for at, piece in sorted(self._pieces.items())]

    @classmethod
    def restore(cls, snapshot: Sequence[Any]) -> Pieces:
        pieces = cls()
        for at, piece, last in typed(snapshot, list[tuple[int, bytes, bool]]):
            pieces.add(piece, last, at)
        return pieces


def check_state(state: object) -> None:
    """Refuse a state that nobody would take."""
    if not isinstance(state, bytes):
        raise WrongType("what state() returns", "bytes", state)
    if len(state) > STATE_BYTES:
        raise BadParameter(
            "node",
            f"state() returned {len(state)} bytes, and may return {STATE_BYTES}: return a "
            "reference, such as a URL, to the rest",
        )
