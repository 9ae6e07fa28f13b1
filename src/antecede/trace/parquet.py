"""How a task reads its share of a trace's files: with PyArrow, only the columns it needs, row group by row group.

Strings stay dictionary-encoded from the file to the integers. A task has one core: nothing here starts threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from antecede.storage import local
from antecede.trace.columns import ENCODED_COLUMNS, ORDER_COLUMNS, Names, Rows, rows_of
from antecede.trace.footers import open_parquet
from antecede.trace.plan import Part, Piece

__all__ = ["BATCH", "batches_of", "read_part"]

BATCH = 1 << 16
"""Rows at a time: what a core's cache holds, and the size of a row group."""


def read_part(part: Part, names: Names, more: Sequence[str] = ()) -> Iterator[tuple[str, Rows]]:
    """The rows of a part in order, each batch with the file that it is from; with further columns, if asked for."""
    for inner in part.through:
        yield from read_part(inner, names, more)
    if part.clocks is None:
        for piece in part.pieces:
            yield from ((piece.path, rows) for rows in read_piece(piece, part.run, names, more))
        return
    low, high = part.clocks
    found = [
        between(rows, low, high) for piece in part.pieces for rows in read_piece(piece, part.run, names, more)
    ]
    if found:
        yield part.pieces[0].path, Rows.concatenate(found).in_order()


def read_piece(piece: Piece, run: str, names: Names, more: Sequence[str]) -> Iterator[Rows]:
    place = f"{piece.path}, run {run}"
    for batch in batches_of(piece, (*ORDER_COLUMNS, *more)):
        yield rows_of(batch, names, place)


def batches_of(piece: Piece, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a piece as they stand."""
    groups = range(piece.first, piece.last + 1)
    path = local(piece.path)
    # A local file is mapped; from elsewhere the bytes of all its columns are fetched in few requests.
    how = {"memory_map": True} if path else {"pre_buffer": True}
    with (
        open_parquet(piece.path) as source,
        pq.ParquetFile(path or source, read_dictionary=list(ENCODED_COLUMNS), **how) as file,
    ):
        # One group at a time: PyArrow cannot join lists of dictionary-encoded names across groups.
        for group in groups:
            yield from file.iter_batches(BATCH, row_groups=[group], columns=list(columns), use_threads=False)


def between(rows: Rows, low: int | None, high: int | None) -> Rows:
    """The rows with clocks from `low` on and below `high`."""
    assert rows.clock is not None
    inside = np.ones(len(rows), bool)
    if low is not None:
        inside &= rows.clock >= low
    if high is not None:
        inside &= rows.clock < high
    return rows if inside.all() else rows.take(np.flatnonzero(inside))
