"""What an operator sees of a node, over HTTP."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from antecede.errors import BadParameter, CannotListen, NodeFailed
from antecede.net import Memory, Node
from antecede.net.peers import mesh
from antecede.net.peers.peer import COUNTED
from antecede.net.serve.health import Health
from antecede.net.serve.listener import AT_A_TIME
from antecede.net.status import Status, expose
from tests.net_world import PATIENCE_S, QUICK, in_memory


async def get(address: str, path: str, method: str = "GET") -> tuple[int, str]:
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


def test_metrics_health_and_readiness_follow_the_node():
    async def main():
        network = Memory()
        network.cut("p1", "p2")
        async with (
            in_memory(2, network, protocol="matrix") as (p1, p2),
            Health("127.0.0.1:0", p1.status) as health,
        ):
            at = health.address
            async with asyncio.timeout(PATIENCE_S):
                assert await get(at, "/ready") == (503, "not connected: p2\n")
                await p1.send("p2", b"hello")
                _, text = await get(at, "/metrics")
                assert 'antecede_queued{node="p1",peer="p2"} 1' in text.splitlines()
                assert 'antecede_sent_total{node="p1"} 1' in text.splitlines()
                network.heal("p1", "p2")
                await p2.receive()
                assert await get(at, "/ready") == (200, "ready\n")
                assert await get(at, "/health") == (200, "up\n")
                await p1.close()
                assert await get(at, "/health") == (503, "node p1 is closed\n")

    asyncio.run(main())


def test_a_node_that_failed_is_neither_up_nor_ready():
    async def main():
        async with Health("127.0.0.1:0", lambda: node.status()) as health:
            node = Node("a", ["a"], transport=Memory().at("a"))
            await node.start()
            assert await get(health.address, "/ready") == (200, "ready\n")
            node._host.stop(ZeroDivisionError("boo"), "in a test")
            for path in ("/health", "/ready"):
                code, text = await get(health.address, path)
                assert code == 503
                assert "node a failed in a test: ZeroDivisionError: boo" in text
            assert 'antecede_up{node="a"} 0' in (await get(health.address, "/metrics"))[1]
            with pytest.raises(NodeFailed):
                await node.close()

    asyncio.run(main())


def test_what_is_not_asked_properly_is_refused():
    async def main():
        async with (
            in_memory(1) as (p1,),
            Health("127.0.0.1:0", p1.status) as health,
            asyncio.timeout(PATIENCE_S),
        ):
            assert (await get(health.address, "/secret"))[0] == 404
            assert (await get(health.address, "/metrics", "POST"))[0] == 400
            host, port = health.address.split(":")
            held = [await asyncio.open_connection(host, int(port)) for _ in range(AT_A_TIME + 1)]
            assert await held[-1][0].read() == b""
            for _, writer in held:
                writer.close()
            with pytest.raises(
                CannotListen, match=f"metrics: cannot listen at {health.address}: Address already"
            ):
                async with Health(health.address, p1.status):
                    pass

    asyncio.run(main())


def test_others_read_metrics_only_if_the_operator_says_so():
    async def main():
        async with in_memory(1) as (p1,):
            with pytest.raises(
                BadParameter,
                match=r"0\.0\.0\.0:0 is reached from other machines: give an address of this machine \(loopback\), or",
            ):
                Health("0.0.0.0:0", p1.status)
            async with Health("0.0.0.0:0", p1.status, open_to_others=True) as health:
                port = health.address.rpartition(":")[2]
                assert (await get(f"127.0.0.1:{port}", "/health"))[0] == 200

    asyncio.run(main())


def test_an_answer_that_fails_is_logged_and_ends_its_connection_alone(caplog):
    async def main():
        def broken() -> Status:
            raise RuntimeError("planted")

        async with Health("127.0.0.1:0", broken) as health:
            host, port = health.address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /health HTTP/1.1\r\n\r\n")
            async with asyncio.timeout(PATIENCE_S):
                assert await reader.read() == b""
            writer.close()

    asyncio.run(main())
    assert "metrics at 127.0.0.1" in caplog.text
    assert "planted" in caplog.text


def test_readiness_says_who_refuses_whom():
    async def main():
        network = Memory()
        nodes = [
            Node(name, ["a", "b"], transport=network.at(name), protocol=protocol, settings=QUICK)
            for name, protocol in (("a", "fifo"), ("b", "matrix"))
        ]
        async with (
            nodes[0] as a,
            nodes[1],
            Health("127.0.0.1:0", a.status) as health,
            asyncio.timeout(PATIENCE_S),
        ):
            while not a.status().refused:
                await asyncio.sleep(0)
            code, text = await get(health.address, "/ready")
            assert code == 503
            assert text.startswith("not connected: b\nb refuses a: a runs protocol fifo, and b runs matrix")

    asyncio.run(main())


OPERATING = (Path(__file__).parent.parent / "docs" / "operating.md").read_text()


def test_the_operators_page_explains_each_metric_and_each_kind():
    async def main() -> set[str]:
        async with in_memory(2) as (p1, _):
            return set(re.findall(r"^# TYPE (antecede_\w+)", expose(p1.status()), re.MULTILINE))

    shown = asyncio.run(main())
    assert len(shown) > 15
    explained = set(re.findall(r"`(antecede_\w+)", OPERATING))
    assert explained == shown
    sources = Path(mesh.__file__).parent.glob("*.py")
    kinds = {kind for source in sources for kind in re.findall(r'counts\["(\w+)"\]', source.read_text())}
    kinds |= {"silent", "clogged", "resent", *COUNTED.values(), "refused_packet", "refused_hello"}
    assert {kind for kind in kinds if f"`{kind}`" not in OPERATING} == set()
