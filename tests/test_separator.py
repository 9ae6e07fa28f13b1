"""separator on many graphs, through random schedules, failures and joins: order, messages and sizes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from antecede.protocols import relay
from antecede.protocols.separator import Separator
from antecede.sim.run import RunSpec
from antecede.topology import Topology, shapes
from tests.router_world import (
    CHANGES,
    FOUND,
    GRAPHS,
    HUB,
    RULES,
    Arrival,
    Crash,
    World,
    worlds,
)

# Order, end to end


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
@pytest.mark.parametrize("topology", GRAPHS.values(), ids=GRAPHS)
def test_what_the_application_sees_is_causally_ordered(topology, rules):
    for _, world in zip(range(5), worlds(topology, **rules), strict=False):
        verdict = world.run(messages=14)
        assert verdict.ok, f"seed {world.seed}: {verdict}"
        for machine in world.machines.values():
            assert machine.waiting() == [], world.seed
            assert machine.snapshot()["state"]["retained"] == [], world.seed


@pytest.mark.parametrize("rules", [RULES["all"], RULES["without R9"], RULES["with R6.1"]])
@pytest.mark.parametrize(("topology", "changes"), CHANGES.values(), ids=CHANGES)
def test_order_and_messages_survive_failures_and_joins(topology, changes, rules, request):
    again = FOUND.get(request.node.callspec.id.rpartition("-")[0], [])
    for seed in (*range(10), *again):
        world = World(topology, seed, parameters=rules)
        verdict = world.run(16, changes)
        # Nobody owes a delivery to a process that failed, nor of what it had not sent to all.
        living = world.machines
        owed = tuple(c for c in verdict.undelivered if c.at in living and c.message[0] in living)
        skipped = tuple(one for one in verdict.skipped if one.overtaken[0] in living)
        assert replace(verdict, undelivered=owed, skipped=skipped).ok, f"seed {world.seed}: {verdict}"


@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_lone_router_is_replaced_from_stable_memory_or_by_a_checkpoint(checkpoints, monkeypatch):
    # Told at once that a hop has come, a source does not keep it for the next router.
    monkeypatch.setattr(relay, "EVERY", 1)
    lost = 0
    for _, world in zip(range(60), worlds(shapes.star(4)), strict=False):
        world.checkpoints = checkpoints
        verdict = world.run(16, HUB)
        assert not verdict.violations + verdict.duplicates, world.seed
        lost += len(verdict.undelivered)
    # What the failed had received and not sent on is in its stable memory alone.
    assert bool(lost) == checkpoints


def test_what_was_taken_back_from_a_lone_router_comes_before_what_follows_it():
    # Its neighbours keep what they sent to it, and one of them may follow what another keeps.
    for _, world in zip(range(100), worlds(shapes.star(3)), strict=False):
        world.checkpoints = True
        verdict = world.run(16, (Crash("hub"), Arrival("hub2", ("p1", "p2", "p3"), "hub")))
        assert not verdict.violations + verdict.duplicates, world.seed


def test_two_parts_that_are_connected_later():
    parts = Topology.of([("p1", "p2"), ("p3", "p4")], ["p1", "p2", "p3", "p4"], islands=True)
    assert Separator(parts.view, 0, parts).accepts(0, (3,)) == "no way leads from p1 to p4"
    crossed = 0
    for _, world in zip(range(20), worlds(parts), strict=False):
        verdict = world.run(25, [Arrival("r", ("p2", "p3"))])
        assert verdict.ok, f"seed {world.seed}: {verdict}"
        crossed += any(e.kind == "send" and e.process < 2 and max(e.to) > 1 for e in world.events)
    assert crossed > 10


# Sizes


def test_every_separator_that_filters_makes_stamps_smaller():
    groups = [[int(name[1:]) - 1 for name in members] for members in shapes.example_groups().values()]
    example = shapes.example()
    sizes = []
    for topology in (example.filter_at(), example.filter_at("d3"), example, example.filter_at_cuts()):
        world = World(topology, 7)
        world.slowness = 0
        for _ in range(300):
            group = world.random.choice(groups)
            world.send(world.random.choice(group), group)
            while world.network and world.random.random() < 0.9:
                world._arrive()
            while any(m.eligible() for m in world.machines.values()):
                world._take()
        sizes.append(sum(world.entries) / len(world.entries))
    assert sizes[0] > sizes[1] > sizes[2] > sizes[3]


def test_fewer_reports_make_fewer_packets_and_longer_stamps():
    packets, entries = [], []
    for rules in ({}, {"reports": 1}, {"reports": 1 << 30}):
        summary = RunSpec(
            protocol="separator",
            topology="wan-of-lans:zones=2,gateways=2",
            processes=6,
            messages=200,
            parameters=rules,
        )
        found = summary.build().finish()
        assert found.undelivered == 0
        packets.append(found.packets)
        entries.append(found.stamp_entries.mean)
    assert packets[0] > packets[1] > packets[2]
    assert entries[0] < entries[1] < entries[2]
