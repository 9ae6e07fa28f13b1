"""Replicated data with a token: `python -m examples.replica`.

Three replicas of a document. Only who holds the token may write: a line goes to all, then the token to the next. What
ann writes takes a while to reach eve; the token, by way of bob, does not. Without order, eve writes to an old copy.
"""

from __future__ import annotations

import asyncio
import sys

from antecede.net import Memory, Node

NAMES = ["ann", "bob", "eve"]
TOKEN = b"token"


class Replica:
    """One copy of the document, as it is now."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.lines: list[str] = []
        self.wrote = asyncio.Event()

    async def write(self) -> None:
        """Add a line that says which it is, then pass the token on. The order of the two sends is all that matters."""
        others = [name for name in NAMES if name != self.node.name]
        self.lines.append(f"{len(self.lines) + 1}. by {self.node.name}")
        await self.node.send(others, self.lines[-1].encode())
        if self.node.name != NAMES[-1]:
            await self.node.send(NAMES[NAMES.index(self.node.name) + 1], TOKEN)
        self.wrote.set()

    async def read(self) -> None:
        """Take what the others send, until the document is complete."""
        while len(self.lines) < len(NAMES):
            message = await self.node.receive()
            if message.payload == TOKEN:
                await self.write()
            else:
                self.lines.append(message.payload.decode())
            message.ack()


async def document(protocol: str, cut_s: float = 0.5) -> dict[str, list[str]]:
    """Each replica's document in the end, if ann cannot reach eve for so long."""
    network = Memory()
    network.cut("ann", "eve")
    nodes = [Node(name, NAMES, protocol=protocol, transport=network.at(name)) for name in NAMES]
    async with nodes[0], nodes[1], nodes[2]:
        replicas = [Replica(node) for node in nodes]
        reading = [asyncio.ensure_future(replica.read()) for replica in replicas]
        await replicas[0].write()
        waiting = asyncio.ensure_future(replicas[2].wrote.wait())
        await asyncio.wait({waiting}, timeout=cut_s)
        network.heal("ann", "eve")
        await asyncio.gather(*reading, waiting)
    return {replica.node.name: replica.lines for replica in replicas}


def main(protocols: list[str]) -> None:
    for protocol in protocols:
        print(f"With {protocol}:")
        for name, lines in asyncio.run(document(protocol)).items():
            print(f"  {name} has  {',  '.join(lines)}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["unordered", "permit"])
