"""A member that does not behave, on real sockets: the others go on as if it were not there, and it is cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeAlias

import pytest

from antecede.link import Link
from antecede.net import Node, Settings, Tcp
from antecede.net.peers.session import Hello, pack
from antecede.net.peers.terms import Terms
from tests.net_world import PATIENCE_S

VIEW = ("a", "b", "c")
IMPATIENT = Settings(hello_s=0.3, beat_s=0.05, dead_s=0.3, first_retry_s=0.01, last_retry_s=0.05, drain_s=0.1)
HELLO = pack(Hello.of("a", "b", VIEW, Terms("permit"), Link(epoch=1, peer=0).hail()))

Attack: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def drip(writer: asyncio.StreamWriter, data: bytes) -> None:
    """A byte at a time, never silent for long."""
    for byte in data:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.02)


async def slow_hello(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await drip(writer, HELLO * 99)


async def slow_frame(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HELLO)
    await drip(writer, (4 << 20).to_bytes(4, "big") + b"\x02" * 9999)


async def giant_frame(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HELLO + (1 << 31).to_bytes(4, "big"))
    for _megabyte in range(64):
        writer.write(bytes(1 << 20))
        await writer.drain()


async def plain_text(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")


async def half_open(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HELLO)
    await asyncio.sleep(PATIENCE_S)


async def no_text(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HELLO.replace(b"permit", b"perm\xff\xfe"))


async def no_records(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HELLO + HELLO[:4] + bytes(1 << 16))


ATTACKS: dict[Attack, str] = {
    slow_hello: "refused_slow",
    slow_frame: "silent",
    giant_frame: "refused_bytes",
    plain_text: "refused_bytes",
    half_open: "silent",
    no_text: "refused_hello",
    no_records: "refused_bytes",
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_the_others_go_on(attack):
    async def main() -> None:
        addresses: dict[str, str] = {}
        options: dict[str, Any] = {"settings": IMPATIENT}
        async with (
            asyncio.timeout(PATIENCE_S),
            Node("c", VIEW, transport=Tcp("127.0.0.1:0", addresses), **options) as c,
        ):
            addresses["c"] = c.address
            async with Node("b", VIEW, transport=Tcp("127.0.0.1:0", addresses), **options) as b:
                host, port = b.address.split(":")
                reader, writer = await asyncio.open_connection(host, int(port))
                attacking = asyncio.ensure_future(attack(reader, writer))
                rounds = 0
                while rounds < 50 or not b.counts[ATTACKS[attack]]:
                    await b.send("c", b"ping")
                    (await c.receive()).ack()
                    await c.send("b", b"pong")
                    (await b.receive()).ack()
                    rounds += 1
                assert b.counts["lost"] <= 1, "only the connection of the one that misbehaves"
                assert b.connected == ("c",)
                attacking.cancel()
                with suppress(asyncio.CancelledError, OSError):
                    await attacking
                writer.transport.abort()

    asyncio.run(main())
