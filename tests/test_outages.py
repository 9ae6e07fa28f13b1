"""What stops when a process dies: who waits at the receiver stops for a sender, who waits at the sender for others."""

import pytest

from antecede.protocols import PROTOCOLS
from experiments.outages import Run

AT_RECEIVER = ["matrix", "bounded", "sparing", "history", "optimal", "contexts", "broadcast", "underway"]
AT_SENDER = ["buffer", "permit"]


@pytest.mark.parametrize("protocol", AT_RECEIVER)
def test_a_dead_receiver_stops_nobody_and_a_dead_sender_those_who_follow_it(protocol):
    for role in ("receiver", "member"):
        outcome = Run(protocol, role, removed=False, seed=0).run()
        assert (outcome.held, outcome.unsent, outcome.lost) == (0, 0, 0)
    for removed in (False, True):
        outcome = Run(protocol, "sender", removed, seed=0).run()
        assert outcome.held > outcome.expected // 10
        assert (outcome.unsent, outcome.lost) == (0, 0)


@pytest.mark.parametrize("protocol", AT_SENDER)
def test_a_dead_receiver_stops_those_who_wait_for_its_acknowledgement(protocol):
    for role in ("receiver", "member"):
        for removed in (False, True):
            outcome = Run(protocol, role, removed, seed=0).run()
            assert outcome.unsent > outcome.expected // 2
            assert outcome.lost == 0
            assert outcome.longest_s > 0


def test_a_dead_gateway_stops_what_crosses_it_until_it_is_removed():
    for removed in (False, True):
        outcome = Run("separator", "router", removed, seed=0).run()
        assert outcome.held > outcome.expected // 3
        assert outcome.lost == 0


def test_every_protocol_is_shown():
    assert {*AT_RECEIVER, *AT_SENDER, "unordered", "fifo", "monitor", "separator"} == set(PROTOCOLS)
