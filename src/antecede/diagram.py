"""A run as a space-time diagram, and as a transcript: plain text, for terminals, lectures and bug reports.

Each process is a horizontal line, time goes right, and each event has a column of its own. A message leaves its send
downwards or upwards, travels along a lane beside the line of its destination, and enters that line where it arrives.
So a line that crosses another has passed it; only corners and forks belong to the message.

- Events are drawn in the order in which they are given, which must not put an arrival before its send.
- A receive is drawn only if its delivery is not the next event of its process: the message was held.
- Control packets are not drawn.
- A copy that has not arrived ends in a short dotted lane.
- What is wider than `width` is cut between two events, and continues below.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from antecede.errors import BadRun
from antecede.model import Event, Id, View

__all__ = ["render", "transcript"]

N, E, S, W, LIFE, DOTS = 1, 2, 4, 8, 16, 32
"""What a cell of the canvas holds: lines to its four sides, a process's line, an unfinished lane."""

BOX = {
    0: " ", N | S: "│", E | W: "─", N | E: "└", E | S: "┌", N | W: "┘", S | W: "┐",
    N | E | S: "├", N | S | E | W: "┼", LIFE: "━", LIFE | N | S: "┿", DOTS: "╌",
}  # fmt: skip
ASCII = {
    0: " ", N | S: "|", E | W: "-", N | E: "'", E | S: ".", N | W: "'", S | W: ".",
    N | E | S: "|", N | S | E | W: "|", LIFE: "=", LIFE | N | S: "|", DOTS: "~",
}  # fmt: skip

KINDS = ("sent", "received and held", "delivered", "overtaken")
BOX_GLYPHS = dict(zip(KINDS, "●◌○✗", strict=True))
ASCII_GLYPHS = dict(zip(KINDS, "*:>!", strict=True))
GAP = 2
"""Cells between a label and the next event."""
STUB = 3
"""Cells of a lane that leads nowhere: it ends before the next event."""


class Dot(Struct, frozen=True):
    """An event as it is drawn."""

    event: Event
    kind: str
    label: str
    column: int

    @property
    def end(self) -> int:
        return self.column + 1 + len(self.label) + GAP


class Lane(Struct, frozen=True):
    """One copy's way: from the column of its send to the column of its arrival, beside the destination's line."""

    source: int
    dest: int
    start: int
    stop: int
    arrives: bool


def render(
    events: Iterable[Event],
    view: View,
    names: Mapping[Id, str] | None = None,
    marks: Collection[tuple[Id, int]] = (),
    *,
    arrows: bool = True,
    ascii: bool = False,
    width: int = 110,
) -> str:
    """The space-time diagram of a run.

    `names` gives messages short names, `marks` the (message, process) of the deliveries that were overtaken: a
    verdict's `marks`. Without `arrows` each process takes just one line.

    >>> x, y, z = (0, 1), (0, 2), (1, 1)
    >>> triangle = [
    ...     Event(0, "send", *x, (2,)), Event(0, "send", *y, (1,)),
    ...     Event(1, "deliver", *y), Event(1, "send", *z, (2,)),
    ...     Event(2, "deliver", *z), Event(2, "deliver", *x),
    ... ]
    >>> print(render(triangle, View.numbered(3), {x: "x", y: "y", z: "z"}, marks={(x, 2)}))
    p1 ━━●x━━●y━━━━━━━━━━━━━━━━━━
         │   └───┐
    p2 ━━┿━━━━━━━○y━━●z━━━━━━━━━━
         │           └───┐
         └───────────────┼───┐
    p3 ━━━━━━━━━━━━━━━━━━○z━━✗x━━
    <BLANKLINE>
    ● sent   ○ delivered   ✗ overtaken
    """
    events = tuple(events)
    _check_order(events, view)
    dots = _dots(events, view, names or {}, marks)
    lanes = _lanes(dots) if arrows else []
    glyphs, lines = (ASCII_GLYPHS, ASCII) if ascii else (BOX_GLYPHS, BOX)
    margin = max(map(len, view.names), default=0) + 1
    rows = _paint(dots, lanes, view, glyphs, lines)
    cuts = _cuts(dots, max(width - margin, 1))
    bands = [_band(rows, start, stop, margin, lines[N | S]) for start, stop in cuts]
    return "\n\n".join([*bands, _legend(dots, lanes, glyphs, lines)]).rstrip()


def transcript(
    events: Iterable[Event],
    view: View,
    names: Mapping[Id, str] | None = None,
    marks: Collection[tuple[Id, int]] = (),
) -> str:
    """One numbered line for each event, in words.

    >>> run = [Event(0, "send", 0, 1, (0, 1)), Event(0, "deliver", 0, 1), Event(1, "deliver", 0, 1)]
    >>> print(transcript(run, View.numbered(2), {(0, 1): "x"}))
    1. p1 sends x to p1 and p2
    2. p1 delivers x (from itself)
    3. p2 delivers x (from p1)
    """
    events = tuple(events)
    digits = len(str(len(events)))
    lines = []
    for position, event in enumerate(events):
        words = _words(event, view, names or {})
        if _is_held(events, position):
            words += " and holds it"
        elif event.kind == "deliver" and (event.id, event.process) in marks:
            words += ", overtaken"
        lines.append(f"{position + 1:{digits}}. {view.name(event.process)} {words}")
    return "\n".join(lines)


def _words(event: Event, view: View, names: Mapping[Id, str]) -> str:
    name = "control" if event.control else _name(event, view, names)
    if event.kind == "send":
        to = [view.name(q) for q in event.to] or ["nobody"]
        return f"sends {name} to " + " and ".join(filter(None, [", ".join(to[:-1]), to[-1]]))
    source = "itself" if event.process == event.sender else view.name(event.sender)
    return f"{event.kind}s {name} (from {source})"


def _name(event: Event, view: View, names: Mapping[Id, str]) -> str:
    return names.get(event.id, f"{view.name(event.sender)}.{event.number}")


# From events to dots and lanes.


def _check_order(events: tuple[Event, ...], view: View) -> None:
    sends = {e.id: position for position, e in enumerate(events) if e.kind == "send" and not e.control}
    for position, event in enumerate(events):
        for process in (event.process, *event.to):
            if not 0 <= process < len(view):
                raise BadRun(
                    f"events[{position}]", f"there is no process {process}: the view has 0 to {len(view) - 1}"
                )
        if not event.control and sends.get(event.id, position) > position:
            name = _name(event, view, {})
            reason = f"the {event.kind} of {name} comes before its send at events[{sends[event.id]}]"
            raise BadRun(f"events[{position}]", reason)


def _is_held(events: tuple[Event, ...], position: int) -> bool:
    """Whether this is a receive, and the message is not delivered at once, nor was before."""
    event = events[position]
    if event.kind != "receive" or event.control:
        return False
    delivery = ("deliver", event.id)
    own = [(e.kind, e.id) for e in events[:position] if e.process == event.process and not e.control]
    rest = (e for e in events[position + 1 :] if e.process == event.process and not e.control)
    following = next(rest, None)
    at_once = following is not None and (following.kind, following.id) == delivery
    return not at_once and delivery not in own


def _dots(
    events: tuple[Event, ...], view: View, names: Mapping[Id, str], marks: Collection[tuple[Id, int]]
) -> list[Dot]:
    dots: list[Dot] = []
    column = GAP
    for position, event in enumerate(events):
        if event.control or (event.kind == "receive" and not _is_held(events, position)):
            continue
        overtaken = (event.id, event.process) in marks
        kind = {
            "send": "sent",
            "receive": "received and held",
            "deliver": "overtaken" if overtaken else "delivered",
        }
        dots.append(Dot(event, kind[event.kind], _name(event, view, names), column))
        column = dots[-1].end
    return dots


def _lanes(dots: Sequence[Dot]) -> list[Lane]:
    """One for each copy to another process; a process's own copy needs none, its line leads there."""
    arrivals: dict[Id, dict[int, int]] = {}
    for dot in dots:
        if dot.kind != "sent":
            arrivals.setdefault(dot.event.id, {}).setdefault(dot.event.process, dot.column)
    lanes = []
    for dot in dots:
        if dot.kind == "sent":
            source, arrived = dot.event.process, arrivals.get(dot.event.id, {})
            for dest in sorted({*dot.event.to, *arrived} - {source}):
                stop = arrived.get(dest, dot.column + STUB)
                lanes.append(Lane(source, dest, dot.column, stop, dest in arrived))
    return lanes


# From lanes to rows of the canvas.


def _slots(lanes: Sequence[Lane]) -> list[int]:
    """For each lane its distance from the destination's line, such that no two lanes overlap."""
    busy: dict[tuple[int, bool, int], int] = {}
    slots = []
    for lane in lanes:
        down = lane.source < lane.dest
        slot = 0
        while busy.get((lane.dest, down, slot), -1) >= lane.start:
            slot += 1
        busy[lane.dest, down, slot] = lane.stop
        slots.append(slot)
    return slots


def _layout(lanes: Sequence[Lane], n: int) -> tuple[list[int], list[int], int]:
    """The row of each process's line, the row of each lane, and the number of rows."""
    slots = _slots(lanes)
    above, below = [0] * n, [0] * n
    for lane, slot in zip(lanes, slots, strict=True):
        side = above if lane.source < lane.dest else below
        side[lane.dest] = max(side[lane.dest], slot + 1)
    lines: list[int] = []
    row = 0
    for process in range(n):
        # Even where no lane runs, a line that passes needs a row to be seen.
        row += max(above[process], 1 if lanes and process and not below[process - 1] else 0)
        lines.append(row)
        row += 1 + below[process]
    runs = [
        lines[lane.dest] + (-1 - slot if lane.source < lane.dest else 1 + slot)
        for lane, slot in zip(lanes, slots, strict=True)
    ]
    return lines, runs, row


def _paint(
    dots: Sequence[Dot],
    lanes: Sequence[Lane],
    view: View,
    glyphs: Mapping[str, str],
    lines: Mapping[int, str],
) -> list[tuple[str, str]]:
    """The rows of the canvas, each with the name of its process or nothing."""
    life, runs, height = _layout(lanes, len(view))
    end = dots[-1].end if dots else 2 * GAP
    canvas = [[0] * end for _ in range(height)]
    for row in life:
        canvas[row] = [LIFE] * end
    for lane, row in zip(lanes, runs, strict=True):
        _draw(canvas, lane, row, life)
    text = [[lines[cell] for cell in cells] for cells in canvas]
    for dot in dots:
        drawn = glyphs[dot.kind] + dot.label
        text[life[dot.event.process]][dot.column : dot.column + len(drawn)] = drawn
    names = dict(zip(life, view.names, strict=True))
    return [(names.get(row, ""), "".join(cells)) for row, cells in enumerate(text)]


def _draw(canvas: list[list[int]], lane: Lane, row: int, life: Sequence[int]) -> None:
    """Leave the source's line, run beside the destination's, and enter it."""
    leave, enter = life[lane.source], life[lane.dest]
    down = leave < row
    for passed in range(leave + 1, row) if down else range(row + 1, leave):
        canvas[passed][lane.start] |= N | S
    canvas[row][lane.start] |= E | (N if down else S)
    for column in range(lane.start + 1, lane.stop):
        canvas[row][column] |= E | W if lane.arrives else DOTS
    if lane.arrives:
        canvas[row][lane.stop] |= W | (S if down else N)
        for passed in range(row + 1, enter) if down else range(enter + 1, row):
            canvas[passed][lane.stop] |= N | S


# From rows to text.


def _cuts(dots: Sequence[Dot], width: int) -> list[tuple[int, int]]:
    """Where the canvas is cut into bands: between two events, and what lies between is in both."""
    cuts = []
    start = 0
    for dot in dots:
        if dot.end - start > width and dot.column > start + GAP:
            cuts.append((start, dot.column))
            start = dot.column - GAP
    return [*cuts, (start, dots[-1].end if dots else 2 * GAP)]


def _band(rows: Sequence[tuple[str, str]], start: int, stop: int, margin: int, passing: str) -> str:
    """A part of the canvas, without the rows where nothing but `passing` lines is seen, if others show them."""
    lines: list[str] = []
    idle = ""
    used = False
    for name, text in rows:
        seen = text[start:stop].rstrip()
        line = f"{name:{margin}}{seen}"
        if name:
            lines += [line] if used or not idle else [idle, line]
            idle, used = "", False
        elif seen.strip(passing + " "):
            lines.append(line)
            used = True
        elif seen:
            idle = line
    return "\n".join(lines)


def _legend(
    dots: Sequence[Dot], lanes: Sequence[Lane], glyphs: Mapping[str, str], lines: Mapping[int, str]
) -> str:
    """What the signs that were used mean."""
    used = {dot.kind for dot in dots}
    signs = [f"{glyphs[kind]} {kind}" for kind in KINDS if kind in used]
    if not all(lane.arrives for lane in lanes):
        signs.append(f"{lines[DOTS] * 2} not arrived")
    return "   ".join(signs)
