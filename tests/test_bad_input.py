"""Whatever an application or a peer hands over, there is a defined answer: a typed error that changes nothing.

Stamps have a file of their own, test_bad_stamps.py, and what is repeated or mutated at random, test_bad_packets.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest
from msgspec.structs import replace

from antecede.errors import (
    AntecedeError,
    BadStamp,
    CallerError,
    Misrouted,
    NoDestination,
    UnknownProcess,
    Unsupported,
)
from antecede.model import Message, Packet, Stamp
from antecede.protocols import PROTOCOLS, Machine
from tests.driver import NAMES, busy
from tests.refusals import check_refusal

SEEDS = range(8)


def list_unreceived(name: str, control: bool | None = False) -> Iterator[tuple[Machine, Packet[Any]]]:
    """Packets of the middle of some runs, each with the machine that would receive it next."""
    for seed in SEEDS:
        world = busy(name, seed)
        for packet in world.list_arrivable():
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
        check_refusal(machine, change(packet), error)


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
        check_refusal(machine, change(packet), error)


@pytest.mark.parametrize("name", [name for name in NAMES if not PROTOCOLS[name].labels])
def test_a_message_with_a_label_is_refused_where_labels_mean_nothing(name):
    for machine, packet in list_unreceived(name):
        check_refusal(machine, message_with(label="a")(packet), BadStamp)


def test_a_broadcast_that_went_to_some_is_refused():
    for machine, packet in list_unreceived("broadcast"):
        check_refusal(
            machine, message_with(to=tuple(sorted((packet.source, packet.dest))))(packet), Misrouted
        )


@pytest.mark.parametrize("other", NAMES)
@pytest.mark.parametrize("name", NAMES)
def test_a_packet_of_another_protocol_is_refused(name, other):
    if name != other:
        machines = busy(name).machines  # As they were after each packet: that is checked.
        for _, packet in list_unreceived(other, None):
            check_refusal(machines[packet.dest], packet, BadStamp)


CONTROLLED = [n for n in NAMES if any(s.control for s in PROTOCOLS[n].stamps) and n != "sparing"]


@pytest.mark.parametrize(
    "name", [*CONTROLLED, "sparing, k=n+1"]
)  # With more room it has no extra message here.
def test_control_with_a_message_is_refused(name):
    seen = 0
    for machine, packet in list_unreceived(name, True):
        seen += 1
        check_refusal(machine, replace(packet, message=Message(packet.source, 1, (packet.dest,))), BadStamp)
    assert seen
