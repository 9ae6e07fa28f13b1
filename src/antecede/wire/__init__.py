"""Packets to bytes and back: compact, versioned, with limits, and without state.

>>> from antecede.model import View
>>> from antecede.protocols import create
>>> p1, p2 = (create("fifo", View.numbered(2), me) for me in (0, 1))
>>> message, [packet] = p1.send(1, b"hello")
>>> data = encode(packet)
>>> data.hex(" ")
'01 02 00 01 00 01 05 68 65 6c 6c 6f 01'
>>> decode(data) == packet
True
>>> decode(data[:-1])
Traceback (most recent call last):
antecede.errors.WireError: not a packet at byte 12: it ends where a number begins

A packet, byte for byte. uint, set, text and blob are defined in `octets`, the stamps' codes and bytes in `stamps`.

  byte 0    version: 1
  byte 1    code of the stamp
  uint      source, a position in the view
  uint      dest
  then, unless the stamp is a control:
    byte    flags: 1 the sender is not the source, 2 the destinations are not just dest, 4 there is a label, 8 there is
            a context
    uint    sender, with flag 1
    uint    number
    set     destinations, with flag 2
    text    label, with flag 4
    text    context, with flag 8
    blob    payload
  then the stamp, and nothing after it

A packet has one encoding, and `decode` takes no other: bytes that it takes, `encode` gives back. On anything else,
garbage, cut off, too large, of another version, it raises `WireError` with the place, and never another error; it
allocates nothing that the `Limits` do not allow. A packet that `encode` cannot write is the caller's mistake:
`BadParameter`. Whether a stamp fits the view and what came before, the machine says.
"""

from __future__ import annotations

from typing import Any

from antecede.errors import BadParameter, WireError
from antecede.model import Message, Packet, Stamp, mask
from antecede.wire.octets import Limits, Reader, Writer, list_members
from antecede.wire.stamps import BY_CODE, BY_STAMP, Kind

__all__ = ["VERSION", "Limits", "decode", "encode", "stamp_size"]

VERSION = 1
SENDER, DESTINATIONS, LABEL, CONTEXT = 1, 2, 4, 8
ALL = SENDER | DESTINATIONS | LABEL | CONTEXT
LIMITS = Limits()


def encode(packet: Packet[Any], limits: Limits = LIMITS) -> bytes:
    """The packet as bytes, which `decode` takes under the same limits.

    >>> from antecede.protocols.permit import Grant
    >>> encode(Packet(4, 9, Grant(200))).hex(" ")
    '01 0f 04 09 c8 01'
    """
    kind = _kind(packet)
    writer = Writer(limits)
    writer.out += bytes((VERSION, kind.code))
    writer.process(packet.source)
    writer.process(packet.dest)
    if packet.message is not None:
        _put_message(writer, packet, packet.message)
    kind.put(writer, packet)
    if len(writer.out) > limits.packet_bytes:
        raise BadParameter("packet", f"it has {len(writer.out)} bytes, and may have {limits.packet_bytes}")
    return bytes(writer.out)


def decode(data: bytes, limits: Limits = LIMITS) -> Packet[Any]:
    """The packet that these bytes are.

    >>> decode(bytes.fromhex("010f0409c801"))
    Packet(source=4, dest=9, stamp=Grant(number=200), message=None)
    >>> decode(b"GET / HTTP/1.1")
    Traceback (most recent call last):
    antecede.errors.WireError: not a packet at byte 0: it has version 71, and this program reads 1
    """
    if len(data) > limits.packet_bytes:
        raise WireError(f"a packet has {len(data)} bytes: at most {limits.packet_bytes} are allowed")
    if len(data) < 2:
        raise WireError(f"it has {len(data)} bytes, and needs 2 at least", len(data))
    if data[0] != VERSION:
        raise WireError(f"it has version {data[0]}, and this program reads {VERSION}", 0)
    kind = BY_CODE.get(data[1])
    if kind is None:
        raise WireError(f"no stamp has code {data[1]}: codes are 1..{max(BY_CODE)}", 1)
    reader = Reader(data, limits)
    reader.at = 2
    source, dest = reader.process(), reader.process()
    message = None if kind.stamp.control else _take_message(reader, source, dest)
    stamp = kind.take(reader, Packet(source, dest, _NO_STAMP, message))
    if reader.at < len(data):
        raise WireError(f"{len(data) - reader.at} bytes follow the stamp", reader.at)
    return Packet(source, dest, stamp, message)


def stamp_size(packet: Packet[Any], limits: Limits = LIMITS) -> int:
    """How many bytes the stamp takes, its code not counted.

    >>> from antecede.protocols.permit import Grant
    >>> stamp_size(Packet(4, 9, Grant(200)))
    2
    """
    kind = _kind(packet)
    writer = Writer(limits)
    kind.put(writer, packet)
    return len(writer.out)


_NO_STAMP = Stamp()


def _kind(packet: Packet[Any]) -> Kind:
    kind = BY_STAMP.get(type(packet.stamp))
    if kind is None:
        raise BadParameter(
            "packet", f"its stamp, {type(packet.stamp).__name__}, has no code in antecede.wire.stamps"
        )
    if kind.stamp.control is not (packet.message is None):
        expected = "no message" if kind.stamp.control else "a message"
        raise BadParameter("packet", f"{kind.stamp.__name__} goes with {expected}")
    return kind


def _put_message(writer: Writer, packet: Packet[Any], message: Message) -> None:
    to = message.to
    flags = SENDER * (message.sender != packet.source)
    flags |= DESTINATIONS * (to != (packet.dest,)) | LABEL * (message.label != "")
    flags |= CONTEXT * (message.context != "")
    writer.uint(flags)
    if flags & SENDER:
        writer.process(message.sender)
    writer.uint(message.number)
    if flags & DESTINATIONS:
        members = mask(to) if to and min(to) >= 0 else 0
        if not members or tuple(list_members(members)) != to:
            writer.refuse(f"destinations must be processes in increasing order, one at least, not {to}")
        writer.members(members)
    if flags & LABEL:
        writer.text(message.label)
    if flags & CONTEXT:
        writer.text(message.context)
    writer.blob(message.payload)


def _take_message(reader: Reader, source: int, dest: int) -> Message:
    start = reader.at
    flags = reader.uint()
    if flags > ALL:
        reader.refuse(f"flags are {flags}, and at most {ALL}", start)
    sender = reader.process() if flags & SENDER else source
    number = reader.uint()
    to = tuple(list_members(reader.members())) if flags & DESTINATIONS else (dest,)
    label = reader.text() if flags & LABEL else ""
    context = reader.text() if flags & CONTEXT else ""
    if not to:
        reader.refuse("a message has no destination", start)
    told = SENDER * (sender != source) | DESTINATIONS * (to != (dest,))
    if flags != told | LABEL * (label != "") | CONTEXT * (context != ""):
        reader.refuse(f"flags {flags} state what goes without saying", start)
    return Message(sender, number, to, reader.blob(), label, context)
