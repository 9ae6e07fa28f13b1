"""What an application may ask of a node: what is refused, what is told by name, and who is seen to be down."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest

from antecede.errors import (
    BadParameter,
    CallerError,
    Unsupported,
    WrongType,
)
from antecede.model import CausalContext
from antecede.net import Memory, Node, Settings
from antecede.net.delivery import Contact
from antecede.protocols import PROTOCOLS
from antecede.wire import Limits
from tests.test_net_life import build, run

# What an application may ask for


@pytest.mark.parametrize("payload", [5, "text", None, ["list"], 1.5])
def test_a_payload_is_bytes(payload):
    async def main() -> None:
        async with build(Memory(), "a") as a:
            with pytest.raises(
                WrongType, match="a payload is bytes, bytearray or memoryview, not"
            ) as refused:
                await a.send("a", payload)
            # An error that is logged or kept must not keep what was given alive.
            assert refused.value.found == type(payload).__name__
            assert isinstance(refused.value, TypeError)
            assert a.sent == 0
            for same in (b"same", bytearray(b"same"), memoryview(b"same")):
                await a.send("a", same)
                assert (await a.receive()).payload == b"same"

    run(main)


WRONG: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "to a number": ("history", lambda a: a.send(5, b""), "a destination is a name, or several, not int"),
    "to a position": ("history", lambda a: a.send([0], b""), "a destination is a name, or several, not int"),
    "to bytes": ("history", lambda a: a.send(b"b", b""), "a destination is a name, or several, not int"),
    "to nobody": (
        "history",
        lambda a: a.send(None, b""),
        "a destination is a name, or several, not NoneType",
    ),
    "label": ("history", lambda a: a.send("b", b"", label=5), "the label of a message is text, not int"),
    "no label": ("permit", lambda a: a.send("b", b"", label=None), "the label of a message is text"),
    "label of bytes": ("history", lambda a: a.send("b", b"", label=b""), "the label of a message is text"),
    "context": ("permit", lambda a: a.send("b", b"", context=5), "the context of a message is text, not int"),
    "after": ("contexts", lambda a: a.send("b", b"", after=(1, 2)), "a CausalContext, not tuple: one that a"),
    "after a view": (
        "contexts",
        lambda a: a.send("b", b"", after=CausalContext(view="1")),  # type: ignore[arg-type]
        "a CausalContext, not CausalContext: one that a",
    ),
    "sender": ("matrix", lambda a: a.receive(sender=0), "a destination is a name, or several, not int"),
    "merge": ("history", lambda a: a.merge(5, into="x"), "a label is text, not int"),
    "remove": ("matrix", lambda a: a.remove(1), "what is removed is the name of a node, not int"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_type_is_refused_and_stops_nothing(what, tmp_path):
    protocol, call, told = WRONG[what]

    async def main() -> None:
        async with build(
            Memory(), "a", tmp_path / "a.db", protocol=protocol, settings=Settings(drain_s=0)
        ) as a:
            with pytest.raises(TypeError, match=re.escape(told)):
                await call(a)
            assert (a.sent, a.status().up) == (0, True)
            await a.send("a", b"it goes on")
            assert (await a.receive()).payload == b"it goes on"
        # Nor has it left anything in the journal that could not be read.
        async with build(Memory(), "a", tmp_path / "a.db", protocol=protocol) as a:
            assert a.sent == 1

    run(main)


@pytest.mark.parametrize(
    "obligation", [(99, 1, 1), (0, 99, 1), (-1, 1, 1), (0, 1, 1 << 70), ("b", 1, 1), (0, 1)]
)
def test_a_causal_context_that_cannot_be_is_refused(obligation, tmp_path):
    """An application keeps contexts wherever it likes, and may bring one back that was never ours."""

    async def main() -> None:
        async with build(
            Memory(), "a", tmp_path / "a.db", protocol="contexts", settings=Settings(drain_s=0)
        ) as a:
            with pytest.raises(CallerError):
                await a.send("b", b"", after=CausalContext(frozenset({obligation}), a.status().view))
            assert (a.sent, a.status().up) == (0, True)

    run(main)


@pytest.mark.parametrize(
    ("peers", "groups", "told"),
    [
        ("ab", None, "peers of a node is names"),
        (["a", "b"], {"all": "ab"}, "a group is a list of names, not str"),
    ],
)
def test_a_text_is_not_taken_for_names(peers, groups, told):
    with pytest.raises(TypeError, match=told):
        Node("a", peers, groups=groups, transport=Memory().at("a"))


ODD_NAMES = ["", "\ud800", "n" * 257]


@pytest.mark.parametrize("odd", ODD_NAMES, ids=["empty", "half a character", "long"])
def test_a_name_is_text_that_peers_can_be_told(odd):
    transport = Memory().at("a")
    for name, peers, groups in ((odd, ["a"], {}), ("a", [odd], {}), ("a", ["b"], {odd: ["b"]})):
        with pytest.raises(BadParameter, match="Unicode text of 1 to 255 bytes"):
            Node(name, peers, groups=groups, transport=transport)
    with pytest.raises(BadParameter, match="Unicode text of 1 to 255 bytes"):
        Node.join("a", ["b"], groups=[odd], transport=transport)
    with pytest.raises(BadParameter, match="Unicode text of 1 to 255 bytes"):
        Node("a", ["b"], trace="trace", run=odd, transport=transport)


OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "peers": ({"peers": 5}, "peers of a node is names, or names with their addresses, not int"),
    "a peer": ({"peers": ["b", 5]}, "name of a node is text, not int"),
    "an address": ({"peers": {"b": 5}, "transport": None}, "an address is text, as in host:port, not int"),
    "listen": (
        {"peers": {"b": "127.0.0.1:1"}, "transport": None, "listen": 5},
        "an address is text, as in host:port, not int",
    ),
    "a group": ({"groups": {5: ["b"]}}, "name of a group is text, not int"),
    "members of a group": ({"groups": {"g": 5}}, "a group is a list of names, not int"),
    "run": ({"trace": "trace", "run": 5}, "name of a run is text, not int"),
    "state": ({"state": b"state"}, "state of a node is a function, not bytes"),
    "changed": ({"changed": 5}, "changed of a node is a function, not int"),
    "admit": ({"admit": True}, "admit of a node is a function, not bool"),
    "settings": ({"settings": {"queue": 5}}, "settings of a node is Settings, not dict"),
}


@pytest.mark.parametrize("what", OPTIONS)
def test_an_option_of_a_wrong_type_is_refused_when_the_node_is_made(what):
    options, told = OPTIONS[what]
    given = {"peers": ["b"], "transport": Memory().at("a"), **options}
    with pytest.raises(WrongType, match=re.escape(told)):
        Node("a", given.pop("peers"), **given)


def choose(name: str, value: Any) -> Settings:
    options: dict[str, Any] = {name: value}
    return Settings(**options)


@pytest.mark.parametrize("value", [1.5, True, "5", None, float("nan")])
@pytest.mark.parametrize("name", ["queue", "held_bytes", "snapshot_inputs"])
def test_a_count_is_a_whole_number(name, value):
    """A journal that holds another could not be opened again."""
    with pytest.raises(WrongType, match=f"settings.{name} is a whole number, not"):
        choose(name, value)
    with pytest.raises(WrongType, match=r"limits\.label_bytes is a whole number, not"):
        Settings(limits=Limits(label_bytes=value))
    with pytest.raises(BadParameter, match=f"{name} must be below"):
        choose(name, 1 << 70)


@pytest.mark.parametrize("name", ["beat_s", "dead_s", "hello_s", "first_retry_s", "drain_s", "trace_s"])
def test_a_time_is_a_number_of_seconds(name):
    with pytest.raises(BadParameter):
        choose(name, float("nan"))
    for value in ("1", None, True):
        with pytest.raises(WrongType, match=f"settings.{name} is a number of seconds, not"):
            choose(name, value)


@pytest.mark.parametrize("protocol", ["permit", "buffer"])
def test_who_cannot_select_says_so_at_once(protocol):
    async def main() -> None:
        async with build(Memory(), "a", protocol=protocol) as a:
            with pytest.raises(Unsupported, match=r"protocols that can: .*matrix"):
                await a.receive(sender="b")

    run(main)


def test_every_protocol_says_whether_it_can_select():
    """The attribute is the machine's: what it says is what it does."""
    assert {name for name, kind in PROTOCOLS.items() if not kind.selective} == {
        "permit",
        "buffer",
        "separator",
    }


def test_what_was_sent_is_told_by_name():
    async def main() -> None:
        async with build(Memory(), "a") as a:
            sent = await a.send({"a", "b"}, b"hello")
            assert (sent.sender, sent.number, sent.to, sent.label) == ("a", 1, ("a", "b"), "")
            assert repr(sent) == "<message 1 of a to a, b>"
            a.settings = Settings(drain_s=0)

    run(main)


def test_a_member_that_is_down_and_stops_send_is_seen(caplog):
    async def main() -> None:
        settings = Settings(queue=3, beat_s=0.05, dead_s=0.1, drain_s=0)
        async with build(Memory(), "a", settings=settings) as a:
            for _ in range(3):
                await a.send("b", b"which is not there")
            assert not a.status().blocked
            sending = asyncio.ensure_future(a.send("b", b"one too many"))
            while "send waits for b" not in caplog.text:
                await asyncio.sleep(0.01)
            assert a.status().blocked == {"b": 1}
            [held] = [one for one in a.waiting() if one.where == "blocked"]
            assert held.reason == "b can take no more: 3 messages for it are not acknowledged"
            assert held.since_s is not None
            assert held.since_s > 0
            sending.cancel()
            await asyncio.wait({sending})
            assert not a.status().blocked

    with caplog.at_level(logging.WARNING):
        run(main)
    assert caplog.text.count("send waits for b") == 1


def test_peers_that_come_and_go_are_told():
    async def main() -> None:
        network = Memory()
        async with build(network, "a") as a:
            told = a.contacts()
            async with build(network, "b"):
                assert await anext(told) == Contact("b", connected=True)
            assert await anext(told) == Contact("b", connected=False)
            async with build(network, "b"):
                assert await anext(told) == Contact("b", connected=True)
                await a.close()
                found = [contact async for contact in told]
                assert found in ([], [Contact("b", connected=False)])

    run(main)
