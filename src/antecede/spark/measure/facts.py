"""What tasks count: the events of a trace as facts, which `api` adds up.

A *fact* says: of this run, this process and (for delays) this sender, so many values of a quantity lie in this bucket,
with their sum, least and greatest. Facts of any parts add up.

    quantity        of which values, and at which process
    send ...        time_ns of the events of a kind, without a bucket; `control send` and so on are the protocol's own
    stamp_entries   of each message sent (stamp_bytes alike)
    delay_ns        of each copy of a message, at its receiver: without a bucket if the copy was not delivered
    wait_ns         of each copy that was delivered and whose arrival is known

A task reads a chunk of the trace, and most copies are sent, received and delivered within it: they leave it as facts.
The others leave it as they are, and one shuffle brings what belongs to a copy together. The first of each kind counts;
in a chunk of rows that are in no order nobody knows it is the first, so there all copies wait for the shuffle.

Buckets. A value below 128 has one of its own. Above, each power of two is divided into 64 of equal width, and a
quantile is told as the middle of its bucket: wrong by less than 1/128 of its value. They are the buckets of
`antecede.sim.summary`, so a run has the same quantiles in its summary and here. Values below zero (of machines whose
clocks disagree) have the mirror images of these buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from numpy.typing import NDArray

from antecede.trace import DELIVER, KINDS, RECEIVE, SEND
from antecede.trace.columns import Names, Rows, by_run, rows_of
from antecede.trace.parquet import read_part
from antecede.trace.plan import Part

__all__ = [
    "COPY", "ERROR", "FACTS", "HELD", "NAMED", "PARTS", "READ", "Share", "bound", "count_batches", "count_shares",
    "finish_facts",
]  # fmt: skip

ERROR: Final = 1 / 128
"""How wrong a quantile can be, as a share of its value."""

READ: Final = ("time_ns", "stamp_entries", "stamp_bytes")
"""What is counted, beside what orders the rows."""
HELD: Final = 1 << 20
"""Rows that a task counts together."""

T = TypeVar("T", bound=Sized)

NAMED: Final = "named"
"""The quantity of a fact that counts nothing: there is such a process."""
COPY: Final = ("run", "process", "sender", "number")
FACTS: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("run", "process", "sender", "quantity")),
        *((name, pa.int64()) for name in ("low", "high", "middle", "count")),
        ("total", pa.decimal128(38, 0)),
        ("least", pa.int64()),
        ("greatest", pa.int64()),
    ]
)
PARTS: Final = pa.schema([*FACTS, *((name, pa.int64()) for name in ("number", *KINDS))])
"""Facts or, where `number` is not null, what is known of a copy: when it was sent, received and delivered."""


class Share(Struct, frozen=True):
    """What a task counts of one run."""

    processes: tuple[str, ...]
    part: Part
    received: bool | None
    """Whether the run tells when messages arrive: then a copy is not whole without. None: its rows are in no order."""


# In tasks


def count_shares(shares: Iterable[Share]) -> Iterator[pa.RecordBatch]:
    """What one task does with the files that it reads."""
    for share in shares:
        names = Names.of(share.processes)
        for rows in gather((rows for _, rows in read_part(share.part, names, READ)), Rows.concatenate):
            yield from count_rows(share.part.run, names, rows, share.received)


def count_batches(
    batches: Iterable[pa.RecordBatch], processes: Mapping[str, tuple[str, ...]], place: str
) -> Iterator[pa.RecordBatch]:
    """The same for rows of any of these runs, in no order."""
    for table in gather(batches, pa.concat_batches):
        for run, rows in by_run(table):
            if run in processes:
                names = Names.of(processes[run])
                yield from count_rows(run, names, rows_of(rows, names, f"{place}, run {run}"), None)


def gather(parts: Iterable[T], join: Callable[[list[T]], T]) -> Iterator[T]:
    """Parts of some rows each as few parts of many."""
    held: list[T] = []
    for part in parts:
        held.append(part)
        if sum(map(len, held)) >= HELD:
            yield join(held)
            held = []
    if held:
        yield join(held)


def count_rows(run: str, names: Names, rows: Rows, received: bool | None) -> Iterator[pa.RecordBatch]:
    """The facts of some events of a run, and the copies that are not whole. `received` is None for rows in no order."""
    assert rows.time_ns is not None
    found = []
    for kind, name in enumerate(KINDS):
        for control in (False, True):
            at = np.flatnonzero((rows.kind == kind) & (rows.control == control))
            told = {"process": rows.process[at], "value": rows.time_ns[at]}
            found.append(count_values(pa.table(told), f"control {name}" if control else name, plain=True))
    sends = np.flatnonzero((rows.kind == SEND) & ~rows.control)
    for name in ("stamp_entries", "stamp_bytes"):
        sizes = getattr(rows, name)[sends].astype(np.int64)
        known = sizes >= 0
        found.append(
            count_values(pa.table({"process": rows.process[sends][known], "value": sizes[known]}), name)
        )
    copies = find_copies(rows, sends)
    if received is None:
        whole = pa.array(np.zeros(len(copies), bool))
    else:
        whole = pc.and_(pc.is_valid(copies["send"]), pc.is_valid(copies["deliver"]))
        if received:
            arrived = pc.or_(pc.is_valid(copies["receive"]), pc.equal(copies["sender"], copies["process"]))
            whole = pc.and_(whole, arrived)
    found += [*time_copies(copies.filter(whole)), copies.filter(pc.invert(whole))]
    for number, table in enumerate(found):
        named = {name: table[name] for name in table.column_names}
        for name in {"process", "sender"} & named.keys():
            named[name] = names.values.take(table[name])
        found[number] = pa.table({"run": pa.repeat(run, len(table)), **named})
    yield from fit(found, PARTS).to_batches()


def find_copies(rows: Rows, sends: NDArray[np.int64]) -> pa.Table:
    """When each copy was sent, received and delivered: the first of each that is among these rows."""
    assert rows.time_ns is not None
    fans = np.diff(rows.offsets)[sends]
    ends = np.cumsum(fans)
    to = rows.to[np.arange(fans.sum()) + np.repeat(rows.offsets[sends] - (ends - fans), fans)]
    tables = [copies_of(rows, "send", np.repeat(sends, fans), to)]
    for kind, name in ((RECEIVE, "receive"), (DELIVER, "deliver")):
        at = np.flatnonzero((rows.kind == kind) & ~rows.control)
        tables.append(copies_of(rows, name, at, rows.process[at]))
    return merge_copies(pa.concat_tables(tables), COPY[1:])


def copies_of(rows: Rows, kind: str, at: NDArray[np.int64], process: NDArray[np.int32]) -> pa.Table:
    assert rows.time_ns is not None
    times = {
        name: pa.array(rows.time_ns[at]) if name == kind else pa.nulls(len(at), pa.int64()) for name in KINDS
    }
    return pa.table({"process": process, "sender": rows.sender[at], "number": rows.number[at], **times})


def merge_copies(table: pa.Table, keys: Iterable[str]) -> pa.Table:
    found = table.group_by([*keys], use_threads=False).aggregate([(kind, "min") for kind in KINDS])
    return found.rename_columns([name.removesuffix("_min") for name in found.column_names])


def time_copies(copies: pa.Table) -> list[pa.Table]:
    """Delays and waiting of copies of which nothing more will come. What nobody sent to a process has no delay."""
    copies = copies.filter(pc.is_valid(copies["send"]))
    delivered = copies.filter(pc.is_valid(copies["deliver"]))
    keys = [name for name in ("run", "process", "sender") if name in copies.column_names]
    # A process's own copy is there as soon as it is sent. A receive after the delivery tells nothing of waiting.
    early = pc.less_equal(delivered["receive"], delivered["deliver"])
    arrival = pc.if_else(
        pc.equal(delivered["sender"], delivered["process"]),
        delivered["send"],
        pc.if_else(early, delivered["receive"], pa.scalar(None, pa.int64())),
    )
    lost = copies.filter(pc.is_null(copies["deliver"])).select(keys)
    delays = delivered.select(keys).append_column("value", subtract(delivered["deliver"], delivered["send"]))
    waits = delivered.select(keys).append_column("value", subtract(delivered["deliver"], arrival))
    return [
        count_values(lost.append_column("value", pa.nulls(len(lost), pa.int64())), "delay_ns", plain=True),
        count_values(delays, "delay_ns"),
        count_values(waits.drop_columns("sender").filter(pc.is_valid(waits["value"])), "wait_ns"),
    ]


def subtract(late: pa.ChunkedArray, early: pa.ChunkedArray) -> pa.ChunkedArray:
    """Null where the difference does not fit into 64 bits: such times are no times."""
    found = pc.subtract(late, early)
    wrapped = pc.bit_wise_and(pc.bit_wise_xor(late, early), pc.bit_wise_xor(late, found))
    return pc.if_else(pc.less(wrapped, 0), pa.scalar(None, pa.int64()), found)


def count_values(values: pa.Table, quantity: str, *, plain: bool = False) -> pa.Table:
    """The facts of a column `value`, by the other columns; `plain`: without buckets."""
    keys = [name for name in values.column_names if name != "value"]
    value = values["value"]
    numbers = value.fill_null(0).to_numpy()
    hidden = np.ones(len(value), bool) if plain else value.is_null().to_numpy()
    bounds = zip(("low", "high", "middle"), bound(numbers), strict=True)
    cells = {name: pa.array(column, mask=hidden) for name, column in bounds}
    # A sum of nanoseconds may not fit into 64 bits.
    total = value.fill_null(0).cast(pa.decimal128(38, 0))
    table = pa.table({**{key: values[key] for key in keys}, **cells, "value": value, "total": total})
    sums = [([], "count_all"), ("total", "sum"), ("value", "min"), ("value", "max")]
    found = table.group_by([*keys, *cells], use_threads=False).aggregate(sums)
    found = found.rename_columns([*keys, *cells, "count", "total", "least", "greatest"])
    return found.append_column("quantity", pa.repeat(quantity, len(found)))


def fit(tables: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """All rows with the columns of a schema, in its order and of its types; what a table does not have is null."""
    every = pa.concat_tables([schema.empty_table(), *tables], promote_options="permissive")
    return every.select(schema.names).cast(schema)


def finish_facts(table: pa.Table) -> pa.Table:
    """Facts of the copies that chunks have left over, beside the facts that there are. A copy's rows are all here."""
    copies = table.filter(pc.is_valid(table["number"])).select([*COPY, *KINDS])
    return fit([table.filter(pc.is_null(table["number"])), *time_copies(merge_copies(copies, COPY))], FACTS)


# Buckets


def bound(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Of each value's bucket the least value, the least of the next bucket, and the value that stands for it.

    >>> [column.tolist() for column in bound(np.array([5, 130, 1000, -1000]))]
    [[5, 130, 1000, -1007], [6, 132, 1008, -999], [5, 130, 1004, -1004]]
    """
    most = np.iinfo(np.int64).max
    size = np.abs(np.maximum(values, -most))
    # The float of a large number may round up to the next power of two.
    power = np.frexp(size.astype(np.float64))[1].astype(np.int64) - 1
    power = np.clip(power, 6, 62)
    power -= (power > 6) & (np.left_shift(np.int64(1), power) > size)
    width = np.left_shift(np.int64(1), power - 6)
    low = size & -width
    # The bucket after the last begins with the greatest number.
    high = np.where(low > most - width, most, low + width)
    half = (high - low) // 2 - (width == 2)
    middle, below = low + half, values < 0
    return np.where(below, 1 - high, low), np.where(below, 1 - low, high), np.where(below, -middle, middle)
