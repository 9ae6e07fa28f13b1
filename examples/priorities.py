"""Two priorities over one network: a log that is in causal order, and alarms that never wait for it.

Every line of the log follows everything (the default). An alarm is sent `after` the alarms that its sender has seen,
and nothing else: so alarms are in causal order among themselves, and none waits for a line of the log.
Rodrigues & Veríssimo 1995, chapter 6, name this use of incomplete orders.
"""

from __future__ import annotations

import asyncio

from antecede import Node
from antecede.model import CausalContext
from antecede.net import Memory

PLACES = ["boiler", "pump", "screen"]


class Place:
    """A node that remembers which alarms it has seen, as one value."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.alarms = CausalContext()

    async def log(self, line: str) -> None:
        await self.node.send(PLACES, b"log " + line.encode(), echo=False)

    async def alarm(self, text: str) -> None:
        sent = await self.node.send(PLACES, b"ALARM " + text.encode(), after=self.alarms, echo=False)
        assert sent.causal_context is not None
        self.alarms |= sent.causal_context

    async def hear(self) -> str:
        message = await self.node.receive()
        if message.payload.startswith(b"ALARM"):
            assert message.causal_context is not None
            self.alarms |= message.causal_context
        return f"{self.node.name} hears from {message.sender}: {message.payload.decode()}"


async def main() -> None:
    network = Memory()
    nodes = [Node(name, PLACES, protocol="contexts", transport=network.at(name)) for name in PLACES]
    async with nodes[0], nodes[1], nodes[2]:
        boiler, pump, screen = map(Place, nodes)
        await boiler.log("90 degrees")
        await boiler.alarm("too hot")
        for _ in range(2):
            print(await pump.hear())
        await pump.alarm("pumping")
        for _ in range(3):
            print(await screen.hear())


if __name__ == "__main__":
    asyncio.run(main())
