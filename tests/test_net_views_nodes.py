"""Nodes that join, leave and are removed while others talk: over memory and over TCP; judged by the oracle."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from antecede.errors import BadParameter, Closed, NodeFailed, NotMember, UnknownProcess
from antecede.net import Change, Memory, Node, Settings, Tcp, Tls
from antecede.net.transports.keys import make_keys
from antecede.oracle import check
from antecede.protocols import PROTOCOLS
from antecede.trace import events_of, read_runs
from tests.net_world import PATIENCE_S

QUICK = Settings(
    first_retry_s=0.01, last_retry_s=0.05, drain_s=0.3, beat_s=0.1, dead_s=1.0, trace_s=0.1, queue=64
)
RUN = [protocol for protocol in PROTOCOLS if protocol != "separator"]


class Member:
    """A node and its application: a set of words, that all are to agree on."""

    def __init__(
        self, name: str, peers: list[str], transport: Any, join: bool = False, **options: Any
    ) -> None:
        groups: Any = ["all"] if join else {"all": peers}
        self.words: list[str] = []
        self.changes: list[Change] = []
        options = {"settings": QUICK, "groups": groups, "state": self.state, **options}
        options["changed"] = self.changes.append
        self.node = (Node.join if join else Node)(name, peers, transport=transport, **options)
        self.talking: asyncio.Task[None] | None = None
        self.said = 0

    def state(self) -> bytes:
        return "\n".join(self.words).encode()

    async def listen(self) -> None:
        async for message in self.node:
            if message.number == 0:
                self.words = message.payload.decode().split("\n") if message.payload else []
            else:
                self.words.append(message.payload.decode())
            message.ack()

    async def say(self, count: int) -> None:
        for _ in range(count):
            self.said += 1
            await self.node.send("all", f"{self.node.name} {self.said}".encode())
            await asyncio.sleep(0.001)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.words) < count:
                await asyncio.sleep(0.01)


class System:
    """Members that come and go."""

    def __init__(self, way: str, **options: Any) -> None:
        self.way, self.options = way, options
        self.network, self.addresses = Memory(), dict[str, str]()
        self.stack = AsyncExitStack()
        self.members: dict[str, Member] = {}
        self.listening: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> System:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stack.aclose()
        await asyncio.gather(*self.listening)

    async def start(self, name: str, peers: list[str], **options: Any) -> Member:
        transport: Any = self.network.at(name)
        if self.way == "tcp":
            transport = Tcp("127.0.0.1:0", self.addresses)
        member = Member(name, peers, transport, **{**self.options, **options})
        await self.stack.enter_async_context(member.node)
        if self.way == "tcp":
            self.addresses[name] = transport.address
        self.members[name] = member
        self.listening.append(asyncio.ensure_future(member.listen()))
        return member


def judge(trace: Path, gone: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    [run] = read_runs(trace)
    verdict = check(events_of(trace, "nodes"), len(run.processes))
    assert verdict.violations + verdict.fifo_breaks == (), verdict
    assert verdict.duplicates + verdict.unsent + verdict.unaddressed == (), verdict
    places = {run.processes.index(name) for name in gone}
    for copy in verdict.undelivered:
        assert copy.at in places or copy.message[0] in places, verdict


@pytest.mark.parametrize(
    ("protocol", "way"), [*((protocol, "memory") for protocol in RUN), ("permit", "tcp"), ("matrix", "tcp")]
)
def test_one_joins_and_one_leaves_while_all_talk(protocol, way, tmp_path):
    async def main() -> None:
        names = ["a", "b", "c"]
        async with System(way, protocol=protocol, trace=tmp_path) as system, asyncio.timeout(PATIENCE_S):
            a, b, c = [await system.start(name, names) for name in reversed(names)][::-1]
            talk = [asyncio.ensure_future(member.say(40)) for member in (a, b, c)]
            await a.until(5)
            d = await system.start("d", ["a", "b"], join=True)
            talk.append(asyncio.ensure_future(d.say(40)))
            await asyncio.gather(talk[2])
            await c.node.leave()
            await asyncio.gather(*talk)
            for member in (a, b, d):
                await member.until(160)
            assert sorted(a.words) == sorted(b.words) == sorted(d.words)
            assert len(set(a.words)) == 160
            assert a.node.members == b.node.members == d.node.members == ("a", "b", "d")
            assert [change.joined + change.left for change in a.changes] == [("d",), ("c",)]
            assert a.changes[-1].lost == ()
            with pytest.raises(Closed, match="has left"):
                await c.node.send("all", b"")
            with pytest.raises(UnknownProcess, match="'c' is not in the view of 3"):
                await a.node.send("c", b"")

    asyncio.run(main())
    if PROTOCOLS[protocol].order == "causal" and protocol != "monitor":
        judge(tmp_path)


@pytest.mark.parametrize("protocol", ["permit", "buffer", "matrix", "broadcast"])
def test_a_crashed_node_is_removed_and_the_others_go_on(protocol, tmp_path):
    async def main() -> None:
        names = ["a", "b", "c"]
        async with System("memory", protocol=protocol, trace=tmp_path) as system, asyncio.timeout(PATIENCE_S):
            a, b, c = [await system.start(name, names) for name in names]
            talk = [asyncio.ensure_future(member.say(30)) for member in (a, b, c)]
            await b.until(10)
            for other in ("b", "c"):
                system.network.cut("a", other)
            talk[0].cancel()
            system.network.forget("a")
            # They wait for it: in all protocols sooner or later, in some at once.
            await b.node.remove("a")
            await asyncio.gather(*talk[1:])
            for member in (b, c):
                while sum(word[0] != "a" for word in member.words) < 60:
                    await asyncio.sleep(0.01)
            assert {word for word in b.words if word[0] != "a"} == {
                word for word in c.words if word[0] != "a"
            }
            assert [change.removed for change in b.changes] == [("a",)]
            assert {"a"} >= {name for lost in b.changes[0].lost for name in lost.to if lost.sender == "b"}
            assert b.node.members == ("b", "c")

    asyncio.run(main())
    judge(tmp_path, gone={"a"})


# What a change does not wait for, and what it refuses


def test_an_application_that_answers_in_the_task_that_receives_does_not_stop_a_change():
    async def main() -> None:
        network, names = Memory(), ["a", "b"]
        nodes = [Node(name, names, transport=network.at(name), settings=QUICK) for name in names]
        async with nodes[0] as a, nodes[1] as b, asyncio.timeout(PATIENCE_S):

            async def answer(node: Node, other: str) -> None:
                async for message in node:
                    await node.send(other, message.payload)

            tasks = [asyncio.ensure_future(answer(*pair)) for pair in ((a, "b"), (b, "a"))]
            for _ in range(20):
                await a.send("b", b"ball")
            for k in range(3):
                late = Node.join(f"c{k}", names, transport=network.at(f"c{k}"), settings=QUICK)
                async with late:
                    assert late.members == a.members
                    await late.leave()
            taken = a.status().taken
            while a.status().taken < taken + 100:
                await asyncio.sleep(0.01)
        await asyncio.gather(*tasks)

    asyncio.run(main())


def test_an_application_that_takes_nothing_does_not_stop_a_change():
    async def main() -> None:
        network, names = Memory(), ["a", "b"]
        nodes = [Node(name, names, transport=network.at(name), settings=QUICK) for name in names]
        async with nodes[0] as a, nodes[1] as b, asyncio.timeout(PATIENCE_S):
            for k in range(5):
                await a.send("b", f"before {k}".encode())
            async with Node.join("c", names, transport=network.at("c"), settings=QUICK) as c:
                await c.send("b", b"after")
                await a.send(["b", "c"], b"after, too")
                assert b.status().eligible >= 5
                found = [(await b.receive()).payload for _ in range(7)]
                assert found[:5] == [f"before {k}".encode() for k in range(5)]
                assert sorted(found[5:]) == [b"after", b"after, too"]
                assert (await c.receive()).payload == b"after, too"

    asyncio.run(main())


@pytest.mark.parametrize("size", [0, 5, 1_500_000])
def test_a_state_of_any_size_comes_first(size):
    async def main() -> None:
        network, names = Memory(), ["a", "b"]
        state = bytes(size)

        async def give() -> bytes:
            await asyncio.sleep(0.01)
            return state

        nodes = [Node(name, names, transport=network.at(name), settings=QUICK, state=give) for name in names]
        async with nodes[0] as a, nodes[1] as b, asyncio.timeout(PATIENCE_S):
            asked = [asyncio.ensure_future(node.receive()) for node in (a, b)]
            async with Node.join("c", ["a"], transport=network.at("c"), settings=QUICK) as c:
                await b.send(["a", "c"], b"hello")
                first, second = await c.receive(), await c.receive()
                assert (first.sender, first.number, first.payload) == ("a", 0, state)
                assert second.payload == b"hello"
                assert (await asked[0]).payload == b"hello"
            asked[1].cancel()

    asyncio.run(main())


@pytest.mark.parametrize("given", ["text", 5, None, ["a list"]])
@pytest.mark.parametrize("late", [False, True], ids=["returned", "awaited"])
def test_a_state_that_is_no_bytes_stops_the_node_that_gives_it(given, late):
    """Whoever joined would wait for it for ever, and a journal that held it could not be read."""

    async def give() -> Any:
        return given

    async def main() -> None:
        network = Memory()
        state: Any = give if late else lambda: given
        a = Node("a", ["a"], transport=network.at("a"), settings=QUICK, state=state)
        c = Node.join("c", ["a"], transport=network.at("c"), settings=QUICK)
        async with asyncio.timeout(PATIENCE_S):
            await a.start()
            joining = asyncio.ensure_future(c.start())
            with pytest.raises(
                NodeFailed, match=r"in the application's state\(\): .*state\(\) returns is bytes"
            ):
                await a.receive()
            joining.cancel()
            await asyncio.wait({joining})
            await c.close()
            await a.close()

    asyncio.run(main())


def test_what_cannot_be_is_refused_with_a_sentence():
    async def main() -> None:
        network, names = Memory(), ["a", "b", "c"]
        options: dict[str, Any] = {"settings": QUICK, "protocol": "monitor"}
        nodes = [Node(name, names, transport=network.at(name), **options) for name in names]
        async with nodes[0] as a, nodes[1] as b, nodes[2], asyncio.timeout(PATIENCE_S):
            with pytest.raises(UnknownProcess):
                await a.remove("z")
            with pytest.raises(BadParameter, match="leave"):
                await a.remove("a")
            with pytest.raises(UnknownProcess, match="'a' is not in the view of 2"):
                await b.remove("a")  # the monitor
            await a.remove("c")
            await a.remove("c")  # which it is already
            await b.leave()
            with pytest.raises(BadParameter, match="a view needs one member at least"):
                await a.leave()

            async def join(name: str, **more: Any) -> None:
                async with Node.join(name, ["a"], transport=network.at(f"{name}!"), **options | more):
                    raise AssertionError("it joined")

            with pytest.raises(NotMember, match=r"c is no member any more.*a name that was never used"):
                await join("c")
            with pytest.raises(NotMember, match="d runs protocol matrix, and the system runs monitor"):
                await join("d", protocol="matrix")
            with pytest.raises(NotMember, match=r"parameters .*'monitor': 'b'"):
                await join("d", parameters={"monitor": "b"})
            with pytest.raises(BadParameter, match="members to ask"):
                Node.join("d", [], transport=network.at("d"))

    asyncio.run(main())


def test_a_removed_node_that_comes_back_is_refused(tmp_path):
    async def main() -> None:
        network, names = Memory(), ["a", "b", "c"]

        def node(name: str) -> Node:
            return Node(name, names, transport=network.at(name), settings=QUICK, journal=tmp_path / name)

        async with node("a") as a, node("b"), asyncio.timeout(PATIENCE_S):
            async with node("c") as c:
                await c.send("a", b"hello")
                (await a.receive()).ack()
            await a.remove("c")
            # Nobody dials it any more: it asks why.
            async with node("c") as c:
                with pytest.raises(NotMember, match="is no member any more"):
                    await c.receive()

    asyncio.run(main())


@pytest.mark.parametrize("way", ["memory", "tcp"])
@pytest.mark.parametrize("leaver", [0, 2], ids=["the leader", "another"])
def test_one_that_leaves_holds_up_nobody_and_waits_for_nobody(leaver, way):
    """It says its last word to those who are there; what is not acknowledged then never will be."""

    async def main() -> None:
        network, names = Memory(), ["a", "b", "c"]
        addresses: dict[str, str] = {}
        settings = Settings(drain_s=10 * PATIENCE_S)
        async with asyncio.timeout(PATIENCE_S):
            nodes: list[Node] = []
            for name in reversed(names):
                transport = network.at(name) if way == "memory" else Tcp("127.0.0.1:0", addresses)
                node = Node(name, names, transport=transport, settings=settings)
                await node.start()
                addresses[name] = node.address if way == "tcp" else ""
                nodes.insert(0, node)
            while any(len(node.connected) < 2 for node in nodes):
                await asyncio.sleep(0.01)
            left = nodes.pop(leaver)
            await left.leave()
            assert await left.close() == {}
            await nodes[0].send(nodes[1].name, b"among us")
            assert (await nodes[1].receive()).payload == b"among us"
            for node in nodes:
                assert left.name not in node.members
                await node.close()

    asyncio.run(main())


@pytest.mark.parametrize("count", [2, 3])
def test_of_all_that_leave_at_once_the_last_is_told_that_it_cannot(count):
    async def main() -> None:
        names, network = ["a", "b", "c"][:count], Memory()
        nodes = [Node(name, names, transport=network.at(name), settings=QUICK) for name in names]
        async with asyncio.timeout(PATIENCE_S), AsyncExitStack() as stack:
            for node in nodes:
                await stack.enter_async_context(node)
            told = await asyncio.gather(*(node.leave() for node in nodes), return_exceptions=True)
            [error] = [one for one in told if one is not None]
            assert isinstance(error, BadParameter)
            assert "the last one closes" in str(error)
            [last] = [node for node, one in zip(nodes, told, strict=True) if one is not None]
            assert last.members == (last.name,)
            await last.send(last.name, b"on and on")
            assert (await last.receive()).payload == b"on and on"

    asyncio.run(main())


def test_the_journal_knows_the_view(tmp_path):
    async def main() -> None:
        network, names = Memory(), ["a", "b"]

        def node(name: str) -> Node:
            options: dict[str, Any] = {"settings": QUICK, "journal": tmp_path / name}
            if name == "c":
                return Node.join(name, names, transport=network.at(name), groups=["readers"], **options)
            return Node(name, names, transport=network.at(name), **options)

        async with asyncio.timeout(PATIENCE_S):
            async with node("a") as a, node("b") as b:
                async with node("c") as c:
                    await a.send("readers", b"one")
                    # Taken and not acknowledged: it comes again.
                    assert (await c.receive()).payload == b"one"
                    await c.flush()
                await b.send("readers", b"two")
            async with node("a") as a, node("b") as b, node("c") as c:
                assert a.members == c.members == ("a", "b", "c")
                await a.send("readers", b"three")
                found = [await c.receive() for _ in range(3)]
                assert found[0].payload == b"one"
                assert {message.payload for message in found[1:]} == {b"two", b"three"}
                assert [message.again for message in found] == [True, False, False]
                assert (await a.send("c", b"")).number == 3

    asyncio.run(main())


def test_who_joins_proves_its_name(tmp_path):
    make_keys(tmp_path, ["a", "b", "c"])

    def keys(name: str) -> Tls:
        return Tls(tmp_path / "authority.pem", tmp_path / f"{name}.pem", tmp_path / f"{name}.key")

    async def main() -> None:
        async with (
            Node("a", {"a": "127.0.0.1:0"}, tls=keys("a"), settings=QUICK) as a,
            asyncio.timeout(PATIENCE_S),
        ):
            peers = {"a": a.address}
            options: dict[str, Any] = {"listen": "127.0.0.1:0", "settings": QUICK}
            with pytest.raises(BadParameter, match=r"c\.pem is for c, and this node is b"):
                await Node.join("b", peers, tls=keys("c"), **options).start()
            async with Node.join("b", peers, tls=keys("b"), **options) as b:
                await a.send("b", b"welcome")
                assert (await b.receive()).payload == b"welcome"
                await b.leave()

    asyncio.run(main())


@pytest.mark.parametrize("cut", ["timeout", "crash"])
def test_a_change_is_told_until_the_callback_has_returned(cut, tmp_path):
    """The only word of what was given up must not be lost with a callback that did not return."""

    async def main() -> None:
        network, names = Memory(), ["a", "b"]
        told: list[int] = []
        returns = asyncio.Event()

        async def changed(change: Change) -> None:
            told.append(change.number)
            await returns.wait()

        options: dict[str, Any] = {"settings": QUICK, "changed": changed, "journal": tmp_path / "a"}
        a = Node("a", names, transport=network.at("a"), **options)
        b = Node("b", names, transport=network.at("b"), settings=QUICK)
        async with asyncio.timeout(PATIENCE_S):
            await a.start()
            async with b:
                await b.leave()
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await a.receive()
            assert told == [2, 2]
            if cut == "crash":
                await a.flush()
                # As if it had been killed: nothing is written any more.
                a._host.stop(RuntimeError("killed"), "in a test")
                with pytest.raises(NodeFailed):
                    await a.close()
                a = Node("a", names, transport=network.at("a"), **options)
                await a.start()
            await a.send("a", b"note to self")
            returns.set()
            assert (await a.receive()).payload == b"note to self"
            assert told == [2, 2, 2]
            await a.flush()
            await a.close()
            a = Node("a", names, transport=network.at("a"), **options)
            async with a:
                assert (await a.receive()).again
                assert told == [2, 2, 2]

    asyncio.run(main())
