"""One run, from a description of a few words to its figures.

>>> summary = RunSpec(protocol="matrix", processes=4, messages=200, seed=7).run()
>>> summary.sent, summary.delivered, summary.undelivered
(200, 200, 0)
>>> print(RunSpec(protocol="bounded", parameters={"k": 6}, processes=5, seed=7).command())
antecede simulate --protocol bounded --set k=6 --processes 5 --messages 1000 --seed 7
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from antecede.errors import BadParameter, InputError
from antecede.plugin import find_protocol, is_file
from antecede.protocols import Machine, build
from antecede.sim import scripts, workloads
from antecede.sim.chance import stream
from antecede.sim.engine import Engine, Observe, Record
from antecede.sim.faults import needs_links, parse
from antecede.sim.network import Network
from antecede.sim.places import Place, place
from antecede.sim.specs import Spec, count
from antecede.sim.summary import Summary
from antecede.sim.troubles import install
from antecede.sim.workloads import Workload
from antecede.trace.schema import RunInfo

__all__ = ["RunSpec", "Simulation"]

STEPS = 4096
"""Between two looks at the clock, or at Ctrl-C."""
PROCESSES_MOST = 1 << 16
"""What the wire lets pass unless told otherwise, too."""


class RunSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that decides a run: the same spec gives the same events, on every machine."""

    protocol: str
    """Its name, or FILE.py:CLASS (`antecede.plugin`)."""
    parameters: dict[str, Any] = {}
    """Of the protocol. A text such as `9*4/64*2` gives the first four processes 9, and the next two 64."""
    processes: int = 0
    """0: as many as the script or the topology has, or 8."""
    messages: int = 1000
    """How many are sent in all; a script is run until it has sent as many."""
    seed: int = 0
    network: str = "exponential:50ms"
    workload: str = "uniform"
    topology: str = "mesh"
    faults: str = "none"

    def __post_init__(self) -> None:
        find_protocol(self.protocol, "run", "protocol")
        for field, least, most in (
            ("processes", 0, PROCESSES_MOST),
            ("messages", 1, 10**12),
            ("seed", 0, 2**63 - 1),
        ):
            if not least <= getattr(self, field) <= most:
                raise BadParameter(
                    "simulate", f"{field} must be {least} to {most}, not {getattr(self, field)}"
                )

    @classmethod
    def load(cls, table: Mapping[str, Any], place: str = "run") -> RunSpec:
        """The spec that a table, as of a TOML file, describes."""
        try:
            return msgspec.convert(table, cls)
        except msgspec.ValidationError as error:
            raise InputError(f"{place}: {error}") from error

    def command(self) -> str:
        """The command line that repeats this run."""
        words = ["antecede", "simulate", "--protocol", self.protocol]
        for key, value in self.parameters.items():
            words += ["--set", f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
        if self.processes:
            words += ["--processes", str(self.processes)]
        words += ["--messages", str(self.messages), "--seed", str(self.seed)]
        for field in ("network", "workload", "topology", "faults"):
            if getattr(self, field) != _DEFAULTS[field]:
                words += [f"--{field}", getattr(self, field)]
        return shlex.join(words)

    def build(self, record: Record | None = None, observe: Observe | None = None) -> Simulation:
        """The run, ready to start."""
        return Simulation(self, record, observe)

    def run(self, record: Record | None = None, observe: Observe | None = None) -> Summary:
        """Run it to its end."""
        return self.build(record, observe).finish()


_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(RunSpec)}


class Simulation:
    """A run under way."""

    def __init__(self, spec: RunSpec, record: Record | None, observe: Observe | None) -> None:
        self.spec = spec
        script = (
            scripts.load(spec.workload) if Spec.parse("workload", spec.workload).name == "script" else None
        )
        self.place = place(spec, None if script is None else script.processes)
        self.view = self.place.applications
        self.kind = find_protocol(spec.protocol)
        self.routed = self.kind.routed
        machines = self._machines(self.place)
        words = stream(spec.seed, "workload")
        workload: Workload
        if script is None:
            workload = workloads.create(spec.workload, self.view, words, self.place.groups)
        else:
            workload = scripts.Script(script, words, spec.workload)
        network = Network.parse(
            spec.network,
            len(machines) if self.routed else len(self.place.names),
            stream(spec.seed, "network"),
            self.place.topology,
            direct=not self.routed,
            kind=self.place.link if self.place.areas else None,
        )
        network.fifo |= any(machine.needs_fifo for machine in machines)
        self._try_sends(workload, machines)
        self.engine = Engine(
            machines, network, workload, spec.messages, record=record, observe=observe, routed=self.routed
        )
        faults = parse(spec.faults)
        if faults or not network.reliable:
            if is_file(spec.protocol) and (needs_links(faults) or not network.reliable):
                raise BadParameter(
                    "simulate",
                    f"{spec.protocol} cannot run with faults, or where the network loses packets: its stamps have no "
                    "encoding in antecede.wire.stamps; of all faults it may have pauses",
                )
            if any(machine.timed for machine in machines):
                raise BadParameter(
                    "simulate",
                    f"{spec.protocol} with delta trusts that every message is delivered in time, and with faults "
                    "none need be: leave out delta, or the faults",
                )
            install(self.engine, faults, machines[0].view, stream(spec.seed, "faults"))

    def _machines(self, place: Place) -> list[Machine]:
        parameters = dict(self.spec.parameters)
        view = place.view if self.routed else place.applications
        if self.routed and place.topology is not None:
            parameters["topology"] = place.topology
        own = {key: _each(key, value, len(view)) for key, value in parameters.items() if _differs(value)}
        return [
            build(self.kind, view, p, **{**parameters, **{key: values[p] for key, values in own.items()}})
            for p in range(len(view))
        ]

    def _try_sends(self, workload: Workload, machines: list[Machine]) -> None:
        """Ask before the start whether the protocol can send what the workload will."""
        if isinstance(workload, scripts.Script):
            drafts = [(sender, step.to) for sender, step in workload.program.sends]
        else:
            trial = workloads.create(
                self.spec.workload, self.view, stream(self.spec.seed, "trial"), self.place.groups
            )
            drafts = [(process, trial.draft(process)[0]) for process in trial.starters()]
        for process, to in drafts:
            refusal = machines[process].accepts(process, to)
            if refusal is not None:
                raise BadParameter(
                    "simulate",
                    f"{self.spec.protocol} cannot run the workload {self.spec.workload}: {refusal}",
                )

    def info(self, name: str | None = None) -> RunInfo:
        """The row that describes this run in a trace."""
        spec, kind = self.spec, self.kind
        own = {"machine": spec.protocol, "order": kind.order} if is_file(spec.protocol) else {}
        return RunInfo(
            run=name or f"{kind.name}-{spec.seed}",
            protocol=kind.name,
            parameters={**spec.parameters, "messages": spec.messages, "faults": spec.faults, **own},
            processes=self.view.names,
            seed=spec.seed,
            workload=spec.workload,
            network=spec.network,
            topology=spec.topology,
        )

    def record(self, record: Record) -> None:
        """Call this for every event from now on."""
        self.engine.record = record

    @property
    def finished(self) -> bool:
        return self.engine.finished

    def advance(self, steps: int = STEPS) -> None:
        self.engine.advance(steps)

    def finish(self, look: Callable[[], None] | None = None) -> Summary:
        """Run to the end, with a look around now and then."""
        while not self.engine.finished:
            self.engine.advance(STEPS)
            if look is not None:
                look()
        return self.engine.summary()


def _differs(value: Any) -> bool:
    return isinstance(value, str) and "/" in value


def _each(key: str, text: str, n: int) -> list[int]:
    """The value for each process."""
    values: list[int] = []
    for part in text.split("/"):
        value, _, times = part.partition("*")
        values += [count("simulate", key, value)] * count("simulate", key, times or "1")
    if len(values) != n:
        raise BadParameter(
            "simulate", f"{key} must have values for {n} processes, and {text} has {len(values)}"
        )
    return values
