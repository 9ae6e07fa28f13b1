"""Soaking: runs drawn from a seed, each checked, for as long as one likes; and the shortest run that still fails.

Protocol, parameters, topology, network, faults, workload and length of run i are all drawn from (seed, i): the same
seed gives the same runs in the same order, however many work on them. Every run is watched by `antecede.sim.watch`;
small ones are judged by the oracle as well, and the two must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from msgspec.structs import replace

from antecede.errors import AntecedeError, CallerError
from antecede.protocols import PROTOCOLS
from antecede.sim.chance import Words, pick, stream
from antecede.sim.checking import Checker
from antecede.sim.engine import Carrier
from antecede.sim.faults import parse
from antecede.sim.outcome import Outcome, pause_collector, shorten
from antecede.sim.processes import Processes
from antecede.sim.run import RunSpec, Simulation
from antecede.sim.specs import Spec

__all__ = ["CAUSAL", "draw", "examine", "shrink", "simpler"]

CAUSAL = tuple(name for name, kind in PROTOCOLS.items() if kind.order == "causal")

SMALL = 150
"""Messages up to which the oracle judges too."""

T = TypeVar("T")

Order: TypeAlias = Literal["none", "fifo", "causal"]


# Drawing


def draw(seed: int, number: int, protocols: Sequence[str] = CAUSAL, most: int = 6000) -> RunSpec:
    """Run `number` of a soak, of so many messages at most: each protocol in turn, the rest by chance."""
    words = stream(seed, f"soak/{number}")
    protocol = protocols[number % len(protocols)]
    while True:
        spec = _draw(protocol, words, most)
        try:
            spec.build()
        except CallerError:
            continue  # Not every workload suits every protocol, nor every topology every number of processes.
        return spec


def _draw(protocol: str, words: Words, most: int) -> RunSpec:
    n = _one(words, (2, 3, 3, 4, 4, 5, 6, 6, 8, 10, 12, 16, 24))
    messages, rate = min(most, _one(words, (30, 100, 150, 1000, 3000, 6000))), _one(words, (1, 10, 30, 100))
    parameters = _parameters(protocol, n, words)
    if parameters.keys() & {"r7", "r8"}:
        # Without these a history names every message that there was, so a run's cost grows with its length squared.
        messages = min(messages, SMALL)
    spec = RunSpec(
        protocol=protocol,
        parameters=parameters,
        processes=n,
        messages=messages,
        seed=next(words),
        network=_network(words),
        workload=_workload(protocol, n, rate, words),
        topology=_topology(protocol, n, words),
        faults=";".join(_faults(1000 * messages // (n * rate), words)) or "none",
    )
    return _bound(spec, words) if protocol == "history" and not pick(words, 4) else spec


def _bound(spec: RunSpec, words: Words) -> RunSpec:
    """The same on a network that keeps what `delta` trusts: no message takes longer."""
    bound = _one(words, (1, 20, 200))
    network = f"{_one(words, ('constant:', 'uniform:0,'))}{bound}ms"
    parameters = {**spec.parameters, "delta": bound * 1_000_000}
    return replace(spec, parameters=parameters, network=network, topology="mesh", faults="none")


def _one(words: Words, values: Sequence[T]) -> T:
    return values[pick(words, len(values))]


def _parameters(protocol: str, n: int, words: Words) -> dict[str, Any]:
    match protocol:
        case "bounded" | "sparing":
            return {"k": n + 1 + pick(words, n * n - n)}
        case "monitor":
            return {"monitor": pick(words, n)}
        case "buffer":
            return {"pipelined": bool(pick(words, 2))}
        case "history":
            rules = {rule: False for rule in ("r5", "r7", "r8") if not pick(words, 4)}
            return rules if pick(words, 4) else {**rules, "r10": True}
        case "underway":
            return {"k": _one(words, (None, 0, 1, n))}
        case "separator":
            return _one(words, ({}, {}, {"r9": False}, {"reports": 1}, {"reports": 8}))
    return {}


def _network(words: Words) -> str:
    delay = _one(words, ("1ms", "5ms", "20ms", "50ms", "200ms"))
    name = _one(
        words,
        (
            f"constant:{delay}",
            f"uniform:0,{delay}",
            f"exponential:{delay}",
            f"exponential:{delay}",
            f"lognormal:{delay},sigma=2",
            "zones",
        ),
    )
    extra = _one(words, ("", "", ",bandwidth=1Mbit/s", ",bandwidth=10Mbit/s"))
    return name + (extra if name != "zones" else extra.replace(",", ":", 1))


def _workload(protocol: str, n: int, rate: int, words: Words) -> str:
    if PROTOCOLS[protocol].to_all:
        return f"{_one(words, ('broadcast', 'document'))}:rate={rate}/s"
    name = _one(
        words,
        (
            "uniform",
            f"uniform:size={1 + pick(words, max(1, n - 1))}",
            "ring",
            "client-server",
            "chain",
            "hot",
            f"groups:size={min(n, 2 + pick(words, 4))}",
            "broadcast",
            "monitor",
            "document",
            "mix:uniform=4,broadcast=1,chain=2,groups=1",
        ),
    )
    return f"{name}{',' if ':' in name else ':'}rate={rate}/s"


def _topology(protocol: str, n: int, words: Words) -> str:
    names = ("star", "tree", "line", "ring", f"wan-of-lans:zones={2 + pick(words, 3)}", "figure-7.1")
    return _one(words, names) if pick(words, 4) < (3 if PROTOCOLS[protocol].routed else 1) else "mesh"


def _faults(duration_ms: int, words: Words) -> Iterator[str]:
    """Some of each kind, in a run that takes about so long."""
    yield from (
        f"loss:{share}" for share in (_one(words, ("0.1%", "1%", "5%", "30%")),) if pick(words, 5) < 2
    )
    yield from (f"duplicate:{share}" for share in (_one(words, ("0.1%", "1%", "20%")),) if pick(words, 5) < 2)
    for kind in ("partition", "pause", "crash"):
        mean = duration_ms // _one(words, (1, 3, 10, 30)) + 1
        down = mean // _one(words, (2, 5, 20)) + 1
        if pick(words, 5) < 2:
            yield f"{kind}:random:mean={mean}ms,down={down}ms"


# Checking


def examine(spec: RunSpec, order: Order | None = None) -> Outcome[RunSpec]:
    """Run a spec and say what is wrong with the run, against what its protocol promises or against another order."""
    with pause_collector():
        simulation = spec.build()
        engine, checker = simulation.engine, Checker(simulation, SMALL)
        promised = order or PROTOCOLS[spec.protocol].order
        findings = _drive(simulation) or checker.findings(promised) + _links(engine.carrier)
        return Outcome(
            run=spec,
            protocol=spec.protocol,
            deliveries=checker.watch.deliveries,
            crashes=engine.crashes,
            resent=0 if engine.carrier is None else engine.carrier.resent,
            findings=tuple(findings[:20]),
            judged=checker.small,
        )


def _links(carrier: Carrier | None) -> list[str]:
    """Machines ignore duplicates, and would hide what a link repeats."""
    if not isinstance(carrier, Processes) or carrier.taken == carrier.handed_over:
        return []
    return [f"link: handed over {carrier.handed_over} of {carrier.taken} packets"]


def _drive(simulation: Simulation) -> list[str]:
    """Run to the end. What was raised, or that there was no end."""
    steps = 100_000 + 3000 * simulation.spec.messages
    try:
        while not simulation.finished:
            simulation.advance()
            steps -= 4096
            if steps < 0:
                return ["endless: the run goes on and on"]
    except (AntecedeError, AssertionError, LookupError, TypeError, ValueError) as error:
        return [f"raised: {type(error).__name__}: {error}"[:300]]
    return []


# Shrinking


def shrink(
    spec: RunSpec,
    kind: str,
    order: Order | None = None,
    most: int = 400,
    told: Callable[[RunSpec], None] = lambda spec: None,
) -> RunSpec:
    """The shortest run found that fails in the same way: fewer messages, processes and faults, simpler all round."""

    def fails(tried: RunSpec) -> bool:
        try:
            return examine(tried, order).kind == kind
        except CallerError:
            return False

    def list_seeded(spec: RunSpec) -> Iterator[RunSpec]:
        return (replace(spec, seed=seed) for seed in dict.fromkeys((spec.seed, 0, 1, 2, 3)))

    return shorten(spec, simpler, list_seeded, fails, most, told)


def simpler(spec: RunSpec) -> Iterator[RunSpec]:
    """Specs with less in them, the boldest first."""
    for messages in dict.fromkeys(
        (spec.messages // 8, spec.messages // 2, spec.messages * 3 // 4, spec.messages - 1)
    ):
        if 1 <= messages < spec.messages:
            yield replace(spec, messages=messages)
    for processes in dict.fromkeys((spec.processes // 2, spec.processes - 1)):
        if 2 <= processes < spec.processes:
            yield replace(spec, processes=processes)
    faults = [str(fault) for fault in parse(spec.faults)]
    for left in ([], *(faults[:i] + faults[i + 1 :] for i in range(len(faults)))):
        if len(left) < len(faults):
            yield replace(spec, faults=";".join(left) or "none")
    if spec.topology != "mesh":
        yield replace(spec, topology="mesh")
    for field, plain in (("workload", "uniform"), ("network", "exponential:50ms")):
        text = getattr(spec, field)
        if text != plain:
            yield replace(spec, **{field: plain})
            yield from (replace(spec, **{field: less}) for less in _fewer(field, text))
    for name in spec.parameters:
        yield replace(spec, parameters={key: value for key, value in spec.parameters.items() if key != name})


def _fewer(field: str, text: str) -> Iterator[str]:
    """The same with one option less."""
    spec = Spec.parse(field, text)
    for name in spec.options:
        yield str(Spec(spec.name, spec.values, {key: v for key, v in spec.options.items() if key != name}))
