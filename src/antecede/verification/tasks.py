"""What verification's tasks do: read a chunk for one of several purposes, and put the parts of a run together.

A task gets rows (serial, what, run, part, blob): the description of its chunk (`plan`) or its rows (`rows`), and
questions about some parts. It does with each part what its purpose is:
  scan      judge it from what it holds. A run that is whole here is finished here
  keep      the same, for the parts in question, without forgetting certain messages
  suspects  look for the sends of certain messages
  trail     find out how the news of certain messages travelled through the part
Nothing here imports Spark's session: these functions run on Arrow batches anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any, Final, Protocol, TypeVar

import msgspec
import pyarrow as pa
from msgspec import Struct

from antecede.errors import BadTrace
from antecede.trace.blocks import decode
from antecede.trace.checks import Ends, Sequence, Tied, refuse_borders, refuse_second_sends
from antecede.trace.columns import Column, Names, Rows
from antecede.trace.parquet import read_part
from antecede.trace.plan import Chunk, Part, edges_of
from antecede.verification import (
    Findings,
    Found,
    Impossible,
    Scan,
    Search,
    Summary,
    TooManySymbols,
    TooMuchInFlight,
    Trail,
    Witness,
    combine,
    verify_chunks,
)
from antecede.verification.local import verify_blocks
from antecede.verification.schema import (
    Told,
    finding_batches,
    ids_blob,
    ids_of,
    impossible,
    refusal,
    told_batch,
)

__all__ = ["Assignment", "examined", "put_together"]


BORDER: Final = 1 << 30
"""The part that an error between parts is said of: what is wrong inside one comes first, and may be its cause."""

T_co = TypeVar("T_co", covariant=True)


class Reads(Protocol[T_co]):
    """Whatever reads the rows of a part, in order."""

    def feed(self, rows: Rows) -> None: ...
    def finish(self) -> T_co: ...


class Assignment(Struct, frozen=True):
    """What a reading task is told: its chunk, and the processes of the runs in it."""

    chunk: Chunk
    processes: dict[str, tuple[str, ...]]

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Assignment:
        return msgspec.msgpack.decode(data, type=cls)


@dataclass
class Share:
    """One part, as a task has it: it can be read any number of times."""

    part: Part
    names: Names
    place: str
    packed: list[bytes] = field(default_factory=list)
    questions: dict[str, bytes] = field(default_factory=dict)
    at: str = ""
    """Where the reading is."""
    ends: Ends | None = None
    """Of the latest reading, once it is through."""
    shrinking: Column | None = None
    """Then also: senders whose numbers do not grow."""

    @cached_property
    def sorted_rows(self) -> Rows:
        rows = Rows.joined([decode(data) for data in self.packed]).in_order()
        self.packed.clear()
        return rows

    def read(self) -> Iterator[Rows]:
        """The rows in order, watched. Raises what is wrong with them."""
        watch = Sequence(self.names, self.part.run)
        source = read_part(self.part, self.names) if not self.place else [(self.place, self.sorted_rows)]
        for self.at, rows in source:
            watch.watch(rows, self.at)
            yield rows
        self.ends, self.shrinking = watch.ends(), watch.shrinking


# Reading tasks


def examined(
    batches: Iterable[pa.RecordBatch], purpose: str, place: str, processes: Mapping[str, tuple[str, ...]]
) -> Iterator[pa.RecordBatch]:
    """In a task: the results of its chunks. `processes` and `place` are for rows that come packed."""
    work: dict[str, Callable[[Share], Iterator[pa.RecordBatch]]] = {
        "scan": scanned,
        "keep": scanned,
        "suspects": searched,
        "trail": trailed,
    }
    found, refused = shares(batches, place, processes)
    yield told_batch(refused)
    for share in found:
        if purpose == "scan" or purpose in share.questions:
            yield from guarded(work[purpose], share)


def shares(
    batches: Iterable[pa.RecordBatch], place: str, processes: Mapping[str, tuple[str, ...]]
) -> tuple[list[Share], list[Told]]:
    """The parts in a partition, in order, and what was wrong with rows before they came here."""
    found: dict[tuple[str, int], Share] = {}
    asked: list[dict[str, Any]] = []
    refused: list[Told] = []
    for batch in batches:
        for row in batch.to_pylist():
            if row["what"] == "plan":
                given = Assignment.decode(row["blob"])
                views = {run: Names.of(names) for run, names in given.processes.items()}
                found |= {(p.run, p.number): Share(p, views[p.run], "") for p in given.chunk.parts}
            elif row["what"] == "rows":
                key = (row["run"], row["part"])
                if key not in found:
                    part = Part(row["run"], row["part"], row["of"], ())
                    found[key] = Share(part, Names.of(processes[row["run"]]), place)
                found[key].packed.append(row["blob"])
            elif row["what"] == "error":
                refused.append(Told("error", row["run"], 0, row["blob"]))
            else:
                asked.append(row)
    for row in asked:
        if (row["run"], row["part"]) in found:  # A part without rows has nothing to say.
            found[row["run"], row["part"]].questions[row["what"]] = row["blob"]
    return [found[key] for key in sorted(found)], refused


def guarded(work: Callable[[Share], Iterator[pa.RecordBatch]], share: Share) -> Iterator[pa.RecordBatch]:
    """What is wrong with the input becomes a row."""
    run, number = share.part.run, share.part.number
    try:
        yield from work(share)
    except BadTrace as error:
        yield told_batch([refusal(error, run, number)])
    except Impossible as error:
        yield told_batch([refusal(impossible(error, share.at, run, share.names), run, number)])
    except Tied:
        yield told_batch([Told("tied", run, number)])
    except (TooManySymbols, TooMuchInFlight):
        yield told_batch([Told("crowded", run, number)])


def scanned(share: Share) -> Iterator[pa.RecordBatch]:
    part, names = share.part, share.names
    if part.block is not None:
        deliveries, findings = verify_blocks(share.read, len(names), [part.block])
    elif part.of == 1:
        deliveries, findings = whole_run(share.read, len(names))
    else:
        yield from summarised(share)
        return
    refuse_borders(part.run, names, [share.ends] if share.ends else [])
    if share.shrinking is not None and share.shrinking.any():
        refuse_second_sends(part.run, names, share.at, share.read(), share.shrinking)
    # Blocks of origins have all seen the whole run: one of them counts.
    yield told_batch([counted(part.run, deliveries)] if part.number == 0 else [])
    yield from finding_batches(part.run, part.number, names, findings)


def whole_run(read: Callable[[], Iterable[Rows]], n: int) -> tuple[int, Findings]:
    """A run that is all here: by origin, in as many blocks as it takes, if too much is under way at a time."""
    try:
        return verify_chunks([read], n)
    except TooMuchInFlight:
        for count in (2**power for power in range(1, 31)):
            try:
                return verify_blocks(read, n, list(pairwise(edges_of(n, count))))
            except TooMuchInFlight:
                if count >= n:
                    raise
    raise AssertionError("not reached")


def summarised(share: Share) -> Iterator[pa.RecordBatch]:
    """A part of a run: what it tells by itself, and its summary."""
    part, names = share.part, share.names
    keep = ids_of(share.questions["keep"]) if "keep" in share.questions else None
    result = through(share, Scan(len(names), first=part.number == 0, keep=keep))
    if share.ends is None:
        return
    blob = msgspec.msgpack.encode((share.ends.encode(), result.summary.encode()))
    yield told_batch([Told("summary", part.run, part.number, blob)])
    yield from finding_batches(part.run, part.number, names, result.findings)
    if len(result.overtaken):
        witnessed = through(share, Witness(result.summary.n, result.overtaken, keep=keep))
        yield from finding_batches(part.run, part.number, names, witnessed)


def through(share: Share, reader: Reads[T_co]) -> T_co:
    for rows in share.read():
        reader.feed(rows)
    return reader.finish()


def counted(run: str, deliveries: int) -> Told:
    return Told("counted", run, 0, number=deliveries)


def searched(share: Share) -> Iterator[pa.RecordBatch]:
    found = through(share, Search(ids_of(share.questions["suspects"])))
    if share.ends is not None:
        yield told_batch([Told("found", share.part.run, share.part.number, found.encode())])


def trailed(share: Share) -> Iterator[pa.RecordBatch]:
    told = through(share, Trail(share.questions["trail"]))
    yield told_batch([Told("trailed", share.part.run, share.part.number, told)])


# Putting a run together


def put_together(
    batches: Iterable[pa.RecordBatch], processes: Mapping[str, tuple[str, ...]]
) -> Iterator[pa.RecordBatch]:
    """In a task: rows (run, part, what, blob), sorted by run and part, become findings or questions."""
    rows = (row for batch in batches for row in batch.to_pylist())
    for run, own in groupby(rows, key=lambda row: str(row["run"])):
        names = Names.of(processes[run])
        try:
            yield from one_run(run, names, list(own))
        except BadTrace as error:
            yield told_batch([refusal(error, run, BORDER)])
        except Impossible as error:
            yield told_batch([refusal(impossible(error, "events", run, names), run, BORDER)])
        except Tied:
            yield told_batch([Told("tied", run, 0)])


def one_run(run: str, names: Names, rows: list[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    """One run from the summaries of its parts and the answers there are: finished, or with a question."""
    told: dict[str, dict[int, bytes]] = {what: {} for what in ("summary", "found", "trailed", "kept")}
    for row in rows:
        if row["what"] not in told:  # A part had no answer: the driver decides.
            yield told_batch([Told(row["what"], run, row["part"], row["blob"])])
            return
        told[row["what"]][row["part"]] = row["blob"]
    parts = {
        part: msgspec.msgpack.decode(blob, type=tuple[bytes, bytes]) for part, blob in told["summary"].items()
    }
    refuse_borders(run, names, [Ends.decode(ends) for ends, _ in parts.values()])
    numbers = list(parts)
    found = [Found.decode(blob) for blob in told["found"].values()]
    keep = next((ids_of(blob) for blob in told["kept"].values()), None)
    outcome = combine([Summary.decode(blob) for _, blob in parts.values()], found or None, keep)
    if len(outcome.suspects):
        yield told_batch([Told("suspects", run, 0, ids_blob(outcome.suspects))])
    elif len(outcome.keep) and keep is None:
        blob = ids_blob(outcome.keep)
        yield told_batch([Told("keep", run, numbers[position], blob) for position in outcome.again])
    elif outcome.trails and not told["trailed"]:
        yield told_batch([Told("trail", run, numbers[at], blob) for at, blob in outcome.trails.items()])
    else:
        yield told_batch([counted(run, outcome.deliveries)])
        if outcome.unsorted:
            yield told_batch([Told("unsorted", run, 0)])
        joined = outcome.join({numbers.index(part): blob for part, blob in told["trailed"].items()})
        yield from finding_batches(run, 0, names, Findings.joined([outcome.findings, joined]))
