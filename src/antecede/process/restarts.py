"""How a process comes back from its journal: as a new incarnation, which hands over again what it may have handed over.

What was taken and not acknowledged comes first, in the order in which it was taken. That a message was taken may not
have been durable, so all that could have been taken is marked: it is handed over as what may have been seen before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from antecede.link import Frame
from antecede.model import Id, Message
from antecede.process.inputs import Input, Restart, Withdraw
from antecede.protocols import restore
from antecede.wire import Limits

if TYPE_CHECKING:
    from antecede.process.core import Core

__all__ = ["RULES", "come_back", "list_deliverable", "list_first_inputs"]

RULES = 7
"""The version of what an input does, where it differs from earlier ones: inputs replay by the rules of their time."""


def list_first_inputs(core: Core, recording: bool, limits: Limits | None, epoch: int = 0) -> list[Input]:
    """What happens to a process that comes back from its journal before anything else does."""
    wanted, me = core.changing.membership.wanted.join, core.view.name(core.me)
    # Whoever wanted to join by us has lost its connection, and asks again.
    names = tuple(joiner.name for joiner in wanted if joiner.by == me)
    return [Restart(recording, limits, epoch), *([Withdraw(names)] if names else [])]


def come_back(core: Core, restart: Restart, now: int) -> list[tuple[int, Frame]]:
    """The process starts again: the frames that had gathered, each with the peer that it is for."""
    core.record.on = restart.recording
    core.again = deque(core.taken.values())
    if not core.closed:
        core.repeats |= dict.fromkeys(list_deliverable(core))
        # What is held now may have been taken, too: what let it be taken had arrived, and was not durable yet.
        held = [one.message for one in core.changing.waiting() if one.where == "held"]
        core.repeats |= {message.id: None for message in held if core.me in message.to}
    core.closed = False
    core.epoch = max(core.epoch + 1, restart.epoch)
    for link in core.links.values():
        link.restart(core.epoch)
    # What had gathered was sent under the limits, and by the rules, of that time.
    out = core.turn(now)
    if restart.limits is not None:
        core.send_under(restart.limits, RULES)
    return out


def list_deliverable(core: Core) -> Iterator[Id]:
    """All that could be taken now, one after the other, if nothing else arrived: in the order of the inbox."""
    yield from [one.id for one in core.changing.ready if isinstance(one, Message)]
    machine, numbering = restore(core.machine.snapshot()), core.numbering
    offered = deque(core.inbox.values())
    while offered:
        message = offered.popleft()
        yield numbering.identify(message)
        offered += [effect for effect in machine.deliver(message) if isinstance(effect, Message)]
