"""Names proved by certificates: real TLS over real sockets, with certificates that `antecede keys` makes."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from antecede.cli import run
from antecede.errors import BadHello, BadParameter, CannotListen, NotMember
from antecede.link import Link
from antecede.net import Node, Tcp, Tls
from antecede.net.peers.session import Bye, Code, Hello, pack
from antecede.net.peers.terms import Terms
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
        ("b", "", "a has the certificate of b: check addresses and certificates"),
        ("a", "other", "the TLS handshake failed: CERTIFICATE_VERIFY_FAILED"),
        ("a", "late", "the TLS handshake failed: CERTIFICATE_VERIFY_FAILED"),
    ],
    ids=["another name", "another authority", "expired"],
)
def test_a_peer_that_cannot_prove_its_name_is_refused(authority, caplog, name, keys, told):
    async def main():
        async with node("c", {}, tls(authority, "c"), "127.0.0.1:0") as c, asyncio.timeout(PATIENCE_S):
            transport = Tcp(None, {"c": c.address}, tls(authority, name, keys))
            with suppress(OSError, BadHello):
                connection = await transport.connect("c")
                await connection.open()
                terms = Terms("matrix")
                hello = Hello.of("a", "c", ("a", "b", "c"), terms, Link(epoch=1, peer=0).hail())
                await connection.write(pack(hello))
                while await connection.read():
                    pass
            while not c.counts["refused_hello"]:
                await asyncio.sleep(0)
            assert c.connected == ()

    asyncio.run(main())
    assert told in "\n".join(record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("name", "keys", "told"),
    [
        ("b", "", r"b\.pem is for b, and this node is a"),
        ("a", "other", "a.pem must be signed by its own authority .*, and valid now"),
        ("a", "late", "valid now: certificate has expired"),
    ],
    ids=["another name", "another authority", "expired"],
)
def test_a_node_that_could_not_prove_its_name_does_not_start(authority, name, keys, told):
    async def main():
        addresses = {"c": "127.0.0.1:1"}
        with pytest.raises(BadParameter, match=told):
            await node("a", addresses, tls(authority, name, keys), "127.0.0.1:0").start()

    asyncio.run(main())


@pytest.mark.parametrize("proved", [True, False], ids=["its own certificate", "another's"])
def test_a_word_of_removal_counts_only_from_the_peer_itself(authority, proved):
    """Whatever listens at a peer's address can say that we were removed: it has to be that peer."""

    async def main():
        impostor = Tcp("127.0.0.1:0", {}, tls(authority, "c" if proved else "b"))
        met = asyncio.Event()

        async def lie(connection):
            with suppress(OSError, BadHello):
                await connection.open()
                await connection.write(pack(Bye(Code.GONE, "a, which is no member any more")))
                await connection.read()
            met.set()
            connection.close()

        await impostor.listen(lie)
        addresses = {"c": impostor.address}
        async with node("a", addresses, tls(authority, "a")) as a, asyncio.timeout(PATIENCE_S):
            await met.wait()
            while not a.counts["refused_hello"]:
                await asyncio.sleep(0)
            assert a.status().up is not proved
            assert proved or "a refuses c: c has the certificate of b" in a.status().refused["c"]
            if proved:
                with pytest.raises(NotMember):
                    await a.close()
        await impostor.close()

    asyncio.run(main())


def test_an_address_that_is_taken_is_told_as_the_system_tells_it():
    async def main():
        async with node("c", {}, None, "127.0.0.1:0") as c:
            with pytest.raises(
                CannotListen, match=rf"cannot listen at {c.address}: Address already in use"
            ) as told:
                await node("b", {}, None, c.address).start()
            assert isinstance(told.value, OSError)

    asyncio.run(main())


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
        BadParameter, match=r"10\.0\.0\.2:7000 is on another machine, or reached from one: give TLS"
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
    assert "'../escape' is not" in capsys.readouterr().err
