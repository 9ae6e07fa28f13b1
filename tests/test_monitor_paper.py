"""Hoogerwoord 1995: the abstract program with sets (section 5) beside the machine with vectors (section 6).

`Abstract` is section 5, literally: all three of its versions in one, with H, then G and C, then E and F, so that every
invariant that links them can be checked.

  P0  for all j in K:  C_j restricted to messages to the monitor is within K
  P1  for all p:       G_p = H_p and, for all h in H_p, C_h
  P2  for all j:       E_j = C_j restricted to messages to the monitor
  P3  for all p:       F_p = G_p restricted to messages to the monitor

The note sends each message to one other process, and so does this test.
"""

import random
from collections import Counter

import pytest

from antecede.model import Id, Message, Packet, View
from antecede.protocols.monitor import Monitor

MU = 0
SEEDS = range(150)


class Abstract:
    """Section 5. A message is its identity; `to_mu` is the predicate R_mu."""

    def __init__(self, n: int) -> None:
        self.H: list[set[Id]] = [set() for _ in range(n)]
        self.G: list[set[Id]] = [set() for _ in range(n)]
        self.F: list[set[Id]] = [set() for _ in range(n)]
        self.K: set[Id] = set()
        self.B: dict[Id, set[Id]] = {}
        self.C: dict[Id, set[Id]] = {}
        self.E: dict[Id, set[Id]] = {}
        self.to_mu: set[Id] = set()

    def send(self, j: Id, p: int, q: int) -> None:
        self.B[j] = set(self.H[p])
        self.C[j] = set(self.G[p])
        self.E[j] = set(self.F[p])
        self.H[p] |= {j}
        self.G[p] |= {j}
        if q == MU:
            self.to_mu.add(j)
            self.F[p] |= {j}

    def guards(self, j: Id) -> tuple[bool, bool]:
        """The guard of a receive at the monitor, before and after the projection."""
        return self.C[j] & self.to_mu <= self.K, self.E[j] <= self.K

    def receive(self, j: Id, p: int) -> None:
        self.H[p] |= {j}
        self.G[p] |= {j} | self.C[j]
        if p == MU:
            self.F[p] |= {j} | self.E[j]
            self.K |= {j}
        else:
            self.F[p] |= self.E[j]

    def check_invariants(self) -> None:
        for j in self.K:
            assert self.C[j] & self.to_mu <= self.K, f"P0 for {j}"
        for p, history in enumerate(self.H):
            assert self.G[p] == history.union(*(self.C[h] for h in history)), f"P1 for {p}"
            assert self.F[p] == self.G[p] & self.to_mu, f"P3 for {p}"
        for j in self.C:
            assert self.E[j] == self.C[j] & self.to_mu, f"P2 for {j}"


class Both:
    """The two programs in lockstep, and what is on its way."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.abstract = Abstract(n)
        self.machines = [Monitor(View.numbered(n), p, MU) for p in range(n)]
        self.flying: list[Packet] = []
        self.arrived: list[tuple[int, Message]] = []
        self.stamps: dict[Id, tuple[int, ...]] = {}

    def send(self, p: int, q: int) -> None:
        message, [packet] = self.machines[p].send(q)
        assert isinstance(packet, Packet)
        self.stamps[message.id] = packet.stamp.vector
        self.flying.append(packet)
        self.abstract.send(message.id, p, q)

    def arrive(self, packet: Packet) -> None:
        self.flying.remove(packet)
        self.machines[packet.dest].receive(packet)
        assert packet.message is not None
        self.arrived.append((packet.dest, packet.message))

    def deliverable(self) -> list[tuple[int, Message]]:
        """What both say may be received: everything elsewhere, what the guard lets through at the monitor."""
        allowed = []
        for p, message in self.arrived:
            by_causes, by_projection = self.abstract.guards(message.id) if p == MU else (True, True)
            eligible = message in self.machines[p].eligible()
            assert by_causes == by_projection == eligible, f"{message.id} at {p}"
            if eligible:
                allowed.append((p, message))
        return allowed

    def deliver(self, p: int, message: Message) -> None:
        self.arrived.remove((p, message))
        self.machines[p].deliver(message)
        self.abstract.receive(message.id, p)

    def check_sizes(self) -> None:
        """Section 6: e, f and k are the sizes of E, F and K, sender by sender."""
        for p, machine in enumerate(self.machines):
            assert tuple(machine.dump()["_known"]) == self._sizes(self.abstract.F[p]), f"f of {p}"
        assert tuple(self.machines[MU].dump()["_delivered"]) == self._sizes(self.abstract.K), "k"
        for j, vector in self.stamps.items():
            assert vector == self._sizes(self.abstract.E[j]), f"e of {j}"

    def check_closed(self) -> None:
        """Section 6: what is represented by its size has no gaps: E, F and K hold each sender's first ones to mu."""
        for subset in (*self.abstract.E.values(), *self.abstract.F, self.abstract.K):
            for q in range(self.n):
                mine = sorted(j for j in self.abstract.to_mu if j[0] == q)
                inside = [j for j in mine if j in subset]
                assert inside == mine[: len(inside)], f"of {q}"

    def _sizes(self, subset: set[Id]) -> tuple[int, ...]:
        count = Counter(sender for sender, _ in subset)
        return tuple(count[q] for q in range(self.n))


def random_step(both: Both, rng: random.Random) -> None:
    """A send, an arrival out of order, or a receive: whatever is possible, at random."""
    choices = ["send"]
    allowed = both.deliverable()
    if both.flying:
        choices.append("arrive")
    if allowed:
        choices.append("deliver")
    match rng.choice(choices):
        case "send":
            p, q = rng.sample(range(both.n), 2)
            both.send(p, MU if p != MU and rng.random() < 0.5 else q)
        case "arrive":
            both.arrive(rng.choice(both.flying))
        case "deliver":
            both.deliver(*rng.choice(allowed))


@pytest.mark.parametrize("seed", SEEDS)
def test_sets_and_vectors_agree_at_every_step(seed):
    rng = random.Random(seed)
    both = Both(rng.choice([2, 3, 4, 5]))
    for _ in range(rng.choice([10, 40])):
        random_step(both, rng)
        both.abstract.check_invariants()
        both.check_sizes()
    both.check_closed()


@pytest.mark.parametrize("seed", SEEDS[::10])
def test_everything_is_received_in_the_end(seed):
    rng = random.Random(seed)
    both = Both(4)
    for _ in range(60):
        random_step(both, rng)
    while both.flying or both.arrived:
        if both.flying:
            both.arrive(rng.choice(both.flying))
        else:
            both.deliver(*rng.choice(both.deliverable()))
    both.abstract.check_invariants()
    assert both.abstract.to_mu == both.abstract.K


def test_the_guard_is_sometimes_closed():
    """Else the test above would say nothing about it."""
    closed = 0
    for seed in SEEDS[::10]:
        rng = random.Random(seed)
        both = Both(4)
        for _ in range(60):
            random_step(both, rng)
            closed += sum(1 for p, m in both.arrived if p == MU and not both.abstract.guards(m.id)[0])
    assert closed > 100


def test_causes_follow_from_basic_predecessors():
    """Section 3: C_j is B_j and, for all h in B_j, C_h."""
    rng = random.Random(7)
    both = Both(4)
    for _ in range(80):
        random_step(both, rng)
    abstract = both.abstract
    assert len(abstract.B) > 10
    for j, basic in abstract.B.items():
        assert abstract.C[j] == basic.union(*(abstract.C[h] for h in basic))
