"""A chat where no answer is seen before its question: `python -m examples.chat`.

Three people talk. What ann says to eve takes a while to arrive; what bob answers does not. Without order, eve reads the
answer first.
"""

from __future__ import annotations

import asyncio
import sys

from antecede.net import Memory, Node

NAMES = ["ann", "bob", "eve"]


async def chat(protocol: str, cut_s: float = 0.5) -> list[str]:
    """What eve reads, if ann cannot reach her for so long."""
    network = Memory()
    network.cut("ann", "eve")
    nodes = [Node(name, NAMES, protocol=protocol, transport=network.at(name)) for name in NAMES]
    async with nodes[0] as ann, nodes[1] as bob, nodes[2] as eve:
        await ann.send(["bob", "eve"], b"shall we meet at six?")
        question = await bob.receive()
        await bob.send(["ann", "eve"], b"yes, let us")
        question.ack()
        reading = asyncio.ensure_future(eve.receive())
        await asyncio.wait({reading}, timeout=cut_s)
        network.heal("ann", "eve")
        messages = [await reading, await eve.receive()]
    return [f"{message.sender}: {message.payload.decode()}" for message in messages]


def main(protocols: list[str]) -> None:
    for protocol in protocols:
        print(f"eve reads, with {protocol}:")
        for line in asyncio.run(chat(protocol)):
            print(f"  {line}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["unordered", "permit"])
