"""What a member of a separator hands over to one that joins it: Rodrigues & Veríssimo 1995, 4.4, cases iii and iv.

`separator` makes these values and adopts them; they travel as plain data, and are checked where they come from outside.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from antecede.errors import BadParameter
from antecede.model import Id
from antecede.protocols.forwarder import Retained
from antecede.protocols.machine import plain, portable
from antecede.protocols.relay import Sent
from antecede.protocols.topological import Reported

__all__ = ["Handover", "Stage", "decode_handover", "list_unforwarded", "make_portable", "merge_stages"]

HIGHEST = 1 << 62
"""Counts are below: one more can always be written."""


class Stage(Struct, frozen=True):
    """What a witness knew when it ceased to wait for others of its separator, of which nobody forwarded any more."""

    failed: int
    """These, as bits."""
    hops: list[Id]
    """H: what it delivered later may follow hops of the failed that are lost."""
    messages: list[Id]
    """What had come, to be forwarded."""


class Handover(Struct, frozen=True):
    """What a vertex knows, for one that joins a separator."""

    member: int
    version: int
    history: list[Reported]
    clock: int
    seen: dict[int, int]
    retained: list[Retained]
    sent: dict[int, Sent] = {}
    """Hops of the member that not all are known to have."""
    checkpoint: bool = False
    """It is no member of the separator."""
    stages: list[Stage] = []

    def is_possible(self, n: int) -> bool:
        """Whether it speaks of these vertices, and counts as one can."""
        entries = [one.entry for one in self.history]
        entries += [entry for one in self.sent.values() for entry in one.stamp.history]
        kept = [one.message for one in self.retained] + [one.message for one in self.sent.values()]
        places = [self.member, *self.seen, *(entry.sender for entry in entries)]
        places += [place for message in kept for place in (message.sender, *message.to)]
        staged = [one for stage in self.stages for one in (*stage.hops, *stage.messages)]
        places += [place for place, _ in staged]
        sets = [entry.to for entry in entries]
        sets += [one.copies for one in self.history] + [one.targets for one in self.retained]
        sets += [
            bits for one in self.sent.values() for bits in (one.missing, one.stamp.to, one.stamp.targets)
        ]
        sets += [stage.failed for stage in self.stages]
        counts = [
            self.version,
            self.clock,
            *self.seen.values(),
            *self.sent,
            *(number for _, number in staged),
        ]
        counts += [entry.number for entry in entries] + [message.number for message in kept]
        counts += [one.clock for one in self.retained]
        return (
            all(0 <= place < n for place in places)
            and all(0 <= one < 1 << n for one in sets)
            and all(0 <= count < HIGHEST for count in counts)
        )


_DECODER = msgspec.msgpack.Decoder(Handover, strict=False)


def decode_handover(data: bytes) -> Handover:
    """What `handover()` or `checkpoint()` gave, encoded. Raises `BadParameter` if these bytes are none."""
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadParameter("separator", f"the bytes are not what handover() returned: {error}") from None


def merge_stages(given: Iterable[Handover]) -> list[Stage]:
    """The stages of all witnesses: they ceased to wait for the same, in the same order."""
    merged: dict[int, Stage] = {}
    for stage in (stage for state in given for stage in state.stages):
        one = merged.get(stage.failed, Stage(stage.failed, [], []))
        hops, messages = [*one.hops, *stage.hops], [*one.messages, *stage.messages]
        merged[stage.failed] = Stage(stage.failed, list(dict.fromkeys(hops)), list(dict.fromkeys(messages)))
    return list(merged.values())


def make_portable(handover: Handover) -> dict[str, Any]:
    result: dict[str, Any] = portable(plain(handover))
    return result


def list_unforwarded(given: list[Handover]) -> list[Retained]:
    """What nobody who has seen it knows to be forwarded, in an order that is causal.

    One list after the other is: if m is only in a later list and precedes something in an earlier one, then that
    member had seen m as well, and knows that it was forwarded.
    """
    kept = [{r.message.id: r.targets for r in state.retained} for state in given]
    result: dict[Id, Retained] = {}
    for state in given:
        for retained in state.retained:
            message, targets = retained.message, retained.targets
            for other, theirs in zip(given, kept, strict=True):
                if other.seen.get(message.sender, 0) >= message.number:
                    targets &= theirs.get(message.id, 0)
            if targets:
                result.setdefault(message.id, Retained(message, targets, retained.clock))
    return list(result.values())
