"""The order of a run, as `measure` follows it: how many pairs of messages it orders, and its longest chain.

A task follows the clocks of its runs, by the scan of verification, which counts chains, too. It reads the files of its
runs by itself, in order. Short runs share a task. A long run has a task for each block of its processes: each reads the
whole run, and what they find is added. Rows that are in no order come from Spark instead, sorted, one run after the
other, and are kept by the task until it has read them as often as it needs.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, groupby, pairwise
from operator import itemgetter
from typing import IO, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from msgspec import Struct
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from antecede.errors import BadTrace
from antecede.jit import kernels_for
from antecede.spark.errors import mark_errors, raise_task_errors
from antecede.spark.measure.facts import READ
from antecede.spark.order.by_trace import with_clock
from antecede.spark.run_tasks import run_tasks
from antecede.spark.trace import Trace
from antecede.storage import absolute
from antecede.trace.columns import ORDER_COLUMNS, Names, Rows, by_run, rows_of
from antecede.trace.footers import Footer, Group
from antecede.trace.parquet import read_part
from antecede.trace.plan import ROWS, Part, Plan, group_parts
from antecede.trace.schema import RECEIVE
from antecede.verification.findings import Impossible
from antecede.verification.local import follow_chains
from antecede.verification.schema import to_bad_trace
from antecede.verification.tasks import Assignment
from antecede.verification.tasks import Share as Reading

__all__ = ["COLUMNS", "Found", "add_shares", "follow_files", "follow_rows", "tied"]

COLUMNS: Final = ("run", *ORDER_COLUMNS)

LONG: Final = 2 * ROWS
"""Rows from which a run is shared by several tasks. Short runs share a task of half as many."""
BLOCK: Final = 64
"""Entries of clocks that one task follows: merging so many costs about as much as reading the events."""
TASKS: Final = 64
"""Tasks among which runs in no order are dealt, on a cluster of few cores."""
HELD: Final = 1 << 26
"""Bytes of a run that a task holds in memory; a longer one goes to a file."""


class Found(Struct, frozen=True):
    """What a task found in its share of a run: or, in `error`, what is wrong with the run."""

    run: str
    past: int = 0
    sends: int = 0
    longest_chain: int = 0
    received: bool = False
    """Whether it tells when messages arrive."""
    timed: bool = False
    """Whether it has two times: a log without times has the same for all."""
    error: tuple[str, str] | None = None
    """The fields of a `BadTrace`."""


# In tasks


def follow_parts(given: Assignment) -> list[Found]:
    """What one task does: each part is a run, of whose clocks it follows the entries of a block."""
    return [follow_part(part, Names.of(given.processes[part.run])) for part in given.chunk.parts]


def follow_part(part: Part, names: Names) -> Found:
    """Read the run's files, as often as it takes."""
    assert part.block is not None
    # One task reads all that is read later, too: whoever cannot read a run's files refuses the run.
    more = READ if part.block[0] == 0 else ()
    place = part.through[0].pieces[0].path.rpartition("/")[0]
    return follow(part.run, names, partial(read_part, part, names, more), place, part.block)


def follow_sorted(
    batches: Iterable[pa.RecordBatch], processes: Mapping[str, tuple[str, ...]], place: str
) -> Iterator[Found]:
    """Follow runs that come as rows, one run after the other, each in order.

    A run is read more than once: its rows are held in memory, or in a file if there are many.
    """
    pieces = (piece for batch in batches for piece in by_run(batch))
    for run, own in groupby(pieces, key=itemgetter(0)):
        if run not in processes:
            reason = f"it has events of run {run}, which the table of runs does not name"
            yield Found(run, error=(place, reason))
            continue
        with tempfile.SpooledTemporaryFile(HELD) as file:
            _, first = next(own)
            with pa.ipc.new_stream(file, first.schema) as writer:
                for rows in chain([first], map(itemgetter(1), own)):
                    writer.write_batch(rows)
            names = Names.of(processes[run])
            read = partial(read_again, file, names, place, run)
            yield follow(run, names, read, place, (0, len(names)))


def read_again(file: IO[bytes], names: Names, place: str, run: str) -> Iterator[tuple[str, Rows]]:
    file.seek(0)
    for batch in pa.ipc.open_stream(file):
        yield place, rows_of(batch, names, f"{place}, run {run}")


def follow(
    run: str,
    names: Names,
    source: Callable[[], Iterable[tuple[str, Rows]]],
    place: str,
    block: tuple[int, int],
) -> Found:
    """What a run's clocks come to, or what is wrong with the run: never some of both."""
    reading, received = Reading(Part(run, 0, 1, ()), names, source), False
    times: set[int] = set()

    def read() -> Iterator[Rows]:
        nonlocal received
        for rows in reading.read():
            received = received or bool(((rows.kind == RECEIVE) & ~rows.control).any())
            if rows.time_ns is not None and len(rows) and len(times) < 2:
                times.update((int(rows.time_ns.min()), int(rows.time_ns.max())))
            yield rows

    try:
        chains = follow_chains(read, len(names), block)
        reading.refuse_breaks()
    except (BadTrace, Impossible) as error:
        refused = to_bad_trace(error, place, run, names)
        return Found(run, error=(refused.place, refused.reason))
    return Found(run, chains.past, chains.sends, chains.longest, received, len(times) > 1)


# On the driver


def follow_files(
    files: Iterable[Footer],
    planned: Plan,
    processes: Mapping[str, tuple[str, ...]],
    spark: SparkSession | None = None,
) -> list[Found]:
    """What the clocks of runs come to whose files are in order: by tasks on Spark, or in this process."""
    shared = share_files(files, planned, processes)
    if spark is not None:
        return [one for answer in run_tasks(spark, shared, follow_parts) for one in answer]
    with kernels_for(sum(file.rows for file in files)):
        return [one for given in shared for one in follow_parts(given)]


def share_files(
    files: Iterable[Footer], planned: Plan, processes: Mapping[str, tuple[str, ...]]
) -> list[Assignment]:
    """What each task follows, the longest runs first: no long one is left over when the others are done."""
    parts: dict[str, list[Part]] = {}
    for chunk in planned.chunks:
        for part in chunk.parts:
            parts.setdefault(part.run, []).append(part)
    rows, shares = rows_of_runs(files), list[tuple[Part, int]]()
    for run in sorted(parts, key=lambda run: -rows[run]):
        many, through = len(processes[run]), tuple(parts[run])
        count = -(-many // BLOCK) if rows[run] >= LONG else 1
        edges = [many * i // count for i in range(count + 1)]
        for number, edge in enumerate(pairwise(edges)):
            shares.append((Part(run, number, count, (), through=through, block=edge), rows[run]))
    return [
        Assignment(chunk, {part.run: processes[part.run] for part in chunk.parts})
        for chunk in group_parts(shares, LONG // 2)
    ]


def add_shares(found: Iterable[Found]) -> dict[str, Found]:
    """What the tasks of each run found, together."""
    runs: dict[str, Found] = {}
    for one in found:
        before = runs.get(one.run, Found(one.run))
        errors = [error for error in (before.error, one.error) if error is not None]
        runs[one.run] = Found(
            one.run,
            before.past + one.past,
            max(before.sends, one.sends),
            max(before.longest_chain, one.longest_chain),
            before.received or one.received,
            before.timed or one.timed,
            min(errors, default=None),
        )
    return runs


def follow_rows(trace: Trace, processes: Mapping[str, tuple[str, ...]], among: int) -> list[Found]:
    """The order is Spark's to make, a run in one task. It spills to disk, so a run may be larger than the memory."""
    place, names = trace.path or "events", dict(processes)

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for found in follow_sorted(batches, names, place):
            yield pa.RecordBatch.from_pydict({"found": [msgspec.msgpack.encode(found)]})

    try:
        with raise_task_errors():
            events = with_clock(trace).events
            if len(processes) < among:
                events = events.where(F.col("run").isin(*processes))
            rows = events.select(*COLUMNS, "time_ns").repartition(
                count_tasks(trace.spark, len(processes)), "run"
            )
            ordered = rows.sortWithinPartitions("run", "clock", "process", "index")
            found = ordered.mapInArrow(mark_errors(work), "found binary").collect()
    except BadTrace as error:
        damaged = [file for file in trace.files or () if file.path == absolute(unquote(error.place))]
        if not damaged:
            raise
        # Whose rows a file has that cannot be read, its footer tells. The others are tried again without it.
        lost = {run for run in processes for group in damaged[0].groups if has_run(group, run)}
        wrong = [Found(run, error=(error.place, error.reason)) for run in sorted(lost)]
        left = {run: names for run, names in processes.items() if run not in lost}
        return wrong + (follow_rows(trace.without(damaged[0]), left, among) if left else [])
    return [msgspec.msgpack.decode(row["found"], type=Found) for row in found]


def count_tasks(spark: SparkSession, runs: int) -> int:
    """Tasks that share so many runs: a task each, up to what suits one machine or, if that is more, the cluster."""
    return min(runs, max(TASKS, int(spark.conf.get("spark.sql.shuffle.partitions") or 1)))


def has_run(group: Group, run: str) -> bool:
    """Whether a row group may have rows of a run."""
    return group.runs is None or group.runs[0] <= run <= group.runs[1]


def tied(files: Iterable[Footer]) -> set[str]:
    """Runs with a file that begins with the clock with which another ends: only names tell which row is first."""
    ends: Counter[tuple[str, int]] = Counter()
    for file in files:
        spans = [group.clocks for group in file.groups if group.clocks is not None]
        if file.run is not None and spans:
            ends.update({(file.run, spans[0][0]), (file.run, spans[-1][1])})
    return {run for (run, _), many in ends.items() if many > 1}


def rows_of_runs(files: Iterable[Footer]) -> Counter[str]:
    """Rows of each run that has row groups of its own."""
    rows: Counter[str] = Counter()
    for file in files:
        for group in file.groups:
            rows[file.run or (group.runs or ("",))[0]] += group.rows
    return rows
