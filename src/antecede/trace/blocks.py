"""Rows that are in no order, on their way to the task that sorts them: as few large values, not as rows.

Spark moves a row at a time between its Java and Python, and sorts strings. So a task turns the rows that it reads into
integers, deals them to the parts of their run by clock, and hands over one value for each part: the columns one after
the other, each as narrow as its values allow. The task that gets the values of a part joins and sorts them as integers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from antecede.blob import pack, unpack
from antecede.errors import BadTrace
from antecede.trace.columns import Column, Names, Rows, by_run, rows_of
from antecede.trace.plan import Cut
from antecede.trace.schema import refuse_nulls

__all__ = ["Packed", "decode", "encode", "pack_rows"]

TOGETHER = 1 << 19
"""Rows that are dealt at once: fewer, larger values."""

CONTROL = 1 << 2
"""The bit beside the kind."""


@dataclass(frozen=True)
class Packed:
    """The rows of one part of a run that one task found."""

    run: str
    part: int
    data: bytes | BadTrace


def encode(rows: Rows) -> bytes:
    """Rows as bytes."""
    columns = {
        "process": rows.process,
        "kind": rows.kind.astype(np.uint8) | np.where(rows.control, CONTROL, 0).astype(np.uint8),
        "sender": rows.sender,
        "number": rows.number,
        "lengths": np.diff(rows.offsets),
        "to": rows.to,
        "index": rows.index,
        "clock": rows.clock,
    }
    lows = np.array([least(column) for column in columns.values()], np.int64)
    small = {name: narrow(column, low) for (name, column), low in zip(columns.items(), lows, strict=True)}
    return pack("rows", {**small, "lows": lows})


def least(column: Column | None) -> int:
    assert column is not None
    return int(column.min()) if len(column) else 0


def narrow(column: Column | None, low: int) -> Column:
    """Less the least, in the narrowest type."""
    assert column is not None
    if not len(column):
        return np.zeros(0, np.uint8)
    small: Column = (column.astype(np.int64) - low).astype(np.min_scalar_type(int(column.max()) - int(low)))
    return small


def decode(data: bytes) -> Rows:
    """The inverse of `encode`."""
    stored = unpack("rows", data)
    lows = stored.pop("lows")
    process, kind, sender, number, lengths, to, index, clock = (
        column.astype(np.int64) + low for column, low in zip(stored.values(), lows, strict=True)
    )
    return Rows(
        process=process.astype(np.int32),
        kind=(kind & (CONTROL - 1)).astype(np.int8),
        sender=sender.astype(np.int32),
        number=number,
        control=(kind & CONTROL) != 0,
        offsets=np.concatenate(([0], np.cumsum(lengths))).astype(np.int32),
        to=to.astype(np.int32),
        index=index,
        clock=clock,
    )


def pack_rows(
    batches: Iterable[pa.RecordBatch], names: Mapping[str, Names], cuts: Mapping[str, Cut], place: str
) -> Iterator[Packed]:
    """The rows of the batches, dealt to the parts of their runs. Runs that have no cut are not packed.

    What is wrong with the rows of a run takes the place of its data. Rows of no run are an error of all.
    """
    held: dict[str, list[Rows]] = {}
    for batch in batches:
        if batch.column("run").null_count:
            refuse_nulls(batch.select(["run"]), place)
        for run, own in by_run(batch):
            if run not in names:
                raise BadTrace(place, f"it has events of run {run}, which runs.parquet does not name")
            if run not in cuts:
                continue
            try:
                rows = rows_of(own, names[run], f"{place}, run {run}")
            except BadTrace as error:
                yield Packed(run, 0, error)
            else:
                held.setdefault(run, []).append(rows)
        if sum(len(rows) for parts in held.values() for rows in parts) >= TOGETHER:
            yield from deal(held, cuts)
            held = {}
    yield from deal(held, cuts)


def deal(held: Mapping[str, list[Rows]], cuts: Mapping[str, Cut]) -> Iterator[Packed]:
    for run, found in held.items():
        rows = Rows.concatenate(found)
        assert rows.clock is not None
        parts = np.searchsorted(np.array(cuts[run].below, np.int64), rows.clock, side="right").astype(
            np.int16
        )
        order = np.argsort(parts, kind="stable")
        for share in np.split(order, np.flatnonzero(np.diff(parts[order])) + 1):
            if len(share):
                yield Packed(run, int(parts[share[0]]), encode(rows.take(share)))
