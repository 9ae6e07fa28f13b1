"""Incomplete orders (Rodrigues & Veríssimo 1995, chapter 6): each label is an order, until labels are merged."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from antecede.errors import BadStamp, Unsupported
from antecede.model import Awaited, Event, Packet, View
from antecede.oracle import check
from antecede.protocols import PROTOCOLS, create, restore
from antecede.protocols import history as history_rules
from antecede.protocols.history import History
from tests.driver import NAMES, VARIANTS, Habits, Merging, World, drive

LABELLED = [name for name in VARIANTS if PROTOCOLS[VARIANTS[name].protocol].labels]
SEEDS = range(25)


def triangle(name: str, x: str, y: str, z: str, merge: tuple[str, str] | None = None, at: int = 1) -> World:
    """p1 sends x to p3 and y to p2, which then sends z to p3, where it arrives before x; each with a label.

    `merge` happens just before y is sent (at p1) or z (at p2).
    """
    world = World(VARIANTS[name].machines(3))
    world.send(0, [2], label=x)
    if merge is not None and at == 0:
        history(world, 0).merge(*merge)
    world.send(0, [1], label=y)
    world.arrive(next(p for p in world.network if p.dest == 1))
    world.deliver(*world.deliverable()[0])
    if merge is not None and at == 1:
        history(world, 1).merge(*merge)
    world.send(1, [2], label=z)
    world.arrive(next(p for p in world.network if p.source == 1))
    return world


def history(world: World, process: int) -> History:
    machine = world.machines[process]
    assert isinstance(machine, History)
    return machine


@pytest.mark.parametrize("name", LABELLED)
@pytest.mark.parametrize(
    ("x", "y", "z", "delayed"),
    [
        ("a", "a", "a", True),
        ("a", "b", "b", False),
        ("a", "a", "b", False),
        ("a", "b", "a", False),
        ("", "", "a", False),
        ("a", "", "", False),
        ("", "", "", True),
    ],
)
def test_only_messages_of_the_same_label_delay_each_other(name, x, y, z, delayed):
    world = triangle(name, x, y, z)
    p3 = world.machines[2]
    assert [m.id for m in p3.eligible()] == ([] if delayed else [(1, 1)])
    assert [stuck.awaits for stuck in p3.waiting()] == ([(Awaited(0, 1, 1),)] if delayed else [])
    finish(world)


@pytest.mark.parametrize("name", LABELLED)
def test_a_channel_is_in_sequence_for_each_label_apart(name):
    world = World(VARIANTS[name].machines(2))
    first, second, third = (world.send(0, [1], label=label) for label in ("a", "b", "a"))
    for message in (third, second, first):
        world.arrive(next(p for p in world.network if p.message == message))
    assert world.machines[1].eligible() == [first, second]
    finish(world)


@pytest.mark.parametrize("name", LABELLED)
def test_a_duplicate_is_known_whatever_was_delivered_of_other_labels(name):
    world = World(VARIANTS[name].machines(2))
    messages = [world.send(0, [1], label=label) for label in ("a", "b", "a", "c", "b")]
    packets = list(world.network)
    for message in (messages[3], messages[1], messages[4], messages[0], messages[2]):
        packet = next(p for p in packets if p.message == message)
        world.arrive(packet)
        world.deliver(1, message)
        world.arrive_again(packet)
    for packet in packets:
        world.arrive_again(packet)
    assert world.machines[1].waiting() == []


# Merge


@pytest.mark.parametrize("name", LABELLED)
@pytest.mark.parametrize(
    ("labels", "merge", "at", "delayed"),
    [
        (("a", "a", "b"), ("a", "b"), 1, True),
        (("a", "a", "b"), ("b", "a"), 1, False),
        (("a", "b", "b"), ("a", "b"), 0, True),
        (("a", "b", "b"), ("b", "a"), 0, False),
        (("a", "b", "b"), ("a", "b"), 1, False),  # p2 has heard nothing of a
        (("a", "c", "b"), ("a", "b"), 1, False),
        (("", "", "b"), ("", "b"), 1, True),
    ],
)
def test_what_is_sent_after_a_merge_follows_what_was_merged(name, labels, merge, at, delayed):
    x, y, z = labels
    world = triangle(name, x, y, z, merge, at)
    p3 = world.machines[2]
    assert [m.id for m in p3.eligible()] == ([] if delayed else [(1, 1)])
    if delayed:
        assert [stuck.awaits for stuck in p3.waiting()] == [(Awaited(0, 1, 1),)]
    finish(world)


@pytest.mark.parametrize("name", LABELLED)
def test_a_merge_says_nothing_of_what_comes_later(name):
    world = World(VARIANTS[name].machines(2))
    history(world, 0).merge("a", "b")
    world.send(0, [1], label="a")
    later = world.send(0, [1], label="b")
    world.arrive(next(p for p in world.network if p.message == later))
    assert world.machines[1].eligible() == [later]
    finish(world)


@pytest.mark.parametrize("name", LABELLED)
def test_merging_is_part_of_the_state(name):
    world = World(VARIANTS[name].machines(2))
    world.send(0, [1], label="a")
    before = world.machines[0].dump()
    history(world, 0).merge("a", "b")
    assert world.machines[0].dump() != before
    world.split(0)
    later = world.send(0, [1], label="b")
    world.arrive(next(p for p in world.network if p.message == later))
    assert world.machines[1].eligible() == []
    finish(world)


@pytest.mark.parametrize("name", LABELLED)
def test_a_merge_with_itself_or_with_nothing_changes_no_order(name):
    world = World(VARIANTS[name].machines(2))
    first = world.send(0, [1], label="a")
    history(world, 0).merge("a", "a")
    history(world, 0).merge("nothing", "a")
    second = world.send(0, [1], label="a")
    world.arrive(next(p for p in world.network if p.message == second))
    assert world.machines[1].eligible() == []
    finish(world)
    assert [e.id for e in world.events if e.kind == "deliver"] == [first.id, second.id]


# Random runs


@pytest.mark.parametrize("name", LABELLED)
def test_each_label_is_in_causal_order_by_itself(name):
    for seed in SEEDS:
        random = Random(f"labels {name} {seed}")
        habits = Habits(
            n=random.choice([2, 3, 4]),
            messages=random.choice([8, 16, 24]),
            arrive=random.choice([0.5, 2.0]),
            deliver=random.choice([0.3, 2.0]),
            labels=("", "a", "b"),
        )
        world = drive(VARIANTS[name].machines(habits.n), habits, random)
        for label in habits.labels:
            verdict = check(of_label(world, label), world.n)
            assert verdict.ok, f"{name}, seed {seed}, label {label!r}: {verdict}"
        assert not any(machine.waiting() for machine in world.machines)


def test_labels_are_not_ordered_with_each_other():
    """Or else the runs above would show nothing."""
    broken = 0
    for seed in SEEDS:
        random = Random(f"apart {seed}")
        world = drive(VARIANTS["history"].machines(3), Habits(messages=16, labels=("a", "b")), random)
        broken += not world.verdict().ok
    assert broken


def of_label(world: World, label: str) -> Iterator[Event]:
    return (event for event in world.events if world.messages[event.id].label == label)


@pytest.mark.parametrize("name", LABELLED)
def test_merged_labels_are_in_the_order_that_merging_makes(name):
    for seed in SEEDS:
        merging = Merging.run(VARIANTS[name].machines(2 + seed % 3), Random(f"merges {name} {seed}"))
        assert merging.overtaken() is None, f"{name}, seed {seed}"
        assert not any(machine.waiting() for machine in merging.world.machines)


# Everyone else


@pytest.mark.parametrize("name", [name for name in NAMES if not PROTOCOLS[name].labels])
def test_protocols_without_labels_say_who_has_them(name):
    with pytest.raises(Unsupported, match=f"{name}: it cannot order by label 'a': only history has labels"):
        create(name, View.numbered(3), 0).send(range(3), label="a")


def finish(world: World) -> None:
    while world.network or world.deliverable():
        if world.network:
            world.arrive(world.network[0])
        else:
            world.deliver(*world.deliverable()[0])
    assert not any(machine.waiting() for machine in world.machines)


def test_a_label_of_a_peer_that_needs_nothing_any_more_is_forgotten():
    p1, p2 = (create("history", View.numbered(2), me) for me in (0, 1))
    for k in range(100):
        message, [packet] = p1.send(1, b"", label=f"topic {k}")
        assert isinstance(packet, Packet)
        assert p2.receive(packet) == [message]
        p2.deliver(message)
    assert not p2.snapshot()["state"]["contexts"]
    assert len(p1.snapshot()["state"]["contexts"]) == 100, "its own: it does not know yet what p2 has"


def test_a_peer_has_only_so_many_labels(monkeypatch):
    """What was delivered of each label must be remembered, since anyone may still name it."""
    monkeypatch.setattr(history_rules, "LABELS", 3)
    p1, p2 = (create("history", View.numbered(2), me) for me in (0, 1))
    for label in ("a", "b", "c", "b", "c"):
        message, [packet] = p1.send(1, b"", label=label)
        p2.receive(packet)  # type: ignore[arg-type]
        p2.deliver(message)
    _, [packet] = p1.send(1, b"", label="d")
    for machine in (p2, restore(p2.snapshot())):
        before = machine.snapshot()
        with pytest.raises(BadStamp, match="its label 'd' is one more than the 3 that a sender may use"):
            machine.receive(packet)  # type: ignore[arg-type]
        assert machine.snapshot() == before
