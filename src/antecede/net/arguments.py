"""What an application describes a node with, and asks of it: refused at once, in a sentence, if it cannot be."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from os import PathLike
from typing import Any, Literal, TypedDict

from antecede.errors import BadParameter, WrongType
from antecede.model import View
from antecede.net.peers.joining import Admit
from antecede.net.peers.session import Join
from antecede.net.peers.terms import flat_parameters
from antecede.net.settings import Settings
from antecede.net.transports.tls import Tls
from antecede.net.transports.transport import Transport
from antecede.process.views.members import Change, Where

__all__ = [
    "Buffer",
    "NodeOptions",
    "check_bytes",
    "check_name",
    "check_names",
    "check_options",
    "group_names",
    "make_join",
    "make_view",
]

NAME_BYTES = 255

Buffer = bytes | bytearray | memoryview
"""What a payload may be."""


class NodeOptions(TypedDict, total=False):
    """What `Node` and `Node.join` take alike: see `Node`."""

    protocol: str
    parameters: Mapping[str, Any] | None
    state: Callable[[], bytes | Awaitable[bytes]] | None
    changed: Callable[[Change], Awaitable[None] | None] | None
    admit: Admit | None
    listen: str | None
    journal: str | PathLike[str] | None
    sync: Literal["full", "normal"]
    trace: str | PathLike[str] | None
    run: str
    tls: Tls | None
    transport: Transport | None
    settings: Settings | None


def check_name(kind: str, name: object) -> None:
    """Refuse what cannot be the name of a node, a group or a run: peers are told it, and journals keep it."""
    if not isinstance(name, str):
        raise WrongType(f"name of a {kind}", "text", name)
    size = len(name.encode(errors="replace"))
    if not 1 <= size <= NAME_BYTES or any("\ud800" <= one <= "\udfff" for one in name):
        raise BadParameter(
            "node", f"the name of a {kind} must be Unicode text of 1 to {NAME_BYTES} bytes, and has {size}"
        )


def group_names(
    view: View, groups: Mapping[str, Iterable[str]] | Iterable[str] | None
) -> dict[str, list[str]]:
    """Groups as a founder is told them: each with its members."""
    if groups is None:
        return {}
    if not isinstance(groups, Mapping):
        raise BadParameter(
            "node", "groups need the members of each: only a node that joins gives names alone"
        )
    for members in groups.values():
        if isinstance(members, str) or not isinstance(members, Iterable):
            raise WrongType("a group", "a list of names", members, "as in groups={'all': ['ann', 'bob']}")
    found = {group: list(members) for group, members in groups.items()}
    for members in found.values():
        for name in members:
            view.id(name)
    return found


def make_join(
    name: str,
    view: View,
    protocol: str,
    parameters: Mapping[str, Any] | None,
    groups: Iterable[str] | None,
    where: Where | None = None,
) -> Join:
    """What one that joins asks for."""
    if len(view) < 2:
        raise BadParameter("node", "a node that joins needs peers: members to ask")
    flat = flat_parameters(protocol, parameters or {})
    return Join(name, "", protocol, flat, "", tuple(groups or ()), where=where)


def make_view(names: set[str], parameters: Mapping[str, Any]) -> View:
    """All names in an order that every node finds by itself: sorted, or as the topology has them if there is one."""
    topology = parameters.get("topology")
    if topology is None:
        return View(tuple(sorted(names)))
    ordered = tuple(topology["names"] if isinstance(topology, Mapping) else topology.names)
    if set(ordered) != names:
        raise BadParameter(
            "node",
            f"the names of the peers must be those of the topology, {', '.join(ordered)}, not "
            f"{', '.join(sorted(names))}",
        )
    return View(ordered)


def check_options(options: NodeOptions) -> None:
    """Refuse now what would stop the node when it is called."""
    given: Mapping[str, object] = options
    for name in ("state", "changed", "admit"):
        if given.get(name) is not None and not callable(given[name]):
            raise WrongType(f"{name} of a node", "a function", given[name])
    if not isinstance(given.get("settings") or Settings(), Settings):
        raise WrongType("settings of a node", "Settings", given["settings"])


def check_names(to: str | Iterable[str]) -> tuple[str, ...]:
    """The names of processes and groups that were given."""
    hint = 'as in send("bob", ...) or send(["ann", "bob"], ...)'
    try:
        names = (to,) if isinstance(to, str) else tuple(to)
    except TypeError:
        raise WrongType("a destination", "a name, or several", to, hint) from None
    for name in names:
        if not isinstance(name, str):
            raise WrongType("a destination", "a name, or several", name, hint)
    return names


def check_bytes(payload: object) -> bytes:
    """A payload that is bytes-like, as bytes."""
    try:
        return bytes(memoryview(payload))  # type: ignore[arg-type]
    except TypeError:
        text = isinstance(payload, str)
        hint = "encode it first, as in text.encode()" if text else "make bytes of it first"
        raise WrongType("a payload", "bytes, bytearray or memoryview", payload, hint) from None
