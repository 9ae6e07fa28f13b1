"""What separator refuses: requests, parameters, packets, handovers; and what a held message says."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from antecede.errors import BadParameter, BadStamp, Misrouted, Unsupported
from antecede.model import Packet, View
from antecede.process.views.change import parameters_among
from antecede.protocols import create, restore
from antecede.protocols.handover import decode_handover
from antecede.protocols.histories import Entry
from antecede.protocols.separator import Resumed, Separator
from antecede.topology import shapes

# What is refused


def test_with_fewer_reports_no_vertex_may_fail_or_join():
    diamond = shapes.diamond()
    d2 = Separator(diamond.view, "d2", diamond, reports=1)
    with pytest.raises(Unsupported, match="leave `reports` out"):
        d2.cut(diamond.id("d1"))
    with pytest.raises(Unsupported, match="leave `reports` out"):
        parameters_among("separator", {"topology": diamond, "reports": 1}, diamond.names)


def test_only_processes_send_and_only_to_processes():
    star = shapes.star(2)
    p1, hub = (Separator(star.view, name, star) for name in ("p1", "hub"))
    with pytest.raises(Unsupported, match="hub is a router, which has nothing to send"):
        hub.send(0)
    with pytest.raises(Unsupported, match="hub is a router, which takes no messages"):
        p1.send(2)
    assert not p1.orders_at(2)
    p1.reconfigure(star.fail("p2"))
    with pytest.raises(Unsupported, match="p2 has failed"):
        p1.send(1)


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        (
            {"topology": shapes.star(3)},
            "separator: the topology is for p1, p2, p3, hub, and the view has ",
        ),
        ({"topology": {"names": 3}}, "separator: this is not a topology: Expected `array`, got `int`"),
        (
            {"topology": shapes.star(2), "r6": False, "r7": False, "r8": False},
            "R9 reads the carbon copies of R6: set r6=True",
        ),
    ],
)
def test_parameters_are_checked_at_construction(parameters, told):
    if "r6" in parameters:
        parameters = {**parameters, "r6_4": False}
    with pytest.raises(BadParameter, match=told):
        create("separator", shapes.star(2).view, "p1", **parameters)


def test_without_a_topology_everyone_is_linked_with_everyone():
    p1 = create("separator", View.numbered(3), "p1")
    _, effects = p1.send([1, 2])
    assert [packet.dest for packet in effects if isinstance(packet, Packet)] == [1, 2]


def hop(**changes: Any) -> Packet[Any]:
    """A good packet from p1 by way of d1's station to d3 of the diamond, but for these changes."""
    diamond = shapes.diamond()
    p, n1, d1 = (Separator(diamond.view, name, diamond) for name in ("p", "n1", "d1"))
    _, [first] = p.send([1, 2])
    assert isinstance(first, Packet)
    second = next(e for e in n1.receive(first) if isinstance(e, Packet) and e.dest == d1.me)
    packet = next(e for e in d1.receive(second) if isinstance(e, Packet) and e.dest == diamond.id("d3"))
    for name in ("stamp", "message"):
        packet = replace(packet, **{name: replace(getattr(packet, name), **changes.pop(name, {}))})
    return replace(packet, **changes)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"dest": 0}, Misrouted),
        ({"source": 0}, Misrouted),  # p is no neighbour of d3
        ({"source": 99}, Misrouted),
        ({"message": {"number": 0}}, BadStamp),
        ({"message": {"label": "x"}}, BadStamp),
        ({"message": {"to": (1, 99)}}, Misrouted),
        ({"message": {"to": ()}}, Misrouted),
        ({"message": {"sender": 6}}, Misrouted),  # d3's own
        ({"stamp": {"number": 0}}, BadStamp),
        ({"stamp": {"to": 1 << 5}}, BadStamp),  # not to d3
        ({"stamp": {"to": 1 << 6 | 1 << 4}}, BadStamp),  # to its source
        ({"stamp": {"to": 1 << 6 | 1 << 40}}, BadStamp),
        ({"stamp": {"targets": 0}}, BadStamp),
        ({"stamp": {"targets": 1}}, BadStamp),
        ({"stamp": {"history": (Entry(99, 1, 1),)}}, BadStamp),
        ({"stamp": {"history": (Entry(0, 0, 1),)}}, BadStamp),
        ({"stamp": {"history": (Entry(0, 1, 0),)}}, BadStamp),
        ({"stamp": {"history": (Entry(6, 1, 1),)}}, BadStamp),  # a hop that d3 never sent
    ],
)
def test_a_bad_packet_is_refused_and_changes_nothing(changes, error):
    diamond = shapes.diamond()
    d3 = Separator(diamond.view, "d3", diamond)
    before = d3.snapshot()
    with pytest.raises(error):
        d3.receive(hop(**changes))
    assert d3.snapshot() == before
    assert len(d3.receive(hop())) == 2


def test_a_packet_of_a_later_topology_waits_for_it():
    diamond = shapes.diamond()
    d3 = Separator(diamond.view, "d3", diamond)
    early, forged = hop(stamp={"version": 1}), hop(stamp={"version": 1, "number": 7, "to": 1})
    assert d3.receive(early) == d3.receive(early) == d3.receive(forged) == []
    again = restore(d3.snapshot())
    assert isinstance(again, Separator)
    assert len(again.reconfigure(diamond.fail("d2"))) == 2
    [(source, error)] = again.refused
    assert (again.view.name(source), type(error)) == ("d1", BadStamp)
    with pytest.raises(BadParameter, match=r"the next topology must be version 2, .*, not version 1 of"):
        again.reconfigure(diamond.fail("d2"))


def test_a_join_is_done_in_its_order():
    diamond = shapes.diamond()
    machines = {name: Separator(diamond.view, name, diamond) for name in diamond.names}
    after = diamond.join("d4", ["n1", "d1", "d2", "d3"], member_of="d1").topology
    d4 = Separator(after.view, "d4", after)
    assert [packet for machine in machines.values() for packet in machine.reconfigure(after)] == []
    d1, d2 = machines["d1"], machines["d2"]
    with pytest.raises(Unsupported, match="d4 has not adopted the state of its separator yet"):
        d4.send(0)
    with pytest.raises(BadParameter, match="needs the handover of d2, a member, and was given those of d1"):
        d4.adopt([d1.handover()])
    with pytest.raises(BadParameter, match="handover"):
        d4.adopt([{"member": "d1"}])
    assert d4.adopt([d1.handover(), d2.handover()]) == []
    with pytest.raises(Unsupported, match="d4 cannot adopt a state: it is not joining a separator"):
        d4.adopt([])


@pytest.mark.parametrize(
    "changes",
    [
        {"member": 99},
        {"history": [{"entry": [99, 1, 1], "copies": 0}]},
        {"history": [{"entry": [0, 1, 1 << 40], "copies": 0}]},
        {"history": [{"entry": [0, 1, 1], "copies": -1}]},
        {"seen": {77: 1}},
        {"seen": {0: 1 << 62}},
        {"retained": [{"message": {"sender": 0, "number": 1, "to": [99]}, "targets": 1}]},
        {"retained": [{"message": {"sender": 0, "number": 1, "to": [1]}, "targets": 1 << 40}]},
        {"clock": -1},
        {"version": "later"},
    ],
)
def test_a_handover_that_cannot_be_is_refused_and_changes_nothing(changes):
    diamond = shapes.diamond()
    after = diamond.join("d4", ["n1", "d1", "d2", "d3"], member_of="d1").topology
    told = [{**Separator(diamond.view, name, diamond).handover(), "version": 1} for name in ("d1", "d2")]
    d4 = Separator(after.view, "d4", after)
    before = d4.snapshot()
    with pytest.raises(BadParameter, match="handover"):
        d4.adopt([told[0], {**told[1], **changes}])
    assert d4.snapshot() == before
    d4.adopt([decode_handover(msgspec.msgpack.encode(one)) for one in told])
    assert not d4.joining


@pytest.mark.parametrize("data", [b"", b"garbage", b"\x81\xa4more" + b"\x91" * 100_000 + b"\x01"])
def test_bytes_that_are_no_handover_are_refused(data):
    with pytest.raises(BadParameter, match="not what handover"):
        decode_handover(data)


def test_stable_memory_must_be_that_of_the_last_to_fail():
    diamond = shapes.diamond()
    d1, d2 = (Separator(diamond.view, name, diamond) for name in ("d1", "d2"))
    after = diamond.fail("d1").fail("d2").join("d4", ["n1", "d3"], member_of="d1").topology
    d4 = Separator(after.view, "d4", after)
    with pytest.raises(BadParameter, match="the handover of d2, the last member to fail"):
        d4.adopt([d1.handover()])
    effects = d4.adopt([d2.handover()])
    assert [type(one.stamp) for one in effects if isinstance(one, Packet)] == [Resumed, Resumed]


def test_what_nobody_is_there_to_forward_waits_and_says_so():
    star = shapes.star(2)
    p1 = Separator(star.view, "p1", star)
    p1.reconfigure(star.fail("hub"))
    message, effects = p1.send(1)
    assert effects == []
    [waiting] = p1.waiting()
    assert (waiting.message, waiting.where) == (message, "unsent")
    assert waiting.reason == "nobody lives to forward it to p2"
    after = star.fail("hub").join("hub2", ["p1", "p2"], member_of="hub").topology
    [packet] = p1.reconfigure(after)
    assert isinstance(packet, Packet)
    assert packet.dest == after.id("hub2")
    assert p1.waiting() == []


def test_a_held_message_says_which_hop_it_waits_for():
    star = shapes.star(2)
    p1, hub = (Separator(star.view, name, star) for name in ("p1", "hub"))
    p1.send(1)
    message, [late] = p1.send(1)
    assert isinstance(late, Packet)
    assert hub.receive(late) == []
    assert [(w.message, w.reason) for w in hub.waiting()] == [(message, "waits for hop 1 of p1")]
