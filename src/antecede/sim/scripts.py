"""A workload that is a program: `script:FILE`, in the language of `antecede.program`.

Every process goes through its steps in order. Before each send it thinks for a time (rate=, arrivals=), then it sends
as soon as what the step waits for has been delivered. A script with receives takes messages only by them until it ends.

The program is run again, with the same machines, whenever all of it is done and delivered, until as many messages were
sent as were asked for: each round meets other delays. A round that cannot finish is the end of the run: it is stuck.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from antecede.errors import BadProgram
from antecede.model import Id, Message
from antecede.program import Program, Receive, Send, parse
from antecede.sim.chance import Words
from antecede.sim.specs import Options, Spec, word
from antecede.sim.workloads import Draft, Workload

if TYPE_CHECKING:
    from antecede.sim.engine import Engine

__all__ = ["Script", "load", "read"]


def read(path: str) -> Program:
    """The program in a file."""
    try:
        return parse(Path(path).read_text(encoding="utf-8"), path)
    except OSError as error:
        raise BadProgram(path, f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BadProgram(path, f"is no text: byte {error.start} is no UTF-8") from error


def load(text: str) -> Program:
    """The program that `script:FILE` names."""
    options = Options("workload", Spec.parse("workload", text))
    return read(options.value("file", word))


class Script(Workload):
    """One program, round after round."""

    reacts = False

    def __init__(self, program: Program, words: Words, text: str = "script") -> None:
        options = Options("workload", Spec.parse("workload", text))
        options.value("file", word, "")
        self.program = program
        super().__init__(program.view, words, options)
        options.end()
        self.ids = program.messages
        self.names = {identity: name for name, identity in self.ids.items()}
        self.per_round = [0] * self.n
        for sender, _ in program.sends:
            self.per_round[sender] += 1
        self.selective = [any(isinstance(step, Receive) for step in script) for script in program.scripts]
        self.offer = self._offer
        self.round = -1
        self._begin()

    def _begin(self) -> None:
        self.round += 1
        self.at = [0] * self.n
        self.thought = [False] * self.n
        self.thinking = [False] * self.n
        self.eligible: list[dict[Id, Message]] = [{} for _ in range(self.n)]
        self.had: list[set[str]] = [set() for _ in range(self.n)]

    def starters(self) -> Sequence[int]:
        return ()

    def draft(self, process: int) -> Draft:
        raise AssertionError("a script's processes send by their steps")

    def idle(self, engine: Engine) -> None:
        """The next round, if the last one is done, and more is wanted."""
        started = engine.now > 0 or engine.sent > 0
        if started and (engine.delivered < engine.expected or not self._done()):
            return
        if engine.sent >= engine.messages or not any(self.per_round):
            return
        if started:
            self._begin()
        for process in range(self.n):
            engine.at(engine.now, lambda now, process=process: self._go_on(engine, process))

    def _done(self) -> bool:
        return all(at == len(script) for at, script in zip(self.at, self.program.scripts, strict=True))

    def name(self, message: Message) -> str:
        """What the program calls it."""
        return self.names[message.sender, (message.number - 1) % self.per_round[message.sender] + 1]

    def _offer(self, engine: Engine, process: int, message: Message) -> None:
        self.eligible[process][message.id] = message
        self._go_on(engine, process)

    def _go_on(self, engine: Engine, process: int) -> None:
        """Take every step that can be taken."""
        while self._take(engine, process):
            pass

    def _take(self, engine: Engine, process: int) -> bool:
        script, at = self.program.scripts[process], self.at[process]
        step = script[at] if at < len(script) else None
        eligible = self.eligible[process]
        if isinstance(step, Receive):
            for message in eligible.values():
                if step.name in (None, self.name(message)) and step.sender in (None, message.sender):
                    self.at[process] += 1
                    self._deliver(engine, process, message)
                    return True
            return False
        if eligible and (step is None or not self.selective[process]):
            self._deliver(engine, process, next(iter(eligible.values())))
            return True
        if step is None or not self.had[process].issuperset(step.after):
            return False
        return self._send(engine, process, step)

    def _deliver(self, engine: Engine, process: int, message: Message) -> None:
        del self.eligible[process][message.id]
        self.had[process].add(self.name(message))
        engine.deliver(process, message)

    def _send(self, engine: Engine, process: int, step: Send) -> bool:
        if not self.thought[process]:
            if not self.thinking[process]:
                self.thinking[process] = True
                engine.at(
                    engine.now + self.gap.draw(self.words), lambda now: self._has_thought(engine, process)
                )
            return False
        self.thought[process] = False
        self.at[process] += 1
        engine.send(process, step.to, self.blank, step.label)
        return True

    def _has_thought(self, engine: Engine, process: int) -> None:
        if engine.is_stalled(process):
            engine.at(engine.now + self.gap.draw(self.words), lambda now: self._has_thought(engine, process))
            return
        self.thinking[process], self.thought[process] = False, True
        self._go_on(engine, process)
