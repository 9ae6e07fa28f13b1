"""Names proved by certificates: real TLS over real sockets, with certificates that `antecede keys` makes."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from random import Random
from typing import Any

import pytest

from antecede.cli import run
from antecede.errors import BadParameter
from antecede.net import Node, Tcp, Tls
from antecede.net.transports.keys import make_keys
from tests.net_world import PATIENCE_S, QUICK, Conversation


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("keys")
    make_keys(root, ["a", "b", "c"])
    make_keys(root / "other", ["a"])
    (root / "late").mkdir()
    for kind in ("pem", "key"):
        (root / "late" / f"authority.{kind}").write_bytes((root / f"authority.{kind}").read_bytes())
    make_keys(root / "late", ["a"], days=-1)
    return root


def tls(root: Path, name: str, keys: str = "") -> Tls:
    return Tls(root / "authority.pem", root / keys / f"{name}.pem", root / keys / f"{name}.key")


def node(name: str, addresses: dict[str, str], keys: Tls | None, listen: str | None = None) -> Node:
    options: dict[str, Any] = {"protocol": "matrix", "settings": QUICK}
    return Node(name, ["a", "b", "c"], transport=Tcp(listen, addresses, keys), **options)


def test_nodes_with_certificates_talk(authority):
    async def main():
        addresses: dict[str, str] = {}
        c = node("c", addresses, tls(authority, "c"), "127.0.0.1:0")
        b = node("b", addresses, tls(authority, "b"), "127.0.0.1:0")
        a = node("a", addresses, tls(authority, "a"))
        async with c:
            addresses["c"] = c.address
            async with b:
                addresses["b"] = b.address
                async with a:
                    conversation = Conversation([a, b, c], Random(1))
                    await conversation.hold(each=30)
                    conversation.judge()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "keys", "told"),
    [
        ("b", "", "a with the certificate of b, expected its own"),
        ("a", "other", "no TLS: CERTIFICATE_VERIFY_FAILED"),
        ("a", "late", "no TLS: CERTIFICATE_VERIFY_FAILED"),
    ],
    ids=["another name", "another authority", "expired"],
)
def test_a_peer_that_cannot_prove_its_name_is_refused(authority, caplog, name, keys, told):
    async def main():
        addresses: dict[str, str] = {}
        async with node("c", addresses, tls(authority, "c"), "127.0.0.1:0") as c, asyncio.timeout(PATIENCE_S):
            addresses |= {"c": c.address, "b": c.address}
            async with node("a", addresses, tls(authority, name, keys)) as a:
                while not (c.counts["refused_hello"] and a.counts["unanswered"] + a.counts["refused_hello"]):
                    await asyncio.sleep(0)
                assert c.connected == ()

    asyncio.run(main())
    assert told in "\n".join(record.getMessage() for record in caplog.records)


def test_plain_text_on_a_tls_port_is_refused(authority):
    async def main():
        async with node("c", {}, tls(authority, "c"), "127.0.0.1:0") as c, asyncio.timeout(PATIENCE_S):
            host, port = c.address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await reader.read()
            writer.close()
            while not c.counts["refused_hello"]:
                await asyncio.sleep(0)

    asyncio.run(main())


def test_a_client_without_a_certificate_is_refused(authority):
    async def main():
        async with node("c", {}, tls(authority, "c"), "127.0.0.1:0") as c, asyncio.timeout(PATIENCE_S):
            host, port = c.address.split(":")
            context = ssl.create_default_context(cafile=authority / "authority.pem")
            reader, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname="c")
            assert await reader.read() == b""
            writer.close()
            while not c.counts["refused_hello"]:
                await asyncio.sleep(0)

    asyncio.run(main())


def test_beyond_loopback_there_is_no_talking_without_tls(authority):
    with pytest.raises(
        BadParameter, match=r"10\.0\.0\.2:7000, expected one of this machine \(loopback\), or TLS"
    ):
        Node("a", {"b": "10.0.0.2:7000"})
    Node("a", {"b": "10.0.0.2:7000"}, tls=tls(authority, "a"))
    Tcp(None, {"b": "10.0.0.2:7000"}, plain=True)


def test_keys_are_made_once_and_only_for_names(tmp_path, capsys):
    assert run(["keys", str(tmp_path / "k"), "orders", "--json"]) == 0
    assert capsys.readouterr().out.count(".pem") == 2
    assert (tmp_path / "k" / "orders.key").stat().st_mode & 0o077 == 0
    assert run(["keys", str(tmp_path / "k"), "orders"]) == 0
    assert "nothing to do" in capsys.readouterr().err
    assert run(["keys", str(tmp_path / "k"), "../escape"]) == 2
    assert "name is '../escape'" in capsys.readouterr().err
