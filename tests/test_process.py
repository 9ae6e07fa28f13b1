"""A process fails closed: what it refuses leaves no trace, what it did not get it never acknowledges.

And a restart is a function of the journal."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from antecede.errors import BadParameter, CallerError, Refused
from antecede.link import Frame
from antecede.model import Packet, View
from antecede.process.core import Core, Out
from antecede.process.inputs import (
    Acknowledge,
    Arrive,
    Close,
    Input,
    Restart,
    Send,
    Take,
    Turn,
    decode_inputs,
    encode_inputs,
)
from antecede.process.views import pieces
from antecede.process.views.members import Plan, Roll
from antecede.process.views.notes import Handed, Stop, encode_note
from antecede.process.views.pieces import cut_up
from antecede.protocols import PROTOCOLS
from antecede.protocols.separator import Separator
from antecede.topology import shapes
from antecede.wire import Limits
from antecede.wire.bundles import PACKETS, decode_bundle, encode_bundle
from antecede.wire.octets import OWN

PAIR = View.of("a", "b")
SMALL = Limits(packet_bytes=3000, payload_bytes=1000, label_bytes=100, processes=64)
LARGE = Limits(packet_bytes=60_000, payload_bytes=2000, label_bytes=100)

GREETING = Frame(1, 1, 0, 0, 0, None, True, True)


class Journaled:
    """A process, and its journal as it would be on disk: encoded, a snapshot and the inputs since."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.state = msgspec.msgpack.encode(core.snapshot())
        self.inputs: list[bytes] = []
        self.now = 0

    def happen(self, given: Input) -> list[Out]:
        self.now += 1
        out = self.core.apply(given, self.now)
        self.inputs.append(encode_inputs([given]))
        return out

    def turn(self) -> list[Out]:
        return self.happen(Turn())

    def rest(self) -> None:
        """A snapshot takes the place of the inputs."""
        self.state, self.inputs = msgspec.msgpack.encode(self.core.snapshot()), []

    def recover(self, durable: int | None = None) -> None:
        """Killed: only so many inputs were durable, or all."""
        del self.inputs[len(self.inputs) if durable is None else durable :]
        self.core = Core.restore(msgspec.msgpack.decode(self.state))
        for record in self.inputs:
            for given in decode_inputs(record):
                self.core.apply(given, 0)

    def restart(self, limits: Limits | None = None, durable: int | None = None) -> list[Out]:
        self.recover(durable)
        return self.happen(Restart(False, limits or self.core.sending))


def pair(protocol: str, limits: Limits | None = None) -> list[Journaled]:
    return [Journaled(Core.new(protocol, PAIR, me, epoch=1, limits=limits)) for me in (0, 1)]


def talk(both: list[Journaled], out: list[tuple[int, Out]] | None = None) -> list[bytes]:
    """Let all frames pass until nothing is left to say; what the second has been handed by then."""
    got: list[bytes] = []
    flying = list(out or [])
    for round in range(400):
        for me, one in enumerate(both):
            one.now += 20_000_000_000 if round % 40 == 0 else 1_000_000
            flying += [(me, sent) for sent in one.core.tick(1 - me, one.now)]
            if one.core.gathered:
                flying += [(me, sent) for sent in one.turn()]
        arriving, flying = flying, []
        for source, (dest, frame) in arriving:
            there = both[dest]
            if frame.bare and not frame.greets:
                answers = there.core.arrive(source, frame, there.now)
            else:
                answers = there.happen(Arrive.of(source, frame))
            flying += [(dest, answer) for answer in answers]
        for place, one in enumerate(both):
            while (message := one.core.next_message()) is not None:
                one.happen(Take(*message.id))
                one.happen(Acknowledge(*message.id))
                got += [message.payload] if place == 1 else []
    return got


def greet(both: list[Journaled]) -> None:
    assert talk(both) == []
    assert all(one.core.links[1 - me].met for me, one in enumerate(both))


# Limits are state


@pytest.mark.parametrize("protocol", ["fifo", "matrix", "permit", "history"])
@pytest.mark.parametrize(("before", "after"), [(SMALL, LARGE), (LARGE, SMALL)], ids=["larger", "smaller"])
@pytest.mark.parametrize("rested", [False, True], ids=["inputs", "snapshot"])
def test_a_restart_with_other_limits_loses_and_repeats_nothing(protocol, before, after, rested):
    both = pair(protocol, before)
    greet(both)
    payloads = [bytes([k]) * 900 for k in range(8)]
    for payload in payloads[:4]:
        both[0].happen(Send((1,), payload))
    # They left under the old limits, in as many payloads as these make: some arrived.
    frames = payload_of(both[0].turn())
    assert len(frames) == (2 if before is SMALL else 1)
    both[1].happen(Arrive.of(0, frames[0][1]))
    for payload in payloads[4:]:
        both[0].happen(Send((1,), payload))
    if rested:
        both[0].rest()
    out = [(0, sent) for sent in both[0].restart(after)]
    out += [(1, sent) for sent in both[1].restart(after)]
    assert both[0].core.sending == after
    got = talk(both, out)
    # Once more, from what the first restart has written.
    out = [(0, sent) for sent in both[0].restart(before)] + [(1, sent) for sent in both[1].restart(before)]
    both[0].happen(Send((1,), b"last"))
    assert got + talk(both, out) == [*payloads, b"last"]


def test_what_was_sent_under_larger_limits_still_arrives_where_they_are_smaller_now():
    both = pair("fifo", LARGE)
    greet(both)
    both[0].happen(Send((1,), bytes(1900)))
    out = [(me, sent) for me, one in enumerate(both) for sent in one.restart(SMALL)]
    with pytest.raises(BadParameter, match="the payload has 1900 bytes, and may have 1000"):
        both[0].happen(Send((1,), bytes(1900)))
    assert talk(both, out) == [bytes(1900)]
    assert both[0].core.limits == both[1].core.limits == LARGE.widen(SMALL), "what peers compare"


def test_limits_under_which_a_payload_does_not_fit_are_refused():
    bad = Limits(packet_bytes=4 << 20, payload_bytes=8 << 20)
    with pytest.raises(BadParameter, match=r"packet_bytes must be .*, not 4194304"):
        Core.new("fifo", PAIR, 0, epoch=1, limits=bad)
    core = Core.new("fifo", PAIR, 0, epoch=1)
    before = core.snapshot()
    with pytest.raises(BadParameter):
        core.apply(Restart(False, bad), 0)
    assert core.snapshot() == before


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_payload_of_the_largest_size_fits_with_a_label_and_a_context(protocol):
    view = View.numbered(9)
    limits = Limits(
        packet_bytes=1000 + 2 * 100 + 9 // 8 + 256, payload_bytes=1000, label_bytes=100, processes=9
    )
    core = Core.new(protocol, view, 0, epoch=1, limits=limits)
    label = "x" * 100 if PROTOCOLS[protocol].labels else ""
    core.apply(Send(tuple(range(9)), bytes(1000), label, "y" * 100), 0)
    core.apply(Turn(), 0)
    assert core.sent == 1
    assert not core.gathered


# What is refused leaves no trace


def test_a_message_that_is_refused_for_its_stamp_has_used_up_no_number():
    """Its stamp is known only when it is sent; so a copy of the machine sends first."""
    view = View.numbered(40)
    limits = Limits(packet_bytes=2600, payload_bytes=1000, label_bytes=100, processes=40)
    cores = [Journaled(Core.new("matrix", view, me, epoch=1, limits=limits)) for me in range(40)]
    for source in range(1, 40):
        # Each tells the first of one more row.
        machine = cores[source].core.machine
        _, effects = machine.send(range(40), b"")
        [packet] = [one for one in effects if isinstance(one, Packet) and one.dest == 0]
        cores[0].core.follow(cores[0].core.machine.receive(packet))
        cores[0].happen(Take(source, 1))
    before = cores[0].core.snapshot()
    with pytest.raises(BadParameter, match="and may have 2600"):
        cores[0].core.apply(Send((1,), bytes(1000)), 0)
    assert cores[0].core.snapshot() == before
    cores[0].core.apply(Send((1,), bytes(700)), 0)
    cores[0].core.apply(Turn(), 0)
    assert cores[0].core.sent == 1


REFUSED: dict[str, Input] = {
    "a payload that is too large": Send((1,), bytes(2 << 20)),
    "a label that is no text": Send((1,), b"", "\ud800"),
    "a label where none is ordered": Send((1,), b"", "a label"),
    "a context that is too long": Send((1,), b"", "", "x" * 2000),
    "a message to nobody": Send((), b""),
    "a message to a stranger": Send((7,), b""),
    "a message that was not offered": Take(1, 1),
    "limits that cannot be": Restart(False, Limits(packet_bytes=1)),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("protocol", ["matrix", "permit"])
def test_a_refused_input_leaves_no_trace(protocol, case):
    core = Core.new(protocol, PAIR, 0, epoch=1)
    core.apply(Send((1,), b"before"), 0)
    before = core.snapshot()
    with pytest.raises(CallerError):
        core.apply(REFUSED[case], 0)
    assert core.failure is None
    assert core.snapshot() == before


# Who sends what no sound process sends


def payload_of(out: list[Out]) -> list[tuple[int, Frame]]:
    return [(peer, frame) for peer, frame in out if not frame.bare]


def test_what_was_refused_is_not_acknowledged_and_the_peer_is_refused_for_good():
    both = pair("fifo")
    greet(both)
    both[0].happen(Send((1,), b"good"))
    [(_, good)] = payload_of(both[0].turn())
    there = both[1]
    there.happen(Arrive.of(0, good))
    bad = Frame(good.epoch, good.peer, good.number + 1, good.ack, 0, b"garbage")
    out = there.happen(Arrive.of(0, bad))
    assert there.core.refused[0].kind == "WireError"
    for _ in range(2):
        # Now, and after a restart: from the inputs, and then from a snapshot.
        there.now += 60_000_000_000
        later = Frame(good.epoch, good.peer, good.number + 2, good.ack, 0, good.payload)
        out += (
            there.happen(Arrive.of(0, later))
            + there.core.tick(0, there.now)
            + there.core.resume(0, there.now)
        )
        there.happen(Send((0,), b"an answer, for when it is removed"))
        out += there.turn()
        with pytest.raises(Refused, match="a is refused for good: the payload is no bundle"):
            there.core.hail(0)
        assert out == [], "nothing is acknowledged to it, and nothing said"
        out += there.restart()
        assert "refused for good" in str(there.core.refused[0])
        there.rest()
    assert list(there.core.inbox) == [(0, 1)]


def test_what_is_refused_is_not_acknowledged_even_where_a_gap_is_told_at_once():
    both = pair("matrix")
    greet(both)
    both[0].happen(Send((1,), b"good"))
    [(_, good)] = payload_of(both[0].turn())
    there = both[1]
    assert there.core.links[0].receive(good, there.now)[1] == [], "in sequence, an acknowledgement waits"
    early = Frame(good.epoch, good.peer, good.number + 2, good.ack, 0, b"garbage")
    assert there.happen(Arrive.of(0, early)) == []
    assert there.core.refused[0].kind == "WireError"


@pytest.mark.parametrize("protocol", ["permit", "fifo"])
def test_a_number_beyond_what_a_trace_can_hold_is_refused(protocol):
    """In a later view it is added to what its sender had sent before: so the wire alone cannot bound it."""
    roll = Roll(2, PAIR.names, (0, 1), (5, 0), {}, {}, 2)
    here, there = (Core.new(protocol, PAIR, me, epoch=1, roll=roll) for me in (0, 1))
    for one, peer in ((here, 1), (there, 0)):
        one.arrive(peer, GREETING, now=0)
    here.apply(Send((1,), b"good"), 0)
    [(_, good)] = payload_of(here.turn(0))
    [packet] = decode_bundle(good.payload, 0, 1, Limits())
    assert packet.message is not None
    for number, refused in ((2**63 - 1 - 5, False), (2**63 - 5, True)):
        core = Core.restore(there.snapshot())
        core.record.on = True
        forged = replace(packet, message=replace(packet.message, number=number))
        core.arrive(0, replace(good, payload=encode_bundle([forged], OWN)), now=0)
        assert (0 in core.refused) is refused
        assert all(entry.number < 2**63 for entry in core.record.events)


def test_a_packet_that_came_too_early_to_be_judged_is_refused_when_it_can_be():
    star = shapes.star(3)
    view, hub = star.view, star.id("hub")
    p1, there = (
        Core.new("separator", view, name, epoch=1, parameters={"topology": star}) for name in ("p1", "hub")
    )
    p1.arrive(hub, GREETING, now=0)
    there.arrive(0, GREETING, now=0)
    p1.apply(Send((1,), b""), 0)
    [(_, good)] = payload_of(p1.turn(0))
    assert good.payload is not None
    [packet] = decode_bundle(good.payload, 0, hub, Limits())
    forged = replace(packet, stamp=replace(packet.stamp, version=1, to=1))
    bad = Frame(good.epoch, good.peer, 1, 0, 0, encode_bundle([forged], OWN))
    there.arrive(0, bad, now=0)
    assert not there.refused, "it may be of a topology to come"
    stop = Stop(2, p1.changing.roll, Plan(remove=("p3",)))
    out = there.arrive(0, Frame(good.epoch, good.peer, 2, 0, 0, encode_note(stop)), now=0)
    assert there.refused[0].kind == "BadStamp"
    assert out + there.turn(0) == [], "nothing is acknowledged to it any more"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_what_a_router_is_handed_is_put_together_whatever_order_it_comes_in(order, monkeypatch):
    monkeypatch.setattr(pieces, "PIECE", 30)
    star = shapes.star(2)
    after = star.join("hub2", ["p1", "p2", "hub"], member_of="hub").topology
    roll = Roll(2, after.names, (0, 1, 2, 3), (0,) * 4, {}, {}, 3, {3: 2}, topology=after, founding=star)
    core = Core.new("separator", after.view, "hub2", epoch=1, roll=roll)
    hub = Separator(star.view, "hub", star)
    hub.reconfigure(after)
    core.arrive(2, GREETING, now=0)
    told = [encode_note(Handed(*piece)) for piece in cut_up(msgspec.msgpack.encode(hub.handover()))]
    assert len(told) == 3
    for number, at in enumerate(order, 1):
        assert isinstance(core.machine, Separator)
        assert core.machine.joining
        core.arrive(2, Frame(1, 1, number, 0, 0, told[at]), now=0)
    assert isinstance(core.machine, Separator)
    assert not core.machine.joining
    assert not core.refused


@pytest.mark.parametrize("told", [b"garbage", b"\x91" * 100_000], ids=["garbage", "deep"])
def test_a_member_that_hands_over_nonsense_is_refused(told):
    star = shapes.star(2)
    after = star.join("hub2", ["p1", "p2", "hub"], member_of="hub").topology
    roll = Roll(2, after.names, (0, 1, 2, 3), (0,) * 4, {}, {}, 3, {3: 2}, topology=after, founding=star)
    core = Core.new("separator", after.view, "hub2", epoch=1, roll=roll)
    core.arrive(2, GREETING, now=0)
    core.arrive(2, Frame(1, 1, 1, 0, 0, encode_note(Handed(told, True, 0))), now=0)
    assert core.refused[2].kind == "BadFrame"


def test_a_bundle_of_many_packets_leaves_in_parts_that_a_peer_takes():
    both = pair("fifo")
    greet(both)
    for _ in range(PACKETS + 5):
        both[0].core.send((1,), b"")
    out = both[0].core.turn(1)
    assert len(payload_of(out)) == 2
    for _, frame in out:
        both[1].core.arrive(0, frame, 1)
    assert not both[1].core.refused
    assert both[1].core.held == [PACKETS + 5, 0]


# What comes again


def hand_over(journaled: Journaled, count: int) -> list[tuple[int, int]]:
    """Hand over so many, as a node does it: the next one first."""
    taken = []
    for _ in range(count):
        message = journaled.core.next_message()
        assert message is not None
        journaled.happen(Take(*message.id))
        taken.append(message.id)
    return taken


@pytest.mark.parametrize("protocol", ["matrix", "permit", "fifo", "history", "buffer"])
@pytest.mark.parametrize("durable", range(7))
def test_all_that_was_handed_over_comes_again_first_and_in_its_order(protocol, durable):
    """Wherever the journal ends: that a message was taken need not be durable when a process is killed."""
    one = Journaled(Core.new(protocol, PAIR, 0, epoch=1))
    for _ in range(8):
        one.happen(Send((0,), b""))
    sent = len(one.inputs)
    first = hand_over(one, 6)
    one.restart(durable=sent + durable)
    one.happen(Send((0,), b"news"))
    again = [message.id for message in one.core.again]
    assert again == first[:durable]
    repeated: list[tuple[int, int]] = []
    while len(again) + len(repeated) < 6:
        message = one.core.next_message()
        assert message is not None
        assert message.id in one.core.repeats, "it may have been handed over before"
        one.happen(Take(*message.id))
        repeated.append(message.id)
    assert again + repeated == first
    # What could not have been handed over is not said to be.
    rest = hand_over(one, 2)
    assert rest == [(0, 7), (0, 8)]
    news = one.core.next_message()
    assert news is not None
    assert news.id not in one.core.repeats


def test_what_is_held_may_have_been_handed_over_before_what_it_waited_for_was_durable():
    both = pair("matrix")
    talk(both)
    for body in (b"first", b"second"):
        both[0].happen(Send((1,), body))
        both[0].turn()
    first, second = both[0].core.links[1].resume(0)
    both[1].happen(Arrive.of(0, second))
    durable = len(both[1].inputs)
    both[1].happen(Arrive.of(0, first))
    handed = hand_over(both[1], 2)
    both[1].restart(durable=durable)
    assert both[1].core.next_message() is None
    assert list(both[1].core.repeats) == handed[1:]


def test_after_a_clean_stop_only_what_was_handed_over_comes_again():
    one = Journaled(Core.new("matrix", PAIR, 0, epoch=1))
    for _ in range(4):
        one.happen(Send((0,), b""))
    hand_over(one, 2)
    one.happen(Close())
    one.rest()
    one.restart()
    assert [message.number for message in one.core.again] == [1, 2]
    assert not one.core.repeats
    # But what may have been handed over before an earlier crash still may have.
    one.restart()
    one.happen(Close())
    one.rest()
    one.restart()
    assert list(one.core.repeats) == [(0, 3), (0, 4)]


def test_a_process_that_was_told_of_a_wrong_turn_stays_failed():
    core: Any = Core.new("matrix", PAIR, 0, epoch=1)
    core.machine.deliver = None
    core.apply(Send((0,), b""), 0)
    with pytest.raises(TypeError):
        core.apply(Take(0, 1), 0)
    for call in (
        lambda: core.apply(Turn(), 0),
        lambda: core.send((0,), b""),
        lambda: core.take((0, 1)),
        lambda: core.turn(0),
        lambda: core.arrive(1, Frame(1, 1, 0, 0, 0, None, True, True), 0),
        lambda: core.tick(1, 0),
        lambda: core.resume(1, 0),
        core.snapshot,
    ):
        with pytest.raises(AssertionError, match="the process has failed: TypeError"):
            call()


def test_bytes_that_wait_are_counted_again_after_a_restart():
    one = Journaled(Core.new("buffer", PAIR, 0, epoch=1))
    for _ in range(3):
        one.happen(Send((1,), bytes(600)))
    one.happen(Send((0,), bytes(50)))
    hand_over(one, 1)
    found = one.core.unsent_bytes, one.core.taken_bytes
    assert found == (1200, 50)
    copy = Core.restore(one.core.snapshot())
    assert (copy.unsent_bytes, copy.taken_bytes) == found
    copy.apply(Acknowledge(0, 4), now=0)
    assert copy.taken_bytes == 0
