"""Frames as bytes, and what a link does when its connection is a new one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antecede.errors import BadParameter, WireError
from antecede.link import EARLY_BITS, Frame, Link
from antecede.wire import Limits
from antecede.wire.frames import FRAME_BYTES, decode_frame, encode_frame

NUMBERS = st.one_of(st.integers(0, 300), st.integers(0, (1 << 63) - 1))
EARLY = st.integers(0, (1 << (EARLY_BITS - 1)) - 1).map(lambda bits: bits << 1)


@st.composite
def frames(draw):
    bare = draw(st.booleans())
    return Frame(
        draw(NUMBERS), draw(NUMBERS), draw(NUMBERS), draw(NUMBERS), draw(EARLY),
        None if bare else draw(st.binary(max_size=50)), bare, bare and draw(st.booleans()),
    )  # fmt: skip


@given(frames(), st.booleans())
def test_a_frame_comes_back_from_its_bytes(frame, known):
    agreed = (frame.epoch, frame.peer) if known else (1, 2)
    data = encode_frame(frame, agreed)
    assert decode_frame(data, agreed) == frame
    assert len(data) <= FRAME_BYTES + len(frame.payload or b"")


@given(st.binary(max_size=60))
def test_bytes_are_a_frame_in_one_way_or_refused(data):
    try:
        frame = decode_frame(data, (3, 4))
    except WireError:
        return
    assert encode_frame(frame, (3, 4)) == data


@pytest.mark.parametrize(
    "frame",
    [
        Frame(1, 1, 1, payload="text"),
        Frame(1, 1, 1, early=1, payload=b""),
        Frame(1, 1, 1, early=1 << EARLY_BITS, payload=b""),
        Frame(1, 1, 1, payload=b"", greets=True),
        Frame(1, 1, 1, payload=bytes(101)),
        Frame(1, 1, -1, payload=b""),
    ],
)
def test_what_no_link_sends_is_not_written(frame):
    with pytest.raises(BadParameter):
        encode_frame(frame, limits=Limits(packet_bytes=100))


def test_a_frame_that_is_too_large_is_refused_before_it_is_read():
    with pytest.raises(WireError, match="a frame has 200 bytes: at most 146 are allowed"):
        decode_frame(bytes(200), limits=Limits(packet_bytes=100))


def test_a_new_connection_carries_on_after_the_last_number_that_arrived():
    a, b = Link(), Link()
    sent = [a.send(k, now=0)[0] for k in range(1, 6)]
    for frame in sent[:3]:
        b.receive(frame, now=1)  # the acknowledgements are lost with the connection, and so are 4 and 5
    assert a.receive(b.hail(), now=2) == ([], [])
    again = a.resume(now=2)
    assert [frame.payload for frame in again] == [4, 5]
    assert a.resent == 2
    assert [b.receive(frame, now=3)[0] for frame in again] == [[4], [5]]


def test_ends_that_do_not_know_each_other_meet_by_hailing():
    a, b = Link(epoch=7, peer=0), Link(epoch=9, peer=0)
    assert a.send("early", now=0) == []
    _, answers = b.receive(a.hail(), now=1)
    _, answers = a.receive(answers[0], now=2)
    assert [b.receive(frame, now=3)[0] for frame in answers if not frame.bare] == [["early"]]
