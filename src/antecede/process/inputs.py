"""What can happen to a process, as values: the inputs of `core.Core`, and what a journal holds.

>>> inputs = [Send((1, 2), b"hello"), Take(0, 1), Acknowledge(0, 1), Restart()]
>>> decode_inputs(encode_inputs(inputs)) == inputs
True
>>> decode_inputs(b"garbage")
Traceback (most recent call last):
antecede.errors.BadJournal: journal has a record that is no list of inputs
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct

from antecede.errors import BadJournal
from antecede.link import Frame
from antecede.process.views.members import Plan
from antecede.wire import Limits

__all__ = [
    "Acknowledge",
    "Adopt",
    "Arrive",
    "Close",
    "Input",
    "Merge",
    "Pass",
    "Propose",
    "Recorded",
    "Restart",
    "Send",
    "Take",
    "Time",
    "Told",
    "Turn",
    "Waive",
    "Withdraw",
    "decode_inputs",
    "encode_inputs",
    "encode_into",
    "portions",
]


class Send(Struct, frozen=True, gc=False, array_like=True, tag=0):
    """The application sends a message."""

    to: tuple[int, ...]
    payload: bytes
    label: str = ""
    context: str = ""
    after: bytes | None = None
    """The causal context that it follows, as `CausalContext.encode` writes it."""


class Arrive(Struct, frozen=True, gc=False, array_like=True, tag=1):
    """A frame of a peer's link arrives. The fields after the first are the frame's."""

    source: int
    epoch: int
    peer: int
    number: int
    ack: int
    early: int
    payload: bytes | None
    bare: bool
    greets: bool

    @classmethod
    def of(cls, source: int, frame: Frame) -> Arrive:
        return cls(
            source, frame.epoch, frame.peer, frame.number, frame.ack, frame.early, frame.payload, frame.bare,
            frame.greets,
        )  # fmt: skip

    @property
    def frame(self) -> Frame:
        return Frame(
            self.epoch, self.peer, self.number, self.ack, self.early, self.payload, self.bare, self.greets
        )


class Take(Struct, frozen=True, gc=False, array_like=True, tag=2):
    """The application takes an eligible message: the machine delivers it."""

    sender: int
    number: int


class Acknowledge(Struct, frozen=True, gc=False, array_like=True, tag=3):
    """The application has processed a message that it took, and need not see it again."""

    sender: int
    number: int


class Restart(Struct, frozen=True, gc=False, array_like=True, tag=4):
    """The process starts again from its journal: its links are new incarnations from now on."""

    recording: bool = False
    """Whether it keeps its events for a trace, from now on."""
    limits: Limits | None = None
    """What it may send from now on; None: as before. What was sent or accepted before stays as it is."""
    epoch: int = 0
    """The least incarnation. One more than the last is not enough: an older copy of a journal would come to those that
    its process had after the copy was made, and nobody could tell the two apart."""


class Time(Struct, frozen=True, gc=False, array_like=True, tag=5):
    """It is so late, in nanoseconds since 1970: the time of the events that follow."""

    time_ns: int


class Recorded(Struct, frozen=True, gc=False, array_like=True, tag=6):
    """The events with a smaller index are in a trace, and need not be kept."""

    index: int


class Turn(Struct, frozen=True, gc=False, array_like=True, tag=7):
    """What has gathered for each peer leaves, as one payload of its link."""


class Propose(Struct, frozen=True, gc=False, array_like=True, tag=8):
    """Someone wants the view to change."""

    plan: Plan


class Pass(Struct, frozen=True, gc=False, array_like=True, tag=9):
    """The application has taken all before a change, and is in the view with this number from now on."""

    number: int
    state: bytes | None = None
    """What it gives to those who joined, if it owes them a state."""
    told: bool = True
    """Nobody waits to be told of this change. If False, it is in `Core.untold` until `Told`, across restarts."""


class Waive(Struct, frozen=True, gc=False, array_like=True, tag=10):
    """The application has no state to give with a change."""

    number: int


class Told(Struct, frozen=True, gc=False, array_like=True, tag=11):
    """The application was told of a change, by a callback that has returned: it need not be told again."""

    number: int


class Close(Struct, frozen=True, gc=False, array_like=True, tag=12):
    """The process stops, and all that was handed over is in its journal: what was only offered was not handed over."""


class Withdraw(Struct, frozen=True, gc=False, array_like=True, tag=13):
    """Whoever wanted these to join does not any more. What is in a view by then stays."""

    names: tuple[str, ...]


class Merge(Struct, frozen=True, gc=False, array_like=True, tag=14):
    """What the application sends with the label `into` follows all of the label `source` from now on."""

    source: str
    into: str


class Adopt(Struct, frozen=True, gc=False, array_like=True, tag=15):
    """Having joined a separator of which nobody is left, begin with the stable memory of the last that failed."""

    state: bytes


Input: TypeAlias = (
    Send
    | Arrive
    | Take
    | Acknowledge
    | Restart
    | Time
    | Recorded
    | Turn
    | Propose
    | Pass
    | Waive
    | Told
    | Close
    | Withdraw
    | Merge
    | Adopt
)

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(list[Input])


def encode_inputs(inputs: Sequence[Input]) -> bytes:
    return _ENCODER.encode(inputs)


def encode_into(inputs: Sequence[Input], buffer: bytearray) -> None:
    """The same, as all that a buffer holds: memory that is used again is at hand."""
    _ENCODER.encode_into(inputs, buffer)


LOADED = Send, Arrive
"""Inputs that carry a payload."""


def portions(inputs: Sequence[Input], most: int) -> Iterator[Sequence[Input]]:
    """The same inputs, in parts that end where their payloads have so many bytes.

    >>> [len(part) for part in portions([Send((1,), bytes(70)), Send((1,), bytes(70)), Turn()], 100)]
    [2, 1]
    """
    size = start = 0
    for at, given in enumerate(inputs, 1):
        if isinstance(given, LOADED):
            size += len(given.payload or b"")
            if size > most:
                yield inputs[start:at]
                size, start = 0, at
    if start < len(inputs):
        yield inputs[start:]


def decode_inputs(data: bytes) -> list[Input]:
    try:
        return _DECODER.decode(data)
    except msgspec.MsgspecError:
        raise BadJournal("journal", "has a record that is no list of inputs") from None
