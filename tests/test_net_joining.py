"""Joins that have to wait, are given up, or find a member that is gone: seen by all, and without a trace afterwards.

And that the application is told of each change, at least once.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from antecede.errors import BadConfig, NodeFailed, NotMember
from antecede.net import Change, Memory, Node, Settings, anyone, config
from antecede.net.status import expose
from antecede.net.transports.keys import make_keys
from tests.net_world import PATIENCE_S

QUICK = Settings(first_retry_s=0.01, last_retry_s=0.05, drain_s=0.1, beat_s=0.05, dead_s=0.5)
NAMES = ["a", "b", "c"]


class System:
    """Members in one program, of which any can be cut off."""

    def __init__(self) -> None:
        self.network = Memory()

    def founder(self, name: str, **options: Any) -> Node:
        return Node(name, NAMES, transport=self.network.at(name), settings=QUICK, **options)

    def newcomer(self, name: str, ask: list[str], **options: Any) -> Node:
        return Node.join(name, ask, transport=self.network.at(name), settings=QUICK, **options)

    @asynccontextmanager
    async def connect_founders(self) -> AsyncIterator[tuple[Node, Node, Node]]:
        """All three founders, connected."""
        async with self.founder("a") as a, self.founder("b") as b, self.founder("c") as c:
            await self.connect(a, b, c)
            yield a, b, c

    async def connect(self, *nodes: Node) -> None:
        while not all(len(node.connected) == 2 for node in nodes):
            await asyncio.sleep(0)

    def cut(self, name: str) -> None:
        for other in NAMES:
            if other != name:
                self.network.cut(name, other)

    def heal(self, name: str) -> None:
        for other in NAMES:
            if other != name:
                self.network.heal(name, other)


@pytest.mark.parametrize("asked", ["a", "b"], ids=["the leader", "another"])
def test_a_join_waits_for_a_member_that_is_down_and_sends_go_on(asked, caplog):
    async def main() -> None:
        system = System()
        async with asyncio.timeout(PATIENCE_S), system.connect_founders() as (a, b, _c):
            nodes = {"a": a, "b": b}
            system.cut("c")
            d = system.newcomer("d", [asked])
            starting = asyncio.ensure_future(d.start())
            while nodes[asked].status().joining.get("d") != ("c",):
                await asyncio.sleep(0)
            for _ in range(20):
                await a.send("b", b"on and on")
                assert (await b.receive()).payload == b"on and on"
            [held] = [one for one in nodes[asked].waiting() if one.where == "joining"]
            assert (held.sender, held.reason) == ("d", "waits to join until c can be reached")
            assert f'antecede_joining{{node="{asked}"}} 1' in expose(nodes[asked].status()).splitlines()
            while "waits to join" not in caplog.text:
                await asyncio.sleep(0)
            assert not starting.done()
            system.heal("c")
            await starting
            assert d.members == ("a", "b", "c", "d")
            assert nodes[asked].status().joining == {}
            await d.close()

    asyncio.run(main())
    told = [line for line in caplog.messages if "d waits to join until c can be reached" in line]
    assert len(told) == 1, caplog.messages


@pytest.mark.parametrize(("down", "leaver", "other"), [("c", "b", "a"), ("c", "a", "b"), ("a", "b", "c")])
def test_a_leave_waits_for_a_member_that_is_down_and_sends_go_on(down, leaver, other, caplog):
    async def main() -> None:
        system = System()
        async with asyncio.timeout(PATIENCE_S), system.connect_founders() as found:
            nodes = dict(zip(NAMES, found, strict=True))
            node = nodes[leaver]
            system.cut(down)
            while down in node.connected or down in nodes[other].connected:
                await asyncio.sleep(0)
            leaving = asyncio.ensure_future(node.leave())
            while (progress := node.status().changing) is None:
                await asyncio.sleep(0)
            assert (progress.leave, progress.awaits) == ((leaver,), (down,))
            [held] = [one for one in node.waiting() if one.where == "changing"]
            assert held.reason == f"the view is to change ({leaver} leaves), and waits for {down}"
            assert f'antecede_changing{{node="{leaver}"}} 1' in expose(node.status()).splitlines()
            while "waits for" not in caplog.text:
                await asyncio.sleep(0)
            for _ in range(20):
                await node.send(other, b"on and on")
                assert (await nodes[other].receive()).payload == b"on and on"
            assert not leaving.done()
            system.heal(down)
            await leaving
            assert nodes[other].members == tuple(name for name in NAMES if name != leaver)

    asyncio.run(main())
    told = f"{leaver}: the view is to change ({leaver} leaves), and waits for {down}, which cannot be reached"
    assert sum(told in line for line in caplog.messages) == 1, caplog.messages


def list_awaited(node: Node) -> tuple[str, ...]:
    """Whom the change that a node has part in waits for."""
    progress = node.status().changing
    return () if progress is None else progress.awaits


@pytest.mark.parametrize("change", ["leave", "remove"])
def test_whoever_follows_a_change_names_the_member_that_is_down_and_not_its_leader(
    change, monkeypatch, caplog
):
    """d goes while the view changes: the leader, a, waits for it, and so do b and c, which can see it."""

    async def main() -> None:
        monkeypatch.setattr(sys.modules[__name__], "NAMES", ["a", "b", "c", "d", "e"])
        system = System()
        async with asyncio.timeout(PATIENCE_S), AsyncExitStack() as stack:
            nodes = {name: await stack.enter_async_context(system.founder(name)) for name in NAMES}
            while any(len(node.connected) < 4 for node in nodes.values()):
                await asyncio.sleep(0)
            if change == "remove":
                await nodes["e"].close()
            monkeypatch.setattr(nodes["d"]._host, "arrive", lambda peer, frame: None)
            b = nodes["b"]
            wanted = b.remove("e") if change == "remove" else b.leave()
            changing = asyncio.ensure_future(wanted)
            while any(nodes[name].status().changing is None for name in "abc"):
                await asyncio.sleep(0)
            system.cut("d")
            while any(list_awaited(nodes[name]) != ("d",) for name in "abc"):
                await asyncio.sleep(0)
            words = "e is removed" if change == "remove" else "b leaves"
            for name in "abc":
                [held] = [one for one in nodes[name].waiting() if one.where == "changing"]
                assert held.reason == f"the view changes ({words}), and waits for d"
                told = f"{name}: the view changes ({words}), and waits for d, which cannot be reached"
                while told not in caplog.text:
                    await asyncio.sleep(0)
            await nodes["c"].remove("d")
            await changing
            assert not any(nodes[name].status().changing for name in "ac")

    asyncio.run(main())


@pytest.mark.parametrize("asked", ["a", "b"], ids=["the leader", "another"])
def test_a_join_that_is_cancelled_leaves_nobody_behind(asked):
    async def main() -> None:
        system = System()
        async with asyncio.timeout(PATIENCE_S), system.connect_founders() as (a, b, c):
            nodes = {"a": a, "b": b}
            system.cut("c")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await system.newcomer("d", [asked]).start()
            while nodes[asked].status().joining:
                await asyncio.sleep(0)
            system.heal("c")
            await system.connect(a, b, c)
            await a.send(["b", "c"], b"as before")
            assert [(await node.receive()).payload for node in (b, c)] == [b"as before"] * 2
            assert a.members == b.members == c.members == ("a", "b", "c")
            async with system.newcomer("d", [asked]) as d:
                assert d.members == ("a", "b", "c", "d")

    asyncio.run(main())


@pytest.mark.parametrize("asked", ["a", "b"], ids=["the leader", "another"])
def test_a_change_that_has_begun_is_called_off_if_the_join_is(asked, monkeypatch):
    """A member beats, and does nothing else: so the change begins, and all stop for it, and say why."""

    async def main() -> None:
        system = System()
        async with asyncio.timeout(PATIENCE_S), system.connect_founders() as (a, b, c):
            nodes = {"a": a, "b": b}
            monkeypatch.setattr(c._host, "arrive", lambda peer, frame: None)
            starting = asyncio.ensure_future(system.newcomer("d", [asked]).start())
            while (progress := a.status().changing) is None or progress.awaits != ("c",):
                await asyncio.sleep(0)
            held = [one.reason for one in a.waiting() if one.where == "changing"]
            assert held == ["the view changes (d joins), and waits for c"]
            starting.cancel()
            while any(node.status().changing for node in nodes.values()):
                await asyncio.sleep(0)
            await a.send("b", b"as before")
            assert (await b.receive()).payload == b"as before"
            assert a.members == b.members == ("a", "b", "c")

    asyncio.run(main())


def test_a_node_that_asks_again_takes_its_own_place(caplog):
    caplog.set_level(logging.INFO)

    async def main() -> None:
        system = System()
        async with asyncio.timeout(PATIENCE_S), system.connect_founders() as (a, _b, _c):
            system.cut("c")
            starting = asyncio.ensure_future(system.newcomer("d", ["a"]).start())
            while "d" not in a.status().joining:
                await asyncio.sleep(0)
            system.network.forget("d")
            d = system.newcomer("d", ["a"])
            again = asyncio.ensure_future(d.start())
            while "withdraws the join of d" not in caplog.text:
                await asyncio.sleep(0)
            starting.cancel()
            system.heal("c")
            await again
            assert a.members == ("a", "b", "c", "d")
            await d.close()

    asyncio.run(main())


# One that is a member, and never comes


def test_a_member_that_leaves_lets_nobody_wait_to_join_by_it(monkeypatch):
    async def main() -> None:
        system = System()
        async with asyncio.timeout(PATIENCE_S), system.connect_founders() as (a, b, c):
            # The join is not proposed before the leave.
            monkeypatch.setattr(b._mesh.stalls, "may_propose", lambda name: name == "b")
            joining = asyncio.ensure_future(system.newcomer("d", ["b"]).start())
            while not b.status().joining:
                await asyncio.sleep(0.01)
            await b.leave()
            with pytest.raises(NotMember, match="b is no member any more: ask another node"):
                await joining
            assert a.members == c.members == ("a", "c")

    asyncio.run(main())


async def join_and_die(system: System, asked: Node) -> None:
    """Let d become a member by this node, and die before it begins to live."""
    starting = asyncio.ensure_future(system.newcomer("d", [asked.name]).start())
    while "d" not in asked._host.core.changing.roll.shown:
        await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait({starting})
    system.network.forget("d")


@pytest.mark.parametrize("asked", ["a", "b"], ids=["the leader", "another"])
def test_one_that_joined_and_never_came_is_removed_by_the_member_that_it_asked(asked, caplog):
    async def main() -> None:
        system = System()
        async with asyncio.timeout(PATIENCE_S), system.connect_founders() as (a, b, c):
            await join_and_die(system, {"a": a, "b": b}[asked])
            await _members(c, 4)
            while not (found := [one for one in c.waiting() if one.where == "joining"]):
                await asyncio.sleep(0)
            [held] = found
            told = "nobody else joins or leaves until it does, or is removed"
            assert (held.sender, held.reason) == ("d", f"it joined by {asked} and never connected: {told}")
            while not all(node.members == ("a", "b", "c") for node in (a, b, c)):
                await asyncio.sleep(0.01)
            while any(node.waiting() for node in (a, b, c)):
                await asyncio.sleep(0.01)
            async with system.newcomer("e", ["c"]) as e:
                assert e.members == ("a", "b", "c", "e")

    asyncio.run(main())
    assert f"{asked} removes d, which joined and never connected" in caplog.text


@pytest.mark.parametrize("how", ["comes back", "is removed"])
def test_nobody_is_left_behind_if_the_member_that_was_asked_dies_with_one_that_joined(how, tmp_path):
    async def main() -> None:
        system = System()
        async with asyncio.timeout(PATIENCE_S), system.founder("a") as a, system.founder("c") as c:
            b = system.founder("b", journal=tmp_path / "b.db")
            await b.start()
            await system.connect(a, b, c)
            await join_and_die(system, b)
            await b.flush()
            await kill(b)
            if how == "comes back":
                async with system.founder("b", journal=tmp_path / "b.db") as b:
                    while not all(node.members == ("a", "b", "c") for node in (a, b, c)):
                        await asyncio.sleep(0.01)
            else:
                await c.remove("b")
                assert a.members == c.members == ("a", "c")

    asyncio.run(main())


def test_one_whose_sponsor_died_before_it_gave_a_state_is_told_so_and_may_join_anew():
    async def main() -> None:
        system = System()
        async with asyncio.timeout(PATIENCE_S), system.founder("a") as a, system.founder("c") as c:
            # Its application asks for no message, and so never comes to the point where it gives the state.
            b = system.founder("b", state=lambda: b"never given")
            await b.start()
            await system.connect(a, b, c)
            orphan = system.newcomer("d", ["b"])
            await orphan.start()
            while not {"a", "c"} <= set(orphan.connected):
                await asyncio.sleep(0)
            await kill(b)
            await c.remove("b")
            with pytest.raises(
                NotMember, match="the member that was to give it its state was removed: remove it too"
            ):
                await orphan.receive()
            assert not orphan.status().up
            await orphan.close()
            await c.remove("d")
            assert a.members == c.members == ("a", "c")
            async with system.newcomer("e", ["c"]) as anew:
                assert anew.members == ("a", "c", "e")

    asyncio.run(main())


def test_one_that_joined_waits_for_its_state_before_it_leaves():
    async def main() -> None:
        system = System()
        donor = system.founder("a", state=lambda: b"all that was said")
        async with (
            asyncio.timeout(PATIENCE_S),
            donor as a,
            system.founder("b") as b,
            system.founder("c") as c,
        ):
            await system.connect(a, b, c)
            async with system.newcomer("d", ["a"]) as d:
                await b.send("d", b"hello")
                leaving = asyncio.ensure_future(d.leave())
                # Many beats: long enough for a change that nobody holds up.
                assert await asyncio.wait({leaving}, timeout=0.5) == (set(), {leaving})
                [held] = [one for one in d.waiting() if one.where == "joining"]
                assert held.reason.startswith("it joined by a, whose application has not come to that")
                # The application comes to the change with which d joined, and gives it its state.
                asked = asyncio.ensure_future(a.receive())
                got = [message.payload async for message in d]
                assert got == [b"all that was said", b"hello"]
                await leaving
                assert b.members == ("a", "b", "c")
            asked.cancel()

    asyncio.run(main())


async def kill(node: Node) -> None:
    """End a node as SIGKILL does it, as far as others can see."""
    await node._silence()
    await node._release()


# Told at least once


async def _members(node: Node, count: int) -> None:
    while len(node.members) < count:
        await asyncio.sleep(0)


@pytest.mark.parametrize("how", ["fails", "closes"])
def test_a_change_is_told_again_after_a_crash_and_not_after_it_was_told(tmp_path, how):
    told = list[tuple[str, ...]]()

    def changed(change: Change) -> None:
        told.append(change.joined)
        if how == "fails" and len(told) == 1:
            raise RuntimeError("planted")

    async def main() -> None:
        system = System()
        async with (
            asyncio.timeout(PATIENCE_S),
            system.founder("b") as b,
            system.founder("c"),
        ):
            a = system.founder("a", changed=changed, journal=tmp_path / "a")
            await a.start()
            async with system.newcomer("d", ["b"]) as d:
                await _members(a, 4)
                if how == "fails":
                    with pytest.raises(NodeFailed, match=r"in the application's changed\(\)"):
                        await a.receive()
                else:
                    await b.send("a", b"one")
                    assert (await a.receive()).payload == b"one"
                await a.close()
                async with system.founder("a", changed=changed, journal=tmp_path / "a") as a:
                    await d.send("a", b"another")
                    while (await a.receive()).payload != b"another":
                        pass
        assert told == [("d",)] * (2 if how == "fails" else 1)

    asyncio.run(main())


@pytest.mark.parametrize("call", ["receive", "leave"])
@pytest.mark.parametrize("callback", ["state", "changed"])
def test_a_callback_that_waits_for_itself_is_told_that_it_cannot(callback, call):
    async def main() -> None:
        system = System()
        nodes = list[Node]()

        async def wait(*_: Change) -> bytes:
            await getattr(nodes[0], call)()
            return b""

        async with asyncio.timeout(PATIENCE_S), system.founder("b") as b, system.founder("c"):
            a = system.founder("a", **{callback: wait})
            nodes.append(a)
            await a.start()
            async with system.newcomer("d", ["a"]):
                await _members(a, 4)
                with pytest.raises(
                    NodeFailed, match=rf"{call} cannot be called inside state\(\) or changed\(\)"
                ):
                    await a.receive()
            assert b.status().up
            await a.close()

    asyncio.run(main())


# Files


@pytest.mark.parametrize("role", ["founder", "newcomer"])
def test_the_sample_of_a_configuration_works_as_it_stands(tmp_path, role):
    """A founder has peers and groups, one that joins has neither; a topology is for one protocol alone."""
    assert config.__doc__ is not None
    sample = config.__doc__.partition("\n\n")[2]
    left_out = {"founder": ("join", "topology"), "newcomer": ("peers", "groups", "topology")}[role]
    parts = re.split(r"\n(?=\[)", sample)
    kept = [part for part in parts if re.split(r"[\].]", part.lstrip("["))[0] not in left_out]
    path = tmp_path / "ann.toml"
    path.write_text("\n".join(kept).replace('transport = "nats', '# transport = "nats'))
    found = config.load(path)
    make_keys(tmp_path / "keys", ["ann"])
    assert found.admit == {"dave": ["all"]}
    node = found.node(tmp_path)
    assert (node.name, node._admit is not None) == ("ann", True)


def test_a_file_says_who_may_join(tmp_path):
    for text, rule in (('admit = "anyone"', anyone), ("", None)):
        path = tmp_path / "ann.toml"
        path.write_text(f'name = "ann"\n{text}\n[peers]\nbob = "127.0.0.1:7002"\n')
        assert config.load(path).node(tmp_path)._admit is rule


def test_a_node_is_made_from_a_file_and_its_paths_are_those_of_the_file(tmp_path, monkeypatch):
    (tmp_path / "etc").mkdir(mode=0o700)
    path = tmp_path / "etc" / "ann.toml"
    path.write_text(
        'name = "ann"\nprotocol = "matrix"\njournal = "ann.db"\nlisten = "127.0.0.1:0"\n'
        '[peers]\nbob = "127.0.0.1:1"\n[groups]\nall = ["ann", "bob"]\n[settings]\ndrain_s = 0\n'
    )
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        for sent in (0, 1):
            async with Node.from_file("etc/ann.toml") as ann:
                assert (ann.name, ann.members, ann.sent) == ("ann", ("ann", "bob"), sent)
                assert ann.status().protocol == "matrix"
                await ann.send("all", b"hello")

    asyncio.run(main())
    assert (tmp_path / "etc" / "ann.db").exists()
    with pytest.raises(BadConfig, match="cannot be read: No such file"):
        Node.from_file(tmp_path / "nobody.toml")
