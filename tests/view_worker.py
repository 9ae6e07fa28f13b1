"""A node in a process of its own that joins, leaves and removes, for tests that kill it: `python -m tests.view_worker`.

Its application keeps what the group said in a file, written before it acknowledges, so that it survives as the node
does. Each line of standard input is a request: `say 20`, `leave`, `remove b`. Each line of standard output is JSON:
what phase of a change the node is in, each view that its application comes to, and how many words it has. It ends when
standard input does.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from antecede.net import Node, Settings
from antecede.net.arguments import NodeOptions
from antecede.process.views.members import Change

SETTINGS = Settings(
    snapshot_inputs=60,
    first_retry_s=0.01,
    last_retry_s=0.1,
    queue=64,
    trace_s=0.2,
    beat_s=0.2,
    dead_s=2.0,
    drain_s=2.0,
)


def tell(kind: str, **facts: Any) -> None:
    # One write for a line: a killed process leaves no half of one.
    sys.stdout.write(json.dumps({"kind": kind, **facts}) + "\n")
    sys.stdout.flush()


class Worker:
    def __init__(self, config: dict[str, Any]) -> None:
        self.name, self.file = config["name"], Path(config["words"])
        text = self.file.read_text() if self.file.exists() else ""
        # A line that a crash cut off was not acknowledged.
        self.words = text.split("\n")[:-1]
        options = NodeOptions(
            protocol=config["protocol"],
            listen=config["address"],
            journal=config["journal"],
            trace=config["trace"],
            settings=SETTINGS,
            state=self.state,
            changed=self.changed,
        )
        if config["join"]:
            self.node = Node.join(self.name, config["peers"], groups=["all"], **options)
        else:
            groups = {"all": list(config["peers"])}
            self.node = Node(self.name, config["peers"], groups=groups, **options)

    def state(self) -> bytes:
        return "\n".join(self.words).encode()

    def changed(self, change: Change) -> None:
        tell("view", number=change.number, members=change.members, removed=change.removed)

    def write(self) -> None:
        temporary = self.file.with_suffix(".part")
        temporary.write_text("".join(f"{word}\n" for word in self.words))
        temporary.replace(self.file)

    async def listen(self) -> None:
        async for message in self.node:
            word = f"{message.sender} {message.number}"
            if message.number == 0:
                self.words = message.payload.decode().split("\n") if message.payload else []
                self.write()
            elif word not in self.words:
                self.words.append(word)
                self.write()
            await message.ack()
            tell("words", by=Counter(word.split()[0] for word in self.words))

    async def watch(self) -> None:
        """Tell every phase, as soon as it can be seen."""
        before: Any = None
        while True:
            membership = self.node._host.core.changing.membership
            phase = [membership.roll.number, membership.promised, membership.going, membership.settled]
            if phase != before:
                tell("phase", phase=phase, members=membership.roll.shown)
            before = phase
            await asyncio.sleep(0.001)

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            match line.split():
                case ["say", count]:
                    for _ in range(int(count)):
                        await self.node.send("all", b"")
                    tell("said", sent=self.node.sent)
                case ["leave"]:
                    await self.node.leave()
                    tell("left")
                case ["remove", name]:
                    await self.node.remove(name)
                    tell("removed", name=name)

    async def run(self) -> None:
        async with self.node:
            tell("start", members=self.node.members)
            tasks = [asyncio.ensure_future(part) for part in (self.listen(), self.watch())]
            await self.serve()
            tasks[1].cancel()
        await asyncio.wait(tasks)
        tell("end", words=self.words)


if __name__ == "__main__":
    asyncio.run(Worker(json.loads(sys.argv[1])).run())
