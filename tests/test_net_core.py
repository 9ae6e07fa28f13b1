"""A process as one state machine: replayed from its inputs it is the same, wherever the journal ends."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from antecede.errors import BadParameter, BadSnapshot, NotEligible
from antecede.model import View
from antecede.process.core import Core, Out
from antecede.process.inputs import Acknowledge, Arrive, Input, Restart, Send, Take, Turn
from antecede.protocols import PROTOCOLS

VIEW = View.numbered(3)


def essence(core: Core) -> dict[str, Any]:
    """What a restart must bring back: all but what a link learns again by itself."""
    snapshot = core.snapshot()
    known = ("epoch", "peer", "last", "received", "early", "kept")
    snapshot["links"] = [[peer, {name: link[name] for name in known}] for peer, link in snapshot["links"]]
    return snapshot


class World:
    """Three processes and the frames between them; every step is drawn."""

    def __init__(self, protocol: str, seed: str) -> None:
        self.random = Random(seed)
        self.cores = [Core.new(protocol, VIEW, me, epoch=1) for me in range(3)]
        self.journals: list[list[Input]] = [[], [], []]
        self.states = [[essence(core)] for core in self.cores]
        self.flying: list[tuple[int, Out]] = []
        self.everyone = protocol == "broadcast"
        self.now = 0
        for me, core in enumerate(self.cores):
            for peer, link in core.links.items():
                self.flying.append((me, (peer, link.hail())))

    def happen(self, me: int, given: Input) -> None:
        self.flying += [(me, out) for out in self.cores[me].apply(given, self.now)]
        self.journals[me].append(given)
        self.states[me].append(essence(self.cores[me]))

    def step(self) -> None:
        self.now += 1_000_000
        me = self.random.randrange(3)
        core = self.cores[me]
        for peer in core.links:
            self.flying += [(me, out) for out in core.tick(peer, self.now)]
        match self.random.choice(
            ["send", "arrive", "arrive", "arrive", "take", "acknowledge", "turn", "turn"]
        ):
            case "send":
                to = (
                    range(3) if self.everyone else self.random.sample(range(3), self.random.choice([1, 2, 3]))
                )
                self.happen(me, Send(tuple(sorted(to)), b"payload"))
            case "arrive" if self.flying:
                source, (dest, frame) = self.flying.pop(self.random.randrange(len(self.flying)))
                if frame.bare and not frame.greets:
                    self.flying += [(dest, out) for out in self.cores[dest].arrive(source, frame, self.now)]
                else:
                    self.happen(dest, Arrive.of(source, frame))
            case "take" if core.inbox:
                self.happen(me, Take(*self.random.choice(list(core.inbox))))
            case "turn" if core.gathered:
                self.happen(me, Turn())
            case "acknowledge" if core.taken:
                self.happen(me, Acknowledge(*self.random.choice(list(core.taken))))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_inputs_give_the_state_back_wherever_they_end(protocol):
    world = World(protocol, seed=f"{protocol} 1")
    for _ in range(250):
        world.step()
    assert sum(map(len, world.journals)) > 100
    for me, inputs in enumerate(world.journals):
        core = Core.new(protocol, VIEW, me, epoch=1)
        for given, state in zip(inputs, world.states[me][1:], strict=True):
            core.apply(given, 0)
            assert essence(core) == state


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_snapshot_gives_the_state_back_and_goes_on_the_same(protocol):
    world = World(protocol, seed=f"{protocol} 2")
    for _ in range(150):
        world.step()
    for me, core in enumerate(world.cores):
        data = msgspec.msgpack.encode(core.snapshot())
        world.cores[me] = Core.restore(msgspec.msgpack.decode(data))
        assert essence(world.cores[me]) == essence(core)
        assert list(world.cores[me].inbox) == list(core.inbox), "offers keep their order"
    for _ in range(100):
        world.step()


def test_what_was_taken_and_not_acknowledged_comes_again_first_and_in_its_order():
    core = Core.new("matrix", VIEW, 0, epoch=1)
    for _ in range(4):
        core.apply(Send((0,), b""), 0)
    for number in (1, 2, 3):
        core.apply(Take(0, number), 0)
    core.apply(Acknowledge(0, 2), 0)
    copy = Core.restore(core.snapshot())
    copy.apply(Restart(), 0)
    assert [message.number for message in copy.again] == [1, 3]
    assert list(copy.inbox) == [(0, 4)]
    assert copy.epoch == 2


def test_a_refused_input_changes_nothing():
    core = Core.new("matrix", VIEW, 0, epoch=1)
    before = core.snapshot()
    refused: list[tuple[Input, type[Exception]]] = [
        (Send((1,), bytes(2 << 20)), BadParameter),
        (Send((1,), b"", "\ud800"), BadParameter),
        (Take(1, 1), NotEligible),
    ]
    for given, error in refused:
        with pytest.raises(error):
            core.apply(given, 0)
    assert core.snapshot() == before


@pytest.mark.parametrize("field", ["antecede", "machine", "links", "inbox", "taken", "held", "out"])
def test_a_snapshot_without_a_part_is_refused(field):
    snapshot = Core.new("matrix", VIEW, 0, epoch=1).snapshot()
    del snapshot[field]
    with pytest.raises(BadSnapshot):
        Core.restore(snapshot)
