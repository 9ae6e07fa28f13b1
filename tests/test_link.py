"""The link, one behaviour at a time; every run of small programs and long random runs are in test_link_runs.py."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from antecede.errors import BadFrame, BadParameter, BadSnapshot
from antecede.link import EARLY_BITS, Frame, Link
from tests.test_link_runs import run_pair

SECOND = 1_000_000_000


def test_one_loss_makes_one_resend():
    a, b = Link(), Link()
    first, *rest = [frame for k in range(10) for frame in a.send(k, 0)]
    for frame in rest:
        _, [ack] = b.receive(frame, 5)
        a.receive(ack, 10)
    assert a.unacknowledged == 1
    due = a.deadline()
    assert due is not None
    [again] = a.tick(due)
    assert (again.number, again.payload) == (first.number, 0)
    assert b.receive(again, due)[0] == [0]
    assert (a.resent, b.snapshot()["received"]) == (1, 10)


def test_resends_come_twice_as_late_each_time_up_to_a_limit():
    link = Link(timeout_ns=100, least_timeout_ns=1, most_timeout_ns=500)
    link.send("x", 0)
    times = []
    for _ in range(5):
        due = link.deadline()
        assert due is not None
        assert link.tick(due - 1) == []
        assert len(link.tick(due)) == 1
        times.append(due)
    assert times == [100, 300, 700, 1200, 1700]


def test_the_timeout_follows_the_round_trip():
    a, b = Link(timeout_ns=10 * SECOND), Link()
    now = 0
    for k in range(20):
        [frame] = a.send(k, now)
        _, [ack] = b.receive(frame, now + 20_000_000)
        now += 40_000_000
        a.receive(ack, now)
    a.send("lost", now)
    due = a.deadline()
    assert due is not None
    assert 40_000_000 <= due - now < 60_000_000


def test_a_round_trip_longer_than_the_timeout_is_learnt():
    a, b = Link(timeout_ns=100), Link()
    resent = []
    for k in range(6):
        now = k * 100_000
        frames = [(now + 400, frame) for frame in a.send(k, now)]
        while a.unacknowledged:
            due = a.deadline()
            assert due is not None
            if frames and frames[0][0] <= due:
                time, frame = frames.pop(0)
                for ack in b.receive(frame, time)[1]:
                    a.receive(ack, time + 400)
            else:
                frames += [(due + 400, frame) for frame in a.tick(due)]
        resent.append(a.resent)
    assert resent[0] > 0
    assert resent[-1] == resent[1], "no more of them once the round trip is known"


def test_beyond_the_window_payloads_wait():
    a, b = Link(window=2), Link(window=2)
    frames = [frame for k in range(5) for frame in a.send(k, 0)]
    assert [frame.number for frame in frames] == [1, 2]
    assert a.unacknowledged == 5
    _, [ack] = b.receive(frames[0], 0)
    _, [third] = a.receive(ack, 1)
    assert (third.number, a.unacknowledged) == (3, 4)


def test_acknowledgements_ride_on_frames_that_go_back():
    a, b = Link(), Link(ack_delay_ns=1000)
    [frame] = a.send("question", 0)
    assert b.receive(frame, 10) == (["question"], [])
    assert b.deadline() == 1010
    [answer] = b.send("answer", 20)
    assert (answer.ack, b._ack_due) == (1, None)
    a.receive(answer, 30)
    assert a.unacknowledged == 0


def test_an_acknowledgement_can_be_asked_for_before_its_time():
    a, b = Link(), Link(ack_delay_ns=1000)
    assert b.acknowledge() == []
    b.receive(a.send("x", 0)[0], 10)
    [ack] = b.acknowledge()
    assert (ack.ack, b.deadline(), b.acknowledge()) == (1, None, [])


def test_a_late_acknowledgement_goes_alone_in_the_end():
    a, b = Link(), Link(ack_delay_ns=1000)
    b.receive(a.send("x", 0)[0], 10)
    assert b.tick(1009) == []
    [ack] = b.tick(1010)
    assert (ack.bare, ack.ack, b.deadline()) == (True, 1, None)


def test_unordered_hands_over_at_once_and_ordered_in_sequence():
    for ordered, expected in ((False, [["b"], ["a"]]), (True, [[], ["a", "b"]])):
        a, b = Link(), Link(ordered=ordered)
        [first], [second] = a.send("a", 0), a.send("b", 0)
        assert [b.receive(second, 1)[0], b.receive(first, 2)[0]] == expected


def test_a_restarted_end_resumes_from_the_last_acknowledged_frame():
    a, b = Link(), Link()
    frames = [frame for k in (1, 2, 3) for frame in a.send(k, 0)]
    _, [ack] = b.receive(frames[0], 1)
    b.receive(frames[1], 2)
    a.receive(ack, 3)
    a = Link.restore(a.snapshot())
    a.restart()
    assert a.send(4, 4) == []
    [greeting] = a.tick(5)
    assert (greeting.greets, greeting.epoch, greeting.number) == (True, 2, 3)
    _, [answer] = b.receive(greeting, 6)
    _, resumed = a.receive(answer, 7)
    assert [frame.payload for frame in resumed] == [3, 4]
    assert b.receive(frames[2], 8) == ([], [])
    assert b.refused == 1
    assert [b.receive(frame, 9)[0] for frame in resumed] == [[3], [4]]


def test_a_greeting_makes_the_other_end_resend_at_once():
    a, b = Link(), Link()
    a.send("x", 0)
    b.restart()
    [greeting] = b.tick(1)
    _, [again] = a.receive(greeting, 2)
    assert (again.payload, again.peer) == ("x", 2)
    assert b.receive(again, 3)[0] == ["x"]
    assert b.met


def test_the_bits_of_a_frame_are_limited():
    a, b = Link(), Link()
    frames = [frame for k in range(200) for frame in a.send(k, 0)]
    for frame in frames[1:]:
        _, [ack] = b.receive(frame, 1)
        assert ack.early.bit_length() <= EARLY_BITS
        a.receive(ack, 2)
    assert a.unacknowledged == 200 - (EARLY_BITS - 1)


# Wrong frames, wrong snapshots


def busy() -> Link:
    a, b = Link(window=8), Link(window=8)
    for k in range(3):
        for frame in b.send(k, 0):
            if k != 1:
                a.receive(frame, 1)
        a.send(k, 2)
    return a


@pytest.mark.parametrize(
    "frame",
    [
        Frame(1, 1, 3, ack=4, bare=True),
        Frame(1, 1, 3, ack=1, early=0b1000, bare=True),
        Frame(1, 1, 0, payload="x"),
        Frame(1, 1, -1, bare=True),
        Frame(0, 1, 4, payload="x"),
        Frame(1, 1, 4, early=1, payload="x"),
        Frame(1, 1, 4, early=1 << EARLY_BITS, payload="x"),
        Frame(1, 2, 4, payload="x"),
        Frame(2, 1, 2, bare=True, greets=True),
        Frame(2, 1, 3, ack=4, bare=True, greets=True),
    ],
    ids=repr,
)
def test_a_frame_that_no_sound_end_sends_is_refused(frame):
    link = busy()
    before = link.snapshot()
    with pytest.raises(BadFrame):
        link.receive(frame, 5)
    assert link.snapshot() == before


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(Frame(1, 1, 1, payload=0), id="a duplicate"),
        pytest.param(Frame(1, 1, 10, payload=0), id="beyond the window"),
        pytest.param(Frame(1, 0, 4, payload=0), id="for nobody in particular"),
        pytest.param(Frame(2, 1, 4, payload=0), id="of an incarnation that has not greeted"),
    ],
)
def test_what_a_network_or_a_restart_can_cause_is_ignored(frame):
    link = busy()
    before = link.snapshot()
    assert link.receive(frame, 5)[0] == []
    assert link.snapshot() == before


def test_an_end_that_forgot_what_it_acknowledged_is_found_out():
    a, b = Link(), Link()
    _, [ack] = b.receive(a.send("x", 0)[0], 0)
    a.receive(ack, 1)
    forgetful = Link()
    forgetful.restart()
    [greeting] = forgetful.tick(2)
    with pytest.raises(BadFrame, match="has not received payload 1"):
        a.receive(greeting, 3)


@pytest.mark.parametrize("seed", range(5))
def test_a_snapshot_is_plain_and_complete(seed):
    link, _ = run_pair(Random(seed), ordered=True)[0]
    for k in range(3):
        link.send(k, 0)
    snapshot = link.snapshot()
    restored = Link.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot)))
    assert restored.snapshot() == snapshot


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"window": 0},
        {"acked": 7},
        {"epoch": 0},
        {"received": "many"},
        {"unacknowledged": [[9, "x"]]},
        {"kept": 5},
    ],
    ids=repr,
)
def test_a_snapshot_of_something_else_is_refused(change):
    with pytest.raises(BadSnapshot):
        Link.restore({**busy().snapshot(), **change})
    incomplete = busy().snapshot()
    del incomplete[next(iter(change))]
    with pytest.raises(BadSnapshot):
        Link.restore(incomplete)


@pytest.mark.parametrize(
    "options",
    [
        {"window": 0},
        {"timeout_ns": 0},
        {"least_timeout_ns": 9, "most_timeout_ns": 8},
        {"epoch": 0},
        {"peer": -1},
    ],
    ids=repr,
)
def test_impossible_options_are_refused(options):
    with pytest.raises(BadParameter):
        Link(**options)
