"""One node in a process of its own, and its application: `python -m benchmarks.chaos.worker '{...}'`

The application sends its part of the plan, takes what comes, and writes its diary. Some messages it acknowledges late,
so that a kill finds messages that were handed over and are not done. A line on standard input asks how it is, which it
says as a line of JSON; the end of standard input stops it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from antecede.net import Delivery, Nats, Node, Settings, Tls
from antecede.net.delivery import Durable
from benchmarks.chaos import diary
from benchmarks.chaos.diary import Diary
from benchmarks.chaos.faults import plant
from benchmarks.chaos.plan import Plan, node_names

__all__ = ["Job"]

LATE = 23
"""One message in so many is acknowledged after as many others."""


class Job(Struct, frozen=True):
    """All that a worker needs to know."""

    me: int
    listen: str
    peers: dict[str, str]
    protocol: str
    sync: Literal["full", "normal"]
    directory: str
    plan: Plan
    snapshot_inputs: int
    trace_s: float
    pause_s: float
    fault: str | None = None
    broker: str = ""
    """The address of a NATS server, if they talk through one."""
    keys: str = ""
    """Where their certificates are, if they talk over TLS."""

    @property
    def name(self) -> str:
        return node_names(self.plan.n)[self.me]

    def node(self) -> Node:
        settings = Settings(
            snapshot_inputs=self.snapshot_inputs,
            first_retry_s=0.02,
            last_retry_s=0.3,
            beat_s=0.25,
            dead_s=1.5,
            hello_s=1.5,
            queue=256,
            held=256,
            trace_s=self.trace_s,
        )
        tls = Tls(
            *(Path(self.keys, name) for name in ("authority.pem", f"{self.name}.pem", f"{self.name}.key"))
        )
        transport = Nats(f"nats://{self.broker}", self.name) if self.broker else None
        return Node(
            self.name,
            self.peers,
            listen=self.listen,
            tls=tls if self.keys else None,
            transport=transport,
            protocol=self.protocol,
            journal=Path(self.directory, f"{self.name}.db"),
            sync=self.sync,
            trace=Path(self.directory, "trace"),
            run=self.protocol,
            settings=settings,
        )


class Application:
    """What runs on the node."""

    def __init__(self, job: Job, node: Node) -> None:
        self.job, self.node = job, node
        self.names = node_names(job.plan.n)
        self.diary = Diary(Path(job.directory, f"{job.name}.diary"))
        self.diary.note(diary.START, job.me, node.sent)
        self._done: asyncio.Queue[tuple[Durable, int, int]] = asyncio.Queue()

    async def send(self) -> None:
        plan, me = self.job.plan, self.job.me
        for number in range(self.node.sent + 1, plan.each + 1):
            to = [self.names[k] for k in plan.to(me, number)]
            message = await self.node.send(to, plan.payload(me, number), durable=False)
            # No pause since the node has counted it: only a kill can come between.
            self.diary.note(diary.SENT, me, message.number)
            assert message.number == number, f"{message.number} for {number}"
            if self.job.pause_s:
                await asyncio.sleep(self.job.pause_s)

    async def take(self) -> None:
        late: list[Delivery] = []
        async for message in self.node:
            sender = self.names.index(message.sender)
            self.diary.note(diary.AGAIN if message.again else diary.HANDED, sender, message.number)
            assert message.payload == self.job.plan.payload(sender, message.number), f"{message}: its payload"
            if message.number % LATE == 0:
                late.append(message)
            else:
                self._acknowledge(message, sender)
            if len(late) > LATE:
                old = late.pop(0)
                self._acknowledge(old, self.names.index(old.sender))

    def _acknowledge(self, message: Delivery, sender: int) -> None:
        self._done.put_nowait((message.ack(), sender, message.number))

    async def conclude(self) -> None:
        """Write down what cannot come again. Acknowledgements become durable in their order: one answers for many."""
        while True:
            group = [await self._done.get()]
            while not self._done.empty():
                group.append(self._done.get_nowait())
            await group[-1][0]
            for _, sender, number in group:
                self.diary.note(diary.DONE, sender, number)

    def describe(self) -> dict[str, Any]:
        """How it is, for someone who wonders why it does not go on."""
        held = self.node.waiting()
        return {
            "name": self.job.name,
            "status": msgspec.to_builtins(self.node.status()),
            "waiting": msgspec.to_builtins(held[:5]),
            "held": len(held),
        }


async def main(job: Job) -> None:
    loop = asyncio.get_running_loop()
    async with job.node() as node:
        application = Application(job, node)
        asking = asyncio.ensure_future(_answer(loop, application))
        taking = asyncio.ensure_future(application.take())
        others = [asyncio.ensure_future(part) for part in (application.send(), application.conclude())]
        pending = {asking, taking, *others}
        while not asking.done():
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    for task in others:
        task.cancel()
    await taking


async def _answer(loop: asyncio.AbstractEventLoop, application: Application) -> None:
    while await loop.run_in_executor(None, sys.stdin.readline):
        sys.stdout.write(msgspec.json.encode(application.describe()).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    described = msgspec.json.decode(sys.argv[1], type=Job)
    plant(described.fault)
    asyncio.run(main(described))
