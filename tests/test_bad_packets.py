"""Packets that come twice, or changed at random: ignored, refused or taken, and never the end of a machine."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from msgspec.structs import fields, replace

from antecede.errors import PeerError
from antecede.model import Message, Packet
from antecede.protocols import PROTOCOLS, Machine, restore
from antecede.protocols.histories import Entry
from antecede.protocols.history import HistoryStamp
from tests.driver import VARIANTS, Habits, World, busy, drive

HUGE = 1 << 62


@pytest.mark.parametrize("name", VARIANTS)
def test_duplicates_of_every_kind_are_ignored_at_every_moment(name):
    """After each step of a run, everything that ever arrived arrives again."""
    world = World(VARIANTS[name].machines(3))
    random = Random(f"duplicates {name}")
    unsent, arrived = 10, []
    kinds = set()
    while unsent or world.network or world.deliverable():
        act = random.choice(["send", "arrive", "deliver"])
        if act == "send" and unsent:
            unsent -= 1
            world.send(unsent % 3, range(3) if unsent % 2 or name == "broadcast" else [random.randrange(3)])
        elif act == "arrive" and world.network:
            packet = random.choice(world.list_arrivable())
            world.arrive(packet)
            arrived.append(packet)
            kinds.add(type(packet.stamp))
        elif act == "deliver" and world.deliverable():
            world.deliver(*random.choice(world.deliverable()))
        for packet in arrived:
            world.arrive_again(packet)
    world.check()
    if name not in ("bounded", "bounded, k=n*n", "sparing"):  # With so much room there is no extra message.
        assert kinds == set(PROTOCOLS[VARIANTS[name].protocol].stamps)


# Mutated packets


def mutate(value: Any, random: Random, pool: list[Any]) -> Any:
    """The value with something in it changed."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return random.choice([value - 1, value + 1, 0, 1, -1, 2, 3, 7, 64, HUGE, -HUGE])
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, bytes):
        return value + b"x"
    if isinstance(value, tuple):
        return _mutate_tuple(value, random, pool)
    if isinstance(value, msgspec.Struct):
        names = [field.name for field in fields(value)]
        if not names:
            return random.choice(pool).stamp
        field = random.choice(names)
        if field in ("stamp", "message") and random.random() < 0.1:
            return replace(value, **{field: getattr(random.choice(pool), field)})
        return replace(value, **{field: mutate(getattr(value, field), random, pool)})
    return value


def _mutate_tuple(value: tuple[Any, ...], random: Random, pool: list[Any]) -> tuple[Any, ...]:
    kind = random.choice(["shorter", "longer", "twice", "other", "other", "other"])
    if not value or kind == "longer":
        return (*value, *value[:1]) if value else value
    at = random.randrange(len(value))
    if kind == "shorter":
        return value[:at] + value[at + 1 :]
    if kind == "twice":
        return (*value, value[at])
    element = value[at]
    if isinstance(element, tuple):
        # Its length is its type, which the wire checks.
        place = random.randrange(len(element))
        changed: Any = (*element[:place], mutate(element[place], random, pool), *element[place + 1 :])
    else:
        changed = mutate(element, random, pool)
    return (*value[:at], changed, *value[at + 1 :])


@pytest.mark.parametrize("name", VARIANTS)
def test_mutated_packets_are_refused_or_taken_but_never_break_a_machine(name):
    """What is taken may be a lie that no receiver can see through; the machine must go on, and keep its own state."""
    random = Random(f"mutated {name}")
    refused = taken = 0
    for seed in range(6):
        world = busy(name, seed)
        for _ in range(60):
            original = random.choice(world.packets)
            packet = original
            for _ in range(random.choice([1, 1, 1, 2, 3])):
                packet = mutate(packet, random, world.packets)
            machine = restore(world.machines[original.dest].snapshot())
            before = machine.dump()
            try:
                machine.receive(packet)
            except PeerError:
                refused += 1
                assert machine.dump() == before, f"refused, but changed something: {packet}"
            else:
                taken += 1
                goes_on(machine, world, packet)
    assert refused
    assert taken


def goes_on(machine: Machine, world: World, packet: Packet[Any]) -> None:
    """The machine delivers, sends, receives the rest, and can be saved and restored, whatever it was told."""
    try:
        for rest in world.network:
            if rest.dest == machine.me:
                machine.receive(rest)
            for message in machine.eligible():
                machine.deliver(message)
        machine.send(range(3))
        machine.waiting()
        restored = restore(machine.snapshot())
        assert restored.snapshot() == machine.snapshot()
    except PeerError:
        pass  # What it was told contradicts what comes from honest peers.
    except Exception as error:
        raise AssertionError(f"after {packet}: {type(error).__name__}: {error}") from error


@pytest.mark.parametrize("name", [name for name in VARIANTS if VARIANTS[name].protocol == "history"])
def test_a_message_told_of_under_two_labels_does_not_break_a_machine(name):
    machine = VARIANTS[name].machines(4)[0]
    for number in (1, 2, 3):
        lie = tuple(Entry(2, 5 + number, 0b1000, 0, label) for label in ("", "x"))
        message = Message(1, number, (0,))
        assert machine.receive(Packet(1, 0, HistoryStamp(lie), message)) == [message]
        machine.deliver(message)
        machine.send([3])
        restore(machine.snapshot())


@pytest.mark.parametrize("name", VARIANTS)
def test_honest_packets_are_never_refused(name):
    for seed in range(10):
        random = Random(f"honest {name} {seed}")
        habits = Habits(n=4, messages=25, arrive=0.7, deliver=0.5, repeat=0.3, split=0.0)
        drive(VARIANTS[name].machines(4), habits, random).check()
