"""A schedule, step by step, with real machines: from the explorer's finding to something a person can read.

A schedule is a list of lines, each one choice:

    p1 sends x
    p2 receives p1.p2.1       the first packet that p1 transmitted to p2 arrives
    p2 delivers x

`replay` runs one and gives its events. `explain` turns what the explorer found into a `Counterexample`: the program,
the schedule, the events as a transcript and a diagram, and the oracle's word for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from antecede import diagram, oracle
from antecede.errors import AntecedeError, BadRun
from antecede.explore import Exploration, Explorer, Finding
from antecede.model import Event, Id, Message, Packet, View, bits
from antecede.program import Program, Receive, Send, show_step
from antecede.protocols import Machine
from antecede.steps import Make, describe_crash, identity

__all__ = ["Counterexample", "Run", "explain", "replay"]


class Counterexample(Struct, frozen=True):
    """What went wrong in one schedule of one program."""

    kind: str
    why: str
    """One line."""
    program: str
    schedule: tuple[str, ...]
    transcript: str
    diagram: str
    waits: tuple[str, ...] = ()
    """Of a blocked run: what each process waits for, and what is held."""

    def __str__(self) -> str:
        parts = [self.program, self.transcript, self.diagram, "\n".join(self.waits), self.why]
        return "\n\n".join(part.rstrip() for part in parts if part)


class Run:
    """A run of a program that is being made, choice by choice."""

    def __init__(self, make: Make, program: Program) -> None:
        first = make(0)
        self.program = program
        self.view: View = first.view
        self.machines: list[Machine] = [make(vertex) for vertex in range(first.n)]
        self.names: dict[Id, str] = {message: name for name, message in program.messages.items()}
        self.schedule: list[str] = []
        self.events: list[Event] = []
        self.flying: list[tuple[int, Packet[Any]]] = []
        """Packets in flight, each with its number in its channel."""
        self._posted: dict[tuple[int, int], int] = {}

    def send(self, process: int) -> None:
        """The next send of a process's script."""
        machine = self.machines[process]
        steps = [step for step in self.program.scripts[process] if isinstance(step, Send)]
        if machine.sent >= len(steps):
            raise BadRun(
                "schedule",
                f"{self.view.name(process)} sends once more than the {len(steps)} times of its script",
            )
        step = steps[machine.sent]
        self.schedule.append(f"{self.view.name(process)} sends {step.name}")
        self.events.append(Event(process, "send", process, machine.sent + 1, step.to))
        self._take_effects(machine.send(step.to, label=step.label)[1])

    def arrive(self, packet: Packet[Any]) -> None:
        """A packet in flight arrives."""
        position = next((i for i, (_, flying) in enumerate(self.flying) if flying == packet), None)
        if position is None:
            raise BadRun("schedule", "a packet arrives that is not in flight")
        number, packet = self.flying.pop(position)
        source, dest = self.view.name(packet.source), self.view.name(packet.dest)
        self.schedule.append(f"{dest} receives {source}.{dest}.{number}")
        message = packet.message
        if message is None:
            self.events.append(Event(packet.dest, "receive", packet.source, number, control=True))
        else:
            self.events.append(Event(packet.dest, "receive", message.sender, message.number))
        self._take_effects(self.machines[packet.dest].receive(packet))

    def deliver(self, process: int, message: Id) -> None:
        """A process delivers an eligible message."""
        machine = self.machines[process]
        self.schedule.append(f"{self.view.name(process)} delivers {self.names[message]}")
        offered = self.eligible(process, message)
        if offered is None:
            eligible = ", ".join(self.names[m.id] for m in machine.eligible()) or "nothing"
            raise BadRun(
                f"step {len(self.schedule)}",
                f"{self.schedule[-1]}, which is not eligible; eligible: {eligible}",
            )
        self.events.append(Event(process, "deliver", *message))
        self._take_effects(machine.deliver(offered))

    def eligible(self, process: int, message: Id) -> Message | None:
        return next((m for m in self.machines[process].eligible() if m.id == message), None)

    def _take_effects(self, effects: Iterable[Packet[Any] | Message]) -> None:
        for effect in effects:
            if isinstance(effect, Packet):
                channel = (effect.source, effect.dest)
                self._posted[channel] = self._posted.get(channel, 0) + 1
                self.flying.append((self._posted[channel], effect))

    def fetch(self, process: int, message: Id | None = None) -> None:
        """Let packets to a process arrive, the one with the message first, until the message is eligible."""
        while message is None or self.eligible(process, message) is None:
            coming = [packet for _, packet in self.flying if packet.dest == process]
            carriers = [packet for packet in coming if packet.message and packet.message.id == message]
            if not coming:
                return
            self.arrive((carriers or coming)[0])


_STEP = re.compile(r"(\S+) (sends|receives|delivers) (\S+)")


def replay(make: Make, program: Program, schedule: Iterable[str]) -> list[Event]:
    """The events of a schedule.

    >>> from antecede.program import parse
    >>> from antecede.protocols import create
    >>> program = parse("p1: send x to p2\\np2:")
    >>> steps = ["p1 sends x", "p2 receives p1.p2.1", "p2 delivers x"]
    >>> [event.kind for event in replay(lambda p: create("matrix", program.view, p), program, steps)]
    ['send', 'receive', 'deliver']
    """
    run = Run(make, program)
    for number, line in enumerate(schedule, start=1):
        match = _STEP.fullmatch(line.strip())
        if match is None or match[1] not in run.view.names:
            raise BadRun(
                f"step {number}",
                f"{line!r} is no step: write 'P sends NAME', 'P receives A.P.NUMBER' or 'P delivers NAME'",
            )
        _follow(run, f"step {number}", run.view.id(match[1]), match[2], match[3])
    return run.events


def _follow(run: Run, place: str, process: int, verb: str, what: str) -> None:
    if verb == "sends":
        run.send(process)
        if run.names[run.events[-1].id] != what:
            raise BadRun(place, f"sends {what}, and next in the script is {run.names[run.events[-1].id]}")
    elif verb == "delivers":
        messages = run.program.messages
        if what not in messages:
            raise BadRun(place, f"there is no message {what}; there are {', '.join(messages)}")
        run.deliver(process, messages[what])
    else:
        for number, packet in run.flying:
            if what == f"{run.view.name(packet.source)}.{run.view.name(packet.dest)}.{number}":
                return run.arrive(packet)
        raise BadRun(place, f"{what} arrives, and is not in flight")
    return None


def explain(explorer: Explorer, exploration: Exploration) -> Counterexample:
    """What an exploration found, for people."""
    finding, program = exploration.finding, exploration.program
    assert finding is not None
    run = Run(explorer.steps.make, program)
    error = ""
    try:
        _walk(run, explorer, finding)
        _finish(run, explorer, finding)
    except BadRun as unlike:
        advice = "does `state` of the machine name every attribute that its methods change?"
        raise BadRun(
            "explorer", f"the schedule that it found cannot be replayed ({unlike}): {advice}"
        ) from None
    except (AntecedeError, AssertionError) as raised:
        error = str(raised)
    except Exception as raised:
        error = describe_crash(raised)
    assert (finding.kind in ("refused", "broken")) == bool(error), error or "the replay went well"
    marks = frozenset[tuple[Id, int]]()
    if finding.kind == "order":
        marks = _confirm(run, explorer, finding)
    return Counterexample(
        finding.kind,
        _why(run, explorer, finding),
        str(program),
        tuple(run.schedule),
        diagram.transcript(run.events, run.view, run.names, marks),
        diagram.render(run.events, run.view, run.names, marks),
        tuple(_waits(run)) if finding.kind == "blocked" else (),
    )


def _walk(run: Run, explorer: Explorer, finding: Finding) -> None:
    """Make the choices of the finding; packets that were taken to arrive at once arrive as late as they can."""
    n = explorer.steps.n
    for at, taken in finding.path:
        if isinstance(taken, int):
            run.arrive(explorer.steps.packets[taken][0])
        elif taken.deliver:
            message = identity(taken.number, n)
            if explorer.instant:
                run.fetch(at, message)
            run.deliver(at, message)
        else:
            run.send(at)


def _finish(run: Run, explorer: Explorer, finding: Finding) -> None:
    """Go on until what is wrong can be seen."""
    if finding.kind == "order":
        for number in bits(finding.suspects):
            late = identity(number, explorer.steps.n)
            run.fetch(finding.at, late)
            if run.eligible(finding.at, late) is not None:
                run.deliver(finding.at, late)
    elif explorer.instant and finding.kind != "endless":
        for vertex in range(explorer.steps.n):
            run.fetch(vertex)


def _confirm(run: Run, explorer: Explorer, finding: Finding) -> frozenset[tuple[Id, int]]:
    """The oracle's word: the search and the oracle must agree."""
    verdict = oracle.check(run.events, processes=explorer.steps.n, complete=False)
    late = {identity(number, explorer.steps.n) for number in bits(finding.suspects)}
    found = {v.overtaken for v in (*verdict.violations, *verdict.skipped) if v.at == finding.at}
    assert late <= found, f"the search found {late} overtaken at {finding.at}, the oracle {found}"
    return verdict.marks


def _why(run: Run, explorer: Explorer, finding: Finding) -> str:
    n = explorer.steps.n
    if finding.kind == "endless":
        return f"it goes on for ever: {finding.why}"
    at = run.view.name(finding.at)
    message = run.names[identity(finding.message, n)] if finding.message >= 0 else "a control packet"
    if finding.kind == "order":
        late = " and ".join(run.names[identity(number, n)] for number in bits(finding.suspects))
        return f"{at} delivers {message} before {late}, which happened before it"
    if finding.kind == "blocked":
        return "nothing can happen any more, and not everything is delivered"
    return f"{at}, {message}: {finding.kind}: {finding.why}"


def _waits(run: Run) -> Iterator[str]:
    """What each process waits for, and what is held."""
    delivered = {(event.process, run.names[event.id]) for event in run.events if event.kind == "deliver"}
    for process, machine in enumerate(run.machines):
        step = _next_step(run, process, machine)
        if step is not None:
            yield f"{run.view.name(process)} waits at: {show_step(run.view, step)}"
        for message in machine.eligible():
            yield f"{run.view.name(process)} could deliver {run.names[message.id]}"
        for waiting in machine.waiting():
            awaited = ", ".join(
                f"{a.first}..{a.last} of {run.view.name(a.sender)}"
                if a.first < a.last
                else _one(run, a.sender, a.first, a.counted)
                for a in waiting.awaits
            )
            reason = "; ".join(filter(None, [awaited and f"waits for {awaited}", waiting.reason]))
            yield f"{run.view.name(process)} holds {run.names[waiting.message.id]} ({waiting.where}): {reason}"
    for process in range(len(run.program.processes)):
        missing = [m for m in run.program.list_messages_to(process) if (process, m) not in delivered]
        if missing:
            yield f"{run.view.name(process)} has not delivered {', '.join(missing)}"


def _one(run: Run, sender: int, number: int, counted: str) -> str:
    if counted == "sender" and (sender, number) in run.names:
        return run.names[sender, number]
    return f"{number} of {run.view.name(sender)}"


def _next_step(run: Run, process: int, machine: Machine) -> Send | Receive | None:
    """The step at which a process's script stands: all of its choices were made in the order of the script."""
    if process >= len(run.program.scripts):
        return None
    script = run.program.scripts[process]
    own = [event for event in run.events if event.process == process and event.kind != "receive"]
    if not any(isinstance(step, Receive) for step in script):
        own = [event for event in own if event.kind == "send"]
    return script[len(own)] if len(own) < len(script) else None
