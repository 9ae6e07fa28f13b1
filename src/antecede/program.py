"""Small distributed programs, written as the papers write them: one line for each process.

    # Raynal & Schiper 1989, figure 1
    p1: send x to p3; send y to p2
    p2: receive y; send z to p3
    p3: receive from p2; receive from p1

Steps
  send NAME to P[, P ...]     hand a message over; NAME is unique in the program
       [after NAME[, ...]]    only once these were delivered here
       [label L]              see `Message.label`
  receive                     deliver any eligible message
  receive NAME                deliver this one
  receive from P              deliver one of this sender's

A script that contains a receive delivers only by its receives until it has ended, then freely; a script without one
delivers at any time. Every process has a line, if only `p3:`. Text after # is a comment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import permutations, product
from typing import NoReturn, TypeAlias

from msgspec import Struct

from antecede.errors import BadProgram
from antecede.model import Id, View, bits, mask

__all__ = ["Program", "Receive", "Send", "Step", "enumerate_programs", "parse", "show", "show_step"]


class Send(Struct, frozen=True):
    """Hand a message to the protocol."""

    name: str
    to: tuple[int, ...]
    after: tuple[str, ...] = ()
    label: str = ""


class Receive(Struct, frozen=True):
    """Wait for a delivery: any, one message, or any of one sender."""

    name: str | None = None
    sender: int | None = None


Step: TypeAlias = Send | Receive


class Program(Struct, frozen=True):
    """A script for each process of a view.

    >>> triangle = parse("p1: send x to p3; send y to p2\\np2: send z to p3 after y\\np3:")
    >>> triangle.messages
    {'x': (0, 1), 'y': (0, 2), 'z': (1, 1)}
    >>> triangle.list_messages_to(2)
    ['x', 'z']
    """

    processes: tuple[str, ...]
    scripts: tuple[tuple[Step, ...], ...]

    @property
    def view(self) -> View:
        return View(self.processes)

    @property
    def sends(self) -> list[tuple[int, Send]]:
        return [
            (p, step) for p, script in enumerate(self.scripts) for step in script if isinstance(step, Send)
        ]

    @property
    def messages(self) -> dict[str, Id]:
        """The identity of each message, by its name."""
        numbers = [0] * len(self.scripts)
        result = {}
        for process, step in self.sends:
            numbers[process] += 1
            result[step.name] = (process, numbers[process])
        return result

    def list_messages_to(self, process: int) -> list[str]:
        """The names of the messages to a process."""
        return [step.name for _, step in self.sends if process in step.to]

    def __str__(self) -> str:
        return show(self)


def show(program: Program) -> str:
    """Write the program as text; `parse` reads it.

    >>> show(parse("p1:  send a to p2 ,p1;\\np2: receive from p1"))
    'p1: send a to p1, p2\\np2: receive from p1\\n'
    """
    lines = []
    for name, script in zip(program.processes, program.scripts, strict=True):
        lines.append(f"{name}: {'; '.join(show_step(program.view, step) for step in script)}".rstrip() + "\n")
    return "".join(lines)


def show_step(view: View, step: Step) -> str:
    """One step as text."""
    if isinstance(step, Send):
        after = f" after {', '.join(step.after)}" if step.after else ""
        label = f" label {step.label}" if step.label else ""
        return f"send {step.name} to {', '.join(map(view.name, step.to))}{after}{label}"
    if step.name is not None:
        return f"receive {step.name}"
    return "receive" if step.sender is None else f"receive from {view.name(step.sender)}"


# Reading

_NAME = r"[A-Za-z_][\w.\-]*"
_NAMES = rf"{_NAME}(?:\s*,\s*{_NAME})*"
_LINE = re.compile(rf"\s*({_NAME})\s*:(.*)")
_SEND = re.compile(rf"send\s+({_NAME})\s+to\s+({_NAMES})(?:\s+after\s+({_NAMES}))?(?:\s+label\s+({_NAME}))?")
_RECEIVE = re.compile(rf"receive(?:\s+from\s+({_NAME})|\s+({_NAME}))?")


def parse(text: str, source: str = "program") -> Program:
    """Read the program that a text describes. Raises `BadProgram` with the line that is wrong.

    >>> parse("p1: send a to p9", "my.txt")
    Traceback (most recent call last):
    antecede.errors.BadProgram: my.txt:1: there is no process p9: each needs its own line, and there are p1
    """
    lines: list[tuple[str, str, str]] = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.partition("#")[0].strip()
        if line:
            lines.append((f"{source}:{number}", *_split_line(f"{source}:{number}", line)))
    if not lines:
        raise BadProgram(source, "has no process: write lines such as 'p1: send x to p2'")
    view = _view(lines)
    scripts = [
        (place, [_step(place, part.strip(), view) for part in body.split(";") if part.strip()])
        for place, _, body in lines
    ]
    _check_names(scripts, view)
    return Program(view.names, tuple(tuple(steps) for _, steps in scripts))


def _split_line(place: str, line: str) -> tuple[str, str]:
    match = _LINE.fullmatch(line)
    if match is None:
        raise BadProgram(place, f"{line!r} is not a process's name, a colon and its steps")
    return match[1], match[2]


def _view(lines: list[tuple[str, str, str]]) -> View:
    seen: set[str] = set()
    for place, name, _ in lines:
        if name in seen:
            raise BadProgram(place, f"{name} has a second line: give each process one")
        seen.add(name)
    return View(tuple(name for _, name, _ in lines))


def _step(place: str, text: str, view: View) -> Step:
    if match := _SEND.fullmatch(text):
        to = mask(_process(place, name, view) for name in _split(match[2]))
        return Send(match[1], tuple(bits(to)), tuple(_split(match[3] or "")), match[4] or "")
    if match := _RECEIVE.fullmatch(text):
        return Receive(match[2], None if match[1] is None else _process(place, match[1], view))
    raise BadProgram(
        place,
        f"{text!r} is no step: write 'send NAME to P[, P] [after NAME] [label L]', 'receive [NAME]' or "
        "'receive from P'",
    )


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _process(place: str, name: str, view: View) -> int:
    if name not in view.names:
        raise BadProgram(
            place,
            f"there is no process {name}: each needs its own line, and there are {', '.join(view.names)}",
        )
    return view.id(name)


def _check_names(scripts: list[tuple[str, list[Step]]], view: View) -> None:
    """Names are unique, and a process waits only for messages that are addressed to it."""
    to: dict[str, tuple[int, ...]] = {}
    for place, steps in scripts:
        for step in steps:
            if isinstance(step, Send):
                if step.name in to:
                    raise BadProgram(place, f"there is a second message {step.name}: give each its own name")
                to[step.name] = step.to
    for process, (place, steps) in enumerate(scripts):
        for step in steps:
            for name in step.after if isinstance(step, Send) else (step.name,):
                if name is not None and process not in to.get(name, ()):
                    _refuse_wait(place, name, view.name(process), [m for m in to if process in to[m]])


def _refuse_wait(place: str, name: str, process: str, possible: list[str]) -> NoReturn:
    there = f"these are: {', '.join(possible)}" if possible else "nothing is"
    raise BadProgram(place, f"{process} waits for {name}, which is not addressed to it; {there}")


# All programs of a size

Shape: TypeAlias = tuple[tuple[int, ...], ...]
"""A program of sends alone: for each process the destination sets (as masks) of its messages, in its order."""


def enumerate_programs(
    n: int,
    messages: int,
    *,
    unicast: bool = False,
    classes: Iterable[int] | None = None,
    symmetry: bool = True,
    accepts: Callable[[int, tuple[int, ...]], bool] = lambda sender, to: True,
) -> list[Program]:
    """List all programs of n processes that send so many messages, those with the fewest copies first.

    Of these, programs in which nobody sends to itself come first: their counterexamples are the ones to learn from.

    Who sends to whom, in which order at each sender: when is up to the schedule. Programs that differ only in the
    names of processes count once. `classes` (a number for each process) restricts the renaming to processes of the
    same class, for protocols that treat some process differently; `symmetry=False` allows none. `accepts` leaves out
    what a protocol cannot send.

    >>> [len(enumerate_programs(n, m)) for n, m in [(2, 1), (2, 2), (3, 3)]]
    [3, 15, 598]
    >>> print(enumerate_programs(2, 2, unicast=True)[1])
    p1: send a to p2
    p2: send b to p1
    <BLANKLINE>
    """
    kinds = tuple(classes) if classes is not None and symmetry else range(n) if not symmetry else (0,) * n
    renamings = [p for p in permutations(range(n)) if all(kinds[i] == kinds[j] for i, j in enumerate(p))]
    images = {p: [mask(p[q] for q in bits(s)) for s in range(1 << n)] for p in renamings}
    sets = [s for s in range(1, 1 << n) if not unicast or s.bit_count() == 1]
    allowed = [[s for s in sets if accepts(p, tuple(bits(s)))] for p in range(n)]
    shapes: list[Shape] = []
    for lengths in product(range(messages + 1), repeat=n):
        if sum(lengths) == messages:
            keeping = _pick_renamings(lengths, renamings)
            if keeping is not None:
                scripts = [product(allowed[p], repeat=length) for p, length in enumerate(lengths)]
                shapes += _least(product(*scripts), [(p, images[p]) for p in keeping])
    shapes.sort(key=lambda shape: (_copies(shape), _own_copies(shape), _order(shape)))
    return [_program(shape) for shape in shapes]


def _least(shapes: Iterable[Shape], renamings: list[tuple[tuple[int, ...], list[int]]]) -> Iterator[Shape]:
    """Of each set of shapes that are renamings of each other, the least."""
    for shape in shapes:
        for p, image in renamings:
            renamed: list[tuple[int, ...]] = [()] * len(p)
            for i, script in enumerate(shape):
                renamed[p[i]] = tuple([image[s] for s in script])
            if tuple(renamed) < shape:
                break
        else:
            yield shape


def _pick_renamings(
    lengths: tuple[int, ...], renamings: list[tuple[int, ...]]
) -> list[tuple[int, ...]] | None:
    """The renamings that keep these lengths of scripts; None if one puts longer scripts first.

    So most shapes are refused before any renaming is tried on them.
    """
    result = []
    for p in renamings:
        moved = [0] * len(lengths)
        for i, length in enumerate(lengths):
            moved[p[i]] = length
        if tuple(moved) > lengths:
            return None
        if tuple(moved) == lengths:
            result.append(p)
    return result


def _copies(shape: Shape) -> int:
    return sum(s.bit_count() for script in shape for s in script)


def _own_copies(shape: Shape) -> int:
    """Copies that go to their sender."""
    return sum(to >> sender & 1 for sender, script in enumerate(shape) for to in script)


def _order(shape: Shape) -> tuple[object, ...]:
    return tuple((-len(script), script) for script in shape)


def _program(shape: Shape) -> Program:
    names = (_letters(i) for i in range(sum(map(len, shape))))
    scripts = tuple(tuple(Send(next(names), tuple(bits(s))) for s in script) for script in shape)
    return Program(View.numbered(len(shape)).names, scripts)


def _letters(i: int) -> str:
    """a ... z, a1 ... z1, a2 ...: short names, as the papers have them."""
    return chr(ord("a") + i % 26) + (str(i // 26) if i >= 26 else "")
