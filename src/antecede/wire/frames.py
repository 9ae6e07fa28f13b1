"""The frames of a link to bytes and back, with limits.

>>> from antecede.link import Link
>>> link = Link(epoch=7, peer=9)
>>> [frame] = link.send(b"hello", now=0)
>>> encode_frame(frame, (7, 9)).hex(" ")
'00 01 00 68 65 6c 6c 6f'
>>> decode_frame(bytes.fromhex("000100 68656c6c6f"), (7, 9)) == frame
True

A frame, byte for byte; `uint` is defined in `octets`.

  uint      flags: 1 bare, 2 greets, 4 the incarnations follow, 8 `early` follows
  uint      epoch, with flag 4
  uint      peer, with flag 4
  uint      number
  uint      ack
  uint      early >> 1, with flag 8: its lowest bit is never set
  bytes     the payload, up to the end, unless it is bare

Two ends that have met say their incarnations once for a connection: `agreed` is the (epoch, peer) that frames which do
not say them have. As with packets, a frame has one encoding and `decode_frame` takes no other; on anything else it
raises `WireError` with the place, and never another error.
"""

from __future__ import annotations

from antecede.errors import BadParameter, WireError
from antecede.link import EARLY_BITS, Frame
from antecede.wire.octets import Limits, Reader, Writer

__all__ = ["FRAME_BYTES", "decode_frame", "encode_frame", "encode_head"]

BARE, GREETS, EPOCHS, EARLY = 1, 2, 4, 8
LIMITS = Limits()

FRAME_BYTES = 1 + 5 * 9
"""What a frame adds to its payload, at most."""


def encode_frame(frame: Frame, agreed: tuple[int, int] = (0, 0), limits: Limits = LIMITS) -> bytes:
    """The frame as bytes, which `decode_frame` takes with the same `agreed` and limits."""
    return encode_head(frame, agreed, limits) + (b"" if frame.bare else frame.payload)


def encode_head(frame: Frame, agreed: tuple[int, int] = (0, 0), limits: Limits = LIMITS) -> bytes:
    """What comes before the payload, which can then follow without a copy of it."""
    payload = b"" if frame.bare else frame.payload
    if type(payload) is not bytes or len(payload) > limits.packet_bytes:
        raise BadParameter(
            "frame",
            f"the payload must be at most {limits.packet_bytes} bytes, not a {type(payload).__name__} of more",
        )
    if (frame.greets and not frame.bare) or frame.early & 1 or not 0 <= frame.early < 1 << EARLY_BITS:
        raise BadParameter("frame", f"its flags are not those of a link: {frame!r}"[:200])
    epochs = (frame.epoch, frame.peer) != agreed
    if not epochs and not frame.early and not frame.greets:
        head = _short_head(frame.bare, frame.number, frame.ack)
        if head is not None:
            return head
    writer = Writer(limits)
    writer.uint(BARE * frame.bare | GREETS * frame.greets | EPOCHS * epochs | EARLY * bool(frame.early))
    if epochs:
        writer.uint(frame.epoch)
        writer.uint(frame.peer)
    writer.uint(frame.number)
    writer.uint(frame.ack)
    if frame.early:
        writer.uint(frame.early >> 1)
    return bytes(writer.out)


def decode_frame(
    data: bytes | memoryview, agreed: tuple[int, int] = (0, 0), limits: Limits = LIMITS
) -> Frame:
    """The frame that these bytes are.

    >>> decode_frame(b"\\x10")
    Traceback (most recent call last):
    antecede.errors.WireError: not a packet at byte 0: flags are 16, and at most 15
    """
    if len(data) > limits.packet_bytes + FRAME_BYTES:
        raise WireError(
            f"a frame has {len(data)} bytes: at most {limits.packet_bytes + FRAME_BYTES} are allowed"
        )
    short = _short(data, agreed)
    if short is not None:
        return short
    reader = Reader(data, limits)
    flags = reader.uint()
    if flags > BARE | GREETS | EPOCHS | EARLY:
        reader.refuse(f"flags are {flags}, and at most {BARE | GREETS | EPOCHS | EARLY}", 0)
    epoch, peer = (reader.uint(), reader.uint()) if flags & EPOCHS else agreed
    number, ack = reader.uint(), reader.uint()
    early = reader.uint() << 1 if flags & EARLY else 0
    bare, greets = bool(flags & BARE), bool(flags & GREETS)
    again = EPOCHS * ((epoch, peer) != agreed) | EARLY * bool(early)
    if flags & (EPOCHS | EARLY) != again or (greets and not bare):
        reader.refuse(f"flags {flags} state what goes without saying, or greet with a payload", 0)
    payload = bytes(reader.take(len(data) - reader.at))
    if not bare:
        return Frame(epoch, peer, number, ack, early, payload)
    if payload:
        reader.refuse(f"a bare frame has a payload of {len(payload)} bytes", len(data) - len(payload))
    return Frame(epoch, peer, number, ack, early, None, True, greets)


# Most frames have numbers of three bytes at most and neither flag: the same as above, in fewer steps.


def _short_head(bare: bool, number: int, ack: int) -> bytes | None:
    if not (0 <= number < 1 << 21 and 0 <= ack < 1 << 21):
        return None
    out = [BARE * bare]
    for value in (number, ack):
        while value > 127:
            out.append(value & 127 | 128)
            value >>= 7
        out.append(value)
    return bytes(out)


def _short(data: bytes | memoryview, agreed: tuple[int, int]) -> Frame | None:
    """The frame, if it is such a one."""
    if len(data) < 7 or data[0]:
        return None
    values, at = [], 1
    for _ in range(2):
        value, shift = data[at] & 127, 7
        while data[at] > 127:
            at += 1
            if shift > 14 or data[at] == 0:
                return None
            value |= (data[at] & 127) << shift
            shift += 7
        values.append(value)
        at += 1
    return Frame(*agreed, values[0], values[1], 0, bytes(data[at:]))
