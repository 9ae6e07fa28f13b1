"""Every schedule of a small program, over a network that reorders at will.

What a schedule chooses: whose script goes on, which packet in flight arrives, which eligible message a process
delivers and when. All schedules together are a graph of global states, walked in layers from the start, so that the
first counterexample is a shortest one.

Checked
  order     at each delivery: nothing that happened before the message and is addressed here is still undelivered
  liveness  at each end (nothing can happen any more): all scripts are done, everything is delivered, nothing is held

Reduction: what is left out, and why nothing is lost
1. Where `Machine.arrivals_commute`, an arrival enables deliveries and changes nothing else: it commutes with every
   step of its process, so a packet may as well arrive at once. Arrivals are then no choices.
2. Steps of different processes commute; only a packet's way makes one process depend on another. Take a set C of
   processes to which no process outside of C can transmit any more. Then whatever the others do is independent of C's
   steps, before and after (C's steps are a persistent set), and it is enough to let C go on. Every partial order of
   events, so every delivery order of each process, every violation and every end keeps a representative.
   For protocols that transmit only when the application sends, what the scripts still have to send says who can
   transmit to whom; for protocols with packets of their own nothing is assumed.
The number of schedules is that of the paths through the reduced graph; `reduce=False` counts them all.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from antecede.errors import BadProgram, Unsupported
from antecede.model import mask
from antecede.program import Program, Receive, Send
from antecede.steps import Entry, Fault, Make, Move, Order, Posted, Steps, bit

__all__ = ["Exploration", "Explorer", "Finding", "explore"]

State: TypeAlias = tuple[int, ...]
"""The local state of each vertex, then the packets in flight."""

Taken: TypeAlias = tuple[int, Move | int]
"""A choice: at this vertex, this move, or the arrival of the packet with this number."""

LONGEST = 10_000
"""A schedule with more steps than this is taken to be endless: small programs end after a few dozen."""

CACHE = 2_000_000
"""Local states to remember before the tables start afresh."""


class Finding(Struct, frozen=True):
    """What is wrong, and the shortest way there."""

    kind: Literal["order", "blocked", "duplicate", "unaddressed", "refused", "broken", "endless"]
    at: int
    """The process where it shows; of a blocked run, the first that waits."""
    message: int
    """The bit number of the message that was delivered, or -1."""
    suspects: int
    """kind order: what it overtook, as bits."""
    path: tuple[Taken, ...]
    why: str = ""


class Exploration(Struct, frozen=True):
    """What the schedules of a program come to."""

    program: Program
    states: int
    transitions: int
    finished: int
    """Schedules that end with everything delivered."""
    blocked: int
    """Schedules that end otherwise."""
    complete: bool
    """Whether all were explored: not if something is wrong with a step, or the time was up."""
    finding: Finding | None = None

    @property
    def schedules(self) -> int:
        return self.finished + self.blocked

    @property
    def verdict(self) -> Literal["holds", "broken", "blocks", "never finishes", "unknown"]:
        """holds: every schedule keeps the order and finishes."""
        if self.finding is not None and self.finding.kind != "blocked":
            return "broken"
        if not self.complete:
            return "unknown"
        if not self.blocked:
            return "holds"
        return "blocks" if self.finished else "never finishes"


def explore(
    program: Program,
    make: Make,
    *,
    order: Order = "causal",
    reduce: bool = True,
    stop: Callable[[], bool] = lambda: False,
) -> Exploration:
    """Run every schedule of a program with the machines that `make` makes.

    >>> from antecede.program import parse
    >>> from antecede.protocols import create
    >>> triangle = parse("p1: send x to p3; send y to p2\\np2: receive y; send z to p3\\np3:")
    >>> explore(triangle, lambda p: create("matrix", triangle.view, p)).verdict
    'holds'
    >>> explore(triangle, lambda p: create("fifo", triangle.view, p)).verdict
    'broken'
    """
    return Explorer(make, order=order, reduce=reduce).run(program, stop)


class Explorer:
    """Explores programs with one protocol. What it learns about its machines serves all of them."""

    def __init__(self, make: Make, *, order: Order = "causal", reduce: bool = True) -> None:
        self.steps = Steps(make, order)
        self.instant = reduce and self.steps.commute
        self.reduce = reduce

    def run(self, program: Program, stop: Callable[[], bool] = lambda: False) -> Exploration:
        """Every schedule of the program. `stop` is asked now and then whether to give up."""
        if len(self.steps) > CACHE:
            self.steps.clear()
        _check(program, self.steps)
        return _Search(self, program, stop).run()


class _Wrong(Exception):
    """A step that must not be: ends the search of a program."""

    def __init__(self, taken: Taken, finding: Finding) -> None:
        self.taken, self.finding = taken, finding


class _Search:
    """The walk through one program's states."""

    def __init__(self, explorer: Explorer, program: Program, stop: Callable[[], bool]) -> None:
        steps = explorer.steps
        self.program, self.stop, self.steps = program, stop, steps
        self.n = n = steps.n
        numbers = {name: bit(message, n) for name, message in program.messages.items()}
        self.addressed = [mask(numbers[m] for m in program.addressed(p)) for p in range(n)]
        scripts = [*program.scripts, *[()] * (n - len(program.scripts))]
        self.scripts = [(script, tuple(_awaited(step, numbers) for step in script)) for script in scripts]
        self.tables = [steps.entries(*script) for script in self.scripts]
        self.reduce = explorer.reduce and steps.direct
        self.groups: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.expand = self._expand_instant if explorer.instant else self._expand_network
        self.layers: list[dict[State, int]] = []
        self.states = self.transitions = self.finished = self.blocked = 0
        self.finding: Finding | None = None

    def run(self) -> Exploration:
        layer = {tuple(self.steps.start(vertex) for vertex in range(self.n)): 1}
        complete = True
        try:
            while layer and complete:
                self.layers.append(layer)
                layer, complete = self._next(layer)
                if len(self.layers) > LONGEST:
                    raise _Wrong((-1, -1), Finding("endless", 0, -1, 0, (), f"more than {LONGEST} steps"))
        except _Wrong as wrong:
            self.finding, complete = wrong.finding, False
        return Exploration(
            self.program, self.states, self.transitions, self.finished, self.blocked, complete, self.finding
        )

    def _next(self, layer: dict[State, int]) -> tuple[dict[State, int], bool]:
        """The states one step on, each with the number of ways there; and whether there was time for all."""
        following: dict[State, int] = {}
        ways_to, expand = following.get, self.expand
        states = self.states
        for state, ways in layer.items():
            states += 1
            if not states & 1023 and self.stop():
                return following, False
            try:
                choices = expand(state)
            except _Wrong as wrong:
                path = (*self._path(state, len(self.layers) - 1), wrong.taken)
                raise _Wrong(wrong.taken, replace(wrong.finding, path=path)) from None
            if not choices:
                self._end(state, ways)
            self.transitions += len(choices)
            for after in choices:
                following[after] = ways_to(after, 0) + ways
        self.states = states
        return following, True

    # One step of the whole system

    def _entry(self, vertex: int, local: int) -> Entry:
        return self.steps.entry(local, *self.scripts[vertex])

    def _expand_instant(self, state: State) -> list[State]:
        """The states that one move leads to, when packets arrive at once."""
        result = []
        tables, addressed = self.tables, self.addressed
        for p in self._choose(state) if self.reduce else range(self.n):
            entry = tables[p].get(state[p]) or self._entry(p, state[p])
            for move in entry.moves:
                if move.fault or move.suspects & addressed[p]:
                    raise self._wrong(p, move)
                after = list(state)
                after[p] = move.local
                if move.packets:
                    self._arrive_all(after, move.packets, (p, move))
                result.append(tuple(after))
        return result

    def _arrive_all(self, locals_: list[int], packets: Posted, taken: Taken) -> None:
        arrivals = self.steps.arrivals
        for dest, packet in packets:
            arrived = arrivals.get((locals_[dest], packet)) or self.steps.arrive(locals_[dest], packet)
            if arrived.fault:
                raise _Wrong(taken, self._fault(dest, packet, arrived.fault))
            locals_[dest] = arrived.local
            if arrived.packets:
                self._arrive_all(locals_, arrived.packets, taken)

    def _expand_network(self, state: State) -> list[State]:
        """The states that one move or one arrival leads to."""
        n = self.n
        result = []
        locals_, flying = state[:n], state[n:]
        for p in self._choose(state) if self.reduce else range(n):
            entry = self.tables[p].get(state[p]) or self._entry(p, state[p])
            for move in entry.moves:
                if move.fault or move.suspects & self.addressed[p]:
                    raise self._wrong(p, move)
                result.append(self._after(locals_, p, move.local, flying, move.packets))
        for position, dest, packet in self._arriving(flying):
            arrived = self.steps.arrive(locals_[dest], packet)
            if arrived.fault:
                raise _Wrong((dest, packet), self._fault(dest, packet, arrived.fault))
            rest = flying[:position] + flying[position + 1 :]
            result.append(self._after(locals_, dest, arrived.local, rest, arrived.packets))
        return result

    def _after(self, locals_: State, at: int, local: int, flying: State, posted: Posted) -> State:
        if posted:
            packets = [*flying, *[packet for _, packet in posted]]
            packets.sort(key=self.steps.channel if self.steps.fifo else None)
            flying = tuple(packets)
        return (*locals_[:at], local, *locals_[at + 1 :], *flying)

    def _arriving(self, flying: State) -> list[tuple[int, int, int]]:
        """The packets that may arrive next: (position, destination, packet)."""
        result: list[tuple[int, int, int]] = []
        last: object = None
        for position, packet in enumerate(flying):
            # Equal packets are next to each other, and so are the packets of a FIFO channel.
            this = self.steps.channel(packet) if self.steps.fifo else packet
            if this != last:
                result.append((position, self.steps.packets[packet][0].dest, packet))
            last = this
        return result

    # Reduction

    def _choose(self, state: State) -> tuple[int, ...]:
        """The processes that go on in this state (rule 2)."""
        tables = self.tables
        situation = []
        for p in range(self.n):
            entry = tables[p].get(state[p]) or self._entry(p, state[p])
            situation.append(entry.situation)
        key = tuple(situation)
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = _least_closed(key)
        return group

    # What was found

    def _wrong(self, at: int, move: Move) -> _Wrong:
        if move.fault is not None:
            finding = Finding(move.fault.kind, at, move.number, 0, (), move.fault.why)
        else:
            finding = Finding("order", at, move.number, move.suspects & self.addressed[at], ())
        return _Wrong((at, move), finding)

    def _fault(self, dest: int, packet: int, fault: Fault) -> Finding:
        message = self.steps.packets[packet][0].message
        return Finding(fault.kind, dest, -1 if message is None else bit(message.id, self.n), 0, (), fault.why)

    def _end(self, state: State, ways: int) -> None:
        """Nothing can happen any more: is everything done?"""
        for vertex in range(self.n):
            local = self.steps.locals[state[vertex]]
            done = (
                local.position == len(self.scripts[vertex][0]) and local.delivered == self.addressed[vertex]
            )
            if not done or self.steps.holds(state[vertex]):
                break
        else:
            self.finished += ways
            return
        self.blocked += ways
        if self.finding is None:
            self.finding = Finding("blocked", vertex, -1, 0, self._path(state, len(self.layers) - 1))

    def _path(self, state: State, depth: int) -> tuple[Taken, ...]:
        """A way from the start to a state of this layer, found backwards: the walk itself keeps no parents."""
        path: list[Taken] = []
        for layer in reversed(self.layers[:depth]):
            for before in layer:
                choices = self.expand(before)
                if state in choices:
                    path.append(self._taken(before)[choices.index(state)])
                    state = before
                    break
            else:
                raise AssertionError("a state that no other leads to")
        return tuple(reversed(path))

    def _taken(self, state: State) -> list[Taken]:
        """The choices in a state, in the order in which `expand` follows them."""
        result: list[Taken] = []
        for p in self._choose(state) if self.reduce else range(self.n):
            result += [(p, move) for move in self._entry(p, state[p]).moves]
        return result + [(dest, packet) for _, dest, packet in self._arriving(state[self.n :])]


def _check(program: Program, steps: Steps) -> None:
    """Refuse a program that these machines cannot run."""
    if len(program.processes) > steps.n:
        raise BadProgram(
            "program", f"{len(program.processes)} processes", f"at most {steps.n}, one a machine"
        )
    for process, step in program.sends:
        machine = steps.make(process)
        refusal = machine.accepts(process, step.to)
        if refusal is not None:
            raise Unsupported(machine.name, f"message {step.name}: {refusal}")
        if step.label and not machine.labels:
            raise Unsupported(machine.name, f"message {step.name}: it does not order by label {step.label!r}")


def _awaited(step: Send | Receive, numbers: dict[str, int]) -> int:
    """The messages that a step waits for, as bits."""
    if isinstance(step, Send):
        return mask(numbers[name] for name in step.after)
    return 0 if step.name is None else 1 << numbers[step.name]


def _least_closed(situation: tuple[int, ...]) -> tuple[int, ...]:
    """The smallest set of processes that can do something and that no other process can transmit to."""
    n = len(situation)
    senders = [mask(p for p in range(n) if p != q and situation[p] >> q + 1 & 1) for q in range(n)]
    for size in range(1, n + 1):
        for group in combinations(range(n), size):
            inside = mask(group)
            if all(not senders[q] & ~inside for q in group) and any(situation[p] & 1 for p in group):
                return group
    return tuple(range(n))
