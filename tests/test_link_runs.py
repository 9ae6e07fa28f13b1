"""The link hands over every payload once, whatever the network does and whenever an end crashes."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antecede.link import Frame, Link
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
        return msgspec.structs.replace(frame, number=self.last)


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


def run_pair(random: Random, kind: type[Link] = Link, **options: Any) -> tuple[list[Link], list[list[Any]]]:
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
    links, got = run_pair(Random(seed), window=window, ordered=ordered, ack_delay_ns=ack_delay_ns, peer=peer)
    for side in (0, 1):
        expected = list(range(1, links[1 - side].last + 1))
        assert (got[side] if ordered else sorted(got[side])) == expected
        assert links[side].unacknowledged == 0
        assert links[side].acked == links[side].last, "nothing waits"


@pytest.mark.parametrize("mutant", [NoDedup, NoResend, AcksTooMuch])
def test_random_runs_find_what_is_missing(mutant):
    for seed in range(50):
        try:
            links, got = run_pair(Random(seed), mutant)
            assert [len(g) for g in got] == [links[1].last, links[0].last]
        except AssertionError:
            return
    pytest.fail("no random run found it")
