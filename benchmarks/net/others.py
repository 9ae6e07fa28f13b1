"""Other ways to get messages from process to process: ZeroMQ, and a broker."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import nats
import zmq
import zmq.asyncio

from benchmarks.net.systems import System

__all__ = ["NatsCore", "Zmq", "nats_server"]


class Zmq(System):
    """PUSH to PULL, without a limit on what waits: none of them is to lose or refuse anything."""

    async def start(self) -> None:
        self._context = zmq.asyncio.Context()
        self._context.max_sockets = self.n * self.n + 16
        self._pulls = [self._context.socket(zmq.PULL) for _ in range(self.n)]
        ports = [pull.bind_to_random_port("tcp://127.0.0.1") for pull in self._pulls]
        self._pushes: list[dict[int, Any]] = []
        for me in range(self.n):
            pushes = {to: self._context.socket(zmq.PUSH) for to in range(self.n) if to != me}
            for to, push in pushes.items():
                push.connect(f"tcp://127.0.0.1:{ports[to]}")
            self._pushes.append(pushes)

    async def send(self, me: int, to: int, body: bytes) -> None:
        await self._pushes[me][to].send(body)

    async def receive(self, me: int) -> bytes:
        body: bytes = await self._pulls[me].recv()
        return body

    async def stop(self) -> None:
        self._context.destroy(linger=0)


def nats_server() -> str | None:
    """Where the server is: beside the Python that runs this, or on the path."""
    beside = Path(sys.executable).parent / "nats-server"
    return str(beside) if beside.exists() else shutil.which("nats-server")


async def _wait_for_listener(port: int) -> None:
    """Wait until someone listens at this port."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            await asyncio.sleep(0.01)
        else:
            writer.close()
            return


class NatsCore(System):
    """Clients of one server. Core NATS drops what a slow client does not take: here it may keep all of it."""

    async def start(self) -> None:
        program = nats_server()
        assert program is not None, "there is no nats-server"
        with socket.create_server(("127.0.0.1", 0)) as one:
            port = one.getsockname()[1]
        self._server = subprocess.Popen(
            [program, "-a", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL
        )
        await _wait_for_listener(port)
        self._clients = [await nats.connect(f"nats://127.0.0.1:{port}") for _ in range(self.n)]
        self._inboxes = [
            await client.subscribe(f"bench.{me}", pending_msgs_limit=1 << 30, pending_bytes_limit=1 << 40)
            for me, client in enumerate(self._clients)
        ]
        for client in self._clients:
            await client.flush()

    async def send(self, me: int, to: int, body: bytes) -> None:
        await self._clients[me].publish(f"bench.{to}", body)

    async def receive(self, me: int) -> bytes:
        return (await self._inboxes[me].next_msg(timeout=None)).data

    async def flood(self, me: int, each: int, body: bytes) -> None:
        client, others = self._clients[me], [f"bench.{to}" for to in range(self.n) if to != me]
        for _ in range(each):
            for subject in others:
                await client.publish(subject, body)

    async def drain(self, me: int, count: int) -> None:
        messages = aiter(self._inboxes[me].messages)
        for _ in range(count):
            await anext(messages)

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self._server.pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")

    async def stop(self) -> None:
        await asyncio.gather(*(client.close() for client in self._clients))
        self._server.kill()
        self._server.wait()
