"""The protocols, one file each, behind one interface: `Machine`.

>>> from antecede.model import View
>>> view = View.of("p1", "p2", "p3")
>>> p1, p2, p3 = (create("matrix", view, name) for name in view.names)
>>> m1, [packet1] = p1.send("p3")           # p1 tells p3 ...
>>> m2, [packet2] = p1.send("p2")           # ... and then p2,
>>> p2.receive(packet2) == [m2], p2.deliver(m2)
(True, [])
>>> m3, [packet3] = p2.send("p3")           # which tells p3 too.
>>> p3.receive(packet3)                     # It arrives first, and is held:
[]
>>> p3.waiting()[0].awaits                  # p3 knows what for.
(Awaited(sender=0, first=1, last=1, counted='channel'),)
>>> p3.receive(packet1) == [m1]
True
>>> p3.deliver(m1) == [m3]
True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from antecede.errors import BadParameter, BadSnapshot, CallerError
from antecede.model import View
from antecede.protocols.bounded import Bounded
from antecede.protocols.broadcast import Broadcast
from antecede.protocols.buffer import Buffer
from antecede.protocols.contexts import Contexts
from antecede.protocols.fifo import Fifo
from antecede.protocols.history import History
from antecede.protocols.listener import Listener, heard_by, listener_of
from antecede.protocols.machine import SNAPSHOT_VERSION, Machine
from antecede.protocols.matrix import Matrix
from antecede.protocols.monitor import Monitor
from antecede.protocols.optimal import Optimal
from antecede.protocols.permit import Permit
from antecede.protocols.separator import Separator
from antecede.protocols.sparing import Sparing
from antecede.protocols.underway import Underway
from antecede.protocols.unordered import Unordered

__all__ = ["PROTOCOLS", "Listener", "Machine", "build", "create", "listen", "restore"]

PROTOCOLS: Mapping[str, type[Machine]] = {
    kind.name: kind
    for kind in (
        Unordered,
        Fifo,
        Matrix,
        Bounded,
        Monitor,
        Buffer,
        History,
        Separator,
        Broadcast,
        Optimal,
        Permit,
        Contexts,
        Sparing,
        Underway,
    )
}
"""Every protocol by its name. `create` makes a machine of one; docs/protocols.md says what each promises."""


def create(protocol: str, view: View, me: str | int, **parameters: Any) -> Machine:
    """Make a machine of the protocol with this name, for one process of the view."""
    kind = PROTOCOLS.get(protocol)
    if kind is None:
        raise BadParameter.choice("protocol", "the name", protocol, PROTOCOLS)
    return build(kind, view, me, **parameters)


def build(kind: type[Machine], view: View, me: str | int, **parameters: Any) -> Machine:
    """Make a machine of this class, which need not be one of `PROTOCOLS`."""
    try:
        return kind(view, me, **parameters)
    except TypeError as error:
        if not parameters:
            raise
        known = kind(view, me).parameters
        unknown = [name for name in parameters if name not in known]
        if not unknown:
            raise BadParameter(kind.name, f"it cannot take {parameters}: {error}") from error
        raise BadParameter(
            kind.name, f"it has no parameter {', '.join(unknown)}; it has {', '.join(known) or 'none'}"
        ) from error


def listen(
    protocol: str, view: View, me: str | int, delivered: Sequence[int] | None = None, **parameters: Any
) -> Listener:
    """Make a machine that only listens, for a process that sends elsewhere (`listener`)."""
    create(protocol, view, me, **parameters)
    machine = listener_of(PROTOCOLS[protocol])(view, me, **parameters)
    machine.listen(delivered)
    return machine


def restore(snapshot: Mapping[str, Any]) -> Machine:
    """Restore the machine that returned this snapshot."""
    for field in ("antecede", "protocol", "view", "me", "parameters", "state"):
        if field not in snapshot:
            raise BadSnapshot(f"the snapshot has no {field}: it was not made by snapshot()")
    if snapshot["antecede"] != SNAPSHOT_VERSION:
        raise BadSnapshot.version("the machine", snapshot["antecede"], SNAPSHOT_VERSION)
    protocol = snapshot["protocol"]
    if not isinstance(protocol, str) or protocol not in PROTOCOLS:
        raise BadSnapshot(
            f"the snapshot is of protocol {protocol!r}, which is not one of {', '.join(PROTOCOLS)}"
        )
    try:
        view, parameters = View(tuple(snapshot["view"])), snapshot["parameters"]
        if heard_by(snapshot["state"]):
            machine: Machine = listener_of(PROTOCOLS[protocol])(view, snapshot["me"], **parameters)
        else:
            machine = create(protocol, view, snapshot["me"], **parameters)
    except (CallerError, TypeError, ValueError) as error:
        raise BadSnapshot(
            f"the snapshot's view, me or parameters do not fit a {protocol} machine: {error}"
        ) from error
    machine.load(snapshot["state"])
    return machine
