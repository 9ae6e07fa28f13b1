"""How a node is, as one value; and the same for Prometheus.

>>> from antecede.net import Memory, Node
>>> import asyncio
>>> async def main():
...     async with Node("a", ["a"], transport=Memory().at("a")) as node:
...         await node.send("a", b"note to self")
...         return node.status()
>>> status = asyncio.run(main())
>>> status.sent, status.held
(1, {'a': 1})
>>> print(*expose(status).splitlines()[:3], sep="\\n")
# HELP antecede_up Whether the node runs.
# TYPE antecede_up gauge
antecede_up{node="a"} 1
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from antecede.process.views.round import Progress

__all__ = ["Status", "expose"]


class Status(Struct, frozen=True):
    """What an operator looks at. Peers and senders are named."""

    node: str
    protocol: str
    up: bool
    """It has neither failed nor been closed."""
    failure: str | None
    sent: int
    """Messages, in all lives of the node."""
    taken: int
    """Messages handed over in this life."""
    eligible: int
    """Messages that the application may take now."""
    unacknowledged: int
    """Messages that it took and did not acknowledge."""
    unsent: int
    """Messages of ours that the protocol does not let out yet."""
    held: dict[str, int]
    """Messages that arrived and were not taken, by sender."""
    queued: dict[str, int]
    """Packets that a peer has not acknowledged."""
    connected: dict[str, bool]
    paused: dict[str, bool]
    """Peers that asked us to pause."""
    inputs: int
    """In the journal, ever."""
    durable: int
    """Of them, those that are."""
    counts: dict[str, int]
    blocked: dict[str, int] = {}
    """Peers that can take no more, and how many calls of `send` wait for each."""
    view: int = 1
    """The number of the view: it grows with each change."""
    members: tuple[str, ...] = ()
    changing: Progress | None = None
    """The change of the view that is under way or wanted, and whom it waits for; `send` waits while it is under way."""
    joining: dict[str, tuple[str, ...]] = {}
    """Nodes that asked this one to join, and the members that each waits for."""
    refused: dict[str, str] = {}
    """Peers that there is no connection with because one of the two refuses the other, and why."""
    missing: dict[str, int] = {}
    """Routers that cannot be reached, and how many messages wait for each."""


GAUGES = {
    "view": "The number of the view.",
    "eligible": "Messages that the application may take now.",
    "unacknowledged": "Messages taken and not acknowledged.",
    "unsent": "Messages that the protocol does not let out yet.",
}
TOTALS = {
    "sent": "Messages sent, in all lives of the node.",
    "taken": "Messages handed over since the node started.",
    "inputs": "Inputs written to the journal.",
    "durable": "Inputs that are durable.",
}
BY_PEER = {
    "held": "Messages of a sender that arrived and were not taken.",
    "queued": "Packets that a peer has not acknowledged.",
    "connected": "Whether there is a connection with a peer.",
    "paused": "Whether a peer asked us to pause.",
    "blocked": "Calls of send that wait for a peer.",
    "missing": "Messages that wait for a router that cannot be reached.",
}


def expose(status: Status) -> str:
    """The text that Prometheus reads."""
    return "\n".join(_lines(status)) + "\n"


def _lines(status: Status) -> Iterator[str]:
    node = {"node": status.node}
    yield from _metric("up", "gauge", "Whether the node runs.", [(node, status.up)])
    changing = status.changing is not None
    yield from _metric("changing", "gauge", "Whether a change of the view is under way.", [(node, changing)])
    joining = len(status.joining)
    yield from _metric("joining", "gauge", "Nodes that wait to join by this one.", [(node, joining)])
    refused = len(status.refused)
    yield from _metric("refused", "gauge", "Peers that refuse this node, or are refused.", [(node, refused)])
    for name, text in GAUGES.items():
        yield from _metric(name, "gauge", text, [(node, getattr(status, name))])
    for name, text in TOTALS.items():
        yield from _metric(f"{name}_total", "counter", text, [(node, getattr(status, name))])
    for name, text in BY_PEER.items():
        values: Mapping[str, int] = getattr(status, name)
        yield from _metric(
            name, "gauge", text, [({**node, "peer": peer}, value) for peer, value in values.items()]
        )
    counted = [({**node, "kind": kind}, value) for kind, value in sorted(status.counts.items())]
    yield from _metric("events_total", "counter", "What happened, by kind: docs/operating.md.", counted)


def _metric(name: str, kind: str, text: str, values: list[tuple[dict[str, str], int]]) -> Iterator[str]:
    yield f"# HELP antecede_{name} {text}"
    yield f"# TYPE antecede_{name} {kind}"
    for labels, value in values:
        shown = ",".join(f'{label}="{_escaped(content)}"' for label, content in labels.items())
        yield f"antecede_{name}{{{shown}}} {int(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
