"""A member that does not behave, on real sockets: the others go on as if it were not there, and it is cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec
import pytest

from antecede.link import Link
from antecede.net import Node, Settings, Tcp
from antecede.net.peers.session import Bye, Code, Hello, Welcome, pack
from antecede.net.peers.terms import Terms
from antecede.process.views.members import Roll
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


def record(kind: int, body: bytes) -> bytes:
    return (len(body) + 1).to_bytes(4, "big") + bytes([kind]) + body


async def deep_hello(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(record(1, b"\x81\xa7unknown" + b"\x91" * 60_000 + b"\x90"))


async def deep_join(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(record(5, b"\x81\xaaparameters\x81\xa1k" + b"\x91" * 60_000 + b"\x90"))


async def says_removed(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(pack(Bye(Code.GONE, "b, which is no member any more")))


async def says_removed_later(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HELLO + pack(Bye(Code.GONE, "b, which is no member any more")))
    await asyncio.sleep(PATIENCE_S)


async def unknown_code(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(record(4, b"\x1fa reason of another version"))


async def other_terms(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    terms = Terms("permit", {}, packet_bytes=1 << 30, payload_bytes=1 << 29, window=1 << 40, wire=99)
    writer.write(pack(Hello.of("a", "b", VIEW, terms, Link(epoch=1, peer=0).hail())))


async def no_numbers(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    body = msgspec.msgpack.encode(
        {"name": "a", "to": "b", "protocol": "permit", "view": VIEW, "frame": b"\xff" * 99}
    )
    writer.write(record(1, body))


async def welcome_unasked(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HELLO + pack(Welcome(Roll.first(VIEW, {}))))


ATTACKS: dict[Attack, str] = {
    deep_hello: "refused_hello",
    deep_join: "refused_hello",
    says_removed: "refused_hello",
    says_removed_later: "silent",
    unknown_code: "refused_hello",
    other_terms: "refused_hello",
    no_numbers: "refused_bytes",
    welcome_unasked: "refused_hello",
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
