"""What can be wrong with a node on purpose. A judge that does not find these would find nothing.

forgetful   its journal forgets one acknowledgement in five: messages come again that must not
lying       its disk says that a group of inputs is durable, and writes it some groups later: a kill undoes what a
            peer has heard of
deaf        the application is not told of one message in five hundred
unordered   the node hands over whatever arrives: run it as the protocol, `--protocol unordered`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antecede.net.node import Node
from antecede.process.inputs import Acknowledge
from antecede.process.journal import Journal

__all__ = ["FAULTS", "plant"]

ONE_IN = {"forgetful": 5, "deaf": 500}
LATER = 3


def _forget() -> None:
    append = Journal.append

    def forgetful(self: Journal, inputs: Sequence[Any], *more: Any) -> None:
        # Put in the place of what is forgotten, so that positions stay as they are.
        nothing = Acknowledge(0, 0)
        kept = [
            nothing if isinstance(one, Acknowledge) and one.number % ONE_IN["forgetful"] == 0 else one
            for one in inputs
        ]
        append(self, kept, *more)

    Journal.append = forgetful  # type: ignore[method-assign,assignment]


def _lie() -> None:
    append = Journal.append
    kept: list[tuple[Any, ...]] = []

    def append_late(self: Journal, *given: Any) -> None:
        kept.append(given)
        if len(kept) > LATER:
            append(self, *kept.pop(0))

    Journal.append = append_late  # type: ignore[method-assign,assignment]


def _deafen() -> None:
    receive = Node.receive

    async def deaf(self: Node, *, sender: str | None = None) -> Any:
        delivery = await receive(self, sender=sender)
        if delivery.number % ONE_IN["deaf"]:
            return delivery
        delivery.ack()
        return await receive(self, sender=sender)

    Node.receive = deaf  # type: ignore[method-assign]


FAULTS = {"forgetful": _forget, "lying": _lie, "deaf": _deafen}


def plant(fault: str | None) -> None:
    """Make all nodes of this process wrong."""
    if fault is not None:
        FAULTS[fault]()
