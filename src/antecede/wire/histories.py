"""Histories and logs to bytes and back.

identifiers   the set of senders; for each: uint how many of its messages, less 1; for each of these, in increasing
              order: uint number, less the one before it and 1 if there is one before it, and what follows each number
history       uint flags: 1 if any entry has carbon copies, 2 if any has another label than the message
              identifiers, each followed by: the set `to`; with flag 1 the set `copies`; with flag 2 uint label:
              0 the message's, else the k-th other label of this history, whose text follows where it is new

A history and a log are sets: they are read back in increasing order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

from antecede.model import Id, Obligation, Packet, mask
from antecede.protocols.contexts import ContextStamp
from antecede.protocols.forwarder import HopStamp
from antecede.protocols.histories import Entry
from antecede.protocols.history import HistoryStamp
from antecede.protocols.optimal import LogStamp, make_rows
from antecede.protocols.relay import Relayed
from antecede.protocols.underway import UnderwayStamp
from antecede.wire.octets import MAX_UINT, Reader, Writer, list_members

__all__ = [
    "put_contexts",
    "put_history",
    "put_hop",
    "put_log",
    "put_relayed",
    "put_underway",
    "take_contexts",
    "take_history",
    "take_hop",
    "take_log",
    "take_relayed",
    "take_underway",
]

COPIES, LABELS = 1, 2

T = TypeVar("T")


def _put_identifiers(writer: Writer, things: Mapping[Id, T]) -> Iterator[T]:
    """Write the identifiers in increasing order; what follows each is to be written when it is yielded."""
    writer.reserve(len(things))
    writer.members(mask({sender for sender, _ in things}))
    for _, group in groupby(sorted(things), key=itemgetter(0)):
        mine = list(group)
        writer.uint(len(mine) - 1)
        expected = 0
        for identifier in mine:
            writer.uint(identifier[1] - expected)
            expected = identifier[1] + 1
            yield things[identifier]


def _take_identifiers(reader: Reader) -> Iterator[Id]:
    """Read the identifiers; what follows each is to be read when it is yielded."""
    total = 0
    for sender in list_members(reader.members()):
        start = reader.at
        k = reader.uint() + 1
        total += k
        reader.reserve(total, start)
        number = -1
        for _ in range(k):
            start = reader.at
            number += reader.uint() + 1
            if number > MAX_UINT:
                reader.refuse(f"a message has number {number}, and 2**63 is too large", start)
            yield sender, number


def put_log(writer: Writer, packet: Packet[LogStamp]) -> None:
    _put_log(writer, [(sender, *entry) for sender, _, entries in packet.stamp.log for entry in entries])


def take_log(reader: Reader, packet: Packet[Any]) -> LogStamp:
    return LogStamp(frozenset(make_rows(_take_log(reader))))


def put_underway(writer: Writer, packet: Packet[UnderwayStamp]) -> None:
    _put_log(writer, packet.stamp.log)


def take_underway(reader: Reader, packet: Packet[Any]) -> UnderwayStamp:
    return UnderwayStamp(tuple(_take_log(reader)))


def _put_log(writer: Writer, entries: Sequence[tuple[int, int, int]]) -> None:
    log = {(sender, clock): dests for sender, clock, dests in entries}
    if len(log) < len(entries):
        writer.refuse(f"the log {entries} has a message twice")
    for dests in _put_identifiers(writer, log):
        writer.members(dests)


def _take_log(reader: Reader) -> Iterator[tuple[int, int, int]]:
    for sender, clock in _take_identifiers(reader):
        yield sender, clock, reader.members()


def put_history(writer: Writer, packet: Packet[HistoryStamp]) -> None:
    _put_entries(writer, packet.stamp.history, _label(packet))


def take_history(reader: Reader, packet: Packet[Any]) -> HistoryStamp:
    return HistoryStamp(_take_entries(reader, _label(packet)))


def put_hop(writer: Writer, packet: Packet[HopStamp]) -> None:
    stamp = packet.stamp
    writer.uint(stamp.number)
    writer.uint(stamp.version)
    writer.uint(stamp.clock)
    writer.members(stamp.to)
    writer.members(stamp.targets)
    _put_entries(writer, stamp.history, _label(packet))


def take_hop(reader: Reader, packet: Packet[Any]) -> HopStamp:
    number, version, clock = reader.uint(), reader.uint(), reader.uint()
    to, targets = reader.members(), reader.members()
    return HopStamp(number, to, targets, version, clock, _take_entries(reader, _label(packet)))


def put_relayed(writer: Writer, packet: Packet[Relayed]) -> None:
    writer.uint(packet.stamp.source)
    put_hop(writer, packet)  # type: ignore[arg-type]


def take_relayed(reader: Reader, packet: Packet[Any]) -> Relayed:
    source, hop = reader.uint(), take_hop(reader, packet)
    return Relayed(hop.number, hop.to, hop.targets, hop.version, hop.clock, hop.history, source)


def _label(packet: Packet[Any]) -> str:
    """The label that entries have unless they say otherwise."""
    return "" if packet.message is None else packet.message.label


def _put_entries(writer: Writer, history: tuple[Entry, ...], label: str) -> None:
    entries = {(entry.sender, entry.number): entry for entry in history}
    if len(entries) < len(history):
        writer.refuse(f"the history {history} has a message twice")
    copies = any(entry.copies for entry in history)
    labels = any(entry.label != label for entry in history)
    writer.uint(COPIES * copies | LABELS * labels)
    known = {label: 0}
    for entry in _put_identifiers(writer, entries):
        writer.members(entry.to)
        if copies:
            writer.members(entry.copies)
        if labels:
            new = len(known)
            writer.uint(known.setdefault(entry.label, new))
            if known[entry.label] == new:
                writer.text(entry.label)


def _take_entries(reader: Reader, label: str) -> tuple[Entry, ...]:
    start = reader.at
    flags = reader.uint()
    if flags > COPIES | LABELS:
        reader.refuse(f"flags are {flags}, and at most {COPIES | LABELS}", start)
    known = [label]
    history = []
    any_copies = 0
    for sender, number in _take_identifiers(reader):
        to = reader.members()
        copies = reader.members() if flags & COPIES else 0
        any_copies |= copies
        history.append(
            Entry(sender, number, to, copies, _take_label(reader, known) if flags & LABELS else label)
        )
    if bool(any_copies) != bool(flags & COPIES) or (len(known) > 1) != bool(flags & LABELS):
        reader.refuse(f"flags {flags} state what no entry has", start)
    if len(set(known)) < len(known):
        reader.refuse("a label is new twice", start)
    return tuple(history)


def _take_label(reader: Reader, known: list[str]) -> str:
    start = reader.at
    k = reader.uint()
    if k > len(known):
        reader.refuse(f"label {k} is unknown: labels are 0..{len(known)}", start)
    if k == len(known):
        known.append(reader.text())
    return known[k]


def put_contexts(writer: Writer, packet: Packet[ContextStamp]) -> None:
    stamp, message = packet.stamp, packet.message
    assert message is not None, "the stamp of a message"
    if len(stamp.counts) != len(message.to):
        writer.refuse(f"the stamp has {len(stamp.counts)} counts for {len(message.to)} destinations")
    writer.uint(stamp.explicit)
    writer.counts(stamp.counts)
    writer.reserve(len(stamp.after))
    at: dict[int, dict[Id, None]] = {}
    for sender, dest, count in stamp.after:
        at.setdefault(dest, {})[sender, count] = None
    writer.members(mask(at))
    for dest in sorted(at):
        for _ in _put_identifiers(writer, at[dest]):
            pass


def take_contexts(reader: Reader, packet: Packet[Any]) -> ContextStamp:
    start, message = reader.at, packet.message
    assert message is not None, "the stamp of a message"
    flag = reader.uint()
    if flag > 1:
        reader.refuse(f"a flag is {flag}, and must be 0 or 1", start)
    counts = tuple(reader.counts(len(message.to)))
    after: list[Obligation] = []
    for dest in list_members(reader.members()):
        start, before = reader.at, len(after)
        after += [(sender, dest, count) for sender, count in _take_identifiers(reader)]
        if len(after) == before:
            reader.refuse(f"destination {dest} has no obligation", start)
        reader.reserve(len(after), start)
    return ContextStamp(counts, frozenset(after), bool(flag))
