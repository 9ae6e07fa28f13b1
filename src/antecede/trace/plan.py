"""Which task reads what: a trace cut into chunks of time, from what the footers of its files say.

A *chunk* is what one task reads, of one long run or of many short ones. A run's share of a chunk is a *part*; the parts
of a run, one after the other, are the run in the order (clock, process, index).

For each run one of three ways, the first that can be:
  sequence   its files say that they are in order, and each begins where the one before ends: a part is a range of row
             groups, read as a stream
  merge      its row groups have spans of clocks that overlap little: a part is a range of clocks, and the task reads
             the groups that reach into it and sorts what is in the range. Files that processes wrote each for itself
             are read like this, nothing is exchanged
  pack       the rest, and whatever is no file that a task can open: rows are exchanged (blocks.py), a part is a range
             of clocks

Rows of one clock are never cut apart by `merge` and `pack`. A run has at most `PARTS_MOST` parts, so that what one task
has to combine stays small.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Final

from msgspec import Struct

from antecede.errors import BadTrace
from antecede.trace.footers import Footer, Group

__all__ = [
    "ROWS", "Chunk", "Cut", "Part", "Piece", "Plan", "plan_by_origin", "group_parts", "choose_cuts", "explain_plan",
    "plan",
]  # fmt: skip

ROWS: Final = 1 << 21
"""Rows that a task sorts: some tenths of a second of work, and some hundred megabytes."""

STREAMED: Final = (1 << 20, 1 << 23)
"""Rows that a task reads as a stream, at least and at most. They take no memory, but a task takes Spark and Python
some 70 ms before it begins: 8 million rows are a second's work."""

TASKS: Final = 8
"""A trace of some size is read by as many tasks at least, so that a few cores all have some of it."""

PARTS_MOST: Final = 256

READ_TWICE_MOST: Final = 0.5
"""Row groups that reach into two ranges are read twice: by `merge` up to this share of the rows."""


WAYS: Final = {
    "sequence": "files in order, read as streams",
    "merge": "files that overlap in time, merged by the tasks that read them",
    "pack": "rows in no order, exchanged and sorted",
    "origin": "too much under way to cut by time: each task reads all and judges a share of the senders",
}


class Piece(Struct, frozen=True):
    """Row groups `first` to `last` of a file, all of one run."""

    path: str
    first: int
    last: int


class Part(Struct, frozen=True):
    """A run's share of a chunk."""

    run: str
    number: int
    """0, 1, ...: the parts of a run are in this order."""
    of: int
    pieces: tuple[Piece, ...]
    clocks: tuple[int | None, int | None] | None = None
    """From and below: only these rows are meant, and they need sorting. None: all rows, as they stand."""
    through: tuple[Part, ...] = ()
    """These are read one after the other instead."""
    block: tuple[int, int] | None = None
    """By origin: this part is the whole run, but only messages of the processes from .. up to .. are judged."""


class Chunk(Struct, frozen=True):
    serial: int
    rows: int
    parts: tuple[Part, ...]


class Cut(Struct, frozen=True):
    """How a run that is packed is cut: part i has the clocks below `below[i]`, the last part the rest."""

    run: str
    below: tuple[int, ...]
    rows: int


class Plan(Struct, frozen=True):
    """What will be read, and how."""

    chunks: tuple[Chunk, ...]
    packed: tuple[Chunk, ...]
    """What tasks that pack read: parts here are no ranges of a run, just rows."""
    cuts: tuple[Cut, ...]
    ways: Mapping[str, str]
    """Run -> sequence, merge or pack."""
    blind: tuple[str, ...]
    """Of those to be packed, the ones of which the footers do not tell how to cut them."""


class Stretch(Struct, frozen=True):
    """One row group of a run, and where it is."""

    path: str
    number: int
    group: Group
    ordered: bool


def plan(
    files: Sequence[Footer],
    runs: Iterable[str],
    parts: int | None = None,
    merged: Iterable[str] = (),
    size: int | None = None,
) -> Plan:
    """The plan for a trace's files, with about `size` rows to a task if someone says how many.

    `parts` asks for that many of each run; `merged` are not to be read in sequence.
    """
    known, not_streamed = set(runs), set(merged)
    ways: dict[str, str] = {}
    direct: list[tuple[Part, int]] = []
    packed: list[tuple[Part, int]] = []
    cut: list[Cut] = []
    own, blind = by_run(files, known)
    streamed = size or stream_size(sum(file.rows for file in files))
    for run in sorted(own.keys() - blind):
        stretches = own[run]
        rows = sum(s.group.rows for s in stretches)
        share = part_size(rows, parts, size or ROWS)
        if run not in not_streamed and in_sequence(stretches):
            ways[run] = "sequence"
            direct += in_turn(run, stretches, part_size(rows, parts, streamed))
        elif (found := ranges(run, stretches, share)) is not None:
            ways[run] = "merge"
            direct += found
        else:
            ways[run] = "pack"
            packed += in_turn(run, stretches, streamed)
            cut.append(Cut(run, bounds(stretches, share), rows))
    ways |= dict.fromkeys(sorted(blind), "pack")
    chunks, sources = group_parts(direct, streamed), group_parts(packed, streamed)
    return Plan(tuple(chunks), tuple(sources), tuple(cut), ways, tuple(sorted(blind)))


def stream_size(rows: int) -> int:
    """Rows that a task reads as a stream, of so many in all.

    >>> stream_size(10_000), stream_size(10_000_000), stream_size(1_000_000_000)
    (1048576, 1250000, 8388608)
    """
    least, most = STREAMED
    return max(least, min(most, -(-rows // TASKS)))


def part_size(rows: int, parts: int | None, size: int = ROWS) -> int:
    """Rows of a part."""
    return max(1, -(-rows // parts) if parts else max(size, -(-rows // PARTS_MOST)))


def by_run(files: Sequence[Footer], known: set[str]) -> tuple[dict[str, list[Stretch]], set[str]]:
    """The row groups of each run, files in the order of their names, and the runs of which that does not tell enough.

    These are runs that share a row group with others, and those with a row group that does not tell its clocks.
    """
    own: dict[str, list[Stretch]] = {}
    blind: set[str] = set()
    for file in files:
        for number, group in enumerate(file.groups):
            first, last = group.runs or (file.run, file.run)
            if file.run is not None and first != file.run:
                raise BadTrace(
                    file.path, f"it has events of run {first}, and says that it has only run {file.run}"
                )
            if first is None or last is None or first != last:
                blind |= {run for run in known if (first or "") <= run and (last is None or run <= last)}
            elif first not in known:
                raise BadTrace(file.path, f"it has events of run {first}, which runs.parquet does not name")
            elif group.rows:
                own.setdefault(first, []).append(Stretch(file.path, number, group, file.ordered))
                blind |= {first} if group.clocks is None else set()
    return own, blind


def explain_plan(plan: Plan, packed: Sequence[Cut]) -> str:
    """A plan in words, for people; `packed` are the cuts of all runs that are packed."""
    lines = []
    for way, words in WAYS.items():
        runs = [run for run, how in plan.ways.items() if how == way]
        if runs:
            shown = ", ".join(runs[:3]) + (", ..." if len(runs) > 3 else "")
            lines.append(f"{way}: {len(runs)} run{'s' * (len(runs) > 1)} ({shown}): {words}")
    rows = sum(chunk.rows for chunk in plan.chunks)
    lines.append(f"{len(plan.chunks)} tasks read {rows:,} rows from files")
    if packed:
        rows, parts = sum(cut.rows for cut in packed), sum(len(cut.below) + 1 for cut in packed)
        lines.append(f"{rows:,} rows are exchanged, in {parts} ranges of clocks")
    return "\n".join(lines)


# In sequence


def in_sequence(stretches: Sequence[Stretch]) -> bool:
    """Whether the groups, as they come, are in order. At equal clocks names decide: whoever reads the rows sees."""
    spans = [s.group.clocks for s in stretches if s.ordered and s.group.clocks is not None]
    return len(spans) == len(stretches) and all(before[1] <= after[0] for before, after in pairwise(spans))


def in_turn(run: str, stretches: Sequence[Stretch], size: int) -> list[tuple[Part, int]]:
    """Parts of about `size` rows, one after the other, each with its rows."""
    shares = list(share_out(stretches, size))
    return [
        (Part(run, number, len(shares), pieces(share)), sum(s.group.rows for s in share))
        for number, share in enumerate(shares)
    ]


def share_out(stretches: Sequence[Stretch], size: int) -> Iterator[list[Stretch]]:
    """Shares of equal size, as far as row groups allow."""
    total = sum(s.group.rows for s in stretches)
    count = max(1, round(total / size))
    before, last, share = 0, 0, list[Stretch]()
    for stretch in stretches:
        # A group belongs where its middle lies.
        where = (before + stretch.group.rows // 2) * count // max(1, total)
        if share and where != last:
            yield share
            share = []
        share.append(stretch)
        last, before = where, before + stretch.group.rows
    if share:
        yield share


def pieces(stretches: Iterable[Stretch]) -> tuple[Piece, ...]:
    """Groups that follow each other in a file become one piece."""
    found: list[Piece] = []
    for stretch in stretches:
        last = found[-1] if found else None
        if last is not None and last.path == stretch.path and last.last + 1 == stretch.number:
            found[-1] = Piece(last.path, last.first, stretch.number)
        else:
            found.append(Piece(stretch.path, stretch.number, stretch.number))
    return tuple(found)


# By ranges of clocks


def bounds(stretches: Sequence[Stretch], size: int) -> tuple[int, ...]:
    """Clocks that cut the rows into shares of about `size`, if each group's rows lie evenly in its span."""
    spans = [(s.group.clocks, s.group.rows) for s in stretches if s.group.clocks is not None]
    rows = sum(weight for _, weight in spans)
    count = max(1, round(rows / size))
    if count == 1:
        return ()
    # The density of rows changes only where a span begins or ends.
    steps: dict[int, float] = {}
    for (low, high), weight in spans:
        steps[low] = steps.get(low, 0.0) + weight / (high - low + 1)
        steps[high + 1] = steps.get(high + 1, 0.0) - weight / (high - low + 1)
    found: list[int] = []
    density, seen, clock = 0.0, 0.0, min(steps)
    for step in sorted(steps):
        ahead = seen + density * (step - clock)
        while len(found) < count - 1 and density > 0 and ahead >= (wanted := rows * (len(found) + 1) / count):
            found.append(clock + max(1, round((wanted - seen) / density)))
        seen, clock, density = ahead, step, density + steps[step]
    return tuple(sorted(set(found)))


def ranges(run: str, stretches: Sequence[Stretch], size: int) -> list[tuple[Part, int]] | None:
    """Parts by clock, each with the row groups that reach into it; None if too much would be read twice."""
    if any(s.group.clocks is None for s in stretches):
        return None
    edges = [None, *bounds(stretches, size), None]
    found: list[tuple[Part, int]] = []
    for number, (low, high) in enumerate(pairwise(edges)):
        inside = [s for s in stretches if reaches(s.group, low, high)]
        if inside:
            part = Part(run, number, len(edges) - 1, pieces(inside), (low, high))
            found.append((part, sum(s.group.rows for s in inside)))
    total = sum(s.group.rows for s in stretches)
    return found if sum(rows for _, rows in found) <= (1 + READ_TWICE_MOST) * total else None


def reaches(group: Group, low: int | None, high: int | None) -> bool:
    assert group.clocks is not None
    return (low is None or group.clocks[1] >= low) and (high is None or group.clocks[0] < high)


# Into chunks


def group_parts(parts: Iterable[tuple[Part, int]], most: int = ROWS) -> Iterator[Chunk]:
    """Parts into chunks: short runs share one, so that a thousand of them are not a thousand tasks."""
    chunk: list[Part] = []
    rows = serial = 0
    for part, size in parts:
        if chunk and rows + size > most:
            yield Chunk(serial, rows, tuple(chunk))
            serial, rows, chunk = serial + 1, 0, []
        chunk.append(part)
        rows += size
    if chunk:
        yield Chunk(serial, rows, tuple(chunk))


def choose_cuts(
    sizes: Mapping[str, tuple[int, Sequence[int]]], parts: int | None = None, size: int = ROWS
) -> list[Cut]:
    """Cuts for rows of which no file tells: run -> its rows, and clocks that cut it into many equal shares."""
    found = []
    for run, (rows, quantiles) in sorted(sizes.items()):
        wanted = max(1, round(rows / part_size(rows, parts, size)))
        picked = [quantiles[len(quantiles) * i // wanted] for i in range(1, wanted)] if quantiles else []
        found.append(Cut(run, tuple(clock for clock, _ in groupby(picked)), rows))
    return found


# By origin


def plan_by_origin(plan: Plan, blocks: Mapping[str, int], processes: Mapping[str, Sequence[str]]) -> Plan:
    """The plan with some runs read by origin: each task reads all of the run, and judges a block of the senders."""
    kept = [(part, 0) for chunk in plan.chunks for part in chunk.parts]
    own = {run: [part for part, _ in kept if part.run == run] for run in blocks}
    chunks = [
        Chunk(0, chunk.rows, left)
        for chunk in plan.chunks
        if (left := tuple(part for part in chunk.parts if part.run not in blocks))
    ]
    for run, count in blocks.items():
        through = tuple(own[run])
        if not through:  # It is packed.
            continue
        edges = edges_of(len(processes[run]), count)
        for number, edge in enumerate(pairwise(edges)):
            chunks.append(Chunk(0, 0, (Part(run, number, len(edges) - 1, (), through=through, block=edge),)))
    numbered = tuple(Chunk(serial, c.rows, c.parts) for serial, c in enumerate(chunks))
    ways = {run: "origin" if own.get(run) else way for run, way in plan.ways.items()}
    return Plan(numbered, plan.packed, plan.cuts, ways, plan.blind)


def edges_of(n: int, count: int) -> list[int]:
    """Where `count` blocks of n processes begin and end, or n blocks of one."""
    count = min(n, count)
    return [n * i // count for i in range(count + 1)]
