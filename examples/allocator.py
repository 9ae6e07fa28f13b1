"""An allocator that honours causal order: `python -m examples.allocator`.

One printer, and a process that grants it to one at a time, first come, first served. Ann asks for it, and tells bob
that she did; then bob asks. Her request takes a while to arrive; his does not. Without order, he is served first.
"""

from __future__ import annotations

import asyncio
import sys

from antecede.net import Memory, Node

NAMES = ["allocator", "ann", "bob"]


async def allocate(node: Node, requests: int) -> list[str]:
    """Grant to each in turn, when the one before has released; who was granted, in order."""
    granted: list[str] = []
    queue: list[str] = []
    busy = False
    released = 0
    while released < requests:
        message = await node.receive()
        if message.payload == b"release":
            busy = False
            released += 1
        else:
            queue.append(message.sender)
        if queue and not busy:
            busy = True
            granted.append(queue.pop(0))
            await node.send(granted[-1], b"granted")
        message.ack()
    return granted


async def use(node: Node) -> None:
    """Wait for the grant, use what it is for, give it back."""
    message = await node.receive(sender="allocator")
    await node.send("allocator", b"release")
    message.ack()


async def serve_requests(protocol: str, cut_s: float = 0.5) -> list[str]:
    """Who is served, in order, if ann cannot reach the allocator for so long."""
    network = Memory()
    network.cut("allocator", "ann")
    nodes = [Node(name, NAMES, protocol=protocol, transport=network.at(name)) for name in NAMES]
    async with nodes[0] as allocator, nodes[1] as ann, nodes[2] as bob:
        allocating = asyncio.ensure_future(allocate(allocator, requests=2))
        await ann.send("allocator", b"request")
        await ann.send("bob", b"I asked for it, you may ask too")
        told = await bob.receive(sender="ann")
        await bob.send("allocator", b"request")
        told.ack()
        using = asyncio.ensure_future(use(bob))
        await asyncio.wait({using}, timeout=cut_s)
        network.heal("allocator", "ann")
        await asyncio.gather(using, use(ann))
        return await allocating


def main(protocols: list[str]) -> None:
    for protocol in protocols:
        print(f"With {protocol}: served are {', then '.join(asyncio.run(serve_requests(protocol)))}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["unordered", "permit"])
