"""What passes over a connection: records in pieces of any size, and everything that must be refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antecede.errors import BadHello, PeerError, WireError
from antecede.link import Frame, Link
from antecede.net.peers.session import HELLO_BYTES, Beat, Bye, Hello, Record, Session, check_hello, pack
from antecede.wire import Limits

VIEW = ("billing", "orders")
HELLO = Hello.of("orders", "billing", "matrix", VIEW, Link(epoch=7).hail())
OURS = Hello.of("billing", "orders", "matrix", VIEW, Link(epoch=9).hail())
RECORDS: list[Record] = [
    HELLO,
    Beat(False),
    Frame(7, 9, 1, payload=b"packet"),
    Frame(7, 8, 2, 0, 4, None, True),
    Bye("tired"),
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
        ((HELLO_BYTES + 1).to_bytes(4, "big"), "a record of 65537 bytes, expected 1..65536"),
        (bytes(4), "a record of 0 bytes"),
        (pack(Beat(True)), "a record of kind 3, expected one hello"),
        (pack(HELLO) + pack(HELLO), "a record of kind 1, expected one hello"),
        (pack(HELLO) + (1000).to_bytes(4, "big"), "a record of 1000 bytes, expected 1..147"),
        (pack(HELLO) + b"\0\0\0\1\x09", "a record of kind 9"),
        (pack(HELLO) + b"\0\0\0\2\x03\x02", "a record of kind 3 with 1 bytes"),
        (b"\0\0\0\3\x01\xff\xff", "no hello"),
    ],
)
def test_a_record_that_cannot_be_is_refused_at_once(data, told):
    with pytest.raises((WireError, BadHello), match=told):
        Session(9, Limits(packet_bytes=100)).feed(data)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"to": "stock"}, "orders looking for stock, expected one for billing"),
        ({"name": "stock"}, "found stock, expected orders"),
        (
            {"view": ("billing", "orders", "stock")},
            "a view of billing, orders, stock, expected billing, orders",
        ),
        ({"protocol": "fifo"}, "protocol fifo, expected matrix"),
    ],
)
def test_a_hello_of_another_system_is_refused(change, told):
    fields = {name: getattr(HELLO, name) for name in ("name", "to", "protocol", "view", "frame")}
    with pytest.raises(BadHello, match=told):
        check_hello(Hello(**{**fields, **change}), OURS)
    check_hello(HELLO, OURS)


def test_another_version_is_refused():
    later = Hello("orders", "billing", "matrix", VIEW, HELLO.frame, antecede=2)
    with pytest.raises(BadHello, match="version 2, expected 1"):
        Session(9).feed(pack(later))
