"""A system whose members come and go, under fire: kills, partitions, other settings, joins, leaves, removals.

Real processes. A run goes on until so many messages were sent, so many nodes were killed and so many changes made, all
spread over it; then the storm ends, all fall silent, and everything is accounted for (`census`). An operator has one
change under way at a time, as operators do; kills and weather come as they like, to the leader of a change too.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from msgspec import Struct

from benchmarks.chaos.fleet import LOOK_S, Child, Stuck, free_addresses
from benchmarks.chaos.resident import TORN, Resident, Terms
from benchmarks.chaos.weather import Pair, Weather

__all__ = ["Asked", "Town", "Went"]

FEWEST, MOST = 3, 6
"""Members."""


class Asked(Struct, frozen=True):
    """One run."""

    protocol: str
    messages: int
    kills: int
    changes: int
    nodes: int = 4
    seed: str = "1"
    trace_s: float = 5.0
    pause_s: float = 0.0
    patience_s: float = 120.0


class Went(Struct, frozen=True):
    """What a run went through."""

    seconds: float
    counts: dict[str, int]
    weather: dict[str, int]
    names: list[str]
    removed: list[str]
    left: list[str]


class House(Child):
    """A process of a system that changes."""

    module = "benchmarks.chaos.resident"

    def __init__(self, job: Resident) -> None:
        super().__init__(job.name, job.directory)
        self.job = job
        self.leaving = False
        self._looked = self.sent = 0
        self._rest = ""
        self.lives = self.views = 0
        self.members: list[str] = []

    async def start(self, terms: Terms | None = None) -> None:
        if terms is not None:
            self.job = msgspec.structs.replace(self.job, terms=terms)
        await self.run(self.job)

    def look(self) -> None:
        """Read on in its diary."""
        path = self.job.diary()
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._looked)
            data = file.read()
        self._looked += len(data)
        *lines, self._rest = (self._rest + data.decode()).split("\n")
        for line in lines:
            word, _, rest = ("", "", "") if line.endswith(TORN) else line.partition(" ")
            if word == "sent":
                self.sent = int(rest.split()[0])
            elif word == "start":
                self.lives += 1
            elif word == "view":
                self.views, self.members = int(rest.split()[0]), rest.split()[1:]


class Town:
    """All processes of one run, the network, and the operator."""

    def __init__(self, asked: Asked, directory: Path, progress: Callable[[str], None]) -> None:
        self.asked, self.directory, self._progress = asked, directory, progress
        self._random = Random(f"{asked.seed} {asked.protocol}")
        self.counts: Counter[str] = Counter()
        self.houses: dict[str, House] = {}
        self.removed: list[str] = []
        self.left: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._doors: list[Pair] = []
        """In front of those that joined."""
        self._stormy = True

    async def run(self) -> Went:
        start, asked = time.monotonic(), self.asked
        names = tuple(f"p{k + 1:03d}" for k in range(asked.nodes))
        addresses = dict(zip(names, free_addresses(len(names)), strict=True))
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._end_all)
            weather = await stack.enter_async_context(Weather(names, addresses, self._random))
            for name in names:
                job = Resident(
                    name, asked.seed, asked.protocol, addresses[name], weather.to[name], str(self.directory),
                    False, Terms.draw(self._random), asked.trace_s, asked.pause_s,
                )  # fmt: skip
                self.houses[name] = House(job)
                await self.houses[name].start()
            await self._wait(lambda: all(house.lives for house in self.houses.values()), "the start")
            operator = asyncio.ensure_future(self._operate())
            self._tasks.add(operator)
            await self._storm(operator)
            self._stormy = False
            await weather.calm()
            for door in self._doors:
                door.calm()
            await self._settle()
            counts = dict(weather.counts)
        total = time.monotonic() - start
        return Went(total, dict(self.counts), counts, list(self.houses), self.removed, self.left)

    # The storm

    @property
    def sent(self) -> int:
        return sum(house.sent for house in self.houses.values())

    def present(self) -> list[House]:
        """Members that run, are not being killed and do not leave."""
        return [
            house
            for house in self.houses.values()
            if house.runs
            and house.lives
            and not house.struck
            and not house.leaving
            and house.name not in self.removed
        ]

    async def _storm(self, operator: asyncio.Future[None]) -> None:
        asked, shown, moved, before = self.asked, time.monotonic(), time.monotonic(), 0
        while not operator.done() or self.sent < asked.messages or self.counts["kills"] < asked.kills:
            await asyncio.sleep(LOOK_S)
            for house in self.houses.values():
                house.look()
            now, progress = time.monotonic(), self.sent + self.counts["changes"] + self.counts["kills"]
            if progress != before:
                before, moved = progress, now
            if now - moved > asked.patience_s:
                await self._give_up(f"nothing happens for {now - moved:.0f} s")
            if operator.done():
                operator.result()
            await self._see_to_ended()
            share = min(1.0, self.sent / asked.messages)
            if self.counts["kills"] < asked.kills and share >= 0.9 * self.counts["kills"] / asked.kills:
                self._strike()
            if now - shown > 10:
                shown = now
                self._progress(f"{self.sent:,} messages, {dict(self.counts)}, {len(self.present())} members")

    async def _see_to_ended(self) -> None:
        """Whoever joined and lost the member that was to give it its state stops, and is removed. No other may stop."""
        for house in list(self.houses.values()):
            if (
                house.lives
                and not house.runs
                and not house.struck
                and not house.leaving
                and self._belongs(house)
            ):
                words = house.last_words()[-1:]
                if not any("NotMember" in line for line in words):
                    await self._give_up(f"{house.name} ended by itself")
                self.counts["orphans"] += 1
                self.removed.append(house.name)
                self._do(self._ask_removal(house))

    def _strike(self) -> None:
        victims = self.present()
        if len(victims) > 1:
            self.counts["kills"] += 1
            victim = self._random.choice(victims)
            victim.struck = True
            self._do(self._kill(victim))

    async def _kill(self, victim: House) -> None:
        await victim.kill()
        await asyncio.sleep(self._random.choice((0.0, 0.0, 0.2, 1.0)))
        before = victim.lives
        other = self._random.random() < 0.3
        self.counts["other settings"] += other
        await victim.start(Terms.draw(self._random) if other else None)
        while victim.runs and victim.lives == before:
            await asyncio.sleep(LOOK_S)
        victim.struck = False

    def _do(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # The operator

    async def _operate(self) -> None:
        """One change after the other, spread over the run."""
        asked = self.asked
        for k in range(asked.changes):
            while self.sent / asked.messages < 0.9 * k / asked.changes:
                await asyncio.sleep(LOOK_S)
            await self._wait(lambda: len(self.present()) >= FEWEST - 1, "members")
            size = len([house for house in self.houses.values() if self._belongs(house)])
            kinds = (["join"] if size < MOST else []) + (["leave", "remove"] if size > FEWEST else [])
            kind = self._random.choice(kinds)
            await {"join": self._join, "leave": self._leave, "remove": self._remove}[kind]()
            self.counts["changes"] += 1
            self.counts[kind] += 1

    def _belongs(self, house: House) -> bool:
        return house.name not in self.removed and house.name not in self.left

    async def _join(self) -> None:
        name = f"p{len(self.houses) + 1:03d}"
        [address] = free_addresses(1)
        door = Pair(address, self._random)
        self._doors.append(door)
        peers = {house.name: house.job.listen for house in self.houses.values() if self._belongs(house)}
        peers[name] = await door.listen()
        asked = self.asked
        job = Resident(
            name, asked.seed, asked.protocol, address, peers, str(self.directory), True,
            Terms.draw(self._random), asked.trace_s, asked.pause_s,
        )  # fmt: skip
        house = self.houses[name] = House(job)
        await house.start()
        self._do(self._blow(door))
        await self._wait(lambda: house.lives > 0, f"{name} to join", house)

    async def _blow(self, door: Pair) -> None:
        random = self._random
        while self._stormy:
            await asyncio.sleep(random.uniform(0.2, 3.0))
            match random.choice(("calm", "delay", "cut", "hole")):
                case "delay":
                    door.delay_s = random.choice((0.001, 0.01, 0.1))
                case "cut":
                    door.cut()
                case "hole":
                    door.hole()
            await asyncio.sleep(random.uniform(0.1, 2.0))
            door.calm()

    async def _leave(self) -> None:
        house = self._random.choice(self.present())
        house.leaving = True
        self.left.append(house.name)
        for _ in range(int(self.asked.patience_s / 2)):
            house.ask("leave")
            for _ in range(40):
                await asyncio.sleep(LOOK_S)
                if not house.runs:
                    await self._see_off(house)
                    return
        await self._give_up(f"{house.name} does not come to leave")

    async def _see_off(self, house: House) -> None:
        """Whoever has left has ended. If the network kept its last words from others, they wait for it: remove it."""
        for _ in range(int(self.asked.patience_s / 2)):
            told = [await one.tell() for one in self.present()]
            waits = [one for one in told if house.name in ((one.get("changing") or {}).get("awaits") or ())]
            if told and not waits and all(house.name not in one.get("members", ()) for one in told):
                return
            if waits:
                if house.name not in self.removed:
                    self.removed.append(house.name)
                    self.counts["removed after they left"] += 1
                self._random.choice(self.present()).ask(f"remove {house.name}")
            await asyncio.sleep(1.0)
        await self._give_up(f"{house.name} has left, and others wait for it")

    async def _remove(self) -> None:
        house = self._random.choice(self.present())
        self.removed.append(house.name)
        await house.kill()
        await self._ask_removal(house)

    async def _ask_removal(self, house: House) -> None:
        for _ in range(int(self.asked.patience_s / 2)):
            able = self.present()
            if able:
                self._random.choice(able).ask(f"remove {house.name}")
            for _ in range(40):
                await asyncio.sleep(LOOK_S)
                if any(one.members and house.name not in one.members for one in self.present()):
                    return
        await self._give_up(f"{house.name} is not removed")

    # The end

    async def _wait(self, done: Callable[[], bool], what: str, house: House | None = None) -> None:
        until = time.monotonic() + self.asked.patience_s
        while not done():
            await asyncio.sleep(LOOK_S)
            for one in self.houses.values():
                one.look()
            if house is not None and not house.runs and not house.struck:
                await self._give_up(f"{house.name} ended while all waited for {what}")
            if time.monotonic() > until:
                await self._give_up(f"waited for {what}")

    async def _settle(self) -> None:
        """Wait until nothing is under way any more, and stop all."""
        await self._wait(
            lambda: not any(house.struck for house in self.houses.values()), "nodes that come back"
        )
        until = time.monotonic() + self.asked.patience_s
        while True:
            houses = [house for house in self.houses.values() if self._belongs(house)]
            for house in houses:
                house.ask("hush")
            told = [await house.tell() for house in houses]
            members = sorted(house.name for house in houses)
            if all(
                one.get("busy") == 0 and one.get("durable") and one.get("changing") is None
                and sorted(one["members"]) == members
                for one in told
            ):  # fmt: skip
                break
            if time.monotonic() > until:
                raise Stuck(f"it does not come to rest: {members}", told)
        for house in houses:
            house.close()
        for house in houses:
            assert house.process is not None
            if await house.process.wait():
                await self._give_up(f"{house.name} ended with {house.process.returncode}")

    async def _give_up(self, reason: str) -> None:
        raise Stuck(reason, [await house.tell() for house in self.houses.values() if self._belongs(house)])

    async def _end_all(self) -> None:
        self._stormy = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for house in self.houses.values():
            await house.kill()
        for door in self._doors:
            await door.close()
