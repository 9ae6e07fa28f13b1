"""A node behind a local socket: several clients, of which one receives."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antecede.errors import BadParameter, CannotListen
from antecede.net import Memory, Node, Settings
from antecede.net.serve import local as module
from antecede.net.serve.lines import LONGEST
from antecede.net.serve.local import Local
from tests.net_world import PATIENCE_S, in_memory
from tests.processes import free_addresses
from tests.test_cli_node import Process


class Client:
    """A program that uses a node."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def at(cls, path: Path) -> Client:
        client = cls(*await asyncio.open_unix_connection(path, limit=1 << 23))
        assert (await client.hear())["event"] == "ready"
        return client

    def ask(self, **request: Any) -> None:
        self.writer.write(json.dumps(request).encode() + b"\n")

    async def ask_to_receive(self) -> dict[str, Any]:
        """What is said first."""
        self.ask(do="receive")
        return await self.hear()

    async def hear(self) -> dict[str, Any]:
        line = await self.reader.readline()
        return json.loads(line) if line else {"event": "the end"}

    async def read_to_end(self) -> list[str]:
        """The events until the node closes the connection."""
        events = [event["event"] async for event in self._rest()]
        self.writer.close()
        return events

    async def _rest(self) -> AsyncIterator[dict[str, Any]]:
        while line := await self.reader.readline():
            yield json.loads(line)

    def go(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def serve_node(path: Path, **options: Any) -> AsyncIterator[Node]:
    async with (
        asyncio.timeout(PATIENCE_S),
        Node("a", ["a"], transport=Memory().at("a"), **options) as node,
        Local(node, path),
    ):
        yield node


def test_what_a_client_leaves_the_next_one_gets_again_first(tmp_path):
    async def main() -> None:
        async with serve_node(tmp_path / "s") as node:
            first, second = await Client.at(tmp_path / "s"), await Client.at(tmp_path / "s")
            first.ask(do="receive")
            for text in ("one", "two"):
                second.ask(do="send", to="a", text=text, ref=text)
                assert (await second.hear())["ref"] == text
            assert [(await first.hear())["text"] for _ in range(2)] == ["one", "two"]
            second.ask(do="receive")
            assert "another client receives" in (await second.hear())["reason"]
            first.ask(do="ack", sender="a", number=1)
            first.ask(do="status")
            assert (await first.hear())["sent"] == 2
            await node.send("a", b"three")
            assert (await first.hear())["text"] == "three"
            first.go()
            event: dict[str, Any] = {"event": "refused"}
            while event["event"] == "refused":
                second.ask(do="receive")
                event = await second.hear()
            later = [event, await second.hear()]
            assert [(one["text"], one["again"]) for one in later] == [("two", True), ("three", True)]
            second.ask(do="ack", sender="a", number=1)
            assert "waits for no acknowledgement here" in (await second.hear())["reason"]
            second.go()

    asyncio.run(main())


def test_only_the_owner_may_open_it_and_it_goes_with_the_node(tmp_path):
    path = tmp_path / "s"

    async def main() -> None:
        async with serve_node(path):
            assert path.stat().st_mode & 0o777 == 0o600
            client = await Client.at(path)
            client.ask(do="receive")
            with pytest.raises(CannotListen, match="another process listens there"):
                async with serve_node(path):
                    pass
        assert await client.read_to_end() == ["closed"]
        assert not path.exists()

    asyncio.run(main())


def test_the_socket_of_a_killed_node_is_taken_over_and_a_file_is_not(tmp_path):
    async def main() -> None:
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(tmp_path / "s"))
        async with serve_node(tmp_path / "s"):
            (await Client.at(tmp_path / "s")).go()
        (tmp_path / "f").write_text("precious")
        with pytest.raises(BadParameter, match="no socket"):
            async with serve_node(tmp_path / "f"):
                pass
        with pytest.raises(CannotListen, match="cannot listen at"):
            async with serve_node(tmp_path / ("x" * 200)):
                pass

    asyncio.run(main())
    assert (tmp_path / "f").read_text() == "precious"


def test_a_client_that_closes_its_end_has_its_sends_made_first(tmp_path):
    async def main() -> None:
        async with serve_node(tmp_path / "s") as node:
            client = await Client.at(tmp_path / "s")
            for number in range(100):
                client.ask(do="send", to="a", text=str(number))
            client.writer.write_eof()
            events = await client.read_to_end()
            assert events == ["sent"] * 100 + ["closed"]
            assert node.sent == 100

    asyncio.run(main())


def test_nonsense_is_refused_and_harms_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "AT_A_TIME", 2)

    async def main() -> None:
        async with serve_node(tmp_path / "s"):
            client, other = await Client.at(tmp_path / "s"), await Client.at(tmp_path / "s")
            third = await asyncio.open_unix_connection(tmp_path / "s")
            assert "the socket has 2 clients" in (await Client(*third).hear())["reason"]
            third[1].close()
            client.writer.write(b'{"do":"send","to":"a","text":"\xff"}\nno json\n\n{"do": "dance"}\n')
            deep = b"[" * 30_000 + b"]" * 30_000
            client.writer.write(b'{"x":' + deep + b',"do":"status"}\n{"do":' + deep + b"}\n")
            assert [(await client.hear())["event"] for _ in range(5)] == ["refused"] * 5
            client.writer.write(b"x" * (LONGEST + 1) + b"\n")
            assert "the line has more than" in (await client.hear())["reason"]
            assert await client.read_to_end() == ["closed"]
            other.ask(do="waiting")
            assert await other.hear() == {"event": "waiting", "held": [], "missing": []}
            other.go()

    asyncio.run(main())


def test_a_client_that_went_while_its_sends_wait_stops_no_node_that_tells_a_view(tmp_path):
    async def main() -> None:
        settings = Settings(queue=1, held=1)
        async with (
            asyncio.timeout(PATIENCE_S),
            in_memory(3, settings=settings) as (p1, _, p3),
            Local(p1, tmp_path / "s"),
        ):
            client = await Client.at(tmp_path / "s")
            client.ask(do="receive")
            for _ in range(9):
                client.ask(do="send", to="p2", text="nobody takes this")
            while not p1.status().blocked:
                await asyncio.sleep(0.01)
            client.go()
            await client.writer.wait_closed()
            await p3.leave()
            assert p1.failure is None
            again = await Client.at(tmp_path / "s")
            while (said := await again.ask_to_receive())["event"] == "refused":
                pass
            assert said["members"] == ["p1", "p2"]
            again.go()

    asyncio.run(main())


def test_no_more_is_handed_over_than_may_be_unacknowledged(tmp_path):
    async def main() -> None:
        async with serve_node(tmp_path / "s", settings=Settings(unacknowledged=2)) as node:
            client = await Client.at(tmp_path / "s")
            client.ask(do="receive")
            for number in range(3):
                await node.send("a", bytes([48 + number]))
            assert [(await client.hear())["number"] for _ in range(2)] == [1, 2]
            client.ask(do="waiting")
            assert (await client.hear())["event"] == "waiting", "and not the third message"
            client.ask(do="ack", sender="a", number=2)
            assert (await client.hear())["number"] == 3
            client.go()

    asyncio.run(main())


def test_a_process_is_used_by_its_socket_and_comes_back_after_a_kill(tmp_path):
    peers = {"ann": free_addresses(1)[0]}
    process = Process(tmp_path, "ann", peers, 'journal = "ann.db"\nsocket = "ann.sock"')
    assert process.hear("ready")["name"] == "ann"

    async def first() -> None:
        client = await Client.at(tmp_path / "ann.sock")
        client.ask(do="send", to="ann", text="note to self")
        assert (await client.hear())["event"] == "sent"
        client.go()

    async def second() -> None:
        client = await Client.at(tmp_path / "ann.sock")
        client.ask(do="receive")
        assert (await client.hear())["text"] == "note to self"
        os.kill(process.process.pid, signal.SIGTERM)
        assert await client.read_to_end() == ["closed"]

    try:
        asyncio.run(first())
        process.process.kill()
        process.stop()
        process.start()
        process.hear("ready")
        asyncio.run(second())
        process.hear("closed")
        process.process.wait(PATIENCE_S)
        assert process.stop() == 0
    finally:
        process.process.kill()


def test_nobody_connects_before_the_socket_is_its_owners_alone(tmp_path, monkeypatch):
    """The file is open to others for a moment: nothing listens there yet. The process's umask stays as it is."""
    tried = list[str]()
    chmod = Path.chmod

    def try_first(path: Path, mode: int) -> None:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                tried.append("refused")
        chmod(path, mode)

    monkeypatch.setattr(Path, "chmod", try_first)
    monkeypatch.setattr(os, "umask", lambda _: pytest.fail("the umask is the whole process's"))

    async def main():
        async with in_memory(1) as (p1,), Local(p1, tmp_path / "s") as local:
            assert local.path.stat().st_mode & 0o777 == 0o600

    asyncio.run(main())
    assert tried == ["refused"]
