"""Routers of a WAN of LANs, killed all the time, as real processes: nothing lost, repeated or out of order.

    python -m benchmarks.chaos.routers --kills 50 --messages 5000

Zones of processes, each behind a separator of f + 1 routers, all of them `antecede node`. Processes talk; routers are
killed with SIGKILL, up to f of a zone at once. One that was killed is started again from its journal, or is removed,
and another joins its separator. What the applications sent and were handed is judged by the oracle, end to end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from antecede.model import Event
from antecede.oracle import Verdict, check
from antecede.topology import Topology, shapes
from benchmarks.chaos.fleet import free_addresses

__all__ = ["Wan", "run"]

PATIENCE_S = 60.0
SETTINGS = "[settings]\nfirst_retry_s = 0.02\nlast_retry_s = 0.2\nbeat_s = 0.2\ndead_s = 2.0\n"


class Process:
    """One node, in all its lives."""

    def __init__(self, config: Path, role: str, events: list[Event], names: list[str]) -> None:
        self.config, self.role, self.name = config, role, config.stem
        self._events, self._names = events, names
        self._said: dict[str, asyncio.Queue[dict[str, Any]]] = {}
        self.sent = 0

    async def start(self) -> None:
        command = ["-m", "antecede", "node", "--config", str(self.config), "--role", self.role]
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdin=pipe, stdout=pipe, limit=1 << 24
        )
        self._listening = asyncio.ensure_future(self._listen())
        await self.hear("ready")

    async def hear(self, event: str) -> dict[str, Any]:
        queue = self._said.setdefault(event, asyncio.Queue())
        async with asyncio.timeout(PATIENCE_S):
            return await queue.get()

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            said = json.loads(line)
            if said["event"] == "message":
                # Before it is acknowledged, so that a message that comes again is seen.
                here, sender = self._names.index(self.name), self._names.index(said["sender"])
                self._events.append(Event(here, "deliver", sender, said["number"]))
                self.ask(do="ack", sender=said["sender"], number=said["number"])
            else:
                self._said.setdefault(said["event"], asyncio.Queue()).put_nowait(said)

    def ask(self, **request: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")

    async def send(self, to: list[str]) -> None:
        self.sent += 1
        here, places = self._names.index(self.name), tuple(sorted(map(self._names.index, to)))
        self._events.append(Event(here, "send", here, self.sent, places))
        self.ask(do="send", to=to, text="x")
        assert (await self.hear("sent"))["number"] == self.sent

    async def stop(self, kill: bool = False) -> None:
        if self.process.returncode is None:
            (self.process.kill if kill else self.process.terminate)()
            await self.process.wait()
        await self._listening


class Wan:
    """The whole system."""

    def __init__(
        self, directory: Path, seed: int, f: int, zones: int = 2, size: int = 2, spare: int = 0
    ) -> None:
        self.directory, self.random, self.f = directory, Random(seed), f
        self.topology: Topology = shapes.wan_of_lans(zones, size, f + 1)
        self.events: list[Event] = []
        self.names = list(self.topology.names)
        self.processes: dict[str, Process] = {}
        self.down: list[str] = []
        self.counts: Counter[str] = Counter()
        self._addresses = free_addresses(len(self.names) + spare)

    async def start(self) -> None:
        topology, names = self.topology, self.names
        peers = "\n".join(f'"{name}" = "{self._addresses[at]}"' for at, name in enumerate(names))
        links = json.dumps([[names[a], names[b]] for a, b in topology.links])
        separators = json.dumps([list(members) for members in topology.separators])
        inside = json.dumps([names[v] for v in topology.processes])
        graph = f"[topology]\nlinks = {links}\nprocesses = {inside}\nseparators = {separators}\n"
        for at, name in enumerate(names):
            role = "node" if at in topology.processes else "router"
            self.processes[name] = self._describe(name, role, f"[peers]\n{peers}\n{graph}")
        await asyncio.gather(*(process.start() for process in self.processes.values()))

    def _describe(self, name: str, role: str, system: str) -> Process:
        config = self.directory / f"{name}.toml"
        head = f'name = "{name}"\nprotocol = "separator"\njournal = "{name}.db"\nsync = "normal"\n'
        config.write_text(f"{head}{SETTINGS}{system}")
        return Process(config, role, self.events, self.names)

    @property
    def senders(self) -> list[str]:
        return [name for name, process in self.processes.items() if process.role == "node"]

    async def talk(self, messages: int) -> None:
        """All processes send, each one message after the other."""

        async def speak(name: str) -> None:
            random = Random(f"{name} {self.random.random()}")
            others = [other for other in self.senders if other != name]
            for _ in range(messages // len(self.senders)):
                await self.processes[name].send(random.sample(others, random.randint(1, len(others))))
                await asyncio.sleep(random.random() * 0.01)

        await asyncio.gather(*map(speak, self.senders))

    async def kill(self, name: str) -> None:
        await self.processes[name].stop(kill=True)
        self.counts["kills"] += 1

    async def come_back(self, name: str) -> None:
        await self.processes[name].start()
        self.counts["restarts"] += 1

    async def replace(self, name: str) -> None:
        """Let another router join the separator of one that was removed."""
        vertex, topology = self.topology.id(name), self.topology
        station = topology.stations[topology.plan.place[vertex]]
        near = {a if b == vertex else b for a, b in topology.links if vertex in (a, b)}
        near = {v for v in near if v not in topology.dead}
        zone, new = name.split(".")[0], f"{name.split('.')[0]}.g{len(topology.names) + 1}"
        member = next(topology.names[v] for v in station.members if v not in topology.dead)
        links = [topology.names[v] for v in sorted(near)]
        at = len(self.names)
        members = "\n".join(
            f'"{name}" = "{self._addresses[self.names.index(name)]}"' for name in self.senders
        )
        join = f"[join]\nlinks = {json.dumps(links)}\nmember_of = {json.dumps(member)}\n[join.members]\n{members}\n"
        own = f'"{new}" = "{self._addresses[at]}"\n'
        self.names.append(new)
        self.processes[new] = self._describe(new, "router", join + own)
        await self.processes[new].start()
        assert zone in new
        self.topology = topology.join(new, links, member_of=member).topology
        self.counts["joins"] += 1

    async def remove(self, *names: str) -> None:
        """Remove routers that were killed: all at once, since a change waits for whoever is not removed."""
        asked = self.processes[self.senders[0]]
        for name in names:
            asked.ask(do="remove", name=name)
        for _ in names:
            name = (await asked.hear("removed"))["name"]
            self.topology = self.topology.fail(name)
            del self.processes[name]
            self.counts["removals"] += 1

    def routers(self, zone: int) -> list[str]:
        return [
            name
            for name, process in self.processes.items()
            if process.role == "router" and name.startswith(f"{zone}.")
        ]

    async def settle(self) -> None:
        """Wait until all that was sent has been handed over."""
        async with asyncio.timeout(PATIENCE_S):
            while sum(len(e.to) if e.kind == "send" else -1 for e in self.events):
                await asyncio.sleep(0.05)

    async def stop(self) -> None:
        await asyncio.gather(*(process.stop() for process in self.processes.values()))

    def judge(self) -> Verdict:
        return check(self.events, processes=len(self.names))


async def run(directory: Path, kills: int, messages: int, f: int, zones: int, seed: int) -> dict[str, Any]:
    wan = Wan(directory, seed, f, zones, spare=kills)
    await wan.start()
    began, random = time.monotonic(), wan.random
    try:
        talking = asyncio.ensure_future(wan.talk(messages))
        while wan.counts["kills"] < kills:
            await asyncio.sleep(random.random() * 0.2)
            some = random.sample(wan.routers(random.randint(1, zones)), random.randint(1, f))
            await asyncio.gather(*map(wan.kill, some))
            back = [name for at, name in enumerate(some, wan.counts["kills"]) if at % 2]
            await asyncio.gather(*map(wan.come_back, back))
            gone = [name for name in some if name not in back]
            await wan.remove(*gone)
            for name in gone:
                await wan.replace(name)
        await talking
        await wan.settle()
    finally:
        await wan.stop()
    verdict = wan.judge()
    took = round(time.monotonic() - began, 1)
    wrong = {} if verdict.ok else {"wrong": str(verdict)[:2000]}
    return {"ok": verdict.ok, "deliveries": verdict.deliveries, **wan.counts, "seconds": took, **wrong}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--f", type=int, default=1)
    parser.add_argument("--zones", type=int, default=2)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 100_000)
    given = parser.parse_args()
    print(f"seed {given.seed}", file=sys.stderr)
    with TemporaryDirectory(prefix="antecede-routers-") as directory:
        told = asyncio.run(
            run(Path(directory), given.kills, given.messages, given.f, given.zones, given.seed)
        )
    print(json.dumps({"f": given.f, "zones": given.zones, "seed": given.seed, **told}))
    raise SystemExit(0 if told["ok"] else 1)


if __name__ == "__main__":
    main()
