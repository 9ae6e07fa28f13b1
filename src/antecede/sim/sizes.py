"""How many bytes a stamp and a packet take, as `antecede.wire` writes them, without writing what need not be.

The stamps of a single number are told by arithmetic: they are the ones whose protocols do so little else that writing
them would be a good part of a run. Every other stamp is written and measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from antecede.model import Packet, Stamp
from antecede.protocols.buffer import Acknowledge, Posted, Release
from antecede.protocols.fifo import Sequence
from antecede.protocols.permit import Grant, PermitStamp, Taken
from antecede.protocols.unordered import Plain
from antecede.wire import encode, stamp_size

__all__ = ["packet_bytes", "stamp_bytes"]


def _uint(value: int) -> int:
    """The bytes of a uint of `antecede.wire.octets`."""
    return 1 if value < 128 else (value.bit_length() + 6) // 7


_SHORT: Mapping[type[Stamp], Callable[[Any], int]] = {
    Plain: lambda stamp: _uint(stamp.sequence),
    Sequence: lambda stamp: _uint(stamp.sequence),
    Posted: lambda stamp: 0,
    Acknowledge: lambda stamp: _uint(stamp.number),
    Release: lambda stamp: _uint(stamp.number),
    PermitStamp: lambda stamp: _uint(stamp.sequence << 1),
    Taken: lambda stamp: _uint(stamp.sequence),
    Grant: lambda stamp: _uint(stamp.number),
}


def stamp_bytes(packet: Packet[Any]) -> int:
    """What `wire.stamp_size` gives.

    >>> stamp_bytes(Packet(0, 1, Taken(128)))
    2
    """
    short = _SHORT.get(type(packet.stamp))
    return stamp_size(packet) if short is None else short(packet.stamp)


def packet_bytes(packet: Packet[Any]) -> int:
    """The whole packet."""
    return len(encode(packet))
