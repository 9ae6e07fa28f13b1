"""The processes of a run: start them, kill some all the time, wait for the last message, and stop them.

A kill comes when a certain share of all messages is delivered, so that they are spread over the whole run, whatever the
speed; most hit a node that is at work, and one in five a node that just comes back. A run fails if a node ends by
itself, or if nothing is delivered for `patience_s`; then every node is asked what it waits for.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any, Literal

import msgspec
from msgspec import Struct

from antecede.net.transports.keys import make_keys
from benchmarks.chaos.diary import Tail
from benchmarks.chaos.plan import Plan, node_names
from benchmarks.chaos.weather import Weather
from benchmarks.chaos.worker import Job

__all__ = ["Fleet", "Options", "Passed", "Stuck", "free_addresses"]

LOOK_S = 0.05
ROOT = Path(__file__).parent.parent.parent
BROKER = "broker"


class Options(Struct, frozen=True):
    """One run."""

    protocol: str
    messages: int
    kills: int
    nodes: int = 4
    seed: str = "1"
    snapshot_inputs: int = 2000
    trace_s: float = 5.0
    """How often a node writes a file of its trace: a long run would have too many to read if it were short."""
    pause_s: float = 0.0
    """After each message that a node sends: a short run would else be over before anyone is killed."""
    patience_s: float = 60.0
    fault: str | None = None
    transport: Literal["tcp", "tls", "nats"] = "tcp"

    @property
    def plan(self) -> Plan:
        return Plan(self.seed, self.nodes, self.messages // self.nodes)


class Passed(Struct, frozen=True):
    """What a run went through."""

    seconds: float
    kills: int
    weather: dict[str, int]
    bytes: int


class Stuck(Exception):
    """A run that does not come to its end, and what its nodes say of it."""

    def __init__(self, reason: str, told: list[dict[str, Any]]) -> None:
        super().__init__("\n".join([reason, *(msgspec.json.encode(one).decode() for one in told)]))
        self.told = told


class Child:
    """One node's process, in all its lives: `module` runs it, as `job` says."""

    module = "benchmarks.chaos.worker"

    def __init__(self, name: str, directory: str) -> None:
        self.name = name
        self._said, self.complaints = Path(directory, f"{name}.said"), Path(directory, f"{name}.log")
        self.process: asyncio.subprocess.Process | None = None
        self.struck = False
        """It is being killed and started again."""

    async def run(self, job: Struct) -> None:
        command = [sys.executable, "-m", self.module, msgspec.json.encode(job).decode()]
        with self._said.open("ab") as out, self.complaints.open("ab") as err:
            self.process = await asyncio.create_subprocess_exec(
                *command, cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=out, stderr=err
            )

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def kill(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGKILL)
            await self.process.wait()

    def ask(self, words: str) -> None:
        if self.runs:
            assert self.process is not None
            assert self.process.stdin is not None
            with suppress(OSError):
                self.process.stdin.write(words.encode() + b"\n")

    async def tell(self) -> dict[str, Any]:
        """How it is, if it says so."""
        before = self._said.stat().st_size
        self.ask("how")
        for _ in range(100):
            await asyncio.sleep(LOOK_S)
            said = self._said.read_bytes()[before:]
            if said.endswith(b"\n"):
                answer: dict[str, Any] = msgspec.json.decode(said.splitlines()[-1])
                return answer
            if not self.runs:
                break
        return {"name": self.name, "status": "no answer", "log": self.last_words()}

    def last_words(self) -> list[str]:
        return self.complaints.read_text(errors="replace").splitlines()[-5:]

    def close(self) -> None:
        """Let it end: there is nothing more on its standard input."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()


class Member(Child):
    """A process of a system that does not change."""

    def __init__(self, job: Job) -> None:
        super().__init__(job.name, job.directory)
        self.job = job
        self._diary = Path(job.directory, f"{job.name}.diary")
        self._before = 0

    async def start(self) -> None:
        self._before = self._measure_diary()
        await self.run(self.job)

    async def alive(self) -> None:
        """Until it has come to life, or ended."""
        while self.runs and self._measure_diary() == self._before:
            await asyncio.sleep(LOOK_S)

    def _measure_diary(self) -> int:
        return self._diary.stat().st_size if self._diary.exists() else 0

    async def stop(self) -> int:
        assert self.process is not None
        self.close()
        return await self.process.wait()


class Fleet:
    """The processes of one run, and its network."""

    def __init__(self, options: Options, directory: Path, progress: Callable[[str], None]) -> None:
        self.options, self.directory, self._progress = options, directory, progress
        self._random = Random(f"{options.seed} {options.protocol}")
        self._plan = options.plan
        self._owed = sum(len(numbers) for senders in self._plan.list_owed() for numbers in senders)
        self._tails = [
            Tail(directory / f"{name}.diary", options.nodes, self._plan.each)
            for name in node_names(options.nodes)
        ]
        self._kills = 0
        self._restarts: set[asyncio.Task[None]] = set()

    async def run(self) -> Passed:
        """Everything, to the end. Raises `Stuck`."""
        names, start = node_names(self.options.nodes), time.monotonic()
        addresses = dict(zip((*names, BROKER), free_addresses(len(names) + 1), strict=True))
        async with AsyncExitStack() as stack:
            hub = None
            if self.options.transport == "nats":
                hub = BROKER
                stack.push_async_callback(await _broker(addresses[hub]))
            elif self.options.transport == "tls":
                make_keys(self.directory / "keys", list(names))
            weather = await stack.enter_async_context(Weather(names, addresses, self._random, hub))
            self._members = [Member(self._job(k, addresses, weather)) for k in range(len(names))]
            for member in self._members:
                stack.push_async_callback(member.kill)
            for member in self._members:
                await member.start()
            await self._chase(weather)
            await self._stop()
        return Passed(time.monotonic() - start, self._kills, dict(weather.counts), weather.passed)

    def _job(self, k: int, addresses: dict[str, str], weather: Weather) -> Job:
        name, options = node_names(self.options.nodes)[k], self.options
        to, way = weather.to[name], options.transport
        peers = {other: address for other, address in to.items() if other not in (name, BROKER)}
        return Job(
            me=k,
            listen=addresses[name],
            peers=peers,
            protocol=options.protocol,
            # Both promises, side by side: a kill must harm neither.
            sync="full" if k % 2 else "normal",
            directory=str(self.directory),
            plan=self._plan,
            snapshot_inputs=options.snapshot_inputs,
            trace_s=options.trace_s,
            pause_s=options.pause_s,
            fault=options.fault,
            broker=to[BROKER] if way == "nats" else "",
            keys=str(self.directory / "keys") if way == "tls" else "",
        )

    async def _chase(self, weather: Weather) -> None:
        """Kill, until all is delivered."""
        handed, moved, shown = 0, time.monotonic(), time.monotonic()
        calm = False
        while handed < self._owed or self._kills < self.options.kills:
            await asyncio.sleep(LOOK_S)
            now, before = time.monotonic(), handed
            handed = sum(tail.look() for tail in self._tails)
            if handed > before or self._restarts:
                moved = now
            self._check_alive()
            if now - moved > self.options.patience_s:
                await self._give_up(
                    f"nothing was delivered for {now - moved:.0f} s, at {handed:,} of {self._owed:,}"
                )
            if self._kills < self.options.kills and handed / self._owed >= self._share():
                self._strike()
            if handed > 0.95 * self._owed and not calm:
                await weather.calm()
                calm = True
            if now - shown > 5:
                self._progress(f"{handed:,} of {self._owed:,} delivered, {self._kills} kills")
                shown = now

    def _share(self) -> float:
        """How much is to be delivered before the next kill: all of them within the first nine tenths."""
        return 0.9 * (self._kills + 0.5) / (self.options.kills + 1)

    def _strike(self) -> None:
        victims = [member for member in self._members if not member.struck]
        if victims:
            self._kills += 1
            victim = self._random.choice(victims)
            victim.struck = True
            task = asyncio.ensure_future(self._kill(victim))
            self._restarts.add(task)
            task.add_done_callback(self._restarts.discard)

    async def _kill(self, victim: Member) -> None:
        await victim.kill()
        await asyncio.sleep(self._random.choice([0.0, 0.0, 0.2, 1.0]))
        await victim.start()
        if self._random.random() < 0.2 and self._kills < self.options.kills:
            # While it comes back: it reads its journal, or has just met the others.
            await asyncio.sleep(self._random.uniform(0.2, 1.5))
            self._kills += 1
            await victim.kill()
            await victim.start()
        await victim.alive()
        victim.struck = False

    def _check_alive(self) -> None:
        for member in self._members:
            if not member.struck and member.process is not None and member.process.returncode is not None:
                words = "\n".join(member.last_words())
                raise Stuck(
                    f"{member.job.name} ended by itself, with {member.process.returncode}:\n{words}", []
                )

    async def _give_up(self, reason: str) -> None:
        raise Stuck(reason, [await member.tell() for member in self._members])

    async def _stop(self) -> None:
        while self._restarts:
            await asyncio.wait(self._restarts)
        codes = await asyncio.gather(*(member.stop() for member in self._members))
        if any(codes):
            words = [line for member in self._members for line in member.last_words()]
            raise Stuck(f"nodes ended with {codes}:\n" + "\n".join(words), [])


async def _broker(address: str) -> Callable[[], Awaitable[None]]:
    """Start a NATS server, and answer how to end it."""
    beside = Path(sys.executable).parent / "nats-server"
    program = str(beside) if beside.exists() else "nats-server"
    host, _, port = address.rpartition(":")
    nowhere = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(program, "-a", host, "-p", port, stderr=nowhere)

    async def end() -> None:
        process.kill()
        await process.wait()

    return end


def free_addresses(count: int) -> list[str]:
    """Addresses that are free, and that the system gives to nobody else while a node is down.

    Ports that it hands out by itself start at 32768 or later: one of those may be taken by any program that dials, by
    a peer that dials the very node that is down among them.
    """
    random, free = Random(), list[str]()
    while len(free) < count:
        port = random.randrange(10_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            free.append(f"127.0.0.1:{port}")
    return free
