"""The link: every payload once, whatever the network does and whenever an end crashes."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antecede.errors import BadFrame, BadParameter, BadSnapshot
from antecede.link import EARLY_BITS, Frame, Link
from tests.link_model import Model, Wrong

SECOND = 1_000_000_000


# Every run of small programs

MODELS: dict[str, dict[str, Any]] = {
    "both ways": {"payloads": (3, 1)},
    "both ways, ordered": {"payloads": (3, 1), "ordered": True},
    "a window of one": {"payloads": (2, 2), "window": 1},
    "late acknowledgements": {"payloads": (2, 1), "ack_delay_ns": 5},
    "ends that must meet first": {"payloads": (1, 1), "peer": 0},
    "one crash of the sender": {"payloads": (2, 1), "crashes": (1, 0)},
    "two crashes of the sender": {"payloads": (3, 0), "crashes": (2, 0)},
    "one crash of the receiver, ordered": {
        "payloads": (3, 0),
        "crashes": (0, 1),
        "ordered": True,
        "window": 2,
    },
    "a crash of each": {"payloads": (1, 1), "crashes": (1, 1)},
    "a crash of each, one way": {"payloads": (2, 0), "crashes": (1, 1)},
    "the sender forgets": {"payloads": (2, 0), "crashes": (1, 0), "stale": True},
    "the receiver forgets": {"payloads": (2, 0), "crashes": (0, 1), "stale": True},
    "one of two forgets": {"payloads": (1, 1), "crashes": (1, 0), "stale": True},
    "both forget": {"payloads": (1, 0), "crashes": (1, 1), "stale": True},
}


@pytest.mark.parametrize("name", MODELS)
def test_every_run_hands_over_each_payload_once(name):
    states = Model(**MODELS[name]).explore()
    print(f"{name}: {states:,} states")
    assert states > 30


class NoDedup(Link):
    def _take_payload(self, frame, now):
        return super()._take_payload(frame, now) or [frame.payload]


class AcksTooMuch(Link):
    def _make_frame(self, number, now, again):
        return self._more(super()._make_frame(number, now, again))

    def _make_bare(self, greets=False):
        return self._more(super()._make_bare(greets))

    def _more(self, frame):
        """Everything up to the highest that arrived, gaps or not."""
        return msgspec.structs.replace(frame, ack=frame.ack + frame.early.bit_length(), early=0)


class NoEpoch(Link):
    def receive(self, frame, now):
        self.peer = max(self.peer, frame.epoch) if frame.greets else self.peer
        return super().receive(msgspec.structs.replace(frame, epoch=self.peer, peer=self.epoch), now)


class NoResend(Link):
    def _resend(self, now):
        return []


class AnswersNoGreeting(Link):
    def receive(self, frame, now):
        known = frame.epoch == self.peer
        return super().receive(msgspec.structs.replace(frame, greets=frame.greets and not known), now)


class GreetsWithLast(Link):
    def _make_bare(self, greets=False):
        frame = super()._make_bare(greets)
        return msgspec.structs.replace(frame, number=self._last)


class ForgetsWhatArrived(Link):
    def snapshot(self):
        return {**super().snapshot(), "received": 0, "early": 0}


class ForgetsWhatFlies(Link):
    def snapshot(self):
        return {**super().snapshot(), "unacknowledged": []}


class TrustsGreetings(Link):
    def _check_greeting(self, frame):
        pass


class NoOrder(Link):
    def _take_payload(self, frame, now):
        self.ordered = False
        return super()._take_payload(frame, now)


class NoGap(Link):
    """Marks of early arrivals one number too low."""

    def _make_bare(self, greets=False):
        frame = super()._make_bare(greets)
        return msgspec.structs.replace(frame, early=frame.early >> 1 & ~1)


MUTANTS: dict[type[Link], dict[str, Any]] = {
    NoDedup: {"payloads": (1, 0)},
    AcksTooMuch: {"payloads": (2, 0)},
    NoEpoch: {"payloads": (1, 1), "crashes": (1, 0), "stale": True},
    NoResend: {"payloads": (1, 0)},
    AnswersNoGreeting: {"payloads": (1, 0), "crashes": (1, 0)},
    GreetsWithLast: {"payloads": (1, 0), "crashes": (1, 0), "stale": True},
    ForgetsWhatArrived: {"payloads": (1, 0), "crashes": (0, 1)},
    ForgetsWhatFlies: {"payloads": (1, 0), "crashes": (1, 0)},
    TrustsGreetings: {"payloads": (1, 0), "crashes": (1, 0), "stale": True},
    NoOrder: {"payloads": (2, 0), "ordered": True},
    NoGap: {"payloads": (4, 0), "ordered": True},
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_each_rule_is_needed(mutant):
    with pytest.raises(Wrong) as caught:
        Model(kind=mutant, **MUTANTS[mutant]).explore()
    print(caught.value)


# Long random runs, with a clock


def run(random: Random, kind: type[Link] = Link, **options: Any) -> tuple[list[Link], list[list[Any]]]:
    """Two ends, a network with delays, losses and copies, crashes; to the end. What each end got."""
    loss, copies, crash = random.choice([0, 0.1, 0.5]), random.choice([0, 0.3]), random.choice([0, 0.01])
    spread = random.choice([1, SECOND // 100, SECOND])
    links = [kind(**options), kind(**options)]
    got: list[list[Any]] = [[], []]
    wanted = [random.randrange(60), random.randrange(60)]
    sent = [0, 0]
    flying: list[tuple[int, int, int, Frame]] = []
    now = sequence = 0

    def fly(side: int, frames: list[Frame]) -> None:
        nonlocal sequence
        for frame in frames:
            for _ in range(1 + (random.random() < copies)):
                if random.random() >= loss:
                    sequence += 1
                    flying.append((now + random.randrange(spread), sequence, 1 - side, frame))

    for _ in range(20_000):
        for side in (0, 1):
            if sent[side] < wanted[side] and random.random() < 0.5:
                sent[side] += 1
                fly(side, links[side].send(sent[side], now))
            if random.random() < crash:
                links[side] = kind.restore(msgspec.json.decode(msgspec.json.encode(links[side].snapshot())))
                links[side].restart()
        flying.sort()
        deadlines = [due for link in links if (due := link.deadline()) is not None]
        if not flying and not deadlines and sent == wanted:
            return links, got
        now = max(now, min([*deadlines, *(time for time, *_ in flying[:1])], default=now))
        while flying and flying[0][0] <= now:
            _, _, side, frame = flying.pop(0)
            payloads, frames = links[side].receive(frame, now)
            got[side] += payloads
            fly(side, frames)
        for side in (0, 1):
            fly(side, links[side].tick(now))
    raise AssertionError(f"no end: {[link.snapshot() for link in links]}")


@given(
    seed=st.integers(0, 2**32),
    window=st.integers(1, 100),
    ordered=st.booleans(),
    ack_delay_ns=st.sampled_from([0, 10**6, 10**8]),
    peer=st.integers(0, 1),
)
@settings(max_examples=150, deadline=None)
def test_random_runs_hand_over_everything_once(seed, window, ordered, ack_delay_ns, peer):
    links, got = run(Random(seed), window=window, ordered=ordered, ack_delay_ns=ack_delay_ns, peer=peer)
    for side in (0, 1):
        expected = list(range(1, links[1 - side]._last + 1))
        assert (got[side] if ordered else sorted(got[side])) == expected
        assert links[side].unacknowledged == 0
        assert links[side].room == window


@pytest.mark.parametrize("mutant", [NoDedup, NoResend, AcksTooMuch])
def test_random_runs_find_what_is_missing(mutant):
    for seed in range(50):
        try:
            links, got = run(Random(seed), mutant)
            assert [len(g) for g in got] == [links[1]._last, links[0]._last]
        except AssertionError:
            return
    pytest.fail("no random run found it")


# One behaviour at a time


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


def test_beyond_the_window_payloads_wait_and_room_tells():
    a, b = Link(window=2), Link(window=2)
    assert a.room == 2
    frames = [frame for k in range(5) for frame in a.send(k, 0)]
    assert [frame.number for frame in frames] == [1, 2]
    assert (a.room, a.unacknowledged) == (0, 5)
    _, [ack] = b.receive(frames[0], 0)
    _, [third] = a.receive(ack, 1)
    assert (third.number, a.room) == (3, 0)


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
    link, _ = run(Random(seed), ordered=True)[0]
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
