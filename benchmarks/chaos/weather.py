"""The network between nodes, and its weather: every pair talks through a proxy of its own, which does not mean well.

  delay      what passes waits, for a time of its own in each direction; in order within a connection, as TCP has it, so
             what overtakes is what goes another way
  throttle   so many bytes a second
  cut        all connections of a pair break, in the middle of whatever passes
  hole       nothing passes and nothing breaks, for a while: only silence tells
  part       all pairs of one node with the others are cut, and can make no connection, for a while

Rules: everything is drawn from one generator; a storm lasts at most `LONGEST_S`, so what is not delivered in the end is
lost; `calm` ends it all.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from random import Random

__all__ = ["Weather"]

CHUNK = 1 << 14
LONGEST_S = 3.0


class Pair:
    """The way from one node, which dials, to another."""

    def __init__(self, target: str, random: Random) -> None:
        self._host, _, port = target.rpartition(":")
        self._port, self._random = int(port), random
        self.delay_s = 0.0
        self.bytes_s: float | None = None
        self.closed = False
        self.passed = 0
        self._open = asyncio.Event()
        self._open.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self) -> str:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def calm(self) -> None:
        self.delay_s, self.bytes_s, self.closed = 0.0, None, False
        self._open.set()

    def hole(self) -> None:
        self._open.clear()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            if not self.closed:
                await self._connect(reader, writer)
        finally:
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(self._host, self._port)
        except OSError:
            return
        ends = {writer, there[1]}
        self._writers |= ends
        try:
            await asyncio.gather(self._pass(reader, there[1]), self._pass(there[0], writer))
        finally:
            self._writers -= ends
            there[1].transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction: what is read waits in a queue until it is due."""
        queue: deque[tuple[float, bytes]] = deque()
        came, room = asyncio.Event(), asyncio.Event()
        delivering = asyncio.ensure_future(self._deliver(queue, came, room, writer))
        loop = asyncio.get_running_loop()
        try:
            while data := await reader.read(CHUNK):
                queue.append((loop.time() + self.delay_s * (0.5 + self._random.random()), data))
                came.set()
                while len(queue) > 64:
                    room.clear()
                    await room.wait()
        except OSError:
            pass
        finally:
            delivering.cancel()
            for end in self._writers & {writer}:
                end.transport.abort()

    async def _deliver(
        self,
        queue: deque[tuple[float, bytes]],
        came: asyncio.Event,
        room: asyncio.Event,
        writer: asyncio.StreamWriter,
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                while not queue:
                    came.clear()
                    await came.wait()
                due, data = queue[0]
                if due > loop.time():
                    await asyncio.sleep(due - loop.time())
                if self.bytes_s is not None:
                    await asyncio.sleep(len(data) / self.bytes_s)
                await self._open.wait()
                queue.popleft()
                room.set()
                # Cut here, a part of a record may have gone.
                for piece in (data[: len(data) // 3], data[len(data) // 3 :]):
                    writer.write(piece)
                    await writer.drain()
                self.passed += len(data)
        except OSError:
            writer.transport.abort()


class Weather:
    """All pairs. `to` is what each node is to dial."""

    def __init__(
        self, names: tuple[str, ...], addresses: dict[str, str], random: Random, hub: str | None = None
    ) -> None:
        """With a `hub`, nodes talk to that alone."""
        self._random = random
        self.counts: Counter[str] = Counter()
        pairs = [(a, b) for k, a in enumerate(names) for b in names[k + 1 :]]
        if hub is not None:
            pairs = [(name, hub) for name in names]
        self._pairs = {(a, b): Pair(addresses[b], random) for a, b in pairs}
        self._names = names
        self.to: dict[str, dict[str, str]] = {name: dict(addresses) for name in names}

    async def __aenter__(self) -> Weather:
        for (a, b), pair in self._pairs.items():
            self.to[a][b] = await pair.listen()
        self._blowing = [asyncio.ensure_future(self._blow(pair)) for pair in self._pairs.values()]
        self._blowing.append(asyncio.ensure_future(self._part()))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.calm()
        for pair in self._pairs.values():
            await pair.close()

    @property
    def passed(self) -> int:
        """Bytes."""
        return sum(pair.passed for pair in self._pairs.values())

    async def calm(self) -> None:
        """No more of it."""
        for task in self._blowing:
            task.cancel()
        await asyncio.gather(*self._blowing, return_exceptions=True)
        for pair in self._pairs.values():
            pair.calm()

    async def _blow(self, pair: Pair) -> None:
        random = self._random
        while True:
            await asyncio.sleep(random.uniform(0.2, LONGEST_S))
            kind = random.choice(["calm", "delay", "delay", "throttle", "cut", "cut", "hole"])
            self.counts[kind] += 1
            match kind:
                case "delay":
                    pair.delay_s = random.choice([0.001, 0.01, 0.1])
                case "throttle":
                    pair.bytes_s = random.choice([50_000, 500_000])
                case "cut":
                    pair.cut()
                case "hole":
                    pair.hole()
            await asyncio.sleep(random.uniform(0.1, LONGEST_S))
            if not pair.closed:
                pair.calm()

    async def _part(self) -> None:
        random = self._random
        while True:
            await asyncio.sleep(random.uniform(1.0, 5 * LONGEST_S))
            lonely = random.choice(self._names)
            pairs = [pair for ends, pair in self._pairs.items() if lonely in ends]
            self.counts["part"] += 1
            for pair in pairs:
                pair.closed = True
                pair.cut()
            await asyncio.sleep(random.uniform(0.1, LONGEST_S))
            for pair in pairs:
                pair.calm()
