"""What a message may measure, and whether its packets fit: asked before a machine counts it, so a refusal leaves no
trace.

>>> from antecede.model import View
>>> from antecede.protocols import create
>>> limits = Limits(packet_bytes=70_000, payload_bytes=1000, label_bytes=100)
>>> check_message(limits, bytes(1001), "", "")
Traceback (most recent call last):
antecede.errors.BadParameter: message: the payload has 1001 bytes, and may have 1000: send less, or ...
>>> free_bytes(create("permit", View.numbered(3), 0), limits)
1000
"""

from __future__ import annotations

from antecede.errors import BadParameter, WrongType
from antecede.model import CausalContext, Packet
from antecede.protocols import Machine, restore
from antecede.wire import Limits
from antecede.wire.bundles import encode_whole

__all__ = ["check_after", "check_message", "check_packets", "free_bytes"]

ENTRY_BYTES = 24
"""An entry of a stamp, at most, besides a set of processes and a label."""


def free_bytes(machine: Machine, limits: Limits) -> int:
    """Payloads up to this size are allowed, and fit into a packet with any stamp; -1 if stamps may grow."""
    room = -1 if machine.stamps_grow else limits.packet_bytes - _stamp_bytes(machine, limits)
    return min(limits.payload_bytes, room)


def check_message(limits: Limits, payload: bytes, label: str, context: str) -> None:
    """Refuse what the wire would not carry, whatever its stamp."""
    size, most = len(payload), limits.payload_bytes
    if size > most:
        raise BadParameter(
            "message",
            f"the payload has {size} bytes, and may have {most}: send less, or raise limits.payload_bytes at all nodes",
        )
    for name, text in (("label", label), ("context", context)):
        if not isinstance(text, str):
            raise WrongType(f"the {name} of a message", "text", text)
        size, most = len(text.encode(errors="replace")), limits.label_bytes
        if size > most or any("\ud800" <= one <= "\udfff" for one in text):
            raise BadParameter(
                "message", f"{name} must be Unicode text of at most {most} bytes, and has {size}"
            )


def check_after(after: object) -> None:
    """Refuse what is no causal context: applications keep them wherever they like, and bring them back."""
    sound = isinstance(after, CausalContext) and all(map(_is_obligation, after.obligations))
    if not sound or type(getattr(after, "view", None)) is not int:
        hint = "one that a delivery or a send has, or that CausalContext.decode gave"
        raise WrongType("what a message is sent after", "a CausalContext", after, hint)


def _is_obligation(one: object) -> bool:
    return isinstance(one, tuple) and len(one) == 3 and all(isinstance(part, int) for part in one)


def check_packets(
    machine: Machine,
    limits: Limits,
    seats: tuple[int, ...],
    payload: bytes,
    label: str,
    context: str,
    after: CausalContext | None = None,
) -> None:
    """Refuse a message whose packets are too large. If only a machine can tell, a copy of it sends first."""
    more = 0 if after is None else len(after.obligations)
    if len(payload) + _stamp_bytes(machine, limits, label, more) <= limits.packet_bytes:
        return
    copy = restore(machine.snapshot())
    for effect in copy.send(seats, payload, label, context, after)[1]:
        if isinstance(effect, Packet):
            size, most = len(encode_whole(effect, limits)), limits.packet_bytes
            if size > most:
                raise BadParameter(
                    "message",
                    f"its packet has {size} bytes with its stamp, and may have {most}: send less, or raise "
                    "limits.packet_bytes at all nodes",
                )


def _stamp_bytes(machine: Machine, limits: Limits, label: str = "", more: int = 0) -> int:
    """What a packet of the next message has besides its payload, at most, with so many entries more."""
    entry = ENTRY_BYTES + machine.n // 8 + (limits.label_bytes if machine.labels else 0)
    return (machine.stamp_entries(label) + more) * entry + 2 * limits.label_bytes + machine.n // 8 + 256
