"""One run as a value: sizes, network, disk, applications, and every fault with its time. All drawn from a seed.

A run that fails is reported as the seed and the number that drew it; one that was shortened, as the value itself in
JSON. Times are in milliseconds of the simulation.

Faults, each at a time and for a while, to a node that chance picks by `pick`
  kill       the process dies between two effects, and comes back from its disk
  outage     the same, and the power fails with it: what was not synced may be lost
  pause      the process stands still, longer than every timeout
  partition  nothing passes between two parts of the nodes
  full       its disk takes nothing more: the process stops, and comes back when there is room
  sync       a sync of its disk fails
  slow       its disk takes very long
  flip       it dies, and a bit of what is on its disk flips. The journal is refused, or gives the same process
  jump       its clock jumps
  limits     it comes back with other limits
  lazy       its application takes nothing
  silent     its application acknowledges nothing
  join       one joins: a router a separator, where there is a topology
  cancel     one wants to join, and gives up
  sponsor    one wants to join, and the member that it asks dies for good in that: it asks another, or gives up then
  leave      one leaves
  linger     the same, and it runs on until no other counts it as a member
  die        one dies for good, and an operator removes it: a router, if another of its separator forwards
  suspect    one is removed that lives
  replace    all routers of a separator that forward die for good, and another takes their place: by a living witness,
             or by the journal of the last that failed, or by the global checkpoint (Rodrigues & Veríssimo 4.4, case iv)
  strike     whoever leads a change next dies in it, anywhere or between two notes that end a stage: for good, or not

>>> draw(7, 3) == draw(7, 3), draw(7, 3) != draw(7, 4)
(True, True)
>>> msgspec.json.decode(msgspec.json.encode(draw(7, 3)), type=Scenario) == draw(7, 3)
True
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from antecede.errors import BadParameter
from antecede.model import View
from antecede.protocols import PROTOCOLS
from antecede.topology import Topology, shapes

__all__ = ["CAUSAL", "Fault", "Kind", "ROUTED", "Scenario", "draw", "parse", "topology_of"]

CAUSAL = tuple(name for name, kind in PROTOCOLS.items() if kind.order == "causal")
ROUTED = tuple(name for name, kind in PROTOCOLS.items() if kind.routed)
"""Protocols with a topology: only routers die, and join."""

Kind: TypeAlias = Literal[
    "kill", "outage", "pause", "partition", "full", "sync", "slow", "flip", "jump", "limits", "lazy", "silent",
    "join", "cancel", "sponsor", "leave", "linger", "die", "suspect", "strike", "replace",
]  # fmt: skip
TROUBLE: tuple[Kind, ...] = (
    "kill", "kill", "kill", "kill", "outage", "pause", "partition", "partition", "full", "sync", "slow", "flip",
    "jump", "limits", "lazy", "silent",
)  # fmt: skip
CHANGES: tuple[Kind, ...] = (
    "join", "join", "join", "cancel", "sponsor", "leave", "linger", "die", "suspect", "strike",
)  # fmt: skip
CHANGES_OF_ROUTERS: dict[str, tuple[Kind, ...]] = {
    "wan": ("die", "die", "join", "join", "join", "strike"),
    "witnesses": ("die", "die", "join", "join", "join", "strike", "replace", "replace"),
    "star": ("replace", "replace", "strike"),
}
"""By topology. Without a witness, a lone router can be replaced where its neighbours are not linked with each other."""


class Fault(Struct, frozen=True, array_like=True):
    """Something goes wrong, or an operator wants something."""

    kind: Kind
    at_ms: int
    for_ms: int
    pick: int
    """What chance says where there is a choice."""


class Scenario(Struct, frozen=True, omit_defaults=True):
    """A run."""

    protocol: str
    processes: int = 3
    """Founders."""
    messages: int = 100
    seed: int = 0
    """For all that is not said here: delays, who sends what to whom, where a crash comes."""
    parameters: dict[str, Any] = {}
    topology: str = "mesh"
    delay_ms: int = 20
    """In the mean; any may take ten times as long, so that frames overtake each other."""
    loss: float = 0.0
    repeats: float = 0.0
    sync: Literal["full", "normal"] = "full"
    sync_ms: int = 2
    """How long the disk takes."""
    snapshot_inputs: int = 300
    queue: int = 64
    """Messages that a peer has not acknowledged, beyond which a node sends it no more."""
    unacknowledged: int = 64
    pace_ms: int = 20
    """Between two looks of an application at its inbox, in the mean."""
    burst: int = 8
    """Messages that it sends at once, at most."""
    large: float = 0.0
    """The share of messages with payloads that stand beside the tables of a journal."""
    stateful: bool = True
    """The application gives a state to those that join."""
    recording: bool = False
    """Nodes record their events."""
    faults: tuple[Fault, ...] = ()

    @property
    def end_ms(self) -> int:
        """When the last fault has ended."""
        return max((fault.at_ms + fault.for_ms for fault in self.faults), default=0)


def parse(text: str) -> Scenario:
    """The run that these words of JSON describe."""
    try:
        scenario = msgspec.json.decode(text, type=Scenario)
    except msgspec.MsgspecError as error:
        raise BadParameter(
            "soak", f"--scenario must be a run as a soak prints it, and {text[:80]} is not: {error}"
        ) from None
    if scenario.protocol not in PROTOCOLS:
        raise BadParameter.choice("soak", "protocol", scenario.protocol, PROTOCOLS)
    return scenario


def draw(seed: int, number: int, protocols: Sequence[str] = CAUSAL, most: int = 6000) -> Scenario:
    """Run `number` of a soak, of so many messages at most: each protocol in turn, the rest by chance."""
    random = Random(f"nodes/{seed}/{number}")
    protocol = protocols[number % len(protocols)]
    n = random.choice((2, 3, 3, 3, 4, 4, 5, 6, 8))
    messages = min(most, random.choice((40, 100, 150, 1000, 6000, 20_000)))
    pace, burst = random.choice((5, 20, 100)), random.choice((2, 8, 16, 32))
    views = protocol not in ROUTED
    topology = "mesh" if views else random.choice(("star", "line", "ring", "tree", "wan", "wan", "witnesses"))
    length = max(500, 4 * messages * pace // (n * burst))
    return Scenario(
        protocol=protocol,
        processes=n,
        messages=messages,
        seed=random.getrandbits(32),
        parameters=_parameters(protocol, random),
        topology=topology,
        delay_ms=random.choice((1, 5, 20, 100)),
        loss=random.choice((0.0, 0.0, 0.01, 0.05, 0.2)),
        repeats=random.choice((0.0, 0.0, 0.01, 0.1)),
        sync="normal" if views and random.random() < 0.2 else "full",
        sync_ms=random.choice((1, 5, 20)),
        snapshot_inputs=random.choice((20, 100, 300, 2000)),
        queue=random.choice((4, 64, 256)),
        unacknowledged=random.choice((2, 64, 256)),
        pace_ms=pace,
        burst=burst,
        large=random.choice((0.0, 0.0, 0.01, 0.1)),
        stateful=random.random() < 0.8,
        recording=random.random() < 0.3,
        faults=tuple(_faults(length, topology, random)),
    )


def _parameters(protocol: str, random: Random) -> dict[str, Any]:
    match protocol:
        case "buffer":
            return {"pipelined": random.random() < 0.5}
        case "monitor":
            return {"monitor": "a"}
        case "underway":
            return {"k": random.choice((None, 0, 1, 4))}
    return {}


def _faults(length: int, topology: str, random: Random) -> Iterator[Fault]:
    """Some of many kinds, in a run that takes about so long."""
    kinds: list[Kind] = [random.choice(TROUBLE) for _ in range(random.choice((0, 2, 5, 10, 20)))]
    changes = CHANGES if topology == "mesh" else CHANGES_OF_ROUTERS.get(topology)
    if changes is not None:
        kinds += [random.choice(changes) for _ in range(random.choice((0, 1, 3, 6, 10)))]
    for kind in kinds:
        # Now and then longer than every timeout.
        lasts = random.choice((length // 20, length // 20, length // 5, length // 5, 12_000)) + 1
        yield Fault(kind, random.randrange(length), lasts, random.getrandbits(30))


def topology_of(scenario: Scenario) -> Topology | None:
    """The topology, if it is not a mesh."""
    n = scenario.processes
    match scenario.topology:
        case "mesh":
            return None
        case "star":
            return shapes.star(n)
        case "line":
            return shapes.line(n)
        case "ring":
            return shapes.ring(n)
        case "tree":
            return shapes.tree(n, 2)
        case "wan":
            return shapes.wan_of_lans(2, -(-n // 2), 2)
        case "witnesses":
            return shapes.wan_of_lans(2, -(-n // 2), 2, 1)
    known = ("mesh", "star", "line", "ring", "tree", "wan", "witnesses")
    raise BadParameter.choice("soak", "topology", scenario.topology, known)


def founders_of(scenario: Scenario) -> View:
    """All that are there from the beginning, routers too."""
    topology = topology_of(scenario)
    if topology is not None:
        return View(topology.names)
    return View(tuple(chr(ord("a") + k) for k in range(scenario.processes)))
