"""What passes over a connection: records in pieces of any size, and everything that must be refused."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from antecede.errors import BadHello, PeerError, WireError
from antecede.link import Frame, Link
from antecede.net.peers.session import (
    HELLO_BYTES,
    SWELL,
    Beat,
    Bye,
    Code,
    Hello,
    Join,
    Record,
    Session,
    Welcome,
    check_hello,
    pack,
)
from antecede.net.peers.terms import Terms
from antecede.process.views.notes import AnyNote, decode_note
from antecede.wire import Limits
from antecede.wire.feed import answer, question

VIEW = ("billing", "orders")
HELLO = Hello.of("orders", "billing", VIEW, Terms("matrix"), Link(epoch=7).hail())
OURS = Hello.of("billing", "orders", VIEW, Terms("matrix"), Link(epoch=9).hail())
RECORDS: list[Record] = [
    HELLO,
    Beat(False),
    Frame(7, 9, 1, payload=b"packet"),
    Frame(7, 8, 2, 0, 4, None, True),
    Bye(Code.STOPS, "tired"),
]


@given(st.lists(st.integers(1, 40)))
def test_records_are_found_wherever_the_bytes_are_cut(sizes):
    data = b"".join(pack(record, (7, 9)) for record in RECORDS)
    session, found = Session(epoch=9), []
    for size in [*sizes, len(data)]:
        found += session.feed(data[:size])
        data = data[size:]
    assert found == RECORDS


@given(st.binary(max_size=200), st.booleans())
def test_garbage_is_refused_or_waits_for_more(data, greeted):
    session = Session(epoch=9)
    if greeted:
        session.feed(pack(HELLO))
    try:
        session.feed(data)
    except PeerError:
        return
    assert len(session._buffer) <= len(data)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ((HELLO_BYTES + 1).to_bytes(4, "big"), "a record has 65537 bytes, and may have 1..65536"),
        (bytes(4), "a record has 0 bytes"),
        (pack(Beat(True)), "a record of kind 3 came before the hello"),
        (pack(HELLO) + pack(HELLO), "a second hello came"),
        (pack(HELLO) + (1000).to_bytes(4, "big"), "a record has 1000 bytes, and may have 1..247"),
        (pack(HELLO) + b"\0\0\0\1\x09", "a record of kind 9"),
        (pack(HELLO) + b"\0\0\0\2\x03\x02", "a record of kind 3 with 1 bytes"),
        (b"\0\0\0\3\x01\xff\xff", "the hello cannot be read"),
    ],
)
def test_a_record_that_cannot_be_is_refused_at_once(data, told):
    with pytest.raises((WireError, BadHello), match=told):
        Session(9, Limits(packet_bytes=200)).feed(data)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"to": "stock"}, "orders looks for stock, and billing listens here: check the addresses"),
        ({"name": "stock"}, "stock answers where orders was dialled: check the address of orders"),
        (
            {"view": ("billing", "orders", "stock")},
            "a system that billing, orders, stock founded, and billing to one that billing, orders founded",
        ),
        ({"protocol": "fifo"}, "orders runs protocol fifo, and billing runs matrix: give all nodes the same"),
    ],
)
def test_a_hello_of_another_system_is_refused(change, told):
    fields = {name: getattr(HELLO, name) for name in ("name", "to", "protocol", "view", "frame")}
    with pytest.raises(BadHello, match=told):
        check_hello(Hello(**{**fields, **change}), OURS)
    check_hello(HELLO, OURS)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"parameters": {"k": 6}},
            "orders has parameters {'k': 6}, and billing has {'k': 5}: give all nodes the same",
        ),
        ({"packet_bytes": 8192}, "orders sends packets of up to 8192 bytes, and billing takes 4096"),
        ({"packet_bytes": 2048}, "orders takes packets of up to 2048 bytes, and billing sends 4096"),
        (
            {"payload_bytes": 2048},
            "sends payloads of up to 2048 bytes, and billing takes 1024: .*payload_bytes",
        ),
        ({"wire": 2}, "orders writes packets of version 2, and billing writes 1: upgrade the older"),
        ({"groups": (1, "sha256 5")}, "orders has other groups than billing: give all founders the same"),
        # What a peer has under way is what we may have to hold of it: it cannot ask for all our memory.
        ({"queue": 1 << 20}, "orders has up to 1048576 messages on their way, and billing takes 65536: give"),
        ({"queue_bytes": 1 << 40}, "up to 1099511627776 bytes on their way, and billing takes 67108864"),
    ],
)
def test_a_peer_on_other_terms_is_refused(change, told):
    terms = Terms("matrix", {"k": 5}, 4096, 1024, 64, groups=(1, "sha256 3"))
    ours = Hello.of("billing", "orders", VIEW, terms, Link(epoch=9).hail())
    theirs = Hello.of("orders", "billing", VIEW, terms, Link(epoch=7).hail())
    check_hello(theirs, ours)
    # Views differ while one of the two has not heard of a change.
    check_hello(replace(theirs, groups=(2, "sha256 5")), ours)
    with pytest.raises(BadHello, match=told):
        check_hello(replace(theirs, **change), ours)


def test_a_peer_of_the_first_version_is_understood():
    """It states no terms, and ends a connection by a sentence alone."""
    first = {
        "name": "orders",
        "to": "billing",
        "protocol": "matrix",
        "view": VIEW,
        "frame": HELLO.frame,
        "antecede": 1,
    }
    body = msgspec.msgpack.encode(first)
    sentence = b"refused a peer: found nothing good"
    data = _record(1, body) + _record(4, sentence)
    hello, bye = Session(9).feed(data)
    assert hello == HELLO
    check_hello(hello, replace(OURS, parameters={"k": 5}, packet_bytes=4096))
    assert bye == Bye(Code.OTHER, sentence.decode())


def _record(kind: int, body: bytes) -> bytes:
    return (len(body) + 1).to_bytes(4, "big") + bytes([kind]) + body


@pytest.mark.parametrize("code", [0, 9, 31])
def test_a_reason_that_this_version_does_not_know_is_no_reason_to_act(code):
    assert Session(9).feed(_record(4, bytes([code]) + b"why")) == [Bye(Code.OTHER, "why")]


def _open_types(found: msgspec.inspect.Type, seen: set[type]) -> list[str]:
    """Where, in a type, anything may be said."""
    if isinstance(found, msgspec.inspect.AnyType):
        return ["Any"]
    if isinstance(found, msgspec.inspect.StructType):
        if found.cls in seen:
            return []
        seen.add(found.cls)
        places = [(field.name, field.type) for field in found.fields]
        return [
            f"{found.cls.__name__}.{name}: {one}" for name, kind in places for one in _open_types(kind, seen)
        ]
    parts = [getattr(found, name, None) for name in ("item_type", "key_type", "value_type")]
    parts += [*getattr(found, "item_types", ()), *getattr(found, "types", ())]
    return [
        one for part in parts if isinstance(part, msgspec.inspect.Type) for one in _open_types(part, seen)
    ]


class Open(msgspec.Struct):
    inner: tuple[dict[str, list[Any]], ...]


def test_no_field_of_what_a_peer_says_is_of_an_open_type():
    said = (Hello, Join, Welcome, Bye, Beat, *get_args(AnyNote))
    assert len(said) > 12
    assert [place for kind in said for place in _open_types(msgspec.inspect.type_info(kind), set())] == []
    assert _open_types(msgspec.inspect.type_info(Open), set()) == ["Open.inner: Any"], "this would find one"


DEEP = 30_000


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (1, b"\x81\xa7unknown" + b"\x91" * DEEP + b"\x90"),
        (5, b"\x81\xaaparameters\x81\xa1k" + b"\x91" * DEEP + b"\x90"),
        (5, b"\x81\xa6groups" + b"\x91" * DEEP + b"\x90"),
    ],
    ids=["unknown field", "parameters", "groups"],
)
def test_what_nests_without_end_is_refused(kind, body):
    with pytest.raises(BadHello, match="the hello cannot be read"):
        Session(9).feed(_record(kind, body))


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (decode_note, b"\0\x94\x01\x01\x87\xa1x" + b"\x91" * DEEP + b"\x90"),
        (question, b'{"x":' + b"[" * DEEP + b"]" * DEEP + b"}"),
        (answer, b'{"x":' + b"[" * DEEP + b"]" * DEEP + b"}"),
    ],
    ids=["note", "question of a feed", "answer of a feed"],
)
def test_what_nests_without_end_is_refused_elsewhere_too(decode, data):
    with pytest.raises(PeerError):
        decode(data)


HEAVY = "\u0101"
"""One character that takes three bytes of MessagePack, and eighty of memory."""


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (1, {"view": [HEAVY] * 21_000}),
        (1, {"view": [""] * 64_000}),
        (1, {"parameters": {f"{i:x}": i for i in range(8_000)}}),
        (5, {"groups": [HEAVY] * 21_000}),
        (5, {"parameters": {HEAVY * 64 + str(i): HEAVY * 256 for i in range(32)}}),
    ],
)
def test_a_record_takes_no_more_memory_than_is_said(kind, fields):
    hello = {"name": "a", "to": "b", "protocol": "p", "view": [], "frame": HELLO.frame, "antecede": 1}
    join = {"name": "a", "to": "b", "protocol": "p", "parameters": {}, "address": "", "groups": []}
    data = _record(kind, msgspec.msgpack.encode({**(hello if kind == 1 else join), **fields}))
    assert len(data) <= HELLO_BYTES
    session = Session(9)
    tracemalloc.start()
    try:
        with suppress(BadHello):
            session.feed(data)
        assert tracemalloc.get_traced_memory()[1] <= SWELL * HELLO_BYTES
    finally:
        tracemalloc.stop()


def test_another_version_is_refused():
    later = Hello("orders", "billing", "matrix", VIEW, HELLO.frame, antecede=2)
    with pytest.raises(BadHello, match="the hello has version 2, and this node speaks 1: upgrade"):
        Session(9).feed(pack(later))
