"""Which protocol to take: every candidate on the same processes, load and network, and what the figures say.

A candidate is *fit* if it can send what the workload sends, promises causal order everywhere, kept it in its runs and
delivered everything in time. Of those that are quick, with a mean delay of at most `NEAR` times the least, the advice
is the one that costs the fewest bytes of ordering a delivery. Nothing is known here about any protocol but what its
machine says of itself and what its runs came to.

Each candidate runs with the same seeds. Two are *equal* in a figure if they differ by at most `SAME` of it, or if the
interval of the mean difference between runs of the same seed, at 95 % (Student's t), has 0 in it. The advice names
all that are equal to the best one, so other seeds seldom give other advice.

>>> asked = RunSpec(protocol="unordered", processes=4, messages=200)
>>> fits, unfit = try_candidates(asked, ["matrix", "fifo", "monitor"])
>>> [fit.protocol for fit in fits], [(one.protocol, one.reason) for one in unfit]
(['matrix'], [('fifo', 'promises fifo order only'), ('monitor', 'promises causal order at one process only')])
>>> advise(fits)[0].partition(":")[0]
'take matrix'
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import sqrt
from statistics import mean, stdev
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antecede.errors import AntecedeError, BadParameter
from antecede.model import Packet
from antecede.protocols import PROTOCOLS
from antecede.protocols.buffer import Acknowledge
from antecede.sim.checking import Checker
from antecede.sim.experiment import parse_protocol
from antecede.sim.measure import LINKS, Measures
from antecede.sim.run import STEPS, RunSpec, Simulation
from antecede.sim.summary import Summary
from antecede.wire import encode, stamp_size

__all__ = ["Fit", "Unfit", "advise", "bytes_a_delivery", "try_candidates"]

NEAR = 1.25
"""A mean delay of so many times the least is as good as it."""
SAME = 0.02
"""A difference of such a share decides nothing."""
HEADERS = 28
"""What UDP over IPv4 adds to a packet of its own."""


class Fit(Struct, frozen=True):
    """A candidate that will do, and what it costs."""

    protocol: str
    parameters: dict[str, Any]
    needs: tuple[str, ...]
    """What it asks of the surroundings."""
    delay_ms: float
    delay_ms_p99: float
    paused_ms: float | None
    """The mean delay of a run in which one process stands still for a quarter of the time; None if not asked."""
    bytes: float
    """Of ordering, a delivery: stamps, and control packets with headers of their own, on every link that they cross."""
    control: float
    """Control packets a delivery."""
    cpu_us: float
    """A delivery."""
    command: str
    """Of the run with the first seed."""
    bytes_by_seed: tuple[float, ...] = ()
    delay_ms_by_seed: tuple[float, ...] = ()
    """Of each run; `bytes`, `delay_ms` and the other figures are means over the runs."""

    @property
    def name(self) -> str:
        values = ",".join(f"{key}={value}" for key, value in self.parameters.items())
        return f"{self.protocol}:{values}" if values else self.protocol


class Unfit(Struct, frozen=True):
    """A candidate that will not do, and why."""

    protocol: str
    reason: str


def bytes_a_delivery(summary: Summary, headers: int = HEADERS) -> float:
    """What the order costs: stamps, and control packets whole, with so many bytes of other layers' headers each."""
    stamps = summary.stamp_bytes.mean * summary.packets
    control = summary.control_bytes + summary.control_packets * (PACKET_HEAD + headers)
    return (stamps + control) / summary.delivered


def _bytes_on_links(crossed: Measures) -> float:
    """The same in all, where a packet crosses several links, each of which carries its stamp."""
    total = 0
    for name, sizes in crossed.counts.items():
        head = PACKET_HEAD + HEADERS if name.startswith("control") else 0
        total += sum((size + head) * times for size, times in sizes.items())
    return total


def _packet_head() -> int:
    """The bytes of a control packet besides its stamp."""
    packet = Packet(0, 1, Acknowledge(1))
    return len(encode(packet)) - stamp_size(packet)


PACKET_HEAD = _packet_head()


def try_candidates(
    asked: RunSpec,
    protocols: Sequence[str] = tuple(PROTOCOLS),
    *,
    seconds: float = 60,
    seeds: int = 1,
    note: Callable[[str], None] = lambda protocol: None,
) -> tuple[list[Fit], list[Unfit]]:
    """Run each candidate on what is asked, with so many seeds from the one that is asked for on.

    What is wrong with the request itself is raised. Candidates are NAME:key=value.
    """
    plain = replace(asked, protocol="unordered", parameters={})
    simulation = plain.build()
    span = simulation.finish().duration_ns
    pause = f"pause:{simulation.view.name(0)}@{span // 4}ns-{span // 2}ns" if asked.faults == "none" else None
    specs = {text: _candidate(asked, text) for text in protocols}
    fits: list[Fit] = []
    unfit: list[Unfit] = []
    for text, spec in specs.items():
        note(text)
        try:
            several = [replace(spec, seed=spec.seed + more) for more in range(seeds)]
            fits.append(_average([_try(one, pause, seconds) for one in several]))
        except _Refused as refused:
            unfit.append(Unfit(text, str(refused)))
    return fits, unfit


class _Refused(Exception):
    """Why a candidate will not do."""


def _candidate(asked: RunSpec, text: str) -> RunSpec:
    name, parameters = parse_protocol("choose", text)
    return replace(asked, protocol=name, parameters={**asked.parameters, **parameters})


def _try(spec: RunSpec, pause: str | None, seconds: float) -> Fit:
    try:
        simulation = spec.build()
    except BadParameter as error:
        # What was asked for has been built before, without this protocol.
        raise _Refused(error.reason) from error
    machine, promised = simulation.engine.machines[0], simulation.kind.order
    if promised != "causal":
        raise _Refused("promises no order" if promised == "none" else f"promises {promised} order only")
    if not all(map(machine.orders_at, range(len(simulation.view)))):
        raise _Refused("promises causal order at one process only")
    crossed = None
    if simulation.place.topology is not None:
        crossed = Measures([f"{what}:{link}" for what in ("bytes", "control") for link in LINKS], simulation)
    summary, spent = _finish(simulation, seconds)
    paused = None
    if pause is not None:
        paused = _finish(replace(spec, faults=pause).build(), seconds)[0].delay_ns.mean / 1e6
    needs = []
    if machine.needs_fifo:
        needs.append("channels that do not reorder")
    if machine.routed and simulation.place.topology is not None:
        needs.append("routers that run it")
    if not machine.selective:
        needs.append("applications that take messages as they come")
    return Fit(
        spec.protocol,
        spec.parameters,
        tuple(needs),
        summary.delay_ns.mean / 1e6,
        summary.delay_ns.p99 / 1e6,
        paused,
        bytes_a_delivery(summary) if crossed is None else _bytes_on_links(crossed) / summary.delivered,
        summary.control_packets / summary.delivered,
        1e6 * spent / summary.delivered,
        spec.command(),
    )


def _average(runs: Sequence[Fit]) -> Fit:
    """What the runs of one candidate came to in the mean; of processor time, the least: other work adds to it."""
    paused = [run.paused_ms for run in runs if run.paused_ms is not None]
    return replace(
        runs[0],
        delay_ms=mean(run.delay_ms for run in runs),
        delay_ms_p99=mean(run.delay_ms_p99 for run in runs),
        paused_ms=mean(paused) if paused else None,
        bytes=mean(run.bytes for run in runs),
        control=mean(run.control for run in runs),
        cpu_us=min(run.cpu_us for run in runs),
        bytes_by_seed=tuple(run.bytes for run in runs),
        delay_ms_by_seed=tuple(run.delay_ms for run in runs),
    )


def _finish(simulation: Simulation, seconds: float) -> tuple[Summary, float]:
    """Run to the end, with a verdict."""
    judge = Checker(simulation)
    started = time.process_time()
    try:
        while not simulation.finished:
            simulation.advance(STEPS)
            if time.process_time() - started > seconds:
                sent = simulation.engine.sent / simulation.spec.messages
                raise _Refused(
                    f"had sent {sent:.0%} of its messages after {seconds:g} s: give it more --seconds"
                )
    except AntecedeError as error:
        raise _Refused(str(error)) from error
    spent = time.process_time() - started
    findings = judge.findings("causal")
    if findings:
        raise _Refused(findings[0])
    return simulation.engine.summary(), spent


# What the figures say


T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Student's t at 95 %, two-sided, for two runs and more; from eleven on 2.23 serves, which is on the safe side."""


def find_noise(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Half the width of the interval of the mean difference between runs of the same seed; 0 where there are none.

    >>> find_noise([10.0, 12.0, 14.0], [11.0, 13.0, 15.0]), round(find_noise([10.0, 12.0], [11.0, 12.5]), 2)
    (0.0, 3.18)
    """
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    if len(differences) < 2:
        return 0.0
    return T_95[min(len(differences) - 2, len(T_95) - 1)] * stdev(differences) / sqrt(len(differences))


def _is_equal(fit: Fit, best: Fit) -> bool:
    """Whether these cost the same bytes, as far as these runs can tell."""
    noise = find_noise(fit.bytes_by_seed, best.bytes_by_seed)
    return abs(fit.bytes - best.bytes) <= max(SAME * best.bytes, noise)


def _is_quick(fit: Fit, least: Fit) -> bool:
    """Whether its delay is near the least, or may be."""
    noise = find_noise(fit.delay_ms_by_seed, [NEAR * delay for delay in least.delay_ms_by_seed])
    return fit.delay_ms - NEAR * least.delay_ms <= noise


def advise(fits: Sequence[Fit]) -> list[str]:
    """Sentences, the first of which names the best, and all that are equal to it; the others name those that are better
    at something else."""
    least = min(fits, key=lambda fit: fit.delay_ms)
    quick = [fit for fit in fits if _is_quick(fit, least)]
    best = min(quick, key=lambda fit: fit.bytes)
    equal = sorted(fit.name for fit in quick if _is_equal(fit, best))
    how = f"{best.bytes:,.1f} bytes of ordering a delivery"
    many = f"the fewest of the {len(quick)} that are quick" if len(quick) > 1 else "and none other is quick"
    said = [
        f"take {' or '.join(equal)}: {how}, {many} (a mean delay of {best.delay_ms:,.1f} ms, {_share(best, least)})"
    ]
    if len(equal) > 1:
        runs = f" in {len(best.bytes_by_seed)} runs of each" if len(best.bytes_by_seed) > 1 else ""
        figures = ", ".join(
            f"{fit.name} {fit.bytes:,.1f}"
            for fit in sorted(quick, key=lambda fit: fit.name)
            if fit.name in equal
        )
        said.append(f"these cost the same, as far as can be told{runs}: {figures} bytes")
    for need in best.needs:
        rest = [fit for fit in quick if need not in fit.needs]
        other = _price(min(rest, key=lambda fit: fit.bytes)) if rest else "no other protocol is as quick"
        said.append(f"it needs {need}; without them: {other}")
    small = min(fits, key=lambda fit: fit.bytes)
    if not _is_equal(small, best):
        said.append(f"if bytes count more than delay: {_price(small)}")
    light = min(quick, key=lambda fit: fit.cpu_us)
    if light.cpu_us * 2 <= best.cpu_us:
        said.append(
            f"if processor time counts most: {light.name}, {light.cpu_us:,.0f} µs, not {best.cpu_us:,.0f}"
        )
    if best.paused_ms is not None:
        firm = min(fits, key=lambda fit: fit.paused_ms or 0.0)
        if firm.paused_ms and best.paused_ms > NEAR * firm.paused_ms:
            cost = f"{best.paused_ms:,.0f} ms in the mean while one stands still"
            said.append(f"if processes stop now and then: {firm.name}, {firm.paused_ms:,.0f} ms, not {cost}")
    return said


def _share(best: Fit, least: Fit) -> str:
    return (
        "the least"
        if best is least
        else f"{best.delay_ms / least.delay_ms:.2f} times the least, {least.name}'s"
    )


def _price(fit: Fit) -> str:
    return f"{fit.name}, {fit.bytes:,.1f} bytes at a mean delay of {fit.delay_ms:,.1f} ms"
