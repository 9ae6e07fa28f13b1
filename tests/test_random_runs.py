"""Random programs, random schedules, every protocol: the oracle judges each run by what the protocol promises."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antecede.errors import BadSnapshot
from antecede.model import Message, Packet, View
from antecede.oracle import check
from antecede.protocols import PROTOCOLS, create, restore
from antecede.protocols.machine import SNAPSHOT_VERSION
from tests.driver import NAMES, SKIPPED, VARIANTS, Habits, World, busy, drive, play

SEEDS = 60
"""Runs of each variant in the plain loop. One that fails says its number: `run(name, seed)` is that run."""

KNOWN_SEEDS: list[tuple[str, int]] = [
    ("history", 7),  # A restored machine listed the same history in another order in its stamps.
]
"""(variant, seed) of every run that ever failed."""

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "deliver", "arrive", "split"]), st.integers(0, 63), st.integers(0, 31)
    ),
    max_size=50,
)


def run(name: str, seed: int) -> World:
    random = Random(f"{name} {seed}")
    habits = Habits.draw(random)
    return drive(VARIANTS[name].machines(habits.n), habits, random)


def test_every_protocol_is_driven():
    assert {
        variant.protocol for variant in VARIANTS.values()
    } | SKIPPED.keys() == PROTOCOLS.keys() | SKIPPED.keys()


@pytest.mark.parametrize("name", VARIANTS)
def test_a_protocol_keeps_its_promise_in_seeded_runs(name):
    for seed in range(SEEDS):
        try:
            run(name, seed).check()
        except AssertionError as error:
            raise AssertionError(f"run({name!r}, {seed}): {error}") from error


def test_the_runs_that_once_failed_hold():
    for name, seed in KNOWN_SEEDS:
        run(name, seed).check()


@pytest.mark.parametrize("name", VARIANTS)
@settings(max_examples=50, deadline=None)
@given(n=st.integers(2, 5), steps=STEPS)
def test_a_protocol_keeps_its_promise_in_drawn_runs(name, n, steps):
    play(VARIANTS[name].machines(n), steps).check()


@pytest.mark.parametrize(
    ("protocol", "order"), [("unordered", "fifo"), ("unordered", "causal"), ("fifo", "causal")]
)
def test_the_driver_and_the_oracle_would_see_a_broken_promise(protocol, order):
    assert any(not run(protocol, seed).verdict().keeps(order) for seed in range(SEEDS))


def test_the_monitor_protocol_orders_at_the_monitor_only():
    worlds = [run("monitor", seed) for seed in range(SEEDS)]
    assert all(check(world.events, at=[0]).ok for world in worlds)
    assert any(not check(world.events, at=[1]).ok for world in worlds)


@pytest.mark.parametrize("name", VARIANTS)
def test_causal_order_holds_at_every_moment_of_a_run_that_is_cut_short(name):
    random = Random(f"cut {name}")
    for _ in range(10):
        habits = Habits.draw(random)
        world = drive(VARIANTS[name].machines(habits.n), habits, random)
        del world.events[random.randrange(len(world.events)) :]
        world.check(complete=False)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_same_inputs_give_the_same_effects(name):
    for seed in range(5):
        one, other = run(name, seed), run(name, seed)
        assert one.packets == other.packets
        assert one.events == other.events
        assert [m.snapshot() for m in one.machines] == [m.snapshot() for m in other.machines]


# Selective receive


@pytest.mark.parametrize("name", VARIANTS)
def test_an_application_that_picks_by_sender_breaks_nothing(name):
    """Each process takes all it can of one sender before it looks at the next; only then does anything else happen."""
    for seed in range(15):
        random = Random(f"picks {name} {seed}")
        habits = Habits(n=3 + seed % 2, messages=14, multicast=0.4, to_self=0.3)
        world = World(VARIANTS[name].machines(habits.n))
        preference = [random.sample(range(world.n), world.n) for _ in world.machines]
        for _ in range(habits.messages):
            sender = random.randrange(world.n)
            to = [q for q in range(world.n) if random.random() < 0.6] or [sender]
            if world.machines[sender].accepts(sender, tuple(to)) is not None:
                to = list(range(world.n))
            world.send(sender, to)
            for _ in range(random.randrange(4)):
                if world.network:
                    world.arrive(random.choice(world.list_arrivable()))
            take_by_preference(world, random.randrange(world.n), preference)
        while world.network or world.deliverable():
            if world.network:
                world.arrive(random.choice(world.list_arrivable()))
            take_by_preference(world, random.randrange(world.n), preference)
        world.check()


def take_by_preference(world: World, process: int, preference: list[list[int]]) -> None:
    for sender in preference[process]:
        while mine := [m for m in world.machines[process].eligible() if m.sender == sender]:
            world.deliver(process, mine[-1])


# Snapshots


@pytest.mark.parametrize("name", VARIANTS)
def test_a_snapshot_at_any_moment_survives_msgpack_and_goes_on_alike(name):
    for seed in range(15):
        random = Random(f"snapshots {name} {seed}")
        habits = Habits(n=3, messages=12, arrive=1.0, deliver=0.7, to_self=0.3, split=0.5)
        drive(VARIANTS[name].machines(3), habits, random).check()


@pytest.mark.parametrize("name", VARIANTS)
def test_equal_states_give_equal_bytes(name):
    for seed in range(5):
        for machine in run(name, seed).machines:
            snapshot = machine.snapshot()
            assert encode(restore(snapshot).snapshot()) == encode(snapshot)


@pytest.mark.parametrize("name", NAMES)
def test_a_snapshot_of_many_processes_survives_msgpack_too(name):
    """Sets of processes are bits, and an encoder may take no number of more than 64."""
    view = View.numbered(100)
    sender, receiver = create(name, view, 0), create(name, view, 99)
    _, effects = sender.send(range(100))
    for packet in effects:
        if isinstance(packet, Packet) and packet.dest == 99:
            for offer in receiver.receive(packet):
                if isinstance(offer, Message):
                    receiver.deliver(offer)
    sender.send(range(100))
    for machine in (sender, receiver):
        again = restore(msgspec.msgpack.decode(encode(machine.snapshot())))
        assert again.dump() == machine.dump()


def encode(value: object) -> bytes:
    return msgspec.msgpack.encode(value)


GARBAGE = {
    "no mapping": lambda s: {**s, "state": 7},
    "an empty state": lambda s: {**s, "state": {}},
    "a text for a count": lambda s: {**s, "state": {**s["state"], "sent": "many"}},
    "another version": lambda s: {**s, "antecede": SNAPSHOT_VERSION + 1},
    "no version": lambda s: {key: value for key, value in s.items() if key != "antecede"},
    "no state": lambda s: {key: value for key, value in s.items() if key != "state"},
    "an unknown protocol": lambda s: {**s, "protocol": "telepathy"},
    "a protocol that is no name": lambda s: {**s, "protocol": ["matrix"]},
    "another protocol": lambda s: {**s, "protocol": "fifo" if s["protocol"] != "fifo" else "matrix"},
    "a process outside the view": lambda s: {**s, "me": 3},
    "a process that is no process": lambda s: {**s, "me": None},
    "a larger view": lambda s: {**s, "view": [*s["view"], "p4"]},
    "a smaller view": lambda s: {**s, "view": s["view"][:2]},
    "a view that is none": lambda s: {**s, "view": 3},
    "a view with a process twice": lambda s: {**s, "view": ["p1", "p1", "p3"]},
    "unknown parameters": lambda s: {**s, "parameters": {**s["parameters"], "speed": 11}},
    "parameters that are none": lambda s: {**s, "parameters": 5},
}


FITS_ANY_VIEW = {"history": "histories name messages: nothing in them has the size of the view"}


@pytest.mark.parametrize("change", GARBAGE)
@pytest.mark.parametrize("name", NAMES)
def test_a_snapshot_that_is_none_is_refused(name, change):
    if name in FITS_ANY_VIEW and change in ("a larger view", "a smaller view"):
        return
    for machine in busy(name).machines:
        with pytest.raises(BadSnapshot):
            restore(GARBAGE[change](machine.snapshot()))


@pytest.mark.parametrize("name", NAMES)
def test_every_field_of_a_state_is_checked(name):
    """Whatever is put in place of one field of a state: it is refused, or it is the state of a machine that runs."""
    for machine in busy(name).machines:
        snapshot = machine.snapshot()
        for key in snapshot["state"]:
            for wrong in (None, "x", [None], [["x"]], {"x": "y"}, [{"stamp": 3}], 0.5):
                with pytest.raises(BadSnapshot):
                    restore({**snapshot, "state": {**snapshot["state"], key: wrong}})
            missing = {k: v for k, v in snapshot["state"].items() if k != key}
            with pytest.raises(BadSnapshot):
                restore({**snapshot, "state": missing})


@pytest.mark.parametrize("name", NAMES)
def test_a_refused_state_leaves_the_machine_as_it_was(name):
    for machine in busy(name).machines:
        before = machine.dump()
        for key in before:
            with pytest.raises(BadSnapshot):
                machine.load({**before, key: [None]})
            assert machine.dump() == before
