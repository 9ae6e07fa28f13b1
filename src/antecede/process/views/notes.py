"""The notes that processes pass about a change of the view. Whoever leads it is the least position that stays.

>>> roll = Roll.first(("a", "b"), {})
>>> decode_note(encode_note(Install(roll))) == Install(roll)
True

Memory: decoding a note takes at most `MEMORY_FACTOR` times its bytes. The densest thing that a note can say is a name
of one character that is not Latin: three bytes, and eighty in memory.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from antecede.errors import WireError
from antecede.process.views.members import HIGHEST, Plan, Roll

__all__ = [
    "MEMORY_FACTOR",
    "Ahead",
    "AnyNote",
    "Ask",
    "Go",
    "Handed",
    "Install",
    "Installed",
    "Later",
    "Note",
    "Report",
    "Resume",
    "Settle",
    "State",
    "Stop",
    "Stopped",
    "Withdrawn",
    "decode_note",
    "encode_note",
    "is_note",
]

MARK = b"\0"
"""What a note begins with, and no bundle of packets."""
MEMORY_FACTOR: Final = 40


class Note(Struct, frozen=True, array_like=True):
    """What processes tell each other about a change."""


class Ask(Note, frozen=True, tag=0):
    """To the leader: this is wanted."""

    plan: Plan
    wish: int = 0
    """How often this process had withdrawn something by then: so a wish that was overtaken is known."""
    view: int = HIGHEST
    """The view in which it is wanted; an earlier version did not say."""


class Stop(Note, frozen=True, tag=1):
    """From the leader: the view changes by this plan. Send nothing more in the old one, and hear nothing more from
    those that are removed. `roll` is the view that it is now."""

    round: int
    roll: Roll
    plan: Plan


class Stopped(Note, frozen=True, tag=2):
    """To the leader: done. `cut` are all that this process hears no more."""

    round: int
    cut: tuple[str, ...]


class Settle(Note, frozen=True, tag=3):
    """From the leader: all have stopped. Let nothing wait for those that are removed; take all that arrives."""

    round: int


class Report(Note, frozen=True, tag=4):
    """To the leader: how many payloads this process has sent to each other, and has from each."""

    round: int
    out: dict[int, int]
    into: dict[int, int]
    sent: int
    """Messages, ever."""


class Install(Note, frozen=True, tag=5):
    """From the leader: nothing of the old view is under way. This is the new one."""

    roll: Roll


class Installed(Note, frozen=True, tag=6):
    """To the leader: done."""

    number: int


class Go(Note, frozen=True, tag=7):
    """From the leader: all have it. Send."""

    number: int


class Ahead(Note, frozen=True, tag=8):
    """To a leader that is behind: this view has been decided already."""

    roll: Roll


class Later(Note, frozen=True, tag=9):
    """To a leader: a later round than its own is under way."""

    round: int


class State(Note, frozen=True, tag=10):
    """To one that joined: a piece of its state."""

    piece: bytes | None
    """None: there is none to give."""
    last: bool
    at: int = -1
    """Which piece it is, from 0: links may hand over a later one first. -1: an earlier version said it."""


class Handed(Note, frozen=True, tag=13):
    """To one that joined a separator: a piece of what a member of it, or a neighbour, knows."""

    piece: bytes
    last: bool
    at: int


class Withdrawn(Note, frozen=True, tag=11):
    """To the leader: these, who were to join by the one that says so, are not to join any more."""

    names: tuple[str, ...]
    wish: int


class Resume(Note, frozen=True, tag=12):
    """From the leader: the round is off, since nobody wants it any more. The view goes on as it is."""

    round: int


AnyNote: TypeAlias = (
    Ask
    | Stop
    | Stopped
    | Settle
    | Report
    | Install
    | Installed
    | Go
    | Ahead
    | Later
    | State
    | Withdrawn
    | Resume
    | Handed
)

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(AnyNote)


def encode_note(note: Note) -> bytes:
    return MARK + _ENCODER.encode(note)


def is_note(payload: bytes) -> bool:
    return payload[:1] == MARK


def decode_note(payload: bytes) -> AnyNote:
    try:
        note: AnyNote = _DECODER.decode(memoryview(payload)[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"the payload is no note about the view: {error}") from None
    return note
