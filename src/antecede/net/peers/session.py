"""What passes over one connection, in both directions, as a pure state machine: bytes in, records out.

A record is four bytes that give the length of the rest (highest first), one byte that gives its kind, and its body.

  1 hello    who speaks, to whom, of which view and protocol, and a first frame (MessagePack); the first record of each
             side, and only the first
  2 frame    a frame of the link (`antecede.wire.frames`); its payload is a bundle of packets (`antecede.wire.bundles`)
  3 beat     one byte: 1 please send no more messages for now, 0 go on; also a sign of life
  4 bye      a sentence (UTF-8): why the connection ends
  5 join     instead of a hello, from one that wants to be a member (MessagePack)
  6 welcome  the answer: the view that it is in (MessagePack)

Nothing is believed before the hello: until it is there, a record has `HELLO_BYTES` at most, and after it no more than
a frame may have. So a stranger cannot make us keep more than that, whatever length it announces.

>>> from antecede.link import Link
>>> hello = Hello.of("orders", "billing", "matrix", ("billing", "orders"), Link(epoch=7).hail())
>>> session = Session(epoch=9)
>>> data = pack(hello) + pack(Beat(paused=True))
>>> session.feed(data[:9])
[]
>>> session.feed(data[9:]) == [hello, Beat(paused=True)]
True
>>> session.agreed
(7, 9)
>>> Session(epoch=9).feed(b"GET / HTTP/1.1")
Traceback (most recent call last):
antecede.errors.WireError: not a packet: found a record of 1195725856 bytes, expected 1..65536
"""

from __future__ import annotations

from typing import Any, TypeAlias, assert_never

import msgspec
from msgspec import Struct

from antecede import wire
from antecede.errors import BadHello, WireError
from antecede.link import Frame
from antecede.process.views.members import Roll
from antecede.wire.frames import FRAME_BYTES, decode_frame, encode_frame, encode_head

__all__ = [
    "HELLO_BYTES",
    "Beat",
    "Bye",
    "Hello",
    "Join",
    "Record",
    "Session",
    "Welcome",
    "check_hello",
    "pack",
    "pack_frame",
]

VERSION = 1
HELLO_BYTES = 1 << 16
BYE_BYTES = 1000
HELLO, FRAME, BEAT, BYE, JOIN, WELCOME = 1, 2, 3, 4, 5, 6


class Hello(Struct, frozen=True):
    """Who speaks. Both sides must mean the same system."""

    name: str
    to: str
    protocol: str
    view: tuple[str, ...]
    frame: bytes
    """The hail of the link, with its incarnations."""
    antecede: int = VERSION

    @classmethod
    def of(cls, name: str, to: str, protocol: str, view: tuple[str, ...], hail: Frame) -> Hello:
        return cls(name, to, protocol, view, encode_frame(hail))

    @property
    def hail(self) -> Frame:
        return decode_frame(self.frame)


class Join(Struct, frozen=True):
    """Who wants to be a member."""

    name: str
    to: str
    protocol: str
    parameters: dict[str, Any]
    address: str
    groups: tuple[str, ...]
    antecede: int = VERSION


class Welcome(Struct, frozen=True):
    roll: Roll


class Beat(Struct, frozen=True):
    paused: bool


class Bye(Struct, frozen=True):
    reason: str


Record: TypeAlias = Hello | Frame | Beat | Bye | Join | Welcome

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Hello)
_DECODERS: dict[int, msgspec.msgpack.Decoder[Any]] = {
    JOIN: msgspec.msgpack.Decoder(Join),
    WELCOME: msgspec.msgpack.Decoder(Welcome),
}


def pack(record: Record, agreed: tuple[int, int] = (0, 0), limits: wire.Limits | None = None) -> bytes:
    """A record as bytes."""
    match record:
        case Frame():
            kind, body = FRAME, encode_frame(record, agreed, limits or wire.Limits())
        case Hello():
            kind, body = HELLO, _ENCODER.encode(record)
        case Join():
            kind, body = JOIN, _ENCODER.encode(record)
        case Welcome():
            kind, body = WELCOME, _ENCODER.encode(record)
        case Beat():
            kind, body = BEAT, bytes([record.paused])
        case Bye():
            kind, body = BYE, record.reason.encode(errors="replace")[:BYE_BYTES]
        case _:
            assert_never(record)
    return (len(body) + 1).to_bytes(4, "big") + bytes([kind]) + body


def pack_frame(frame: Frame, agreed: tuple[int, int], limits: wire.Limits) -> tuple[bytes, bytes]:
    """The same for a frame, in two parts: its payload, which may be large, is not copied."""
    payload = b"" if frame.bare else frame.payload
    head = encode_head(frame, agreed, limits)
    return (len(head) + len(payload) + 1).to_bytes(4, "big") + bytes([FRAME]) + head, payload


class Session:
    """The receiving side of a connection; `epoch` is the incarnation of our end of the link."""

    def __init__(self, epoch: int, limits: wire.Limits | None = None) -> None:
        self.limits = limits or wire.Limits()
        self.agreed = (0, epoch)
        """The (epoch, peer) of frames that come without, see `antecede.wire.frames`: what the two hellos said."""
        self.greeted = False
        self._buffer = bytearray()
        """The beginning of a record."""
        self._wanted = 4
        """How long it has to be before there is something in it."""

    def feed(self, data: bytes | memoryview) -> list[Record]:
        """The records that are complete now. Raises `WireError` or `BadHello` at the first that is none.

        Nothing of `data` is kept but what is copied: it may be a buffer that is used again.
        """
        records: list[Record] = []
        view, at, end = memoryview(data), 0, len(data)
        if self._buffer:
            at = self._complete(view, records)
        while end - at >= 4:
            size = int.from_bytes(view[at : at + 4], "big")
            self._check_size(size)
            if end - at - 4 < size:
                self._wanted = size + 4
                break
            records.append(self._record(view[at + 4], view[at + 5 : at + 4 + size]))
            at += 4 + size
        if at < end:
            self._buffer += view[at:]
        return records

    def _complete(self, view: memoryview, records: list[Record]) -> int:
        """Go on with the record that has begun; how much of this belonged to it."""
        buffer, at = self._buffer, 0
        while True:
            more = view[at : at + self._wanted - len(buffer)]
            buffer += more
            at += len(more)
            if len(buffer) < self._wanted:
                return at
            if self._wanted > 4:
                break
            size = int.from_bytes(buffer, "big")
            self._check_size(size)
            self._wanted = size + 4
        self._buffer, self._wanted = bytearray(), 4
        whole = memoryview(buffer)
        records.append(self._record(whole[4], whole[5:]))
        return at

    def _check_size(self, size: int) -> None:
        most = self.limits.packet_bytes + FRAME_BYTES + 1 if self.greeted else HELLO_BYTES
        if not 1 <= size <= most:
            raise WireError(f"a record of {size} bytes", f"1..{most}")

    def _record(self, kind: int, body: memoryview) -> Record:
        if kind == BYE:
            return Bye(bytes(body[:BYE_BYTES]).decode(errors="replace"))
        if (kind in (HELLO, JOIN)) is self.greeted:
            raise BadHello(f"a record of kind {kind}", "one hello, and as the first")
        if kind == HELLO:
            self.greeted = True
            return self._hello(body)
        if kind in (JOIN, WELCOME):
            self.greeted = True
            return _greeting(kind, bytes(body))
        if kind == FRAME:
            return decode_frame(body, self.agreed, self.limits)
        if kind == BEAT and bytes(body) in (b"\0", b"\1"):
            return Beat(bytes(body) == b"\1")
        raise WireError(f"a record of kind {kind} with {len(body)} bytes", "a frame, a beat or a bye")

    def _hello(self, body: memoryview) -> Hello:
        try:
            hello = _DECODER.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadHello(f"no hello: {error}", f"one of version {VERSION}") from None
        if hello.antecede != VERSION:
            raise BadHello(f"version {hello.antecede}", f"{VERSION}")
        self.agreed = hello.hail.epoch, self.agreed[1]
        return hello


def _greeting(kind: int, body: bytes) -> Join | Welcome:
    try:
        greeting: Join | Welcome = _DECODERS[kind].decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadHello(f"no hello: {error}", f"one of version {VERSION}") from None
    if isinstance(greeting, Join) and greeting.antecede != VERSION:
        raise BadHello(f"version {greeting.antecede}", f"{VERSION}")
    return greeting


def check_hello(found: Hello, expected: Hello) -> None:
    """Refuse a peer of another system. `expected` is our own hello to it, or to whoever it says that it is."""
    if found.to != expected.name:
        raise BadHello(f"{found.name} looking for {found.to}", f"one for {expected.name}")
    if found.name != expected.to:
        raise BadHello(f"{found.name}", f"{expected.to}")
    if found.view != expected.view:
        raise BadHello(f"a view of {', '.join(found.view)}"[:200], ", ".join(expected.view)[:200])
    if found.protocol != expected.protocol:
        raise BadHello(f"protocol {found.protocol}", expected.protocol)
