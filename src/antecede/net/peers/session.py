"""What passes over one connection, in both directions, as a pure state machine: bytes in, records out.

A record is four bytes that give the length of the rest (highest first), one byte that gives its kind, and its body.

  1 hello    who speaks, to whom, of which view, on which terms, and a first frame (MessagePack); the first record of
             each side, and only the first
  2 frame    a frame of the link (`antecede.wire.frames`); its payload is a bundle of packets (`antecede.wire.bundles`)
  3 beat     one byte: 1 please send no more messages for now, 0 go on; also a sign of life
  4 bye      why the connection ends: one byte, a `Code`, and a sentence for people (UTF-8)
  5 join     instead of a hello, from one that wants to be a member (MessagePack)
  6 welcome  the answer: the view that it is in (MessagePack)

What a peer says is data. Decisions hang on `Code`, never on a sentence. Every field has a closed type, so nothing nests
deeper than these types do; a record that tries is refused like any other that is none. Until the hello is there, a
record has `HELLO_BYTES` at most, and after it no more than a frame may have: a stranger cannot make a node keep more,
whatever length it announces. A decoded hello or join takes at most `SWELL` times its bytes in memory.

A node that knows more fields than its peer adds them at the end, and the peer ignores them; fields that a peer does not
know have defaults. So nodes of two versions meet, and compare their `Terms` (`antecede.net.peers.terms`).

>>> from antecede.link import Link
>>> hello = Hello.of("orders", "billing", ("billing", "orders"), Terms("matrix"), Link(epoch=7).hail())
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
antecede.errors.WireError: a record has 1195725856 bytes, and may have 1..65536
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeAlias, assert_never

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from antecede import wire
from antecede.errors import BadHello, WireError
from antecede.link import Frame
from antecede.net.peers.terms import Parameters, Terms, check_terms
from antecede.process.views.members import Roll, Where
from antecede.wire.frames import FRAME_BYTES, decode_frame, encode_frame, encode_head

__all__ = [
    "HELLO_BYTES",
    "SWELL",
    "Beat",
    "Bye",
    "Code",
    "Gone",
    "Hello",
    "Join",
    "Record",
    "Rejected",
    "Session",
    "Welcome",
    "check_hello",
    "pack",
    "pack_frame",
]

VERSION = 1
HELLO_BYTES = 1 << 16
SWELL = 40
"""Bytes of memory that one byte of a hello or a join becomes, at most."""
BYE_BYTES = 1000
HELLO, FRAME, BEAT, BYE, JOIN, WELCOME = 1, 2, 3, 4, 5, 6


class Code(IntEnum):
    """Why a connection ends. Codes are below 32, where no sentence begins."""

    OTHER = 0
    """No reason that this version knows."""
    STOPS = 1
    """The node that says it stops, and will be dialled again."""
    GONE = 2
    """The node that hears it is no member any more: it left, or was removed."""
    REFUSED = 3
    """The node that hears it said something that the other does not take."""
    MEMBER = 4
    """The node that hears it is a member, and will be dialled by the one that says it."""


_CODES = frozenset(Code)


class Gone(BadHello):
    """A peer that is no member any more: it is told so."""


class Rejected(BadHello):
    """The peer refused us, by this code."""

    def __init__(self, code: Code, reason: str) -> None:
        self.code = code
        super().__init__(reason)


class Hello(Struct, frozen=True):
    """Who speaks. Both sides must mean the same system."""

    name: str
    to: str
    protocol: str
    view: tuple[str, ...]
    frame: bytes
    """The hail of the link, with its incarnations."""
    antecede: int = VERSION
    wire: int = 1
    parameters: Parameters | None = None
    packet_bytes: int | None = None
    payload_bytes: int | None = None
    window: int | None = None
    queue: int | None = None
    queue_bytes: int | None = None
    groups: tuple[int, str] | None = None

    @classmethod
    def of(cls, name: str, to: str, view: tuple[str, ...], terms: Terms, hail: Frame) -> Hello:
        return cls(name=name, to=to, view=view, frame=encode_frame(hail), **asdict(terms))

    @property
    def hail(self) -> Frame:
        return decode_frame(self.frame)

    @property
    def terms(self) -> Terms:
        return Terms(**{name: getattr(self, name) for name in Terms.__struct_fields__})


class Join(Struct, frozen=True):
    """Who wants to be a member."""

    name: str
    to: str
    protocol: str
    parameters: Parameters
    address: str
    groups: tuple[str, ...]
    antecede: int = VERSION
    where: Where | None = None


class Welcome(Struct, frozen=True):
    roll: Roll


class Beat(Struct, frozen=True):
    paused: bool


class Bye(Struct, frozen=True):
    code: Code
    reason: str
    """For people: nothing is decided by it."""


Record: TypeAlias = Hello | Frame | Beat | Bye | Join | Welcome
Greeting: TypeAlias = Hello | Join | Welcome

_ENCODER = msgspec.msgpack.Encoder()
GREETINGS: dict[type[Greeting], int] = {Hello: HELLO, Join: JOIN, Welcome: WELCOME}
_DECODERS: dict[int, msgspec.msgpack.Decoder[Any]] = {
    code: msgspec.msgpack.Decoder(kind) for kind, code in GREETINGS.items()
}


def pack(record: Record, agreed: tuple[int, int] = (0, 0), limits: wire.Limits | None = None) -> bytes:
    """A record as bytes."""
    match record:
        case Frame():
            kind, body = FRAME, encode_frame(record, agreed, limits or wire.Limits())
        case Hello() | Join() | Welcome():
            kind, body = GREETINGS[type(record)], _ENCODER.encode(record)
        case Beat():
            kind, body = BEAT, bytes([record.paused])
        case Bye():
            kind, body = BYE, bytes([record.code]) + record.reason.encode(errors="replace")[:BYE_BYTES]
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
            records.append(self._decode_record(view[at + 4], view[at + 5 : at + 4 + size]))
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
        records.append(self._decode_record(whole[4], whole[5:]))
        return at

    def _check_size(self, size: int) -> None:
        most = self.limits.packet_bytes + FRAME_BYTES + 1 if self.greeted else HELLO_BYTES
        if not 1 <= size <= most:
            raise WireError(f"a record has {size} bytes, and may have 1..{most}")

    def _decode_record(self, kind: int, body: memoryview) -> Record:
        if kind == BYE:
            return _decode_bye(bytes(body[: BYE_BYTES + 1]))
        if (kind in (HELLO, JOIN)) is self.greeted:
            raise BadHello(
                "a second hello came" if self.greeted else f"a record of kind {kind} came before the hello"
            )
        if kind in (HELLO, JOIN, WELCOME):
            self.greeted = True
            greeting = _decode_greeting(kind, body)
            if isinstance(greeting, Hello):
                self.agreed = greeting.hail.epoch, self.agreed[1]
            return greeting
        if kind == FRAME:
            return decode_frame(body, self.agreed, self.limits)
        if kind == BEAT and bytes(body) in (b"\0", b"\1"):
            return Beat(bytes(body) == b"\1")
        raise WireError(f"a record of kind {kind} with {len(body)} bytes is no frame, no beat and no bye")


def _decode_bye(body: bytes) -> Bye:
    # A peer of the first version says a sentence alone.
    coded = body[:1] < b" "
    code = Code(body[0]) if coded and body and body[0] in _CODES else Code.OTHER
    return Bye(code, body[coded:].decode(errors="replace"))


def _decode_greeting(kind: int, body: memoryview) -> Greeting:
    try:
        greeting: Greeting = _DECODERS[kind].decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        # What nests deeper than the interpreter goes can only be in a field that nobody knows.
        raise BadHello(f"the hello cannot be read: {error}") from None
    if not isinstance(greeting, Welcome) and greeting.antecede != VERSION:
        raise BadHello(
            f"the hello has version {greeting.antecede}, and this node speaks {VERSION}: upgrade the older of the two"
        )
    return greeting


def check_hello(found: Hello, expected: Hello) -> None:
    """Refuse a peer of another system, or one on other terms. `expected` is our own hello to it."""
    if found.to != expected.name:
        raise BadHello(
            f"{found.name} looks for {found.to}"[:200]
            + f", and {expected.name} listens here: check the addresses of both"
        )
    if found.name != expected.to:
        raise BadHello(
            f"{found.name}"[:200]
            + f" answers where {expected.to} was dialled: check the address of {expected.to}"
        )
    if found.view != expected.view:
        raise BadHello(
            f"{found.name} belongs to a system that {', '.join(found.view)}"[:300]
            + f" founded, and {expected.name} to one that {', '.join(expected.view)}"[:300]
            + " founded: give all founders the same peers"
        )
    check_terms(expected.terms, found.terms, found.name, expected.name)
