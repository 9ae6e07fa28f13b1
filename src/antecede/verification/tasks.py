"""What verification's tasks do: read parts of runs for one of several purposes, and put the parts of a run together.

Purposes
  scan      judge a part from what it holds. A run that is whole here is finished here
  keep      the same, for the parts in question, without forgetting certain messages
  unknown   look for the sends of certain messages
  news      find out how the news of certain messages travelled through the part
These functions take and give Arrow batches, here or in Spark's tasks. What is wrong with a run becomes a row, and says
nothing of other runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa
from msgspec import Struct

from antecede.errors import BadTrace
from antecede.trace.blocks import decode, pack_rows
from antecede.trace.checks import Ends, Sequence, Tied, refuse_borders, refuse_second_sends
from antecede.trace.columns import Column, Names, Rows
from antecede.trace.parquet import read_part
from antecede.trace.plan import Chunk, Cut, Part
from antecede.verification.chunk import Scan, Summary, TooManySymbols, TooMuchInFlight
from antecede.verification.combine import combine
from antecede.verification.findings import Findings, Ids, Impossible
from antecede.verification.local import read_chunk, verify_chunks, verify_run
from antecede.verification.proofs import NewsScan, ProofScan
from antecede.verification.schema import (
    Told,
    finding_batches,
    make_report_batch,
    refusal,
    to_bad_trace,
)
from antecede.verification.unknown_sends import Found, Search

__all__ = ["Assignment", "Questions", "deal_rows", "examine_chunk", "examine_rows", "put_together"]

BORDER: Final = 1 << 30
"""The part that an error between parts is said of: what is wrong inside one comes first, and may be its cause."""

Questions: TypeAlias = Mapping[tuple[str, int], bytes]
"""Run and part -> what it is asked."""


class Assignment(Struct, frozen=True):
    """What a reading task is told: its chunk, the processes of the runs in it, its purpose, and what is asked."""

    chunk: Chunk
    processes: dict[str, tuple[str, ...]]
    purpose: str = "scan"
    questions: dict[tuple[str, int], bytes] = {}


@dataclass
class Share:
    """One part, as a task has it: it can be read any number of times."""

    part: Part
    names: Names
    source: Callable[[], Iterable[tuple[str, Rows]]]
    """The rows in order, each time that it is called, and the file or table that has them."""
    at: str = ""
    """Where the reading is."""
    ends: Ends | None = None
    """Of the latest reading, once it is through."""
    shrinking: Column | None = None
    """Then also: senders whose numbers do not grow."""

    def read(self) -> Iterator[Rows]:
        """The rows in order, watched. Raises what is wrong with them."""
        watch = Sequence(self.names, self.part.run)
        for place, rows in self.source():
            self.at = place
            watch.watch(rows, place)
            yield rows
        self.ends, self.shrinking = watch.ends(), watch.shrinking

    def refuse_breaks(self) -> None:
        """Of a part that is the whole run: refuse events before the first of a process, and second sends."""
        refuse_borders(self.part.run, self.names, [self.ends] if self.ends else [])
        if self.shrinking is not None and self.shrinking.any():
            refuse_second_sends(self.part.run, self.names, self.at, self.read(), self.shrinking)


class Packed:
    """Rows that came packed, sorted when they are first read."""

    def __init__(self, place: str) -> None:
        self.place, self.blobs = place, list[bytes]()

    @cached_property
    def rows(self) -> Rows:
        rows = Rows.concatenate([decode(data) for data in self.blobs]).in_order()
        self.blobs.clear()
        return rows

    def __call__(self) -> list[tuple[str, Rows]]:
        return [(self.place, self.rows)]


# Reading tasks


def examine_chunk(given: Assignment) -> Iterator[pa.RecordBatch]:
    """The results of reading a chunk from files."""
    views = {run: Names.of(names) for run, names in given.processes.items()}
    shares = [
        Share(part, names := views[part.run], partial(read_part, part, names)) for part in given.chunk.parts
    ]
    yield from examine(shares, given.purpose, given.questions)


def examine_rows(
    batches: Iterable[pa.RecordBatch],
    purpose: str,
    place: str,
    processes: Mapping[str, tuple[str, ...]],
    questions: Questions,
) -> Iterator[pa.RecordBatch]:
    """The results of reading rows that come packed, as `deal_rows` gives them."""
    shares: dict[tuple[str, int], Share] = {}
    packed: dict[tuple[str, int], Packed] = {}
    for batch in batches:
        for row in batch.to_pylist():
            key = (row["run"], row["part"])
            if row["what"] == "error":
                yield make_report_batch([Told("error", row["run"], 0, row["blob"])])
                continue
            if key not in shares:
                part = Part(row["run"], row["part"], row["of"], ())
                packed[key] = Packed(place)
                shares[key] = Share(part, Names.of(processes[row["run"]]), packed[key])
            packed[key].blobs.append(row["blob"])
    yield from examine([shares[key] for key in sorted(shares)], purpose, questions)


def examine(shares: Iterable[Share], purpose: str, questions: Questions) -> Iterator[pa.RecordBatch]:
    for share in shares:
        asked = questions.get((share.part.run, share.part.number))
        if purpose == "scan":
            yield from report_errors(share, scan)
        elif asked is not None:
            yield from report_errors(share, partial(PURPOSES[purpose], asked=asked))


def report_errors(
    share: Share, work: Callable[[Share], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """What is wrong with the input becomes a row."""
    run, number = share.part.run, share.part.number
    try:
        yield from work(share)
    except (BadTrace, Impossible) as error:
        refused = to_bad_trace(error, share.at, run, share.names)
        yield make_report_batch([refusal(refused, run, number)])
    except Tied:
        yield make_report_batch([Told("tied", run, number)])
    except (TooManySymbols, TooMuchInFlight):
        yield make_report_batch([Told("crowded", run, number)])


def scan(share: Share) -> Iterator[pa.RecordBatch]:
    part, names = share.part, share.names
    if part.block is not None:
        deliveries, findings = verify_chunks([share.read], len(names), part.block)
    elif part.of == 1:
        deliveries, findings = verify_run(share.read, len(names))
    else:
        yield from summarise(share)
        return
    share.refuse_breaks()
    # Blocks of origins have all seen the whole run: one of them counts.
    yield make_report_batch([count_deliveries(part.run, deliveries)] if part.number == 0 else [])
    yield from finding_batches(part.run, part.number, names, findings)


def summarise(share: Share, asked: bytes | None = None) -> Iterator[pa.RecordBatch]:
    """A part of a run: what it tells by itself, and its summary. `asked` are messages to keep."""
    part, names = share.part, share.names
    keep = Ids.decode(asked) if asked is not None else None
    result = read_chunk(share.read, Scan(len(names), first=part.number == 0, keep=keep))
    if share.ends is None:
        return
    told = [Told("summary", part.run, part.number, encode_part(share.ends, result.summary))]
    told += [Told("kept", part.run, part.number, asked)] if asked is not None else []
    yield make_report_batch(told)
    yield from finding_batches(part.run, part.number, names, result.findings)
    if len(result.overtaken):
        proofs = read_chunk(share.read, ProofScan(result.summary.n, result.overtaken))
        yield from finding_batches(part.run, part.number, names, proofs)


def search(share: Share, asked: bytes) -> Iterator[pa.RecordBatch]:
    found = read_chunk(share.read, Search(Ids.decode(asked)))
    if share.ends is not None:
        yield make_report_batch([Told("found", share.part.run, share.part.number, found.encode())])


def follow_news(share: Share, asked: bytes) -> Iterator[pa.RecordBatch]:
    told = read_chunk(share.read, NewsScan(asked))
    yield make_report_batch([Told("news found", share.part.run, share.part.number, told)])


PURPOSES: Final[Mapping[str, Callable[..., Iterator[pa.RecordBatch]]]] = {
    "keep": summarise,
    "unknown": search,
    "news": follow_news,
}


def count_deliveries(run: str, deliveries: int) -> Told:
    return Told("count", run, 0, number=deliveries)


def encode_part(ends: Ends, summary: Summary) -> bytes:
    return msgspec.msgpack.encode((ends, summary.encode()))


def decode_part(blob: bytes) -> tuple[Ends, Summary]:
    ends, summary = msgspec.msgpack.decode(blob, type=tuple[Ends, bytes])
    return ends, Summary.decode(summary)


# Packing tasks

DEALT: Final = pa.schema(
    [
        ("serial", pa.int32()),
        ("what", pa.string()),
        ("run", pa.string()),
        ("part", pa.int32()),
        ("of", pa.int32()),
        ("blob", pa.binary()),
    ]
)


def deal_rows(
    batches: Iterable[pa.RecordBatch],
    processes: Mapping[str, tuple[str, ...]],
    cuts: Mapping[str, Cut],
    serials: Mapping[tuple[str, int], int],
    place: str,
) -> Iterator[pa.RecordBatch]:
    """Rows packed, each with the serial of the task that it goes to."""
    names = {run: Names.of(own) for run, own in processes.items()}
    for one in pack_rows(batches, names, cuts, place):
        row: dict[str, Any] = {"serial": 0, "what": "error", "run": one.run, "part": one.part, "of": 0}
        if isinstance(one.data, BadTrace):
            row["blob"] = refusal(one.data).blob
        else:
            row |= {"serial": serials[one.run, one.part], "what": "rows", "of": len(cuts[one.run].below) + 1}
            row["blob"] = one.data
        yield pa.RecordBatch.from_pylist([row], schema=DEALT)


# Putting a run together


def put_together(
    batches: Iterable[pa.RecordBatch], processes: Mapping[str, tuple[str, ...]]
) -> Iterator[pa.RecordBatch]:
    """Rows (run, part, what, blob), sorted by run and part, become findings or questions."""
    rows = (row for batch in batches for row in batch.to_pylist())
    for run, own in groupby(rows, key=lambda row: str(row["run"])):
        names = Names.of(processes[run])
        try:
            yield from put_run_together(run, names, list(own))
        except (BadTrace, Impossible) as error:
            refused = to_bad_trace(error, "events", run, names)
            yield make_report_batch([refusal(refused, run, BORDER)])
        except Tied:
            yield make_report_batch([Told("tied", run, 0)])


def put_run_together(run: str, names: Names, rows: list[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    """One run from the summaries of its parts and the answers there are: finished, or with a question."""
    told: dict[str, dict[int, bytes]] = {what: {} for what in ("summary", "found", "news found", "kept")}
    for row in rows:
        told[row["what"]][row["part"]] = row["blob"]
    parts = {part: decode_part(blob) for part, blob in told["summary"].items()}
    refuse_borders(run, names, [ends for ends, _ in parts.values()])
    numbers = list(parts)
    found = [Found.decode(blob) for blob in told["found"].values()]
    keep = next((Ids.decode(blob) for blob in told["kept"].values()), None)
    trails = {numbers.index(part): blob for part, blob in told["news found"].items()}
    outcome = combine([summary for _, summary in parts.values()], found or None)
    question = outcome.question(keep, trails)
    if question is not None:
        yield make_report_batch(
            Told(question.what, run, numbers[at], asked if isinstance(asked, bytes) else asked.encode())
            for at, asked in question.chunks.items()
        )
        return
    yield make_report_batch([count_deliveries(run, outcome.deliveries)])
    if outcome.unsorted:
        yield make_report_batch([Told("unsorted", run, 0)])
    findings = Findings.concatenate([outcome.findings, outcome.join(trails)])
    yield from finding_batches(run, BORDER, names, findings)
