"""What every machine does, one behaviour at a time: own copies, eligibility, waiting, waking, parameters."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from antecede.errors import BadParameter, CallerError, NotEligible, UnknownProcess
from antecede.model import Awaited, Effect, Id, Message, Packet, View
from antecede.protocols import PROTOCOLS, create
from antecede.protocols.machine import Machine
from antecede.protocols.receiver import Need, Receiver
from tests.driver import NAMES, SKIPPED, VARIANTS, Habits, World, busy, drive

RECEIVERS = [name for name in NAMES if issubclass(PROTOCOLS[name], Receiver)]
QUEUES = [name for name in NAMES if name not in RECEIVERS]
CAUSAL = [name for name in NAMES if PROTOCOLS[name].order == "causal"]
TO_ANY_SET = [name for name in NAMES if name != "broadcast"]


def everyone(name: str, to: list[int]) -> list[int]:
    """These destinations, or everyone where the protocol only sends to everyone."""
    return to if name != "broadcast" else [0, 1, 2]


# Own copies


@pytest.mark.parametrize("name", VARIANTS)
def test_many_messages_to_oneself_in_a_row_are_all_delivered(name):
    """Published versions of the matrix protocol count an own delivery twice and then deliver nothing more."""
    world = World(VARIANTS[name].machines(3))
    to = everyone(VARIANTS[name].protocol, [0])
    for burst in (1, 2, 5, 1):
        for _ in range(burst):
            world.send(0, to)
        while mine := world.machines[0].eligible():
            world.deliver(0, mine[0])
    finish(world)
    assert sum(event.kind == "deliver" and event.process == 0 for event in world.events) == 9


@pytest.mark.parametrize("name", VARIANTS)
def test_others_still_get_through_after_messages_to_oneself(name):
    world = World(VARIANTS[name].machines(3))
    to = everyone(VARIANTS[name].protocol, [0])
    for _ in range(3):
        world.send(0, to)
        world.send(1, to)
        world.send(0, everyone(VARIANTS[name].protocol, [1]))
        finish(world)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_set_that_contains_the_sender_reaches_all_of_it_once(name):
    world = World(VARIANTS[name].machines(3))
    first = world.send(1, [0, 1, 2])
    second = world.send(1, [0, 1, 2])
    assert {(p.source, p.dest) for p in world.packets} <= {(1, 0), (1, 2), (0, 1), (2, 1)}
    finish(world)
    for q in range(3):
        assert list_delivered(world, q) in ([first.id, second.id], [second.id, first.id])


@pytest.mark.parametrize("name", CAUSAL)
def test_an_answer_waits_for_the_own_message_that_it_follows(name):
    """p1 sends to itself, then to p2, which answers: the answer stays behind p1's own undelivered copy."""
    world = World(VARIANTS[name].machines(3))
    own = world.send(0, everyone(name, [0]))
    question = world.send(0, everyone(name, [1]))
    while (1, 1) not in world.messages:
        for packet in list(world.list_arrivable()):
            world.arrive(packet)
        for message in world.machines[1].eligible():
            world.deliver(1, message)
            if message == question:
                world.send(1, everyone(name, [0]))
    while world.network:
        world.arrive(world.network[0])
    assert world.machines[0].eligible() == [own]
    finish(world)
    assert list_delivered(world, 0).index(own.id) < list_delivered(world, 0).index((1, 1))


# Eligible


@pytest.mark.parametrize("name", VARIANTS)
def test_a_delivery_that_is_not_eligible_is_refused_and_changes_nothing(name):
    for seed in range(10):
        world = busy(name, seed)
        for machine in world.machines:
            eligible = machine.eligible()
            for message in world.messages.values():
                if message not in eligible:
                    before = machine.dump()
                    with pytest.raises(NotEligible) as raised:
                        machine.deliver(message)
                    assert raised.value.message == message.id
                    assert machine.dump() == before
                    assert machine.eligible() == eligible


def test_the_refusal_says_what_a_held_message_waits_for():
    view = View.numbered(3)
    p1, p3 = create("fifo", view, 0), create("fifo", view, 2)
    p1.send(2)
    second, [packet] = p1.send(2)
    assert isinstance(packet, Packet)
    p3.receive(packet)
    with pytest.raises(
        NotEligible, match=r"p3 cannot deliver message 2 of #0 now: it waits for 1\.\.1 of p1"
    ):
        p3.deliver(second)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_delivered_message_cannot_be_delivered_again(name):
    world = World(VARIANTS[name].machines(3))
    message = world.send(0, [0, 1, 2])
    finish(world)
    for machine in world.machines:
        with pytest.raises(NotEligible):
            machine.deliver(message)


@pytest.mark.parametrize("name", RECEIVERS)
def test_concurrent_messages_may_be_taken_in_any_order(name):
    for turn in (0, -1):
        world = World(VARIANTS[name].machines(3))
        messages = [world.send(p, everyone(name, [2])) for p in (0, 1)]
        while world.network:
            world.arrive(world.network[0])
        assert world.machines[2].eligible() == messages
        world.deliver(2, messages[turn])
        finish(world)


@pytest.mark.parametrize("name", QUEUES)
def test_where_senders_wait_only_the_head_may_be_taken(name):
    world = World(VARIANTS[name].machines(3))
    first, second = world.send(0, [2]), world.send(1, [2])
    for packet in list(world.network):
        world.arrive(packet)
    assert world.machines[2].eligible() == [first]
    with pytest.raises(NotEligible, match="only the head of the input buffer"):
        world.machines[2].deliver(second)
    finish(world)
    assert list_delivered(world, 2) == [first.id, second.id]


# Waiting: the triangle. x goes from p1 to p3; y from p1 to p2, which then sends z to p3, where z arrives first.

TRIANGLE: dict[str, tuple[Awaited, ...] | None] = {
    "unordered": None,
    "fifo": None,
    "matrix": (Awaited(0, 1, 1, "channel"),),
    "bounded": (Awaited(0, 1, 1, "channel"),),
    "sparing": (Awaited(0, 1, 1, "channel"),),
    "underway": (Awaited(0, 1, 1),),
    "contexts": (Awaited(0, 1, 1, "channel"),),
    "monitor, at the last": (Awaited(0, 1, 1, "channel"),),
    "history": (Awaited(0, 1, 1),),
    "optimal": (Awaited(0, 1, 1),),
    "broadcast": (Awaited(0, 1, 2),),
}
"""What z waits for at p3, or None if it does not wait."""


@pytest.mark.parametrize("name", TRIANGLE)
def test_waiting_names_exactly_the_message_that_is_late(name):
    world = World(VARIANTS[name].machines(3))
    protocol = VARIANTS[name].protocol
    x = world.send(0, everyone(protocol, [2]))
    y = world.send(0, everyone(protocol, [1]))
    arrive(world, x, 1)
    arrive(world, y, 1)
    while mine := world.machines[1].eligible():
        world.deliver(1, mine[0])
    z = world.send(1, everyone(protocol, [2]))
    arrive(world, z, 2)
    p3 = world.machines[2]
    if TRIANGLE[name] is None:
        assert p3.waiting() == []
        assert p3.eligible() == [z]
        return
    [stuck] = p3.waiting()
    assert (stuck.message, stuck.where, stuck.awaits) == (z, "held", TRIANGLE[name])
    arrive(world, x, 2)
    world.deliver(2, x)
    if protocol == "broadcast":
        assert p3.waiting()[0].awaits == (Awaited(0, 2, 2),)
        arrive(world, y, 2)
        world.deliver(2, y)
    assert p3.waiting() == []
    finish(world)


@pytest.mark.parametrize(
    ("name", "counted", "first"),
    [
        ("fifo", "channel", 1),
        ("matrix", "channel", 1),
        ("bounded", "channel", 1),
        ("history", "sender", 5),
        ("optimal", "sender", 5),
        ("permit", "channel", 1),
    ],
)
def test_waiting_counts_a_gap_in_a_channel(name, counted, first):
    """p1 sends 1 to itself, 2, 3 to p3, 4 to itself, 5, 6 to p3; the sixth arrives first, alone."""
    world = World(VARIANTS[name].machines(3))
    for to in (0, 2, 2, 0, 2):
        world.send(0, [to])
    last = world.send(0, [2])
    arrive(world, last, 2)
    [stuck] = world.machines[2].waiting()
    assert stuck.message == last
    expected = Awaited(0, 1, 3, "channel") if counted == "channel" else Awaited(0, first, first)
    assert stuck.awaits == (expected,)
    finish(world)


def test_what_waits_for_an_extra_message_that_is_here_names_what_that_waits_for():
    p1, p2, p3 = (create("bounded", View.numbered(3), me, k=4) for me in range(3))

    def arrive(packets: list[Effect], at: Machine) -> list[Effect]:
        here = [one for one in packets if isinstance(one, Packet) and one.dest == at.me]
        return [effect for packet in here for effect in at.receive(packet)]

    first, to_p3 = p2.send(2)
    slow, late = p1.send(2)
    told, packets = p1.send(1)
    arrive(packets, p2)
    p2.deliver(told)
    p2.send(0)
    _, extra = p2.send(1)
    last, packets = p2.send(2)
    assert arrive(to_p3, p3) == [first]
    assert p3.deliver(first) + arrive(extra, p3) + arrive(packets, p3) == []
    [held] = p3.waiting()
    assert (held.message, held.awaits) == (last, (Awaited(0, 1, 1, "channel"),))
    assert arrive(late, p3) == [slow]
    assert p3.deliver(slow) == [last]


def test_the_output_buffer_says_what_it_waits_for():
    world = World(VARIANTS["buffer"].machines(3))
    first, second = world.send(0, [1]), world.send(0, [2])
    [unsent] = world.machines[0].waiting()
    assert (unsent.message, unsent.where, unsent.awaits) == (second, "unsent", (Awaited(0, 1, 1),))
    assert unsent.reason == "in the output buffer until p2 has acknowledged"
    arrive(world, first, 1)
    world.arrive(world.network[0])
    assert world.machines[0].waiting() == []
    finish(world)


def test_a_closed_multicast_and_what_stands_behind_it_say_so():
    world = World(VARIANTS["buffer"].machines(3))
    multicast = world.send(0, [1, 2])
    arrive(world, multicast, 2)
    behind = world.send(1, [2])
    arrive(world, behind, 2)
    closed, queued = world.machines[2].waiting()
    assert (closed.message, closed.awaits) == (multicast, ())
    assert closed.reason == "until p1 knows that every destination has it"
    assert (queued.message, queued.awaits) == (behind, (Awaited(0, 1, 1),))
    assert world.machines[2].eligible() == []
    finish(world)


def test_a_restrained_process_says_whose_permit_it_waits_for():
    world = World(VARIANTS["permit"].machines(3))
    world.send(0, [2])
    flagged = world.send(0, [1])
    arrive(world, flagged, 1)
    world.deliver(1, flagged)
    answer = world.send(1, [2])
    [unsent] = world.machines[1].waiting()
    assert (unsent.message, unsent.where, unsent.awaits) == (answer, "unsent", (Awaited(0, 2, 2),))
    assert unsent.reason == "until p1 permits"
    finish(world)


@pytest.mark.parametrize("name", VARIANTS)
def test_what_waits_is_never_eligible_and_names_something_that_is_missing(name):
    for seed in range(10):
        world = busy(name, seed)
        for machine in world.machines:
            gone = set(list_delivered(world, machine.me))
            held = [stuck for stuck in machine.waiting() if stuck.where == "held"]
            assert not {stuck.message.id for stuck in held} & {m.id for m in machine.eligible()}
            for stuck in held:
                assert stuck.awaits or stuck.reason
                for awaited in stuck.awaits:
                    assert awaited.first <= awaited.last
                    if awaited.counted == "sender":
                        assert (awaited.sender, awaited.last) in world.messages
                        assert (awaited.sender, awaited.last) not in gone


# Waking


def count_looks(kind: type[Receiver]) -> type[Receiver]:
    """The protocol, with a count of how often each packet was looked at."""

    class Counting(kind):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **parameters: Any) -> None:
            super().__init__(*args, **parameters)
            self.looks: Counter[Id] = Counter()

        def _find_unmet(self, packet: Packet[Any]) -> Need | None:
            if packet.message is not None:
                self.looks[packet.message.id] += 1
            found: Need | None = super()._find_unmet(packet)
            return found

    return Counting


@pytest.mark.parametrize("name", ["fifo", "matrix", "bounded", "history", "optimal", "broadcast"])
def test_a_delivery_wakes_only_what_waited_for_it(name):
    """p3 holds many messages of p1, all behind the first, and one of p2. The latter's delivery looks at no other."""
    view = View.numbered(3)
    kind = PROTOCOLS[name]
    assert issubclass(kind, Receiver)
    p1, p2 = create(name, view, 0), create(name, view, 1)
    p3: Any = count_looks(kind)(view, 2)
    to = everyone(name, [2])
    sent = [packet_to(2, p1.send(to)) for _ in range(50)]
    for packet in sent[1:]:
        assert p3.receive(packet) == []
    early, late = packet_to(2, p2.send(to)), packet_to(2, p2.send(to))
    p3.receive(late)
    p3.looks.clear()
    p3.receive(early)
    p3.deliver(early.message)
    assert p3.looks == {(1, 1): 1, (1, 2): 1}
    p3.looks.clear()
    p3.receive(sent[0])
    p3.deliver(sent[0].message)
    assert p3.looks == {(0, 1): 1, (0, 2): 1}, "the first wakes the second, and not the third"


@pytest.mark.parametrize("name", RECEIVERS)
def test_a_message_is_looked_at_once_for_each_thing_it_waited_for(name):
    """However many are held: looks are bounded by arrivals and wakings, not by what is held."""
    view = View.numbered(3)
    kind = PROTOCOLS[name]
    assert issubclass(kind, Receiver)
    p1 = create(name, view, 0)
    p3: Any = count_looks(kind)(view, 2)
    packets = [packet_to(2, p1.send(everyone(name, [2]))) for _ in range(40)]
    for packet in reversed(packets):
        p3.receive(packet)
    while mine := p3.eligible():
        p3.deliver(mine[0])
    assert sum(p3.looks.values()) <= 2 * len(packets)


# Parameters

BAD_PARAMETERS: list[tuple[str, dict[str, Any], str]] = [
    (
        "bounded",
        {"k": 3},
        r"bounded: k must be more than n and at most n\*n, that is 3 < k <= 9 for 3 processes, not 3",
    ),
    ("bounded", {"k": 10}, r"k must be .*, that is 3 < k <= 9 for 3 processes, not 10"),
    ("bounded", {"k": 0}, r"k must be .* not 0"),
    ("bounded", {"k": "many"}, "bounded: "),
    ("history", {"r6": False}, "R7 and R8 read the carbon copies"),
    ("history", {"r6": False, "r7": True, "r8": False}, "read the carbon copies of R6: set r6=True"),
    ("history", {"r9": True}, "r9"),
    ("matrix", {"k": 5}, "k"),
    ("fifo", {"speed": 11}, "speed"),
    ("telepathy", {}, "protocol: the name must be one of unordered, fifo, matrix, .*, not 'telepathy'"),
]


@pytest.mark.parametrize(("protocol", "parameters", "sentence"), BAD_PARAMETERS)
def test_parameters_that_cannot_be_are_refused_with_the_numbers(protocol, parameters, sentence):
    with pytest.raises(BadParameter, match=sentence) as raised:
        create(protocol, View.numbered(3), 0, **parameters)
    assert isinstance(raised.value, CallerError)


@pytest.mark.parametrize(
    ("n", "k", "fits"), [(2, 2, 0), (2, 3, 1), (2, 4, 1), (2, 5, 0), (4, 5, 1), (4, 17, 0), (1, 2, 1)]
)
def test_k_lies_above_n_and_not_above_its_square(n, k, fits):
    if fits:
        assert create("bounded", View.numbered(n), 0, k=k).parameters == {"k": k}
    else:
        with pytest.raises(BadParameter, match=f"that is {n} < k <= {n * n}"):
            create("bounded", View.numbered(n), 0, k=k)


@pytest.mark.parametrize("name", ["bounded", "bounded, k=n+1", "bounded, each its own k"])
def test_no_stamp_has_k_entries(name):
    for seed in range(20):
        random = Random(f"k {name} {seed}")
        machines = VARIANTS[name].machines(4)
        world = drive(machines, Habits(n=4, messages=30, deliver=1.0), random)
        for packet in world.packets:
            assert packet.stamp.entries(4) < machines[packet.source].parameters["k"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("me", ["p4", 3, -1])
def test_a_machine_for_a_process_outside_the_view_is_refused(name, me):
    with pytest.raises(UnknownProcess, match=f"process {me!r} is not in the view of 3"):
        create(name, View.numbered(3), me)


def test_the_monitor_is_a_process_of_the_view():
    with pytest.raises(UnknownProcess):
        create("monitor", View.numbered(3), 0, monitor="p9")


def test_a_view_with_a_name_twice_is_refused_and_says_which():
    with pytest.raises(BadParameter, match="p1 is there twice"):
        View.of("p1", "p2", "p1")


def test_what_is_left_out_here_is_named_with_a_reason():
    assert set(SKIPPED) >= set(PROTOCOLS) - set(NAMES)
    assert all(SKIPPED.values())


# Helpers


def finish(world: World) -> None:
    while world.network or world.deliverable():
        if world.network:
            world.arrive(world.list_arrivable()[0])
        else:
            world.deliver(*world.deliverable()[0])
    world.check()


def arrive(world: World, message: Message, at: int) -> None:
    """The copy of this message to this process arrives, if it is in flight."""
    for packet in world.network:
        if packet.dest == at and packet.message == message:
            world.arrive(packet)
            return


def list_delivered(world: World, process: int) -> list[Id]:
    return [event.id for event in world.events if event.kind == "deliver" and event.process == process]


def packet_to(dest: int, sent: tuple[Message, list[Any]]) -> Packet[Any]:
    return next(effect for effect in sent[1] if isinstance(effect, Packet) and effect.dest == dest)


@pytest.mark.parametrize("to", ["p2", ["p2"], ("p3", 1, "p2"), 1])
def test_destinations_are_given_by_name_or_by_position(to):
    message, _ = create("fifo", View.numbered(3), "p1").send(to)
    assert message.to == ((1, 2) if len(message.to) == 2 else (1,))


def test_a_destination_that_nobody_has_is_refused_by_name():
    with pytest.raises(UnknownProcess, match="'p9' is not in the view of 3"):
        create("fifo", View.numbered(3), 0).send(["p2", "p9"])


def test_a_snapshot_of_0_1_with_a_held_message_of_optimal_is_read():
    """0.1 wrote the log of a stamp as entries (sender, clock, Dests), of which a sender may have several."""
    p1, p2, p3 = (create("optimal", View.numbered(3), process) for process in range(3))
    first, late = _send_one(p1, "p3")
    told, packet = _send_one(p1, "p2")
    p2.receive(packet)
    p2.deliver(told)
    second, early = _send_one(p2, "p3")
    assert p3.receive(early) == []
    state = p3.snapshot()["state"]
    assert state["pending"][0]["stamp"]["log"] == [(0, 0b100, ((1, 0b100), (2, 0)))]
    state["pending"][0]["stamp"]["log"] = [[0, 1, 0b100], [0, 2, 0]]
    restored = create("optimal", View.numbered(3), 2)
    restored.load(state)
    assert restored.snapshot() == p3.snapshot()
    assert restored.receive(late) == [first]
    assert restored.deliver(first) == [second]


def _send_one(machine: Machine, to: str) -> tuple[Message, Packet[Any]]:
    message, [packet] = machine.send(to)
    assert isinstance(packet, Packet)
    return message, packet
