"""What a payload of a peer's link becomes: a note for the view, or packets for the machine, and messages that arrived.

Packets are given to the machine in the parts in which they were encoded, and each is counted before the machine decides
about it: a message that it holds back has arrived too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from antecede.errors import BadFrame
from antecede.model import Effect, Message, Packet
from antecede.process.views.notes import is_note
from antecede.wire.bundles import decode_parts
from antecede.wire.octets import MAX_UINT

if TYPE_CHECKING:
    from antecede.process.core import Core

__all__ = ["receive_payload"]

ACK_EVERY = 128
"""Packets of a peer, after which it hears at once that they have arrived, though nothing goes back to carry it."""


def receive_payload(core: Core, source: int, payload: bytes) -> None:
    """Give the machine what a payload of the link holds."""
    if is_note(payload):
        core.changing.hear(source, payload)
        return
    numbering, members = core.numbering, core.changing.roll.members
    if source not in members or core.me not in members:
        raise BadFrame(
            f"{core.view.name(source)} sent packets to {core.view.name(core.me)}, which is in another view"
        )
    there, me = numbering.seat(source), core.machine.me
    for part in decode_parts(payload, there, me, core.limits, core.machine.stamps_as_numbers):
        effects: list[Effect] = []
        try:
            if isinstance(part, list):
                core.heard[source] += len(part)
                _note_packets(core, source, part)
                core.machine.receive_all(part, effects)
            else:
                core.heard[source] += len(part.rows)
                if me in part.to:
                    _note_rows(core, source, part.to, part.rows)
                core.machine.receive_rows(there, part.to, part.rows, effects)
        finally:
            core.follow(effects)
    if core.heard[source] >= ACK_EVERY:
        core.touched[source] = None


def _too_many(number: int) -> BadFrame:
    """No trace could hold it: what came in the views before is added to the number that the wire bounds."""
    return BadFrame(f"a message has number {number}, and nobody sends so many")


def _note_rows(core: Core, source: int, to: tuple[int, ...], rows: Sequence[tuple[int, int, bytes]]) -> None:
    """Messages of a peer to us, in rows, have arrived."""
    base = core.numbering.base(source)
    if base and rows and (highest := max(rows)[0] + base) > MAX_UINT:
        raise _too_many(highest)
    core.arrived += [(source, number + base) for number, _, _ in rows]
    core.held[source] += len(rows)
    if core.record.on:
        there, outward = core.numbering.seat(source), core.numbering.outward
        for number, _, payload in rows:
            core.record.event("receive", outward(Message(there, number, to, payload)))


def _note_packets(core: Core, source: int, packets: Sequence[Packet[Any]]) -> None:
    """Packets of a peer have arrived, some with messages to us."""
    numbering, me, there = core.numbering, core.machine.me, core.numbering.seat(source)
    arrived, recording, base, mine = core.arrived, core.record.on, numbering.base(source), 0
    for packet in packets:
        message = packet.message
        if message is not None and me in message.to:
            if message.sender == there:
                identity = source, message.number + base
                mine += 1
            else:
                identity = numbering.identify(message)
            if identity[1] > MAX_UINT:
                raise _too_many(identity[1])
            arrived.append(identity)
            if recording:
                core.record.event("receive", numbering.outward(message))
    core.held[source] += mine
