"""How many bytes a stamp and a packet take, as `antecede.wire` writes them, without writing what need not be.

Stamps of a single number are told by arithmetic: their protocols do so little else that writing them would be a good
part of a run. A row of a matrix is written once, and its size remembered by its version: a packet carries dozens of
them that were measured before. Every other stamp is written and measured.

The wire does not know the stamps of a machine from a file (`antecede.plugin`): they count as MessagePack writes their
fields, and the rest of their packets as the wire writes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from antecede.errors import BadParameter
from antecede.model import Packet, Stamp, mask
from antecede.protocols.buffer import Acknowledge, Posted, Release
from antecede.protocols.fifo import Sequence
from antecede.protocols.machine import portable
from antecede.protocols.matrix import MatrixStamp
from antecede.protocols.permit import Grant, PermitStamp, Taken
from antecede.protocols.unordered import Plain
from antecede.wire import Limits, encode, stamp_size
from antecede.wire.octets import Writer
from antecede.wire.stamps import BY_STAMP

__all__ = ["Sizes", "brief"]

ROWS_MOST = 1 << 14
"""Rows whose size is remembered; then all are forgotten, and measured again when they are met."""


def _uint(value: int) -> int:
    """The bytes of a uint of `antecede.wire.octets`."""
    return 1 if value < 128 else (value.bit_length() + 6) // 7


def _sequence(stamp: Any) -> int:
    return 1 if stamp.sequence < 128 else (stamp.sequence.bit_length() + 6) // 7


def _number(stamp: Any) -> int:
    return _uint(stamp.number)


_SHORT: Mapping[type[Stamp], Callable[[Any], int]] = {
    Plain: _sequence,
    Sequence: _sequence,
    Posted: lambda stamp: 0,
    Acknowledge: _number,
    Release: _number,
    PermitStamp: lambda stamp: _uint(stamp.sequence << 1),
    Taken: _sequence,
    Grant: _number,
}


def brief(kinds: Iterable[type[Stamp]]) -> bool:
    """Whether stamps of these kinds are told by arithmetic. All of such a kind have the same number of entries."""
    return all(kind in _SHORT for kind in kinds)


_ACKNOWLEDGE, _POSTED = Acknowledge(1), Posted()


def _measure_fields(stamp: Stamp) -> int:
    try:
        return len(msgspec.msgpack.encode(portable(msgspec.structs.astuple(stamp))))
    except TypeError as error:
        raise BadParameter(
            "simulate", f"the stamp {type(stamp).__name__} has a field that MessagePack cannot write: {error}"
        ) from error


class Sizes:
    """The sizes of the packets of one run.

    >>> from antecede.sim.sizes import Sizes
    >>> Sizes().stamp(Packet(0, 1, Taken(128)))
    2
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int], int] = {}
        """(process, version) -> the bytes of that row of the matrix."""
        self._limits = Limits(processes=1 << 20)

    def stamp(self, packet: Packet[Any]) -> int:
        """What `wire.stamp_size` gives."""
        stamp = packet.stamp
        short = _SHORT.get(type(stamp))
        if short is not None:
            return short(stamp)
        if type(stamp) is MatrixStamp:
            return self._matrix(packet)
        return stamp_size(packet) if type(stamp) in BY_STAMP else _measure_fields(stamp)

    def many(self, stamps: list[Any]) -> Counter[int]:
        """Size -> how many of these have it; they are brief, and of one kind."""
        return Counter(map(_SHORT[type(stamps[0])], stamps))

    def packet(self, packet: Packet[Any]) -> int:
        """The whole packet."""
        if type(packet.stamp) in BY_STAMP:
            return len(encode(packet))
        known = Packet(
            packet.source, packet.dest, _ACKNOWLEDGE if packet.message is None else _POSTED, packet.message
        )
        return len(encode(known)) - stamp_size(known) + _measure_fields(packet.stamp)

    def _matrix(self, packet: Packet[MatrixStamp]) -> int:
        rows, known = packet.stamp.rows, self._rows
        if len(known) > ROWS_MOST:
            known.clear()
        writer = Writer(self._limits)
        writer.members(mask([row.process for row in rows[:-1]]))
        # The sender's own row, the last, goes without its version: that is the message's number.
        total = _uint(len(rows[-1].counts)) + len(writer.out) - _uint(rows[-1].version)
        for row in rows:
            key = row.process, row.version
            if key not in known:
                writer = Writer(self._limits)
                writer.vector(row.counts)
                known[key] = len(writer.out) + _uint(row.version)
            total += known[key]
        return total
