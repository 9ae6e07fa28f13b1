"""The connections of nodes that go wrong in ways that nobody expected, or do nothing at all."""

from __future__ import annotations

import asyncio
import logging
import selectors
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest

from antecede.errors import AntecedeError, NodeFailed
from antecede.link import Link
from antecede.net import Memory, Node, Settings, Tcp
from antecede.net.peers import mesh as meshes
from antecede.net.peers import peer as peers
from antecede.net.peers import reception as receptions
from antecede.net.peers.channel import Channel
from antecede.net.peers.joining import Newcomer, anyone
from antecede.net.peers.session import Bye, Code, Hello, Session, pack
from antecede.net.peers.terms import Terms
from antecede.net.transports.transport import MemoryConnection, MemoryTransport
from antecede.wire import Limits
from tests.net_world import PATIENCE_S, QUICK, in_memory, over_tcp

VIEW = ("a", "b")
IMPATIENT = Settings(hello_s=0.3, beat_s=0.05, dead_s=0.3, first_retry_s=0.01, last_retry_s=0.05, drain_s=0.1)


# What nobody expected


class Planted(Exception):
    """What no code of ours raises."""


def _raise(*_: Any, **__: Any) -> Any:
    raise Planted("in a task")


async def _raise_later(*_: Any, **__: Any) -> Any:
    await asyncio.sleep(0)
    raise Planted("in a task")


TASKS: dict[str, tuple[type, str, Callable[..., Any]]] = {
    "dialling": (MemoryTransport, "connect", _raise_later),
    "greeting": (MemoryConnection, "open", _raise_later),
    "saying hello": (peers.Peer, "hello", _raise),
    "hearing hello": (Session, "feed", _raise),
    "reading": (peers.Peer, "_take", _raise),
    "serving": (peers.Peer, "serve", _raise_later),
    "writing": (Channel, "_take_gathered", _raise),
    "time": (peers.Peer, "tick", _raise),
    "acknowledging": (peers.Peer, "acknowledge", _raise),
    "following": (meshes.Mesh, "_follow", _raise),
    "accepting": (receptions.Reception, "let_in", _raise),
    "knocking": (meshes.Mesh, "_knock", _raise),
}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("when", ["before they meet", "afterwards"])
def test_what_nobody_expected_in_a_task_stops_the_node(monkeypatch, task, when):
    """A node whose dial task has died would be up, and never talk to that peer again."""

    async def main() -> None:
        network = Memory()
        owner, name, failing = TASKS[task]
        async with asyncio.timeout(PATIENCE_S), in_memory(2, network, settings=IMPATIENT) as (p1, p2):
            if when == "afterwards":
                await p1.send("p2", b"hello")
                await p2.receive()
            monkeypatch.setattr(owner, name, failing)
            if when == "afterwards":
                network.reset("p1", "p2")
            # As if the view had changed.
            p1._host.on_turnover()
            while p1.status().up and p2.status().up:
                # If p2 has failed, it takes no more.
                with suppress(AntecedeError, TimeoutError):
                    async with asyncio.timeout(IMPATIENT.dead_s):
                        await p1.send("p2", b"more")
                await asyncio.sleep(0)
            monkeypatch.undo()
            failed = p2 if p1.status().up else p1
            assert "Planted" in (failed.status().failure or "")
            with pytest.raises(AntecedeError, match="Planted"):
                await failed.send("p1", b"")
            for node in (p1, p2):
                # The other one may have failed too, and would say so now.
                with suppress(NodeFailed):
                    await node.close()

    asyncio.run(main())


def test_a_node_that_failed_talks_to_nobody():
    """Its peers see at once that it is gone, and none that dials is let in."""

    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S), over_tcp(2, settings=IMPATIENT) as (p1, p2):
            await p1.send("p2", b"hello")
            await p2.receive()
            host, port = p2.address.split(":")
            p2._host.stop(Planted("in a test"), "in a test")
            while p1.connected:
                await asyncio.sleep(0)
            before = p1.counts["connections"]
            while p1.counts["unreachable"] + p1.counts["unanswered"] < 3:
                await asyncio.sleep(0.01)
            assert p1.counts["connections"] == before
            with pytest.raises(NodeFailed, match="Planted"):
                await p2.receive()
            assert p1.status().up
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(host, int(port))
                assert await reader.read() == b""
                writer.close()

    asyncio.run(main())


def test_a_peer_that_is_removed_while_we_say_hello_is_told_so_and_stops_nothing(monkeypatch, caplog):
    async def main() -> None:
        network = Memory()
        async with asyncio.timeout(PATIENCE_S), in_memory(3, network, settings=IMPATIENT) as nodes:
            p1, p2, p3 = nodes
            await p1.send("p3", b"hello")
            await p3.receive()
            wait = p3._host.commits.wait

            async def remove_meanwhile(position: int) -> None:
                await wait(position)
                p3._host.core.unlink(0)

            monkeypatch.setattr(p3._host.commits, "wait", remove_meanwhile)
            network.reset("p1", "p3")
            while "p1 is no member any more" not in caplog.text:
                await asyncio.sleep(0.01)
            monkeypatch.undo()
            await p3.send("p2", b"still there")
            assert (await p2.receive()).payload == b"still there"
            for node in nodes:
                with suppress(AntecedeError):
                    await node.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "body",
    [
        b"\x81\xaaparameters\x81\xa1k" + b"\x91" * 3000 + b"\x90",
        b"\x81\xa7unknown" + b"\x91" * 3000 + b"\x90",
        b"\xc1",
    ],
    ids=["deep parameters", "deep field", "garbage"],
)
@pytest.mark.parametrize("kind", [1, 5, 6])
def test_a_peer_that_answers_nonsense_is_dialled_again(kind, body):
    async def main() -> None:
        async with dial_thrice((len(body) + 1).to_bytes(4, "big") + bytes([kind]) + body) as node:
            why = "a record of kind 6 came before the hello" if kind == 6 else "the hello cannot be read: "
            assert f"a refuses b: {why}" in node.status().refused["b"]

    asyncio.run(main())


def test_no_sentence_of_a_peer_decides_anything():
    async def main() -> None:
        sentence = "refused a peer: found a, which is no member any more, expected a member"
        async with dial_thrice(pack(Bye(Code.REFUSED, sentence))):
            pass

    asyncio.run(main())


@asynccontextmanager
async def dial_thrice(said: bytes) -> AsyncIterator[Node]:
    """A node whose peer answers every connection with these bytes, once it has dialled three times and is still up."""
    dialled = asyncio.Queue[None]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await reader.read()
        writer.close()
        dialled.put_nowait(None)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with Node("a", {"b": address}, settings=IMPATIENT) as node, asyncio.timeout(PATIENCE_S):
        for _ in range(3):
            await dialled.get()
        assert node.status().up
        yield node
    server.close()


# Peers that do not agree


def test_nodes_of_other_limits_refuse_each_other_once(caplog):
    """Without a comparison the smaller one ended every connection, and the larger one sent all of it again."""

    async def main() -> None:
        network, settled = Memory(), Settings(first_retry_s=0.01, last_retry_s=0.2, drain_s=0.1)
        large = Settings(
            first_retry_s=0.01,
            last_retry_s=0.2,
            drain_s=0.1,
            limits=Limits(packet_bytes=8 << 20, payload_bytes=4 << 20),
        )
        a = Node("a", VIEW, transport=network.at("a"), settings=large)
        b = Node("b", VIEW, transport=network.at("b"), settings=settled)
        async with a, b, asyncio.timeout(PATIENCE_S):
            await a.send("b", bytes(3 << 20))
            while a.counts["refused_hello"] < 5:
                await asyncio.sleep(0.01)
            assert a.counts["connections"] == b.counts["connections"] == 0, "nothing was sent in vain"
            told = "b refuses a: a sends packets of up to 8388608 bytes, and b takes 4194304: give both"
            assert told in a.status().refused["b"]
            assert told in b.status().refused["a"]

    asyncio.run(main())
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len([line for line in warnings if "refuses" in line]) == 2, warnings


def test_what_was_sent_under_other_limits_arrives_once_they_agree(tmp_path):
    """A rolling change of the limits: the two wait for each other, and nothing is lost."""

    async def main() -> None:
        network = Memory()
        small = Settings(first_retry_s=0.01, last_retry_s=0.05, drain_s=0.1)
        large = msgspec.structs.replace(small, limits=Limits(packet_bytes=8 << 20, payload_bytes=4 << 20))

        def node(name: str, settings: Settings) -> Node:
            options: dict[str, Any] = {"journal": tmp_path / name, "protocol": "matrix"}
            return Node(name, VIEW, transport=network.at(name), settings=settings, **options)

        async with asyncio.timeout(PATIENCE_S), node("a", large) as a:
            async with node("b", small) as b:
                await a.send("b", bytes(3 << 20))
                await b.send("a", b"small")
                while "b" not in a.status().refused:
                    await asyncio.sleep(0)
            async with node("b", large) as b:
                assert len((await b.receive()).payload) == 3 << 20
                assert (await a.receive()).payload == b"small"
                assert a.counts["resent"] == 0

    asyncio.run(main())


def test_nodes_of_other_windows_talk(caplog):
    async def main() -> None:
        network = Memory()
        small = Settings(queue=2, first_retry_s=0.01, last_retry_s=0.05, drain_s=1)
        a = Node("a", VIEW, transport=network.at("a"), settings=QUICK, protocol="fifo")
        b = Node("b", VIEW, transport=network.at("b"), settings=small, protocol="fifo")
        async with a, b, asyncio.timeout(PATIENCE_S):
            for k in range(200):
                await a.send("b", str(k).encode())
                await asyncio.sleep(0)
            assert [(await b.receive()).payload for _ in range(200)] == [str(k).encode() for k in range(200)]
            assert a.counts["resent"] == 0, "the smaller window was kept to"

    asyncio.run(main())


def test_a_refused_peer_comes_back_once_it_agrees():
    async def main() -> None:
        network = Memory()
        async with Node("b", VIEW, transport=network.at("b"), settings=QUICK, protocol="fifo") as b:
            async with Node("a", VIEW, transport=network.at("a"), settings=QUICK, protocol="matrix") as a:
                while "a" not in b.status().refused or "b" not in a.status().refused:
                    await asyncio.sleep(0)
                assert "a runs protocol matrix, and b runs fifo" in a.status().refused["b"]
            async with (
                Node("a", VIEW, transport=network.at("a"), settings=QUICK, protocol="fifo") as a,
                asyncio.timeout(PATIENCE_S),
            ):
                await a.send("b", b"hello")
                assert (await b.receive()).payload == b"hello"
                assert a.status().refused == b.status().refused == {}

    asyncio.run(main())


# Strangers


@pytest.mark.parametrize("idle", [80, 200])
def test_idle_strangers_do_not_keep_a_known_peer_out(caplog, idle):
    async def main() -> None:
        settings = Settings(first_retry_s=0.01, last_retry_s=0.05, drain_s=0.1)
        addresses: dict[str, str] = {}
        async with (
            asyncio.timeout(PATIENCE_S),
            Node("b", VIEW, transport=Tcp("127.0.0.1:0", addresses), settings=settings) as b,
        ):
            host, port = b.address.split(":")
            held = [await asyncio.open_connection(host, int(port)) for _ in range(idle)]
            async with Node("a", {"b": b.address}, settings=settings) as a:
                await a.send("b", b"hello")
                assert (await b.receive()).payload == b"hello"
                assert a.counts["connections"] == 1, "at the first attempt"
            assert b.counts["refused_busy"] >= idle - 9 - 1
            for _, writer in held:
                writer.close()

    asyncio.run(main())
    told = [line for line in caplog.messages if "closes a connection from 127.0.0.1" in line]
    assert len(told) == 1, "with the address, and not each time"


# Who may join


def _node(name: str, network: Memory, make: Callable[..., Node] = Node, **options: Any) -> Node:
    return make(name, VIEW[:1], transport=network.at(name), **{"settings": QUICK, **options})


@pytest.mark.parametrize("way", ["function", "coroutine"])
def test_a_rule_decides_who_may_join(way):
    async def main() -> None:
        network, seen = Memory(), list[Newcomer]()

        def rule(newcomer: Newcomer) -> bool:
            seen.append(newcomer)
            return newcomer.name != "mallory" and "secret" not in newcomer.groups

        async def later(newcomer: Newcomer) -> bool:
            await asyncio.sleep(0)
            return rule(newcomer)

        admit = rule if way == "function" else later
        async with _node("a", network, admit=admit) as a, asyncio.timeout(PATIENCE_S):
            for name, groups in (("mallory", ["all"]), ("eve", ["all", "secret"])):
                with pytest.raises(AntecedeError, match=f"{name} asks to join from {name}"):
                    await _node(name, network, Node.join, groups=groups).start()
            async with _node("bob", network, Node.join, groups=["all"]):
                assert a.members == ("a", "bob")
        assert seen[2] == Newcomer("bob", "bob", ("all",), "bob", None)

    asyncio.run(main())


def _cancel(*_: Any) -> Any:
    raise asyncio.CancelledError("of its own")


async def _never_answer(*_: Any) -> Any:
    await asyncio.Event().wait()


@pytest.mark.parametrize("rule", [_raise, _cancel, _never_answer])
def test_a_rule_that_fails_admits_nobody_and_stops_nothing(rule, caplog):
    async def main() -> None:
        network = Memory()
        hasty = IMPATIENT
        async with _node("a", network, admit=rule, settings=hasty) as a, asyncio.timeout(PATIENCE_S):
            with pytest.raises(AntecedeError, match="the rule of a"):
                await _node("bob", network, Node.join, settings=hasty).start()
            assert a.members == ("a",)
            assert a.status().up

    asyncio.run(main())
    assert "the rule that admits nodes failed for bob" in caplog.text


def test_a_rule_that_closes_its_node_is_told_that_it_cannot(caplog):
    async def main() -> None:
        network = Memory()

        async def rule(_: Newcomer) -> bool:
            await a.close()
            return True

        a = _node("a", network, admit=rule, settings=IMPATIENT)
        async with asyncio.timeout(PATIENCE_S):
            async with a:
                with pytest.raises(AntecedeError, match="the rule of a"):
                    await _node("bob", network, Node.join, settings=IMPATIENT).start()
                assert a.status().up
        assert not a.status().up

    asyncio.run(main())
    assert "close cannot be awaited inside admit()" in caplog.text


class Wild(BaseException):
    """Not even an `Exception`."""


def test_whatever_a_connection_raises_stops_the_node():
    def rule(_: Newcomer) -> bool:
        raise Wild("of its own")

    async def main() -> None:
        network = Memory()
        a, bob = _node("a", network, admit=rule), _node("bob", network, Node.join)
        async with asyncio.timeout(PATIENCE_S):
            await a.start()
            joining = asyncio.ensure_future(bob.start())
            with pytest.raises(NodeFailed, match="of its own"):
                await a.receive()
            joining.cancel()
            await asyncio.wait({joining})
            await a.close()

    asyncio.run(main())


@pytest.mark.parametrize("admit", [None, anyone])
def test_a_certificate_is_not_enough_beyond_this_machine(monkeypatch, admit):
    async def main() -> None:
        network = Memory()
        connect = network.connect

        def from_elsewhere(name: str, peer: str) -> MemoryConnection:
            connection = connect(name, peer)
            connection.other.local, connection.other.origin = False, "10.0.0.9"
            return connection

        monkeypatch.setattr(network, "connect", from_elsewhere)
        async with _node("a", network, admit=admit) as a, asyncio.timeout(PATIENCE_S):
            if admit is None:
                with pytest.raises(
                    AntecedeError, match=r"from 10.0.0.9, another machine, and .* Node\(admit="
                ):
                    await _node("bob", network, Node.join).start()
                assert a.members == ("a",)
            else:
                async with _node("bob", network, Node.join):
                    assert a.members == ("a", "bob")

    asyncio.run(main())


# Nothing at all


class Counting(selectors.DefaultSelector):
    """Counts how often an event loop looks for something to do."""

    looks = 0

    def select(self, timeout: float | None = None) -> Any:
        self.looks += 1
        return super().select(timeout)


@pytest.mark.parametrize("journal", [False, True])
def test_nodes_that_do_nothing_wake_for_their_beats_alone(tmp_path, journal):
    async def main(selector: Counting) -> int:
        addresses: dict[str, str] = {}
        settings = Settings(beat_s=0.25, dead_s=2.0, drain_s=0.1)
        options = {name: {"journal": tmp_path / name} if journal else {} for name in VIEW}
        transports = {name: Tcp("127.0.0.1:0", addresses) for name in VIEW}
        b = Node("b", VIEW, transport=transports["b"], settings=settings, **options["b"])
        a = Node("a", VIEW, transport=transports["a"], settings=settings, **options["a"])
        async with asyncio.timeout(PATIENCE_S), b:
            addresses["b"] = b.address
            async with a:
                await a.send("b", b"hello")
                (await b.receive()).ack()
                await asyncio.sleep(1.0)
                before = selector.looks
                await asyncio.sleep(8 * settings.beat_s)
                return selector.looks - before

    selector = Counting()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        looks = runner.run(main(selector))
    # Each of the two says and hears eight beats. At a look each 10 ms there were 400.
    assert looks <= 4 * 2 * 8, looks


def test_the_door_lets_a_hello_through_in_the_old_form():
    """A node of the first version states no terms, and is a peer like any other."""

    async def main() -> None:
        async with over_tcp(2, protocol="fifo") as (_, p2), asyncio.timeout(PATIENCE_S):
            host, port = p2.address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            hello = Hello.of("p1", "p2", ("p1", "p2"), Terms("fifo"), Link(epoch=1, peer=0).hail())
            writer.write(pack(hello))
            [first, *_] = Session(1).feed(await reader.read(1 << 16))
            assert isinstance(first, Hello)
            assert first.terms.window == QUICK.queue
            writer.close()

    asyncio.run(main())
