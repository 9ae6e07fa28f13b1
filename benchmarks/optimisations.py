"""What each optimisation saves: python -m benchmarks.optimisations [--messages 600] [--seed 1]

One load, one network, one seed, and each rule on and off; everything is counted in entries, bytes, packets and ticks,
so the table is the same on every machine. Load: overlapping groups of four in a ring of 8; a message goes to one
member (a half of them) or to the three others; every so often a process also tells itself. Network: a packet takes 1
to 30 ticks, whatever went before it; with channels that do not reorder, no less than the packet before it. Applications
take what is eligible at once.

The delay of a message's copy depends on the message and its destination alone. So two rules that decide alike deliver
alike, tick for tick: `Measured.deliveries` is equal, and tests hold the table to that.
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from antecede.model import Effect, Event, Id, Packet, View
from antecede.protocols import Machine, create
from antecede.protocols.history import History
from antecede.topology import shapes
from antecede.wire import stamp_size

N = 8
SLOWEST = 30
"""Ticks that a packet takes, at most. All that precedes a message was sent before it, so none is delivered later."""
Plan = Sequence[tuple[int, int, tuple[int, ...]]]
"""(tick, sender, destinations)"""


def plan(messages: int, seed: int, interval: int = 2) -> Plan:
    random = Random(seed)
    result = []
    for i in range(messages):
        first = 2 * random.randrange(N // 2)
        members = [(first + j) % N for j in range(4)]
        sender = random.choice(members)
        others = [q for q in members if q != sender]
        to = {random.choice(others)} if random.random() < 0.5 else set(others)
        if random.random() < 0.1:
            to.add(sender)
        result.append((interval * i, sender, tuple(sorted(to))))
    return result


@dataclass
class Measured:
    """One run."""

    messages: int = 0
    packets: int = 0
    control: int = 0
    entries: int = 0
    size: int = 0
    """Bytes of all stamps, control included."""
    ticks: int = 0
    """From the send of each message to each of its deliveries, together."""
    copies: int = 0
    known: int = 0
    """The sizes of H at all sends, together."""
    remembered: int = 0
    """The sizes of D at the end, together."""
    deliveries: list[tuple[int, int, Id]] = field(default_factory=list)
    """(tick, process, message)"""
    events: list[Event] = field(default_factory=list)
    """The run, for the oracle."""


def measure(make: Callable[[int], Machine], load: Plan, seed: int, fifo: bool = False) -> Measured:
    """Run the load to its end, over channels that reorder or not."""
    machines = [make(p) for p in range(make(0).n)]
    result = Measured(messages=len(load))
    order = count()
    queue: list[tuple[int, int, Any]] = [(tick, next(order), (sender, to)) for tick, sender, to in load]
    sent: dict[Id, int] = {}
    last: dict[tuple[int, int], int] = {}
    assert fifo or not machines[0].needs_fifo

    def follow(now: int, process: int, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Packet):
                _count(result, effect)
                arrival = now + _delay(effect, seed)
                if fifo:
                    channel = (effect.source, effect.dest)
                    arrival = last[channel] = max(arrival, last.get(channel, 0))
                heapq.heappush(queue, (arrival, next(order), effect))
            else:
                result.deliveries.append((now, process, effect.id))
                result.events.append(Event(process, "deliver", *effect.id))
                result.copies += 1
                result.ticks += now - sent[effect.id]
                follow(now, process, machines[process].deliver(effect))

    while queue:
        now, _, what = heapq.heappop(queue)
        here = machines[what.dest if isinstance(what, Packet) else what[0]]
        if isinstance(here, History):
            here.pass_time(now)
        if isinstance(what, Packet):
            follow(now, what.dest, machines[what.dest].receive(what))
        else:
            sender, to = what
            result.known += _count_known(machines[sender])
            message, effects = machines[sender].send(to)
            sent[message.id] = now
            result.events.append(Event(sender, "send", sender, message.number, to))
            follow(now, sender, effects)
    result.remembered = sum(len(m._delivered) for m in machines if isinstance(m, History))
    assert not any(machine.waiting() for machine in machines)
    result.deliveries.sort()
    return result


def _count(result: Measured, packet: Packet[Any]) -> None:
    result.size += stamp_size(packet)
    if packet.message is None:
        result.control += 1
    else:
        result.packets += 1
        result.entries += packet.stamp.entries(N)


def _delay(packet: Packet[Any], seed: int) -> int:
    number = packet.message.number if packet.message is not None else repr(packet.stamp)
    return Random(f"{seed} {packet.source} {packet.dest} {number}").randint(1, SLOWEST)


def _count_known(machine: Machine) -> int:
    return len(machine.histories()) if isinstance(machine, History) else 0


@dataclass(frozen=True)
class Row:
    """One optimisation: the protocol without it and with it."""

    name: str
    protocol: str
    without: dict[str, Any]
    using: dict[str, Any]
    fifo: bool = False
    """Whether both runs get channels that do not reorder."""
    interval: int = 2
    """Ticks from one message to the next: `buffer` cannot carry what the others can."""


SITES = {"topology": shapes.wan_of_lans(zones=2, size=N // 2)}
"""Two sites of four processes, two gateways each; messages travel over the gateways, hop by hop."""

BARE = {"r7": False, "r8": False}

ROWS = [
    Row("R5: D keeps the last of each sender", "history", {"r5": False}, {}),
    Row("R6.1: stamp with C too", "history", {}, {"r6_1": True}),
    Row("R6.4: later messages tell of all in H", "history", {"r6_4": False}, {}),
    Row("R7: leave out what was reported", "history", {"r7": False}, {}),
    Row("R8: remove what was reported to all", "history", {"r8": False}, {}),
    Row("R7 and R8", "history", {"r7": False, "r8": False}, {}),
    Row("R10: remove what stamps show to be delivered to all", "history", {}, {"r10": True}),
    Row("R10, without R8", "history", {"r8": False}, {"r8": False, "r10": True}),
    Row(
        "R10, without R7 and R8",
        "history",
        {"r7": False, "r8": False},
        {"r7": False, "r8": False, "r10": True},
    ),
    Row("delta: remove what is older than any delay", "history", {}, {"delta": SLOWEST}),
    Row("delta, without R8", "history", {"r8": False}, {"r8": False, "delta": SLOWEST}),
    Row(
        "delta, without R7 and R8",
        "history",
        {"r7": False, "r8": False},
        {"r7": False, "r8": False, "delta": SLOWEST},
    ),
    Row("R9: leave out what stays behind a separator", "separator", {**SITES, "r9": False}, SITES),
    Row("k = n + 1, against n * n", "bounded", {"k": N * N}, {"k": N + 1}),
    Row("footnote 4: pipelining", "buffer", {}, {"pipelined": True}, fifo=True, interval=8),
]


def make(protocol: str, parameters: dict[str, Any]) -> Callable[[int], Machine]:
    view = parameters["topology"].view if "topology" in parameters else View.numbered(N)
    return lambda process: create(protocol, view, process, **parameters)


def compare(row: Row, messages: int, seed: int) -> tuple[Measured, Measured]:
    load = plan(messages, seed, row.interval)
    without, using = (
        measure(make(row.protocol, parameters), load, seed, row.fifo)
        for parameters in (row.without, row.using)
    )
    return without, using


COLUMNS: list[tuple[str, Callable[[Measured], float]]] = [
    ("entries/packet", lambda m: m.entries / m.packets),
    ("bytes/packet", lambda m: m.size / m.packets),
    ("size of H", lambda m: m.known / m.messages),
    ("size of D", lambda m: m.remembered / N),
    ("control/message", lambda m: m.control / m.messages),
    ("ticks to delivery", lambda m: m.ticks / m.copies),
]


def table(messages: int, seed: int) -> str:
    lines = [
        "# What each optimisation saves",
        "",
        f"`python -m benchmarks.optimisations`: {messages} messages, {N} processes, seed {seed}. "
        "A cell has the figure without and with the optimisation; a single figure is that of both.",
        "",
        f"| optimisation | protocol | {' | '.join(name for name, _ in COLUMNS)} |",
        f"|---|---|{'---|' * len(COLUMNS)}",
    ]
    for row in ROWS:
        without, using = compare(row, messages, seed)
        cells = [_cell(value(without), value(using)) for _, value in COLUMNS]
        lines.append(f"| {row.name} | {row.protocol} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(without: float, using: float) -> str:
    if not without and not using:
        return ""
    return f"{without:.1f}" if without == using else f"{without:.1f} -> {using:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description="What each optimisation saves.")
    parser.add_argument("--messages", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(table(arguments.messages, arguments.seed))


if __name__ == "__main__":
    main()
