"""What a task does for `measure`: it follows the clocks of runs, and tells how many pairs of messages they order.

A task reads the files of its runs by itself, in order. Short runs share a task. A long run has a task for each block of
its processes: each reads the whole run, and what they find is added. Rows that are in no order come from Spark instead,
sorted, one run after the other, and are kept by the task until it has read them as often as it needs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import Final

import pyarrow as pa
from msgspec import Struct

from antecede.errors import BadTrace
from antecede.spark.measure.facts import READ
from antecede.trace.columns import ORDER_COLUMNS, Names, Rows, by_run, rows_of
from antecede.trace.parquet import read_part
from antecede.trace.plan import ROWS, Part
from antecede.trace.schema import RECEIVE
from antecede.verification.findings import Impossible
from antecede.verification.local import follow_chains
from antecede.verification.schema import impossible
from antecede.verification.tasks import Share as Reading

__all__ = ["COLUMNS", "Found", "Share", "follow_shares", "follow_sorted", "share_runs"]

COLUMNS: Final = ("run", *ORDER_COLUMNS)

LONG: Final = 2 * ROWS
"""Rows from which a run is shared by several tasks."""
BLOCK: Final = 64
"""Entries of clocks that one task follows: merging so many costs about as much as reading the events."""
HELD: Final = 1 << 26
"""Bytes of a run that a task holds in memory; a longer one goes to a file."""


class Share(Struct, frozen=True):
    """What a task does with one run: it follows the entries low to high - 1 of its clocks."""

    run: str
    processes: tuple[str, ...]
    parts: tuple[Part, ...]
    rows: int
    low: int
    high: int


class Found(Struct, frozen=True):
    """What a task found in its share of a run: or, in `error`, what is wrong with the run."""

    run: str
    past: int = 0
    sends: int = 0
    longest_chain: int = 0
    received: bool = False
    error: tuple[str, str] | None = None
    """The fields of a `BadTrace`."""


def share_runs(
    processes: Mapping[str, tuple[str, ...]], parts: Mapping[str, Sequence[Part]], rows: Mapping[str, int]
) -> list[tuple[Share, ...]]:
    """The shares of each task, the longest first: no long one is left over when the others are done."""
    tasks: list[tuple[Share, ...]] = []
    held: list[Share] = []
    for run in sorted(parts, key=lambda run: -rows[run]):
        names, size = processes[run], rows[run]
        count = -(-len(names) // BLOCK) if size >= LONG else 1
        edges = [len(names) * i // count for i in range(count + 1)]
        shares = [Share(run, names, tuple(parts[run]), size, *edge) for edge in pairwise(edges)]
        if size >= LONG:
            tasks += [(share,) for share in shares]
            continue
        if held and sum(share.rows for share in held) + size > ROWS:
            tasks.append(tuple(held))
            held = []
        held += shares
    return [*tasks, tuple(held)] if held else tasks


# In tasks


def follow_shares(shares: Sequence[Share]) -> list[Found]:
    """What one task does."""
    return [follow_share(share) for share in shares]


def follow_share(share: Share) -> Found:
    """Read the run's files, as often as it takes."""
    names = Names.of(share.processes)
    # One task reads all that is read later, too: whoever cannot read a run's files refuses the run.
    more = READ if share.low == 0 else ()
    place = share.parts[0].pieces[0].path.rpartition("/")[0] if share.parts else "events"

    def read() -> Iterator[tuple[str, Rows]]:
        return chain.from_iterable(read_part(part, names, more) for part in share.parts)

    return follow(share.run, names, read, place, (share.low, share.high))


def follow_sorted(
    batches: Iterable[pa.RecordBatch], processes: Mapping[str, tuple[str, ...]], place: str
) -> Iterator[Found]:
    """Follow runs that come as rows, one run after the other, each in order."""
    spool: Spool | None = None
    for batch in batches:
        for run, rows in by_run(batch):
            if spool is None or spool.run != run:
                if spool is not None:
                    yield spool.follow(processes, place)
                spool = Spool(run, batch.schema)
            spool.add(rows)
    if spool is not None:
        yield spool.follow(processes, place)


class Spool:
    """The rows of a run, to be read more than once: in memory, or in a file if there are many."""

    def __init__(self, run: str, schema: pa.Schema) -> None:
        self.run = run
        self._file = tempfile.SpooledTemporaryFile(HELD)  # noqa: SIM115
        self._writer = pa.ipc.new_stream(self._file, schema)

    def add(self, rows: pa.RecordBatch) -> None:
        self._writer.write_batch(rows)

    def follow(self, processes: Mapping[str, tuple[str, ...]], place: str) -> Found:
        """What the clocks of these rows come to. The rows are gone afterwards."""
        self._writer.close()
        with self._file:
            if self.run not in processes:
                reason = f"it has events of run {self.run}, which the table of runs does not name"
                return Found(self.run, error=(place, reason))
            names = Names.of(processes[self.run])
            return follow(self.run, names, partial(self._read, names, place), place, (0, len(names)))

    def _read(self, names: Names, place: str) -> Iterator[tuple[str, Rows]]:
        self._file.seek(0)
        for batch in pa.ipc.open_stream(self._file):
            yield place, rows_of(batch, names, f"{place}, run {self.run}")


def follow(
    run: str,
    names: Names,
    source: Callable[[], Iterable[tuple[str, Rows]]],
    place: str,
    block: tuple[int, int],
) -> Found:
    """What a run's clocks come to, or what is wrong with the run: never some of both."""
    reading, received = Reading(Part(run, 0, 1, ()), names, source), False

    def read() -> Iterator[Rows]:
        nonlocal received
        for rows in reading.read():
            received = received or bool(((rows.kind == RECEIVE) & ~rows.control).any())
            yield rows

    try:
        chains = follow_chains(read, len(names), block)
        reading.refuse_breaks()
    except BadTrace as error:
        return Found(run, error=(error.place, error.reason))
    except Impossible as error:
        refused = impossible(error, place, run, names)
        return Found(run, error=(refused.place, refused.reason))
    return Found(run, chains.past, chains.sends, chains.longest, received)
