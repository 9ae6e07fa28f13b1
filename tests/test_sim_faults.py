"""Faults: what a text means, what a journal gives back, and that no message is lost or repeated in any of it."""

from __future__ import annotations

from random import Random as Dice
from typing import Any

import msgspec
import pytest

from antecede.errors import AntecedeError, BadParameter, PeerError, UnknownProcess
from antecede.link import Frame, Link
from antecede.model import Event, Packet, View
from antecede.oracle import check as judge
from antecede.process.core import Core
from antecede.process.inputs import (
    Acknowledge,
    Arrive,
    Input,
    Restart,
    Send,
    Take,
    Turn,
    decode_inputs,
    encode_inputs,
)
from antecede.process.views.members import Roll
from antecede.protocols import PROTOCOLS, create
from antecede.sim import RunSpec, processes
from antecede.sim.checking import Checker
from antecede.sim.faults import Always, Outage, Partition, Random, check, needs_journal, needs_links, parse
from antecede.sim.processes import Host
from antecede.trace.schema import SEND
from antecede.wire import Limits
from antecede.wire.bundles import encode_bundle
from antecede.wire.frames import encode_frame

SECOND = 10**9


# Texts


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("loss:1%", Always("loss", 2**32 // 100)),
        ("duplicate:0.25", Always("duplicate", 2**30)),
        ("partition:p1,p2|p3@2s-5s", Partition((("p1", "p2"), ("p3",)), 2 * SECOND, 5 * SECOND)),
        ("pause:p2@1s-3s", Outage("pause", "p2", SECOND, 3 * SECOND)),
        ("crash:p3@0-1.5s", Outage("crash", "p3", 0, 3 * SECOND // 2)),
        ("crash:random:mean=10s,down=1s", Random("crash", 10 * SECOND, SECOND)),
        ("partition:random:rate=0.5/s", Random("partition", 2 * SECOND, SECOND)),
        ("pause:random", Random("pause", 10 * SECOND, SECOND)),
    ],
)
def test_a_text_means_a_fault_and_back(text, fault):
    assert parse(text) == (fault,)
    assert parse(str(fault)) == (fault,)


def test_several_faults_and_none():
    assert parse("none") == parse("") == ()
    assert parse("loss:1%; pause:p1@1s-2s") == parse(["loss:1%", "pause:p1@1s-2s"])


@pytest.mark.parametrize(
    "text",
    [
        "lost:1%",
        "loss:120%",
        "loss:95%",
        "loss",
        "crash:p1",
        "crash:p1@2s",
        "crash:p1@4s-2s",
        "crash:@1s-2s",
        "crash:p1@now-later",
        "partition:p1,p2|p2@1s-2s",
        "partition:|p2@1s-2s",
        "crash:random:mean=0,down=1s",
        "crash:random:men=1s",
    ],
)
def test_a_text_that_means_nothing_is_refused(text):
    with pytest.raises(BadParameter, match="faults"):
        parse(text)


def test_faults_are_of_processes_that_are_there_and_one_at_a_time():
    view = View.numbered(3)
    check(parse("crash:p1@1s-2s; crash:p1@3s-4s; pause:p2@1s-4s; partition:p1|p3@1s-9s"), view)
    with pytest.raises(UnknownProcess):
        check(parse("crash:p4@1s-2s"), view)
    with pytest.raises(UnknownProcess):
        check(parse("partition:p1|p4@1s-2s"), view)
    with pytest.raises(BadParameter, match="during"):
        check(parse("crash:p1@1s-3s; pause:p1@2s-4s"), view)


def test_what_faults_need():
    assert not needs_links(parse("pause:p1@1s-2s; pause:random"))
    assert needs_links(parse("partition:p1|p2@1s-2s"))
    assert not needs_journal(parse("loss:1%; pause:random"))
    assert needs_journal(parse("crash:random"))


# The journal, and its rule


class Process:
    """A process as a node drives it: its journal on a slow disk, and what follows from an input waits for it."""

    def __init__(self, protocol: str, n: int, me: int, early: bool) -> None:
        self.me, self.early = me, early
        """early: effects leave before they are durable, against the rule."""
        machine = create(protocol, View.numbered(n), me)
        links = {
            peer: Link(timeout_ns=1000, least_timeout_ns=1, ordered=machine.needs_fifo)
            for peer in range(n)
            if peer != me
        }
        self.core = Core(machine, links, Limits(), Roll.first(machine.view.names, {}), 1, {}, 256)
        self.journal: list[bytes] = []
        self.durable = 0
        self.state = msgspec.msgpack.encode(self.core.snapshot())
        self.outbox: list[Any] = []

    def give(self, given: Input, now: int) -> None:
        self.outbox += self.core.apply(given, now)
        self.journal.append(encode_inputs([given]))

    def send(self, to: tuple[int, ...], now: int) -> None:
        self.give(Send(to, b""), now)
        self.outbox.append(Event(self.me, "send", self.me, self.core.sent, to))
        self.give(Turn(), now)

    def arrive(self, peer: int, frame: Any, now: int) -> None:
        if frame.bare and not frame.greets:
            self.outbox += self.core.arrive(peer, frame, now)
        else:
            self.give(Arrive.of(peer, frame), now)
        self.take(now)

    def take(self, now: int) -> None:
        while (message := self.core.next_message()) is not None:
            self.give(Take(*message.id), now)
            self.give(Acknowledge(*message.id), now)
            self.outbox.append(Event(self.me, "deliver", *message.id))
        if self.core.gathered:
            self.give(Turn(), now)

    def tick(self, now: int) -> None:
        for peer in self.core.links:
            self.outbox += self.core.tick(peer, now)

    def commit(self) -> list[Any]:
        self.durable = len(self.journal)
        released, self.outbox = self.outbox, []
        return released

    def release(self) -> list[Any]:
        if not self.early:
            return []
        released, self.outbox = self.outbox, []
        return released

    def crash(self) -> None:
        self.outbox = []
        del self.journal[self.durable :]
        self.core = Core.restore(msgspec.msgpack.decode(self.state))
        for record in self.journal:
            for given in decode_inputs(record):
                self.core.apply(given, 0)
        self.give(Restart(), 0)
        self.take(0)


def play(protocol: str, seed: int, early: bool, n: int = 3, steps: int = 400) -> list[Event]:
    """Random sends, arrivals, commits and crashes, and then an end in peace; what left the processes."""
    dice = Dice(seed)
    processes = [Process(protocol, n, me, early) for me in range(n)]
    flying: list[tuple[int, int, Any]] = []
    events: list[Event] = []

    def let_out(process: Process, released: list[Any]) -> None:
        for effect in released:
            if isinstance(effect, Event):
                events.append(effect)
            else:
                flying.append((process.me, *effect))

    for now in range(steps * 2):
        process = dice.choice(processes)
        peaceful = now > steps
        act = dice.random()
        if act < 0.2 and not peaceful:
            others = [p for p in range(n) if p != process.me]
            process.send(tuple(sorted(dice.sample(others, dice.randint(1, n - 1)))), now)
        elif act < 0.25 and not peaceful:
            process.crash()
        elif act < 0.6 and flying:
            source, dest, frame = flying.pop(dice.randrange(len(flying)))
            if peaceful or dice.random() < 0.9:
                processes[dest].arrive(source, frame, now)
                let_out(processes[dest], processes[dest].release())
        elif act < 0.7:
            process.tick(now * 1000)
        let_out(process, process.release())
        if dice.random() < 0.3 or peaceful:
            let_out(process, process.commit())
    for now in range(steps * 2, steps * 2 + 100):
        for process in processes:
            process.tick(now * 10**9)
            let_out(process, process.commit())
        arriving, flying[:] = flying[:], []
        for source, dest, frame in arriving:
            processes[dest].arrive(source, frame, now * 10**9)
            let_out(processes[dest], processes[dest].commit())
    assert not flying
    return events


SEEDS = range(25)


@pytest.mark.parametrize("protocol", ["fifo", "matrix", "permit"])
def test_what_is_durable_before_it_leaves_is_neither_lost_nor_repeated(protocol):
    for seed in SEEDS:
        verdict = judge(play(protocol, seed, early=False), 3)
        assert verdict.keeps(PROTOCOLS[protocol].order), f"seed {seed}: {verdict}"


def test_what_leaves_before_it_is_durable_is_lost_or_repeated():
    broken = 0
    for seed in SEEDS:
        try:
            broken += not judge(play("fifo", seed, early=True), 3).keeps("fifo")
        except (AntecedeError, AssertionError):
            broken += 1
    assert broken > len(SEEDS) // 2, "nearly every run"


def test_a_second_crash_does_not_repeat_what_came_before_the_first():
    a, b = Process("fifo", 2, 0, False), Process("fifo", 2, 1, False)
    a.send((1,), 0)
    [_, (_, frame)] = a.commit()
    for _ in range(2):
        a.crash()
        a.commit()
    assert a.core.links[1].unacknowledged == 1
    assert (a.core.links[1].epoch, a.core.sent) == (3, 1)
    with pytest.raises(PeerError):
        b.arrive(0, type(frame)(1, 9, 1, payload=frame.payload), 1)


def test_a_process_of_a_run_comes_back_from_the_bytes_of_its_journal():
    for every in (1, 3, 1000):
        host = Host(create("matrix", View.numbered(3), 0), every)
        for k in range(10):
            host.send((1 + k % 2,), b"payload")
            host.apply(Turn())
            before = host.core.snapshot()
            host.recover()
            assert host.core.snapshot() == before
    with pytest.raises(BadParameter):
        Host(create("matrix", View.numbered(3), 0), 0)


def test_what_crosses_the_network_is_counted_in_the_bytes_that_nodes_send():
    """One message: a frame with a bundle of one packet, and an acknowledgement."""
    spec = RunSpec(protocol="fifo", processes=2, messages=1, seed=1, faults="loss:0.0001%", workload="ring")
    simulation = spec.build()
    summary = simulation.finish()
    packet = create("fifo", View.numbered(2), 0).send(1, bytes(32))[1][0]
    assert isinstance(packet, Packet)
    bundle = encode_bundle([packet])
    assert summary.frames == 2
    assert summary.frame_bytes == len(bundle) + 3 + len(
        encode_frame(Frame(1, 1, 0, 1, 0, None, True), (1, 1))
    )


# In whole runs


def run(**fields: Any) -> tuple[list[Event], Any, Any]:
    simulation = RunSpec(**fields).build()
    checker = Checker(simulation, simulation.spec.messages)
    summary = simulation.finish()
    return checker.events, summary, checker.verdict()


FAULTS = {
    "loss and copies": "loss:10%;duplicate:10%",
    "partitions": "partition:random:mean=1s,down=500ms",
    "pauses": "pause:random:mean=500ms,down=500ms",
    "crashes": "crash:random:mean=300ms,down=300ms",
    "all": "loss:3%;duplicate:3%;partition:random:mean=2s,down=500ms;pause:random:mean=2s,down=300ms;"
    "crash:random:mean=1s,down=300ms",
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("faults", FAULTS)
def test_nothing_is_lost_or_repeated_under(protocol, faults):
    workload = (
        "broadcast" if protocol == "broadcast" else "uniform:size=2" if protocol != "monitor" else "monitor"
    )
    _, summary, verdict = run(
        protocol=protocol, processes=4, messages=150, seed=11, faults=FAULTS[faults], workload=workload
    )
    assert summary.undelivered == 0, summary.stuck
    assert verdict.keeps(PROTOCOLS[protocol].order), verdict
    assert bool(summary.crashes) == (faults in ("crashes", "all"))


def test_the_same_seed_gives_the_same_run():
    fields = {"protocol": "permit", "processes": 5, "messages": 200, "faults": FAULTS["all"]}
    assert run(**fields, seed=5)[0] == run(**fields, seed=5)[0]
    assert run(**fields, seed=5)[0] != run(**fields, seed=6)[0]


Row = tuple[int, int, int]
"""Time, process, kind."""


def rows(**fields: Any) -> list[Row]:
    found: list[Row] = []

    def record(
        process: int, kind: int, sender: int, number: int, to: Any, control: bool, time: int, *_: Any
    ) -> None:
        found.append((time, process, kind))

    RunSpec(**fields).build(record).finish()
    return found


@pytest.mark.parametrize("kind", ["pause", "crash"])
def test_a_process_that_does_not_run_does_nothing(kind):
    found = rows(protocol="fifo", processes=3, messages=300, faults=f"{kind}:p2@1s-4s")
    during = {process for time, process, _ in found if SECOND <= time < 4 * SECOND}
    after = {process for time, process, _ in found if time >= 4 * SECOND}
    assert during == {0, 2}
    assert after == {0, 1, 2}


def crossings(faults: str, start: int, end: int) -> set[tuple[int, int]]:
    """Who delivered something of whom that was sent within this time, before its end."""
    sends: dict[tuple[int, int], int] = {}
    found = set()

    def record(
        process: int, kind: int, sender: int, number: int, to: Any, control: bool, time: int, *_: Any
    ) -> None:
        if kind == 0:
            sends[sender, number] = time
        elif start <= sends[sender, number] and time < end:
            found.add((sender, process))

    RunSpec(protocol="unordered", processes=4, messages=800, faults=faults, network="constant:1ms").build(
        record
    ).finish()
    return found


def test_partitions_separate_and_heal_and_add_up():
    everyone = {(a, b) for a in range(4) for b in range(4) if a != b}
    two = "partition:p1,p2|p3,p4@2s-6s"
    assert crossings(two, 2 * SECOND, 6 * SECOND) == {(0, 1), (1, 0), (2, 3), (3, 2)}
    assert crossings(two, 6 * SECOND, 99 * SECOND) == everyone
    assert crossings(f"{two};partition:p1@3s-5s", 3 * SECOND, 5 * SECOND) == {(2, 3), (3, 2)}
    assert crossings(f"{two};partition:p1@3s-5s", 5 * SECOND, 6 * SECOND) == {(0, 1), (1, 0), (2, 3), (3, 2)}


def test_outages_that_meet_are_refused_before_the_run():
    with pytest.raises(BadParameter, match="during"):
        RunSpec(protocol="fifo", faults="crash:p1@1s-3s;pause:p1@2s-4s").build()


def test_a_journal_that_forgets_is_found_out(monkeypatch):
    def forget(inputs: list[Input]) -> bytes:
        return encode_inputs([given for given in inputs if not isinstance(given, Take)])

    monkeypatch.setattr(processes, "encode_inputs", forget)
    with pytest.raises((AssertionError, AntecedeError)):
        run(protocol="matrix", processes=3, messages=100, faults="crash:random:mean=300ms,down=100ms")


@pytest.mark.parametrize("faults", ["", "loss:5%"])
def test_the_trace_tells_the_sizes_of_stamps_with_and_without_faults(faults):
    simulation = RunSpec(protocol="matrix", processes=3, messages=50, seed=6, faults=faults).build()
    sizes = []
    simulation.record(
        lambda process, kind, sender, number, to, control, time, clock, entries, size, label: (
            sizes.append((entries, size)) if kind == SEND and not control else None
        )
    )
    summary = simulation.finish()
    assert len(sizes) == summary.sent
    assert all(entries == 9 and size > 0 for entries, size in sizes)
