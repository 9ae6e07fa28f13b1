"""What stops when a process dies, for every protocol (Mattern & Fünfrocken 1995, section 5, leave the question open).

    python -m experiments.outages [--write]

Six processes send for eight seconds, each every 100 ms, over a network with exponential delays of 20 ms. p6, or a
router, dies at 2 s. At 6 s it comes back with its memory, or is removed: the others stop sending, `cut` it, let all
that is under way among them arrive, `forget` it, and go on, as nodes do when the view changes. Machines are the shipped
ones, driven without links: what is sent to a dead process waits for it, what it had handed to the network arrives.

  sender     p6 dies between the copies of a multicast to all others: p1 alone gets one. Nobody writes to p6.
  receiver   every message goes to one process, p6 among them.
  member     every message goes to three processes, p6 among them.
  router     the gateway that forwards, of two, between p1 to p3 and p4 to p6. All processes live.

Counted are messages among those that live, sent while it was dead: the share that was delivered while it was dead, the
rest by where it waits, and how long after its return, or its removal, the last of them was delivered.
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections.abc import Iterable, Sequence
from itertools import count
from random import Random
from typing import Any, NamedTuple

from antecede.model import Effect, Id, Message, Packet, View
from antecede.protocols import PROTOCOLS, Machine, create
from antecede.topology import Topology, shapes
from experiments.tables import format_table, write

N, DEAD = 6, 5
STEP_S, DELAY_S = 0.1, 0.02
DIES_S, AGAIN_S, LAST_SEND_S, END_S = 2.0, 6.0, 8.0, 60.0
ROLES = ("sender", "receiver", "member", "router")


class Outcome(NamedTuple):
    """Of the messages among the living that were sent during the outage."""

    expected: int
    meanwhile: int
    """Delivered while it was dead."""
    held: int
    unsent: int
    """Where the others were when it came back: at a receiver, or not let out by their sender."""
    longest_s: float
    """From the end of the outage to the last delivery; less than 0: before it."""
    lost: int


class Run:
    """One run. Time is a number of seconds; everything random comes from the seed."""

    def __init__(self, protocol: str, role: str, removed: bool, seed: int) -> None:
        self.protocol, self.role, self.removed = protocol, role, removed
        self.random = Random(f"{protocol} {role} {seed}")
        self.topology: Topology | None = None
        if PROTOCOLS[protocol].routed:
            self.topology = shapes.wan_of_lans(2, N // 2, gateways=2)
        view = View.numbered(N) if self.topology is None else self.topology.view
        parameters = {} if self.topology is None else {"topology": self.topology}
        self.machines: list[Machine] = [create(protocol, view, p, **parameters) for p in range(len(view))]
        self.dead = view.id("1.g1") if role == "router" else DEAD
        self.living = [p for p in range(N) if p != self.dead]
        self.queue: list[tuple[float, int, Any]] = []
        self.order = count()
        self.now = 0.0
        self.is_dead = self.changing = False
        self.waiting: list[Packet[Any]] = []
        """For the dead one."""
        self.under_way = 0
        self.last: dict[tuple[int, int], float] = {}
        """Channel -> the latest arrival, for protocols that rely on FIFO."""
        self.sent: dict[Id, tuple[float, tuple[int, ...]]] = {}
        self.delivered: dict[tuple[Id, int], float] = {}

    def at(self, time: float, what: Any) -> None:
        heapq.heappush(self.queue, (time, next(self.order), what))

    def run(self) -> Outcome:
        for p in range(N):
            self.at(self.random.random() * STEP_S, p)
        self.at(DIES_S, "dies")
        self.at(AGAIN_S, "again")
        held = unsent = 0
        while self.queue:
            self.now, _, what = heapq.heappop(self.queue)
            if what == "dies":
                self._die()
            elif what == "again":
                held, unsent = self._count_stuck()
                self._end_outage()
            elif isinstance(what, Packet):
                self._arrive(what)
            else:
                self._speak(what)
            if self.changing and not self.under_way:
                self._forget()
        return self._judge(held, unsent)

    # What happens

    def _speak(self, process: int) -> None:
        if self.now < LAST_SEND_S:
            self.at(self.now + STEP_S * self.random.uniform(0.5, 1.5), process)
        if (self.is_dead and process == self.dead) or self.changing or self.now >= LAST_SEND_S:
            return
        if self.removed and process == self.dead and self.now > AGAIN_S:
            return
        to = self._choose(process)
        if to:
            self._send(process, to)

    def _choose(self, process: int) -> tuple[int, ...]:
        if self.protocol == "broadcast":
            return tuple(range(N))
        avoid = self.role == "sender" or (self.removed and self.now > AGAIN_S)
        others = [p for p in range(N) if p != process and not (avoid and p == self.dead)]
        size = {"receiver": 1, "member": 3, "router": 2}.get(self.role, self.random.choice((1, 3)))
        return tuple(sorted(self.random.sample(others, size)))

    def _send(self, process: int, to: Sequence[int]) -> None:
        message, effects = self.machines[process].send(tuple(to))
        self.sent[message.id] = (self.now, message.to)
        self._follow(process, effects)

    def _follow(self, process: int, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Packet):
                self._transmit(effect)
        machine = self.machines[process]
        while process < N and (eligible := machine.eligible()):
            message: Message = eligible[0]
            self.delivered[message.id, process] = self.now
            self._follow_packets(machine.deliver(message))

    def _follow_packets(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Packet):
                self._transmit(effect)

    def _transmit(self, packet: Packet[Any]) -> None:
        channel = (packet.source, packet.dest)
        time = self.now + self.random.expovariate(1 / DELAY_S)
        if self.machines[packet.source].needs_fifo:
            time = self.last[channel] = max(time, self.last.get(channel, 0.0) + 1e-9)
        self.under_way += 1
        self.at(time, packet)

    def _arrive(self, packet: Packet[Any]) -> None:
        self.under_way -= 1
        if packet.dest == self.dead and self.is_dead:
            self.waiting.append(packet)
        elif not (self.removed and self.now > AGAIN_S and self.dead in (packet.source, packet.dest)):
            self._follow(packet.dest, self.machines[packet.dest].receive(packet))

    # The outage

    def _die(self) -> None:
        if self.role == "sender":
            to = tuple(range(N)) if self.protocol == "broadcast" else tuple(range(N - 1))
            _, effects = self.machines[self.dead].send(to)
            packets = [e for e in effects if isinstance(e, Packet)]
            for packet in packets:
                if packet.dest == 0 or packet.message is None or self.topology is not None:
                    self._transmit(packet)
                else:
                    self.waiting.append(packet)  # Its own journal has it: it leaves when the process is back.
        self.is_dead = True

    def _end_outage(self) -> None:
        if not self.removed:
            self.is_dead = False
            waiting, self.waiting = self.waiting, []
            for packet in waiting:
                self._transmit(packet)
            return
        self.waiting = []
        for vertex, machine in enumerate(self.machines):
            if vertex != self.dead:
                self._follow(vertex, machine.cut(self.dead))
        self.changing = True

    def _forget(self) -> None:
        moved = False
        for vertex, machine in enumerate(self.machines):
            if vertex != self.dead:
                while effects := machine.forget(self.dead):
                    moved = True
                    self._follow(vertex, effects)
        if not moved and not self.under_way:
            self.changing = False

    # What came of it

    def _among_living(self) -> dict[tuple[Id, int], float]:
        """(message, destination) -> when it was sent, for what counts."""
        return {
            (message, dest): time
            for message, (time, to) in self.sent.items()
            if DIES_S < time < AGAIN_S - 10 * DELAY_S and message[0] != self.dead
            for dest in to
            if dest != self.dead and dest != message[0]
        }

    def _count_stuck(self) -> tuple[int, int]:
        missing = [pair for pair in self._among_living() if pair not in self.delivered]
        unsent = {
            waiting.message.id
            for p in range(len(self.machines))
            if p != self.dead
            for waiting in self.machines[p].waiting()
            if waiting.where == "unsent"
        }
        held = sum(message not in unsent for message, _ in missing)
        return held, len(missing) - held

    def _judge(self, held: int, unsent: int) -> Outcome:
        expected = self._among_living()
        times = [self.delivered.get(pair) for pair in expected]
        done = [time for time in times if time is not None]
        meanwhile = sum(time <= AGAIN_S for time in done)
        return Outcome(
            len(times), meanwhile, held, unsent, max(done, default=0) - AGAIN_S, len(times) - len(done)
        )


SEEDS = 3


def describe(protocol: str, role: str) -> list[str]:
    """One line: what stops, where it waits, and how long until it goes on."""
    outcomes = {
        removed: [Run(protocol, role, removed, seed).run() for seed in range(SEEDS)]
        for removed in (False, True)
    }
    back, gone = outcomes[False], outcomes[True]
    expected = sum(one.expected for one in back)
    shares = [sum(getattr(one, name) for one in back) / expected for name in ("meanwhile", "held", "unsent")]
    return [
        f"`{protocol}`",
        role,
        *(f"{share:.0%}" for share in shares),
        _delay(back),
        _delay(gone),
        f"{sum(one.lost for one in gone) / sum(one.expected for one in gone):.1%}",
    ]


def _delay(outcomes: Sequence[Outcome]) -> str:
    if any(one.lost for one in outcomes) and all(one.longest_s <= 0 for one in outcomes):
        return "never"
    longest = max(one.longest_s for one in outcomes)
    return f"{longest * 1000:.0f} ms" if longest > 0 else "nothing waited"


def tables() -> dict[str, str]:
    lines = []
    for role in ROLES:
        for protocol, kind in PROTOCOLS.items():
            if (role == "router") == kind.routed or (role != "router" and kind.routed):
                lines.append(describe(protocol, role))
    header = [
        "protocol",
        "who dies",
        "delivered meanwhile",
        "held at receivers",
        "kept by senders",
        "after its return",
        "after its removal",
        "lost with it",
    ]
    return {"outages": format_table(header, lines)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.outages", description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the table into docs/results/outages.md")
    asked = parser.parse_args(arguments)
    made = tables()
    if asked.write:
        write("outages", made)
    else:
        print(*made.values(), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
