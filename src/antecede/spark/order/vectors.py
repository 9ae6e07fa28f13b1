"""Vectors in NumPy: what tasks count of them, what is missing, and how times climb along them.

A batch of Arrow has whole vectors, as maps or arrays. Arrays of one length are a matrix, which is several times faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from antecede.jit import allocating
from antecede.spark.run_tasks import Numbers, find_starts, number_groups

__all__ = [
    "CELL",
    "FAULT",
    "LAST",
    "WORD",
    "Vectors",
    "climb_times",
    "count_batches",
    "find_gaps",
    "list_holes",
]

FINE: Final = 512
"""Cells into which the sums of a batch are counted, about: several for each cell of the sort."""

WORD, LAST, CELL, FAULT = range(4)


def count_batches(
    batches: Iterable[pa.RecordBatch], groups: list[str], is_map: bool
) -> Iterator[pa.RecordBatch]:
    """In a task: what `count_vectors` lists, of each batch."""
    for batch in batches:
        if len(batch):
            yield from count_batch(batch, groups, is_map)


def count_batch(batch: pa.RecordBatch, groups: list[str], is_map: bool) -> Iterator[pa.RecordBatch]:
    whose = number_groups(batch, groups)
    _, firsts = np.unique(whose, return_index=True)
    vectors = Vectors.of(batch, is_map)
    fault = vectors.find_faults()

    def give(what: int, group: Any, process: pa.Array, one: Any, two: Any, three: Any) -> pa.RecordBatch:
        first = pa.array(firsts[group])
        columns = {"what": pa.array(np.full(len(group), what, np.int8))}
        columns |= {name: batch.column(name).take(first) for name in groups}
        columns |= {"process": process, "one": one, "two": two, "three": three}
        return pa.record_batch({name: pa.array(column) for name, column in columns.items()})

    bad = np.flatnonzero(fault >= 0)
    if len(bad):
        zeros = np.zeros(len(bad), np.int64)
        yield give(FAULT, whose[bad], vectors.process.take(pa.array(bad)), fault[bad], zeros, zeros + 1)
    good = np.flatnonzero(fault < 0)
    if not len(good):
        return
    group, own, total = whose[good], vectors.own[good], vectors.sums()[good]
    # Numbers of each process, as words.
    code = encode(vectors.process.take(pa.array(good)))
    word = own >> 6
    order = np.lexsort((word, code, group))
    starts = find_starts(group[order], code[order], word[order])
    rows = good[order[starts]]
    bits = np.bitwise_or.reduceat(np.left_shift(np.int64(1), own[order] & 63), starts)
    many = np.diff(np.append(starts, len(order)))
    yield give(WORD, whose[rows], vectors.process.take(pa.array(rows)), word[order[starts]], bits, many)
    # Cells of the sums: as wide as keeps their number small.
    order = np.lexsort((total, group))
    starts = find_starts(group[order])
    ends = np.append(starts[1:], len(order)) - 1
    span = total[order[ends]] - total[order[starts]]
    share = np.maximum(1, FINE * np.diff(np.append(starts, len(order))) // len(order))
    width = np.array([int(one).bit_length() for one in span // share], np.int64)
    bits_of = np.zeros(int(group.max()) + 1, np.int64)
    bits_of[group[order[starts]]] = width
    cell = total >> bits_of[group]
    starts = find_starts(group[order], cell[order])
    rows = order[starts]
    none = pa.nulls(len(rows), vectors.process.type)
    many = np.diff(np.append(starts, len(order)))
    yield give(CELL, group[rows], none, bits_of[group[rows]], cell[rows], many)
    # The largest entries.
    group, process, last = vectors.find_lasts(whose, fault < 0)
    yield give(LAST, group, process, last, np.zeros(len(last), np.int64), np.zeros(len(last), np.int64))


def encode(column: pa.Array) -> Any:
    """A number for each value, from 0, in the order in which they come."""
    return pc.dictionary_encode(column, "encode").indices.to_numpy().astype(np.int64)


class Vectors:
    """The vectors of a batch: entries one after the other, or a matrix if all have one length."""

    def __init__(
        self, process: pa.Array, vectors: Any, keys: Any, values: Any, parents: Any, width: int
    ) -> None:
        self.process, self.vectors = process, vectors
        self.keys, self.parents, self.width = keys, parents, width
        self.null = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
        self.values = values.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)

    @classmethod
    def of(cls, batch: pa.RecordBatch, is_map: bool) -> Vectors:
        process, vectors = batch.column("__process"), batch.column("__vector")
        if is_map:
            # Spark's null maps have no entries. (Arrow takes no mask with the offsets of a slice.)
            lists = pa.ListArray.from_arrays(vectors.offsets, vectors.items)
            keyed = pa.ListArray.from_arrays(vectors.offsets, vectors.keys)
            parents = pc.list_parent_indices(lists).to_numpy()
            return cls(process, vectors, keyed.flatten(), lists.flatten(), parents, 0)
        lengths = pc.list_value_length(vectors)
        if not lengths.null_count and pc.min(lengths) == pc.max(lengths) and lengths[0].as_py():
            return cls(process, vectors, None, vectors.flatten(), None, lengths[0].as_py())
        parents = pc.list_parent_indices(vectors).to_numpy()
        filled = lengths.fill_null(0).to_numpy()
        starts = np.cumsum(filled) - filled
        keys = pa.array(np.arange(len(parents)) - starts[parents])
        return cls(process, vectors, keys, vectors.flatten(), parents, 0)

    def sums(self) -> Any:
        if self.width:
            return self.values.reshape(-1, self.width).sum(axis=1)
        total = np.zeros(len(self.process), np.int64)
        np.add.at(total, self.parents, self.values)
        return total

    def find_faults(self) -> Any:
        """For each row the first of `FAULTS` that it has, or -1."""
        rows = len(self.process)
        fault = np.full(rows, -1, np.int64)
        fault[self.own < 1] = 4
        parents = np.repeat(np.arange(rows), self.width) if self.width else self.parents
        fault[parents[self.values < 0]] = 3
        if self.null is not None:
            fault[parents[self.null]] = 2
        fault[self.vectors.is_null().to_numpy(zero_copy_only=False)] = 1
        fault[self.process.is_null().to_numpy(zero_copy_only=False)] = 0
        return fault

    @cached_property
    def own(self) -> Any:
        """Each row's own number, or 0."""
        rows = len(self.process)
        if self.width:
            place = self.process.fill_null(-1).to_numpy(zero_copy_only=False)
            inside = (place >= 0) & (place < self.width)
            matrix = self.values.reshape(rows, self.width)
            return np.where(inside, matrix[np.arange(rows), np.where(inside, place, 0)], 0)
        own = np.zeros(rows, np.int64)
        mine = pc.equal(self.keys, self.process.take(pa.array(self.parents)))
        mine = mine.fill_null(False).to_numpy(zero_copy_only=False)
        own[self.parents[mine]] = self.values[mine]
        return own

    def find_lasts(self, group: Any, good: Any) -> tuple[Any, pa.Array, Any]:
        """The largest entry of each process in each partition: (partition, process, entry)."""
        if self.width:
            order = np.argsort(group[good], kind="stable")
            rows = np.flatnonzero(good)[order]
            starts = find_starts(group[rows])
            matrix = self.values.reshape(-1, self.width)
            last = np.maximum.reduceat(
                matrix if len(rows) == len(matrix) and len(starts) == 1 else matrix[rows], starts
            )
            places = np.tile(np.arange(self.width, dtype=np.int64), len(starts))
            return np.repeat(group[rows[starts]], self.width), pa.array(places), last.ravel()
        some = good[self.parents]
        parents, values, keys = self.parents[some], self.values[some], self.keys.filter(pa.array(some))
        code = encode(keys)
        order = np.lexsort((code, group[parents]))
        starts = find_starts(group[parents][order], code[order])
        if not len(order):
            return order, keys, order
        return (
            group[parents][order[starts]],
            keys.take(pa.array(order[starts])),
            np.maximum.reduceat(values[order], starts),
        )


# What is missing


def find_gaps(
    line: Numbers, words: Numbers, bits: Numbers, last: Numbers
) -> tuple[Numbers, Numbers, Numbers]:
    """What is missing of 1 to `last` in each line, as ranges: the line, the first number and the last.

    Words come sorted by line and by word. A line without numbers has one word of no bits.

    >>> find_gaps(np.array([0, 1]), np.array([0, 0]), np.array([0b10110, 0]), np.array([6, 2]))
    (array([0, 0, 1]), array([3, 5, 1]), array([3, 6, 2]))
    """
    there = np.unpackbits(bits.astype("<i8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little").view(
        bool
    )
    rows, offsets = np.nonzero(there)
    lines, firsts = np.unique(line, return_index=True)
    # Each line's numbers between two that are not missing: 0, which is before the first, and last + 1.
    group = np.concatenate([line[rows], lines, lines])
    number = np.concatenate([words[rows] * 64 + offsets, np.zeros(len(lines), np.int64), last[firsts] + 1])
    order = np.lexsort((number, group))
    group, number = group[order], number[order]
    found = np.flatnonzero((np.diff(number) > 1) & (group[1:] == group[:-1]))
    return group[found], number[found] + 1, number[found + 1] - 1


def list_holes(batches: Iterator[pa.RecordBatch], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """`find_gaps` for a task: rows (names..., word, bits, last), sorted by names and word, to (names..., first, last).

    All words of a task are held: a sixty-fourth of the rows that they stand for.
    """
    held = list(batches)
    if not sum(map(len, held)):
        return
    table = pa.Table.from_batches(held).combine_chunks()
    line = number_groups(table, names)
    columns = (table[name].to_numpy() for name in ("word", "bits", "last"))
    group, first, last = find_gaps(line, *columns)
    found = table.select(list(names)).take(find_starts(line)[group])
    found = found.append_column("first", pa.array(first)).append_column("last", pa.array(last))
    yield from found.combine_chunks().to_batches()


# Times


def climb_times(group: Any, vectors: Vectors, time: Any) -> Any:
    """For each row the greatest of its own time and those of all rows that its vector counts.

    The rows are whole partitions without faults. An entry (process, n) stands for that process's row n, or the last
    one before it that is there: what came before it at that process is in its key already.
    """
    own, entry = vectors.process, np.arange(vectors.width)
    if vectors.keys is None:
        own = own.to_numpy(zero_copy_only=False).astype(np.int64)
    else:
        both = encode(pa.concat_arrays([own, vectors.keys.cast(own.type)]))
        own, entry = both[: len(time)], both[len(time) :]
    many = int(max(own.max(initial=0), entry.max(initial=0))) + 1
    pair = group * many + own
    order = np.lexsort((vectors.own, pair))
    starts = np.searchsorted(pair[order], np.arange((int(group.max(initial=0)) + 1) * many + 1))
    ends = np.arange(len(time) + 1) * vectors.width
    if not vectors.width:
        ends = np.concatenate([[0], np.cumsum(np.bincount(vectors.parents, minlength=len(time)))])
    by_sum = np.argsort(vectors.sums(), kind="stable")
    numbers = vectors.own[order]
    return climb(
        by_sum, group, pair, many, vectors.width, entry, vectors.values, ends, starts, numbers, order, time
    )


@allocating
def climb(
    rows: Any, group: Any, pair: Any, many: Any, width: Any, entry: Any, values: Any, ends: Any, starts: Any,
    numbers: Any, place: Any, time: Any,
) -> Any:  # fmt: skip
    """In the order of the sums: what a vector counts has a smaller sum."""
    key = time.copy()
    for row in rows:
        for at in range(ends[row], ends[row + 1]):
            line = group[row] * many + entry[at - ends[row] if width else at]
            number = values[at] - 1 if line == pair[row] else values[at]
            low, high = starts[line], starts[line + 1]
            found = low + number - 1
            if number < 1 or high == low:
                continue
            if found >= high or numbers[found] != number:
                found = low + np.searchsorted(numbers[low:high], number, side="right") - 1
            if found >= low:
                key[row] = max(key[row], key[place[found]])
    return key
