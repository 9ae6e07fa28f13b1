"""What verification's tasks tell, as rows of one schema: findings with names, and what only other tasks understand.

what       `finding` is for the user; `summary`, `found`, `news found` and `kept` are for the task that puts a run
           together. The rest is for the driver: `count`, how many findings of a kind (without a kind: deliveries) a
           part has; the questions `unknown`, `keep` and `news`, to be taken to the parts; `error`, `tied`, `crowded`
           and `unsorted`
run, part  what it is about
blob       what those tasks understand; a `count` is in `number`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct

from antecede.errors import BadTrace
from antecede.trace.columns import Column, Names
from antecede.verification.findings import KINDS, Findings, Impossible

__all__ = [
    "COUNTS",
    "FINDINGS",
    "RESULTS",
    "VERDICTS",
    "Told",
    "error_of",
    "finding_batches",
    "describe_finding",
    "refusal",
    "make_report_batch",
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

FINDINGS: Final = pa.schema(
    [field for field in RESULTS if field.name not in ("what", "part", "blob")],
)
"""A finding, as it is given to users."""

COUNTS: Final = {
    kind: kind if kind in ("unsent", "unaddressed", "undelivered") else f"{kind}s" for kind in KINDS
}
"""Kind of finding -> the column that counts it."""

VERDICTS: Final = pa.schema(
    [
        pa.field("run", pa.string(), nullable=False),
        pa.field("verdict", pa.string(), nullable=False),
        ("reason", pa.string()),
        *(pa.field(name, pa.int64(), nullable=False) for name in ("deliveries", *COUNTS.values())),
    ]
)
"""The verdict of a run."""

BATCH: Final = 1 << 14


class Told(Struct, frozen=True):
    """A row that is no finding."""

    what: str
    run: str
    part: int
    blob: bytes = b""
    number: int | None = None
    kind: str | None = None


def make_report_batch(rows: Iterable[Told]) -> pa.RecordBatch:
    rows = list(rows)
    own = {name: [getattr(row, name) for row in rows] for name in Told.__struct_fields__}
    return make_batch({name: pa.array(column, RESULTS.field(name).type) for name, column in own.items()})


def make_batch(columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Results with these columns, of equal length, and nulls in the others."""
    length = len(columns["run"])
    every = [columns.get(field.name, pa.nulls(length, field.type)) for field in RESULTS]
    return pa.RecordBatch.from_arrays(every, schema=RESULTS)


def finding_batches(run: str, part: int, names: Names, found: Findings) -> Iterator[pa.RecordBatch]:
    """Findings with names for integers, a batch at a time: there may be as many as deliveries. And their counts."""
    counts = np.bincount(found.kind, minlength=len(KINDS)).tolist()
    yield make_report_batch(
        Told("count", run, part, number=count, kind=KINDS[kind]) for kind, count in enumerate(counts) if count
    )
    for first in range(0, len(found), BATCH):
        rows = slice(first, min(first + BATCH, len(found)))
        yield finding_batch(run, part, names, found, rows)


def finding_batch(run: str, part: int, names: Names, found: Findings, rows: slice) -> pa.RecordBatch:
    length, nobody = rows.stop - rows.start, found.by_sender[rows] < 0
    columns = {
        "what": pa.repeat("finding", length),
        "run": pa.repeat(run, length),
        "part": pa.repeat(pa.scalar(part, pa.int32()), length),
        "kind": pa.array(KINDS, pa.string()).take(pa.array(found.kind[rows])),
        "process": name_column(names, found.process[rows]),
        "sender": name_column(names, found.sender[rows]),
        "number": pa.array(found.number[rows]),
        "by_sender": name_column(names, found.by_sender[rows]),
        "by_number": pa.array(found.by_number[rows], mask=nobody),
        "index": pa.array(found.index[rows], mask=found.index[rows] < 0),
        "chain": chains(names, found, rows, nobody),
    }
    return make_batch(columns)


def name_column(names: Names, which: Column) -> pa.Array:
    """Names for integers; null for -1."""
    return names.values.take(pa.array(which, mask=which < 0))


def chains(names: Names, found: Findings, rows: slice, nobody: Column) -> pa.Array:
    starts = found.chain_start[rows.start : rows.stop + 1]
    inside = slice(int(starts[0]), int(starts[-1]))
    messages = pa.StructArray.from_arrays(
        [name_column(names, found.chain_sender[inside]), pa.array(found.chain_number[inside])],
        fields=list(MESSAGE),
    )
    offsets = pa.array((starts - starts[0]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, messages, mask=pa.array(nobody))


# In words


def describe_finding(
    row: Mapping[str, Any], name: Callable[[str, int], str] = lambda sender, number: f"{sender}.{number}"
) -> str:
    """A finding in words. `name` says what a message is called.

    >>> describe_finding({"kind": "duplicate", "process": "bob", "sender": "ann", "number": 3})
    'duplicate: bob delivered ann.3 again'
    """
    at, message = row["process"], name(row["sender"], row["number"])
    match row["kind"]:
        case "violation" | "fifo_break":
            chain = " -> ".join(name(link["sender"], link["number"]) for link in row["chain"])
            by = name(row["by_sender"], row["by_number"])
            words = f"{at} delivered {message} after {by}, which it causally precedes: {chain}"
        case "duplicate":
            words = f"{at} delivered {message} again"
        case "unsent":
            words = f"{at} delivered {message}, which nobody sent"
        case "unaddressed":
            words = f"{at} delivered {message}, which was not addressed to it"
        case _:
            words = f"{at} never delivered {message}, which was addressed to it"
    return f"{row['kind'].replace('_', ' ')}: {words}"


# Errors travel as rows: an exception in a task becomes pages of Java.


def refusal(error: BadTrace, run: str = "", part: int = 0) -> Told:
    return Told("error", run, part, msgspec.msgpack.encode((error.place, error.reason)))


def error_of(blob: bytes) -> BadTrace:
    return BadTrace(*msgspec.msgpack.decode(blob, type=tuple[str, str]))


def to_bad_trace(error: BadTrace | Impossible, place: str, run: str, names: Names) -> BadTrace:
    """What was refused, by a kernel too, with names."""
    if isinstance(error, BadTrace):
        return error
    where = f"{place}, run {run}, process {names[error.process]}, index {error.index}"
    return BadTrace(where, f"message {error.number} of {names[error.sender]} {error.reason}")
