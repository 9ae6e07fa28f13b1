"""Nodes on a topology whose routers fail and join (Rodrigues & Veríssimo 1995, section 4.4); judged by the oracle."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from antecede.errors import NotMember, Unsupported
from antecede.model import Event
from antecede.net import Memory, Node, Settings
from antecede.net.status import expose
from antecede.oracle import check
from antecede.process.views.members import Where
from antecede.topology import Topology, shapes

QUICK = Settings(first_retry_s=0.01, last_retry_s=0.05, drain_s=0.2, beat_s=0.05, dead_s=0.5)


class World:
    """The nodes of a topology; what the applications saw, for the oracle."""

    def __init__(self, topology: Topology, path: Path | None = None) -> None:
        self.network, self.topology, self.path = Memory(), topology, path
        self.nodes: dict[str, Node] = {}
        self.events: list[Event] = []
        self.names = list(topology.names)
        self.tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> World:
        for name in self.topology.names:
            self.nodes[name] = self.node(name)
        await asyncio.gather(*(node.start() for node in self.nodes.values()))
        for name, node in self.nodes.items():
            if self.topology.id(name) in self.topology.processes:
                self.tasks.append(asyncio.ensure_future(self.receive(node)))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await asyncio.gather(*(node.close() for node in self.nodes.values()), return_exceptions=True)

    def node(self, name: str) -> Node:
        return Node(name, self.topology.names, **self.options(name, {"topology": self.topology}))

    def options(self, name: str, parameters: dict[str, Any]) -> Any:
        journal = None if self.path is None else self.path / f"{name}.db"
        transport = self.network.at(name)
        return {
            "protocol": "separator", "parameters": parameters, "transport": transport, "settings": QUICK,
            "journal": journal,
        }  # fmt: skip

    async def kill(self, name: str) -> None:
        """As SIGKILL does it, as far as others can see: it says nothing any more."""
        node = self.nodes.pop(name)
        await node._silence()
        await node._release()

    async def join(self, name: str, where: Where, by: list[str], memory: Path | None = None) -> Node:
        node = Node.join(name, by, where=where, memory=memory, **self.options(name, {}))
        await node.start()
        self.nodes[name] = node
        if name not in self.names:
            self.names.append(name)
        if where.role == "process":
            self.tasks.append(asyncio.ensure_future(self.receive(node)))
        return node

    async def send(self, name: str, to: list[str]) -> None:
        # While `send` waits for the disk, its node may hand over what the message does not follow: note it before.
        sent = await self.nodes[name].send(to, b"", durable=False)
        places = tuple(self.names.index(one) for one in to)
        self.events.append(Event(self.names.index(name), "send", self.names.index(name), sent.number, places))
        await self.nodes[name].flush()

    async def receive(self, node: Node) -> None:
        async for message in node:
            place = self.names.index(node.name)
            self.events.append(Event(place, "deliver", self.names.index(message.sender), message.number))
            message.ack()

    async def settle(self) -> None:
        """Wait until all copies that were sent have been delivered."""
        async with asyncio.timeout(10):
            while self.count_owed():
                await asyncio.sleep(0.01)

    async def wait_for_acknowledgements(self) -> None:
        """Wait until each node knows that all that it sent has arrived."""
        async with asyncio.timeout(10):
            while any(
                link.unacknowledged for node in self.nodes.values() for link in node._host.core.links.values()
            ):
                await asyncio.sleep(0.01)

    def count_owed(self) -> int:
        return sum(len(e.to) if e.kind == "send" else -1 for e in self.events)

    def judge(self) -> None:
        verdict = check(self.events, processes=len(self.names))
        assert verdict.ok, verdict


async def talk(world: World, names: list[str], count: int) -> None:
    for number in range(count):
        name = names[number % len(names)]
        await world.send(name, [other for other in names if other != name])
        if number % 5 == 0:
            await asyncio.sleep(0)


@pytest.mark.parametrize("f", [1, 2])
def test_a_separator_of_f_plus_1_members_survives_f_that_die(f):
    async def main() -> None:
        async with World(shapes.wan_of_lans(2, 2, f + 1)) as world:
            names = ["p1", "p2", "p3", "p4"]
            talking = asyncio.ensure_future(talk(world, names, 200))
            for router in range(f):
                await asyncio.sleep(0.05)
                await world.kill(f"1.g{router + 1}")
                await world.nodes["p1"].remove(f"1.g{router + 1}")
            await talking
            await world.settle()
            world.judge()

    asyncio.run(main())


LAN = ("p1", "p2")
CASES: dict[str, tuple[Topology, list[str], str, Where]] = {
    "i: a process": (shapes.star(2), [], "p3", Where(("hub",))),
    "iii: a router": (
        shapes.wan_of_lans(2, 2, 1), [], "1.g2", Where((*LAN, "1.g1", "2.g1"), "1.g1", "router"),
    ),
    "iii: a witness": (
        shapes.wan_of_lans(2, 2, 1), [], "1.w1", Where((*LAN, "1.g1", "2.g1"), "1.g1", "witness"),
    ),
    "iv: from a witness": (
        shapes.wan_of_lans(2, 2, 1, 1), ["1.g1"], "1.g2",
        Where((*LAN, "1.g1", "1.w1", "2.g1", "2.w1"), "1.g1", "router"),
    ),
    "iv: from stable memory": (shapes.star(3), ["hub"], "hub2", Where(("p1", "p2", "p3"), "hub", "router")),
    "iv: by a checkpoint": (shapes.star(3), ["hub"], "hub2", Where(("p1", "p2", "p3"), "hub", "router")),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_vertex_joins_while_messages_pass(case, tmp_path):
    topology, failing, name, where = CASES[case]
    memory = tmp_path / "hub.db" if "stable" in case else None

    async def main() -> None:
        async with World(topology, tmp_path) as world:
            names = [one for one in topology.names if topology.id(one) in topology.processes]
            await talk(world, names, 40)
            for router in failing:
                await world.kill(router)
                talking = asyncio.ensure_future(talk(world, names, 40))
                await world.nodes[names[0]].remove(router)
                await talking
            talking = asyncio.ensure_future(talk(world, names, 40))
            await world.join(name, where, [names[0]], memory)
            await talking
            if where.role == "process":
                names.append(name)
            if "iii" in case:
                await world.settle()
                await world.kill("1.g1")
                await world.nodes["p1"].remove("1.g1")
            if where.role == "witness":
                second = Where((*LAN, "1.w1", "2.g1"), "1.g1", "router")
                await world.join("1.g2", second, ["p1"])
            await talk(world, names, 40)
            await world.settle()
            world.judge()

    asyncio.run(main())


def test_a_router_connects_parts_that_were_never_connected():
    parts = Topology.of([("p1", "p2"), ("p3", "p4")], ["p1", "p2", "p3", "p4"], islands=True)

    async def main() -> None:
        async with World(parts) as world:
            with pytest.raises(Unsupported, match="no way leads from p1 to p4"):
                await world.send("p1", ["p4"])
            await world.join("r", Where(("p2", "p3"), None, "router"), ["p1"])
            await talk(world, ["p1", "p2", "p3", "p4"], 40)
            await world.settle()
            world.judge()

    asyncio.run(main())


def test_a_lone_router_that_dies_holds_messages_up_until_it_comes_back(tmp_path):
    async def main() -> None:
        async with World(shapes.star(2), tmp_path) as world:
            await talk(world, ["p1", "p2"], 20)
            await world.settle()
            # Else p1 would count among what waits for the hub what the hub has, too.
            await world.wait_for_acknowledgements()
            await world.kill("hub")
            await talk(world, ["p1", "p2"], 20)
            held = [held for held in world.nodes["p1"].waiting() if held.where == "missing"]
            told = "router hub is missing: 10 messages wait for it to come back, or to be replaced"
            assert [one.reason for one in held] == [told]
            assert world.nodes["p1"].status().missing == {"hub": 10}
            assert 'antecede_missing{node="p1",peer="hub"} 10' in expose(world.nodes["p1"].status())
            world.nodes["hub"] = world.node("hub")
            await world.nodes["hub"].start()
            await world.settle()
            assert not world.nodes["p1"].status().missing
            world.judge()

    asyncio.run(main())


def test_a_place_that_the_topology_does_not_have_is_refused():
    async def main() -> None:
        async with World(shapes.wan_of_lans(2, 2, 1)) as world:
            with pytest.raises(NotMember, match="a second way around"):
                await world.join("r", Where(("p1", "p3"), None, "router"), ["p1"])
            with pytest.raises(NotMember, match="p5 names no links, and the system has a topology"):
                await world.join("p5", None, ["p1"])  # type: ignore[arg-type]

    asyncio.run(main())
