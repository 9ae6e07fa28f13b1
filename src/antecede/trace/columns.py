"""Events as columns of integers: what the kernels of the pipeline take.

Names. The processes of a run become 0, 1, 2, ... in the order of their names as UTF-8, which is the order that rows
follow where clocks are equal: comparing integers is comparing names. A dictionary-encoded column costs one look-up for
each name and one gather for each row; plain strings, as Spark hands them over, one look-up for each row.

Rows keep everything: receives and control packets too, because they have an `index`. Nulls where the contract has none,
a kind that does not exist and a process that the run does not have are a `BadTrace` that names the place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from antecede.errors import BadTrace
from antecede.jit import allocating, is_compiling
from antecede.trace.schema import ABSENT, KINDS, refuse_nulls

__all__ = ["ENCODED_COLUMNS", "ORDER_COLUMNS", "Names", "Rows", "by_run", "rows_of"]

Column: TypeAlias = NDArray[Any]

ORDER_COLUMNS: Final = ("process", "index", "kind", "sender", "number", "to", "control", "clock")
"""What happened-before is made of. `run` is read too where a file holds several."""

ENCODED_COLUMNS: Final = ("run", "process", "kind", "sender", "to.list.element")
"""For PyArrow's `read_dictionary`: the strings that are to stay integers."""

NUMBERS: Final = ("index", "number", "clock", "time_ns", "stamp_entries", "stamp_bytes")


@dataclass(frozen=True)
class Names:
    """The processes of a run, as integers in the order of their names.

    >>> names = Names.of(["p2", "p10", "p1"])
    >>> names.codes(pa.array(["p1", "p2", "p10"])).tolist(), names[1]
    ([0, 2, 1], 'p10')
    """

    names: tuple[str, ...]
    values: pa.Array = field(compare=False, repr=False)

    @classmethod
    def of(cls, processes: Iterable[str]) -> Names:
        names = tuple(sorted(set(processes), key=str.encode))
        return cls(names, pa.array(names, pa.string()))

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, process: int) -> str:
        return self.names[process]

    def __reduce__(self) -> tuple[Any, ...]:
        return Names.of, (self.names,)

    def codes(
        self,
        column: pa.Array,
        place: str = "events",
        what: str = "process",
        among: str = "the run's processes",
    ) -> Column:
        """The integers of these names. A name that the run does not have is a `BadTrace`."""
        if not pa.types.is_dictionary(column.type):
            found = column.cast(pa.string()) if not pa.types.is_string(column.type) else column
            return _code_names(pc.index_in(found, value_set=self.values), found, None, place, what, among)
        table = pc.index_in(column.dictionary.cast(pa.string()), value_set=self.values)
        return _code_names(table, column.dictionary, column.indices, place, what, among)


def _code_names(
    codes: pa.Array, names: pa.Array, indices: pa.Array | None, place: str, what: str, among: str
) -> Column:
    """Codes for the names or, if there are indices, for the rows that these point to."""
    if codes.null_count == 0:
        table = codes.to_numpy(zero_copy_only=False)
        return table if indices is None else gather_values(table, indices)
    table = codes.fill_null(ABSENT).to_numpy(zero_copy_only=False)
    found = table if indices is None else gather_values(table, indices)
    strange = np.flatnonzero(found == ABSENT)
    if len(strange):  # A dictionary may hold names that no row uses.
        at = int(strange[0]) if indices is None else int(integers(indices)[strange[0]])
        raise BadTrace(place, f"{what} {names[at]} is not one of {among}")
    return found


def gather_values(table: Column, indices: pa.Array) -> Column:
    """The table's values at these indices."""
    which = integers(indices)
    if not is_compiling():
        return table[which]
    found = np.empty(len(which), table.dtype)
    gather(table, which, found)
    return found


@allocating
def gather(table: Column, which: Column, found: Column) -> None:
    # NumPy would make 64 bits of each index first: this is three times as fast.
    for row in range(len(which)):
        found[row] = table[which[row]]


@dataclass(frozen=True, slots=True)
class Rows:
    """Some events of one run, as columns of equal length. Columns that were not asked for are None.

    Destinations of row r are `to[offsets[r] : offsets[r + 1]]`. Nulls of `clock` and of stamp sizes are -1.
    """

    process: Column
    """int32"""
    kind: Column
    """int8: SEND, RECEIVE, DELIVER of antecede.trace"""
    sender: Column
    """int32"""
    number: Column
    """int64"""
    control: Column
    """bool"""
    offsets: Column
    """int32, one more than there are rows"""
    to: Column
    """int32"""
    index: Column | None = None
    """int64"""
    clock: Column | None = None
    """int64"""
    time_ns: Column | None = None
    stamp_entries: Column | None = None
    stamp_bytes: Column | None = None

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, rows: Column) -> Rows:
        """The rows at these positions, in this order."""
        lengths = np.diff(self.offsets)[rows]
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        gather = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1][rows] - offsets[:-1], lengths)
        plain = {
            f.name: column[rows]
            for f in fields(self)
            if f.name not in ("offsets", "to") and (column := getattr(self, f.name)) is not None
        }
        return replace(self, **plain, offsets=offsets, to=self.to[gather])

    def in_order(self) -> Rows:
        """Sorted by (clock, process, index)."""
        if len(self) < 2:
            return self
        low, high = [int(key.min()) for key in self.keys], [int(key.max()) for key in self.keys]
        spans = [top - bottom + 1 for top, bottom in zip(high, low, strict=True)]
        if spans[0] * spans[1] * spans[2] >= 1 << 62:
            return self.take(np.lexsort(self.keys[::-1]))
        # One key of 64 bits is sorted several times faster than three.
        clock, process, index = (key - least for key, least in zip(self.keys, low, strict=True))
        key = (clock * spans[1] + process) * spans[2] + index
        return self if (key[1:] > key[:-1]).all() else self.take(np.argsort(key))

    @property
    def keys(self) -> tuple[Column, Column, Column]:
        """What rows are sorted by."""
        assert self.clock is not None
        assert self.index is not None
        return self.clock, self.process, self.index

    @classmethod
    def concatenate(cls, parts: Sequence[Rows]) -> Rows:
        """One after the other. All have the same columns."""
        starts = np.cumsum([0, *(len(part.to) for part in parts)])
        offsets = [part.offsets[:-1] + start for part, start in zip(parts, starts, strict=False)]
        plain = {
            f.name: np.concatenate([getattr(part, f.name) for part in parts])
            for f in fields(cls)
            if f.name != "offsets" and getattr(parts[0], f.name) is not None
        }
        return cls(**plain, offsets=np.append(np.concatenate(offsets), starts[-1]).astype(np.int32))


KIND_NAMES: Final = Names(KINDS, pa.array(KINDS, pa.string()))
"""In the order of their integers, not of their names."""


def rows_of(batch: pa.RecordBatch, names: Names, place: str = "events") -> Rows:
    """The events of a batch, all of one run. It has the columns of happened-before but `clock`; others if wanted.

    `place` says in an error where the batch is from: a file and a run.
    """
    refuse_nulls(batch, place)
    offsets, to = _destinations(batch.column("to"), names, place)
    numbers = {name: _numbers(batch.column(name)) for name in NUMBERS if name in batch.schema.names}
    return Rows(
        process=names.codes(batch.column("process"), place),
        kind=kinds_of(batch.column("kind"), place),
        sender=names.codes(batch.column("sender"), place, "sender"),
        control=batch.column("control").to_numpy(zero_copy_only=False),
        offsets=offsets,
        to=to,
        **numbers,
    )


def kinds_of(column: pa.Array, place: str) -> Column:
    """Kinds as SEND, RECEIVE and DELIVER."""
    return KIND_NAMES.codes(column, place, "kind", ", ".join(KINDS)).astype(np.int8)


def by_run(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The batch run by run, rows of a run in the order in which they stand."""
    column = batch.column("run")
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    codes = integers(column.indices)
    if len(codes) and (codes == codes[0]).all():
        yield column.dictionary[int(codes[0])].as_py(), batch
        return
    order = np.argsort(codes, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
        if len(rows):
            yield column.dictionary[int(codes[rows[0]])].as_py(), batch.take(pa.array(rows))


def integers(column: pa.Array) -> Column:
    """A column of integers without nulls as it lies in memory."""
    values: Column = column.to_numpy(zero_copy_only=True)
    return values


def _numbers(column: pa.Array) -> Column:
    return integers(column if column.null_count == 0 else column.fill_null(ABSENT))


def _destinations(column: pa.Array, names: Names, place: str) -> tuple[Column, Column]:
    """Where each row's destinations end, and all of them: null is none."""
    offsets = integers(column.offsets).astype(np.int32, copy=False)
    first, last = int(offsets[0]), int(offsets[-1])
    if column.null_count and pc.sum(pc.list_value_length(column)).as_py() != last - first:
        # A null hides some: flattening leaves them out, and takes its time.
        flat = column.flatten()
        lengths = pc.list_value_length(column).fill_null(0)
        offsets = np.concatenate(([0], np.cumsum(integers(lengths)))).astype(np.int32)
    else:
        flat = column.values[first:last]
        offsets = offsets - first if first else offsets
    if flat.null_count:
        raise BadTrace(
            place, f"a send has {flat.null_count} nulls among its destinations; each must be a name"
        )
    return offsets, names.codes(flat, place, "destination")
