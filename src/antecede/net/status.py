"""How a node is: what it shows those who look at it, as one value, and the same for Prometheus.

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

import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping

from msgspec import Struct

from antecede.errors import Closed
from antecede.net.delivery import Contact, Held, Missing, list_held
from antecede.net.lifecycle import Lifecycle
from antecede.process.views.round import Progress

__all__ = ["Observed", "Status", "expose"]


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
        shown = ",".join(f'{label}="{_escape(content)}"' for label, content in labels.items())
        yield f"antecede_{name}{{{shown}}} {int(value)}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Observed(Lifecycle):
    """What a node tells those who look at it. Nothing here changes anything."""

    _taken: int
    """Messages that were handed over."""

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._transport.address

    def waiting(self) -> list[Held]:
        """What is held here, for which messages of whom, and since when; what we sent that may not leave yet; and the
        peers that a `send` waits for."""
        core = self._host.core
        found = list_held(core.view, core.changing.waiting(), self._host.since, time.monotonic_ns())
        for name in self._missing():
            pending = core.out[core.view.id(name)].pending
            reason = (
                f"router {name} is missing: {pending} messages wait for it to come back, or to be replaced"
            )
            found.append(Held(self.name, core.sent, (), "missing", reason, None))
        return found + self._pressure.held() + self._mesh.stalls.list_held()

    def _missing(self) -> list[str]:
        """Routers that cannot be reached, though messages wait for them."""
        core, topology = self._host.core, self._host.core.changing.roll.topology
        if topology is None:
            return []
        away = [number for number, peer in self._mesh.peers.items() if not peer.connected]
        return [
            core.view.name(number)
            for number in away
            if number not in topology.processes and number in core.out and core.out[number].pending
        ]

    def missing(self) -> list[Missing]:
        """What holds up all that `waiting` lists as held: messages that have not come, never those that are held.

        By the sender's own number where the protocol's stamps tell it, else by the channel's from it to us.
        """
        core = self._host.core
        return [
            Missing(core.view.name(root.sender), root.first, root.last, root.counted)
            for root in core.changing.roots()
        ]

    async def contacts(self) -> AsyncIterator[Contact]:
        """Peers as they come and go: first those that there is a connection with, then each change.

        Of a peer that went and came back while nobody looked, nothing is told. Ends when the node is closed.
        """
        host, seen = self._host, dict[str, bool]()
        while True:
            now = {peer.name: peer.connected for peer in self._mesh.peers.values()}
            for name in [*now, *(name for name in seen if name not in now)]:
                connected = now.get(name, False)
                if seen.get(name, False) is not connected:
                    seen[name] = connected
                    yield Contact(name, connected)
            try:
                self._check_open()
            except Closed:
                return
            if now == {peer.name: peer.connected for peer in self._mesh.peers.values()}:
                await host.contacts.wait()

    @property
    def connected(self) -> tuple[str, ...]:
        """The peers that there is a connection with now."""
        return tuple(peer.name for peer in self._mesh.peers.values() if peer.connected)

    @property
    def counts(self) -> Counter[str]:
        """What has happened, by name: docs/runtime.md has the list."""
        counts = Counter(self._mesh.counts)
        counts["resent"] = sum(link.resent for link in self._host.core.links.values())
        return counts

    def status(self) -> Status:
        """All that an operator looks at."""
        host, core = self._host, self._host.core
        # The connections follow the process a moment after its view has changed.
        peers = {number: peer for number, peer in self._mesh.peers.items() if number in core.links}
        return Status(
            node=self.name,
            protocol=core.machine.name,
            up=host.failure is None and not self._closing,
            failure=None if host.failure is None else str(host.failure),
            sent=core.sent,
            taken=self._taken,
            eligible=len(core.inbox) + len(core.changing.ready),
            unacknowledged=len(core.taken),
            unsent=len(core.unsent),
            held={name: core.held[core.view.id(name)] for name in self.members},
            queued={peer.name: core.links[number].unacknowledged for number, peer in peers.items()},
            connected={peer.name: peer.connected for peer in peers.values()},
            paused={peer.name: peer.paused for peer in peers.values()},
            blocked=self._pressure.waiting,
            inputs=host.commits.position,
            durable=host.commits.position_durable,
            counts=dict(self.counts),
            view=core.changing.roll.number,
            members=self.members,
            changing=self._mesh.stalls.progress(),
            joining=self._mesh.stalls.joining,
            refused=self._mesh.refused,
            missing={name: core.out[core.view.id(name)].pending for name in self._missing()},
        )
