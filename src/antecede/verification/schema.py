"""What verification's tasks tell, as rows of one schema: findings with names, and what only other tasks understand.

what       `finding` is for the user; `summary`, `found` and `trailed` are for the task that puts a run together;
           `suspects`, `keep` and `trail` are questions to the tasks that read; `counted` is a run's number of
           deliveries; `error`, `tied`, `crowded` and `unsorted` are for the driver
run, part  what it is about
blob       what those tasks understand; of `counted`, the count is in `number`
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct

from antecede.errors import BadTrace
from antecede.trace.columns import Column, Names
from antecede.verification import KINDS, Findings, Ids, Impossible

__all__ = [
    "FINDING_COLUMNS",
    "RESULTS",
    "Told",
    "error_of",
    "finding_batches",
    "ids_of",
    "refusal",
    "told_batch",
]

MESSAGE: Final = pa.struct([("sender", pa.string()), ("number", pa.int64())])

RESULTS: Final = pa.schema(
    [
        ("what", pa.string()),
        ("run", pa.string()),
        ("part", pa.int32()),
        ("blob", pa.binary()),
        ("kind", pa.string()),
        ("process", pa.string()),
        ("sender", pa.string()),
        ("number", pa.int64()),
        ("by_sender", pa.string()),
        ("by_number", pa.int64()),
        ("index", pa.int64()),
        ("chain", pa.list_(MESSAGE)),
    ]
)

FINDING_COLUMNS: Final = (
    "run",
    "kind",
    "process",
    "sender",
    "number",
    "by_sender",
    "by_number",
    "index",
    "chain",
)

BATCH: Final = 1 << 14


class Told(Struct, frozen=True):
    """A row that is no finding."""

    what: str
    run: str
    part: int
    blob: bytes = b""
    number: int | None = None


def told_batch(rows: Iterable[Told]) -> pa.RecordBatch:
    rows = list(rows)
    own = {
        name: pa.array([getattr(row, name) for row in rows], RESULTS.field(name).type)
        for name in Told.__struct_fields__
    }
    columns = [own.get(field.name, pa.nulls(len(rows), field.type)) for field in RESULTS]
    return pa.RecordBatch.from_arrays(columns, schema=RESULTS)


def finding_batches(run: str, part: int, names: Names, found: Findings) -> Iterator[pa.RecordBatch]:
    """Findings with names for integers, a batch at a time: there may be as many as deliveries."""
    for first in range(0, len(found), BATCH):
        rows = slice(first, min(first + BATCH, len(found)))
        yield finding_batch(run, part, names, found, rows)


def finding_batch(run: str, part: int, names: Names, found: Findings, rows: slice) -> pa.RecordBatch:
    length = rows.stop - rows.start
    nobody = found.by_sender[rows] < 0
    columns = {
        "what": pa.array(["finding"] * length, pa.string()),
        "run": pa.array([run] * length, pa.string()),
        "part": pa.array(np.full(length, part, np.int32)),
        "blob": pa.nulls(length, pa.binary()),
        "kind": pa.array(KINDS, pa.string()).take(pa.array(found.kind[rows])),
        "process": named(names, found.process[rows]),
        "sender": named(names, found.sender[rows]),
        "number": pa.array(found.number[rows]),
        "by_sender": named(names, found.by_sender[rows]),
        "by_number": pa.array(found.by_number[rows], mask=nobody),
        "index": pa.array(found.index[rows], mask=found.index[rows] < 0),
        "chain": chains(names, found, rows, nobody),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in RESULTS.names], schema=RESULTS)


def named(names: Names, which: Column) -> pa.Array:
    """Names for integers; null for -1."""
    return names.values.take(pa.array(which, mask=which < 0))


def chains(names: Names, found: Findings, rows: slice, nobody: Column) -> pa.Array:
    starts = found.chain_start[rows.start : rows.stop + 1]
    inside = slice(int(starts[0]), int(starts[-1]))
    messages = pa.StructArray.from_arrays(
        [named(names, found.chain_sender[inside]), pa.array(found.chain_number[inside])], fields=list(MESSAGE)
    )
    offsets = pa.array((starts - starts[0]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, messages, mask=pa.array(nobody))


# Errors travel as rows: an exception in a task becomes pages of Java.


def refusal(error: BadTrace, run: str = "", part: int = 0) -> Told:
    return Told("error", run, part, msgspec.msgpack.encode((error.place, error.found, error.expected)))


def error_of(blob: bytes) -> BadTrace:
    return BadTrace(*msgspec.msgpack.decode(blob, type=tuple[str, str, str]))


def impossible(error: Impossible, place: str, run: str, names: Names) -> BadTrace:
    """What a kernel refused, with names."""
    where = f"{place}, run {run}, process {names[error.process]}, index {error.index}"
    message = f"message {error.number} of {names[error.sender]}"
    return BadTrace(where, f"{error.found} {message}", error.expected)


# Identities as bytes


def ids_blob(ids: Ids) -> bytes:
    return msgspec.msgpack.encode(
        (ids.sender.astype(np.int32).tobytes(), ids.number.astype(np.int64).tobytes())
    )


def ids_of(blob: bytes) -> Ids:
    sender, number = msgspec.msgpack.decode(blob, type=tuple[bytes, bytes])
    return Ids(np.frombuffer(sender, np.int32), np.frombuffer(number, np.int64))
