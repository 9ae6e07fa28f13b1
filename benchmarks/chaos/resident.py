"""One node of a system whose view changes, in a process of its own: `python -m benchmarks.chaos.resident '{...}'`

Its application says something to the group, to some members or to one, again and again, and takes what comes. Its diary
is a file of lines, each written by one call before anything else happens, so that it outlives the process:

  start N            a life begins, and the node says that it has sent N messages
  sent N A B ...     it sent message N to these
  handed S N         message N of S was handed over; `again` if the node said that it may have been before
  done S N           its acknowledgement was awaited: it must not come again
  view K A B ...     its application came to view K of these members
  left               it is no member any more, and has taken everything

Each line of standard input is a request: `leave`, `remove NAME`, `hush` (say nothing more), `how` (is it: answered by a
line of JSON on standard output). The end of standard input stops it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Literal

import msgspec
from msgspec import Struct

from antecede.errors import Closed, NotMember, UnknownProcess
from antecede.net import Node, Settings
from antecede.net.arguments import NodeOptions
from antecede.net.delivery import Durable
from antecede.process.views.members import Change

__all__ = ["Resident", "Terms"]

LATE = 23
"""One message in so many is acknowledged after as many others."""


class Terms(Struct, frozen=True):
    """Settings that a node may come back with other ones of. (Limits are the same at all: nodes compare them.)"""

    snapshot_inputs: int = 2000
    queue: int = 256
    held: int = 256
    sync: Literal["full", "normal"] = "full"

    @classmethod
    def draw(cls, random: Random) -> Terms:
        return cls(
            random.choice((60, 500, 2000)), random.choice((16, 256)), random.choice((32, 256)),
            random.choice(("full", "normal")),
        )  # fmt: skip


class Resident(Struct, frozen=True):
    """All that a worker needs to know."""

    name: str
    seed: str
    protocol: str
    listen: str
    peers: dict[str, str]
    directory: str
    joins: bool
    terms: Terms
    trace_s: float
    pause_s: float

    def diary(self) -> Path:
        return Path(self.directory, f"{self.name}.diary")


TORN = " torn"
"""What a life adds to a line of the diary that a kill has cut in two: the line counts as never written."""


def open_diary(path: Path) -> int:
    """The diary, to append to; what it ends with is a whole line, or said to be none."""
    torn = path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    if torn:
        os.write(file, f"{TORN}\n".encode())
    return file


class Application:
    """What runs on the node."""

    def __init__(self, job: Resident) -> None:
        self.job = job
        self._file = open_diary(job.diary())
        self._done: asyncio.Queue[tuple[Durable, str, int]] = asyncio.Queue()
        self.hushed = asyncio.Event()
        terms = job.terms
        settings = Settings(
            snapshot_inputs=terms.snapshot_inputs,
            queue=terms.queue,
            held=terms.held,
            first_retry_s=0.02,
            last_retry_s=0.3,
            beat_s=0.25,
            dead_s=1.5,
            hello_s=1.5,
            drain_s=3.0,
            trace_s=job.trace_s,
        )
        options = NodeOptions(
            protocol=job.protocol,
            listen=job.listen,
            journal=Path(job.directory, f"{job.name}.db"),
            sync=terms.sync,
            trace=Path(job.directory, "trace"),
            run=job.protocol,
            settings=settings,
            state=lambda: b"",
            changed=self._note_view,
        )
        if job.joins:
            self.node = Node.join(job.name, job.peers, groups=["all"], **options)
        else:
            self.node = Node(job.name, job.peers, groups={"all": list(job.peers)}, **options)

    def note(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())

    def _note_view(self, change: Change) -> None:
        self.note("view", change.number, *change.members)

    async def say(self) -> None:
        random, node = Random(f"{self.job.seed} {self.job.name} {self.node.sent}"), self.node
        while not self.hushed.is_set():
            kind = random.choice(("all", "all", "one", "some"))
            members = list(node.members)
            if kind == "all" or self.job.protocol == "broadcast":
                to = ["all"]
            else:
                to = random.sample(members, 1 if kind == "one" else min(2, len(members)))
            size = random.randrange(100) if random.random() < 0.99 else random.randrange(8000)
            try:
                message = await node.send(to, bytes(size), durable=False)
            except UnknownProcess:
                # It has left while we waited for room.
                continue
            self.note("sent", message.number, *message.to)
            if self.job.pause_s:
                await asyncio.sleep(self.job.pause_s)

    async def take(self) -> None:
        late: list[tuple[Any, str, int]] = []
        async for message in self.node:
            self.note("again" if message.again else "handed", message.sender, message.number)
            late.append((message, message.sender, message.number))
            while late and (late[0][2] % LATE or len(late) > LATE):
                done, sender, number = late.pop(0)
                self._done.put_nowait((done.ack(), sender, number))
        self.note("left")

    async def conclude(self) -> None:
        """Write down what cannot come again. Acknowledgements become durable in their order: one answers for many."""
        while True:
            group = [await self._done.get()]
            while not self._done.empty():
                group.append(self._done.get_nowait())
            await group[-1][0]
            for _, sender, number in group:
                self.note("done", sender, number)

    async def serve(self) -> None:
        loop, asked = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            match line.split():
                case ["leave"]:
                    self.hushed.set()
                    asked.add(asyncio.ensure_future(self.node.leave()))
                case ["remove", name]:
                    asked.add(asyncio.ensure_future(self._remove(name)))
                case ["hush"]:
                    self.hushed.set()
                case ["how"]:
                    self._answer()

    async def _remove(self, name: str) -> None:
        # It may be gone by now, or we may be: the operator asks again.
        with suppress(UnknownProcess, Closed, NotMember):
            await self.node.remove(name)

    def _answer(self) -> None:
        status = self.node.status()
        said = {
            "view": status.view,
            "members": status.members,
            "sent": status.sent,
            "changing": None if status.changing is None else msgspec.to_builtins(status.changing),
            "busy": status.eligible + status.unsent + sum(status.held.values()) + sum(status.queued.values()),
            "durable": status.durable == status.inputs,
            "waiting": [held.reason for held in self.node.waiting()][:5],
        }
        sys.stdout.write(msgspec.json.encode(said).decode() + "\n")
        sys.stdout.flush()

    async def run(self) -> None:
        """Live, and end the process: standard input is read by a thread that nothing ends but its end."""
        try:
            await self._live()
        except Exception:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    async def _live(self) -> None:
        async with self.node as node:
            self.note("start", node.sent)
            serving = asyncio.ensure_future(self.serve())
            taking = asyncio.ensure_future(self.take())
            concluding = asyncio.ensure_future(self.conclude())
            saying = asyncio.ensure_future(self.say())
            pending: set[asyncio.Task[None]] = {serving, taking, concluding, saying}
            while not serving.done() and not taking.done():
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    with suppress(Closed):
                        task.result()
        concluding.cancel()
        saying.cancel()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(Application(msgspec.json.decode(sys.argv[1], type=Resident)).run())
