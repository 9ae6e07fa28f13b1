"""A node in a process of its own, for tests that kill it: `python -m tests.net_worker '{...}'`.

It sends its part of a plan that all know, takes what comes, and says on standard output what happened, a line of JSON
each, with the position in its journal: whatever a later start finds beyond its journal's end never happened. It ends
when standard input does.
"""

from __future__ import annotations

import asyncio
import json
import sys
from random import Random
from typing import Any

from antecede.net import Node, Settings

SETTINGS = Settings(snapshot_inputs=60, first_retry_s=0.01, last_retry_s=0.1, queue=32, held=32, trace_s=0.5)


def plan(seed: str, names: list[str], each: int) -> dict[str, list[list[str]]]:
    """Name -> the destinations of each of its messages."""
    random = Random(seed)
    return {
        name: [sorted(random.sample(names, random.choice([1, 1, 2, len(names)]))) for _ in range(each)]
        for name in names
    }


def say(node: Node, kind: str, **facts: Any) -> None:
    # One write for a line: a killed process leaves no half of one.
    sys.stdout.write(json.dumps({"kind": kind, "at": node._host.commits.position, **facts}) + "\n")
    sys.stdout.flush()


async def send(node: Node, sets: list[list[str]]) -> None:
    for to in sets[node.sent :]:
        message = await node.send(to, b"x" * 50, durable=False)
        say(node, "send", sender=node.name, number=message.number, to=to)
        await asyncio.sleep(0)


async def take(node: Node) -> None:
    async for message in node:
        facts = {"sender": message.sender, "number": message.number}
        say(node, "deliver", again=message.again, **facts)
        await message.ack()
        say(node, "acked", **facts)


async def main(config: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    node = Node(
        config["name"],
        config["peers"],
        protocol=config["protocol"],
        journal=config["journal"],
        sync=config["sync"],
        trace=config["trace"],
        settings=SETTINGS,
    )
    async with node:
        assert node._journal is not None
        say(node, "start", found=node._journal.position)
        sets = plan(config["seed"], sorted(config["peers"]), config["each"])[node.name]
        tasks = [asyncio.ensure_future(part) for part in (send(node, sets), take(node))]
        await loop.run_in_executor(None, sys.stdin.read)
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
