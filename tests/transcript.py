"""Transcripts: prose, and between it commands with what they print, in the manner of etcd/raft's tests.

A file is a series of paragraphs. A paragraph with a line `----` is a block: a command above it, what it printed below.
All other paragraphs are prose. Blank lines end a paragraph, so none is printed.

  new PROTOCOL P P ... [key=value]    start afresh, with these processes
  send P NAME to P[, P ...]           P's application hands over a message
  receive P NAME [from P]             the packet NAME arrives at P; control packets have names such as ack(x)
  deliver P NAME                      P's application takes the message
  stamp P NAME [from P]               what the packet NAME on its way to P carries
  state P                             what P knows, in the paper's own variables
  eligible P, waiting P               what P may deliver; what is stuck there, and what for
  check [complete] [everywhere]       the oracle's verdict on the run so far, or on the run as a whole; on order where
                                      the protocol promises it, or everywhere
  diagram                             the run so far
  explore PROTOCOL ... [key=value]    every schedule of the program in the following lines

An input shows its effects, then what has come to wait. `python -m tests.transcript` runs all files and writes down what
they print now, for review with `git diff`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from antecede import oracle
from antecede.diagram import render
from antecede.errors import AntecedeError
from antecede.explore import explore
from antecede.model import Awaited, Effect, Event, Id, Message, Packet, View, Waiting
from antecede.program import parse
from antecede.protocols import Machine, create
from tests import states

SCENARIOS = Path(__file__).parent / "scenarios"
RULE = "----"

VERDICTS = {
    "holds": "every schedule finishes, in causal order",
    "blocks": "some schedules finish, others block",
    "never finishes": "every schedule blocks",
    "broken": "some schedule breaks causal order",
}


def run(text: str) -> str:
    """The transcript with what its commands print now."""
    world = World()
    paragraphs = [paragraph.strip("\n") for paragraph in text.split("\n\n")]
    return "\n\n".join(_paragraph(world, paragraph) for paragraph in paragraphs if paragraph) + "\n"


def _paragraph(world: World, paragraph: str) -> str:
    lines = paragraph.split("\n")
    if RULE not in lines:
        return paragraph
    command = lines[: lines.index(RULE)]
    try:
        printed = world.run(command[0].split(), command[1:])
    except AntecedeError as error:
        printed = [f"refused: {error}"]
    return "\n".join([*command, RULE, *(line.rstrip() for line in printed if line.strip())])


class World:
    """Some machines, the packets between them, and the run so far."""

    def __init__(self) -> None:
        self.commands: dict[str, Callable[..., list[str]]] = {
            "new": self.new,
            "send": self.send,
            "receive": self.receive,
            "deliver": self.deliver,
            "stamp": self.stamp,
            "state": self.state,
            "eligible": self.eligible,
            "waiting": self.waiting,
            "check": self.check,
            "diagram": self.diagram,
        }

    def run(self, words: list[str], following: list[str]) -> list[str]:
        if words[0] == "explore":
            return self.explore(words[1:], "\n".join(following))
        assert not following, f"{words[0]}: a command has one line"
        return self.commands[words[0]](*words[1:])

    # Inputs

    def new(self, protocol: str, *words: str) -> list[str]:
        names = [word for word in words if "=" not in word]
        self.view = View.of(*names)
        self.machines = [create(protocol, self.view, name, **_parameters(words)) for name in names]
        self.flying: list[Packet[Any]] = []
        self.events: list[Event] = []
        self.messages: dict[str, Message] = {}
        self.names: dict[Id, str] = {}
        return [f"{protocol}: {', '.join(names)}"]

    def send(self, process: str, name: str, to: str, *dests: str) -> list[str]:
        assert to == "to", f"send {process} {name}: 'to' is missing"
        machine = self._machine(process)
        before = machine.waiting()
        targets = [self.view.id(dest.strip(",")) for dest in dests]
        message, effects = machine.send(targets, name.encode())
        self.messages[name] = message
        self.names[message.id] = name
        self.events.append(Event(machine.me, "send", *message.id, message.to))
        return self._effects(machine, effects, before)

    def receive(self, process: str, *words: str) -> list[str]:
        machine, packet = self._machine(process), self._find(process, *words)
        before = machine.waiting()
        effects = machine.receive(packet)
        self.flying.remove(packet)
        if packet.message is not None:
            self.events.append(Event(machine.me, "receive", *packet.message.id))
        return self._effects(machine, effects, before)

    def deliver(self, process: str, name: str) -> list[str]:
        machine, message = self._machine(process), self.messages[name]
        before = machine.waiting()
        effects = machine.deliver(message)
        self.events.append(Event(machine.me, "deliver", *message.id))
        return self._effects(machine, effects, before)

    def _effects(self, machine: Machine, effects: Iterable[Effect], before: list[Waiting]) -> list[str]:
        lines = []
        for effect in effects:
            if isinstance(effect, Packet):
                self.flying.append(effect)
                lines.append(f"transmit {self._name(effect)} to {self.view.name(effect.dest)}")
            else:
                lines.append(f"{self.names[effect.id]} is eligible")
        lines += [self._waits(machine, w) for w in machine.waiting() if w not in before]
        return lines or ["nothing follows"]

    # Questions

    def stamp(self, process: str, *words: str) -> list[str]:
        packet = self._find(process, *words)
        return [
            *states.stamp(packet, self.view, self.names),
            f"entries: {packet.stamp.entries(len(self.view))}",
        ]

    def state(self, process: str) -> list[str]:
        return states.state(self._machine(process), self.names)

    def eligible(self, process: str) -> list[str]:
        return [self.names[message.id] for message in self._machine(process).eligible()] or ["none"]

    def waiting(self, process: str) -> list[str]:
        machine = self._machine(process)
        return [self._waits(machine, waiting) for waiting in machine.waiting()] or ["none"]

    def check(self, *words: str) -> list[str]:
        everywhere = "everywhere" in words
        at = [q for q in range(len(self.view)) if everywhere or self.machines[0].orders_at(q)]
        verdict = oracle.check(self.events, len(self.view), complete="complete" in words, at=at)
        return verdict.explain(self.view, self.names).split("\n")

    def diagram(self) -> list[str]:
        marks = oracle.check(self.events, complete=False).marks
        return render(self.events, self.view, self.names, marks, width=100).split("\n")

    def explore(self, words: list[str], text: str) -> list[str]:
        program, parameters = parse(text, "explore"), _parameters(words)
        lines = []
        for protocol in words:
            if "=" not in protocol:
                make = partial(create, protocol, program.view, **parameters)
                lines.append(f"{protocol}: {VERDICTS[explore(program, make).verdict]}")
        return lines

    # Names

    def _machine(self, process: str) -> Machine:
        return self.machines[self.view.id(process)]

    def _find(self, process: str, name: str, *source: str) -> Packet[Any]:
        """The one packet with this name on its way to the process."""
        dest = self.view.id(process)
        found = [
            packet
            for packet in self.flying
            if packet.dest == dest
            and self._name(packet) == name
            and (not source or self.view.id(source[-1]) == packet.source)
        ]
        flying = ", ".join(f"{self._name(p)} to {self.view.name(p.dest)}" for p in self.flying)
        assert len(found) == 1, f"{len(found)} packets {name} to {process}; in flight: {flying or 'none'}"
        return found[0]

    def _name(self, packet: Packet[Any]) -> str:
        """A message's name, or one for control, by what it says: its own sender's number or its addressee's."""
        stamp = packet.stamp
        if packet.message is not None:
            return self.names[packet.message.id]
        match type(stamp).__name__:
            case "Acknowledge":
                return f"ack({self.names[packet.dest, stamp.number]})"
            case "Release":
                return f"release({self.names[packet.source, stamp.number]})"
            case "Grant":
                return f"permit({self.names[packet.source, stamp.number]})"
            case "Taken":
                return f"taken({stamp.sequence})"
            case _:
                return f"extra({stamp.sequence})"

    def _waits(self, machine: Machine, waiting: Waiting) -> str:
        awaited = ", ".join(self._awaited(machine, a) for a in waiting.awaits)
        why = f"waits for {awaited}" if awaited else "waits"
        reason = f", {waiting.reason}" if waiting.reason else ""
        return f"{self.names[waiting.message.id]} is {waiting.where}: {why}{reason}"

    def _awaited(self, machine: Machine, awaited: Awaited) -> str:
        numbers = range(awaited.first, awaited.last + 1)
        if awaited.counted == "sender":
            return ", ".join(self.names[awaited.sender, number] for number in numbers)
        which = (
            f"message {awaited.first}" if len(numbers) == 1 else f"messages {awaited.first}..{awaited.last}"
        )
        return f"{which} of {self.view.name(awaited.sender)} to {self.view.name(machine.me)}"


def _parameters(words: Iterable[str]) -> dict[str, Any]:
    pairs = (word.split("=") for word in words if "=" in word)
    return {key: _value(value) for key, value in pairs}


def _value(text: str) -> Any:
    """A parameter: on, off, a number, or a process's name."""
    if text in ("on", "off"):
        return text == "on"
    return int(text) if text.isdigit() else text


def rewrite(paths: Iterable[Path]) -> None:
    for path in paths:
        before = path.read_text(encoding="utf-8")
        after = run(before)
        path.write_text(after, encoding="utf-8")
        print(f"{path.name}: {'the same' if before == after else 'rewritten'}")


if __name__ == "__main__":
    rewrite(map(Path, sys.argv[1:]) if sys.argv[1:] else sorted(SCENARIOS.glob("*.txt")))
