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
   Only for protocols that transmit nothing but what the application sends: the rest of the scripts says who can
   transmit to whom.
3. Under a `Queue` one message is eligible at a time, and arrivals do not change which; its delivery transmits nothing.
   So at a process that has nothing left to send, the delivery commutes with all else, and may as well happen at once.
4. The same holds for the arrival of packets that the protocol declares to commute (`Machine.commuting`).
The number of schedules is that of the paths through the reduced graph; `reduce=False` counts them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from antecede.errors import BadProgram, Unsupported
from antecede.model import mask
from antecede.program import Program, Receive, Send, Step
from antecede.steps import Entry, Fault, Make, Move, Order, Posted, Steps, bit

__all__ = ["Exploration", "Explorer", "Finding", "explore", "validate"]

State: TypeAlias = tuple[int, ...]
"""The local state of each vertex, then the packets in flight."""

Taken: TypeAlias = tuple[int, Move | int]
"""A choice: at this vertex, this move, or the arrival of the packet with this number."""

Ready: TypeAlias = tuple[Iterable[int], Iterable[tuple[int, int, int]]]
"""The processes whose moves, and the arrivals (position, destination, packet) that are to be followed."""

Runs: TypeAlias = set[tuple[tuple[str, ...], ...]]

LONGEST = 100
"""Steps for each copy of a message, above which a schedule is taken to be endless."""

CACHE = 400_000
"""Local states to remember before the tables start afresh: 1 to 2 kB each with all that is known of them."""


class Finding(Struct, frozen=True):
    """What is wrong, and the shortest way there."""

    kind: Literal["order", "blocked", "duplicate", "unaddressed", "refused", "broken", "endless"]
    at: int
    """The process where it shows (of a blocked run, the first that waits), or -1."""
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
        validate(program, self.steps.make)
        return _Search(self, program, stop).run()

    def runs(self, program: Program) -> frozenset[tuple[tuple[str, ...], ...]]:
        """Every run there can be, whether it keeps the order or not: what each process sends and delivers, in order.

        >>> from antecede.program import parse
        >>> from antecede.protocols import create
        >>> two = parse("p1: send a to p2; send b to p2\\np2:")
        >>> for protocol in ("unordered", "fifo"):
        ...     runs = Explorer(lambda p: create(protocol, two.view, p)).runs(two)
        ...     sorted(p2 for _, p2 in runs)
        [('deliver a', 'deliver b'), ('deliver b', 'deliver a')]
        [('deliver a', 'deliver b')]
        """
        validate(program, self.steps.make)
        search = _Search(self, program, lambda: False)
        search.addressed = [0] * search.n
        return search.runs()


class _Wrong(Exception):
    """A step that must not be: ends the search of a program."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding


class _Search:
    """The walk through one program's states."""

    def __init__(self, explorer: Explorer, program: Program, stop: Callable[[], bool]) -> None:
        steps = explorer.steps
        self.program, self.stop, self.steps = program, stop, steps
        self.n = n = steps.n
        numbers = {name: bit(message, n) for name, message in program.messages.items()}
        self.addressed = [mask(numbers[m] for m in program.list_messages_to(p)) for p in range(n)]
        scripts = [*program.scripts, *[()] * (n - len(program.scripts))]
        self.scripts = [_nameless(script, numbers) for script in scripts]
        self.tables = [steps.entries(*script) for script in self.scripts]
        self.groups: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.expand = self._expand_instant if explorer.instant else self._expand_network
        self._ready: Callable[[State], Ready] = self._everyone
        if explorer.reduce:
            self._ready = self._pick_closed if steps.direct else self._pick_urgent
        self.layers: list[dict[State, int]] = []
        self.states = self.transitions = self.finished = self.blocked = 0
        self.finding: Finding | None = None

    def run(self) -> Exploration:
        layer = {tuple(self.steps.start(vertex) for vertex in range(self.n)): 1}
        longest = LONGEST * (1 + sum(len(step.to) for _, step in self.program.sends))
        complete = True
        try:
            while layer and complete:
                self.layers.append(layer)
                layer, complete = self._next(layer)
                if len(self.layers) > longest:
                    some = self._path(next(iter(self.layers[LONGEST])), LONGEST)
                    raise _Wrong(Finding("endless", -1, -1, 0, some, f"more than {longest} steps"))
        except _Wrong as wrong:
            self.finding, complete = wrong.finding, False
        return Exploration(
            self.program, self.states, self.transitions, self.finished, self.blocked, complete, self.finding
        )

    def _next(self, layer: dict[State, int]) -> tuple[dict[State, int], bool]:
        """The states one step on, each with the number of ways there; and whether there was time for all."""
        following: dict[State, int] = {}
        ways_to, expand = following.get, self.expand
        for state, ways in layer.items():
            self.states += 1
            if not self.states & 1023 and self.stop():
                return following, False
            try:
                choices = expand(state)
            except _Wrong as wrong:
                path = self._path(state, len(self.layers) - 1) + wrong.finding.path
                raise _Wrong(replace(wrong.finding, path=path)) from None
            if not choices:
                self._end(state, ways)
            self.transitions += len(choices)
            for after in choices:
                following[after] = ways_to(after, 0) + ways
        return following, True

    # One step of the whole system

    def _entry(self, vertex: int, local: int) -> Entry:
        return self.tables[vertex].get(local) or self.steps.entry(local, *self.scripts[vertex])

    def _expand_instant(self, state: State) -> list[State]:
        """The states that one move leads to, when packets arrive at once."""
        result = []
        tables, addressed = self.tables, self.addressed
        for p in self._ready(state)[0]:
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
                raise _Wrong(self._fault(dest, packet, arrived.fault, taken))
            locals_[dest] = arrived.local
            if arrived.packets:
                self._arrive_all(locals_, arrived.packets, taken)

    def _expand_network(self, state: State) -> list[State]:
        """The states that one move or one arrival leads to."""
        result = []
        locals_, flying = state[: self.n], state[self.n :]
        processes, arriving = self._ready(state)
        for p in processes:
            for move in self._entry(p, state[p]).moves:
                if move.fault or move.suspects & self.addressed[p]:
                    raise self._wrong(p, move)
                result.append(self._after(locals_, p, move.local, flying, move.packets))
        arrivals = self.steps.arrivals
        for position, dest, packet in arriving:
            arrived = arrivals.get((state[dest], packet)) or self.steps.arrive(state[dest], packet)
            if arrived.fault:
                raise _Wrong(self._fault(dest, packet, arrived.fault, (dest, packet)))
            rest = flying[:position] + flying[position + 1 :]
            result.append(self._after(locals_, dest, arrived.local, rest, arrived.packets))
        return result

    def _after(self, locals_: State, at: int, local: int, flying: State, posted: Posted) -> State:
        if posted:
            packets = [*flying, *[packet for _, packet in posted]]
            packets.sort(key=self.steps.channels.__getitem__ if self.steps.fifo else None)
            flying = tuple(packets)
        return (*locals_[:at], local, *locals_[at + 1 :], *flying)

    # Who goes on

    def _everyone(self, state: State) -> Ready:
        return range(self.n), self._list_arriving(state[self.n :])

    def _pick_closed(self, state: State) -> Ready:
        """Rule 2."""
        tables = self.tables
        situation = []
        for p in range(self.n):
            entry = tables[p].get(state[p]) or self._entry(p, state[p])
            situation.append(entry.situation)
        key = tuple(situation)
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = _find_least_closed(key)
        return group, ()

    def _pick_urgent(self, state: State) -> Ready:
        """Rules 3 and 4."""
        if self.steps.queues:
            for p in range(self.n):
                if self._entry(p, state[p]).situation == 1:
                    return (p,), ()
        arriving = self._list_arriving(state[self.n :])
        for arrival in arriving:
            if self.steps.urgent[arrival[2]]:
                return (), [arrival]
        return range(self.n), arriving

    def _list_arriving(self, flying: State) -> list[tuple[int, int, int]]:
        """The packets that may arrive next: (position, destination, packet)."""
        result: list[tuple[int, int, int]] = []
        last: object = None
        channels, fifo = self.steps.channels, self.steps.fifo
        for position, packet in enumerate(flying):
            # Equal packets are next to each other, and so are the packets of a FIFO channel.
            this = channels[packet] if fifo else packet
            if this != last:
                result.append((position, channels[packet][1], packet))
            last = this
        return result

    # Runs

    def runs(self) -> frozenset[tuple[tuple[str, ...], ...]]:
        names = {bit(message, self.n): name for name, message in self.program.messages.items()}
        start = tuple(self.steps.start(vertex) for vertex in range(self.n))
        return frozenset(self._runs_from(start, names, {}))

    def _runs_from(self, state: State, names: dict[int, str], seen: dict[State, Runs]) -> Runs:
        """The runs from a state to the ends."""
        if state in seen:
            return seen[state]
        result: Runs = set()
        for (at, move), after in zip(self._list_taken(state), self.expand(state), strict=True):
            for rest in self._runs_from(after, names, seen):
                if isinstance(move, Move):
                    event = f"{'deliver' if move.deliver else 'send'} {names[move.number]}"
                    rest = (*rest[:at], (event, *rest[at]), *rest[at + 1 :])
                result.add(rest)
        seen[state] = result or {((),) * self.n}
        return seen[state]

    # What was found

    def _wrong(self, at: int, move: Move) -> _Wrong:
        path: tuple[Taken, ...] = ((at, move),)
        if move.fault is not None:
            return _Wrong(Finding(move.fault.kind, at, move.number, 0, path, move.fault.why))
        return _Wrong(Finding("order", at, move.number, move.suspects & self.addressed[at], path))

    def _fault(self, dest: int, packet: int, fault: Fault, taken: Taken) -> Finding:
        message = self.steps.packets[packet][0].message
        number = -1 if message is None else bit(message.id, self.n)
        return Finding(fault.kind, dest, number, 0, (taken,), fault.why)

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
                    path.append(self._list_taken(before)[choices.index(state)])
                    state = before
                    break
            else:
                raise AssertionError("a state that no other leads to")
        return tuple(reversed(path))

    def _list_taken(self, state: State) -> list[Taken]:
        """The choices in a state, in the order in which `expand` follows them."""
        result: list[Taken] = []
        processes, arriving = self._ready(state)
        for p in processes:
            result += [(p, move) for move in self._entry(p, state[p]).moves]
        return result + [(dest, packet) for _, dest, packet in arriving]


def validate(program: Program, make: Make) -> None:
    """Refuse a program that these machines cannot run."""
    n = make(0).n
    if len(program.processes) > n:
        raise BadProgram("program", f"has {len(program.processes)} processes, and there are machines for {n}")
    for process, step in program.sends:
        machine = make(process)
        refusal = machine.accepts(process, step.to)
        if refusal is not None:
            raise Unsupported(machine.name, f"message {step.name}: {refusal}")
        if step.label and not machine.labels:
            raise Unsupported(
                machine.name,
                f"message {step.name}: it cannot order by label {step.label!r}: only history has labels",
            )


def _nameless(script: tuple[Step, ...], numbers: dict[str, int]) -> tuple[tuple[Step, ...], tuple[int, ...]]:
    """A script without names, which many programs share, and the messages (as bits) that each step waits for."""
    steps: list[Step] = []
    awaited = []
    for step in script:
        if isinstance(step, Send):
            steps.append(Send("", step.to, (), step.label))
            awaited.append(mask(numbers[name] for name in step.after))
        else:
            steps.append(Receive(None, step.sender))
            awaited.append(0 if step.name is None else 1 << numbers[step.name])
    return tuple(steps), tuple(awaited)


def _find_least_closed(situation: tuple[int, ...]) -> tuple[int, ...]:
    """The smallest set of processes that can do something and that no other process can transmit to."""
    n = len(situation)
    senders = [mask(p for p in range(n) if p != q and situation[p] >> q + 1 & 1) for q in range(n)]
    for size in range(1, n + 1):
        for group in combinations(range(n), size):
            inside = mask(group)
            if all(not senders[q] & ~inside for q in group) and any(situation[p] & 1 for p in group):
                return group
    return tuple(range(n))
