"""Whatever comes in, there is a defined answer: a typed error that changes nothing, or it is ignored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, TypeAlias

import msgspec
import pytest
from msgspec.structs import fields, replace

from antecede.errors import (
    AntecedeError,
    BadStamp,
    CallerError,
    Misrouted,
    NoDestination,
    PeerError,
    UnknownProcess,
    Unsupported,
)
from antecede.model import Message, Packet, Stamp
from antecede.protocols import PROTOCOLS, Machine, restore
from antecede.protocols.bounded import BoundedStamp, Extra
from antecede.protocols.broadcast import VectorStamp
from antecede.protocols.buffer import Acknowledge, Release
from antecede.protocols.contexts import ContextStamp
from antecede.protocols.fifo import Sequence
from antecede.protocols.histories import Entry
from antecede.protocols.history import HistoryStamp
from antecede.protocols.matrix import MatrixStamp, Row
from antecede.protocols.monitor import MonitorStamp
from antecede.protocols.optimal import LogStamp, make_rows
from antecede.protocols.permit import Grant, PermitStamp, Taken
from antecede.protocols.sparing import SparingExtra, SparingStamp
from antecede.protocols.underway import Receipt, Settled, UnderwayStamp
from antecede.protocols.unordered import Plain
from tests.driver import NAMES, VARIANTS, Habits, World, busy, drive

SEEDS = range(8)


def refuses(machine: Machine, packet: Packet[Any], error: type[AntecedeError]) -> None:
    before = machine.dump()
    with pytest.raises(error):
        machine.receive(packet)
    assert machine.dump() == before


def list_unreceived(name: str, control: bool | None = False) -> Iterator[tuple[Machine, Packet[Any]]]:
    """Packets of the middle of some runs, each with the machine that would receive it next."""
    for seed in SEEDS:
        world = busy(name, seed)
        for packet in world.arriving():
            if control is None or packet.stamp.control == control:
                yield world.machines[packet.dest], packet


# The application


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("to", "error"),
    [
        (3, UnknownProcess),
        (-1, UnknownProcess),
        ([0, 3], UnknownProcess),
        ([-1, 1], UnknownProcess),
        ([], NoDestination),
    ],
)
def test_a_send_to_nobody_or_to_strangers_is_refused(name, to, error):
    for machine in busy(name).machines:
        before = machine.dump()
        with pytest.raises(error) as raised:
            machine.send(to)
        assert isinstance(raised.value, CallerError)
        assert machine.dump() == before


@pytest.mark.parametrize("name", NAMES)
def test_a_label_is_refused_by_protocols_that_do_not_order_by_label(name):
    machine = busy(name).machines[0]
    before = machine.dump()
    if machine.labels:
        machine.send(range(3), label="a")
    else:
        with pytest.raises(Unsupported, match="only history has labels"):
            machine.send(range(3), label="a")
        assert machine.dump() == before


def test_a_broadcast_to_some_is_refused_and_names_who_is_left_out():
    machine = busy("broadcast").machines[0]
    before = machine.dump()
    with pytest.raises(Unsupported, match="left out: p2"):
        machine.send([0, 2])
    assert machine.dump() == before


# Any packet

WRONG: dict[str, tuple[Callable[[Packet[Any]], Packet[Any]], type[AntecedeError]]] = {
    "for someone else": (lambda p: replace(p, dest=(p.dest + 1) % 3), Misrouted),
    "for a stranger": (lambda p: replace(p, dest=7), Misrouted),
    "from outside the view": (lambda p: replace(p, source=3), Misrouted),
    "from process -1": (lambda p: replace(p, source=-1), Misrouted),
    "from oneself": (lambda p: replace(p, source=p.dest), Misrouted),
    "with another's stamp": (lambda p: replace(p, stamp=Other()), BadStamp),
}


class Other(Stamp, frozen=True):
    """A stamp of no protocol here."""


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", NAMES)
def test_a_packet_that_cannot_be_is_refused(name, wrong):
    change, error = WRONG[wrong]
    for machine, packet in list_unreceived(name, None):
        refuses(machine, change(packet), error)


Change: TypeAlias = Callable[[Any], Packet[Any]]


def message_with(**changes: Any) -> Change:
    return lambda packet: replace(packet, message=replace(packet.message, **changes))


def _other(packet: Packet[Any]) -> int:
    return next(p for p in range(3) if p not in (packet.source, packet.dest))


WRONG_MESSAGE: dict[str, tuple[Change, type[AntecedeError]]] = {
    "of another sender": (lambda p: message_with(sender=_other(p))(p), Misrouted),
    "of the receiver": (lambda p: message_with(sender=p.dest)(p), Misrouted),
    "of a stranger": (message_with(sender=9), Misrouted),
    "to others": (lambda p: message_with(to=(p.source,))(p), Misrouted),
    "to nobody": (message_with(to=()), Misrouted),
    "to a stranger too": (lambda p: message_with(to=(*p.message.to, 3))(p), Misrouted),
    "to process -1 too": (lambda p: message_with(to=(-1, *p.message.to))(p), Misrouted),
    "to a process far away": (lambda p: message_with(to=(*p.message.to, 1 << 60))(p), Misrouted),
    "to the same process twice": (
        lambda p: message_with(to=tuple(sorted((*p.message.to, p.dest))))(p),
        Misrouted,
    ),
    "to processes in another order": (message_with(to=(2, 1, 0)), Misrouted),
    "with number 0": (message_with(number=0), BadStamp),
    "with number -5": (message_with(number=-5), BadStamp),
    "that is missing": (lambda p: replace(p, message=None), BadStamp),
}


@pytest.mark.parametrize("wrong", WRONG_MESSAGE)
@pytest.mark.parametrize("name", NAMES)
def test_a_message_that_cannot_be_is_refused(name, wrong):
    change, error = WRONG_MESSAGE[wrong]
    for machine, packet in list_unreceived(name):
        refuses(machine, change(packet), error)


@pytest.mark.parametrize("name", [name for name in NAMES if not PROTOCOLS[name].labels])
def test_a_message_with_a_label_is_refused_where_labels_mean_nothing(name):
    for machine, packet in list_unreceived(name):
        refuses(machine, message_with(label="a")(packet), BadStamp)


def test_a_broadcast_that_went_to_some_is_refused():
    for machine, packet in list_unreceived("broadcast"):
        refuses(machine, message_with(to=tuple(sorted((packet.source, packet.dest))))(packet), Misrouted)


@pytest.mark.parametrize("other", NAMES)
@pytest.mark.parametrize("name", NAMES)
def test_a_packet_of_another_protocol_is_refused(name, other):
    if name != other:
        for _, packet in list_unreceived(other, None):
            refuses(busy(name).machines[packet.dest], packet, BadStamp)


CONTROLLED = [n for n in NAMES if any(s.control for s in PROTOCOLS[n].stamps) and n != "sparing"]


@pytest.mark.parametrize(
    "name", [*CONTROLLED, "sparing, k=n+1"]
)  # With more room it has no extra message here.
def test_control_with_a_message_is_refused(name):
    seen = 0
    for machine, packet in list_unreceived(name, True):
        seen += 1
        refuses(machine, replace(packet, message=Message(packet.source, 1, (packet.dest,))), BadStamp)
    assert seen


# Stamps, protocol by protocol. The packet goes from p2 to p1 of three; p1 has sent nothing.

HUGE = 1 << 62

BAD_STAMPS: dict[str, list[Stamp]] = {
    "unordered": [Plain(0), Plain(-1)],
    "fifo": [Sequence(0), Sequence(-1)],
    "matrix": [
        MatrixStamp(()),
        MatrixStamp((Row(2, 1, (1, 0, 0)),)),  # not the sender's
        MatrixStamp((Row(1, 1, (1, 0)),)),
        MatrixStamp((Row(1, 1, (1, 0, 0, 0)),)),
        MatrixStamp((Row(3, 1, (0, 0, 0)), Row(1, 1, (1, 0, 0)))),
        MatrixStamp((Row(-1, 1, (0, 0, 0)), Row(1, 1, (1, 0, 0)))),
        MatrixStamp((Row(2, 1, (0,)), Row(1, 1, (1, 0, 0)))),
        MatrixStamp((Row(2, 1, (-1, 0, 0)), Row(1, 1, (1, 0, 0)))),
        MatrixStamp((Row(1, 1, (0, 1, 0)),)),  # does not count this message
        MatrixStamp((Row(1, 2, (1, 0, 0)),)),  # another message's
        MatrixStamp((Row(0, 1, (0, 1, 0)), Row(1, 1, (1, 0, 0)))),  # what p1 never sent
    ],
    "bounded": [
        BoundedStamp(0, ()),
        BoundedStamp(-1, ()),
        BoundedStamp(2, ()),  # the second of its channel, and no first
        BoundedStamp(1, ((1, 0, 1),)),
        BoundedStamp(1, ((3, 0, 1),)),
        BoundedStamp(1, ((2, 3, 1),)),
        BoundedStamp(1, ((-1, 2, 1),)),
        BoundedStamp(1, ((2, 1, 0),)),
        BoundedStamp(1, ((2, 1, -4),)),
        BoundedStamp(1, ((0, 2, 1),)),  # what p1 never sent
    ],
    "monitor": [
        MonitorStamp(1, (0, 0)),
        MonitorStamp(1, (0, 0, 0, 0)),
        MonitorStamp(0, (0, 0, 0)),
        MonitorStamp(2, (0, 0, 0)),
        MonitorStamp(1, (0, 0, -1)),
        MonitorStamp(1, (1, 0, 0)),  # what p1 never sent
    ],
    "buffer": [],
    "history": [
        HistoryStamp((Entry(3, 1, 0b001),)),
        HistoryStamp((Entry(-1, 1, 0b001),)),
        HistoryStamp((Entry(2, 0, 0b001),)),
        HistoryStamp((Entry(2, 1, 0b000),)),
        HistoryStamp((Entry(2, 1, 0b1001),)),
        HistoryStamp((Entry(2, 1, -1),)),
        HistoryStamp((Entry(2, 1, 0b001, 0b1001),)),
        HistoryStamp((Entry(2, 1, 0b001, -1),)),
        HistoryStamp((Entry(1, 1, 0b100),)),  # the message itself
        HistoryStamp((Entry(1, 2, 0b100),)),  # one that came after it
        HistoryStamp((Entry(0, 1, 0b100),)),  # what p1 never sent
    ],
    "broadcast": [
        VectorStamp((0, 1)),
        VectorStamp((0, 1, 0, 0)),
        VectorStamp((0, 2, 0)),
        VectorStamp((0, 0, 0)),
        VectorStamp((0, 1, -1)),
        VectorStamp((1, 1, 0)),  # what p1 never sent
    ],
    "optimal": [
        LogStamp(frozenset(make_rows([(3, 1, 1)]))),
        LogStamp(frozenset(make_rows([(-1, 1, 1)]))),
        LogStamp(frozenset(make_rows([(2, 0, 1)]))),
        LogStamp(frozenset(make_rows([(2, 1, 0b1000)]))),
        LogStamp(frozenset(make_rows([(2, 1, -1)]))),
        LogStamp(frozenset(make_rows([(1, 1, 0b100)]))),
        LogStamp(frozenset(make_rows([(0, 1, 0b100)]))),  # what p1 never sent
    ],
    "permit": [PermitStamp(0, False), PermitStamp(-1, True)],
    "contexts": [
        ContextStamp((), frozenset(), True),
        ContextStamp((1, 1), frozenset(), True),
        ContextStamp((1, 0, 1), frozenset(), False),
        ContextStamp((1, 1, 1), frozenset({(3, 0, 1)}), True),
        ContextStamp((1, 1, 1), frozenset({(2, -1, 1)}), True),
        ContextStamp((1, 1, 1), frozenset({(2, 0, 0)}), True),
        ContextStamp((1, 1, 1), frozenset({(1, 0, 1)}), True),  # the message itself
        ContextStamp((1, 1, 1), frozenset({(0, 2, 1)}), True),  # what p1 never sent
    ],
    "sparing": [
        SparingStamp((), 0, ()),
        SparingStamp((1, 1), 0, ()),
        SparingStamp((1, 0, 1), 0, ()),
        SparingStamp((1, 1, 1), 1, ()),  # took what p1 never sent
        SparingStamp((1, 1, 1), 0, ((3, 0, 1),)),
        SparingStamp((1, 1, 1), 0, ((2, 3, 1),)),
        SparingStamp((1, 1, 1), 0, ((2, 1, 0),)),
        SparingStamp((1, 1, 1), 0, ((1, 0, 1),)),  # the message itself
        SparingStamp((1, 1, 1), 0, ((0, 2, 1),)),  # what p1 never sent
    ],
    "underway": [
        UnderwayStamp(((3, 1, 1),)),
        UnderwayStamp(((-1, 1, 1),)),
        UnderwayStamp(((2, 0, 1),)),
        UnderwayStamp(((2, 1, 0),)),
        UnderwayStamp(((2, 1, 0b1000),)),
        UnderwayStamp(((1, 1, 1),)),  # the message itself
        UnderwayStamp(((0, 1, 0b100),)),  # what p1 never sent
    ],
}

BAD_CONTROL: dict[str, list[Stamp]] = {
    "bounded": [
        Extra(0, ()),
        Extra(2, ()),
        Extra(1, ((3, 1),)),
        Extra(1, ((2, 0),)),
        Extra(1, ((2, -1),)),
        Extra(1, ((0, 1),)),
    ],
    "buffer": [Acknowledge(1), Acknowledge(HUGE)],
    "permit": [Taken(1), Taken(HUGE)],
    "underway": [Receipt(1), Receipt(HUGE), Settled(3, 1), Settled(-1, 1), Settled(0, 1)],
    "sparing": [
        SparingExtra(0, 0, ()),
        SparingExtra(1, 1, ()),
        SparingExtra(1, 0, ((3, 1),)),
        SparingExtra(1, 0, ((2, 0),)),
        SparingExtra(1, 0, ((1, 1),)),
        SparingExtra(1, 0, ((0, 1),)),
    ],
}

IGNORED_CONTROL: dict[str, list[Stamp]] = {
    "buffer": [Acknowledge(0), Acknowledge(-1), Release(1), Release(0), Release(-1), Release(HUGE)],
    "permit": [Taken(0), Taken(-1), Grant(0), Grant(-1)],
    "underway": [Receipt(0), Receipt(-1), Settled(2, 0), Settled(1, -1)],
}
"""What says nothing: of messages that never were, or that say what is known."""


def test_every_protocol_has_its_bad_stamps():
    assert BAD_STAMPS.keys() == set(NAMES)


@pytest.mark.parametrize(
    ("name", "stamp"), [(name, stamp) for name in BAD_STAMPS for stamp in BAD_STAMPS[name]]
)
def test_a_stamp_that_cannot_be_is_refused(name, stamp):
    machine = VARIANTS[name].machines(3)[0]
    refuses(machine, Packet(1, 0, stamp, Message(1, 1, (0, 1, 2))), BadStamp)


@pytest.mark.parametrize(
    ("name", "stamp"), [(name, stamp) for name in BAD_CONTROL for stamp in BAD_CONTROL[name]]
)
def test_control_that_cannot_be_is_refused(name, stamp):
    refuses(VARIANTS[name].machines(3)[0], Packet(1, 0, stamp), BadStamp)


@pytest.mark.parametrize(
    ("name", "stamp"), [(name, stamp) for name in IGNORED_CONTROL for stamp in IGNORED_CONTROL[name]]
)
def test_control_that_says_nothing_is_ignored(name, stamp):
    machine = VARIANTS[name].machines(3)[0]
    before = machine.dump()
    assert machine.receive(Packet(1, 0, stamp)) == []
    assert machine.dump() == before


def test_an_acknowledgement_by_someone_who_was_not_sent_anything_changes_nothing():
    p1 = VARIANTS["buffer"].machines(3)[0]
    p1.send(1)
    before = p1.dump()
    assert p1.receive(Packet(2, 0, Acknowledge(1))) == []
    assert p1.dump() == before
    p1 = VARIANTS["permit"].machines(3)[0]
    p1.send(1)
    refuses(p1, Packet(2, 0, Taken(1)), BadStamp)


# Duplicates


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
            packet = random.choice(world.arriving())
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
