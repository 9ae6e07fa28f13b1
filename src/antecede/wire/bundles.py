"""Many packets of one process to one other, as bytes and back: what a frame of a link carries.

A bundle is a MessagePack array of runs, in the order of the packets. A run is an array that begins with a code. Packets
that follow each other and differ in little share one; what both ends know, the source and the destination, is not said.

  0 [packets]      each as bytes of its own (`antecede.wire`): whatever has no shorter form below
  c [to, rows]     messages of the source to the processes `to`, without label or context; c is the code of the stamp
                   (`stamps`). A row is [number, stamp, payload]: the stamp is its one number, or for `matrix` its rows
                   as arrays [process, version, counts]
  c [numbers]      control packets whose stamp is one number

Encoder and decoder run over a whole bundle at once, outside Python: a packet costs a tenth of what it costs alone.

>>> from antecede.model import View
>>> from antecede.protocols import create
>>> p1 = create("fifo", View.numbered(2), 0)
>>> packets = [p1.send(1, payload)[1][0] for payload in (b"one", b"two")]
>>> data = encode_bundle(packets)
>>> data.hex(" ")
'91 93 02 91 01 92 93 01 01 c4 03 6f 6e 65 93 02 02 c4 03 74 77 6f'
>>> decode_bundle(data, 0, 1) == packets
True
>>> decode_bundle(b"GET / HTTP/1.1", 0, 1)
Traceback (most recent call last):
antecede.errors.WireError: the payload is no bundle of packets: Expected `array`, got `int`

Numbers are unsigned and below 2**63, as elsewhere. A bundle may be written in several ways, and all are read. What the
stamps say, the machine judges.

Memory: decoding n bytes takes at most `MEMORY_FACTOR` * n + `MEMORY_BASE` bytes at any moment. The densest thing that a
bundle can say is a row of three small numbers, which becomes a tuple; packets and runs, which are larger, are at most
`PACKETS` in one bundle. So a frame of 4 MiB never becomes more than 100 MB.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct

from antecede.errors import BadParameter, Misrouted, WireError
from antecede.model import Message, Packet, Stamp, Uint
from antecede.protocols.buffer import Acknowledge, Release
from antecede.protocols.fifo import Sequence as FifoStamp
from antecede.protocols.matrix import MatrixStamp, Row
from antecede.protocols.permit import Grant, PermitStamp, Taken
from antecede.protocols.unordered import Plain
from antecede.wire import decode, encode
from antecede.wire.octets import Limits

__all__ = [
    "MEMORY_BASE",
    "MEMORY_FACTOR",
    "PACKETS",
    "decode_bundle",
    "decode_parts",
    "encode_bundle",
    "encode_whole",
]

LIMITS = Limits()

PACKETS: Final = 1 << 16
"""Packets in one bundle, at most: who has more for a peer makes several bundles of them."""
MEMORY_FACTOR: Final = 18
MEMORY_BASE: Final = 200 * PACKETS

Numbered: TypeAlias = list[tuple[Uint, Uint, bytes]]


class Whole(Struct, gc=False, array_like=True, tag=0):
    packets: list[bytes]


class PlainRun(Struct, gc=False, array_like=True, tag=1):
    to: tuple[Uint, ...]
    rows: Numbered


class FifoRun(Struct, gc=False, array_like=True, tag=2):
    to: tuple[Uint, ...]
    rows: Numbered


class MatrixRun(Struct, gc=False, array_like=True, tag=3):
    to: tuple[Uint, ...]
    rows: list[tuple[Uint, tuple[Row, ...], bytes]]


class PermitRun(Struct, gc=False, array_like=True, tag=13):
    to: tuple[Uint, ...]
    rows: Numbered
    """The stamp is twice the sequence, plus 1 if flagged."""


class AcknowledgeRun(Struct, gc=False, array_like=True, tag=8):
    numbers: list[Uint]


class ReleaseRun(Struct, gc=False, array_like=True, tag=9):
    numbers: list[Uint]


class TakenRun(Struct, gc=False, array_like=True, tag=14):
    numbers: list[Uint]


class GrantRun(Struct, gc=False, array_like=True, tag=15):
    numbers: list[Uint]


Messages: TypeAlias = PlainRun | FifoRun | MatrixRun | PermitRun
Controls: TypeAlias = AcknowledgeRun | ReleaseRun | TakenRun | GrantRun
Run: TypeAlias = Whole | Messages | Controls

Part: TypeAlias = list[Packet[Any]] | PermitRun
"""Packets, or rows that stayed rows."""

Write: TypeAlias = Callable[[Sequence[Any]], list[Any]]
"""Packets of one kind -> their rows in a run."""


def _sequences(packets: Sequence[Any]) -> list[Any]:
    return [(p.message.number, p.stamp.sequence, p.message.payload) for p in packets]


def _matrices(packets: Sequence[Any]) -> list[Any]:
    return [(p.message.number, p.stamp.rows, p.message.payload) for p in packets]


def _permits(packets: Sequence[Any]) -> list[Any]:
    # What `PermitStamp.from_number` reads.
    return [(p.message.number, p.stamp.sequence << 1 | p.stamp.flagged, p.message.payload) for p in packets]


def _numbers(packets: Sequence[Any]) -> list[Any]:
    return [packet.stamp.number for packet in packets]


def _list_sequences(packets: Sequence[Any]) -> list[Any]:
    return [packet.stamp.sequence for packet in packets]


MESSAGES: dict[type[Stamp], tuple[type[Messages], Write]] = {
    Plain: (PlainRun, _sequences),
    FifoStamp: (FifoRun, _sequences),
    MatrixStamp: (MatrixRun, _matrices),
    PermitStamp: (PermitRun, _permits),
}
CONTROLS: dict[type[Stamp], tuple[type[Controls], Write]] = {
    Acknowledge: (AcknowledgeRun, _numbers),
    Release: (ReleaseRun, _numbers),
    Taken: (TakenRun, _list_sequences),
    Grant: (GrantRun, _numbers),
}
STAMPS: dict[type[Run], Callable[[Any], Stamp]] = {
    form: stamp for stamp, (form, _) in (*MESSAGES.items(), *CONTROLS.items())
}
STAMPS[PermitRun] = PermitStamp.from_number

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Annotated[list[Run], Meta(max_length=PACKETS)])


def encode_bundle(packets: Sequence[Packet[Any]], limits: Limits = LIMITS) -> bytes:
    """The packets as bytes. They have one source and one destination."""
    runs: list[Run] = []
    start = 0
    while start < len(packets):
        end = _extent(packets, start)
        runs.append(_run(packets[start:end], limits))
        start = end
    try:
        return _ENCODER.encode(runs)
    except OverflowError:
        raise BadParameter("packet", "a number must be below 2**63, and one is 2**64 or more") from None


def _extent(packets: Sequence[Packet[Any]], start: int) -> int:
    """Where the run ends that starts here."""
    first = packets[start]
    kind, to = type(first.stamp), None if first.message is None else first.message.to
    if not _is_short(first):
        return start + 1
    for end in range(start + 1, len(packets)):
        packet = packets[end]
        message = packet.message
        if type(packet.stamp) is not kind or (
            message is not None
            and (message.to != to or message.label or message.context or message.sender != packet.source)
        ):
            return end
    return len(packets)


def _is_short(packet: Packet[Any]) -> bool:
    """Whether there is a form for it that says less than the whole."""
    message, kind = packet.message, type(packet.stamp)
    if message is None:
        return kind in CONTROLS
    plain = not message.label and not message.context
    return kind in MESSAGES and plain and message.sender == packet.source


def _run(packets: Sequence[Packet[Any]], limits: Limits) -> Run:
    """The run of packets that go together."""
    first = packets[0]
    if not _is_short(first):
        return Whole([encode(first, limits)])
    if first.message is None:
        shape, numbers = CONTROLS[type(first.stamp)]
        return shape(numbers(packets))
    form, rows = MESSAGES[type(first.stamp)]
    return form(first.message.to, rows(packets))


def encode_whole(packet: Packet[Any], limits: Limits = LIMITS) -> bytes:
    """A bundle of one packet, in the fewest bytes."""
    return _ENCODER.encode([Whole([encode(packet, limits)])])


def decode_bundle(data: bytes, source: int, dest: int, limits: Limits = LIMITS) -> list[Packet[Any]]:
    """The packets, which came over the link from `source` to `dest`."""
    return [
        packet
        for part in decode_parts(data, source, dest, limits)
        if isinstance(part, list)
        for packet in part
    ]


def decode_parts(
    data: bytes, source: int, dest: int, limits: Limits = LIMITS, numbers: type[Stamp] | None = None
) -> list[Part]:
    """The same, in parts. Messages with stamps of the kind `numbers`, which are numbers, stay rows."""
    try:
        runs = _DECODER.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise WireError(f"the payload is no bundle of packets: {error}") from None
    count = sum(map(_count, runs)) if len(data) > PACKETS else 0
    if count > PACKETS:
        raise WireError(f"a bundle has {count} packets: at most {PACKETS} are allowed")
    stay = numbers is PermitStamp
    parts: list[Part] = [
        run if stay and isinstance(run, PermitRun) else _packets(run, source, dest, limits) for run in runs
    ]
    if len(data) > limits.payload_bytes:
        _check_payloads(parts, limits)
    return parts


def _packets(run: Run, source: int, dest: int, limits: Limits) -> list[Packet[Any]]:
    match run:
        case PlainRun() | FifoRun() | MatrixRun() | PermitRun():
            to, stamp = run.to, STAMPS[type(run)]
            return [
                Packet(source, dest, stamp(n), Message(source, number, to, payload))
                for number, n, payload in run.rows
            ]
        case Whole():
            return [_decode(raw, source, limits) for raw in run.packets]
        case _:
            control = STAMPS[type(run)]
            return [Packet(source, dest, control(n)) for n in run.numbers]


def _count(run: Run) -> int:
    match run:
        case Whole():
            return len(run.packets)
        case PlainRun() | FifoRun() | MatrixRun() | PermitRun():
            return len(run.rows)
        case _:
            return len(run.numbers)


def _decode(raw: bytes, source: int, limits: Limits) -> Packet[Any]:
    packet = decode(raw, limits)
    if packet.source != source:
        raise Misrouted(f"#{packet.dest}", f"it comes from #{packet.source} over the link of #{source}")
    return packet


def _check_payloads(parts: list[Part], limits: Limits) -> None:
    for part in parts:
        payloads = (
            [packet.message.payload for packet in part if packet.message is not None]
            if isinstance(part, list)
            else [payload for _, _, payload in part.rows]
        )
        most = max(map(len, payloads), default=0)
        if most > limits.payload_bytes:
            raise WireError(f"a payload has {most} bytes: at most {limits.payload_bytes} are allowed")
