"""What a judge keeps from one micro-batch to the next, and how it is written: one value, with a version."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from antecede.errors import BadSnapshot

__all__ = ["Flight", "Id", "Process", "State", "Step", "decoded", "encoded"]

VERSION: Final = 1

Id = tuple[int, int]
"""Sender and number."""


class Step(Struct, array_like=True):
    """An event that waits for its turn. Sender -1: nothing to be judged, a receive or a control packet."""

    sender: int
    number: int
    to: list[int] | None
    """On a send."""


class Flight(Struct, array_like=True):
    """A message that was sent."""

    sender: int
    number: int
    ordinal: int
    clock: bytes
    left: set[int]
    given: set[int]
    since_ms: int
    overtaken: dict[int, Id] = {}
    """Process that it is addressed to -> the first message that overtook it there."""
    broken: dict[int, Id] = {}
    """The same, of the same sender."""
    given_up: set[int] = set()

    @property
    def id(self) -> Id:
        return self.sender, self.number


class Process(Struct, array_like=True):
    """Where a process is."""

    name: str
    next: int = 0
    sends: int = 0
    seen: int = 0
    """How many of its own sends others have told it of."""
    steady: bool = True
    """Whether it has numbered its messages 1, 2, 3 ..."""
    held: dict[int, Step] = {}
    """By index."""
    since_ms: int | None = None
    """Since when it waits for an event or for a send."""
    told: bool = False
    """Whether a gap was told."""


class State(Struct, array_like=True):
    """All of it. `clocks` and `highest` are n x n numbers."""

    version: int
    deliveries: int
    processes: list[Process]
    clocks: bytes
    highest: bytes
    flights: list[Flight]
    remembered: list[Flight]
    orphans: list[tuple[Id, set[int]]]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(State)

encoded = _ENCODER.encode


def decoded(snapshot: bytes) -> State:
    """The inverse. A snapshot of another version is refused."""
    try:
        state = _DECODER.decode(snapshot)
    except msgspec.MsgspecError as error:
        version = _version(snapshot)
        if version == VERSION:
            raise BadSnapshot("live verification", str(error), "its own state") from None
        raise BadSnapshot("version of live verification", version, VERSION) from None
    if state.version != VERSION:
        raise BadSnapshot("version of live verification", state.version, VERSION)
    return state


def _version(snapshot: bytes) -> object:
    try:
        found = msgspec.msgpack.decode(snapshot)
    except msgspec.MsgspecError:
        return "none"
    return found[0] if isinstance(found, list) and found else "none"
