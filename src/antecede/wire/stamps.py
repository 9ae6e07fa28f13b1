"""Each protocol's stamp to bytes and back. What a stamp says twice, or its message says already, travels once.

uint, set, counts and vector are those of `octets`, history and identifiers those of `histories`. Codes are never given
again: a new stamp gets the next one. 16 was `HopStamp` without a clock, 17 `Flush`.

code  stamp         bytes
   1  Plain         uint sequence
   2  Sequence      uint sequence
   3  MatrixStamp   uint n; the set of its rows' processes, but for the source; for each of them uint version, vector;
                    then the source's row: vector. Its version is the message's number.
   4  BoundedStamp  the set of columns that are not empty; for each of them the set of rows, counts.
                    The sequence is M[source, dest] + 1.
   5  Extra         the set of rows of column dest, counts. The sequence is M[source, dest] + 1.
   6  MonitorStamp  uint sequence, uint n, vector
   7  Posted        nothing
   8  Acknowledge   uint number
   9  Release       uint number
  10  HistoryStamp  history
  11  VectorStamp   uint n; vector, without the entry of the source: that is the message's number
  12  LogStamp      identifiers, each followed by the set Dests
  13  PermitStamp   uint, twice the sequence, plus 1 if flagged
  14  Taken         uint sequence
  15  Grant         uint number
  18  Got           uint number
  19  Stable        uint number
  20  Relayed       uint source, then as HopStamp
  21  Resumed       the set failed, uint after, uint source, uint last, uint version
  22  HopStamp      uint number, uint version, uint clock, the set `to`, the set targets, history
  23  ContextStamp  uint, 1 if explicit; a count for each destination of the message; the set of destinations of
                    `after`; for each of them identifiers: sender and count
  24  SparingStamp  a count for each destination of the message; uint taken, number, heard; known, as the column of an
                    Extra; then as BoundedStamp; a number for each of its entries
  25  SparingExtra  uint sequence, uint taken; then as Extra
  26  UnderwayStamp as LogStamp
  27  Receipt       uint number
  28  Settled       uint process, uint number

A sparse matrix is a set: it is read back in increasing order, column by column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from antecede.model import Message, Packet, Stamp, mask
from antecede.protocols.bounded import BoundedStamp, Extra
from antecede.protocols.broadcast import VectorStamp
from antecede.protocols.buffer import Acknowledge, Posted, Release
from antecede.protocols.contexts import ContextStamp
from antecede.protocols.fifo import Sequence as FifoStamp
from antecede.protocols.history import HistoryStamp
from antecede.protocols.matrix import MatrixStamp, Row
from antecede.protocols.monitor import MonitorStamp
from antecede.protocols.optimal import LogStamp
from antecede.protocols.permit import Grant, PermitStamp, Taken
from antecede.protocols.relay import Got, Relayed, Stable
from antecede.protocols.separator import HopStamp, Resumed
from antecede.protocols.sparing import SparingExtra, SparingStamp
from antecede.protocols.underway import Receipt, Settled, UnderwayStamp
from antecede.protocols.unordered import Plain
from antecede.wire.histories import (
    put_contexts,
    put_history,
    put_hop,
    put_log,
    put_relayed,
    put_underway,
    take_contexts,
    take_history,
    take_hop,
    take_log,
    take_relayed,
    take_underway,
)
from antecede.wire.octets import Reader, Writer, list_members

__all__ = ["BY_CODE", "BY_STAMP", "Kind"]


class Kind(NamedTuple):
    """One line of the table. `take` is given what was read before the stamp: a packet that has none yet."""

    code: int
    stamp: type[Stamp]
    put: Callable[[Writer, Packet[Any]], None]
    take: Callable[[Reader, Packet[Any]], Stamp]


def _message(packet: Packet[Any]) -> Message:
    assert packet.message is not None, "the stamp of a message"
    return packet.message


# Stamps of one number, or none.


def _number(code: int, stamp: Callable[[int], Stamp], field: str) -> Kind:
    def put(writer: Writer, packet: Packet[Any]) -> None:
        writer.uint(getattr(packet.stamp, field))

    def take(reader: Reader, packet: Packet[Any]) -> Stamp:
        return stamp(reader.uint())

    assert isinstance(stamp, type)
    return Kind(code, stamp, put, take)


def _put_posted(writer: Writer, packet: Packet[Posted]) -> None:
    pass


def _take_posted(reader: Reader, packet: Packet[Any]) -> Posted:
    return Posted()


def _put_permit(writer: Writer, packet: Packet[PermitStamp]) -> None:
    writer.uint(packet.stamp.sequence << 1 | packet.stamp.flagged)


def _take_permit(reader: Reader, packet: Packet[Any]) -> PermitStamp:
    number = reader.uint()
    return PermitStamp(number >> 1, bool(number & 1))


def _put_resumed(writer: Writer, packet: Packet[Resumed]) -> None:
    writer.members(packet.stamp.failed)
    stamp = packet.stamp
    for number in (stamp.after, stamp.source, stamp.last, stamp.version):
        writer.uint(number)


def _take_resumed(reader: Reader, packet: Packet[Any]) -> Resumed:
    return Resumed(reader.members(), reader.uint(), reader.uint(), reader.uint(), reader.uint())


# Vectors and matrices


def _put_vector(writer: Writer, packet: Packet[VectorStamp]) -> None:
    source, vector, number = packet.source, packet.stamp.vector, _message(packet).number
    writer.reserve(len(vector))
    if source >= len(vector) or vector[source] != number:
        writer.refuse(f"the vector {vector} must count message {number} of #{source}")
    writer.uint(len(vector))
    writer.vector(vector[:source] + vector[source + 1 :])


def _take_vector(reader: Reader, packet: Packet[Any]) -> VectorStamp:
    start, source = reader.at, packet.source
    n = reader.size()
    reader.reserve(n, start)
    if source >= n:
        reader.refuse(f"a vector of {n} has no entry of its source, {source}", start)
    others = reader.vector(n - 1)
    return VectorStamp((*others[:source], _message(packet).number, *others[source:]))


def _put_monitor(writer: Writer, packet: Packet[MonitorStamp]) -> None:
    stamp = packet.stamp
    writer.reserve(len(stamp.vector))
    writer.uint(stamp.sequence)
    writer.uint(len(stamp.vector))
    writer.vector(stamp.vector)


def _take_monitor(reader: Reader, packet: Packet[Any]) -> MonitorStamp:
    sequence, start = reader.uint(), reader.at
    n = reader.size()
    reader.reserve(n, start)
    return MonitorStamp(sequence, reader.vector(n))


def _put_matrix(writer: Writer, packet: Packet[MatrixStamp]) -> None:
    rows, source, number = packet.stamp.rows, packet.source, _message(packet).number
    if not rows or (rows[-1].process, rows[-1].version) != (source, number):
        writer.refuse(f"row {source} of version {number} must be the last of the rows {rows}")
    n = len(rows[-1].counts)
    others = [row.process for row in rows[:-1]]
    if any(len(row.counts) != n for row in rows):
        writer.refuse(f"the rows of a matrix must have {n} counts each")
    if source in others or others != sorted(set(others)):
        writer.refuse(f"the rows must be of others than {source}, in increasing order, not of {others}")
    writer.reserve(n * len(rows))
    writer.uint(n)
    writer.members(mask(others))
    for row in rows[:-1]:
        writer.uint(row.version)
        writer.vector(row.counts)
    writer.vector(rows[-1].counts)


def _take_matrix(reader: Reader, packet: Packet[Any]) -> MatrixStamp:
    n, start = reader.size(), reader.at
    others = reader.members()
    if others >> packet.source & 1:
        reader.refuse(
            f"the row of {packet.source} comes twice: the source's own comes once, at the end", start
        )
    reader.reserve(n * (others.bit_count() + 1), start)
    rows = [Row(process, reader.uint(), reader.vector(n)) for process in list_members(others)]
    rows.append(Row(packet.source, _message(packet).number, reader.vector(n)))
    return MatrixStamp(tuple(rows))


# Sparse matrices


def _put_column(writer: Writer, column: dict[int, int]) -> None:
    writer.members(mask(column))
    writer.counts([column[i] for i in sorted(column)])


def _take_column(reader: Reader) -> Iterator[tuple[int, int]]:
    members = reader.members()
    return zip(list_members(members), reader.counts(members.bit_count()), strict=True)


def _put_bounded(writer: Writer, packet: Packet[BoundedStamp]) -> None:
    matrix = packet.stamp.matrix
    _check_sequence(writer, packet, {i: count for i, j, count in matrix if j == packet.dest})
    _put_entries(writer, matrix)


def _take_bounded(reader: Reader, packet: Packet[Any]) -> BoundedStamp:
    matrix = _take_entries(reader)
    own = [count for i, j, count in matrix if (i, j) == (packet.source, packet.dest)]
    return BoundedStamp(own[0] + 1 if own else 1, matrix)


def _take_entries(reader: Reader) -> tuple[tuple[int, int, int], ...]:
    """A sparse matrix, column by column."""
    matrix: list[tuple[int, int, int]] = []
    for j in list_members(reader.members()):
        start, before = reader.at, len(matrix)
        matrix += [(i, j, count) for i, count in _take_column(reader)]
        if len(matrix) == before:
            reader.refuse(f"column {j} is empty", start)
        reader.reserve(len(matrix), start)
    return tuple(matrix)


def _put_entries(writer: Writer, matrix: tuple[tuple[int, int, int], ...]) -> None:
    writer.reserve(len(matrix))
    columns: dict[int, dict[int, int]] = {}
    for i, j, count in matrix:
        columns.setdefault(j, {})[i] = count
    if sum(map(len, columns.values())) < len(matrix):
        writer.refuse(f"the matrix {matrix} has an entry twice")
    writer.members(mask(columns))
    for j in sorted(columns):
        _put_column(writer, columns[j])


def _put_sparing(writer: Writer, packet: Packet[SparingStamp]) -> None:
    stamp, to = packet.stamp, _message(packet).to
    if len(stamp.counts) != len(to):
        writer.refuse(f"the stamp has {len(stamp.counts)} counts for {len(to)} destinations")
    writer.counts(stamp.counts)
    writer.uint(stamp.taken)
    writer.uint(stamp.number)
    writer.uint(stamp.heard)
    known, matrix = dict(stamp.known), sorted(stamp.matrix, key=_column_first)
    writer.reserve(len(known))
    if len(known) < len(stamp.known):
        writer.refuse(f"{stamp.known} has a process twice")
    _put_column(writer, known)
    _put_entries(writer, tuple([entry[:3] for entry in matrix]))
    writer.counts([entry[3] for entry in matrix])


def _column_first(entry: tuple[int, ...]) -> tuple[int, int]:
    return entry[1], entry[0]


def _take_sparing(reader: Reader, packet: Packet[Any]) -> SparingStamp:
    counts = tuple(reader.counts(len(_message(packet).to)))
    taken, number, heard, start = reader.uint(), reader.uint(), reader.uint(), reader.at
    known = tuple(_take_column(reader))
    reader.reserve(len(known), start)
    matrix = _take_entries(reader)
    numbers = reader.counts(len(matrix))
    entries = tuple([(*entry, number) for entry, number in zip(matrix, numbers, strict=True)])
    return SparingStamp(counts, taken, number, heard, known, entries)


def _put_sparing_extra(writer: Writer, packet: Packet[SparingExtra]) -> None:
    stamp = packet.stamp
    column = dict(stamp.column)
    writer.reserve(len(column))
    if len(column) < len(stamp.column):
        writer.refuse(f"the column {stamp.column} has an entry twice")
    writer.uint(stamp.sequence)
    writer.uint(stamp.taken)
    _put_column(writer, column)


def _take_sparing_extra(reader: Reader, packet: Packet[Any]) -> SparingExtra:
    sequence, taken, start = reader.uint(), reader.uint(), reader.at
    column = tuple(_take_column(reader))
    reader.reserve(len(column), start)
    return SparingExtra(sequence, taken, column)


def _put_settled(writer: Writer, packet: Packet[Settled]) -> None:
    writer.process(packet.stamp.process)
    writer.uint(packet.stamp.number)


def _take_settled(reader: Reader, packet: Packet[Any]) -> Settled:
    return Settled(reader.process(), reader.uint())


def _put_extra(writer: Writer, packet: Packet[Extra]) -> None:
    column = dict(packet.stamp.column)
    writer.reserve(len(column))
    if len(column) < len(packet.stamp.column):
        writer.refuse(f"the column {packet.stamp.column} has an entry twice")
    _check_sequence(writer, packet, column)
    _put_column(writer, column)


def _take_extra(reader: Reader, packet: Packet[Any]) -> Extra:
    start = reader.at
    column = tuple(_take_column(reader))
    reader.reserve(len(column), start)
    return Extra(dict(column).get(packet.source, 0) + 1, column)


def _check_sequence(writer: Writer, packet: Packet[Any], column: dict[int, int]) -> None:
    """It is not written: the column of the destination tells it."""
    told = column.get(packet.source, 0) + 1
    if packet.stamp.sequence != told:
        writer.refuse(f"the sequence must be {told}, the next of its column, not {packet.stamp.sequence}")


KINDS = (
    _number(1, Plain, "sequence"),
    _number(2, FifoStamp, "sequence"),
    Kind(3, MatrixStamp, _put_matrix, _take_matrix),
    Kind(4, BoundedStamp, _put_bounded, _take_bounded),
    Kind(5, Extra, _put_extra, _take_extra),
    Kind(6, MonitorStamp, _put_monitor, _take_monitor),
    Kind(7, Posted, _put_posted, _take_posted),
    _number(8, Acknowledge, "number"),
    _number(9, Release, "number"),
    Kind(10, HistoryStamp, put_history, take_history),
    Kind(11, VectorStamp, _put_vector, _take_vector),
    Kind(12, LogStamp, put_log, take_log),
    Kind(13, PermitStamp, _put_permit, _take_permit),
    _number(14, Taken, "sequence"),
    _number(15, Grant, "number"),
    _number(18, Got, "number"),
    _number(19, Stable, "number"),
    Kind(20, Relayed, put_relayed, take_relayed),
    Kind(21, Resumed, _put_resumed, _take_resumed),
    Kind(22, HopStamp, put_hop, take_hop),
    Kind(23, ContextStamp, put_contexts, take_contexts),
    Kind(24, SparingStamp, _put_sparing, _take_sparing),
    Kind(25, SparingExtra, _put_sparing_extra, _take_sparing_extra),
    Kind(26, UnderwayStamp, put_underway, take_underway),
    _number(27, Receipt, "number"),
    Kind(28, Settled, _put_settled, _take_settled),
)
BY_CODE: Mapping[int, Kind] = {kind.code: kind for kind in KINDS}
BY_STAMP: Mapping[type[Stamp], Kind] = {kind.stamp: kind for kind in KINDS}
