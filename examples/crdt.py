"""A counter and a set as operation-based CRDTs: `python -m examples.crdt`.

Replicas send each other operations, not states. Those of the counter commute. Those of the set commute only if causally
related ones come in their order: a removal names the additions that it has seen (OR-set: Shapiro et al. 2011, 3.3.5).
What ann adds takes a while to reach eve; that bob removes it again does not. Without order, eve keeps it for ever.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TypeAlias

import msgspec
from msgspec import Struct

from antecede.net import Memory, Node

NAMES = ["ann", "bob", "eve"]


class Count(Struct, frozen=True, tag=True):
    by: int


class Add(Struct, frozen=True, tag=True):
    element: str
    tag: tuple[str, int]
    """Whose addition it is, and which of his: no two are the same."""


class Remove(Struct, frozen=True, tag=True):
    tags: tuple[tuple[str, int], ...]


Operation: TypeAlias = Count | Add | Remove
DECODER = msgspec.msgpack.Decoder(Operation)


class Replica:
    """A counter and a set, at one node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.count = 0
        self._additions: dict[tuple[str, int], str] = {}
        self._made = 0

    @property
    def elements(self) -> set[str]:
        return set(self._additions.values())

    # Operations are applied here at once, and at the others when they arrive

    async def increase(self, by: int) -> None:
        await self._do(Count(by))

    async def add(self, element: str) -> None:
        self._made += 1
        await self._do(Add(element, (self.node.name, self._made)))

    async def remove(self, element: str) -> None:
        await self._do(Remove(tuple(tag for tag, added in self._additions.items() if added == element)))

    async def _do(self, operation: Operation) -> None:
        self._apply(operation)
        others = [name for name in NAMES if name != self.node.name]
        await self.node.send(others, msgspec.msgpack.encode(operation))

    def _apply(self, operation: Operation) -> None:
        match operation:
            case Count(by=by):
                self.count += by
            case Add(element=element, tag=tag):
                self._additions[tag] = element
            case Remove(tags=tags):
                for tag in tags:
                    self._additions.pop(tag, None)

    async def hear(self, operations: int) -> None:
        """Apply so many operations of the others."""
        for _ in range(operations):
            message = await self.node.receive()
            self._apply(DECODER.decode(message.payload))
            message.ack()


async def shop(protocol: str, cut_s: float = 0.5) -> dict[str, tuple[int, set[str]]]:
    """What each replica has in the end, if ann cannot reach eve for so long."""
    network = Memory()
    network.cut("ann", "eve")
    nodes = [Node(name, NAMES, protocol=protocol, transport=network.at(name)) for name in NAMES]
    async with nodes[0], nodes[1], nodes[2]:
        ann, bob, eve = (Replica(node) for node in nodes)
        await ann.add("milk")
        await ann.increase(3)
        await bob.hear(2)
        await bob.remove("milk")
        await bob.add("tea")
        await bob.increase(-1)
        hearing = asyncio.ensure_future(eve.hear(5))
        await asyncio.wait({hearing}, timeout=cut_s)
        network.heal("ann", "eve")
        await asyncio.gather(hearing, ann.hear(3))
        return {one.node.name: (one.count, one.elements) for one in (ann, bob, eve)}


def main(protocols: list[str]) -> None:
    for protocol in protocols:
        print(f"With {protocol}:")
        for name, (count, elements) in asyncio.run(shop(protocol)).items():
            print(f"  {name} counts {count} and has {', '.join(sorted(elements))}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["unordered", "permit"])
