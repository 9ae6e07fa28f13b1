"""An exception at any call into a process: it comes out, nothing more is done or acknowledged, the journal goes on.

A world of processes whose view changes runs as drawn from a seed. One function of a part raises now and then, wherever
it is called. Whoever it happens to has failed: it is killed, and comes back from its journal. In the end the oracle
judges what all have sent and delivered, as in every other run of such a world.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from antecede.link import Frame, Link
from antecede.process import arrivals as arrivals_module
from antecede.process import core as core_module
from antecede.process import outbox as outbox_module
from antecede.process.events import Record
from antecede.process.inputs import Acknowledge, Input, Propose, Recorded, Time, Told, Turn, Waive, Withdraw
from antecede.process.outbox import Outgoing
from antecede.process.views import change as change_module
from antecede.process.views.change import Changing
from antecede.process.views.members import Joiner, Plan
from antecede.process.views.membership import Membership
from antecede.process.views.numbering import Numbering
from antecede.protocols.matrix import Matrix
from antecede.protocols.permit import Permit
from antecede.protocols.queue import Queue
from antecede.protocols.receiver import Receiver
from tests.view_world import Process, World

STEPS = 3000


class Boom(Exception):
    """What nobody expected."""


PARTS: dict[str, tuple[str, Any, str]] = {
    "machine": ("matrix", Matrix, "send receive_all _learn"),
    "receiver": ("matrix", Receiver, "deliver"),
    "permits": ("permit", Permit, "send receive_rows _receive"),
    "queue": ("permit", Queue, "deliver"),
    "link": ("matrix", Link, "send receive tick _make_bare _take_payload"),
    "outbox": ("permit", Outgoing, "take leave acknowledge control"),
    "core": ("permit", core_module.Core, "follow"),
    "events": ("matrix", Record, "event"),
    "views": (
        "matrix",
        Changing,
        "propose withdraw pass_on watch turn hear take_ready cut settle counts install part strangers",
    ),
    "membership": ("matrix", Membership, "ask hear _hear _stop _install _go _decide"),
    "numbering": ("matrix", Numbering, "outward seats"),
    "bundles": ("permit", arrivals_module, "decode_parts"),
    "encoding": ("permit", outbox_module, "encode_bundle"),
    "notes": ("matrix", change_module, "encode_note decode_note"),
}
PLACES = {
    f"{part}.{name}": (protocol, owner, name)
    for part, (protocol, owner, names) in PARTS.items()
    for name in names.split()
}


class Injector:
    """Raises in a function now and then, while it is armed."""

    def __init__(self, real: Callable[..., Any], seed: str) -> None:
        self.real, self.random = real, Random(seed)
        self.armed, self.raised = False, 0
        self.left = 0

    def __call__(self, *args: Any, **options: Any) -> Any:
        if not self.armed:
            return self.real(*args, **options)
        self.left -= 1
        if self.left >= 0:
            return self.real(*args, **options)
        self.left = self.random.choice((0, 1, 3, 40))
        self.raised += 1
        if self.random.random() < 0.5:
            # Half of the work may be done by then.
            self.real(*args, **options)
        raise Boom(f"number {self.raised}")

    def method(self) -> Callable[..., Any]:
        return lambda *args, **options: self(*args, **options)


class Faulty(World):
    """A world with an injector, which leaves alone what the tests work out for themselves."""

    def __init__(self, protocol: str, seed: str, injector: Injector) -> None:
        super().__init__(protocol, seed, drops=0.02)
        self.injector = injector

    def list_applied(self, process: Process) -> set[tuple[int, int]]:
        armed, self.injector.armed = self.injector.armed, False
        try:
            return super().list_applied(process)
        finally:
            self.injector.armed = armed


def fall(world: World, boom: Boom) -> Process:
    """The process that it happened to: it has failed, does nothing any more, and comes back from its journal."""
    [failed] = [process for process in world.alive() if process.core.failure is not None]
    core = failed.core
    assert core.failure is boom
    peer = next(iter(core.links), 0)
    inputs: list[Input] = [
        Turn(),
        Time(1),
        Recorded(0),
        Acknowledge(0, 1),
        Propose(Plan()),
        Waive(1),
        Told(1),
    ]
    calls: list[Callable[[], Any]] = [
        *[lambda given=given: core.apply(given, 0) for given in (*inputs, Withdraw(("x",)))],
        lambda: core.arrive(peer, Frame(1, 1, 1, 0, 0, b""), world.now),
        lambda: core.tick(peer, world.now),
        lambda: core.resume(peer, world.now),
        lambda: core.hail(peer),
        lambda: core.turn(world.now),
        core.snapshot,
    ]
    for call in calls:
        with pytest.raises(AssertionError, match="the process has failed: Boom"):
            call()
    world.crash(failed)
    return failed


@pytest.mark.parametrize("place", PLACES)
def test_an_exception_anywhere_ends_a_process_and_costs_nothing_that_was_acknowledged(place, monkeypatch):
    protocol, owner, name = PLACES[place]
    injector = Injector(getattr(owner, name), f"{place} 2")
    world = Faulty(protocol, f"{place} 1", injector)
    monkeypatch.setattr(owner, name, injector.method())

    def run_injected(act: Callable[[], None]) -> None:
        injector.armed = injector.raised < 6
        try:
            act()
        except Boom as boom:
            injector.armed = False
            fall(world, boom)
        finally:
            injector.armed = False

    for step in range(STEPS):
        run_injected(world.step)
        if step == 80:
            run_injected(lambda: world.join("d"))
        if step == 700:
            run_injected(lambda: world.ask("b", Plan(join=(Joiner("ghost", "", (), "b"),))))
            world.asked.pop()
            run_injected(lambda: world.happen(world.processes["b"], Withdraw(("ghost",))))
        if step == 1200 and any(process.name == "c" for process in world.alive()):
            world.crash(world.processes["c"], for_good=True)
            run_injected(lambda: world.ask("a", Plan(remove=("c",))))
        if step % 50 == 0:
            run_injected(world.repeat)
    ghosts = [name for name in world.processes["a"].core.changing.roll.shown if name == "ghost"]
    for ghost in ghosts:
        world.processes[ghost].dead = True
        world.ask("a", Plan(remove=(ghost,)))
    world.settle()
    world.judge()
    assert injector.raised, "it was never called"
