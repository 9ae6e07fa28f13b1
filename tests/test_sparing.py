"""sparing: what its extra messages come to beside those of bounded, and that its stamps stay below k."""

from __future__ import annotations

import pytest

from antecede.model import Effect, Message, Packet, View
from antecede.protocols import Machine, create
from antecede.sim.run import RunSpec
from antecede.sim.summary import Summary


def simulate(protocol: str, n: int, k: int, workload: str, messages: int) -> Summary:
    spec = RunSpec(
        protocol=protocol,
        parameters={"k": k},
        processes=n,
        messages=messages,
        network="exponential:10ms",
        workload=workload,
    )
    return spec.run()


@pytest.mark.parametrize(
    ("workload", "n", "messages"),
    [
        ("uniform:rate=10/s", 16, 500),
        ("uniform:rate=10/s", 64, 1280),
        ("groups:size=4,rate=10/s", 16, 500),
        ("document:rate=1/s", 8, 200),
        ("client-server:rate=10/s", 16, 500),
    ],
)
@pytest.mark.parametrize("tight", [True, False], ids=["k = n + 1", "k = 2n"])
def test_half_of_the_extra_messages_go_at_no_more_than_a_fifth_of_delay(
    workload: str, n: int, messages: int, tight: bool
) -> None:
    k = n + 1 if tight else 2 * n
    paper, ours = (simulate(protocol, n, k, workload, messages) for protocol in ("bounded", "sparing"))
    assert 2 * ours.control_packets <= paper.control_packets
    assert ours.delay_ns.mean <= 1.2 * paper.delay_ns.mean
    assert ours.stamp_entries.max < k


def test_what_everyone_has_forgotten_leaves_the_stamps() -> None:
    """p1 to p3, p3 to p2, p2 to p1: so p1 learns from p2, who never had it, that p3 has its message."""
    view = View.numbered(3)
    p1, p2, p3 = (create("sparing", view, process, k=9) for process in range(3))
    to_p3 = p1.send(2)[1]
    assert list_entries(p1.send(1)[1]) == [(0, 2)]
    deliver(p3, *to_p3)
    for source, dest in ((p3, p2), (p2, p1)):
        deliver(dest, *source.send(dest.me)[1])
    assert (0, 2) not in list_entries(p1.send(1)[1])


def deliver(machine: Machine, packet: Effect) -> None:
    assert isinstance(packet, Packet)
    for message in machine.receive(packet):
        assert isinstance(message, Message)
        machine.deliver(message)


def list_entries(effects: list[Effect]) -> list[tuple[int, int]]:
    """(i, j) of the entries of the stamps."""
    return [entry[:2] for effect in effects if isinstance(effect, Packet) for entry in effect.stamp.matrix]
