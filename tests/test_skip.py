"""Giving up what never comes, and standing for a process that sends elsewhere: on random runs of every protocol.

Packets are lost, and held back to come late. Whatever was given up, everything that arrives is delivered once.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any

import msgspec
import pytest

from antecede.errors import NotEligible
from antecede.model import Awaited, Message, Packet, View
from antecede.oracle import happened_before
from antecede.protocols import Listener, create, listen, restore
from antecede.protocols.receiver import Receiver
from tests.driver import VARIANTS, Habits, World, drive

DECIDED_AT_THE_RECEIVER = [
    name
    for name, variant in VARIANTS.items()
    if isinstance(variant.machines(3)[0], Receiver) and variant.protocol not in ("unordered", "underway")
]
"""Not `underway`: its stamps leave out what was acknowledged, which a listener may not have yet."""


def world(name: str, seed: int) -> World:
    random = Random(f"skip {name} {seed}")
    habits = Habits.draw(random)
    return drive(VARIANTS[name].machines(habits.n), habits, random)


def listeners(run: World) -> list[Listener]:
    return [listen(one.name, one.view, one.me, **one.parameters) for one in run.machines]


def take(machine: Listener, effects, taken: list) -> None:
    """Deliver what is offered, and what that makes eligible."""
    queue = deque(effects)
    while queue:
        effect = queue.popleft()
        if isinstance(effect, Message):
            taken.append((effect.id, machine.late(effect), machine.lacks(effect)))
            queue += machine.deliver(effect)


def give_up(machine: Listener, taken: list) -> None:
    """Give up all that is missing, until nothing waits."""
    while missing := machine.missing():
        before = machine.dump()
        for gap in missing:
            try:
                take(machine, machine.skip(*gap), taken)
            except NotEligible:
                continue
        assert machine.dump() != before, "something can be given up"
    assert machine.waiting() == []


@pytest.mark.parametrize("name", DECIDED_AT_THE_RECEIVER)
def test_a_listener_delivers_what_came_over_the_network_in_causal_order(name):
    for seed in range(12):
        run = world(name, seed)
        random = Random(seed)
        for machine in listeners(run):
            packets = [packet for packet in run.packets if packet.dest == machine.me]
            taken: list = []
            for packet in arrivals(run, machine, random):
                take(machine, machine.receive(packet), taken)
                assert machine.receive(packet) == []
            expected = {packet.message.id for packet in packets if packet.message is not None}
            assert sorted(id for id, *_ in taken) == sorted(expected)
            assert not any(late or lacks for _, late, lacks in taken)
            if machine.orders_at(machine.me) and machine.order == "causal":
                assert violations(run, [id for id, *_ in taken]) == []


TELL_ALL = {"fifo", "matrix", "monitor", "broadcast"}
"""Their stamps repeat what the receiver itself must know by now, so a listener may get them in another order than it.

The others leave out what the receiver was known to have delivered when it sent: a listener that has not got that yet is
not told to wait for it. `test_what_a_listener_must_be_given_in_order` shows that this matters.
"""


def arrivals(run: World, machine: Listener, random: Random) -> list[Packet]:
    packets = [packet for packet in run.packets if packet.dest == machine.me]
    if machine.name in TELL_ALL or not any(e.process == machine.me and e.kind == "send" for e in run.events):
        return random.sample(packets, len(packets))
    came = [e.id for e in run.events if e.process == machine.me and e.kind == "receive"]
    return sorted(packets, key=lambda p: came.index(p.message.id) if p.message is not None else -1)


@pytest.mark.parametrize("name", ["bounded", "history", "optimal"])
def test_what_a_listener_must_be_given_in_order(name):
    """If it were not so, the tables above could be simpler."""
    broken = 0
    for seed in range(30):
        run = world(name, seed)
        for machine in listeners(run):
            packets = [packet for packet in run.packets if packet.dest == machine.me]
            taken: list = []
            for packet in Random(seed).sample(packets, len(packets)):
                take(machine, machine.receive(packet), taken)
            broken += bool(violations(run, [id for id, *_ in taken]))
    assert broken


def violations(run: World, taken: list) -> list:
    """Pairs that were delivered the wrong way round, by what happened in the run itself."""
    order = happened_before(run.events)
    pairs = [(late, early) for i, early in enumerate(taken) for late in taken[i + 1 :]]
    return [pair for pair in pairs if order.precedes(*pair)]


@pytest.mark.parametrize("name", DECIDED_AT_THE_RECEIVER)
def test_what_is_lost_can_be_given_up_and_nothing_else_is_lost(name):
    marked = 0
    for seed in range(25):
        run = world(name, seed)
        random = Random(f"lost {seed}")
        for machine in listeners(run):
            packets = [packet for packet in run.packets if packet.dest == machine.me]
            lost = [packet for packet in packets if random.random() < 0.2]
            kept = [packet for packet in packets if packet not in lost]
            taken: list = []
            for packet in random.sample(kept, len(kept)):
                take(machine, machine.receive(packet), taken)
            give_up(machine, taken)
            assert ids(taken) == numbers(kept)
            assert machine.sparse or not any(late for _, late, _ in taken)
            marked += sum(bool(lacks) for *_, lacks in taken)
            named = {(a.sender, c) for *_, lacks in taken for a in lacks for c in range(a.first, a.last + 1)}
            if machine.counted == "sender":
                assert named <= {p.message.id for p in lost if p.message is not None}

            late: list = []
            for packet in random.sample(packets, len(packets)):
                # The lost come late, and those that came before come again.
                machine = same(machine)
                take(machine, machine.receive(packet), late)
            give_up(machine, late)
            assert ids(late) == numbers(lost)
    assert marked


def same(machine: Listener) -> Listener:
    """The machine, by way of bytes."""
    snapshot = machine.snapshot()
    again = restore(msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot)))
    assert again.snapshot() == snapshot
    assert isinstance(again, Listener)
    return again


def ids(taken: list) -> list:
    return sorted(id for id, *_ in taken)


def numbers(packets: list[Packet]) -> list:
    return sorted(packet.message.id for packet in packets if packet.message is not None)


def test_what_was_given_up_is_offered_once_when_its_own_causes_are_there():
    view = View.numbered(3)
    machines: list[Any] = [create("matrix", view, p) for p in range(2)]
    p1, p2 = machines
    p3 = listen("matrix", view, 2)
    a, [to_p2, a_p3] = p1.send((1, 2))
    p2.receive(to_p2)
    p2.deliver(a)
    b, [b_p3] = p2.send(2)
    c, [c_p3] = p2.send(2)
    assert p3.receive(c_p3) == []
    assert p3.missing() == [(1, 1, "")], "what a is, only b tells"
    assert p3.skip(1, 1) == [c]
    assert p3.lacks(c) == (Awaited(1, 1, 1, "channel"),)
    p3.deliver(c)
    assert p3.receive(b_p3) == [], "it waits for a"
    assert p3.receive(a_p3) == [a]
    assert p3.deliver(a) == [b]
    assert p3.late(b)
    assert p3.given_up() == (Awaited(1, 1, 1, "channel"),)
    p3.deliver(b)
    assert p3.given_up() == ()
    assert p3.receive(b_p3) == []


def test_what_is_here_is_not_given_up():
    view = View.numbered(2)
    machines: list[Any] = [create("fifo", view, p) for p in range(2)]
    p1, p2 = machines
    packets = [p1.send(1)[1][0] for _ in range(3)]
    p2.receive(packets[1])
    with pytest.raises(NotEligible, match="message 2 of #0 now: it waits here"):
        p2.skip(0, 2)


def test_a_listener_that_0_1_kept_goes_on():
    """It stood under another name in its state."""
    machine = listen("history", View.numbered(2), 1)
    sender = create("history", View.numbered(2), 0)
    for _ in range(3):
        message, [packet] = sender.send(1)
        assert machine.receive(packet) == [message]  # type: ignore[arg-type]
        machine.deliver(message)
    snapshot = machine.snapshot()
    old = {**snapshot, "state": dict(snapshot["state"])}
    old["state"]["witness"] = old["state"].pop("listens")
    again = restore(old)
    assert isinstance(again, Listener)
    assert again.snapshot() == snapshot
    assert again.receive(packet) == []  # type: ignore[arg-type]
