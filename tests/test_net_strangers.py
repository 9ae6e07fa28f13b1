"""Peers that are none, or do not behave: refused, counted, and no harm to the others. Real sockets."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import Any

import msgspec
import pytest

from antecede.link import Frame, Link
from antecede.model import Message, Packet, View
from antecede.net import Memory, Node, Settings, Tcp
from antecede.net.peers.session import Beat, Bye, Hello, Join, Session, pack
from antecede.net.peers.terms import Terms
from antecede.process.inputs import Propose
from antecede.process.views.members import Joiner, Plan
from antecede.process.views.notes import Report, encode_note
from antecede.protocols import create
from antecede.protocols.permit import Grant
from antecede.protocols.unordered import Plain
from antecede.topology import shapes
from antecede.wire import Limits
from antecede.wire.bundles import encode_bundle, encode_whole
from tests.net_world import PATIENCE_S, QUICK, Conversation, in_memory, over_tcp

IMPATIENT = Settings(
    hello_s=0.2, beat_s=0.05, dead_s=0.3, strangers=4, first_retry_s=0.01, last_retry_s=0.05, drain_s=0.1
)
VIEW = ("a", "b")
TERMS = Terms("unordered")


def hello(**change: Any) -> bytes:
    fields: dict[str, Any] = {"name": "a", "to": "b", "view": VIEW, "terms": TERMS, **change}
    return pack(Hello.of(**fields, hail=Link(epoch=1, peer=0).hail()))


async def read(reader: asyncio.StreamReader) -> bytes:
    """Some bytes; none if the connection has ended, by whatever."""
    with suppress(ConnectionResetError):
        return await reader.read(1 << 16)
    return b""


async def end_of(reader: asyncio.StreamReader) -> list[object]:
    """What the node said until it closed the connection."""
    session, records = Session(epoch=1), list[object]()
    try:
        while data := await reader.read(1 << 16):
            records += session.feed(data)
    except ConnectionResetError:
        pass
    return records


@pytest.mark.parametrize(
    ("said", "counted", "told"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "refused_bytes", "a record has 1195725856 bytes"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", "refused_bytes", "a record has 369295618 bytes"),
        (bytes.fromhex("00000004") + b"\x01abc", "refused_hello", "the hello cannot be read"),
        (hello(name="mallory"), "refused_hello", "'mallory' is no member: members are a, b"),
        (hello(to="c"), "refused_hello", "a looks for c, and b listens here"),
        (
            hello(view=("a", "b", "c")),
            "refused_hello",
            "a belongs to a system that a, b, c founded, and b to one that a, b founded",
        ),
        (hello(terms=Terms("matrix")), "refused_hello", "a runs protocol matrix, and b runs unordered"),
        (hello() + bytes.fromhex("7fffffff"), "refused_bytes", "a record has 2147483647 bytes"),
        (b"", "refused_slow", None),
        (hello()[:20], "refused_slow", None),
        (hello() + hello()[:9], "silent", None),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else str(value)[:30],
)
def test_a_stranger_is_refused_and_counted(said, counted, told):
    async def main():
        transport = Tcp("127.0.0.1:0", {})
        async with Node("b", VIEW, transport=transport, protocol="unordered", settings=IMPATIENT) as node:
            async with asyncio.timeout(PATIENCE_S):
                host, port = node.address.split(":")
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(said)
                records = await end_of(reader)
                writer.close()
            assert node.counts[counted] == 1
            byes = [record.reason for record in records if isinstance(record, Bye)]
            assert told is None or (len(byes) == 1 and told in byes[0])

    asyncio.run(main())


def join(**change: Any) -> bytes:
    fields = {"address": "127.0.0.1:7000", "groups": ("all",), "parameters": {}, **change}
    return pack(Join(**{"name": "c", "to": "b", "protocol": "unordered", **fields}))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            join(address="nowhere"),
            "members cannot dial c: peers: an address must be host:port, not 'nowhere'",
        ),
        (join(address=f"127.0.0.1:{'7' * 5000}"), "an address must be host:port"),
        (join(address="a\0b:7000"), "an address must be host:port"),
        (join(address="10.0.0.1:7000"), "is on another machine, or reached from one: give TLS"),
        (join(groups=("a",)), "a is the name of a node: choose another name for the group"),
        (join(name="all"), "all is the name of a group: choose another name for the node"),
        (join(name="a"), "a is a member already: start it with its journal"),
        # Whoever asked others to let it in would be refused by them, for good.
        (join(name="c" * 256), "have 1 to 255 characters each, and there are at most 4096"),
        (join(name=""), "have 1 to 255 characters each, and there are at most 4096"),
        (join(groups=("g" * 256,)), "have 1 to 255 characters each, and there are at most 4096"),
        (join(groups=tuple(f"g{at}" for at in range(5000))), "have 1 to 255 characters each, and"),
        (join(to="a"), "c looks for a, and b listens here"),
        (join(parameters={"k": [1, {}]}), "Expected `bool | int | float | str | null`, got `array`"),
        (join(parameters={"k": 1}), "c has parameters {'k': 1}, which cannot be: unordered"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else str(value)[:30],
)
def test_one_that_cannot_join_is_told_why_and_harms_nobody(said, told):
    async def main():
        transport = Tcp("127.0.0.1:0", {})
        options: dict[str, Any] = {"protocol": "unordered", "groups": {"all": VIEW}, "settings": IMPATIENT}
        async with Node("b", VIEW, transport=transport, **options) as node, asyncio.timeout(PATIENCE_S):
            host, port = node.address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(said)
            [bye] = [record for record in await end_of(reader) if isinstance(record, Bye)]
            writer.close()
            assert told in bye.reason
            assert node.members == VIEW
            node.status()

    asyncio.run(main())


@pytest.mark.parametrize("place", ["nowhere", "a\0b:1", f"{'x' * 70}..:1"])
def test_a_member_that_cannot_be_dialled_stops_nobody(place):
    async def main():
        async with over_tcp(2, protocol="unordered") as nodes, asyncio.timeout(PATIENCE_S):
            plan = Plan(join=(Joiner("new", place, (), "p1"),))
            while not all("new" in node.members for node in nodes):
                nodes[0]._host.happen(Propose(plan))
                await asyncio.sleep(0.05)
            await nodes[0].send("p2", b"still here")
            assert (await nodes[1].receive()).payload == b"still here"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("payload", "counted"),
    [
        (b"no packet at all", "refused_bytes"),
        (encode_bundle([Packet(0, 1, Grant(1))]), "refused_packet"),
        (encode_whole(Packet(1, 0, Plain(1), Message(1, 1, (0,)))), "refused_packet"),
        (encode_note(Report(1, {99: 1}, {}, 0)), "refused_frame"),
    ],
    ids=["no packet", "another protocol's", "another process's", "a note that counts nobody"],
)
def test_a_packet_that_the_machine_refuses_ends_the_connection(payload, counted):
    async def main():
        transport = Tcp("127.0.0.1:0", {})
        async with Node("b", VIEW, transport=transport, protocol="unordered", settings=IMPATIENT) as node:
            async with asyncio.timeout(PATIENCE_S):
                host, port = node.address.split(":")
                reader, writer = await asyncio.open_connection(host, int(port))
                link, session = Link(epoch=1, peer=0), Session(epoch=1)
                link.send(payload, now=0)
                writer.write(pack(Hello.of("a", "b", VIEW, TERMS, link.hail())))
                while data := await reader.read(1 << 16):
                    for record in session.feed(data):
                        frame = record.hail if isinstance(record, Hello) else record
                        for answer in link.receive(frame, now=0)[1] if isinstance(frame, Frame) else []:
                            writer.write(pack(answer, (1, session.agreed[0])))
                writer.close()
            assert node.counts[counted] == 1

    asyncio.run(main())


def test_strangers_do_no_harm_to_the_others():
    async def main():
        async with over_tcp(3, protocol="matrix", settings=IMPATIENT) as nodes:
            host, port = nodes[2].address.split(":")
            held = [await asyncio.open_connection(host, int(port)) for _ in range(10)]
            conversation = Conversation(nodes, Random(1))
            await conversation.hold(each=50)
            conversation.judge()
            async with asyncio.timeout(PATIENCE_S):
                for reader, writer in held:
                    await end_of(reader)
                    writer.close()
            counts = nodes[2].counts
            assert counts["refused_busy"] + counts["refused_slow"] == 10

    asyncio.run(main())


def test_a_peer_that_falls_silent_is_noticed_and_dialled_again():
    async def main():
        dialled = asyncio.Queue[asyncio.StreamWriter]()

        async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            answer = Hello.of("b", "a", VIEW, Terms("permit"), Link(epoch=1, peer=0).hail())
            await reader.read(1 << 16)
            writer.write(pack(answer))
            dialled.put_nowait(writer)

        server = await asyncio.start_server(mute, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with Node("a", {"b": address}, settings=IMPATIENT) as node, asyncio.timeout(PATIENCE_S):
            first, second = await dialled.get(), await dialled.get()
            assert node.counts["silent"] >= 1
            first.close()
            second.close()
        server.close()

    asyncio.run(main())


def test_a_node_that_lost_its_state_is_refused_by_its_peers():
    async def main():
        addresses: dict[str, str] = {}
        there = Tcp("127.0.0.1:0", addresses)
        options: dict[str, Any] = {"protocol": "fifo", "settings": QUICK}
        async with Node("b", VIEW, transport=there, **options) as b, asyncio.timeout(PATIENCE_S):
            addresses["b"] = b.address
            async with Node("a", VIEW, transport=Tcp(None, addresses), **options) as a:
                await a.send("b", b"one")
                await b.receive()
            async with Node("a", VIEW, transport=Tcp(None, addresses), **options) as a:
                while not a.counts["refused_hello"] + b.counts["refused_frame"]:
                    await asyncio.sleep(0)
            assert b.counts["refused_frame"] >= 1
            assert b.connected == ()
            told = b.status().refused["a"]
            assert "b refuses a: the peer knows of 0 payloads that it sent, and 1 have arrived here" in told
            assert (
                "the peer came back without its journal, or from an older copy. Start the peer with" in told
            )

    asyncio.run(main())


@pytest.mark.parametrize("way", ["messages", "bytes", "a gap", "a topology to come"])
def test_a_peer_that_goes_on_regardless_is_cut_off_before_it_fills_our_memory(way):
    """It is asked to pause at the limit, and cut off at four times as much."""
    protocol = {"a gap": "fifo", "a topology to come": "separator"}.get(way, "unordered")
    # A router: what it forwards is not addressed to it, and so is not counted as held for its application.
    star = shapes.star(2) if protocol == "separator" else None
    names, parameters = (VIEW, {}) if star is None else (star.names, {"topology": star})
    me, there = names[0], names[-1]
    size = 10 if way == "messages" else 10_000
    settings = msgspec.structs.replace(
        IMPATIENT,
        queue=20 if way == "messages" else IMPATIENT.queue,
        held=20 if way == "messages" else 10_000,
        held_bytes=100_000,
        limits=Limits(payload_bytes=100_000),
    )

    async def main():
        transport = Tcp("127.0.0.1:0", {})
        async with (
            asyncio.timeout(PATIENCE_S),
            Node(
                there,
                names,
                transport=transport,
                protocol=protocol,
                parameters=parameters,
                settings=settings,
            ) as node,
        ):
            host, port = node.address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            link, session, records = Link(epoch=1, peer=0, window=2000), Session(epoch=1), list[object]()
            writer.write(pack(Hello.of(me, there, names, Terms(protocol), link.hail())))
            machine, sent = create(protocol, View(names), me, **parameters), 0
            while data := await read(reader):
                for record in session.feed(data):
                    records.append(record)
                    frame = record.hail if isinstance(record, Hello) else record
                    for answer in link.receive(frame, now=0)[1] if isinstance(frame, Frame) else []:
                        writer.write(pack(answer, (1, session.agreed[0])))
                while link.met and sent < 500 and not writer.is_closing():
                    sent += 1
                    _, [packet] = machine.send(1, bytes(size))
                    assert isinstance(packet, Packet)
                    if way == "a topology to come":
                        stamp = msgspec.structs.replace(packet.stamp, version=1)
                        packet = msgspec.structs.replace(packet, stamp=stamp)
                    frames = link.send(encode_bundle([packet]), now=0)
                    if not (way == "a gap" and sent == 1):
                        for frame in frames:
                            writer.write(pack(frame, (1, session.agreed[0])))
            assert node.counts["refused_frame"] == 1
            assert way == "a gap" or Beat(True) in records
            told = node.status().refused[me]
            assert f"bytes, and at most {4 * settings.held} may, with 400000" in told
            writer.close()

    asyncio.run(main())


def test_a_peer_that_obeys_is_not_cut_off_however_little_is_held(caplog):
    """What it had under way when it was asked to pause is more than four times as much."""

    async def main():
        settings = msgspec.structs.replace(IMPATIENT, queue=256, held=4)
        async with asyncio.timeout(PATIENCE_S), in_memory(2, Memory(), settings=settings) as (p1, p2):
            await p1.send("p2", b"hello")
            await p2.receive()
            for number in range(200):
                await p1.send("p2", str(number).encode())
            while sum(p2.status().held.values()) < 100:
                await asyncio.sleep(0)
            assert [int((await p2.receive()).payload) for _ in range(200)] == list(range(200))
            assert p2.counts["pauses"] > 0
            assert p2.counts["refused_frame"] == 0

    asyncio.run(main())
    assert "was asked to pause" not in caplog.text


@pytest.mark.parametrize("met", ["before", "after"])
@pytest.mark.parametrize(
    ("sender", "receiver", "size"),
    [
        ({"queue": 256}, {"queue": 32, "held": 32}, 1),
        ({}, {"queue_bytes": 50_000, "held_bytes": 50_000}, 5000),
    ],
    ids=["messages", "bytes"],
)
def test_a_peer_with_a_longer_queue_is_not_refused(sender, receiver, size, met):
    """It obeys, and has more under way than four times what we hold: it said so when we met."""

    async def main():
        network, limits = Memory(), Limits(payload_bytes=100_000)
        p1, p2 = (
            Node(
                name,
                ["p1", "p2"],
                protocol="fifo",
                transport=network.at(name),
                settings=msgspec.structs.replace(IMPATIENT, limits=limits, **own),
            )
            for name, own in (("p1", sender), ("p2", receiver))
        )
        async with asyncio.timeout(PATIENCE_S), p1:
            if met == "before":
                await p2.start()
                await p1.send("p2", b"hello")
                await p2.receive()
            for number in range(250):
                await p1.send("p2", str(number).encode().ljust(size))
            if met == "after":
                await p2.start()
            while sum(p2.status().held.values()) < 200 or not p1._mesh.paused:
                assert p2.counts["refused_frame"] == 0
                await asyncio.sleep(0)
            for _ in range(100):
                await asyncio.sleep(0)
            assert [int((await p2.receive()).payload) for _ in range(250)] == list(range(250))
            assert p2.counts["pauses"] > 0
            assert (p2.counts["refused_frame"], p2.counts["connections"]) == (0, 1)
            await p2.close()

    asyncio.run(main())


def test_a_peer_in_an_earlier_incarnation_is_told_so():
    """A node without a journal counts its incarnations by its clock, which may be set back."""

    async def main():
        transport = Tcp("127.0.0.1:0", {})
        async with Node("b", VIEW, transport=transport, protocol="unordered", settings=IMPATIENT) as node:
            for epoch in (9, 8):
                async with asyncio.timeout(PATIENCE_S):
                    host, port = node.address.split(":")
                    reader, writer = await asyncio.open_connection(host, int(port))
                    hail = Link(epoch=epoch, peer=0).hail()
                    writer.write(pack(Hello.of("a", "b", VIEW, TERMS, hail)))
                    records = Session(epoch=1).feed(await reader.read(1 << 16))
                    writer.close()
            [bye] = records
            assert isinstance(bye, Bye)
            assert "a is in incarnation 8, and was in 9 before: set its clock" in bye.reason
            assert "incarnation 8" in node.status().refused["a"]

    asyncio.run(main())


def test_a_peer_that_talks_and_never_reads_is_noticed():
    async def main():
        addresses: dict[str, str] = {}
        async with (
            Node(
                "b", VIEW, transport=Tcp("127.0.0.1:0", addresses), protocol="unordered", settings=IMPATIENT
            ) as node,
            asyncio.timeout(PATIENCE_S),
        ):
            host, port = node.address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port), limit=1)
            link, session = Link(epoch=1, peer=0), Session(epoch=1)
            writer.write(pack(Hello.of("a", "b", VIEW, TERMS, link.hail())))
            while not link.met:
                for record in session.feed(await reader.read(1 << 16)):
                    frame = record.hail if isinstance(record, Hello) else record
                    for answer in link.receive(frame, now=0)[1] if isinstance(frame, Frame) else []:
                        writer.write(pack(answer, (1, session.agreed[0])))
            for _ in range(100):
                await node.send("a", bytes(1 << 17))
            while not node.counts["clogged"]:
                writer.write(pack(Beat(False)))
                await asyncio.sleep(0.01)
            writer.transport.abort()

    asyncio.run(main())
