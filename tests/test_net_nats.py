"""Nodes that meet at a real NATS server: order judged by the oracle, servers and nodes killed, hostile messages."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any

import msgspec
import pytest

from antecede.errors import BadParameter
from antecede.net import Memory, Nats, Node, Tls
from antecede.net.transports import nats as nats_module
from antecede.net.transports import nats_connection as nats_connection_module
from antecede.net.transports.keys import make_keys
from antecede.net.transports.nats_connection import ANSWER, CREDIT, DATA, DIAL, HEAD, NatsConnection
from antecede.net.transports.tls_stream import Sealed
from tests.nats_server import Server
from tests.net_world import PATIENCE_S, QUICK, Conversation, names
from tests.processes import run_node

pytest.importorskip("nats")


@pytest.fixture
def server(tmp_path):
    with Server(tmp_path / "store") as one:
        yield one


@asynccontextmanager
async def over_nats(n: int, url: str, window: int = 1 << 19, **options: Any) -> AsyncIterator[list[Node]]:
    options = {"settings": QUICK, **options}
    async with AsyncExitStack() as stack:
        nodes = []
        for name in names(n):
            transport = Nats(url, name, window=window, settings=QUICK)
            nodes.append(
                await stack.enter_async_context(Node(name, names(n), transport=transport, **options))
            )
        yield nodes


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("protocol", ["permit", "matrix"])
def test_what_nodes_say_through_a_broker_comes_in_causal_order(server, protocol):
    async def talk() -> None:
        async with over_nats(4, server.url, protocol=protocol) as nodes:
            conversation = Conversation(nodes, Random(protocol))
            await conversation.hold(each=60)
        conversation.judge()

    asyncio.run(talk())


def test_a_killed_server_loses_and_repeats_nothing(server):
    async def talk() -> None:
        async with over_nats(3, server.url) as nodes:
            conversation = Conversation(nodes, Random(1))
            holding = asyncio.ensure_future(conversation.hold(each=400))
            for _ in range(2):
                enough = len(conversation.events) + 100
                await until(lambda enough=enough: len(conversation.events) > enough)
                assert not holding.done()
                await asyncio.to_thread(server.kill)
                await until(lambda: not any(node.connected for node in nodes))
                await asyncio.to_thread(server.start)
            await holding
        conversation.judge()

    asyncio.run(talk())


def test_nodes_may_start_before_their_server(tmp_path):
    server = Server(tmp_path)

    async def talk() -> None:
        async with over_nats(2, server.url) as nodes:
            await nodes[0].send("p2", b"early")
            await asyncio.to_thread(server.start)
            async with asyncio.timeout(PATIENCE_S):
                assert (await nodes[1].receive()).payload == b"early"

    try:
        asyncio.run(talk())
    finally:
        server.kill()


WORKER = """
import asyncio, sys
from antecede.net import Nats, Node
from tests.net_world import QUICK

async def main(url, journal):
    transport = Nats(url, "p1", settings=QUICK)
    async with Node("p1", ["p1", "p2"], transport=transport, journal=journal, settings=QUICK) as node:
        while True:
            await node.send("p2", b"%d" % (node.sent + 1))
            print(node.sent, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_killed_node_is_noticed_at_once_and_comes_back_where_it_was(server, tmp_path):
    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WORKER, server.url, str(tmp_path / "p1.db")]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=os.getcwd())

    async def talk() -> list[int]:
        transport = Nats(server.url, "p2", settings=QUICK)
        # Were it for the silence alone, it would take until the test's patience ends.
        settings = msgspec.structs.replace(QUICK, beat_s=0.2, dead_s=10 * PATIENCE_S)
        got: list[int] = []
        async with Node("p2", ["p1", "p2"], transport=transport, settings=settings) as node:
            for _ in range(3):
                process = start()
                async with asyncio.timeout(PATIENCE_S):
                    for _ in range(50):
                        got.append(int((await node.receive()).payload))
                process.kill()
                process.communicate()
                await until(lambda: not node.connected)
        return got

    got = asyncio.run(talk())
    assert got == list(range(1, 151))


def test_a_payload_larger_than_the_server_takes_is_cut_into_pieces(server):
    async def talk() -> None:
        async with over_nats(2, server.url) as nodes:
            payload = os.urandom(1 << 20)
            async with asyncio.timeout(PATIENCE_S):
                for _ in range(3):
                    await nodes[0].send("p2", payload)
                for _ in range(3):
                    assert (await nodes[1].receive()).payload == payload

    asyncio.run(talk())


@asynccontextmanager
async def connect_pair(url: str, window: int) -> AsyncIterator[tuple[Any, Any]]:
    """Both ends of a connection."""
    accepted: asyncio.Queue[Any] = asyncio.Queue()

    async def accept(connection: Any) -> None:
        await connection.open()
        await accepted.put(connection)

    async def nobody(_: Any) -> None:
        raise AssertionError

    near, far = (Nats(url, name, window=window, settings=QUICK) for name in ("near", "far"))
    await near.listen(nobody)
    await far.listen(accept)
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield await near.connect("far"), await accepted.get()
    finally:
        await near.close()
        await far.close()


def test_a_writer_waits_for_a_reader_that_takes_nothing(server):
    async def talk() -> None:
        async with connect_pair(server.url, window=1000) as (near, far):
            data = os.urandom(5000)
            writing = asyncio.ensure_future(near.write(data))
            await until(lambda: far._came == 1000)
            assert not writing.done()
            got = b""
            while len(got) < len(data):
                got += await far.read()
                assert far._came - far._read <= 1000
            await writing
            assert got == data

    asyncio.run(talk())


def test_what_was_written_before_the_end_is_read_after_it(server):
    async def talk() -> None:
        async with connect_pair(server.url, window=1000) as (near, far):
            await near.write(b"last words")
            near.close()
            assert await far.read() == b"last words"
            assert await far.read() == b""
            with pytest.raises(ConnectionResetError):
                await far.write(b"too late")

    asyncio.run(talk())


def test_nobody_to_dial_is_told_at_once(server):
    async def talk() -> None:
        async with connect_pair(server.url, window=10):
            transport = Nats(server.url, "p1", settings=QUICK)
            await transport.listen(lambda connection: asyncio.sleep(0))
            with pytest.raises(ConnectionRefusedError, match="nobody listens"):
                await transport.connect("p2")
            await transport.close()

    asyncio.run(talk())


class Wire:
    """A client that publishes nowhere."""

    max_payload = 1 << 20

    async def publish(self, subject: str, data: bytes, reply: str) -> None:
        """Nobody reads it."""


def word(number: int) -> bytes:
    return number.to_bytes(8, "big")


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([(DATA, 1, b"a"), (DATA, 3, b"c")], "message 3 came where 2 was due"),
        ([(DATA, 1, b"a"), (DATA, 1, b"a")], "message 1 came where 2 was due"),
        ([(DATA, 1, b"x" * 11)], "11 bytes came, where 10 are allowed"),
        ([(DIAL, 1, b"")], "a message of kind 0 came"),
        ([(77, 1, b"")], "a message of kind 77 came"),
        ([(5, 0, b"")], "does not know this connection"),
    ],
)
def test_a_connection_breaks_where_something_is_lost_or_makes_no_sense(messages, told):
    async def break_it() -> None:
        connection = NatsConnection(Wire(), "a.b.c", "a.d.c", 10, 1, lambda: None)
        for message in messages:
            connection.take(*message)
        if messages[0][2] == b"a":
            assert await connection.read() == b"a", "what came before it is good"
        with pytest.raises(ConnectionResetError, match=told):
            await connection.read()

    asyncio.run(break_it())


def test_credit_never_shrinks():
    async def grant() -> None:
        connection = NatsConnection(Wire(), "a.b.c", "a.d.c", 10, 0, lambda: None)
        connection.take(ANSWER, 0, word(5))
        connection.take(CREDIT, 1, word(9))
        connection.take(CREDIT, 2, word(2))
        connection.take(CREDIT, 3, b"")
        assert connection._granted == 9

    asyncio.run(grant())


def test_messages_that_are_none_of_ours_hurt_nobody(server):
    async def talk() -> None:
        from nats.aio.client import Client

        async with over_nats(2, server.url) as nodes:
            client = Client()
            await client.connect(server.url)
            answers = await client.subscribe("elsewhere")
            for subject in ("antecede.p2.x", "antecede.p2." + "0" * 32):
                for data in (
                    b"",
                    b"\0",
                    bytes(HEAD),
                    bytes([DIAL]) + word(0) + word(9) + b"*.>",
                    os.urandom(99),
                ):
                    await client.publish(subject, data, reply="elsewhere")
            await client.flush()
            await nodes[0].send("p2", b"still there")
            async with asyncio.timeout(PATIENCE_S):
                assert (await nodes[1].receive()).payload == b"still there"
            assert answers.pending_msgs == 0, "no node publishes where a stranger wants it to"
            await client.close()

    asyncio.run(talk())


def test_nodes_prove_their_names_through_the_broker(server, tmp_path):
    make_keys(tmp_path, ["p1", "p2"])
    make_keys(tmp_path / "other", ["p1"])

    def keys(name: str, directory: Any = tmp_path) -> Tls:
        return Tls(directory / "authority.pem", directory / f"{name}.pem", directory / f"{name}.key")

    def node(name: str, tls: Tls | None) -> Node:
        return Node(name, names(2), transport=Nats(server.url, name, tls=tls, settings=QUICK), settings=QUICK)

    async def talk() -> None:
        async with node("p2", keys("p2")) as far:
            async with node("p1", keys("p1")) as near:
                await near.send("p2", b"x" * 300_000)
                async with asyncio.timeout(PATIENCE_S):
                    assert len((await far.receive()).payload) == 300_000
            with pytest.raises(BadParameter, match=r"p2\.pem is for p2, and this node is p1"):
                await node("p1", keys("p2")).start()
            for wrong in (keys("p1", tmp_path / "other"), None):
                before = far.counts["refused_hello"]
                async with node("p1", wrong) as near:
                    # Who dials sees a certificate first, and may be the one that refuses.
                    await until(
                        lambda before=before, near=near: (
                            far.counts["refused_hello"] > before or near.counts["refused_hello"]
                        )
                    )
                    assert not near.connected

    asyncio.run(talk())


def test_sealed_ends_that_both_write_much_do_not_wait_for_each_other(tmp_path):
    make_keys(tmp_path, ["a", "b"])
    data = os.urandom(1 << 20)

    async def both(end: Sealed) -> bytes:
        async def read() -> bytes:
            got = b""
            while len(got) < len(data):
                got += await end.read()
            return got

        async def write() -> None:
            for start in range(0, len(data), 1 << 16):
                await end.write(data[start : start + (1 << 16)])

        await end.open()
        _, got = await asyncio.gather(write(), read())
        return got

    async def talk() -> None:
        network, accepted = Memory(), asyncio.Queue[Any]()
        network.listen("b", accepted.put)
        near = network.connect("a", "b")
        contexts = [
            Tls(tmp_path / "authority.pem", tmp_path / f"{name}.pem", tmp_path / f"{name}.key").context(
                server
            )
            for name, server in (("a", False), ("b", True))
        ]
        ends = Sealed(near, contexts[0], False), Sealed(await accepted.get(), contexts[1], True)
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.gather(*map(both, ends)) == [data, data]
        assert [end.proved for end in ends] == ["b", "a"]

    asyncio.run(talk())


def test_a_password_in_the_address_is_never_told():
    with pytest.raises(BadParameter) as told:
        Nats("http://ann:secret@localhost", "p1")
    assert "secret" not in str(told.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"url": "localhost:4222"}, "nats://host:port"),
        ({"url": "nats://broker.example:4222"}, "broker.example is on another machine: give tls"),
        ({"prefix": "a.*"}, "prefix"),
        ({"window": 0}, "window"),
    ],
)
def test_a_transport_that_cannot_be_is_refused(options, told):
    with pytest.raises(BadParameter, match=told):
        Nats(**{"url": "nats://localhost", "name": "p1", **options})


def test_without_the_client_one_sentence_says_what_to_install():
    script = """
import sys
sys.modules["nats"] = None
import antecede.net
try:
    antecede.net.Nats("nats://localhost:4222", "p1")
except antecede.errors.BadParameter as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said == "nats: nats-py is not installed: pip install 'antecede[nats]'\n"


def test_processes_talk_through_a_broker(server, tmp_path):
    """`antecede node` with `transport`."""

    def start(name: str) -> subprocess.Popen[str]:
        config = tmp_path / f"{name}.toml"
        config.write_text(f'name = "{name}"\npeers = ["ann", "bob"]\ntransport = "{server.url}"\n')
        return run_node(config)

    ann, bob = start("ann"), start("bob")
    try:
        assert ann.stdin is not None
        assert ann.stdout is not None
        assert bob.stdout is not None
        assert json.loads(ann.stdout.readline())["address"] == "antecede.ann"
        ann.stdin.write('{"do": "send", "to": "bob", "text": "hello"}\n')
        ann.stdin.flush()
        bob.stdout.readline()
        assert json.loads(bob.stdout.readline())["text"] == "hello"
    finally:
        for one in (ann, bob):
            one.terminate()
            one.communicate()
    assert (ann.returncode, bob.returncode) == (0, 0)


def test_nothing_private_of_the_client_is_used():
    """Another version of nats-py may have none of it."""
    for module in (nats_module, nats_connection_module):
        tree = ast.parse(inspect.getsource(module))
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Attribute)
                and node.attr.startswith("_")
                and not node.attr.startswith("__")
            ):
                assert isinstance(node.value, ast.Name), ast.unparse(node)
                assert node.value.id == "self", ast.unparse(node)
