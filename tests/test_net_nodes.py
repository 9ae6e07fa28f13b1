"""Nodes that talk: every protocol, over memory and over TCP, with connections that break; judged by the oracle."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from itertools import combinations
from random import Random
from typing import Any

import pytest

from antecede.errors import BadParameter, Closed, UnknownProcess
from antecede.link import Frame
from antecede.net import Memory, Node, Settings, Tcp
from antecede.process.core import Out
from antecede.protocols import PROTOCOLS
from antecede.topology import shapes
from antecede.wire import Limits
from tests.net_world import PATIENCE_S, QUICK, Conversation, Proxy, in_memory, names, over_tcp

WAYS = {"memory": in_memory, "tcp": over_tcp}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_keeps_its_promise(protocol, way):
    async def main():
        async with WAYS[way](3, protocol=protocol) as nodes:
            conversation = Conversation(nodes, Random(protocol))
            await conversation.hold(each=30)
            conversation.judge()

    asyncio.run(main())


@pytest.mark.parametrize("protocol", ["matrix", "permit", "buffer", "history"])
def test_nothing_is_lost_or_repeated_when_connections_break(protocol):
    async def main():
        network, random = Memory(), Random(protocol)
        async with in_memory(4, network, protocol=protocol) as nodes:
            conversation = Conversation(nodes, random)
            talk = asyncio.ensure_future(conversation.hold(each=40))
            broken = 0
            while not talk.done():
                a, b = random.sample(names(4), 2)
                network.reset(a, b)
                broken += 1
                await asyncio.wait({talk}, timeout=random.uniform(0, 0.01))
            await talk
            conversation.judge()
            assert sum(node.counts["lost"] for node in nodes) > 3, f"{broken} cuts broke nothing"

    asyncio.run(main())


def test_a_tcp_connection_that_breaks_is_made_again_and_resumes():
    async def main():
        addresses: dict[str, str] = {}
        there = Tcp("127.0.0.1:0", addresses)
        options: dict[str, Any] = {"protocol": "fifo", "settings": QUICK}
        async with Node("b", ["a", "b"], transport=there, **options) as b, asyncio.timeout(PATIENCE_S):
            proxy = Proxy(b.address)
            async with proxy, Node("a", ["a", "b"], transport=Tcp(None, addresses), **options) as a:
                addresses["b"] = proxy.address
                for k in range(50):
                    await a.send("b", str(k).encode())
                found = []
                for _ in range(5):
                    found += [int((await b.receive()).payload) for _ in range(10)]
                    proxy.cut()
                    await a.send("b", b"50")
                assert found == list(range(50))
                assert (await b.receive()).payload == b"50"
                assert proxy.accepted > 1

    asyncio.run(main())


def test_a_partition_delays_and_loses_nothing():
    async def main():
        network = Memory()
        async with in_memory(3, network, protocol="matrix") as (p1, p2, p3), asyncio.timeout(PATIENCE_S):
            network.cut("p1", "p3")
            await p1.send("p3", b"question")
            await p1.send("p2", b"look at the question")
            look = await p2.receive()
            await p2.send("p3", look.payload + b": done")
            while not p3.waiting():
                await p3._host.room.wait()
            [held] = p3.waiting()
            assert (held.sender, held.number, held.where) == ("p2", 1, "held")
            assert [(missing.sender, missing.first) for missing in held.awaits] == [("p1", 1)]
            assert [(one.sender, one.first, one.last) for one in p3.missing()] == [("p1", 1, 1)]
            assert held.since_s is not None
            assert 0 <= held.since_s < PATIENCE_S
            network.heal("p1", "p3")
            assert [(await p3.receive()).payload for _ in range(2)] == [
                b"question",
                b"look at the question: done",
            ]

    asyncio.run(main())


def test_an_application_may_receive_selectively():
    async def main():
        async with in_memory(3, protocol="matrix") as (p1, p2, p3), asyncio.timeout(PATIENCE_S):
            await p1.send("p3", b"from p1")
            while len(p3._host.core.inbox) < 1:
                await p3._host.arrivals.wait()
            chosen = asyncio.ensure_future(p3.receive(sender="p2"))
            await p2.send("p3", b"from p2")
            assert (await chosen).payload == b"from p2"
            assert (await p3.receive()).sender == "p1"

    asyncio.run(main())


def test_groups_are_names_for_sets():
    async def main():
        groups = {"all": names(3), "others": ["p2", "p3"]}
        async with in_memory(3, groups=groups) as nodes, asyncio.timeout(PATIENCE_S):
            assert (await nodes[0].send("others", b"hello")).to == ("p2", "p3")
            assert (await nodes[0].send(["others", "p1"], b"all of you")).to == ("p1", "p2", "p3")
            assert (await nodes[2].receive()).to == ("p2", "p3")

    asyncio.run(main())


def test_what_one_task_takes_makes_way_for_another_at_once():
    async def main():
        async with in_memory(3, protocol="matrix") as (p1, p2, p3), asyncio.timeout(PATIENCE_S):
            await p2.send({"p1", "p3"}, b"hello")
            await p3.receive()
            await p3.send("p1", b"an answer")
            while sum(p1._host.core.held) < 2:
                await asyncio.sleep(0.01)
            # All three in one turn: its end is planned by the first, one begins to wait, one makes way for it.
            parts = (p1.send("p2", b"hello yourself"), p1.receive(sender="p3"), p1.receive())
            _, waiting, _ = [asyncio.ensure_future(part) for part in parts]
            # Not when a peer next says something: that takes more turns of the loop.
            for _ in range(4):
                await asyncio.sleep(0)
            assert waiting.done()

    asyncio.run(main())


def test_a_router_is_a_node_that_only_forwards():
    async def main():
        star = shapes.star(3)
        network, parameters = Memory(), {"topology": star}
        options: dict[str, Any] = {"protocol": "separator", "parameters": parameters, "settings": QUICK}
        nodes = [Node(name, star.names, transport=network.at(name), **options) for name in star.names]
        for a, b in combinations(star.names[:3], 2):
            network.cut(a, b)  # the only way is over the hub
        async with AsyncExitStack() as stack:
            for node in nodes:
                await stack.enter_async_context(node)
            conversation = Conversation(nodes[:3], Random(5))
            await conversation.hold(each=20)
            conversation.judge()
            assert nodes[3].connected == star.names[:3]

    asyncio.run(main())


# Back-pressure


def test_send_waits_while_the_receiver_does_not_take():
    async def main():
        small = Settings(queue=8, held=8, first_retry_s=0.01, last_retry_s=0.05, drain_s=0.1)
        async with over_tcp(2, protocol="fifo", settings=small) as (p1, p2), asyncio.timeout(PATIENCE_S):
            sent = 0

            async def send() -> None:
                nonlocal sent
                for _ in range(200):
                    await p1.send("p2", b"more")
                    sent += 1

            sending = asyncio.ensure_future(send())
            while not p2.counts["pauses"] or p1._host.core.links[1].unacknowledged:
                await asyncio.wait({sending}, timeout=0.01)
            assert sent <= 8 + 8 + 8
            # The other direction is open: back-pressure is for who is ahead, not for all.
            await p2.send("p1", b"stop it")
            assert (await p1.receive()).payload == b"stop it"
            for _ in range(200):
                await p2.receive()
            await sending

    asyncio.run(main())


def test_one_sender_ahead_does_not_stop_another():
    async def main():
        small = Settings(held=4, queue=4, first_retry_s=0.01, last_retry_s=0.05, drain_s=0.1)
        async with (
            in_memory(3, protocol="matrix", settings=small) as (p1, p2, p3),
            asyncio.timeout(PATIENCE_S),
        ):
            flood = asyncio.ensure_future(_send_many(p1, "p3", 100))
            while not p3.counts["pauses"]:
                await p3._host.room.wait()
            await p2.send("p3", b"what you wait for")
            assert (await p3.receive(sender="p2")).payload == b"what you wait for"
            assert not flood.done()
            for _ in range(100):
                await p3.receive(sender="p1")
            await flood

    asyncio.run(main())


async def _send_many(node: Node, to: str, count: int) -> None:
    for _ in range(count):
        await node.send(to, b"flood")


# Life


def test_a_closed_node_says_so():
    async def main():
        async with in_memory(2) as (p1, _):
            await p1.close()
            with pytest.raises(Closed, match="p1 is closed"):
                await p1.send("p2", b"too late")
            assert [message async for message in p1] == []

    asyncio.run(main())


def test_close_waits_until_what_was_sent_has_arrived():
    async def main():
        async with over_tcp(2, protocol="permit") as (p1, p2):
            for _ in range(500):
                await p1.send("p2", b"x" * 1000)
            await p1.close()
            assert p1._host.core.links[1].unacknowledged == 0
            assert p2._host.core.held[0] == 500

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"peers": ["a", "b"]}, "peers need an address each"),
        (
            {"name": "c", "peers": {"a": "127.0.0.1:1", "b": "127.0.0.1:2"}},
            "c has no address at which a can reach it",
        ),
        ({"peers": {"a": "localhost:1", "b": "nowhere"}}, "an address must be host:port, not 'nowhere'"),
        ({"peers": {"b": "localhost:1"}, "protocol": "magic"}, "magic"),
        ({"peers": {"b": "localhost:1"}, "groups": {"b": ["a"]}}, "must not have the names of processes: b"),
        (
            {"peers": {"b": "localhost:1"}, "parameters": {"topology": shapes.star(2)}},
            "those of the topology",
        ),
    ],
)
def test_a_node_that_cannot_be_is_refused(options, told):
    with pytest.raises(BadParameter, match=told):
        Node(**{"name": "a", **options})


def test_a_refused_send_changes_nothing():
    async def main():
        async with in_memory(2) as (p1, _):
            with pytest.raises(UnknownProcess):
                await p1.send("p9", b"")
            with pytest.raises(BadParameter, match="the payload has 1048577 bytes, and may have 1048576"):
                await p1.send("p2", bytes((1 << 20) + 1))
            assert p1.sent == 0

    asyncio.run(main())


# Bytes


def test_send_waits_for_bytes_as_it_does_for_messages():
    async def main():
        limits = Limits(payload_bytes=1000)
        settings = Settings(limits=limits, queue_bytes=5000, drain_s=0)
        async with in_memory(2, settings=settings) as (p1, p2), asyncio.timeout(PATIENCE_S):
            await p2.close()

            async def flood():
                while True:
                    await p1.send("p2", bytes(1000))
                    # What gathers within a turn counts when it has left.
                    await asyncio.sleep(0)

            flooding = asyncio.ensure_future(flood())
            while not p1.status().blocked:
                await asyncio.sleep(0)
            assert 5 <= p1.sent <= 7
            flooding.cancel()

    asyncio.run(main())


def test_nothing_more_is_read_while_many_bytes_wait_for_the_disk(tmp_path):
    async def main():
        limits = Limits(payload_bytes=1000)
        settings = Settings(limits=limits, backlog_bytes=5000)
        network, names = Memory(), ["a", "b"]
        a = Node("a", names, transport=network.at("a"), settings=settings)
        b = Node("b", names, transport=network.at("b"), settings=settings, journal=tmp_path / "b.db")
        async with a, b, asyncio.timeout(PATIENCE_S):
            await a.send("b", b"hello")
            await (await b.receive()).ack()
            journal, go_on = b._journal, threading.Event()
            assert journal is not None
            append = journal.append

            def wait(*given):
                go_on.wait()
                append(*given)

            journal.append = wait  # type: ignore[method-assign]
            try:
                for _ in range(500):
                    await a.send("b", bytes(1000), durable=False)
                    await asyncio.sleep(0)
                while not b._host.commits.behind:
                    await asyncio.sleep(0)
                # By bytes: there are not so many inputs.
                assert b.status().inputs - b.status().durable < settings.backlog
                assert b._host.core.held[0] < 500
            finally:
                go_on.set()
            for number in range(2, 502):
                assert (await b.receive()).number == number
            assert not b._host.commits.behind

    asyncio.run(main())


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        ({"limits": Limits(packet_bytes=1 << 20)}, "packet_bytes must be .*, not 1048576"),
        ({"limits": Limits(payload_bytes=8 << 20)}, "packet_bytes must be .*, not 4194304"),
        ({"held_bytes": 1000}, "held_bytes must be 262144 or more"),
        ({"queue_bytes": 0}, "queue_bytes must be 1 or more, not 0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(chosen, told):
    with pytest.raises(BadParameter, match=told):
        Settings(**chosen)


async def refuse_to_end(call: Any) -> asyncio.Task[Any]:
    """A call that waits: it has not ended when the loop has had every chance to end it."""
    task = asyncio.ensure_future(call)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not task.done()
    return task


def test_what_the_protocol_holds_back_is_limited_in_bytes():
    """Under `buffer` the next message leaves once the one before it has arrived everywhere."""

    async def main():
        network = Memory()
        small = Settings(queue_bytes=1000, drain_s=0, first_retry_s=0.01, last_retry_s=0.05)
        async with in_memory(2, network, protocol="buffer", settings=small) as (p1, p2):
            async with asyncio.timeout(PATIENCE_S):
                network.cut("p1", "p2")
                for _ in range(3):
                    await p1.send("p2", bytes(600))
                assert p1.status().unsent == 2
                waiting = await refuse_to_end(p1.send("p2", b"more"))
                network.heal("p1", "p2")
                assert [len((await p2.receive()).payload) for _ in range(4)] == [600, 600, 600, 4]
                await waiting
                assert p1._host.core.unsent_bytes == 0

    asyncio.run(main())


def test_what_is_taken_and_not_acknowledged_is_limited_in_bytes(tmp_path, caplog):
    async def main():
        small = Settings(unacknowledged_bytes=1000)
        node = Node("a", ["a"], transport=Memory().at("a"), journal=tmp_path / "a.db", settings=small)
        async with node, asyncio.timeout(PATIENCE_S):
            for _ in range(3):
                await node.send("a", bytes(600))
            first, _second = await node.receive(), await node.receive()
            waiting = await refuse_to_end(node.receive())
            await first.ack()
            await waiting

    asyncio.run(main())
    assert "acknowledges some of 2 messages, 1200 bytes" in caplog.text


def find_crowded(*objects: object) -> dict[str, int]:
    """Those with more attributes than CPython 3.11 finds by their place (PEP 659), besides slots."""
    return {type(one).__name__: len(vars(one)) for one in objects if len(vars(one)) > 30}


@pytest.mark.parametrize("protocol", ["permit", "matrix", "history"])
def test_what_each_message_touches_has_few_attributes(protocol):
    """Beyond 30, each look at one takes twice as long: what each message needs has a slot then."""

    async def main():
        async with in_memory(2, protocol=protocol) as nodes, asyncio.timeout(PATIENCE_S):
            p1, p2 = nodes
            await p2.send("p1", b"")
            (await p1.receive()).ack()
            for node in nodes:
                host, mesh = node._host, node._mesh
                core, changing = host.core, host.core.changing
                assert find_crowded(node, host, mesh, core, core.machine, core.numbering, core.record) == {}
                assert (
                    find_crowded(changing, changing.membership, *mesh.peers.values(), *core.links.values())
                    == {}
                )

    asyncio.run(main())


def test_an_object_with_too_many_attributes_is_found():
    one = type("One", (), {})()
    for number in range(31):
        setattr(one, f"a{number}", number)
    assert find_crowded(one) == {"One": 31}


def test_an_acknowledgement_that_is_due_within_a_turn_rides_on_what_the_turn_sends(monkeypatch):
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S), in_memory(2) as (p1, p2):
            await p1.send("p2", b"a greeting", durable=False)
            await p2.receive()
            while p1._host.core.links[p2._me].unacknowledged or p2._host.core.links[p1._me].unacknowledged:
                await asyncio.sleep(0)
            bare: list[bool] = []
            host, late_ns = p2._host, 0
            transmit, arrive, clock = host.transmit, host.arrive, host.clock

            def count(out: list[Out]) -> None:
                bare.extend(frame.bare for _, frame in out)
                transmit(out)

            def arrive_slowly(peer: int, frame: Frame) -> None:
                # As with many peers, whose frames take longer than an acknowledgement waits, in one turn of the loop.
                nonlocal late_ns
                arrive(peer, frame)
                late_ns += 20_000_000
                p2._mesh._acknowledge()

            host.transmit, host.clock = count, lambda: clock() + late_ns
            monkeypatch.setattr(host, "arrive", arrive_slowly)

            async def answer() -> None:
                async for message in p2:
                    await p2.send("p1", message.payload, durable=False)

            answering = asyncio.ensure_future(answer())
            for number in range(20):
                await p1.send("p2", bytes([number]), durable=False)
                assert (await p1.receive()).payload == bytes([number])
            answering.cancel()
            assert bare == [False] * 20
            # Where nothing carries it, it goes alone, with the end of the turn.
            p1_link = p1._host.core.links[p2._me]
            await p1.send("p2", b"last", durable=False)
            while p1_link.unacknowledged:
                await asyncio.sleep(0)

    asyncio.run(main())


def test_an_acknowledgement_of_the_protocol_rides_on_the_answer():
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S), in_memory(2) as (p1, p2):
            left: list[bool] = []
            transmit = p2._host.transmit

            def count(out: list[Out]) -> None:
                left.extend(not frame.bare for _, frame in out)
                transmit(out)

            p2._host.transmit = count

            async def answer() -> None:
                async for message in p2:
                    await p2.send("p1", message.payload, durable=False)

            answering = asyncio.ensure_future(answer())
            for number in range(20):
                await p1.send("p2", bytes([number]), durable=False)
                assert (await p1.receive()).payload == bytes([number])
            answering.cancel()
            # The message and `Taken`; not one after the other.
            assert sum(left) == 20

    asyncio.run(main())
