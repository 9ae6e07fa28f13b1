"""What each protocol costs: python -m benchmarks.protocols [--quick | --bytecodes] [--out FILE]

Peer and limit: `fifo`, in the same run, on the same load. Ratios carry over to other machines; times do not.

Two tables.
1. Cost of a message through send, receive and deliver, on one core, at n = 8, 64 and 256, under two loads that every
   protocol shares with its own run of `fifo`:
     uniform  anyone sends to anyone, one destination
     groups   overlapping groups of four in a ring, a message goes to the three others
   `broadcast` sends to everyone and is set against a `fifo` that does the same; `separator` runs over a wide-area
   network of local networks, two gateways each, where a message takes several hops. So it is set against `fifo` by the
   hop: the time for each packet with a message that is sent, routers' copies included.
   A network in memory keeps 16 packets in flight and lets them overtake each other.
   The bound, beside each ratio, is what plain Python needs for the same packets and entries: a packet of `fifo` for
   every packet, control too, and the rules of the protocol as one function on dictionaries and tuples that writes the
   same stamps (`benchmarks.protocols_bare`). For `contexts` and `sparing` it is less: one step of a loop that checks
   an entry and one that looks it up. Counts that are copied as bytes (`matrix`, `monitor`, `broadcast`) and control
   that is one number (`buffer`, `permit`, `underway`) are no entries to loop over, and have no bound here.
2. Waking: the cost of a message when 1,000 and when 100,000 held messages are released by one arrival.
"""

from __future__ import annotations

import argparse
import gc
import random
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from antecede.model import Effect, Message, Packet, View
from antecede.protocols import PROTOCOLS, Machine, create
from antecede.topology import shapes
from antecede.wire import Limits, stamp_size
from benchmarks.protocols_bare import BARE, Tape, time_bare

SIZES = (8, 64, 256)
WINDOW = 16
LIMITS = Limits(processes=4096, entries=1 << 24, packet_bytes=1 << 28)

Plan = Sequence[tuple[int, tuple[int, ...]]]


def uniform(n: int, messages: int) -> Plan:
    rng = random.Random(n)
    return [(rng.randrange(n), (rng.randrange(n),)) for _ in range(messages)]


def groups(n: int, messages: int) -> Plan:
    rng = random.Random(n)
    plan = []
    for _ in range(messages):
        first = 2 * rng.randrange(n // 2)
        members = [(first + i) % n for i in range(4)]
        sender = rng.choice(members)
        plan.append((sender, tuple(sorted(set(members) - {sender}))))
    return plan


def everyone(n: int, messages: int) -> Plan:
    rng = random.Random(n)
    return [(rng.randrange(n), tuple(range(n))) for _ in range(messages)]


LOADS: dict[str, Callable[[int, int], Plan]] = {"uniform": uniform, "groups": groups, "everyone": everyone}


@dataclass
class Run:
    """One run of one protocol over one plan."""

    machines: list[Machine]
    network: list[Packet[Any]] = field(default_factory=list)
    delivered: int = 0
    control: int = 0
    hops: int = 0
    stamps: list[Packet[Any]] = field(default_factory=list)
    seconds: float = 0.0

    def drive(self, plan: Plan, sample: int = 0) -> Run:
        """Run the plan. With `sample`, keep every so many packets for measuring their stamps, off the clock."""
        rng = random.Random(len(plan))
        picks = [rng.randrange(WINDOW) for _ in range(4096)]
        turn = 0
        network, machines = self.network, self.machines
        began = time.process_time()
        for sender, to in plan:
            machine = machines[sender]
            self._absorb(machine, machine.send(to)[1], sample)
            while len(network) >= WINDOW:
                turn = (turn + 1) & 4095
                self._arrive(picks[turn], sample)
        while network:
            self._arrive(rng.randrange(len(network)), sample)
        self.seconds = time.process_time() - began
        return self

    def _arrive(self, position: int, sample: int) -> None:
        network = self.network
        packet = network[position]
        network[position] = network[-1]
        network.pop()
        machine = self.machines[packet.dest]
        self._absorb(machine, machine.receive(packet), sample)

    def _absorb(self, machine: Machine, effects: list[Effect], sample: int) -> None:
        todo = list(effects)
        while todo:
            effect = todo.pop()
            if type(effect) is Message:
                self.delivered += 1
                todo += machine.deliver(effect)
            else:
                self.network.append(effect)  # type: ignore[arg-type]
                if sample:
                    self.control += effect.message is None  # type: ignore[union-attr]
                    self.hops += effect.message is not None  # type: ignore[union-attr]
                    if len(self.stamps) < 20_000 and self.delivered % sample == 0:
                        self.stamps.append(effect)  # type: ignore[arg-type]


def machines(protocol: str, n: int) -> list[Machine]:
    if protocol == "separator":
        return _make_routed(n)
    view = View.numbered(n)
    return [create(protocol, view, process) for process in range(n)]


def _make_routed(n: int) -> list[Machine]:
    shape = shapes.wan_of_lans(zones=max(2, n // 8), size=min(8, n // 2))
    return [create("separator", shape.view, vertex, topology=shape) for vertex in shape.view.names]


@dataclass(frozen=True)
class Cost:
    microseconds: float
    entries: float
    stamp_bytes: float
    state_bytes: float
    control: float
    hops: float
    """Packets with a message for each delivery."""
    carried: float
    """Entries for each delivery, of all packets, control too."""
    bare: float | None
    """Microseconds of bare loops for these, where there are such."""

    @property
    def microseconds_a_hop(self) -> float:
        return self.microseconds / self.hops

    def microseconds_of_packets(self, fifo: Cost) -> float:
        """What `fifo` takes for as many packets."""
        return fifo.microseconds_a_hop * (self.hops + self.control)

    def microseconds_an_entry(self, fifo: Cost) -> str:
        """What a delivery costs beyond as many packets of `fifo`, for each entry that they carry."""
        if self.carried < 1:
            return ""
        return f"{(self.microseconds - self.microseconds_of_packets(fifo)) / self.carried:.2f}"

    def find_bound(self, fifo: Cost) -> tuple[str, str]:
        """What plain Python needs for the same packets and entries, as a ratio to `fifo`; and our ratio to that."""
        if self.bare is None:
            return "", ""
        bound = self.microseconds_of_packets(fifo) + self.bare
        return f"{bound / fifo.microseconds:.2f}", f"{self.microseconds / bound:.2f}"


BOUNDS = """What bounds each, in plain Python: `history` and `separator` by the entries of a stamp, of which more than
half are new to the receiver on groups: each becomes a record, which grows once or twice and is removed again;
`separator` besides by what a vertex does about a hop: it finds the way, and a copy goes to the member that stands by,
which keeps it, confirms it and clears it; `optimal` by the rows of its log that sender and receiver do not share;
`bounded` by its extra messages (control / delivery): each is a packet of its own, so the ratio is at least one more
than their number, without any entry. An entry's µs are what a delivery costs beyond as many packets of `fifo`, control
too, for each entry that these carry; where there are fewer than five entries, they are mostly the packet's own."""


def cost(protocol: str, n: int, load: str, messages: int, repeats: int) -> Cost:
    plan = LOADS[load](n, messages)
    recorded = machines(protocol, n)
    tape = Tape(recorded) if protocol in BARE else None
    sampled = Run(recorded).drive(plan, sample=max(1, messages // 500))
    times, bare = [], []
    for _ in range(repeats):
        gc.collect()
        run = Run(machines(protocol, n)).drive(plan)
        times.append(run.seconds / run.delivered)
        if tape:
            # In turns, so that both meet the same machine.
            bare.append(1e6 * time_bare(protocol, tape) / run.delivered)
    size = len(sampled.machines)
    stamps = [packet for packet in sampled.stamps if packet.message is not None]
    hops, control = sampled.hops / sampled.delivered, sampled.control / sampled.delivered
    sizes = [packet.stamp.entries(size) for packet in sampled.stamps]
    carried = mean(sizes) * (hops + control)
    if protocol in LOOKED_UP:
        bare = [carried * time_bare_entry(sizes)]
    return Cost(
        1e6 * min(times),
        mean(packet.stamp.entries(size) for packet in stamps),
        mean(stamp_size(packet, LIMITS) for packet in stamps),
        mean(len(msgspec.msgpack.encode(machine.snapshot()["state"])) for machine in sampled.machines),
        control,
        hops,
        carried,
        min(bare, default=None),
    )


LOOKED_UP = ("contexts", "sparing")
"""Protocols whose bound is a look at every entry."""


def time_bare_entry(sizes: Sequence[int]) -> float:
    """Microseconds for an entry of stamps of these sizes in the barest loops that check entries and look them up."""
    stamps = [[(at, turn) for at in range(size)] for turn, size in enumerate(sizes[:2_000], 1)]
    known: dict[int, int] = {}
    began = time.process_time()
    for stamp in stamps:
        for key, count in stamp:
            if key < 0 or count < 1:
                raise AssertionError(key, count)
        for key, count in stamp:
            if known.get(key, 0) < count:
                known[key] = count
    return 1e6 * (time.process_time() - began) / max(1, sum(map(len, stamps)))


def mean(values: Iterable[float]) -> float:
    collected = list(values)
    return sum(collected) / len(collected) if collected else 0.0


def messages_for(protocol: str, n: int, load: str, quick: bool) -> int:
    """Enough to be past the start, where histories are empty, and not so many that a table takes an hour."""
    if load == "everyone":
        return max(40, 20_000 // n) // (10 if quick else 1)
    entries = ("history", "optimal", "bounded", "separator", "contexts", "sparing", "underway")
    count = 2_000 if protocol in entries else 10_000
    if protocol == "separator" and load == "uniform" and n > 64:
        # Anyone to anyone over one network of 32: stamps of hundreds of entries on every hop.
        count = 500
    return count // (10 if quick else 1)


def cost_table(quick: bool, repeats: int, loads: Sequence[str], only: Sequence[str]) -> list[str]:
    lines = [
        "| load | n | protocol | µs a delivery | ratio to fifo | bound | ratio to bound | hops / delivery "
        "| ratio a hop | stamp entries | entries / delivery | µs an entry | stamp bytes | control / delivery "
        "| state bytes |",
        "|---|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for load in loads:
        for n in SIZES[:2] if quick else SIZES:
            base = cost("fifo", n, load, messages_for("fifo", n, load, quick), repeats)
            for protocol in only:
                if protocol == "broadcast" and load != "everyone":
                    continue
                if load == "everyone" and protocol not in ("fifo", "broadcast", "matrix", "permit", "buffer"):
                    continue
                found = (
                    base
                    if protocol == "fifo"
                    else cost(protocol, n, load, messages_for(protocol, n, load, quick), repeats)
                )
                lines.append(
                    f"| {load} | {n} | {protocol} | {found.microseconds:.1f} "
                    f"| {found.microseconds / base.microseconds:.2f} "
                    f"| {' | '.join(found.find_bound(base))} | {found.hops:.2f} "
                    f"| {found.microseconds_a_hop / base.microseconds_a_hop:.2f} "
                    f"| {found.entries:.1f} | {found.carried:.1f} "
                    f"| {found.microseconds_an_entry(base)} | {found.stamp_bytes:.1f} "
                    f"| {found.control:.2f} | {found.state_bytes:.0f} |"
                )
                print(lines[-1], file=sys.stderr, flush=True)
    return lines


# Bytecodes


def count_bytecodes(protocol: str, n: int, load: str, messages: int) -> tuple[float, float]:
    """Bytecodes of the machines for each delivery and for each hop: the same on every machine, busy or not."""
    counted = 0

    def trace(frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        nonlocal counted
        if event == "call":
            if "antecede" not in frame.f_code.co_filename:
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            counted += 1
        return trace

    run = Run(machines(protocol, n))
    sys.settrace(trace)
    try:
        run.drive(LOADS[load](n, messages), sample=messages)
    finally:
        sys.settrace(None)
    return counted / run.delivered, counted / max(1, run.hops)


def bytecode_table() -> list[str]:
    lines = [
        "| load | n | protocol | bytecodes a delivery | ratio to fifo | bytecodes a hop | ratio a hop |",
        "|---|--:|---|--:|--:|--:|--:|",
    ]
    for load in ("groups", "uniform"):
        for n in SIZES:
            base = count_bytecodes("fifo", n, load, 2_000)
            for protocol in ("fifo", "matrix", "history", "optimal", "bounded", "sparing", "separator"):
                if protocol == "separator" and load == "uniform" and n > 64:
                    continue
                delivery, hop = count_bytecodes(protocol, n, load, 2_000)
                lines.append(
                    f"| {load} | {n} | {protocol} | {delivery:.0f} | {delivery / base[0]:.2f} | {hop:.0f} "
                    f"| {hop / base[1]:.2f} |"
                )
                print(lines[-1], file=sys.stderr, flush=True)
    return lines


# Waking


def time_release(protocol: str, held: int) -> float:
    """Microseconds a message to release this many held messages, after one packet arrives last."""
    view = View.numbered(3)
    parameters = {"monitor": 2} if protocol == "monitor" else {}
    nodes = [create(protocol, view, process, **parameters) for process in range(3)]
    everyone_else = (0, 1, 2) if protocol == "broadcast" else (2,)
    first_to = (1, 2) if protocol == "buffer" else everyone_else
    network: list[Packet[Any]] = []
    _settle(nodes[0], nodes[0].send(first_to)[1], network)
    late = [packet for packet in network if packet.dest == 2 and packet.message is not None]
    _deliver_all(nodes, [packet for packet in network if packet not in late])
    if protocol == "buffer":
        return _time_buffer_release(nodes, late, held)
    for _ in range(held):
        flow: list[Packet[Any]] = []
        _settle(nodes[0], nodes[0].send(everyone_else)[1], flow)
        for packet in flow:
            if packet.dest == 2:
                assert not [e for e in nodes[2].receive(packet) if type(e) is Message]
    gc.collect()
    began = time.process_time()
    done = _drain(nodes[2], nodes[2].receive(late[0]))
    seconds = time.process_time() - began
    assert done == held + 1, (protocol, done)
    return 1e6 * seconds / done


def _time_buffer_release(nodes: list[Machine], late: list[Packet[Any]], held: int) -> float:
    """The head of the input buffer is a multicast whose other copy is unacknowledged; others queue up behind it."""
    acks: list[Packet[Any]] = []
    for effect in nodes[2].receive(late[0]):
        assert type(effect) is not Message
        acks.append(effect)  # type: ignore[arg-type]
    view = View.numbered(3)
    sender = create("buffer", view, 1)
    for _ in range(held):
        for effect in sender.send(2)[1]:
            for reply in nodes[2].receive(effect):  # type: ignore[arg-type]
                for nothing in sender.receive(reply):  # type: ignore[arg-type]
                    raise AssertionError(nothing)
    releases = [e for ack in acks for e in nodes[0].receive(ack)]
    release = next(e for e in releases if isinstance(e, Packet) and e.dest == 2)
    gc.collect()
    began = time.process_time()
    done = _drain(nodes[2], nodes[2].receive(release))
    seconds = time.process_time() - began
    assert done == held + 1
    return 1e6 * seconds / done


def _drain(machine: Machine, effects: list[Effect]) -> int:
    done = 0
    todo = list(effects)
    while todo:
        effect = todo.pop()
        if type(effect) is Message:
            done += 1
            todo += machine.deliver(effect)
    return done


def _settle(machine: Machine, effects: list[Effect], network: list[Packet[Any]]) -> None:
    todo = list(effects)
    while todo:
        effect = todo.pop()
        if type(effect) is Message:
            todo += machine.deliver(effect)
        else:
            network.append(effect)  # type: ignore[arg-type]


def _deliver_all(nodes: list[Machine], packets: list[Packet[Any]]) -> None:
    while packets:
        packet = packets.pop()
        more: list[Packet[Any]] = []
        _settle(nodes[packet.dest], nodes[packet.dest].receive(packet), more)
        packets += more


def wake_table(quick: bool, only: Sequence[str]) -> list[str]:
    few, many = (100, 1_000) if quick else (1_000, 100_000)
    lines = [
        f"| protocol | µs a message, {few:,} held | µs a message, {many:,} held | ratio |",
        "|---|--:|--:|--:|",
    ]
    for protocol in only:
        if protocol == "unordered":
            # It holds nothing.
            continue
        small = min(time_release(protocol, few) for _ in range(5))
        large = time_release(protocol, many)
        lines.append(f"| {protocol} | {small:.2f} | {large:.2f} | {large / small:.2f} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="What each protocol costs, beside fifo in the same run.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the load, to see that it works")
    parser.add_argument("--only", nargs="+", choices=PROTOCOLS, default=[*PROTOCOLS], help="protocols")
    parser.add_argument("--load", nargs="+", choices=LOADS, default=[*LOADS], help="loads")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each, of which the quickest counts")
    parser.add_argument(
        "--bytecodes",
        action="store_true",
        help="count bytecodes, which no busy machine changes, and nothing else",
    )
    parser.add_argument("--out", type=Path, help="also write the tables to this file")
    options = parser.parse_args()
    if options.bytecodes:
        print("\n".join(bytecode_table()))
        return
    version = ".".join(map(str, sys.version_info[:3]))
    text = "\n".join(
        [
            "# What each protocol costs",
            "",
            f"`{shlex.join(['python', '-m', 'benchmarks.protocols', *sys.argv[1:]])}`, Python {version}, one core. "
            "Compare ratios within a table, not times between machines.",
            "",
            *cost_table(options.quick, options.repeats, options.load, options.only),
            "",
            BOUNDS,
            "",
            "## Waking",
            "",
            *wake_table(options.quick, options.only),
            "",
        ]
    )
    print(text)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text)


if __name__ == "__main__":
    main()
