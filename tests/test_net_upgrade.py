"""Journals that older code wrote open, and the system that they were of goes on. The data says what must come out."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import zipfile
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from antecede.errors import BadJournal
from antecede.net import Memory, Node, Settings
from antecede.net.delivery import Delivery
from antecede.net.storage.journal import open_journal
from antecede.topology import shapes

DATA = Path(__file__).parent / "data" / "journals-f10ff31"
SYSTEMS: dict[str, dict[str, Any]] = json.loads((DATA / "expected.json").read_text())
QUICK = Settings(first_retry_s=0.01, last_retry_s=0.05, drain_s=0.0)


def unpack(system: str, directory: Path) -> dict[str, Any]:
    with zipfile.ZipFile(DATA / f"{system}.zip") as archive:
        archive.extractall(directory)
    return SYSTEMS[system]


def build(name: str, described: dict[str, Any], network: Memory, directory: Path) -> Node:
    options: dict[str, Any] = {
        "protocol": described["protocol"],
        "journal": directory / f"{name}.db",
        "transport": network.at(name),
        "settings": QUICK,
    }
    if name in described.get("joined", {}):
        return Node.join(name, described["names"], groups=described["joined"][name], **options)
    return Node(name, described["names"], groups=described.get("groups"), **options)


def show(message: Delivery) -> list[Any]:
    text = message.payload.decode()
    return [message.sender, message.number, text if len(text) < 100 else f"{text[0]} * {len(text)}"]


@pytest.mark.parametrize("system", SYSTEMS)
def test_an_older_journal_opens_as_it_was(system, tmp_path):
    described = unpack(system, tmp_path)

    async def look(name: str) -> None:
        expected = described["nodes"][name]
        async with asyncio.timeout(20), build(name, described, Memory(), tmp_path) as node:
            status = node.status()
            assert (node.sent, status.view, list(node.members)) == (
                expected["sent"],
                expected["view"],
                expected["members"],
            )
            assert status.queued == expected["queued"]
            for again in expected["again"]:
                message = await node.receive()
                assert message.again
                assert show(message) == again
            assert status.eligible == len(expected["offered"])
            for offered in expected["offered"]:
                message = await node.receive()
                assert message.again, "nobody knows whether it was handed over"
                assert show(message) == offered

    for name in described["nodes"]:
        asyncio.run(look(name))


@pytest.mark.parametrize("system", SYSTEMS)
def test_nodes_with_older_journals_go_on_together(system, tmp_path):
    described = unpack(system, tmp_path)
    handed: dict[str, list[Any]] = {}

    async def take(node: Node, expected: dict[str, Any]) -> None:
        handed[node.name] = []
        for _ in expected["to_hand_over"]:
            message = await node.receive()
            handed[node.name].append(show(message))
            await message.ack()

    async def run() -> None:
        network = Memory()
        async with AsyncExitStack() as stack, asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            for name, expected in described["nodes"].items():
                node = await stack.enter_async_context(build(name, described, network, tmp_path))
                tasks.create_task(take(node, expected))

    asyncio.run(run())
    for name, expected in described["nodes"].items():
        assert sorted(handed[name]) == sorted(expected["to_hand_over"])
        again = expected["again"]
        assert handed[name][: len(again)] == again


@pytest.mark.parametrize("name", ["p1", "hub"])
def test_an_older_journal_of_routers_is_refused_with_what_to_do(name, tmp_path):
    with zipfile.ZipFile(DATA / "separator-killed.zip") as archive:
        archive.extractall(tmp_path)
    star = shapes.star(2)

    async def main() -> None:
        options: dict[str, Any] = {"protocol": "separator", "parameters": {"topology": star}}
        transport, journal = Memory().at(name), tmp_path / f"{name}.db"
        async with Node(name, star.names, transport=transport, journal=journal, **options):
            raise AssertionError("it has no clocks for its hops")

    with pytest.raises(
        BadJournal, match=r"without clocks, as in 0\.1.*let 0\.1 deliver all that is under way"
    ):
        asyncio.run(main())
    with closing(sqlite3.connect(tmp_path / f"{name}.db")) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (2,), "0.1 can still open it"
        assert database.execute("SELECT count(*) FROM snapshot").fetchone() == (1,)


def test_a_closed_node_leaves_a_snapshot_and_nothing_to_replay(tmp_path):
    """So that the code that opens it next need not know how the code that closed it replayed inputs."""

    async def main() -> None:
        async with Node("a", ["a"], transport=Memory().at("a"), journal=tmp_path / "a.db") as node:
            for _ in range(5):
                await node.send("a", b"note to self")
            await node.receive()

    asyncio.run(main())
    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        assert database.execute("SELECT count(*) FROM inputs").fetchall() == [(0,)]
        assert database.execute("SELECT count(*) FROM snapshot").fetchall() == [(1,)]


def test_a_journal_of_a_format_that_is_unknown_is_refused(tmp_path):
    open_journal(tmp_path / "a.db").close()
    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(
        BadJournal, match="has format 99, and this version reads 2 to 3: use the version that wrote it"
    ):
        open_journal(tmp_path / "a.db")
